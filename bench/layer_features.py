"""Chapter 22: one feed-forward layer of SmolLM2-135M, that of block 14, replaced by k units: a
transcoder, and beside it codes that need no training of a dictionary, from which the output is
fitted by least squares. What is left unexplained of the layer's output, and the model's loss when
the prediction replaces it.

Text, width, sparsity and the search for the rate are those of `bench.sparse_features`. Outputs far
longer than the median, and their inputs, are left out. It needs the model's file: python -m tfmlib
fetch smollm2. Some ten minutes of one core; a run that was cut off goes on where it ended.
"""
from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import getsource
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bench import over_seeds, sparse_features
from bench.scaling import Runs, code_digest
from bench.sparse_features import (
    BATCH,
    BLOCK,
    RATES,
    SHORT,
    STEPS,
    WIDTH,
    Scaled,
    blocks,
    largest,
    principal,
    rows_of_text,
)
from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.decoders import CausalLM, cross_entropy
from tfmlib.inside import Transcoder, fit_features, fraction_unexplained
from tfmlib.workbench import fetch_model, seeded, spread

DEVICE = "cpu"
SEED = 0
# of least squares; in units of the mean square of the entries that are not zero
PENALTIES = tuple(10.**n for n in range(7))


def layer_of(model: CausalLM) -> nn.Module: return model.stack.blocks[BLOCK].feed_forward.inner


class Passed(NamedTuple):
    "The stream before the block, what its layer reads, and what it writes (N, T, C)."
    before: Tensor
    x: Tensor
    y: Tensor


def passed(model: CausalLM, ids: Tensor) -> Passed:
    seen, before = [], []
    hook = layer_of(model).register_forward_hook(
        lambda _, given, out: seen.append((given[0], out)))
    for rows in ids.split(6):
        before.append(blocks(model, model.embed(rows), 0, BLOCK))
        blocks(model, before[-1], BLOCK, BLOCK + 1)
    hook.remove()
    return Passed(torch.cat(before), *map(torch.cat, zip(*seen, strict=True)))


def row_losses(model: CausalLM, before: Tensor, ids: Tensor, written: Tensor) -> list[float]:
    """The mean loss in each row of what follows each token but the first, if the layer writes
    this (N, T, C)."""
    hook = layer_of(model).register_forward_hook(lambda *_: written)
    x = blocks(model, before, BLOCK, len(model.stack.blocks))
    hook.remove()
    return cross_entropy(model.logits(model.stack.norm(x[:, 1:-1])), ids[:, 2:]).mean(1).tolist()


class Given:
    "The model, and the layer's inputs and outputs on both parts of the text, scaled."
    def __init__(self):
        published = load_gguf(fetch_model("smollm2"))
        self.model = published.model
        ids, self.held = rows_of_text(published.tokenizer)
        learnt, self.seen = passed(self.model, ids), passed(self.model, self.held)
        self.out = Scaled(learnt.y)
        # flat, without those left out
        self.raw, self.y = learnt.x[self.out.kept(learnt.y)], self.out(learnt.y)
        self.raw_held = self.seen.x[self.out.kept(self.seen.y)]
        self.target = self.out(self.seen.y)
        self.mean, self.size = self.raw.mean(0), self.raw.std()
        self.left_out = int((~self.out.kept(learnt.y)).sum())
        self.left_out_held = int((~self.out.kept(self.seen.y)).sum())

    @property
    def x(self) -> Tensor: return (self.raw - self.mean) / self.size

    @property
    def test(self) -> Tensor: return (self.raw_held - self.mean) / self.size

    def judged(self, predicted: Tensor) -> dict:
        "What a prediction of the held-out outputs leaves, and the losses with it in their place."
        written = self.out.back(predicted, self.seen.y)
        return {"unexplained": fraction_unexplained(self.target, predicted),
                "rows": row_losses(self.model, self.seen.before, self.held, written)}


@lru_cache
def given() -> Given: return Given()


def units(x: Tensor) -> Tensor:
    "What each unit of the layer adds, as the length of a vector with a sign (N, F)."
    layer = layer_of(given().model)
    return (nn.functional.silu(layer.gate(x)) * layer.up(x)) * layer.down.weight.norm(dim=0)


def codes(method: str, k: int) -> tuple[Tensor, Tensor]:
    "A code of the inputs, for training and held out; each row has at most k entries."
    g = given()
    if method == "own units": return largest(units(g.raw), k), largest(units(g.raw_held), k)
    if method == "PCA, largest k": directions, reads = principal(g.x), torch.clone
    else:
        directions, reads = torch.nn.functional.normalize(
            torch.randn(WIDTH, g.x.shape[1], generator=seeded(SEED)), dim=-1), torch.relu
    return largest(reads(g.x @ directions.T), k), largest(reads(g.test @ directions.T), k)


