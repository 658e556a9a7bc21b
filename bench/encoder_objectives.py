"""Chapter 9: what encoders learn from unlabelled text by several objectives, and what that is worth
with few labels.

Every objective trains the same encoder on fresh texts of the grammar. One that costs more per step
takes fewer steps, so that all spend the same operations (counted by PyTorch); ELECTRA also pays for
its generator. Then a tagging head, or a classification head, is trained with a few labelled texts,
together with the encoder; the rate of either training is the best of a grid on texts kept for this
choice, and a grid whose end is best goes on. Rates of pre-training are chosen after `TRIED` steps,
ELECTRA's after twice as many. The cases are shared out among `WORKERS` processes of one thread
each. Encoders are kept in `build/encoders`: a run that was cut off goes on, and
`bench.encoder_uses` finds them; the first masked LM is the model that comes with the book.
"""
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench import SEED, climbed, over_seeds, size, ticked
from bench.encoder_sides import AMBIGUOUS, GRAMMAR, WARM, WIDTH, config, fused
from tfmlib.checkpoints import build, save_model
from tfmlib.encoders import Bert, Electra, masked_lm_loss, replaced_token_loss
from tfmlib.encoders.tag_grammar import (
    CLS,
    LEXICON,
    SEP,
    TAGS,
    TOPICS,
    Corruption,
    best_fill,
    forward_backward,
)
from tfmlib.heads import grouped_query_attention
from tfmlib.workbench import (
    AdamW,
    WarmupCosine,
    load_tensors,
    mix_seed,
    own_tensors,
    parameter_groups,
    save_tensors,
    seeded,
    spread,
    train,
)

WORKERS, LENGTH, SHORT, TEXTS, TESTS = 2, 24, 8, 32, 1_000
PEAKS, TRIED, STEPS, SEEDS = (0.001, 0.002, 0.004, 0.008), 1_500, 12_000, range(3)
STOPS = (300, 600, 1_000, 2_000, 3_000, 6_000, 9_000, 12_000)
CORRUPTIONS = {"masked LM": Corruption(), "all [MASK]": Corruption(.15, 1., 0.),
               "no random words": Corruption(.15, .8, 0.), "40 %": Corruption(.4),
               "no kept words": Corruption(.15, .8, .2)}
# the last has a record of its own, bench/encoder_random.py
KINDS = (*[*CORRUPTIONS][:-1], "causal LM", "ELECTRA", "disentangled", "ELECTRA, disentangled",
         "none")
# width and blocks: larger ones (32, 3) left less to detect, and did worse
GENERATOR = 16, 1
ROOT = Path(__file__).resolve().parent.parent
KEPT, SHIPPED = ROOT / "build/encoders", ROOT / "tfmlib/assets/models/masked.safetensors"
TASKS, LABELLED, TUNED, TUNE_PEAKS = (("tagging", "classification"), 32, 200,
                                      (0.0005, 0.001, 0.002, 0.004))


def framed(words: Tensor) -> Tensor:
    "With [CLS] before and [SEP] after."
    ends = torch.tensor([CLS, SEP]).expand(len(words), 2)
    return torch.cat([ends[:, :1], words, ends[:, 1:]], 1)


def text(seed: int, part: int, n: int, length: int = LENGTH):
    return GRAMMAR.sample(n, length, mix_seed(seed, part))


def corruption(kind: str) -> Corruption: return CORRUPTIONS.get(kind, Corruption())


def corrupted(kind: str, seed: int, part: int, n: int = TEXTS) -> tuple[Tensor, ...]:
    "What the model sees, the text, and the positions to predict."
    ids = framed(text(seed, part, n)[0])
    seen, chosen = corruption(kind)(ids, len(LEXICON), seeded(seed, part, 1))
    return seen, ids, chosen


