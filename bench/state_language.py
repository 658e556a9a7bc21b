"""Chapter 20: generated prose at equal parameters, after equal steps and in equal time, for nine
mixers.

Decoders of two layers; attention and the window have rotary embeddings, the others none. The rate
of each mixer is the best of a grid, on a seed and texts of its own; a grid whose best rate is at
its end is extended. "In equal time" trains each for as many steps as fit in the time that attention
takes, with a schedule of that length, for one seed; the time of a step is the processor's, on one
thread, all mixers in turn, measured first. Each run is appended to
`bench/runs/state_language.jsonl` when it ends.
"""
import statistics
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from inspect import getsource

import torch
from torch import Tensor, nn

from bench import climbed, over_seeds, size, ticked
from bench.scaling import Runs, code_digest, key
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.checkpoints.parts import Scores
from tfmlib.decoders import cross_entropy
from tfmlib.heads import grouped_query_attention
from tfmlib.linear_and_state_space import HybridCausalLM
from tfmlib.tokens import book_tokenizer
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, mix_seed, parameter_groups, prose, train

SEEDS, PEAKS, WARM, STEPS, TRIED = range(3), (.003, .006, .012), 50, 2000, 500
WIDTH, HEADS, LAYERS, LENGTH, ROWS, WINDOW, TURNS = 64, 2, 2, 128, 8, 16, 20
MIXERS = {
    "attention": ("attention",), "window": ("attention",), "linear": ("linear",),
    "decay": ("retention",), "delta": ("delta",),
    "gated delta": ("gated delta",), "Mamba": ("mamba",), "Mamba-2": ("mamba2",),
    "hybrid": ("gated delta", "attention"),
}
AGAIN = ("attention", "window", "linear", "decay")          # once more with twice the steps


