"""Chapter 11: what the objectives teach with eight times the training.

Networks, stories, tasks, fine-tuning and bounds are those of `denoiser_objectives`, which also
chose the rate of each objective's pre-training. Networks without pre-training cost nothing here:
their rows are in that record.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from bench import denoiser_objectives as base
from bench import ticked

LONGER = 8
KINDS = "span corruption", "causal LM", "BART", "prefix LM", "masked LM", "masked diffusion"


def trained_longer(name: str, seed: int) -> list[dict]:
    "One kind."
    torch.set_num_threads(1)
    best = min(base.rates(name, seed), key=lambda row: row["loss"]["median"])["peak"]
    return base.over_tasks("longer", name, float(best), base.steps_of(name, LONGER * base.STEPS),
                           [seed + s for s in base.SEEDS])


def measure(seed: int) -> Iterator[dict]:
    "Every kind in turn."
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "objective"),
                           pool.map(trained_longer, KINDS, [seed] * len(KINDS)), strict=True):
            yield from rows
