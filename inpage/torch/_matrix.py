"Products of matrices."
import math
import sys

import numpy as np

from ._absent import absent
from ._modes import dispatches, operation
from ._tensor import Tensor, broadcast_back, made, numbers_of, raw
from ._types import BOOL
from ._views import reshape

BROWSER = sys.platform == "emscripten"
REPEATED = "the gradient of einsum with a letter twice in one operand"


def one_kind(name: str, a, b) -> None:
    "Raise PyTorch's error unless two tensors have one type."
    for x in (a, b): numbers_of(name, x)
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}"
        )
    if a.dtype.kind == BOOL:
        raise RuntimeError('"addmm_impl_cpu_" not implemented for \'Bool\'')


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    "A product; in a browser NumPy has no BLAS, and `einsum` is ten times as fast."
    if BROWSER and a.size * b.shape[-1] > 30_000:
        return np.einsum("...ij,...jk->...ik", a, b)
    return np.matmul(a, b)


def turned(a: np.ndarray) -> np.ndarray: return np.conj(a).swapaxes(-1, -2)


@operation("mm")
def product(input, other):
    "The product of matrices, also of batches of them."
    one_kind("mm", input, other)
    d = input.dtype
    a, b = raw(input, d), raw(other, d)
    return made(times(a, b), d,
                (input, lambda g: broadcast_back(times(g, turned(b)), a.shape)),
                (other, lambda g: broadcast_back(times(turned(a), g), b.shape)),
                saves=needed(input, other))


def needed(a: Tensor, b: Tensor) -> tuple:
    "What the gradients of a product need."
    pairs = ((a, b), (b, a))
    return tuple({other for x, other in pairs if x.requires_grad})


def sized(a, b) -> RuntimeError:
    x, y = ("x".join(map(str, s.shape[-2:])) for s in (a, b))
    return RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x} and {y})")


def matmul(input, other):
    "PyTorch's product: of vectors, matrices and batches of matrices."
    a, b = numbers_of("matmul", input), numbers_of("matmul", other)
    if not a.ndim or not b.ndim:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, but they are "
            f"{a.ndim}D and {b.ndim}D"
        )
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]: raise sized(a, b)
    x = a.unsqueeze(0) if a.ndim == 1 else a
    y = b.unsqueeze(1) if b.ndim == 1 else b
    try: np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise RuntimeError(
            f"The size of tensor a ({x.shape[-3]}) must match the size of tensor b "
            f"({y.shape[-3]}) at non-singleton dimension 0"
        ) from None
    if x.ndim > 2 and y.ndim == 2: found = folded(x, y)
    elif dispatches and max(x.ndim, y.ndim) > 3: found = in_batches(x, y)
    else: found = product(x, y)
    if b.ndim == 1: found = found.squeeze(-1)
    return found.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else found


def folded(x: Tensor, y: Tensor) -> Tensor:
    "Rows of all batches in one product with a matrix."
    rows = reshape(x, math.prod(x.shape[:-1]), x.shape[-1])
    return product(rows, y).view(*x.shape[:-1], y.shape[-1])


def in_batches(x: Tensor, y: Tensor) -> Tensor:
    "Batches as PyTorch multiplies them: those that are expanded are copied."
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    def laid(t): return reshape(t.expand(*batch, *t.shape[-2:]), -1, *t.shape[-2:])
    found = product(laid(x), laid(y))
    return found.view(*batch, x.shape[-2], y.shape[-1])


def ranked(name: str, a, b, ndims: tuple) -> None:
    if (a.ndim, b.ndim) != ndims:
        raise RuntimeError(f"{name}: got {a.ndim}D, {b.ndim}D; expected {ndims[0]}D, "
                           f"{ndims[1]}D")


def mm(input, mat2):
    ranked("mm", input, mat2, (2, 2))
    return matmul(input, mat2)


