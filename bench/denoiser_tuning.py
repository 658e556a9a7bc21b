"""Chapter 11: is the summary of `denoiser_objectives` a matter of how long the networks are trained on labelled cases? The same, with more steps.

The networks are those of `denoiser_objectives`, trained at the rates that it chose; the labelled cases, and the rate (the best for every kind), are the same too.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from bench import denoiser_objectives as base
from bench import over_seeds, ticked

DEVICE = "cpu"
SEED = 0
WORKERS, STEPS, RATE, TASK = 1, 500, 0.002, "condense"


def tuned_longer(name: str, seed: int) -> dict:
    "One kind."
    torch.set_num_threads(1)
    base.TUNED, peak, steps, found = STEPS, 0., 0, []
    if base.KINDS[name].objective:
        tried = base.rates(name, seed)
        peak, steps = float(min(tried, key=lambda row: row["loss"]["median"])["peak"]), base.steps_of(name)
    for s in base.SEEDS:
        model, test = base.pretrained(name, peak, seed + s, steps), base.questions(TASK, seed + s, -3, base.TESTS)
        found.append(base.judged(test, *base.answers(name, base.tuned(name, model, TASK, RATE, seed + s), test)))
    return {"what": "tuned longer", **base.facts_of(name), "peak": f"{peak:g}", "steps": steps, "task": TASK, "tuning steps": STEPS, "rate": f"{RATE:g}"} | over_seeds(found)


def measure(seed: int) -> Iterator[dict]:
    "Every kind in turn."
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for _, row in zip(ticked(base.KINDS, "objective"), pool.map(tuned_longer, base.KINDS, [seed] * len(base.KINDS)), strict=True): yield row
