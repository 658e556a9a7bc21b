"""Chapter 11: what the objectives teach with eight times the training, and with four times the fine-tuning, beside networks without pre-training.

Networks, stories, tasks and bounds are those of `denoiser_objectives`, which also chose the rate of each objective's pre-training; the grid of rates
for fine-tuning is wider, so that no best rate lies at its end unseen.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from bench import denoiser_objectives as base
from bench import ticked

DEVICE = "cpu"
SEED = 0
LONGER, TUNED, TUNE_PEAKS = 8, 600, (0.0005, 0.001, 0.002, 0.004)
KINDS = "span corruption", "causal LM", "BART", "prefix LM", "masked LM", "masked diffusion", "none", "none, two stacks", "none, both directions"


def trained_longer(name: str, seed: int) -> list[dict]:
    "One kind."
    torch.set_num_threads(1)
    base.TUNED, base.TUNE_PEAKS, seeds = TUNED, TUNE_PEAKS, [seed + s for s in base.SEEDS]                # in a process of its own
    if base.KINDS[name].objective is None: return base.over_tasks("longer", name, 0., 0, seeds)
    best = min(base.rates(name, seed), key=lambda row: row["loss"]["median"])["peak"]
    return base.over_tasks("longer", name, float(best), base.steps_of(name, LONGER * base.STEPS), seeds)


def measure(seed: int) -> Iterator[dict]:
    "Every kind in turn."
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "objective"), pool.map(trained_longer, KINDS, [seed] * len(KINDS)), strict=True): yield from rows
