"""The kernels: on any machine in Triton's interpreter, in a process of its own; on a GPU
natively, in 16 bits."""
import itertools
import math
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import sweep
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = Path(__file__).resolve().parents[1]
triton_only = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
gpu_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@triton_only
def test_in_the_interpreter():
    """flash_cases.py and of those for packed sequences, for Gluon and for lists of blocks:
    shapes in which tiles go wrong, refusals, and wrong kernels that must be rejected."""
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-W", "ignore", "-p",
               "no:cacheprovider", "-m", "" if os.environ.get("TFM_WHOLE") else "not whole",
               *(HERE / f"{name}_cases.py" for name in ("flash", "varlen", "gluon", "listed"))]
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


@triton_only
def test_kernels_are_imported_by_nobody():
    """The library, its dispatcher included, imports without Triton; a process that imports it
    may still choose the interpreter."""
    code = (
        "import sys, tfmlib.flash_attention_gpu; assert 'triton' not in sys.modules and "
        "'tfmlib.flash_attention_gpu.kernels' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], cwd=HERE.parent, check=True)


# --- on a GPU -------------------------------------------------------------------------------------

def by_math(q, k, v, causal, window):
    "PyTorch's plain attention in the type that comes in, the mask written out."
    away = (torch.arange(k.shape[2], device=q.device)
            - torch.arange(q.shape[2], device=q.device)[:, None] - (k.shape[2] - q.shape[2]))
    seen = torch.ones_like(away, dtype=torch.bool)
    if causal: seen &= away <= 0
    if window: seen &= away.abs() < window
    groups = q.shape[1] // k.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1),
                                              v.repeat_interleave(groups, 1), seen)


def gradients(function, tensors, dout):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def heads(B, H, G, T, S, D, dtype, device="cuda"):
    g = torch.Generator(device).manual_seed(0)
    return [torch.randn(shape, generator=g, device=device).to(dtype)
            for shape in ((B, H, T, D), (B, G, S, D), (B, G, S, D), (B, H, T, D))]


# B, H, G, T, S
SHAPES = [(2, 4, 4, 512, 512), (1, 4, 2, 1000, 1000), (2, 4, 1, 33, 777), (1, 8, 1, 300, 130),
          (1, 2, 2, 1, 500)]
# causal, window
BANDS = [(False, None), (True, None), (True, 1), (True, 200), (False, 100)]


def rounding(exact, dtype) -> float:
    """Half the distance between neighbours of a 16-bit type, at the largest number: nobody who
    answers in that type can promise less."""
    top = float(exact.abs().max())
    return 2. ** math.floor(math.log2(top)) * torch.finfo(dtype).eps / 2 if top else 0.


def off(ours, plain, exact, dtype, floor=True) -> float:
    """The largest error, in units of what is allowed: twice that of PyTorch's plain attention,
    and one rounding."""
    limit = 2 * float((plain.double() - exact).abs().max()) + rounding(exact, dtype) * floor + 1e-5
    return float((ours.double() - exact).abs().max()) / limit


def three_ways(ours, shape, band, dtype, device="cuda") -> list[tuple]:
    "Output and gradients of a function, of plain attention in its type, and in float64."
    *tensors, dout = heads(*shape, dtype, device)
    exact = gradients(lambda *t: by_math(*t, *band).nan_to_num(0), [t.double() for t in tensors],
                      dout.double())
    plain = gradients(lambda *t: by_math(*t, *band).nan_to_num(0), tensors, dout)
    return list(zip(("out", "dq", "dk", "dv"), ours(tensors, dout, band), plain, exact))


@gpu_only
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("D", [16, 32, 64, 128, 256])
def test_sixteen_bits(dtype, D):
    """No more than twice as far from float64 as PyTorch's plain attention in the same type, and
    one rounding."""
    from tfmlib.flash_attention_gpu.kernels import flash
    for shape, band in itertools.product(SHAPES, BANDS):
        for name, a, b, c in three_ways(lambda t, dout, band: gradients(lambda *t: flash(*t,
                *band)[0], t, dout), (*shape, D), band, dtype):
            assert off(a, b, c, dtype) <= 1, (name, shape, band)


def emulated(tensors, dout, band, seen_late=0, with_delta=True, root=True) -> list:
    """What a right kernel comes to: sums in 32 bits, but weights, score gradients and results
    rounded to the type. The rest is what a wrong one does."""
    (q, k, v), dtype, (causal, window) = tensors, dout.dtype, band
    groups, T, S, scale = (q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3] ** -.5
                           if root else 1.)
    away = torch.arange(S) - torch.arange(T)[:, None] - (S - T) - seen_late
    seen = (away <= 0 if causal else away == away) & (away.abs() < (window or T + S))
    def short(x): return x.to(dtype).float()
    q, k, v, dout = (q.float(), *(x.float().repeat_interleave(groups, 1) for x in (k, v)),
                     dout.float())
    scores = (q @ k.mT * scale).masked_fill(~seen, -math.inf)
    top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    out = short(short(e) @ v / total.where(total > 0, torch.ones(())))
    weights = e / total.where(total > 0, torch.ones(()))
    dz = short(weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True) * with_delta))
    dv, dk, dq = short(short(weights).mT @ dout), short(dz.mT @ q * scale), short(dz @ k * scale)
    return [x.to(dtype) for x in (out, dq,
                                  *(x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv)))]


WRONG = {"hidden keys are seen": {"seen_late": 1}, "no delta": {"with_delta": False},
         "no root": {"root": False}}


@pytest.mark.parametrize("dtype", sweep([torch.bfloat16, torch.float16], torch.bfloat16))
def test_the_bound_of_sixteen_bits(dtype):
    """An answer that is right but for its roundings keeps it, which it would not without that
    one rounding; a wrong one does not keep it."""
    cases = list(
        itertools.product(
            [(*shape, D) for shape in SHAPES[1::1 if os.environ.get("TFM_WHOLE") else 3]
             for D in (16, 64)], BANDS))
    compared = [(a, b, c) for shape, band in cases for _, a, b, c in three_ways(emulated, shape,
            band, dtype, "cpu")]
    assert all(off(*one, dtype) <= 1 for one in compared)
    assert any(off(*one, dtype, floor=False) > 1 for one in compared)
    for told, shape in itertools.product(WRONG.values(),
                                         [(1, 4, 2, 200, 200, 64), (2, 4, 1, 33, 300, 64)]):
        assert (max(off(a, b, c, dtype) for _, a, b, c in three_ways(partial(emulated, **told),
                shape, (True, 20), dtype, "cpu")) > 5)
