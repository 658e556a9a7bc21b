"""Chapter 18: the chosen kernels on a GPU beside PyTorch's, forward and backward: milliseconds and
memory.

The contestants run in turn, in an order that rotates from round to round, with a product of two
large matrices among them as the yardstick. The cases that matter most come first.
"""
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.choose import chosen
from bench.gpu.kernels import load, use
from bench.gpu.settings import SETTINGS, Setting
from tfmlib.workbench import spread

PINNED = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
          "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION, "SDPA math": SDPBackend.MATH}
KINDS = ("yardstick", "sweep", "shared keys", "ragged", "window", "packed")


@dataclass(frozen=True)
class Case:
    "One shape, in one direction."
    kind: str                                         # of KINDS, but the first
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
        return {"case": self.kind, "direction": self.direction, "N": self.N, "D": self.D,
                "B": self.B, "H": self.H, "G": self.G,
                "causal": str(self.causal), "window": self.window}

    def tensors(self, setting: Setting, seed: int) -> list[Tensor]:
        "Queries, keys, values and the gradient at the output."
        g = torch.Generator(setting.device).manual_seed(seed)
        heads = (self.H, self.G, self.G, self.H)
        if self.kind == "packed":                         # heads of a token side by side
            return [torch.randn(self.B, self.N, h, self.D, generator=g,
                                device=setting.device).to(setting.dtype).transpose(1, 2)
                    for h in heads]
        return [torch.randn(self.B, h, self.N, self.D, generator=g,
                            device=setting.device).to(setting.dtype) for h in heads]


