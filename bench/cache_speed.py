"""Chapter 16: the processor's time for one more token after a context of several lengths, with a
cache and without one, on one thread; and the cache's bytes."""
import time
from collections.abc import Iterator

import torch

from bench import scaled
from tfmlib.accounting import fused_causal
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.workbench import timed

REPEATS = 7
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
CONFIG = ModelConfig("decoder", 2048, 256, 4, 8, 2112, n_kv_heads=2, **MODERN)


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    "Each length in turn."
    whole, cached = (build(CONFIG, fused_causal, seed).eval(),
                     CachedCausalLM(build(CONFIG, seed=seed).eval()))
    for S in LENGTHS:
        ids = torch.randint(2048, (1, S + 1), generator=torch.Generator().manual_seed(seed))
        cache = cached.new_cache()
        cached(ids[:, :S], cache)
        def step(ids=ids, cache=cache):
            cached(ids[:, -1:], cache)
            cache.drop(1)
        took = timed({"without": lambda ids=ids: whole.logits(whole.hidden_states(ids)[0][:, -1:]),
                      "with": step}, REPEATS, time.process_time)
        layer = cache.layers[0]
        yield {"S": S, "bytes": len(cache.layers)
               * (layer.k[:, :, :S].nbytes + layer.v[:, :, :S].nbytes),
               **{f"{name} ms": scaled(taken, 1e3) for name, taken in took.items()}}
