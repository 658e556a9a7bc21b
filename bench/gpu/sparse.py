"""Chapter 19 on a GPU: attention by lists of blocks beside chapter 18's kernel and FlexAttention's
masks of blocks, forward, in 16 bits.

Three patterns compute about a quarter of the causal pairs, and the whole causal triangle stands
beside them. The lists are read by a kernel that is chapter 18's with a list in the place of a band,
in tiles of several sizes: each is a contestant, since a larger tile computes more that is hidden.
FlexAttention gets the same pattern as a function. Chapter 18's own kernel takes part where the
pattern is a band: the triangle and the window.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench.gpu.choose import chosen
from bench.gpu.flex import flex
from bench.gpu.kernels import load, use
from bench.gpu.settings import SETTINGS
from bench.gpu.speed import Case, ours, raced

PATTERNS = ("full", "window", "every fourth", "random blocks")


@dataclass(frozen=True)
class Sizes:
    "What is measured beyond the settings of the other stages."
    lengths: tuple[int, ...]                         # tokens
    heads: int
    width: int
    # of the random blocks, and of FlexAttention's masks
    block: int
    tiles: tuple[tuple[int, int, int, int], ...]     # rows, cols, warps, stages of the kernel


SIZES = {
    "full": Sizes((16_384, 4096), 16, 64, 128, ((128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3))),
    "rehearsal": Sizes((32, 20), 1, 16, 16, ((16, 16, 4, 1), (32, 16, 4, 1))),
}


def cases(name: str, found) -> list[dict]:
    "Each pattern at each length, the longest first."
    s = SIZES[name]
    return [{"pattern": pattern, "N": N, "configs": chosen(found, s.width, True)} for N in s.lengths
            for pattern in PATTERNS]


def mask_mod(case: dict, pattern: Callable, block: int, device: str) -> Callable:
    "The pattern as FlexAttention calls it; of random blocks, a table on the device."
    import torch
    if case["pattern"] != "random blocks": return lambda b, h, i, j: pattern(i, j)
    at = torch.arange(0, case["N"], block)
    table = pattern(at[:, None] + block - 1, at[None]).to(device)
    return lambda b, h, i, j: (j <= i) & table[i // block, j // block]


def by_flex(compiled: bool, mask, q, k, v, case: Case):
    return flex(compiled)(q, k, v, block_mask=mask)


def by_list(attend: Callable, made, tile: tuple, q, k, v, case: Case):
    return attend(q, k, v, made, *tile)


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One row: a pattern at a length, all contestants."
    from torch.nn.attention.flex_attention import create_block_mask

    from bench.gpu.listed import attend, tables
    from bench.sparse_time import pairs, quarter_window, quarters
    from tfmlib.sparse.blocks import block_list, n_computed
    setting, s, N = SETTINGS[name], SIZES[name], case["N"]
    use(load(), case["configs"], s.width, True)
    pattern, ways, scores = quarters(N, s.block)[case["pattern"]], {}, {}
    shape = Case("sparse", "forward", N, s.width, 1, s.heads, s.heads, True, quarter_window(N)
                 if case["pattern"] == "window" else 0)
    for tile in s.tiles:
        listed = block_list(pattern, N, N, *tile[:2])
        who = f"list, {tile[0]}×{tile[1]}"
        ways[who], scores[f"scores, {who}"] = (partial(by_list, attend,
                tables(listed, pattern, setting.device), tile), n_computed(listed))
    if case["pattern"] in ("full", "window"): ways["ours"] = ours
    mask = create_block_mask(mask_mod(case, pattern, s.block, setting.device), None, None, N, N,
                             setting.device, BLOCK_SIZE=s.block)
    ways["FlexAttention"] = partial(by_flex, setting.device == "cuda", mask)
    yield (shape.shape | {"pattern": case["pattern"], "pairs": pairs(pattern, N)} | scores
           | raced(ways, shape, setting, dict(without), say, shape.tensors(setting, 0)))

