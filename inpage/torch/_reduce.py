"Operations along dimensions: sums, extremes, softmax, orders, running sums."
import builtins
import math
from collections import namedtuple

import numpy as np

from ._absent import absent
from ._elementwise import follows, maximum, minimum
from ._modes import operation
from ._move import gather
from ._tensor import OUT, Tensor, axes_of, axis_of, made, numbers_of, raw, stored
from ._types import REAL, bool_, float32, float64, int64
from ._views import flatten, part


def spread_out(g: np.ndarray, axes: tuple, keepdim: bool) -> np.ndarray:
    "The gradient at a reduction, with the reduced dimensions back, of size 1."
    return g if keepdim else np.expand_dims(g, axes)


def summed_type(x: Tensor, dtype):
    "The type of a sum: integers are summed in 64 bits."
    return dtype or (x.dtype if x.dtype.kind >= REAL else int64)


@operation()
def sum(input, dim=None, keepdim=False, dtype=None):
    x, d = numbers_of("sum", input), summed_type(input, dtype)
    axes, shape = axes_of(dim, x.ndim), x._a.shape
    y = np.add.reduce(raw(x, d), axes, keepdims=keepdim)
    return made(y, d, (x, lambda g: np.broadcast_to(spread_out(g, axes, keepdim), shape)))


@operation()
def mean(input, dim=None, keepdim=False, dtype=None):
    x = numbers_of("mean", input)
    d = dtype or x.dtype
    if d.kind < REAL:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a "
            f"floating point or complex dtype. Got: {word_of(d)}"
        )
    axes, shape = axes_of(dim, x.ndim), x._a.shape
    n = math.prod(shape[i] for i in axes)
    y = np.true_divide(np.add.reduce(raw(x, d), axes, keepdims=keepdim), n)
    return made(y, d, (x, lambda g: np.broadcast_to(
        spread_out(g, axes, keepdim) / n, shape)))


def word_of(d) -> str:
    "What PyTorch's messages call a type."
    return {"int64": "Long", "int32": "Int", "bool": "Bool", "int16": "Short",
            "uint8": "Byte", "int8": "Char"}.get(d.name, d.name.capitalize())


@operation()
def prod(input, dim=None, keepdim=False, dtype=None):
    x, d = numbers_of("prod", input), summed_type(input, dtype)
    a, axes = raw(x, d), axes_of(dim, x.ndim)
    y = np.multiply.reduce(a, axes, keepdims=keepdim)
    def rule(g):
        g = np.broadcast_to(spread_out(g, axes, keepdim), a.shape)
        return g * others(a, axes)
    return made(y, d, (x, rule), saves=(x,))


def others(a: np.ndarray, axes: tuple) -> np.ndarray:
    "The product of all other numbers, at each number."
    zeros = (a == 0).sum(axes, keepdims=True)
    rest = np.where(a == 0, 1, a)
    whole = np.multiply.reduce(rest, axes, keepdims=True)
    alone = (zeros == 0) | ((zeros == 1) & (a == 0))
    return np.where(alone, whole / rest, 0)


@operation()
def var(input, dim=None, unbiased=None, keepdim=False, correction=None):
    "The variance; without the mean's degree of freedom unless told otherwise."
    return moment("var", input, dim, unbiased, keepdim, correction)


@operation()
def std(input, dim=None, unbiased=None, keepdim=False, correction=None):
    "The square root of the variance."
    return moment("std", input, dim, unbiased, keepdim, correction)


