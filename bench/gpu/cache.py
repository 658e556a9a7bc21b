"""Chapter 16 on a GPU: the time for one more token after contexts of several lengths, with a cache
and without one, in 16 bits.

Without a cache, the whole text passes through the model, with PyTorch's fused attention. With one,
a single token does, and its attention reads the cache through a mask of positions, as in the book.
What the steps take from the host, above all the launches of many small kernels, is part of the
time. The book's models are imported only when a case begins, as in the other stages.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bench import scaled
from bench.gpu.utilisation import half
from tfmlib.workbench import timed


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
    device: str
    sizes: tuple[int, int, int, int]    # V, C, L, H of the model
    lengths: tuple[int, ...]            # of the context
    repeats: int = 10


SETTINGS = {
    "full": Setting("cuda", (32_000, 2048, 8, 16), (128, 512, 2048, 8192, 32_768)),
    "rehearsal": Setting("cpu", (64, 32, 2, 2), (8, 16), 2),
}


def cases(name: str, found) -> list[dict]:
    return [{"case": "cache", "S": S} for S in SETTINGS[name].lengths]


@torch.no_grad()
def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One length of the context."
    from tfmlib.accounting import fused_causal
    from tfmlib.checkpoints import MODERN, ModelConfig, build
    from tfmlib.kv_cache import CachedCausalLM
    s, S = SETTINGS[name], case["S"]
    V, C, L, H = s.sizes
    dtype = half() if s.device == "cuda" else torch.float32
    # two key-value heads
    config = ModelConfig("decoder", V, C, L, H, S + 1, n_kv_heads=2, **MODERN)
    whole = build(config, fused_causal).to(s.device, dtype).eval()
    cached = CachedCausalLM(build(config).to(s.device, dtype).eval())
    ids = torch.randint(V, (1, S + 1), generator=torch.Generator().manual_seed(0)).to(s.device)
    cache = cached.new_cache()
    # chunked: a full matrix of scores would not fit
    for part in ids[:, :S].split(1024, 1): cached(part, cache)
    def step():
        cached(ids[:, -1:], cache)
        cache.drop(1)
    took = timed({"without": lambda: whole.logits(whole.hidden_states(ids)[0][:, -1:]),
                  "with": step}, s.repeats)
    layer = cache.layers[0]
    yield {"case": "cache", "S": S, "C": C, "L": L,
           "bytes": L * (layer.k[:, :, :S].nbytes + layer.v[:, :, :S].nbytes),
           **{f"{way} ms": scaled(taken, 1e3) for way, taken in took.items()}}
