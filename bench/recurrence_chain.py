"""Chapter 1: a chain of T dependent steps beside one matrix product of the same operations; what
a batch adds; how busy each keeps a core."""
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench import rates, scaled
from tfmlib.workbench import spread, timed

LENGTHS, BATCHES, WIDTH, REPEATS = (64, 128, 256, 512, 1024), (1, 4, 16, 64), 256, 25


def chain(W: Tensor, h: Tensor, T: int) -> Tensor:
    "T matrix-vector products, each of which needs the one before."
    for _ in range(T): h = W @ h
    return h


def watched(run: Callable, operations: int, seconds: float = 0.2) -> tuple[float, float]:
    "The share of time that this process keeps its core busy, and GFLOP/s."
    start, busy, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds: run(); done += operations
    passed = time.perf_counter() - start
    return min(1., (time.process_time() - busy) / passed), done / passed / 1e9


@torch.no_grad()
def measure(seed: int) -> list[dict]:
    """Milliseconds by length; steps a second of a recurrent layer by batch; the core's use. One
    thread."""
    torch.manual_seed(seed)
    W, h = torch.randn(WIDTH, WIDTH) / WIDTH**0.5, torch.randn(WIDTH)
    rows = []
    for T in LENGTHS:
        X = torch.randn(T, WIDTH)
        taken = timed({"chain": lambda T=T: chain(W, h, T),
                       "product": lambda X=X: X @ W.T}, REPEATS)
        rows.append({"T": T, "C": WIDTH, "FLOPs": 2 * T * WIDTH**2}
                    | {f"{name} ms": scaled(t, 1e3) for name, t in taken.items()})
    X, runs = torch.randn(512, WIDTH), {}
    for name, run in (("chain", lambda: chain(W, h, 512)), ("product", lambda: X @ W.T)):
        runs[name] = [watched(run, 2 * 512 * WIDTH**2) for _ in range(REPEATS)]
    rows += [{"watched": name, "T": 512, "busy": spread(b for b, _ in seen),
              "GFLOP/s": spread(s for _, s in seen)} for name, seen in runs.items()]
    layer = nn.RNN(WIDTH, WIDTH, batch_first=True)
    inputs = {B: torch.randn(B, 256, WIDTH) for B in BATCHES}
    taken = timed({B: lambda x=x: layer(x) for B, x in inputs.items()}, REPEATS)
    rows += [{"B": B, "T": 256, "C": WIDTH, "tokens a second": rates(t, 256 * B)}
             for B, t in taken.items()]
    return rows
