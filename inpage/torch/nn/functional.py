"The functions of PyTorch's layers that the exercises use."
import math

import numpy as np

from .. import _reduce as reduce
from .._absent import absent, refuser
from .._elementwise import (
    erf_of,
    logsigmoid,
    relu,
    sigmoid,
    silu,
    softplus,
    tanh,
    where,
)
from .._index import getitem
from .._make import filled
from .._matrix import matmul
from .._modes import operation
from .._move import gather, one_hot, pad_of, tril
from .._reduce import log_softmax, softmax
from .._tensor import Tensor, broadcast_back, is_mask, made, numbers_of, raw
from .._types import REAL, bool_
from .._views import reshape, transpose

__all__ = ["logsigmoid", "relu", "sigmoid", "silu", "softplus",
           "tanh", "log_softmax", "softmax", "one_hot"]
__getattr__ = refuser("torch.nn.functional")


@operation()
def gelu(input, approximate="none"):
    x = numbers_of("gelu", input)
    a = raw(x, x.dtype)
    if approximate == "none":
        half = .5 * (1 + erf_of(a / math.sqrt(2)))
        slope = half + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    elif approximate == "tanh":
        c = math.sqrt(2 / math.pi)
        bent = np.tanh(c * (a + .044715 * a**3))
        half = .5 * (1 + bent)
        slope = half + .5 * a * (1 - bent**2) * c * (1 + 3 * .044715 * a * a)
    else: raise RuntimeError("approximate argument must be either none or tanh.")
    y = (a * half).astype(a.dtype)
    return made(y, x.dtype, (x, lambda g: g * slope), saves=(x,))


@operation("linear", composite=True)
def linear(input, weight, bias=None):
    "The input times the transposed weight, plus the bias."
    if input.shape[-1] != weight.shape[-1]:
        rows = input.numel() // max(input.shape[-1], 1)
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{input.shape[-1]} and "
            f"{weight.shape[-1]}x{weight.shape[0]})"
        )
    y = matmul(input, transpose(weight, 0, 1) if weight.ndim > 1 else weight)
    return y if bias is None else y + bias


def normed(name: str, x: Tensor, shape: tuple, weight, bias, eps: float, centred: bool):
    "Normalization of the last dimensions, with its slopes."
    shape = tuple(shape)
    if x.shape[x.ndim - len(shape):] != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size {list(x.shape)}"
        )
    axes, a = tuple(range(x.ndim - len(shape), x.ndim)), raw(x, x.dtype)
    wide = a.astype(np.float64)
    if centred: wide = wide - wide.mean(axes, keepdims=True)
    scale = 1 / np.sqrt((wide * wide).mean(axes, keepdims=True) + eps)
    n = wide * scale
    y = n if weight is None else n * raw(weight, x.dtype)
    y = y if bias is None else y + raw(bias, x.dtype)
    def back(g):
        g = g if weight is None else g * raw(weight, x.dtype)
        out = g - n * (g * n).mean(axes, keepdims=True)
        return scale * (out - g.mean(axes, keepdims=True) if centred else out)
    edges = [(x, back), (weight, lambda g: broadcast_back(g * n, shape)),
             (bias, lambda g: broadcast_back(g, shape))]
    saves = tuple(t for t in (x, weight) if t is not None)
    return made(y, x.dtype, *edges, saves=saves)


@operation("native_layer_norm")
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return normed("layer_norm", input, normalized_shape, weight, bias, eps, True)


@operation("_fused_rms_norm")
def rms_norm(input, normalized_shape, weight=None, eps=None):
    eps = float(np.finfo(input._a.dtype).eps) if eps is None else eps
    return normed("rms_norm", input, normalized_shape, weight, None, eps, False)


@operation("constant_pad_nd")
def pad(input, pad, mode="constant", value=None):
    "Numbers added around, or cut off where the width is negative."
    if mode != "constant": raise absent(f"torch.nn.functional.pad(mode={mode!r})")
    return pad_of(input, tuple(pad), value or 0)


def normalize(input, p=2., dim=1, eps=1e-12):
    "Vectors of length 1."
    return input / reduce.norm(input, p, dim, True).clamp(min=eps)


def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    "The cosine of the angle between vectors."
    def length(x): return reduce.norm(x, 2, dim, True).clamp(min=eps)
    return ((x1 / length(x1)) * (x2 / length(x2))).sum(dim)


def embedding(input, weight, padding_idx=None):
    if padding_idx is not None: raise absent("torch.nn.functional.embedding(padding_idx=…)")
    return getitem(weight, input)


def dropout(input, p=0.5, training=True, inplace=False):
    if p == 0 or not training: return input
    raise absent("torch.nn.functional.dropout with p > 0")


def reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none": return losses
    if reduction in ("sum", "mean"): return getattr(reduce, reduction)(losses)
    raise ValueError(f"{reduction} is not a valid value for reduction")


