"""Chapter 18's forward kernel with a list of blocks in the place of a band: chapter 19's lists on a
GPU. Imported only when a case begins, since it needs Triton.

For each block of queries the list names the full blocks of keys first, then the partial ones; each
partial one has the number of a mask, and equal masks are kept once. A window, for one, has few.
"""
import torch
import triton
import triton.language as tl
from torch import Tensor

from tfmlib.flash_attention_gpu.kernels import (
    LOG2E,
    load_tile,
    select_head,
    store_output,
    update_softmax,
)
from tfmlib.sparse import Pattern
from tfmlib.sparse.blocks import BlockList

Tables = tuple[Tensor, Tensor, Tensor, Tensor]


@triton.jit
def listed_kernel(Q, K, V, LSE, OUT, COUNTS, BLOCKS, KINDS, MASKS, sq, sk, sv, so, T, S, most,
                  group, scale,
                  ROWS: tl.constexpr, COLS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):
    "One tile of queries of one head: output and log-sum-exp over the blocks of its list."
    n, h, g = tl.program_id(0), tl.program_id(1), tl.program_id(1) // group
    start = n * ROWS
    Q, OUT = (select_head(Q, sq, h, T, ROWS, D, False),
              select_head(OUT, so, h, T, ROWS, D, False))
    K, V = (select_head(K, sk, g, S, COLS, D, False),
            select_head(V, sv, g, S, COLS, D, False))
    q = load_tile(Q, start, ROWS, D, False)
    state = (tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32),
             tl.zeros([ROWS, D], tl.float32))
    at, cell = n * most, tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    full, listed = tl.load(COUNTS + 2 * n), tl.load(COUNTS + 2 * n + 1)
    for b in tl.range(0, full):
        j = tl.load(BLOCKS + at + b) * COLS
        # (ROWS, COLS)
        scores = tl.dot(q, tl.trans(load_tile(K, j, COLS, D, True)),
                        input_precision=PRECISION)
        state = update_softmax(state, scores, load_tile(V, j, COLS, D, True), scale * LOG2E,
                               False, PRECISION)
    for b in tl.range(full, listed):
        j = tl.load(BLOCKS + at + b) * COLS
        seen = tl.load(MASKS + tl.load(KINDS + at + b) * ROWS * COLS + cell) != 0
        scores = tl.dot(q, tl.trans(load_tile(K, j, COLS, D, False)),
                        input_precision=PRECISION)
        scores = tl.where(seen, scores, float("-inf"))
        state = update_softmax(state, scores, load_tile(V, j, COLS, D, False), scale * LOG2E,
                               True, PRECISION)
    store_output(OUT, LSE, state, start, ROWS, D)


def tables(listed: BlockList, pattern: Pattern, device: str) -> Tables:
    """A list as the kernel reads it: numbers of full and of all blocks, the blocks, their masks'
    numbers, the masks. A block that is not whole counts as partial."""
    n = len(listed.partial)
    whole = [[b for b in blocks if (b + 1) * listed.cols <= listed.S] for blocks in listed.full]
    cut = [sorted({*listed.partial[i], *listed.full[i]} - {*whole[i]}) for i in range(n)]
    most = max(1, *(len(a) + len(b) for a, b in zip(whole, cut)))
    counts, (blocks, kinds) = (torch.zeros(n, 2, dtype=torch.int32),
                               torch.zeros(2, n, most, dtype=torch.int32))
    known: dict[bytes, int] = {}
    for i in range(n):
        keys = whole[i] + cut[i]
        counts[i] = torch.tensor([len(whole[i]), len(keys)])
        blocks[i, :len(keys)] = torch.tensor(keys, dtype=torch.int32)
        for at, j in enumerate(cut[i], len(whole[i])):
            kinds[i, at] = known.setdefault(tile_mask(listed, pattern, i,
                    j).numpy().tobytes(), len(known))
    masks = ([torch.frombuffer(bytearray(mask), dtype=torch.int8) for mask in known]
             or [torch.zeros(listed.rows * listed.cols, dtype=torch.int8)])
    return tuple(x.contiguous().to(device) for x in (counts, blocks, kinds, torch.stack(masks)))


# (rows, cols), 1 where a pair is visible
def tile_mask(listed: BlockList, pattern: Pattern, i: int, j: int) -> Tensor:
    "The visible pairs of one block, none beyond the ends of the text."
    at, keys = (i * listed.rows + torch.arange(listed.rows)[:, None] + listed.S - listed.T,
                j * listed.cols + torch.arange(listed.cols)[None])
    inside = (at < listed.S) & (keys < listed.S)
    return (pattern(at.clamp(max=listed.S - 1), keys.clamp(max=listed.S - 1))
            & inside).expand(listed.rows, listed.cols).to(torch.int8).contiguous()


def attend(q: Tensor, k: Tensor, v: Tensor, made: Tables, rows: int, cols: int, warps: int,
           stages: int) -> Tensor:
    "Attention to the pairs of a list, forward only."
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    counts, blocks, kinds, masks = made
    with torch.cuda.device_of(q):
        listed_kernel[triton.cdiv(T, rows), H, B](
            q, k, v, lse, out, counts, blocks, kinds, masks, *(x.stride() for x in (q, k, v, out)),
            T, S, blocks.shape[1], H // G, D**-.5,
            ROWS=rows, COLS=cols, D=D, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=warps, num_stages=stages)
    return out
