"""Chapter 1: the same two models on a GPU, in 16 bits: the LSTM by cuDNN, the transformer with
fused attention.

The peak of a case is what a product of two matrices reached in its own rounds, at the clock that
the GPU had then.
"""
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from bench.utilisation import Setting, rows_of

# TFLOP/s in 16 bits, dense, as the data sheets say
VENDOR = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "L40S": 362}
SETTINGS = {
    "full": Setting("cuda", torch.bfloat16, 1024, 1256, 8,
                    tuple((T, B) for B in (8, 32) for T in (128, 256, 512, 1024, 2048, 4096)),
                    8192),
    "rehearsal": Setting("cpu", torch.float32, 64, 78, 1, ((8, 1), (8, 2)), 32),
}


def half() -> torch.dtype:
    """bfloat16, or float16 where cuDNN's LSTM does not know it: PyTorch would take a slow kernel
    without a word."""
    return torch.bfloat16 if (torch.backends.cudnn.version() or 0) >= 91300 else torch.float16


def sheet(name: str) -> int:
    "The peak on the data sheet of the GPU that calls itself `name`; 0 if it is not known here."
    return next((peak for known, peak in VENDOR.items() if known in name), 0)


def cases(name: str, found) -> list[dict]:
    return [{"T": T, "B": B} for T, B in SETTINGS[name].cases]


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    """Milliseconds, ratio and shares of the measured peak; with the data sheet's peak where the
    device is known."""
    setting, gpu = (replace(SETTINGS[name], cases=((case["T"], case["B"]),)),
                    torch.cuda.is_available())
    if setting.device == "cuda": setting = replace(setting, dtype=half())
    peak = sheet(torch.cuda.get_device_name()) if gpu else 0
    facts = {"type": str(setting.dtype).removeprefix("torch."),
             "cuDNN": torch.backends.cudnn.version() or 0}
    for row in rows_of(setting, 0):
        yield row | facts | ({"data sheet TFLOP/s": peak} if peak else {})
