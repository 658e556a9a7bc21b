"""The parts that say where a token stands: against Hugging Face's, against slow definitions, and
their own promises."""
import copy
import math
import re

import pytest
import torch
from attending import attended, draw
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tfmlib.attention import causal_mask, padding_mask
from tfmlib.heads import MultiHeadAttention
from tfmlib.positions import (
    ALiBi,
    DynamicNTK,
    LearnedEmbedding,
    Llama3Scaling,
    LongRoPE,
    NTKAware,
    PositionalAttention,
    PositionalEncoding,
    PositionInterpolation,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEmbedding,
    YaRN,
    apply_rope,
    default_scaling,
    inverse_frequencies,
    relative_position_bucket,
    to_half_split,
    to_interleaved,
)

rope = pytest.importorskip("transformers.modeling_rope_utils")
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_neighbours  # noqa: E402
from transformers.models.llama.configuration_llama import LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb  # noqa: E402
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor  # noqa: E402
from transformers.models.t5.configuration_t5 import T5Config  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402


def gap(a, b): return float((a - b).detach().abs().max()) if a.numel() else 0.


# --- rules, against Hugging Face with that scaling set --------------------------------------------

def divisors(width, start, end):
    return tuple(round(x, 4) for x in torch.linspace(start, end, width // 2).tolist())


def settings_of(kind, width, factor, trained):
    "Our rule, and the same as Hugging Face's rope_parameters and longest length."
    short, long = divisors(width, 1, 1.3), divisors(width, 1, 2 * factor)
    return {
        "default": (default_scaling, {}, trained),
        "linear": (PositionInterpolation(factor), {"factor": factor}, trained),
        "dynamic": (DynamicNTK(factor, trained), {"factor": factor}, trained),
        "yarn": (YaRN(factor, trained),
                 {"factor": factor, "original_max_position_embeddings": trained},
                 int(trained * factor)),
        "yarn, told": (YaRN(factor, trained, 2., 20., truncate=False, attention_factor=1.25),
                       {"factor": factor, "original_max_position_embeddings": trained,
                        "beta_slow": 2., "beta_fast": 20.,
                                                                                     "truncate": False, "attention_factor": 1.25}, int(trained * factor)),  # noqa: E501
        "llama3": (Llama3Scaling(factor, trained),
                   {"factor": factor, "low_freq_factor": 1., "high_freq_factor": 4.,
                    "original_max_position_embeddings": trained}, int(trained * factor)),
        "longrope": (LongRoPE(factor, trained, short, long),
                     {"factor": factor, "short_factor": list(short), "long_factor": list(long),
                      "original_max_position_embeddings": trained},
                     int(trained * factor)),
    }[kind]


KINDS = ["default", "linear", "dynamic", "yarn", "yarn, told", "llama3", "longrope"]
RAMPS = ["yarn", "yarn, told", "llama3"]


def theirs_for(kind, width, factor, trained, base):
    "Hugging Face's rotary layer with that scaling switched on, and our rule."
    rule, told, most = settings_of(kind, width, factor, trained)
    config = LlamaConfig(hidden_size=2 * width, num_attention_heads=2, max_position_embeddings=most,
                         rope_parameters={"rope_type": kind.partition(",")[0],
                                          "rope_theta": base} | told)
    return rule, config


@settings(max_examples=often(150), deadline=None)
@given(st.sampled_from(KINDS[1:]), st.sampled_from([8, 64, 96, 128]),
       st.sampled_from([1., 2., 4., 8., 32.]), st.sampled_from([64, 2048, 8192]),
       st.sampled_from([1_000., 10_000., 500_000.]), st.sampled_from([.5, 1., 1.001, 2., 3.7, 8.]))
def test_every_rule_is_hugging_faces(kind, width, factor, trained, base, times):
    rule, config = theirs_for(kind, width, factor, trained, base)
    length = int(trained * times)
    wanted, warm = rope.ROPE_INIT_FUNCTIONS[kind.partition(",")[0]](config, "cpu", seq_len=length)
    speeds, factor_ = rule(width, base, length)
    # theirs are formed in 32 bits; where a ramp ends, the factor magnifies that
    rounding = max(1e-6, 1e-7 * factor) if kind in RAMPS else 1e-6
    torch.testing.assert_close(speeds, wanted.double(), rtol=rounding, atol=0)
    assert factor_ == pytest.approx(warm, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1000, 2048, 2049, 4096, 16384])
def test_long_tables_are_hugging_faces_up_to_their_precision(kind, length):
    """A product of place and frequency in 32 bits is off by a few 1e-8 of itself: that much, and
    1e-6, is allowed."""
    rule, config = theirs_for(kind, 64, 8., 2048, 500_000.)
    places = torch.arange(length)[None]
    theirs, ours = LlamaRotaryEmbedding(config), RotaryEmbedding(64, 500_000., rule)
    for got, wanted in zip(ours.cos_sin(places), theirs(torch.zeros(1), places)):
        allowed = 1e-6 + 3e-7 * places[0, :, None] * rule(64, 500_000., length)[0]
        assert ((got - wanted[..., :32]).abs() <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_turned_queries_are_hugging_faces(kind):
    rule, config = theirs_for(kind, 8, 2., 16, 10_000.)
    q, k, places = (draw(0, 2, 3, 20, 8).float(), draw(1, 2, 1, 20, 8).float(),
                    torch.arange(20)[None])
    wanted = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, places))
    how = RotaryEmbedding(8, scaling=rule)
    for t, want in zip((q, k), wanted):
        torch.testing.assert_close(how.rotate(t, places), want, rtol=0, atol=5e-6)


