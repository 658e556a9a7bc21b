"Operations number by number, with their slopes."
import inspect
import math

import numpy as np

from ._engine import State
from ._modes import operation
from ._tensor import (
    NUMBERS,
    OUT,
    Tensor,
    broadcast_back,
    common,
    history,
    is_mask,
    made,
    numbers_of,
    pair,
    raw,
    stored,
)
from ._types import COMPLEX, REAL, WHOLE, bool_, float16, float32, float64, int64

# --- of two tensors ------------------------------------------------------------------

OPERANDS = (Tensor, *NUMBERS)


def operands(name: str, a, b) -> TypeError:
    "PyTorch's error for what is not a number."
    bad = next(x for x in (a, b) if not isinstance(x, OPERANDS))
    return TypeError(f"{name}(): unsupported operand type {type(bad).__name__}")


def together(a, b):
    "Raise PyTorch's error unless two shapes broadcast."
    try: return np.broadcast_shapes(np.shape(a), np.shape(b))
    except ValueError: pass
    n = min(a.ndim, b.ndim)
    at = next(-i for i in range(1, n + 1)
              if a.shape[-i] != b.shape[-i] and 1 not in (a.shape[-i], b.shape[-i]))
    raise RuntimeError(
        f"The size of tensor a ({a.shape[at]}) must match the size of tensor b "
        f"({b.shape[at]}) at non-singleton dimension {max(a.ndim, b.ndim) + at}"
    )


def needs(rule) -> tuple[str, ...]:
    "What a rule needs besides the gradient: the names of its other parameters."
    return tuple(inspect.signature(rule).parameters)[1:] if rule else ()


def two(name: str, compute, slope_a=None, slope_b=None, floats=False, gives=None):
    """An operation on two tensors or numbers, a and b, with the result y.

    A slope is a function of the gradient and of those of a, b and y that it names;
    these are saved.
    """
    need_a, need_b = needs(slope_a), needs(slope_b)

    @operation(name)
    def call(input, other):
        if not (isinstance(input, OPERANDS) and isinstance(other, OPERANDS)):
            raise operands(name, input, other)
        d = pair(input, other)
        if floats and d.kind < REAL: d = float32
        a, b = raw(input, d), raw(other, d)
        try: y = compute(a, b)
        except ValueError:
            together(a, b)
            raise
        if gives: return made(y, gives)
        y = stored(y, d)
        if slope_a is None or not follows(input, other): return made(y, d)
        known, tensors = {"a": a, "b": b, "y": y}, {"a": input, "b": other, "y": OUT}
        edges, saves = [], set()
        for x, slope, need in ((input, slope_a, need_a), (other, slope_b, need_b)):
            if not follows(x): continue
            used = [known[word] for word in need]
            edges.append((x, back(slope, used, x.shape)))
            saves |= {tensors[word] for word in need}
        kept = tuple(x for x in saves if x is OUT or isinstance(x, Tensor))
        return made(y, d, *edges, saves=kept)
    return call


def back(slope, used: list, shape: tuple):
    "The rule of an argument of this shape, which may have been broadcast."
    return lambda g: broadcast_back(slope(g, *used), shape)


def follows(*values) -> bool:
    "Does one of these require a gradient?"
    if not State.on: return False
    for x in values:
        if isinstance(x, Tensor) and (x._asked or history(x) is not None): return True
    return False


def divided(a, b):
    "The quotient rounded down; a division by zero is refused for integers."
    if a.dtype.kind in "iu" and not np.all(b): raise RuntimeError("ZeroDivisionError")
    return np.floor_divide(a, b)


def rest(a, b):
    "The remainder, with the sign of the divisor."
    if a.dtype.kind in "iu" and not np.all(b): raise RuntimeError("ZeroDivisionError")
    return np.remainder(a, b)


def power(a, b):
    "A power; integers have none with a negative exponent."
    if a.dtype.kind in "iu" and np.any(b < 0):
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return np.power(a, b)


def power_slope(g, a, b):
    return np.where(b == 0, 0, g * b * np.power(a, b - 1)).astype(g.dtype)


def exponent_slope(g, a, y):
    zero = (a == 0) & (y == 0)
    return g * np.where(zero, 0, y * np.log(np.where(zero, 1, a)))


