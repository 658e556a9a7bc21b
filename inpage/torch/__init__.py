"""A stand-in for the part of PyTorch that the book's exercises use, over NumPy.

It runs where PyTorch cannot: in a page, in the reader's browser. What it has, it has as
PyTorch: types and their rounding, views, versions, errors, random numbers of a seed, and
gradients by the chain rule. What it lacks it refuses by name. tests/site/test_inpage.py
compares it with PyTorch.
"""
import math as _math

import numpy as _np

from . import _absent, _elementwise, _index, _make, _matrix, _move, _reduce, _views
from ._absent import NotInPage  # noqa: F401
from ._absent import absent as _refused
from ._absent import refuser as _refuser
from ._engine import State as _State
from ._engine import (  # noqa: F401
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
)
from ._modes import operation as _operation
from ._random import (  # noqa: F401
    Generator,
    default_generator,
    initial_seed,
    manual_seed,
    multinomial,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    seed,
)
from ._tensor import NUMBERS as _NUMBERS
from ._tensor import Tensor
from ._types import TYPES as _TYPES
from ._types import Size, device, dtype, finfo, iinfo, promote_types  # noqa: F401

_np.seterr(all="ignore")               # like PyTorch, which does not warn
__version__ = f"the page's stand-in, over NumPy {_np.__version__}"
__getattr__ = _refuser("torch")
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
contiguous_format, preserve_format = "contiguous", "preserve"
_HERE = globals()
_HERE |= _TYPES
_HERE |= {short: _TYPES[name] for short, name in (
    ("half", "float16"), ("float", "float32"), ("double", "float64"), ("short", "int16"),
    ("int", "int32"), ("long", "int64"), ("cfloat", "complex64"))}

# --- functions, and those that are methods, too --------------------------------------

_BOTH = {
    _elementwise: """add sub mul div pow maximum minimum logaddexp atan2 hypot xlogy
        remainder fmod floor_divide eq ne lt le gt ge logical_and logical_or logical_xor
        bitwise_and bitwise_or bitwise_xor exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
        reciprocal sin cos tan sinh cosh tanh atanh asin acos atan sigmoid erf relu neg
        positive abs sign square floor ceil trunc bitwise_not logical_not isnan isinf
        isfinite round clamp masked_fill nan_to_num isclose allclose equal""",
    _reduce: """sum mean prod var std norm any all count_nonzero trace amax amin max min
        argmax argmin softmax log_softmax logsumexp cumsum cumprod cummax cummin
        logcumsumexp sort argsort topk kthvalue median quantile bincount unique
        nansum""",
    _views: """reshape flatten unflatten permute transpose t movedim unsqueeze squeeze
        diagonal narrow split chunk tensor_split select unbind""",
    _move: """flip roll repeat_interleave index_select masked_select tril triu diag_embed
        diag gather take_along_dim scatter scatter_add index_add index_copy index_fill
        nonzero""",
    _index: "index_put",
    _matrix: "matmul mm bmm mv dot addmm outer",
    _make: "clone",
}
_ALONE = {
    _elementwise: "where isin",
    _reduce: "searchsorted",
    _move: "cat stack meshgrid",
    _matrix: "einsum",
    _make: """tensor as_tensor from_numpy zeros zeros_like ones ones_like empty empty_like
        full full_like arange linspace eye""",
}
_METHODS = {
    _views: "view expand unfold",
    _move: "repeat",
    _index: "copy_ zero_ fill_",
    _make: "to contiguous new_zeros new_ones new_empty new_full new_tensor",
}
_OTHER_NAMES = {"clip": "clamp", "multiply": "mul", "subtract": "sub", "divide": "div",
                "negative": "neg", "absolute": "abs", "arctan2": "atan2",
                "greater": "gt", "less": "lt", "not_equal": "ne", "greater_equal": "ge",
                "less_equal": "le", "swapaxes": "transpose", "ravel": "flatten"}
_INPLACE = """add sub mul div pow clamp masked_fill exp log sqrt neg abs relu sigmoid tanh
    round floor ceil square reciprocal rsqrt sin cos nan_to_num cumsum scatter scatter_add
    index_add index_copy index_fill index_put tril triu remainder"""

for _module, _names in _BOTH.items():
    for _name in _names.split():
        _HERE[_name] = _function = getattr(_module, _name)
        setattr(Tensor, _name, _function)
for _module, _names in _ALONE.items():
    _HERE |= {_name: getattr(_module, _name) for _name in _names.split()}
