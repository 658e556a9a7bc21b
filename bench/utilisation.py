"""Chapter 1: an LSTM and a causal transformer with equally many parameters: time of a training
step, and model FLOP utilisation."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from bench import rates, scaled, size
from tfmlib.workbench import spread, timed

REPEATS = 5


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
    device: str
    dtype: torch.dtype
    width: int                     # of the transformer
    lstm_width: int                # about √1.5 times as wide: 8 C² parameters a layer against 12 C²
    layers: int
    cases: tuple[tuple[int, int], ...]   # (length, batch)
    square: int                    # the matrix product that stands for the peak


HERE = Setting("cpu", torch.float32, 256, 314, 4,
               ((64, 4), (128, 4), (256, 4), (512, 4), (128, 1), (128, 16)), 1024)


class Transformer(nn.Module):
    "A causal transformer of PyTorch's own layers."
    def __init__(self, width: int, layers: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0., batch_first=True,
                                           norm_first=True)
        self.stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        return self.stack(x, mask, is_causal=True)


class LSTM(nn.Module):
    "PyTorch's LSTM between the widths of its neighbours."
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.layer = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor: return self.layer(x)[0]


def models(s: Setting, seed: int) -> dict[str, tuple[nn.Module, int]]:
    "Name -> the model and the width of its inputs."
    torch.manual_seed(seed)
    made = {"LSTM": (LSTM(s.lstm_width, s.layers), s.lstm_width),
            "transformer": (Transformer(s.width, s.layers), s.width)}
    return {name: (model.to(s.device, s.dtype), width) for name, (model, width) in made.items()}


def step(model: nn.Module, x: Tensor) -> Callable:
    "One training step without the optimiser: forward and backward."
    def run():
        model(x).square().mean().backward()
        model.zero_grad(set_to_none=True)
    return run


def flops(model: nn.Module, T: int, B: int) -> int:
    """Operations that a training step cannot do without: 6 a weight and token, and for attention
    6·T·C a layer and token (causal)."""
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    if isinstance(model, LSTM): return 6 * weights * T * B
    return ((6 * weights + 6 * T * model.stack.layers[0].linear1.in_features
             * model.stack.num_layers) * T * B)


def share_of_products(run: Callable) -> float:
    "How much of a run's time PyTorch's profiler finds in matrix products."
    with profile(activities=[ProfilerActivity.CPU]) as seen: run()
    spent = {e.key: e.self_cpu_time_total for e in seen.key_averages()}
    return (sum(t for name, t in spent.items() if name in ("aten::mm", "aten::addmm", "aten::bmm",
            "aten::baddbmm") or "scaled_dot_product" in name) / sum(spent.values()))


def quotient(a: dict, b: dict) -> dict:
    "The ratio of two spreads; its ends are those that the ends of the two allow."
    return {"median": a["median"] / b["median"], "q10": a["q10"] / b["q90"],
            "q90": a["q90"] / b["q10"], "n": a["n"]}


def rows_of(s: Setting, seed: int) -> list[dict]:
    """For each case: the two models' milliseconds, their ratio, and each one's share of the
    measured peak."""
    made, taken = models(s, seed), {}
    square = torch.randn(s.square, s.square, device=s.device, dtype=s.dtype)
    for T, B in s.cases:
        inputs = {name: torch.randn(B, T, width, device=s.device, dtype=s.dtype)
                  for name, (_, width) in made.items()}
        calls = ({name: step(model, inputs[name]) for name, (model, _) in made.items()}
                 | {"product": lambda: square @ square})
        taken[T, B] = timed(calls, REPEATS)
    # the best that was seen, for every case
    peak = 2 * s.square**3 / min(t["product"]["median"] for t in taken.values())
    rows = []
    for (T, B), t in taken.items():
        row = {"T": T, "B": B, "LSTM / transformer": quotient(t["LSTM"], t["transformer"])}
        row["peak TFLOP/s"] = rates(t["product"], 2e-12 * s.square**3)
        for name, (model, _) in made.items():
            row |= {f"{name} parameters": size(model), f"{name} ms": scaled(t[name], 1e3),
                    f"{name} share of peak": rates(t[name], flops(model, T, B) / peak)}
        rows.append(row)
    return rows


def measure(seed: int) -> list[dict]:
    "On one thread; and how much of a transformer's step is spent in matrix products."
    rows = rows_of(HERE, seed)
    model, width = models(HERE, seed)["transformer"]
    run = step(model, torch.randn(4, 128, width))
    run()
    rows[1]["time in products"] = spread(share_of_products(run) for _ in range(REPEATS))
    return rows
