"""What the measurements of chapter 14 share: prose of known entropy, one family of decoders, one
training, and runs that are kept.

The prose is the workbench's, written with the most frequent tenth of each kind of stem, so that a
network of a few million parameters comes near the entropy. A row is one paragraph, from its first
token to its last: no token lacks context, and the nats of the choices that wrote the held-out
paragraphs, divided by their tokens, are the least loss that any model can have on them.

A run is identified by its case, a dict. Its result is appended to bench/runs/PART.jsonl as soon as
the run ends. If the same part is started again, on this machine or, with that file, on another one,
only the missing runs are trained. A result is valid as long as the code of this file is the same;
comments may change. A single long run also resumes from a checkpoint in the temporary folder. A run
whose loss or gradient is no longer finite has an infinite loss: a learning rate that is too high
must not stop the search.
"""
import ast
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from tempfile import gettempdir

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import size
from bench.decoder_training import Reckoning, fused
from tfmlib.checkpoints import MODERN, ModelConfig, build_decoder
from tfmlib.decoders import CausalLM
from tfmlib.tokens import Tokenizer, train_tokenizer
from tfmlib.workbench import (
    AdamW,
    Checkpoint,
    Diverged,
    WarmupCosine,
    Writer,
    parameter_groups,
    processor,
    replacing,
    seeded,
    stream,
    train,
)

# one stem in so many; tokens; paragraphs for the tokenizer, to learn from, to test on
LEXICON, VOCAB, TOKENIZED, LEARNT, TESTED = 10, 1024, 4_000, 80_000, 600
# BASE: the width at which both parametrisations are the same
LAYERS, HEAD_DIM, BASE, LONGEST = 4, 16, 32, 512
# paragraphs in a step, steps in a pool, …, parts of the peak, and of the steps
ROWS, POOL, DECAY, FLOOR, WARM = 8, 32, 0.1, 0.1, 0.05
WORKERS, EVERY = 2, 500
RUNS = Path(__file__).resolve().parent / "runs"


def outline(node) -> object:
    "A syntax tree as lists, without the fields that are empty: newer Pythons have more of these."
    if isinstance(node, ast.AST):
        return ([type(node).__name__]
                + [[name, outline(value)] for name, value in ast.iter_fields(node)
                   if value not in (None, [])])
    return [outline(one) for one in node] if isinstance(node, list) else repr(node)


