"""The machine code of everything that later stages launch, made in as many processes as there are
cores and kept in Triton's cache.

Triton compiles without a GPU: a stand-in for the driver names the chip, tensors without storage
stand for those with, and a launch only compiles. What later stages had to compile all the same is
counted in the journal, and said with the judgement.
"""
import contextlib
import io
import os
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import patch

import torch

from bench.gpu import choose, decode
from bench.gpu.kernels import capability, load, named
from bench.gpu.settings import SETTINGS

FIELDS = ("B", "H", "G", "T", "S", "D")
# multiprocessors, which say how decoding shares out the keys
UNITS = {90: 132, 80: 108}
# in the place of a configuration: kernels that choose their own
FIXED = (["decode"], ["varlen"])


def launches(setting, chip: int, shape: tuple, dtype: str, causal: bool, window: int,
             configs: list[list]) -> list[dict]:
    "What each of these configurations, and the row sums of the backward pass, need for one shape."
    told = (dict(zip(FIELDS, shape)) | {"type": dtype, "causal": causal, "window": window,
                                        "chip": chip})
    return [{"config": config, **told} for config in [*configs, None]]


def kind(n: int) -> int:
    "What Triton tells apart in a whole number that is passed to a kernel."
    return 1 if n == 1 else 16 if n % 16 == 0 else 0


