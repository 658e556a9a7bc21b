"""Chapter 19: what a pattern loses, against the share of causal pairs that it computes: recall of
one, four and sixteen facts, and prose.

All patterns are learned by the same decoder of two layers; native sparse attention adds its own
small parts. Full attention is the line to beat. All facts of a text are asked for, so that each
step has as many answers to learn from as there are facts; those out of the pattern's reach count in
the test, not in training, where they would be noise. Recall is also given for the facts that a
question attends to ("direct"), for those that reach it through another position only ("relayed")
and for those that do not ("out of reach"). A rate is chosen by the loss of answers within reach.
The rate of each pattern and task is the best of a grid, on a seed and on texts of its own; a grid
whose end is best goes on. It is tried with a third of the steps, but for 16 facts with all of them:
there, the rates that lead after a third are too high for the whole. A row is a task and a pattern,
with three seeds; the first of them also with twice the steps, where the task is not solved long
before. Sixteen facts once more in vectors twice as wide, for patterns that rely on relays. Rows are
shared out among `WORKERS` processes of one thread each; every run is kept in `build/sparse`, so
that a measurement that was cut off goes on. Empty that folder if the code of a run has changed.
"""
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import climbed, over_seeds, size, ticked
from bench.decoder_training import fused
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import CausalLM
from tfmlib.sparse import (
    block_ends,
    causal,
    every,
    facts_in_noise,
    intersection,
    layers_needed,
    masked_sparse_attention,
    pattern_mask,
    random_blocks,
    same_block,
    sink_tokens,
    sliding_window,
    union,
)
from tfmlib.sparse.native import NativeSparseAttention
from tfmlib.tokens import book_tokenizer
from tfmlib.workbench import AdamW, WarmupCosine, mix_seed, parameter_groups, prose, train

WORKERS, SEEDS, PEAKS, WARM, ROWS, SOLVED = 2, range(3), (.002, .004, .008), 50, 32, .01
N, HEADS, LAYERS, TESTED, PARTS = 64, 2, 2, 4000, 40_000
WIDE = "recall, 16 facts, width 64"
STEPS = {"recall, 1 fact": 600, "recall, 4 facts": 2000, "recall, 16 facts": 4000, WIDE: 4000,
         "prose": 1200}