def least_squares(z: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    "The matrix (M, C) and the constant (C,) that predict y from z."
    centre = z.mean(0)
    unit = z.square().sum() / z.count_nonzero()
    gram = (z - centre).T @ (z - centre) + penalty * unit * torch.eye(z.shape[1])
    weight = torch.linalg.solve(gram, (z - centre).T @ (y - y.mean(0)))
    return weight, y.mean(0) - centre @ weight


def fitted(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    "Least squares; the last tenth chooses the penalty, and all are fitted with it."
    cut = len(z) // 10
    def left(penalty: float) -> float:
        weight, constant = least_squares(z[:-cut], y[:-cut], penalty)
        return fraction_unexplained(y[-cut:], z[-cut:] @ weight + constant)
    best = min(PENALTIES, key=left)
    return *least_squares(z, y, best), best


def fixed(method: str, k: int) -> dict:
    "The output by least squares from a code, or from the whole input by a matrix of rank k."
    g = given()
    z, test = (g.x, g.test) if method == "linear" else codes(method, k)
    weight, constant, penalty = fitted(z, g.y)
    if method == "linear":
        # the k directions that hold most of the fitted outputs
        kept = principal(z @ weight)[:k]
        weight = weight @ kept.T @ kept
    return g.judged(test @ weight + constant) | {"penalty": penalty}


def fit(x: Tensor, y: Tensor, k: int, steps: int, rate: float, seed: int) -> Transcoder:
    torch.manual_seed(seed)
    with torch.enable_grad():
        return fit_features(Transcoder(x.shape[1], WIDTH, k), x, y, steps, rate, BATCH, seed)


def tried(k: int, steps: int, rate: float) -> dict:
    "What a transcoder leaves of the last tenth of the training outputs, which it did not see."
    g, cut = given(), len(given().x) // 10
    model = fit(g.x[:-cut], g.y[:-cut], k, steps, rate, SEED)
    return {"unexplained": fraction_unexplained(g.y[-cut:], model(g.x[-cut:]))}


def trained(k: int, rate: float, seed: int) -> dict:
    g = given()
    model = fit(g.x, g.y, k, STEPS, rate, seed)
    return g.judged(model(g.test)) | {
        "never active": float(((model.encode(g.test) > 0).sum(0) == 0).double().mean())}


def whole() -> dict:
    "The losses of the model itself, with the mean output, and without the layer."
    g = given()
    def at(written: Tensor) -> list[float]:
        return row_losses(g.model, g.seen.before, g.held, written)
    return {"tokens": len(g.y), "held out": len(g.target), "left out": g.left_out,
            "held out, left out": g.left_out_held, "own": at(g.seen.y),
            "mean": at(g.out.back(torch.zeros_like(g.target), g.seen.y)),
            "zero": at(torch.zeros_like(g.seen.y))}


PARTS: dict[str, Callable] = {"model": whole, "rate": tried, "transcoder": trained, "code": fixed}


@torch.no_grad()
def run(c: dict) -> dict:
    "One case."
    torch.set_num_threads(1)
    return PARTS[c["part"]](**{name: value for name, value in c.items() if name != "part"})


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS, SPARSITIES = 2, (32,)
CODES = ("own units", "PCA, largest k", "random", "linear")
RUNS = Runs("layer_features", code_digest(
    Path(__file__).read_text(encoding="utf-8").partition("# --- what is run")[0]
    + getsource(sparse_features) + getsource(Transcoder) + getsource(fit_features)))


def complete(part: str, *cases: dict) -> list[dict]:
    return RUNS.complete([{"part": part, **c} for c in cases], run, prepare=lambda: None,
                         workers=1)


def search(k: int) -> list[dict]:
    """The rates that were tried, short trainings first: a grid whose end is best goes on; then
    its best and the half of it at full length."""
    def left(rate: float, steps: int) -> float:
        return complete("rate", {"k": k, "steps": steps, "rate": rate})[0]["unexplained"]
    found = {rate: left(rate, SHORT) for rate in RATES}
    while (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        beyond = best / 2 if best == min(found) else 2 * best
        found[beyond] = left(beyond, SHORT)
    long = {rate: left(rate, STEPS) for rate in (best, best / 2)}
    chosen = min(long, key=long.__getitem__)
    return [{"steps": steps, "rate": rate, "chosen": steps == STEPS and rate == chosen,
             "unexplained": spread([value])}
            for steps, values in ((SHORT, found), (STEPS, long))
            for rate, value in values.items()]


def middle(rows: list[float]) -> float: return sum(rows) / len(rows)


def measure(seed: int) -> Iterator[dict]:
    "The search, then for each k the transcoder and the codes."
    model = complete("model", {})[0]
    own, mean = middle(model["own"]), middle(model["mean"])
    yield {"part": "model", "block": BLOCK, "rows": len(model["own"]),
           **{name: model[name] for name in ("tokens", "held out", "left out",
                                             "held out, left out")},
           **{f"loss, {name}": spread([middle(model[name])]) for name in ("own", "mean", "zero")}}
    tried_rates = search(32)
    (rate,) = (each["rate"] for each in tried_rates if each["chosen"])
    for each in tried_rates: yield {"part": "rates", **each, "rate": f"{each['rate']:g}"}

    def judged(found: dict) -> dict[str, float]:
        lost = middle(found["rows"])
        return {name: value for name, value in found.items() if name != "rows"} | {
            "loss": lost, "recovered": (mean - lost) / (mean - own)}
    for k in SPARSITIES:
        found = complete("transcoder", *({"k": k, "rate": rate, "seed": seed + n}
                                         for n in range(SEEDS)))
        yield {"part": "layer", "k": k, "method": "transcoder",
               **over_seeds([judged(each) for each in found])}
        for method in CODES:
            (other,) = complete("code", {"method": method, "k": k})
            # rows in which every seed's transcoder has the lower loss
            ahead = sum(all(each["rows"][row] < loss for each in found)
                        for row, loss in enumerate(other["rows"]))
            yield {"part": "layer", "k": k, "method": method, "rows transcoder ahead": ahead,
                   **over_seeds([judged(other)])}
    # a matrix of full rank
    (other,) = complete("code", {"method": "linear", "k": WIDTH // 4})
    yield {"part": "layer", "k": WIDTH // 4, "method": "linear", **over_seeds([judged(other)])}
