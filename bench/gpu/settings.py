"""What is measured of chapter 18's kernels, and on what: the whole on a GPU, or a rehearsal in
Triton's interpreter."""
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Setting:
    "The sizes of the stages compile, choose, settle, speed, decode and flex."
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    tokens: int = 16_384                              # B · N
    width: int = 2048                                 # H · D
    lengths: tuple[int, ...] = (16_384, 8192, 4096, 2048, 1024)
    widths: tuple[int, ...] = (128, 64)
    wide: int = 256                                   # a head's width that is measured forward only
    ragged: int = 4000                                # a length that no tile divides
    window: int = 1024
    square: int = 8192                                # the matrix product
    # the longest sequence for which SDPA may write its matrix
    matrix: int = 8192
    queries: tuple[int, ...] = (1, 2, 4, 8, 16)       # of the decoding cases
    keys: tuple[int, ...] = (131_072, 32_768, 4096)   # B times these stays the longest
    heads: tuple[int, int, int] = (32, 8, 128)        # of queries, of keys, and their width
    repeats: int = 12                                 # rounds that count
    warm: int = 2                                     # rounds before them
    # bytes written between two calls: no cache is warm, and the processor gets ahead of the GPU
    flush: int = 2**30
    # configurations to choose from, instead of the kernels' table: (kernel, way, width, …)
    candidates: tuple = ()
    # the most kernels that are compiled in advance
    compiled: int = 100_000
    # what is compiled for; 0: the GPU that is here
    chip: int = 0
    options: tuple = (                                # FlexAttention's, by direction
        ("forward", ()),
        ("forward", (("BLOCK_M", 128), ("BLOCK_N", 128), ("num_warps", 8), ("num_stages", 2))),
        ("forward", (("BLOCK_M", 128), ("BLOCK_N", 64), ("num_warps", 8), ("num_stages", 3))),
        ("backward", ()),
        ("backward", (("BLOCK_M1", 64), ("BLOCK_N1", 128), ("BLOCK_M2", 128), ("BLOCK_N2", 64),
                      ("num_warps", 8), ("num_stages", 2))),
    )


TINY = tuple((kernel, way, 256, 32, None, rows, cols, 4, 1)
             for kernel in ("forward", "dkdv", "dq", "sweep")
             for way, rows, cols in (("pointers", 32, 32), ("pointers", 16, 32),
                                     ("specialised", 32, 16)) if (kernel, way)
             not in (("dq", "specialised"), ("sweep", "specialised")))
SETTINGS = {
    "full": Setting(),
    "rehearsal": Setting("cpu", torch.float32, tokens=32, width=16, lengths=(32, 16), widths=(16,),
                         wide=32, ragged=20, window=8, square=32, matrix=16,
                         queries=(1, 2), keys=(64,), heads=(2, 1, 16), repeats=2, warm=1, flush=64,
                         candidates=TINY, compiled=1, chip=90, options=(("forward", ()),)),
}
