"""`attention` against PyTorch, ONNX, finite differences and its own promises."""
import math

import pytest
import torch
import torch.nn.functional as F
from attending import draw
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tfmlib.attention import attention, attention_backward, causal_mask, padding_mask

sizes = st.integers(1, 7)


@st.composite
def problems(draw_, dtype=torch.float64):
    "q, k, v and a mask of any kind that leaves each row something to see."
    lead = tuple(draw_(st.lists(st.integers(1, 3), max_size=3)))
    T, S, D, W = (draw_(sizes) for _ in range(4))
    seed = draw_(st.integers(0, 2**31))
    scale = draw_(st.sampled_from([0.1, 1.0, 10.0]))
    q, k, v = (draw(seed, *lead, T, D) * scale, draw(seed + 1, *lead, S, D),
               draw(seed + 2, *lead, S, W))
    kind = draw_(st.sampled_from(["none", "bool", "float", "row", "column"]))
    shape = (lead[draw_(st.integers(0, len(lead))):]
             + {"row": (1, S), "column": (T, 1)}.get(kind, (T, S)))
    mask = None if kind == "none" else draw(seed + 3, *shape)
    if kind in ("bool", "row", "column"):
        mask = mask > -0.5
        # PyTorch's function gives nan for an empty row
        mask[..., 0] = True
    return (tuple(t.to(dtype) for t in (q, k, v))
            + (mask if mask is None or mask.dtype == torch.bool else mask.to(dtype),))


@settings(max_examples=often(150), deadline=None)
@given(problems())
def test_equals_pytorch_in_double_precision(problem):
    q, k, v, mask = problem
    out, weights = attention(*problem)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask),
                               rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=torch.float64))
    assert (weights >= 0).all()


@settings(max_examples=60, deadline=None)
@given(problems(torch.float32))
def test_equals_pytorch_in_single_precision(problem):
    torch.testing.assert_close(attention(*problem)[0], F.scaled_dot_product_attention(*problem),
                               rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(5))
def test_half_precision_is_no_worse_than_pytorch(dtype, seed):
    q, k, v = (draw(seed + i, 2, 4, 65, 64, dtype=dtype) for i in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), causal_mask(65, 65))
    ours, _ = attention(q, k, v, causal_mask(65, 65))
    theirs = F.scaled_dot_product_attention(q, k, v, causal_mask(65, 65))
    assert ours.dtype == dtype
    assert (ours - exact).abs().max() <= 1.001 * (theirs - exact).abs().max()


def onnx_attention(q, k, v, mask=None, causal=0):
    "The ONNX Attention operator's reference evaluator on (B, H, T, D) arrays."
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator
    names = ["Q", "K", "V"] + ([] if mask is None else ["M"])
    node = helper.make_node("Attention", names, ["Y"], is_causal=causal)
    kinds = {"M": TensorProto.BOOL if mask is not None and mask.dtype == torch.bool
             else TensorProto.DOUBLE}
    inputs = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.DOUBLE), None)
              for n in names]
    graph = helper.make_graph([node], "attention", inputs,
                              [helper.make_tensor_value_info("Y", TensorProto.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    feeds = dict(zip(names, (t.numpy() for t in (q, k, v, mask) if t is not None)))
    return torch.from_numpy(ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("T, S, kind", [
    *((*sizes, kind) for sizes in [(1, 1), (3, 3), (4, 7), (7, 4), (33, 17)]
      for kind in ("none", "bool", "float")), (6, 6, "causal")])
def test_equals_the_onnx_operator(T, S, kind):
    q, k, v = draw(0, 2, 3, T, 8), draw(1, 2, 3, S, 8), draw(2, 2, 3, S, 5)
    mask = {"none": None, "bool": draw(3, T, S) > -1, "float": draw(3, T, S),
            "causal": causal_mask(T, S)}[kind]
    if kind == "bool": mask[:, 0] = True
    wanted = (onnx_attention(q, k, v, causal=1) if kind == "causal"
              else onnx_attention(q, k, v, mask))
    torch.testing.assert_close(attention(q, k, v, mask)[0], wanted, rtol=0, atol=1e-12)


def test_causal_is_bottom_right():
    full = causal_mask(7, 7)
    for T in range(1, 8): assert torch.equal(causal_mask(T, 7), full[-T:])
    assert not causal_mask(5, 3)[:2].any(), "queries before the first key see nothing"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), sizes)
def test_padding_equals_the_shorter_sequence(lengths, T):
    q, k, v = draw(0, len(lengths), T, 4), draw(1, len(lengths), 6, 4), draw(2, len(lengths), 6, 3)
    out, weights = attention(q, k, v, padding_mask(torch.tensor(lengths), 6))
    for b, n in enumerate(lengths):
        alone = attention(q[b], k[b, :n], v[b, :n])[0]
        torch.testing.assert_close(out[b], alone, rtol=0, atol=1e-12)
        assert (weights[b, :, n:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("additive", [False, True])
def test_empty_rows_give_zeros_forward_and_back(dtype, additive):
    q, k, v = (draw(i, 2, 5, 4, dtype=dtype).requires_grad_() for i in range(3))
    mask = causal_mask(5, 5)
    mask[2] = False
    if additive: mask = torch.zeros(5, 5).masked_fill(~mask, -math.inf)
    out, weights = attention(q, k, v, mask)
    out.float().square().sum().backward()
    assert (out[:, 2] == 0).all() and (weights[:, 2] == 0).all() and (q.grad[:, 2] == 0).all()
    assert (all(t.grad.isfinite().all() for t in (q, k, v)) and (out[:, 3] != 0).any()
            and (q.grad[:, 3] != 0).any())


def test_no_keys_and_no_queries():
    out, weights = attention(draw(0, 2, 3, 4), draw(1, 2, 0, 4), draw(2, 2, 0, 5))
    assert out.shape == (2, 3, 5) and (out == 0).all() and weights.shape == (2, 3, 0)
    assert attention(draw(0, 2, 0, 4), draw(1, 2, 3, 4), draw(2, 2, 3, 5))[0].shape == (2, 0, 5)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e15])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_huge_logits_stay_finite(size, dtype):
    q, k, v = (draw(0, 4, 8, dtype=dtype) * size, draw(1, 6, 8, dtype=dtype) * size,
               draw(2, 6, 3, dtype=dtype))
    out, weights = attention(q, k, v)
    assert out.isfinite().all() and weights.isfinite().all()
    torch.testing.assert_close(weights.double().sum(-1), torch.ones(4).double(), rtol=0, atol=0.02)


@pytest.mark.parametrize("mask",
                         [None, causal_mask(4, 5),
                          torch.tensor([True, False, True, True, False])[None]])
def test_gradcheck(mask):
    leaves = [t.requires_grad_() for t in (draw(0, 2, 4, 3), draw(1, 2, 5, 3), draw(2, 2, 5, 2))]
    assert torch.autograd.gradcheck(lambda *t: attention(*t, mask)[0], leaves)
    assert torch.autograd.gradgradcheck(lambda *t: attention(*t, mask)[0], leaves)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 99))
