"""A small problem with everything that a training has to repeat, and the loop that it equals."""
import math

import torch
from torch import nn

from tfmlib.workbench import mix_seed, model_tensors, seeded

F64 = torch.float64


class Net(nn.Module):
    "Dropout, a buffer, and one matrix under two names; without biases, nothing but matrices."
    def __init__(self, width=8, dtype=F64, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width, bias=False),
                                  nn.BatchNorm1d(width, affine=bias), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(width, width, bias=bias)
        self.again = self.head
        self.out = nn.Linear(width, 1, bias=bias)
        self.to(dtype)

    def forward(self, x): return self.out(self.again(self.head(self.body(x))))


def net(seed=0, **how):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Net(**how)


def batch(step):
    x = torch.randn(12, 4, dtype=F64, generator=seeded(3, step))
    return x, x.sum(1, keepdim=True).sin()


def squared(model, x, y): return (model(x) - y).square().mean()


def weights(model): return {name: t.clone() for name, t in model_tensors(model).items()}


def same(a, b): return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def plain_loop(model, optimiser, steps, rate=None, clip=math.inf, seed=0):
    "The weights and the losses of a training that is written out with PyTorch's parts."
    losses = []
    for step in range(steps):
        with torch.random.fork_rng([]):
            torch.manual_seed(mix_seed(seed, step, 0))
            optimiser.zero_grad()
            loss = squared(model.train(), *batch(step))
        loss.backward()
        if clip < math.inf: nn.utils.clip_grad_norm_(model.parameters(), clip)
        for group in optimiser.param_groups: group["lr"] = rate(step) if rate else group["lr"]
        optimiser.step()
        losses.append(loss.item())
    return weights(model), losses