def config_of(kind: str, d_ff: int) -> ModelConfig:
    options = {"mixers": MIXERS[kind], "inner_dim": WIDTH, "state_dim": WIDTH // HEADS}
    return ModelConfig("hybrid decoder", 2048, WIDTH, LAYERS, HEADS, LENGTH, d_ff=d_ff,
                       attention="hybrid", options=options, **MODERN)


@lru_cache
def width_of(kind: str) -> int:
    """The feed-forward width for as many parameters, outside the table, as a gated delta model
    with 2 C."""
    def mixing(kind: str, d_ff: int) -> int: return size(build(config_of(kind, d_ff)).stack)
    wanted = mixing("gated delta", 2 * WIDTH)
    found = min(range(32, 320, 2), key=lambda n: abs(mixing(kind, n) - wanted))
    assert abs(mixing(kind, found) - wanted) <= .01 * wanted
    return found


def made(kind: str, seed: int) -> HybridCausalLM:
    fn = (Scores(HEADS, grouped_query_attention, window=WINDOW) if kind == "window"
          else grouped_query_attention)
    return build(config_of(kind, width_of(kind)), fn, seed)


@lru_cache
def texts(part: int, n: int) -> Tensor:
    "Chunks of generated prose (n, LENGTH + 1)."
    ids = book_tokenizer().encode(prose(700 * n, seed=part))
    return torch.tensor(ids[:len(ids) // (LENGTH + 1) * (LENGTH + 1)]).view(-1, LENGTH + 1)[:n]


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids[:, :-1]), ids[:, 1:]).mean()


def run(c: dict) -> dict:
    torch.set_num_threads(1)
    kind, peak, seed, steps = (c[name] for name in ("mixer", "peak", "seed", "steps"))
    model, own = made(kind, seed), texts(31, 4000)
    def batch(step):
        return (own[torch.randint(len(own), (ROWS,),
                                  generator=torch.Generator().manual_seed(mix_seed(seed, step)))],)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    # the texts are generated before the clock starts
    batch(0)
    start = time.process_time()
    try: train(model, loss_of, batch, steps, optimiser, seed=seed)
    except Diverged: return {"loss": 1e9, "seconds": time.process_time() - start}
    seconds, held = time.process_time() - start, texts(32 if seed >= 100 else 33, 200)
    with torch.no_grad():
        loss = statistics.mean(float(loss_of(model, part)) for part in held.split(50))
    return {"loss": loss, "seconds": seconds}


CODE = code_digest("\n".join(map(getsource, (config_of, width_of, made, texts, loss_of, run)))
                   + f"\n{(WARM, WIDTH, HEADS, LAYERS, LENGTH, ROWS, WINDOW, MIXERS)}")
RUNS = Runs("state_language", CODE)


def case(kind: str, peak: float, seed: int, steps: int) -> dict:
    return {"mixer": kind, "peak": peak, "seed": seed, "steps": steps}


def complete(cases: list[dict], workers: int | None = None) -> list[dict]:
    return RUNS.complete(cases, run, prepare=lambda: texts(31, ROWS), workers=workers)


def kept(*named) -> dict:
    "The result of one run, from the file or now."
    return complete([case(*named)], 1)[0]


def rate_of(kind: str) -> float:
    "The best peak, with fewer steps."
    return climbed(lambda peak: kept(kind, peak, 100, TRIED)["loss"], PEAKS)[0]


def step_times() -> dict[str, float]:
    """Seconds per step, the median of many steps; the mixers take turns, so that none has a
    quieter machine than the others."""
    asked = {"times of": "steps"}
    if (known := RUNS.found().get(key(asked))) is not None: return known
    ids, steps = texts(31, ROWS), {}
    for kind in MIXERS:
        model = made(kind, 0)
        def batch(step): return (ids,)
        optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(.001, WARM, 1000), clip=1.)
        steps[kind] = partial(train, model, loss_of, batch, optimiser=optimiser, seed=0)
    taken = {kind: [] for kind in MIXERS}
    for turn in ticked(range(TURNS + 1)):
        for kind, step in steps.items():
            start = time.process_time()
            step(steps=5 * (turn + 1))
            if turn: taken[kind].append((time.process_time() - start) / 5)
    RUNS.add(asked, found := {kind: statistics.median(times) for kind, times in taken.items()})
    return found


def affordable(kind: str) -> int:
    "Steps that fit in the time of attention's, to a multiple of ten."
    return 10 * round(STEPS * step_times()["attention"] / step_times()[kind] / 10)


def planned() -> list[tuple[str, int, int]]:
    """All runs but those that choose rates: mixer, seed, steps. In equal time, and for some with
    twice the steps, one seed each."""
    even = [(kind, seed, STEPS) for seed in SEEDS for kind in MIXERS]
    return (even + [(kind, SEEDS[0], affordable(kind)) for kind in MIXERS if kind != "attention"]
            + [(kind, SEEDS[0], 2 * STEPS) for kind in AGAIN])


def measure(seed: int) -> Iterator[dict]:
    "A row for each mixer; what is missing is run first, by several processes."
    step_times()
    complete([case(kind, peak, 100, TRIED) for kind in MIXERS for peak in PEAKS])
    complete([case(kind, rate_of(kind), s, steps) for kind, s, steps in planned()])
    for kind in ticked(MIXERS):
        peak, steps = rate_of(kind), affordable(kind)
        once = {"loss in equal time": f"{kept(kind, peak, seed, steps)['loss']:.4f}"}
        if kind in AGAIN:
            once["loss after twice the steps"] = f"{kept(kind, peak, seed, 2 * STEPS)['loss']:.4f}"
        row = {"mixer": kind, "peak": f"{peak:g}", "steps": STEPS,
               "ms a step": f"{1e3 * step_times()[kind]:.1f}", "steps in equal time": steps,
               "parameters": size(made(kind, 0))}
        yield (row | over_seeds([{"loss": kept(kind, peak, seed + s, STEPS)["loss"]}
                                 for s in SEEDS]) | once)
