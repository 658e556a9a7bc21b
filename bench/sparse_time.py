"""Chapter 19: the processor's time of attention on one thread for four patterns, three of which
have a quarter of the causal pairs, against the length."""
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench import scaled, ticked
from tfmlib.sparse import (
    causal,
    every,
    intersection,
    random_blocks,
    same_block,
    sliding_window,
    union,
)
from tfmlib.sparse.blocks import block_list, block_sparse_attention, n_computed
from tfmlib.workbench import timed

REPEATS = 7
LENGTHS, TILE, HEADS, WIDTH, BLOCK = (1024, 2048, 4096, 8192), 64, 4, 64, 64


def quarter_window(n: int) -> int:
    "The causal window that leaves about a quarter of the pairs."
    return math.ceil(n * (1 - .75**.5))


def quarters(n: int, block: int = BLOCK) -> dict[str, Callable]:
    "Full attention, and three patterns with about a quarter of its pairs."
    n_blocks = -(-n // block)
    return {"full": causal, "window": intersection(causal, sliding_window(quarter_window(n))),
            "every fourth": intersection(causal, every(4)),
            "random blocks": intersection(causal,
                                          union(same_block(block),
                                                random_blocks(n_blocks,
                                                        max(1, round((n_blocks + 1) / 4 - 1)),
                                                        block)))}


def pairs(pattern: Callable, n: int) -> int:
    "How many, a block of queries at a time."
    at = torch.arange(n)
    return sum(int(pattern(i[:, None], at[None]).expand(-1, n).sum()) for i in at.split(512))


def calls(rules: dict, lists: dict, qkv: tuple[Tensor, ...], whole: bool) -> dict[str, Callable]:
    "Attention by each pattern, alone or with gradients."
    def attend(name: str) -> Tensor:
        return block_sparse_attention(*qkv, pattern=rules[name], listed=lists[name])[0]
    def learn(name: str) -> None: attend(name).sum().backward()
    return {name: partial(learn if whole else attend, name) for name in rules}


def measure(seed: int) -> Iterator[dict]:
    "Each length, forward alone and with gradients; the calls of one length take turns."
    g = torch.Generator().manual_seed(seed)
    for n in ticked(LENGTHS, "length"):
        qkv = tuple(torch.randn(1, HEADS, n, WIDTH, generator=g).requires_grad_() for _ in range(3))
        rules = quarters(n)
        lists = {name: block_list(rule, n, n, TILE, TILE) for name, rule in rules.items()}
        with torch.no_grad():
            alone = timed(calls(rules, lists, qkv, False), REPEATS, time.process_time)
        whole = timed(calls(rules, lists, qkv, True), max(1, REPEATS // 2), time.process_time)
        for name, rule in rules.items():
            yield {"n": n, "pattern": name, "tile": TILE, "pairs": pairs(rule, n),
                   "scores": n_computed(lists[name]),
                   "ms": scaled(alone[name], 1e3),
                   "forward and backward ms": scaled(whole[name], 1e3)}
