"""Chapter 3: word vectors from counts (PPMI), from prediction (skip-gram) and from fitted counts
(GloVe) on the toy grammar, each tuned on some texts and judged on others."""
import math
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F

from bench import ticked
from tfmlib.workbench import ROWS, pairs, spread

SENTENCES, WIDTH, WINDOW = 2_000, 8, 2
TUNED_ON, JUDGED_ON = (100, 101, 102), (0, 1, 2, 3, 4)                     # seeds of the texts
# steps after which a run is looked at
CHECKPOINTS = (6, 12, 25, 50, 100, 200, 400, 800, 1600)
GRID = {"random": [{}],
        "ppmi": [{"shift": shift, "power": power}
                 for shift, power in product((1, 2, 5), (0., .5, 1., 2., 3., 4.))],
        "skip-gram": [{"lr": lr, "negatives": n} for lr, n in product((.01, .03, .1), (2, 5, 10))],
        "glove": [{"lr": lr, "cap": cap} for lr, cap in product((.1, .3, 1.), (50, 200, 1000))]}
NOUN = {"masculine": "noun", "feminine": "noun"}
CLASS = {word: NOUN.get(kind, kind) for kind, rows in ROWS.items() for english, _ in rows
         for word in english}
WORDS = sorted(CLASS)


def cooccurrence(seed: int) -> np.ndarray:
    "How often two words occur within WINDOW positions of each other, in the text of a seed (V, V)."
    index, N = {word: i for i, word in enumerate(WORDS)}, np.zeros((len(WORDS),) * 2)
    for sentence in pairs(SENTENCES, seed=seed):
        ids = [index[word] for word in sentence.source]
        for d in range(1, WINDOW + 1):
            for a, b in zip(ids, ids[d:]):
                N[a, b] += 1
                N[b, a] += 1
    return N


def auc(E: np.ndarray) -> float:
    "How often a pair of words from one class has a larger cosine than a pair from two classes."
    # a word whose row is zero is like no other
    E = E / np.maximum(np.linalg.norm(E, axis=1, keepdims=True), 1e-12)
    i, j = np.triu_indices(len(WORDS), 1)
    classes = np.array([CLASS[word] for word in WORDS])
    same, rank = classes[i] == classes[j], (E @ E.T)[i, j].argsort().argsort() + 1
    n, m = same.sum(), (~same).sum()
    return float((rank[same].sum() - n * (n + 1) / 2) / (n * m))


def random(N, seed):
    yield 0, np.random.default_rng(seed).standard_normal((len(N), WIDTH))


def ppmi(N, seed, shift, power):
    """The table of positive PMI, less the logarithm of `shift`, compressed; its singular values
    enter with a power."""
    p = N / N.sum()
    with np.errstate(divide="ignore"): pmi = np.log(p / np.outer(p.sum(1), p.sum(0)))
    U, S, _ = np.linalg.svd(np.maximum(pmi - math.log(shift), 0))
    yield 0, U[:, :WIDTH] * S[:WIDTH] ** power


def skip_gram(N, seed, lr, negatives, batch=512):
    g = torch.Generator().manual_seed(seed)
    word, context = (torch.randn(2, len(N), WIDTH, generator=g) / math.sqrt(WIDTH)).unbind()
    optimiser = torch.optim.Adam([word.requires_grad_(), context.requires_grad_()], lr=lr)
    seen, noise = torch.tensor(N).flatten(), torch.tensor(N.sum(1)) ** 0.75
    for step in range(1, CHECKPOINTS[-1] + 1):
        pair = torch.multinomial(seen, batch, True, generator=g)
        a, near = word[pair // len(N)], context[pair % len(N)]
        other = context[torch.multinomial(noise, batch * negatives, True,
                                          generator=g).view(batch, negatives)]
        loss = (-F.logsigmoid((a * near).sum(-1)).mean()
                - F.logsigmoid(-(other @ a[..., None])).sum(1).mean())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in CHECKPOINTS: yield step, word.detach().numpy().copy()


def glove(N, seed, lr, cap):
    g, N = torch.Generator().manual_seed(seed), torch.tensor(N, dtype=torch.float32)
    word, context = (0.1 * torch.randn(2, len(N), WIDTH + 1, generator=g)).unbind()
    optimiser = torch.optim.Adam([word.requires_grad_(), context.requires_grad_()], lr=lr)
    for step in range(1, CHECKPOINTS[-1] + 1):
        guess = word[:, :-1] @ context[:, :-1].T + word[:, -1:] + context[:, -1]
        loss = ((N / cap).clamp(max=1) ** 0.75 * (guess - N.clamp(min=1).log()) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in CHECKPOINTS: yield step, word[:, :-1].detach().numpy().copy()


METHODS = {"random": random, "ppmi": ppmi, "skip-gram": skip_gram, "glove": glove}


def scores(method: str, settings: dict, texts: dict[int, np.ndarray]) -> dict[int, list[float]]:
    "The AUC on each text, by number of steps."
    found = {}
    for seed, N in texts.items():
        for step, E in METHODS[method](N, seed, **settings):
            found.setdefault(step, []).append(auc(E))
    return found


def measure(seed: int) -> list[dict]:
    """Each method, with the settings and the number of steps that were best on other texts; and
    by number of steps."""
    tuning, judging = ({s: cooccurrence(seed + s) for s in seeds}
                       for seeds in (TUNED_ON, JUDGED_ON))
    rows = []
    for method, grid in ticked(GRID.items(), "methods"):
        tried = [(float(np.mean(values)), step, settings) for settings in grid
                 for step, values in scores(method, settings, tuning).items()]
        _, step, settings = max(tried, key=lambda t: t[0])
        curve = scores(method, settings, judging)
        rows.append({"kind": "tuned", "method": method, "steps": step,
                     "settings": ", ".join(f"{k} {v}" for k, v in settings.items()) or "none",
                     "auc": spread(curve[step])})
        rows += [{"kind": "curve", "method": method, "steps": at, "auc": spread(values)}
                 for at, values in curve.items()]
    return rows