def moment(name, x, dim, unbiased, keepdim, correction) -> Tensor:
    "Variance or standard deviation, with its slope."
    if isinstance(dim, bool): dim, unbiased = None, dim
    less = correction if correction is not None else 0 if unbiased is False else 1
    x = numbers_of(name, x)
    if x.dtype.kind < REAL:
        raise RuntimeError(f"{name} only support floating point and complex dtypes")
    axes, a = axes_of(dim, x.ndim), x._a.astype(np.float64)
    n = math.prod(a.shape[i] for i in axes)
    away = a - (np.add.reduce(a, axes, keepdims=True) / n if n else np.nan)
    room = np.float64(builtins.max(n - less, 0))
    y = np.add.reduce(away * away, axes, keepdims=True) / room
    root = np.sqrt(y)
    def rule(g):
        g = spread_out(g, axes, keepdim)
        if name == "var": return g * 2 * away / room
        return np.where(root == 0, 0, g * away / (room * root))
    found = y if name == "var" else root
    if not keepdim: found = found.reshape(np.squeeze(found, axes).shape)
    return made(found, x.dtype, (x, rule), saves=(x, OUT) if name == "std" else (x,))


@operation("linalg_vector_norm")
def norm(input, p=2, dim=None, keepdim=False, dtype=None):
    "The length of vectors; p is the exponent."
    x = numbers_of("norm", input)
    if x.dtype.kind < REAL: raise RuntimeError(
        f"linalg.vector_norm: Expected a floating point or complex tensor as input. "
        f"Got {word_of(x.dtype)}")
    p = 2 if p in (None, "fro") else float(p)
    axes, a = axes_of(dim, x.ndim), x._a.astype(np.float64)
    size = np.abs(a)
    if p == math.inf: y = size.max(axes, keepdims=True)
    elif p == -math.inf: y = size.min(axes, keepdims=True)
    elif p == 0: y = (size != 0).sum(axes, keepdims=True).astype(float)
    else: y = np.add.reduce(size**p, axes, keepdims=True) ** (1 / p)
    def rule(g):
        g = spread_out(g, axes, keepdim)
        if p == 0: return np.zeros_like(a)
        if abs(p) == math.inf:
            most = size == y
            return g * np.sign(a) * most / most.sum(axes, keepdims=True)
        return np.where(y == 0, 0, g * np.sign(a) * (size / np.where(y == 0, 1, y))**(p - 1))
    found = y if keepdim else y.reshape(np.squeeze(y, axes).shape)
    return made(found, x.dtype, (x, rule), saves=(x, OUT))


@operation()
def any(input, dim=None, keepdim=False):
    y = np.any(input._a, axes_of(dim, input.ndim), keepdims=keepdim)
    return made(y, bool_)


@operation()
def all(input, dim=None, keepdim=False):
    y = np.all(input._a, axes_of(dim, input.ndim), keepdims=keepdim)
    return made(y, bool_)


@operation()
def count_nonzero(input, dim=None):
    return made(np.count_nonzero(input._a, axes_of(dim, input.ndim)), int64)


@operation()
def trace(input):
    if input.ndim != 2: raise RuntimeError("trace: expected a matrix")
    shape = input._a.shape
    rule = lambda g: g * np.eye(*shape)
    return made(np.trace(raw(input, input.dtype)), input.dtype, (input, rule))


# --- extremes ------------------------------------------------------------------------

Extreme = namedtuple("Extreme", "values indices")


def not_empty(name: str, x: Tensor, axes: tuple) -> None:
    if x.numel(): return
    if not axes or not math.prod(x.shape[i] for i in axes):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )


def evenly(name: str, reduce):
    "The largest or smallest number; equal ones share the gradient."
    @operation(name)
    def call(input, dim=None, keepdim=False):
        x = numbers_of(name, input)
        a, axes = x._a, axes_of(dim, x.ndim)
        not_empty(name, x, axes)
        y = reduce(a, axes, keepdims=True)
        def rule(g):
            best = (a == y) | (np.isnan(a) & np.isnan(y))
            return spread_out(g, axes, keepdim) * best / best.sum(axes, keepdims=True)
        found = y if keepdim else y.reshape(np.squeeze(y, axes).shape)
        return made(found, x.dtype, (x, rule), saves=(x, OUT))
    return call


amax = evenly("amax", np.maximum.reduce)
amin = evenly("amin", np.minimum.reduce)


