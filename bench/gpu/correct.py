"""Chapter 18: are the kernels right on a GPU? Errors against 64 bits beside PyTorch's, what lies
beyond the ends, repetition, memory against length.

What is tested is what `choose` chose, and the kernels' own choice where nothing was chosen. A row
says whether its bar was kept, and which configurations broke it: the next fastest takes their place
and is tested in turn. No committed record may hold a broken bar.
"""
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.choose import chosen
from bench.gpu.kernels import ALONE, load, use
from tfmlib.workbench import spread

SHAPES = [                          # B, H, G, T, S, D, causal, window, times the queries
    (2, 4, 4, 256, 256, 64, False, 0, 1), (2, 4, 4, 256, 256, 64, True, 0, 1),
    (1, 2, 2, 1000, 1000, 128, True, 0, 1), (1, 2, 2, 999, 999, 128, False, 0, 1),
    (1, 8, 1, 300, 300, 64, True, 0, 1), (1, 2, 1, 1, 777, 128, True, 0, 1),
    (1, 2, 2, 77, 400, 64, True, 0, 1), (1, 2, 2, 400, 77, 64, True, 0, 1),
    (1, 2, 2, 500, 500, 128, True, 1, 1), (1, 2, 2, 1100, 1100, 64, True, 100, 1),
    (1, 2, 2, 300, 300, 16, True, 0, 1), (1, 2, 2, 300, 300, 32, False, 0, 1),
    (1, 2, 2, 300, 300, 256, True, 0, 1), (1, 2, 2, 513, 513, 128, True, 0, 100),
    (1, 1, 1, 1, 1, 64, True, 0, 1), (1, 2, 2, 257, 257, 80, True, 0, 1),
    (1, 8, 2, 777, 777, 128, False, 0, 1), (1, 4, 2, 1030, 1030, 128, True, 200, 1),
    (1, 4, 2, 640, 640, 64, False, 90, 1)]
BURIED = [(2, 4, 2, 333, 401, 64, True, 0, 1), (1, 4, 4, 333, 333, 128, False, 0, 1),
          (1, 4, 2, 401, 401, 128, True, 100, 1), (2, 2, 2, 129, 257, 64, False, 0, 1)]
# the longest of B packed sequences
PACKED = [(6, 8, 2, 700, 900, 128, True, 0, 1), (6, 4, 4, 500, 333, 64, False, 0, 1),
          (9, 4, 2, 260, 260, 64, True, 0, 1), (3, 4, 1, 129, 400, 128, True, 0, 1)]
BAR = 2.0                           # times the error of PyTorch's plain back-end, in the same type
# where scores are multiplied: the way back takes delta from the rounded output, and keys take that
# times the queries
STEEP = 4.0
# what sums in 32 bits may leave where the right gradient is 0: one key, whose weight is 1
LEAST = 1e-5
# and the kernel that writes it
RESULTS = {"out": "forward", "dq": "dq", "dk": "dkdv", "dv": "dkdv"}
# the same of the backward pass in one sweep
SWEPT = {"out": "forward", "dq": "sweep", "dk": "sweep", "dv": "sweep"}


@dataclass(frozen=True)
class Setting:
    "Where, and how much of it."
    device: str = "cuda"
    dtypes: tuple = (torch.bfloat16, torch.float16, torch.float32)
    shapes: tuple = tuple(SHAPES)
    seeds: int = 3
    # shapes that are cut from a sea of NaN
    buried: tuple = tuple(BURIED)
    packed: tuple = tuple(PACKED)
    repeated: tuple = ((2, 8, 8, 2048, 2048, 128, True, 0, 1),
                       (2, 8, 2, 1500, 1500, 64, False, 0, 1))
    repetitions: int = 50
    lengths: tuple[int, ...] = (16_384, 32_768, 65_536)        # forward and backward
    heads: int = 16
    wide: int = 128                                            # a head of these


SETTINGS = {
    "full": Setting(),
    "rehearsal": Setting("cpu", (torch.float32, torch.float16),
                         ((1, 2, 1, 20, 37, 16, True, 0, 1), (1, 1, 1, 40, 17, 16, True, 0, 1)), 1,
                         ((1, 2, 1, 33, 40, 16, True, 0, 1),), ((4, 2, 1, 20, 37, 16, True, 0, 1),),
                         ((1, 1, 1, 33, 33, 16, True, 0, 1),), 2, (32, 64), 1, 16),
}


