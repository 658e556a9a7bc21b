"Functions of functions."
from ._absent import absent, refuser
from ._engine import listed
from .autograd import grad
from .nn import Module

__getattr__ = refuser("torch.func")


def vjp(func, *primals):
    "The value of a function, and the function that takes a gradient back through it."
    leaves = [x.detach().clone().requires_grad_() for x in primals]
    y = func(*leaves)
    def back(g):
        found = grad(y, leaves, g, allow_unused=True, retain_graph=True)
        return tuple(x.new_zeros(x.shape) if f is None else f
                     for x, f in zip(leaves, found))
    return y.detach(), back


def functional_call(module: Module, weights: dict, args):
    "A layer's answer with other weights."
    before = []
    names = set(dict(module.named_parameters()))
    if names != set(weights): raise absent("functional_call with a part of the weights")
    for name, value in weights.items():
        *path, last = name.split(".")
        inner = module
        for word in path: inner = vars(inner)[word]
        before.append((inner, last, vars(inner)[last]))
        setattr(inner, last, value)
    try: return module(*listed(args))
    finally:
        for inner, last, value in before: setattr(inner, last, value)
