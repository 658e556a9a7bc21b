"""Chapter 16: drafts from the hidden states of the small decoder of prose: Medusa heads, EAGLE's
drafter, and a module for the second token.

The decoder stays as it is; only the heads learn, all on the same windows of fresh prose, for
equally many steps. Every kind has the same number of candidates for its rate, tried with the first
seed; the one with the least loss on held-out prose is run with further seeds. Then each drafts for
the same prompts, greedily and with sampling; bigrams and the book's draft model do so, too. A tree
of candidates is counted on the greedy text.
"""
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, size
from bench.scaling import Runs, code_digest
from tfmlib.checkpoints import MODEL_CONFIGS, load_model
from tfmlib.decoders import SamplingConfig
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.kv_cache.ahead import (
    CausalLMWithStates,
    EagleDraft,
    MedusaDraft,
    MedusaHeads,
    NextState,
    eagle_loss,
    medusa_loss,
)
from tfmlib.kv_cache.speculative import ModelDraft, NGramDraft, Speculation, generate_speculative
from tfmlib.tokens import book_tokenizer
from tfmlib.workbench import prose, spread

DEVICE, SEED = "cpu", 0
# tokens drafted, tokens of a window, windows of a step and of the test
K, WINDOW, BATCH, STEPS, HELD = 3, 65, 4, 200, 32
PROMPTS, BEGUN, NEW = 6, 32, 48
WAYS, TREES = {"greedy": None, "sampled": SamplingConfig()}, ((1, 1, 1), (2, 2, 2), (4, 2, 1))
# seeds of prose that the decoder has not learnt
LEARNT, TESTED = 11, 12


