"""Chapter 11: one corpus, one size, one budget: what several objectives teach, judged on three
tasks.

Every objective trains a network of one size on fresh stories: one stack for causal LM, prefix LM,
masked LM and masked diffusion (the same network; only mask and loss differ), two stacks for span
corruption and BART, and both for a 2 × 2 of objective and architecture. One that costs more per
step takes fewer steps, so that all spend the same operations (counted by PyTorch). Then each task
is learnt from a few labelled cases, phrased as the objective's own examples are; the rate of either
training is the best of a grid on stories kept for this choice, and each method has the same grid.
The bounds are exact, by the grammar. The cases are shared out among `WORKERS` processes of one
thread each.
"""
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench import over_seeds, size, ticked
from bench.translators import fused
from tfmlib.alignment import BOS, EOS, PAD
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.denoisers import (
    Example,
    Objective,
    PrefixLM,
    causal_logits,
    collate,
    encoder_decoder_logits,
    masked_logits,
    noises,
    objectives,
    prefix_logits,
    story_grammar,
)
from tfmlib.denoisers import core as denoisers
from tfmlib.denoisers.story_grammar import (
    N_WORDS,
    PEOPLE,
    PLACES,
    SENTINELS,
    STOP,
    STORY_WORDS,
    Question,
    StoryGrammar,
    condense,
    fill_in,
    fill_probabilities,
    split_story,
    story_ids,
    write_on,
)
from tfmlib.encoders.tag_grammar import MASK
from tfmlib.heads import grouped_query_attention
from tfmlib.workbench import AdamW, WarmupCosine, mix_seed, parameter_groups, seeded, spread, train

WORKERS, WIDTH, LAYERS, HEADS, LONGEST, TEXTS, WARM = 2, 64, 2, 2, 96, 16, 50
PEAKS, TRIED, STEPS, SEEDS = (0.001, 0.002, 0.004, 0.008), 300, 1_000, range(3)
LABELLED, TUNED, TUNE_PEAKS, KEPT, TESTS = 512, 600, (0.0005, 0.002, 0.004, 0.008), 200, 400
TASKS = "write on", "fill in", "condense"
GRAMMAR = StoryGrammar()
SOURCES = __file__, denoisers.__file__, noises.__file__, story_grammar.__file__
DIGEST = sha256(b"".join(Path(file).read_bytes() for file in SOURCES)).hexdigest()[:12]
# trained networks: a run that was cut off goes on, other parts use them; none of an older source
CACHE = Path(gettempdir()) / f"tfm_denoisers_{DIGEST}"
KNOWN = objectives(N_WORDS, SENTINELS, STOP)


# --- how each objective phrases a task: what is given, what is answered ---------------------------

def cases(left: list[int], answer: list[int], inputs: list[int], before: tuple = (),
          after: tuple = ()) -> Example:
    "An example in which only the answer counts."
    weights = [0.] * len(before) + [float(i != PAD) for i in answer] + [0.] * len(after)
    return Example(torch.tensor(inputs), torch.tensor([*before, *answer, *after]),
                   torch.tensor(weights))


def plain(q: Question, blind: bool = False) -> Example:
    """After everything that is given; a gap is marked by MASK, or (blind) only what is left of
    it is given."""
    given = q.left if not q.right or blind else [*q.left, MASK, *q.right]
    return cases(q.left, q.answer, [BOS, *given])


def with_sentinel(q: Question) -> Example:
    "As a dropped span."
    left = q.left[:-1] if q.left[-1] == EOS else q.left
    return cases(left, q.answer, [*left, SENTINELS[0], *(q.right or [EOS])], before=(SENTINELS[0],))


def whole_text(q: Question) -> Example:
    "As a part of the whole text, which is written anew; a summary is written alone."
    if q.right == []: return cases(q.left, q.answer, q.left)
    return cases(q.left, q.answer, [*q.left, MASK, *(q.right or [EOS])], tuple(q.left),
                 tuple(q.right or ()))


def in_place(q: Question, shown: int = 0) -> Example:
    "As masks at their own positions, of which the first are filled already."
    row, begin, n = [BOS, *q.left, *q.answer, *(q.right or ())], 1 + len(q.left), len(q.answer)
    seen = row[:begin + shown] + [MASK] * (n - shown) + row[begin + n:]
    weights = torch.zeros(len(row))
    weights[begin + shown:begin + n] = (torch.tensor(q.answer) != PAD)[shown:].float()
    return Example(torch.tensor(seen), torch.tensor(row), weights)


