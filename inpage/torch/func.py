"Functions of functions."
from ._absent import absent, refuser
from ._engine import inference_mode, listed
from .autograd import grad
from .nn import Module

__getattr__ = refuser("torch.func")


def vjp(func, *primals):
    "The value of a function, and the function that takes a gradient back through it."
    with inference_mode(False):
        leaves = [x.detach().clone().requires_grad_() for x in primals]
        y = func(*leaves)
    def back(g):
        found = grad(y, leaves, g, allow_unused=True, retain_graph=True)
        return tuple(x.new_zeros(x.shape) if f is None else f
                     for x, f in zip(leaves, found))
    return y.detach(), back


def functional_call(module: Module, weights: dict, args):
    "A layer's answer with other weights."
    if set(module.state_dict()) != set(weights):
        raise absent("functional_call with a part of the weights")
    before = {name: module.replace(name, value) for name, value in weights.items()}
    try: return module(*listed(args))
    finally:
        for name, value in before.items(): module.replace(name, value)