def test_gradients_by_hand_equal_autograd(problem, seed):
    leaves, mask = [t.clone().requires_grad_() for t in problem[:3]], problem[3]
    out, _ = attention(*leaves, mask)
    dout = draw(seed, *out.shape)
    out.backward(dout)
    for hand, leaf in zip(attention_backward(*problem, dout), leaves):
        torch.testing.assert_close(hand, leaf.grad, rtol=1e-9, atol=1e-10)


q, k, v = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5, 6)


@pytest.mark.parametrize("args, says", [
    ((torch.zeros(4), k, v), r"^q: \(4,\); expected at least two"),
    ((q, k[..., :3], v), r"^k: width 3; expected the width of q, 4"),
    ((q, k, v[:, :4]), r"^v: 4 values; expected one for each of 5 keys"),
    ((q, k[:1], v[:1]), r"^k: \(1, 5, 4\); expected the leading dimensions of q, \(2,\)"),
    ((q, k, v[:1]), r"^v: \(1, 5, 6\); expected the leading dimensions of q"),
    ((q[0], k, v), r"^k: .*leading dimensions of q, \(\)"),
    ((q, k.double(), v), r"^k: torch.float64; expected floating point, one type"),
    ((q.long(), k.long(), v.long()), r"^q: torch.int64; expected floating point"),
    ((q[..., :0], k[..., :0], v), r"^q: width 0; expected at least 1"),
    ((q, k, v, torch.ones(3, 5, dtype=torch.long)), r"^mask: torch.int64; expected bool"),
    ((q, k, v, torch.ones(5, dtype=torch.bool)),
     r"^mask: \(5,\); expected two or more dimensions that broadcast to \(2, 3, 5\)"),
    ((q, k, v, torch.ones(5, 3, dtype=torch.bool)), r"^mask: \(5, 3\); expected"),
    ((q, k, v, torch.ones(3, 3, 5, dtype=torch.bool)), r"^mask: \(3, 3, 5\); expected"),
    ((q, k, v, torch.ones(1, 2, 3, 5, dtype=torch.bool)), r"^mask: \(1, 2, 3, 5\); expected"),
])
def test_bad_input_is_refused_by_name(args, says):
    refuses(says, attention, *args)


@pytest.mark.parametrize("lengths, S", [
    *((torch.tensor(n), 6) for n in ([7], [-1], [[1]], 3)), ([1], 3), (torch.tensor([1.5]), 3)])
def test_lengths_are_a_tensor_of_whole_numbers(lengths, S):
    refuses(f"^lengths: .*whole numbers from 0 to S = {S}", padding_mask, lengths, S)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_undo_the_wide_sums(dtype):
    q = k = torch.full((2, 8), 300.0)
    v = draw(0, 2, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype): out, weights = attention(q, k, v)
    torch.testing.assert_close(weights, torch.full((2, 2), 0.5))
    torch.testing.assert_close(out, v.mean(0).expand(2, 3))


def test_gradients_by_hand_survive_half_precision():
    q, v, dout = (torch.full((2, 8), 300.0).half(), 300 * torch.eye(2).half(),
                  torch.full((2, 2), 300.0).half())
    dq, dk, dv = attention_backward(q, q, v, None, dout)
    assert (dq.dtype == torch.float16 and dq.isfinite().all() and dk.isfinite().all()
            and (dv == 300).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_minus_infinity_hides_a_row_and_minus_1e9_averages_it(dtype):
    q, k, v = draw(0, 1, 4, dtype=dtype), draw(1, 3, 4, dtype=dtype), draw(2, 3, 2, dtype=dtype)
    assert (attention(q, k, v, torch.full((1, 3), -math.inf))[1] == 0).all()
    torch.testing.assert_close(attention(q, k, v, torch.full((1, 3), -1e9))[1].float(),
                               torch.full((1, 3), 1 / 3), rtol=0.01, atol=0.01)


def test_masks_live_where_they_are_asked_to():
    assert causal_mask(2, 3, device="meta").device.type == "meta"
    refuses(r"^T, S: \(-1, 2\)", causal_mask, -1, 2)

