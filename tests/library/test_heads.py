"""`MultiHeadAttention` against PyTorch's layer, a loop over heads, repeated keys and its own
promises."""
import copy
import importlib
import math

import pytest
import torch
import torch.nn.functional as F
from attending import attended, draw
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from torch import nn

from tfmlib.attention import attention, causal_mask, padding_mask
from tfmlib.heads import (
    HeadView,
    MultiHeadAttention,
    SimpleMultiHeadAttention,
    attention_from_torch,
    grouped_query_attention,
)

small = st.integers(1, 4)
MASKS = st.sampled_from(["none", "bool", "float", "padding", "per head", "rows"])


def masked(kind, seed, B, H, T, S):
    "A mask of one kind; each row may see key 0 if it is boolean."
    shape = {"bool": (T, S), "float": (B, H, T, S), "padding": (B, 1, 1, S),
             "per head": (1, H, T, S), "rows": (T, 1)}.get(kind)
    if shape is None: return None
    if kind == "float": return draw(seed, *shape)
    mask = draw(seed, *shape) > 0
    mask[..., 0] = True
    return mask


@st.composite
def layers(draw_):
    "A layer of any kind, what it reads, and a mask."
    B, T, S, G, R, D, W, C, M = (draw_(small) for _ in range(9))
    seed, kind = draw_(st.integers(0, 2**31)), draw_(MASKS)
    torch.manual_seed(seed)
    layer = MultiHeadAttention(C, G * R, G, head_dim=D, value_dim=W, memory_dim=M,
                               bias=draw_(st.booleans())).double()
    return (layer, draw(seed, B, T, C), draw(seed + 1, B, S, M),
            masked(kind, seed + 2, B, G * R, T, S))


def by_loop(layer, x, memory, mask):
    "The definition, head by head, sequence by sequence, with PyTorch's linear and softmax."
    H, G = layer.n_heads, layer.n_kv_heads
    B, T, S = len(x), x.shape[1], memory.shape[1]
    q, k, v = layer.q_proj(x), layer.k_proj(memory), layer.v_proj(memory)
    D, W = q.shape[-1] // H, v.shape[-1] // G
    full = torch.zeros(B, H, T, S, dtype=x.dtype)
    if mask is not None:
        full = full.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else full + mask
    outs, weights = [], torch.zeros(B, H, T, S, dtype=x.dtype)
    for h in range(H):
        g = h * G // H
        for b in range(B):
            weights[b, h] = (q[b, :, h * D:(h + 1) * D] @ k[b, :, g * D:(g + 1) * D].T
                             / math.sqrt(D) + full[b, h]).softmax(-1)
        outs.append(weights[:, h] @ v[..., g * W:(g + 1) * W])
    return layer.o_proj(torch.cat(outs, -1)), weights


@settings(max_examples=often(150), deadline=None)
@given(layers())
def test_equals_a_loop_over_heads(problem):
    layer, x, memory, mask = problem
    for got, wanted in zip(attended(layer, x, memory, mask), by_loop(layer, x, memory, mask)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@settings(max_examples=often(100), deadline=None)
@given(st.booleans(), st.sampled_from([None, 3, 8]), st.integers(1, 5), st.integers(1, 5), MASKS,
       st.integers(0, 99))
def test_equals_pytorch_forward_and_back(bias, memory_width, T, S, kind, seed):
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(8, 4, bias=bias, kdim=memory_width, vdim=memory_width,
                                   batch_first=True, dtype=torch.float64)
    for p in theirs.parameters(): nn.init.normal_(p)
    ours, x = attention_from_torch(theirs), draw(seed, 2, T, 8)
    memory = draw(seed + 1, 2, S, memory_width or 8)
    mask = masked(kind, seed + 2, 2, 4, T, S)
    turned = None if mask is None else mask.expand(2, 4, T, S).flatten(0, 1)
    turned = ~turned if turned is not None and turned.dtype == torch.bool else turned
    leaves = [[t.clone().requires_grad_() for t in (x, memory)] for _ in range(2)]
    mine, theirs_ = (attended(ours, *leaves[0], mask),
                     theirs(leaves[1][0], leaves[1][1], leaves[1][1], attn_mask=turned,
                            average_attn_weights=False))
    for got, wanted in zip(mine, theirs_):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)
    for out in (mine[0], theirs_[0]): out.sin().sum().backward()
    for got, wanted in zip(*leaves):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=0, atol=1e-10)
    joint = torch.cat([ours.q_proj.weight.grad.flatten(), ours.k_proj.weight.grad.flatten(),
                       ours.v_proj.weight.grad.flatten()])
    split = ([theirs.in_proj_weight.grad] if theirs.in_proj_weight is not None
             else [w.grad for w in (theirs.q_proj_weight, theirs.k_proj_weight,
                                    theirs.v_proj_weight)])
    torch.testing.assert_close(joint, torch.cat([w.flatten() for w in split]), rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.o_proj.weight.grad, theirs.out_proj.weight.grad,
                               rtol=0, atol=1e-10)
    if bias:
        torch.testing.assert_close(torch.cat([ours.q_proj.bias.grad, ours.k_proj.bias.grad,
                                              ours.v_proj.bias.grad]), theirs.in_proj_bias.grad,
                                   rtol=0, atol=1e-10)


