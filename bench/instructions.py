"""Chapter 10: a model of sheets of questions is taught to answer them, with the loss on the answer only and on everything, over seeds.

A sheet is question after question: what is to be done (copy, reverse, sort), five digits, a mark. A model of sheets that is asked a question
goes on with another one. It is then trained on questions with their answers; the questions of the test stand in no training.
The models of seed 0, before and after, are those that the book ships: `python -m bench instructions` writes them to tfmlib/assets/models.
"""
import torch
from torch import Tensor

from bench import over_seeds, size
from bench.decoder_training import MODELS, fused
from tfmlib.decoders import SHAPES, Decoder, generate, next_token_loss, save_decoder
from tfmlib.training import AdamW, WarmupCosine, groups, seeded, train

DEVICE = "cpu"
SEED = 0
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
    kept = ((torch.cat([what, digits], 1) * torch.tensor([1, 3, 7, 9, 11, 13])).sum(1) % 10 == 0) == tested
    return torch.cat([what, digits], 1)[kept][:n]


def answers(asked: Tensor) -> Tensor:
    "(n, DIGITS)"
    what, digits = asked[:, :1], asked[:, 1:]
    return torch.where(what == COPY, digits, torch.where(what == REVERSE, digits.flip(1), digits.sort(1).values))


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
def look(model: Decoder, seed: int) -> dict[str, float]:
    "How often it answers rightly, how often with a question, and how well it still predicts questions, in nats a token."
    asked = questions(TESTED, seeded(seed, 2), tested=True)
    prompt = torch.cat([asked, torch.full((TESTED, 1), MARK)], 1)
    wrote = generate(model, prompt, DIGITS + 1)[:, DIGITS + 2:]
    wanted = torch.cat([answers(asked), torch.full((TESTED, 1), END)], 1)
    lost, count = next_token_loss(model, asked)
    return {"right": float((wrote == wanted).all(1).float().mean()), "asks back": float(((wrote[:, 0] >= COPY) & (wrote[:, 0] <= SORT)).float().mean()),
            "questions": float(lost / count)}


def trained(model: Decoder, batch, steps: int, seed: int, watch=None) -> Decoder:
    train(model, next_token_loss, batch, steps, AdamW(groups(model, 0.01), WarmupCosine(RATE, 20, steps), clip=1.0), watch=watch, seed=seed)
    return model


def taught(base: Decoder, way: str, seed: int) -> tuple[Decoder, list[dict]]:
    "The model taught to answer, and what it could do on the way."
    model, found = Decoder(base.shape, part=fused), []
    model.load_state_dict(base.state_dict())
    found.append(look(model, seed))

    def batch(step: int) -> tuple:
        tokens, own = answered(questions(BATCH, seeded(seed, 1, step)))
        return (tokens, own) if way == "answer" else (tokens,)

    def watch(step: int) -> None:
        if step not in WATCHED: return
        model.eval()
        found.append(look(model, seed))

    trained(model, batch, STEPS, seed, watch)
    print(seed, way, found[0], found[-1], flush=True)
    return model, found


def learn(seed: int) -> tuple[Decoder, dict[str, Decoder], dict[str, list[dict]]]:
    "A model of sheets; the same, taught to answer with either loss; and what each could do on the way."
    shape = SHAPES["toy Llama"].sized(len(SIGNS), WIDTH, LAYERS, HEADS, LONGEST)
    base = trained(Decoder(shape, part=fused, seed=seed), lambda step: (sheet(BATCH, seeded(seed, 0, step)),), SHEETS, seed)
    made = {way: taught(base, way, seed) for way in ("answer", "everything")}
    return base, {way: model for way, (model, _) in made.items()}, {way: found for way, (_, found) in made.items()}


def measure(seed: int) -> list[dict]:
    "Both losses, with what the model could do before and on the way."
    runs = [learn(seed + s) for s in range(SEEDS)]
    base, models, _ = runs[0]
    for name, model in (("questions", base), ("answers", models["answer"])):
        save_decoder(MODELS / f"{name}.safetensors", model, command=COMMAND, seed=str(seed), signs=" ".join(SIGNS))
    return [{"loss on": way, "step": step, "parameters": size(base)} | over_seeds([found[way][i] for _, _, found in runs])
            for way in ("answer", "everything") for i, step in enumerate(WATCHED)]