def code_digest(source: str) -> str:
    """A digest of what a source does: its code without comments, docstrings, layout and the
    places it imports from; the same for every Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (isinstance(body, list) and len(body) > 0 and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)):
            node.body = body = body[1:]
        if isinstance(body, list):
            node.body = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
    return sha256(json.dumps(outline(tree)).encode()).hexdigest()[:12]


CODE = code_digest(Path(__file__).read_text(encoding="utf-8"))
CACHE = Path(gettempdir()) / f"tfm_scaling_{CODE}"


# --- text whose entropy is known ------------------------------------------------------------------

def writer(kind: type[Writer], seed: int) -> Writer:
    "A writer with the most frequent stems of each kind only."
    made = kind(stream(seed, "prose"))
    made.stems = {name: stems[:max(1, len(stems) // LEXICON)] for name, stems in made.stems.items()}
    made.ranks = {name: list(accumulate(1 / (r + 3) for r in range(len(stems))))
                  for name, stems in made.stems.items()}
    return made


@lru_cache
def vocabulary() -> tuple[Tokenizer, dict[int, int]]:
    """A tokenizer of this prose, and a new number for each token that occurs: bytes that never
    do are left out; 0 begins a paragraph."""
    author = writer(Writer, 2)
    text = [author.paragraph() for _ in range(TOKENIZED)]
    tokenizer = train_tokenizer("".join(text), VOCAB)
    return (tokenizer,
            {i: n for n, i in enumerate(sorted({i for part in text for i in tokenizer.encode(part)}
                                               | {*range(256, len(tokenizer))}), 1)})


def written(kind: type[Writer], seed: int, n: int) -> tuple[list[list[int]], float]:
    "Paragraphs as tokens, and the nats of the choices that wrote them."
    tokenizer, number = vocabulary()
    author, rows, nats = writer(kind, seed), [], 0.0
    for _ in range(n):
        rows.append([number[i] for i in tokenizer.encode(author.paragraph())])
        nats += (author.least + author.most) / 2 if kind is Reckoning else 0.0
    return rows, nats


@lru_cache
def corpus() -> dict:
    """Paragraphs to learn from and to test on, flat, with their lengths; the size of the
    vocabulary; the entropy of the test, in nats a token."""
    path = CACHE / f"corpus-{LEXICON}-{VOCAB}-{TOKENIZED}-{LEARNT}-{TESTED}.pt"
    if not path.exists():
        (learnt, _), (tested, nats) = written(Writer, 0, LEARNT), written(Reckoning, 1, TESTED)
        found = {name: torch.tensor([i for row in rows for i in row], dtype=torch.int16)
                 for name, rows in (("learnt", learnt), ("tested", tested))}
        found |= {f"{name} lengths": torch.tensor([len(row) for row in rows])
                  for name, rows in (("learnt", learnt), ("tested", tested))}
        CACHE.mkdir(exist_ok=True)
        with replacing(path) as beside:
            torch.save(found | {"V": 1 + len(vocabulary()[1]),
                                "entropy": nats / len(found["tested"])}, beside)
    return torch.load(path)


@lru_cache
def paragraphs(side: str) -> tuple[Tensor, ...]:
    return corpus()[side].long().split(corpus()[f"{side} lengths"].tolist())


def batch_of(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What is read, a first 0 and all but the last token, and what should come, both (B, T); −1
    where a paragraph has ended."""
    y = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    return F.pad(y[:, :-1].clamp(min=0), (1, 0)), y


