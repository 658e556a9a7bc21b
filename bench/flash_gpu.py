"""Chapter 18: the book's kernels on a GPU beside PyTorch's, forward and backward: milliseconds, memory, and which configurations were fastest here.

Everything runs in one process, its contestants in turn, with a product of two large matrices among them as the yardstick. The
rows come one by one, the ones that matter most first, so that a run that is cut off keeps what it has.
"""
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.flash_choice import choose_here
from tfmlib.proof import spread

DEVICE = "gpu"
SEED = 0
PINNED = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
          "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION, "SDPA math": SDPBackend.MATH}


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
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
    matrix: int = 8192                                # the longest sequence for which SDPA may write its matrix
    compiled: tuple[int, ...] = (16_384, 4096)        # lengths for FlexAttention: each is compiled anew
    repeats: int = 12                                 # rounds that count
    warm: int = 2                                     # rounds before them
    flush: int = 2**30                                # bytes written between two calls: no cache is warm, and the processor gets ahead of the GPU
    patience: float = 25                              # seconds for one configuration to compile and run
    choosing: float = 130                             # seconds after which no further configuration is tried
    seconds: float = 430                              # and no further case begun


@dataclass(frozen=True)
class Case:
    "One shape, in one direction."
    kind: str                                         # "sweep", "shared keys", "ragged", "window"
    direction: str                                    # "forward" or "backward"
    N: int
    D: int
    B: int
    H: int
    G: int
    causal: bool
    window: int = 0

    @property
    def shape(self) -> dict:
        "As a record keeps it."
        return {"case": self.kind, "direction": self.direction, "N": self.N, "D": self.D, "B": self.B, "H": self.H, "G": self.G,
                "causal": str(self.causal), "window": self.window}

    def tensors(self, setting: Setting, seed: int) -> list[Tensor]:
        "Queries, keys, values and the gradient at the output."
        g = torch.Generator(setting.device).manual_seed(seed)
        heads = (self.H, self.G, self.G, self.H)
        return [torch.randn(self.B, h, self.N, self.D, generator=g, device=setting.device).to(setting.dtype) for h in heads]


