"""Norms, feed-forward layers and blocks against PyTorch's, against the definition, and their own
promises."""
import copy
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

from tfmlib.attention import causal_mask, padding_mask
from tfmlib.block import (
    DepthView,
    Dropout,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    NoResidual,
    PostNorm,
    PreNorm,
    RMSNorm,
    SimpleTransformerBlock,
    SwiGLU,
    TransformerBlock,
    TransformerStack,
    block_from_torch,
    gelu,
    gelu_tanh,
    swiglu_d_ff,
)
from tfmlib.heads import MultiHeadAttention, grouped_query_attention


def close(got, wanted, tol=1e-11): torch.testing.assert_close(got, wanted, rtol=tol, atol=tol)


# --- norms ----------------------------------------------------------------------------------------

@st.composite
def rows(draw_):
    "Rows of any width, shifted and scaled by many orders of magnitude."
    C, shape, seed = (draw_(st.integers(2, 40)),
                      draw_(st.sampled_from([(), (1,), (3,), (2, 3), (0,)])),
                      draw_(st.integers(0, 2**31)))
    return ((draw(seed, *shape, C) + draw_(st.sampled_from([0.0, 1.0, -30.0])))
            * 10.0 ** draw_(st.integers(-12, 6)))


@settings(max_examples=often(200), deadline=None)
@given(rows(), st.sampled_from([1e-3, 1e-5, 1e-12]), st.booleans())
def test_norms_are_pytorchs_forward_and_back(x, eps, bias):
    C = x.shape[-1]
    for ours, theirs in ((LayerNorm(C, eps, bias), nn.LayerNorm(C, eps, bias=bias)),
                         (RMSNorm(C, eps), nn.RMSNorm(C, eps))):
        ours, theirs = ours.double(), theirs.double()
        for i, p in enumerate(theirs.parameters()): p.data = draw(i, C)
        ours.load_state_dict(theirs.state_dict())
        a, b = (x.clone().requires_grad_() for _ in range(2))
        close(ours(a), theirs(b), 1e-8)
        for layer, leaf in ((ours, a), (theirs, b)): layer(leaf).sin().sum().backward()
        close(a.grad * eps**0.5, b.grad * eps**0.5, 1e-7)
        for p, q in zip(ours.parameters(), theirs.parameters()): close(p.grad, q.grad, 1e-6)


@settings(max_examples=often(100), deadline=None)
@given(st.sampled_from([torch.float16, torch.bfloat16]), st.integers(8, 300),
       st.sampled_from([1e-3, 1.0, 100.0, 30_000.0]), st.integers(0, 99))
def test_norms_in_half_precision_compute_in_float32(dtype, C, size, seed):
    "30,000 squared does not fit into float16; the result is the float32 result, rounded once."
    x = (draw(seed, 3, C).clamp(-2, 2) * size).to(dtype)
    for ours, theirs in ((LayerNorm(C), nn.LayerNorm(C)), (RMSNorm(C, 1e-5), nn.RMSNorm(C, 1e-5))):
        weight = draw(seed + 1, C).to(dtype)
        for norm in (ours.to(dtype), theirs.to(dtype)): norm.weight.data = weight.clone()
        out = ours(x)
        assert out.dtype == dtype and out.isfinite().all()
        torch.testing.assert_close(out, theirs(x), rtol=2 * torch.finfo(dtype).eps,
                                   atol=1e-4 if dtype == torch.float16 else 1e-3)
        wanted = (F.layer_norm(x.float(), (C,), weight.float(), None, 1e-5)
                  if isinstance(ours, LayerNorm)
                  else F.rms_norm(x.float(), (C,), weight.float(), 1e-5))
        torch.testing.assert_close(out, wanted.to(dtype), rtol=2 * torch.finfo(dtype).eps,
                                   atol=1e-4 if dtype == torch.float16 else 1e-3)


