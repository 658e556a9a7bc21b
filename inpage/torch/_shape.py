"Operations that move numbers: views, copies, indexing."
import builtins
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ._absent import absent
from ._elementwise import follows
from ._engine import State, listed
from ._make import assigned, clone
from ._modes import operation
from ._tensor import (
    Tensor,
    axes_of,
    axis_of,
    broadcast_back,
    history,
    made,
    numbers_of,
    overwrite,
    raw,
    sizes,
    viewed,
)
from ._types import BOOL, REAL, int64, promote_types

# --- views ---------------------------------------------------------------------------

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


# --- indexing ------------------------------------------------------------------------

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
    x = input
    there = indexed(x._a, key)
    new = assigned(x, value)
    if isinstance(value, Tensor) and value.dtype is not x.dtype and value.ndim:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {value.dtype} for the source."
        )
    try: np.broadcast_to(new._a, there.shape)
    except ValueError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(new.shape)} cannot be "
            f"broadcast to indexing result of shape {list(there.shape)}"
        ) from None
    a = x._a.copy()
    a[key] = new._a
    shape = new._a.shape
    def outside(g):
        g = g.copy()
        g[key] = 0
        return g
    result = made(a, x.dtype, (x, outside),
                  (new, lambda g: broadcast_back(g[key], shape)))
    return overwrite(x, result)


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


# --- copies --------------------------------------------------------------------------

def one_type(tensors) -> tuple[list[Tensor], object]:
    "Tensors, and the type that holds them all."
    found = list(tensors)
    for x in found: numbers_of("cat", x)
    if not found: raise RuntimeError("expected a non-empty list of Tensors")
    d = found[0].dtype
    for x in found[1:]: d = promote_types(d, x.dtype)
    return found, d


@operation()
def cat(tensors, dim=0):
    "Tensors one after the other, along a dimension that exists."
    found, d = one_type(tensors)
    kept = [x for x in found if x.shape != (0,)] or found[:1]
    if not kept[0].ndim:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be "
                           "concatenated")
    dim = axis_of(dim, kept[0].ndim)
    for n, x in enumerate(kept):
        if x.ndim != kept[0].ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got "
                               f"{kept[0].ndim} and {x.ndim}")
        for i, (a, b) in enumerate(zip(kept[0].shape, x.shape)):
            if i != dim and a != b:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected "
                    f"size {a} but got size {b} for tensor number {n} in the list."
                )
    ends = np.cumsum([0, *(x.shape[dim] for x in kept)]).tolist()
    lead = (slice(None),) * dim
    def rule(a, b): return lambda g: g[(*lead, slice(a, b))]
    edges = [(x, rule(a, b)) for x, a, b in zip(kept, ends, ends[1:])]
    return made(np.concatenate([raw(x, d) for x in kept], dim), d, *edges)


@operation()
def stack(tensors, dim=0):
    "Tensors of one shape, along a new dimension."
    found, d = one_type(tensors)
    dim = axis_of(dim, found[0].ndim + 1)
    for n, x in enumerate(found):
        if x.shape != found[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got "
                f"{list(found[0].shape)} at entry 0 and {list(x.shape)} at entry {n}"
            )
    lead = (slice(None),) * dim
    def rule(i): return lambda g: g[(*lead, i)]
    edges = [(x, rule(i)) for i, x in enumerate(found)]
    return made(np.stack([raw(x, d) for x in found], dim), d, *edges)


def moved(name: str, move):
    "A copy with its numbers elsewhere; `move` works on an array and says where."
    @operation(name)
    def call(input, *args, **kwargs):
        x = numbers_of(name, input)
        path = move(x, *args, **kwargs)
        shape, size = x._a.shape, x._a.size
        def rule(g):
            at = path(np.arange(size).reshape(shape))
            return np.bincount(at.reshape(-1), g.reshape(-1), size).reshape(shape)
        return made(np.ascontiguousarray(path(x._a)).reshape(path(x._a).shape), x.dtype,
                    (x, rule))
    return call


def _flip(x, *dims):
    at = axis_of(sizes(dims), x.ndim)
    return lambda a: np.flip(a, at)


def _roll(x, shifts, dims=None):
    shifts = tuple(map(int, shifts)) if isinstance(shifts, tuple | list) else int(shifts)
    return lambda a: np.roll(a, shifts, None if dims is None else axis_of(dims, x.ndim))


def _repeat(x, *times):
    times = sizes(times)
    if len(times) < x.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than "
                           "number of dimensions of tensor")
    return lambda a: np.tile(a, times)