def extreme(name: str, which, whole, pairwise):
    "The largest or smallest number: of all, of two tensors, or along a dimension."
    @operation(name)
    def along(input, dim, keepdim=False):
        x, dim = numbers_of(name, input), axis_of(dim, input.ndim)
        not_empty(name, x, (dim,) if x.ndim else ())
        at = np.expand_dims(which(x._a, dim), dim) if x.ndim else np.zeros((), np.int64)
        y = np.take_along_axis(x._a, at, dim) if x.ndim else x._a
        shape = x._a.shape
        def rule(g):
            if not shape: return g
            out = np.zeros(shape, g.dtype)
            np.put_along_axis(out, at, g if keepdim else np.expand_dims(g, dim), dim)
            return out
        short = (np.squeeze(a, dim) if x.ndim and not keepdim else a for a in (y, at))
        return Extreme(made(next(short), x.dtype, (x, rule)), made(next(short), int64))

    def call(input, dim=None, keepdim=False, other=None):
        if isinstance(dim, Tensor): dim, other = None, dim
        if other is not None: return pairwise(input, other)
        if dim is not None: return along(input, dim, keepdim)
        not_empty(name, input, ())
        return whole(input)
    call.op = along.op
    return call


max = extreme("max", np.argmax, amax, maximum)
min = extreme("min", np.argmin, amin, minimum)


def position(name: str, which):
    "The index of the largest or smallest number, the first of equal ones."
    @operation(name)
    def call(input, dim=None, keepdim=False):
        x = numbers_of(name, input)
        if not x.numel(): not_empty(name, x, (axis_of(dim, x.ndim),) if dim is not None else ())
        if dim is None: return made(np.asarray(which(x._a)), int64)
        dim = axis_of(dim, x.ndim)
        if not x.ndim: return made(np.zeros((), np.int64), int64)
        at = which(x._a, dim)
        return made(np.expand_dims(at, dim) if keepdim else at, int64)
    return call


argmax, argmin = position("argmax", np.argmax), position("argmin", np.argmin)


# --- softmax -------------------------------------------------------------------------

def soft_type(name: str, x: Tensor, dtype):
    "The type of a softmax; integers have none."
    d = dtype or numbers_of(name, x).dtype
    if d.kind >= REAL: return d
    raise RuntimeError(
        f"\"{name}_lastdim_kernel_impl\" not implemented for '{word_of(d)}'"
    )


def lowered(a: np.ndarray, dim) -> np.ndarray:
    "Numbers less the largest one of their row."
    return a - a.max(dim, keepdims=True) if a.size else a


def soft(name: str, compute, slope):
    "A softmax or its logarithm; a single number is a row of one."
    @operation(f"_{name}")
    def call(input, dim=None, dtype=None):
        x, d = input, soft_type(name, input, dtype)
        dim = axis_of(implicit(x) if dim is None else dim, x.ndim)
        a = raw(x, d)
        y = compute(lowered(a.reshape(a.shape or 1), dim), dim).reshape(a.shape)
        y = stored(y, d)
        if not follows(x): return made(y, d)
        def rule(g):
            rows = (part.reshape(y.shape or 1) for part in (g, y))
            return slope(*rows, dim).reshape(y.shape)
        return made(y, d, (x, rule), saves=(OUT,))
    return call


def implicit(x: Tensor) -> int: return 0 if x.ndim in (0, 1, 3) else 1


def soft_of(z, dim):
    e = np.exp(z)
    return e / e.sum(dim, keepdims=True)


def soft_slope(g, y, dim):
    gy = g * y
    return gy - y * gy.sum(dim, keepdims=True)


softmax = soft("softmax", soft_of, soft_slope)
log_softmax = soft("log_softmax", lambda z, dim: z - np.log(np.exp(z).sum(dim, keepdims=True)),
                   lambda g, y, dim: g - np.exp(y) * g.sum(dim, keepdims=True))


