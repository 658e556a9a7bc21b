"""Chapter 20: associative recall against the size of the state and the number of pairs, for nine
mixers in one frame.

All models are decoders of two layers with the same projections, short convolution, norm and output
gate (Mamba's frame is its own), and as many parameters, to one per cent, by the width of their
feed-forward layers. A model is trained on texts with the largest number of pairs and with half as
many, and tested with several numbers. The rate of each mixer and task is the best of a grid, on a
seed and texts of its own; a grid whose best rate is at its end is extended. Each run is appended to
`bench/runs/state_recall.jsonl` when it ends, so that an interrupted measurement can be resumed. The
prediction is what the rule recalls with random keys, without any training.
"""
import time
from collections.abc import Iterator
from functools import lru_cache
from inspect import getsource

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import climbed, over_seeds, size, ticked
from bench.scaling import Runs, code_digest
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.linear_and_state_space import recalled_pairs
from tfmlib.linear_and_state_space.delta import delta_rule
from tfmlib.linear_and_state_space.linear import linear_attention
from tfmlib.linear_and_state_space.mixers import RecurrentState, StateMixer
from tfmlib.workbench import (
    AdamW,
    Diverged,
    WarmupCosine,
    mix_seed,
    parameter_groups,
    recall,
    train,
)

SEEDS, PEAKS, WARM, SOLVED = range(3), (.003, .006, .012), 50, .01
STEPS, TRIED, LONGER = 4800, 2400, 9600      # after 1200 steps, most models still improve
WIDTH, LAYERS, KEYS, VALUES, ROWS = 32, 2, 32, 16, 32
MIXERS = {
    "softmax": ("softmax",), "window": ("softmax",), "linear": ("linear",), "decay": ("retention",),
    "delta": ("delta",),
    "gated delta": ("gated delta",), "Mamba": ("mamba",), "Mamba-2": ("mamba2",),
    "hybrid": ("gated delta", "softmax"),
}
WINDOW = 8
SIZES, MIDDLE = (4, 8, 16), 8
# recall: every key once; update: every key twice, the last value counts. The most pairs, and the
# numbers tested
PAIRS, TESTED = {"recall": 16, "update": 8}, {"recall": (4, 8, 12, 16), "update": (4, 8)}
CELLS = [("recall", kind, D) for kind in MIXERS
         for D in (SIZES if kind not in ("softmax", "window", "hybrid") else (MIDDLE,))]
CELLS += [("update", kind, MIDDLE) for kind in MIXERS]
# once more with twice the steps: does anything change?
LONG = [("recall", kind, MIDDLE) for kind in MIXERS]
# another rate for Mamba's longer run: with the steps that choose rates, it recalls no pairs at any
# rate
LATE = .006


def config_of(kind: str, D: int, d_ff: int) -> ModelConfig:
    options = {"mixers": MIXERS[kind], "value_dim": WIDTH, "inner_dim": WIDTH, "state_dim": D}
    if kind == "window": options["window"] = WINDOW
    return ModelConfig("hybrid decoder", KEYS + VALUES, WIDTH, LAYERS, 1, 128, head_dim=D,
                       d_ff=d_ff, attention="hybrid", options=options,
                       **MODERN | {"positions": "none"})


@lru_cache
def width_of(kind: str, D: int) -> int:
    "The feed-forward width for as many parameters as the softmax model of the middle size has."
    wanted = size(build(config_of("softmax", MIDDLE, 64)))
    found = min(range(8, 128), key=lambda n: abs(size(build(config_of(kind, D, n))) - wanted))
    assert abs(size(build(config_of(kind, D, found))) - wanted) <= .01 * wanted, (kind, D)
    return found


def made(kind: str, D: int, seed: int) -> nn.Module:
    return build(config_of(kind, D, width_of(kind, D)), seed=seed)


