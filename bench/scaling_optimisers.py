"""Chapter 14: AdamW and Muon, each with a cosine and with warm-up, stable rate and decay, all at
equal tuning.

One small decoder and the prose of `bench.scaling`. Every recipe has five candidates for its peak
rate, each twice the one before, tried with one seed at the length that the recipe is used for; the
best candidate is then run with further seeds. A cosine is one run for each length. With a stable
rate, one trunk serves all lengths: a copy of the trunk decays over the last fifth of each. The
trunk's rate is the best one at the longest length. Muon moves the matrices of the blocks, AdamW
everything else, both at the same rate.
"""
import copy
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch

from bench.scaling import CODE, DECAY, Order, Runs, code_digest, loss, made, sizes, tested
from tfmlib.scaling_laws import Muon, block_matrices
from tfmlib.workbench import (
    AdamW,
    Diverged,
    WarmupCosine,
    WarmupStableDecay,
    parameter_groups,
    spread,
    train,
)

DEVICE = "cpu"
SEED = 0
# PART: of a length, for the decay; EACH: steps in a mean of the way
WIDTH, LAYERS, LENGTHS, WARM, PART, EACH = 64, 2, (300, 600), 30, 0.2, 30
# of a step, on average: what a budget is divided by
TOKENS = 929


def case(optimiser: str, schedule: str, steps: int, rate: float, seed: int) -> dict:
    return {"optimiser": optimiser, "schedule": schedule, "steps": steps, "rate": rate,
            "seed": seed}


def optimiser_of(model: torch.nn.Module, name: str, rate) -> AdamW:
    """AdamW, or Muon for the matrices of the blocks; both with the same decay of weights and the
    same clipping."""
    same = {"betas": (0.9, 0.95), "clip": 1.0}
    if name == "AdamW": return AdamW(parameter_groups(model, DECAY), rate, **same)
    return Muon(parameter_groups(model, DECAY), rate, matrices=block_matrices(model), **same)


def decayed(steps: int, peak: float) -> WarmupStableDecay:
    return WarmupStableDecay(peak, WARM, steps, decay=round(PART * steps))


def branch(model: torch.nn.Module, optimiser: AdamW, name: str, rate) -> tuple:
    "A copy of a model and of its optimiser's state, with a new schedule."
    model = copy.deepcopy(model)
    own = optimiser_of(model, name, rate)
    with torch.no_grad():
        for key, t in own.state().items(): t.copy_(optimiser.state()[key])
    return model, own


def means(values: list[float], first: int = 0) -> list[list]:
    "The mean loss over every EACH steps, with the step at which they end."
    return [[first + at + EACH, round(fmean(values[at:at + EACH]), 5)]
            for at in range(0, len(values), EACH)]


def run(c: dict) -> dict:
    """One run: the tested loss at its end; with a stable rate, of every length's decay from the
    one trunk, and of the trunk before it."""
    torch.set_num_threads(1)
    order, model, name, seed = (Order(c["steps"] * TOKENS, c["seed"]),
                                made(WIDTH, c["seed"], layers=LAYERS), c["optimiser"], c["seed"])
    found, spent = {"ends": {}, "trunk": {}, "way": {"run": []}}, [0, 0.0]

    def trained(model: torch.nn.Module, optimiser: AdamW, until: int) -> list[list]:
        start, began = int(optimiser.done), time.process_time()
        values = train(model, loss, order, until, optimiser, seed=seed)["loss"].tolist()
        spent[0] += until - start
        spent[1] += time.process_time() - began
        return means(values, start)

    if c["schedule"] == "cosine":
        optimiser = optimiser_of(model, name, WarmupCosine(c["rate"], WARM, c["steps"]))
        found["way"]["run"] = trained(model, optimiser, c["steps"])
        found["ends"][str(c["steps"])] = round(tested(model), 6)
    else:
        optimiser = optimiser_of(model, name, decayed(c["steps"], c["rate"]))
        for length in (n for n in LENGTHS if n <= c["steps"]):
            start = length - round(PART * length)
            found["way"]["run"] += trained(model, optimiser, start)
            found["trunk"][str(start)] = round(tested(model), 6)
            twin, own = branch(model, optimiser, name, decayed(length, c["rate"]))
            found["way"][f"decay to {length}"] = trained(twin, own, length)
            found["ends"][str(length)] = round(tested(twin), 6)
    return found | {"steps": spent[0], "seconds": round(spent[1], 1)} | sizes(WIDTH, LAYERS)


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS = 3
RATES = {("AdamW", "cosine"): (0.004, 0.008, 0.016, 0.032, 0.064),
         ("AdamW", "WSD"): (0.002, 0.004, 0.008, 0.016, 0.032),
         # five each, around the best
         ("Muon", "cosine"): (0.004, 0.008, 0.016, 0.032, 0.064),
         ("Muon", "WSD"): (0.004, 0.008, 0.016, 0.032, 0.064)}
