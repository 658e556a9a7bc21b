"""Measurements whose results the book keeps as records: `make bench`, on a GPU `make bench-gpu`.
Here is what the parts share."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

# the process that runs the GPU's stages needs no PyTorch
if TYPE_CHECKING:
    from torch import nn

# with which every part measures; those whose kept runs are under a digest of their code say it too
SEED = 0


def ticked(cases: Iterable, what: str = "case") -> Iterable:
    "The cases of a part one by one; in a terminal, a bar says which of how many is measured."
    try:
        from tqdm import tqdm
    # a machine that only measures on a GPU need not have it
    except ModuleNotFoundError:
        return list(cases)
    return tqdm(list(cases), unit=what, leave=False, disable=None)


def scaled(values: dict, by: float) -> dict:
    "A spread in another unit."
    return {name: value if name == "n" else by * value for name, value in values.items()}


def rates(seconds: dict, count: float) -> dict:
    "Things a second, from a spread of seconds."
    # the longest time is the lowest rate
    across = {"median": "median", "q10": "q90", "q90": "q10"}
    return ({name: count / seconds[other] for name, other in across.items() if other in seconds}
            | {"n": seconds["n"]})


def over_seeds(found: list[dict[str, float]]) -> dict[str, dict]:
    "What several seeds gave: for each quantity its spread, and each seed's number."
    from tfmlib.workbench import spread
    return {key: spread(f[key] for f in found) | {"each": [f[key] for f in found]}
            for key in found[0]}


def size(model: nn.Module) -> int:
    "How many parameters."
    return sum(p.numel() for p in model.parameters())


def climbed(loss: Callable[[float], float],
            peaks: Iterable[float]) -> tuple[float, dict[float, float]]:
    """The rate of the least loss, and the loss at each: a grid whose end is best goes on beyond
    it. A run that diverges has lost."""
    from tfmlib.workbench import Diverged
    def at(peak: float) -> float:
        try: return loss(peak)
        except Diverged: return float("inf")
    found = {peak: at(peak) for peak in peaks}
    while ((best := min(found, key=found.__getitem__)) in (ends := (min(found), max(found)))
           and len(found) > 1):
        beyond = best / 2 if best == ends[0] else 2 * best
        found[beyond] = at(beyond)
    return best, found


def even_width(made: Callable[[int], nn.Module], parameters: int) -> int:
    "The least even width at which `made` gives a model with at least so many parameters."
    return next(w for w in range(2, 1000, 2) if size(made(w)) >= parameters)