def test_rows_without_variance_give_the_shift_and_finite_gradients():
    x = torch.full((2, 5), 3.0, requires_grad=True)
    norm = LayerNorm(5)
    nn.init.ones_(norm.bias)
    norm(x).sum().backward()
    close(norm(x), torch.ones(2, 5), 1e-4)
    assert (x.grad.isfinite().all() and RMSNorm(5)(torch.zeros(2, 5)).eq(0).all()
            and LayerNorm(1)(torch.randn(9, 1)).eq(0).all())


# --- feed-forward ---------------------------------------------------------------------------------

@pytest.mark.parametrize("gated", [False, True])
@settings(max_examples=often(100), deadline=None)
@given(st.integers(1, 9), st.integers(1, 9),
       st.sampled_from([F.relu, F.silu, F.gelu, gelu, gelu_tanh, torch.tanh]), st.booleans(),
       st.integers(0, 99))
def test_feed_forward_is_a_sum_over_hidden_units(gated, C, hidden, activation, bias, seed):
    torch.manual_seed(seed)
    layer = (GatedFeedForward if gated else FeedForward)(C, hidden, activation, bias).double()
    x = draw(seed, 2, 3, C)
    def unit(part, i): return x @ part.weight[i] + (part.bias[i] if bias else 0)
    units = (activation(unit(layer.gate, i)) * unit(layer.up, i) if gated
             else activation(unit(layer.up, i)) for i in range(hidden))
    wanted = sum(u[..., None] * layer.down.weight[:, i] for i, u in enumerate(units))
    close(layer(x), wanted + layer.down.bias if bias else wanted)


@given(st.floats(-40, 40))
def test_gelu_in_both_forms(x):
    x = torch.tensor(x, dtype=torch.float64)
    close(gelu(x), F.gelu(x))
    close(gelu_tanh(x), F.gelu(x, approximate="tanh"))


@given(st.integers(1, 10_000), st.integers(1, 512))
def test_gated_hidden_is_the_next_multiple_of_eight_thirds(C, multiple):
    F_ = swiglu_d_ff(C, multiple)
    assert F_ % multiple == 0 and 3 * F_ >= 8 * C > 3 * (F_ - multiple)


# --- dropout --------------------------------------------------------------------------------------

@settings(deadline=None)
@given(st.floats(0, 0.99), st.integers(0, 99), st.integers(1, 50))
def test_dropout_is_pytorchs_draw_for_draw(p, seed, n):
    x = draw(seed, n, 3)
    torch.manual_seed(seed)
    ours = Dropout(p)(x)
    torch.manual_seed(seed)
    close(ours, F.dropout(x, p))
    assert Dropout(p).eval()(x) is x


# --- sub-layers, blocks, stacks -------------------------------------------------------------------

@settings(max_examples=often(60), deadline=None)
@given(st.booleans(), st.booleans(), st.sampled_from(["relu", "gelu", torch.tanh]),
       st.sampled_from([1e-5, 1e-2]),
       st.sampled_from(["none", "causal", "padding"]), st.integers(1, 5), st.integers(0, 99))
