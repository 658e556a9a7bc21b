"""Chapter 10: a small decoder is adapted: adapters of low rank, a student of half the width,
preferences, rewards that a checker gives; each at equal tuning.

Adapters, preferences and rewards use the questions of `bench.instructions` (copy, reverse or sort
five digits). The distilled language is a random one, in which the probabilities of the next symbol
depend on the last two. Every method has three candidates for its learning rate, each three times
the one before, tried with one seed at the length that is used and judged on questions (texts) for
validation; if the best is at an end, the search goes on. The best is run with all seeds and tested
on others.
"""
import copy
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import over_seeds, size
from bench.decoder_training import fused
from bench.instructions import (
    COPY,
    DIGITS,
    END,
    MARK,
    REVERSE,
    SORT,
    answered,
    answers,
    questions,
)
from bench.scaling import CODE, Runs, code_digest
from tfmlib.checkpoints import MODEL_CONFIGS, build, load_model
from tfmlib.decoders import (
    SamplingConfig,
    add_adapters,
    answer_log_probabilities,
    cross_entropy,
    distillation_loss,
    generate,
    group_advantages,
    next_token_loss,
    policy_loss,
    preference_loss,
)
from tfmlib.workbench import AdamW, Diverged, WarmupCosine, parameter_groups, seeded, train

DEVICE = "cpu"
SEED = 0
BATCH, TESTED, WARM = 32, 300, 5
# a batch and the steps of the training that is too short
TEACH, HALF = 64, 150
STEPS = {"adapters": 80, "distillation": 150, "preferences": 60, "rewards": 30}
# of the random language
SYMBOLS, LENGTH, FEW, SHARP, TEACHER, SEEN = 12, 32, 64, 1.5, 400, (40, 80, 120, 150)
PAIRS, PROMPTS, GROUP, INNER, TRIES = 512, 16, 8, 2, 16


def descending(tokens: Tensor) -> Tensor:
    "Questions with answers in which `sort` means from the largest."
    changed = tokens.clone()
    told = changed[:, 0] == SORT
    changed[told, DIGITS + 2:-1] = changed[told, DIGITS + 2:-1].flip(1)
    return changed


def only(kinds: tuple, n: int, g: torch.Generator, tested: bool = False) -> Tensor:
    "Questions of these kinds."
    asked = questions(4 * n, g, tested)
    return asked[torch.isin(asked[:, 0], torch.tensor(kinds))][:n]


def optimiser_of(model: nn.Module, rate: float, steps: int) -> AdamW:
    return AdamW(parameter_groups(model, 0.), WarmupCosine(rate, WARM, steps), clip=1.0)


def twin(model: nn.Module) -> nn.Module: return copy.deepcopy(model)


@lru_cache
def taught() -> nn.Module:
    "The shipped model that answers questions."
    return fresh("answers")


def fresh(name: str) -> nn.Module:
    "A shipped model, with fused attention."
    kept = load_model(name)
    model = build(kept.config, attention_fn=fused)
    model.load_state_dict(kept.state_dict())
    return model.eval()


@lru_cache
def half_taught(seed: int) -> nn.Module:
    "The shipped model of questions after a training to answer that is too short."
    model = fresh("questions")
    train(model, next_token_loss, lambda step: answered(questions(TEACH, seeded(seed, 1, step))),
          HALF, optimiser_of(model, 0.003, HALF), seed=seed)
    return model


@torch.no_grad()
def right(model: nn.Module, tokens: Tensor) -> float:
    "How many of the answers are written without an error."
    return float((generate(model, tokens[:, :DIGITS + 2], DIGITS + 1)
                  == tokens).all(1).float().mean())


def held(seed: int, purpose: int, kinds: tuple = (COPY, REVERSE, SORT)) -> Tensor:
    "Questions with answers that no training has seen: purpose 2 validates, 3 tests."
    return answered(only(kinds, TESTED, seeded(seed, 10, purpose), tested=True))[0]


# --- adapters -------------------------------------------------------------------------------------

