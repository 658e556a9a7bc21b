"""Chapter 8: what the translators of `bench.translators` and `bench.translators_wide` cost on one
thread: a step of their training, and a translation.

Those of the first are timed as the book builds them; those of the second, and the transformer once
more, with PyTorch's layer normalisation, so that all parts that PyTorch has as one routine are that
routine in every model.
"""
from collections.abc import Callable

import torch
from torch import nn

from bench import scaled, size
from bench import translators_wide as wide
from bench.translation import KNOWN, ROWS, tensors
from bench.translators import batches, made, tested_on, widths, written
from tfmlib.alignment import translation_loss
from tfmlib.block import LayerNorm
from tfmlib.workbench import AdamW, advance, parameter_groups, timed

REPEATS, STEPS, SENTENCES = 9, 20, 64


def with_fused_norms(model: nn.Module) -> nn.Module:
    """The same model with PyTorch's layer normalisation in place of the book's; the same
    numbers, to rounding."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, LayerNorm):
                theirs = nn.LayerNorm(len(norm.weight), norm.eps)
                theirs.load_state_dict(norm.state_dict())
                setattr(parent, name, theirs)
    return model


def training(model: nn.Module, batch: Callable) -> Callable:
    """STEPS steps of a training, the same batches for every model and in every round, with all
    that belongs to a step."""
    optimiser = AdamW(parameter_groups(model, 0.01), 1e-4, betas=(.9, .98), clip=1.)
    def run():
        for step in range(STEPS): advance(model, translation_loss, batch(step), optimiser)
    return run


def translating(model: nn.Module, sentences: list) -> Callable:
    """New sentences, for each as many words as the longest source has, whatever the untrained
    model says."""
    x, _ = tensors(sentences)
    return lambda: written(model, x, x.shape[1])


def costs(models: dict[str, Callable], batch: Callable, sentences: list) -> list[dict]:
    "The models in turn, round after round: milliseconds a step and a sentence, seconds an epoch."
    epoch = len(KNOWN) // ROWS
    steps = timed({kind: training(make(), batch) for kind, make in models.items()}, REPEATS)
    texts = timed({kind: translating(make(), sentences) for kind, make in models.items()}, REPEATS)
    return [{"model": kind, "parameters": size(make()), "steps an epoch": epoch,
             "step ms": scaled(steps[kind], 1e3 / STEPS),
             "epoch s": scaled(steps[kind], epoch / STEPS),
             "sentence ms": scaled(texts[kind], 1e3 / SENTENCES)} for kind, make in models.items()]


def measure(seed: int) -> list[dict]:
    """First the three of `bench.translators` with a fourth, then those of each case of
    `bench.translators_wide`."""
    torch.set_num_threads(1)
    models = {kind: lambda kind=kind: made(kind, widths()[kind]) for kind in widths()}
    models["transformer, fused norms"] = lambda: with_fused_norms(models["transformer"]())
    rows = costs(models, batches(seed), tested_on()[:SENTENCES])
    for task, width in wide.CASES:
        some = {kind: lambda kind=kind, width=width: with_fused_norms(wide.made(kind, width, seed))
                for kind in wide.KINDS}
        rows += [{"task": task, "width": width} | row
                 for row in costs(some, wide.batches(task, seed),
                                  wide.sentences(task)["test"][:SENTENCES])]
    return rows
