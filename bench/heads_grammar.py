"""Chapter 5: what heads become on the toy grammar, by number of heads: accuracy beside a
baseline, weight on the noun, accuracy without a head (set to zero, set to its mean)."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, ticked
from tfmlib.heads import MultiHeadAttention, grouped_query_attention
from tfmlib.workbench import ROWS, AdamW, Pair, WarmupCosine, epochs, pairs, parameter_groups, train

SEEDS, STEPS, HEADS, WIDTH, LONGEST = 5, 700, (1, 2, 4, 8), 64, 12
# a head is spare if its removal costs less
SPARE = 0.02


class Reader(nn.Module):
    "Word ids to logits of their French forms, through one layer of attention."
    def __init__(self, words: int, forms: int, heads: int):
        super().__init__()
        self.word, self.position = (nn.Embedding(words, WIDTH),
                                    nn.Parameter(torch.randn(LONGEST, WIDTH) / 2))
        self.norm, self.heads, self.to_logits = (nn.LayerNorm(WIDTH),
                                                 MultiHeadAttention(WIDTH, heads,
                                                         attention_fn=grouped_query_attention),
                                                 nn.Linear(WIDTH, forms))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.word(x) + self.position
        out, weights = self.heads(self.norm(z), mask=(x > 0)[:, None, None])
        return self.to_logits(z + out), weights


def numbered(words) -> dict[str, int]:
    return {word: i for i, word in enumerate(["", *sorted(set(words))])}


def encode(ps: list[Pair], english: dict, french: dict) -> tuple[Tensor, Tensor, Tensor]:
    "Word ids, the ids of their French forms, and the position of each word's noun."
    x, y, noun = (torch.zeros(3, len(ps), LONGEST, dtype=torch.long)
                  - torch.tensor([0, 0, 1])[:, None, None])
    for b, p in enumerate(ps):
        for t, s in enumerate(p.order):
            x[b, s], y[b, s], noun[b, s] = english[p.source[s]], french[p.target[t]], p.heads[s]
    return x, y, noun


def replacing(h: int | None, fill: Tensor | None, seen: list):
    """Attention in which the output of head h is replaced; the outputs of all heads are appended
    to `seen`."""
    def attention_fn(q, k, v, mask=None):
        out, weights = grouped_query_attention(q, k, v, mask)
        seen.append(out.clone())
        if h is not None: out[:, h] = fill
        return out, weights
    return attention_fn


def judged(model: Reader, learned: Tensor, x: Tensor, y: Tensor, noun: Tensor,
           agrees: Tensor) -> dict[str, float]:
    """Accuracy, the best head's weight on the noun, accuracies without the costliest and the
    cheapest head, heads that can be spared; by both ablations."""
    def right() -> float: return float((model(x)[0].argmax(-1) == y)[agrees].double().mean())
    on = model(x)[1].gather(-1, noun.clamp(min=0)[:, None, :, None].expand(-1, model.heads.n_heads,
            -1, 1))[..., 0].transpose(1, 2)[agrees].mean(0)
    whole, seen, found = right(), [], {}
    model.heads.attention_fn = replacing(None, None, seen)
    model(learned)
    means = seen[0].transpose(1, 2)[learned > 0].mean(0)                  # (H, D)
    for name, fills in (("", torch.zeros_like(means)), ("_mean", means)):
        without = []
        for h, fill in enumerate(fills):
            model.heads.attention_fn = replacing(h, fill, [])
            without.append(right())
        found |= {f"worst{name}": min(without), f"least{name}": max(without),
                  f"spare{name}": float(sum(whole - w < SPARE for w in without))}
    model.heads.attention_fn = grouped_query_attention
    return {"right": whole, "noun": float(on.max()), **found}


def baseline(learned: tuple[Tensor, Tensor], x: Tensor, y: Tensor, agrees: Tensor) -> float:
    "The accuracy of each word's most frequent form."
    counts = torch.zeros(int(learned[0].max()) + 1, int(max(learned[1].max(), y.max())) + 1,
                         dtype=torch.long)
    counts.index_put_(learned, torch.tensor(1), accumulate=True)
    return float((counts.argmax(1)[x] == y)[agrees].double().mean())


def measure(seed: int) -> list[dict]:
    "Five seeds for each number of heads."
    learned, unseen = (pairs(2_400, depth=1, longest=LONGEST),
                       pairs(400, "held-out", depth=1, longest=LONGEST))
    english, french = (numbered(w for p in learned + unseen for w in getattr(p, side))
                       for side in ("source", "target"))
    data, test, rows = encode(learned, english, french)[:2], encode(unseen, english, french), []
    agrees = torch.isin(test[0],
                        torch.tensor([english[w] for kind in ("determiner", "before", "after")
                                      for row, _ in ROWS[kind] for w in row if w in english]))

    def loss(model: Reader, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten(), ignore_index=0)

    for heads in ticked(HEADS, "heads"):
        found = []
        for s in range(seed, seed + SEEDS):
            torch.manual_seed(s)
            model = Reader(len(english), len(french), heads)
            train(model, loss, epochs(*data, size=64, seed=s), STEPS,
                  AdamW(parameter_groups(model, 0.1), WarmupCosine(0.01, 30, STEPS), clip=1.0))
            with torch.no_grad():
                found.append(judged(model, data[0], *test, agrees)
                             | {"baseline": baseline(data, *test[:2], agrees)})
        rows.append({"heads": heads} | over_seeds(found))
    return rows