def signature(launch: dict) -> str:
    "Launches that agree in this are compiled to the same code."
    T, S, causal, window, config = (launch["T"], launch["S"], launch["causal"], launch["window"],
                                    launch["config"])
    if config in FIXED:
        return str([config, *(launch[name] for name in "BHGD"), launch["type"], causal,
                    T * (launch["H"] // launch["G"]) > 16, kind(T), kind(S),
                    kind(T + S - 1), S // 256])
    back = min(window or T + S, T + S) - 1
    numbers = [kind(n) for n in (T, S, launch["H"] // launch["G"], back, 0 if causal else back)]
    if config is None: numbers = numbers[:1]
    return str([config, launch["D"], launch["type"],
                config and (causal, bool(window), S % config[6] > 0,
                            (S - T) % config[6] > 0), numbers])


def distinct(found: list[dict], known: list[dict] = ()) -> list[dict]:
    "One launch of each signature, without those that are known."
    before, first = set(map(signature, known)), {}
    for launch in found: first.setdefault(signature(launch), launch)
    return [launch for text, launch in first.items() if text not in before]


def chip(setting, found) -> int:
    return setting.chip or capability(found)[0] * 10 + capability(found)[1]


def cases(name: str, found) -> list[dict]:
    "Everything that `choose` and `decode` launch."
    setting, made = SETTINGS[name], []
    dtype = str(setting.dtype).removeprefix("torch.")
    for case in choose.cases(name,
                             SimpleNamespace(last=found.last, failures=lambda _: [],
                                             rows=lambda _: [])):
        D, H = case["D"], max(1, setting.width // case["D"])
        plain = [next(c for c in choose.candidates(setting, found, kernel, D, case["causal"])
                      if c[1] == "pointers") for kernel in choose.KERNELS[:3]]
        made += launches(setting, chip(setting, found), (1, H, H, case["N"], case["N"], D), dtype,
                         case["causal"], case["window"], case["configs"] + plain)
    made += [dict(zip(FIELDS, (case[name] for name in FIELDS))) | {"config": ["decode"],
            "type": dtype, "causal": False, "window": 0, "chip": chip(setting, found)}
             for case in decode.cases(name, found)]
    return distinct(made)[:setting.compiled]


class StandIn:
    "Stands for the driver of a GPU: compilation asks it for the chip and nothing else."
    def __init__(self, chip: int):
        from triton.backends.compiler import GPUTarget
        self.chip, self.target = chip, GPUTarget("cuda", chip, 32)

    def get_current_device(self) -> int: return 0
    def get_current_stream(self, device: int) -> int: return 0
    def get_current_target(self): return self.target


@contextlib.contextmanager
def only_compiling(chip: int) -> Iterator[list]:
    "Inside, a launch compiles for `chip` and runs nothing; what the assembler says is kept."
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction
    run, log = JITFunction.run, []
    def compiled(self, *args, grid, warmup, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            made = run(self, *args, grid=grid, warmup=True, **kwargs)
        log.append(said.getvalue())
        return made
    driver.set_active(StandIn(chip))
    knobs.nvidia.dump_ptxas_log, JITFunction.run = True, compiled
    try: yield log
    finally: JITFunction.run = run


def launch_decoding(kernels, case: dict, q, k, v) -> None:
    "Decoding, with the keys shared out as on the chip that is compiled for."
    def shared_out(keys, programs, device, right=kernels.shared_out):
        return right(keys, programs, torch.device("cuda"))
    properties = SimpleNamespace(multi_processor_count=UNITS.get(case["chip"], 132))
    with patch.object(kernels, "shared_out", shared_out), patch("torch.cuda.get_device_properties",
            lambda device: properties):
        kernels.decode(q, k, v, kernels.band(case["T"], case["S"], case["causal"], None),
                       kernels.scaled(q, None))


def launch_packed(case: dict) -> None:
    "Packed sequences, forward and backward: of T queries and S keys in all, B of them."
    from tfmlib.flash_attention_gpu.varlen import start_packed, varlen_config
    dtype, offsets = (getattr(torch, case["type"]),
                      torch.empty(case["B"] + 1, dtype=torch.int32, device="meta"))
    q, k, each = (torch.empty(n, h, case["D"], dtype=dtype, device="meta").transpose(0, 1)[None]
                  for n, h in ((case["T"], case["H"]), (case["S"], case["G"]),
                               (case["S"], case["H"])))
    lse = q.new_empty(q.shape[1:3], dtype=torch.float32)
    for kernel, others in (("varlen", [lse, q]), ("varlen dkdv", [q, lse, lse, each, each]),
                           ("varlen dq", [q, lse, lse, q])):
        start_packed(varlen_config(q, kernel), [q, k, k, *others], (offsets, offsets),
                     (case["T"], case["S"]), case["causal"], case["D"] ** -.5)


def launch(kernels, case: dict) -> None:
    "Launch one kernel as the book's host code does, on tensors without storage."
    B, H, G, T, S, D = (case[name] for name in FIELDS)
    dtype = getattr(torch, case["type"])
    q, k, v = (torch.empty(size, dtype=dtype, device="meta")
               for size in ((B, H, T, D), (B, G, S, D), (B, G, S, D)))
    if case["config"] is None: return kernels.deltas(q, q)
    if case["config"] == ["decode"]: return launch_decoding(kernels, case, q, k, v)
    if case["config"] == ["varlen"]: return launch_packed(case)
    lse, grad = q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(B, H, S, D)
    like = {"forward": [q, k, v, lse, q], "dkdv": [q, k, v, q, lse, lse, grad, grad],
            "dq": [q, k, v, q, lse, lse, q],
            "sweep": [q, k, v, q, lse, lse, grad, grad, q.new_empty(q.shape, dtype=lse.dtype)]}
    config = kernels.Config(*case["config"])
    kernels.launch(config, like[config.kernel],
                   kernels.band(T, S, case["causal"], case["window"] or None),
                   kernels.scaled(q, None))


def called(config: list | None) -> str:
    "What is compiled, in words."
    return "delta" if config is None else config[0] if config in FIXED else named(config)


def measure(name: str, case: dict, without: dict, say) -> Iterator[dict]:
    "Compile one launch: registers, bytes spilt, and the seconds that it took."
    os.environ.pop("TRITON_INTERPRET", None)                       # before Triton is imported here
    kernels, began = load(), time.perf_counter()
    with only_compiling(case["chip"]) as log: launch(kernels, case)
    text = "".join(log)
    used, spilt = (re.findall(r"Used (\d+) registers", text),
                   re.findall(r"(\d+) bytes spill (?:stores|loads)", text))
    yield {"case": "compilation", "kernel": called(case["config"]),
           "registers": max(map(int, used), default=0),
           "spills": sum(map(int, spilt)), "from the cache": "no" if used else "yes",
           "seconds": round(time.perf_counter() - began, 3)}