def larger(g, a, b): return np.where(a == b, g / 2, np.where(a > b, g, 0))
def smaller(g, a, b): return np.where(a == b, g / 2, np.where(a < b, g, 0))
def share(a, b): return 1 / (1 + np.exp(b - a))
def xlogy_of(a, b): return np.where((a == 0) & ~np.isnan(b), 0, a * np.log(b))


def xlogy_slope(g, a, b):
    return np.where((a == 0) & (b <= 0), 0, g * np.log(b))


add = two("add", np.add, lambda g: g, lambda g: g)
sub = two("sub", np.subtract, lambda g: g, lambda g: -g)
mul = two("mul", np.multiply, lambda g, b: g * b, lambda g, a: g * a)
div = two("div", np.true_divide, lambda g, b: g / b, lambda g, a, b: -g * (a / b / b),
          floats=True)
pow = two("pow", power, power_slope, exponent_slope)
maximum = two("maximum", np.maximum, larger, lambda g, a, b: larger(g, b, a))
minimum = two("minimum", np.minimum, smaller, lambda g, a, b: smaller(g, b, a))
logaddexp = two("logaddexp", np.logaddexp, lambda g, a, b: g * share(a, b),
                lambda g, a, b: g * share(b, a), floats=True)
atan2 = two("atan2", np.arctan2, lambda g, a, b: g * b / (a * a + b * b),
            lambda g, a, b: -g * a / (a * a + b * b), floats=True)
hypot = two("hypot", np.hypot, lambda g, a, y: g * a / y, lambda g, b, y: g * b / y,
            floats=True)
xlogy = two("xlogy", xlogy_of, xlogy_slope, lambda g, a, b: g * a / b, floats=True)
remainder = two("remainder", rest, lambda g: g,
                lambda g, a, b: -g * np.floor_divide(a, b))
