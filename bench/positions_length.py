"""Chapter 6: loss against length for one small language model trained at 64 characters, by how it
is told its places.

All windows of one test end at the same places, and the loss is that of the last 32 characters, in
nats: every length predicts the same characters, and a longer window differs only in that it gives
more of what stands before them. Within a seed all models begin with the same weights (but for those
that belong to the places), and see the same text in the same order.

Then RoPE's model, by rule: as it is, and fine-tuned for a few steps on windows of 512. LongRoPE's
divisors are found by a search of our own on training text: it climbs from the best of three other
rules, one random change after another.
"""
import copy
import random
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, ticked
from tfmlib.heads import MultiHeadAttention
from tfmlib.positions import (
    ALiBi,
    DynamicNTK,
    LearnedEmbedding,
    Llama3Scaling,
    LongRoPE,
    NTKAware,
    PositionalAttention,
    PositionalEncoding,
    PositionInterpolation,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEmbedding,
    YaRN,
    default_scaling,
)
from tfmlib.workbench import AdamW, WarmupCosine, book_text, epochs, parameter_groups, prose, train

SEEDS, TRAINED, LENGTHS, LAST, WINDOWS = 3, 64, (32, 64, 96, 128, 256, 512), 32, 192
# CHARACTERS: in a batch, at every length
STEPS, PEAK, CHARACTERS, WIDTH, HEADS, LAYERS = 800, 0.004, 2_048, 64, 4, 2
TUNED, GENTLE, TRIES, FACTOR = (20, 200), 0.001, 60, LENGTHS[-1] // TRAINED


def table(most: int) -> LearnedEmbedding:
    """More rows than are ever trained, at first as large as the characters' own, as in BERT and
    GPT-2."""
    how = LearnedEmbedding(most, WIDTH)
    nn.init.normal_(how.weight)
    return how


