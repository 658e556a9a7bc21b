"Reading and writing parts of a tensor."
import numpy as np

from ._elementwise import follows
from ._engine import State
from ._make import assigned
from ._modes import operation
from ._tensor import Tensor, broadcast_back, history, made, overwrite, viewed
from ._types import BOOL, REAL
from ._views import expand, reshape

ENDS = (int, type(None))

def simple(k) -> bool:
    "Is it an integer, a slice of integers, None or an ellipsis?"
    if type(k) is slice:
        known = type(k.start) in ENDS and type(k.stop) in ENDS
        return known and (k.step is None or type(k.step) is int and k.step > 0)
    return type(k) is int or k is None or k is Ellipsis


def plain_key(key, x: Tensor) -> tuple[tuple, bool]:
    "An index as NumPy takes it, and whether it copies (with a list or tensor in it)."
    parts = key if type(key) is tuple else (key,)
    if all(map(simple, parts)): return (*parts, ...) if ... not in parts else parts, False
    keys, copies = [], False
    for k in parts:
        if isinstance(k, Tensor):
            if k.dtype.kind >= REAL:
                raise IndexError(
                    "tensors used as indices must be long, int, byte or bool tensors"
                )
            copies = copies or k.ndim > 0 or k.dtype.kind == BOOL
            k = k._a if k.ndim or k.dtype.kind == BOOL else int(k)
        elif isinstance(k, list | np.ndarray | range):
            k, copies = np.asarray(_untensored(k)), True
            if not k.size: k = k.astype(np.int64)
        elif isinstance(k, bool): copies = True
        elif isinstance(k, slice):
            k = slice(*(None if e is None else e.__index__()
                        for e in (k.start, k.stop, k.step)))
            if k.step is not None and k.step <= 0:
                raise ValueError("step must be greater than zero")
        elif not (k is None or k is Ellipsis or hasattr(k, "__index__")):
            raise TypeError(f"tensor indices are {type(k).__name__}; expected integers, "
                            "slices, an ellipsis, None, lists or tensors")
        keys.append(k)
    if not copies and Ellipsis not in keys: keys.append(Ellipsis)
    return tuple(keys), copies


def _untensored(k): return [_untensored(v) for v in k] if isinstance(k, list) else (
    k.tolist() if isinstance(k, Tensor) else k)


def indexed(a: np.ndarray, key: tuple) -> np.ndarray:
    "The numbers of an array at an index, with PyTorch's errors."
    try: return a[key]
    except IndexError as error: raise IndexError(said_of(error, a, key)) from None


def said_of(error: Exception, a: np.ndarray, key: tuple) -> str:
    "NumPy's complaint about an index, in the words of PyTorch."
    text = str(error)
    if "too many indices" in text:
        return f"too many indices for tensor of dimension {a.ndim}"
    if "boolean index did not match" in text:
        return text.replace("boolean index", "the mask").replace("array", "tensor")
    return text.replace("axis", "dimension")


@operation("slice", view=True)
def _at(input, key):
    indexed(input._a, key)
    return viewed(input, lambda a: a[key])


@operation("index")
def _picked(input, key):
    x = input
    shape = x._a.shape
    def rule(g):
        whole = np.zeros(shape, g.dtype)
        np.add.at(whole, key, g)
        return whole
    return made(indexed(x._a, key), x.dtype, (x, rule))


def getitem(self, key):
    key, copies = plain_key(key, self)
    return (_picked if copies else _at)(self, key)


def setitem(self, key, value):
    "Write into a part of a tensor."
    key, copies = plain_key(key, self)
    if not copies:
        copy_(_at(self, key), value)
        return
    index_put_(self, key, value)


@operation("index_put_")
def index_put_(input, key, value):
    "Write at an index with lists or tensors in it."
    lone = not isinstance(value, Tensor) or not value.ndim
    return overwrite(input, put(input, key, assigned(input, value) if lone else value))


@operation()
def index_put(input, indices, values, accumulate=False):
    "A tensor with values, or with values added, at indices, which are tensors."
    if not isinstance(indices, tuple | list):
        raise TypeError("index_put(): argument 'indices' must be tuple of Tensors")
    for what in (*indices, values):
        if not isinstance(what, Tensor):
            raise TypeError(f"index_put(): expected Tensor, got {type(what).__name__}")
    return put(input, plain_key(tuple(indices), input)[0], values, accumulate)


def put(x: Tensor, key: tuple, new: Tensor, adds: bool = False) -> Tensor:
    "A tensor with other numbers at an index, or with those added to its own."
    there = indexed(x._a, key)
    if new.dtype is not x.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {new.dtype} for the source."
        )
    try: np.broadcast_to(new._a, there.shape)
    except ValueError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(new.shape)} cannot be "
            f"broadcast to indexing result of shape {list(there.shape)}"
        ) from None
    a, shape = x._a.copy(), new._a.shape
    if adds: np.add.at(a, key, new._a)
    else: a[key] = new._a
    def outside(g):
        if adds: return g
        g = g.copy()
        g[key] = 0
        return g
    inside = lambda g: broadcast_back(g[key], shape)
    return made(a, x.dtype, (x, outside), (new, inside))


@operation("copy_")
def copy_(self, source, non_blocking=False):
    "Write the numbers of another tensor into this one."
    new = assigned(self, source)
    if new.shape != self.shape:
        try: new = expand.op.body(squeezed_lead(new, self.ndim), *self.shape)
        except RuntimeError as error: raise RuntimeError(str(error)) from None
    return overwrite(self, new)


def squeezed_lead(x: Tensor, ndim: int) -> Tensor:
    "Without leading dimensions of size 1 that the target lacks."
    extra = x.ndim - ndim
    if extra <= 0 or x.shape[:extra].numel() != 1: return x
    return reshape(x, x.shape[extra:])


def as_it_was(x: Tensor) -> Tensor:
    "The numbers and the history that a tensor has before it is written to."
    if x.is_leaf and x.requires_grad: return x                # which is refused
    before = Tensor(x._a.copy(), x.dtype)
    before._node = history(x)
    return before


def inplace(function):
    "The method that writes the result of an operation into its first argument."
    body, name = function.op.body, function.op.word
    @operation(f"{name}_", like=body)
    def method(self, *args, **kwargs):
        followed = State.on and (self.requires_grad or any(map(follows, args)))
        new = body(as_it_was(self) if followed else self, *args, **kwargs)
        if new.shape != self.shape:
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast "
                f"shape {list(new.shape)}"
            )
        if new.dtype.kind > self.dtype.kind:
            raise RuntimeError(
                f"result type {new.dtype} can't be cast to the desired output type "
                f"{self.dtype}"
            )
        return overwrite(self, assigned(self, new))
    return method


@operation("zero_")
def zero_(self): return overwrite(self, made(np.zeros_like(self._a), self.dtype))


@operation("fill_")
def fill_(self, value):
    value = value.item() if isinstance(value, Tensor) else value
    return overwrite(self, made(np.full_like(self._a, value), self.dtype))
