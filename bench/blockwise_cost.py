"""Chapter 17: time and memory of attention with its matrix, in tiles, and fused in PyTorch,
against length."""
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F

from bench import scaled, ticked
from tfmlib.attention import attention, causal_mask
from tfmlib.flash_attention import blockwise_attention
from tfmlib.workbench import spread, timed

LENGTHS, HEADS, WIDTH, REPEATS, PROCESSES = (512, 1024, 2048, 4096, 8192), 4, 64, 5, 3


def ways(causal: bool) -> dict:
    "Three ways to the same attention."
    def matrix(q, k, v):
        return attention(q, k, v, causal_mask(q.shape[2], k.shape[2]) if causal else None)[0]
    return {"attend": matrix, "blockwise": lambda q, k, v: blockwise_attention(q, k, v,
            causal=causal)[0],
            "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)}


def there(way, tensors) -> None:
    with torch.no_grad(): way(*tensors)


def there_and_back(way, tensors) -> None:
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = way(*leaves)
    torch.autograd.grad(out, leaves, torch.ones_like(out))


def draw(n: int, seed: int):
    return torch.randn(3, 1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def calls(causal: bool, run, tensors) -> dict:
    "What is timed."
    return {name: lambda way=way: run(way, tensors) for name, way in ways(causal).items()}


def high_water() -> float:
    "The most memory that this process has held, in MiB."
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def added(name: str, n: int, causal: bool, run, seed: int) -> float:
    """How much one call adds to the most memory that this process has held; for a process that
    does nothing else."""
    torch.set_num_threads(1)
    # what is loaded at the first call does not count
    run(ways(causal)[name], draw(64, seed))
    tensors = draw(n, seed)
    before = high_water()
    run(ways(causal)[name], tensors)
    return high_water() - before


def peak(name: str, n: int, causal: bool, run, seed: int) -> dict:
    "The memory of one call, each time in a fresh process."
    found = []
    for i in range(PROCESSES):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found.append(pool.submit(added, name, n, causal, run, seed + i).result())
    return spread(found)


def measure(seed: int) -> list[dict]:
    "Milliseconds and MiB, forward alone and with the way back, on one thread."
    rows = []
    for causal in (False, True):
        for label, run in (("forward", there), ("both", there_and_back)):
            for n in ticked(LENGTHS, "length"):
                taken = timed(calls(causal, run, draw(n, seed)), REPEATS)
                row = {"N": n, "H": HEADS, "D": WIDTH, "way": label, "causal": str(causal)}
                rows.append(row | {f"{name} ms": scaled(t, 1e3) for name, t in taken.items()}
                            | {f"{name} MiB": peak(name, n, causal, run, seed) for name in taken})
    return rows
