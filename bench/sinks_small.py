"""Chapter 4: what heads do that often have nothing to fetch, with four kinds of attention.

The task is Bigram-Backcopy (Guo et al., 2024): after a start token, each symbol follows from the
one before it (a table of probabilities, no attention needed), but after a trigger the symbol before
the trigger comes again, which only attention can know. A decoder of one block with one head,
without a feed-forward layer, learns it with a plain softmax, with one more term in the denominator,
with a learned one, or with a gate. Each kind has the same candidates for its learning rate, tried
with one seed at the full length; the best is run with all seeds.
"""
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds
from bench.scaling import Runs, code_digest
from tfmlib.attention.sinks import GatedAttention, SinkAttention
from tfmlib.block import PreNorm, RMSNorm, TransformerBlock, TransformerStack
from tfmlib.decoders import CausalLM, initialised
from tfmlib.heads import MultiHeadAttention, attention_weights, fused_attention
from tfmlib.positions import PositionalAttention, RotaryEmbedding
from tfmlib.tokens import Embedding
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, parameter_groups, seeded, spread, train

DEVICE = "cpu"
SEED = 0
KINDS = ("softmax", "plus one", "learned sink", "gate")
# the start token has number SYMBOLS; triggers are the first three; mass is measured FROM there
SYMBOLS, TRIGGERS, T, ROWS, WIDTH, HEADS, FROM = 32, 3, 64, 16, 64, 1, 8


def chain() -> Tensor:  # (SYMBOLS, SYMBOLS)
    "The probabilities of the next symbol; no trigger follows a trigger."
    table = (2 * torch.randn(SYMBOLS, SYMBOLS, generator=seeded(7))).softmax(-1)
    # about one symbol in ten
    table[:, :TRIGGERS] = (0.1 / TRIGGERS * (1 + 0.2 * torch.rand(SYMBOLS, TRIGGERS,
            generator=seeded(8))))
    table[:TRIGGERS, :TRIGGERS] = 0
    return table / table.sum(-1, keepdim=True)


@lru_cache(2)
def rows(count: int, seed: int) -> Tensor:  # (count, T + 1)
    "The start token, then symbols."
    g, table = seeded(seed), chain()
    ids = torch.full((count, T + 1), SYMBOLS)
    ids[:, 1] = torch.randint(TRIGGERS, SYMBOLS, (count,), generator=g)
    for t in range(2, T + 1):
        last = ids[:, t - 1]
        drawn = torch.multinomial(table[last], 1, generator=g)[:, 0]
        ids[:, t] = torch.where(last < TRIGGERS, ids[:, t - 2], drawn)
    return ids


def attention(kind: str):
    "The attention layer of a kind."
    own = {"softmax": fused_attention, "plus one": SinkAttention(HEADS, learned=False),
           "learned sink": SinkAttention(HEADS)}.get(kind, fused_attention)
    rotary = PositionalAttention(RotaryEmbedding(WIDTH // HEADS), own)
    return (GatedAttention if kind == "gate" else MultiHeadAttention)(WIDTH, HEADS,
            attention_fn=rotary)


def made(kind: str, seed: int) -> CausalLM:
    """A decoder of one block without a feed-forward layer: what the heads return goes into the
    logits."""
    stack = TransformerStack(
        [TransformerBlock(attention=PreNorm(RMSNorm(WIDTH, 1e-5), attention(kind)))],
        RMSNorm(WIDTH, 1e-5))
    return initialised(CausalLM(Embedding(SYMBOLS + 1, WIDTH), stack, T + 1, None,
                                nn.Linear(WIDTH, SYMBOLS + 1, bias=False)), seed)


def loss(model: CausalLM, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def tested(model: CausalLM) -> dict[str, float]:
    """On unseen rows: nats above the true probabilities, the mass on the first token and on
    nothing, the length of its value."""
    ids = rows(256, 1_000_003)
    x, wanted = ids[:, :-1], ids[:, 1:]
    block, inside = model.stack.blocks[0], {}
    inner = block.attention.inner
    held = inner.register_forward_pre_hook(lambda _, given: inside.update(x=given[0]))
    with attention_weights(): hidden, shown = model.hidden_states(x)
    held.remove()
    # (N, T)
    lost = F.cross_entropy(model.logits(hidden).mT, wanted, reduction="none")
    # (N, T), (N, T, T)
    trigger, w = x < TRIGGERS, shown[0].mean(1)
    later, table = torch.arange(T) >= FROM, chain()
    quiet, asks = ~trigger & later, trigger & later
    true = -table[x.clamp(max=SYMBOLS - 1), wanted.clamp(max=SYMBOLS - 1)].log()
    # (N, T)
    values = inner.project_kv(inside["x"])[1].norm(dim=-1).mean(1)
    found = {"loss": lost[later.expand_as(lost)].mean(),
             "nats above": (lost - torch.where(trigger, 0, true))[later.expand_as(lost)].mean(),
             "copy": lost[asks].mean()}
    found |= {"first, quiet": w[quiet][:, 0].mean(), "first, trigger": w[asks][:, 0].mean(),
              "nothing, quiet": 1 - w[quiet].sum(-1).mean(), "nothing, trigger": 1
              - w[asks].sum(-1).mean()}
    found["value"] = values[:, 0].mean() / values[:, FROM:].mean()
    if isinstance(inner, GatedAttention):
        # (N, T)
        gate = inner.gate_proj(inside["x"]).sigmoid().mean(-1)
        found |= {"gate, quiet": gate[quiet].mean(), "gate, trigger": gate[asks].mean()}
    return {key: round(float(value), 5) for key, value in found.items()}


def run(c: dict) -> dict:
    "One training."
    torch.set_num_threads(1)
    model = made(c["kind"], c["seed"])
    optimiser = AdamW(parameter_groups(model, 0.01), WarmupCosine(c["rate"], 50, c["steps"]),
                      betas=(0.9, 0.95), clip=1.0)
    ids = rows(ROWS * c["steps"], c["seed"])
    train(model, loss, lambda step: (ids[ROWS * step:ROWS * (step + 1)],), c["steps"], optimiser,
          seed=c["seed"])
    return tested(model)


# --- what is run: a kept run depends only on its case and on the code above this line -------------

STEPS, SEEDS, RATES = 800, 3, (0.008, 0.016, 0.032)
RUNS = Runs("sinks_small",
            code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def safely(c: dict) -> dict:
    "A run; if it diverges, an infinite loss."
    try: return run(c)
    except Diverged: return {"loss": float("inf")}


def complete(kind: str, rates: list[float], seeds: list[int]) -> list[dict]:
    return RUNS.complete([{"kind": kind, "rate": rate, "seed": seed, "steps": STEPS}
                          for rate in rates for seed in seeds], safely, prepare=chain, workers=1)


def measure(seed: int) -> Iterator[dict]:
    "For each kind the search, then its best rate with all seeds."
    for kind in KINDS:
        losses = {rate: found["loss"] for rate, found in zip(RATES, complete(kind, RATES, [seed]),
                strict=True)}
        yield from ({"kind": kind, "what": "search", "rate": f"{rate:g}", "loss": spread([value])}
                    for rate, value in losses.items())
        best = min(losses, key=losses.__getitem__)
        yield {"kind": kind, "what": "end", "rate": f"{best:g}",
               **over_seeds(complete(kind, [best], [seed + n for n in range(SEEDS)]))}
