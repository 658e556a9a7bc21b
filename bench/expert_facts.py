"""Chapter 21: how many random facts decoders of one layer memorise: a dense one, experts with as
many active weights, and a wide dense one with as many weights in all.

The number of facts is turned up until the models differ. A fact is a pair of symbols and a value,
all drawn from 64, so each takes 6 bits and nothing generalises. The rate of each model and number
of facts is the best of a grid, on facts and weights of its own; a grid whose end is best goes on. A
row is a number of facts and a model, with three seeds, and one run of twice the steps where not
everything is recalled; each run is kept in `build/experts`, so that a part that was cut off goes
on.
"""
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import climbed, over_seeds, size, ticked
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.mixture_of_experts import load_balancing_loss, mutual_information, tokens_per_expert
from tfmlib.mixture_of_experts.models import hidden_and_routings
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, seeded, train

SEEDS, PEAKS, WARM, STEPS, TRIED, LONGER, ROWS = (range(3), (.005, .01, .02), 50, 3000,
                                                  400, 6000, 512)
SYMBOLS, WIDTH, E = 64, 32, 8
FACTS = 512, 1024, 2048, 4096
DENSE = ModelConfig("decoder", SYMBOLS, WIDTH, 1, 2, 4, d_ff=WIDTH, **MODERN)


def with_experts(n: int, k: int, routing: str) -> ModelConfig:
    "Experts whose active weights are those of the dense layer."
    return replace(DENSE, ffn="experts", options=dict(n_experts=n, n_used=k, expert_d_ff=WIDTH // k,
            routing=routing))


KINDS = {
    "dense": DENSE, "experts, 1 of 8": with_experts(E, 1, "softmax, then top-k"),
    "experts, 2 of 16": with_experts(2 * E, 2, "top-k, then softmax"),
    "experts, 1 of 8, softmax after": with_experts(E, 1, "top-k, then softmax"),
    "wide": replace(DENSE, d_ff=E * WIDTH)}
ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build/experts"


def facts(n: int, seed: int) -> tuple[Tensor, Tensor]:
    "Pairs of symbols (n, 2), all different, and the value of each (n,)."
    g = seeded(seed)
    pairs = torch.randperm(SYMBOLS**2, generator=g)[:n]
    return (torch.stack([pairs // SYMBOLS, pairs % SYMBOLS], 1),
            torch.randint(SYMBOLS, (n,), generator=g))


def loss_of(model: nn.Module, keys: Tensor, values: Tensor) -> Tensor:
    x, routings = hidden_and_routings(model, keys)
    return (F.cross_entropy(model.logits(x[:, -1]), values) + .01
            * sum(load_balancing_loss(r) for r in routings))


def trained(kind: str, n: int, peak: float, seed: int, steps: int) -> nn.Module:
    "A model trained on these facts."
    model, (keys, values) = build(KINDS[kind], seed=seed), facts(n, seed)
    def batch(step: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(n, (ROWS,), generator=seeded(seed, step))
        return keys[rows], values[rows]
    train(model, loss_of, batch, steps,
          AdamW(parameter_groups(model, 0.), WarmupCosine(peak, WARM, steps), clip=1.), seed=seed)
    return model


@torch.no_grad()
def judged(model: nn.Module, n: int, seed: int) -> dict[str, float]:
    """How much is recalled, in facts and in nats; for experts, their loads and how their choice
    at the last position depends on the symbols."""
    keys, values = facts(n, seed)
    x, routings = hidden_and_routings(model, keys)
    logits = model.logits(x[:, -1])
    found = {"nats": float(F.cross_entropy(logits, values)),
             "recalled": float((logits.argmax(-1) == values).float().mean())}
    for routing in routings:
        load = tokens_per_expert(routing).float()
        chosen = routing.expert.view(n, 2, -1)[:, -1, 0]
        entropy = mutual_information(chosen, chosen)
        shuffled = keys[torch.randperm(n, generator=seeded(seed, 7)), 1]
        found |= {"busiest": float(load.max() / load.mean())}
        found |= {f"tells, {name}": float(mutual_information(chosen, t) / entropy)
                  for name, t in (("last", keys[:, 1]), ("first", keys[:, 0]),
                                  ("shuffled", shuffled))}
    return found


def kept(key: str, compute: Callable[[], dict]) -> dict:
    """A result of an earlier call, or a new one, which is written down at once. Whoever changes
    what is computed empties the folder."""
    path = KEPT / f"{key}.json".replace(" ", "_").replace(",", "")
    KEPT.mkdir(parents=True, exist_ok=True)
    if not path.is_file(): path.write_text(json.dumps(compute()))
    return json.loads(path.read_text())


def row(kind: str, n: int, seed: int) -> dict:
    "One model and one number of facts: choose the rate, then three seeds."
    def tried(peak: float) -> float:
        return kept(f"facts-{kind}-{n}-{seed}-{TRIED}-{peak:g}",
                    lambda: judged(trained(kind, n, peak, seed + 100, TRIED), n,
                                   seed + 100))["nats"]
    peak, _ = climbed(tried, PEAKS)
    found = [kept(f"facts-{kind}-{n}-{seed + s}-{STEPS}-{peak:g}",
                  lambda s=s: judged(trained(kind, n, peak, seed + s, STEPS), n, seed + s))
             for s in SEEDS]
    row = ({"model": kind, "facts": n, "peak": f"{peak:g}", "steps": STEPS,
            "parameters": size(build(KINDS[kind]))} | over_seeds(found))
    # once more with twice the steps: does anything change?
    if row["recalled"]["median"] < .99:
        row["twice the steps"] = f"{kept(f'facts-{kind}-{n}-{seed}-{LONGER}-{peak:g}', lambda: judged(trained(kind, n, peak, seed, LONGER), n, seed))['recalled']:.3f}"  # noqa: E501
    return row


def measure(seed: int) -> Iterator[dict]:
    "Every number of facts and every model."
    for n, kind in ticked([(n, kind) for n in FACTS for kind in KINDS]): yield row(kind, n, seed)
