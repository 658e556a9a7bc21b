"""Chapter 14: the loss of decoders of eight sizes after up to six budgets of tokens, on prose whose
entropy is known.

First the learning rate: for several widths and budgets, in the standard and in the maximal-update
parametrisation, it is doubled or halved until the best of the tried rates has a worse neighbour on
both sides. A power law of width and budget through the best rates of the standard parametrisation
gives the rates of the sweep. Then the sweep: a cosine matched to each budget, three seeds up to
width 64 and two million tokens. The largest runs come last: their losses are predicted from the
smaller runs and recorded, with intervals, before they are trained. The law is fitted to one loss
for each width and budget, the mean over seeds, so that the sizes with three seeds do not count
three times. An interval is for one new run: it has the spread of the fitted laws and the scatter of
runs around them. Two reference predictions show how much the law adds: one without an irreducible
loss, and one with the known entropy.

The microseconds per token below were measured on one thread of a busy machine; they only order the
runs. By them, the search takes about 27 minutes of two processes, the sweep 1 hour 50 minutes;
`scaling_schedule` and `scaling_repeats` add 15 minutes each, `scaling_emergence` 6: two hours and
50 minutes in all. The committed runs took 6.8 hours of a core: three hours and 25 minutes of two
that had other work. The book's runs come from two machines, each with float32 on one thread of its
CPU: the search, the first seeds and all wide models from the one that the record names, further
seeds and most of the other parts from one with 16 cores. The seconds of a run are those of the
machine that trained it.
"""
import math
from collections.abc import Iterator

import torch

from bench import over_seeds
from bench.scaling import Runs, case, corpus, key, log_minimum, made, sizes
from tfmlib.accounting import shapes_of, training_flops
from tfmlib.scaling_laws import bootstrap, fit_power_law, interval, predictive_samples
from tfmlib.workbench import spread

WIDTHS = 16, 32, 48, 64, 96, 128, 192, 256
BUDGETS = 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000
# the longest budget of the widest; the others have all
LONGEST = {192: 4_000_000, 256: 4_000_000}
# three seeds up to this width and this budget, else one
SEEDS, SEEDED, SEEDED_BUDGET = 3, 64, 2_000_000
# predictions are made from all other runs, and from widths up to this one
NARROW = 128
# the largest runs
PREDICTED = {(192, 2_000_000), (192, 4_000_000), (256, 2_000_000), (256, 4_000_000)}
MICROSECONDS = {16: 23, 32: 35, 48: 49, 64: 67, 96: 91, 128: 138, 192: 237, 256: 394}
# widths and budgets of the search for the rate, and where it starts
TUNED = {
    "standard": ((16, 500_000, 0.032), (32, 500_000, 0.016), (64, 500_000, 0.008),
                 (128, 500_000, 0.008), (256, 500_000, 0.004),
                 (32, 2_000_000, 0.016), (64, 2_000_000, 0.008)),
    "maximal update": tuple((C, 500_000, 0.016) for C in (16, 32, 64, 128, 256)),
}
# how often a search may go on beyond its ends
ROUNDS = 4
RUNS = Runs("scaling_sweep")


# --- the rate -------------------------------------------------------------------------------------

def tried(start: float, losses: dict[float, float]) -> list[float]:
    "The rates of a search: three at first, then one beyond the end at which the best one lies."
    if not losses: return [start / 2, start, 2 * start]
    rates = sorted(losses)
    best = min(rates, key=losses.get)
    return rates + [rates[-1] * 2] * (best == rates[-1]) + [rates[0] / 2] * (best == rates[0])


def searched(seed: int) -> dict[tuple, dict[float, float]]:
    "For each parametrisation, width and budget the loss at each rate."
    found = {(way, C, D): {} for way, rows in TUNED.items() for C, D, _ in rows}
    starts = {(way, C, D): start for way, rows in TUNED.items() for C, D, start in rows}
    for _ in range(1 + ROUNDS):
        # longest first: the processes end together
        asked = sorted(((*at, rate) for at in found for rate in tried(starts[at], found[at])),
                       key=lambda a: -MICROSECONDS.get(a[1], 0) * a[2])
        cases = [case(C, D, seed, rate, way) for way, C, D, rate in asked]
        for (way, C, D, rate), result in zip(asked, RUNS.complete(cases), strict=True):
            found[way, C, D][rate] = result["curve"][-1][1]
    return found


def bracketed(losses: dict[float, float]) -> bool:
    "Does the best of the tried rates have a worse one on both sides?"
    return min(losses, key=losses.get) not in (min(losses), max(losses))


def best_rate(losses: dict[float, float]) -> float:
    "Between the tried rates, by a parabola."
    rates = sorted(losses)
    return log_minimum(rates, [losses[rate] for rate in rates])


def rate_law(found: dict[tuple, dict[float, float]]) -> torch.Tensor:
    """c, p, q of rate = exp(c) · width^p · budget^q, by least squares of the logarithms, through
    the best rates of the standard parametrisation."""
    points = [(C, D, best_rate(losses)) for (way, C, D), losses in found.items()
              if way == "standard"]
    C, D, rate = torch.tensor(points, dtype=torch.float64).log().T
    return torch.linalg.lstsq(torch.stack([torch.ones_like(C), C, D], 1),
                              rate[:, None]).solution[:, 0]