def adapt(method: str, rate: float, seed: int) -> dict:
    "`sort` gets another meaning; the training has no questions of the two other kinds."
    model = twin(taught())
    if method != "all": add_adapters(model, int(method))
    def batch(step: int) -> tuple:
        tokens, own = answered(only((SORT,), BATCH, seeded(seed, 11, step)))
        return descending(tokens), own
    train(model, next_token_loss, batch, STEPS["adapters"],
          optimiser_of(model, rate, STEPS["adapters"]), seed=seed)
    found = {"trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
             "validated": right(model, descending(held(seed, 2, (SORT,))))}
    for name, kinds in {"new": (SORT,), "old": (COPY, REVERSE)}.items():
        tokens = held(seed, 3, kinds)
        found |= {name: right(model, descending(tokens)),
                  f"{name} before": right(taught(), descending(tokens))}
    return found


# --- distillation ---------------------------------------------------------------------------------

class Language:
    "Symbols whose next one depends on the last two: its probabilities (V, V, V) are known."
    def __init__(self, seed: int):
        self.table = (SHARP * torch.randn(SYMBOLS, SYMBOLS, SYMBOLS,
                                          generator=seeded(seed, 20))).softmax(-1)

    def rows(self, n: int, *numbers: int) -> Tensor:
        g = seeded(*numbers)
        found = [*torch.randint(SYMBOLS, (2, n), generator=g)]
        for _ in range(LENGTH - 2):
            found.append(torch.multinomial(self.table[found[-2], found[-1]], 1, generator=g)[:, 0])
        return torch.stack(found, 1)

    @torch.no_grad()
    def apart(self, model: nn.Module, rows: Tensor) -> float:
        """Nats a symbol above the entropy: the divergence of the model's probabilities from the
        true ones."""
        true, log_q = (self.table[rows[:, :-2], rows[:, 1:-1]],
                       model(rows[:, :-1])[:, 1:].log_softmax(-1))
        return float((true * (true.log() - log_q)).sum(-1).mean())


def reader(width: int, seed: int) -> nn.Module:
    return build(MODEL_CONFIGS["toy Llama"].sized(SYMBOLS, width, 2, 4, LENGTH),
                 attention_fn=fused, seed=seed)


@lru_cache
def teacher(seed: int) -> nn.Module:
    "A model of width 64 that never reads a text twice."
    model, language = reader(64, seed), Language(seed)
    train(model, next_token_loss, lambda step: (language.rows(BATCH, seed, 21, step),), TEACHER,
          optimiser_of(model, 0.003, TEACHER), seed=seed)
    return model


