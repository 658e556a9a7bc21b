"""Chapter 2: translating the toy grammar through one vector and with attention: BLEU, exact
sentences and alignment error against length."""
from collections.abc import Callable
from functools import partial
from statistics import mean

import torch

from bench import even_width, over_seeds, size, ticked
from tfmlib.alignment import (
    PAD,
    AdditiveScore,
    BahdanauDecoder,
    FixedContextDecoder,
    GRUEncoder,
    LuongDecoder,
    MultiplicativeScore,
    Seq2Seq,
    Vocabulary,
    alignment_error_rate,
    greedy_decode,
    hard_alignment,
    shift_right,
    translation_loss,
)
from tfmlib.workbench import AdamW, WarmupCosine, bleu, epochs, pairs, parameter_groups, train

SENTENCES, LONGEST, ROWS, STEPS, PEAK, WIDTH = 8_000, 14, 64, 1_500, 0.006, 64
SEEDS, TESTS, BANDS = ((0, 1, 2), 1_500, ((3, 5), (6, 8), (9, 11), (12, 14), (15, 17), (18, 20),
                                          (21, 25), (26, 30)))
DECODERS = {
    "Bahdanau": lambda vocabulary, width: BahdanauDecoder(vocabulary, width, AdditiveScore(width)),
    "Luong": lambda vocabulary, width: LuongDecoder(vocabulary, width, MultiplicativeScore(width)),
    "one vector": FixedContextDecoder,
}
KNOWN = pairs(SENTENCES, "train", longest=LONGEST)
NEW = pairs(TESTS, "held-out", longest=BANDS[-1][1])
ENGLISH, FRENCH = (Vocabulary(w for p in KNOWN for w in p.source),
                   Vocabulary(w for p in KNOWN for w in p.target))


def made(kind: str, width: int) -> Seq2Seq:
    return Seq2Seq(GRUEncoder(len(ENGLISH), width), DECODERS[kind](len(FRENCH), width))


def tensors(sentences: list) -> tuple[torch.Tensor, torch.Tensor]:
    "Sources and targets as numbers."
    return ENGLISH.batch(p.source for p in sentences), FRENCH.batch(p.target for p in sentences)


def batches(sentences: list, seed: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Step -> sources and targets, the same for every kind of model; columns of nothing but
    padding are cut off."""
    order = epochs(*tensors(sentences), size=ROWS, seed=seed)
    return lambda step: tuple(t[:, : int((t != PAD).sum(1).max())] for t in order(step))


def trained(kind: str, width: int, seed: int) -> Seq2Seq:
    "A model after training on sentences up to LONGEST words."
    torch.manual_seed(seed)
    model = made(kind, width)
    train(model, translation_loss, batches(KNOWN, seed), STEPS,
          AdamW(parameter_groups(model, 0.01), WarmupCosine(PEAK, STEPS // 20, STEPS),
                clip=1.0), seed=seed)
    return model


def links(sentences: list, shape: torch.Size) -> torch.Tensor:
    "The grammar's own links, padded to (B, T, S)."
    true = torch.zeros(shape, dtype=torch.bool)
    for row, p in zip(true, sentences): row[: len(p.target), : len(p.source)] = p.alignment
    return true


@torch.no_grad()
def quality(model: Seq2Seq, sentences: list) -> dict[str, float]:
    """BLEU and the share of sentences without a fault, running freely; the alignment error,
    given the true words."""
    x, y = tensors(sentences)
    said = [" ".join(FRENCH.decode(row)) for row in greedy_decode(model, x, 2 * BANDS[-1][1])]
    wanted = [" ".join(p.target) for p in sentences]
    found = {"BLEU": bleu(said, wanted), "exact": mean(a == b for a, b in zip(said, wanted))}
    weights = model(x, shift_right(y))[1]
    if weights is None: return found
    true = links(sentences, weights.shape)
    diagonal = torch.eye(*weights.shape[1:]).expand_as(weights)
    named = {"AER": weights, "AER of the diagonal": diagonal}
    return (found | {name: alignment_error_rate(hard_alignment(w, true.any(-1)), true)
                     for name, w in named.items()})


def measure(seed: int) -> list[dict]:
    "Quality by length of the source, for each kind of decoder at equal parameters."
    rows = []
    for kind in ticked(DECODERS, "model"):
        width = even_width(partial(made, kind), size(made("Bahdanau", WIDTH)))
        models = [trained(kind, width, seed + s) for s in SEEDS]
        for low, high in (*BANDS, (BANDS[0][0], LONGEST)):
            some = [p for p in NEW if low <= len(p.source) <= high]
            found = [quality(model, some) for model in models]
            row = {"model": kind, "width": width, "parameters": size(models[0]), "shortest": low,
                   "longest": high, "sentences": len(some)}
            rows.append(row | over_seeds(found))
    return rows
