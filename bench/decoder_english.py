"""Chapter 10: a small decoder learns real English, the sentences of the tour; how much it gains
from context, beside tables of what followed so many tokens."""
import math
import re
from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor

from bench import over_seeds, size, ticked
from tfmlib.decoders import (
    CausalLM,
    SamplingConfig,
    chunk,
    generate,
    init_weights,
    llama,
    next_token_loss,
)
from tfmlib.workbench import ASSETS, AdamW, WarmupCosine, epochs, parameter_groups, spread, train

SEEDS, STEPS, BATCH, LENGTH, PEAK, DECAY = 3, 600, 16, 48, 0.004, 0.1
WATCHED, WRITES = (0, 10, 25, 50, 100, 150, 200, 300, 400, 500, 600), (0, 50, 600)
CONTEXTS, TABLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 47), (0, 1, 2, 3, 4, 6)
# added to each count of a plain table; the best one is kept
EXTRA = (0.001, 0.003, 0.01, 0.03, 0.1)
# of the shorter context, in a table that backs off; the best one is kept
WEIGHT = (1, 3, 10, 30, 100)


@lru_cache
def words() -> tuple[list[str], Tensor, Tensor]:
    "The vocabulary, the tokens to learn, and the last twentieth, which is held out."
    text = (ASSETS / "text/novels.txt").read_text(encoding="utf-8")
    split = re.findall(r" ?[A-Za-z]+(?:'[a-z]+)?|[^A-Za-z]", text)
    pieces = sorted(set(split))
    number = {piece: i for i, piece in enumerate(pieces)}
    ids = torch.tensor([number[piece] for piece in split])
    cut = len(ids) - len(ids) // 20
    return pieces, ids[:cut], ids[cut:]


# --- tables ---------------------------------------------------------------------------------------

def runs(ids: Tensor, n: int) -> list[tuple]:
    return list(zip(*(ids[i:].tolist() for i in range(n))))


def counts(n: int) -> tuple[Counter, Counter]:
    "How often each run of n + 1 tokens occurs, and each run of n with a token after it."
    whole = Counter(runs(words()[1], n + 1))
    before = Counter()
    for run, often in whole.items(): before[run[:-1]] += often
    return whole, before


def plain(n: int) -> float:
    "Nats a held-out token, by what followed its last n tokens; a little is added to each count."
    (whole, before), V = counts(n), len(words()[0])
    tested = runs(words()[2], n + 1)
    return min(-sum(math.log((whole[r] + e) / (before[r[:-1]] + e * V)) for r in tested)
               / len(tested) for e in EXTRA)


def backing_off(most: int, weight: float) -> list[float]:
    """Nats a held-out token of tables that mix in the shorter context, as if `weight` more cases
    had been seen there: of 0 to `most` tokens."""
    tested, V, found = words()[2].tolist(), len(words()[0]), []
    p = [1 / V] * len(tested)
    for n in range(most + 1):
        whole, before = counts(n)
        for t in range(n, len(tested)):
            run = tuple(tested[t - n:t + 1])
            p[t] = (whole[run] + weight * p[t]) / (before[run[:-1]] + weight)
        found.append(-sum(map(math.log, p[most:])) / len(p[most:]))
    return found


# --- the decoder ----------------------------------------------------------------------------------

def begun(seed: int) -> tuple[CausalLM, AdamW, object]:
    "A model before its first step, its optimiser, and its batches."
    model = llama(len(words()[0]), 128, 4, 4, 128, 2, 320)
    init_weights(model, seed)
    optimiser = AdamW(parameter_groups(model, DECAY), WarmupCosine(PEAK, STEPS // 20, STEPS),
                      betas=(0.9, 0.95), clip=1.0)
    return model, optimiser, epochs(chunk(words()[1], LENGTH + 1), size=BATCH, seed=seed)


@torch.no_grad()
def nats(model: CausalLM, x: Tensor) -> float:
    "Nats a token of windows (n, T)."
    found = [next_token_loss(model, part) for part in x.split(64)]
    return float(sum(total for total, _ in found) / sum(count for _, count in found))


@torch.no_grad()
def with_context(model: CausalLM, n: int) -> float:
    """Nats a held-out token of which the model sees exactly the n before it; the same tokens for
    every n."""
    last = max(CONTEXTS)
    windows = words()[2].unfold(0, last + 1, 1)[:, last - n:]
    counted = torch.arange(n + 1) == n
    found = [next_token_loss(model, part, counted.expand(part.shape))
             for part in windows.split(256)]
    return float(sum(total for total, _ in found) / sum(count for _, count in found))


def written(model: CausalLM) -> str:
    "What the model writes at the beginning of a line, with draws that are always the same."
    pieces = words()[0]
    ids = generate(model, torch.tensor([[pieces.index("\n")]]), 40, SamplingConfig(0.6), seed=1)[0]
    return "".join(pieces[i] for i in ids).strip().replace("\n", " / ")


def learn(seed: int) -> tuple[CausalLM, list[dict], list[str]]:
    "A trained model, what was measured on the way, and what it wrote then."
    model, optimiser, batches = begun(seed)
    new, known = (chunk(t, LENGTH + 1)[:90] for t in (words()[2], words()[1]))
    found, texts = [], []

    def watch(step: int) -> None:
        if step not in WATCHED: return
        model.eval()
        found.append({"held-out": nats(model, new), "learnt": nats(model, known)})
        texts.append(written(model) if step in WRITES else "")
        print(seed, step, found[-1], texts[-1][:90], flush=True)

    watch(0)
    train(model, next_token_loss, batches, STEPS, optimiser, watch=watch, seed=seed)
    return model, found, texts


def measure(seed: int) -> list[dict]:
    """Tables by context; the curve of three seeds, with what the first one writes; and the loss
    by context at the end."""
    V = len(words()[0])
    made = [{"model": "chance", "vocabulary": V, "tokens": len(words()[1]),
             "nats a token": spread([math.log(V)])}]
    made += [{"model": "table", "context": n, "nats a token": spread([plain(n)])} for n in TABLES]
    best = min((backing_off(max(TABLES), w) for w in WEIGHT), key=lambda found: found[-1])
    made += [{"model": "table, backing off", "context": n, "nats a token": spread([best[n]])}
             for n in TABLES]
    trained = [learn(seed + s) for s in ticked(range(SEEDS), "seed")]
    for i, step in enumerate(WATCHED):
        said = {"written": trained[0][2][i]} if step in WRITES else {}
        made.append({"model": "decoder", "step": step} | said
                    | over_seeds([found[i] for _, found, _ in trained]))
    by = {n: [{"nats a token": with_context(model, n)} for model, *_ in trained] for n in CONTEXTS}
    return (made + [{"model": "decoder", "parameters": size(trained[0][0]), "context": n}
                    | over_seeds(found) for n, found in by.items()])