def rate_of(law: torch.Tensor, C: int, D: float) -> float:
    "The rate of a run, to two digits, so that the last bits of a machine do not decide it."
    at = torch.tensor([1., C, D], dtype=torch.float64)
    return float(f"{float((law * torch.cat([at[:1], at[1:].log()])).sum().exp()):.2g}")


# --- the sweep ------------------------------------------------------------------------------------

def planned(seed: int, law: torch.Tensor) -> list[dict]:
    """All runs of the sweep, seed by seed, the cheap ones first; each is tested at the smaller
    budgets on its way."""
    grid = [(C, D, s) for C in WIDTHS for D in BUDGETS if D <= LONGEST.get(C, D)
            for s in range(SEEDS if C <= SEEDED and D <= SEEDED_BUDGET else 1)]
    grid.sort(key=lambda run: (run[2], MICROSECONDS.get(run[0], 0) * run[1]))
    return [case(C, D, seed + s, rate_of(law, C, D), marks=BUDGETS) for C, D, s in grid]


def seed_means(done: list[tuple[dict, dict]]) -> tuple[torch.Tensor, torch.Tensor]:
    "Parameters and tokens (n, 2), and losses (n,), of each width and budget: means over the seeds."
    found = {}
    for c, result in done:
        found.setdefault((c["C"], c["D"]), []).append((result["N"], *result["curve"][-1]))
    x, loss = torch.stack([torch.tensor(rows, dtype=torch.float64).mean(0)
                           for rows in found.values()]).split([2, 1], 1)
    return x, loss[:, 0]


def predictions(done: list[tuple[dict, dict]], asked: list[tuple[int, float]],
                entropy: float) -> list[dict]:
    """What runs predict for larger ones, with 90 % intervals: from all of them or from the
    narrow ones; irreducible loss fitted, known or zero."""
    at, rows = torch.tensor([[sizes(C)["N"], D] for C, D in asked], dtype=torch.float64), []
    for runs, widest in (("all smaller runs", max(WIDTHS)), (f"widths up to {NARROW}", NARROW)):
        x, loss = seed_means([(c, found) for c, found in done if c["C"] <= widest])
        for what, floor in (("fitted", None), ("known", entropy), ("zero", 0.)):
            law, laws = fit_power_law(x, loss, floor), bootstrap(x, loss, floor)
            new = predictive_samples(law, laws, x, loss, at)
            rows += [{"from": runs, "floor": what, "C": C, "D": D, "loss": float(law(at)[i]),
                      "interval": interval(new[:, i])} for i, (C, D) in enumerate(asked)]
    return rows


def recorded_predictions(small: list[dict], largest: list[dict], entropy: float) -> list[dict]:
    "The predictions: made once, before any of the largest runs is trained, and kept."
    asked = {"prediction of": [[c["C"], c["D"]] for c in largest], "from": [key(c) for c in small]}
    def predict(_: dict) -> list[dict]:
        return predictions(list(zip(small, RUNS.complete(small), strict=True)),
                           [(c["C"], c["D"]) for c in largest], entropy)
    return RUNS.complete([asked], predict, workers=1)[0]


def operations(C: int) -> float:
    "Operations of training for each token, attention over a paragraph of mean length included."
    T = round(float(corpus()["tested lengths"].double().mean()))
    return training_flops(shapes_of(made(C, 0).config)[0], 1, T, causal=True) / T


def measure(seed: int) -> Iterator[dict]:
    "The entropy, the rates, the predictions, the sweep."
    entropy = corpus()["entropy"]
    yield {"what": "entropy", "V": corpus()["V"], "loss": spread([entropy])}
    found = searched(seed)
    for (way, C, D), losses in found.items():
        for rate in filter(lambda rate: math.isfinite(losses[rate]), sorted(losses)):
            yield {"what": "rate", "way": way, "C": C, "D": D, "peak": f"{rate:g}",
                   "loss": spread([losses[rate]])}
        yield {"what": "best rate", "way": way, "C": C, "D": D, "bracketed": bracketed(losses),
               "rate": spread([best_rate(losses)])}
    law = rate_law(found)
    yield {"what": "rate law",
           **{name: spread([value]) for name, value in zip(("constant", "of width", "of budget"),
                   law.tolist(), strict=True)}}
    cases = planned(seed, law)
    largest = [c for c in cases if (c["C"], c["D"]) in PREDICTED]
    small = [c for c in cases if c not in largest]
    RUNS.complete(small)
    for row in recorded_predictions(small, largest, entropy):
        yield {"what": "prediction", "from": row["from"], "floor": row["floor"], "C": row["C"],
               "D": row["D"], "loss": spread([row["loss"]]) | {"interval": row["interval"]}}
    # the longest first: the processes end together
    RUNS.complete(largest[::-1])
    results = {}
    for c, result in zip(cases, RUNS.complete(cases), strict=True):
        results.setdefault((c["C"], c["D"], c["rate"]), []).append(result)
    for (C, D, rate), made_ in sorted(results.items()):
        curves = [result["curve"] for result in made_]
        yield {"what": "run", "C": C, "N": made_[0]["N"], "N all": made_[0]["N all"], "D": D,
               "steps": made_[0]["steps"], "peak": f"{rate:g}",
               "FLOPs a token": round(operations(C)), "largest": (C, D) in PREDICTED,
               **over_seeds([{"tokens": curve[-1][0], "loss": curve[-1][1],
                              "seconds": result["seconds"]}
                             for curve, result in zip(curves, made_, strict=True)])}
