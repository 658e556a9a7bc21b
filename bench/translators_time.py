"""Chapter 8: what the three translators of `bench.translators` cost on one thread: a step of their training, and a translation."""
from collections.abc import Callable

from bench import scaled, size
from bench.translation import KNOWN, tensors
from bench.translators import LONGEST, ROWS, batches, made, tested_on, widths, written
from tfmlib.alignment import translation_loss
from tfmlib.proof import timed
from tfmlib.training import AdamW, advance, parameter_groups

DEVICE = "cpu"
SEED = 0
REPEATS, STEPS, SENTENCES = 9, 20, 64


def training(kind: str, batch: Callable) -> Callable:
    "STEPS steps of a training, the same batches for every kind and in every round, with all that belongs to a step."
    model = made(kind, widths()[kind])
    optimiser = AdamW(parameter_groups(model, 0.01), 1e-4, betas=(.9, .98), clip=1.)
    def run():
        for step in range(STEPS): advance(model, translation_loss, batch(step), optimiser)
    return run


def translating(kind: str) -> Callable:
    "New sentences, for each as many words as the longest source has, whatever the untrained model says."
    model, (x, _) = made(kind, widths()[kind]), tensors(tested_on()[:SENTENCES])
    return lambda: written(model, x, LONGEST)


def measure(seed: int) -> list[dict]:
    "The models in turn, round after round: milliseconds a step and a sentence, seconds an epoch."
    batch, epoch = batches(seed), len(KNOWN) // ROWS
    steps = timed({kind: training(kind, batch) for kind in widths()}, REPEATS)
    sentences = timed({kind: translating(kind) for kind in widths()}, REPEATS)
    return [{"model": kind, "parameters": size(made(kind, widths()[kind])), "steps an epoch": epoch,
             "step ms": scaled(steps[kind], 1e3 / STEPS), "epoch s": scaled(steps[kind], epoch / STEPS),
             "sentence ms": scaled(sentences[kind], 1e3 / SENTENCES)} for kind in widths()]