def causal_lm_loss(model: nn.Module, seen: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    "Every word from those before it."
    return F.cross_entropy(model(ids[:, :-2])["masked-lm"].transpose(1, 2), ids[:, 1:-1])


def by_replacement(kind: str) -> bool: return kind.startswith("ELECTRA")


def made(kind: str, seed: int, attention_fn: Callable = fused) -> nn.Module:
    "An encoder with the head of its objective."
    plain = config(kind == "causal LM", heads="replaced-token" if by_replacement(kind)
                   else "masked-lm")
    if kind.endswith("disentangled"):
        plain = replace(plain, attention="disentangled", positions="disentangled",
                        options=plain.options | {"max_relative": 16})
    encoder = build(plain, attention_fn, seed)
    if not by_replacement(kind): return encoder
    narrow, (width, layers) = config(False, heads="masked-lm", embedding_dim=WIDTH), GENERATOR
    return Electra(build(narrow.sized(len(LEXICON), width, layers, narrow.n_heads, 2 * width),
                         attention_fn, seed + 1_000), encoder)


def loss_of(kind: str) -> Callable:
    return (replaced_token_loss if by_replacement(kind) else causal_lm_loss if kind == "causal LM"
            else masked_lm_loss)


@lru_cache
def operations(kind: str) -> int:
    """Floating-point operations of one step, forward and backward; PyTorch does not count those
    of its fused attention on a processor."""
    model = made(kind, 0, grouped_query_attention)
    value = loss_of(kind)
    # whoever asks, it is a step of training
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        found = value(model, *corrupted(kind, 0, 0))
        (found[0] if isinstance(found, tuple) else found).backward()
    return counter.get_total_flops()


def steps_of(kind: str, steps: int = STEPS) -> int:
    "As many steps as cost what masked LM costs in `steps`."
    return round(steps * operations("masked LM") / operations(kind))


@torch.no_grad()
def own_loss(kind: str, model: nn.Module, some: tuple) -> float:
    "The model's loss on texts that it has not seen: of the generator for ELECTRA."
    model.eval()
    value = (masked_lm_loss(model.generator, *some) if by_replacement(kind)
             else loss_of(kind)(model, *some))
    model.train()
    return float(value[0] / value[1] if isinstance(value, tuple) else value)


def pretrained(kind: str, peak: float, seed: int, steps: int, watch: Callable | None = None):
    "An encoder after training on unlabelled text, and what was noted."
    model = made(kind, seed)
    if kind == "none": return model, None
    optimiser = AdamW(parameter_groups(model, 0.01), WarmupCosine(peak, WARM, steps), clip=1.)
    return (model, train(model, loss_of(kind), lambda step: corrupted(kind, seed, step), steps,
                         optimiser, watch=watch and (lambda step: watch(model, step)), seed=seed))


def kept(kind: str, peak: float, seed: int, steps: int) -> tuple[nn.Module, dict[str, float]]:
    "An encoder, from the folder if it is there, and its loss at each stop."
    path, model = (KEPT / f"{kind.replace(' ', '_')}-{peak:g}-{seed}-{steps}.safetensors",
                   made(kind, seed))
    if kind == "none": return model, {}
    if path.is_file():
        state, facts = load_tensors(path)
        with torch.no_grad():
            for name, p in model.named_parameters(): p.copy_(state[name])
        return model.eval(), json.loads(facts["losses"])
    stops, test = [s for s in STOPS if s < steps] + [steps], corrupted(kind, SEED, -2, TESTS)
    def watch(model, step): return {"own": own_loss(kind, model, test)} if step in stops else None
    model, history = pretrained(kind, peak, seed, steps, watch)
    losses = {str(stop): float(history["own"][i]) for i, stop in enumerate(stops)}
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"steps": str(steps), "peak": f"{peak:g}", "seed": str(seed),
             "losses": json.dumps(losses)}
    save_tensors(path, own_tensors(model), facts)
    if (kind, seed, steps) == ("masked LM", SEED, STEPS):
        save_model(SHIPPED, model, command="python -m bench encoder_objectives", **facts)
    return model, losses


def labelled(task: str, seed: int, part: int, n: int) -> tuple[Tensor, Tensor]:
    "Texts with their labels; -100 where there is none."
    words, tags, topics = text(seed, part, n, LENGTH if task == "tagging" else SHORT)
    return framed(words), F.pad(tags, (1, 1), value=-100) if task == "tagging" else topics


def with_head(kind: str, model: nn.Module, task: str, seed: int, pooling: str = "mean") -> Bert:
    "The same encoder with a new head."
    model = model.discriminator if by_replacement(kind) else model
    options = (model.config.options
               | {"heads": task, "n_labels": len(TAGS if task == "tagging" else TOPICS),
                  "pooling": pooling})
    new = build(replace(model.config, options=options), fused, seed)
    for part in ("embedding", "stack"):
        getattr(new, part).load_state_dict(getattr(model, part).state_dict())
    return new


def label_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    [logits] = model(ids).values()
    return F.cross_entropy(logits.transpose(1, -1) if logits.ndim == 3 else logits, labels,
                           ignore_index=-100)


@torch.no_grad()
def accuracy(model: nn.Module, ids: Tensor, labels: Tensor) -> float:
    "Of ambiguous words, or of texts."
    [logits] = model.eval()(ids).values()
    counted = ids >= AMBIGUOUS if logits.ndim == 3 else slice(None)
    return float((logits.argmax(-1) == labels)[counted].double().mean())


def tuned(kind: str, model: nn.Module, task: str, peak: float, seed: int, n: int = LABELLED,
          pooling: str = "mean", steps: int = TUNED) -> Bert:
    "The encoder after training with a few labels."
    new, (ids, labels) = with_head(kind, model, task, seed, pooling), labelled(task, seed, -3, n)
    optimiser = AdamW(parameter_groups(new, 0.01), WarmupCosine(peak, 20, steps), clip=1.)
    def batch(step):
        rows = torch.randint(n, (min(n, 16),), generator=seeded(seed, step, 2))
        return ids[rows], labels[rows]
    train(new, label_loss, batch, steps, optimiser, seed=seed)
    return new


