"""Chapter 8: LSTM with one vector, LSTM with attention and transformer learn the toy translation,
at equal parameters and on the same batches.

Each learns at the rate of one grid that did best on sentences kept for this choice; nothing is
chosen by the test sentences. The rates fall with the root of the steps made, however many are to
come, so that each point of a learning curve stands for a training that ends there. All are compared
after EQUAL steps, which show them the same words; the LSTMs, whose steps are shorter
(`bench.translators_time`), go on until they have had as much time.

`python -m bench.translators` trains the transformer that the chapter ships.
"""
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from json import dumps
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import SEED, even_width, over_seeds, size, ticked, translation
from bench.lstm import attentive, one_vector
from bench.translation import BANDS, ENGLISH, FRENCH, KNOWN, NEW, links, tensors
from tfmlib.alignment import (
    BOS,
    PAD,
    alignment_error_rate,
    greedy_decode,
    hard_alignment,
    shift_right,
    translation_loss,
)
from tfmlib.checkpoints import ModelConfig, build, save_model
from tfmlib.heads import MultiHeadAttention, grouped_query_attention
from tfmlib.transformer import InverseSqrtSchedule, Transformer, greedy_search, make_log_probs_fn
from tfmlib.workbench import (
    AdamW,
    History,
    Pair,
    bleu,
    pairs,
    parameter_groups,
    spread,
    train,
)

SHAPE = ModelConfig("encoder-decoder", len(FRENCH), 48, 2, 4,
                    source_vocab_size=len(ENGLISH), d_ff=192)
# LONGEST: words, in training
SEEDS, PEAKS, WARM, LONGEST = (0, 1, 2), (0.002, 0.004, 0.008, 0.016), 200, 14
# steps: for the choice, for all, in the end
TRIED, EQUAL, UNTIL = 600, 1_000, {"one vector": 2_000, "attention": 2_000, "transformer": 1_000}
# where quality is measured, on how many sentences
STOPS, WATCHED = (100, 200, 300, 400, 500, 700, 1_000, 1_500, 2_000), 400
# words by which a translation may exceed the longest source
MARGIN = 8
MODEL, SHIPPED = (Path(__file__).resolve().parent.parent
                  / "tfmlib/assets/models/translator.safetensors", 0.008)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    "Attention in one call of PyTorch's, faster, without weights to look at."
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), None


def attending(model: nn.Module, part: Callable) -> nn.Module:
    "The same model, all of whose heads attend by this part."
    for heads in model.modules():
        if isinstance(heads, MultiHeadAttention): heads.attention_fn = part
    return model


def made(kind: str, width: int, seed: int = 0) -> nn.Module:
    """A model of this kind, its weights drawn: the transformer's from the seed, the others' from
    PyTorch's generator."""
    if kind == "transformer": return build(SHAPE, fused, seed)
    return {"one vector": one_vector, "attention": attentive}[kind](len(ENGLISH),
            len(FRENCH), width)


@lru_cache
def widths() -> dict[str, int]:
    "For each kind the width at which it has as many parameters as the transformer, or just more."
    equal = size(made("transformer", SHAPE.d_model))
    return ({kind: even_width(lambda w, kind=kind: made(kind, w), equal)
             for kind in ("one vector", "attention")} | {"transformer": SHAPE.d_model})


@lru_cache
def chosen_on() -> list[Pair]:
    "Sentences that decide the rate: neither trained on nor tested on."
    known = {p.source for p in KNOWN}
    return [p for p in pairs(2_000, "train", seed=1, longest=LONGEST)
            if p.source not in known][:500]


@lru_cache
def tested_on() -> list[Pair]: return [p for p in NEW if len(p.source) <= LONGEST]