for _module, _names in _METHODS.items():
    for _name in _names.split(): setattr(Tensor, _name, getattr(_module, _name))
for _other, _name in _OTHER_NAMES.items():
    _HERE[_other] = _HERE[_name]
    setattr(Tensor, _other, _HERE[_name])
for _name in _INPLACE.split():
    setattr(Tensor, f"{_name}_", _index.inplace(_HERE[_name]))
concat = concatenate = cat             # noqa: F821
asarray, true_divide = as_tensor, div  # noqa: F821
tile = Tensor.repeat


def _clamped(name: str):
    def method(self, value): return _elementwise.clamp(self, **{name: value})
    return method


Tensor.clamp_min, Tensor.clamp_max = _clamped("min"), _clamped("max")
Tensor.where = lambda self, condition, other: _elementwise.where(condition, self, other)
Tensor.view_as = lambda self, other: self.view(other.shape)
Tensor.reshape_as = lambda self, other: self.reshape(other.shape)
Tensor.expand_as = lambda self, other: self.expand(other.shape)
Tensor.type_as = lambda self, other: self.to(other.dtype)
Tensor.isin = lambda self, others: _elementwise.isin(self, others)
Tensor.__getitem__, Tensor.__setitem__ = _index.getitem, _index.setitem
Tensor.__iter__ = _views.iterated
Tensor.T = property(lambda s: s.permute(*reversed(range(s.ndim))))
Tensor.mT = property(_views.matrices_turned)
Tensor.__contains__ = lambda s, x: bool((s == x).any())
for _method, _name in (("double", "float64"), ("float", "float32"), ("half", "float16"),
                       ("bfloat16", "bfloat16"), ("long", "int64"), ("int", "int32"),
                       ("short", "int16"), ("bool", "bool")):
    setattr(Tensor, _method, lambda self, d=_TYPES[_name]: self.to(d))


def _type(self, to=None):
    if to is None: raise _refused("Tensor.type()")
    return self.to(to)


Tensor.type = _type


# --- Python's operators --------------------------------------------------------------

def _operator(function, swapped=False):
    "An operator; what is no number is left to the other side."
    def method(self, other):
        if not isinstance(other, (Tensor, *_NUMBERS)): return NotImplemented
        return function(other, self) if swapped else function(self, other)
    return method


def _assigning(name: str):
    "An operator that writes into its first argument."
    def method(self, other): return getattr(self, name)(other)
    return method


for _word, _name in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"),
                     ("floordiv", "floor_divide"), ("mod", "remainder"), ("pow", "pow"),
                     ("matmul", "matmul"), ("and", "bitwise_and"), ("or", "bitwise_or"),
                     ("xor", "bitwise_xor"), ("lshift", "lshift"), ("rshift", "rshift")):
    _function = getattr(_matrix if _name == "matmul" else _elementwise, _name)
    setattr(Tensor, f"__{_word}__", _operator(_function))
    setattr(Tensor, f"__r{_word}__", _operator(_function, True))
    if _name != "matmul":
        setattr(Tensor, f"{_name}_", _index.inplace(_function))
        setattr(Tensor, f"__i{_word}__", _assigning(f"{_name}_"))
for _word in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tensor, f"__{_word}__", _operator(getattr(_elementwise, _word)))
Tensor.__neg__, Tensor.__abs__ = _elementwise.neg, _elementwise.abs
Tensor.__invert__, Tensor.__pos__ = _elementwise.bitwise_not, _elementwise.positive


# --- and the rest -----------------------------------------------------------------

def is_grad_enabled(): return _State.on
def is_tensor(x): return isinstance(x, Tensor)
def numel(x): return x.numel()
def is_floating_point(x): return x.is_floating_point()
def is_complex(x): return x.is_complex()
def get_default_dtype(): return _TYPES["float32"]
def set_num_threads(n): pass
def get_num_threads(): return 1
def result_type(a, b): return _common(a, b)


@_operation("lstm_cell", composite=True)
def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    "One step of an LSTM: the next hidden state and the next cell."
    from .nn.functional import linear
    h, c = hx
    gates = linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class cuda:
    "There is none."
    @staticmethod
    def is_available(): return False


class version: cuda = None


from . import autograd, func, linalg, multiprocessing, nn  # noqa: E402, F401, I001
from . import overrides, random, special, utils  # noqa: E402, F401
from ._tensor import common as _common  # noqa: E402

_absent.seen.clear()                   # what `import` asked for is no one's answer
