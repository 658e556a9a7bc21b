"""Layers with a state of fixed size: recurrence, matrix and chunks are one function, states obey
the law of the cache, and published layers are reproduced."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from in_node import in_node

from tfmlib.attention import attention, causal_mask
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import SamplingConfig, generate
from tfmlib.kv_cache import KVCache, generate_cached
from tfmlib.linear_and_state_space import (
    MIXERS,
    CachedHybridLM,
    delta_recurrence,
    draw_mixers,
    linear_recurrence,
    mixing_matrices,
    recalled_pairs,
    toeplitz,
)
from tfmlib.linear_and_state_space.delta import delta_matrix, delta_rule
from tfmlib.linear_and_state_space.figures import MemoryView
from tfmlib.linear_and_state_space.linear import (
    linear_attention,
    linear_matrix,
    retention_decay,
)
from tfmlib.linear_and_state_space.mixers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    LinearAttention,
    RecurrentMixer,
    RecurrentState,
    Retention,
    ShortConvolution,
    SoftmaxMixer,
)
from tfmlib.linear_and_state_space.published import mixer_from_transformers
from tfmlib.linear_and_state_space.selective import Mamba, Mamba2
from tfmlib.linear_and_state_space.state_space import (
    S4D,
    bilinear,
    causal_convolution,
    forward_euler,
    selective_recurrence,
    selective_scan,
    ssm_kernel,
    ssm_recurrence,
    zero_order_hold,
)
from tfmlib.workbench import var

STATES = [name for name in MIXERS if name != "softmax"]
LAYERS = {
    "plain": RecurrentMixer(12, 3), "linear": LinearAttention(12, 3),
    "retention": Retention(12, 3, 1, 5, 2), "gated linear": GatedLinearAttention(12, 2, None, 5, 4),
    "delta": DeltaNet(12, 4, 2, max_beta=2.), "gated delta": GatedDeltaNet(12, 4, 2, 5, 3),
    "kimi": KimiDeltaAttention(12, 2, None, 3, 5),
    "mamba2": Mamba2(12, 4, 2, 5, 3), "mamba": Mamba(12, 10, 3, 2),
    "no convolution": GatedDeltaNet(12, 3, conv_size=1)}
LAYERS = {name: layer.double().eval() for name, layer in LAYERS.items()}


pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(a, b, tol=1e-10):
    assert a.shape == b.shape and float((a - b).abs().max()) <= tol * max(1., float(b.abs().max()))


DECAYS = st.sampled_from(["none", "head", "feature", "strong"])


@st.composite
def sequences(draw):
    "Queries, keys of length one, values, decays, rates and a state, of any sizes."
    lead, T, D, W, seed = (draw(st.sampled_from([(), (2,), (2, 3)])), draw(st.integers(1, 17)),
                           draw(st.integers(1, 5)), draw(st.integers(1, 4)),
                           draw(st.integers(0, 99)))
    q, k, v = (drawn(*lead, T, D, seed=seed),
               F.normalize(drawn(*lead, T, D, seed=seed + 1), dim=-1),
               drawn(*lead, T, W, seed=seed + 2))
    g, kind = -F.softplus(drawn(*lead, T, D, seed=seed + 3)), draw(DECAYS)
    g = {"none": None, "head": g[..., :1], "feature": g, "strong": 200 * g}[kind]
    state = drawn(*lead, D, W, seed=seed + 4) if draw(st.booleans()) else None
    return q, k, v, g, drawn(*lead, T, seed=seed + 5).sigmoid(), state


# --- one law for recurrences ----------------------------------------------------------------------

@settings(max_examples=often(60), deadline=None)
@given(sequences(), st.integers(1, 20), st.integers(1, 16))
def test_sums_have_three_equal_forms(case, size, at):
    q, k, v, g, _, state = case
    wanted, last = linear_recurrence(q, k, v, g, state)
    found, end = linear_attention(q, k, v, g, state, size)
    alike(found, wanted); alike(end, last)
    if state is None: alike(linear_matrix(q, k, g) @ v, wanted)
    if at < q.shape[-2]:
        def part(t, where): return None if t is None else t[..., where, :]
        first, state = linear_attention(*(part(t, slice(at)) for t in (q, k, v, g)), state, size)
        rest, state = linear_attention(*(part(t, slice(at, None)) for t in (q, k, v, g)),
                                       state, size)
        alike(torch.cat([first, rest], -2), wanted); alike(state, last)


@settings(max_examples=often(60), deadline=None)
@given(sequences(), st.integers(1, 20), st.integers(1, 16))
def test_the_delta_rule_has_three_equal_forms(case, size, at):
    q, k, v, g, beta, state = case
    wanted, last = delta_recurrence(q, k, v, beta, g, state)
    found, end = delta_rule(q, k, v, beta, g, state, size)
    alike(found, wanted); alike(end, last)
    if state is None: alike(delta_matrix(q, k, beta, g) @ v, wanted)
    if at < q.shape[-2]:
        def part(where):
            return (*(t[..., where, :] for t in (q, k, v)), beta[..., where], None if g is None
                    else g[..., where, :])
        first, state = delta_rule(*part(slice(at)), state, size)
        rest, state = delta_rule(*part(slice(at, None)), state, size)
        alike(torch.cat([first, rest], -2), wanted); alike(state, last)


@pytest.mark.parametrize("decays", sweep([0, 1, 2], 2))
def test_gradients(decays):
    "Without decays, with one for each head, and with one for each feature."
    shapes = [(1, 5, 2)] * 3 + [(1, 2, 2)] + [(1, 5, decays)] * bool(decays)
    inputs = [drawn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    beta = drawn(1, 5, seed=5).sigmoid().requires_grad_()
    def gate(g): return [-F.softplus(each) for each in g]
    def summed(q, k, v, state, *g):
        return linear_attention(q, k, v, *gate(g), state=state, chunk_size=2)
    def replaced(beta, q, k, v, state, *g):
        return delta_rule(q, k, v, beta, *gate(g), state=state, chunk_size=2)
    assert torch.autograd.gradcheck(summed, inputs)
    assert torch.autograd.gradcheck(replaced, [beta, *inputs])


def test_strong_decay_stays_finite():
    q, k, v = (drawn(2, 40, 3, seed=s).float().requires_grad_() for s in range(3))
    g = torch.full((2, 40, 1), -300.).requires_grad_()
    for out in (linear_attention(q, k, v, g)[0], linear_attention(q, k, v, g.expand(-1, -1, 3))[0],
                delta_rule(q, F.normalize(k, dim=-1), v, torch.ones(2, 40), g)[0]):
        grads = torch.autograd.grad(out.sum(), (q, k, v, g), retain_graph=True)
        assert out.isfinite().all() and all(t.isfinite().all() for t in grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rules_work_in_16_bits(dtype):
    "On a GPU, models run in 16 bits; sums of decays, the triangular system and the state have 32."
    g = torch.Generator().manual_seed(0)
    q, k, v = F.normalize(torch.randn(3, 2, 70, 8, generator=g), dim=-1).to(dtype)
    beta, decay = (torch.rand(2, 70, generator=g).to(dtype),
                   -torch.rand(2, 70, 1, generator=g).to(dtype))
    wide = [x.float() for x in (q, k, v, beta, decay)]
    for rules, extra in (((linear_attention, linear_recurrence), ()),
                         ((delta_rule, delta_recurrence), (beta,))):
        exact, state = rules[0](*wide[:3], *(x.float() for x in extra), wide[4])
        for rule in rules:
            found, short = rule(q, k, v, *extra, decay)
            assert found.dtype == dtype and short.dtype == torch.float32
            torch.testing.assert_close(found.float(), exact, atol=2e-3, rtol=1e-2)
            torch.testing.assert_close(short, state, atol=2e-3, rtol=1e-2)
    for matrix, extra in ((linear_matrix, ()), (delta_matrix, (beta,))):
        torch.testing.assert_close(matrix(q, k, *extra, decay),
                                   matrix(wide[0], wide[1], *(x.float() for x in extra), wide[4]),
                                   atol=2e-3, rtol=1e-2)


def test_models_with_a_cache_work_in_16_bits():
    "The states stay in 32 bits, between chunks too."
    kinds = "gated delta", "attention", "retention", "mamba", "mamba2"
    model = build(ModelConfig("hybrid decoder", 32, 16, 5, 2, 64, attention="hybrid",
                              options={"mixers": kinds}, **MODERN), seed=0).eval()
    ids = torch.randint(32, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact, cached = model(ids), CachedHybridLM(model.to(torch.bfloat16))
        cache = cached.new_cache()
        found = torch.cat([cached(part, cache) for part in ids.split(5, 1)], 1)
    torch.testing.assert_close(found.float(), exact, atol=.1, rtol=.1)


def test_retention_decays():
    alike(retention_decay(3).exp().flatten().double(),
          torch.tensor([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128]).double(), 1e-6)


# --- state spaces ---------------------------------------------------------------------------------

@settings(max_examples=often(30), deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_convolution_recurrence_and_scan_are_equal(T, C, N, complex_, seed):
    g = torch.Generator().manual_seed(seed)
    a, b, c = (torch.rand(C, N, generator=g).double(), drawn(C, N, seed=seed),
               drawn(C, N, seed=seed + 1))
    if complex_:
        a, b, c = (torch.polar(a, drawn(C, N, seed=seed + 2)), torch.complex(b, c),
                   torch.complex(c, b))
    x = drawn(2, C, T, seed=seed + 3)
    y, _ = ssm_recurrence(a, b, c, x)
    kernel = ssm_kernel(a, b, c, T)
    alike(causal_convolution(x, kernel), y)
    alike((toeplitz(kernel) @ x[..., None])[..., 0], y)
    if T > 1:
        first, state = ssm_recurrence(a, b, c, x[..., :T // 2])
        alike(torch.cat([first, ssm_recurrence(a, b, c, x[..., T // 2:], state)[0]], -1), y)


@settings(max_examples=often(30), deadline=None)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_selective_scans_are_linear_attention(T, C, N, started, seed):
    x, step = drawn(2, T, C, seed=seed), F.softplus(drawn(2, T, C, seed=seed + 1))
    A, b, c = (-drawn(C, N, seed=seed + 2).exp(), drawn(2, T, N, seed=seed + 3),
               drawn(2, T, N, seed=seed + 4))
    state = drawn(2, C, N, seed=seed + 5) if started else None
    wanted, last = selective_recurrence(x, step, A, b, c, state)
    found, end = selective_scan(x, step, A, b, c, state)
    alike(found, wanted); alike(end, last)
    q, k = (t[:, None].expand(-1, C, -1, -1) for t in (c, b))
    gates, values = (step[..., None] * A).transpose(1, 2), (step * x).mT[..., None]
    out, end = linear_attention(q, k, values, gates, None if state is None else state[..., None], 7)
    alike(out[..., 0].mT, wanted); alike(end[..., 0], last)
    first, state = selective_scan(x[:, :T // 2 + 1], step[:, :T // 2 + 1], A, b[:, :T // 2 + 1],
                                  c[:, :T // 2 + 1], state)
    if T > T // 2 + 1:
        alike(selective_scan(x[:, T // 2 + 1:], step[:, T // 2 + 1:], A, b[:, T // 2 + 1:],
                             c[:, T // 2 + 1:], state)[0], wanted[:, T // 2 + 1:])


def test_s4d_is_its_formula():
    "A = −½ + iπn, zero-order hold, a conjugate for each state, and a skip connection, in NumPy."
    torch.manual_seed(1)
    layer, x = S4D(3, 4).double(), drawn(1, 12, 3, seed=2)
    step, C = layer.log_step.detach().exp().numpy(), torch.view_as_complex(layer.C.detach()).numpy()
    A = -.5 + 1j * np.pi * np.arange(4)
    a, h, wanted = np.exp(step * A), np.zeros((3, 4), complex), []
    for now in x[0].numpy():
        h = a * h + (a - 1) / A * now[:, None]
        wanted.append((C * h + (C * h).conj()).sum(1).real + layer.D.detach().numpy() * now)
    alike(layer(x)[0].detach(), torch.tensor(np.array(wanted)), 1e-6)


# --- matrices -------------------------------------------------------------------------------------

def test_every_mixer_is_its_matrix():
    q, k, v, beta = (drawn(16, 4, seed=0), drawn(16, 4, seed=1), drawn(16, 3, seed=2),
                     drawn(16, seed=3).sigmoid())
    g = -F.softplus(drawn(16, 4, seed=4))
    found = {name: M @ v for name, M in mixing_matrices(q, k, g, beta, 5).items()}
    near = causal_mask(16, 16).triu(-4)
    unit, head = F.normalize(k, dim=-1), g.mean(-1, keepdim=True)
    wanted = {"softmax": attention(q, k, v, causal_mask(16, 16))[0],
              "window": attention(q, k, v, near)[0], "linear": linear_recurrence(q, k, v)[0],
              "decay": linear_recurrence(q, k, v,
                                         torch.full((16, 1), math.log(.8), dtype=torch.float64))[0],
              "gate per head": linear_recurrence(q, k, v, head)[0],
              "gate per channel": linear_recurrence(q, k, v, g)[0],
              "delta": delta_recurrence(q, unit, v, beta)[0],
              "gated delta": delta_recurrence(q, unit, v, beta, head)[0],
              "SSM": ssm_recurrence(torch.linspace(.3, .9, 4).double(), k[0], q[0], v.T)[0].T}
    assert found.keys() == wanted.keys()
    for name in wanted: alike(found[name], wanted[name], 1e-9)
    picture = draw_mixers(mixing_matrices(q, k, g, beta), "Nine matrices of 16 tokens")
    assert picture.drawing.count(">softmax<") == 1 and "Nine matrices of" in picture.drawing
    for sign, colour, other in ((1., "q", "k"), (-1., "k", "q")):
        drawing = draw_mixers({"one": torch.tensor([[sign]])}, "A matrix of one entry").drawing
        assert f"fill:{var(colour)}" in drawing and f"fill:{var(other)}" not in drawing


# --- layers and their states ----------------------------------------------------------------------

@settings(max_examples=often(40), deadline=None)
@given(st.sampled_from(sorted(LAYERS)), st.lists(st.integers(1, 6), min_size=1, max_size=6),
       st.lists(st.integers(0, 4), min_size=2, max_size=2), st.integers(0, 9))
def test_a_layer_in_chunks_is_the_layer(name, cuts, padding, seed):
    layer, T = LAYERS[name], sum(cuts) + max(padding)
    x, pad = drawn(2, T, 12, seed=seed), torch.tensor(padding)[:, None]
    real = torch.arange(T) >= pad
    with torch.no_grad():
        whole, weights = layer(x, causal_mask(T, T) & real[:, None, None])
        state, found = RecurrentState(), []
        positions = (real.long().cumsum(1) - 1).masked_fill(~real, -1)
        for part in torch.arange(T).split([max(padding), *cuts] if max(padding) else cuts):
            found.append(layer(x[:, part], positions=positions[:, part], cache=state)[0])
        assert weights is None
        alike(torch.cat(found, 1)[real], whole[real], 1e-9)
        for row, n in enumerate(padding):
            alike(layer(x[row:row + 1, n:])[0][0], whole[row, n:], 1e-9)


def test_padding_is_finite_and_has_no_gradient():
    real = torch.arange(7) >= torch.tensor([[0], [3]])
    for layer in LAYERS.values():
        x = drawn(2, 7, 12, seed=1).requires_grad_()
        out, _ = layer(x, causal_mask(7, 7) & real[:, None, None])
        assert out.isfinite().all()
        grad, = torch.autograd.grad(out[real].square().sum(), x)
        assert grad.isfinite().all() and (grad[~real] == 0).all() and (grad[real] != 0).any()


def test_states_do_not_grow():
    for name, layer in LAYERS.items():
        state, sizes = RecurrentState(), []
        assert state.nbytes == 0
        for n in (1, 5, 30):
            layer(drawn(2, n, 12), cache=state)
            sizes.append(state.nbytes)
        assert len({*sizes}) == 1
        if name == "gated delta":
            assert state.nbytes == 8 * 2 * (4 * 5 * 3 + 3 * (2 * 2 * 5 + 4 * 3))


def tiny(*mixers, **options):
    return build(ModelConfig("hybrid decoder", 61, 16, 3, 2, 40, d_ff=24, attention="hybrid",
                             options={"mixers": mixers} | options, **MODERN)).double().eval()


@pytest.mark.parametrize("mixers", sweep(
    [*STATES, "gated delta, attention", "mamba, attention, retention"],
    "mamba2", "gated delta, attention"))
def test_models_obey_the_law(mixers):
    model = tiny(*mixers.split(", "))
    ids = torch.randint(61, (2, 19), generator=torch.Generator().manual_seed(1))
    real = torch.arange(19) >= torch.tensor([[0], [6]])
    cached = CachedHybridLM(model)
    with torch.no_grad():
        whole = model(ids, real)
        for cuts in ([1] * 19, [7, 5, 7], [10, 1, 8]):
            cache = cached.new_cache()
            found = torch.cat([cached(a, cache, b)
                               for a, b in zip(ids.split(cuts, 1), real.split(cuts, 1))], 1)
            alike(found[real], whole[real])
        alike(model(ids[1:, 6:])[0], whole[1, 6:])
        sampling = SamplingConfig(temperature=.8)
        # exact: token ids, which are integers
        assert torch.equal(generate(model, ids[:, :6], 9, sampling, seed=2),
                           generate_cached(cached, ids[:, :6], 9, sampling, seed=2))


def test_a_hybrid_keeps_caches_and_states():
    cache = CachedHybridLM(tiny("gated delta", "attention")).new_cache()
    assert [type(layer) for layer in cache.layers] == [RecurrentState, KVCache, RecurrentState]


def test_gates_survive_the_initialisation():
    for name in STATES:
        model, other = (tiny(name) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters())), name
        for key, p in model.named_parameters():
            if key.endswith("A_log"): assert (p >= 0).all() and p.std() > 0, name
            if key.endswith(("dt_bias", "dt_proj.bias")):
                assert (.0009 < float(F.softplus(p.detach()).min())
                        <= float(F.softplus(p.detach()).max()) < .11)


@pytest.mark.parametrize("name", STATES)
def test_gates_survive_in_an_ordinary_decoder(name):
    "kind='decoder' was built and trained, without the initialisation of its recurrent layers."
    hybrid = ModelConfig("hybrid decoder", 61, 16, 3, 2, 40, d_ff=24, attention="hybrid",
                         options={"mixers": (name, "attention")}, **MODERN)
    models = [build(replace(hybrid, kind=kind), seed=4).state_dict()
              for kind in ("hybrid decoder", "decoder")]
    assert (models[0].keys() == models[1].keys()
            and all(torch.equal(t, models[1][key]) for key, t in models[0].items()))
    drawn_ = build(replace(hybrid, kind="decoder"), seed=5).state_dict()
    assert not any(torch.equal(t, drawn_[key]) for key, t in models[1].items()
                   if key.endswith(("conv.weight", "dt_bias", "dt_proj.bias")))


def test_sizes_that_are_not_given_are_those_of_the_papers():
    mamba = Mamba(40)
    assert mamba.D.shape == (80,) and mamba.sizes == (3, 16, 16) and Mamba2(12, 2).eps == 1e-5


def test_softmax_in_the_frame():
    torch.manual_seed(0)
    layer, x = SoftmaxMixer(12, 2).double(), drawn(2, 9, 12)
    near = SoftmaxMixer(12, 2, window=3).double()
    near.load_state_dict(layer.state_dict())
    later = x.clone()
    later[:, 8] += 1
    with torch.no_grad():
        alike(layer(x)[0][:, :8], layer(later)[0][:, :8])
        alike(layer(x)[0][:, :3], near(x)[0][:, :3])
        assert not torch.allclose(layer(x)[0][:, 5:], near(x)[0][:, 5:], atol=1e-3)
        # token 4 no longer reads token 1
        assert float((layer(x)[0][:, 3] - near(x)[0][:, 3]).abs().max()) > 1e-4
        real = torch.arange(9) >= torch.tensor([[0], [4]])
        alike(layer(x[1:, 4:])[0][0], layer(x, causal_mask(9, 9) & real[:, None, None])[0][1, 4:])


# --- elsewhere ------------------------------------------------------------------------------------

def loud(module, seed=0):
    g = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        p.data = (.3 * torch.randn(p.shape, generator=g)
                  + float("norm" in name and name.endswith("weight")))
    return module.eval()


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@pytest.mark.parametrize("length", sweep([1, 7, 22], 7))
def test_whole_models_of_transformers(kind, length):
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM
    sizes = dict(vocab_size=37, hidden_size=16, num_hidden_layers=3, state_size=5, expand=2,
                 pad_token_id=None, bos_token_id=None, eos_token_id=None)
    if kind == "mamba":
        theirs = MambaForCausalLM(MambaConfig(**sizes, time_step_rank=3, residual_in_fp32=False))
    else:
        theirs = Mamba2ForCausalLM(Mamba2Config(**sizes, num_heads=4, head_dim=8, n_groups=2,
                                                chunk_size=8, residual_in_fp32=False,
                                                tie_word_embeddings=True))
    loud(theirs)
    ours = build(ModelConfig("hybrid decoder", 37, 16, 3, 4, 64, attention="hybrid",
                             options={"mixers": (kind,)},
                             **MODERN | {"ffn": "none", "norm_eps": 1e-5, "positions": "none"}))
    there = theirs.backbone
    for block, layer in zip(ours.stack.blocks, there.layers):
        block.attention.inner = mixer_from_transformers(layer.mixer)
        block.attention.norm.load_state_dict({"weight": layer.norm.weight.data})
    ours.stack.norm.load_state_dict({"weight": there.norm_f.weight.data})
    ours.embedding.weight.data = there.embeddings.weight.data
    ids = torch.randint(37, (2, length), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = theirs(ids).logits
        scale = float(wanted.abs().max())
        assert scale > .5
        alike(ours.eval()(ids) / scale, wanted / scale, 1e-4)
        cached = CachedHybridLM(ours)
        cache = cached.new_cache()
        alike(torch.cat([cached(part, cache) for part in ids.split(1, 1)], 1) / scale,
              wanted / scale, 1e-4)


PEER_SIZES = dict(hidden_size=12, num_hidden_layers=4)
PEER_HEADS = (PEER_SIZES | dict(linear_num_key_heads=2, linear_num_value_heads=4,
                                linear_key_head_dim=5, linear_value_head_dim=6))
PEER_LAYERS = {  # class -> module, configuration, sizes
    "MambaMixer": ("mamba", "MambaConfig",
                   PEER_SIZES | dict(state_size=5, expand=2, time_step_rank=3)),
    "Mamba2Mixer": ("mamba2", "Mamba2Config", PEER_SIZES | dict(state_size=5, expand=2, head_dim=4,
            num_heads=6, n_groups=2, chunk_size=8)),
    "Qwen3NextGatedDeltaNet": ("qwen3_next", "Qwen3NextConfig", PEER_HEADS),
    "OlmoHybridGatedDeltaNet": ("olmo_hybrid", "OlmoHybridConfig",
                                PEER_HEADS
                                | dict(layer_types=["linear_attention"] * 3 + ["full_attention"],
                                       num_attention_heads=3, num_key_value_heads=3)),
    "KimiLinearDeltaAttention": ("kimi_linear", "KimiLinearConfig",
                                 PEER_SIZES | dict(linear_num_heads=3, linear_head_dim=5))}
SETTING_VALUES = dict(hidden_act=["relu", "gelu", "swish"], use_bias=[True], use_conv_bias=[False],
                      time_step_limit=[(0., .5), (.4, 9.)], layer_norm_epsilon=[.3],
                      rms_norm_eps=[.3], linear_allow_neg_eigval=[False], time_step_min=[.2],
                      time_step_floor=[.3], conv_kernel=[2],
              linear_conv_kernel_dim=[2], expand=[3], n_groups=[1, 3], state_size=[3],
                      linear_num_key_heads=[1, 4], linear_value_head_dim=[3], num_heads=[3],
                      head_dim=[8, 3], chunk_size=[3], time_step_scale=[3.],
                      residual_in_fp32=[False], linear_num_heads=[2])
NOT_BUILT = {("MambaMixer", "hidden_act"), ("MambaMixer", "use_bias"),
             ("Mamba2Mixer", "hidden_act"), ("Mamba2Mixer", "use_bias"),
             ("Mamba2Mixer", "time_step_limit"), *((kind, "hidden_act") for kind in PEER_LAYERS)}


def peer_layer(kind: str, **more):
    "A layer of `transformers` with large random weights."
    import importlib

    import transformers
    module, config, sizes = PEER_LAYERS[kind]
    torch.manual_seed(0)
    layer = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"),
                    kind)(getattr(transformers, config)(**sizes | more), 0).eval()
    for name, p in layer.named_parameters():
        p.data = .5 * torch.randn(p.shape) + float(name.endswith("norm.weight"))
    return layer


@pytest.mark.parametrize("kind", PEER_LAYERS)
def test_each_setting_of_a_layer_is_read_or_refused_by_name(kind):
    "Every key of its configuration, and what none of them says: equal outputs, or a refusal."
    import transformers
    module, config, sizes = PEER_LAYERS[kind]
    x, known, refused = (drawn(2, 9, 12, seed=30).float(),
                         getattr(transformers, config)(**sizes).to_dict(), set())
    for key, value in [("", None), *((name, other) for name in SETTING_VALUES if name in known
                                     for other in SETTING_VALUES[name])]:
        try: layer = peer_layer(kind, **{key: value} if key else {})
        except Exception: continue                                                # noqa: BLE001 — sizes that do not fit
        try: ours = mixer_from_transformers(layer)
        except ValueError as error:
            assert (str(error).startswith(("theirs: ", "theirs."))
                    and (key.split("_")[-1] in str(error) or key == "hidden_act"
                         and "activation" in str(error))), (key, error)
            refused.add((kind, key))
            continue
        with torch.no_grad(): wanted, got = layer(x), ours(x)[0]
        assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-5, (key, value)
    assert refused == {pair for pair in NOT_BUILT if pair[0] == kind}


def test_settings_and_weights_of_a_layer_that_we_do_not_know_are_refused():
    layer = peer_layer("MambaMixer")
    layer.mystery = 3
    with pytest.raises(ValueError, match="^theirs.mystery: 3; expected no such setting"):
        mixer_from_transformers(layer)
    for kind, part in (("MambaMixer", "in_proj"), ("KimiLinearDeltaAttention", "q_proj"),
                       ("Qwen3NextGatedDeltaNet", "in_proj_ba"), ("Mamba2Mixer", "out_proj"),
                       ("OlmoHybridGatedDeltaNet", "conv1d")):
        layer = peer_layer(kind)
        module = getattr(layer, part)
        module.bias = torch.nn.Parameter(torch.ones(len(module.weight)))
        with pytest.raises(ValueError,
                           match=f"^theirs: a layer with .'{part}.bias'.; expected no further "
                                 "weights"):
            mixer_from_transformers(layer)
        delattr(module, "weight")
        with pytest.raises(ValueError, match=f"^theirs: a layer without {part}.weight"):
            mixer_from_transformers(layer)


@settings(max_examples=often(25), deadline=None)
@given(st.sampled_from(["linear", "gated", "delta", "gated_delta"]), st.booleans(),
       st.integers(1, 12), st.sampled_from([(2, 1), (3, 3), (4, 2)]), st.integers(0, 99))
def test_onnx_reference(rule, channel, T, heads, seed):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator
    (H, G), D, W = heads, 3, 4
    given_ = {"q": drawn(2, T, H * D, seed=seed), "k": F.normalize(drawn(2, T, G, D, seed=seed + 1),
            dim=-1).flatten(2), "v": drawn(2, T, G * W, seed=seed + 2),
              "s": drawn(2, G, D, W, seed=seed + 3),
              "g": -F.softplus(drawn(2, T, G * (D if channel else 1), seed=seed + 4)),
              "b": drawn(2, T, G, seed=seed + 5).sigmoid()}
    unused = (({"g"} if not rule.startswith("gated") else set())
              | ({"b"} if "delta" not in rule else set()))
    here = {name: t.float().numpy() for name, t in given_.items() if name not in unused}
    node = helper.make_node("LinearAttention", [name if name in here else "" for name in given_],
                            ["o", "n"], q_num_heads=H, kv_num_heads=G, update_rule=rule, scale=.5)
    model = helper.make_model(helper.make_graph([node], "g",
                                                [helper.make_tensor_value_info(n, TensorProto.FLOAT,
                                                        t.shape) for n, t in here.items()],
                                                [helper.make_tensor_value_info(n, TensorProto.FLOAT,
                                                        None) for n in "on"]),
                              opset_imports=[helper.make_opsetid("", 27)])
    theirs, state = ReferenceEvaluator(model).run(None, here)
    def each(t, n): return t.unflatten(-1, (n, -1)).transpose(1, 2).repeat_interleave(H // n, 1)
    q, k, v, g, beta = (each(given_[name], H if name == "q" else G) for name in "qkvgb")
    kept, g = given_["s"].repeat_interleave(H // G, 1), None if "g" in unused else g
    out, last = (linear_attention(.5 * q, k, v, g, kept, 5) if "b" in unused
                 else delta_rule(.5 * q, k, v, beta[..., 0], g, kept, 5))
    np.testing.assert_allclose(out.transpose(1, 2).flatten(2).numpy(), theirs, atol=1e-5)
    np.testing.assert_allclose(last[:, ::H // G].numpy(), state, atol=1e-5)


# --- bad input ------------------------------------------------------------------------------------

def continued(rows, *positions):
    "A layer that goes on from a state of some sequences, in which one begins with padding."
    state = RecurrentState()
    LAYERS["gated delta"](drawn(rows, 2, 12), positions=torch.tensor([[0, 1], [-1, 0]][:rows]),
                          cache=state)
    LAYERS["gated delta"](drawn(2, 1, 12), positions=torch.tensor(positions)[:, None], cache=state)


Q, G1, RATE = drawn(2, 5, 3), torch.full((2, 5, 1), -.1).double(), torch.full((2, 5), .5).double()
SYSTEM = torch.full((3,), .5).double()
SELECT = (drawn(2, 5, 3), torch.ones(2, 5, 3).double(), -torch.ones(3, 4).double(), drawn(2, 5, 4),
          drawn(2, 5, 4))
BAD = [
    ("q", lambda: linear_attention(Q[0, 0], Q[0, 0], Q[0, 0])),
    ("q", lambda: linear_attention(Q[:, :0], Q[:, :0], Q[:, :0])),
    ("q", lambda: linear_recurrence(Q.long(), Q, Q)),
    ("k", lambda: linear_attention(Q, Q[:, :4], Q)),
    ("v", lambda: linear_attention(Q, Q, Q[:, :4])),
    ("state", lambda: linear_attention(Q, Q, Q, state=drawn(2, 3, 4))),
    ("log_decay", lambda: linear_attention(Q, Q, Q, G1[..., 0])),
    ("log_decay", lambda: linear_attention(Q, Q, Q, G1.exp())),
    ("log_decay", lambda: linear_matrix(Q, Q, -G1 / 0)),
    ("chunk_size", lambda: linear_attention(Q, Q, Q, chunk_size=0)),
    ("beta", lambda: delta_rule(Q, Q, Q, RATE[..., None])),
    ("beta", lambda: delta_recurrence(Q, Q, Q, RATE[:, :4])),
    ("beta", lambda: delta_matrix(Q, Q, RATE[0])), ("n_heads", lambda: retention_decay(0)),
    ("pairs", lambda: recalled_pairs(linear_attention, 0, 4)),
    ("A", lambda: zero_order_hold(torch.zeros(1), torch.ones(1), torch.ones(1))),
    ("step", lambda: bilinear(-torch.ones(1), torch.ones(1), torch.zeros(1))),
    ("A", lambda: forward_euler(torch.ones(1), torch.ones(1), torch.ones(1))),
    ("b", lambda: ssm_recurrence(SYSTEM, SYSTEM[:2], SYSTEM, Q)),
    ("x", lambda: ssm_recurrence(SYSTEM, SYSTEM, SYSTEM, Q[..., :0])),
    ("kernel", lambda: causal_convolution(Q, Q[..., :2])),
    ("T", lambda: ssm_kernel(SYSTEM, SYSTEM, SYSTEM, 0)), ("state_dim", lambda: S4D(4, 0)),
    ("x", lambda: selective_scan(Q[0], *SELECT[1:])),
    ("step", lambda: selective_scan(SELECT[0], SELECT[1][:, :4], *SELECT[2:])),
    ("A", lambda: selective_scan(*SELECT[:2], -SELECT[2], *SELECT[3:])),
    ("A", lambda: selective_recurrence(*SELECT[:2], SELECT[2][:2], *SELECT[3:])),
    ("c", lambda: selective_scan(*SELECT[:4], SELECT[4][..., :3])),
    ("b", lambda: selective_recurrence(*SELECT[:3], SELECT[3][:1], SELECT[4])),
    ("n_key_heads", lambda: GatedDeltaNet(12, 3, 2)), ("d_model", lambda: RecurrentMixer(0, 2)),
    ("size", lambda: ShortConvolution(3, 0)), ("state_dim", lambda: Mamba(12, 4, -1)),
    ("x", lambda: LAYERS["delta"](drawn(2, 5, 11))),
    ("x", lambda: LAYERS["mamba"](drawn(2, 0, 12))),
    ("mask", lambda: LAYERS["linear"](drawn(2, 5, 12), torch.ones(5, 5, dtype=torch.bool))),
    ("mask", lambda: LAYERS["linear"](drawn(2, 5, 12), causal_mask(5, 5).triu(-1))),
    ("mask", lambda: LAYERS["linear"](drawn(2, 5, 12), causal_mask(5, 5).double())),
    ("padding_mask", lambda: LAYERS["delta"](drawn(1, 3, 12), positions=torch.tensor([[0, -1, 1]]),
                                             cache=RecurrentState())),
    ("n", lambda: RecurrentState().drop(1)),
    ("v", lambda: linear_attention(Q, Q, Q.long())),
    ("k", lambda: linear_recurrence(Q, Q.long(), Q)),
    ("n_key_heads", lambda: GatedDeltaNet(12, 3, 0)),
    ("head_dim", lambda: GatedDeltaNet(12, 3, None, 0)),
    ("n_heads", lambda: GatedDeltaNet(13, 3)), ("max_beta", lambda: DeltaNet(12, 3, max_beta=3.)),
    ("d_inner", lambda: Mamba(12, 0)), ("step_rank", lambda: Mamba(12, 4, 2, 0)),
    ("window", lambda: SoftmaxMixer(12, 2, window=0)),
    ("state", lambda: selective_recurrence(*SELECT, drawn(3, 4))),
    ("state", lambda: selective_scan(*SELECT, drawn(1, 3, 4))),
    ("step", lambda: selective_scan(SELECT[0], -SELECT[1], *SELECT[2:])),
    ("state", lambda: ssm_recurrence(SYSTEM, SYSTEM, SYSTEM, Q[:1], drawn(4, 5, 3))),
    ("b", lambda: ssm_kernel(SYSTEM, SYSTEM[:1], SYSTEM, 3)),
    ("x", lambda: causal_convolution(Q[..., :0], Q[..., :0])),
    ("x", lambda: S4D(4)(drawn(2, 5, 1))), ("x", lambda: S4D(4).recurrence(drawn(2, 5, 1))),
    ("mask", lambda: LAYERS["delta"](drawn(2, 5, 12), causal_mask(5, 7))),
    ("positions", lambda: LAYERS["delta"](drawn(2, 3, 12), positions=torch.arange(2)[None],
                                          cache=RecurrentState())),
    ("k", lambda: mixing_matrices(Q[0], Q[0, :4], Q[0], Q[0, :, 0])),
    ("window", lambda: mixing_matrices(Q[0], Q[0], -Q[0].abs(), Q[0, :, 0], 0)),
    ("matrices", lambda: draw_mixers({}, "No matrices at all")),
    ("padding_mask", lambda: continued(2, 2, -1)),
    ("cache", lambda: continued(1, 2, 2)),
    ("theirs", lambda: mixer_from_transformers(torch.nn.Linear(2, 2))),
    ("cache", lambda: SoftmaxMixer(12, 2)(drawn(2, 9, 12).float(), cache=RecurrentState())),
    (r"options\['mixers'\]", lambda: tiny("gated", "delta")),
    (r"options\['mixers'\]", lambda: tiny()),
    ("window", lambda: CachedHybridLM(tiny("delta"), window=4)),
]


@pytest.mark.parametrize("name, call", BAD, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BAD)])
def test_bad_input_is_named(name, call):
    with pytest.raises(ValueError, match=f"^{name}: "): call()


def test_no_sequences_at_all():
    "An empty batch, as at the end of a sharded data set."
    for g in (None, -Q[:0].abs(), -Q[:0, :, :1].abs()):
        out, state = linear_attention(Q[:0], Q[:0], Q[:0], g)
        assert out.shape == (0, 5, 3) and state.shape == (0, 3, 3)


# --- the figure -----------------------------------------------------------------------------------

def test_the_figure_writes_as_the_rules_do(tmp_path):
    cases, wanted = [], []
    for seed in range(30):
        memory, angle, value = (drawn(2, seed=seed), 15. * (seed % 13),
                                float(drawn(1, seed=seed + 50)))
        k, v = (torch.tensor(
            [[math.cos(math.radians(angle)), math.sin(math.radians(angle))]]).double(),
                torch.tensor([[value]]).double())
        for rule in ("sum", "decay", "delta"):
            g = torch.full((1, 1), math.log(.5)).double() if rule == "decay" else None
            _, S = (delta_recurrence(k, k, v, torch.ones(1).double(), None, memory[:, None]) if rule
                    == "delta" else linear_recurrence(k, k, v, g, memory[:, None]))
            cases.append([rule, memory.tolist(), [angle, value]])
            wanted.append(S.flatten().tolist())
    found = in_node(tmp_path, "memory_state.js", "given.map(each => script.write(...each))", cases)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_still_picture_shows_pairs_and_state():
    made = MemoryView("two lines and a point", pairs=[[0., 1.], [90., .5]], memory=[1., .5])
    # axes, the next key, and a line for each pair; the state
    assert made.picture().count("<path") == 3 + 2 and made.picture().count("<circle") == 1
    assert made.told() == ("Rule: sum. Pair 1: key 0°, value 1, reads 1. "
                           "Pair 2: key 90°, value 0.5, reads 0.5. State (1, 0.5).")
