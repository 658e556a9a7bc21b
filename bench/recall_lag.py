"""Chapter 1: does it learn to name the first symbol after a lag? Five kinds of layer with
equally many parameters, against the lag."""
import torch
from torch import Tensor, nn

from bench import size, ticked
from tfmlib.recurrence import recall_accuracy
from tfmlib.workbench import spread

LAGS, SEEDS, STEPS = (5, 10, 20, 50, 100, 200), 5, 500
# about 5,050 parameters each
WIDTHS = {"RNN": 59, "LSTM, forget bias 0": 27, "LSTM, forget bias 4": 27, "GRU": 32,
          "attention": 32}


class Outputs(nn.Module):
    "A layer of PyTorch without its last state."
    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor: return self.layer(x)[0]


class Attention(nn.Module):
    "One attention of PyTorch over inputs with positions added; only the last position asks."
    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.enter, self.mix = (nn.Linear(inputs, width),
                                nn.MultiheadAttention(width, 1, batch_first=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)                                                          # (B, T, C)
        turns = (torch.arange(x.shape[1])[:, None]
                 / 10_000 ** (torch.arange(0, x.shape[2], 2) / x.shape[2]))
        x = x + torch.cat([turns.sin(), turns.cos()], -1)
        return self.mix(x[:, -1:], x, x, need_weights=False)[0]                    # (B, 1, C)


def model(kind: str, seed: int) -> nn.Sequential:
    "A layer of this kind and a linear layer that reads its outputs."
    torch.manual_seed(seed)
    width, name = WIDTHS[kind], kind.split(",")[0]
    if name == "attention": return nn.Sequential(Attention(16, width), nn.Linear(width, 8))
    layer = getattr(nn, name)(16, width, batch_first=True)
    if name == "LSTM":
        with torch.no_grad():
            layer.bias_hh_l0[width:2 * width] = 0
            # the forget gate's bias
            layer.bias_ih_l0[width:2 * width] = float(kind[-1])
    return nn.Sequential(Outputs(layer), nn.Linear(width, 8))


def measure(seed: int) -> list[dict]:
    "Share of right answers after training, over seeds."
    rows = []
    for kind in WIDTHS:
        parameters = size(model(kind, seed))
        for lag in ticked(LAGS, "lag"):
            right = [recall_accuracy(model(kind, s), lag, s, STEPS)
                     for s in range(seed, seed + SEEDS)]
            rows.append({"kind": kind, "lag": lag, "parameters": parameters, "steps": STEPS,
                         "right": spread(right)}
                        | {f"seed {s}": spread([r]) for s, r in enumerate(right, seed)})
    return rows