METHODS = {
    "none": PositionalEncoding,
    "sinusoidal": lambda: SinusoidalEmbedding(WIDTH),
    "learned": lambda: table(LENGTHS[-1]),
    "relative (T5)": lambda: RelativePositionBias(HEADS, n_buckets=16, max_distance=TRAINED // 2),
    "ALiBi": lambda: ALiBi(HEADS),
    "RoPE": lambda: RotaryEmbedding(WIDTH // HEADS),
}
RULES = {
    "none": default_scaling,
    "interpolated": PositionInterpolation(FACTOR),
    "NTK": NTKAware(FACTOR),
    # its factor is the length over the trained one
    "dynamic NTK": DynamicNTK(1, TRAINED),
    "YaRN": YaRN(FACTOR, TRAINED),
    "Llama 3": Llama3Scaling(FACTOR, TRAINED),
}


@lru_cache
def texts() -> tuple[Tensor, Tensor, int]:
    "What is learnt from and what is tested on, as numbers, and how many characters there are."
    book, _ = book_text("v1")
    cut = 9 * len(book) // 10
    sides = book[:cut] + prose(900_000, seed=0), book[cut:] + prose(100_000, seed=1)
    signs = {c: i for i, c in enumerate(sorted(set("".join(sides))))}
    return *(torch.tensor([signs[c] for c in side]) for side in sides), len(signs)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    "The inner part: PyTorch's own attention, which saves a third of the time."
    return F.scaled_dot_product_attention(q, k, v, mask), None


class Model(nn.Module):
    "A causal language model; the norm and the feed-forward are PyTorch's."
    def __init__(self, signs: int, how: PositionalEncoding):
        super().__init__()
        def feed():
            return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))
        self.encoding, self.sign = how, nn.Embedding(signs, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.heads = nn.ModuleList(MultiHeadAttention(WIDTH, HEADS,
                attention_fn=PositionalAttention(how, fused)) for _ in range(LAYERS))
        self.feeds = nn.ModuleList(feed() for _ in range(LAYERS))
        self.read = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, signs))

    def forward(self, x: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        z, seen = (self.encoding.add(self.sign(x)),
                   torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())
        for norm, heads, feed in zip(self.norms, self.heads, self.feeds):
            z = z + heads(norm(z), mask=seen)[0]
            z = z + feed(z)
        return self.read(z)


def loss(model: nn.Module, x: Tensor, last: int = 0) -> Tensor:
    "Nats a character, over all of a window or its last ones."
    return F.cross_entropy(model(x[:, :-1])[:, -last:].flatten(0, 1), x[:, 1:][:, -last:].flatten())


def windows(text: Tensor, length: int, count: int) -> Tensor:
    "Windows (count, length + 1), evenly spread; those of every length end at the same places."
    ends = torch.linspace(LENGTHS[-1] + 1, len(text), count).long().tolist()
    return torch.stack([text[end - length - 1:end] for end in ends])


@torch.no_grad()
def losses(model: nn.Module) -> dict[str, float]:
    "At every length, on the test text, of the last characters."
    def at(length):
        found = [loss(model, x, LAST) for x in windows(texts()[1], length, WINDOWS).split(16)]
        return float(torch.stack(found).mean())
    return {f"loss at {length}": at(length) for length in LENGTHS}


def learnt(model: nn.Module, length: int, steps: int, peak: float, seed: int) -> nn.Module:
    "The model after so many steps on windows of one length."
    order = epochs(texts()[0].unfold(0, length + 1, length), size=CHARACTERS // length, seed=seed)
    train(model, loss, order, steps,
          AdamW(parameter_groups(model, 0.1), WarmupCosine(peak, steps // 20, steps),
                clip=1.0), seed=seed)
    return model


def fresh(method: str, seed: int) -> Model:
    "An untrained model; its weights do not depend on the method."
    torch.manual_seed(seed)
    how = METHODS[method]()
    torch.manual_seed(seed)
    return Model(texts()[2], how)


def ruled(model: Model, rule) -> Model:
    "A copy of a model with RoPE, by another rule."
    other = copy.deepcopy(model)
    other.encoding.scaling = rule
    return other


@torch.no_grad()
def searched(model: Model, seed: int) -> LongRoPE:
    """LongRoPE with divisors that do well on training text: never falling from pair to pair,
    between 1 and twice the factor."""
    x, rng, D = windows(texts()[0], LENGTHS[-1], 16), random.Random(seed), WIDTH // HEADS
    def rule(divisors): return LongRoPE(FACTOR, TRAINED, (1.0,) * (D // 2), tuple(divisors))
    def score(divisors): return float(loss(ruled(model, rule(divisors)), x))
    speeds = {name: each(D, 10_000.0, LENGTHS[-1])[0] for name, each in RULES.items()}
    starts = [(speeds["none"] / speeds[name]).tolist() for name in ("interpolated", "NTK", "YaRN")]
    best, divisors = min((score(start), start) for start in starts)
    for _ in range(TRIES):
        tried = list(divisors)
        tried[rng.randrange(len(tried))] *= 2 ** rng.gauss(0, 0.7)
        tried = sorted(min(max(d, 1.0), 2.0 * FACTOR) for d in tried)
        if (found := score(tried)) < best: best, divisors = found, tried
    return rule(divisors)


def said(seed: int, *names, found: dict[str, float]) -> dict[str, float]:
    "What was found, said aloud for whoever waits."
    print(seed, *names, {name: round(value, 3) for name, value in found.items()}, flush=True)
    return found


def measure(seed: int) -> list[dict]:
    """Every method, then every rule before and after fine-tuning, then RoPE trained at the full
    length for comparison."""
    seeds, full = range(seed, seed + SEEDS), LENGTHS[-1]
    models, rows = {}, []
    for method in ticked(METHODS, "method"):
        models[method] = [learnt(fresh(method, s), TRAINED, STEPS, PEAK, s) for s in seeds]
        found = [said(s, method, found=losses(model)) for s, model in zip(seeds, models[method])]
        rows.append({"method": method, "rule": "none", "trained": TRAINED, "tuned": 0}
                    | over_seeds(found))
    rules = [RULES | {"LongRoPE": searched(model, s)} for s, model in zip(seeds, models["RoPE"])]
    for name in ticked(rules[0], "rule"):
        for steps in (0, *TUNED):
            if name == "none" and not steps: continue                     # stands there already
            made = [ruled(m, r[name]) for m, r in zip(models["RoPE"], rules)]
            if steps: made = [learnt(m, full, steps, GENTLE, s + 100) for s, m in zip(seeds, made)]
            found = [said(s, name, steps, found=losses(m)) for s, m in zip(seeds, made)]
            rows.append({"method": "RoPE", "rule": name, "trained": TRAINED, "tuned": steps}
                        | over_seeds(found))
    found = [said(s, "RoPE at", full, found=losses(learnt(fresh("RoPE", s), full, STEPS, PEAK, s)))
             for s in seeds]
    return (rows + [{"method": "RoPE", "rule": "none", "trained": full, "tuned": 0}
                    | over_seeds(found)])
