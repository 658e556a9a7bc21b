"""Chapter 18: are the kernels right on a GPU? Errors against 64 bits beside PyTorch's, what lies beyond the ends, repetition, memory against length.

It runs before `flash_gpu`. A row says whether its bar was kept, and no committed record may hold one that was not.
"""
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tfmlib.proof import spread

DEVICE = "gpu"
SEED = 0
SHAPES = [                          # B, H, G, T, S, D, causal, window, times the queries
    (2, 4, 4, 256, 256, 64, False, 0, 1), (2, 4, 4, 256, 256, 64, True, 0, 1), (1, 2, 2, 1000, 1000, 128, True, 0, 1), (1, 2, 2, 999, 999, 128, False, 0, 1),
    (1, 8, 1, 300, 300, 64, True, 0, 1), (1, 2, 1, 1, 777, 128, True, 0, 1), (1, 2, 2, 77, 400, 64, True, 0, 1), (1, 2, 2, 400, 77, 64, True, 0, 1),
    (1, 2, 2, 500, 500, 128, True, 1, 1), (1, 2, 2, 1100, 1100, 64, True, 100, 1), (1, 2, 2, 300, 300, 16, True, 0, 1), (1, 2, 2, 300, 300, 32, False, 0, 1),
    (1, 2, 2, 300, 300, 256, True, 0, 1), (1, 2, 2, 513, 513, 128, True, 0, 100), (1, 1, 1, 1, 1, 64, True, 0, 1), (1, 2, 2, 257, 257, 80, True, 0, 1)]
BAR = 2.0                           # times the error of PyTorch's plain back-end, in the same type
STEEP = 4.0                         # where scores are multiplied: the way back takes delta from the rounded output, and keys take that times the queries
LEAST = 1e-5                        # what sums in 32 bits may leave where the right gradient is 0: one key, whose weight is 1


@dataclass(frozen=True)
class Setting:
    "Where, and how much of it."
    device: str = "cuda"
    dtypes: tuple = (torch.bfloat16, torch.float16)
    shapes: tuple = tuple(SHAPES)
    seeds: int = 3
    buried: tuple = (2, 4, 2, 333, 401, 64, True, 0, 1)        # the shape that is cut from a sea of NaN
    repeated: tuple = (2, 8, 2048, 128)                        # B, H, N, D
    repetitions: int = 50
    lengths: tuple[int, ...] = (16_384, 32_768, 65_536)        # forward and backward
    heads: int = 16


def drawn(shape: tuple, dtype: torch.dtype, setting: Setting, seed: int) -> list[Tensor]:
    "Queries, keys, values, and a gradient at the output."
    B, H, G, T, S, D, *_, times = shape
    g = torch.Generator().manual_seed(seed)
    sizes, by = ((B, H, T, D), (B, G, S, D), (B, G, S, D), (B, H, T, D)), (times, 1, 1, 1)
    return [(times_ * torch.randn(size, generator=g)).to(dtype).to(setting.device) for size, times_ in zip(sizes, by)]


def allowed(shape: tuple, device: str) -> Tensor:
    "Which query may look at which key."
    _, _, _, T, S, _, causal, window, _ = shape
    far = torch.arange(S, device=device) - torch.arange(T, device=device)[:, None] - (S - T)
    return ((far <= 0) | (not causal)) & ((far.abs() < window) | (not window))


