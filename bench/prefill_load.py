"""Chapter 16: what a pass costs by its tokens, and two workers that serve the same requests by four
rules, at several rates of arrival.

The passes are those of SmolLM2 (python -m tfmlib fetch smollm2), on one thread, in its processor
time. The second cost is stated: a model of 8 billion weights in 16 bits on an H100, a pass of which
takes the longer of reading the weights and multiplying. What is served is simulated: only lengths
and times, no model. Prompts come first, or in chunks, on both workers, which take the requests in
turn; or one worker reads the prompts, and the other writes the answers.
"""
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean, quantiles

import torch

from bench import over_seeds
from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.kv_cache.mixed import (
    Arrival,
    latencies,
    poisson_arrivals,
    prompts_first,
    prompts_in_chunks,
    serve_apart,
    serve_arrivals,
)
from tfmlib.workbench import ASSETS, fetch_model, timed

SEEDS = 3
SIZES, ROWS, CONTEXT, REPEATS = (1, 2, 4, 8, 16, 32, 64, 128, 256), 8, 64, 3
WEIGHTS, PEAK, BANDWIDTH = 8e9, 989e12, 3.35e12                            # an H100 in bfloat16
# bytes of a token in the cache of Llama 3 8B; bytes a second from worker to worker
CACHE, LINK = 2 * 32 * 8 * 128 * 2, 50e9
CASES = {
    "8 billion, H100": {"prompts": {500: 0.8, 4000: 0.2}, "new": 200, "chunks": (256, 1024),
                        "rates": (10, 20, 30, 40, 50), "requests": 300, "limits": (0.25, 0.025)},
    "SmolLM2, a core": {"prompts": {32: 0.8, 256: 0.2}, "new": 32, "chunks": (64, 256),
                        "rates": (0.4, 0.8, 1.2), "requests": 150, "limits": (4.0, 0.6)},
}


@torch.no_grad()
def measured(repeats: int = REPEATS) -> Iterator[dict]:
    """Seconds of a pass over n tokens of one text, and over one token of each of several, after
    a context."""
    published = load_gguf(fetch_model("smollm2"))
    model = CachedCausalLM(published.model.eval())
    ids = torch.tensor(
        [published.tokenizer.encode(
            (ASSETS / "text/novels.txt").read_text(encoding="utf-8")[:8 * (CONTEXT + SIZES[-1])])])
    for rows, sizes in ((1, SIZES), (ROWS, (1,))):
        text, cache = ids.expand(rows, -1), model.new_cache()
        model.hidden_states(text[:, :CONTEXT], cache)
        def step(n, text=text, cache=cache):
            model.next_logits(text[:, CONTEXT:CONTEXT + n], cache)
            cache.drop(n)
        taken = timed({n: partial(step, n) for n in sizes}, repeats, time.process_time)
        for n, seconds in taken.items():
            yield {"part": "pass", "rows": rows, "tokens": rows * n, "seconds": seconds}


def between(points: dict[int, float]) -> Callable[[int], float]:
    """Seconds of a pass of any size: on straight lines between those that were measured, and
    beyond the last."""
    sizes = sorted(points)
    def cost(n: int) -> float:
        i = min(max(bisect_left(sizes, n), 1), len(sizes) - 1)
        a, b = sizes[i - 1], sizes[i]
        return points[a] + (points[b] - points[a]) * (n - a) / (b - a)
    return cost


def stated(n: int) -> float:
    "Seconds of a pass over n tokens of the large model."
    return max(2 * WEIGHTS / BANDWIDTH, 2 * WEIGHTS * n / PEAK)


def served(rule: str, made: list[Arrival], cost: Callable, transfer: Callable) -> list[Arrival]:
    "The requests, with the times of their tokens."
    if rule == "apart": serve_apart(made, cost, transfer)
    else:
        how = prompts_first if rule == "prompts first" else prompts_in_chunks(int(rule.split()[-1]))
        for part in (made[::2], made[1::2]): serve_arrivals(part, how, cost)
    return made


def summary(made: list[Arrival], limits: tuple[float, float]) -> dict[str, float]:
    """Waits for the first and for the next token, and in how many of 100 requests all of them
    are within their limits."""
    first, gaps = latencies(made)
    alike = [r.times[0] - r.at <= limits[0]
             and all(b - a <= limits[1] for a, b in zip(r.times, r.times[1:])) for r in made]
    hundredths = quantiles(gaps, n=100)
    return {"first, median": quantiles(first, n=2)[0], "first, 90 %": quantiles(first, n=10)[-1],
            "next, median": hundredths[49], "next, 99 %": hundredths[-1],
            "next, longest": max(gaps), "in time, %": 100 * fmean(alike)}


def loads(name: str, cost: Callable, transfer: Callable, seed: int) -> Iterator[dict]:
    "Every rate and rule at one cost of a pass."
    case = CASES[name]
    for rate in case["rates"]:
        for rule in ("prompts first", *(f"chunks of {n}" for n in case["chunks"]), "apart"):
            drawn = [poisson_arrivals(case["requests"], rate, seed + s, case["prompts"],
                                      case["new"]) for s in range(SEEDS)]
            found = [summary(served(rule, made, cost, transfer), case["limits"]) for made in drawn]
            yield {"part": "load", "cost": name, "rule": rule, "rate": f"{rate:g}",
                   **over_seeds(found)}


def measure(seed: int) -> Iterator[dict]:
    "The stated cost; then the passes of SmolLM2, and what they cost."
    yield from loads("8 billion, H100", stated, lambda n: n * CACHE / LINK, seed)
    points = {}
    for row in measured():
        if row["rows"] == 1: points[row["tokens"]] = row["seconds"]["median"]
        yield row
    yield from loads("SmolLM2, a core", between(points), lambda n: 0.0, seed)
