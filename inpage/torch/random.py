"Random numbers, under their other names."
from ._absent import refuser
from ._random import (  # noqa: F401
    default_generator,
    fork_rng,
    initial_seed,
    manual_seed,
    seed,
)

__getattr__ = refuser("torch.random")
