"""The kernel that reads a list of blocks, in Triton's interpreter: run by test_flash_kernels.py
in a process of its own."""
import pytest
import torch
from conftest import sweep

from bench.gpu.listed import attend, tables
from bench.sparse_time import quarters
from tfmlib.sparse import (
    causal,
    global_tokens,
    intersection,
    masked_sparse_attention,
    sliding_window,
    union,
)
from tfmlib.sparse.blocks import block_list

RULES = (quarters(41, 16) | {"both sides": union(sliding_window(3), global_tokens(2)),
                             "all": lambda i, j: (i >= 0) & (j >= 0)})


def heads(H: int, G: int, N: int, D: int = 16) -> list:
    g = torch.Generator().manual_seed(N)
    return [torch.randn(2, h, N, D, generator=g) for h in (H, G, G)]


@pytest.mark.parametrize("name", sweep(RULES, "all", "window", "every fourth"))
@pytest.mark.parametrize(("N", "rows", "cols"),
                         sweep([(41, 16, 16), (41, 32, 16), (32, 16, 32)], (41, 16, 16)))
def test_a_list_equals_the_mask(name, N, rows, cols):
    q, k, v = heads(2, 1, N)
    made = tables(block_list(RULES[name], N, N, rows, cols), RULES[name], "cpu")
    wanted, _ = masked_sparse_attention(q, k, v, pattern=RULES[name])
    assert (attend(q, k, v, made, rows, cols, 4, 1) - wanted).abs().max() < 2e-6


def test_blocks_that_are_not_listed_are_not_read():
    rule = intersection(causal, sliding_window(8))
    q, k, v = heads(1, 1, 48)
    # queries from 32 on do not attend to them
    k[:, :, :16] = v[:, :, :16] = torch.nan
    out = attend(q, k, v, tables(block_list(rule, 48, 48, 16, 16), rule, "cpu"), 16, 16, 4, 1)
    assert out[:, :, 32:].isfinite().all() and out[:, :, :16].isnan().all()


def test_equal_masks_are_kept_once():
    rule = intersection(causal, sliding_window(8))
    counts, blocks, kinds, masks = tables(block_list(rule, 64, 64, 16, 16), rule, "cpu")
    assert (counts.tolist() == [[0, 1], [0, 2], [0, 2], [0, 2]] and masks.shape == (2, 256)
            and kinds[1:].unique(dim=0).shape == (1, 2))


def test_a_query_without_keys_gives_zero():
    rule = lambda i, j: (i > 20) & (j < 4)
    q, k, v = heads(1, 1, 32)
    out = attend(q, k, v, tables(block_list(rule, 32, 32, 16, 16), rule, "cpu"), 16, 16, 4, 1)
    assert not out[:, :, :21].any() and out[:, :, 21:].any()