def mse_loss(input, target, reduction="mean"):
    return reduced((input - target).square(), reduction)


def l1_loss(input, target, reduction="mean"):
    return reduced((input - target).abs(), reduction)


@operation("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(input, target, weight=None, reduction="mean",
                                     pos_weight=None):
    if weight is not None or pos_weight is not None:
        raise absent("torch.nn.functional.binary_cross_entropy_with_logits(weight=…)")
    if input.shape != target.shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size "
                         f"({input.shape})")
    return reduced(softplus_of(input) - input * target, reduction)


def softplus_of(x: Tensor) -> Tensor: return -logsigmoid(-x)


@operation("nll_loss", composite=True)
def nll_loss(input, target, weight=None, ignore_index=-100, reduction="mean"):
    if weight is not None: raise absent("torch.nn.functional.nll_loss(weight=…)")
    return chosen(input, target, ignore_index, reduction, 0.)


@operation("cross_entropy_loss", composite=True)
def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean",
                  label_smoothing=0.):
    "The negative log-likelihood of the targets."
    if weight is not None: raise absent("torch.nn.functional.cross_entropy(weight=…)")
    dim = 0 if input.ndim == 1 else 1
    logs = log_softmax(input, dim)
    if target.dtype.kind >= REAL: return by_shares(logs, target, reduction, label_smoothing)
    return chosen(logs, target, ignore_index, reduction, label_smoothing)


def by_shares(logs: Tensor, target: Tensor, reduction: str, smooth: float) -> Tensor:
    "The cross-entropy with targets that are probabilities."
    if target.shape != logs.shape:
        raise RuntimeError("Expected floating point type for target with class "
                           "probabilities to have the shape of the input")
    dim = 0 if logs.ndim == 1 else 1
    target = target * (1 - smooth) + smooth / logs.shape[dim] if smooth else target
    losses = -(logs * target).sum(dim)
    if reduction != "mean": return reduced(losses, reduction)
    return losses.sum() / max(losses.numel(), 1)


def chosen(logs: Tensor, target: Tensor, ignored: int, reduction: str, smooth: float):
    "The losses of the targets that count."
    dim = 0 if logs.ndim == 1 else 1
    shape = (*logs.shape[:dim], *logs.shape[dim + 1:])
    if target.shape != shape:
        raise ValueError(f"Expected input batch_size ({logs.shape[0]}) to match target "
                         f"batch_size ({target.shape[0] if target.ndim else 1}).")
    if target.dtype.name not in ("int64", "uint8"):
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")
    counts = target._a != ignored
    n = logs.shape[dim]
    wrong = target._a[counts & ((target._a < 0) | (target._a >= n))]
    if wrong.size: raise IndexError(f"Target {wrong[0]} is out of bounds.")
    index = made(np.where(counts, target._a, 0), target.dtype).unsqueeze(dim)
    losses = -gather(logs, dim, index.long()).squeeze(dim)
    if smooth: losses = losses * (1 - smooth) - logs.mean(dim) * smooth
    losses = losses.masked_fill(made(~counts, bool_), 0)
    if reduction != "mean": return reduced(losses, reduction)
    return losses.sum() / int(counts.sum()) if counts.any() else losses.sum() / 0.


@operation("scaled_dot_product_attention")
def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.,
                                 is_causal=False, scale=None, enable_gqa=False):
    "Attention; a query that may look at nothing gives zeros."
    if dropout_p: raise absent("scaled_dot_product_attention with dropout")
    if enable_gqa: raise absent("scaled_dot_product_attention(enable_gqa=True)")
    T, S = query.shape[-2], key.shape[-2]
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
        attn_mask = tril(filled((T, S), True, bool_, None))
    d = query.dtype
    scores = query.double() @ transpose(key.double(), -2, -1)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_mask(attn_mask): scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None: scores = scores + attn_mask.double()
    weights = softmax(scores, -1)
    if attn_mask is not None:
        blind = made((scores._a == -np.inf).all(-1, keepdims=True), bool_)
        weights = where(blind, 0., weights)
    return (weights @ value.double()).to(d)


@operation("multi_head_attention_forward", composite=True)
def multi_head_attention(x, w_in, b_in, w_out, b_out, heads: int, mask=None) -> Tensor:
    "Self-attention with PyTorch's packed weights; True in its mask is blocked."
    B, T, C = x.shape
    q, k, v = (reshape(part, B, T, heads, C // heads).transpose(1, 2)
               for part in linear(x, w_in, b_in).chunk(3, -1))
    seen = None if mask is None else ~mask.view(B, heads, T, T)
    found = scaled_dot_product_attention(q, k, v, seen)
    return linear(reshape(found.transpose(1, 2), B, T, C), w_out, b_out)