def worth(kind: str, model: nn.Module, task: str, seed: int, n: int = LABELLED,
          pooling: str = "mean", steps: int = TUNED) -> float:
    "Test accuracy after training with a few labels, at the rate that is best on other texts."
    other, test, models = labelled(task, seed, -1, TESTS), labelled(task, seed, -2, TESTS), {}
    def loss(peak: float) -> float:
        models[peak] = tuned(kind, model, task, peak, seed, n, pooling, steps)
        return -accuracy(models[peak], *other)
    return accuracy(models[climbed(loss, TUNE_PEAKS)[0]], *test)


def noted(part: str, ask: Callable, *case) -> dict | list:
    "The answer, from the folder if it is there: a measurement that was cut off goes on."
    path = KEPT / f"{part}-{ask.__name__}-{'-'.join(map(str, case))}.json".replace(" ", "_")
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ask(*case)))
    return json.loads(path.read_text())


def facts_of(kind: str) -> dict:
    return {"objective": kind, "parameters": size(with_head(kind, made(kind, 0), "tagging", 0)),
            "operations": operations(kind)}


def rates(kind: str, seed: int) -> list[dict]:
    "What few labels are worth after a shorter training at each rate, and the loss."
    torch.set_num_threads(1)
    found, steps, seed = {}, steps_of(kind, TRIED * (1 + by_replacement(kind))), seed + len(SEEDS)
    def loss(peak: float) -> float:
        model, _ = kept(kind, peak, seed, steps)
        found[peak] = {"loss": own_loss(kind, model, corrupted(kind, seed, -1, TESTS)),
                       "tagging": worth(kind, model, "tagging", seed)}
        return -found[peak]["tagging"]
    climbed(loss, PEAKS)
    return [{"what": "rate", **facts_of(kind), "steps": steps, "peak": f"{peak:g}"}
            | {name: spread([value]) for name, value in found[peak].items()}
            for peak in sorted(found)]


def judged(kind: str, peak: float, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    "One seed: its losses on the way, and what few labels are worth after it."
    torch.set_num_threads(1)
    model, losses = kept(kind, peak, seed, steps_of(kind))
    return losses, {task: worth(kind, model, task, seed) for task in TASKS}


def bounds(seed: int) -> list[dict]:
    "The least possible losses, and the best possible accuracies, on the test texts."
    rows = []
    for kind in KINDS[:4]:
        seen, ids, chosen = (t[:, 1:-1] for t in corrupted(kind, seed, -2, TESTS))
        least = -best_fill(GRAMMAR, seen, corruption(kind)).gather(-1,
                ids[..., None])[..., 0].log()[chosen]
        rows.append({"what": "floor", "objective": kind, "loss": spread([float(least.mean())])})
    words = text(seed, -2, TESTS)[0]
    logprob = forward_backward(GRAMMAR.hmm, GRAMMAR.hmm.likelihood(words))[2]
    rows.append({"what": "floor", "objective": "causal LM",
                 "loss": spread([float(-logprob.mean() / LENGTH)])})
    found = []
    for s in SEEDS:
        (long, tags), (short, topics) = (labelled(task, seed + s, -2, TESTS) for task in TASKS)
        right = {future: (GRAMMAR.tag_probabilities(long[:, 1:-1], future).argmax(-1)
                          == tags[:, 1:-1])[long[:, 1:-1] >= AMBIGUOUS] for future in (True, False)}
        topic = GRAMMAR.topic_probabilities(short[:, 1:-1]).argmax(-1) == topics
        found.append({"tagging": float(right[True].double().mean()),
                      "tagging, left": float(right[False].double().mean()),
                      "classification": float(topic.double().mean())})
    return [*rows, {"what": "bound"} | over_seeds(found)]


def measure(seed: int) -> Iterator[dict]:
    "The bounds, the choice of rates, then every objective."
    yield from bounds(seed)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        best, learning = {"none": PEAKS[0]}, [kind for kind in KINDS if kind != "none"]
        for kind, rows in zip(learning, pool.map(rates, learning, [seed] * len(learning)),
                              strict=True):
            best[kind] = float(max(rows, key=lambda r: r["tagging"]["median"])["peak"])
            yield from rows
        found = pool.map(judged,
                         *zip(*[(kind, best[kind], seed + s) for kind, s in product(KINDS, SEEDS)]))
        for kind in ticked(KINDS, "objective"):
            runs, facts = [next(found) for _ in SEEDS], facts_of(kind) | {"peak": f"{best[kind]:g}"}
            for stop in runs[0][0]:
                yield ({"what": "curve", **facts, "steps": int(stop)}
                       | over_seeds([{"loss": losses[stop]} for losses, _ in runs]))
            yield ({"what": "worth", **facts, "steps": steps_of(kind) if kind != "none" else 0,
                    "labelled": LABELLED} | over_seeds([worth for _, worth in runs]))