def texts(task: str, pairs: int, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs, then all keys (B, 3 · pairs), and their values; for `update`, the pairs come twice,
    in the same order, with new values."""
    ids, values = recall(batch, pairs, KEYS, VALUES, pairs, seed)
    if task == "recall": return ids, values
    written = ids[:, :2 * pairs].clone()
    g = torch.Generator().manual_seed(mix_seed(seed, 1))
    # the values that are replaced
    written[:, 1::2] = KEYS + torch.randint(VALUES, (batch, pairs), generator=g)
    return torch.cat([written, ids], 1), values


def loss_of(model: nn.Module, ids: Tensor, values: Tensor) -> Tensor:
    x, _ = model.hidden_states(ids)
    return F.cross_entropy(model.logits(x[:, -values.shape[1]:]).flatten(0, 1), values.flatten())


@torch.no_grad()
def judged(model: nn.Module, task: str, part: int) -> dict[str, float]:
    """The fraction of right answers for each number of pairs; for the most, also of the first
    and last quarter. `part` separates the texts that choose a rate from those that test."""
    found = {}
    for pairs in TESTED[task]:
        ids, values = texts(task, pairs, 1000, mix_seed(99, part))
        right = (model(ids)[:, -pairs:].argmax(-1) == values)
        found[f"{pairs} pairs"] = float(right.double().mean())
    keys = ids[:, -3 * pairs:-pairs:2]
    # when each was written
    order = (ids[:, -pairs:, None] == keys[:, None]).long().argmax(-1)
    share = lambda where: float(right[where].double().mean())
    return (found | {"oldest": share(order < pairs // 4),
                     "newest": share(order >= pairs - pairs // 4),
                     "loss": float(loss_of(model, ids, values))})


def run(c: dict) -> dict:
    "One training; every other batch has half as many pairs."
    torch.set_num_threads(1)
    task, kind, D, peak, seed, steps = (c[name] for name in ("task", "mixer", "D", "peak",
            "seed", "steps"))
    model, start = made(kind, D, seed), time.process_time()
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    def batch(step): return texts(task, PAIRS[task] // (1 + step % 2), ROWS, mix_seed(seed, step))
    try: train(model, loss_of, batch, steps, optimiser, seed=seed)
    except Diverged:
        return ({f"{pairs} pairs": 0. for pairs in TESTED[task]} | {"oldest": 0., "newest": 0.,
                "loss": 1e9, "seconds": time.process_time() - start})
    seconds = time.process_time() - start
    return judged(model, task, 0 if seed >= 100 else 1) | {"seconds": seconds}


CODE = code_digest(
    "\n".join(map(getsource, (config_of, width_of, made, texts, loss_of, judged, run)))
    + f"\n{(WARM, WIDTH, LAYERS, KEYS, VALUES, ROWS, MIXERS, WINDOW, MIDDLE, PAIRS, TESTED)}")
RUNS = Runs("state_recall", CODE)


def case(task: str, kind: str, D: int, peak: float, seed: int, steps: int) -> dict:
    return {"task": task, "mixer": kind, "D": D, "peak": peak, "seed": seed, "steps": steps}


def complete(cases: list[dict], workers: int | None = None) -> list[dict]:
    return RUNS.complete(cases, run, prepare=lambda: None, workers=workers)


def kept(*named) -> dict:
    "The result of one run, from the file or now."
    return complete([case(*named)], 1)[0]


def rate_of(task: str, kind: str) -> float:
    """The best peak for a mixer and a task, at the middle size, with half the steps. Of rates
    that solve the task, the lowest: near the highest, another seed may diverge."""
    return climbed(lambda peak: max(kept(task, kind, MIDDLE, peak, 100, TRIED)["loss"],
                                    SOLVED), PEAKS)[0]


def predicted(kind: str, pairs: int, D: int, writes: int) -> float:
    """What a rule recalls with random keys, without training: chance for the window, everything
    for softmax and the hybrid."""
    rules = {"linear": linear_attention, "decay": linear_attention, "Mamba-2": linear_attention,
             "Mamba": linear_attention,
             "delta": lambda q, k, v: delta_rule(q, k, v, torch.full_like(k[..., 0], .5)),
             "gated delta": lambda q, k, v: delta_rule(q, k, v, torch.full_like(k[..., 0], .5))}
    if kind == "window": return 1 / VALUES
    return (float(recalled_pairs(rules[kind], pairs, D, writes, 1000).mean())
            if kind in rules else 1.)


def state_bytes(kind: str, D: int, tokens: int) -> int:
    """Bytes of all layers' memory after a text, in 32 bits; keys and values for softmax, of the
    window or of all tokens."""
    model, total = made(kind, D, 0), 0
    for block in model.stack.blocks:
        mixer = block.attention.inner
        state = RecurrentState()
        if type(mixer).__name__ == "SoftmaxMixer":
            channels = sum(mixer.widths)
            total += (4 * ((D + WIDTH) * min(tokens, mixer.window or tokens) + channels
                           * (mixer.conv.kernel_size[0] - 1)))
        elif isinstance(mixer, StateMixer):
            mixer(torch.zeros(1, 1, WIDTH), cache=state)
            total += state.nbytes
    return total


def seeds_of(task: str, kind: str, D: int) -> range:
    "Three for recall with the middle size, two for the other sizes and for the update task."
    return SEEDS if (task, D) == ("recall", MIDDLE) else SEEDS[:2]


def runs() -> list[tuple]:
    "All runs but those that choose rates."
    main = [(*cell, seed, STEPS) for seed in SEEDS for cell in CELLS if seed in seeds_of(*cell)]
    return main + [(*cell, SEEDS[0], LONGER) for cell in LONG]


def measure(seed: int) -> Iterator[dict]:
    "A row for each task, mixer and size; what is missing is run first, by several processes."
    complete([case(task, kind, MIDDLE, peak, 100, TRIED)
              for task, kind in dict.fromkeys(cell[:2] for cell in CELLS) for peak in PEAKS])
    complete([case(task, kind, D, rate_of(task, kind), s, steps)
              for task, kind, D, s, steps in runs()])
    for task, kind, D in ticked(CELLS):
        peak, pairs, writes = rate_of(task, kind), PAIRS[task], 2 if task == "update" else 1
        found = [kept(task, kind, D, peak, seed + s, STEPS) for s in seeds_of(task, kind, D)]
        row = {"task": task, "mixer": kind, "D": D, "peak": f"{peak:g}", "steps": STEPS,
               "parameters": size(made(kind, D, 0)),
               "bytes": state_bytes(kind, D, (2 * writes + 1) * pairs)}
        row |= ({f"predicted, {n} pairs": f"{predicted(kind, n, D, writes):.3f}"
                 for n in TESTED[task]} | over_seeds(found))
        if (task, kind, D) in LONG:
            row["twice the steps"] = f"{kept(task, kind, D, peak, seed, LONGER)[f'{pairs} pairs']:.3f}"  # noqa: E501
        if (task, kind, D) == ("recall", "Mamba", MIDDLE):
            row[f"twice the steps, peak {LATE:g}"] = f"{kept(task, kind, D, LATE, seed, LONGER)[f'{pairs} pairs']:.3f}"  # noqa: E501
        yield row
