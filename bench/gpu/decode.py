"""Chapter 18: a few new queries over many keys, as a model that writes has them: 32 query heads on
8 of keys, and how much of the memory's bandwidth is used.

All contestants let every query see every key, since PyTorch's back-ends know causality from the
first key only. The yardstick is a copy in the same rounds: what it reads and writes in its time is
the bandwidth that can be had.
"""
import inspect
import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.kernels import load, use
from bench.gpu.settings import SETTINGS, Setting
from bench.gpu.speed import PINNED, peak, reduced, rounds, strange, takes
from tfmlib.workbench import spread


def cases(name: str, found) -> list[dict]:
    "The longest first, since only there the time is the keys'."
    s = SETTINGS[name]
    return [{"kind": "decode", "T": T, "S": S, "B": max(s.keys) // S, "H": s.heads[0],
             "G": s.heads[1], "D": s.heads[2]} for S in s.keys for T in s.queries]


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    "The book's decoding kernel where there is one."
    kernels = load()
    way = getattr(kernels, "flash_decode", None)
    if way is None: return kernels.flash(q, k, v)[0]
    out = way(q, k, v,
              **({"causal": False} if "causal" in inspect.signature(way).parameters else {}))
    return out if isinstance(out, Tensor) else out[0]


def in_pages(k: Tensor, v: Tensor, size: int = 16) -> Callable:
    "The same kernel on the same keys, in pages that lie in any order."
    (B, _, S, _), kernels = k.shape, load()
    order = torch.randperm(B * S // size, generator=torch.Generator().manual_seed(0)).to(k.device)
    def pool(x):
        pages = x.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)  # (pages, G, size, D)
        return torch.empty_like(pages).index_copy_(0, order, pages)
    pools, table = (pool(k), pool(v)), order.view(B, -1)
    lengths = torch.full((B,), S, device=k.device)
    return lambda q, *_: kernels.flash_decode(q, *pools, False, lengths=lengths,
                                              block_table=table)[0]


def pinned(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def written_out(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """For a back-end that does not share keys: the query heads of a key head become its queries.
    Without a mask that is the same."""
    (B, H, T, D), G = q.shape, k.shape[1]
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q.reshape(B, G, H // G * T, D), k, v).reshape(q.shape)


def moved(case: dict, size: int) -> int:
    "Bytes that have to be read and written: queries, output, keys and values, once."
    return size * case["B"] * case["D"] * 2 * (case["H"] * case["T"] + case["G"] * case["S"])


@lru_cache(maxsize=1)
def room(setting: Setting, size: int) -> tuple[Tensor, Tensor]:
    "What is copied, as large as the keys and values of a case."
    return (torch.ones(size // 2, dtype=torch.int8, device=setting.device),
            torch.empty(size // 2, dtype=torch.int8, device=setting.device))


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One row: milliseconds of all contestants and of a copy of as many bytes."
    setting, missing, calls, gave, memory = SETTINGS[name], dict(without), {}, {}, {}
    reduced()
    use(load(), [], case["D"], False)
    g = torch.Generator(setting.device).manual_seed(0)
    heads = ((case["H"], case["T"]), (case["G"], case["S"]), (case["G"], case["S"]))
    q, k, v = (torch.randn(case["B"], h, n, case["D"], generator=g,
                           device=setting.device).to(setting.dtype) for h, n in heads)
    ways = {"ours": ours, "ours, in pages": in_pages(k, v)}
    for who, backend in PINNED.items():
        packed = q.reshape(case["B"], case["G"], -1, case["D"])
        if takes(backend, [q, k, v], None, False): ways[who] = partial(pinned, backend)
        if takes(backend, [packed, k, v], None, False):
            ways[f"{who}, heads as queries"] = partial(written_out, backend)
        elif who not in ways: missing[who] = "takes no such tensors"
    for who, way in ways.items():
        if who in missing: continue
        say(who)
        with torch.no_grad():
            gave[who] = [way(q, k, v)]
            calls[who] = partial(torch.no_grad()(way), q, k, v)
            memory[who] = peak(calls[who], setting.device)
    say()
    for who, off in strange(gave).items():
        missing[who] = f"differs from the others by {off:.2g} of the largest number"
        del calls[who]
    size = moved(case, q.element_size())
    source, target = room(setting, size)
    took = rounds(calls | {"copy": lambda: target.copy_(source)}, setting, say)
    for who in [who for who, ms in took.items() if not all(map(math.isfinite, ms))]:
        missing[who] = "its time is not a number"
        del took[who]
    yield {"case": "decode", **{name: case[name] for name in "TSBHGD"}, "bytes": size,
           "bytes copied": 2 * source.numel()} | {
        f"{who} ms": spread(ms) for who, ms in took.items()} | {f"{who} MiB": spread([memory[who]])
                for who in took if who in memory} | {
        "missing": "; ".join(f"{who}: {why}" for who, why in missing.items()) or "nobody"}
