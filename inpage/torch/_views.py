"The same memory seen in another way."
import builtins
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ._absent import absent
from ._elementwise import follows
from ._make import clone
from ._modes import operation
from ._tensor import Tensor, axes_of, axis_of, broadcast_back, numbers_of, sizes, viewed


def full_shape(shape: tuple, numel: int) -> tuple:
    "The shape with its -1 computed; PyTorch's errors if it does not fit."
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1: raise RuntimeError("only one dimension can be inferred")
    if -1 in shape and known == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the "
            "unspecified dimension size -1 can be any value and is ambiguous"
        )
    full = tuple(numel // known if n == -1 else n for n in shape)
    if math.prod(full) != numel or min(full, default=0) < 0:
        raise RuntimeError(
            f"shape '{list(shape)}' is invalid for input of size {numel}"
        )
    return full


def shares(a: np.ndarray, shape: tuple) -> bool:
    "Can an array be seen in this shape without a copy?"
    return not a.size or np.may_share_memory(a.reshape(shape), a)


@operation("view", view=True)
def _view(input, shape): return viewed(input, lambda a: a.reshape(shape))


def view(self, *shape):
    "The same memory in another shape, or as numbers of another type."
    if len(shape) == 1 and hasattr(shape[0], "itemsize") and hasattr(shape[0], "kind"):
        return as_type(self, shape[0])
    full = full_shape(sizes(shape), self.numel())
    if shares(self._a, full): return _view(self, full)
    raise RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one "
        "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
    )


@operation("view_dtype", view=True)
def as_type(input, dtype):
    "The bits of a tensor, read as another type of the same size."
    x = input
    if dtype.itemsize != x.dtype.itemsize: raise absent("view(dtype) of another size")
    if follows(x): raise absent("the gradient of view(dtype)")
    if "bfloat16" not in (dtype.name, x.dtype.name):
        out = Tensor(x._a.view(dtype.np), dtype)
    elif dtype.name == "bfloat16":
        bits = x._a.view(np.uint16).astype(np.uint32) << np.uint32(16)
        out = Tensor(bits.view(np.float32), dtype)
    else:
        bits = np.ascontiguousarray(x._a).view(np.uint32) >> np.uint32(16)
        out = Tensor(bits.astype(np.uint16).view(dtype.np), dtype)
    if "bfloat16" in (dtype.name, x.dtype.name): out._a.flags.writeable = False
    return out


def reshape(input, *shape):
    "Another shape: a view if possible, else a copy."
    x = numbers_of("reshape", input)
    full = full_shape(sizes(shape), x.numel())
    return _view(x if shares(x._a, full) else clone(x, memory_format="contiguous"), full)


def flatten(input, start_dim=0, end_dim=-1):
    "Neighbouring dimensions as one."
    x = numbers_of("flatten", input)
    if not x.ndim: return reshape(x, 1)
    a, b = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if a > b: raise RuntimeError("flatten() has invalid args: start_dim cannot come "
                                 "after end_dim")
    if a == b: return x
    return reshape(x, *x.shape[:a], math.prod(x.shape[a:b + 1]), *x.shape[b + 1:])


def unflatten(input, dim, sizes):
    "One dimension as several."
    dim = axis_of(dim, input.ndim)
    inner = full_shape(tuple(sizes), input.shape[dim])
    return view(input, *input.shape[:dim], *inner, *input.shape[dim + 1:])


@operation(view=True)
def expand(input, *shape):
    "Dimensions of size 1 repeated, without a copy."
    x, shape = input, sizes(shape)
    lead = len(shape) - x.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(shape)}) must be greater or "
            f"equal to the number of dimensions in the tensor ({x.ndim})"
        )
    full = tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape))
    for i, (n, m) in enumerate(zip(full[lead:], x.shape)):
        if n == m or m == 1: continue
        raise RuntimeError(
            f"The expanded size of the tensor ({n}) must match the existing size ({m}) "
            f"at non-singleton dimension {i + lead}.  Target sizes: {list(full)}.  "
            f"Tensor sizes: {list(x.shape)}"
        )
    out = viewed(x, lambda a: np.broadcast_to(a, full))
    if out._node is not None:
        small = x._a.shape
        (where, _), = out._node.edges
        out._node.edges = [(where, lambda g: broadcast_back(g, small))]
    return out


@operation(view=True)
def permute(input, *dims):
    order = axis_of(sizes(dims), input.ndim)
    if len(order) != input.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not "
            f"match the length of the desired ordering of dimensions i.e. "
            f"input.dim() = {input.ndim} is not equal to len(dims) = {len(order)}"
        )
    if len(set(order)) < len(order):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return viewed(input, lambda a: a.transpose(order))


@operation(view=True)
def transpose(input, dim0, dim1):
    i, j = axis_of(dim0, input.ndim), axis_of(dim1, input.ndim)
    return viewed(input, lambda a: a.swapaxes(i, j) if a.ndim else a)


