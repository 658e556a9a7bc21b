"""Chapter 10: a model of sheets of questions is taught to answer them, with the loss on the answer
only and on everything, over seeds.

A sheet is question after question: what is to be done (copy, reverse, sort), five digits, a mark. A
model of sheets that is asked a question goes on with another one. It is then trained on questions
with their answers; the questions of the test stand in no training. The models of seed 0, before and
after, are those that the book ships: `python -m bench instructions` writes them to
tfmlib/assets/models.
"""
import json

import torch
from torch import Tensor

from bench import over_seeds, size, ticked
from bench.decoder_training import MODELS, fused
from tfmlib.checkpoints import MODEL_CONFIGS, build, save_model
from tfmlib.decoders import CausalLM, generate, next_token_loss
from tfmlib.workbench import AdamW, History, WarmupCosine, parameter_groups, seeded, train

SEEDS, SHEETS, STEPS, BATCH, RATE, WIDTH, HEADS, LAYERS = 3, 200, 500, 64, 0.003, 64, 4, 2
DIGITS, TESTED, WATCHED = 5, 500, (0, 50, 100, 150, 200, 300, 400, 500)
COPY, REVERSE, SORT, MARK, END = 10, 11, 12, 13, 14
SIGNS = [*map(str, range(10)), "copy", "reverse", "sort", "=", "."]
LONGEST = 4 * (DIGITS + 2)                                            # a sheet of four questions
COMMAND = "python -m bench instructions"


def questions(n: int, g: torch.Generator, tested: bool = False) -> Tensor:
    "What to do, and digits (n, 1 + DIGITS): one question in ten is kept for the test."
    what = torch.randint(COPY, SORT + 1, (20 * n, 1), generator=g)
    digits = torch.randint(10, (20 * n, DIGITS), generator=g)
    kept = (((torch.cat([what, digits], 1) * torch.tensor([1, 3, 7, 9, 11, 13])).sum(1) % 10
             == 0) == tested)
    return torch.cat([what, digits], 1)[kept][:n]


def answers(asked: Tensor) -> Tensor:
    "(n, DIGITS)"
    what, digits = asked[:, :1], asked[:, 1:]
    return torch.where(what == COPY, digits,
                       torch.where(what == REVERSE, digits.flip(1), digits.sort(1).values))


def sheet(n: int, g: torch.Generator) -> Tensor:
    "Four questions in a row (n, LONGEST)."
    asked = questions(4 * n, g)
    return torch.cat([asked, torch.full((4 * n, 1), MARK)], 1).view(n, LONGEST)


def answered(asked: Tensor) -> tuple[Tensor, Tensor]:
    "Question, mark, answer, end (n, T), and True at answer and end."
    def sign(i): return torch.full((len(asked), 1), i)
    tokens = torch.cat([asked, sign(MARK), answers(asked), sign(END)], 1)
    return tokens, (torch.arange(tokens.shape[1]) > DIGITS + 1).expand(tokens.shape)


@torch.no_grad()
def look(model: CausalLM, seed: int) -> dict[str, float]:
    """How often it answers rightly, how often with a question, and how well it still predicts
    questions, in nats a token."""
    asked = questions(TESTED, seeded(seed, 2), tested=True)
    prompt = torch.cat([asked, torch.full((TESTED, 1), MARK)], 1)
    wrote = generate(model, prompt, DIGITS + 1)[:, DIGITS + 2:]
    wanted = torch.cat([answers(asked), torch.full((TESTED, 1), END)], 1)
    lost, count = next_token_loss(model, asked)
    return {"right": float((wrote == wanted).all(1).float().mean()),
            "asks back": float(((wrote[:, 0] >= COPY) & (wrote[:, 0] <= SORT)).float().mean()),
            "questions": float(lost / count)}


def trained(model: CausalLM, batch, steps: int, seed: int, stop: int | None,
            watch=None) -> tuple[CausalLM, History]:
    "`stop` ends a training early."
    optimiser = AdamW(parameter_groups(model, 0.01), WarmupCosine(RATE, 20, steps), clip=1.0)
    return (model, train(model, next_token_loss, batch, steps if stop is None else stop, optimiser,
                         watch=watch, seed=seed))


def of_sheets(seed: int, stop: int | None = None) -> tuple[CausalLM, History]:
    "A model of sheets."
    shape = MODEL_CONFIGS["toy Llama"].sized(len(SIGNS), WIDTH, LAYERS, HEADS, LONGEST)
    return trained(build(shape, attention_fn=fused, seed=seed),
                   lambda step: (sheet(BATCH, seeded(seed, 0, step)),), SHEETS, seed, stop)


def taught(base: CausalLM, way: str, seed: int,
           stop: int | None = None) -> tuple[CausalLM, History, list[dict]]:
    "The model taught to answer, and what it could do on the way."
    model = build(base.config, attention_fn=fused)
    model.load_state_dict(base.state_dict())
    found = [look(model, seed)]

    def batch(step: int) -> tuple:
        tokens, own = answered(questions(BATCH, seeded(seed, 1, step)))
        return (tokens, own) if way == "answer" else (tokens,)

    def watch(step: int) -> None:
        if step not in WATCHED: return
        model.eval()
        found.append(look(model, seed))

    _, history = trained(model, batch, STEPS, seed, stop, watch)
    return model, history, found


def ship(model: CausalLM, history: History, name: str, steps: int, seed: int) -> None:
    "Write a model with what made it."
    curve = json.dumps([round(loss, 5) for loss in history["loss"][:20].tolist()])
    save_model(MODELS / f"{name}.safetensors", model, command=COMMAND, seed=str(seed),
               steps=str(steps), signs=" ".join(SIGNS), curve=curve)


def measure(seed: int) -> list[dict]:
    "Both losses, with what the model could do before and on the way."
    bases = [of_sheets(seed + s) for s in ticked(range(SEEDS), "seed")]
    ship(*bases[0], "questions", SHEETS, seed)
    made = []
    for way in ("answer", "everything"):
        runs = [taught(base, way, seed + s) for s, (base, _) in ticked(enumerate(bases), "seed")]
        if way == "answer": ship(*runs[0][:2], "answers", STEPS, seed)
        print(way, [found[-1] for *_, found in runs], flush=True)
        made += [{"loss on": way, "step": step, "parameters": size(bases[0][0])}
                 | over_seeds([found[i] for *_, found in runs]) for i, step in enumerate(WATCHED)]
    return made
