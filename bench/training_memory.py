"""Chapter 13: the most memory that a process holds while it trains, as the operating system counts
it, for several models.

Each case is a fresh process. It trains a tiny model first, whose peak is subtracted, then two steps
of the case's model.
"""
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator

import torch
from torch import nn

from bench import SEED, ticked
from tfmlib.accounting import RecomputedBlock, fused_causal
from tfmlib.checkpoints import GPT2, LLAMA3, ModelConfig, build
from tfmlib.decoders import next_token_loss
from tfmlib.heads import grouped_query_attention
from tfmlib.workbench import spread

REPEATS = 3
FIELDS = "case", "parts", "V", "C", "L", "H", "G", "F", "B", "T", "attention", "recompute"
CASES = [dict(zip(FIELDS, case)) for case in (
    ("many tokens", "Llama", 4096, 256, 8, 4, 2, 688, 8, 256, "fused", "no"),
    ("few tokens", "Llama", 8192, 768, 8, 12, 4, 2048, 1, 64, "fused", "no"),
    ("recomputed", "Llama", 4096, 256, 16, 4, 2, 688, 8, 512, "fused", "yes"),
    ("with the matrix", "Llama", 2048, 256, 6, 8, 8, 688, 4, 512, "matrix", "no"),
    ("GPT-2's parts", "GPT-2", 4096, 384, 8, 6, 6, 1536, 8, 256, "fused", "no"),
)]
TINY = dict(zip(FIELDS, ("tiny", "Llama", 64, 32, 1, 4, 2, 64, 2, 16, "fused", "no")))
MMAP = {"MALLOC_MMAP_THRESHOLD_": "65536"}          # glibc: what is freed goes back to the system


def peak() -> int:
    "The most bytes that this process has held."
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def train(case: dict, steps: int = 2) -> None:
    "A few steps of training on random tokens."
    config = ModelConfig("decoder", case["V"], case["C"], case["L"], case["H"], case["T"],
                         n_kv_heads=case["G"], d_ff=case["F"],
                         **{"Llama": LLAMA3, "GPT-2": GPT2}[case["parts"]])
    model = build(config, fused_causal if case["attention"] == "fused" else grouped_query_attention)
    if case["recompute"] == "yes":
        model.stack.blocks = nn.ModuleList(map(RecomputedBlock, model.stack.blocks))
    ids = torch.randint(case["V"], (case["B"], case["T"] + 1),
                        generator=torch.Generator().manual_seed(SEED))
    optimiser = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimiser.zero_grad()
        total, count = next_token_loss(model, ids)
        (total / count).backward()
        optimiser.step()


def above(name: str) -> int:
    "What a case needs beyond the tiny model, in this process."
    torch.set_num_threads(1)
    train(TINY)
    before = peak()
    train(next(case for case in CASES if case["case"] == name))
    return peak() - before


def once(name: str) -> float:
    "The same, in a process of its own, in MB."
    done = subprocess.run([sys.executable, "-m", "bench.training_memory", name],
                          env=os.environ | MMAP, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1e6


def measure(seed: int) -> Iterator[dict]:
    "Each case, several times."
    for case in ticked(CASES):
        yield case | {"peak MB": spread(once(case["case"]) for _ in range(REPEATS))}


if __name__ == "__main__": print(above(sys.argv[1]))
