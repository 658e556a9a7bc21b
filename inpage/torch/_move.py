"Copies of numbers, in other places."
import builtins

import numpy as np

from ._absent import absent
from ._engine import listed
from ._make import assigned
from ._modes import operation
from ._tensor import Tensor, axis_of, broadcast_back, made, numbers_of, raw, sizes
from ._types import BOOL, int64, promote_types
from ._views import diagonals, expand, flatten, view


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
            at = at.reshape(-1).astype(np.intp)        # in a page that is 32 bits
            return np.bincount(at, g.reshape(-1), size).reshape(shape)
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
    given = isinstance(repeats, Tensor)
    times = repeats._a.astype(np.intp) if given else int(repeats)
    return lambda a: np.repeat(a, times, None if dim is None else axis_of(dim, x.ndim))


def _index_select(x, dim, index):
    dim = axis_of(dim, x.ndim)
    if index.ndim > 1: raise IndexError("index_select(): Index is supposed to be a vector")
    at = in_range(index._a.reshape(-1), x.shape[dim] if x.ndim else 1)
    return lambda a: np.take(a, at.astype(np.intp), dim)


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
