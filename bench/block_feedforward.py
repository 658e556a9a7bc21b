"""Chapter 7: feed-forward layers of equal size, on a table to be learnt by heart and on prose."""
from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from tfmlib.attention import causal_mask
from tfmlib.block import (
    FeedForward,
    GatedFeedForward,
    PreNorm,
    RMSNorm,
    SwiGLU,
    TransformerBlock,
    TransformerStack,
)
from tfmlib.heads import MultiHeadAttention
from tfmlib.workbench import book_text

# 8/3 of 48 is a whole number: sizes are equal, not nearly
SEEDS, RATE, WIDTH, HEADS = 5, 4e-3, 48, 4
# 64 × 64 questions, each with an answer drawn at random
PAIRS, ANSWERS, TABLE_STEPS = 64, 32, 300
LENGTH, BATCH, LAYERS, PROSE_STEPS = 64, 12, 2, 400                   # bytes of the book's prose

LAYERS_OF: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: FeedForward(WIDTH, activation=nn.Identity(), bias=False),
    "ReLU": lambda: FeedForward(WIDTH, activation=F.relu, bias=False),
    "GELU": lambda: FeedForward(WIDTH, activation=F.gelu, bias=False),
    "SwiGLU": lambda: SwiGLU(WIDTH),
    "GeGLU": lambda: GatedFeedForward(WIDTH, activation=F.gelu),
}


class Table(nn.Module):
    "Two words, added: one feed-forward sub-layer has to answer, and nothing else mixes them."
    def __init__(self, kind: str):
        super().__init__()
        self.word, self.read = nn.Embedding(2 * PAIRS, WIDTH), nn.Linear(WIDTH, ANSWERS, bias=False)
        self.feed_forward, self.norm = PreNorm(RMSNorm(WIDTH), LAYERS_OF[kind]()), RMSNorm(WIDTH)

    def forward(self, asked: Tensor) -> Tensor:
        return self.read(self.norm(self.feed_forward(self.word(asked).sum(1))[0]))


class Model(nn.Module):
    """Bytes (B, T) to scores (B, T, 256): pre-norm blocks with the feed-forward layer that is
    asked for."""
    def __init__(self, kind: str):
        super().__init__()
        self.word, self.place = nn.Embedding(256, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        blocks = (TransformerBlock(attention=PreNorm(RMSNorm(WIDTH),
                MultiHeadAttention(WIDTH, HEADS)),
                                   feed_forward=PreNorm(RMSNorm(WIDTH), LAYERS_OF[kind]()))
                  for _ in range(LAYERS))
        self.stack, self.read = (TransformerStack(blocks, RMSNorm(WIDTH)),
                                 nn.Linear(WIDTH, 256, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        return self.read(self.stack(self.word(x) + self.place[:T], mask=causal_mask(T, T))[0])


def fit(model: nn.Module, loss: Callable[[], Tensor], steps: int) -> None:
    "Adam, its rate rising for a tenth of the way and falling to nothing."
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(10 * (step + 1) / steps, 10 / 9 * (1 - step / steps))
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


def table(kind: str, seed: int) -> dict[str, float]:
    """Loss and share of right answers on a table that was learnt by heart; every answer depends
    on both words."""
    torch.manual_seed(seed)
    first, second = torch.meshgrid(torch.arange(PAIRS), PAIRS + torch.arange(PAIRS), indexing="ij")
    asked, answers = (torch.stack([first.flatten(), second.flatten()], 1),
                      torch.randint(ANSWERS, (PAIRS**2,)))
    model = Table(kind)
    def loss() -> Tensor: return F.cross_entropy(model(asked), answers)
    fit(model, loss, TABLE_STEPS)
    with torch.no_grad():
        return {"loss": loss().item(),
                "right": float((model(asked).argmax(-1) == answers).double().mean())}


def prose(kind: str, seed: int) -> dict[str, float]:
    "Loss on bytes of the book's prose that were not trained on."
    torch.manual_seed(seed)
    text = torch.tensor(list(book_text()[0].encode()))
    learnt, unseen, g = (text[: -len(text) // 10], text[-len(text) // 10:],
                         torch.Generator().manual_seed(seed))
    model = Model(kind)

    def loss(source: Tensor = learnt, rows: int = BATCH) -> Tensor:
        at = torch.randint(len(source) - LENGTH, (rows, 1), generator=g) + torch.arange(LENGTH + 1)
        return F.cross_entropy(model(source[at[:, :-1]]).flatten(0, 1), source[at[:, 1:]].flatten())

    fit(model, loss, PROSE_STEPS)
    # the same unseen text for all
    g.manual_seed(0)
    with torch.no_grad(): return {"loss": loss(unseen, 256).item()}


def measure(seed: int) -> list[dict]:
    "Five seeds of each layer on both tasks."
    tasks = {"table": table, "prose": prose}
    return [{"task": name, "kind": kind, "parameters": size(LAYERS_OF[kind]())}
            | over_seeds([task(kind, seed + s) for s in range(SEEDS)])
            for (name, task), kind in ticked(product(tasks.items(), LAYERS_OF))]
