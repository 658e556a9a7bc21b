"""Chapter 14: what a schedule that does not match the budget does to a scaling law.

The loss after D tokens is taken in four ways: at the end of a cosine that ends there (the sweep);
in the middle of a cosine that ends later, as Hoffmann et al. suspect of Kaplan et al.'s runs; in
the middle of a constant rate; and at the end of a matched cosine whose warm-up has the same number
of tokens for every budget, so that the shortest run ends within it. The first two come from the
runs of `scaling_sweep`, which are tested at every smaller budget on their way; the others are
trained here, with the sweep's rates. All four have the budgets from a quarter of a million to two
million tokens.
"""
from collections.abc import Iterator

from bench import scaling_sweep as sweep
from bench.scaling import Runs, case
from tfmlib.workbench import spread

WIDTHS = 16, 32, 64, 96
# tokens of the unmatched runs; of the fixed warm-up; its budgets
LONG, WARM, WARMED = 4_000_000, 400_000, (250_000, 500_000, 1_000_000, 2_000_000)
RUNS = Runs("scaling_schedule")


def rows_of(schedule: str, c: dict, found: dict) -> Iterator[dict]:
    "The losses of a run on its way, or with its end."
    for tokens, loss in found["curve"]:
        yield {"schedule": schedule, "C": c["C"], "N": found["N"], "N all": found["N all"],
               "planned": c["D"], "tokens": tokens, "seed": c["seed"], "loss": spread([loss])}


def own_cases(seed: int, law) -> dict[str, list[dict]]:
    "The runs that only this part trains."
    marks = [D for D in sweep.BUDGETS if D < LONG]
    cheap = sorted(WIDTHS)
    return {"constant": [case(C, LONG, seed, sweep.rate_of(law, C, LONG), kind="constant",
                              marks=marks) for C in cheap],
            "fixed warm-up": [case(C, D, seed, sweep.rate_of(law, C, D), warm=WARM) for C in cheap
                              for D in WARMED]}


def measure(seed: int) -> Iterator[dict]:
    "Every schedule; the sweep must be there, or is made."
    law = sweep.rate_law(sweep.searched(seed))
    cases = [c for c in sweep.planned(seed, law) if c["C"] in WIDTHS and c["seed"] == seed]
    for c, found in zip(cases, sweep.RUNS.complete(cases), strict=True):
        *way, end = found["curve"]
        yield from rows_of("matched cosine", c, found | {"curve": [end]})
        if c["D"] == LONG: yield from rows_of("longer cosine", c, found | {"curve": way})
    own = own_cases(seed, law)
    RUNS.complete([c for cases in own.values() for c in cases])
    for schedule, cases in own.items():
        for c, found in zip(cases, RUNS.complete(cases), strict=True):
            yield from rows_of(schedule, c, found)