def test_fixed_ntk_is_a_larger_base():
    config = LlamaConfig(hidden_size=128, num_attention_heads=1,
                         rope_parameters={"rope_type": "default", "rope_theta": 10_000.
                                          * 4 ** (128 / 126)})
    wanted, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    torch.testing.assert_close(NTKAware(4.)(128, 10_000., 1)[0], wanted.double(), rtol=2e-6, atol=0)
    assert (float(NTKAware(4.)(128, 10_000., 1)[0][-1] * 4 / inverse_frequencies(128)[-1])
            == pytest.approx(1))


def test_neighbours_are_gpt_js():
    # theirs: (B, T, H, D)
    t, places = draw(0, 2, 5, 3, 8), torch.tensor([4, 0, 9, 100, 7])
    cos, sin = RotaryEmbedding(8).cos_sin(places)
    wanted = turn_neighbours(t, sin[None], cos[None])
    torch.testing.assert_close(RotaryEmbedding(8, interleaved=True).rotate(t.transpose(1, 2),
            places).transpose(1, 2), wanted)


# --- what is added to scores ----------------------------------------------------------------------

@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 25, 32, 48, 100, 112])
def test_slopes_are_blooms_and_mpts(heads):
    bloom = build_alibi_tensor(torch.ones(2, 9, dtype=torch.long), heads, torch.float32)
    ours = ALiBi(heads).bias(torch.arange(9), torch.arange(9))                     # (H, T, S)
    mpt = build_mpt_alibi_tensor(heads, 9)                                  # of the last query
    torch.testing.assert_close(ours[:, -1:], mpt, rtol=1e-6, atol=1e-6)
    # Bloom's differ by one number a row, which no softmax sees
    scores = draw(0, 1, heads, 9, 9).float().masked_fill(~causal_mask(9, 9), -math.inf)
    torch.testing.assert_close(
        (scores + ours).softmax(-1), (scores + bloom.view(2, heads, 1, 9)[:1]).softmax(-1),
        rtol=0, atol=2e-6)


@settings(max_examples=often(100), deadline=None)
@given(st.sampled_from([4, 8, 12, 16, 32, 64]), st.integers(1, 2000), st.booleans())
def test_buckets_are_t5s(buckets, farthest, both_ways):
    # nearer than the exact ones it is refused
    farthest += buckets // (4 if both_ways else 2)
    offset = torch.arange(-3000, 3001)
    wanted = T5Attention._relative_position_bucket(offset, bidirectional=both_ways,
                                                   num_buckets=buckets, max_distance=farthest)
    assert torch.equal(relative_position_bucket(offset, buckets, farthest, both_ways), wanted)


