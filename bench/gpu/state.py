"""Chapter 20 on a GPU: the time for one more token after contexts of several lengths, with
attention, a hybrid, and gated delta layers only, in 16 bits.

As in chapter 16's stage, the time includes the host's work, above all the launches of many small
kernels.
"""
from collections.abc import Callable, Iterator

import torch

from bench import scaled
from bench.gpu.cache import Setting
from bench.gpu.utilisation import half
from tfmlib.workbench import timed

SETTINGS = {
    "full": Setting("cuda", (32_000, 2048, 8, 16), (128, 1024, 8192, 65_536, 262_144)),
    "rehearsal": Setting("cpu", (64, 32, 4, 2), (80, 96), 2),
}


def cases(name: str, found) -> list[dict]:
    return [{"case": "state", "S": S} for S in SETTINGS[name].lengths]


@torch.no_grad()
def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One length of the context."
    from bench.state_speed import PATTERNS, bytes_of, config_of, memory_after, step_of
    from tfmlib.checkpoints import build
    from tfmlib.linear_and_state_space import CachedHybridLM
    s, S = SETTINGS[name], case["S"]
    dtype = half() if s.device == "cuda" else torch.float32
    row = {"case": "state", "S": S, "C": s.sizes[1], "L": s.sizes[2]}
    for kind in PATTERNS:
        say(kind)
        cached = CachedHybridLM(build(config_of(kind, *s.sizes, S + 1)).to(s.device, dtype).eval())
        cache = memory_after(cached, S)
        took = timed({kind: step_of(cached, cache)}, s.repeats)
        row |= {f"{kind} bytes": bytes_of(cache), f"{kind} ms": scaled(took[kind], 1e3)}
        del cached, cache
    yield row
