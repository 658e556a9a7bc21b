"""Chapter 9: two taggers of equal size, one that sees the words so far and one that sees the whole
text, beside the best possible readers of either kind.

Both are the same encoder, with and without a causal mask; each learns at the rate of the grid that
did best after `TRIED` steps on texts kept for this choice. The bounds are exact posteriors under
the grammar, on the same test texts. One process for each kind, of one thread.
"""
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from bench.translators import fused
from tfmlib.checkpoints import ModelConfig, build
from tfmlib.encoders import BERT
from tfmlib.encoders.tag_grammar import LEXICON, TAGS, TagGrammar
from tfmlib.workbench import AdamW, WarmupCosine, mix_seed, parameter_groups, spread, train

# sides that it sees -> is the mask causal?
KINDS = {"left": True, "both": False}
WIDTH, LAYERS, HEADS, LENGTH, TEXTS, TESTS = 64, 3, 4, 24, 32, 2_000
PEAKS, TRIED, STEPS, SEEDS, WARM = (0.001, 0.002, 0.004, 0.008), 500, 2_400, range(3), 100
STOPS = (100, 200, 400, 800, 1_200, 1_600, 2_000, 2_400)
GRAMMAR = TagGrammar()
# the words before it belong to one class only
AMBIGUOUS = LEXICON.index("old")


def config(causal: bool, **more) -> ModelConfig:
    "The tagger."
    return ModelConfig("bert", len(LEXICON), WIDTH, LAYERS, HEADS, 64, **BERT,
                       options={"heads": "tagging", "n_labels": len(TAGS), "n_segments": 0,
                                "causal": causal} | more)


def texts(seed: int, part: int, n: int) -> tuple[Tensor, Tensor]:
    "Words and their classes; the parts of a seed are training (step by step), choice and test."
    return GRAMMAR.sample(n, LENGTH, mix_seed(seed, part))[:2]


def tagging_loss(model: nn.Module, words: Tensor, tags: Tensor) -> Tensor:
    return F.cross_entropy(model(words)["tagging"].transpose(1, 2), tags)


def judged(logits: Tensor, words: Tensor, tags: Tensor) -> dict[str, float]:
    "Accuracy on ambiguous words, and the cross-entropy of all."
    right = (logits.argmax(-1) == tags)[words >= AMBIGUOUS]
    return {"accuracy": float(right.double().mean()),
            "nats": float(F.cross_entropy(logits.transpose(1, 2), tags))}


def learn(kind: str, peak: float, seed: int, steps: int, watch: Callable | None = None):
    "A tagger after training on fresh texts, and what was noted on the way."
    model = build(config(KINDS[kind]), fused, seed)
    optimiser = AdamW(parameter_groups(model, 0.01), WarmupCosine(peak, WARM, steps), clip=1.)
    return (model, train(model, tagging_loss, lambda step: texts(seed, step, TEXTS), steps,
                         optimiser, watch=watch and (lambda step: watch(model, step)), seed=seed))


def compared(kind: str, seed: int) -> list[dict]:
    "One kind of tagger: the choice of its rate, and its learning curve."
    torch.set_num_threads(1)
    kept, test, rows = texts(seed, -1, TESTS), texts(seed, -2, TESTS), []
    facts = {"sees": kind, "parameters": size(build(config(KINDS[kind])))}
    @torch.no_grad()
    def judge(model, some):
        model.eval()
        return judged(model(some[0])["tagging"], *some)
    for peak in PEAKS:
        found = judge(learn(kind, peak, seed + len(SEEDS), TRIED)[0], kept)
        rows.append({"what": "rate", **facts, "peak": f"{peak:g}"}
                    | {name: spread([value]) for name, value in found.items()})
    best = min(PEAKS, key=lambda peak: rows[PEAKS.index(peak)]["nats"]["median"])
    def watch(model, step):
        found = judge(model, test) if step in STOPS else None
        model.train()
        return found
    runs = [learn(kind, best, seed + s, STEPS, watch)[1] for s in SEEDS]
    return rows + [{"what": "curve", **facts, "peak": f"{best:g}", "steps": stop}
                   | over_seeds([{name: float(h[name][i]) for name in ("accuracy", "nats")}
                                 for h in runs])
                   for i, stop in enumerate(STOPS)]


def bounds(seed: int) -> list[dict]:
    "The best reader of each kind, on the test texts."
    words, tags = texts(seed, -2, TESTS)
    found = {kind: judged(GRAMMAR.tag_probabilities(words, future=not causal).log(), words, tags)
             for kind, causal in KINDS.items()}
    return [{"what": "bound", "sees": kind}
            | {name: spread([value]) for name, value in values.items()}
            for kind, values in found.items()]


def measure(seed: int) -> Iterator[dict]:
    "The bounds, then both kinds."
    yield from bounds(seed)
    with ProcessPoolExecutor(len(KINDS), get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "kind"), pool.map(compared, KINDS, [seed] * len(KINDS)),
                           strict=True):
            yield from rows
