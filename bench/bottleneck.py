"""Chapter 2: reversing a sequence through one vector and with attention, at equal parameters:
accuracy against length.

One vector is also given twice the width, and three times the training, to see which of the two it
lacks.
"""
from functools import partial
from random import Random

import torch

from bench import even_width, over_seeds, size, ticked
from tfmlib.alignment import (
    EOS,
    SPECIALS,
    AdditiveScore,
    BahdanauDecoder,
    FixedContextDecoder,
    GRUEncoder,
    LuongDecoder,
    MultiplicativeScore,
    Seq2Seq,
    greedy_decode,
    translation_loss,
)
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, sequences, train

SYMBOLS, LONGEST, ROWS, STEPS, PEAK, WIDTH = 10, 20, 64, 1_500, 0.008, 64
SEEDS, LENGTHS, TESTS = (0, 1, 2), (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 25, 30, 40), 200
V = SYMBOLS + len(SPECIALS)
DECODERS = {
    "additive": lambda width: BahdanauDecoder(V, width, AdditiveScore(width)),
    "multiplicative": lambda width: LuongDecoder(V, width, MultiplicativeScore(width)),
    "one vector": lambda width: FixedContextDecoder(V, width),
}


def made(kind: str, width: int) -> Seq2Seq:
    return Seq2Seq(GRUEncoder(V, width), DECODERS[kind](width))


def questions(rows: int, length: int, rng: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences and their reverses as a translator reads them: numbers after the marks, an end
    mark behind."""
    end = torch.full((rows, 1), EOS)
    return tuple(torch.cat([t + len(SPECIALS), end], 1) for t in sequences("reverse", rows, length,
            SYMBOLS, rng))


def accuracy(model: Seq2Seq, length: int, world: str = "test") -> dict[str, float]:
    "Shares of whole sequences and of single symbols that are right when the model runs freely."
    x, y = questions(TESTS, length, Random(f"{world} {length}"))
    said = greedy_decode(model, x, length + 1)
    said = torch.nn.functional.pad(said, (0, length + 1 - said.shape[1]))
    return {"whole": float((said == y).all(1).float().mean()),
            "symbols": float((said == y)[:, :-1].float().mean())}


def taught(model: Seq2Seq, peak: float, seed: int, steps: int, rows: int = ROWS,
           longest: int = LONGEST) -> Seq2Seq:
    "The model after training on lengths up to `longest`, each as likely as any other."
    def batch(step: int):
        rng = Random(f"{seed}/{step}")
        return questions(rows, 1 + int(rng.random() * longest), rng)

    rate = WarmupCosine(peak, steps // 20, steps)
    train(model, translation_loss, batch, steps,
          AdamW(parameter_groups(model, 0.01), rate, clip=1.0), seed=seed)
    return model


def trained(kind: str, width: int, seed: int, steps: int = STEPS) -> Seq2Seq:
    "A model after training; a wider one learns best at a lower rate."
    torch.manual_seed(seed)
    return taught(made(kind, width), PEAK * WIDTH / width, seed, steps)


def measure(seed: int) -> list[dict]:
    """Accuracy by length: the models at equal parameters and training, and one vector with more
    of either."""
    equal = {kind: even_width(partial(made, kind), size(made("additive", WIDTH)))
             for kind in DECODERS}
    one = equal["one vector"]
    cases = [(kind, kind, width, STEPS) for kind, width in equal.items()]
    cases += [("one vector, twice as wide", "one vector", 2 * one, STEPS),
              ("one vector, trained longer", "one vector", one, 3 * STEPS)]
    rows = []
    for name, kind, width, steps in ticked(cases):
        models = [trained(kind, width, seed + s, steps) for s in SEEDS]
        for length in LENGTHS:
            found = [accuracy(model, length) for model in models]
            rows.append({"model": name, "width": width, "steps": steps,
                         "parameters": size(models[0]), "length": length} | over_seeds(found))
    return rows