@operation()
def logsumexp(input, dim, keepdim=False):
    "The logarithm of the sum of exponentials, without overflow."
    x = numbers_of("logsumexp", input)
    d = x.dtype if x.dtype.kind >= REAL else float32
    a, axes = raw(x, d), axes_of(dim, x.ndim)
    top = a.max(axes, keepdims=True) if a.size else np.zeros((), d.work)
    top = np.where(np.isfinite(top), top, 0).astype(d.work)
    y = np.log(np.exp(a - top).sum(axes, keepdims=True)) + top
    rule = lambda g: spread_out(g, axes, keepdim) * np.exp(a - y)
    found = y if keepdim else y.reshape(np.squeeze(y, axes).shape)
    return made(found, d, (x, rule), saves=(x, OUT))


# --- running sums --------------------------------------------------------------------

def backwards(a: np.ndarray, dim: int) -> np.ndarray:
    "Sums from each number to the last one."
    return np.flip(np.cumsum(np.flip(a, dim), dim), dim)


@operation()
def cumsum(input, dim, dtype=None):
    x, d, dim = numbers_of("cumsum", input), summed_type(input, dtype), axis_of(dim, input.ndim)
    a = raw(x, d)
    if not a.ndim: return made(a, d, (x, lambda g: g))
    wide = np.float64 if d is float32 else a.dtype
    return made(np.cumsum(a, dim, dtype=wide), d, (x, lambda g: backwards(g, dim)))


@operation()
def cumprod(input, dim, dtype=None):
    x, d, dim = numbers_of("cumprod", input), summed_type(input, dtype), axis_of(dim, input.ndim)
    a = raw(x, d)
    y = np.cumprod(a, dim, dtype=np.float64 if d is float32 else a.dtype)
    def rule(g): return product_slope(g, a, dim)
    return made(y, d, (x, rule), saves=(x, OUT))


def product_slope(g: np.ndarray, a: np.ndarray, dim: int) -> np.ndarray:
    "The gradient of running products, also where numbers are zero."
    a, g = np.moveaxis(a, dim, 0), np.moveaxis(g, dim, 0)
    out, before = np.zeros_like(g), np.ones_like(a[:1])[0] if len(a) else None
    for i in range(len(a)):
        after = np.concatenate([before[None], a[i + 1:]]).cumprod(0)
        out[i] = (after * g[i:]).sum(0)
        before = before * a[i]
    return np.moveaxis(out, 0, dim)


def running(name: str, accumulate, better):
    "The largest or smallest number so far, and where it is; the last of equal ones."
    @operation(name)
    def call(input, dim):
        x, dim = numbers_of(name, input), axis_of(dim, input.ndim)
        y = accumulate(x._a, dim)
        n = x.shape[dim]
        steps = np.arange(n).reshape([-1 if i == dim else 1 for i in range(x.ndim)])
        at = np.maximum.accumulate(np.where(x._a == y, steps, 0), dim)
        shape = x._a.shape
        def rule(g):
            out = np.zeros(shape, g.dtype)
            grid = list(np.indices(shape, sparse=True))
            grid[dim] = at
            np.add.at(out, tuple(grid), g)
            return out
        return Extreme(made(y, x.dtype, (x, rule)), made(at, int64))
    return call


cummax = running("cummax", np.maximum.accumulate, np.greater)
cummin = running("cummin", np.minimum.accumulate, np.less)


@operation()
def logcumsumexp(input, dim):
    "The logarithm of running sums of exponentials."
    x, dim = numbers_of("logcumsumexp", input), axis_of(dim, input.ndim)
    a = raw(x, x.dtype)
    y = np.logaddexp.accumulate(a, dim)
    rule = lambda g: backwards(g * np.exp(-y), dim) * np.exp(a)
    return made(y, x.dtype, (x, rule), saves=(x, OUT))


# --- orders --------------------------------------------------------------------------