@dataclass(frozen=True)
class Kind:
    "An objective in an architecture."
    objective: Objective | None  # None: no pre-training
    logits: Callable
    phrase: Callable             # Question -> Example

    @property
    def stacks(self) -> int: return 2 if self.logits is encoder_decoder_logits else 1


def kind(objective: str, logits: Callable, phrase: Callable) -> Kind:
    return Kind(Objective(KNOWN[objective].example, logits, KNOWN[objective].every_token),
                logits, phrase)


KINDS = {
    "span corruption": kind("span corruption", encoder_decoder_logits, with_sentinel),
    "prefix LM": kind("prefix LM", prefix_logits, plain),
    "BART": kind("BART", encoder_decoder_logits, whole_text),
    "masked LM": kind("masked LM", masked_logits, in_place),
    "causal LM": kind("causal LM", causal_logits, plain),
    "masked diffusion": kind("masked diffusion", masked_logits, in_place),
    "span corruption, one stack": kind("span corruption", prefix_logits, with_sentinel),
    "prefix LM, two stacks": kind("prefix LM", encoder_decoder_logits, plain),
    "none": Kind(None, causal_logits, plain),
    "none, both directions": Kind(None, masked_logits, in_place),
    "none, two stacks": Kind(None, encoder_decoder_logits, plain),
}


# --- models, texts, operations --------------------------------------------------------------------

