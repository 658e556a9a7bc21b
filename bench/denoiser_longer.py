"""Chapter 11: does the comparison of objectives change with three times the training? The main ones, at the rates that `denoiser_objectives` chose.

Networks, stories, tasks and tuning are those of `denoiser_objectives`, whose trained networks are used where they are kept.
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


def trained_longer(name: str, seed: int) -> list[dict]:
    "One kind, three times as long."
    torch.set_num_threads(1)
    tried = base.rates(name, seed)
    best = min(tried, key=lambda row: row["loss"]["median"])["peak"]
    return base.over_tasks("longer", name, float(best), base.steps_of(name, LONGER * base.STEPS), [seed + s for s in range(SEEDS)])


def measure(seed: int) -> Iterator[dict]:
    "Every kind in turn."
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "objective"), pool.map(trained_longer, KINDS, [seed] * len(KINDS)), strict=True): yield from rows
