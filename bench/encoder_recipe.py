"""Chapter 9: what RoBERTa changed in BERT's training, each change a switch of the data: masks drawn
once or anew, next-sentence prediction, larger batches.

A small corpus of documents is read many times: `[CLS] first half [SEP] second half [SEP]`. With
next-sentence prediction, half of the pairs end with the second half of another document. Every
recipe reads the same number of texts, at the rate of the grid with the lowest masked-LM loss on
texts kept for this choice after half as many passes; a grid whose end is best goes on. Few-label
accuracies as in `bench.encoder_objectives`; a third task asks whether two texts have one topic.
"""
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import climbed, over_seeds, ticked
from bench.encoder_objectives import LABELLED, TESTS, TUNE_PEAKS, TUNED, WORKERS, noted, worth
from bench.encoder_sides import GRAMMAR, WARM, config, fused
from tfmlib.checkpoints import build
from tfmlib.encoders import Bert, masked_lm_loss
from tfmlib.encoders.tag_grammar import (
    CLS,
    LEXICON,
    SEP,
    Corruption,
    HiddenMarkovModel,
    forward_backward,
)
from tfmlib.workbench import AdamW, WarmupCosine, mix_seed, parameter_groups, seeded, spread, train

DOCUMENTS, HALF, TEXTS, PASSES, SEEDS = 1_000, 12, 32, 96, range(5)
# passes over the corpus while rates are tried
PEAKS, TRIED = (0.001, 0.002, 0.004), 48


class Recipe(NamedTuple):
    # drawn for each text before training; None: anew each time
    masks: int | None = None
    next_sentence: bool = False
    batch: int = TEXTS


RECIPES = {"BERT": Recipe(10, True), "one mask": Recipe(1, True),
           "dynamic masks": Recipe(None, True), "no next sentence": Recipe(),
           "large batches": Recipe(batch=4 * TEXTS)}


def documents(seed: int, part: int, n: int) -> Tensor:
    return GRAMMAR.sample(n, 2 * HALF, mix_seed(seed, part))[0]


