"""Chapter 19: keys selected by content, beside a window, at equal numbers of keys: recall of eight
facts after a change of a trained decoder's attention.

A decoder of one layer learns with full attention to answer the questions at the end of a text. Then
its attention is replaced: by a window, by blocks that the means of their keys choose, or by the
keys with the highest scores of an indexer, which was warmed up before: it alone was trained,
towards the weights of the dense attention. A question attends to at most KEYS keys. What the
decoder recalls is measured at once, and after a further training in which all its parameters may
adapt (for full attention too). Each training has its own rate, from a grid tried at its own length
on a seed and on texts that are not among those of the results; a grid whose end is best goes on.
Three seeds, each with its own dense decoder. The committed record ends before the further training.
"""
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import climbed, over_seeds
from bench.decoder_training import fused
from bench.scaling import Runs, code_digest
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import CausalLM
from tfmlib.heads import fused_attention
from tfmlib.sparse import (
    causal,
    facts_in_noise,
    intersection,
    masked_sparse_attention,
    pattern_mask,
    sliding_window,
)
from tfmlib.sparse.selection import (
    IndexedAttention,
    LightningIndexer,
    choose_blocks,
    index_loss,
    keep_top,
    moba_attention,
)
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, mix_seed, parameter_groups, train

DEVICE, SEED = "cpu", 0
N, FACTS, WIDTH, HEADS, KEYS, ROWS, TESTED = 64, 8, 32, 2, 8, 16, 500
INDEX_HEADS, INDEX_WIDTH = 2, 8
WINDOW, BLOCKS, INDEXED = ("window", ("blocks of 2", "blocks of 4"),
                           ("indexer", "indexer, not warmed up"))
STAGES = {"dense": 1, "warm-up": 2, "further": 3}                      # each reads texts of its own
BUILT = Path(__file__).resolve().parent.parent / "build/sparse_selection"


def size_of(method: str) -> int: return int(method.split()[-1])


def attention_of(method: str) -> Callable:
    "The attention function of a method without an indexer."
    if method == WINDOW:
        return partial(masked_sparse_attention, pattern=intersection(causal, sliding_window(KEYS)),
                       attention_fn=fused)
    if method in BLOCKS:
        return partial(moba_attention, block_size=size_of(method),
                       n_selected=KEYS // size_of(method))
    return fused_attention


def made(method: str, seed: int) -> CausalLM:
    return build(ModelConfig("decoder", 9 * FACTS + 1, WIDTH, 1, HEADS, N, d_ff=2 * WIDTH,
                             **MODERN), attention_of(method), seed)


def batch_of(seed: int, step: int) -> tuple[Tensor, ...]:
    return facts_in_noise(ROWS, N, FACTS, mix_seed(seed, step))[:2]


def loss(model: CausalLM, ids: Tensor, values: Tensor) -> Tensor:
    """Cross-entropy of the answers; with an indexer also its own loss, which no other parameter
    sees."""
    x, shown = model.hidden_states(ids)
    found = F.cross_entropy(model.logits(x[:, -FACTS:]).flatten(0, 1), values.flatten())
    return found + shown[0] if isinstance(inner(model), IndexedAttention) else found


def inner(model: CausalLM): return model.stack.blocks[0].attention.inner


def trained(model: CausalLM, c: dict, warm: int) -> CausalLM:
    optimiser = AdamW(parameter_groups(model, .01),
                      WarmupCosine(c["rate"], warm, c["steps"]), clip=1.)
    train(model, loss, lambda step: batch_of(mix_seed(c["seed"], STAGES[c["what"]]), step),
          c["steps"], optimiser, seed=c["seed"])
    return model


@lru_cache(2)
def kept_base(rate: float, steps: int, seed: int) -> dict[str, Tensor]:
    "The parameters of a dense decoder; trained again only where the folder lacks them."
    path = BUILT / f"base-{rate:g}-{steps}-{seed}.pt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(trained(made("dense", seed),
                           {"what": "dense", "rate": rate, "steps": steps, "seed": seed},
                           40).state_dict(), path)
    return torch.load(path)


