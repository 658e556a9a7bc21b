"Gradients, by the sweep through the graph."
from .. import _engine as engine
from .._absent import absent, refuser
from .._engine import listed
from .._make import zeros_like
from .._modes import operation
from .._tensor import made, target
from .._types import stored

__getattr__ = refuser("torch.autograd")


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False,
         allow_unused=None, materialize_grads=False, **others):
    "The gradients of the outputs, summed, at the inputs."
    if create_graph: raise absent("torch.autograd.grad(create_graph=True)")
    if others: raise absent(f"torch.autograd.grad({next(iter(others))}=…)")
    unused = materialize_grads if allow_unused is None else allow_unused
    found = _grad(listed(outputs), listed(inputs), grad_outputs, bool(retain_graph), unused)
    if not materialize_grads: return found
    return tuple(zeros_like(x) if g is None else g for x, g in zip(listed(inputs), found))


@operation("autograd_backward")
def _grad(outputs, inputs, grad_outputs, keep, allow_unused):
    given = [None] * len(outputs) if grad_outputs is None else listed(grad_outputs)
    starts = engine.beginnings(outputs, given)
    for x in inputs:
        if not x.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    ends = [target(x) for x in inputs]
    found = engine.sweep([target(x) for x in outputs], starts, keep, set(map(id, ends)))
    answers = []
    for x, end in zip(inputs, ends):
        g = found.get(id(end))
        if g is None and not allow_unused: raise RuntimeError(engine.UNUSED)
        answers.append(None if g is None else made(copied(g[1], x.dtype), x.dtype))
    return tuple(answers)


def copied(g, d):
    "A gradient in memory of its own."
    a = stored(g, d)
    return a.copy() if a.base is not None or not a.flags.writeable else a


def backward(tensors, grad_tensors=None):
    for x, g in zip(listed(tensors), listed(grad_tensors) if grad_tensors else [None]):
        x.backward(g)


class Function:
    "Operations with a backward of one's own are not in the page."
    @classmethod
    def apply(cls, *args): raise absent("torch.autograd.Function")


from . import forward_ad, functional, graph  # noqa: E402, F401