def framed(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    "[CLS] first [SEP] second [SEP], and the segments."
    def every(i): return torch.full((len(first), 1), i)
    parts = [every(CLS), first, every(SEP)], [second, every(SEP)]
    return (torch.cat([*parts[0], *parts[1]], 1),
            torch.cat([torch.full_like(torch.cat(p, 1), i) for i, p in enumerate(parts)], 1))


def paired(texts: Tensor, others: Tensor, next_sentence: bool,
           g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    "Ids and segments; label 1 where the second half comes from another document."
    wrong = ((torch.rand(len(texts), generator=g) < .5) if next_sentence
             else torch.zeros(len(texts), dtype=torch.bool))
    second = torch.where(wrong[:, None], others[:, HALF:], texts[:, HALF:])
    return *framed(texts[:, :HALF], second), wrong.long()


def pretraining_loss(model: nn.Module, seen: Tensor, ids: Tensor, chosen: Tensor, segments: Tensor,
                     label: Tensor) -> Tensor:
    "The masked-LM loss, and that of the next-sentence head if there is one."
    found = model(seen, segments)
    loss = F.cross_entropy(found["masked-lm"][chosen], ids[chosen])
    return (loss + F.cross_entropy(found["next-sentence"], label)
            if "next-sentence" in found else loss)


def batches(recipe: Recipe, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Step -> a batch from the corpus; with masks that were drawn before, those of pass n modulo
    their number."""
    corpus, corruption = documents(seed, -9, DOCUMENTS), Corruption()
    per_pass = -(-DOCUMENTS // recipe.batch)
    def batch(step):
        turn, at = divmod(step, per_pass)
        rows = torch.randperm(DOCUMENTS,
                              generator=seeded(seed, turn,
                                               5))[at * recipe.batch:(at + 1) * recipe.batch]
        fixed = turn if recipe.masks is None else turn % recipe.masks
        # the corpus of one version, the same whenever it comes back
        g = seeded(seed, fixed, 6)
        ids, segments, label = paired(corpus, corpus[torch.randperm(DOCUMENTS, generator=g)],
                                      recipe.next_sentence, g)
        seen, chosen = corruption(ids, len(LEXICON), g)
        return seen[rows], ids[rows], chosen[rows], segments[rows], label[rows]
    return batch


def learn(recipe: Recipe, peak: float, seed: int, passes: int) -> Bert:
    "An encoder after so many passes over the corpus."
    heads = "masked-lm+next-sentence" if recipe.next_sentence else "masked-lm"
    model, steps = (build(config(False, heads=heads, n_segments=2), fused, seed),
                    passes * -(-DOCUMENTS // recipe.batch))
    optimiser = AdamW(parameter_groups(model, 0.01),
                      WarmupCosine(peak, min(WARM, steps // 4), steps), clip=1.)
    train(model, pretraining_loss, batches(recipe, seed), steps, optimiser, seed=seed)
    return model


@torch.no_grad()
def judged(model: Bert, seed: int, part: int, n: int = TESTS) -> dict[str, float]:
    "Masked-LM loss on new documents, and the accuracy of the next-sentence head."
    g, texts = seeded(seed, part, 7), documents(seed, part, n)
    ids, segments, _ = paired(texts, texts, False, g)
    seen, chosen = Corruption()(ids, len(LEXICON), g)
    total, count = masked_lm_loss(model, seen, ids, chosen, segments=segments)
    found = {"loss": float(total / count)}
    if "next-sentence" in model.heads:
        ids, segments, label = paired(texts, documents(seed, part - 100, n), True, g)
        found["next sentence"] = float((model(ids, segments)["next-sentence"].argmax(-1)
                                        == label).double().mean())
    return found


def pairs(seed: int, part: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    "Two short texts, on one topic or on two: label 1."
    g = seeded(seed, part, 8)
    words, _, topics = GRAMMAR.sample(40 * n, 8, mix_seed(seed, part, 8))
    first, second = torch.arange(n), torch.randint(n, 40 * n, (n, 40), generator=g)
    wanted = torch.rand(n, generator=g) < .5
    match = (topics[second] == topics[first, None]) == wanted[:, None]
    second = second[first, match.long().argmax(1)]
    return *framed(words[first], words[second]), (topics[second] != topics[first]).long()


def pair_accuracy(model: nn.Module, seed: int, n: int = 4 * LABELLED) -> float:
    "Accuracy on pairs after training with a few labels."
    ids, segments, label = pairs(seed, -3, n)
    def loss(model, ids, segments, label):
        return F.cross_entropy(model(ids, segments)["next-sentence"], label)
    def batch(step):
        rows = torch.randint(n, (16,), generator=seeded(seed, step, 9))
        return ids[rows], segments[rows], label[rows]
    @torch.no_grad()
    def right(model, part):
        ids, segments, label = pairs(seed, part, TESTS)
        return float((model(ids, segments)["next-sentence"].argmax(-1) == label).double().mean())
    models = {}
    def wrong(peak: float) -> float:
        models[peak] = new = build(replace(model.config, options=model.config.options
                                           | {"heads": "next-sentence"}), fused, seed)
        # with the pooling head, where it was trained
        new.load_state_dict(model.state_dict(), strict=False)
        train(new, loss, batch, TUNED,
              AdamW(parameter_groups(new, 0.01), WarmupCosine(peak, 20, TUNED), clip=1.), seed=seed)
        return -right(new, -1)
    return right(models[climbed(wrong, TUNE_PEAKS)[0]], -2)


def facts_of(name: str) -> dict:
    recipe = RECIPES[name]
    return {"recipe": name, "masks": str(recipe.masks or "anew"),
            "objectives": "masked LM, next sentence" if recipe.next_sentence else "masked LM",
            "batch": recipe.batch}


def rates(name: str, seed: int) -> dict[float, float]:
    "The masked-LM loss at each rate."
    torch.set_num_threads(1)
    return climbed(lambda peak: judged(learn(RECIPES[name], peak, seed + len(SEEDS), TRIED), seed,
                                       -1)["loss"], PEAKS)[1]


def result(name: str, peak: float, seed: int) -> dict[str, float]:
    "One seed: the losses, and what the encoder is worth."
    torch.set_num_threads(1)
    model = learn(RECIPES[name], peak, seed, PASSES)
    return (judged(model, seed, -2) | {task: worth("masked LM", model, task, seed)
                                       for task in ("tagging", "classification")}
            | {"same topic": pair_accuracy(model, seed)})


@lru_cache
def next_sentence_bound(seed: int) -> float:
    "The accuracy of the best possible judge of next sentences."
    g, texts, hmm = seeded(seed, -2, 7), documents(seed, -2, TESTS), GRAMMAR.hmm
    ids, _, label = paired(texts, documents(seed, -102, TESTS), True, g)
    first, second = ids[:, 1:HALF + 1], ids[:, HALF + 2:-1]
    def logprob(hmm, words): return forward_backward(hmm, hmm.likelihood(words))[2]
    later = HiddenMarkovModel(hmm.start @ torch.linalg.matrix_power(hmm.transition, HALF),
                              hmm.transition, hmm.emission)
    gain = (logprob(hmm, torch.cat([first, second], 1)) - logprob(hmm, first)
            - logprob(later, second))
    return float(((gain <= 0).long() == label).double().mean())


def measure(seed: int) -> Iterator[dict]:
    "The bound, the choice of rates, then every recipe."
    yield ({"what": "bound"}
           | over_seeds([{"next sentence": next_sentence_bound(seed + s)} for s in SEEDS]))
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        best = {}
        for name, losses in zip(RECIPES,
                                pool.map(partial(noted, "recipe", rates), RECIPES,
                                         [seed] * len(RECIPES)), strict=True):
            best[name] = float(min(losses, key=losses.__getitem__))
            for peak in sorted(losses, key=float):
                yield {"what": "rate", **facts_of(name), "peak": f"{float(peak):g}",
                       "loss": spread([losses[peak]])}
        cases = [(name, best[name], seed + s) for name, s in product(RECIPES, SEEDS)]
        found = pool.map(partial(noted, "recipe", result), *zip(*cases))
        for name in ticked(RECIPES, "recipe"):
            yield ({"what": "result", **facts_of(name), "peak": f"{best[name]:g}"}
                   | over_seeds([next(found) for _ in SEEDS]))