def called(dtype: torch.dtype) -> str: return str(dtype).removeprefix("torch.")


def cases(name: str, found) -> list[dict]:
    "Every shape in every type, with the configurations that are chosen by now."
    setting = SETTINGS[name]
    def with_choice(kind, shape, dtype):
        width = next(w for w in (16, 32, 64, 128, 256) if w >= shape[5])
        # what was chosen is for 16 bits
        short = dtype != torch.float32 or setting.device == "cpu"
        return {"kind": kind, "shape": list(shape), "type": called(dtype),
                "configs": chosen(found, width, shape[6] or shape[7] > 0, shape[7])
                if short else []}
    made = [with_choice("accuracy", shape, dtype) for dtype in setting.dtypes
            for shape in setting.shapes]
    made += [with_choice("one sweep", shape, dtype) for dtype in setting.dtypes
             for shape in setting.shapes]
    made += [with_choice("poison", shape, setting.dtypes[i % 2])
             for i, shape in enumerate(setting.buried, 1)]
    made += [{"kind": "varlen", "shape": list(shape), "type": called(dtype), "configs": []}
             for shape in setting.packed for dtype in setting.dtypes]
    made += [with_choice("repetition", shape, setting.dtypes[0]) for shape in setting.repeated]
    return made + [with_choice("lengths", long(setting, setting.lengths[0]), setting.dtypes[0])]


def launched(name: str, case: dict) -> list[tuple]:
    "The shapes of a case as the kernels see them: (B, H, G, T, S, D), type, causal, window."
    setting, shape = SETTINGS[name], case["shape"]
    shapes = [long(setting, N) for N in setting.lengths] if case["kind"] == "lengths" else [shape]
    return [(tuple(s[:6]), case["type"], s[6], s[7]) for s in shapes]


def drawn(shape: tuple, dtype: torch.dtype, setting: Setting, seed: int) -> list[Tensor]:
    "Queries, keys, values, and a gradient at the output."
    B, H, G, T, S, D, *_, times = shape
    g = torch.Generator().manual_seed(seed)
    sizes, by = ((B, H, T, D), (B, G, S, D), (B, G, S, D), (B, H, T, D)), (times, 1, 1, 1)
    return [(times_ * torch.randn(size, generator=g)).to(dtype).to(setting.device)
            for size, times_ in zip(sizes, by)]


def allowed(shape: tuple, device: str) -> Tensor:
    "Which query may look at which key."
    _, _, _, T, S, _, causal, window, _ = shape
    far = torch.arange(S, device=device) - torch.arange(T, device=device)[:, None] - (S - T)
    return ((far <= 0) | (not causal)) & ((far.abs() < window) | (not window))


