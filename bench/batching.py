"""Chapter 16: requests of many lengths served by static and by continuous batching, on one thread:
tokens a second, and the time to the first token.

Each seed is a trace of its own: prompts of 4 to 32 tokens, answers of 1 to 128 whose lengths are
geometric, and arrivals at random. The same trace is served by both, one after the other, by the
same model with weights as drawn: what it writes does not matter here.
"""
import time
from collections.abc import Iterator
from statistics import fmean

import torch

from bench import over_seeds, ticked
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.kv_cache.batching import Request, Scheduler, continuous, static
from tfmlib.kv_cache.paged import BlockPool

TRACES, REQUESTS, PLACES = 5, 48, 8
CONFIG = ModelConfig("decoder", 2048, 256, 4, 8, 192, n_kv_heads=2, **MODERN)


def trace(seed: int) -> list[Request]:
    "Requests as they arrive."
    g = torch.Generator().manual_seed(seed)
    def between(low, high): return int(torch.randint(low, high + 1, (1,), generator=g))
    def geometric(mean): return int(1 + torch.empty(1).geometric_(1 / mean, generator=g))
    arrival, made = 0, []
    for _ in range(REQUESTS):
        arrival += between(0, 8)
        prompt = torch.randint(2048, (between(4, 32),), generator=g).tolist()
        made.append(Request(prompt, min(128, geometric(32)), arrival))
    return made


def serve(model: CachedCausalLM, policy, seed: int) -> dict[str, float]:
    "One trace under one policy."
    requests, scheduler = trace(seed), Scheduler(model, BlockPool(8 * 12, 16), PLACES, policy)
    start = time.process_time()
    scheduler.run(requests)
    took, tokens = time.process_time() - start, sum(len(r.new) for r in requests)
    return {"passes": scheduler.step_count, "tokens per pass": tokens / scheduler.step_count,
            "tokens a second": tokens / took,
            "passes to the first token": fmean(r.steps[0] - r.arrival for r in requests),
            "requests per pass": fmean(scheduler.batch_sizes)}


def measure(seed: int) -> Iterator[dict]:
    "Both policies over the same traces."
    model = CachedCausalLM(build(CONFIG, seed=seed).eval())
    serve(model, static, seed)
    for policy in (static, continuous):
        yield {"policy": policy.__name__, "requests": REQUESTS, "places": PLACES,
               **over_seeds([serve(model, policy, seed + n)
                             for n in ticked(range(TRACES), "trace")])}
