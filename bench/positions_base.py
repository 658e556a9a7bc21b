"""Chapter 6: does the base of RoPE decide how soon it fails beyond the trained length?

The model, the text and the loss of `positions_length`, trained on 64 characters; RoPE with four
bases, and ALiBi for comparison. With heads of 16 features, base 10 lets all eight pairs complete a
turn within 64 characters, base 10,000 only three. Each encoding has its own peak learning rate:
doubled or halved from 0.004 as long as that lowers the loss at the trained length, on one half of
the test windows and with a seed that is not used again. The losses on record are those of the other
half.
"""
import math

import torch
from torch import nn

from bench import over_seeds, ticked
from bench.positions_length import (
    HEADS,
    LAST,
    LENGTHS,
    PEAK,
    STEPS,
    TRAINED,
    WIDTH,
    WINDOWS,
    Model,
    learnt,
    loss,
    said,
    texts,
    windows,
)
from tfmlib.positions import ALiBi, PositionalEncoding, RotaryEmbedding, inverse_frequencies

# TUNING: added to the seed of the runs that choose a rate
SEEDS, TUNING, HEAD_DIM = 3, 50, WIDTH // HEADS
ENCODINGS = {("RoPE", base): (lambda base=base: RotaryEmbedding(HEAD_DIM, base=float(base)))
             for base in (10_000, 1_000, 100, 10)}
ENCODINGS |= {("ALiBi", 0): lambda: ALiBi(HEADS)}


def fresh(encoding: PositionalEncoding, seed: int) -> Model:
    "An untrained model; its weights do not depend on the encoding."
    torch.manual_seed(seed)
    return Model(texts()[2], encoding)


@torch.no_grad()
def losses(model: nn.Module, half: int, lengths: tuple[int, ...] = LENGTHS) -> dict[str, float]:
    """At these lengths, of the last characters, on every other test window: the even ones or the
    odd ones."""
    def at(length):
        chosen = windows(texts()[1], length, WINDOWS)[half::2]
        return float(torch.cat([loss(model, x, LAST)[None] for x in chosen.split(16)]).mean())
    return {f"loss at {length}": at(length) for length in lengths}


def tuned_rate(made, seed: int) -> float:
    """The peak learning rate with the lowest loss at the trained length, never at the edge of
    what was tried."""
    tried = {}
    def at(rate: float) -> float:
        if rate not in tried:
            model = learnt(fresh(made(), seed), TRAINED, STEPS, rate, seed)
            tried[rate] = losses(model, 0, (TRAINED,))[f"loss at {TRAINED}"]
        return tried[rate]
    rate = PEAK
    while (better := min((rate / 2, rate, 2 * rate), key=at)) != rate: rate = better
    return rate


def measure(seed: int):
    "Each encoding: tune its rate, train it with three seeds, and test at every length."
    for (name, base), made in ticked(ENCODINGS.items(), "encoding"):
        rate = tuned_rate(made, seed + TUNING)
        found = [said(s, name, base, rate,
                      found=losses(learnt(fresh(made(), s), TRAINED, STEPS, rate, s), 1))
                 for s in range(seed, seed + SEEDS)]
        full = (int((2 * math.pi / inverse_frequencies(HEAD_DIM, float(base)) <= TRAINED).sum())
                if base else 0)
        yield ({"encoding": name, "base": base, "rate": f"{rate:g}", "full turns": full}
               | over_seeds(found))
