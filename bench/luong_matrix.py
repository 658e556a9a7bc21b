"""Chapter 2: does Luong's product need its matrix? Reversing digits with the plain dot product and
with a matrix, at about equal parameters.

Each score has three learning rates; the page takes the one that is best on sequences drawn for
validation.
"""
import torch
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from bench.bottleneck import V, accuracy, taught
from tfmlib.alignment import GRUEncoder, LuongDecoder, MultiplicativeScore, Seq2Seq

LONGEST, ROWS, STEPS, WIDTH = 10, 32, 400, 36       # the page's task and its size
RATES, SEEDS, LENGTHS = (0.004, 0.008, 0.016), (0, 1, 2, 3, 4), (2, 4, 6, 8, 10)


class DotScore(nn.Module):
    "The plain dot product s · h, without parameters."
    def keys(self, h: Tensor) -> Tensor: return h

    def forward(self, s: Tensor, keys: Tensor) -> Tensor: return (keys @ s[..., None])[..., 0]


SCORES = {"dot": DotScore, "general": lambda: MultiplicativeScore(WIDTH)}


def trained(kind: str, peak: float, seed: int) -> Seq2Seq:
    "A model after training on lengths up to LONGEST, all equally likely."
    torch.manual_seed(seed)
    model = Seq2Seq(GRUEncoder(V, WIDTH), LuongDecoder(V, WIDTH, SCORES[kind]()))
    return taught(model, peak, seed, STEPS, ROWS, LONGEST)


def right(model: Seq2Seq, length: int, world: str) -> float:
    "The fraction of sequences that are decoded without a mistake."
    return accuracy(model, length, world)["whole"]


def measure(seed: int) -> list[dict]:
    """Accuracy by length for each score and learning rate, over seeds; on sequences for
    validation, and on others for the test."""
    rows = []
    for kind, peak in ticked([(kind, peak) for kind in SCORES for peak in RATES]):
        models = [trained(kind, peak, seed + s) for s in SEEDS]
        found = [{str(n): right(model, n, "test") for n in LENGTHS}
                 | {"validation": sum(right(model, n, "validation") for n in LENGTHS)
                    / len(LENGTHS)} for model in models]
        rows.append({"score": kind, "rate": f"{peak:g}", "width": WIDTH, "steps": STEPS,
                     "parameters": size(models[0])} | over_seeds(found))
    return rows
