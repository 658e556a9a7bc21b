"Tensors over NumPy's arrays: memory that views share, versions, and their history."
import math

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ._absent import absent
from ._engine import Node, State, beginnings, sweep
from ._types import (
    BOOL,
    COMPLEX,
    CPU,
    META,
    OF_KIND,
    OF_NUMPY,
    REAL,
    WHOLE,
    Size,
    bfloat16,
    dtype,
    kind_of,
    promote_types,
    stored,
)

NUMBERS = (int, float, complex, np.generic)
LEAF = "a leaf Variable that requires grad is being used in an in-place operation."
VIEW_OF_LEAF = f"a view of {LEAF}"
OFF_VIEW = (
    "A view was created in no_grad mode and is being modified inplace with grad mode "
    "enabled."
)
MULTI_VIEW = (
    "This view is the output of a function that returns multiple views. Such functions "
    "do not allow the output views to be modified inplace."
)
ONE_LOCATION = (
    "unsupported operation: more than one element of the written-to tensor refers to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
OUT = object()                         # in a list of what a rule needs: the result


def root(a: np.ndarray) -> np.ndarray:
    "The array that owns the memory."
    while isinstance(a.base, np.ndarray): a = a.base
    return a


class Storage:
    "The memory behind a tensor."
    def __init__(self, holder, size: int, itemsize: int):
        self.array, self.size, self.itemsize = holder, size, itemsize

    def data_ptr(self) -> int:
        if isinstance(self.array, Tensor): return id(self.array)
        return self.array.__array_interface__["data"][0]

    def nbytes(self) -> int: return self.size * self.itemsize
    def __len__(self): return self.nbytes()


class Tensor:
    "Numbers of one type in a box, and the way they were computed."
    __array_priority__ = 1000
    grad = None
    _node = _base = _path = _fixed = None        # history; what it views, and how
    _asked, _stamp, _seen = False, 0, 0          # a leaf's flag; writes that were followed

    def __init__(self, a, d: dtype | None = None):
        if not isinstance(a, np.ndarray): raise absent("torch.Tensor(…)")
        self._a, self.dtype, self._count = a, d or OF_NUMPY[a.dtype], [0]

    # --- what it is
    shape = property(lambda s: Size(s._a.shape))
    ndim = property(lambda s: s._a.ndim)
    device = property(lambda s: CPU)
    is_meta = property(lambda s: False)
    is_cuda = property(lambda s: False)
    _version = property(lambda s: s._count[0])
    is_leaf = property(lambda s: history(s) is None)
    grad_fn = property(lambda s: history(s))
    itemsize = property(lambda s: s.dtype.itemsize)
    nbytes = property(lambda s: s.numel() * s.dtype.itemsize)

    @property
    def requires_grad(self) -> bool: return self._asked or history(self) is not None

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None: self.requires_grad_(on)

    def requires_grad_(self, on: bool = True) -> "Tensor":
        if on and self.dtype.kind < REAL:
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients"
            )
        if not on and history(self) is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables."
            )
        if history(self) is None: self._asked = on
        return self

    def size(self, dim=None): return self.shape if dim is None else self.shape[dim]
    def dim(self): return self.ndim
    def numel(self): return self._a.size
    nelement = numel
    def element_size(self): return self.dtype.itemsize
    def is_floating_point(self): return self.dtype.kind == REAL
    def is_complex(self): return self.dtype.kind == COMPLEX
    def is_contiguous(self, memory_format=None): return self._a.flags.c_contiguous
    def untyped_storage(self):
        whole = root(self._a)
        return Storage(whole, whole.size, self.itemsize)

    def data_ptr(self): return self._a.__array_interface__["data"][0]

    def stride(self, dim=None):
        steps = tuple(s // self._a.itemsize for s in self._a.strides)
        return steps if dim is None else steps[dim]

    def storage_offset(self):
        start = root(self._a).__array_interface__["data"][0]
        return (self.data_ptr() - start) // self._a.itemsize

    # --- as Python's and NumPy's values
    def __len__(self):
        if not self.ndim: raise TypeError("len() of a 0-d tensor")
        return len(self._a)

    def __hash__(self): return id(self)

    def __bool__(self):
        if self.numel() == 1: return bool(self._a.reshape(-1)[0])
        many = "more than one value" if self.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {many} is ambiguous")

    def item(self):
        if self.numel() == 1: return self._a.reshape(-1)[0].item()
        raise RuntimeError(
            f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
        )

    def __float__(self): return float(self.item())
    def __int__(self): return int(self.item())
    def __complex__(self): return complex(self.item())

    def __index__(self):
        if self.dtype.kind < REAL: return int(self.item())
        raise TypeError(
            "only integer tensors of a single element can be converted to an index"
        )

    def tolist(self): return self._a.tolist()

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use "
                "tensor.detach().numpy() instead."
            )
        if self.dtype is bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._a

    def __array__(self, dtype=None, copy=None):
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def __format__(self, spec):
        return format(self.item() if not self.ndim else repr(self), spec)

    def __repr__(self):
        shown = np.array2string(self._a, separator=", ", precision=4, prefix="tensor(")
        usual = self.dtype.name in ("float32", "int64", "bool")
        kind = "" if usual else f", dtype={self.dtype}"
        node = history(self)
        grad = ", requires_grad=True" if self._asked else ", grad_fn=…" if node else ""
        return f"tensor({shown}{kind}{grad})"

    def __deepcopy__(self, memo):
        if history(self) is not None:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support "
                "the deepcopy protocol at the moment."
            )
        if id(self) not in memo:
            copied = Tensor(copy_of(self._a, memo), self.dtype)
            copied._asked, copied.grad = self._asked, self.grad
            memo[id(self)] = copied
        return memo[id(self)]

    def __copy__(self): return self.detach().requires_grad_(self._asked)
    def __reduce_ex__(self, protocol): return Tensor, (self._a, self.dtype)

    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        raise absent(f"Tensor.{name}")

    # --- its history
    def detach(self) -> "Tensor":
        out = Tensor(self._a, self.dtype)
        out._count = self._count
        return out

    @property
    def data(self) -> "Tensor": return self.detach()

    @data.setter
    def data(self, new): raise absent("Tensor.data = …")

    def backward(self, gradient=None, retain_graph=None, create_graph=False):
        if create_graph: raise absent("Tensor.backward(create_graph=True)")
        starts = beginnings([self], [gradient])
        found = sweep([target(self)], starts, bool(retain_graph))
        for x, g in found.values():
            if isinstance(x, Node): continue
            g = Tensor(np.array(stored(g, x.dtype)), x.dtype)
            x.grad = g if x.grad is None else x.grad + g

    def retain_grad(self):
        if history(self) is not None: raise absent("Tensor.retain_grad()")

    def cpu(self): return self


