"""Chapter 14: one ability, several scores: small decoders learn to sort; the loss of a token falls
smoothly, and the whole answer is suddenly right.

A row is a list of symbols, a mark, and the list sorted; only the answer counts. On rows that no
step has seen: nats a token of the answer, the fraction of its tokens that are the most likely ones,
and the fraction of rows whose first 1, 2, 4, … tokens are all right. Every token is predicted after
the right ones; so a greedy answer is right to the same place as these.
"""
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import over_seeds, size
from bench.decoder_training import fused
from bench.scaling import CODE, Runs, code_digest
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import CausalLM
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, seeded, train

DEVICE = "cpu"
SEED = 0
WIDTHS, LAYERS, HEAD_DIM, SEEDS = (4, 8, 12, 16, 24, 32, 48, 64), 2, 4, 3
SYMBOLS, LENGTH, ROWS, STEPS, RATE, TESTED = 32, 12, 64, 1_500, 0.006, 1_000
WATCHED = 50, 100, 200, 400, 700, 1_000, 1_500
RUNS = Runs("scaling_emergence", CODE + code_digest(Path(__file__).read_text(encoding="utf-8")))


def rows(n: int, *seed: int) -> tuple[Tensor]:
    "Lists, the mark and the sorted lists (n, 2 · LENGTH + 1)."
    x = torch.randint(SYMBOLS, (n, LENGTH), generator=seeded(*seed))
    return (torch.cat([x, torch.full((n, 1), SYMBOLS), x.sort(1).values], 1),)


def answer_logits(model: CausalLM, ids: Tensor) -> Tensor:  # (B, LENGTH, V)
    return model(ids[:, :-1])[:, -LENGTH:]


def loss(model: CausalLM, ids: Tensor) -> tuple[Tensor, int]:
    return (F.cross_entropy(answer_logits(model, ids).flatten(0, 1), ids[:, -LENGTH:].flatten(),
                            reduction="sum"), ids[:, -LENGTH:].numel())


def prefixes() -> list[int]:
    "Of how many first tokens it is asked whether all are right: 1, 2, 4, … and the whole."
    return sorted({2**i for i in range(10) if 2**i < LENGTH} | {LENGTH})


@torch.no_grad()
def scores(model: CausalLM, seed: int) -> dict[str, float]:
    "Every score, on rows that no step has seen."
    (ids,) = rows(TESTED, seed, 0)
    logits, wanted = answer_logits(model.eval(), ids), ids[:, -LENGTH:]
    right = logits.argmax(-1) == wanted
    nats = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    return ({"nats": float(nats), "right": float(right.double().mean())}
            | {f"first {k}": float(right[:, :k].all(1).double().mean()) for k in prefixes()})


def run(c: dict) -> dict:
    "One network, and its scores on the way."
    torch.set_num_threads(1)
    began, C, seed = time.process_time(), c["C"], c["seed"]
    model = build(ModelConfig("decoder", SYMBOLS + 1, C, LAYERS, C // HEAD_DIM, 2 * LENGTH + 1,
                              **MODERN), fused, seed)
    optimiser = AdamW(parameter_groups(model, 0.01),
                      WarmupCosine(c["rate"], c["steps"] // 20, c["steps"], c["rate"] / 10),
                      betas=(0.9, 0.95), clip=1.0)
    history = train(model, loss, lambda step: rows(ROWS, seed, 1, step), c["steps"],
                    optimiser, seed=seed,
                    watch=lambda step: scores(model, seed) if step in WATCHED or step
                    == c["steps"] else None)
    found = {name: [round(value, 6) for _, value in history.points[name]]
             for name in ("nats", "right", *(f"first {k}" for k in prefixes()))}
    return {"N": size(model.stack), "steps": [step for step, _ in history.points["nats"]],
            "scores": found, "seconds": round(time.process_time() - began, 1)}


def planned(seed: int) -> list[dict]:
    return [{"task": "sort", "C": C, "steps": STEPS, "rate": RATE, "seed": seed + s}
            for s in range(SEEDS) for C in WIDTHS]


def measure(seed: int) -> Iterator[dict]:
    "Each width, at each watched step."
    cases, found = planned(seed), {}
    for c, result in zip(cases, RUNS.complete(cases, run, prepare=tuple), strict=True):
        found.setdefault(c["C"], []).append(result)
    for C, results in found.items():
        for i, step in enumerate(results[0]["steps"]):
            yield ({"C": C, "N": results[0]["N"], "step": step}
                   | over_seeds([{name: values[i] for name, values in r["scores"].items()}
                                 for r in results]))
