"Whole matrices of derivatives."
from .. import _make as make
from .._absent import refuser
from .._move import stack
from . import grad

__getattr__ = refuser("torch.autograd.functional")


def jacobian(func, inputs):
    "The derivative of each number of a function's answer by each number of its input."
    x = inputs.detach().clone().requires_grad_()
    y = func(x)
    rows = []
    for n in range(y.numel()):
        one = make.zeros(y.numel(), dtype=y.dtype)
        one[n] = 1
        found = [None]
        if y.requires_grad:
            found = grad(y, x, one.view(y.shape), retain_graph=True, allow_unused=True)
        rows.append(make.zeros_like(x).detach() if found[0] is None else found[0])
    return stack(rows).view(*y.shape, *x.shape)