class MetaTensor(Tensor):
    "A tensor without numbers: its shape and its type."
    def __init__(self, size: tuple, d: dtype):
        self._size, self.dtype, self._count = size, d, [0]

    def __getattr__(self, name):
        if name == "_a": raise absent("numbers of a tensor that has none (meta, or unset)")
        return super().__getattr__(name)

    shape = property(lambda s: Size(s._size))
    ndim = property(lambda s: len(s._size))
    device = property(lambda s: META)
    is_meta = property(lambda s: True)
    def numel(self): return math.prod(self._size)
    nelement = numel
    def untyped_storage(self): return Storage(self, self.numel(), self.itemsize)
    def is_contiguous(self, memory_format=None): return True
    def __repr__(self): return f"tensor(..., device='{self.device}', size={self._size})"
    def __deepcopy__(self, memo): return type(self)(self._size, self.dtype)


class UnsetTensor(MetaTensor):
    "A layer's weight before it is given numbers: it counts, but has none."
    device = property(lambda s: CPU)
    is_meta = property(lambda s: False)


def copy_of(a: np.ndarray, memo: dict) -> np.ndarray:
    "A copy of an array's whole memory, seen in the same way, once for all its views."
    whole = root(a)
    if id(whole) not in memo: memo[id(whole)] = whole.copy(order="K"), whole
    new = memo[id(whole)][0]
    if a is whole: return new
    if new.strides != whole.strides or new.dtype != a.dtype: return a.copy()
    ends = (x.__array_interface__["data"][0] for x in (a, whole))
    at = (next(ends) - next(ends)) // max(a.itemsize, 1)
    flat = as_strided(new, (new.size,), (new.itemsize,))
    return as_strided(flat[at:], a.shape, a.strides) if a.size else a.copy()


