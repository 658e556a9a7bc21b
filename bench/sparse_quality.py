"""Chapter 19: what a pattern loses, against the share of causal pairs that it computes: recall of one, four and eight facts at known distances, and prose.

All patterns are learned by the same decoder of two layers; native sparse attention adds its own small parts. Full attention is the line to beat.
The rate of each pattern and task is the best of a grid on a seed and on texts of its own; a grid whose end is best goes on. A row is a task and
a pattern, with three seeds; rows are shared out among `WORKERS` processes of one thread each; every run is kept in `build/sparse`, so that a
measurement that was cut off goes on.
"""
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, size, ticked
from bench.decoder_training import fused
from tfmlib.data import prose
from tfmlib.decoders import MODERN, CausalLM
from tfmlib.native_sparse import NativeSparseAttention
from tfmlib.sparse import (
    block_ends,
    causal,
    every,
    facts_in_noise,
    intersection,
    masked_sparse_attention,
    pattern_mask,
    random_blocks,
    same_block,
    sink_tokens,
    sliding_window,
    union,
)
from tfmlib.tokens import book_tokenizer
from tfmlib.training import (
    AdamW,
    Diverged,
    WarmupCosine,
    mix_seed,
    parameter_groups,
    train,
)
from tfmlib.transformer import ModelConfig, build

