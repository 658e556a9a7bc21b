"""The function that chooses: what it chooses and why, that all its choices agree, and that it
works where Triton is not."""
import math
import os
import subprocess
import sys
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmlib.attention import attention, causal_mask
from tfmlib.flash_attention_gpu import (
    LeftOut,
    choose_backend,
    flash_attention,
    flash_attention_fn,
    has_run,
)
from tfmlib.flash_attention_gpu import dispatch as gpu
from tfmlib.heads import MultiHeadAttention

ROOT = Path(__file__).resolve().parents[2]


def heads(*shapes, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


def definition(q, k, v, mask=None, causal=False, window=None, scale=None):
    groups, (T, S) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    scores = (q @ k.repeat_interleave(groups, 1).mT
              * (q.shape[-1] ** -0.5 if scale is None else scale))
    away = torch.arange(S) - torch.arange(T)[:, None] - (S - T)
    seen = torch.ones(T, S, dtype=torch.bool) if mask is None else mask
    if causal: seen = seen & (away <= 0)
    if window: seen = seen & (away.abs() < window)
    return scores.masked_fill(~seen,
                              -math.inf).softmax(-1).nan_to_num(0) @ v.repeat_interleave(groups, 1)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_choice_computes_the_same(data):
    T, S, G = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)),
               data.draw(st.sampled_from([1, 2])))
    q, k, v = heads((2, 2, T, 4), (2, G, S, 4), (2, G, S, 3), seed=data.draw(st.integers(0, 9)))
    told = {"causal": data.draw(st.booleans()), "window": data.draw(st.sampled_from([None, 1, 3])),
            "scale": data.draw(st.sampled_from([None, .3]))}
    mask = data.draw(
        st.sampled_from([None, torch.rand(T, S, generator=torch.Generator().manual_seed(1)) > .3]))
    right = definition(q, k, v, mask, **told)
    torch.testing.assert_close(flash_attention(q, k, v, mask, **told), right)
    torch.testing.assert_close(flash_attention(q, k, v, mask, **told, backend="blockwise"), right)


Fake = namedtuple("Fake", "shape dtype device requires_grad")


def fake(T=64, S=64, D=64, W=None, dtype=torch.bfloat16, device="cuda", G=4, grad=False):
    return tuple(Fake(shape, dtype, torch.device(device), grad)
                 for shape in ((1, 4, T, D), (1, G, S, D), (1, G, S, W or D)))


@pytest.mark.parametrize("mode, tensors, told, name, says", [
    ("native", fake(), {}, "kernel", "bfloat16 on a GPU, heads of width 64"),
    ("native", fake(T=7, S=90), {"causal": True, "window": 5}, "kernel", "on a GPU"),
    ("native", fake(D=300), {}, "sdpa", "256 at most"),
    ("native", fake(), {"chip": (7, 5)}, "sdpa", "8.0 and later"),
    ("native", fake(D=64, W=300), {"window": 3}, "blockwise", "256 at most"),
    ("native", fake(), {"mask": 1}, "sdpa", "no mask"),
    ("native", fake(), {"mask": 1, "causal": True}, "blockwise", "no mask"),
    ("native", fake(T=1), {"causal": True}, "sdpa", "one query"),
    ("native", fake(T=1), {"causal": True, "window": 9}, "kernel", "on a GPU"),
    ("native", fake(T=1, S=4096), {"causal": True}, "decode", "one query of 4096 keys"),
    ("native", fake(T=16, S=1024, G=1), {"window": 9}, "decode", "16 queries of 1024 keys"),
    ("native", fake(T=17, S=1024), {"window": 9}, "kernel", "on a GPU"),
    ("native", fake(T=2, S=1023), {"causal": True}, "kernel", "on a GPU"),
    ("native", fake(T=2, S=4096, grad=True), {"causal": True}, "kernel", "on a GPU"),
    ("native", fake(T=2, S=4096, D=80), {"causal": True}, "kernel", "on a GPU"),
    ("native", fake(T=2, S=4096, W=128), {"causal": True}, "kernel", "on a GPU"),
    ("native", fake(T=2, S=4096), {"mask": 1}, "sdpa", "no mask"),
    ("native", fake(dtype=torch.float64), {}, "blockwise", "float64"),
    ("native", fake(device="cpu"), {}, "sdpa", "on cpu"),
    ("native", fake(device="cpu", T=3), {"causal": True}, "blockwise", "on cpu"),
    ("native", fake(device="mps", dtype=torch.float16), {"window": 4}, "blockwise", "on mps"),
    ("none", fake(), {}, "sdpa", "Triton"),
    ("interpreter", fake(), {"window": 2}, "blockwise", "Triton"),
])
def test_choices(monkeypatch, mode, tensors, told, name, says):
    told, chip = {k: v for k, v in told.items() if k != "chip"}, told.get("chip", (8, 0))
    monkeypatch.setattr(gpu, "mode", lambda: mode)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: chip)
    monkeypatch.setattr(gpu, "speed_record", lambda: None)
    mask = told.pop("mask", None)
    assert (choice := choose_backend(*tensors, mask, **told)).name == name and says in choice.why


