"""Chapter 13 on a GPU: the peak memory of a training step in 32 bits, and a step of decoding at
several batch sizes in 16 bits.

The peak is that of PyTorch's allocator, above what was there before; what a kernel takes for itself
from elsewhere is not in it. Peak and bandwidth of the GPU are measured first, as in the book: a
product of two matrices, and the sum of a long tensor. The book's models need packages that other
stages do without (traitlets, among others), so they are imported only when a case begins: where one
is missing, the case fails with its name.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bench import scaled
from bench.gpu.utilisation import half
from tfmlib.workbench import spread, timed


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
    device: str
    steps: tuple[tuple[int, ...], ...]     # V, C, L, H, F, B, T of a training step
    width: int                             # of the model that decodes
    layers: int
    batches: tuple[int, ...]
    square: int                            # the product that stands for the peak
    numbers: int                           # of the sum that stands for the bandwidth
    repeats: int = 10


SETTINGS = {
    "full": Setting("cuda",
                    ((8192, 1024, 12, 16, 2816, 8, 1024), (32_000, 2048, 8, 16, 5632, 1, 128)),
                    4096, 8, tuple(2**n for n in range(12)), 8192, 2**30),
    "rehearsal": Setting("cpu", ((64, 32, 2, 2, 64, 2, 16),), 64, 1, (1, 4), 32, 2**12, 2),
}


def cases(name: str, found) -> list[dict]:
    return ([{"case": "memory", "step": n} for n in range(len(SETTINGS[name].steps))]
            + [{"case": "machine"}])


def memory(s: Setting, n: int) -> dict:
    "Predicted and measured megabytes of the second of two steps."
    from tfmlib.accounting import fused_causal, peak_memory, shapes_of
    from tfmlib.checkpoints import LLAMA3, ModelConfig, build
    from tfmlib.decoders import next_token_loss
    V, C, L, H, F, B, T = s.steps[n]
    config = ModelConfig("decoder", V, C, L, H, T, d_ff=F, **LLAMA3)
    gpu = s.device == "cuda"
    if gpu: torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated() if gpu else 0
    model, (shape,) = build(config, fused_causal).to(s.device), shapes_of(config)
    optimiser = torch.optim.AdamW(model.parameters(), foreach=False)
    ids = torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(0)).to(s.device)
    found = []
    for _ in range(3):
        if gpu: torch.cuda.reset_peak_memory_stats()
        optimiser.zero_grad()
        total, count = next_token_loss(model, ids)
        (total / count).backward()
        optimiser.step()
        found.append((torch.cuda.max_memory_allocated() if gpu
                      else peak_memory(shape, B, T)) - before)
    return {"case": "memory", "V": V, "C": C, "L": L, "H": H, "F": F, "B": B, "T": T,
            "predicted MB": round(peak_memory(shape, B, T) / 1e6),
            "peak MB": spread(n / 1e6 for n in found[1:])}


def recorded_graph(call: Callable) -> Callable:
    """The kernels of a call as one CUDA graph: what is launched without the host's work for each
    of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3): call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): call()
    return graph.replay


@torch.no_grad()
def decoding(s: Setting) -> Iterator[dict]:
    "The GPU's own peak and bandwidth, then one token for each sequence of several batches."
    from tfmlib.accounting import fused_causal, multiplied_parameters, shapes_of
    from tfmlib.checkpoints import MODERN, ModelConfig, build
    dtype = half() if s.device == "cuda" else torch.float32
    square, long = (torch.randn(s.square, s.square, device=s.device).to(dtype),
                    torch.ones(s.numbers, device=s.device, dtype=dtype))
    # noise, since a product of ones takes less power and is faster
    took = timed({"product": lambda a=square: a @ a, "sum": long.sum}, s.repeats)
    width = long.element_size()
    yield {"case": "machine", "width": width,
           "TFLOP/s": spread([2e-12 * s.square**3 / took["product"]["median"]]),
           "GB/s": spread([1e-9 * width * s.numbers / took["sum"]["median"]])}
    del square, long
    config = ModelConfig("decoder", 64, s.width, s.layers, max(1, s.width // 128), 16,
                         d_ff=11 * s.width // 4, **MODERN)
    model, (shape,) = build(config, fused_causal).to(s.device, dtype), shapes_of(config)
    inputs = {B: torch.randn(B, 1, s.width, device=s.device, dtype=dtype) for B in s.batches}
    steps = {B: lambda x=x: model.logits(model.stack(x)[0]) for B, x in inputs.items()}
    eager, graphs = (timed(steps, s.repeats),
                     timed({B: recorded_graph(step) for B, step in steps.items()}, s.repeats)
                     if s.device == "cuda" else {})
    for B, taken in eager.items():
        yield ({"case": "batch", "B": B, "N": multiplied_parameters(shape), "width": width,
                "ms": scaled(taken, 1e3)}
               | ({"graph ms": scaled(graphs[B], 1e3)} if graphs else {}))


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One training step's memory, or the machine and its batches."
    setting = SETTINGS[name]
    if case["case"] == "memory": yield memory(setting, case["step"])
    else: yield from decoding(setting)
