"""Chapter 20: the control of `state_language`, softmax attention in the frame of the recurrent
layers, with their short convolution, norm and output gate.

It is trained as that part trains its mixers: on the same texts, with as many parameters, with the
best of the same learning rates, each tried for 500 steps, and then for 2,000 steps with each of the
same three seeds. No positions are encoded, and there is no window. Each run is appended to
`bench/runs/state_control.jsonl` when it ends; all take about nine minutes of one core.
"""
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from inspect import getsource

import torch

from bench import climbed, over_seeds, size
from bench import state_language as base
from bench.scaling import Runs, code_digest
from tfmlib.checkpoints import ModelConfig, build
from tfmlib.linear_and_state_space import HybridCausalLM
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, mix_seed, parameter_groups, train

KIND = "softmax"                             # as in `state_recall`, whose frame is the same


def config_of(d_ff: int) -> ModelConfig:
    "As `state_language` describes its models, with softmax attention as the frame's mixer."
    given = base.config_of("attention", d_ff)
    return replace(given, positions="none", options=given.options | {"mixers": ("softmax",)})


@lru_cache
def width() -> int:
    "The feed-forward width for as many parameters, outside the table, as the others have."
    wanted = size(base.made("gated delta", 0).stack)
    def mixing(d_ff: int) -> int: return size(build(config_of(d_ff)).stack)
    found = min(range(32, 320, 2), key=lambda n: abs(mixing(n) - wanted))
    assert abs(mixing(found) - wanted) <= .01 * wanted
    return found


def made(seed: int) -> HybridCausalLM: return build(config_of(width()), seed=seed)


def run(c: dict) -> dict:
    torch.set_num_threads(1)
    peak, seed, steps = (c[name] for name in ("peak", "seed", "steps"))
    model, own = made(seed), base.texts(31, 4000)
    def batch(step):
        drawn = torch.Generator().manual_seed(mix_seed(seed, step))
        return (own[torch.randint(len(own), (base.ROWS,), generator=drawn)],)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, base.WARM, steps), clip=1.)
    start = time.process_time()
    try: train(model, base.loss_of, batch, steps, optimiser, seed=seed)
    except Diverged: return {"loss": 1e9, "seconds": time.process_time() - start}
    seconds, held = time.process_time() - start, base.texts(32 if seed >= 100 else 33, 200)
    with torch.no_grad():
        loss = statistics.mean(float(base.loss_of(model, part)) for part in held.split(50))
    return {"loss": loss, "seconds": seconds}


RUNS = Runs("state_control", code_digest(
    "\n".join(map(getsource, (config_of, width, made, run))) + f"\n{base.CODE!r}"))


def case(peak: float, seed: int, steps: int) -> dict:
    return {"peak": peak, "seed": seed, "steps": steps}


def complete(cases: list[dict], workers: int | None = None) -> list[dict]:
    return RUNS.complete(cases, run, prepare=lambda: base.texts(31, base.ROWS), workers=workers)


def rate() -> float:
    "The best peak, with fewer steps; a grid whose best is at its end is extended."
    return climbed(lambda peak: complete([case(peak, 100, base.TRIED)], 1)[0]["loss"],
                   base.PEAKS)[0]


def measure(seed: int) -> Iterator[dict]:
    "One row; what is missing is run first, by several processes."
    complete([case(peak, 100, base.TRIED) for peak in base.PEAKS])
    peak = rate()
    found = complete([case(peak, seed + s, base.STEPS) for s in base.SEEDS])
    yield ({"mixer": KIND, "peak": f"{peak:g}", "steps": base.STEPS, "parameters": size(made(0))}
           | over_seeds([{"loss": one["loss"]} for one in found]))
