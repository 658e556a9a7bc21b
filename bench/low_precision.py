"""Chapter 13: SmolLM2 (python -m tfmlib fetch smollm2) with the weights, or weights and
activations, of its blocks rounded to 8 and 4 bits, with scales for tensors, rows and blocks, with
and without a rotation; and a small decoder trained with rounded products, every kind at equal
tuning.

The published file of SmolLM2 stores its weights in about five bits already (Q4_1): what is measured
is what a further rounding adds.
"""
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.scaling import CODE, DECAY, Order, Runs, code_digest, loss, made, tested
from tfmlib.accounting.low_precision import (
    E2M1,
    E4M3,
    E5M2,
    RoundedLinear,
    bits_a_number,
    block_scaled,
    rotate,
    round_to,
)
from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.workbench import (
    ASSETS,
    AdamW,
    Diverged,
    WarmupCosine,
    fetch_model,
    parameter_groups,
    seeded,
    spread,
    train,
)

DEVICE = "cpu"
SEED = 0
# texts of so many tokens; tokens of a training step, on average
TEXTS, LENGTH, BATCH_TOKENS = 8, 256, 929
FORMATS = {"E4M3": E4M3, "E2M1": E2M1}
TILES = {"tensor": (None, None, "float32"), "row": (1, None, "float32"),
         "blocks of 32": (1, 32, "E8M0"), "blocks of 16": (1, 16, "E4M3")}
WIDTH, LAYERS, STEPS, WARM = 64, 2, 150, 15


def rounded(x: Tensor, format: str, scales: str) -> Tensor:
    "A matrix in a format, with one scale for all, for each row, or for blocks of its rows."
    rows, columns, kind = TILES[scales]
    return block_scaled(x, FORMATS[format], (rows or x.shape[0], columns or x.shape[1]), kind)


# --- SmolLM2 --------------------------------------------------------------------------------------

@lru_cache
def published() -> tuple:
    "The model, its linear layers with their weights, and the texts (TEXTS, LENGTH + 1)."
    known = load_gguf(fetch_model("smollm2"))
    text = (ASSETS / "text/novels.txt").read_text(encoding="utf-8")[:8 * TEXTS * LENGTH]
    ids = torch.tensor(known.tokenizer.encode(text)[:TEXTS * (LENGTH + 1)]).view(TEXTS, -1)
    layers = {name: m for name, m in known.model.stack.named_modules() if isinstance(m, nn.Linear)}
    return (known.model.eval(), layers,
            {name: m.weight.detach().clone() for name, m in layers.items()}, ids)


def signs_of(name: str, n: int) -> Tensor:
    return 2. * torch.randint(2, (n,), generator=seeded(SEED, n)) - 1


@torch.no_grad()
def losses(c: dict) -> dict:
    "Nats a token for each text."
    began = time.process_time()
    model, layers, weights, ids = published()
    hooks = []
    for name, m in layers.items():
        W, n = weights[name], m.in_features
        turned = (lambda x, s=signs_of(name, n): rotate(x, s)) if c["rotated"] else lambda x: x  # noqa: B008
        def into(_, given, turned=turned):
            x = turned(given[0])
            return (rounded(x.flatten(0, -2), c["format"], c["scales"]).view_as(x) if c["what"]
                    == "weights and activations" else x,)
        m.weight.data = rounded(turned(W), c["format"], c["scales"]) if c["format"] else turned(W)
        hooks.append(m.register_forward_pre_hook(into))
    found = [float(F.cross_entropy(model(row[None, :-1])[0], row[1:])) for row in ids]
    for hook in hooks: hook.remove()
    for name, m in layers.items(): m.weight.data = weights[name]
    return {"losses": [round(x, 5) for x in found],
            "seconds": round(time.process_time() - began, 1)}


@torch.no_grad()
def outliers(c: dict) -> dict:
    """For the inputs of each kind of layer in each block: the largest number, relative to the
    root mean square, as it is and rotated."""
    model, layers, _, ids = published()
    found: dict[str, dict] = {}
    def seen(name):
        def hook(_, given):
            x = given[0].flatten(0, -2)
            for way, y in (("as it is", x), ("rotated", rotate(x, signs_of(name, x.shape[1])))):
                # within a token
                relative = y.abs().amax(1) / y.square().mean(1).sqrt()
                whole = float(y.abs().max() / y.square().mean().sqrt())
                error = float((rounded(y, "E2M1", "row") - y).norm() / y.norm())
                found.setdefault(name.split(".")[-1], {}).setdefault(way,
                        []).append([round(float(relative.median()), 3), round(whole, 3),
                                    round(error, 5)])
        return hook
    hooks = [m.register_forward_pre_hook(seen(name)) for name, m in layers.items()
             if name.split(".")[-1] in ("q_proj", "o_proj", "gate", "down")]
    model(ids[:1, :-1])
    for hook in hooks: hook.remove()
    return found


# --- training -------------------------------------------------------------------------------------

def blocks(format, size, kind): return lambda x: block_scaled(x, format, (1, size), kind)


def whole(format): return lambda x: block_scaled(x, format, tuple(x.shape))