@pytest.mark.parametrize("both_ways", [True, False])
def test_the_bias_is_t5s(both_ways):
    theirs = T5Attention(T5Config(d_model=8, d_kv=4, num_heads=3, is_decoder=not both_ways),
                         has_relative_attention_bias=True, layer_idx=0)
    ours = RelativePositionBias(3, bidirectional=both_ways)
    ours.weight.data.copy_(theirs.relative_attention_bias.weight)
    torch.testing.assert_close(ours.bias(torch.arange(200), torch.arange(200)),
                               theirs.compute_bias(200, 200)[0], rtol=0, atol=0)


@settings(max_examples=often(80), deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["none", "bool", "float", "padding"]),
       st.integers(1, 5), st.integers(0, 4))
def test_a_bias_and_a_mask_add_up_exactly(seed, learnt, kind, T, more):
    S, G = T + more, 2
    how = RelativePositionBias(4, 8, 9) if learnt else ALiBi(4)
    q, k, v = draw(seed, 2, 4, T, 6), draw(seed + 1, 2, G, S, 6), draw(seed + 2, 2, G, S, 3)
    mask = {"none": None, "bool": causal_mask(T, S), "float": draw(seed, T, S),
            "padding": padding_mask(torch.tensor([S, 0]), S)[:, None]}[kind]
    out, weights = attended(PositionalAttention(how), q, k, v, mask)
    bias = how.bias(torch.arange(S - T, S), torch.arange(S)).double()
    scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(6) + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    # a row that sees nothing gives nothing
    wanted = scores.softmax(-1).nan_to_num(0)
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(out, wanted @ v.repeat_interleave(2, 1), rtol=0, atol=1e-6)


def test_a_row_that_sees_nothing_stays_zero_and_sends_no_gradient():
    how = RelativePositionBias(2)
    q, k, v = (draw(s, 2, 2, 4, 4).requires_grad_() for s in range(3))
    out, weights = attended(PositionalAttention(how), q, k, v,
                            padding_mask(torch.tensor([4, 0]), 4)[:, None])
    assert (out[1] == 0).all() and (weights[1] == 0).all()
    out.square().sum().backward()
    assert how.weight.grad.isfinite().all() and how.weight.grad.abs().sum() > 0
    assert all((t.grad[1] == 0).all() and t.grad.isfinite().all() for t in (q, k, v))


# --- RoPE -----------------------------------------------------------------------------------------

def by_complex_numbers(t, places, speeds):
    """The definition: each pair as a complex number, times e^(i · place · frequency); pairs of
    neighbours."""
    z = torch.view_as_complex(t.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones(()).double(), places.double()[:, None]
                                              * speeds)).flatten(-2)


@settings(max_examples=often(100), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4, 10, 64]), st.floats(1.5, 1e7),
       st.lists(st.integers(-10**6, 10**6), min_size=1, max_size=6))
def test_turns_as_complex_numbers_do(seed, width, base, places):
    t, places = draw(seed, 2, 3, len(places), width), torch.tensor(places)
    turned = RotaryEmbedding(width, base, interleaved=True).rotate(t, places)
    torch.testing.assert_close(turned,
                               by_complex_numbers(t, places, inverse_frequencies(width, base)),
                               rtol=0, atol=1e-9)
    torch.testing.assert_close(turned.norm(dim=-1), t.norm(dim=-1))


@settings(max_examples=often(100), deadline=None)
@given(st.integers(0, 10**6), st.integers(-10**6, 10**6), st.booleans(), st.sampled_from(KINDS))
def test_the_score_sees_only_the_offset(seed, shift, neighbours, kind):
    rule, _, _ = settings_of(kind, 8, 4., 64)
    how, places = (RotaryEmbedding(8, scaling=rule, interleaved=neighbours),
                   torch.tensor([3, 0, 17, 200]))
    q, k = draw(seed, 1, 2, 4, 8), draw(seed + 1, 1, 2, 4, 8)
    def scores(places): return how.rotate(q, places, 201) @ how.rotate(k, places, 201).mT
    torch.testing.assert_close(scores(places), scores(places + shift), rtol=0, atol=1e-8)


@settings(max_examples=often(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4, 10, 64]),
       st.sampled_from([100., 10_000., 500_000.]),
       st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_the_short_function_is_the_class_without_options(seed, width, base, dtype):
    t, places = draw(seed, 2, 3, 4, width).to(dtype), torch.tensor([5, 0, 99_999, 7])
    assert torch.equal(apply_rope(t, places, base), RotaryEmbedding(width, base).rotate(t, places))
    assert torch.equal(apply_rope(t[0, 0], places.int(), base), apply_rope(t, places, base)[0, 0])