def plainly(shape: tuple, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    "PyTorch's plain back-end, in the type of the inputs; rows that see nothing give zeros."
    mask = allowed(shape, q.device.type)
    with sdpa_kernel(SDPBackend.MATH): out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.masked_fill(~mask.any(-1)[:, None], 0)


def by_kernels(shape: tuple, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from tfmlib.flash_kernels import flash
    return flash(q, k, v, shape[6], shape[7] or None)[0]


def there_and_back(way, shape: tuple, tensors: list[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    "Output and gradients at q, k, v."
    *inputs, dout = (x.to(dtype or x.dtype) for x in tensors)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = way(shape, *leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def errors(shape: tuple, dtype: torch.dtype, setting: Setting, seed: int) -> dict[str, tuple[float, float]]:
    "The largest error of output and gradients, of the kernels and of PyTorch's plain back-end."
    tensors = drawn(shape, dtype, setting, seed)
    right = there_and_back(plainly, shape, tensors, torch.float64)
    ours, theirs = there_and_back(by_kernels, shape, tensors), there_and_back(plainly, shape, tensors)
    def worst(x, y): return float((x.double() - y).abs().max())
    found = {name: (worst(a, r), worst(b, r), float(r.abs().max())) for name, a, b, r in zip(("out", "dq", "dk", "dv"), ours, theirs, right)}
    least = torch.finfo(dtype).eps / 2                          # of a result that is rounded once
    return {name: (a, max(b, least * most, LEAST)) for name, (a, b, most) in found.items()}


def accuracy(setting: Setting, seed: int) -> Iterator[dict]:
    "One row for each shape and type."
    for dtype in setting.dtypes:
        for shape in setting.shapes:
            found = [errors(shape, dtype, setting, seed + i) for i in range(setting.seeds)]
            row = dict(zip(("B", "H", "G", "T", "S", "D"), shape)) | {"case": "accuracy", "causal": str(shape[6]), "window": shape[7], "times": shape[8], "type": str(dtype).removeprefix("torch.")}
            pairs = {name: [f[name] for f in found] for name in found[0]}
            row |= {f"{name} error": spread(a for a, _ in pair) for name, pair in pairs.items()}
            row |= {f"{name} of plain": spread(a / b for a, b in pair) for name, pair in pairs.items()}
            bar = BAR if shape[8] == 1 else STEEP
            yield row | {"kept": "yes" if all(max(a for a, _ in pair) <= bar * max(b for _, b in pair) for pair in pairs.values()) else "no"}


def poisoned(setting: Setting, seed: int) -> dict:
    "Tensors cut out of larger ones full of NaN give what clean copies give, to the last bit."
    shape, dtype = setting.buried, setting.dtypes[-1]
    clean = drawn(shape, dtype, setting, seed)
    def buried(x):
        room = torch.full((x.shape[0], x.shape[1] + 1, x.shape[2] + 130, x.shape[3] + 16), math.nan, dtype=dtype, device=x.device)
        room[:, :-1, :x.shape[2], :x.shape[3]] = x
        return room[:, :-1, :x.shape[2], :x.shape[3]]
    ours, theirs = (there_and_back(by_kernels, shape, ts) for ts in (clean, [buried(x) for x in clean]))
    different = [float((a != b).sum()) for a, b in zip(ours, theirs)]
    return {"case": "poison", "T": shape[3], "S": shape[4], "D": shape[5], "differing numbers": spread(different), "kept": "no" if any(different) else "yes"}


def repeated(setting: Setting, seed: int) -> dict:
    "How many numbers differ from the first run's, over many runs."
    B, H, N, D = setting.repeated
    shape = (B, H, H, N, N, D, True, 0, 1)
    tensors = drawn(shape, setting.dtypes[0], setting, seed)
    first, counts = there_and_back(by_kernels, shape, tensors), []
    for _ in range(setting.repetitions): counts.append(float(sum((a != b).sum() for a, b in zip(first, there_and_back(by_kernels, shape, tensors)))))
    return {"case": "repetition", "N": N, "D": D, "B": B, "H": H, "differing numbers": spread(counts), "kept": "no" if any(counts) else "yes"}


def lengths(setting: Setting, seed: int) -> Iterator[dict]:
    "Memory that forward and backward add at growing lengths."
    before = None
    for N in setting.lengths:
        shape = (1, setting.heads, setting.heads, N, N, 128, True, 0, 1)
        tensors = drawn(shape, setting.dtypes[0], setting, seed)
        if setting.device == "cuda": torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if setting.device == "cuda" else 0
        finite = all(bool(x.isfinite().all()) for x in there_and_back(by_kernels, shape, tensors))
        added = (torch.cuda.max_memory_allocated() - held) / 2**20 if setting.device == "cuda" else 0.0
        grown = before is None or added <= 2.1 * before
        yield {"case": "length", "N": N, "D": 128, "H": setting.heads, "MiB": spread([added]), "kept": "yes" if finite and grown else "no"}
        before = added


def measure(seed: int, setting: Setting | None = None) -> Iterator[dict]:
    "Every row, as it comes."
    setting = setting or Setting()
    yield from accuracy(setting, seed)
    yield poisoned(setting, seed)
    yield repeated(setting, seed)
    yield from lengths(setting, seed)
