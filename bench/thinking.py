"""Chapter 10: six operations on a digit, answered at once or after writing each step, at equal
parameters, over seeds.

A row is a digit from 0 to 4, six operations (add 1 to 4, or multiply by 2, 3 or 4, modulo 5, or do
nothing), a mark, and the answer. Four ways: at once; at once, trained on as many tokens as with
steps; after six empty tokens, which cost as much as steps and say nothing; after six written steps.
The loss is that of what the model has to write itself, in every way. No written step is given when
tested.
"""
import json

import torch
from torch import Tensor

from bench import over_seeds, size, ticked
from bench.decoder_training import MODELS, fused
from tfmlib.checkpoints import MODEL_CONFIGS, build, save_model
from tfmlib.decoders import CausalLM, generate, next_token_loss
from tfmlib.workbench import AdamW, History, WarmupCosine, parameter_groups, seeded, train

SEEDS, STEPS, BATCH, RATE, WIDTH, HEADS, LAYERS = 3, 1000, 64, 0.003, 64, 4, 2
SLOTS, TESTED, COUNTS = 6, 300, (1, 2, 3, 4, 5, 6)
SIGNS = ["0", "1", "2", "3", "4", "+1", "+2", "+3", "+4", "·2", "·3", "·4", "–", "=", "<think>",
         "</think>", "…"]
NOTHING, EQUALS, THINK, END, EMPTY = range(12, 17)
DIGITS = torch.arange(5)
RESULTS = torch.stack([DIGITS] * 5 + [(DIGITS + n) % 5 for n in (1, 2, 3, 4)]
                      + [DIGITS * n % 5 for n in (2, 3, 4)] + [DIGITS])
WAYS = ("at once", "at once, as many tokens", "empty tokens", "written steps")


def problems(n: int, g: torch.Generator, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Questions (n, 1 + SLOTS) with `count` operations at random places, else 1 to 6 of them;
    and the digit after each slot (n, SLOTS)."""
    digit = torch.randint(5, (n, 1), generator=g)
    operations = torch.randint(5, NOTHING, (n, SLOTS), generator=g)
    counts = (torch.randint(1, SLOTS + 1, (n, 1), generator=g) if count is None
              else torch.full((n, 1), count))
    rank = torch.rand(n, SLOTS, generator=g).argsort(1).argsort(1)
    operations, digits = torch.where(rank < counts, operations, NOTHING), [digit]
    for i in range(SLOTS): digits.append(RESULTS[operations[:, i:i + 1], digits[-1]])
    return torch.cat([digit, operations], 1), torch.cat(digits[1:], 1)


def row(question: Tensor, digits: Tensor, way: str) -> tuple[Tensor, Tensor]:
    "Question and answer (n, T), and True at what the model has to write."
    n = len(question)
    def sign(i): return torch.full((n, 1), i)
    between = {"written steps": digits, "empty tokens": torch.full_like(digits, EMPTY)}.get(way)
    thought = [] if between is None else [sign(THINK), between, sign(END)]
    tokens = torch.cat([question, sign(EQUALS), *thought, digits[:, -1:]], 1)
    own = (torch.arange(tokens.shape[1]) >= tokens.shape[1]
           - (1 if way != "written steps" else SLOTS + 3))
    return tokens, own.expand(tokens.shape)


@torch.no_grad()
def answered(model: CausalLM, question: Tensor, way: str) -> Tensor:
    "All that the model reads and writes (n, T); its answer is the last."
    tokens, own = row(question, torch.zeros(len(question), SLOTS, dtype=torch.long), way)
    return generate(model, tokens[:, ~own[0]], int(own[0].sum()))


def right(model: CausalLM, way: str, seed: int, count: int) -> float:
    "How often the answer is right."
    question, digits = problems(TESTED, seeded(seed, 1, count), count)
    return float((answered(model, question, way)[:, -1] == digits[:, -1]).float().mean())


@torch.no_grad()
def misled(model: CausalLM, seed: int) -> float:
    """How often the model follows a last step that was changed behind its back, to a digit that
    is wrong."""
    question, digits = problems(TESTED, seeded(seed, 2))
    tokens, _ = row(question, digits, "written steps")
    wrong = (digits[:, -1] + torch.randint(1, 5, (TESTED,), generator=seeded(seed, 3))) % 5
    tokens[:, -3] = wrong
    return float((model(tokens[:, :-1])[:, -1].argmax(-1) == wrong).float().mean())


def learn(way: str, seed: int, stop: int | None = None) -> tuple[CausalLM, History, int]:
    "A trained model, its history, and how many tokens it has read; `stop` ends the training early."
    model = build(MODEL_CONFIGS["toy Llama"].sized(len(SIGNS), WIDTH, LAYERS, HEADS, 2 * SLOTS + 5),
                  attention_fn=fused, seed=seed)
    long, short = (row(*problems(1, seeded(0)), w)[0].shape[1] - 1
                   for w in ("written steps", "at once"))
    steps = round(STEPS * long / short) if way == "at once, as many tokens" else STEPS
    def batch(step): return row(*problems(BATCH, seeded(seed, 0, step)), way)
    optimiser = AdamW(parameter_groups(model, 0.01),
                      WarmupCosine(RATE, steps // 20, steps), clip=1.0)
    history = train(model, next_token_loss, batch, steps if stop is None else stop,
                    optimiser, seed=seed)
    return model, history, steps * BATCH * (batch(0)[0].shape[1] - 1)


def ship(model: CausalLM, history: History, seed: int) -> None:
    "Write the model that thinks, with what made it."
    curve = json.dumps([round(loss, 5) for loss in history["loss"][:20].tolist()])
    save_model(MODELS / "thinking.safetensors", model, command="python -m bench thinking",
               seed=str(seed), steps=str(STEPS), signs=json.dumps(SIGNS), curve=curve)


def measure(seed: int) -> list[dict]:
    "Every way, every number of operations."
    made = []
    for way in WAYS:
        runs = [learn(way, seed + s) for s in ticked(range(SEEDS), "seed")]
        fixed = {"way": way, "parameters": size(runs[0][0]), "tokens": runs[0][2]}
        for count in COUNTS:
            made.append(fixed | {"operations": count}
                        | over_seeds([{"right": right(model, way, seed + s, count)}
                                      for s, (model, *_) in enumerate(runs)]))
        print(way, [round(r["right"]["median"], 2) for r in made[-len(COUNTS):]], flush=True)
        if way == "written steps":
            made.append(fixed | over_seeds([{"follows a wrong last step": misled(model, seed + s)}
                                            for s, (model, *_) in enumerate(runs)]))
            ship(*runs[0][:2], seed)
    return made