@lru_cache
def data() -> dict:
    "The frozen decoder, and windows of tokens with its states; the last of them are for the test."
    torch.set_num_threads(1)
    model = load_model("prose").eval().requires_grad_(False)
    ids = torch.tensor(book_tokenizer().encode(prose(5 * WINDOW * (BATCH * STEPS + HELD),
            seed=LEARNT)))
    rows = ids[:len(ids) // WINDOW * WINDOW].view(-1, WINDOW)[:BATCH * STEPS + HELD]
    with torch.no_grad():
        states = torch.cat([model.hidden_states(part)[0] for part in rows.split(16)])
    tested = torch.tensor(book_tokenizer().encode(prose(60_000, seed=TESTED)))
    starts = torch.linspace(0, len(tested) - BEGUN, PROMPTS).long()
    return {"model": model, "rows": rows, "states": states,
            "prompts": [tested[None, n:n + BEGUN] for n in starts]}


def of_kind(kind: str, seed: int) -> nn.Module:
    "Heads that have learnt nothing yet."
    if kind == "Medusa": return MedusaHeads(data()["model"], K)
    return NextState(MODEL_CONFIGS["toy Llama"], kind == "module", seed)


def loss(kind: str, module: nn.Module, states: Tensor, ids: Tensor) -> Tensor:
    "What a kind learns from: a module for the second token learns from the tokens alone."
    model = data()["model"]
    if kind == "Medusa": return medusa_loss(module, states, ids)
    if kind == "EAGLE": return eagle_loss(module, model, states, ids)
    found = module(states[:, :-2], model.embed(ids[:, 1:-1]))
    return F.cross_entropy(model.logits(found).flatten(0, 1), ids[:, 2:].flatten())


@lru_cache(None)
def learnt(kind: str, rate: float, seed: int) -> tuple[nn.Module, float, float]:
    "Heads that have learnt, their loss on held-out windows, and seconds."
    rows, states, module = data()["rows"], data()["states"], of_kind(kind, seed)
    order = torch.randperm(BATCH * STEPS, generator=torch.Generator().manual_seed(seed))
    optimiser, began = (torch.optim.AdamW(module.parameters(), rate, betas=(0.9, 0.95),
                                          weight_decay=0.01), time.process_time())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, STEPS, pct_start=0.1)
    for batch in order.split(BATCH):
        optimiser.zero_grad()
        loss(kind, module, states[batch], rows[batch]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    took = time.process_time() - began
    with torch.no_grad(): ended = float(loss(kind, module.eval(), states[-HELD:], rows[-HELD:]))
    return module.requires_grad_(False), ended, took


def drafts(kind: str, target: CausalLMWithStates, module: nn.Module | None,
           sampling: SamplingConfig | None):
    if kind == "bigram": return NGramDraft(target.vocab_size)
    if kind == "small model":
        return ModelDraft(CachedCausalLM(load_model("prose_draft").eval()), sampling)
    return (MedusaDraft if kind == "Medusa" else EagleDraft)(target, module, sampling)


def counted(found: list[Speculation]) -> dict:
    """Tokens per pass, and in how many of 100 cases the first, second, … draft is accepted where
    those before it are."""
    pairs = [(d, a) for s in found for d, a in zip(s.drafted, s.accepted)]
    rates = {}
    for i in range(1, K + 1):
        tried = [a for d, a in pairs if d >= i and a >= i - 1]
        rates[f"draft {i}, %"] = 100 * sum(a >= i for a in tried) / max(1, len(tried))
    return {"tokens per pass": len(found) * NEW / len(pairs)} | rates


def passes(right: list[list[bool]], n: int) -> int:
    "How many passes write n tokens, if after each token `right` tells which drafts were right."
    at = count = 0
    while at < n:
        taken = 0
        while at + taken < n and taken < K and right[at][taken]: taken += 1
        at, count = at + taken + 1, count + 1
    return count


@torch.no_grad()
def trees(module: MedusaHeads, texts: list[Tensor]) -> dict:
    "Tokens per pass of greedy text, with the best few choices of each head as a tree."
    model, found = data()["model"], {}
    # (T, K, choices)
    best = [module(model.hidden_states(text)[0][0]).topk(max(map(max, TREES)), -1).indices
            for text in texts]
    for tree in TREES:
        count = 0
        for text, choices in zip(texts, best):
            T, row = text.shape[1], text[0]
            right = [[t + 1 + k < T
                      and bool((choices[t, k - 1, :tree[k - 1]] == row[t + 1 + k]).any())
                      for k in range(1, K + 1)] for t in range(BEGUN - 1, T)]
            # the first pass reads the prompt: nothing is drafted
            right = [[False] * K, *right]
            count += passes(right, NEW)
        found["tree " + "·".join(map(str, tree))] = len(texts) * NEW / count
    return found


def written(kind: str, module: nn.Module | None, seed: int) -> dict:
    "What the drafts of a kind save, greedily and with sampling."
    model, found = data()["model"], {}
    target = CausalLMWithStates(model)
    for way, sampling in WAYS.items():
        texts = [generate_speculative(target, drafts(kind, target, module, sampling), prompt, NEW,
                                      K, sampling, 100 * seed + n)
                 for n, prompt in enumerate(data()["prompts"])]
        found |= {f"{way}, {name}": value for name, value in counted(texts).items()}
        if kind == "Medusa" and way == "greedy": found |= trees(module, [s.ids for s in texts])
    return found


def run(c: dict) -> dict:
    """One kind, rate and seed: its loss and its seconds, or what it saves; a kind that learns
    nothing has no rate."""
    module, ended, took = learnt(c["kind"], c["rate"], c["seed"]) if c["rate"] else (None, 0.0, 0.0)
    if c["what"] == "loss": return {"loss": ended, "seconds": round(took, 1)}
    return written(c["kind"], module, c["seed"])


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS = 3
RATES = {"EAGLE": (0.002, 0.004, 0.008), "module": (0.002, 0.004, 0.008),
         "Medusa": (0.002, 0.004, 0.008)}
RUNS = Runs("drafting",
            code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def complete(what: str, kind: str, rates: tuple, seeds: list[int]) -> list[dict]:
    return RUNS.complete([{"what": what, "kind": kind, "rate": rate, "seed": seed} for rate in rates
                          for seed in seeds], run, data, workers=1)


def measure(seed: int) -> Iterator[dict]:
    """What needs no learning; then each kind: the search for its rate, and its best rate with
    all seeds."""
    seeds = [seed + n for n in range(SEEDS)]
    about = {"part": "drafts", "target parameters": size(load_model("prose")),
             "windows": BATCH * STEPS, "steps": STEPS, "prompts": PROMPTS, "new": NEW}
    for kind in ("bigram", "small model"):
        parameters = {"small model": size(load_model("prose_draft"))}.get(kind, 0)
        yield (about | {"kind": kind, "parameters": parameters,
                        **over_seeds(complete("saved", kind, (None,), seeds))})
    for kind, rates in RATES.items():
        losses = {rate: found["loss"]
                  for rate, found in zip(rates, complete("loss", kind, rates, [seed]))}
        for rate, ended in losses.items():
            yield {"part": "search", "kind": kind, "rate": f"{rate:g}", "loss": spread([ended])}
        best = min(losses, key=losses.__getitem__)
        yield (about | {"kind": kind, "rate": f"{best:g}", "parameters": size(of_kind(kind, seed)),
                        **over_seeds(complete("saved", kind, (best,), seeds))})