def cases(setting: Setting) -> Iterator[Case]:
    "Every case, the ones that matter most first."
    def made(kind, N, D, causal, direction, H=0, G=0, window=0):
        H = H or max(1, setting.width // D)
        return Case(kind, direction, N, D, max(1, setting.tokens // N), H, G or H, causal, window)
    ways = [(direction, causal) for direction in ("forward", "backward") for causal in (False, True)]
    longest = setting.lengths[0]
    for D in setting.widths: yield from (made("sweep", longest, D, causal, d) for d, causal in ways)
    H = max(4, setting.tokens // 512)                                       # 32 query heads on 8 of keys
    for d in ("forward", "backward"):
        yield replace(made("shared keys", setting.lengths[1], setting.widths[0], True, d, H, H // 4), B=1)
        yield made("window", longest, setting.widths[0], True, d, window=setting.window)
        yield from (made("ragged", setting.ragged, setting.widths[0], causal, d) for causal in (False, True))
    for N in setting.lengths[1:]:
        for D in setting.widths: yield from (made("sweep", N, D, causal, d) for d, causal in ways)
    for N in setting.lengths: yield from (made("sweep", N, setting.wide, causal, "forward") for causal in (False, True))


# --- the contestants ------------------------------------------------------------------------------------------------

@lru_cache(maxsize=2)
def band(N: int, window: int, device: str) -> Tensor:
    "A causal window as a mask."
    far = torch.arange(N, device=device)[:, None] - torch.arange(N, device=device)
    return (far >= 0) & (far < window)


def ours(q, k, v, case: Case) -> Tensor:
    from tfmlib.flash_kernels import flash
    return flash(q, k, v, case.causal, case.window or None)[0]


def pinned(backend, q, k, v, case: Case) -> Tensor:
    "PyTorch's function with one back-end."
    mask = band(case.N, case.window, str(q.device)) if case.window else None
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=case.causal and mask is None, enable_gqa=case.H != case.G)


@lru_cache
def flex(compiled: bool) -> Callable:
    import torch._dynamo.config as limits
    from torch.nn.attention.flex_attention import flex_attention
    for name in ("recompile_limit", "cache_size_limit"):                    # beyond it, without a word, the matrix would be written
        if hasattr(limits, name): setattr(limits, name, 256)
    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention


@lru_cache(maxsize=4)
def block_mask(N: int, causal: bool, window: int, device: str):
    from torch.nn.attention.flex_attention import create_block_mask
    if window: return create_block_mask(lambda b, h, t, s: (t >= s) & (t - s < window), None, None, N, N, device=device)
    return create_block_mask(lambda b, h, t, s: t >= s, None, None, N, N, device=device) if causal else None


def by_flex(compiled: bool, q, k, v, case: Case) -> Tensor:
    mask = block_mask(case.N, case.causal, case.window, str(q.device))
    return flex(compiled)(q, k, v, block_mask=mask, enable_gqa=case.H != case.G)


def contestants(case: Case, setting: Setting) -> dict[str, Callable]:
    "Who runs in this case."
    found = {"ours": ours} | {name: partial(pinned, backend) for name, backend in PINNED.items()}
    if case.N > setting.matrix: del found["SDPA math"]
    if case.N in setting.compiled and case.D != setting.wide or case.kind == "window": found["FlexAttention"] = partial(by_flex, setting.device == "cuda")
    return found


# --- measuring ------------------------------------------------------------------------------------------------------

def ready(way: Callable, case: Case, tensors: list[Tensor]) -> tuple[Callable, list[Tensor]]:
    "What is timed, and what it gave the first time."
    *inputs, dout = tensors
    if case.direction == "forward":
        def call():
            with torch.no_grad(): return [way(*inputs, case)]
    else:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = way(*leaves, case)
        def call(): return torch.autograd.grad(out, leaves, dout, retain_graph=True)
    return call, [x.detach() for x in call()]


def apart(ones: list[Tensor], others: list[Tensor]) -> float:
    "The largest difference, relative to the largest number; infinite where something is not a number."
    found = [float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-3)) for a, b in zip(ones, others)]
    return max(x if x == x else math.inf for x in found)


def strange(gave: dict[str, list[Tensor]], most: float = 0.05) -> dict[str, float]:
    "Whose result is far from most of the others': name -> how far. A wrong kernel must not win a race."
    far = {name: sorted(apart(given, other) for them, other in gave.items() if them != name) for name, given in gave.items()}
    return {name: offs[(len(offs) - 1) // 2] for name, offs in far.items() if offs and offs[(len(offs) - 1) // 2] > most}


def peak(call: Callable, device: str) -> float:
    "MiB that one call adds to what is held; 0 where nobody counts."
    if device != "cuda": return 0.0
    torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Clock:
    "Milliseconds of one call: by the GPU's events, else by the processor's clock."
    def __init__(self, setting: Setting):
        self.gpu = setting.device == "cuda"
        self.cold = torch.empty(setting.flush, dtype=torch.int8, device=setting.device)

    def __call__(self, call: Callable) -> Callable:
        "Start a call; what is returned waits for it and gives its time."
        self.cold.zero_()
        if not self.gpu:
            start = time.perf_counter(); call(); took = 1e3 * (time.perf_counter() - start)
            return lambda: took
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(); call(); last.record()
        def wait():
            last.synchronize()
            return first.elapsed_time(last)
        return wait


def rounds(calls: dict[str, Callable], setting: Setting) -> dict[str, dict]:
    "All calls in turn, round after round: name -> spread of milliseconds."
    clock, taken = Clock(setting), {name: [] for name in calls}
    for r in range(setting.warm + setting.repeats):
        waiting = {name: clock(call) for name, call in calls.items()}
        for name, wait in waiting.items():
            if r >= setting.warm: taken[name].append(wait())
            else: wait()
    return {name: spread(ms) for name, ms in taken.items()}


def product(setting: Setting, seed: int) -> Callable:
    "The yardstick: a product of two square matrices."
    g = torch.Generator(setting.device).manual_seed(seed)
    a, b = (torch.randn(setting.square, setting.square, generator=g, device=setting.device).to(setting.dtype) for _ in range(2))
    return lambda: a @ b


def measured(case: Case, setting: Setting, seed: int, yardstick: Callable) -> dict:
    "One row: the time of each contestant, its memory, and why those that are missing are."
    tensors, calls, gave, missing = case.tensors(setting, seed), {}, {}, []
    room = {}
    for name, way in contestants(case, setting).items():
        try:
            calls[name], gave[name] = ready(way, case, tensors)
            room[name] = spread([peak(calls[name], setting.device) for _ in range(2)])
        except Exception as error:                                          # a peer that does not run must not end the run
            calls.pop(name, None); gave.pop(name, None)
            missing.append(f"{name}: {type(error).__name__}, {' '.join(str(error).split())[:120]}")
            if setting.device == "cuda": torch.cuda.empty_cache()
    for name, off in strange(gave).items():
        missing.append(f"{name}: differs from the others by {off:.2g} of the largest number")
        del calls[name]
    gave.clear()
    room = {f"{name} MiB": room[name] for name in calls}
    asked = ask_card(setting)
    took = rounds(calls | {"product": yardstick}, setting)
    return case.shape | {f"{name} ms": t for name, t in took.items()} | room | asked() | {"missing": "; ".join(missing) or "nobody"}


CARD = {"clocks.sm": "clock MHz", "power.draw": "power W", "temperature.gpu": "temperature °C"}


def ask_card(setting: Setting) -> Callable:
    "Ask the driver, while the GPU works, for its clock, power and temperature; what is returned waits for the answer."
    if setting.device != "cuda": return lambda: {}
    command = ["nvidia-smi", f"--query-gpu={','.join(CARD)}", "--format=csv,noheader,nounits", f"--id={torch.cuda.current_device()}"]
    try: asked = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError: return lambda: {}
    def answer():
        said = asked.communicate()[0].strip().split(",")
        try: return {name: spread([float(x)]) for name, x in zip(CARD.values(), said, strict=True)}
        except ValueError: return {}
    return answer


def order() -> str:
    "In which order PyTorch would try its back-ends, were none pinned."
    try: return ", ".join(SDPBackend(int(i)).name.lower() for i in torch._C._get_sdp_priority_order())
    except (AttributeError, RuntimeError, ValueError): return "unknown"


def measure(seed: int, setting: Setting | None = None) -> Iterator[dict]:
    "The choice of configurations, the yardstick alone, then case after case until the time is up."
    setting, start = setting or Setting(), time.monotonic()
    yield from choose_here(setting, seed)
    yardstick = product(setting, seed)
    F.scaled_dot_product_attention(*Case("", "forward", 64, 64, 1, 1, 1, False).tensors(setting, seed)[:3])    # settles the order
    facts = {"case": "yardstick", "N": setting.square, "SDPA's order": order(), "type": str(setting.dtype).removeprefix("torch."),
             "Triton": version("triton"), "cuDNN": str(torch.backends.cudnn.version())}
    yield facts | {"product ms": rounds({"product": yardstick}, setting)["product"]}
    for case in cases(setting):
        if time.monotonic() - start > setting.seconds: return
        try: row = measured(case, setting, seed, yardstick)
        except torch.OutOfMemoryError:                                      # one case too large must not end the others
            torch.cuda.empty_cache()
            continue
        yield row
