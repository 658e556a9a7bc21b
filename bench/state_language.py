"""Chapter 20: generated prose at equal parameters, after equal steps and in equal time, for nine mixers: `make bench`, or two workers first:

    python -m bench.state_language 0 2 & python -m bench.state_language 1 2

Decoders of two layers; attention and the window have rotary embeddings, the others none. The rate of each mixer is the best of a grid, on a seed and
texts of its own; a grid whose best rate is at its end is extended. "In equal time" trains each for as many steps as fit in the time that attention
takes, with a schedule of that length; times are the processor's, on one thread. Each run is appended to `bench/runs/state_language.jsonl` when it ends.
"""
import json
import statistics
import sys
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from tfmlib.data import prose
from tfmlib.decoders import MODERN, cross_entropy
from tfmlib.heads import grouped_query_attention
from tfmlib.linear_and_state_space import HybridCausalLM
from tfmlib.tokens import book_tokenizer
from tfmlib.training import (
    AdamW,
    Diverged,
    WarmupCosine,
    mix_seed,
    parameter_groups,
    train,
)
from tfmlib.transformer import ModelConfig, build
from tfmlib.variants import Scores

DEVICE, SEED = "cpu", 0
SEEDS, PEAKS, WARM, STEPS, TRIED = range(3), (.003, .006, .012), 50, 500, 200
WIDTH, HEADS, LAYERS, LENGTH, ROWS, WINDOW = 64, 2, 2, 128, 8, 16
MIXERS = {
    "attention": ("attention",), "window": ("attention",), "linear": ("linear",), "decay": ("retention",), "delta": ("delta",),
    "gated delta": ("gated delta",), "Mamba": ("mamba",), "Mamba-2": ("mamba2",), "hybrid": ("gated delta", "attention"),
}
STORE = Path(__file__).resolve().parent / "runs/state_language.jsonl"


def config_of(kind: str, d_ff: int) -> ModelConfig:
    options = {"mixers": MIXERS[kind], "inner_dim": WIDTH, "state_dim": WIDTH // HEADS}
    return ModelConfig("hybrid decoder", 2048, WIDTH, LAYERS, HEADS, LENGTH, d_ff=d_ff, attention="hybrid", options=options, **MODERN)


@lru_cache
def width_of(kind: str) -> int:
    "The feed-forward width for as many parameters, outside the table, as a gated delta model with 2 C."
    def mixing(kind: str, d_ff: int) -> int: return size(build(config_of(kind, d_ff)).stack)
    wanted = mixing("gated delta", 2 * WIDTH)
    found = min(range(32, 320, 2), key=lambda n: abs(mixing(kind, n) - wanted))
    assert abs(mixing(kind, found) - wanted) <= .01 * wanted
    return found


def made(kind: str, seed: int) -> HybridCausalLM:
    fn = Scores(HEADS, grouped_query_attention, window=WINDOW) if kind == "window" else grouped_query_attention
    return build(config_of(kind, width_of(kind)), fn, seed)


@lru_cache
def texts(part: int, n: int) -> Tensor:
    "Chunks of generated prose (n, LENGTH + 1)."
    ids = book_tokenizer().encode(prose(700 * n, seed=part))
    return torch.tensor(ids[:len(ids) // (LENGTH + 1) * (LENGTH + 1)]).view(-1, LENGTH + 1)[:n]


def loss_of(model: nn.Module, ids: Tensor) -> Tensor: return cross_entropy(model(ids[:, :-1]), ids[:, 1:]).mean()


def run(kind: str, peak: float, seed: int, steps: int) -> dict:
    model, own = made(kind, seed), texts(31, 4000)
    def batch(step): return (own[torch.randint(len(own), (ROWS,), generator=torch.Generator().manual_seed(mix_seed(seed, step)))],)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    batch(0)                                                              # the texts are generated before the clock starts
    start = time.process_time()
    try: train(model, loss_of, batch, steps, optimiser, seed=seed)
    except Diverged: return {"loss": 1e9, "seconds": time.process_time() - start}
    seconds, held = time.process_time() - start, texts(32 if seed >= 100 else 33, 200)
    with torch.no_grad(): loss = statistics.mean(float(loss_of(model, part)) for part in held.split(50))
    return {"loss": loss, "seconds": seconds}


def stored() -> dict[tuple, dict]:
    lines = STORE.read_text().splitlines() if STORE.is_file() else []
    return {tuple(line["run"]): line["found"] for line in map(json.loads, lines)}


def kept(*key) -> dict:
    "The results of a run (mixer, peak, seed, steps), from the store or now."
    if (known := stored().get(key)) is not None: return known
    found = run(*key)
    STORE.parent.mkdir(exist_ok=True)
    with STORE.open("a") as store: store.write(json.dumps({"run": key, "found": found}) + "\n")
    return found


def rate_of(kind: str) -> float:
    "The best peak, with fewer steps; a grid whose best rate is at its end is extended."
    at = partial(lambda kind, peak: kept(kind, peak, 100, TRIED)["loss"], kind)
    found = {peak: at(peak) for peak in PEAKS}
    while len(found) < 8 and (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        beyond = best / 2 if best == min(found) else 2 * best
        found[beyond] = at(beyond)
    return min(found, key=found.__getitem__)


def step_time(kind: str) -> float:
    "Seconds per step, the least of the stored runs: other programs can only slow a run down."
    return min(found["seconds"] / run[3] for run, found in stored().items() if run[0] == kind and run[3] == STEPS)


def affordable(kind: str) -> int:
    "Steps that fit in the time of attention's, to a multiple of ten."
    return 10 * round(STEPS * step_time("attention") / step_time(kind) / 10)


def work(index: int, count: int) -> None:
    "Every count-th mixer with equal steps, and then in attention's time, if attention has been trained."
    own = [*MIXERS][index::count]
    for kind in ticked(own):
        for seed in SEEDS: kept(kind, rate_of(kind), seed, STEPS)
    known = any(run[0] == "attention" and run[3] == STEPS for run in stored())
    for kind in ticked([kind for kind in own if known and kind != "attention"]):
        for seed in SEEDS: kept(kind, rate_of(kind), seed, affordable(kind))


def measure(seed: int) -> Iterator[dict]:
    for kind in ticked(MIXERS):
        peak = rate_of(kind)
        even = [kept(kind, peak, seed + s, STEPS) for s in SEEDS]
        if kind == "attention": steps = STEPS
        else: steps = affordable(kind)
        timely = [kept(kind, peak, seed + s, steps) for s in SEEDS]
        found = [{"loss": a["loss"], "ms a step": 1e3 * a["seconds"] / STEPS, "loss in equal time": b["loss"]} for a, b in zip(even, timely)]
        yield {"mixer": kind, "peak": f"{peak:g}", "steps": STEPS, "steps in equal time": steps, "parameters": size(made(kind, 0))} | over_seeds(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(int(sys.argv[1]), int(sys.argv[2]))