def made(name: str, seed: int, attention_fn: Callable = fused) -> nn.Module:
    "The network: one stack of LAYERS blocks, or two of half as many, as large in all."
    V, shape = len(STORY_WORDS), dict(MODERN)
    if KINDS[name].stacks == 1:
        return PrefixLM(build(ModelConfig("decoder", V, WIDTH, LAYERS, HEADS, LONGEST, d_ff=192,
                                          **shape), attention_fn, seed))
    return build(ModelConfig("encoder-decoder", V, WIDTH, LAYERS // 2, HEADS, LONGEST,
                             n_encoder_layers=LAYERS // 2, d_ff=150, **shape), attention_fn, seed)


def stories(seed: int, part: int, n: int) -> Tensor: return GRAMMAR.sample(n, mix_seed(seed, part))


def bare(story: Tensor) -> Tensor:
    "Without its end token."
    return story[:int((story > EOS).sum())]


@lru_cache(4)
def block(seed: int, number: int) -> list[Tensor]:
    "The texts of a hundred steps."
    return [bare(story) for story in stories(seed, number, 100 * TEXTS)]


def batch(name: str, seed: int, step: int) -> tuple:
    texts = block(seed, step // 100)[step % 100 * TEXTS:][:TEXTS]
    return KINDS[name].objective.batch(texts, seeded(seed, step, 1))


@lru_cache
def operations(name: str, n: int = 8) -> int:
    """Floating-point operations of one step, forward and backward, as a mean over some; PyTorch
    does not count those of its fused attention on a processor."""
    model, objective = made(name, 0, grouped_query_attention), KINDS[name].objective
    with FlopCounterMode(display=False) as counter:
        for step in range(n):
            total, count = objective.loss(model, *batch(name, 0, step))
            (total / count).backward()
    return round(counter.get_total_flops() / n)


def steps_of(name: str, steps: int = STEPS) -> int:
    "As many steps as cost what causal LM costs in `steps`."
    return round(steps * operations("causal LM") / operations(name))


@torch.no_grad()
def own_loss(name: str, model: nn.Module, seed: int, n: int = TESTS) -> float:
    "The mean loss on stories that it has not seen."
    texts = [bare(story) for story in stories(seed, -1, n)]
    total, count = KINDS[name].objective.loss(model.eval(),
                                              *KINDS[name].objective.batch(texts, seeded(seed, -1)))
    return float(total / count)


def pretrained(name: str, peak: float, seed: int, steps: int) -> nn.Module:
    "A network after training on unlabelled stories."
    model, objective = made(name, seed), KINDS[name].objective
    if objective is None: return model
    path = CACHE / f"{name}-{peak:g}-{seed}-{steps}-{WIDTH}-{LAYERS}-{TEXTS}.pt".replace(" ", "_")
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    optimiser = AdamW(parameter_groups(model, 0.01), WarmupCosine(peak, WARM, steps), clip=1.)
    train(model, objective.loss, lambda step: batch(name, seed, step), steps, optimiser, seed=seed)
    CACHE.mkdir(exist_ok=True)
    torch.save(model.state_dict(), path)
    return model


# --- tasks ----------------------------------------------------------------------------------------

def padded(q: Question, n: int) -> Question:
    "An answer that a story's end cuts short is padded; padding does not count."
    return Question(q.left, q.right, q.answer + [PAD] * (n - len(q.answer)))


@lru_cache
def questions(task: str, seed: int, part: int, n: int) -> tuple[Question, ...]:
    "Cases of a task."
    g = seeded(seed, part, 3)
    some = stories(seed, part, n)
    if task == "write on": return tuple(padded(write_on(story, g), 8) for story in some)
    return tuple(fill_in(story, g) if task == "fill in" else condense(story, GRAMMAR)
                 for story in some)


@torch.no_grad()
def answers(name: str, model: nn.Module, some: tuple[Question, ...],
            phrase: Callable | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability of each word of the answers, and whether it was the most likely one, each
    given those before it: (N, n)."""
    kind, phrase = KINDS[name], phrase or KINDS[name].phrase
    n, found = len(some[0].answer), []
    for shown in range(n) if phrase is in_place else [0]:
        examples = [phrase(q, shown) if phrase is in_place else phrase(q) for q in some]
        inputs, targets, _ = collate(examples)
        logits = kind.logits(model.eval(), inputs, targets)
        # a gap does not hold the end of the story: every reader is told so
        if some[0].right: logits[..., EOS] = -torch.inf
        logits = logits.log_softmax(-1)
        # of the first word that counts
        at = torch.tensor([int(e.weights.argmax()) for e in examples])[:, None]
        if phrase is not in_place: at = at + torch.arange(n)
        at = at.clamp(max=targets.shape[1] - 1)
        rows = torch.arange(len(some))[:, None]
        found.append((logits[rows, at].gather(-1, targets[rows, at][..., None])[..., 0],
                      logits[rows, at].argmax(-1) == targets[rows, at]))
    return tuple(torch.cat(columns, 1) for columns in zip(*found))


def judged(some: tuple[Question, ...], logprob: Tensor, right: Tensor) -> dict[str, float]:
    """Nats a word of the answers, and the fraction of answers that are right when they are
    written greedily."""
    there = torch.tensor([q.answer for q in some]) != PAD
    return {"nats": float(-logprob[there].double().mean()),
            "right": float((right | ~there).all(1).double().mean()),
            "words": float(right[there].double().mean())}


def tuned(name: str, model: nn.Module, task: str, peak: float, seed: int,
          n: int = LABELLED) -> nn.Module:
    "The network after training with a few labelled cases."
    kind, some, new = KINDS[name], questions(task, seed, -4, n), made(name, seed)
    new.load_state_dict(model.state_dict())
    optimiser = AdamW(parameter_groups(new, 0.01), WarmupCosine(peak, 20, TUNED), clip=1.)
    objective = Objective(None, kind.logits)
    def cases_of(step):
        g = seeded(seed, step, 2)
        rows = torch.randint(n, (TEXTS,), generator=g).tolist()
        shown = torch.randint(len(some[0].answer), (TEXTS,), generator=g).tolist()
        shown = [min(s, sum(i != PAD for i in some[r].answer) - 1) for r, s in zip(rows, shown)]
        return collate([kind.phrase(some[r], s) if kind.phrase is in_place else kind.phrase(some[r])
                        for r, s in zip(rows, shown)])
    train(new, objective.loss, cases_of, TUNED, optimiser, seed=seed)
    return new


def unlabelled_phrase(name: str, task: str) -> Callable | None:
    """Without labelled cases a model of left to right reads what is left of a gap only: it does
    not know the mark of one."""
    return ((lambda q: plain(q, blind=True)) if KINDS[name].phrase is plain and task
            == "fill in" else None)


def zero_shot(name: str, model: nn.Module, task: str,
              some: tuple[Question, ...]) -> dict[str, float]:
    "Without any labelled case."
    return judged(some, *answers(name, model, some, unlabelled_phrase(name, task)))


def worth(name: str, model: nn.Module, task: str, seed: int, peaks: tuple = (0., *TUNE_PEAKS),
          n: int = LABELLED) -> dict[str, float]:
    """On the test, after training with labelled cases at the rate that is best on other stories;
    at rate 0, without any. A grid whose end is best goes on."""
    kept, test = questions(task, seed, -2, KEPT), questions(task, seed, -3, TESTS)
    def scores(peak: float, *parts) -> list[dict]:
        if peak == 0: return [zero_shot(name, model, task, part) for part in parts]
        run = tuned(name, model, task, peak, seed, n)
        return [judged(part, *answers(name, run, part)) for part in parts]
    def loss(peak: float) -> float: return found[peak][0]["nats"]
    found = {peak: scores(peak, kept, test) for peak in peaks}
    while len(peaks) > 1 and (end := max(found)) == min(found, key=loss):
        found[2 * end] = scores(2 * end, kept, test)
    best = min(found, key=loss)
    return found[best][1] | {"rate": best}


# --- the experiment -------------------------------------------------------------------------------

def facts_of(name: str) -> dict:
    done = KINDS[name].objective is not None
    return {"objective": name, "stacks": KINDS[name].stacks, "parameters": size(made(name, 0)),
            "operations": operations(name) if done else 0}


def rates(name: str, seed: int) -> list[dict]:
    "Its own loss on kept stories at each rate, after a shorter training."
    steps = steps_of(name, TRIED)
    return [{"what": "rate", **facts_of(name), "steps": steps, "peak": f"{peak:g}",
             "loss": spread([own_loss(name, pretrained(name, peak, seed + len(SEEDS), steps),
                                      seed + len(SEEDS))])}
            for peak in PEAKS]


def scored(name: str, seed: int, peak: float, steps: int,
           peaks: dict[str, tuple]) -> dict[str, dict[str, float]]:
    "One seed: trained, then judged on each task, without and with labelled cases."
    path = (CACHE
            / f"{name}-{peak:g}-{seed}-{steps}-{TUNED}-{'-'.join(f'{p:g}' for task in TASKS for p in peaks[task])}.json".replace(" ", "_"))  # noqa: E501
    if path.exists(): return json.loads(path.read_text())
    model = pretrained(name, peak, seed, steps)
    found = {"own": {"loss": own_loss(name, model, seed)}} if KINDS[name].objective else {}
    for task in TASKS:
        found |= {f"{task}, zero-shot": zero_shot(name, model, task,
                                                  questions(task, seed, -3, TESTS)),
                  task: worth(name, model, task, seed, peaks=peaks[task])}
    CACHE.mkdir(exist_ok=True)
    path.write_text(json.dumps(found))
    return found


def over_tasks(what: str, name: str, peak: float, steps: int, seeds: list[int]) -> list[dict]:
    "A row for each task; the first seed chooses the rate of each task for all."
    found = [scored(name, seeds[0], peak, steps, dict.fromkeys(TASKS, (0., *TUNE_PEAKS)))]
    chosen = {task: (found[0][task]["rate"],) for task in TASKS}
    found += [scored(name, seed, peak, steps, chosen) for seed in seeds[1:]]
    return [{"what": what, **facts_of(name), "peak": f"{peak:g}", "steps": steps, "task": task}
            | over_seeds([f[task] for f in found]) for task in found[0]]


def compared(name: str, seed: int) -> list[dict]:
    "One kind: the choice of its rate, and what it is worth."
    torch.set_num_threads(1)
    seeds = [seed + s for s in SEEDS]
    if KINDS[name].objective is None: return over_tasks("worth", name, 0., 0, seeds)
    rows, steps = rates(name, seed), steps_of(name)
    best = min(PEAKS, key=lambda peak: rows[PEAKS.index(peak)]["loss"]["median"])
    return rows + over_tasks("worth", name, best, steps, seeds)


def exact(some: tuple[Question, ...]) -> tuple[Tensor, Tensor]:
    "What `answers` gives for the best possible reader of a gap."
    found = []
    for q in some:
        row = []
        for i, word in enumerate(q.answer):
            p = fill_probabilities(GRAMMAR,
                                   torch.tensor(q.left + q.answer[:i] + [MASK] * (len(q.answer) - i)
                                                + q.right))[0][len(q.left) + i]
            row.append((float(p[word].log()), bool(p.argmax() == word)))
        found.append(row)
    logprob, right = torch.tensor(found, dtype=torch.float64).unbind(-1)
    return logprob, right.bool()


@lru_cache
def going_on(n: int) -> Tensor:
    """For each state of the grammar, the probability that none of the next n words is the end of
    the story."""
    if n == 0: return torch.ones(len(GRAMMAR.p), dtype=torch.float64)
    p = GRAMMAR.p.double().clone()
    p[:, EOS] = 0
    return (p * going_on(n - 1)[GRAMMAR.after.clamp(min=0)]).sum(-1)


def from_left(some: tuple[Question, ...]) -> tuple[Tensor, Tensor]:
    """The same for the best possible reader of what is on the left only. In a gap, which
    something follows, it knows that the story does not end."""
    logprob, right = [], []
    for q in some:
        # (n, V)
        p = GRAMMAR.next_words(torch.tensor([q.left + q.answer]))[0, len(q.left):]
        if q.right:
            # before each word
            states = GRAMMAR.states(
                torch.tensor([q.left + q.answer]))[0, len(q.left):][:len(q.answer)]
            after = torch.stack([going_on(len(q.answer) - 1 - i)[GRAMMAR.after[s].clamp(min=0)]
                                 for i, s in enumerate(states)])
            p = p[:len(q.answer)].double() * after
            p[:, EOS] = 0
            p = p / p.sum(-1, keepdim=True)
        answer = torch.tensor(q.answer)
        logprob.append(p.gather(-1, answer[:, None])[:, 0].log())
        right.append(p.argmax(-1) == answer)
    return torch.stack(logprob), torch.stack(right)


def counted(some: tuple[Question, ...], seed: int) -> tuple[Tensor, Tensor]:
    "The same for who knows only how frequent each word is."
    words = torch.bincount(torch.cat(block(seed, 0)), minlength=len(STORY_WORDS)) + .1
    p, answer = words.double() / words.sum(), torch.tensor([q.answer for q in some])
    return p[answer].log(), answer == p.argmax()


def last_mentioned(q: Question) -> list[int]:
    "The summary that a skimmer writes: the last name, the last place, the thing."
    words = [STORY_WORDS[i] for i in q.left]
    def last(known): return [w for w in words if w in known][-1]
    return story_ids(f"{last(PEOPLE)} has the {STORY_WORDS[q.answer[3]]} at the {last(PLACES)} .")


def opening(q: Question) -> list[int]:
    "The summary that follows from the first sentence."
    state = GRAMMAR.states(torch.tensor([split_story(torch.tensor(q.left))[0]]))[0, -1]
    return story_ids(GRAMMAR.worlds[int(state)].summary())


def bounds(seed: int) -> list[dict]:
    "The best possible readers, and trivial ones, on the tests of the seeds."
    path, found = CACHE / f"bounds-{seed}.json", {}
    if path.exists(): return json.loads(path.read_text())
    for s in SEEDS:
        write, fill, short = (questions(task, seed + s, -3, TESTS) for task in TASKS)
        cases = {("write on", "best possible"): judged(write, *from_left(write)),
                 ("write on", "word frequencies"): judged(write, *counted(write, seed + s)),
                 ("fill in", "best possible"): judged(fill, *exact(fill)),
                 ("fill in", "best from the left"): judged(fill, *from_left(fill)),
                 ("fill in", "word frequencies"): judged(fill, *counted(fill, seed + s)),
                 ("condense", "best possible"): {"right": 1.}}
        for reader in (last_mentioned, opening):
            cases["condense", reader.__name__.replace("_", " ")] = {
                "right": sum(reader(q) == q.answer for q in short) / TESTS}
        [(_, most)] = Counter(tuple(q.answer) for q in short).most_common(1)
        cases["condense", "most frequent"] = {"right": most / TESTS}
        for case, values in cases.items(): found.setdefault(case, []).append(values)
    rows = [{"what": "bound", "task": task, "reader": reader} | over_seeds(values)
            for (task, reader), values in found.items()]
    CACHE.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows))
    return rows


def measure(seed: int) -> Iterator[dict]:
    "The bounds, then every kind."
    yield from bounds(seed)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for _, rows in zip(ticked(KINDS, "objective"),
                           pool.map(compared, KINDS, [seed] * len(KINDS)), strict=True):
            yield from rows