def bmm(input, mat2):
    ranked("bmm", input, mat2, (3, 3))
    if len(input) != len(mat2): raise RuntimeError("bmm: batches differ in size")
    return matmul(input, mat2)


def mv(input, vec):
    ranked("mv", input, vec, (2, 1))
    return matmul(input, vec)


def dot(input, tensor):
    if (input.ndim, tensor.ndim) != (1, 1):
        raise RuntimeError(
            f"1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors"
        )
    if len(input) != len(tensor):
        raise RuntimeError("inconsistent tensor size, expected tensor "
                           f"[{len(input)}] and src [{len(tensor)}] to have the same "
                           "number of elements")
    return matmul(input, tensor)


def addmm(input, mat1, mat2, beta=1, alpha=1):
    found = mm(mat1, mat2)
    return beta * input + (alpha * found if alpha != 1 else found)


def outer(input, vec2):
    ranked("outer", input, vec2, (1, 1))
    return input.unsqueeze(1) * vec2


# --- einsum --------------------------------------------------------------------------

def filled_in(equation: str, operands: list) -> tuple[list[str], str]:
    "The letters of each operand and of the result, capitals for an ellipsis."
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise RuntimeError("einsum(): more operands were provided than specified in the "
                           "equation, or fewer")
    most = 0
    found = []
    for term, x in zip(terms, operands):
        n = x.ndim - len(term.replace("...", ""))
        if n < 0 or (n and "..." not in term):
            raise RuntimeError(
                "einsum(): the number of subscripts in the equation "
                f"({len(term.replace('...', ''))}) does not match the number of "
                f"dimensions ({x.ndim}) for an operand and no ellipsis was given"
            )
        found.append((term, n))
        most = max(most, n)
    dots = "".join(chr(ord("A") + i) for i in range(26))[:most]
    named = [t.replace("...", dots[most - n:]) for t, n in found]
    if arrow: return named, right.replace("...", dots)
    every = "".join(named)
    once = sorted(c for c in set(every) - set(dots) if every.count(c) == 1)
    return named, dots + "".join(once)


@operation("einsum", composite=False)
def einsum(equation, *operands):
    "A sum of products, by the letters of its dimensions."
    if len(operands) == 1 and isinstance(operands[0], list | tuple): operands = operands[0]
    operands = [numbers_of("einsum", x) for x in operands]
    for x in operands[1:]: one_kind("einsum", operands[0], x)
    terms, result = filled_in(equation, operands)
    d = operands[0].dtype
    arrays = [raw(x, d) for x in operands]
    spec = f"{','.join(terms)}->{result}"
    try: y = np.einsum(spec, *arrays, optimize=len(arrays) > 2)
    except ValueError as error: raise RuntimeError(f"einsum(): {error}") from None
    def rule(n): return lambda g: einsum_slope(g, n, arrays, terms, result)
    edges = [(x, rule(n)) for n, x in enumerate(operands)]
    tracked = [x for x in operands if x.requires_grad]
    saves = tuple({x for x in operands if x.dtype.kind and len(operands) > 1})
    return made(y, d, *edges, saves=saves if tracked else ())


def einsum_slope(g, n: int, arrays: list, terms: list, result: str) -> np.ndarray:
    "The gradient at one operand: the sum of products of the others and g."
    term, shape = terms[n], arrays[n].shape
    if len(set(term)) < len(term): raise absent(REPEATED)
    inputs = [*terms[:n], *terms[n + 1:], result]
    given = [*arrays[:n], *arrays[n + 1:], g]
    there = {c for t in inputs for c in t}
    kept = "".join(c for c in term if c in there)
    found = np.einsum(f"{','.join(inputs)}->{kept}", *given)
    at = [kept.index(c) if c in kept else None for c in term]
    out = found.transpose([i for i in at if i is not None])
    out = out[tuple(slice(None) if i is not None else None for i in at)]
    wide = tuple(max(a, b) for a, b in zip(out.shape, shape))
    return broadcast_back(np.broadcast_to(out, wide), shape)
