"Tensors from numbers, and from nothing."
import numpy as np

from ._modes import operation
from ._tensor import MetaTensor, Tensor, made, raw, sizes, stored
from ._types import (
    META,
    OF_KIND,
    OF_NUMPY,
    REAL,
    bool_,
    device_of,
    dtype,
    float32,
    int64,
    kind_of,
    promote_types,
)


def inferred(value) -> dtype:
    "The type that PyTorch gives to numbers of Python."
    if isinstance(value, Tensor): return value.dtype
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype in OF_NUMPY: return OF_NUMPY[value.dtype]
        raise TypeError(f"can't convert np.ndarray of type {value.dtype}")
    if isinstance(value, list | tuple | range):
        found = [inferred(v) for v in value]
        if not found: return float32
        best = found[0]
        for d in found[1:]: best = promote_types(best, d)
        return best
    if isinstance(value, bool | int | float | complex): return OF_KIND[kind_of(value)]
    raise TypeError(f"new(): invalid data type '{type(value).__name__}'")


def plain(value):
    "Nested numbers, without tensors."
    if isinstance(value, Tensor): return value._a
    return [plain(v) for v in value] if isinstance(value, list | tuple | range) else value


def lengths(value) -> tuple:
    "The shape of nested lists; PyTorch's error if they are ragged."
    if isinstance(value, Tensor | np.ndarray | np.generic): return tuple(value.shape)
    if not isinstance(value, list | tuple | range): return ()
    inner = [lengths(v) for v in value]
    for n, found in enumerate(inner):
        if found == inner[0]: continue
        if found and inner[0]:
            raise ValueError(
                f"expected sequence of length {inner[0][0]} at dim 1 (got {found[0]})"
            )
        raise TypeError(f"not a sequence, or not a number, at [{n}]")
    return len(inner), *(inner[0] if inner else ())


@operation()
def tensor(data, dtype=None, device=None, requires_grad=False):
    "A new tensor of these numbers."
    d = dtype or inferred(data)
    lengths(data)
    try: a = np.array(plain(data), dtype=d.np)
    except OverflowError:
        raise RuntimeError(
            f"value cannot be converted to type {d.name} without overflow"
        ) from None
    return finished(a, d, device, requires_grad)


def finished(a, d: dtype, device, requires_grad: bool = False) -> Tensor:
    "The tensor on its device, with its flag."
    out = made(a, d) if device_of(device) is not META else MetaTensor(a.shape, d)
    return out.requires_grad_() if requires_grad else out


def as_tensor(data, dtype=None, device=None):
    "The same tensor or memory if possible, else a new one."
    if isinstance(data, Tensor): return data if dtype is None else data.to(dtype)
    if isinstance(data, np.ndarray) and data.dtype in OF_NUMPY:
        return from_numpy(data) if dtype is None else from_numpy(data).to(dtype)
    return tensor(data, dtype=dtype, device=device)


def from_numpy(a):
    if not isinstance(a, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(a).__name__})")
    if a.dtype in OF_NUMPY: return Tensor(a, OF_NUMPY[a.dtype])
    raise TypeError(f"can't convert np.ndarray of type {a.dtype}")


def maker(name: str, value: float):
    "A function that makes tensors of one number, and one that makes them like others."
    @operation(name)
    def make(*size, dtype=None, device=None, requires_grad=False, memory_format=None):
        return filled(sizes(size), value, dtype or float32, device, requires_grad)

    @operation(f"{name}_like")
    def like(input, dtype=None, device=None, requires_grad=False, memory_format=None):
        place = input.device if device is None else device
        return filled(input.shape, value, dtype or input.dtype, place, requires_grad)
    return make, like


def filled(shape: tuple, value, d: dtype, device, requires_grad=False) -> Tensor:
    "A tensor of one number."
    if min(shape, default=0) < 0:
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(shape)}: "
            f"{list(shape)}"
        )
    if device_of(device) == META: out = MetaTensor(tuple(shape), d)
    else: out = made(np.full(shape, value, d.np), d)
    return out.requires_grad_() if requires_grad else out


zeros, zeros_like = maker("zeros", 0)
ones, ones_like = maker("ones", 1)
empty, empty_like = maker("empty", 0)


@operation()
def full(size, fill_value, dtype=None, device=None, requires_grad=False):
    d = dtype or inferred(fill_value)
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    return filled(sizes((size,)), value, d, device, requires_grad)


@operation()
def full_like(input, fill_value, dtype=None, device=None, requires_grad=False):
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    return filled(input.shape, value, dtype or input.dtype, device, requires_grad)


@operation()
def arange(*ends, start=0, end=None, step=1, dtype=None, device=None):
    "Numbers from start to end, in steps; the end is not among them."
    if len(ends) == 1: end = ends[0]
    elif ends: start, end, step = (*ends, step)[:3]
    bounds = [x.item() if isinstance(x, Tensor) else x for x in (start, end, step)]
    whole = all(kind_of(x) < REAL for x in bounds)
    if bounds[2] == 0: raise RuntimeError("step must be nonzero")
    if (bounds[1] - bounds[0]) / bounds[2] < 0:
        raise RuntimeError(
            "upper bound and lower bound inconsistent with step sign"
        )
    d = dtype or (int64 if whole else float32)
    return finished(np.arange(*bounds), d, device)


@operation()
def linspace(start, end, steps, dtype=None, device=None):
    "Evenly spaced numbers, both ends among them."
    d = dtype or float32
    return finished(np.linspace(start, end, steps), d, device)


@operation()
def eye(n, m=None, dtype=None, device=None):
    d = dtype or float32
    return finished(np.eye(n, m, dtype=d.np), d, device)


# --- from one type to another --------------------------------------------------------

@operation("_to_copy")
def cast(input, dtype):
    "The same numbers in a new tensor of a type."
    x = input
    if x.dtype is dtype: a = x._a.copy(order="K")
    elif x.dtype.is_complex and not dtype.is_complex: a = stored(x._a.real, dtype)
    else: a = stored(x._a.astype(bool) if dtype is bool_ else x._a, dtype)
    return made(a, dtype, (x, lambda g: g))


def to(self, *args, dtype=None, device=None, copy=False, **others):
    "The tensor in a type; itself if it has it."
    for a in args:
        if isinstance(a, type(float32)): dtype = a
        elif isinstance(a, Tensor): dtype = a.dtype
        elif a is not None: device = a
    device_of(device)
    if dtype in (None, self.dtype) and not copy: return self
    return cast(self, dtype or self.dtype)


@operation()
def clone(input, memory_format=None):
    "A copy; gradients flow through it."
    order = "C" if memory_format == "contiguous" or 0 in input._a.strides else "K"
    return made(input._a.copy(order=order), input.dtype, (input, lambda g: g))


def contiguous(self, memory_format=None):
    "The tensor with its numbers in order; itself if they are."
    if self.is_contiguous(): return self
    return clone(self, memory_format="contiguous")


def new_like(function):
    "A tensor's method that makes another one of its type."
    def new(self, *size, dtype=None, device=None, requires_grad=False):
        return function(*size, dtype=dtype or self.dtype, device=device,
                        requires_grad=requires_grad)
    return new


new_zeros, new_ones, new_empty, new_full, new_tensor = map(
    new_like, (zeros, ones, empty, full, tensor))


def assigned(self, source) -> Tensor:
    "A source as it is written into a tensor: of its type and shape."
    x = source if isinstance(source, Tensor) else made(raw(source, self.dtype), self.dtype)
    if x.dtype is not self.dtype: x = cast.op.body(x, self.dtype)
    return x