def took(direction, D, causal, N, **ms):
    "A row of a record."
    return ({"case": "sweep", "direction": direction, "D": D, "causal": str(causal), "N": N}
            | {f"{name.replace('_', ' ')} ms": {"median": x, "q10": x, "q90": x, "n": 3}
               for name, x in ms.items()})


ROWS = [took("forward", 128, False, 16_384, ours=2., SDPA_cuDNN=1., SDPA_flash=3., FlexAttention=.5,
             product=.1), took("forward", 128, False, 1024, ours=1., SDPA_cuDNN=2.),
        took("forward", 128, True, 16_384, ours=1., SDPA_flash=.9, SDPA_math=.1),
        took("backward", 128, False, 16_384, ours=1., SDPA_efficient=.5)]
ROWS += [{"case": "decode", "D": 128, "T": T, "S": S} | {f"{name} ms": {"median": ms}
        for name, ms in (("ours", 1.), ("SDPA flash", 1.5 - T / 4),
                         ("SDPA math, heads as queries", .1))}
         for T, S in ((1, 4096), (1, 65_536), (4, 4096))]


@pytest.mark.parametrize("tensors, told, name", [
    (fake(8192, 8192, 128), {}, "cudnn"), (fake(2048, 2048, 128), {}, "kernel"),
    (fake(8192, 8192, 128), {"causal": True}, "flash"),
    (fake(8192, 8192, 128, grad=True), {}, "efficient"),
    (fake(8192, 8192, 128, grad=True), {"causal": True}, "kernel"),
    (fake(8192, 8192, 64), {}, "kernel"),
    (fake(8192, 8192, 128), {"window": 9}, "kernel"),
    (fake(4096, 8192, 128), {"causal": True}, "kernel"),
    (fake(8192, 8192, 128, device="cpu"), {}, "sdpa"),
    (fake(1, 4096, 128), {"causal": True}, "decode"), (fake(4, 8192, 128), {}, "flash"),
    (fake(4, 8192, 128), {"causal": True}, "decode")])
def test_the_record_chooses(monkeypatch, tensors, told, name):
    """What can be called and was fastest, in this direction, at this width and mask, at the
    nearest length; on another device the record says nothing."""
    monkeypatch.setattr(gpu, "mode", lambda: "native")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "that GPU")
    record = gpu.Record("flash_gpu", "make", "that GPU", "1", {"torch": "2"}, "c",
                        "2026-01-01", 0, ROWS)
    monkeypatch.setattr(gpu, "speed_record", lambda: record)
    assert (choice := choose_backend(*tensors, **told)).name == name and choice.why
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
    assert choose_backend(*tensors, **told).name in ("kernel", "decode", "sdpa")


