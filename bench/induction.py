"""Chapter 10: can a decoder copy what follows from its context? With one layer of attention and
with two, over seeds.

A row is a random order of words that begins again after a while, each row after another while: what
comes next stands in the row, behind the word's last occurrence, and neither the word nor the
distance says it alone. Attention only, no feed-forward. Every head is scored by where it looks, and
switched off to see what is lost.
"""
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench import over_seeds, size, ticked
from bench.decoder_training import MODELS, fused
from tfmlib.checkpoints import MODEL_CONFIGS, build, save_model
from tfmlib.decoders import CausalLM, cross_entropy, next_token_loss
from tfmlib.heads import grouped_query_attention
from tfmlib.positions import PositionalAttention
from tfmlib.workbench import AdamW, History, WarmupCosine, parameter_groups, seeded, spread, train

SEEDS, STEPS, BATCH, RATE, WIDTH, HEADS = 5, 800, 32, 0.003, 64, 4
# words in all, in a row; after how many it begins again
WORDS, LENGTH, SHORT, LONG = 48, 48, 8, 20
# CLEAR: from this score on a head counts as of its kind
EVERY, TESTED, CLEAR = 25, 256, 0.2
# the models of seed 0, by their layers
SHIPPED = {1: "copying_one", 2: "copying"}


def repeated(n: int, g: torch.Generator, after: int | None = None) -> tuple[Tensor, Tensor]:
    "Rows of words that begin again, and after how many each does (n, 1)."
    order = torch.rand(n, WORDS, generator=g).argsort(1)
    period = (torch.randint(SHORT, LONG + 1, (n, 1), generator=g) if after is None
              else torch.full((n, 1), after))
    return order.gather(1, torch.arange(LENGTH) % period), period


def small(layers: int, seed: int) -> CausalLM:
    "A decoder of nothing but attention."
    return build(MODEL_CONFIGS["toy Llama"].sized(WORDS, WIDTH, layers, HEADS, LENGTH, ffn="none"),
                 attention_fn=fused, seed=seed)


def again(period: Tensor) -> Tensor:  # (n, LENGTH - 1)
    "True where the word that is read has been there before: what follows can be known."
    return torch.arange(LENGTH - 1) >= period


@torch.no_grad()
def right(model: CausalLM, x: Tensor, period: Tensor) -> float:
    "How often the best guess is right where it can be known."
    return float((model(x[:, :-1]).argmax(-1) == x[:, 1:])[again(period)].float().mean())


@contextmanager
def attending(model: CausalLM, parts: dict[int, Callable]) -> Iterator[CausalLM]:
    "The model while some layers attend by another part."
    heads = {layer: model.stack.blocks[layer].attention.inner for layer in parts}
    # one for all layers: each gets one of its own
    before = {layer: each.attention_fn for layer, each in heads.items()}
    for layer, part in parts.items():
        heads[layer].attention_fn = PositionalAttention(before[layer].encoding, part)
    try: yield model
    finally:
        for layer, part in before.items(): heads[layer].attention_fn = part


def looking(model: CausalLM):
    return attending(model, dict.fromkeys(range(model.config.n_layers), grouped_query_attention))


def blind(model: CausalLM, layer: int, hidden: Tensor):
    "The model while one layer cannot look where `hidden` (n or 1, 1, T, T) is True."
    return attending(model,
                     {layer: lambda q, k, v, mask: grouped_query_attention(q, k, v,
                             mask & ~hidden)})


def at(period: Tensor, more: int) -> Tensor:  # (n, 1, T, T)
    """True where the key stands some periods, and `more`, before the query: with 0 at the same
    word, with −1 at what followed it."""
    t = torch.arange(LENGTH - 1)
    # query minus key
    apart = (t[:, None] - t)[None, None]
    return (apart > 0) & ((apart - more) % period[:, :, None, None] == 0)


@torch.no_grad()
# (layers, HEADS) each
def scores(model: CausalLM, x: Tensor, period: Tensor) -> tuple[Tensor, Tensor]:
    """The share of its attention that a head gives to the word before; and, at a word that was
    there before, to those that followed it."""
    # (n, layers, H, T, T)
    with looking(model): weights = torch.stack(model.hidden_states(x[:, :-1])[1], 1)
    where, followed = again(period), at(period, -1)
    before = weights.diagonal(-1, -2, -1).mean((0, -1))
    return (before, (weights * followed[:, None]).sum(-1).movedim(0, 2).flatten(2,
            3)[:, :, where.flatten()].mean(-1))


@contextmanager
def without(model: CausalLM, off: list[tuple[int, int]]) -> Iterator[CausalLM]:
    "The model while some heads, (layer, head), write nothing."
    width = WIDTH // HEADS
    kept = {name: t.clone() for name, t in model.state_dict().items()}
    with torch.no_grad():
        for layer, head in off:
            model.stack.blocks[layer].attention.inner.o_proj.weight[:, head * width:(
                head + 1) * width] = 0
    try: yield model
    finally: model.load_state_dict(kept)


