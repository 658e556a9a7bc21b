"""Chapter 9: what one does with a pre-trained encoder, each task with a baseline: few and many
labels, pooling, spans, sentence vectors, probes; and writing, which it cannot do.

The encoders are those of `bench.encoder_objectives`; "untrained" is the same encoder as drawn.
Rates are chosen on texts kept for this choice.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds
from bench.encoder_objectives import (
    CLS,
    GRAMMAR,
    LENGTH,
    SEP,
    TESTS,
    TUNE_PEAKS,
    WORKERS,
    framed,
    kept,
    made,
    noted,
    steps_of,
    text,
    with_head,
    worth,
)
from bench.encoder_sides import AMBIGUOUS
from tfmlib.encoders import POOLINGS, Bert, contrastive_loss, mean_pooling
from tfmlib.encoders.tag_grammar import ADJECTIVES, LEXICON, MASK, TAGS, TOPICS, forward_backward
from tfmlib.workbench import AdamW, WarmupCosine, load_record, parameter_groups, seeded, train

SEEDS, SPAN_STEPS, PAIR_STEPS, PAIRS, CANDIDATES, SPAN_TEXTS = range(3), 400, 200, 32, 200, 128
# labelled texts: steps
SIZES = {8: 200, 32: 200, 128: 800, 512: 1_600}
VERB = TAGS.index("VERB")
# the language has no question words: "in" asks for the subject, "by" for the object
QUESTIONS = torch.tensor([LEXICON.index("in"), LEXICON.index("by")])
INITIAL = ("pre-trained", "untrained")


@lru_cache
def chosen_rate(kind: str) -> float:
    "The rate that was best for this objective."
    return float(next(r["peak"] for r in load_record("encoder_objectives").rows if r["what"]
                      == "worth" and r["objective"] == kind))


@lru_cache
def encoder(initial: str, seed: int, kind: str = "masked LM") -> nn.Module:
    "An encoder, pre-trained by `bench.encoder_objectives`, or as drawn."
    return (made(kind, seed) if initial == "untrained" else kept(kind, chosen_rate(kind), seed,
            steps_of(kind))[0])


def few_labels(initial: str, seed: int) -> dict[str, float]:
    "Accuracies by number of labelled texts."
    return {f"{task}, {n}": worth("masked LM", encoder(initial, seed), task, seed, n, steps=steps)
            for task, (n, steps) in product(("tagging", "classification"), SIZES.items())}


def questions(seed: int, part: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """[CLS] question [SEP] text [SEP], and the first and last position of the answer: the
    subject of the first sentence, or its object."""
    words, tags, _ = text(seed, part, 4 * n)
    ends = (tags == TAGS.index(".")) | (tags == TAGS.index("PREP"))
    verb, stop = (tags == VERB).long().argmax(1), ends.long().argmax(1)
    # the first sentence has an object, and the text its end
    able = ((tags == VERB).any(1) & ends.any(1) & (stop > verb + 1)).nonzero()[:n, 0]
    words, verb, stop = words[able], verb[able], stop[able]
    asked = torch.randint(2, (len(able),), generator=seeded(seed, part, 11))
    def every(i): return torch.full((len(able), 1), i)
    ids = torch.cat([every(CLS), QUESTIONS[asked][:, None], every(SEP), words, every(SEP)], 1)
    return (ids, torch.where(asked == 0, 0, verb + 1) + 3,
            torch.where(asked == 0, verb - 1, stop - 1) + 3)


def span_loss(model: nn.Module, ids: Tensor, first: Tensor, last: Tensor) -> Tensor:
    start, end = model(ids)["span"].unbind(-1)
    return F.cross_entropy(start, first) + F.cross_entropy(end, last)


@torch.no_grad()
def span_accuracy(model: nn.Module, seed: int, part: int) -> float:
    "How often the most likely span is exactly the answer."
    ids, first, last = questions(seed, part, TESTS)
    start, end = model.eval()(ids)["span"].unbind(-1)
    both = (start[:, :, None] + end[:, None]).masked_fill(~torch.ones(ids.shape[1], ids.shape[1],
            dtype=torch.bool).triu(), -torch.inf)
    at = both.flatten(1).argmax(1)
    return float(((at // ids.shape[1] == first) & (at % ids.shape[1] == last)).double().mean())


def spans(initial: str, seed: int) -> dict[str, float]:
    "Exact matches after training with a few questions."
    models, few = [], questions(seed, -3, SPAN_TEXTS)
    for peak in TUNE_PEAKS:
        model = with_head("masked LM", encoder(initial, seed), "span", seed)
        def batch(step):
            rows = torch.randint(SPAN_TEXTS, (16,), generator=seeded(seed, step, 2))
            return tuple(t[rows] for t in few)
        train(model, span_loss, batch, SPAN_STEPS,
              AdamW(parameter_groups(model, 0.01), WarmupCosine(peak, 20, SPAN_STEPS),
                    clip=1.), seed=seed)
        models.append(model)
    return {"spans": span_accuracy(max(models, key=lambda m: span_accuracy(m, seed, -1)), seed, -2)}


def first_verb(words: Tensor) -> Tensor:
    "The most probable position of the first verb, an object after it, given the whole text."
    hmm, no_verb, verb = GRAMMAR.hmm, GRAMMAR.tag != VERB, GRAMMAR.tag == VERB
    seen, found = hmm.likelihood(words), []
    for v in range(1, words.shape[1] - 1):
        only = seen.clone()
        only[:, :v] *= no_verb
        only[:, v] *= verb
        only[:, v + 1] *= GRAMMAR.tag != TAGS.index(".")
        found.append(forward_backward(hmm, only)[2])
    return torch.stack(found, 1).argmax(1) + 1


def span_baselines(seed: int) -> dict[str, float]:
    """Answers by a verb found in the left context alone, and by the most probable verb given the
    whole text."""
    ids, first, last = questions(seed, -2, TESTS)
    words, subject = ids[:, 3:-1], ids[:, 1] == QUESTIONS[0]
    ends = ((words == LEXICON.index(".")) | (words == LEXICON.index("in"))
            | (words == LEXICON.index("by")))
    left = GRAMMAR.tag_probabilities(words, future=False).argmax(-1) == VERB
    found = {}
    for name, verb in (("left context", left.long().argmax(1)),
                       ("exact posterior", first_verb(words))):
        stop = (ends & (torch.arange(LENGTH) > verb[:, None])).long().argmax(1)
        begins, stops = torch.where(subject, 0, verb + 1) + 3, torch.where(subject, verb, stop) + 2
        found[name] = float(((begins == first) & (stops == last)).double().mean())
    return found


# each adjective and each content word has one other word of the same meaning
SYNONYMS = torch.arange(len(LEXICON))
for some in (ADJECTIVES, *TOPICS.values()):
    for a, b in zip(some[::2], some[1::2]):
        SYNONYMS[LEXICON.index(a)], SYNONYMS[LEXICON.index(b)] = LEXICON.index(b), LEXICON.index(a)


def paraphrased(words: Tensor, g: torch.Generator) -> Tensor:
    """The same texts, each word with a synonym replaced by it with probability ½, and
    determiners drawn anew."""
    words = torch.where(torch.rand(words.shape, generator=g) < .5, SYNONYMS[words], words)
    the, a = LEXICON.index("the"), LEXICON.index("a")
    drawn = torch.where(torch.rand(words.shape, generator=g) < .7, the, a)
    return torch.where((words == the) | (words == a), drawn, words)


def couples(seed: int, part: int, n: int) -> tuple[Tensor, Tensor]:
    "Short texts and their paraphrases."
    words = text(seed, part, n, 8)[0]
    return framed(words), framed(paraphrased(words, seeded(seed, part, 12)))


def vectors(model: Bert, ids: Tensor) -> Tensor:
    return mean_pooling(model.hidden_states(ids)[0], torch.ones_like(ids, dtype=torch.bool))


def retrieved(a: Tensor, b: Tensor) -> float:
    "How often a text's nearest neighbour among the candidates is its paraphrase."
    return float(((F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T).argmax(1)
                  == torch.arange(len(a))).double().mean())


@torch.no_grad()
def retrieval(model: Bert, seed: int, part: int) -> float:
    "The mean over five sets of candidates."
    model.eval()
    return (sum(retrieved(*(vectors(model, ids) for ids in couples(seed, 10 * part - i,
            CANDIDATES))) for i in range(5)) / 5)


def embeddings(initial: str, seed: int) -> dict[str, float]:
    """Retrieval of paraphrases before and after contrastive training with a few pairs, and by
    counts of words."""
    base, models, few = encoder(initial, seed), [], couples(seed, -3, PAIRS)
    def loss(model, a, b): return contrastive_loss(vectors(model, a), vectors(model, b))
    for peak in TUNE_PEAKS:
        model = with_head("masked LM", base, "classification", seed)
        optimiser = AdamW(parameter_groups(model, 0.01),
                          WarmupCosine(peak, 20, PAIR_STEPS), clip=1.)
        train(model, loss, lambda step: few, PAIR_STEPS, optimiser, seed=seed)
        models.append(model)
    counts = [[F.one_hot(ids, len(LEXICON)).sum(1).float()
               for ids in couples(seed, 10 * -2 - i, CANDIDATES)] for i in range(5)]
    return {"vectors as they are": retrieval(base, seed, -2),
            "contrastive": retrieval(max(models, key=lambda m: retrieval(m, seed, -1)), seed, -2),
            "counts of words": sum(retrieved(*pair) for pair in counts) / 5}


def probe_accuracy(x: Tensor, y: Tensor, new_x: Tensor, new_y: Tensor) -> float:
    "Of a linear classifier, trained by L-BFGS on `x` and tested on `new_x`."
    probe = nn.Linear(x.shape[1], int(y.max()) + 1)
    nn.init.zeros_(probe.weight)
    optimiser = torch.optim.LBFGS(probe.parameters(), max_iter=200, line_search_fn="strong_wolfe")
    def closure():
        optimiser.zero_grad()
        loss = F.cross_entropy(probe(x), y) + 1e-4 * probe.weight.square().sum()
        loss.backward()
        return loss
    optimiser.step(closure)
    return float((probe(new_x).argmax(-1) == new_y).double().mean())


def probes(initial: str, seed: int, n: int = 1_000) -> list[dict]:
    """A linear probe on each layer, for the class of ambiguous words, and for a label drawn once
    for each word."""
    model, control, kept = (encoder(initial, seed),
                            torch.randint(2, (len(LEXICON),), generator=seeded(seed, 13)), [])
    for part in (-3, -2):
        words, tags, _ = text(seed, part, n)
        with torch.no_grad():
            x = model.embedding(framed(words), None, None)
            states = [h[:, 1:-1][words >= AMBIGUOUS]
                      for h in (x, *(state for state, _ in model.stack.stream(x)))]
        kept.append((states, tags[words >= AMBIGUOUS], control[words[words >= AMBIGUOUS]]))
    (states, *labels), (new, *new_labels) = kept
    return [{name: probe_accuracy(states[layer], labels[i], new[layer], new_labels[i])
             for i, name in enumerate(("class", "control"))} for layer in range(len(states))]


@torch.no_grad()
def written(how: str, seed: int, n: int = 200) -> dict[str, float]:
    """Texts written by a model, judged by the grammar: how many are possible, and how likely
    these are."""
    g = seeded(seed, 14)
    def draw(logits):
        return MASK + 1 + torch.multinomial(logits[:, MASK + 1:].softmax(-1), 1, generator=g)[:, 0]
    model = encoder("pre-trained", seed, how if how == "causal LM" else "masked LM").eval()
    words = torch.full((n, LENGTH), MASK)
    if how == "all at once":
        words = draw(model(framed(words))["masked-lm"][:, 1:-1].flatten(0, 1)).view(n, LENGTH)
    else:
        # Gibbs: fill one position after another, again and again
        for _ in range(20 if how == "Gibbs sampling" else 1):
            for t in torch.randperm(LENGTH,
                                    generator=g).tolist() if how == "Gibbs sampling" else range(
                                        LENGTH):
                words[:, t] = MASK
                ids = framed(words[:, :t])[:, :-1] if how == "causal LM" else framed(words)
                words[:, t] = draw(model(ids)["masked-lm"][:, t if how == "causal LM" else t + 1])
    return judged(words)


def judged(words: Tensor) -> dict[str, float]:
    "How many texts are possible, and the mean negative log-probability per word of these."
    logprob = forward_backward(GRAMMAR.hmm, GRAMMAR.hmm.likelihood(words))[2]
    possible = logprob.isfinite()
    return ({"possible": float(possible.double().mean())}
            | ({"nats": float(-logprob[possible].mean() / LENGTH)} if possible.any() else {}))


WRITERS = "causal LM", "one by one", "Gibbs sampling", "all at once"


def poolings(initial: str, seed: int) -> dict[str, float]:
    "Accuracy on topics by the way in which the outputs become one vector."
    return {pooling: worth("masked LM", encoder(initial, seed), "classification", seed, SPAN_TEXTS,
                           pooling, SIZES[SPAN_TEXTS]) for pooling in POOLINGS}


WITH_ENCODER = {"labels": few_labels, "pooling": poolings, "spans": spans, "sentences": embeddings,
                "probe": probes}
SIMPLE = {"span baselines": lambda _, seed: span_baselines(seed),
          "the grammar": lambda _, seed: judged(text(seed, -15, TESTS)[0]), "written": written}
CASES = (*product(WITH_ENCODER, INITIAL), ("span baselines", ""), *product(("written",), WRITERS),
         ("the grammar", ""))


def use(what: str, which: str, seed: int) -> dict | list[dict]:
    "One use with one seed: its numbers, by layer for probes."
    torch.set_num_threads(1)
    return (WITH_ENCODER | SIMPLE)[what](which, seed)


def facts(what: str, which: str) -> dict:
    "What a row of the record says of a use."
    if what in WITH_ENCODER: return {"what": what, "encoder": which}
    if what == "span baselines": return {"what": what}
    return {"what": "written", "how": which or what}


def measure(seed: int) -> Iterator[dict]:
    "Every use, with every seed; each is kept, so that a measurement that was cut off goes on."
    asked = [(*case, seed + s) for case, s in product(CASES, SEEDS)]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        found = iter(pool.map(partial(noted, "uses", use), *zip(*asked)))
        for case in CASES:
            each = [next(found) for _ in SEEDS]
            if case[0] != "probe": yield facts(*case) | over_seeds(each)
            else:
                yield from (facts(*case) | {"layer": layer} | over_seeds(list(same))
                            for layer, same in enumerate(zip(*each, strict=True)))