@settings(max_examples=often(100), deadline=None)
@given(small, small, small, small, small,
       st.sampled_from(["none", "bool", "float", "padding", "per head", "rows"]),
       st.integers(0, 99))
def test_shared_keys_are_repeated_keys_and_pytorchs(B, G, R, T, S, kind, seed):
    q, k, v = draw(seed, B, G * R, T, 4), draw(seed + 1, B, G, S, 4), draw(seed + 2, B, G, S, 3)
    mask = masked(kind, seed + 3, B, G * R, T, S)
    out, weights = grouped_query_attention(q, k, v, mask)
    wanted = attention(q, k.repeat_interleave(R, 1), v.repeat_interleave(R, 1), mask)
    for got, want in zip((out, weights), wanted):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True),
                               rtol=0, atol=1e-12)


def test_rows_with_nothing_to_see_give_only_the_bias():
    layer = MultiHeadAttention(8, 4, n_kv_heads=2, bias=True).double()
    x = draw(0, 2, 5, 8).requires_grad_()
    out, weights = attended(layer, x, mask=padding_mask(torch.tensor([5, 0]), 5)[:, None])
    torch.testing.assert_close(out[1], layer.o_proj.bias.expand(5, 8))
    assert (weights[1] == 0).all()
    out[1].sum().backward()
    assert ((x.grad == 0).all() and all(p.grad is None or p.grad.isfinite().all()
                                        for p in layer.parameters()))


def test_gradcheck_with_shared_keys():
    layer = MultiHeadAttention(4, 4, n_kv_heads=2).double()
    assert torch.autograd.gradcheck(lambda x, m: layer(x, m, causal_mask(3, 4))[0],
                                    (draw(0, 2, 3, 4).requires_grad_(),
                                     draw(1, 2, 4, 4).requires_grad_()))


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_a_part_sees_the_keys_as_they_are(groups):
    seen = []
    def part(q, k, v, mask=None):
        seen.append([tuple(t.shape) for t in (q, k, v)])
        return q[..., :2], None
    layer = MultiHeadAttention(16, 8, n_kv_heads=groups, head_dim=3, value_dim=2, memory_dim=5,
                               attention_fn=part)
    out, weights = layer(torch.randn(2, 3, 16), torch.randn(2, 7, 5))
    assert (seen == [[(2, 8, 3, 3), (2, groups, 7, 3), (2, groups, 7, 2)]] and out.shape
            == (2, 3, 16) and weights is None)


def test_sharing_copies_no_keys():
    k = v = torch.randn(1, 2, 64, 4)
    def part(q, k_, v_, mask=None):
        assert (k_.data_ptr() == k.data_ptr() and k_.shape == (1, 2, 64, 4) and q.shape
                == (1, 2, 4, 4))
        return attention(q, k_, v_, mask)
    assert (grouped_query_attention(torch.randn(1, 8, 1, 4), k, v, attention_fn=part)[0].shape
            == (1, 8, 1, 4))