KINDS = {
    "float32": (lambda x: x, lambda x: x),
    "bfloat16": (lambda x: x.bfloat16().float(), lambda x: x.bfloat16().float()),
    "FP8, no scale": (lambda x: round_to(x, E4M3), lambda x: round_to(x, E5M2)),
    "FP8, a scale for each tensor": (whole(E4M3), whole(E5M2)),
    "MXFP8": (blocks(E4M3, 32, "E8M0"), blocks(E4M3, 32, "E8M0")),
    "FP4, a scale for each tensor": (whole(E2M1), whole(E2M1)),
    "NVFP4": (blocks(E2M1, 16, "E4M3"), blocks(E2M1, 16, "E4M3"))}


def with_rounding(model: nn.Module, kind: str) -> nn.Module:
    """The linear layers of the blocks multiply rounded numbers; the weights that are updated
    stay in 32 bits."""
    for m in model.stack.modules():
        if isinstance(m, nn.Linear):
            def forward(x, m=m):
                y = RoundedLinear.apply(x.flatten(0, -2), m.weight, *KINDS[kind]).unflatten(0,
                        x.shape[:-1])
                return y if m.bias is None else y + m.bias
            m.forward = forward
    return model


def trained(c: dict) -> dict:
    "One run: the tested loss at its end, with rounded products."
    torch.set_num_threads(1)
    began, order = time.process_time(), Order(STEPS * BATCH_TOKENS, c["seed"])
    model = with_rounding(made(WIDTH, c["seed"], layers=LAYERS), c["kind"])
    optimiser = AdamW(parameter_groups(model, DECAY), WarmupCosine(c["rate"], WARM, STEPS),
                      betas=(0.9, 0.95), clip=1.0)
    try: train(model, loss, order, STEPS, optimiser, seed=c["seed"])
    except Diverged: return {"loss": None}
    return {"loss": round(tested(model), 5), "seconds": round(time.process_time() - began, 1)}


def run(c: dict) -> dict:
    return {"outliers": outliers, "training": trained}.get(c["what"], losses)(c)


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS, RATES = 3, (0.004, 0.008, 0.016, 0.032)
RUNS = Runs("low_precision",
            CODE + code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def complete(cases: list[dict]) -> list[dict]:
    return RUNS.complete(cases, run, prepare=lambda: None, workers=1)


def rounding(what: str, format: str | None, scales: str, rotated: bool = False) -> dict:
    return {"what": what, "format": format, "scales": scales, "rotated": rotated}


CASES = [
    *(rounding(what, "E4M3", scales) for what in ("weights", "weights and activations")
      for scales in ("tensor", "row", "blocks of 32")),
    *(rounding(what, "E2M1", scales, rotated) for what in ("weights", "weights and activations")
      for scales in ("row", "blocks of 32", "blocks of 16") for rotated in (False, True)),
    rounding("weights", "E2M1", "tensor"), rounding("weights and activations", "E4M3", "row", True)]


def measure(seed: int) -> Iterator[dict]:
    """Loss over the texts for each rounding; what is large in the activations; the ends of
    trainings."""
    base, = complete([rounding("nothing", None, "")])
    yield {"part": "model", "what": "nothing", "tokens": TEXTS * LENGTH,
           "loss": spread(base["losses"])}
    for c in CASES:
        found, = complete([c])
        rows, columns, kind = TILES[c["scales"]]
        yield {"part": "model", **{k: c[k] for k in ("what", "format", "scales")},
               "rotated": str(c["rotated"]),
               "bits": f'{bits_a_number(FORMATS[c["format"]], (rows or 576, columns or 576), kind):.3g}',  # noqa: E501
               "loss": spread(found["losses"]),
               "added": spread([x - y for x, y in zip(found["losses"], base["losses"],
                       strict=True)])}
    seen, = complete([{"what": "outliers"}])
    for name, ways in seen.items():
        for way, values in ways.items():
            of_token, of_all, error = zip(*values)
            yield {"part": "outliers", "layer": name, "way": way,
                   "largest of a token": spread(of_token), "largest of all": spread(of_all),
                   "error": spread(error)}
    # the ends in 32 bits, seed by seed
    whole: list[float] = []
    for kind in KINDS:
        ends = {}
        for rate in RATES:
            ends[rate] = complete([{"what": "training", "kind": kind, "rate": rate,
                                    "seed": seed}])[0]["loss"]
            if ends[rate] is not None:
                yield {"part": "search", "kind": kind, "rate": f"{rate:g}",
                       "loss": spread([ends[rate]])}
        # the two best rates with every seed: one seed would choose between them by luck
        near = sorted(ends, key=lambda r: math.inf if ends[r] is None else ends[r])[:2]
        runs = {rate: [complete([{"what": "training", "kind": kind, "rate": rate,
                                  "seed": seed + n}])[0]["loss"] for n in range(SEEDS)]
                for rate in near if ends[rate] is not None}
        finished = {rate: found for rate, found in runs.items() if None not in found}
        if not finished: continue
        rate = min(finished, key=lambda r: sum(finished[r]))
        reached = finished[rate]
        whole = whole or reached
        yield {"part": "training", "kind": kind, "rate": f"{rate:g}", "steps": STEPS,
               "loss": spread(reached),
               "above": spread([x - y for x, y in zip(reached, whole, strict=True)])}