def by_look(model: CausalLM, seed: int) -> dict[str, float]:
    """What is left when a layer cannot look where it is said to, and when it cannot look one
    place farther back."""
    x, period = repeated(TESTED, seeded(seed, 2))
    def back(n): return torch.ones(LENGTH - 1).diag().roll(-n, 1).tril().bool()[None, None]
    hidden = {"one back in layer 1": (0, back(1)), "two back in layer 1": (0, back(2))}
    if model.config.n_layers > 1:
        hidden |= {"what followed in layer 2": (1, at(period, -1)),
                   "the word itself in layer 2": (1, at(period, 0))}
    found = {}
    for name, (layer, where) in hidden.items():
        with blind(model, layer, where) as cut:
            found[f"without seeing {name}"] = right(cut, x, period)
    return found


@torch.no_grad()
def by_place(model: CausalLM, seed: int, after: int = 16) -> dict[str, float]:
    "Nats at each place but the first, in rows that begin again after 16 words."
    x, _ = repeated(TESTED, seeded(seed, 3), after)
    return {f"nats at {t + 1}": n
            for t, n in enumerate(cross_entropy(model(x[:, :-1]), x[:, 1:]).mean(0).tolist())}


def learn(layers: int, seed: int, stop: int | None = None) -> tuple[CausalLM, History, list[dict]]:
    "A trained model, its history, and what it could do on the way; `stop` ends the training early."
    model, found = small(layers, seed), []
    test = repeated(TESTED, seeded(seed, 1))

    def watch(step: int) -> None:
        if step % EVERY: return
        model.eval()
        before, copies = scores(model, *test)
        found.append({"right": right(model, *test), "before": float(before.max()),
                      "copies": float(copies.max())})

    watch(0)
    history = train(model, next_token_loss,
                    lambda step: (repeated(BATCH, seeded(seed, 0, step))[0],),
                    STEPS if stop is None else stop,
                    AdamW(parameter_groups(model, 0.01), WarmupCosine(RATE, STEPS // 20, STEPS),
                          clip=1.0), watch=watch, seed=seed)
    return model, history, found


def by_head(model: CausalLM, seed: int) -> list[dict[str, float]]:
    "Each head's scores, and how often the answer is right without it."
    test = repeated(TESTED, seeded(seed, 2))
    before, copies = scores(model, *test)
    def alone(layer, head):
        with without(model, [(layer, head)]) as cut: return right(cut, *test)
    return [{"layer": layer + 1, "head": head + 1, "before": float(before[layer, head]),
             "copies": float(copies[layer, head]), "right without it": alone(layer, head)}
            for layer in range(model.config.n_layers) for head in range(HEADS)]


def by_kind(model: CausalLM, seed: int) -> dict[str, float]:
    """What is left without the heads of one kind, in the first layer those that look at the word
    before, in the second those that copy; and without the others there."""
    test = repeated(TESTED, seeded(seed, 2))
    before, copies = scores(model, *test)
    found = {"right": right(model, *test)}
    for layer, (name, each) in enumerate({"before": before, "copies": copies}.items()):
        if layer == model.config.n_layers: break
        heads = [(layer, h) for h in range(HEADS) if each[layer, h] >= CLEAR]
        others = [(layer, h) for h in range(HEADS) if (layer, h) not in heads]
        found[f"{name} heads"] = float(len(heads))
        with without(model, heads) as cut: found[f"without {name}"] = right(cut, *test)
        with without(model, others) as cut:
            found[f"without the others beside {name}"] = right(cut, *test)
    return found


def ship(model: CausalLM, history: History, seed: int) -> None:
    "Write a model with what made it."
    curve = json.dumps([round(loss, 5) for loss in history["loss"][:20].tolist()])
    save_model(MODELS / f"{SHIPPED[model.config.n_layers]}.safetensors", model,
               command="python -m bench induction", seed=str(seed), steps=str(STEPS), curve=curve)


def measure(seed: int) -> list[dict]:
    "One layer and two: the way there, the end by place, by kind of head and by head."
    made = []
    for layers in (1, 2):
        runs = [learn(layers, seed + s) for s in ticked(range(SEEDS), "seed")]
        ship(*runs[0][:2], seed)
        models, fixed = [model for model, *_ in runs], {"layers": layers}
        for i in range(len(runs[0][2])):
            made.append(fixed | {"step": i * EVERY} | over_seeds([found[i] for *_, found in runs]))
        made.append(fixed | {"parameters": size(models[0])}
                    | over_seeds([by_kind(model, seed + s) | by_look(model, seed + s)
                                  for s, model in enumerate(models)]))
        made.append(fixed | {"begins again after": 16}
                    | over_seeds([by_place(model, seed + s) for s, model in enumerate(models)]))
        for s, model in enumerate(models):
            made += [fixed | {"seed": seed + s, "layer": each.pop("layer"),
                              "head": each.pop("head")}
                     | {name: spread([x]) for name, x in each.items()}
                     for each in by_head(model, seed + s)]
        print(layers, [round(found[-1]["right"], 3) for *_, found in runs], flush=True)
    return made
