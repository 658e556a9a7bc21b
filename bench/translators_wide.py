"""Chapter 8: what `bench.translators` left open: both norm positions, a wider grid of rates, a
second size, and sentences with longer dependencies.

The LSTM with attention and the transformer, post-norm and pre-norm, learn each task at the rate of
the grid that did best on sentences kept for this choice. The long sentences hold up to five phrases
within one another, so that a verb may stand many words after the noun it agrees with. The cases are
shared out among `WORKERS` processes of one thread each; every one draws from its own seed.
"""
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from bench import SEED, even_width, over_seeds, size, ticked, translation
from bench.lstm import attentive
from bench.translation import ENGLISH, FRENCH, KNOWN
from bench.translators import LONGEST, SEEDS, WARM, chosen_on, fused, quality, tested_on
from tfmlib.alignment import translation_loss
from tfmlib.checkpoints import ModelConfig, build
from tfmlib.transformer import InverseSqrtSchedule
from tfmlib.workbench import AdamW, History, Pair, pairs, parameter_groups, spread, train

KINDS, WORKERS = ("LSTM, attention", "transformer, post-norm", "transformer, pre-norm"), 2
# task, and width of the transformer
CASES = (("short", 48), ("short", 96), ("long", 48))
PEAKS, TRIED, STEPS, STOPS, TESTS = ((0.001, 0.002, 0.004, 0.008, 0.016, 0.032), 600, 2_000,
                                     (500, 1_000, 1_500, 2_000), 400)
# of the long sentences: phrases within one another, words
DEPTH, SHORTEST, MOST = 5, 20, 50


def long_sentences(n: int, split: str, seed: int = 0) -> list[Pair]:
    "Long sentences of one split."
    some = pairs(12 * n, split, seed, depth=DEPTH, longest=MOST)
    return [p for p in some if len(p.source) >= SHORTEST][:n]


@lru_cache
def sentences(task: str) -> dict[str, list[Pair]]:
    "Sentences for training, for the choice of a rate, and for the test."
    if task == "short": return {"train": KNOWN, "choice": chosen_on(), "test": tested_on()[:TESTS]}
    known = long_sentences(len(KNOWN), "train")
    sources = {p.source for p in known}
    kept = [p for p in long_sentences(TESTS, "train", seed=1) if p.source not in sources]
    return {"train": known, "choice": kept[:TESTS], "test": long_sentences(TESTS, "held-out")}


def config(width: int, norm_position: str) -> ModelConfig:
    "The transformer: two layers in each stack, heads of 12 units."
    return ModelConfig("encoder-decoder", len(FRENCH), width, 2, width // 12,
                       source_vocab_size=len(ENGLISH), d_ff=4 * width, norm_position=norm_position)


def transformer(kind: str, width: int, seed: int) -> nn.Module:
    return build(config(width, kind.removeprefix("transformer, ").removesuffix("-norm")),
                 fused, seed)


@lru_cache
def lstm_width(width: int) -> int:
    """The width at which the LSTM has as many parameters as the transformer of this width, or
    just more."""
    equal = size(transformer(KINDS[-1], width, 0))
    return even_width(lambda w: attentive(len(ENGLISH), len(FRENCH), w), equal)


def made(kind: str, width: int, seed: int) -> nn.Module:
    "A model of this kind, its weights drawn from the seed."
    if kind in KINDS[1:]: return transformer(kind, width, seed)
    # may draw weights of its own, so before the seed
    own = lstm_width(width)
    torch.manual_seed(seed)
    return attentive(len(ENGLISH), len(FRENCH), own)


def batches(task: str, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    return translation.batches(sentences(task)["train"], seed)


def learn(task: str, width: int, kind: str, peak: float, seed: int, steps: int,
          watch: Callable | None = None) -> tuple[nn.Module, History]:
    "A model after training, and what was noted on the way."
    model = made(kind, width, seed)
    # whose highest value is `peak`
    rate = InverseSqrtSchedule(width, WARM, peak * (width * WARM) ** .5)
    optimiser = AdamW(parameter_groups(model, 0.01), rate, betas=(.9, .98), clip=1.)
    return (model, train(model, translation_loss, batches(task, seed), steps, optimiser,
                         watch=watch and (lambda step: watch(model, step)), seed=seed))


def followed(what: str, facts: dict, peak: float, seed: int) -> list[dict]:
    "The learning curve at one rate, with every seed."
    task, width, kind = (facts[name] for name in ("task", "width", "model"))
    def watch(model, step):
        return quality(model, sentences(task)["test"]) if step in STOPS else None
    runs = [learn(task, width, kind, peak, seed + s, STEPS, watch)[1] for s in SEEDS]
    return [{"what": what, **facts, "peak": f"{peak:g}", "steps": stop}
            | over_seeds([{name: float(h[name][i]) for name in ("BLEU", "exact")} for h in runs])
            for i, stop in enumerate(runs[0].steps("BLEU").tolist())]


def compared(case: tuple[tuple[str, int], str], seed: int = SEED) -> list[dict]:
    """One kind of model at one task and size: the choice of its rate, and its learning curve;
    where the choice may decide the order, at the second best, too."""
    (task, width), kind = case
    torch.set_num_threads(1)
    facts, rows = ({"task": task, "width": width, "model": kind,
                    "parameters": size(made(kind, width, seed))}, [])
    for peak in PEAKS:
        found = quality(learn(task, width, kind, peak, seed + len(SEEDS), TRIED)[0],
                        sentences(task)["choice"])
        rows.append({"what": "rate", **facts, "peak": f"{peak:g}"}
                    | {name: spread([value]) for name, value in found.items()})
    best, second, *_ = sorted(PEAKS, key=lambda peak: -rows[PEAKS.index(peak)]["BLEU"]["median"])
    rows += followed("curve", facts, best, seed)
    return (rows + (followed("runner-up", facts, second, seed) if (task, width) == CASES[0] or kind
                    == KINDS[0] else []))


def distances(task: str) -> dict[str, dict]:
    """How long the test's sentences are, and how far a word stands from the noun that it agrees
    with."""
    some = sentences(task)["test"]
    return {"words": spread([len(p.source) for p in some]),
            "to its noun": spread([abs(i - head) for p in some for i, head in enumerate(p.heads)
                                   if head not in (-1, i)])}


def measure(seed: int) -> Iterator[dict]:
    "Every kind of model at every task and size."
    cases = list(product(CASES, KINDS))
    yield from ({"what": "task", "task": task, "longest": LONGEST if task == "short" else MOST}
                | distances(task) for task in ("short", "long"))
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(cases, "model"), pool.map(compared, cases, [seed] * len(cases)),
                           strict=True):
            yield from rows