def plainly(shape: tuple, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    "PyTorch's plain back-end, in the type of the inputs; rows that see nothing give zeros."
    mask = allowed(shape, q.device.type)
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.masked_fill(~mask.any(-1)[:, None], 0)


def by_kernels(shape: tuple, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return load().flash(q, k, v, shape[6], shape[7] or None)[0]


def by_sweep(shape: tuple, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return load().flash(q, k, v, shape[6], shape[7] or None, deterministic=False)[0]


def there_and_back(way, shape: tuple, tensors: list[Tensor],
                   dtype: torch.dtype | None = None) -> list[Tensor]:
    "Output and gradients at q, k, v."
    *inputs, dout = (x.to(dtype or x.dtype) for x in tensors)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = way(shape, *leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def errors(shape: tuple, dtype: torch.dtype, setting: Setting, seed: int,
           way=by_kernels) -> dict[str, tuple[float, float]]:
    "The largest error of output and gradients, of the kernels and of PyTorch's plain back-end."
    tensors = drawn(shape, dtype, setting, seed)
    right = there_and_back(plainly, shape, tensors, torch.float64)
    ours, theirs = there_and_back(way, shape, tensors), there_and_back(plainly, shape, tensors)
    def worst(x, y): return float((x.double() - y).abs().max())
    found = {name: (worst(a, r), worst(b, r), float(r.abs().max()))
             for name, a, b, r in zip(RESULTS, ours, theirs, right)}
    least = torch.finfo(dtype).eps / 2                          # of a result that is rounded once
    return {name: (a, max(b, least * most, LEAST)) for name, (a, b, most) in found.items()}


def accuracy(shape: tuple, dtype: torch.dtype, setting: Setting,
             way=by_kernels) -> tuple[dict, list[str]]:
    "One row for a shape and a type, and the results that are off."
    found = [errors(shape, dtype, setting, seed, way) for seed in range(setting.seeds)]
    pairs = {name: [f[name] for f in found] for name in found[0]}
    bar = BAR if shape[8] == 1 else STEEP
    # not a number is off
    off = [name for name, pair in pairs.items() if not max(a for a, _ in pair) <= bar
           * max(b for _, b in pair)]
    finite = [name for name, pair in pairs.items() if all(math.isfinite(a) for a, _ in pair)]
    row = ({"times": shape[8]} | {f"{name} error": spread(a for a, _ in pairs[name])
                                  for name in finite})
    return row | {f"{name} of plain": spread(a / b for a, b in pairs[name]) for name in finite}, off


def differing(ones: list[Tensor], others: list[Tensor]) -> list[int]:
    "How many numbers of output and gradients differ."
    return [int((a != b).sum()) for a, b in zip(ones, others)]


def poisoned(shape: tuple, dtype: torch.dtype, setting: Setting) -> tuple[dict, list[str]]:
    "Tensors cut out of larger ones full of NaN give what clean copies give, to the last bit."
    clean = drawn(shape, dtype, setting, 0)
    def buried(x):
        room = torch.full((x.shape[0], x.shape[1] + 1, x.shape[2] + 130, x.shape[3] + 16), math.nan,
                          dtype=dtype, device=x.device)
        room[:, :-1, :x.shape[2], :x.shape[3]] = x
        return room[:, :-1, :x.shape[2], :x.shape[3]]
    counts = differing(*(there_and_back(by_kernels, shape, ts)
                         for ts in (clean, [buried(x) for x in clean])))
    return {"differing numbers": spread(counts)}, [name for name, n in zip(RESULTS, counts) if n]


def repeated(shape: tuple, dtype: torch.dtype, setting: Setting) -> tuple[dict, list[str]]:
    "How many numbers differ from the first run's, over many runs."
    tensors = drawn(shape, dtype, setting, 0)
    first = there_and_back(by_kernels, shape, tensors)
    counts = [differing(first, there_and_back(by_kernels, shape, tensors))
              for _ in range(setting.repetitions)]
    return ({"N": shape[4], "differing numbers": spread(map(sum, counts))},
            [name for name, *ns in zip(RESULTS, *counts) if any(ns)])


def ends(shape: tuple) -> tuple[list[int], list[int]]:
    """Where the queries and the keys of packed sequences end: queries from none to T, keys from
    S to none."""
    B, _, _, T, S, *_ = shape
    lengths = [[T * b // (B - 1) for b in range(B)], [S * (B - 1 - b) // (B - 1) for b in range(B)]]
    return tuple([0, *accumulate(each)] for each in lengths)


def packed_launch(case: dict) -> dict:
    "What has to be compiled for packed sequences."
    B, H, G, T, S, D, causal, *_ = case["shape"]
    (*_, total_q), (*_, total_k) = ends(case["shape"])
    return {"config": ["varlen"], "B": B, "H": H, "G": G, "T": total_q, "S": total_k, "D": D,
            "type": case["type"], "causal": causal, "window": 0}


def by_sequence(shape: tuple, at: tuple, tensors: list[Tensor],
                dtype: torch.dtype | None = None) -> list[Tensor]:
    "Output and gradients of PyTorch's plain back-end, each sequence by itself."
    _, H, G, _, _, D, causal, *_ = shape
    sizes = tensors[0], tensors[0], tensors[1], tensors[1]
    found = [torch.zeros(x.shape, dtype=dtype or x.dtype, device=x.device) for x in sizes]
    for a, b, c, d in zip(at[0], at[0][1:], at[1], at[1][1:]):
        if a == b or c == d: continue                        # nothing asks, or nothing answers
        q, k, v, dout = (x[rows].transpose(0, 1)[None] for x, rows in
                         zip(tensors, (slice(a, b), slice(c, d), slice(c, d), slice(a, b))))
        each = there_and_back(plainly, (1, H, G, b - a, d - c, D, causal, 0, 1),
                              [q, k, v, dout], dtype)
        for whole, part, rows in zip(found, each, (slice(a, b), slice(a, b), slice(c, d),
                                                   slice(c, d))):
            whole[rows] = part[0].transpose(0, 1)
    return found


def packed(shape: tuple, dtype: torch.dtype, setting: Setting) -> tuple[dict, list[str]]:
    """Packed sequences, cut from a sea of NaN: the largest errors of output and gradients beside
    those of PyTorch's plain back-end, each sequence by itself."""
    from tfmlib.flash_attention_gpu.varlen import flash_attention_varlen
    B, H, G, T, S, D, causal, *_ = shape
    g, at = torch.Generator().manual_seed(0), ends(shape)
    rooms = [torch.full((total + 40, h + 1, D + 16), math.nan, dtype=dtype, device=setting.device)
             for total, h in ((at[0][-1], H), (at[1][-1], G), (at[1][-1], G), (at[0][-1], H))]
    tensors = [room[20:-20, :-1, :D] for room in rooms]
    for x in tensors: x.copy_(torch.randn(x.shape, generator=g).to(dtype))
    offsets = [torch.tensor(each, dtype=torch.int32, device=setting.device) for each in at]
    ours = there_and_back(lambda _, *qkv: flash_attention_varlen(
        *qkv, *offsets, T, causal)[0], shape, tensors)
    right = by_sequence(shape, at, tensors, torch.float64)
    row, off = {"N": at[0][-1]}, []
    for name, x, plain, r in zip(RESULTS, ours, by_sequence(shape, at, tensors), right):
        error, theirs = (float((y.double() - r).abs().max()) for y in (x, plain))
        theirs = max(theirs, torch.finfo(dtype).eps / 2 * float(r.abs().max()), LEAST)
        if not error <= BAR * theirs: off.append(name)
        if math.isfinite(error):
            row |= {f"{name} error": spread([error]), f"{name} of plain": spread([error / theirs])}
    return row, off


def long(setting: Setting, N: int) -> tuple:
    return 1, setting.heads, setting.heads, N, N, setting.wide, True, 0, 1


def added(shape: tuple, dtype: torch.dtype, setting: Setting) -> tuple[float, bool]:
    "MiB that forward and backward add, read before anything checks them; are all results finite?"
    tensors, gpu = drawn(shape, dtype, setting, 0), setting.device == "cuda"
    if gpu: torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if gpu else 0
    results = there_and_back(by_kernels, shape, tensors)
    most = (torch.cuda.max_memory_allocated() - held) / 2**20 if gpu else 0.0
    return most, all(bool(x.isfinite().all()) for x in results)


def lengths(setting: Setting, dtype: torch.dtype) -> Iterator[tuple[dict, list[str]]]:
    """Memory that forward and backward add at growing lengths: at most 2.1 times as much at
    twice the length."""
    before = math.inf
    for N in setting.lengths:
        most, finite = added(long(setting, N), dtype, setting)
        yield ({"case": "length", "T": N, "S": N, "N": N, "MiB": spread([most])},
               ([] if finite else list(RESULTS)) + ([] if most <= 2.1 * before else ["memory"]))
        before = most


def measure(name: str, case: dict, without: dict, say) -> Iterator[dict]:
    "The row of a case, the kernels' faults in it by name."
    setting, shape, dtype = SETTINGS[name], tuple(case["shape"]), getattr(torch, case["type"])
    kernels = load()
    facts = dict(zip(("B", "H", "G", "T", "S", "D"), shape)) | {"case": case["kind"],
            "causal": str(shape[6]), "window": shape[7],
                                                                    "type" if case["kind"]
            in ("accuracy", "one sweep") else "numbers": case["type"]}
    # they raised, hung or died: a fault of those that may, or of all
    if "kernels" in without:
        risky = [c for c in case["configs"] if c[1] in ALONE] or case["configs"]
        yield facts | {"kept": "no", "off": without["kernels"], "blamed": risky}
        return
    use(kernels, case["configs"], next(w for w in (16, 32, 64, 128, 256) if w >= shape[5]),
        shape[6] or shape[7] > 0)
    say("kernels")
    way = {"accuracy": accuracy, "one sweep": partial(accuracy, way=by_sweep), "poison": poisoned,
           "varlen": packed, "repetition": repeated}.get(case["kind"])
    for row, off in [way(shape, dtype, setting)] if way else lengths(setting, dtype):
        # a wrong output spoils what is made from it
        kernel = SWEPT if case["kind"] == "one sweep" else RESULTS
        guilty = {kernel[name] for name in (["out"] if "out" in off else off) if name in kernel}
        yield (facts | row | {"kept": "no" if off else "yes", "off": ", ".join(off) or "nothing",
                              "blamed": [c for c in case["configs"] if c[0] in guilty]})