def shapes(setting: Setting) -> Iterator[Case]:
    "Every case, the ones that matter most first."
    def made(kind, N, D, causal, direction, H=0, G=0, window=0):
        H = H or max(1, setting.width // D)
        return Case(kind, direction, N, D, max(1, setting.tokens // N), H, G or H, causal, window)
    ways = [(direction, causal) for direction in ("forward", "backward")
            for causal in (False, True)]
    longest = setting.lengths[0]
    for D in setting.widths: yield from (made("sweep", longest, D, causal, d) for d, causal in ways)
    # 32 query heads on 8 of keys
    H = max(4, setting.tokens // 512)
    for d in ("forward", "backward"):
        yield replace(made("shared keys", setting.lengths[1], setting.widths[0], True, d, H,
                           H // 4), B=1)
        yield made("packed", setting.lengths[1], setting.widths[0], True, d)
        yield made("window", longest, setting.widths[0], True, d, window=setting.window)
        yield from (made("ragged", setting.ragged, setting.widths[0], causal, d)
                    for causal in (False, True))
    for N in setting.lengths[1:]:
        for D in setting.widths: yield from (made("sweep", N, D, causal, d) for d, causal in ways)
    for N in setting.lengths:
        yield from (made("sweep", N, setting.wide, causal, "forward") for causal in (False, True))


def cases(name: str, found) -> list[dict]:
    "The yardstick alone, then every shape, with the configurations that are chosen by now."
    return ([{"kind": "yardstick"}]
            + [asdict(c) | {"configs": chosen(found, c.D, c.causal, c.window)}
               for c in shapes(SETTINGS[name])])


def launched(name: str, case: dict) -> list[tuple]:
    "The shape of a case as the kernels see it: (B, H, G, T, S, D), type, causal, window."
    if case["kind"] == "yardstick": return []
    B, H, G, N, D = (case[k] for k in "BHGND")
    return [((B, H, G, N, N, D), str(SETTINGS[name].dtype).removeprefix("torch."), case["causal"],
             case["window"])]


# --- the contestants ------------------------------------------------------------------------------

@lru_cache(maxsize=2)
def band(N: int, window: int, device: str) -> Tensor:
    "A causal window as a mask."
    far = torch.arange(N, device=device)[:, None] - torch.arange(N, device=device)
    return (far >= 0) & (far < window)


def ours(q, k, v, case: Case) -> Tensor:
    return load().flash(q, k, v, case.causal, case.window or None)[0]


def in_one_sweep(q, k, v, case: Case) -> Tensor:
    "The same with the backward pass that adds to dQ in any order."
    return load().flash(q, k, v, case.causal, case.window or None, deterministic=False)[0]


@lru_cache(maxsize=2)
def ends(B: int, N: int, device: str) -> Tensor:
    "Where B sequences of N tokens begin, and the last one ends."
    return torch.arange(0, (B + 1) * N, N, dtype=torch.int32, device=device)


def packed(q, k, v, case: Case) -> Tensor:
    "The same work as packed sequences, all of one length."
    from tfmlib.flash_attention_gpu.varlen import flash_attention_varlen
    rows, at = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)], ends(case.B, case.N,
                                                                         str(q.device))
    out, _ = flash_attention_varlen(*rows, at, at, case.N, case.causal)
    return out.unflatten(0, (case.B, case.N)).transpose(1, 2)


def pinned(backend, q, k, v, case: Case) -> Tensor:
    "PyTorch's function with one back-end."
    mask = band(case.N, case.window, str(q.device)) if case.window else None
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=case.causal and mask is None,
                                              enable_gqa=q.shape[1] != k.shape[1])


def takes(backend, inputs: list[Tensor], mask: Tensor | None, causal: bool) -> bool:
    """Does this back-end take such tensors? It is asked before anything is launched: a refusal
    is no failure."""
    q, k, v = inputs
    if backend == SDPBackend.MATH: return True
    if not q.is_cuda: return backend == SDPBackend.FLASH_ATTENTION and mask is None
    asked = {SDPBackend.FLASH_ATTENTION: "can_use_flash_attention",
             SDPBackend.EFFICIENT_ATTENTION: "can_use_efficient_attention",
             SDPBackend.CUDNN_ATTENTION: "can_use_cudnn_attention"}
    can = getattr(torch.backends.cuda, asked[backend], None)
    if can is None: return True
    with sdpa_kernel(backend):
        return can(torch.backends.cuda.SDPAParams(q, k, v, mask, 0.0, causal,
                                                  q.shape[1] != k.shape[1]))


def rivals(case: Case, setting: Setting,
           inputs: list[Tensor]) -> tuple[dict[str, Callable], dict[str, str]]:
    "PyTorch's back-ends for this case, and why those that are missing are."
    mask = band(case.N, case.window, setting.device) if case.window else None
    if case.direction == "backward": inputs = [x.detach().requires_grad_() for x in inputs]
    fits = {name: takes(backend, inputs, mask, case.causal and mask is None)
            for name, backend in PINNED.items()}
    missing = {name: "takes no such tensors" for name in PINNED if not fits[name]}
    if case.N > setting.matrix:
        missing["SDPA math"] = f"its matrix is not written beyond {setting.matrix} tokens"
    return ({name: partial(pinned, backend) for name, backend in PINNED.items()
             if name not in missing}, missing)


# --- measuring ------------------------------------------------------------------------------------

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
    """The largest difference, relative to the largest number; infinite where something is not a
    number."""
    found = [float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-3))
             for a, b in zip(ones, others)]
    return max(x if x == x else math.inf for x in found)


def strange(gave: dict[str, list[Tensor]], most: float = 0.05) -> dict[str, float]:
    """Whose result is far from most of the others': name -> how far. A wrong kernel must not win
    a race."""
    far = {name: sorted(apart(given, other) for them, other in gave.items() if them != name)
           for name, given in gave.items()}
    return {name: offs[(len(offs) - 1) // 2] for name, offs in far.items() if offs
            and offs[(len(offs) - 1) // 2] > most}


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


def rounds(calls: dict[str, Callable], setting: Setting,
           say: Callable = lambda *_, **__: None) -> dict[str, list[float]]:
    "All calls in turn, round after round, each round beginning with another: name -> milliseconds."
    clock, taken, names = Clock(setting), {name: [] for name in calls}, list(calls)
    for _ in range(setting.warm):
        for name, call in calls.items(): say(name); clock(call)()
    say(timing=True)
    for r in range(setting.repeats):
        first = r % len(names)
        waiting = {name: clock(calls[name]) for name in names[first:] + names[:first]}
        for name, wait in waiting.items(): taken[name].append(wait())
    return taken


def product(setting: Setting) -> Callable:
    "The yardstick: a product of two square matrices."
    a, b = operands(setting)
    return lambda: a @ b


@lru_cache(maxsize=1)
def operands(setting: Setting) -> list[Tensor]:
    g = torch.Generator(setting.device).manual_seed(0)
    return [torch.randn(setting.square, setting.square, generator=g,
                        device=setting.device).to(setting.dtype) for _ in range(2)]


def raced(ways: dict[str, Callable], case: Case, setting: Setting, missing: dict[str, str],
          say: Callable, tensors: list[Tensor], most: float = 0.05) -> dict:
    "The times of these contestants, their memory, and why those that are missing are."
    calls, gave, room = {}, {}, {}
    for name, way in ways.items():
        if name in missing: continue
        say(name)
        calls[name], gave[name] = ready(way, case, tensors)
        # before anything that checks takes memory too
        room[name] = [peak(calls[name], setting.device) for _ in range(2)]
    say()
    for name, off in strange(gave, most).items():
        missing[name] = f"differs from the others by {off:.2g} of the largest number"
        del calls[name]
    gave.clear()
    took = rounds(calls | {"product": product(setting)}, setting, say)
    for name in [name for name, ms in took.items() if not all(map(math.isfinite, ms))]:
        missing[name] = "its time is not a number"
        del took[name]
    return {f"{name} ms": spread(ms)
            for name, ms in took.items()} | {f"{name} MiB": spread(room[name]) for name in took
                                             if name in room} | {
        "missing": "; ".join(f"{name}: {why}" for name, why in missing.items()) or "nobody"}


def order() -> str:
    "In which order PyTorch would try its back-ends, were none pinned."
    try:
        return ", ".join(SDPBackend(int(i)).name.lower()
                         for i in torch._C._get_sdp_priority_order())
    except (AttributeError, RuntimeError, ValueError): return "unknown"


def launches(setting: Setting) -> dict:
    """Microseconds from one launch to the next of the smallest kernels, many in a row: PyTorch's
    sum of two numbers, a Triton kernel with its host code, and that from a CUDA graph."""
    kernels, gpu = load(), setting.device == "cuda"
    times = 200 if gpu else 1
    row = torch.ones(1, 1, 1, 16, dtype=setting.dtype, device=setting.device)
    calls = {"PyTorch": lambda: row.add_(0), "Triton": lambda: kernels.deltas(row, row)}
    for call in calls.values(): call()                       # compiles
    if gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): kernels.deltas(row, row)
        calls["graph"] = graph.replay
    def took(call):
        if gpu: torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times): call()
        if gpu: torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - began) / times
    return {f"launch {who} µs": spread(took(call) for _ in range(5)) for who, call in calls.items()}


def alone(setting: Setting, say: Callable) -> dict:
    "The yardstick by itself, with what a reader wants to know of the libraries."
    q = torch.randn(1, 1, 64, 64, device=setting.device, dtype=setting.dtype)
    F.scaled_dot_product_attention(q, q, q)                                 # settles the order
    facts = {"case": "yardstick", "N": setting.square, "SDPA's order": order(),
             "type": str(setting.dtype).removeprefix("torch."),
             "Triton": version("triton"), "cuDNN": str(torch.backends.cudnn.version()),
             "SDPA math": "products and sums in 16 bits, as the others'"}
    return (facts | launches(setting)
            | {"product ms": spread(rounds({"product": product(setting)}, setting,
                                           say)["product"])})


def reduced() -> None:
    """Let SDPA's plain back-end multiply 16 bits as they are: by default it takes them to 32
    first, which no rival has to do."""
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "One row: a case, all contestants."
    setting = SETTINGS[name]
    reduced()
    if case["kind"] == "yardstick": yield alone(setting, say); return
    told = dict(case)
    use(load(), told.pop("configs"), told["D"], told["causal"])
    shape = Case(**told)
    tensors = shape.tensors(setting, 0)
    others, missing = rivals(shape, setting, tensors[:3])
    own = {"ours": ours} | ({"ours, one sweep": in_one_sweep} if shape.direction == "backward"
                            else {})
    if shape.kind == "packed": own |= {"ours, packed": packed}
    yield (shape.shape | {"square": setting.square}
           | raced(own | others, shape, setting, missing | without, say, tensors))
