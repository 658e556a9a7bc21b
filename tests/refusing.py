"""How the tests say that something is refused."""
from collections.abc import Callable

import pytest


def refuses(said: str, call: Callable, *given, **how) -> None:
    "A call with these arguments raises a ValueError whose message has what `said` describes."
    with pytest.raises(ValueError, match=said): call(*given, **how)