def _repeat_interleave(x, repeats, dim=None, output_size=None):
    times = repeats._a if isinstance(repeats, Tensor) else int(repeats)
    return lambda a: np.repeat(a, times, None if dim is None else axis_of(dim, x.ndim))


def _index_select(x, dim, index):
    dim = axis_of(dim, x.ndim)
    if index.ndim > 1: raise IndexError("index_select(): Index is supposed to be a vector")
    at = in_range(index._a.reshape(-1), x.shape[dim] if x.ndim else 1)
    return lambda a: np.take(a, at, dim)


def in_range(at: np.ndarray, n: int) -> np.ndarray:
    "The indices, or PyTorch's error."
    if at.size and (at.min() < 0 or at.max() >= n): raise IndexError(
        "index out of range in self")
    return at


def _masked_select(x, mask):
    if mask.dtype.kind != BOOL:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    def path(a):
        a, m = np.broadcast_arrays(a, mask._a)
        return a[m]
    return path


def _diag(x, diagonal=0):
    if x.ndim != 2: raise RuntimeError("diag(): Supports 1D or 2D tensors.")
    return lambda a: np.diagonal(a, diagonal)


flip, roll, repeat = moved("flip", _flip), moved("roll", _roll), moved("repeat", _repeat)
repeat_interleave = moved("repeat_interleave", _repeat_interleave)
index_select = moved("index_select", _index_select)
masked_select, _diagonal_of = moved("masked_select", _masked_select), moved("diag", _diag)


def half(name: str, keep):
    "A copy with zeros on one side of a diagonal."
    @operation(name)
    def call(input, diagonal=0):
        x, k = numbers_of(name, input), int(diagonal)
        if x.ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        return made(keep(x._a, k), x.dtype, (x, lambda g: keep(g, k)))
    return call


tril, triu = half("tril", np.tril), half("triu", np.triu)


@operation()
def diag_embed(input, offset=0):
    "Matrices with these diagonals."
    x, n = input, input.shape[-1] + builtins.abs(offset)
    a = np.zeros((*x.shape[:-1], n, n), x._a.dtype)
    inner = lambda m: diagonals(m, offset, m.ndim - 2, m.ndim - 1)
    inner(a)[...] = x._a
    return made(a, x.dtype, (x, lambda g: inner(g).copy()))


def diag(input, diagonal=0):
    "A diagonal matrix, or the diagonal of a matrix."
    if input.ndim == 1: return diag_embed(input, diagonal)
    return _diagonal_of(input, diagonal)


def picks(input, dim: int, index: Tensor) -> tuple:
    "The index, as NumPy takes it, of `gather`."
    if index.dtype.name not in ("int64", "int32"):
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if index.ndim != input.ndim:
        raise RuntimeError("Index tensor must have the same number of dimensions as input "
                           "tensor")
    for i, (n, m) in enumerate(zip(index.shape, input.shape)):
        if i != dim and n > m:
            raise RuntimeError(
                f"Size does not match at dimension {i} expected index "
                f"{list(index.shape)} to be no larger than self {list(input.shape)} "
                f"apart from dimension {dim}"
            )
    a, n = index._a, input.shape[dim] if input.ndim else 1
    if a.size and (a.min() < 0 or a.max() >= n):
        bad = a.reshape(-1)[((a < 0) | (a >= n)).reshape(-1)][0]
        raise RuntimeError(f"index {bad} is out of bounds for dimension {dim} with size "
                           f"{n}")
    grid = list(np.indices(a.shape, sparse=True))
    if grid: grid[dim] = a
    return tuple(grid)


@operation()
def gather(input, dim, index, sparse_grad=False):
    "The numbers at these indices of a dimension."
    x, dim = numbers_of("gather", input), axis_of(dim, input.ndim)
    at, shape = picks(x, dim, index), x._a.shape
    def rule(g):
        whole = np.zeros(shape, g.dtype)
        np.add.at(whole, at, g)
        return whole
    return made(x._a[at], x.dtype, (x, rule))


def take_along_dim(input, indices, dim=None):
    "Like `gather`, with broadcasting."
    if dim is None: return gather(flatten(input), 0, flatten(indices))
    dim = axis_of(dim, input.ndim)
    shape = list(np.broadcast_shapes(
        *(tuple(1 if i == dim else n for i, n in enumerate(x.shape))
          for x in (input, indices))))
    def wide(x): return expand(x, *shape[:dim], x.shape[dim], *shape[dim + 1:])
    return gather(wide(input), dim, wide(indices))