# --- history -------------------------------------------------------------------------

def history(x: Tensor) -> Node | None:
    "The node that made a tensor; a view of one that was written to since gets a new one."
    base = x._base
    if base is not None and base._stamp != x._seen:
        x._seen = base._stamp
        path, shape, dim = x._path, base._a.shape, target(base)
        rule = lambda g: spread(path, shape, g)
        x._node = Node([(dim, rule)], ()) if base.requires_grad else None
    return x._node


def target(x: Tensor):
    "Where a gradient at this tensor goes: to its node, or to itself if it is a leaf."
    return history(x) or x


def narrowed(rule, d: dtype):
    "A rule whose gradients are kept in a type."
    return lambda g: stored(rule(g), d).astype(d.work, copy=False)


def made(a, d: dtype, *edges, saves: tuple = ()) -> Tensor:
    """A new tensor.

    `edges` are pairs of an argument and its rule, from the gradient at the result to
    that at the argument; `saves` are the tensors whose numbers the rules need.
    """
    out = Tensor(stored(a, d), d)
    if State.on and d.kind >= REAL and edges:
        to = [(target(x), narrowed(rule, x.dtype)) for x, rule in edges
              if isinstance(x, Tensor) and x.requires_grad]
        if to and COMPLEX in (d.kind, *(x.dtype.kind for x, _ in edges
                                        if isinstance(x, Tensor))):
            raise absent("gradients of complex numbers")
        if to: out._node = Node(to, tuple(out if s is OUT else s for s in saves))
    return out


def spread(path, shape: tuple, g: np.ndarray) -> np.ndarray:
    "The gradient at a tensor of this shape, given that at the view of it by `path`."
    whole = np.zeros(shape, g.dtype)
    part = path(whole)
    if part.flags.writeable and not repeats(part):
        part[...] = g
        return whole
    at = path(np.arange(whole.size).reshape(shape))
    np.add.at(whole.reshape(-1), at, g)
    return whole


def repeats(a: np.ndarray) -> bool:
    "May two elements be at the same address?"
    if not a.size: return False
    steps = sorted((abs(s), n) for s, n in zip(a.strides, a.shape) if n > 1)
    reach = 0
    for step, n in steps:
        if step <= reach: return True
        reach += step * (n - 1)
    return False


def viewed(x: Tensor, path, several: bool = False) -> Tensor:
    "A view: `path` takes the array of a tensor to a part of it, in the same memory."
    out = Tensor(path(x._a), x.dtype)
    out._count = x._count
    before = x._path
    out._base = x if before is None else x._base
    out._path = path if before is None else (lambda a: path(before(a)))
    out._seen = out._base._stamp
    out._fixed = MULTI_VIEW if several else x._fixed if State.on else OFF_VIEW
    if State.on and x.requires_grad:
        shape = x._a.shape
        out._node = Node([(target(x), lambda g: spread(path, shape, g))], ())
    return out


def overwrite(x: Tensor, new: Tensor) -> Tensor:
    "Give a tensor the numbers of another one of its shape, and its history."
    if not x._a.flags.writeable or repeats(x._a): raise RuntimeError(ONE_LOCATION)
    behind = x._fixed and x._base.requires_grad
    follows = State.on and (new.requires_grad or x.requires_grad or behind)
    if follows: refuse_writing(x)
    old = target(x._base) if x._base is not None else None
    x._a[...] = stored(new._a, x.dtype)
    x._count[0] += 1
    if follows:
        keep_as(x, new)
        rebase(x, old, new)
    return x


def keep_as(x: Tensor, new: Tensor) -> None:
    "What the node of `new` keeps of its result is from now on what `x` holds."
    if new._node is None: return
    new._node.kept = [(x._count, x._count[0]) if count is new._count else (count, version)
                      for count, version in new._node.kept]


def refuse_writing(x: Tensor) -> None:
    "Raise PyTorch's error where autograd could not follow."
    if x._asked: raise RuntimeError(LEAF)
    if x._base is not None:
        if x._base._asked: raise RuntimeError(VIEW_OF_LEAF)
        if x._fixed: raise RuntimeError(x._fixed)


