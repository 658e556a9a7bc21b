"""The kernels: on any machine in Triton's interpreter, in a process of its own; on a GPU natively, in 16 bits."""
import itertools
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = Path(__file__).parent
triton_only = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
gpu_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@triton_only
def test_in_the_interpreter():
    "All of flash_cases.py: shapes in which tiles go wrong, refusals, and wrong kernels that must be rejected."
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-W", "ignore", "-p", "no:cacheprovider", HERE / "flash_cases.py"]
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


@triton_only
def test_kernels_are_imported_by_nobody():
    "The library, its dispatcher included, imports without Triton; a process that imports it may still choose the interpreter."
    code = "import sys, tfmlib.flash_attention_gpu; assert 'triton' not in sys.modules and 'tfmlib.flash_kernels' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=HERE.parent, check=True)


# --- on a GPU -----------------------------------------------------------------------------------------------------

def by_math(q, k, v, causal, window):
    "PyTorch's plain attention in the type that comes in, the mask written out."
    away = torch.arange(k.shape[2], device=q.device) - torch.arange(q.shape[2], device=q.device)[:, None] - (k.shape[2] - q.shape[2])
    seen = torch.ones_like(away, dtype=torch.bool)
    if causal: seen &= away <= 0
    if window: seen &= away.abs() < window
    groups = q.shape[1] // k.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), seen)


def gradients(function, tensors, dout):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def heads(B, H, G, T, S, D, dtype):
    g = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, generator=g, device="cuda").to(dtype) for shape in ((B, H, T, D), (B, G, S, D), (B, G, S, D), (B, H, T, D))]


SHAPES = [(2, 4, 4, 512, 512), (1, 4, 2, 1000, 1000), (2, 4, 1, 33, 777), (1, 8, 1, 300, 130), (1, 2, 2, 1, 500)]     # B, H, G, T, S
BANDS = [(False, None), (True, None), (True, 1), (True, 200), (False, 100)]                                         # causal, window


@gpu_only
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("D", [16, 32, 64, 128, 256])
def test_sixteen_bits(dtype, D):
    "No more than twice as far from float64 as PyTorch's plain attention in the same type."
    from tfmlib.flash_kernels import flash
    for shape, band in itertools.product(SHAPES, BANDS):
        *tensors, dout = heads(*shape, D, dtype)
        exact = gradients(lambda *t, band=band: by_math(*t, *band).nan_to_num(0), [t.double() for t in tensors], dout.double())
        plain = gradients(lambda *t, band=band: by_math(*t, *band).nan_to_num(0), tensors, dout)
        ours = gradients(lambda *t, band=band: flash(*t, *band)[0], tensors, dout)
        for name, a, b, c in zip(("out", "dq", "dk", "dv"), ours, plain, exact):
            limit = 2 * float((b.double() - c).abs().max()) + 1e-5
            assert float((a.double() - c).abs().max()) <= limit, (name, shape, band)


@gpu_only
def test_fifty_times():
    "The same bits, fifty times: no two programs write to one place."
    from tfmlib.flash_kernels import flash
    *tensors, dout = heads(2, 8, 2, 1500, 1500, 128, torch.bfloat16)
    first = gradients(lambda *t: flash(*t, True)[0], tensors, dout)
    for _ in range(50):
        for a, b in zip(gradients(lambda *t: flash(*t, True)[0], tensors, dout), first): assert torch.equal(a, b)


@gpu_only
@pytest.mark.parametrize("D", [64, 128])
def test_poisoned_padding(D):
    "What lies beyond the last row is nan, and nothing of it is read or overwritten."
    from tfmlib import flash_kernels as kernels
    *tensors, dout = heads(2, 2, 2, 1000, 1000, D, torch.bfloat16)
    longer = [torch.cat([t, torch.full_like(t[:, :, :120], math.nan)], 2) for t in (*tensors, dout)]
    inside = [x[:, :, :1000] for x in longer]
    for a, b in ((inside, [*tensors, dout]),):
        out, lse = kernels.forward(*a[:3], causal=True)
        right, also = kernels.forward(*b[:3], causal=True)
        assert torch.equal(out, right) and torch.equal(lse, also)
        for x, y in zip(kernels.backward((*a[:3], out, lse), a[3], causal=True), kernels.backward((*b[:3], out, lse), b[3], causal=True)): assert torch.equal(x, y)
    assert all(bool(x[:, :, 1000:].isnan().all()) for x in longer)


@gpu_only
def test_memory_is_linear():
    "Twice the length, at most 2.1 times the memory; 65,536 tokens go there and back."
    from tfmlib.flash_kernels import flash
    most = []
    for N in (16_384, 32_768, 65_536):
        *tensors, dout = heads(1, 4, 4, N, N, 128, torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = gradients(lambda *t: flash(*t, True)[0], tensors, dout)
        most.append(torch.cuda.max_memory_allocated() - before)
        assert all(bool(x.isfinite().all()) for x in results)
        del tensors, dout, results
    assert all(b <= 2.1 * a for a, b in zip(most, most[1:]))
