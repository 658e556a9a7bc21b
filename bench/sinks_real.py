"""Chapter 4: the first token of SmolLM2-135M: how much attention it gets in each head, what its
vectors look like, and what the model loses without it.

Rows of 128 tokens of the novels. The attention is the mean over the queries from position 32 on;
the loss is that of the tokens after these. It needs the model's file: python -m tfmlib fetch
smollm2.
"""
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench import ticked
from bench.induction_real import BLOCKS, HEADS, SPECIAL, VOCABULARY, smollm
from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.decoders import CausalLM, cross_entropy
from tfmlib.heads import attention_weights
from tfmlib.workbench import ASSETS, fetch_model, seeded, spread

# OTHER: a position that is treated as the first one is, for comparison
ROWS, T, FROM, OTHER = 8, 128, 32, 16


def texts() -> Tensor:  # (ROWS, T + 1)
    "Pieces of the novels, 20,000 characters apart; each begins in the middle of a text."
    tokenizer, text = (load_gguf(fetch_model("smollm2")).tokenizer,
                       (ASSETS / "text/novels.txt").read_text(encoding="utf-8"))
    return torch.tensor([tokenizer.encode(text[20_000 * row:20_000 * row + 8 * T])[8:T + 9]
                         for row in range(ROWS)])


def hidden(at: int) -> Callable:
    """An attention function that hides the key at a position from the queries that are counted,
    as a window does that has moved on."""
    def around(fn: Callable) -> Callable:
        def attend(q, k, v, mask=None, **kwargs):
            mask = (torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril() if mask is None
                    else mask.clone())
            mask[FROM:, at] = False
            return fn(q, k, v, mask, **kwargs)
        return attend
    return around


def without_value(at: int) -> Callable:
    """An attention function in which the queries that are counted find a value of zero at a
    position; its weight stays."""
    def around(fn: Callable) -> Callable:
        def attend(q, k, v, mask=None, **kwargs):
            (own, shown), none = fn(q, k, v, mask, **kwargs), v.clone()
            none[:, :, at] = 0
            return (torch.cat([own[:, :, :FROM],
                               fn(q, k, none, mask, **kwargs)[0][:, :, FROM:]], 2), shown)
        return attend
    return around


@contextmanager
def changed(model: CausalLM, around: Callable) -> Iterator[None]:
    "Within this block every layer attends with a changed function."
    layers = [block.attention.inner for block in model.stack.blocks]
    own = [layer._modules.pop("attention_fn") for layer in layers]
    for layer, fn in zip(layers, own): layer.attention_fn = around(fn)
    try: yield
    finally:
        for layer, fn in zip(layers, own):
            del layer.attention_fn
            layer.attention_fn = fn


def read(model: CausalLM, ids: Tensor) -> tuple[Tensor, list[float]]:  # (ROWS, BLOCKS, HEADS), ROWS
    """The mean weight on the first token, and the mean loss; of the same queries however much of
    the beginning is cut off."""
    with attention_weights(): x, shown = model.hidden_states(ids[:, :-1])
    found = cross_entropy(model.logits(x[:, FROM - T:]), ids[:, FROM - T:])
    return torch.stack([w[:, :, FROM - T:, 0].mean(-1) for w in shown], 1), found.mean(1).tolist()


def vectors(model: CausalLM, ids: Tensor) -> Iterator[dict]:
    """For each block: how long the first token's state, keys and values are, beside the median
    of those from FROM on; its largest feature."""
    x, layers = model.embed(ids[:, :-1]), []
    for block, (after, _) in zip(model.stack.blocks,
                                 model.stack.stream(x,
                                                    mask=torch.ones(T, T,
                                                            dtype=torch.bool).tril())):
        k, v = block.attention.inner.project_kv(block.attention.norm(x))
        layers.append((x, k, v))
        x = after
    def beside(t: Tensor) -> list[float]:  # (ROWS, …, T, width) → one number for each row
        norms = t.norm(dim=-1)
        return (norms[..., 0] / norms[..., FROM:].median(-1).values).view(ROWS,
                -1).median(1).values.tolist()
    for block, (x, k, v) in enumerate(layers):
        largest = x[:, 0].abs().max(-1)
        yield {"part": "vectors", "block": block, "feature": int(largest.indices.mode().values),
               "largest": spread(largest.values.tolist()),
               "median feature": spread(x[:, 0].abs().median(-1).values.tolist()),
               "elsewhere": spread(x[:, FROM:].abs().amax((1, 2)).tolist()),
               "state": spread(beside(x)), "key": spread(beside(k)), "value": spread(beside(v))}


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    """Weights by head; the vectors of the first token; the weight with other first tokens; the
    loss without it."""
    model, ids = smollm(), texts()
    found, intact = read(model, ids)
    for block in range(BLOCKS):
        yield {"part": "weights", "block": block,
               **{f"head {h}": spread(found[:, block, h].tolist()) for h in range(HEADS)}}
    yield from vectors(model, ids)
    random, mark = ids.clone(), ids.clone()
    random[:, 0] = torch.randint(SPECIAL, VOCABULARY, (ROWS,), generator=seeded(seed))
    # the mark between texts
    mark[:, 0] = 0
    starts = {"the text's": None, "a random token": random, "the mark between texts": mark,
              "none: cut off": ids[:, 1:]}
    for name, given in ticked(starts.items(), "start"):
        weights, losses = (found, intact) if given is None else read(model, given)
        yield {"part": "start", "start": name, "weight": spread(weights.mean((1, 2)).tolist()),
               "above half": spread((weights > .5).float().mean((1, 2)).tolist()),
               "loss": spread(losses), "rise": spread([b - a for a, b in zip(intact, losses)])}
    ways = {"first token hidden": hidden(0), "first value zero": without_value(0),
            f"token {OTHER} hidden": hidden(OTHER), f"value {OTHER} zero": without_value(OTHER)}
    for name, around in ticked(ways.items(), "way"):
        with changed(model, around): weights, losses = read(model, ids)
        yield {"part": "without", "changed": name, "weight": spread(weights.mean((1, 2)).tolist()),
               "loss": spread(losses), "rise": spread([b - a for a, b in zip(intact, losses)])}