def rebase(x: Tensor, old, new: Tensor) -> None:
    "The history of a tensor that was written to, and of the tensor that it views."
    if x._base is None:
        x._node, x._stamp = history(new), x._stamp + 1
        return
    base, path = x._base, x._path
    def outside(g):
        g = g.copy()
        path(g)[...] = 0
        return g
    edges = [(old, outside)] if isinstance(old, Node) else []
    inside = narrowed(lambda g: path(g), new.dtype)
    if new.requires_grad: edges.append((target(new), inside))
    base._node, base._stamp = Node(edges, ()) if edges else None, base._stamp + 1


# --- arguments -----------------------------------------------------------------------

def broadcast_back(g: np.ndarray, shape: tuple) -> np.ndarray:
    "The gradient at an argument of this shape, which was broadcast."
    if g.shape == shape: return g
    lead = g.ndim - len(shape)
    if lead: g = g.sum(tuple(range(lead)))
    ones = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return g.sum(ones, keepdims=True) if ones else g


PLAIN = (bool, int, float)


def pair(a, b) -> dtype:
    "The type of a result of two arguments; the usual cases first."
    if isinstance(a, Tensor):
        if isinstance(b, Tensor):
            if a.dtype is b.dtype: return a.dtype
        elif a.dtype.kind >= REAL and type(b) in PLAIN: return a.dtype
    elif type(a) in PLAIN and isinstance(b, Tensor) and b.dtype.kind >= REAL:
        return b.dtype
    return common(a, b)


def common(*values) -> dtype:
    """The type of a result, by PyTorch's rule.

    Tensors with dimensions count first, then those without, then Python's numbers; a
    later group counts only if its kind is higher.
    """
    best = None
    for group in (
        [v.dtype for v in values if isinstance(v, Tensor) and v.ndim],
        [v.dtype for v in values if isinstance(v, Tensor) and not v.ndim],
        [OF_KIND[kind_of(v)] for v in values if not isinstance(v, Tensor)],
    ):
        if not group: continue
        found = group[0]
        for d in group[1:]: found = promote_types(found, d)
        if best is None: best = found
        elif found.kind > best.kind:
            real = found.kind == COMPLEX and best.kind == REAL
            best = promote_types(best, found) if real else found
    return best


def raw(value, d: dtype) -> np.ndarray:
    "The numbers of an argument, as they are computed with in this type."
    if isinstance(value, Tensor): return value._a.astype(d.work, copy=False)
    if d.kind != WHOLE: return np.asarray(value, dtype=d.work)
    return np.asarray(int(value), dtype=np.int64).astype(d.np)     # wraps, as PyTorch's


def axis_of(dim, n: int):
    "A dimension, or several, counted from the front."
    if dim is None: return None
    if isinstance(dim, tuple | list): return tuple(axis_of(d, n) for d in dim)
    dim, room = int(dim), max(n, 1)
    if -room <= dim < room: return dim % n if n else 0
    raise IndexError(
        f"Dimension out of range (expected to be in range of [{-room}, {room - 1}], "
        f"but got {dim})"
    )


def axes_of(dim, n: int) -> tuple:
    "The dimensions of a reduction: all of them if none is named."
    if dim is None or (isinstance(dim, tuple | list) and not dim): return tuple(range(n))
    found = axis_of(dim, n)
    found = found if isinstance(found, tuple) else (found,)
    if len(set(found)) < len(found):
        raise RuntimeError(f"dim {found[0]} appears multiple times in the list of dims")
    return found if n else ()


def numbers_of(name: str, value) -> Tensor:
    "The argument if it is a tensor; else PyTorch's error."
    if isinstance(value, Tensor): return value
    raise TypeError(
        f"{name}(): argument 'input' (position 1) must be Tensor, not "
        f"{type(value).__name__}"
    )


def sizes(given: tuple) -> tuple:
    "A shape that is given as numbers or as one tuple."
    if len(given) == 1 and isinstance(given[0], tuple | list): given = given[0]
    for n in given:
        if isinstance(n, float) or not hasattr(n, "__index__"):
            raise TypeError(
                f"a size is {n!r} ({type(n).__name__}); expected an integer"
            )
    return tuple(n.__index__() for n in given)


def is_mask(x) -> bool: return isinstance(x, Tensor) and x.dtype.kind == BOOL