def test_block_is_pytorchs_encoder_layer_forward_and_back(norm_first, bias, activation, eps,
        kind, T, seed):
    torch.manual_seed(seed)
    theirs = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation, eps, batch_first=True,
                                        norm_first=norm_first, bias=bias, dtype=torch.float64)
    for p in theirs.parameters(): nn.init.normal_(p, std=0.5)
    ours = block_from_torch(theirs)
    mask = {"none": None, "causal": causal_mask(T, T),
            "padding": padding_mask(torch.tensor([T, 1]), T)[:, None]}[kind]
    told = {"none": {}, "causal": {"src_mask": ~causal_mask(T, T)},
            "padding": {"src_key_padding_mask": ~padding_mask(torch.tensor([T, 1]), T)[:, 0]}}[kind]
    a, b = (draw(seed, 2, T, 8).requires_grad_() for _ in range(2))
    (out, shown), wanted = attended(ours, a, mask=mask), theirs(b, **told)
    close(out, wanted, 1e-10)
    assert shown["attention"].shape == (2, 2, T, T) and shown["feed_forward"] is None
    for made in (out, wanted): made.sin().sum().backward()
    close(a.grad, b.grad, 1e-9)
    mine = dict(ours.named_parameters())
    pairs = {"attention.norm": "norm1", "feed_forward.norm": "norm2",
             "feed_forward.inner.up": "linear1", "feed_forward.inner.down": "linear2",
             "attention.inner.o_proj": "self_attn.out_proj"}
    names = {**{f"{o}.{k}": f"{t}.{k}" for o, t in pairs.items() for k in ("weight", "bias")}}
    given_ = dict(theirs.named_parameters())
    for o, t in names.items():
        if t in given_: close(mine[o].grad, given_[t].grad, 1e-9)
    joint = torch.cat([mine[f"attention.inner.{n}.weight"].grad
                       for n in ("q_proj", "k_proj", "v_proj")])
    close(joint, given_["self_attn.in_proj_weight"].grad, 1e-9)
    # q, k, v lie in one there
    assert len(list(ours.parameters())) == len(list(theirs.parameters())) + 2 * (1 + bias)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("norm_first", [True, False])
def test_copies_in_evaluation_and_is_no_view(norm_first):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, batch_first=True,
                                        norm_first=norm_first).eval()
    ours, x = block_from_torch(theirs), torch.randn(2, 5, 8)
    with torch.no_grad(): close(ours(x)[0], theirs(x), 1e-5)
    ours.feed_forward.inner.up.weight.data.zero_()
    assert theirs.linear1.weight.abs().sum() > 0


@pytest.mark.parametrize("around, wanted", [
    (PreNorm, lambda norm, inner, after, x: x + after(inner(norm(x)))),
    (PostNorm, lambda norm, inner, after, x: norm(x + after(inner(x)))),
    (NoResidual, lambda norm, inner, after, x: after(inner(norm(x))))])
def test_where_the_norm_stands(around, wanted):
    norm, inner, after, x = (LayerNorm(6).double(), FeedForward(6).double(), RMSNorm(6).double(),
                             draw(0, 2, 3, 6))
    for p in (norm.weight, after.weight): nn.init.normal_(p)
    out, shown = around(norm, inner, after)(x)
    close(out, wanted(norm, inner, after, x))
    assert shown is None


@pytest.mark.parametrize("T, masked", [(1, True), (5, True), (5, False)])
def test_the_short_block_is_the_block_from_parts(T, masked):
    torch.manual_seed(0)
    short = SimpleTransformerBlock(8, 2).double()
    for p in short.parameters(): nn.init.normal_(p, std=0.5)
    whole = TransformerBlock(attention=PreNorm(LayerNorm(8), MultiHeadAttention(8, 2)),
                             feed_forward=PreNorm(LayerNorm(8), FeedForward(8))).double()
    names = {"attention.inner": short.attention, "attention.norm": short.norm1,
             "feed_forward.norm": short.norm2, "feed_forward.inner": short.feed_forward}
    whole.load_state_dict({f"{name}.{key}": w for name, part in names.items()
                           for key, w in part.state_dict().items()})
    x, mask = draw(1, 2, T, 8), causal_mask(T, T) if masked else None
    (out, weights), (wanted, shown) = short(x, mask), attended(whole, x, mask=mask)
    close(out, wanted)
    close(weights, shown["attention"])
    for part in (short.attention.o_proj, short.feed_forward.down):
        for p in part.parameters(): nn.init.zeros_(p)
    # adds nothing, changes nothing
    close(short(x, mask)[0], x)


