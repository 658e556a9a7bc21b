"""Chapter 5: what heads become on the toy grammar, by number of heads: forms right, weight on the noun, cost of removing one."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import ticked
from tfmlib.data import ROWS, Pair, pairs
from tfmlib.heads import Heads
from tfmlib.proof import spread
from tfmlib.training import AdamW, WarmupCosine, epochs, groups, train

DEVICE = "cpu"
SEED = 0
SEEDS, STEPS, HEADS, WIDTH, LONGEST = 5, 700, (1, 2, 4, 8), 64, 12
SPARE = 0.02                                                              # a head is spare if its removal costs less


class Reader(nn.Module):
    "Words to scores of their French forms, through one layer of heads."
    def __init__(self, words: int, forms: int, heads: int):
        super().__init__()
        self.word, self.place = nn.Embedding(words, WIDTH), nn.Parameter(torch.randn(LONGEST, WIDTH) / 2)
        self.norm, self.heads, self.read = nn.LayerNorm(WIDTH), Heads(WIDTH, heads), nn.Linear(WIDTH, forms)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.word(x) + self.place
        out, weights = self.heads(self.norm(z), mask=(x > 0)[:, None, None])
        return self.read(z + out), weights


def numbered(words) -> dict[str, int]: return {word: i for i, word in enumerate(["", *sorted(set(words))])}


def encode(ps: list[Pair], english: dict, french: dict) -> tuple[Tensor, Tensor, Tensor]:
    "Words, their French forms, and the place of the noun that each agrees with."
    x, y, noun = torch.zeros(3, len(ps), LONGEST, dtype=torch.long) - torch.tensor([0, 0, 1])[:, None, None]
    for b, p in enumerate(ps):
        for t, s in enumerate(p.order): x[b, s], y[b, s], noun[b, s] = english[p.source[s]], french[p.target[t]], p.heads[s]
    return x, y, noun


def judged(model: Reader, x: Tensor, y: Tensor, noun: Tensor, depends: Tensor) -> dict[str, float]:
    "Share right, the best head's weight on the noun, shares right without the most and the least missed head, heads that can be spared."
    def right() -> float: return float((model(x)[0].argmax(-1) == y)[depends].double().mean())
    on = model(x)[1].gather(-1, noun.clamp(min=0)[:, None, :, None].expand(-1, model.heads.heads, -1, 1))[..., 0].transpose(1, 2)[depends].mean(0)
    whole, without = right(), []
    for block in model.heads.output.weight.unflatten(1, (model.heads.heads, -1)).unbind(1):
        kept = block.clone()
        block.zero_()
        without.append(right())
        block.copy_(kept)
    return {"right": whole, "noun": float(on.max()), "worst": min(without), "least": max(without), "spare": float(sum(whole - w < SPARE for w in without))}


def measure(seed: int) -> list[dict]:
    "Five seeds for each number of heads."
    learnt, unseen = pairs(2_400, depth=1, longest=LONGEST), pairs(400, "held-out", depth=1, longest=LONGEST)
    english, french = (numbered(w for p in learnt + unseen for w in getattr(p, side)) for side in ("source", "target"))
    data, test, rows = encode(learnt, english, french), encode(unseen, english, french), []
    depends = torch.isin(test[0], torch.tensor([english[w] for kind in ("determiner", "before", "after") for row, _ in ROWS[kind] for w in row if w in english]))

    def loss(model: Reader, x: Tensor, y: Tensor) -> Tensor: return F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten(), ignore_index=0)

    for heads in ticked(HEADS, "heads"):
        found = []
        for s in range(seed, seed + SEEDS):
            torch.manual_seed(s)
            model = Reader(len(english), len(french), heads)
            train(model, loss, epochs(*data[:2], size=64, seed=s), STEPS, AdamW(groups(model, 0.1), WarmupCosine(0.01, 30, STEPS), clip=1.0))
            with torch.no_grad(): found.append(judged(model, *test, depends))
        rows.append({"heads": heads} | {name: spread(f[name] for f in found) for name in found[0]})
    return rows
