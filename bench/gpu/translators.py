"""Chapter 8: a training step of the three translators on a GPU in 16 bits, the size of the paper's
base model: how many times a transformer's step the LSTMs take.

The layers alone, rows in and rows out; PyTorch's own, since cuDNN's LSTM and fused attention are
what a GPU has to offer.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import even_width, scaled, size
from bench.gpu.utilisation import half
from bench.utilisation import quotient
from tfmlib.workbench import timed


@dataclass(frozen=True)
class Setting:
    "What is measured, and on what."
    device: str
    dtype: torch.dtype
    width: int                           # of the transformer
    heads: int
    layers: int                          # of each of its stacks
    lstm_layers: int                     # of each side; the width follows from the parameters
    cases: tuple[tuple[int, int], ...]   # (words in a sentence, sentences)
    repeats: int = 20


class LSTMs(nn.Module):
    "Encoder and decoder of LSTMs, the source seen as one vector or through Luong's attention."
    def __init__(self, width: int, layers: int, attention: bool):
        super().__init__()
        self.encoder = nn.LSTM(width, width // 2, layers, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(width if attention else 2 * width, width, layers, batch_first=True)
        self.keys = nn.Linear(width, width, bias=False) if attention else None
        self.mix = nn.Linear(2 * width, width)

    # (B, S, C), (B, T, C) -> (B, T, C)
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, _ = self.encoder(x)
        half = h.shape[-1] // 2
        # (B, C): where the two walks ended
        c = torch.cat([h[:, -1, :half], h[:, 0, half:]], -1)
        first = c.expand(self.decoder.num_layers, -1, -1).contiguous()
        seen = c[:, None].expand(-1, y.shape[1], -1)
        states, _ = self.decoder(torch.cat([y, seen], -1) if self.keys is None else y,
                                 (first.tanh(), first))
        if self.keys is not None:
            seen = F.scaled_dot_product_attention(states[:, None], self.keys(h)[:, None],
                                                  h[:, None], scale=1.)[:, 0]
        return self.mix(torch.cat([states, seen], -1)).tanh()


class Transformer(nn.Module):
    "PyTorch's, its decoder causal."
    def __init__(self, width: int, heads: int, layers: int):
        super().__init__()
        self.both = nn.Transformer(width, heads, layers, layers, 4 * width, 0., batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], y.device, y.dtype)
        return self.both(x, y, tgt_mask=mask, tgt_is_causal=True)


@lru_cache(maxsize=1)
def models(s: Setting, seed: int) -> dict[str, tuple[nn.Module, int]]:
    "Name -> the model and its width; all have as many parameters as the transformer, or just more."
    def lstm(attention): return lambda width: LSTMs(width, s.lstm_layers, attention)
    with torch.device("meta"):
        equal = size(Transformer(s.width, s.heads, s.layers))
        wide = {name: even_width(lstm(attention), equal)
                for name, attention in (("one vector", False), ("attention", True))}
    torch.manual_seed(seed)
    found = {name: (lstm(name == "attention")(width), width) for name, width in wide.items()}
    found["transformer"] = Transformer(s.width, s.heads, s.layers), s.width
    return {name: (model.to(s.device, s.dtype), width) for name, (model, width) in found.items()}


def step(model: nn.Module, x: Tensor, y: Tensor) -> Callable:
    "One training step without the optimiser: forward and backward."
    def run():
        model(x, y).square().mean().backward()
        model.zero_grad(set_to_none=True)
    return run


def rows_of(s: Setting, seed: int) -> Iterator[dict]:
    "For each case each model's milliseconds, and how many times the transformer's they are."
    found = models(replace(s, cases=()), seed)
    for T, B in s.cases:
        inputs = {width: torch.randn(2, B, T, width, device=s.device, dtype=s.dtype)
                  for _, width in found.values()}
        taken = timed({name: step(model, *inputs[width]) for name, (model, width) in found.items()},
                      s.repeats)
        for name, (model, width) in found.items():
            yield {"model": name, "T": T, "B": B, "width": width, "parameters": size(model),
                   "step ms": scaled(taken[name], 1e3),
                   "times the transformer's": quotient(taken[name], taken["transformer"])}


# About 16,000 words on each side in a step, in sentences of 16 to 1024 words.
SETTINGS = {
    "full": Setting("cuda", torch.bfloat16, 512, 8, 6, 4,
                    tuple((T, 16_384 // T) for T in (16, 64, 256, 1024))),
    "rehearsal": Setting("cpu", torch.float32, 16, 2, 1, 1, ((4, 2), (8, 1)), 2),
}


def cases(name: str, found) -> list[dict]:
    return [{"T": T, "B": B} for T, B in SETTINGS[name].cases]


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "The three models on sentences of one length."
    setting = replace(SETTINGS[name], cases=((case["T"], case["B"]),))
    if setting.device == "cuda": setting = replace(setting, dtype=half())
    facts = {"type": str(setting.dtype).removeprefix("torch."),
             "cuDNN": torch.backends.cudnn.version() or 0}
    for row in rows_of(setting, 0): yield row | facts