DEVICE, SEED = "cpu", 0
WORKERS, SEEDS, PEAKS, WARM = 2, range(3), (.002, .004, .008), 50
STEPS, TRIED, ROWS = {"recall": 1500, "prose": 1200}, {"recall": 400, "prose": 300}, {"recall": 32, "prose": 16}
N, LENGTH, WIDTH, HEADS, LAYERS = 128, 128, 32, 2, 2
FACTS = 1, 4, 8
TASKS = *(f"recall, {n} fact{'s' * (n > 1)}" for n in FACTS), "prose"
NATIVE = "native"
PATTERNS = {
    "full": causal,
    "window 32": intersection(causal, sliding_window(32)),
    "window 16": intersection(causal, sliding_window(16)),
    "window 8": intersection(causal, sliding_window(8)),
    "window 12, sinks": intersection(causal, union(sliding_window(12), sink_tokens(4))),
    "strided 8": intersection(causal, union(sliding_window(8), every(8))),
    "fixed 8": intersection(causal, union(same_block(8), block_ends(8))),
    "window 8, random": intersection(causal, union(sliding_window(8), random_blocks(LENGTH // 4, 4, 4))),
}
KINDS = *PATTERNS, NATIVE
ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build/sparse"


def kind_of(task: str) -> str: return "prose" if task == "prose" else "recall"
def facts_of(task: str) -> int: return int(task.split()[1])
def length_of(task: str) -> int: return LENGTH if task == "prose" else N


def config_of(task: str) -> ModelConfig:
    if task == "prose": return ModelConfig("decoder", 2048, 2 * WIDTH, LAYERS, HEADS, LENGTH, d_ff=4 * WIDTH, **MODERN)
    return ModelConfig("decoder", 9 * facts_of(task) + 1, WIDTH, LAYERS, HEADS, N, d_ff=2 * WIDTH, **MODERN)


def made(task: str, pattern: str, seed: int) -> CausalLM:
    "The decoder with this pattern in every layer; native sparse attention has parameters of its own in each."
    config = config_of(task)
    if pattern != NATIVE: return build(config, partial(masked_sparse_attention, pattern=PATTERNS[pattern], attention_fn=fused), seed)
    model = build(config, seed=seed)
    torch.manual_seed(seed)
    for block in model.stack.blocks:
        block.attention.inner.attention_fn.attention_fn = NativeSparseAttention(config.d_model // HEADS, block_size=4, n_selected=3, window=8)
    return model


def share(task: str, pattern: str) -> float:
    "Of the causal pairs; native sparse attention visits summaries, selected blocks and a window (which overlap)."
    n = length_of(task)
    whole = n * (n + 1) / 2
    if pattern != NATIVE: return int(pattern_mask(PATTERNS[pattern], n, n).sum()) / whole
    visited = sum(i // 4 + min(i + 1, 2 * 4 + i % 4 + 1) + min(i + 1, 8) for i in range(n))
    return visited / whole


@lru_cache
def texts(part: int, n: int) -> Tensor:
    "Chunks of generated prose, (rows, LENGTH + 1)."
    ids = book_tokenizer().encode(prose(600 * n, seed=part))
    rows = torch.tensor(ids[:len(ids) // (LENGTH + 1) * (LENGTH + 1)]).view(-1, LENGTH + 1)
    return rows[:n]


def batch_of(task: str, seed: int, step: int) -> tuple[Tensor, ...]:
    "A batch of training."
    if task != "prose":
        ids, value, _ = facts_in_noise(ROWS["recall"], N, torch.arange(1, N), facts_of(task), mix_seed(seed, step))
        return ids, value
    kept = texts(11, 4000)
    rows = torch.randint(len(kept), (ROWS["prose"],), generator=torch.Generator().manual_seed(mix_seed(seed, step)))
    return kept[rows, :-1], kept[rows, 1:]


def loss_of(model: nn.Module, ids: Tensor, wanted: Tensor) -> Tensor:
    "Cross-entropy of the answer, or of every next token."
    x, _ = model.hidden_states(ids)
    return F.cross_entropy(model.logits(x[:, -1] if wanted.ndim == 1 else x).flatten(0, -2), wanted.flatten())


@torch.no_grad()
def judged(task: str, model: nn.Module, part: int) -> dict[str, float]:
    "Recall by distance, or the loss on prose; `part` tells texts that choose a rate from those that test."
    model.eval()
    if task == "prose":
        rows = texts(12 + part, 300)
        return {"loss": float(loss_of(model, rows[:, :-1], rows[:, 1:]))}
    ids, value, far = facts_in_noise(4000, N, torch.arange(1, N), facts_of(task), mix_seed(99, part))
    right = (model(ids)[:, -1].argmax(-1) == value).double()
    near = far < 8
    return {"right": float(right.mean()), "near": float(right[near].mean()), "far": float(right[~near].mean())}


def trained(task: str, pattern: str, peak: float, seed: int, steps: int) -> nn.Module:
    model = made(task, pattern, seed)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    train(model, loss_of, lambda step: batch_of(task, seed, step), steps, optimiser, seed=seed)
    return model


def best_rate(loss: Callable[[float], float], peaks: tuple[float, ...]) -> float:
    "The rate of the least loss; a grid whose end is best goes on beyond it. A run that diverges has lost."
    def at(peak: float) -> float:
        try: return loss(peak)
        except Diverged: return float("inf")
    found = {peak: at(peak) for peak in peaks}
    while len(found) < 8 and (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        beyond = best / 2 if best == min(found) else 2 * best
        found[beyond] = at(beyond)
    return min(found, key=found.__getitem__)


def kept(task: str, pattern: str, peak: float, seed: int, steps: int, part: int) -> dict:
    "What a trained model recalls, or its loss; from the folder if it is there."
    path = KEPT / f"{task}-{pattern}-{peak:g}-{seed}-{steps}-{part}.json".replace(" ", "_").replace(",", "")
    if not path.is_file():
        found = judged(task, trained(task, pattern, peak, seed, steps), part)
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())


def rate_of(task: str, pattern: str, seed: int) -> float:
    "The best peak, on a seed and texts of its own, with fewer steps."
    def tried(peak: float) -> float:
        found = kept(task, pattern, peak, seed + 100, TRIED[kind_of(task)], 0)
        return found.get("loss", -found.get("right", 0))
    return best_rate(tried, PEAKS)


def row(task: str, pattern: str, seed: int) -> dict:
    "One task and one pattern: choose the rate, then three seeds."
    torch.set_num_threads(1)
    peak, steps = rate_of(task, pattern, seed), STEPS[kind_of(task)]
    found = [kept(task, pattern, peak, seed + s, steps, 1) for s in SEEDS]
    return {"task": task, "pattern": pattern, "share": round(share(task, pattern), 4), "peak": f"{peak:g}", "steps": steps,
            "parameters": size(made(task, pattern, 0))} | over_seeds(found)


def measure(seed: int) -> Iterator[dict]:
    "Every task and pattern."
    cases = list(product(TASKS, KINDS))
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        found = pool.map(row, *zip(*cases), [seed] * len(cases))
        for _ in ticked(cases): yield next(found)