def distil(method: str, rate: float, seed: int) -> dict:
    """A student of half the width; with few texts, or with fresh ones. Of its checkpoints,
    validation picks one."""
    texts, target = method.split(", ")
    language, model, few = (Language(seed), reader(32, 100 + seed),
                            Language(seed).rows(FEW, seed, 22))
    told = {"T = 1": 1., "T = 2": 2.}.get(target)

    def batch(step: int) -> tuple:
        if texts == "fresh": return (language.rows(BATCH, seed, 23, step),)
        return (few[torch.randperm(FEW, generator=seeded(seed, 24, step))[:BATCH]],)

    def loss(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        if told is None: return next_token_loss(model, rows)
        with torch.no_grad(): wanted = teacher(seed)(rows[:, :-1])
        found = distillation_loss(model(rows[:, :-1]), wanted, told)
        return found.sum(), torch.tensor(found.numel())

    checks, tests, seen = language.rows(100, seed, 25), language.rows(200, seed, 26), []

    def watch(step: int) -> None:
        if step in SEEN:
            seen.append((language.apart(model.eval(), checks), language.apart(model, tests), step))
        model.train()
    train(model, loss, batch, STEPS["distillation"],
          optimiser_of(model, rate, STEPS["distillation"]), watch=watch, seed=seed)
    best = min(seen)
    return {"validated": -best[0], "apart": best[1], "best step": best[2],
            "apart at the end": seen[-1][1], "teacher apart": language.apart(teacher(seed), tests),
            "parameters": size(model)}


# --- preferences ----------------------------------------------------------------------------------

def sampled(model: nn.Module, asked: Tensor, seed: int) -> Tensor:
    "Questions with answers as the model samples them, at temperature 1."
    return generate(model, torch.cat([asked, torch.full((len(asked), 1), MARK)], 1), DIGITS + 1,
                    SamplingConfig(), seed)


def own_of(tokens: Tensor) -> Tensor:
    return (torch.arange(tokens.shape[1]) > DIGITS + 1).expand(tokens.shape)


def likely(model: nn.Module, tokens: Tensor) -> Tensor:
    return answer_log_probabilities(model, tokens, own_of(tokens)).sum(1)


@lru_cache
@torch.no_grad()
def pairs(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The right answer and a wrong one that the half-taught model sampled, with its
    log-probabilities of both."""
    model = half_taught(seed)
    good = answered(questions(2 * PAIRS, seeded(seed, 30)))[0]
    bad = sampled(model, good[:, :DIGITS + 1], 31 + seed)
    wrong = (good != bad).any(1)
    good, bad = good[wrong][:PAIRS], bad[wrong][:PAIRS]
    return good, bad, likely(model, good), likely(model, bad)


@torch.no_grad()
def moved(model: nn.Module, reference: nn.Module, seed: int) -> float:
    "The divergence from the reference in nats an answer, over answers that the model samples."
    tokens = sampled(model, held(seed, 3)[:, :DIGITS + 1], 33)
    return float((likely(model, tokens) - likely(reference, tokens)).mean())


def prefer(method: str, rate: float, seed: int) -> dict:
    "DPO, or further training on the better answers of the same pairs."
    reference = half_taught(seed)
    model, (good, bad, good_ref, bad_ref) = twin(reference), pairs(seed)

    def batch(step: int) -> tuple:
        i = torch.randperm(len(good), generator=seeded(seed, 32, step))[:BATCH]
        return good[i], bad[i], good_ref[i], bad_ref[i]

    def loss(model: nn.Module, good: Tensor, bad: Tensor, *reference: Tensor) -> Tensor:
        if method == "supervised": return -likely(model, good).mean() / (DIGITS + 1)
        both = likely(model, torch.cat([good, bad]))
        return preference_loss(*both.chunk(2), *reference, float(method.split()[-1])).mean()
    train(model, loss, batch, STEPS["preferences"],
          optimiser_of(model, rate, STEPS["preferences"]), seed=seed)
    with torch.no_grad():
        return {"validated": right(model, held(seed, 2)), "right": right(model, held(seed, 3)),
                "right before": right(reference, held(seed, 3)),
                "moved": moved(model, reference, seed),
                "good": float((likely(model, good) - good_ref).mean()),
                "bad": float((likely(model, bad) - bad_ref).mean()),
                "good before": float(good_ref.mean()), "bad before": float(bad_ref.mean()),
                "pairs": len(good)}


# --- rewards --------------------------------------------------------------------------------------

def checked(tokens: Tensor) -> Tensor:
    "1 for an answer without an error, else 0."
    wanted = torch.cat([answers(tokens[:, :DIGITS + 1]), torch.full((len(tokens), 1), END)], 1)
    return (tokens[:, DIGITS + 2:] == wanted).all(1).float()


@lru_cache
def before(seed: int) -> dict[str, float]:
    return {f"{name} before": value for name, value in tries(half_taught(seed), seed, 0).items()}


@torch.no_grad()
def tries(model: nn.Module, seed: int, count: int) -> dict[str, float]:
    "How often one sampled answer is right, and how often at least one of many."
    asked = held(seed, 3)[:100, :DIGITS + 1].repeat_interleave(TRIES, 0)
    found = checked(sampled(model, asked, 41 + count)).view(-1, TRIES)
    return {"pass@1": float(found.mean()), f"pass@{TRIES}": float(found.max(1).values.mean())}


def reinforce(method: str, rate: float, seed: int) -> dict:
    """GRPO, or the likelihood of the samples that passed the check; both from the same number of
    samples and updates."""
    reference = half_taught(seed)
    model, way = twin(reference), []
    optimiser = optimiser_of(model, rate, INNER * STEPS["rewards"])
    for step in range(STEPS["rewards"]):
        asked = questions(PROMPTS, seeded(seed, 40, step)).repeat_interleave(GROUP, 0)
        tokens = sampled(model, asked, 1_000 * seed + step)
        rewards, own = checked(tokens), own_of(tokens)[:, 1:]
        with torch.no_grad():
            log_q = model(tokens[:, :-1]).log_softmax(-1)
            old = log_q.gather(-1, tokens[:, 1:, None])[..., 0]
            way.append([float(rewards.mean()), float(-(log_q.exp() * log_q).sum(-1)[own].mean())])
        advantages = group_advantages(rewards.view(PROMPTS, GROUP)).flatten()
        for _ in range(INNER):
            now = -cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
            each = (policy_loss(now, old, advantages)[own].mean() if method == "GRPO"
                    else -(now * own).sum(1) @ rewards / own.sum())
            for p in model.parameters(): p.grad = None
            each.backward()
            optimiser.step()
    model.eval()
    return {"validated": float(checked(sampled(model, held(seed, 2)[:, :DIGITS + 1], 42)).mean()),
            "right": right(model, held(seed, 3)), "right before": right(reference, held(seed, 3)),
            "moved": moved(model, reference, seed), "way": way, **tries(model, seed, 0),
            **before(seed)}


DONE: dict[str, Callable] = {"adapters": adapt, "distillation": distil, "preferences": prefer,
                             "rewards": reinforce}


def run(c: dict) -> dict:
    "One run; if it diverges, the worst."
    torch.set_num_threads(1)
    try: return DONE[c["part"]](c["method"], c["rate"], c["seed"])
    except Diverged: return {"validated": -math.inf}


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS = 3
METHODS = {
    "adapters": {"all": 0.001, **dict.fromkeys(("1", "2", "4", "8"), 0.01)},
    "preferences": {"supervised": 0.001, "DPO, β = 0.1": 0.0003, "DPO, β = 0.5": 0.0003},
    "rewards": {"GRPO": 0.0003, "filtered": 0.001},
    # the middle of three rates
    "distillation": dict.fromkeys(("few, symbols", "few, T = 1", "few, T = 2"), 0.01)}
# run with all seeds too: the search put this rate just behind the best, and at T = 2 first
ALSO = {("distillation", "few, T = 1"): {"also": 0.01}}
RUNS = Runs("adapting",
            CODE + code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def complete(part: str, method: str, rates: list[float], seeds: list[int]) -> list[dict]:
    cases = [{"part": part, "method": method, "rate": rate, "seed": seed} for rate in rates
             for seed in seeds]
    return RUNS.complete(cases, run, prepare=lambda: None, workers=1)


def search(part: str, method: str, middle: float, seed: int) -> dict[float, float]:
    "What validation says of each rate; a grid whose end is best goes on beyond it."
    rates = [middle / 3, middle, 3 * middle]
    while True:
        rates = [float(f"{rate:.2g}") for rate in sorted(rates)]
        found = dict(zip(rates,
                         (each["validated"] for each in complete(part, method, rates, [seed])),
                         strict=True))
        best = max(found, key=found.__getitem__)
        if best not in (rates[0], rates[-1]) or len(rates) == 5: return found
        rates.append(best / 3 if best == rates[0] else 3 * best)


def measure(seed: int) -> Iterator[dict]:
    "For each part and method the search, then its best rate with all seeds."
    for part, methods in METHODS.items():
        for method, middle in methods.items():
            about, found = ({"part": part, "method": method, "steps": STEPS[part]},
                            search(part, method, middle, seed))
            rate = max(found, key=found.__getitem__)
            for r in (r for r, value in found.items() if math.isfinite(value)):
                each = complete(part, method, [r], [seed])[0]
                yield (about | {"what": "search", "rate": f"{r:g}",
                                **over_seeds(
                                    [{name: value for name, value in each.items() if name
                                      != "way"}])})
            seeds = [seed + n for n in range(SEEDS)]
            runs = complete(part, method, [rate], seeds)
            for what, at in ({"end": rate} | ALSO.get((part, method), {})).items():
                yield (about | {"what": what, "rate": f"{at:g}",
                                **over_seeds(
                                    [{name: value for name, value in each.items() if name != "way"}
                                     for each in complete(part, method, [at], seeds)])})
            ways = [each["way"] for each in runs if "way" in each]
            for step in range(0, STEPS[part] if ways else 0, 5):
                told = [[sum(column) / 5 for column in zip(*way[step:step + 5], strict=True)]
                        for way in ways]
                yield (about | {"what": "way", "step": step + 5,
                                **over_seeds([{"reward": reward, "entropy": entropy}
                                              for reward, entropy in told])})