def batches(seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    return translation.batches(KNOWN, seed)


def words_seen(seed: int, steps: int) -> int:
    "Words of sources and targets, end marks included, in so many steps of a training."
    batch = batches(seed)
    return sum(int((t != PAD).sum()) for step in range(steps) for t in batch(step))


def learn(kind: str, peak: float, seed: int, steps: int = EQUAL,
          watch: Callable | None = None) -> tuple[nn.Module, History]:
    "A model after training, and what was noted on the way."
    # may draw weights of its own, so before the seed
    width = widths()[kind]
    torch.manual_seed(seed)
    model = made(kind, width, seed)
    # whose highest value is `peak`
    rate = InverseSqrtSchedule(SHAPE.d_model, WARM, peak * (SHAPE.d_model * WARM) ** .5)
    optimiser = AdamW(parameter_groups(model, 0.01), rate, betas=(.9, .98), clip=1.)
    return (model, train(model, translation_loss, batches(seed), steps, optimiser,
                         watch=watch and (lambda step: watch(model, step)), seed=seed))


@torch.no_grad()
def written(model: nn.Module, x: Tensor, longest: int) -> Tensor:
    "Translations, greedily."
    model.eval()
    if not isinstance(model, Transformer): return greedy_decode(model, x, longest)
    return greedy_search(make_log_probs_fn(model, x), torch.full((len(x), 1), BOS), longest)


def quality(model: nn.Module, sentences: list[Pair]) -> dict[str, float]:
    "BLEU, and the share of sentences without a fault."
    x, _ = tensors(sentences)
    said = [" ".join(FRENCH.decode(row)) for row in written(model, x, x.shape[1] + MARGIN)]
    wanted = [" ".join(p.target) for p in sentences]
    return {"BLEU": bleu(said, wanted), "exact": mean(a == b for a, b in zip(said, wanted))}


def looks(model: nn.Module, sentences: list[Pair]) -> dict[str, Tensor]:
    """Where each attention over the source looks while the true target is written: name ->
    weights (B, T, S)."""
    x, y = tensors(sentences)
    with torch.no_grad():
        shown = attending(model.eval(), grouped_query_attention)(x, shift_right(y))[1]
    if not isinstance(shown, dict): return {} if shown is None else {"attention": shown}
    layers = [block["cross"] for block in shown["decoder"]]                    # (B, H, T, S) each
    heads = {f"layer {i}, head {h}": w[:, h - 1] for i, w in enumerate(layers, 1)
             for h in range(1, SHAPE.n_heads + 1)}
    return heads | {f"layer {i}, mean": w.mean(1) for i, w in enumerate(layers, 1)}


def errors(model: nn.Module, sentences: list[Pair]) -> dict[str, float]:
    "The alignment error of each attention over the source."
    found = looks(model, sentences)
    if not found: return {}
    true = links(sentences, next(iter(found.values())).shape)
    return {f"AER, {name}": alignment_error_rate(hard_alignment(w, true.any(-1)), true)
            for name, w in found.items()}


def tuned(kind: str, seed: int) -> tuple[float, list[dict]]:
    """The rate of the grid whose model translates the sentences kept for this choice best, and
    what all of them reached."""
    rows = []
    for peak in PEAKS:
        found = quality(learn(kind, peak, seed, TRIED)[0], chosen_on())
        rows.append({"what": "rate", "model": kind, "peak": f"{peak:g}"}
                    | {name: spread([value]) for name, value in found.items()})
    return PEAKS[max(range(len(PEAKS)), key=lambda i: rows[i]["BLEU"]["median"])], rows


def followed(kind: str, peak: float, seed: int) -> tuple[History, dict[str, nn.Module]]:
    """A training to its end: its curve, and the model after as many words as all others and
    after as many seconds."""
    models = {}
    def watch(model, step):
        if step == EQUAL: models["words"] = deepcopy(model)
        return quality(model, tested_on()[:WATCHED]) if step in STOPS else None
    models["seconds"], history = learn(kind, peak, seed, UNTIL[kind], watch)
    return history, models


def compared(kind: str, seed: int) -> list[dict]:
    """One kind of model: the choice of its rate, its learning curve, and its quality and
    alignment by length."""
    peak, rows = tuned(kind, seed + len(SEEDS))                                # a seed of its own
    runs = [followed(kind, peak, seed + s) for s in SEEDS]
    facts = {"model": kind, "width": widths()[kind], "parameters": size(runs[0][1]["words"]),
             "peak": f"{peak:g}"}
    for i, stop in enumerate(runs[0][0].steps("BLEU").tolist()):
        found = [{name: float(h[name][i]) for name in ("BLEU", "exact")}
                 | {"words": words_seen(seed + s, stop)} for s, (h, _) in zip(SEEDS, runs)]
        rows.append({"what": "curve", **facts, "steps": stop} | over_seeds(found))
    for equal in ("words", "seconds"):
        for low, high in (*BANDS, (BANDS[0][0], LONGEST)):
            some = [p for p in NEW if low <= len(p.source) <= high]
            found = [quality(models[equal], some) | errors(models[equal], some)
                     for _, models in runs]
            rows.append({"what": "length", "equal": equal, **facts, "shortest": low,
                         "longest": high, "sentences": len(some)} | over_seeds(found))
    return rows


def measure(seed: int) -> list[dict]:
    "The three models."
    return [row for kind in ticked(UNTIL, "model") for row in compared(kind, seed)]


def ship(path: Path = MODEL, steps: int = EQUAL) -> None:
    "Train the transformer once more, with the first seed, and keep its weights."
    model, history = learn("transformer", SHIPPED, SEED, steps)
    facts = {"peak": f"{SHIPPED:g}", "steps": str(steps), "seed": str(SEED),
             "command": "python -m bench.translators"}
    save_model(path, model, **facts,
               losses=dumps([round(loss, 5) for loss in history["loss"].tolist()[:20]]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    ship()