def order_of(a: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    "Indices that sort, NaN as the largest, equal numbers in their order."
    if not a.ndim: return np.zeros((), np.int64)
    if not descending: return np.argsort(a, dim, kind="stable")
    back = np.argsort(np.flip(a, dim), dim, kind="stable")
    return np.flip(a.shape[dim] - 1 - back, dim)


@operation()
def sort(input, dim=-1, descending=False, stable=False):
    x, dim = numbers_of("sort", input), axis_of(dim, input.ndim)
    at = made(order_of(x._a, dim, descending), int64)
    return Extreme(gather.op.body(x, dim, at) if x.ndim else x.clone(), at)


def argsort(input, dim=-1, descending=False, stable=False):
    return sort(input, dim, descending, stable).indices


@operation()
def topk(input, k, dim=-1, largest=True, sorted=True):
    "The k largest or smallest numbers, in order."
    x, dim = numbers_of("topk", input), axis_of(dim, input.ndim)
    if not 0 <= k <= (x.shape[dim] if x.ndim else 1):
        raise RuntimeError("selected index k out of range")
    at = order_of(x._a, dim, largest)
    at = made(np.ascontiguousarray(np.take(at, range(k), dim) if x.ndim else at), int64)
    return Extreme(gather.op.body(x, dim, at) if x.ndim else x.clone(), at)


def kthvalue(input, k, dim=-1, keepdim=False):
    "The k-th smallest number."
    found = sort(input, dim)
    dim = axis_of(dim, input.ndim)
    if not 1 <= k <= input.shape[dim]:
        raise RuntimeError("kthvalue(): selected number k out of range for dimension "
                           f"{dim}")
    pair = [part(x, dim, k - 1, k) for x in found]
    return Extreme(*(x if keepdim else x.squeeze(dim) for x in pair))


def median(input, dim=None, keepdim=False):
    "The middle number, the lower one of two."
    if dim is None: return kthvalue(flatten(input), (input.numel() + 1) // 2).values
    return kthvalue(input, (input.shape[dim] + 1) // 2, dim, keepdim)


@operation()
def quantile(input, q, dim=None, keepdim=False):
    "The number below which a part of the numbers lies, interpolated."
    x = numbers_of("quantile", input)
    if follows(x): raise absent("the gradient of quantile")
    at = q._a if isinstance(q, Tensor) else q
    return made(np.quantile(x._a, at, None if dim is None else axis_of(dim, x.ndim),
                            keepdims=keepdim), x.dtype)


@operation()
def bincount(input, weights=None, minlength=0):
    "How often each integer occurs, or the sum of its weights."
    if input.dtype.kind >= REAL or input.ndim != 1 or (input._a < 0).any():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and follows(weights): raise absent("the gradient of bincount")
    w = None if weights is None else weights._a
    found = np.bincount(input._a.astype(np.intp), w, minlength)
    d = int64 if w is None else weights.dtype if weights.dtype is float32 else float64
    return made(found, d)


@operation("_unique2")
def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    "The different numbers, in order."
    found = np.unique(input._a, return_inverse=True, return_counts=True, axis=dim)
    values, inverse, counts = found
    shape = input.shape if dim is None else (-1,)
    out = [made(values, input.dtype)]
    if return_inverse: out.append(made(inverse.reshape(shape), int64))
    if return_counts: out.append(made(counts, int64))
    return tuple(out) if out[1:] else out[0]


@operation()
def searchsorted(sorted_sequence, input, right=False, side=None):
    "Where numbers belong in an ordered row."
    row = sorted_sequence._a
    if row.ndim != 1: raise absent("torch.searchsorted in several rows")
    x = input._a if isinstance(input, Tensor) else np.asarray(input)
    side = side or ("right" if right else "left")
    return made(np.searchsorted(row, x, side), int64)


def nansum(input, dim=None, keepdim=False):
    return sum(input.nan_to_num(0., math.inf, -math.inf), dim, keepdim)