fmod = two("fmod", np.fmod, lambda g: g, lambda g, a, b: -g * np.trunc(a / b))
floor_divide = two("floor_divide", divided)
eq, ne, lt, le, gt, ge = (two(name, f, gives=bool_) for name, f in (
    ("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal),
    ("gt", np.greater), ("ge", np.greater_equal)))
logical_and, logical_or, logical_xor = (two(f.__name__, f, gives=bool_) for f in (
    np.logical_and, np.logical_or, np.logical_xor))
bitwise_and, bitwise_or, bitwise_xor, lshift, rshift = (two(name, f) for name, f in (
    ("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or),
    ("bitwise_xor", np.bitwise_xor), ("bitwise_left_shift", np.left_shift),
    ("bitwise_right_shift", np.right_shift)))


# --- of one tensor -------------------------------------------------------------------

def one(name: str, compute, slope=None, floats=True, gives=None):
    "An operation on one tensor x with the result y; its slope names what it needs."
    need = needs(slope)

    @operation(name)
    def call(input):
        x = numbers_of(name, input)
        d = float32 if floats and x.dtype.kind < REAL else x.dtype
        a = x._a.astype(d.work, copy=False)
        y = compute(a)
        if gives: return made(y, gives)
        y = stored(y, d)
        if slope is None or not follows(x): return made(y, d)
        known, tensors = {"x": a, "y": y}, {"x": x, "y": OUT}
        used = [known[word] for word in need]
        return made(y, d, (x, lambda g: slope(g, *used)),
                    saves=tuple(tensors[word] for word in need))
    return call


def sigmoid_of(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


_erf_of_numbers = np.vectorize(math.erf, otypes=[np.float64])


def erf_of(x): return _erf_of_numbers(x).astype(x.dtype) if x.size else x


def silu_slope(g, x):
    s = sigmoid_of(x)
    return g * s * (1 + x * (1 - s))


def softplus_of(x): return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
def flat(g): return np.zeros_like(g)


exp = one("exp", np.exp, lambda g, y: g * y)
exp2 = one("exp2", np.exp2, lambda g, y: g * y * math.log(2))
expm1 = one("expm1", np.expm1, lambda g, y: g * (y + 1))
log = one("log", np.log, lambda g, x: g / x)
log2 = one("log2", np.log2, lambda g, x: g / (x * math.log(2)))
log10 = one("log10", np.log10, lambda g, x: g / (x * math.log(10)))
log1p = one("log1p", np.log1p, lambda g, x: g / (x + 1))
sqrt = one("sqrt", np.sqrt, lambda g, y: g / (2 * y))
rsqrt = one("rsqrt", lambda x: 1 / np.sqrt(x), lambda g, y: -.5 * g * y**3)
reciprocal = one("reciprocal", lambda x: 1 / x, lambda g, y: -g * y * y)
sin = one("sin", np.sin, lambda g, x: g * np.cos(x))
cos = one("cos", np.cos, lambda g, x: -g * np.sin(x))
tan = one("tan", np.tan, lambda g, y: g * (1 + y * y))
sinh = one("sinh", np.sinh, lambda g, x: g * np.cosh(x))
cosh = one("cosh", np.cosh, lambda g, x: g * np.sinh(x))
tanh = one("tanh", np.tanh, lambda g, y: g * (1 - y * y))
atanh = one("atanh", np.arctanh, lambda g, x: g / (1 - x * x))
asin = one("asin", np.arcsin, lambda g, x: g / np.sqrt(1 - x * x))
acos = one("acos", np.arccos, lambda g, x: -g / np.sqrt(1 - x * x))
atan = one("atan", np.arctan, lambda g, x: g / (1 + x * x))
sigmoid = one("sigmoid", sigmoid_of, lambda g, y: g * y * (1 - y))
silu = one("silu", lambda x: x * sigmoid_of(x), silu_slope)
erf = one("erf", erf_of, lambda g, x: g * np.exp(-x * x) * (2 / math.sqrt(math.pi)))
softplus = one("softplus", softplus_of, lambda g, x: g * sigmoid_of(x))
logsigmoid = one("log_sigmoid_forward", lambda x: -softplus_of(-x),
                 lambda g, x: g * sigmoid_of(-x))
relu = one("relu", lambda x: np.where(x <= 0, 0, x).astype(x.dtype),
           lambda g, y: g * (y > 0), floats=False)
neg = one("neg", np.negative, lambda g: -g, floats=False)
positive = one("positive", lambda x: x, lambda g: g, floats=False)
_abs = one("abs", np.abs, lambda g, x: g * np.sign(x), floats=False)
sign = one("sign", np.sign, flat, floats=False)
square = one("square", np.square, lambda g, x: 2 * g * x, floats=False)
floor, ceil, trunc = (one(f.__name__, f, flat, floats=False)
                      for f in (np.floor, np.ceil, np.trunc))
bitwise_not = one("bitwise_not", np.invert, floats=False)
logical_not = one("logical_not", np.logical_not, floats=False, gives=bool_)
isnan, isinf, isfinite = (one(f.__name__, f, gives=bool_)
                          for f in (np.isnan, np.isinf, np.isfinite))


@operation()
def round(input, decimals=0):
    "To the nearest number with so many digits, ties to even."
    x = numbers_of("round", input)
    return made(np.round(raw(x, x.dtype), decimals), x.dtype, (x, np.zeros_like))


def abs(input):
    "The size of numbers; that of a complex one is real."
    if not numbers_of("abs", input).dtype.is_complex: return _abs(input)
    d = float32 if input.dtype.itemsize == 8 else float64
    return made(np.abs(input._a), d)


abs.op = _abs.op


# --- with a choice -------------------------------------------------------------------

@operation()
def clamp(input, min=None, max=None):
    "Numbers below `min` or above `max` are replaced by these."
    ends = [v for v in (min, max) if v is not None]
    if not ends:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    d = common(numbers_of("clamp", input), *ends)
    a = raw(input, d)
    low = None if min is None else raw(min, d)
    high = None if max is None else raw(max, d)
    y = a if low is None else np.maximum(a, low)
    y = y if high is None else np.minimum(y, high)
    stays = np.ones(y.shape, bool)
    if low is not None: stays = stays & (a >= low)
    if high is not None: stays = stays & (a <= high)
    back = lambda g: broadcast_back(np.where(stays, g, 0), input.shape)
    edges = [(input, back)]
    if isinstance(min, Tensor):
        under = (a < low) if high is None else (a < low) & (low < high)
        edges.append((min, lambda g: broadcast_back(np.where(under, g, 0), min.shape)))
    if isinstance(max, Tensor):
        over = (a > high) if low is None else (a > high) | (low > high)
        edges.append((max, lambda g: broadcast_back(np.where(over, g, 0), max.shape)))
    return made(y, d, *edges, saves=(input,))


@operation()
def where(condition, input=None, other=None):
    "Numbers of `input` where the condition holds, else of `other`."
    if not isinstance(condition, Tensor):
        raise TypeError("where(): argument 'condition' (position 1) must be Tensor")
    if input is None: return tuple(made(i, int64) for i in np.nonzero(condition._a))
    if condition.dtype.name not in ("bool", "uint8"):
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with "
            f"dtype {condition.dtype}"
        )
    d, c = common(input, other), condition._a.astype(bool)
    a, b = raw(input, d), raw(other, d)
    try: y = np.where(c, a, b)
    except ValueError:
        for p, q in ((c, a), (c, b), (a, b)): together(p, q)
        raise
    def rule(yes, shape):
        return lambda g: broadcast_back(np.where(c == yes, g, g.dtype.type(0)), shape)
    return made(y, d, (input, rule(True, a.shape)), (other, rule(False, b.shape)))


@operation()
def masked_fill(input, mask, value):
    "The numbers of a tensor, but `value` where the mask is True."
    x = numbers_of("masked_fill", input)
    if not is_mask(mask):
        raise RuntimeError(
            "masked_fill_ only supports boolean masks, but got mask with dtype "
            f"{getattr(mask, 'dtype', type(mask).__name__)}"
        )
    filler = value
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "masked_fill only supports a 0-dimensional value tensor, but got "
                f"tensor with {value.ndim} dimension(s)."
            )
        filler = value.item()
    fits(filler, x.dtype)
    a, m = raw(x, x.dtype), mask._a
    together(a, m)
    y = np.where(m, np.asarray(filler, a.dtype), a)
    return made(y, x.dtype, (x, lambda g: broadcast_back(np.where(m, 0, g), a.shape)),
                (value, lambda g: np.where(m, g, 0).sum()))


def fits(value, d) -> None:
    "Raise PyTorch's error if a number has no place in a type."
    whole = d.kind == WHOLE
    if whole and not isinstance(value, complex) and math.isfinite(value):
        ends = np.iinfo(d.np)
        bad = not ends.min <= value <= ends.max
    elif d.kind == REAL and d is float16 and not isinstance(value, complex):
        bad = math.isfinite(value) and math.fabs(value) > 65504
    else: bad = whole
    if bad or (isinstance(value, complex) and d.kind != COMPLEX):
        word = {"float16": "c10::Half", "bfloat16": "c10::BFloat16"}.get(d.name, d.name)
        raise RuntimeError(f"value cannot be converted to type {word} without overflow")


@operation()
def nan_to_num(input, nan=0., posinf=None, neginf=None):
    "NaN and infinities are replaced by finite numbers."
    x = numbers_of("nan_to_num", input)
    a = raw(x, x.dtype)
    y = np.nan_to_num(a, nan=nan or 0., posinf=posinf, neginf=neginf)
    return made(y, x.dtype, (x, lambda g: np.where(np.isfinite(a), g, 0)), saves=(x,))


@operation()
def isin(elements, test_elements):
    "Which elements are among others."
    tests = test_elements
    tests = tests._a if isinstance(tests, Tensor) else np.asarray(tests)
    return made(np.isin(elements._a, tests), bool_)


@operation()
def isclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    "Which numbers agree within a tolerance."
    same_types("isclose", input, other)
    return made(np.isclose(input._a, other._a, rtol, atol, equal_nan), bool_)


def same_types(name: str, a, b) -> None:
    "Raise PyTorch's error unless two tensors have one type."
    for x in (a, b): numbers_of(name, x)
    if a.dtype is not b.dtype:
        raise RuntimeError(f"{a.dtype} did not match {b.dtype}")


def allclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False) -> bool:
    return bool(isclose(input, other, rtol, atol, equal_nan)._a.all())


@operation()
def equal(input, other):
    "Have two tensors the same shape and the same numbers?"
    for x in (input, other): numbers_of("equal", x)
    return input.shape == other.shape and bool((input._a == other._a).all())


