"""Chapter 20: the processor's time for one more token after a context of several lengths, and
the bytes of the memory, with attention only, a hybrid, and gated delta layers only; on one
thread."""
import time
from collections.abc import Iterator

import torch

from bench import scaled
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.kv_cache import KVCache
from tfmlib.linear_and_state_space import CachedHybridLM
from tfmlib.workbench import timed

REPEATS = 9
LENGTHS = (128, 512, 2048, 8192, 32_768)
PATTERNS = {"attention": ("attention",), "hybrid": ("gated delta",) * 3 + ("attention",),
            "gated delta": ("gated delta",)}


def config_of(kind: str, V: int, C: int, L: int, H: int, max_len: int) -> ModelConfig:
    return ModelConfig("hybrid decoder", V, C, L, H, max_len, attention="hybrid",
                       options={"mixers": PATTERNS[kind]}, **MODERN)


@torch.no_grad()
def memory_after(cached: CachedHybridLM, S: int):
    """States and caches after S random tokens: states have read 64 of them, and caches are
    filled with random keys and values; neither changes the time."""
    g, where = torch.Generator().manual_seed(0), next(cached.parameters())
    cache = cached.new_cache()
    cached(torch.randint(cached.vocab_size, (1, 64), generator=g).to(where.device), cache)
    for layer in cache.layers:
        if not isinstance(layer, KVCache): continue
        k = torch.randn(1, layer.k.shape[1], S - 64, layer.k.shape[3], generator=g).to(where)
        layer.update(k, k, torch.arange(64, S, device=where.device)[None])
    cache.lengths = cache.lengths + S - 64
    return cache


def step_of(cached: CachedHybridLM, cache):
    """A call that reads one more token and removes it from the caches; a state, whose size is
    fixed, keeps it."""
    token = torch.zeros(1, 1, dtype=torch.int64, device=next(cached.parameters()).device)
    def step() -> None:
        cached(token, cache)
        for layer in cache.layers:
            if isinstance(layer, KVCache): layer.drop(1)
        cache.lengths = cache.lengths - 1
    return step


def bytes_of(cache) -> int:
    "Bytes in use."
    return sum(layer.k[:, :, :layer.length].nbytes + layer.v[:, :, :layer.length].nbytes
               if isinstance(layer, KVCache) else layer.nbytes for layer in cache.layers)


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    "Each length in turn."
    models = {kind: CachedHybridLM(build(config_of(kind, 2048, 256, 4, 4, max(LENGTHS) + 1),
                                         seed=seed).eval()) for kind in PATTERNS}
    for S in LENGTHS:
        caches = {kind: memory_after(model, S) for kind, model in models.items()}
        took = timed({kind: step_of(models[kind], caches[kind]) for kind in PATTERNS}, REPEATS,
                     time.process_time)
        yield {"S": S, **{f"{kind} bytes": bytes_of(caches[kind]) for kind in PATTERNS},
               **{f"{kind} ms": scaled(t, 1e3) for kind, t in took.items()}}
