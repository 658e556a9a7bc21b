"""Chapter 21 on a GPU: a layer of experts, forward and backward, in 16 bits: a loop over experts,
sorted rows, grouped products; beside a dense layer with the same active weights.

The loads are uneven, as those of a trained router may be (the busiest expert has about twice the
mean). The time for sorting, gathering and adding is part of a layer's time. The book's parts are
imported only when a case begins, as in the other stages.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bench import rates, scaled
from bench.gpu.utilisation import half
from tfmlib.workbench import timed


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
    device: str
    sizes: tuple[int, int, int]                 # N tokens, C, F of an expert
    experts: tuple[tuple[int, int], ...]        # E, k
    repeats: int = 10


SETTINGS = {
    "full": Setting("cuda", (16_384, 2048, 1024), ((8, 2), (64, 8), (128, 8))),
    "rehearsal": Setting("cpu", (32, 16, 8), ((4, 2), (8, 1)), 2),
}


def cases(name: str, found) -> list[dict]:
    return [{"case": "experts", "E": E, "k": k} for E, k in SETTINGS[name].experts]


def grouped(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    "PyTorch's grouped product."
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return product(x, w, offs=counts.cumsum(0).to(torch.int32))


def uneven(N: int, E: int, k: int) -> torch.Tensor:
    "Logits (N, E) of experts of which the first are chosen about twice as often as the mean."
    return (torch.randn(N, E, generator=torch.Generator().manual_seed(0))
            + torch.linspace(.4, -.4, E))


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One number of experts."
    from tfmlib.block import SwiGLU
    from tfmlib.mixture_of_experts import (
        ExpertList,
        dispatch,
        loop_over_experts,
        tokens_per_expert,
        top_k_softmax_routing,
    )
    from tfmlib.mixture_of_experts.models import stack_experts
    s, E, k = SETTINGS[name], case["E"], case["k"]
    N, C, width = s.sizes
    dtype = half() if s.device == "cuda" else torch.float32
    torch.manual_seed(0)
    listed = ExpertList(SwiGLU(C, width) for _ in range(E)).to(s.device, dtype)
    stacked = stack_experts(listed, grouped).to(s.device, dtype)
    dense = SwiGLU(C, k * width).to(s.device, dtype)
    x = torch.randn(N, C, device=s.device, dtype=dtype).requires_grad_()
    routing = top_k_softmax_routing(uneven(N, E, k).to(s.device), k)
    ways = {"loop": lambda: loop_over_experts(x, routing, listed),
            "sorted": lambda: dispatch(x, routing, listed),
            "grouped": lambda: dispatch(x, routing, stacked), "dense": lambda: dense(x)}
    outs = {way: ways[way]().detach().float() for way in ("loop", "grouped")}
    apart = float((outs["loop"] - outs["grouped"]).abs().max() / outs["loop"].abs().max())
    assert apart < .05, f"grouped and loop differ by {apart}"
    def step(way: str) -> Callable:
        def run():
            ways[way]().float().square().mean().backward()
            x.grad = None
        return run
    took = timed({way: step(way) for way in ways}, s.repeats)
    load = tokens_per_expert(routing)
    yield {"case": "experts", "E": E, "k": k, "N": N, "C": C, "F": width,
           "busiest": f"{float(load.max() / load.float().mean()):.2f}",
           **{f"{way} ms": scaled(taken, 1e3) for way, taken in took.items()},
           **{f"{way} tokens a second": rates(taken, N) for way, taken in took.items()}}