class Order:
    """The batches of a run: the first paragraphs of a permutation, as many as `budget` tokens
    need, or fewer, read again and again."""
    def __init__(self, budget: float, seed: int, unique: float | None = None):
        self.rows, self.seed = paragraphs("learnt"), seed
        lengths = corpus()["learnt lengths"]
        self.order = torch.randperm(len(lengths), generator=seeded(seed, 14))
        each = ROWS * float(lengths.double().mean())
        self.steps = max(2, round(budget / each))
        self.known = ROWS * max(1, round((unique or budget) / each))                 # paragraphs
        if self.known > len(self.order):
            raise ValueError(
                f"budget: got {budget:g} tokens, expected at most {float(lengths.sum()):g}, as "
                "many as there are")
        self.pools = lru_cache(2)(self.pool)
        self.lengths = lengths

    def pool(self, number: int) -> list[list[int]]:
        """The batches of some steps: paragraphs of similar length together, so that little is
        padded."""
        at = torch.arange(number * POOL * ROWS, (number + 1) * POOL * ROWS)
        chosen = []
        for epoch in (at // self.known).unique().tolist():
            own = (self.order[:self.known] if epoch == 0
                   else self.order[:self.known][torch.randperm(self.known,
                           generator=seeded(self.seed, 14, epoch))])
            chosen.append(own[at[at // self.known == epoch] % self.known])
        # a last pool may be shorter
        kept = torch.cat(chosen)[:max(0, self.steps - number * POOL) * ROWS]
        by_length = kept[self.lengths[kept].argsort(stable=True)].view(-1, ROWS)
        return by_length[torch.randperm(len(by_length),
                                        generator=seeded(self.seed, 14, -1 - number))].tolist()

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        return batch_of([self.rows[i] for i in self.pools(step // POOL)[step % POOL]])

    def tokens(self, steps: int | None = None) -> int:
        "How many tokens so many steps learn from."
        steps = self.steps if steps is None else steps
        return sum(int(self.lengths[i]) for n in range(-(-steps // POOL))
                   for row in self.pool(n)[:steps - n * POOL] for i in row)


# --- the family of decoders -----------------------------------------------------------------------

class Transferred(CausalLM):
    """A decoder in the maximal-update parametrisation: logits are divided by the width, and
    embeddings begin as those of the base."""
    def logits(self, x: Tensor) -> Tensor: return super().logits(x) * (BASE / self.d_model)


class ScaledAdamW(AdamW):
    "AdamW whose rate is multiplied, for each parameter by its name."
    factors: dict[str, float] = {}

    def _moved(self, name: str, w: Tensor, g: Tensor, rate: float) -> list[tuple[Tensor, Tensor]]:
        return super()._moved(name, w, g, rate * self.factors.get(name, 1.))


def made(C: int, seed: int, way: str = "standard", layers: int = LAYERS) -> CausalLM:
    "The decoder of this width before its first step."
    kind = {"standard": CausalLM, "maximal update": Transferred}[way]
    model = build_decoder(ModelConfig("decoder", corpus()["V"], C, layers, max(1, C // HEAD_DIM),
                                      LONGEST, **MODERN), fused, seed, kind)
    if kind is Transferred:
        with torch.no_grad(): model.embedding.weight.mul_((C / BASE)**.5)
    return model


def optimiser_of(model: CausalLM, rate: float | Callable[[int], float]) -> AdamW:
    """AdamW; in the maximal-update parametrisation the matrices of the blocks move the less, the
    wider they are."""
    optimiser = ScaledAdamW(parameter_groups(model, DECAY), rate, betas=(0.9, 0.95), clip=1.0)
    if isinstance(model, Transferred):
        optimiser.factors = {name: BASE / model.d_model for name, p in model.named_parameters()
                             if p.ndim == 2 and name.startswith("stack.")}
    return optimiser


def sizes(C: int, layers: int = LAYERS) -> dict[str, int]:
    "Parameters of the blocks, N, and all of them."
    model = made(C, 0, layers=layers)
    return {"N": size(model.stack), "N all": size(model)}


def loss(model: CausalLM, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum"),
            (y >= 0).sum())


@torch.no_grad()
def tested(model: CausalLM) -> float:
    "Nats a token on the held-out paragraphs; their entropy is `corpus()['entropy']`."
    model.eval()
    rows, device = (sorted(paragraphs("tested"), key=len),
                    next((p.device for p in model.parameters()), torch.device("cpu")))
    return (sum(float(loss(model, *(t.to(device) for t in batch_of(rows[i:i + 20])))[0])
                for i in range(0, len(rows), 20)) / sum(map(len, rows)))


# --- one run --------------------------------------------------------------------------------------

def schedule(kind: str, peak: float, steps: int,
             warm_steps: int | None = None) -> Callable[[int], float]:
    """The rate by step: cosine to a tenth of the peak, or constant, after a warm-up of a
    twentieth of the steps, or of so many."""
    warm = max(1, round(WARM * steps)) if warm_steps is None else warm_steps
    if kind == "cosine" and warm < steps: return WarmupCosine(peak, warm, steps, FLOOR * peak)
    # a warm-up that never ends, too
    if kind in ("constant", "cosine"): return WarmupCosine(peak, warm, warm + 1, peak)
    raise ValueError(f"kind: got {kind!r}, expected 'cosine' or 'constant'")


def case(C: int, D: float, seed: int, rate: float, way: str = "standard", kind: str = "cosine",
         marks: Iterable[float] = (), unique: float | None = None,
         warm: float | None = None, layers: int = LAYERS) -> dict:
    """A run in JSON's types: width, tokens, seed, peak; budgets at which it is tested on the
    way; tokens that are different; tokens of warm-up."""
    return {"C": C, "D": D, "seed": seed, "rate": float(f"{rate:.4g}"), "way": way, "kind": kind,
            "marks": sorted(m for m in marks if m < D), "unique": unique,
            "warm": warm, "layers": layers}


def run(c: dict) -> dict:
    """Train one network; its loss at the end and at the marks, as [tokens seen, nats a token],
    and what the run was."""
    torch.set_num_threads(1)
    began, order, model = (time.process_time(), Order(c["D"], c["seed"], c["unique"]),
                           made(c["C"], c["seed"], c["way"], c["layers"]))
    each = c["D"] / order.steps
    marks = {max(1, round(mark / each)) for mark in c["marks"]} | {order.steps}
    optimiser = optimiser_of(model,
                             schedule(c["kind"], c["rate"], order.steps,
                                      c["warm"] and round(c["warm"] / each)))
    path = CACHE / f"{key(c)}.safetensors"
    try:
        history = train(model, loss, order, order.steps, optimiser, Checkpoint(path, EVERY)
                        if order.steps > 2 * EVERY else None,
                        watch=lambda step: {"tested": tested(model)} if step in marks else None,
                        seed=c["seed"])
        curve = [[order.tokens(step), round(value, 6)] for step, value in history.points["tested"]]
    except Diverged: curve = [[order.tokens(), math.inf]]
    path.unlink(missing_ok=True)
    return ({"curve": curve, "steps": order.steps, "seconds": round(time.process_time() - began, 1)}
            | sizes(c["C"], c["layers"]))


# --- runs that are kept ---------------------------------------------------------------------------

def key(c: dict) -> str: return sha256(json.dumps(c, sort_keys=True).encode()).hexdigest()[:16]


def parsed(line: str) -> dict | None:
    "A line of the file; None if its end is missing."
    try: return json.loads(line)
    except json.JSONDecodeError: return None


class Runs:
    """The finished runs of a part, as lines of a file: the case, its result, and the code that
    made it."""
    def __init__(self, part: str, code: str = CODE):
        self.path, self.code = RUNS / f"{part}.jsonl", code

    def found(self) -> dict[str, dict]:
        """The results of this code, by the key of their case; a last line that was cut off is
        left out."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        rows = [row for row in map(parsed, lines) if row is not None]
        return {key(row["case"]): row["found"] for row in rows if row["code"] == self.code}

    def add(self, c: dict, found: dict) -> None:
        self.path.parent.mkdir(exist_ok=True)
        cut = self.path.exists() and not self.path.read_text(encoding="utf-8").endswith("\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut + json.dumps({"code": self.code, "machine": processor(),
                                                "case": c, "found": found}) + "\n")

    def complete(self, cases: list[dict], run: Callable[[dict], dict] = run,
                 prepare: Callable = corpus, workers: int | None = None) -> list[dict]:
        """The results of all cases, in their order; those that are missing are made now, in this
        order, by several processes."""
        there = self.found()
        missing = list({key(c): c for c in cases if key(c) not in there}.values())
        if missing: prepare()
        for c, found in computed(missing, run, WORKERS if workers is None else workers):
            self.add(c, found)
            print(f"{self.path.stem}: {len(self.found())} runs, {c} → {found}", flush=True)
        there = self.found()
        return [there[key(c)] for c in cases]


def computed(cases: list[dict], run: Callable[[dict], dict],
             workers: int) -> Iterator[tuple[dict, dict]]:
    "Each case with its result, as they come; with one worker, in this process."
    if workers < 2:
        yield from ((c, run(c)) for c in cases)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        asked = {pool.submit(run, c): c for c in cases}
        try: yield from ((asked[done], done.result()) for done in as_completed(asked))
        finally: pool.shutdown(cancel_futures=True)


def log_minimum(at: list[float], values: list[float]) -> float:
    """Where a parabola through the lowest value and its two neighbours is lowest, over the
    logarithm; at an end, or beside a value that is not finite, the lowest itself."""
    i = min(range(len(values)), key=values.__getitem__)
    if i in (0, len(values) - 1) or not all(map(math.isfinite, values[i - 1:i + 2])): return at[i]
    a, b, c = (math.log(x) for x in at[i - 1:i + 2])
    fa, fb, fc = values[i - 1:i + 2]
    p, q = (b - a) * (fb - fc), (b - c) * (fb - fa)
    return at[i] if p == q else math.exp(b - ((b - a) * p - (b - c) * q) / (2 * (p - q)))
