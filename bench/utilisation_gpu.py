"""Chapter 1: the same two models on a GPU, in 16 bits: the LSTM by cuDNN, the transformer with fused attention."""
import torch

from bench.utilisation import Setting, rows_of

DEVICE = "gpu"
SEED = 0
LENGTHS, BATCHES = (128, 256, 512, 1024, 2048, 4096), (8, 32)
VENDOR = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "L40S": 362}    # TFLOP/s in 16 bits, dense, as the data sheets say


def half() -> torch.dtype:
    "bfloat16, or float16 where cuDNN's LSTM does not know it: PyTorch would take a slow kernel without a word."
    return torch.bfloat16 if (torch.backends.cudnn.version() or 0) >= 91300 else torch.float16


def sheet(name: str) -> int:
    "The peak on the data sheet of the GPU that calls itself `name`; 0 if it is not known here."
    return next((peak for known, peak in VENDOR.items() if known in name), 0)


def measure(seed: int) -> list[dict]:
    "Milliseconds, ratio and shares of the measured peak; with the data sheet's peak where the device is known."
    dtype, peak = half(), sheet(torch.cuda.get_device_name())
    setting = Setting("cuda", dtype, 1024, 1256, 8, tuple((T, B) for B in BATCHES for T in LENGTHS), 8192)
    facts = {"type": str(dtype).removeprefix("torch."), "cuDNN": torch.backends.cudnn.version() or 0}
    return [row | facts | ({"data sheet TFLOP/s": peak} if peak else {}) for row in rows_of(setting, seed)]
