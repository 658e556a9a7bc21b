"""Chapter 14: AdamW and Muon, each with a cosine and with warm-up, stable rate and decay, all at equal tuning.

One small decoder and the prose of `bench.scaling`. Every recipe has the same candidates for its peak rate, tried with one seed at the length that the
recipe is used for; the best candidate is then run with further seeds. A cosine is one run for each length. With a stable rate, one trunk serves all
lengths: a copy of the trunk decays over the last fifth of each. The trunk's rate is the best one at the longest length; for a shorter length, the table
also has the rate that is best at that length. Muon moves the matrices of the blocks, AdamW everything else, both at the same rate.
"""
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch

from bench.scaling import CODE, DECAY, Order, Runs, code_digest, loss, made, sizes, tested
from tfmlib.scaling_laws import Muon, block_matrices
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, WarmupStableDecay, parameter_groups, spread, train

DEVICE = "cpu"
SEED = 0
WIDTH, LAYERS, LENGTHS, WARM, PART, EACH = 64, 2, (300, 600), 30, 0.2, 30         # PART: of a length, for the decay; EACH: steps in a mean of the way
TOKENS = 929                                                          # of a step, on average: what a budget is divided by


def case(optimiser: str, schedule: str, steps: int, rate: float, seed: int) -> dict:
    return {"optimiser": optimiser, "schedule": schedule, "steps": steps, "rate": rate, "seed": seed}


def optimiser_of(model: torch.nn.Module, name: str, rate) -> AdamW:
    "AdamW, or Muon for the matrices of the blocks; both with the same decay of weights and the same clipping."
    same = {"betas": (0.9, 0.95), "clip": 1.0}
    if name == "AdamW": return AdamW(parameter_groups(model, DECAY), rate, **same)
    return Muon(parameter_groups(model, DECAY), rate, matrices=block_matrices(model), **same)


def decayed(steps: int, peak: float) -> WarmupStableDecay: return WarmupStableDecay(peak, WARM, steps, decay=round(PART * steps))


def branch(model: torch.nn.Module, optimiser: AdamW, name: str, rate) -> tuple:
    "A copy of a model and of its optimiser's state, with a new schedule."
    model = copy.deepcopy(model)
    own = optimiser_of(model, name, rate)
    with torch.no_grad():
        for key, t in own.state().items(): t.copy_(optimiser.state()[key])
    return model, own


def means(values: list[float], first: int = 0) -> list[list]:
    "The mean loss over every EACH steps, with the step at which they end."
    return [[first + at + EACH, round(fmean(values[at:at + EACH]), 5)] for at in range(0, len(values), EACH)]


def run(c: dict) -> dict:
    "One run: the tested loss at its end; with a stable rate, of every length's decay from the one trunk, and of the trunk before it."
    torch.set_num_threads(1)
    order, model, name, seed = Order(c["steps"] * TOKENS, c["seed"]), made(WIDTH, c["seed"], layers=LAYERS), c["optimiser"], c["seed"]
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


# --- what is run: a kept run depends only on its case and on the code above this line ---------------------------------

OPTIMISERS, SCHEDULES, RATES, SEEDS = ("AdamW", "Muon"), ("cosine", "WSD"), (0.004, 0.008, 0.016, 0.032, 0.064), 3
RUNS = Runs("scaling_optimisers", CODE + code_digest(Path(__file__).read_text(encoding="utf-8").partition("# --- what is run")[0]))


def safely(c: dict) -> dict:
    "A run; if it diverges, with an infinite loss at every end."
    try: return run(c)
    except Diverged: return {"ends": {str(n): float("inf") for n in LENGTHS if n == c["steps"] or c["schedule"] == "WSD" and n < c["steps"]}}


def complete(optimiser: str, schedule: str, steps: int, rates: list[float], seeds: list[int]) -> list[dict]:
    return RUNS.complete([case(optimiser, schedule, steps, rate, seed) for rate in rates for seed in seeds], safely, workers=1)


def search(optimiser: str, schedule: str, seed: int) -> dict[int, dict[float, float]]:
    "For each length the loss of each candidate."
    ends = {}
    for steps in LENGTHS if schedule == "cosine" else LENGTHS[-1:]:
        for rate, found in zip(RATES, complete(optimiser, schedule, steps, RATES, [seed]), strict=True):
            for length, end in found["ends"].items(): ends.setdefault(int(length), {})[rate] = end
    return ends


def rows_of(about: dict, runs: list[dict], length: int, way: bool) -> Iterator[dict]:
    "The end of a recipe at a length and, unless it is shown elsewhere, the way to it."
    kept = about | {"N": runs[0]["N"], "N all": runs[0]["N all"]}
    yield kept | {"kind": "end", "loss": spread([found["ends"][str(length)] for found in runs]),
                  "ms a step": spread([1e3 * found["seconds"] / found["steps"] for found in runs])}
    if not way: return
    for part in (part for part in runs[0]["way"] if part in ("run", f"decay to {length}")):
        if part == "run" and about["schedule"] == "WSD" and length < LENGTHS[-1]: continue
        for points in zip(*(found["way"][part] for found in runs), strict=True):
            yield about | {"kind": "way", "part": part, "step": points[0][0], "loss": spread([value for _, value in points])}
    for start in {round((1 - PART) * length)} if about["schedule"] == "WSD" else ():
        yield about | {"kind": "trunk", "step": start, "loss": spread([found["trunk"][str(start)] for found in runs])}


def measure(seed: int) -> Iterator[dict]:
    "The search of every recipe, then its best rates with all seeds."
    seeds = [seed + n for n in range(SEEDS)]
    for optimiser in OPTIMISERS:
        for schedule in SCHEDULES:
            ends, recipe = search(optimiser, schedule, seed), {"optimiser": optimiser, "schedule": schedule}
            best = {length: min(losses, key=losses.__getitem__) for length, losses in ends.items()}
            yield from (recipe | {"kind": "search", "length": length, "rate": f"{rate:g}", "loss": spread([end])}
                        for length, losses in ends.items() for rate, end in losses.items())
            for length in LENGTHS:
                about, own = recipe | {"length": length, "use": "own rate", "rate": f"{best[length]:g}"}, best[length]
                if schedule == "cosine": yield from rows_of(about, complete(optimiser, schedule, length, [own], seeds), length, True)
                else:
                    shared = best[LENGTHS[-1]]
                    yield from rows_of(about | {"use": "one trunk", "rate": f"{shared:g}"}, complete(optimiser, schedule, LENGTHS[-1], [shared], seeds), length, True)
                    if own != shared: yield from rows_of(about, complete(optimiser, schedule, length, [own], seeds), length, False)
