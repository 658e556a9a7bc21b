"""Chapter 18: FlexAttention beside the book's kernels, its options tuned over a few as ours are. It
compiles for every shape, so it comes last.

Each set of options is a contestant; the fastest of them is what FlexAttention can do.
"""
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache, partial

from bench.gpu.choose import chosen
from bench.gpu.kernels import load, use
from bench.gpu.settings import SETTINGS
from bench.gpu.speed import Case, ours, raced, shapes


def cases(name: str, found) -> list[dict]:
    "The longest sequences, both directions, and the window."
    setting = SETTINGS[name]
    every = [c for c in shapes(setting) if c.kind == "window" or c.kind == "sweep" and c.N
             == setting.lengths[0] and c.D in setting.widths]
    return [asdict(c) | {"configs": chosen(found, c.D, c.causal, c.window)} for c in every]


@lru_cache
def flex(compiled: bool) -> Callable:
    import torch
    import torch._dynamo.config as limits
    from torch.nn.attention.flex_attention import flex_attention
    # beyond it, without a word, the matrix would be written
    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(limits, name): setattr(limits, name, 256)
    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention


@lru_cache(maxsize=4)
def block_mask(N: int, causal: bool, window: int, device: str):
    from torch.nn.attention.flex_attention import create_block_mask
    if window:
        return create_block_mask(lambda b, h, t, s: (t >= s) & (t - s < window), None, None, N, N,
                                 device=device)
    return (create_block_mask(lambda b, h, t, s: t >= s, None, None, N, N, device=device)
            if causal else None)


def by_flex(compiled: bool, options: tuple, q, k, v, case: Case):
    mask = block_mask(case.N, case.causal, case.window, str(q.device))
    return flex(compiled)(q, k, v, block_mask=mask, enable_gqa=case.H != case.G,
                          **({"kernel_options": dict(options)} if options else {}))


def called(options: tuple) -> str:
    "The name of FlexAttention with these options."
    return ("FlexAttention" + (f" ({', '.join(f'{name} {value}' for name, value in options)})"
                               if options else ""))


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One row: the book's kernels and FlexAttention, as it is and with options."
    setting, told = SETTINGS[name], dict(case)
    use(load(), told.pop("configs"), told["D"], told["causal"])
    shape = Case(**told)
    ways = {called(options): partial(by_flex, setting.device == "cuda", options)
            for direction, options in setting.options if direction == shape.direction}
    yield (shape.shape | raced({"ours": ours} | ways, shape, setting, dict(without), say,
                               shape.tensors(setting, 0)) | {"case": "flex", "of": shape.kind})
