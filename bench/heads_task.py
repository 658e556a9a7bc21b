"""Chapter 5: what one layer of attention leaves on the ring, by number of heads and by how much
each token carries."""
import math

import torch
from torch import Tensor, nn

from bench import ticked
from tfmlib.heads import MultiHeadAttention
from tfmlib.workbench import spread

SEEDS, STEPS, BATCH, RATE = 5, 400, 64, 0.02
# numbers a token carries; heads
CARRIED, CUTS = (1, 2, 4, 6, 8), (1, 2)
# heads that share a width of 16, in a longer ring
NARROW = (1, 2, 4, 8, 16)


def both(content: Tensor) -> Tensor: return torch.cat([content.roll(1, 1), content.roll(-1, 1)], -1)


def total(content: Tensor) -> Tensor: return (content.roll(1, 1) + content.roll(-1, 1)) / 2**0.5


class Ring(nn.Module):
    """One layer of attention that reports, as on the page; or several, each added to what came
    before, and a linear reading."""
    def __init__(self, inputs: int, width: int, heads: int, answers: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(inputs, heads, head_dim=width // heads)
                                    for _ in range(layers))
        self.read = nn.Linear(inputs, answers, bias=False) if layers > 1 else None
        if layers == 1: self.layers[0].o_proj = nn.Linear(width, answers, bias=False)
        # from smaller ones a head gets stuck sooner
        for w in self.parameters(): nn.init.normal_(w, std=1 / math.sqrt(w.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        if self.read is None: return self.layers[0](x)[0]
        for layer in self.layers: x = x + layer(x)[0]
        return self.read(x)


def left(heads: int, seed: int, m: int = 6, task=both, width: int = 16, layers: int = 1, n: int = 8,
         names: bool = False) -> float:
    "Share of the variance left on fresh data; `names`: queries and keys see no content."
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Ring(n + m, width, heads, task(torch.zeros(1, n, m)).shape[-1], layers)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)

    def loss(batch: int) -> Tensor:
        content = torch.randn(batch, n, m, generator=g)
        out = model(torch.cat([torch.eye(n).expand(batch, n, n), content], -1))
        return (out - task(content)).square().mean()

    for step in range(STEPS):
        for group in optimiser.param_groups: group["lr"] = RATE * min(1, 2 * (1 - step / STEPS))
        if names:
            for projection in (model.layers[0].q_proj, model.layers[0].k_proj):
                projection.weight.data[:, n:] = 0
        optimiser.zero_grad()
        loss(BATCH).backward()
        optimiser.step()
    if names:
        for projection in (model.layers[0].q_proj, model.layers[0].k_proj):
            projection.weight.data[:, n:] = 0
    with torch.no_grad(): return loss(2048).item()


def measure(seed: int) -> list[dict]:
    "Five seeds of each case."
    cases = [{"kind": "ring", "heads": h, "m": m} for m in CARRIED for h in CUTS]
    cases += [{"kind": "names", "heads": 1, "m": 1, "names": True},
              {"kind": "wide", "heads": 1, "width": 64}, {"kind": "deep", "heads": 1, "layers": 2}]
    cases += ([{"kind": "sum", "heads": 1, "task": total}]
              + [{"kind": "narrow", "heads": h, "m": 8, "n": 16} for h in NARROW])
    rows = []
    for case in ticked(cases):
        told = {key: value for key, value in case.items() if key != "kind"}
        found = spread(left(seed=seed + s, **told) for s in range(SEEDS))
        rows.append({key: value for key, value in case.items() if key in ("kind", "heads", "m")}
                    | {"left": found})
    return rows
