"Number types, devices and shapes: what a tensor is, apart from its numbers."
import math
from functools import lru_cache

import numpy as np

BOOL, WHOLE, REAL, COMPLEX = range(4)  # the kinds of numbers, in PyTorch's order


class dtype:
    "A number type: its name, NumPy's type that holds it, and its kind."
    def __init__(self, name: str, held: str, kind: int, itemsize: int):
        self.name, self.np, self.kind = name, np.dtype(held), kind
        self.itemsize = itemsize
        self.is_floating_point, self.is_complex = kind == REAL, kind == COMPLEX
        self.is_signed = name not in ("bool", "uint8")
        wide = name in ("float16", "bfloat16")
        self.work = np.dtype("float32") if wide else self.np   # what sums are kept in

    def __repr__(self): return f"torch.{self.name}"
    def __reduce__(self): return _named, (self.name,)
    def __copy__(self): return self
    def __deepcopy__(self, memo): return self


TYPES = {name: dtype(name, held, kind, size) for name, held, kind, size in (
    ("bool", "bool", BOOL, 1), ("uint8", "uint8", WHOLE, 1),
    ("int8", "int8", WHOLE, 1), ("int16", "int16", WHOLE, 2),
    ("int32", "int32", WHOLE, 4), ("int64", "int64", WHOLE, 8),
    ("float16", "float16", REAL, 2), ("bfloat16", "float32", REAL, 2),
    ("float32", "float32", REAL, 4), ("float64", "float64", REAL, 8),
    ("complex64", "complex64", COMPLEX, 8), ("complex128", "complex128", COMPLEX, 16),
)}
bool_, uint8, int64 = TYPES["bool"], TYPES["uint8"], TYPES["int64"]
float16, bfloat16 = TYPES["float16"], TYPES["bfloat16"]
float32, float64 = TYPES["float32"], TYPES["float64"]
complex64, complex128 = TYPES["complex64"], TYPES["complex128"]
OF_NUMPY = {d.np: d for d in TYPES.values() if d is not bfloat16}
_ORDER = {d: n for n, d in enumerate(TYPES.values())}
OF_KIND = {BOOL: bool_, WHOLE: int64, REAL: float32, COMPLEX: complex64}


def _named(name: str) -> dtype: return TYPES[name]


def kind_of(number) -> int:
    "The kind of a number of Python's or NumPy's."
    if isinstance(number, bool | np.bool_): return BOOL
    if isinstance(number, int | np.integer): return WHOLE
    return COMPLEX if isinstance(number, complex | np.complexfloating) else REAL


@lru_cache(None)
def promote_types(a: dtype, b: dtype) -> dtype:
    "The smallest type that holds numbers of both."
    if a is b: return a
    if {a, b} == {float16, bfloat16}: return float32
    if COMPLEX in (a.kind, b.kind):
        return complex128 if {a, b} & {float64, complex128} else complex64
    if a.kind != b.kind: return a if a.kind > b.kind else b
    if {a.name, b.name} == {"uint8", "int8"}: return TYPES["int16"]
    return a if _ORDER[a] > _ORDER[b] else b


def to_bfloat16(a: np.ndarray) -> np.ndarray:
    "The nearest numbers with eight bits of precision, ties to even, in 32 bits."
    a = np.ascontiguousarray(a, dtype=np.float32).reshape(a.shape)
    bits = a.view(np.uint32)
    near = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    near = (near & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(a), np.float32(math.nan), near)


def stored(a, d: dtype) -> np.ndarray:
    "Numbers as a tensor of this type stores them."
    if d is bfloat16: return to_bfloat16(np.asarray(a))
    if type(a) is np.ndarray and a.dtype == d.np: return a
    return np.asarray(a, dtype=d.np)


class device:
    "Where a tensor is: on the processor, or nowhere (meta)."
    default = []                       # those entered by `with`

    def __init__(self, type, index=None):
        self.type, self.index = str(type).split(":")[0], index
        if self.type not in ("cpu", "meta"):
            raise RuntimeError(f"no device {type!r} in the page; expected cpu or meta")

    def __repr__(self): return f"device(type='{self.type}')"
    def __str__(self): return self.type
    def __eq__(self, other): return self.type == getattr(other, "type", other)
    def __hash__(self): return hash(self.type)
    def __enter__(self):
        device.default.append(self)
        return self
    def __exit__(self, *_): device.default.remove(self)


CPU, META = device("cpu"), device("meta")


def device_of(given) -> device:
    "The device that is asked for, or else the one that `with` set."
    if given is None: return device.default[-1] if device.default else CPU
    return given if isinstance(given, device) else device(given)


class Size(tuple):
    "A shape."
    def __repr__(self): return f"torch.Size({list(self)})"
    def numel(self) -> int: return math.prod(self)
    def __getitem__(self, key):
        found = tuple.__getitem__(self, key)
        return Size(found) if isinstance(key, slice) else found
    def __add__(self, other): return Size(tuple(self) + tuple(other))


class finfo:
    "The limits of a floating-point type."
    def __init__(self, d: dtype = float32):
        if d.kind != REAL:
            raise TypeError(f"torch.finfo() requires a floating point type; got {d}")
        if d is bfloat16: digits, least = 8, -126
        else: digits, least = np.finfo(d.np).nmant + 1, np.finfo(d.np).minexp
        self.dtype, self.bits = d.name, 8 * d.itemsize
        self.eps, self.tiny = 2.0 ** (1 - digits), 2.0 ** int(least)
        top = 2.0 ** (1 - int(least))
        self.max = top * (2 - self.eps)
        self.min, self.smallest_normal, self.resolution = -self.max, self.tiny, self.eps


class iinfo:
    "The limits of an integer type."
    def __init__(self, d: dtype):
        if d.kind != WHOLE:
            raise TypeError(f"torch.iinfo() requires an integer type; got {d}")
        found = np.iinfo(d.np)
        self.max, self.min, self.bits = int(found.max), int(found.min), found.bits
        self.dtype = d.name