@pytest.mark.parametrize("C, H", [(8, 1), (8, 4), (512, 8)])
def test_parameters(C, H):
    def count(**named):
        return sum(p.numel() for p in MultiHeadAttention(C, H, **named).parameters())
    assert (count() == 4 * C * C and count(bias=True) == 4 * C * C + 4 * C and count(n_kv_heads=1)
            == 2 * C * C + 2 * C * C // H)


def test_a_layer_can_be_copied_and_saved():
    layer = MultiHeadAttention(8, 4, n_kv_heads=2)
    twin, x = copy.deepcopy(layer), torch.randn(1, 3, 8)
    torch.testing.assert_close(attended(twin, x), attended(layer, x))
    other = MultiHeadAttention(8, 4, n_kv_heads=2)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(attended(other, x), attended(layer, x))
    assert (set(layer.state_dict())
            == {f"{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "o_proj")})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    layer, x = MultiHeadAttention(32, 4, n_kv_heads=2), torch.randn(2, 9, 32)
    out, weights = attended(copy.deepcopy(layer).to(dtype), x.to(dtype), mask=causal_mask(9, 9))
    assert out.dtype == weights.dtype == dtype
    torch.testing.assert_close(out.float(), layer(x, mask=causal_mask(9, 9))[0], rtol=0, atol=0.02)


def test_lengths_of_nothing():
    layer = MultiHeadAttention(8, 2)
    assert (layer(torch.randn(0, 3, 8))[0].shape == (0, 3, 8)
            and layer(torch.randn(2, 0, 8))[0].shape == (2, 0, 8))
    out, weights = attended(layer, torch.randn(2, 3, 8), torch.randn(2, 0, 8))
    assert (out == 0).all() and weights.shape == (2, 2, 3, 0)
    assert MultiHeadAttention(8, 4, n_kv_heads=2)(torch.randn(2, 0, 8))[0].shape == (2, 0, 8)


@pytest.mark.parametrize("named, says", [
    (dict(d_model=8, n_heads=3), r"^n_heads: 3; expected a divisor of d_model, 8, or a head_dim"),
    (dict(d_model=8, n_heads=4, n_kv_heads=3), r"^n_kv_heads: 3; expected a divisor of n_heads, 4"),
    (dict(d_model=8, n_heads=4, n_kv_heads=8), r"^n_kv_heads: 8; expected a divisor of n_heads, 4"),
    (dict(d_model=8, n_heads=0), r"^n_heads: 0; expected a whole number"),
    (dict(d_model=0, n_heads=1), r"^d_model: 0; expected a whole number"),
    (dict(d_model=8, n_heads=2.0), r"^n_heads: 2.0; expected a whole number"),
    (dict(d_model=8, n_heads=True), r"^n_heads: True; expected a whole number"),
    (dict(d_model=8, n_heads=4, n_kv_heads=0), r"^n_kv_heads: 0; expected a whole number"),
    (dict(d_model=8, n_heads=4, head_dim=0), r"^head_dim: 0; expected a whole number"),
    (dict(d_model=8, n_heads=4, value_dim=-1), r"^value_dim: -1; expected a whole number"),
    (dict(d_model=8, n_heads=4, memory_dim=0), r"^memory_dim: 0; expected a whole number"),
    (dict(d_model=None, n_heads=4), r"^d_model: None; expected a whole number"),
])
def test_sizes_are_refused_by_name(named, says):
    refuses(says, MultiHeadAttention, **named)


x8, m6 = torch.zeros(2, 3, 8), torch.zeros(2, 5, 6)


@pytest.mark.parametrize("named, says", [
    (dict(x=torch.zeros(2, 3, 6), memory=m6), r"^x: \(2, 3, 6\); expected \(B, T, 8\)"),
    (dict(x=x8[0], memory=m6), r"^x: \(3, 8\); expected \(B, T, 8\)"),
    (dict(x=x8[None], memory=m6), r"^x: \(1, 2, 3, 8\); expected \(B, T, 8\)"),
    (dict(x=x8, memory=x8), r"^memory: \(2, 3, 8\); expected \(B, S, 6\)"),
    (dict(x=x8), r"^memory: \(2, 3, 8\); expected \(B, S, 6\)"),
    (dict(x=x8, memory=m6[0]), r"^memory: \(5, 6\); expected \(B, S, 6\)"),
    (dict(x=x8, memory=m6[:1]), r"^memory: a batch of 1; expected a batch of 2, as x"),
    (dict(x=x8, memory=m6, mask=torch.ones(2, 1, 5, dtype=torch.bool)),
     r"^mask: \(2, 1, 5\); expected \(T, S\), or \(B, H, T, S\).*\[:, None\]"),
    (dict(x=x8, memory=m6, mask=torch.ones(5, dtype=torch.bool)),
     r"^mask: \(5,\); expected \(T, S\)"),
    (dict(x=x8, memory=m6, mask=torch.ones(1, 2, 4, 3, 5, dtype=torch.bool)),
     r"^mask: .*expected \(T, S\)"),
    (dict(x=x8, memory=m6, mask=torch.ones(2, 2, 1, 5, dtype=torch.bool)),
     r"^mask: \(2, 2, 1, 5\); expected .* broadcast to \(2, 4, 3, 5\)"),
    (dict(x=x8, memory=m6, mask=torch.ones(4, 1, 1, 5, dtype=torch.bool)),
     r"^mask: \(4, 1, 1, 5\); expected"),
    (dict(x=x8, memory=m6, mask=torch.ones(5, 3, dtype=torch.bool)), r"^mask: \(5, 3\); expected"),
    (dict(x=x8, memory=m6, mask=torch.ones(3, 4, dtype=torch.bool)), r"^mask: \(3, 4\); expected"),
    (dict(x=x8, memory=m6, mask=torch.ones(3, 5, dtype=torch.long)),
     r"^mask: torch.int64; expected bool"),
])
@pytest.mark.parametrize("groups", [4, 2])
def test_inputs_are_refused_by_name(named, says, groups):
    refuses(says, MultiHeadAttention(8, 4, n_kv_heads=groups, memory_dim=6), **named)


@pytest.mark.parametrize("shape", [(2, 2, 3, 4), (2, 3, 4, 2), (2, 4, 3, 4), (4, 3, 2)])
def test_what_a_part_gives_is_refused_by_name(shape):
    refuses(r"^out: .*expected \(B, 4, T, 2\) from attention_fn",
        MultiHeadAttention(8, 4, attention_fn=lambda q, k, v, mask: (torch.zeros(shape), None)), x8)


q4, k3 = torch.zeros(2, 4, 3, 8), torch.zeros(2, 3, 5, 8)


@pytest.mark.parametrize("named, says", [
    (dict(add_bias_kv=True), "^theirs: has bias_k"),
    (dict(add_zero_attn=True), "^theirs: has bias_k"),
    (dict(kdim=3, vdim=4), "^theirs: kdim 3, vdim 4")])
def test_from_torch_refuses(named, says):
    refuses(says, attention_from_torch, nn.MultiheadAttention(8, 4, **named))


def test_from_torch_copies_and_does_not_share():
    theirs = nn.MultiheadAttention(8, 4, batch_first=True)
    ours = attention_from_torch(theirs)
    ours.q_proj.weight.data.zero_()
    assert theirs.in_proj_weight[:8].abs().sum() > 0 and ours.o_proj.bias is not None


WEIGHTS = [[[[.9, .1], [.2, .8]], [[.3, .7], [.6, .4]]]]
ONE = {"weights": [[[[.9, .1], [.2, .8]]]], "heads": [True]}


@pytest.mark.parametrize("told, lines", [
    ({}, 4), ({"query": 0}, 2), ({"heads": [False, False]}, 0),
    (ONE | {"least": 0.}, 4), (ONE | {"least": .15}, 3), (ONE | {"least": .5}, 2)])
def test_head_links_draws_what_is_chosen_and_hides_weak_lines(told, lines):
    made = {"sentences": [["a", "b"]], "weights": WEIGHTS, "alt": "two words joined by lines",
        "heads": [True, True]}
    assert HeadView(**made | told).picture().count("<path") == lines


def test_what_else_the_part_wants_to_know_is_handed_on_by_name():
    told = []

    def part(q, k, v, mask, positions=None):
        told.append(positions); return grouped_query_attention(q, k, v, mask)

    layer, x = MultiHeadAttention(8, 2, attention_fn=part), torch.randn(1, 3, 8)
    layer(x, positions=[5, 6, 9])
    assert told == [[5, 6, 9]]
    with pytest.raises(TypeError, match="elsewhere"): layer(x, elsewhere=1)


@settings(max_examples=60, deadline=None)
@given(small, small, small, small, small, st.sampled_from(["none", "bool", "padding", "per head"]),
       st.booleans(), st.integers(0, 99))
def test_the_short_class_is_the_long_one_without_options(B, T, S, H, D, kind, crosses, seed):
    "The same parameters under the same names, the same numbers."
    torch.manual_seed(seed)
    short = SimpleMultiHeadAttention(H * D, H).double()
    long = MultiHeadAttention(H * D, H).double()
    long.load_state_dict(short.state_dict())
    x = draw(seed, B, T, H * D)
    memory = draw(seed + 1, B, S, H * D) if crosses else None
    mask = masked(kind, seed + 2, B, H, T, S if crosses else T)
    for got, wanted in zip(short(x, memory, mask), attended(long, x, memory, mask)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_the_short_class_refuses_heads_that_do_not_divide_the_width():
    refuses("n_heads: 3; expected a divisor of d_model, 8", SimpleMultiHeadAttention, 8, 3)


@pytest.mark.parametrize("name", ["heads.fused_attention", "accounting.fused_causal"])
def test_two_numbers_of_heads_compile_in_one_process(name):
    "From the second on, the compiler has a symbol for the number of heads, and no bool."
    module, function = name.split(".")
    attend = getattr(importlib.import_module(f"tfmlib.{module}"), function)
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    for H, G in ((4, 2), (6, 3), (8, 8)):
        q, k, v = draw(1, 1, H, 5, 8), draw(2, 1, G, 5, 8), draw(3, 1, G, 5, 8)
        torch.testing.assert_close(compiled(q, k, v)[0], attend(q, k, v)[0], rtol=0, atol=1e-12)
