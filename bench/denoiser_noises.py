"""Chapter 11: which of BART's two noises teaches the summary? Infilling alone, and sentence permutation alone, beside both (of `denoiser_objectives`).

The rate is the one that `denoiser_objectives` chose for both noises; labelled cases, tuning steps and tests are the same, and tuning is at the rate that was best for every kind.
"""
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from bench import denoiser_objectives as base
from bench import over_seeds, ticked
from tfmlib.denoisers import Denoising, Objective, encoder_decoder_logits, sentence_permutation, text_infilling
from tfmlib.story_grammar import STOP

DEVICE = "cpu"
SEED = 0
PEAK, RATE, TASK = 0.004, 0.002, "condense"
NOISES = {"infilling only": text_infilling, "permutation only": partial(sentence_permutation, stop=STOP)}
base.KINDS.update({name: base.Kind(Objective(Denoising(noise), encoder_decoder_logits), encoder_decoder_logits, base.whole_text) for name, noise in NOISES.items()})


def one_noise(name: str, seed: int) -> dict[str, float]:
    "One seed."
    torch.set_num_threads(1)
    model, test = base.pretrained(name, PEAK, seed, base.steps_of(name)), base.questions(TASK, seed, -3, base.TESTS)
    return base.judged(test, *base.answers(name, base.tuned(name, model, TASK, RATE, seed), test))


def measure(seed: int) -> Iterator[dict]:
    "Each noise."
    cases = [(name, seed + s) for name in NOISES for s in base.SEEDS]
    with ProcessPoolExecutor(base.WORKERS, get_context("spawn")) as pool: found = list(ticked(pool.map(one_noise, *zip(*cases)), "run"))
    for i, name in enumerate(NOISES):
        yield {"what": "noise", **base.facts_of(name), "peak": f"{PEAK:g}", "steps": base.steps_of(name), "task": TASK} | over_seeds(found[3 * i:3 * i + 3])
