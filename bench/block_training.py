"""Chapter 7: sixteen blocks learn to repeat a sequence, with residuals and without, in both orders of the norm, with warm-up and without."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, ticked
from tfmlib.attention import causal_mask
from tfmlib.block import Bare, Block, FeedForward, LayerNorm, Post, Pre, Stack
from tfmlib.heads import Heads

DEVICE = "cpu"
SEED = 0
SEEDS, STEPS, EARLY, BATCH, RATE, SLOW, WARM = 3, 400, 250, 16, 1e-3, 3e-4, 150
LAYERS, WIDTH, HEADS, WORDS, HALF = 16, 64, 4, 32, 8           # HALF words, then the same again


def sublayer(residual: bool, order: str, norm: nn.Module, inner: nn.Module) -> nn.Module:
    "One of the four ways to put an inner layer between what comes in and what goes on."
    if residual: return (Pre if order == "pre" else Post)(norm, inner)
    return Bare(norm, inner) if order == "pre" else Bare(nn.Identity(), inner, norm)


class Repeater(nn.Module):
    "Words (B, T) to scores of the next word (B, T, V)."
    def __init__(self, residual: bool, order: str):
        super().__init__()
        def made(inner): return sublayer(residual, order, LayerNorm(WIDTH), inner)
        blocks = (Block(attention=made(Heads(WIDTH, HEADS, bias=True)), feed_forward=made(FeedForward(WIDTH))) for _ in range(LAYERS))
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(2 * HALF, WIDTH))
        self.stack, self.read = Stack(blocks, LayerNorm(WIDTH) if order == "pre" else None), nn.Linear(WIDTH, WORDS)
        for p in self.stack.parameters():
            if p.ndim == 2: nn.init.xavier_uniform_(p)

    def forward(self, words: Tensor) -> Tensor:
        x = self.word(words) + self.place[: words.shape[1]]
        return self.read(self.stack(x, mask=causal_mask(words.shape[1], words.shape[1]))[0])


def learn(residual: bool, order: str, warm: int, seed: int, rate: float = RATE) -> dict[str, float]:
    "Mean loss of ten steps, early and at the end, on the second half, where the answer is in sight; ln 32 is guessing."
    torch.manual_seed(seed)
    model, g, losses = Repeater(residual, order), torch.Generator().manual_seed(seed), []
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(STEPS):
        for group in optimiser.param_groups: group["lr"] = rate * min(1, (step + 1) / max(warm, 1))
        half = torch.randint(WORDS, (BATCH, HALF), generator=g)
        words = torch.cat([half, half], 1)
        loss = F.cross_entropy(model(words[:, :-1])[:, HALF - 1:].flatten(0, 1), words[:, HALF:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return {"early": sum(losses[EARLY - 10:EARLY]) / 10, "loss": sum(losses[-10:]) / 10}


def measure(seed: int) -> list[dict]:
    "Three seeds of each of the eight cases, and of the post-norm ones at a smaller rate."
    cases = [{"residual": residual, "order": order, "warm": warm} for residual in (True, False) for order in ("pre", "post") for warm in (0, WARM)]
    slow = [{"residual": True, "order": "post", "warm": warm, "rate": SLOW} for warm in (0, WARM)]
    return [case | {"rate": f"{case.get('rate', RATE):g}", "steps": STEPS} | over_seeds([learn(**case, seed=seed + s) for s in range(SEEDS)]) for case in ticked(cases + slow)]
