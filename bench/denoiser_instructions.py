"""Chapter 11: what a mixture of instructions adds. Six questions about a story, of which five are
learnt and one is held out: each of four in turn.

A question names what is asked (who holds the thing, where, what happens) and when (at first or at
last), so that the held-out one is a new combination of known words. The network is that of BART's
objective, as `denoiser_objectives` trained it; its own training holds no question. It is asked the
held-out question as it is, after the mixture, and after either with a few labelled cases of that
question. The rate lies between two that did equally well on the learnt questions (0.001 and 0.003,
0.63 right after 800 steps of the first seed).
"""
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from bench import denoiser_objectives as base
from bench import over_seeds, size, ticked
from tfmlib.alignment import EOS
from tfmlib.denoisers import Objective, collate, encoder_decoder_logits, plain_example
from tfmlib.denoisers.story_grammar import STORY_WORDS, split_story, story_ids
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, seeded, train

NAME, SEEDS, STORIES, MIXED, FEW, SHOWN, PEAK = "BART", 3, 600, 600, 60, 16, 0.002
ASKED = [(what, when) for what in ("who", "where", "what") for when in ("first", "last")]
HELD_OUT = ASKED[:4]


def verb(sentence: list[int]) -> int:
    "What happens in an event: its second word, or the third where the first is an article."
    return sentence[2] if STORY_WORDS[sentence[0]] == "the" else sentence[1]


def answer(story: Tensor, what: str, when: str) -> int:
    "The id of the answer to a question."
    first, *events = split_story(story)
    if what == "what": return verb(events[0] if when == "first" else events[-1])
    ids = torch.tensor(first if when == "first" else sum([first, *events], []))
    world = base.GRAMMAR.final_world(torch.cat([ids, ids.new_tensor([EOS])]) if when
                                     == "first" else ids)
    return story_ids(world.holder if what == "who" else world.place)[0]


def example(story: Tensor, what: str, when: str):
    "The instruction and the story; the answer."
    asked = story_ids(f"question {when} {what} ?")
    return plain_example(torch.tensor([*asked, *base.bare(story).tolist(), EOS]),
                         torch.tensor([answer(story, what, when)]))


@lru_cache(24)
def examples(seed: int, what: str, when: str) -> list:
    "Labelled cases of a question."
    return [example(story, what, when) for story in base.stories(seed, -5, STORIES)]


def learnt(model: nn.Module, examples: list, peak: float, steps: int, seed: int) -> nn.Module:
    "A copy of the network after training on these examples."
    new = base.made(NAME, seed)
    new.load_state_dict(model.state_dict())
    optimiser = AdamW(parameter_groups(new, 0.01), WarmupCosine(peak, 10, steps), clip=1.)
    def batch(step):
        return collate([examples[i] for i in torch.randint(len(examples), (base.TEXTS,),
                generator=seeded(seed, step, 5)).tolist()])
    train(new, Objective(None, encoder_decoder_logits).loss, batch, steps, optimiser, seed=seed)
    return new


@torch.no_grad()
def right(model: nn.Module, stories: Tensor, question: tuple[str, str]) -> float:
    "The fraction of right answers."
    inputs, targets, _ = collate([example(story, *question) for story in stories])
    return float((encoder_decoder_logits(model.eval(), inputs, targets).argmax(-1)
                  == targets).double().mean())


def trivial(stories: Tensor, known: Tensor, question: tuple[str, str]) -> dict[str, float]:
    "The most frequent answer, and the right answer to the other time."
    what, when = question
    true = [answer(story, what, when) for story in stories]
    [(most, _)] = Counter(answer(story, what, when) for story in known).most_common(1)
    other = [answer(story, what, "last" if when == "first" else "first") for story in stories]
    return {"most frequent": sum(t == most for t in true) / len(true),
            "other time": sum(map(int.__eq__, true, other)) / len(true)}


def held_out(question: tuple[str, str], pretraining: float, peak: float,
             seed: int) -> dict[str, float]:
    "One question that the mixture does not hold."
    torch.set_num_threads(1)
    model = base.pretrained(NAME, pretraining, seed, base.steps_of(NAME))
    some, few, test = (base.stories(seed, part, n) for part, n in ((-5, STORIES), (-8, SHOWN),
            (-7, base.TESTS)))
    mixture = sum((examples(seed, *other) for other in ASKED if other != question), [])
    mixed, shown = (learnt(model, mixture, peak, MIXED, seed),
                    [example(story, *question) for story in few])
    others = [other for other in ASKED if other != question]
    return {"before": right(model, test, question), "mixture": right(mixed, test, question),
            "few cases": right(learnt(model, shown, peak, FEW, seed), test, question),
            "mixture, few cases": right(learnt(mixed, shown, peak, FEW, seed), test, question),
            "learnt questions": sum(right(mixed, test, other) for other in others)
            / len(others)} | trivial(test, some, question)


def measure(seed: int) -> Iterator[dict]:
    "Each question held out in turn."
    tried = base.rates(NAME, seed)
    best = float(min(tried, key=lambda row: row["loss"]["median"])["peak"])
    model = base.pretrained(NAME, best, seed, base.steps_of(NAME))
    peak, cases = PEAK, [(question, seed + s) for question in HELD_OUT for s in range(SEEDS)]
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool:
        runs = pool.map(held_out, [q for q, _ in cases], [best] * len(cases), [peak] * len(cases),
                        [s for _, s in cases])
        for what, when in ticked(HELD_OUT, "question"):
            found = [next(runs) for _ in range(SEEDS)]
            yield ({"what": what, "when": when, "parameters": size(model), "peak": f"{peak:g}",
                    "cases": SHOWN} | over_seeds(found))
