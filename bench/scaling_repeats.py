"""Chapter 14: how much tokens are worth that are read several times.

Two sizes are trained on a quarter of a million different tokens up to sixteen times, and on a
million up to four times, each with a cosine that ends with the run. They are compared with runs of
the sweep that read as many tokens, all different, at the same learning rate.
"""
from collections.abc import Iterator

from bench import scaling_sweep as sweep
from bench.scaling import Runs, case
from tfmlib.workbench import spread

# at most so many tokens in all
WIDTHS, UNIQUE, EPOCHS, MOST = (32, 96), (250_000, 1_000_000), (2, 4, 8, 16), 4_000_000
RUNS = Runs("scaling_repeats")


def planned(seed: int, law) -> list[dict]:
    "The runs with repetition, at the rate of as many tokens that are all different."
    grid = [(C, U, n) for U in UNIQUE for n in EPOCHS for C in WIDTHS if U * n <= MOST]
    grid.sort(key=lambda run: run[1] * run[2] * sweep.MICROSECONDS.get(run[0], 0))
    return [case(C, U * n, seed, sweep.rate_of(law, C, U * n), unique=U) for C, U, n in grid]


def measure(seed: int) -> Iterator[dict]:
    "Runs that read everything once, and those that read it again."
    law = sweep.rate_law(sweep.searched(seed))
    once = [c for c in sweep.planned(seed, law) if c["C"] in WIDTHS and c["seed"] == seed
            and c["D"] <= MOST]
    again = planned(seed, law)
    for runs, cases in ((sweep.RUNS, once), (RUNS, again)):
        for c, found in zip(cases, runs.complete(cases), strict=True):
            unique = c["unique"] or c["D"]
            yield {"C": c["C"], "N": found["N"], "unique": unique, "epochs": round(c["D"] / unique),
                   "tokens": found["curve"][-1][0], "loss": spread([found["curve"][-1][1]])}
