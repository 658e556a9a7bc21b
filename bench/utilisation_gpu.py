"""Chapter 1: the same two models on a GPU, in bfloat16: the LSTM by cuDNN, the transformer with fused attention."""
import torch

from bench.utilisation import Setting, rows_of

DEVICE = "gpu"
SEED = 0
LENGTHS, BATCHES = (128, 256, 512, 1024, 2048, 4096), (8, 32)
SETTING = Setting("cuda", torch.bfloat16, 1024, 1256, 8, tuple((T, B) for B in BATCHES for T in LENGTHS), 8192)
VENDOR = {"H100": 989, "H200": 989, "A100": 312, "L40S": 362}         # TFLOP/s in bfloat16, dense, as the data sheets say


def measure(seed: int) -> list[dict]:
    "Milliseconds, ratio and shares of the measured peak; with the data sheet's peak where the device is known."
    name = torch.cuda.get_device_name()
    sheet = next((peak for known, peak in VENDOR.items() if known in name), 0)
    return [row | ({"data sheet TFLOP/s": sheet} if sheet else {}) for row in rows_of(SETTING, seed)]
