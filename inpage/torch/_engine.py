"""The chain rule: a graph of nodes, one for each result, and a sweep back through it.

A node holds, for each argument that a gradient flows to, where it goes on (the
argument's own node, or the argument if it is a leaf) and a function of the gradient.
"""
from itertools import count

import numpy as np

_ids = count()
NONE_NEEDED = "element 0 of tensors does not require grad and does not have a grad_fn"
SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved "
    "tensors after they have already been freed). Specify retain_graph=True if you "
    "need to backward through the graph a second time."
)
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an "
    "inplace operation: it is at version {}; expected version {} instead."
)
UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)


class State:
    "Whether a graph is made, and who is told of what it keeps."
    on = True
    inference = False
    hooks = []


class Switch:
    "A context, or a decorator, in which autograd is on or off."
    on = True

    def __new__(cls, mode=None):
        if not callable(mode): return super().__new__(cls)
        return cls()(mode)

    def __init__(self, mode=None):
        if mode is not None: self.on = mode

    def __enter__(self):
        self._before = State.on, State.inference
        State.on = self.on and not State.inference

    def __exit__(self, *_): State.on, State.inference = self._before

    def __call__(self, f):
        def inside(*args, **kwargs):
            with type(self)(self.on): return f(*args, **kwargs)
        inside.__name__ = getattr(f, "__name__", "inside")
        return inside


class no_grad(Switch): on = False
class enable_grad(Switch): pass
class set_grad_enabled(Switch): pass


class inference_mode(Switch):
    "Autograd is off for good, or (inside, with False) on again."
    def __enter__(self):
        super().__enter__()
        State.inference = self.on
        State.on = not self.on


class Node:
    "One step of a computation."
    __slots__ = ("edges", "kept", "number", "freed")

    def __init__(self, edges: list, saves: tuple):
        self.edges, self.number, self.freed = edges, next(_ids), False
        self.kept = [(s._count, s._count[0]) for s in saves]
        for hook in State.hooks:
            for s in saves: hook.pack(s)

    def name(self): return "Backward0"

    def check(self) -> None:
        "Raise the errors of PyTorch if what the node keeps is gone or has changed."
        if self.freed and self.kept: raise RuntimeError(SECOND_TIME)
        for at, version in self.kept:
            if at[0] != version: raise RuntimeError(MODIFIED.format(at[0], version))


def reached(starts: list) -> list[Node]:
    "The nodes behind these, the latest first."
    found, left = {}, list(starts)
    while left:
        node = left.pop()
        if not isinstance(node, Node) or id(node) in found: continue
        found[id(node)] = node
        left += [target for target, _ in node.edges]
    return sorted(found.values(), key=lambda node: -node.number)


def sweep(starts: list, grads: list, keep: bool, upto: set | None = None) -> dict:
    "The gradient at each target that is reached: id -> (target, array)."
    found = {}
    def add(target, g):
        before = found.get(id(target))
        found[id(target)] = target, g if before is None else before[1] + g
    for target, g in zip(starts, grads): add(target, g)
    for node in reached(starts):
        if id(node) not in found: continue
        node.check()
        g = found[id(node)][1]
        for target, rule in node.edges: add(target, rule(g))
        node.freed = not keep
        if upto is not None and id(node) not in upto: del found[id(node)]
    return found


def listed(value) -> list:
    "One tensor, or several, as a list."
    return list(value) if isinstance(value, list | tuple) else [value]


def beginnings(outputs: list, given: list) -> list[np.ndarray]:
    "The gradients that a sweep starts with."
    arrays = []
    for x, g in zip(outputs, given):
        if not x.requires_grad: raise RuntimeError(NONE_NEEDED)
        if g is None and x._a.size != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if g is not None and g.shape != x.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[0] has a shape of {g.shape} and "
                f"output[0] has a shape of {x.shape}."
            )
        start = np.ones(x._a.shape) if g is None else g._a
        arrays.append(start.astype(x.dtype.work))
    return arrays