def test_what_is_named_goes_to_the_first_and_what_is_named_after_a_sublayer_to_it():
    told = []
    def part(name):
        def noted(q, k, v, mask=None, positions=None):
            told.append((name, k.shape[-2], None if mask is None else tuple(mask.shape), positions))
            return grouped_query_attention(q, k, v, mask)
        return noted
    block = TransformerBlock(attention=PreNorm(LayerNorm(8),
                                               MultiHeadAttention(8, 2, attention_fn=part("self"))),
                             cross=PreNorm(LayerNorm(8),
                                           MultiHeadAttention(8, 2, memory_dim=6,
                                                   attention_fn=part("cross"))),
                  feed_forward=PreNorm(LayerNorm(8), FeedForward(8)))
    pad = padding_mask(torch.tensor([7, 4]), 7)[:, None]
    x, shown = block(torch.randn(2, 3, 8), mask=causal_mask(3, 3), positions=[4, 5, 9],
                     cross={"memory": torch.randn(2, 7, 6), "mask": pad})
    assert told == [("self", 3, (3, 3), [4, 5, 9]), ("cross", 7, (2, 1, 1, 7), None)]
    assert (list(shown) == ["attention", "cross", "feed_forward"] and shown["cross"].shape
            == (2, 2, 3, 7) and x.shape == (2, 3, 8))
    with pytest.raises(TypeError, match="maks"): block(x, maks=None)
    with pytest.raises(TypeError):
        block(x, feed_forward={"mask": None}, cross={"memory": torch.randn(2, 7, 6)})


def test_a_stack_tells_every_block_the_same_and_its_stream_is_what_it_computes():
    torch.manual_seed(0)
    def made():
        return TransformerBlock(attention=PreNorm(LayerNorm(8), MultiHeadAttention(8, 2)),
                                feed_forward=PreNorm(LayerNorm(8), FeedForward(8)))
    stack, x, mask = (TransformerStack([made() for _ in range(3)], LayerNorm(8)),
                      torch.randn(2, 4, 8), causal_mask(4, 4))
    out, shown = attended(stack, x, mask=mask)
    states = [state for state, _ in stack.stream(x, mask=mask)]
    assert len(states) == len(shown) == 3
    close(out, stack.norm(states[-1]), 1e-6)
    y = x
    for block in stack.blocks: y, _ = block(y, mask=mask)
    close(y, states[-1], 1e-6)
    for seen in shown: assert (seen["attention"].triu(1) == 0).all()
    close(TransformerStack(stack.blocks)(x, mask=mask)[0], y, 1e-6)


def test_a_stack_can_be_copied_saved_and_trained():
    torch.manual_seed(0)
    stack = TransformerStack(
        [TransformerBlock(attention=PostNorm(LayerNorm(8), MultiHeadAttention(8, 2), Dropout(0.1)),
                          feed_forward=PostNorm(RMSNorm(8), SwiGLU(8), Dropout(0.1)))])
    twin, x = copy.deepcopy(stack).eval(), torch.randn(1, 3, 8)
    close(twin(x)[0], stack.eval()(x)[0], 1e-6)
    assert ("blocks.0.attention.inner.q_proj.weight" in stack.state_dict()
            and "blocks.0.feed_forward.norm.weight" in stack.state_dict())
    stack.train()(x)[0].sum().backward()
    assert all(p.grad is not None for p in stack.parameters())


# --- refusals -------------------------------------------------------------------------------------

x8 = torch.zeros(2, 3, 8)


class Wrong(nn.Module):
    # would broadcast over the stream
    def forward(self, x): return x[..., :1]


