"""Chapter 2: does Luong's product need its matrix? Reversing digits with the plain dot product and
with a matrix, at about equal parameters.

Each score has three learning rates; the page takes the one that is best on sequences drawn for
validation.
"""
from random import Random

import torch
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from bench.bottleneck import V, questions
from tfmlib.alignment import (
    GRUEncoder,
    LuongDecoder,
    MultiplicativeScore,
    Seq2Seq,
    greedy_decode,
    translation_loss,
)
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, train

LONGEST, ROWS, STEPS, WIDTH = 10, 32, 400, 36       # the page's task and its size
RATES, SEEDS, LENGTHS, TESTS = (0.004, 0.008, 0.016), (0, 1, 2, 3, 4), (2, 4, 6, 8, 10), 200


class DotScore(nn.Module):
    "The plain dot product s · h, without parameters."
    def keys(self, h: Tensor) -> Tensor: return h

    def forward(self, s: Tensor, keys: Tensor) -> Tensor: return (keys @ s[..., None])[..., 0]


SCORES = {"dot": DotScore, "general": lambda: MultiplicativeScore(WIDTH)}


def accuracy(model: Seq2Seq, length: int, world: str) -> float:
    "The fraction of sequences that are decoded without a mistake."
    x, y = questions(TESTS, length, Random(f"{world} {length}"))
    said = greedy_decode(model, x, length + 1)
    said = torch.nn.functional.pad(said, (0, length + 1 - said.shape[1]))
    return float((said == y).all(1).float().mean())


def trained(kind: str, peak: float, seed: int) -> Seq2Seq:
    "A model after training on lengths up to LONGEST, all equally likely."
    torch.manual_seed(seed)
    model = Seq2Seq(GRUEncoder(V, WIDTH), LuongDecoder(V, WIDTH, SCORES[kind]()))

    def batch(step: int):
        rng = Random(f"{seed}/{step}")
        return questions(ROWS, 1 + int(rng.random() * LONGEST), rng)

    optimiser = AdamW(parameter_groups(model, 0.01),
                      WarmupCosine(peak, STEPS // 20, STEPS), clip=1.0)
    train(model, translation_loss, batch, STEPS, optimiser, seed=seed)
    return model


def measure(seed: int) -> list[dict]:
    """Accuracy by length for each score and learning rate, over seeds; on sequences for
    validation, and on others for the test."""
    rows = []
    for kind, peak in ticked([(kind, peak) for kind in SCORES for peak in RATES]):
        models = [trained(kind, peak, seed + s) for s in SEEDS]
        found = [{str(n): accuracy(model, n, "test") for n in LENGTHS}
                 | {"validation": sum(accuracy(model, n, "validation") for n in LENGTHS)
                    / len(LENGTHS)} for model in models]
        rows.append({"score": kind, "rate": f"{peak:g}", "width": WIDTH, "steps": STEPS,
                     "parameters": size(models[0])} | over_seeds(found))
    return rows
