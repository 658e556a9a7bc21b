"Linear algebra, by NumPy's; what has no gradient here refuses it."
from collections import namedtuple

import numpy as np

from ._absent import absent, refuser
from ._matrix import turned
from ._modes import operation
from ._reduce import norm as _length
from ._tensor import OUT, Tensor, broadcast_back, made, numbers_of
from ._types import TYPES, float64, int64

__getattr__ = refuser("torch.linalg")
QR, SVD = namedtuple("qr", "Q R"), namedtuple("svd", "U S Vh")
Eigh = namedtuple("eigh", "eigenvalues eigenvectors")
LeastSquares = namedtuple("lstsq", "solution residuals rank singular_values")


class LinAlgError(RuntimeError):
    "A matrix that cannot be inverted."


def plain(name: str, x: Tensor) -> np.ndarray:
    "The numbers of a matrix that needs no gradient."
    numbers_of(name, x)
    if x.requires_grad: raise absent(f"the gradient of torch.linalg.{name}")
    return x._a


def regular(name: str, compute, *arrays) -> np.ndarray:
    "What NumPy computes, or the error for a singular matrix; a browser gives NaN then."
    try: found = compute(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"torch.linalg.{name}: {error}") from None
    if np.isfinite(found).all() or not all(np.isfinite(a).all() for a in arrays):
        return found
    raise LinAlgError(f"torch.linalg.{name}: the input matrix is singular")


def real(a, x: Tensor) -> Tensor: return made(a, x.dtype)


@operation("linalg_solve")
def solve(A, B):
    "The X with A X = B."
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    b = B._a[..., None] if vector else B._a
    x = regular("solve", np.linalg.solve, A._a, b)
    def right(g):
        g = g[..., None] if vector else g
        return np.linalg.solve(turned(A._a), g)
    def at_b(g):
        found = right(g)
        return broadcast_back(found[..., 0] if vector else found, B._a.shape)
    at_a = lambda g: broadcast_back(-right(g) @ turned(x), A._a.shape)
    return made(x[..., 0] if vector else x, A.dtype, (A, at_a), (B, at_b),
                saves=(A, OUT))


def substituted(a: np.ndarray, b: np.ndarray, upper: bool) -> np.ndarray:
    "Row by row from the end at which one unknown is alone; a zero there divides."
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:]
    b, x = np.broadcast_to(b, shape), np.zeros(shape, b.dtype)
    with np.errstate(all="ignore"):
        for i in range(shape[-2])[::-1 if upper else 1]:
            known = (a[..., i, None, :] @ x)[..., 0, :]
            x[..., i, :] = (b[..., i, :] - known) / a[..., i, i, None]
    return x


@operation("linalg_solve_triangular")
def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    "The X with A X = B, for one triangle of A; what is beyond it is not read."
    if not left: raise absent("torch.linalg.solve_triangular(left=False)")
    if A.shape[-2] != A.shape[-1]:
        raise RuntimeError(
            "linalg.solve_triangular: A must be batches of square matrices, but they "
            f"are {A.shape[-2]} by {A.shape[-1]} matrices"
        )
    kept, one = np.triu if upper else np.tril, np.eye(A.shape[-1], dtype=A._a.dtype)
    k = (1 if upper else -1) * unitriangular
    a = kept(A._a, k) + one * unitriangular
    x = substituted(a, B._a, upper)
    def right(g): return substituted(turned(a), g, not upper)
    def at_a(g): return broadcast_back(kept(-right(g) @ turned(x), k), A._a.shape)
    def at_b(g): return broadcast_back(right(g), B._a.shape)
    return made(x, A.dtype, (A, at_a), (B, at_b), saves=(A, OUT))


@operation("linalg_inv_ex")
def inv(A):
    y = regular("inv", np.linalg.inv, A._a)
    return made(y, A.dtype, (A, lambda g: -turned(y) @ g @ turned(y)), saves=(OUT,))


def pinv_slope(g, a, p):
    "The gradient at a matrix of full rank, from that at its pseudo-inverse p."
    left = (np.eye(a.shape[-2]) - a @ p) @ turned(g) @ p @ turned(p)
    right = turned(p) @ p @ turned(g) @ (np.eye(a.shape[-1]) - p @ a)
    return left + right - turned(p) @ g @ turned(p)


@operation("linalg_pinv")
def pinv(A, rcond=None):
    a = A._a
    least = max(a.shape[-2:]) * np.finfo(a.dtype).eps if rcond is None else rcond
    p = np.linalg.pinv(a, least)
    return made(p, A.dtype, (A, lambda g: pinv_slope(g, a, p)), saves=(A, OUT))


@operation("linalg_lstsq")
def lstsq(A, B):
    "The X for which A X is nearest to B."
    a, b = A._a, B._a
    # NumPy alone computes in 64 bits, and would keep columns that PyTorch drops
    x, rest, rank, s = np.linalg.lstsq(a, b, rcond=np.finfo(a.dtype).eps * max(a.shape))
    def at_a(g): return pinv_slope(g @ turned(b), a, np.linalg.pinv(a))
    def at_b(g): return turned(np.linalg.pinv(a)) @ g
    found = made(x, A.dtype, (A, at_a), (B, at_b), saves=(A, B))
    return LeastSquares(found, real(rest, A), made(np.asarray(rank), int64), real(s, A))


@operation("linalg_matrix_rank")
def matrix_rank(A, tol=None, hermitian=False):
    return made(np.asarray(np.linalg.matrix_rank(plain("matrix_rank", A), tol)), int64)


@operation("linalg_svd")
def svdvals(A): return real(np.linalg.svd(plain("svdvals", A), compute_uv=False), A)


@operation("_linalg_svd")
def svd(A, full_matrices=True):
    return SVD(*(real(a, A) for a in np.linalg.svd(plain("svd", A), full_matrices)))


@operation("linalg_eigh")
def eigvalsh(A): return real(np.linalg.eigvalsh(plain("eigvalsh", A)), A)


@operation("_linalg_eigh")
def eigh(A): return Eigh(*(real(a, A) for a in np.linalg.eigh(plain("eigh", A))))


@operation("linalg_eigvals")
def eigvals(A):
    d = TYPES["complex128" if A.dtype is float64 else "complex64"]
    return made(np.linalg.eigvals(plain("eigvals", A)), d)


@operation("linalg_qr")
def qr(A, mode="reduced"):
    return QR(*(real(a, A) for a in np.linalg.qr(plain("qr", A), mode)))


@operation("linalg_det")
def det(A): return real(np.linalg.det(plain("det", A)), A)


@operation("linalg_cholesky")
def cholesky(A):
    return real(regular("cholesky", np.linalg.cholesky, plain("cholesky", A)), A)


@operation("linalg_matrix_power")
def matrix_power(A, n): return real(np.linalg.matrix_power(plain("matrix_power", A), n), A)


@operation("linalg_matrix_norm")
def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False):
    a = plain("matrix_norm", A)
    return real(np.linalg.norm(a, ord, tuple(dim), keepdim), A)


def vector_norm(x, ord=2, dim=None, keepdim=False): return _length(x, ord, dim, keepdim)


def norm(A, ord=None, dim=None, keepdim=False):
    "The length of a vector, or the Frobenius norm."
    if ord is None or isinstance(dim, int) or A.ndim == 1:
        return _length(A, 2 if ord is None else ord, dim, keepdim)
    return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim)
