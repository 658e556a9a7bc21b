"""Chapter 13: a step of decoding at several batch sizes on one thread, in its processor time,
beside the processor's own peak and bandwidth, measured first.

The model's blocks compute one token of each sequence, without a cache: what is left are the
weights, which is what the crossing is about. A prompt of as many tokens takes the same weights; it
attends to its own tokens, too.
"""
import time
from collections.abc import Iterator

import torch

from bench import scaled
from tfmlib.accounting import fused_causal, measure_machine, multiplied_parameters, shapes_of
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.workbench import spread, timed

REPEATS = 7
CONFIG = ModelConfig("decoder", 64, 1024, 4, 8, 512, d_ff=2816, **MODERN)
BATCHES, PROMPTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (64, 256)


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    "The machine, then the batches and prompts in turn."
    found = [measure_machine() for _ in range(REPEATS)]
    yield {"case": "machine", "GFLOP/s": spread(m.peak / 1e9 for m in found),
           "GB/s": spread(m.bandwidth / 1e9 for m in found)}
    model, (shape,) = build(CONFIG, fused_causal, seed), shapes_of(CONFIG)
    g = torch.Generator().manual_seed(seed)
    inputs = {("batch", B): torch.randn(B, 1, CONFIG.d_model, generator=g) for B in BATCHES}
    inputs |= {("prefill", T): torch.randn(1, T, CONFIG.d_model, generator=g) for T in PROMPTS}
    took = timed({key: lambda x=x: model.logits(model.stack(x)[0]) for key, x in inputs.items()},
                 REPEATS, time.process_time)
    for (case, n), taken in took.items():
        yield {"case": case, "B" if case == "batch" else "T": n, "N": multiplied_parameters(shape),
               "ms": scaled(taken, 1e3)}