def scattered(name: str, adds: bool):
    "An operation that writes, or adds, at indices of a dimension."
    @operation(name)
    def call(input, dim, index, src=None, value=None):
        x, dim = input, axis_of(dim, input.ndim)
        src = value if src is None else src
        at, a = picks_into(x, dim, index, src), x._a.copy()
        given = src._a[tuple(map(slice, index.shape))] if isinstance(src, Tensor) else src
        if isinstance(src, Tensor) and src.dtype is not x.dtype:
            raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
        if adds: np.add.at(a, at, given)
        else: a[at] = given
        shape = np.shape(src._a) if isinstance(src, Tensor) else ()
        def outside(g):
            if adds: return g
            g = g.copy()
            g[at] = 0
            return g
        def inside(g):
            whole = np.zeros(shape, g.dtype)
            whole[tuple(map(slice, index.shape))] = g[at]
            return whole
        return made(a, x.dtype, (x, outside), (src, inside))
    return call


def picks_into(x, dim, index, src) -> tuple:
    if isinstance(src, Tensor) and any(n > m for n, m in zip(index.shape, src.shape)):
        raise RuntimeError(
            f"Expected index {list(index.shape)} to be no larger than src "
            f"{list(src.shape)}"
        )
    return picks(x, dim, index)


scatter, scatter_add = scattered("scatter", False), scattered("scatter_add", True)


def by_index(name: str, write):
    "An operation on the parts of a dimension that an index names."
    @operation(name)
    def call(input, dim, index, source, alpha=1):
        x, dim = input, axis_of(dim, input.ndim)
        key = (slice(None),) * dim + (in_range(index._a, x.shape[dim]),)
        if isinstance(source, Tensor) and source.dtype is not x.dtype and source.ndim:
            raise RuntimeError(f"{name}(): self and source expected to have the same "
                               "dtype")
        new = assigned(x, source)
        if name != "index_fill" and new.shape != x._a[key].shape:
            raise RuntimeError(f"{name}(): source is of shape {list(new.shape)}; "
                               f"expected {list(x._a[key].shape)}")
        a, shape = x._a.copy(), new._a.shape
        write(a, key, alpha * new._a if alpha != 1 else new._a)
        def outside(g):
            if name == "index_add": return g
            g = g.copy()
            g[key] = 0
            return g
        inside = lambda g: broadcast_back(g[key] * alpha, shape)
        return made(a, x.dtype, (x, outside), (new, inside))
    return call


def put(a, key, b): a[key] = b


index_add = by_index("index_add", lambda a, key, b: np.add.at(a, key, b))
index_copy, index_fill = by_index("index_copy", put), by_index("index_fill", put)


@operation()
def nonzero(input, as_tuple=False):
    found = np.nonzero(input._a)
    if as_tuple: return tuple(made(i, int64) for i in found)
    return made(np.stack(found, 1) if found else np.zeros((1, 0)), int64)


@operation()
def one_hot(input, num_classes=-1):
    "Rows of zeros with a one at each index."
    if input.dtype is not int64:
        raise RuntimeError("one_hot is only applicable to index tensor.")
    n = num_classes if num_classes >= 0 else int(input._a.max()) + 1
    if input._a.size and (input._a.min() < 0 or input._a.max() >= n):
        raise RuntimeError("Class values must be smaller than num_classes.")
    return made((input._a[..., None] == np.arange(n)).astype(np.int64), int64)


def meshgrid(*tensors, indexing="ij"):
    "Coordinates of a grid."
    found = listed(tensors[0]) if len(tensors) == 1 else list(tensors)
    if indexing != "ij": raise absent('torch.meshgrid(indexing="xy")')
    n = [x.numel() for x in found]
    return tuple(expand(view(x, *(m if i == j else 1 for j, m in enumerate(n))), *n)
                 for i, x in enumerate(found))




def pad_of(input, pad: tuple, value) -> Tensor:
    "Numbers around a tensor; a negative width cuts off."
    x, n = input, len(pad) // 2
    if len(pad) % 2 or n > x.ndim:
        raise RuntimeError("Padding length should be less than or equal to two times the "
                           f"input dimension but got padding length {len(pad)} and input "
                           f"of dimension {x.ndim}")
    ends = [(0, 0)] * (x.ndim - n) + [pad[2 * i:2 * i + 2] for i in range(n)][::-1]
    inner = tuple(slice(max(-a, 0), m - max(-b, 0)) for (a, b), m in zip(ends, x.shape))
    outer = [(max(a, 0), max(b, 0)) for a, b in ends]
    def rule(g):
        whole = np.zeros(x.shape, g.dtype)
        whole[inner] = g[tuple(slice(a, g.shape[i] - b) for i, (a, b) in enumerate(outer))]
        return whole
    return made(np.pad(x._a[inner], outer, constant_values=value), x.dtype, (x, rule))