RUNS = Runs("scaling_optimisers",
            CODE + code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def safely(c: dict) -> dict:
    "A run; if it diverges, with an infinite loss at every end."
    try: return run(c)
    except Diverged:
        return {"ends": {str(n): float("inf") for n in LENGTHS if n == c["steps"] or c["schedule"]
                         == "WSD" and n < c["steps"]}}


def complete(optimiser: str, schedule: str, steps: int, rates: list[float],
             seeds: list[int]) -> list[dict]:
    return RUNS.complete([case(optimiser, schedule, steps, rate, seed) for rate in rates
                          for seed in seeds], safely, workers=1)


def search(optimiser: str, schedule: str, length: int, seed: int) -> dict[float, float]:
    """The loss of each candidate at a length; with a stable rate, at a decay from the trunk of
    the longest."""
    rates = RATES[optimiser, schedule]
    runs = complete(optimiser, schedule, length if schedule == "cosine" else LENGTHS[-1],
                    rates, [seed])
    return {rate: found["ends"][str(length)] for rate, found in zip(rates, runs, strict=True)}


def rows_of(about: dict, runs: list[dict]) -> Iterator[dict]:
    """The end of a recipe at a length, the way to it, and the trunk before its decay; what the
    longest has in common with others, it shows."""
    length, stable = about["length"], about["schedule"] == "WSD"
    yield about | {"what": "end", "N": runs[0]["N"], "N all": runs[0]["N all"],
                   "loss": spread([found["ends"][str(length)] for found in runs]),
                   "ms a step": spread([1e3 * found["seconds"] / found["steps"] for found in runs])}
    for part in runs[0]["way"]:
        if part != f"decay to {length}" and (part != "run" or stable and length < LENGTHS[-1]):
            continue
        for points in zip(*(found["way"][part] for found in runs), strict=True):
            yield (about | {"what": "way", "part": part, "step": points[0][0],
                            "loss": spread([value for _, value in points])})
    if stable:
        start = length - round(PART * length)
        yield (about | {"what": "trunk", "step": start,
                        "loss": spread([found["trunk"][str(start)] for found in runs])})


def measure(seed: int) -> Iterator[dict]:
    "For each recipe and length the search, then its best rate with all seeds."
    for optimiser, schedule in RATES:
        # its rate: the best at the longest length
        trunk = None
        for length in LENGTHS if schedule == "cosine" else reversed(LENGTHS):
            about, losses = ({"optimiser": optimiser, "schedule": schedule, "length": length},
                             search(optimiser, schedule, length, seed))
            yield from (about | {"what": "search", "rate": f"{rate:g}", "loss": spread([end])}
                        for rate, end in losses.items() if math.isfinite(end))
            rate = min(losses, key=losses.__getitem__)
            if schedule == "WSD": trunk = rate = trunk or rate
            steps = LENGTHS[-1] if schedule == "WSD" else length
            yield from rows_of(about | {"rate": f"{rate:g}"},
                               complete(optimiser, schedule, steps, [rate],
                                        [seed + n for n in range(SEEDS)]))
