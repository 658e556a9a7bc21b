"""Chapter 11: does the comparison of objectives change with three times the training? The main ones, at the rates that `denoiser_objectives` chose.

Networks, stories and tasks are those of `denoiser_objectives`; pre-training and tuning take three times as many steps, and the grid of rates for
tuning goes on where it ended there.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from bench import denoiser_objectives as base
from bench import ticked

DEVICE = "cpu"
SEED = 0
LONGER, SEEDS, KINDS = 3, 1, ("causal LM", "span corruption", "masked LM", "BART")
TUNED, TUNE_PEAKS = LONGER * base.TUNED, (0.001, 0.002, 0.004)


def trained_longer(name: str, seed: int) -> list[dict]:
    "One kind, three times as long."
    torch.set_num_threads(1)
    tried = base.rates(name, seed)
    best = min(tried, key=lambda row: row["loss"]["median"])["peak"]
    base.TUNED, base.TUNE_PEAKS = TUNED, TUNE_PEAKS                              # in a process of its own
    return base.over_tasks("longer", name, float(best), base.steps_of(name, LONGER * base.STEPS), [seed + s for s in range(SEEDS)])


def measure(seed: int) -> Iterator[dict]:
    "Every kind in turn."
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "objective"), pool.map(trained_longer, KINDS, [seed] * len(KINDS)), strict=True): yield from rows