@settings(max_examples=often(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.booleans())
def test_weights_carry_over_between_the_layouts(seed, groups, repeat, bias):
    torch.manual_seed(seed)
    layer, places = (MultiHeadAttention(12, groups * repeat, groups, head_dim=6, bias=bias,
                                        attention_fn=PositionalAttention(RotaryEmbedding(6,
                                                interleaved=True))).double(),
                     torch.tensor([5, 2, 900, 7]))
    other = copy.deepcopy(layer)
    other.attention_fn = PositionalAttention(RotaryEmbedding(6))
    x = draw(seed, 2, 4, 12)
    for name, heads in (("q_proj", groups * repeat), ("k_proj", groups)):
        for p in getattr(other, name).parameters():
            assert torch.equal(to_interleaved(to_half_split(p.data, heads), heads), p.data)
            p.data = to_half_split(p.data, heads)
    for got, wanted in zip(attended(other, x, positions=places),
                           attended(layer, x, positions=places)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_at_large_places(dtype):
    "What goes in is rounded, and what comes out; the angle is not."
    t, places, how = (draw(0, 1, 1, 6, 64).to(dtype),
                      torch.tensor([0, 5, 1000, 30_000, 131_071, 10**6]), RotaryEmbedding(64))
    exact = how.rotate(t.double(), places)
    assert how.rotate(t, places).dtype == dtype
    torch.testing.assert_close(how.rotate(t, places).double(), exact,
                               rtol=torch.finfo(dtype).eps, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(how.rotate(t.float(), places).double(),
                                   how.rotate(t.float().double(), places), rtol=0, atol=1e-5)


def test_queries_and_keys_turn_by_one_rule():
    """A rule that looks at the length sees the whole sequence, also where the queries are a
    piece of it."""
    part, k = (PositionalAttention(RotaryEmbedding(8, scaling=DynamicNTK(4., 4))),
               draw(1, 1, 2, 12, 8))
    q, v = draw(0, 1, 2, 12, 8), draw(2, 1, 2, 12, 8)
    whole, _ = part(q, k, v)
    first, _ = part(q[:, :, :3], k, v, positions=(torch.arange(3), torch.arange(12)))
    torch.testing.assert_close(first, whole[:, :, :3])


# --- codes that are added -------------------------------------------------------------------------

@settings(max_examples=often(60), deadline=None)
@given(st.sampled_from([2, 6, 64, 512]), st.lists(st.integers(0, 10**5), min_size=1, max_size=5))
def test_the_sinusoid_is_the_papers(width, places):
    code = SinusoidalEmbedding(width).encode(torch.tensor(places))
    for row, pos in zip(code, places):
        for i in range(width // 2):
            angle = pos / 10_000 ** (2 * i / width)
            assert (float(row[2 * i]) == pytest.approx(math.sin(angle), abs=1e-9)
                    and float(row[2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-9))


def test_learned_rows_are_an_embedding():
    theirs, how = nn.Embedding(9, 4), LearnedEmbedding(9, 4)
    how.weight.data.copy_(theirs.weight)
    x, places = torch.randn(2, 3, 4), torch.tensor([[8, 0, 3], [1, 1, 2]])
    torch.testing.assert_close(how.add(x, places), x + theirs(places))
    torch.testing.assert_close(how.add(x), x + theirs(torch.arange(3)))


# --- the part -------------------------------------------------------------------------------------

HOWS = {"none": lambda: PositionalEncoding(), "relative": lambda: RelativePositionBias(4),
        "alibi": lambda: ALiBi(4), "rotary": lambda: RotaryEmbedding(4),
        "neighbours": lambda: RotaryEmbedding(4, 500., interleaved=True)}


@pytest.mark.parametrize("name", HOWS)
def test_reordering_tokens_with_their_places_reorders_the_outputs(name):
    layer, x, order = (MultiHeadAttention(16, 4, 2,
                                          attention_fn=PositionalAttention(HOWS[name]())).double(),
                       draw(0, 2, 6, 16), torch.tensor([3, 1, 5, 0, 2, 4]))
    places = torch.tensor([0, 4, 5, 9, 70, 71])
    torch.testing.assert_close(layer(x[:, order], positions=places[order])[0],
                               layer(x, positions=places)[0][:, order], rtol=0, atol=1e-7)
    moved = gap(layer(x[:, order], positions=places)[0], layer(x, positions=places)[0][:, order])
    assert (moved < 1e-9) == (name == "none")


@pytest.mark.parametrize("name", HOWS)
def test_places_of_each_sequence(name):
    layer, x = (MultiHeadAttention(16, 4, 2,
                                   attention_fn=PositionalAttention(HOWS[name]())).double(),
                draw(0, 2, 3, 16))
    places = torch.tensor([[0, 1, 2], [40, 3, 7]])
    alone = torch.cat([layer(x[b:b + 1], positions=places[b])[0] for b in range(2)])
    torch.testing.assert_close(layer(x, positions=places)[0], alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["relative", "rotary"])
def test_gradcheck(name):
    how = HOWS[name]().double()
    def f(q, k, v): return PositionalAttention(how)(q, k, v, causal_mask(3, 4))[0]
    assert torch.autograd.gradcheck(f,
                                    tuple(draw(s, 1, 4, n, 4).requires_grad_()
                                          for s, n in enumerate((3, 4, 4))))


# --- refusals -------------------------------------------------------------------------------------

q, x = torch.zeros(2, 4, 3, 8), torch.zeros(2, 3, 8)
REFUSED = {
    "short, odd": (lambda: apply_rope(q[..., :7], torch.arange(3)), "dim: 7"),
    "short, whole queries": (lambda: apply_rope(q.long(), torch.arange(3)),
                             "t: torch.int64, (2, 4, 3, 8); expected floating point"),
    "short, places": (lambda: apply_rope(q, torch.arange(4)), "positions: (4,)"),
    "short, places of a batch": (lambda: apply_rope(q, torch.zeros(2, 3, dtype=torch.long)),
                                 "positions: (2, 3); expected (T,)"),
    "short, base": (lambda: apply_rope(q, torch.arange(3), 1.), "base: 1.0"),
    "odd rotary width": (lambda: RotaryEmbedding(7), "dim: 7"),
    "odd sinusoid": (lambda: SinusoidalEmbedding(7), "dim: 7"),
    "base": (lambda: RotaryEmbedding(8, 1.), "base: 1.0"),
    "width of the head": (lambda: RotaryEmbedding(6).rotate(q, torch.arange(3)), "t: (2, 4, 3, 8)"),
    "beyond the table": (lambda: LearnedEmbedding(2, 8).add(x),
                         "positions: from 0 to 2; expected from 0 to 1"),
    "below the table": (lambda: LearnedEmbedding(9, 8).add(x, torch.tensor([-1, 0, 1])),
                        "positions: from -1 to 1; expected from 0 to 8"),
    "empty table": (lambda: LearnedEmbedding(0, 8), "max_len: 0"),
    "rows": (lambda: SinusoidalEmbedding(6).add(x), "x: (2, 3, 8); expected (B, T, 6)"),
    "places, too few": (lambda: SinusoidalEmbedding(8).add(x, torch.arange(2)), "positions: (2,)"),
    "places, not whole": (lambda: SinusoidalEmbedding(8).add(x, torch.arange(3.)),
                          "positions: torch.float32"),
    "places, a list": (lambda: SinusoidalEmbedding(8).add(x, [0, 1, 2]), "positions: [0, 1, 2]"),
    "places in too few bits": (lambda: SinusoidalEmbedding(8).add(x,
            torch.arange(3, dtype=torch.uint8)), "positions: torch.uint8"),
    "whole rows": (lambda: SinusoidalEmbedding(8).add(x.long()), "x: torch.int64"),
    "whole queries": (lambda: RotaryEmbedding(8).rotate(q.long(), torch.arange(3)),
                      "t: torch.int64"),
    "endless factor": (lambda: NTKAware(math.inf), "factor: inf"),
    "places of another batch": (lambda: SinusoidalEmbedding(8).add(x,
            torch.zeros(3, 3, dtype=torch.long)), "positions: (3, 3)"),
    "keys' places": (lambda: PositionalAttention(RotaryEmbedding(8))(q, q, q,
            positions=(torch.arange(3), torch.arange(4))), "positions of the keys: (4,)"),
    "one for two": (lambda: PositionalAttention(RotaryEmbedding(8))(q[:, :, :2], q, q,
            positions=torch.arange(2)), "positions of the keys: (2,)"),
    "more queries than keys": (lambda: PositionalAttention(RotaryEmbedding(8))(q, q[:, :, :2],
            q[:, :, :2]), "positions: none for 3 queries and 2 keys"),
    "batch of places": (lambda: PositionalAttention(RotaryEmbedding(8))(q, q, q,
            positions=torch.zeros(3, 3, dtype=torch.long)), "positions of the queries: (3, 3)"),
    "places of another batch, turned": (lambda: RotaryEmbedding(8).rotate(q[:1],
            torch.zeros(3, 3, dtype=torch.long)), "positions: (3, 3)"),
    "three places": (lambda: PositionalAttention(RotaryEmbedding(8))(q, q, q,
            positions=(torch.arange(3),) * 3), "positions: 3 of them"),
    "places of a layer, a list": (lambda: PositionalAttention(RotaryEmbedding(8))(q, q, q,
            positions=[0, 1, 2]), "positions: 3 of them"),
    "heads of ALiBi": (lambda: PositionalAttention(ALiBi(2))(q, q, q),
                       "encoding: a bias of shape (2, 3, 3)"),
    "one head for all": (lambda: PositionalAttention(ALiBi(1))(q, q, q),
                         "encoding: a bias of shape (1, 3, 3)"),
    "mask of three axes": (lambda: PositionalAttention(ALiBi(4))(q, q, q,
            padding_mask(torch.tensor([3, 2]), 3)), "mask: (2, 1, 3)"),
    "mask of whole numbers": (lambda: PositionalAttention(ALiBi(4))(q, q, q,
            torch.ones(3, 3, dtype=torch.long)), "mask: torch.int64"),
    "no heads": (lambda: ALiBi(0), "n_heads: 0"),
    "no relative heads": (lambda: RelativePositionBias(0), "n_heads: 0"),
    "odd buckets": (lambda: RelativePositionBias(4, 31), "n_buckets: 31"),
    "buckets both ways": (lambda: RelativePositionBias(4, 30, bidirectional=True), "n_buckets: 30"),
    "farthest": (lambda: RelativePositionBias(4, 32, 16), "max_distance: 16"),
    "factor": (lambda: PositionInterpolation(.5), "factor: 0.5"),
    "trained": (lambda: DynamicNTK(2., 0), "original_max_len: 0"),
    "ramp": (lambda: YaRN(2., 64, beta_slow=4., beta_fast=4.)(8, 10_000., 1), "beta_fast: 4.0"),
    "llama ramp": (lambda: Llama3Scaling(2., 64, low_freq_factor=4., high_freq_factor=1.)(8,
            10_000., 1), "high_freq_factor: 1.0"),
    "NTK with one pair": (lambda: NTKAware(2.)(2, 10_000., 1), "dim: 2"),
    "divisors": (lambda: LongRoPE(2., 64, (1.,), (1.,) * 4)(8, 10_000., 1),
                 "short_factor: (1,) divisors"),
    "divisors when made": (lambda: RotaryEmbedding(8, scaling=LongRoPE(2., 64, (1.,) * 3,
            (1.,) * 4)), "short_factor: (3,) divisors"),
    "a divisor of 0": (lambda: LongRoPE(2., 64, (0.,) * 4, (1.,) * 4)(8, 10_000., 1),
                       "short_factor: 0.0"),
    "trained at one token": (lambda: LongRoPE(2., 1, (1.,) * 4, (1.,) * 4)(8, 10_000., 1),
                             "short_factor: 1.0, trained at 1"),
    "one bucket": (lambda: relative_position_bucket(torch.arange(3), 1), "n_buckets: 1"),
    "layout": (lambda: to_half_split(torch.zeros(6, 4), 2), "weight: 6 rows"),
    "layout back": (lambda: to_interleaved(torch.zeros(6, 4), 4), "weight: 6 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_by_name(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match="^" + re.escape(message)): call()