@pytest.mark.parametrize("use", ["cudnn", "flash", "efficient"])
def test_a_back_end_by_name(use):
    "One that cannot do it hands it on: on a CPU some can and some cannot."
    q, k, v = heads((1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    torch.testing.assert_close(flash_attention(q, k, v, causal=True, backend=use),
                               definition(q, k, v, causal=True))
    with pytest.raises(ValueError, match=f"backend: {use}; expected no window"):
        flash_attention(q, k, v, window=3, backend=use)


def test_what_has_run_is_said():
    "From the record, and from nothing else."
    def row(way): return {"case": "configuration", "way": way}
    made = [gpu.Record("flash_gpu", "make", "that GPU", "1", {"torch": "2"}, "c", "2026-01-01", 0,
                       [row(way)]) for way in ("descriptors", "specialised")]
    assert has_run(None) == "No kernel of this page has run on a GPU yet."
    assert ([has_run(record) for record in made]
            == [f"The kernels have run on that GPU (2026-01-01), specialised ones {end}."
                for end in ("have not", "among them")])


def test_part_of_heads():
    torch.manual_seed(0)
    layer, x = (MultiHeadAttention(32, 4, n_kv_heads=2).double(),
                torch.randn(2, 9, 32, dtype=torch.float64))
    expected, _ = layer(x, mask=causal_mask(9, 9))
    layer.attention_fn = flash_attention_fn
    out, none = layer(x, causal=True)
    torch.testing.assert_close(out, expected)
    assert none is None


q, k, v = heads((1, 2, 5, 4), (1, 2, 7, 4), (1, 2, 7, 4))


@pytest.mark.parametrize("call, says", [
    (lambda: flash_attention(q[0], k, v), r"q: \(2, 5, 4\); expected four dimensions"),
    (lambda: flash_attention(q, k, v, window=0),
     "window: 0; expected a whole number of at least 1"),
    (lambda: flash_attention(q, k, v, backend="cuda"),
     "backend: 'cuda'; expected kernel, decode, sdpa, cudnn, flash, efficient, blockwise or None"),
    (lambda: flash_attention(q, k, v, causal=True, backend="sdpa"),
     "backend: sdpa; expected no window"),
    (lambda: flash_attention(q, k, v, torch.ones(5, 6, dtype=torch.bool)), "mask"),
    (lambda: flash_attention(q, k, v, torch.ones(5, 7)), "mask: torch.float32; expected bool"),
    (lambda: flash_attention(q, k, v, torch.ones(5, 7, dtype=torch.bool), backend="kernel"),
     "mask: a tensor; expected none"),
    (lambda: flash_attention(q, k, v, scale=-2.), "scale: -2.0; expected a positive number"),
    (lambda: flash_attention(q, k, v, scale=math.inf), "scale: inf; expected a positive number"),
    (lambda: flash_attention(q, k, v, scale=math.nan), "scale: nan; expected a positive number"),
    (lambda: flash_attention(q[..., :0], k[..., :0], v), "q: width 0; expected at least 1"),
    (lambda: flash_attention(q, k, v[..., :0]), "v: width 0; expected at least 1"),
])
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says): call()


def test_attends():
    torch.testing.assert_close(flash_attention(q, k, v), attention(q, k, v)[0])




def inside(code: str, **env) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_without_triton():
    "Where Triton cannot be installed the function works, and says why it does not use it."
    code = """
import importlib.util, torch
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name.split(".")[0] == "triton" else real(name, *a)
from tfmlib.flash_attention_gpu import choose_backend, flash_attention, mode, prepare
q = torch.ones(1, 1, 3, 16)
print(mode(), prepare(), choose_backend(q, q, q).name, float(flash_attention(q, q, q, window=2).mean()))
try: flash_attention(q, q, q, backend="kernel")
except ValueError as e: print(e)
"""  # noqa: E501
    said = inside(code)
    assert said.startswith("none none sdpa 1.0") and "backend: kernel; expected Triton" in said


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels run natively")
@pytest.mark.whole
def test_interpreter_is_chosen_in_time():
    code = (
        "from tfmlib.flash_attention_gpu import prepare\nimport {}\ntry: print(prepare())\nexcept "
        "ValueError as e: print(e)")
    assert inside(code.format("os"), TRITON_INTERPRET="0") == "interpreter\n"
    assert "triton: imported already; expected nothing that imports it" in inside(
        code.format("triton"), TRITON_INTERPRET="0")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels run natively")
def test_by_kernel_on_request():
    code = """
import torch
from tfmlib.flash_attention_gpu import flash_attention, prepare
prepare()
q, k, v = torch.randn(3, 1, 2, 40, 20)
ours, right = (flash_attention(q, k, v, causal=True, backend=backend) for backend in ("kernel", "blockwise"))
few = flash_attention(q[:, :, :3, :16], k[..., :16], v[..., :16], causal=True, backend="decode")
again = flash_attention(q[:, :, :3, :16], k[..., :16], v[..., :16], causal=True, backend="blockwise")
print(float((ours - right).abs().max()) < 1e-5, float((few - again).abs().max()) < 1e-5)
"""  # noqa: E501
    assert inside(code, TRITON_INTERPRET="0") == "True True\n"


@pytest.mark.parametrize("cells, left_out", [
    (["import triton", "x = 1", "triton.cdiv(3, 2)"], [True, False, True]),
    (["import triton.language as tl\ny = 2", "y + 1", "y = 3", "y + 1"],
     [True, True, False, False]),
    (["@triton.jit\ndef kernel(X): pass", "def helper(): return kernel", "z = helper()", "z",
      "w = 5"], [True, True, True, True, False]),
    (["from tfmlib.workbench import need", "need(True, 'a', 1, 'b')"], [False, False]),
    (["class A(triton.B): pass", "A()", "tl = 3", "tl"], [True, True, False, False]),
    (["def f(x):\n    y = triton.cdiv(x, 2)\n    return y", "y = 1\ny", "[y for y in range(3)]",
      "f(2)"], [True, False, False, True]),
    (["x = triton.cdiv(3, 2)", "x = x + 1", "x = 1\nx = x + 1", "x"], [True, True, False, False]),
    (["import torch\nimport triton", "torch.ones(1)"], [True, False]),
    (["%matplotlib inline is no Python", "triton"], [False, True]),
])
def test_cells_that_need_triton_are_left_out(cells, left_out):
    """And those that need what these would have made; a name that is made anew by another cell
    is good again."""
    rewrite = LeftOut("triton", "tl")
    made = [rewrite([line + "\n" for line in cell.split("\n")]) for cell in cells]
    assert [lines[0].startswith("'Left out") for lines in made] == left_out
    assert all("".join(lines) == cell + "\n" for lines, cell, out in zip(made, cells,
            left_out) if not out)