TASKS = *STEPS,
LONGER = "recall, 16 facts", "prose"
NATIVE = "native"
PATTERNS = {
    "full": causal,
    "window 16": intersection(causal, sliding_window(16)),
    "window 8": intersection(causal, sliding_window(8)),
    "window 4": intersection(causal, sliding_window(4)),
    "window 6, sinks": intersection(causal, union(sliding_window(6), sink_tokens(2))),
    "strided 8": intersection(causal, union(sliding_window(8), every(8))),
    "fixed 8": intersection(causal, union(same_block(8), block_ends(8))),
    "window 4, random": intersection(causal, union(sliding_window(4), random_blocks(N // 4, 2, 4))),
}
KINDS = *PATTERNS, NATIVE
RELAYING = "window 16", "strided 8", "fixed 8"
CASES = tuple((task, kind) for task in TASKS for kind in (RELAYING if task == WIDE else KINDS))
KEPT = Path(__file__).resolve().parent.parent / "build/sparse"


def facts_of(task: str) -> int: return int(task.split()[1])
def width_of(task: str) -> int: return 64 if task in (WIDE, "prose") else 32
# rates that lead early fail later
def tried_steps(task: str) -> int: return STEPS[task] if "16 facts" in task else STEPS[task] // 3


def config_of(task: str) -> ModelConfig:
    vocabulary, C = (2048 if task == "prose" else 9 * facts_of(task) + 1), width_of(task)
    return ModelConfig("decoder", vocabulary, C, LAYERS, HEADS, N, d_ff=2 * C, **MODERN)


def made(task: str, pattern: str, seed: int) -> CausalLM:
    """The decoder with this pattern in every layer; native sparse attention has parameters of
    its own in each."""
    config = config_of(task)
    if pattern != NATIVE:
        return build(config, partial(masked_sparse_attention, pattern=PATTERNS[pattern],
                                     attention_fn=fused), seed)
    model = build(config, seed=seed)
    torch.manual_seed(seed)
    for block in model.stack.blocks:
        block.attention.inner.attention_fn.attention_fn = NativeSparseAttention(
            config.d_model // HEADS, block_size=4, n_selected=3, window=4)
    return model


def share(pattern: str) -> float:
    """Of the causal pairs; native sparse attention visits summaries, selected blocks and a
    window (which overlap)."""
    whole = N * (N + 1) / 2
    if pattern != NATIVE: return int(pattern_mask(PATTERNS[pattern], N, N).sum()) / whole
    return sum(i // 4 + min(i + 1, 2 * 4 + i % 4 + 1) + min(i + 1, 4) for i in range(N)) / whole


@lru_cache
def texts(part: int, n: int) -> Tensor:
    "Chunks of generated prose, (n, N + 1)."
    ids = book_tokenizer().encode(prose(320 * n, seed=part))
    return torch.tensor(ids[:n * (N + 1)]).view(n, N + 1)


def batch_of(task: str, pattern: str, seed: int, step: int) -> tuple[Tensor, ...]:
    """A batch of training: ids, what is wanted at the last positions, and whether it counts: an
    answer that cannot be known teaches nothing."""
    if task != "prose":
        ids, values, far = facts_in_noise(ROWS, N, facts_of(task), mix_seed(seed, step))
        return ids, values, way(pattern, far) <= LAYERS
    kept = texts(11, PARTS)
    rows = torch.randint(len(kept), (ROWS,),
                         generator=torch.Generator().manual_seed(mix_seed(seed, step)))
    return kept[rows, :-1], kept[rows, 1:], torch.ones(ROWS, N, dtype=torch.bool)


def logits_of(model: nn.Module, ids: Tensor, n: int) -> Tensor:
    "Those of the last `n` positions."
    return model.logits(model.hidden_states(ids)[0][:, -n:])


def loss_of(model: nn.Module, ids: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    "Mean cross-entropy of the answers, or of every next token, that count."
    found = F.cross_entropy(logits_of(model, ids, wanted.shape[1]).flatten(0, 1), wanted.flatten(),
                            reduction="none")
    return (found * counts.flatten()).sum() / counts.sum().clamp(min=1)


@lru_cache
def layers(pattern: str) -> Tensor:
    """The layers that each output needs to depend on each input, N if it never does; native
    sparse attention may attend to any."""
    if pattern == NATIVE: return torch.ones(N, N, dtype=torch.int64)
    needed = layers_needed(pattern_mask(PATTERNS[pattern], N, N))
    return needed.masked_fill(needed < 0, N)


def way(pattern: str, far: Tensor) -> Tensor:
    "For each question, the layers that it needs to depend on its fact."
    asked = torch.arange(N - far.shape[1], N).expand_as(far)
    return layers(pattern)[asked, asked - far]


@torch.no_grad()
def judged(task: str, pattern: str, model: nn.Module, part: int) -> dict[str, float]:
    """Recall, in all and by way; or the loss on prose; `part` tells texts that choose a rate
    from those that test."""
    model.eval()
    if task == "prose":
        rows = texts(12 + part, 1000)
        return {"loss": float(loss_of(model, rows[:, :-1], rows[:, 1:], torch.ones(1000, N)))}
    ids, values, far = facts_in_noise(TESTED, N, facts_of(task), mix_seed(99, part))
    n, right = (way(pattern, far),
                (logits_of(model, ids, facts_of(task)).argmax(-1) == values).double())
    ways = {"direct": n == 1, "relayed": n == 2, "out of reach": n > LAYERS}
    found = {"loss": float(loss_of(model, ids, values, n <= LAYERS)), "right": float(right.mean())}
    return found | {name: float(right[where].mean()) for name, where in ways.items() if where.any()}


def trained(task: str, pattern: str, peak: float, seed: int, steps: int) -> nn.Module:
    model = made(task, pattern, seed)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    train(model, loss_of, lambda step: batch_of(task, pattern, seed, step), steps,
          optimiser, seed=seed)
    return model


def kept(task: str, pattern: str, peak: float, seed: int, steps: int, part: int) -> dict:
    "What a trained model recalls, and its loss; from the folder if it is there."
    path = (KEPT / f"{task}-{pattern}-{peak:g}-{seed}-{steps}-{part}.json".replace(" ",
            "_").replace(",", ""))
    if not path.is_file():
        found = judged(task, pattern, trained(task, pattern, peak, seed, steps), part)
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())


def rate_of(task: str, pattern: str, seed: int) -> float:
    """The best peak, on a seed and texts of its own. Of rates that solve the task, the lowest:
    near the highest, another seed may diverge."""
    return climbed(lambda peak: max(kept(task, pattern, peak, seed + 100, tried_steps(task),
                                         0)["loss"], SOLVED), PEAKS)[0]


def row(task: str, pattern: str, seed: int) -> dict:
    """One task and one pattern: choose the rate, then three seeds, and the first with twice the
    steps."""
    torch.set_num_threads(1)
    peak, steps = rate_of(task, pattern, seed), STEPS[task]
    found = [kept(task, pattern, peak, seed + s, steps, 1) for s in SEEDS]
    twice = kept(task, pattern, peak, seed, 2 * steps, 1) if task in LONGER else {}
    longer = {f"{name}, twice the steps": f"{value:.4f}" for name, value in twice.items()}
    return {"task": task, "pattern": pattern, "share": f"{share(pattern):.4f}", "peak": f"{peak:g}",
            "steps": steps,
            "parameters": size(made(task, pattern, 0))} | over_seeds(found) | longer


def measure(seed: int) -> Iterator[dict]:
    "Every task and pattern."
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        found = pool.map(row, *zip(*CASES), [seed] * len(CASES))
        for _ in ticked(CASES): yield next(found)
