"""Chapter 14: the best learning rate of decoders of four widths, in the standard parametrisation
and in the maximal-update parametrisation.

Small decoders read generated prose as bytes. Every width has the same candidates, each twice the
one before, with the same seeds; where the best is at an end, the candidates go on beyond it. At the
base width the two parametrisations are the same, so it is trained once. Heads have one width
throughout.
"""
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import climbed, size
from bench.scaling import Runs, code_digest, log_minimum
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.scaling_laws import mup_groups, mup_init
from tfmlib.workbench import prose, seeded, spread

DEVICE = "cpu"
SEED = 0
BASE, LAYERS, HEAD, LENGTH, ROWS, STEPS, WARM, DECAY, HELD = 32, 2, 16, 64, 2, 60, 6, 0.1, 50


@lru_cache
def text() -> tuple[Tensor, Tensor]:
    "Rows of bytes to learn from, and to test on."
    ids = torch.tensor([*prose(200_000).encode()])
    rows = ids[:len(ids) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return rows[:-HELD], rows[-HELD:]


def case(C: int, way: str, rate: float, seed: int) -> dict:
    return {"C": C, "way": "standard" if C == BASE else way, "rate": float(f"{rate:.4g}"),
            "seed": seed}


def loss(model: torch.nn.Module, rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def run(c: dict) -> dict:
    "Train one decoder; its loss on rows that it has not read, infinite if it is no number."
    torch.set_num_threads(1)
    began, (learnt, held) = time.process_time(), text()
    model = build(ModelConfig("decoder", 128, c["C"], LAYERS, c["C"] // HEAD, LENGTH, **MODERN),
                  seed=c["seed"])
    base = BASE if c["way"] == "maximal update" else c["C"]
    optimiser = torch.optim.AdamW(mup_groups(mup_init(model, base), base, c["rate"], DECAY),
                                  betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min((step + 1) / WARM,
            (STEPS - step) / (STEPS - WARM)))
    order = torch.randperm(len(learnt), generator=seeded(c["seed"], 14))
    for step in range(STEPS):
        optimiser.zero_grad()
        loss(model, learnt[order[step * ROWS:(step + 1) * ROWS]]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    with torch.no_grad(): found = float(loss(model.eval(), held))
    return {"loss": round(found, 6) if math.isfinite(found) else math.inf,
            "seconds": round(time.process_time() - began, 2), "N": size(model.stack)}


# --- what is run: a kept run depends only on its case and on the code above this line -------------

WIDTHS, WAYS, RATES, SEEDS = ((32, 64, 128, 256), ("standard", "maximal update"),
                              (0.004, 0.008, 0.016, 0.032), 3)
RUNS = Runs("scaling_width",
            code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def measured(C: int, way: str, rate: float, seed: int) -> list[dict]:
    "The runs of one width at one rate, with all seeds."
    return RUNS.complete([case(C, way, rate, seed + n) for n in range(SEEDS)], run,
                         prepare=text, workers=1)


def measure(seed: int) -> Iterator[dict]:
    """For each width and parametrisation the loss at each rate, then the rate at which a
    parabola through the best three is lowest: of the means, and of each seed."""
    for way in WAYS:
        for C in WIDTHS:
            about, runs = {"way": way, "C": C}, {}
            def mean(rate: float, C=C, way=way, runs=runs) -> float:
                runs[rate] = measured(C, way, rate, seed)
                return fmean(found["loss"] for found in runs[rate])
            climbed(mean, RATES)
            rates = sorted(runs)
            for rate in rates:
                losses = [found["loss"] for found in runs[rate]]
                if all(map(math.isfinite, losses)):
                    yield (about | {"what": "rate", "rate": f"{rate:g}", "N": runs[rate][0]["N"],
                                    "loss": spread(losses) | {"each": losses}})
            def best(each: list[float], rates=rates) -> float:
                return round(log_minimum(rates, each), 6)
            each = [best([runs[rate][n]["loss"] for rate in rates]) for n in range(SEEDS)]
            yield (about | {"what": "best rate",
                            "of the means": spread(
                                [best([fmean(found["loss"] for found in runs[rate])
                                       for rate in rates])]), "rate": spread(each)
                            | {"each": each}})