@pytest.mark.parametrize("call, says", [
    (lambda: LayerNorm(0), r"^d_model: 0; expected a whole number"),
    (lambda: LayerNorm(8.0), r"^d_model: 8.0; expected a whole number"),
    (lambda: LayerNorm(8, 0.0), r"^eps: 0.0; expected a number above 0"),
    (lambda: RMSNorm(True), r"^d_model: True; expected a whole number"),
    (lambda: RMSNorm(8, -1e-6), r"^eps: -1e-06; expected a number above 0"),
    (lambda: LayerNorm(6)(x8), r"^x: \(2, 3, 8\); expected \(…, 6\)"),
    (lambda: LayerNorm(1)(x8), r"^x: \(2, 3, 8\); expected \(…, 1\)"),
    (lambda: LayerNorm(8)(x8[..., :1]), r"^x: \(2, 3, 1\); expected \(…, 8\)"),
    (lambda: RMSNorm(6)(x8), r"^x: \(2, 3, 8\); expected \(…, 6\)"),
    (lambda: RMSNorm(8)(torch.tensor(1.0)), r"^x: \(\); expected \(…, 8\)"),
    (lambda: RMSNorm(8)(x8.long()), r"^x: torch.int64; expected a floating-point type"),
    (lambda: FeedForward(8, 0), r"^d_ff: 0; expected a whole number"),
    (lambda: FeedForward(None), r"^d_model: None; expected a whole number"),
    (lambda: FeedForward(6)(x8), r"^x: \(2, 3, 8\); expected \(…, 6\)"),
    (lambda: SwiGLU(8, 2.5), r"^d_ff: 2.5; expected a whole number"),
    (lambda: SwiGLU("8"), r"^d_model: '8'; expected a whole number"),
    (lambda: SwiGLU(6)(x8), r"^x: \(2, 3, 8\); expected \(…, 6\)"),
    (lambda: swiglu_d_ff(8, 0), r"^multiple_of: 0; expected a whole number"),
    (lambda: Dropout(1.0), r"^p: 1.0; expected a probability below 1"),
    (lambda: Dropout(-0.1), r"^p: -0.1; expected a probability below 1"),
    (lambda: Dropout(math.nan), r"^p: nan; expected a probability below 1"),
    (lambda: TransformerBlock(), r"^sublayers: none; expected at least one"),
    (lambda: TransformerBlock(attention=torch.sin),
     r"^attention: builtin_function_or_method; expected a sub-layer"),
    (lambda: TransformerStack([]), r"^blocks: none; expected at least one"),
    (lambda: TransformerBlock(a=PreNorm(LayerNorm(8), FeedForward(8)))(x8, a=3),
     r"^a: int; expected a dict"),
    (lambda: TransformerBlock(a=PreNorm(LayerNorm(8), MultiHeadAttention(8, 2)))(x8,
            mask=torch.ones(2, 3, 3, dtype=torch.bool)), r"^mask: \(2, 3, 3\); expected \(T, S\)"),
] + [(lambda around=around: around(nn.Identity(), Wrong())(x8),
      r"^inner: gives \(2, 3, 1\); expected \(2, 3, 8\)")
     for around in (PreNorm, PostNorm, NoResidual)])
def test_refused_by_name(call, says):
    refuses(says, call)


# --- the figure -----------------------------------------------------------------------------------

def test_through_depth_draws_the_choice():
    runs = {f"{norm}/{place}/true/{start}": [[0.0, float(i)], [0.0, -float(i)], [0.0, 1.0]]
            for i, (norm, place, start) in
            enumerate([("none", "pre", "1"), ("LayerNorm", "pre", "1"), ("LayerNorm", "post", "1"),
                       ("LayerNorm", "pre", "0.25")])}
    made = {"depths": [0, 4], "runs": runs, "norms": ["none", "LayerNorm"], "starts": [0.25, 1.0],
            "alt": "two lines along four blocks"}
    pictures = [DepthView(**made, **chosen).picture() for chosen in ({}, {"place": "post"},
            {"start": 0.25}, {"norm": "none"}, {"norm": "none", "place": "post"})]
    told = DepthView(**made, place="post", block=1).told()
    assert ("LayerNorm, post-norm, with residual" in told and "after block 4" in told
            and "10⁻²" in told)
    assert (len(set(pictures)) == 4 and pictures[3] == pictures[4]
            and all("<svg" in p for p in pictures))
