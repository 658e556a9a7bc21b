"""Chapter 7: sixteen blocks learn to repeat a sequence, trained to convergence: both orders of the
norm, five learning rates, with warm-up and without, three seeds; and, at two of the rates and with
one seed, the same stacks without residuals."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, ticked
from tfmlib.attention import causal_mask
from tfmlib.block import (
    FeedForward,
    LayerNorm,
    NoResidual,
    PostNorm,
    PreNorm,
    TransformerBlock,
    TransformerStack,
)
from tfmlib.heads import MultiHeadAttention

SEEDS, SEEDS_WITHOUT = 3, 1                                   # with residuals, without
# the curve is the mean loss of each EVERY steps
STEPS, EVERY, BATCH, WARM = 2000, 50, 16, 150
RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
RATES_WITHOUT = (1e-3, 3e-4)                                  # without residuals
# a model has learned the task from this loss on
ARRIVED = 0.1
# at this mean loss of EVERY steps a run ends; its curve goes on at that height
DONE = 0.005
LAYERS, WIDTH, HEADS, WORDS, HALF = 16, 64, 4, 32, 8          # HALF tokens, then the same again


def sublayer(residual: bool, order: str, norm: nn.Module, inner: nn.Module) -> nn.Module:
    "One of the four ways to wrap a layer."
    if residual: return (PreNorm if order == "pre" else PostNorm)(norm, inner)
    return NoResidual(norm, inner) if order == "pre" else NoResidual(nn.Identity(), inner, norm)


class Repeater(nn.Module):
    "Token ids (B, T) to logits of the next token (B, T, V)."
    def __init__(self, residual: bool, order: str):
        super().__init__()
        def wrapped(inner): return sublayer(residual, order, LayerNorm(WIDTH), inner)
        blocks = (TransformerBlock(attention=wrapped(MultiHeadAttention(WIDTH, HEADS, bias=True)),
                                   feed_forward=wrapped(FeedForward(WIDTH))) for _ in range(LAYERS))
        self.embedding, self.positions = (nn.Embedding(WORDS, WIDTH),
                                          nn.Parameter(torch.randn(2 * HALF, WIDTH)))
        self.stack, self.to_logits = (TransformerStack(blocks, LayerNorm(WIDTH) if order == "pre"
                else None), nn.Linear(WIDTH, WORDS))
        for p in self.stack.parameters():
            if p.ndim == 2: nn.init.xavier_uniform_(p)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        return self.to_logits(self.stack(x, mask=causal_mask(ids.shape[1], ids.shape[1]))[0])


def learn(residual: bool, order: str, warm: int, rate: float, seed: int) -> list[float]:
    """The loss of every step on the second half, where the answer is in the context; ln 32 is
    guessing."""
    torch.manual_seed(seed)
    model, g, losses = Repeater(residual, order), torch.Generator().manual_seed(seed), []
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(STEPS):
        for group in optimiser.param_groups: group["lr"] = rate * min(1, (step + 1) / max(warm, 1))
        half = torch.randint(WORDS, (BATCH, HALF), generator=g)
        ids = torch.cat([half, half], 1)
        loss = F.cross_entropy(model(ids[:, :-1])[:, HALF - 1:].flatten(0, 1),
                               ids[:, HALF:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        # a record holds finite numbers
        losses.append(min(loss.item(), 100.) if loss.isfinite() else 100.)
        if len(losses) % EVERY == 0 and sum(losses[-EVERY:]) / EVERY <= DONE: break
    return losses


def curve(losses: list[float]) -> list[float]:
    "Mean loss of each EVERY steps; that of a run that ended early stays what it was."
    points = [sum(losses[i:i + EVERY]) / EVERY for i in range(0, len(losses), EVERY)]
    return points + points[-1:] * (STEPS // EVERY - len(points))


def arrival(points: list[float]) -> float:
    "Steps until the curve falls to ARRIVED; STEPS if it never does."
    return float(next((EVERY * (i + 1) for i, loss in enumerate(points) if loss <= ARRIVED), STEPS))


def measure(seed: int):
    """Every case: the loss at the end, the steps that it took to learn the task, and the curve
    of each seed."""
    cases = [{"residual": True, "order": order, "warm": warm, "rate": rate}
             for order in ("pre", "post") for warm in (0, WARM) for rate in RATES]
    cases += [{"residual": False, "order": order, "warm": warm, "rate": rate}
              for order in ("pre", "post") for warm in (0, WARM) for rate in RATES_WITHOUT]
    for case in ticked(cases):
        curves = [curve(learn(**case, seed=seed + s))
                  for s in range(SEEDS if case["residual"] else SEEDS_WITHOUT)]
        fixed = (case | {"rate": f"{case['rate']:g}", "steps": STEPS, "every": EVERY,
                         "curve": [[round(loss, 4) for loss in points] for points in curves]})
        yield (fixed | over_seeds([{"loss": points[-1], "arrived": arrival(points)}
                                   for points in curves]))