def t(input):
    "A matrix transposed; vectors stay."
    if input.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D"
        )
    return transpose(input, 0, 1) if input.ndim == 2 else input


def matrices_turned(self):
    "The last two dimensions exchanged."
    if self.ndim < 2:
        raise RuntimeError(
            "tensor.mT is only supported on matrices or batches of matrices. Got "
            f"{self.ndim}-D tensor."
        )
    return transpose(self, -2, -1)


@operation(view=True)
def movedim(input, source, destination):
    return viewed(input, lambda a: np.moveaxis(a, source, destination))


@operation(view=True)
def unsqueeze(input, dim):
    dim = axis_of(dim, input.ndim + 1)
    return viewed(input, lambda a: np.expand_dims(a, dim))


@operation(view=True)
def squeeze(input, dim=None):
    "Without the dimensions of size 1, or without some of them."
    at = tuple(i for i in axes_of(dim, input.ndim) if input.shape[i] == 1)
    return viewed(input, lambda a: np.squeeze(a, at))


def diagonals(a: np.ndarray, offset: int, i: int, j: int) -> np.ndarray:
    "The diagonals of two dimensions, in the same memory."
    found = np.diagonal(a, offset, i, j)
    found.flags.writeable = a.flags.writeable
    return found


@operation(view=True)
def diagonal(input, offset=0, dim1=0, dim2=1):
    i, j = axis_of(dim1, input.ndim), axis_of(dim2, input.ndim)
    return viewed(input, lambda a: diagonals(a, offset, i, j))


@operation(view=True)
def unfold(input, dimension, size, step):
    "Windows along a dimension; each is a last dimension."
    dim = axis_of(dimension, input.ndim)
    if size > input.shape[dim]:
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is "
                           f"{input.shape[dim]} but size is {size}")
    steps = (slice(None),) * dim + (slice(None, None, step),)
    return viewed(input, lambda a: sliding_window_view(a, size, dim)[steps])


@operation("slice", view=True)
def part(input, dim, start, end, several=False):
    key = (slice(None),) * dim + (slice(start, end),)
    return viewed(input, lambda a: a[key], several)


def narrow(input, dim, start, length):
    "So many numbers of a dimension, from a start."
    dim = axis_of(dim, input.ndim)
    start = int(start) + (input.shape[dim] if start < 0 else 0)
    if not 0 <= start <= start + length <= input.shape[dim]:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size "
                           f"({input.shape[dim]}).")
    return part(input, dim, start, start + length)


def split(input, split_size_or_sections, dim=0):
    "Pieces of a size, or of several sizes."
    dim, want = axis_of(dim, input.ndim), split_size_or_sections
    n = input.shape[dim]
    if isinstance(want, list | tuple):
        if builtins.sum(want) != n:
            raise RuntimeError(
                "split_with_sizes expects split_sizes to sum exactly to "
                f"{n} (input tensor's size at dimension {dim}), but got "
                f"split_sizes={list(want)}"
            )
        ends = np.cumsum([0, *want]).tolist()
    else:
        if want <= 0 < n:
            raise RuntimeError(f"split expects split_size be non-negative, but got "
                               f"split_size={want}")
        ends = [*range(0, n, max(want, 1)), n] if n else [0, 0]
    return tuple(part(input, dim, a, b, True) for a, b in zip(ends, ends[1:]))


def chunk(input, chunks, dim=0):
    "At most so many pieces of one size."
    n = input.shape[axis_of(dim, input.ndim)]
    if chunks <= 0: raise RuntimeError("chunk expects `chunks` to be greater than 0")
    return split(input, -(-n // chunks), dim) if n else (input,) * chunks


def tensor_split(input, indices_or_sections, dim=0):
    "So many pieces, whose sizes differ by one at most."
    dim, want = axis_of(dim, input.ndim), indices_or_sections
    n = input.shape[dim]
    if isinstance(want, list | tuple): ends = [0, *want, n]
    else: ends = np.cumsum([0, *(n // want + (i < n % want) for i in range(want))]).tolist()
    return tuple(part(input, dim, a, b, True) for a, b in zip(ends, ends[1:]))


@operation("select", view=True)
def _select(input, dim, index, several=False):
    key = (slice(None),) * dim + (index,)
    return viewed(input, lambda a: a[(*key, ...)], several)


def select(input, dim, index):
    "One number of a dimension, which goes."
    dim = axis_of(dim, input.ndim)
    if not -input.shape[dim] <= index < input.shape[dim]:
        raise IndexError(f"select(): index {index} out of range for tensor of size "
                         f"{list(input.shape)} at dimension {dim}")
    return _select(input, dim, int(index))


def unbind(input, dim=0):
    "All parts of a dimension, one by one."
    if not input.ndim: raise RuntimeError("Dimension specified as 0 but tensor has no "
                                          "dimensions")
    dim = axis_of(dim, input.ndim)
    return tuple(_select(input, dim, i, True) for i in range(input.shape[dim]))


def iterated(self):
    if not self.ndim: raise TypeError("iteration over a 0-d tensor")
    return iter(unbind(self))