def given(method: str, c: dict) -> CausalLM:
    "The dense decoder of a seed, with the attention of a method."
    model = made(method, c["seed"])
    model.load_state_dict(kept_base(*c["base"], c["seed"]))
    if method not in INDEXED: return model
    torch.manual_seed(c["seed"])
    indexer = LightningIndexer(WIDTH, INDEX_HEADS, INDEX_WIDTH)
    model.stack.blocks[0].attention.inner = IndexedAttention(inner(model), indexer)
    return model


def warmed(c: dict) -> CausalLM:
    "Dense attention, whose indexer alone is trained towards the attention weights."
    model = given("indexer", c)
    layer = inner(model)
    def own_loss(indexer, ids, values): return model.hidden_states(ids)[1][0]
    model.requires_grad_(False)
    layer.indexer.requires_grad_(True)
    if c["steps"]:
        optimiser = AdamW(parameter_groups(layer.indexer, .01),
                          WarmupCosine(c["rate"], c["steps"] // 8, c["steps"]), clip=1.)
        train(layer.indexer, own_loss, lambda step: batch_of(mix_seed(c["seed"], STAGES["warm-up"]),
                step), c["steps"], optimiser, seed=c["seed"])
    return model.requires_grad_(True).eval()


def texts(part: int) -> tuple[Tensor, Tensor]:
    "Those that choose a rate, part 0, and those that test, part 1."
    return facts_in_noise(TESTED, N, FACTS, mix_seed(99, part))[:2]


@torch.no_grad()
def judged(model: CausalLM, part: int) -> dict[str, float]:
    "Loss and share of right answers."
    model.eval()
    ids, values = texts(part)
    logits = torch.cat([model.logits(model.hidden_states(rows)[0][:, -FACTS:])
                        for rows in ids.split(250)])
    return {"loss": round(float(F.cross_entropy(logits.flatten(0, 1), values.flatten())), 5),
            "right": round(float((logits.argmax(-1) == values).double().mean()), 5)}


@torch.no_grad()
def covered(model: CausalLM, method: str, part: int) -> dict[str, float]:
    """How much of the dense attention weights of the questions the selected keys hold, and how
    many keys these are; the indexer's loss."""
    ids, past = texts(part)[0][:250], pattern_mask(causal, N, N)
    block, layer = model.stack.blocks[0].attention, inner(model)
    x = block.norm(model.embedding(ids))
    scores = layer.indexer(x) if isinstance(layer, IndexedAttention) else None
    layer = getattr(layer, "layer", layer)
    at, rotate = torch.arange(N), layer.attention_fn.encoding.rotate
    q, k = rotate(layer.project_q(x), at, N), rotate(layer.project_kv(x)[0], at, N)
    weights = (q @ k.mT / q.shape[-1]**.5).masked_fill(~past, -torch.inf).softmax(-1)
    if method == WINDOW:
        seen = pattern_mask(intersection(causal, sliding_window(KEYS)), N, N).expand_as(weights)
    elif method in BLOCKS:
        seen = choose_blocks(q, k, size_of(method),
                             KEYS // size_of(method)).repeat_interleave(size_of(method), -1) & past
    else:
        seen = keep_top(weights.sum(1) if scores is None else scores, KEYS,
                        past.expand(len(ids), N, N))[:, None].expand_as(weights)
    asked = slice(N - FACTS, N)
    found = {"covered": (weights * seen)[:, :, asked].sum(-1).mean(),
             "keys": seen[:, :, asked].sum(-1).double().mean()}
    if scores is not None: found["index loss"] = index_loss(scores, weights, past.expand_as(scores))
    return {key: round(float(value), 5) for key, value in found.items()}


@torch.no_grad()
def best_keys(model: CausalLM, part: int) -> dict[str, float]:
    """What is recalled with the KEYS keys to which the dense attention of all heads gives most
    weight: no indexer selects better by its own measure."""
    class Oracle(torch.nn.Module):
        def forward(self, q, k, v, mask=None):
            weights = (q @ k.mT / q.shape[-1]**.5).masked_fill(~mask, -torch.inf).softmax(-1)
            return fused_attention(q, k, v,
                                   keep_top(weights.sum(1), KEYS,
                                            mask.expand(len(q), N, N))[:, None])
    inner(model).attention_fn.attention_fn = Oracle()
    return judged(model, part)


def run(c: dict) -> dict:
    "One training, or a change of attention without any, and what it gives."
    torch.set_num_threads(1)
    part = int(c["seed"] < 100)
    if c["what"] == "dense":
        return judged(given("dense", c | {"base": [c["rate"], c["steps"]]}), part)
    if c["what"] == "at once":
        model = given(c["method"], c)
        return ((best_keys(given("dense", c), part) if c["method"] == "best keys"
                 else judged(model, part)) | covered(model, c["method"], part))
    if c["what"] == "warm-up":
        model = warmed(c)
        found = covered(model, "indexer", part)
        inner(model).n_selected = KEYS
        return found | judged(model, part)
    model = (warmed(c | {"rate": c["warm rate"], "steps": c["warm steps"]})
             if c["method"] in INDEXED else given(c["method"], c))
    if c["method"] in INDEXED: inner(model).n_selected = KEYS
    return judged(trained(model, c, 10), part)


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS, TRIED = 3, 100
STEPS, RATES = 240, (.005, .01, .02)
WARMS, WARM_RATES = (0, 30, 100), (.01, .02, .04)
MORE, MORE_RATES = 60, (.002, .004, .008)
AT_ONCE = "best keys", WINDOW, *BLOCKS
METHODS = "dense", WINDOW, *BLOCKS, "indexer"
RUNS = Runs("sparse_selection",
            code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def safely(c: dict) -> dict:
    "A run; if it diverges, with an infinite loss."
    try: return run(c)
    except Diverged: return {"loss": float("inf"), "index loss": float("inf")}


def result(c: dict) -> dict: return RUNS.complete([c], safely, prepare=lambda: None, workers=1)[0]


def tuned(c: dict, rates: tuple[float, ...], by: str = "loss") -> float:
    "The rate of the least loss, on a seed and texts of its own."
    return climbed(lambda rate: result(c | {"rate": rate, "seed": SEED + TRIED})[by], rates)[0]


def seeds(c: dict) -> dict:
    return over_seeds([result(c | {"seed": SEED + n}) for n in range(SEEDS)])


def measure(seed: int) -> Iterator[dict]:
    """The dense decoders, their attention changed at once, warm-ups of several lengths, and what
    further training gives."""
    dense = {"what": "dense", "steps": STEPS}
    rate = tuned(dense, RATES)
    yield {"what": "dense", "steps": STEPS, "rate": f"{rate:g}", **seeds(dense | {"rate": rate})}
    base = {"base": [rate, STEPS]}
    for method in AT_ONCE:
        yield {"what": "at once", "method": method,
               **seeds({"what": "at once", "method": method} | base)}
    warm_rates = {0: 0.}
    for steps in WARMS:
        c = {"what": "warm-up", "steps": steps} | base
        warm_rates[steps] = tuned(c, WARM_RATES, "index loss") if steps else 0.
        yield {"what": "warm-up", "steps": steps, "rate": f"{warm_rates[steps]:g}",
               **seeds(c | {"rate": warm_rates[steps]})}
    for method in METHODS:
        warm = WARMS[-1] if method == INDEXED[0] else 0
        c = ({"what": "further", "method": method, "steps": MORE} | base
             | ({"warm steps": warm, "warm rate": warm_rates[warm]} if method in INDEXED else {}))
        rate = tuned(c, MORE_RATES)
        yield {"what": "further", "method": method, "steps": MORE, "rate": f"{rate:g}",
               **seeds(c | {"rate": rate})}
