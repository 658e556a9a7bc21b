"""Mixture of experts: dispatch equals a loop, gradients of routers by formula, balance,
capacity, published families, the figure."""
import json
import math
from dataclasses import replace
from functools import partial

import families
import pytest
import torch
import torch.nn.functional as F
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from in_node import in_node
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from bench.checkpoint_families import CASES, IDS, REAL, apart, loud, ours_of
from bench.expert_cases import EXPERT_CASES, expert_model_of, published_state
from tfmlib.block import SwiGLU
from tfmlib.checkpoints import (
    FAMILIES,
    IGNORED_KEYS,
    MODERN,
    ModelConfig,
    build,
    config_from_pretrained,
    from_pretrained,
    load,
    to_pretrained,
)
from tfmlib.decoders import generate
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.mixture_of_experts import (
    ExpertList,
    MixtureOfExperts,
    Router,
    Routing,
    dispatch,
    load_balancing_loss,
    loop_over_experts,
    mutual_information,
    sort_by_expert,
    tokens_per_expert,
    top_k_routing,
    top_k_softmax_routing,
)
from tfmlib.mixture_of_experts.balancing import (
    BiasedRouting,
    NoisyRouter,
    capacity,
    expert_choice_routing,
    grouped_top_k_routing,
    keep_best_groups,
    keep_within_capacity,
    prioritise,
    router_z_loss,
)
from tfmlib.mixture_of_experts.families import EXPERT_CONFIGS, EXPERT_PUBLISHERS
from tfmlib.mixture_of_experts.figures import ExpertCapacityView
from tfmlib.mixture_of_experts.models import (
    ClampedExperts,
    GatedExpert,
    grouped_matmul,
    hidden_and_routings,
    stack_experts,
    total_and_active,
    total_and_active_by_building,
)

SMALL = ModelConfig("decoder", 61, 24, 2, 4, 64, n_kv_heads=2, d_ff=20, **MODERN)
EXPERTS = replace(SMALL, ffn="experts", options=dict(n_experts=5, n_used=2))


pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- dispatch -------------------------------------------------------------------------------------

pairs_strategy = st.integers(1, 12).flatmap(lambda n: st.integers(1, 6).flatmap(
    lambda e: st.tuples(st.just(n), st.just(e),
                        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, e - 1)),
                                 max_size=30))))


@settings(max_examples=often(60))
@given(pairs_strategy, st.integers(0, 99))
def test_sorted_and_grouped_products_equal_the_loop(drawn_pairs, seed):
    """Any pairs: experts without a token, tokens without an expert, the same pair twice; output
    and all gradients."""
    n, e, pairs = drawn_pairs
    torch.manual_seed(seed)
    listed = ExpertList(SwiGLU(6, 4).double() for _ in range(e))
    stacked = stack_experts(listed)
    token, expert = (torch.tensor([p[i] for p in pairs], dtype=torch.long) for i in (0, 1))
    found = []
    for compute, experts in ((loop_over_experts, listed), (dispatch, listed), (dispatch, stacked)):
        x, weight = (drawn(n, 6, seed=seed).requires_grad_(),
                     drawn(len(pairs), seed=seed + 1).requires_grad_())
        out = compute(x, Routing(token, expert, weight, torch.zeros(n, e)), experts)
        listed.zero_grad()
        out.sin().sum().backward()
        own = [torch.stack([getattr(m, name).weight.grad.T
                            if getattr(m, name).weight.grad is not None
                            else torch.zeros_like(getattr(m, name).weight.T) for m in listed])
               for name in ("gate", "up", "down")] \
            if experts is listed else [stacked.gate.grad, stacked.up.grad, stacked.down.grad]
        grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in (x, weight)]
        found.append([out.detach(), *grads, *own])
    for other in found[1:]:
        assert all((a - b).abs().max() < 1e-10 for a, b in zip(found[0], other) if a.numel())


def test_ties_choose_k_different_experts():
    for routing in (top_k_routing, top_k_softmax_routing):
        made = routing(torch.zeros(7, 5), 3)
        assert all(len(set(row)) == 3 for row in made.expert.view(7, 3).tolist())
        assert tokens_per_expert(made).sum() == 21


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 7), st.data())
def test_weights_are_probabilities_of_the_chosen(n, e, data):
    k = data.draw(st.integers(1, e))
    z = drawn(n, e, seed=data.draw(st.integers(0, 99)))
    before, after = top_k_routing(z, k), top_k_softmax_routing(z, k)
    assert (torch.equal(before.expert, after.expert)
            and torch.equal(before.token, torch.arange(n).repeat_interleave(k)))
    p = z.softmax(-1)
    torch.testing.assert_close(before.weight, p[before.token, before.expert])
    share = before.weight.view(n, k)
    torch.testing.assert_close(after.weight.view(n, k), share / share.sum(1, keepdim=True))
    by_expert, counts = sort_by_expert(before)
    assert ((by_expert.expert.diff() >= 0).all() and counts.tolist()
            == [int((before.expert == i).sum()) for i in range(e)])


def test_one_expert_is_the_dense_layer():
    torch.manual_seed(0)
    expert, x = SwiGLU(8, 12), torch.randn(2, 5, 8)
    layer = MixtureOfExperts(Router(8, 1, partial(top_k_routing, k=1)), ExpertList([expert]))
    out, routing = layer(x)
    torch.testing.assert_close(out, expert(x))
    assert len(routing.token) == 10
    # equal experts: weights that sum to 1 change nothing
    equal = ExpertList([expert] * 4)
    out, _ = MixtureOfExperts(Router(8, 4, partial(top_k_softmax_routing, k=3)), equal,
                              shared=expert)(x)
    torch.testing.assert_close(out, 2 * expert(x))


def test_half_precision_is_routed_in_float32():
    torch.manual_seed(0)
    layer = MixtureOfExperts(Router(8, 4, partial(top_k_routing, k=2)),
                             ExpertList(SwiGLU(8, 12) for _ in range(4))).bfloat16()
    x = torch.randn(6, 8).bfloat16()
    out, routing = layer(x)
    assert (out.dtype == torch.bfloat16 and routing.logits.dtype == routing.weight.dtype
            == torch.float32)
    torch.testing.assert_close(loop_over_experts(x, routing, layer.experts), out,
                               atol=.02, rtol=.05)


def test_logits_stay_in_float32_under_autocast():
    torch.manual_seed(0)
    layer, x = layer_of(8, 4, 2), torch.randn(6, 8)
    with torch.autocast("cpu", torch.bfloat16): routing = layer(x)[1]
    assert (routing.logits.dtype == torch.float32
            and torch.equal(routing.logits, F.linear(x, layer.router.proj.weight)))


def test_any_number_of_axes_and_no_tokens():
    torch.manual_seed(0)
    layer, x = layer_of(8, 4, 2), torch.randn(2, 3, 8)
    rows = layer(x.view(6, 8))[0]
    torch.testing.assert_close(layer(x)[0].view(6, 8), rows)
    torch.testing.assert_close(layer(x[0, 0])[0], rows[0])
    assert layer(x[:0])[0].shape == (0, 3, 8)


# --- gradients ------------------------------------------------------------------------------------

def test_gradcheck_of_a_layer():
    torch.manual_seed(0)
    layer = MixtureOfExperts(Router(5, 4, partial(top_k_routing, k=2)),
                             ExpertList(SwiGLU(5, 3) for _ in range(4)), SwiGLU(5, 3)).double()
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], drawn(3, 5).requires_grad_())
    biased = BiasedRouting(4, 2, 2.5, 2, 1)
    assert torch.autograd.gradcheck(lambda z: biased(z).weight, drawn(3, 4).requires_grad_())


# --- balance --------------------------------------------------------------------------------------

@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(2, 7), st.data())
def test_the_balancing_loss_is_that_of_transformers(n, e, data):
    k, seed = data.draw(st.integers(1, e)), data.draw(st.integers(0, 99))
    z = drawn(n, e, seed=seed).float()
    real = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    routing = top_k_routing(z, k)
    assert (float(load_balancing_loss(routing))
            == pytest.approx(float(load_balancing_loss_func((z,), e, k)), abs=1e-5))
    if real.any():
        assert (float(load_balancing_loss(routing, real))
                == pytest.approx(float(load_balancing_loss_func((z,), e, k, real[None].long())),
                                 abs=1e-5))


def test_groups_by_hand():
    scores = torch.tensor([[.9, .1, .5, .5, .4, .3]])                # three groups of two
    assert (keep_best_groups(scores, 3, 1, 1).isfinite().tolist()
            == [[True, True, False, False, False, False]])
    assert keep_best_groups(scores, 3, 2, 2).isfinite().tolist() == [[True] * 4 + [False] * 2]
    assert torch.equal(keep_best_groups(scores, 3, 3, 1), scores)
    made = grouped_top_k_routing(scores.log(), 3, 3, 2, scale=2.)
    assert sorted(made.expert.tolist()) == [0, 2, 3]
    torch.testing.assert_close(made.weight.sum(), 2 * (scores / scores.sum())[0, [0, 2, 3]].sum())


# --- capacity -------------------------------------------------------------------------------------

@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 99))
def test_an_expert_keeps_the_first_of_its_queue(experts, most, seed):
    chosen = torch.tensor(experts)
    weight = torch.rand(len(experts), generator=torch.Generator().manual_seed(seed))
    routing = Routing(torch.arange(len(experts)), chosen, weight, torch.zeros(len(experts), 4))
    kept = keep_within_capacity(routing, most)
    wanted, filled = [], [0] * 4
    for token, e in enumerate(experts):
        if filled[e] < most: wanted.append(token)
        filled[e] += 1
    assert kept.token.tolist() == wanted and (kept.weight == weight[wanted]).all()
    best = keep_within_capacity(prioritise(routing), most)
    for e in range(4):
        mine = sorted((float(weight[t]) for t in range(len(experts)) if experts[t] == e),
                      reverse=True)
        assert sorted(map(float, best.weight[best.expert == e]), reverse=True) == mine[:most]


def test_how_much_noise_is_learned():
    router = NoisyRouter(6, 5, partial(top_k_softmax_routing, k=2))
    router(drawn(40, 6).float()).weight.square().sum().backward()
    assert router.noise.weight.grad.abs().sum() > 0


def test_capacity_is_rounded_up():
    cases = (10, 4, 1.), (10, 4, 1.25), (12, 4, 1.), (100, 10, 1.1), (1, 8, .5)
    assert [capacity(*case) for case in cases] == [3, 4, 3, 11, 1]


def test_experts_that_choose_are_even_and_see_the_future():
    z = drawn(12, 4)
    made = expert_choice_routing(z, 3)
    assert tokens_per_expert(made).tolist() == [3] * 4
    p = z.softmax(-1)
    for e in range(4):
        assert set(made.token[made.expert == e].tolist()) == set(p[:, e].topk(3)[1].tolist())
    torch.testing.assert_close(made.weight, p[made.token, made.expert])
    other = torch.cat([z[:-1], z[-1:] + torch.tensor([9., 0, 0, 0])])
    assert (set(expert_choice_routing(other, 3).token[made.expert == 0].tolist())
            != set(made.token[made.expert == 0].tolist()))


def layer_of(C, E, k=1):
    return MixtureOfExperts(Router(C, E, partial(top_k_routing, k=k)),
                            ExpertList(SwiGLU(C, 3) for _ in range(E)))


# --- bad input ------------------------------------------------------------------------------------

BAD = [
    (lambda: top_k_routing(torch.zeros(3), 1), "logits"),
    (lambda: top_k_routing(torch.zeros(3, 2, dtype=torch.long), 1), "logits"),
    (lambda: top_k_routing(torch.zeros(2, 3), 4), "k"),
    (lambda: top_k_softmax_routing(torch.zeros(2, 3), 0), "k"),
    (lambda: top_k_softmax_routing(torch.zeros(2, 3), 1.), "k"),
    (lambda: Router(0, 3, None), "d_model"), (lambda: Router(3, 0, None), "n_experts"),
    (lambda: ExpertList([SwiGLU(4, 3)])(torch.zeros(3, 4), torch.tensor([2])), "counts"),
    (lambda: ExpertList([SwiGLU(4, 3)])(torch.zeros(3, 4), torch.tensor([3, 0])), "counts"),
    (lambda: grouped_matmul(torch.zeros(3, 4), torch.zeros(2, 4, 3), torch.tensor([4, -1])),
     "counts"),
    (lambda: grouped_matmul(torch.zeros(3, 4), torch.zeros(1, 4, 3), torch.tensor([3.])), "counts"),
    (lambda: load_balancing_loss(top_k_routing(torch.zeros(4, 3), 1),
                                 torch.ones(3, dtype=torch.bool)), "padding_mask"),
    (lambda: load_balancing_loss(top_k_routing(torch.zeros(4, 3), 1), torch.ones(4)),
     "padding_mask"),
    (lambda: load_balancing_loss(top_k_routing(torch.zeros(4, 3), 1),
                                 torch.zeros(4, dtype=torch.bool)), "padding_mask"),
    (lambda: keep_best_groups(torch.zeros(2, 6), 4, 1, 1), "n_groups"),
    (lambda: keep_best_groups(torch.zeros(2, 6), 3, 4, 1), "n_kept"),
    (lambda: keep_best_groups(torch.zeros(2, 6), 3, 1, 3), "n_best"),
    (lambda: BiasedRouting(6, 3, 1., 3, 1), "k"),
    (lambda: BiasedRouting(6, 1, 1., 4, 1), "n_groups"), (lambda: BiasedRouting(6, 0), "k"),
    (lambda: grouped_top_k_routing(torch.zeros(2, 6), 3, 3, 1), "k"),
    (lambda: capacity(10, 4, 0.), "factor"), (lambda: capacity(10, 4, math.inf), "factor"),
    (lambda: capacity(10, 0, 1.), "n_experts"),
    (lambda: keep_within_capacity(top_k_routing(torch.zeros(4, 3), 1), 0), "most"),
    (lambda: expert_choice_routing(torch.zeros(4, 3), 5), "n_tokens"),
    (lambda: expert_choice_routing(torch.zeros(4, 3), 0), "n_tokens"),
    (lambda: mutual_information(torch.zeros(3), torch.zeros(4)), "b"),
    (lambda: MixtureOfExperts(Router(4, 2, partial(top_k_routing, k=1)),
                              ExpertList([SwiGLU(4, 3)] * 2))(torch.zeros(3, 4, dtype=torch.long)),
     "x"),
    (lambda: build(replace(EXPERTS, options=dict(n_experts=3, n_used=2, routing="mystery"))),
     "routing"), (lambda: build(replace(EXPERTS, options=dict(expert_layers="101"))),
                  "expert_layers"),
    (lambda: ClampedExperts(0, 4, 3), "n_experts"),
    (lambda: layer_of(4, 2)(torch.zeros(3, 5)), "x"),
    (lambda: loop_over_experts(torch.zeros(4, 3), top_k_routing(torch.zeros(4, 3), 1),
                               [SwiGLU(3, 2)] * 2), "experts"),
    (lambda: loop_over_experts(torch.zeros(5, 3), top_k_routing(torch.zeros(4, 1), 1),
                               [SwiGLU(3, 2)]), "x"),
    (lambda: dispatch(torch.zeros(5, 3), top_k_routing(torch.zeros(4, 1), 1),
                      ExpertList([SwiGLU(3, 2)])), "x"),
    (lambda: stack_experts([SwiGLU(4, 3, bias=True)]), "experts"),
    (lambda: stack_experts([]), "experts"), (lambda: router_z_loss(torch.zeros(4)), "logits"),
    (lambda: capacity(-1, 4, 1.), "n_pairs"), (lambda: capacity(10., 4, 1.), "n_pairs"),
    (lambda: BiasedRouting(1, 1)(torch.zeros(3, 8)), "logits"),
    (lambda: BiasedRouting(8, 1)(torch.zeros(3, 4)), "logits"),
    (lambda: BiasedRouting(4, 1).update(torch.tensor([3])), "counts"),
    (lambda: grouped_top_k_routing(torch.zeros(2, 6), 1, 0, 1), "n_groups"),
    (lambda: mutual_information(torch.zeros(0), torch.zeros(0)), "a"),
    (lambda: mutual_information(torch.zeros(2, 2), torch.zeros(2, 2)), "a"),
    (lambda: build(replace(EXPERTS, options=dict(expert_d_ff=0))), "d_ff"),
    (lambda: build(replace(EXPERTS, options=dict(shared_gate=True))), "shared_gate"),
    (lambda: build(replace(EXPERTS, options=dict(n_groups=2))), "n_groups"),
    (lambda: build(replace(EXPERTS, options=dict(n_kept=2))), "n_kept"),
    (lambda: build(replace(EXPERTS, options=dict(route_scale=2.5, routing="softmax, then top-k"))),
     "route_scale"),
]


@pytest.mark.parametrize("call, named", BAD)
def test_bad_input_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=rf"^(options\[')?{named}\b"): call()


# --- models ---------------------------------------------------------------------------------------

def test_a_decoder_with_experts_reads_in_chunks_and_shows_its_routings():
    model = build(EXPERTS).double().eval()
    ids = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))
    x, routings = hidden_and_routings(model, ids)
    torch.testing.assert_close(model.logits(x), model(ids))
    assert (len(routings) == 2 and all(r.logits.shape == (18, 5) and len(r.token) == 36
                                       for r in routings))
    cached = CachedCausalLM(model)
    cache = cached.new_cache()
    steps = torch.cat([cached(ids[:, :5], cache),
                       *(cached(ids[:, n:n + 1], cache) for n in range(5, 9))], 1)
    assert (steps - model(ids)).abs().max() < 1e-10
    some = build(replace(EXPERTS, options=dict(n_experts=5, n_used=2, expert_layers="01")))
    assert len(hidden_and_routings(some, ids)[1]) == 1
    assert hidden_and_routings(build(SMALL), ids)[1] == []


def test_the_same_seed_gives_the_same_experts():
    a, b, c = (build(EXPERTS, seed=s).state_dict() for s in (0, 0, 1))
    assert (all(torch.equal(a[name], b[name]) for name in a)
            and any(not torch.equal(a[name], c[name]) for name in a))


@pytest.mark.parametrize(
    "name", sweep(EXPERT_CASES, "deepseek_v3, YaRN", "qwen2_moe, some layers dense"))
def test_logits_and_greedy_tokens_are_those_of_transformers(name):
    kind, sizes = EXPERT_CASES[name]
    theirs = loud(kind, sizes)
    ours = expert_model_of(theirs)
    for length, real in ((33, None), (33, REAL), (11, None), (1, None)):
        gap, size = apart(ours, theirs, IDS[:, :length], real)
        assert gap < 1e-5 * max(10, size) and size > 1, (length, gap, size)
    ids, real = IDS[:, 11:24], REAL[:, 11:24]
    greedy = theirs.generate(ids, attention_mask=real.long(), max_new_tokens=6, do_sample=False,
                             pad_token_id=0, use_cache=False)
    assert torch.equal(generate(ours, ids, 6, padding_mask=real), greedy)
    state, file = to_pretrained(ours, kind), published_state(theirs)
    assert (state.keys() >= file.keys()
            and all(torch.equal(state[key], t) for key, t in file.items()))


@pytest.mark.parametrize("name", sweep(["mixtral", "deepseek_v3", "gpt_oss"], "gpt_oss"))
def test_a_folder_that_transformers_wrote_is_read(name, tmp_path):
    theirs = loud(*EXPERT_CASES[name])
    theirs.save_pretrained(tmp_path)
    gap, size = apart(load(tmp_path, tokenizer=False).model, theirs)
    assert gap < 1e-5 * max(10, size)


@pytest.mark.whole
def test_one_family_is_not_another():
    """A model with experts is refused under the names of every other family, and dense ones
    under those of all families with experts."""
    kinds = {kind: sizes for kind, sizes in reversed(EXPERT_CASES.values())}
    models = {kind: expert_model_of(loud(kind, sizes)) for kind, sizes in kinds.items()}
    models |= {kind: ours_of(loud(*CASES[kind])) for kind in ("llama", "qwen3", "gpt2", "granite")}
    for kind, model in models.items():
        families.of_no_other(kind, model, FAMILIES if kind in kinds else kinds)


CHANGES = {
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=1, sliding_window=5, hidden_act="gelu",
                    mystery=1, num_experts=9),
    "qwen2_moe": dict(norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1],
                      shared_expert_intermediate_size=8, moe_intermediate_size=12,
                      num_experts_per_tok=2, use_sliding_window=True, qkv_bias=False,
                      layer_types=["sliding_attention"] * 3),
    "qwen3_moe": dict(norm_topk_prob=False, attention_bias=True, mlp_only_layers=[9],
                      num_experts_per_tok=7, decoder_sparse_step=0),
    "deepseek_v2, groups": dict(topk_method="greedy", routed_scaling_factor=2., n_shared_experts=1,
                                first_k_dense_replace=2, norm_topk_prob=True,
                                scoring_func="sigmoid", moe_layer_freq=2, rms_norm_eps=1e-5,
                                num_key_value_heads=2,
                        kv_lora_rank=6, v_head_dim=5, qk_head_dim=9),
    "deepseek_v3": dict(n_group=2, topk_group=1, routed_scaling_factor=1., norm_topk_prob=False,
                        rope_interleave=False, first_k_dense_replace=4, topk_method="greedy",
                        scoring_func="softmax", q_lora_rank=None),
    "gpt_oss": dict(swiglu_limit=5., swiglu_alpha=1., sliding_window=4, num_experts_per_tok=1,
                    experts_per_token=3, attention_bias=False, layer_types=["full_attention"] * 3),
    "qwen3_next": dict(norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[0],
                       num_experts_per_tok=2, use_sliding_window=True, attention_bias=True,
                       layer_types=["linear_attention"] * 3, linear_conv_kernel_dim=3,
                       linear_num_key_heads=1,
                       full_attention_interval=0, hidden_act="gelu",
                       shared_expert_intermediate_size=8, mystery=1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", sweep(CHANGES, "deepseek_v3", "gpt_oss"))
def test_no_key_is_silently_ignored(name):
    """Another value is refused by its name, or it changes the configuration; and then, if the
    weights still fit, the logits are those of `transformers`."""
    theirs = loud(*EXPERT_CASES[name])
    config, file = json.loads(theirs.config.to_json_string()), published_state(theirs)
    base = config_from_pretrained(config)
    for key, value in CHANGES[name].items():
        try: made = config_from_pretrained(config | {key: value})
        except ValueError as error:
            assert (key in str(error) or key in ("num_experts", "experts_per_token",
                                                 "mlp_only_layers")), error
            continue
        assert made != base, key
        try:
            other = type(theirs)._from_config(type(theirs.config)(**config | {key: value}),
                                              attn_implementation="eager",
                                              experts_implementation="eager").eval()
            other.load_state_dict(theirs.state_dict())
            ours = from_pretrained(file, config | {key: value})
        # the weights do not fit
        except (RuntimeError, ValueError): continue
        gap, size = apart(ours, other, IDS[:, :20])
        assert gap < 1e-4 * size, (key, gap)


@pytest.mark.parametrize("name", sweep(EXPERT_CONFIGS, "DeepSeek-V3", "gpt-oss-20b"))
def test_published_configurations_are_read(name):
    config = config_from_pretrained(EXPERT_CONFIGS[name])
    assert name in EXPERT_PUBLISHERS and config.ffn in ("experts", "clamped experts")
    billions = {"Mixtral 8x7B": (46.70, 12.88), "Mixtral 8x22B": (140.62, 39.15),
                "Qwen1.5-MoE A2.7B": (14.32, 2.69), "DeepSeek-V2": (235.74, 21.38),
                "DeepSeek-V3": (671.03, 37.55),
                "Qwen3 30B-A3B": (30.53, 3.35), "Qwen3 235B-A22B": (235.09, 22.19),
                "gpt-oss-20b": (20.91, 4.19), "gpt-oss-120b": (116.83, 5.71),
                "Qwen3-Next 80B-A3B": (79.67, 3.87)}
    assert tuple(round(n / 1e9, 2) for n in total_and_active(config)) == billions[name]


SPELT = {  # further keys of published files
    "Mixtral 8x7B": dict(architectures=["MixtralForCausalLM"], attention_dropout=0.,
                         hidden_act="silu", output_router_logits=False, router_aux_loss_coef=.02,
                         sliding_window=None, tie_word_embeddings=False, use_cache=True),
    "Qwen3 30B-A3B": dict(architectures=["Qwen3MoeForCausalLM"], attention_bias=False,
                          decoder_sparse_step=1, hidden_act="silu", max_window_layers=48,
                          mlp_only_layers=[], output_router_logits=False, rope_scaling=None,
                          router_aux_loss_coef=.001, sliding_window=None, use_sliding_window=False),
    "DeepSeek-V3": dict(architectures=["DeepseekV3ForCausalLM"], attention_bias=False,
                        auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
                        ep_size=1, hidden_act="silu", moe_layer_freq=1, num_nextn_predict_layers=1),
    "gpt-oss-20b": dict(architectures=["GptOssForCausalLM"], experts_per_token=4, hidden_act="silu",
                        initial_context_length=4096,
                        layer_types=["sliding_attention", "full_attention"] * 12,
                        output_router_logits=False,
                        router_aux_loss_coef=.9, swiglu_limit=7., pad_token_id=199999),
}


@pytest.mark.parametrize("name", SPELT)
def test_keys_of_published_files_are_known(name):
    assert (config_from_pretrained(EXPERT_CONFIGS[name] | SPELT[name])
            == config_from_pretrained(EXPERT_CONFIGS[name]))
    for key, value in (("quantization_config", {"quant_method": "fp8"}), ("mystery", 3)):
        with pytest.raises(ValueError, match=f"^{key}: "):
            config_from_pretrained(EXPERT_CONFIGS[name] | SPELT[name] | {key: value})


def test_counts_from_few_layers_are_those_of_whole_models():
    dense = sum(p.numel() for p in build(SMALL).parameters())
    assert total_and_active(SMALL) == total_and_active_by_building(SMALL) == (dense, dense)
    for layers in ("0110", "1111", "0000", "0001"):
        options = dict(n_experts=5, n_used=2, expert_d_ff=7, expert_layers=layers)
        config = replace(EXPERTS, n_layers=4, options=options)
        found = total_and_active(config)
        assert found == total_and_active_by_building(config)
        assert found[0] == sum(p.numel() for p in build(config).parameters())


def test_gated_experts_and_clamps():
    torch.manual_seed(0)
    shared, x = SwiGLU(4, 3), torch.randn(5, 4)
    gated = GatedExpert(shared, 4)
    torch.testing.assert_close(gated(x), torch.sigmoid(x @ gated.gate.weight.T) * shared(x))
    experts = ClampedExperts(1, 1, 1).requires_grad_(False)
    with torch.no_grad():
        experts.gate_up[0, 0], experts.down[0, 0, 0] = torch.tensor([1., 1.]), 1.
    # both are clamped to 7
    big = experts(torch.tensor([[100.]]), torch.tensor([1]))
    assert float(big.detach()) == pytest.approx(8 * 7 / (1 + math.exp(-1.702 * 7)), rel=1e-5)
    # the gate is not clamped from below
    small = experts(torch.tensor([[-100.]]), torch.tensor([1]))
    assert abs(float(small.detach())) < 1e-30


def test_every_new_family_is_in_the_table():
    assert ({kind for kind, _ in EXPERT_CASES.values()} <= FAMILIES.keys()
            and not {"num_experts", "n_group"} & IGNORED_KEYS)


# --- information, and the record's text -----------------------------------------------------------

def test_mutual_information_by_hand():
    a = torch.tensor([0, 0, 1, 1])
    assert float(mutual_information(a, a)) == pytest.approx(math.log(2))
    assert float(mutual_information(a, torch.tensor([5, 9, 5, 9]))) == pytest.approx(0, abs=1e-12)
    # I = H(b) − H(b | a) = 0.5623 − 0.5 log 2
    b = torch.tensor([0, 0, 0, 1])
    assert (float(mutual_information(a, b))
            == pytest.approx(-.75 * math.log(.75) - .25 * math.log(.25) - .5 * math.log(2)))


# --- the figure -----------------------------------------------------------------------------------

SCORES = drawn(12, 4, seed=8).mul(100).round().div(100).tolist()


def test_the_still_picture_lists_who_is_dropped():
    view = ExpertCapacityView("tokens and experts", scores=[[2., 0.]] * 3 + [[0., 2.]], capacity=1)
    assert ">2, 3<" in view.picture() and ">expert 1<" in view.picture()


def test_the_script_of_the_figure_routes_as_the_module_does(tmp_path):
    cases = [(SCORES, tilt, most, by_weight) for tilt in (-3., -.5, 0., .5, 2., 5.)
             for most in (1, 3, 7, 12) for by_weight in (False, True)]
    found = in_node(tmp_path, "expert_capacity.js", "given.map(each => script.route(...each).map("
                    "e => [e.kept.map(x => x.token), e.dropped.map(x => x.token)]))", cases)
    for (_, tilt, most, by_weight), experts in zip(cases, found):
        view = ExpertCapacityView("tokens and experts", scores=SCORES, tilt=tilt, capacity=most,
                                  by_weight=by_weight)
        routing = view.routing()
        kept = keep_within_capacity(routing, most)
        for e, (inside, out) in enumerate(experts):
            mine = routing.token[routing.expert == e].tolist()
            assert (inside == kept.token[kept.expert == e].tolist() == mine[:most] and out
                    == mine[most:])


@pytest.mark.parametrize("ffn", ["experts", "clamped experts"])
def test_every_matrix_is_drawn(ffn):
    "The clamped experts were all zero, in both matrices, so that neither ever had a gradient."
    model = build(ModelConfig("decoder", 61, 16, 2, 2, 40, d_ff=24, **MODERN | {"ffn": ffn},
                              options={"n_experts": 4, "n_used": 2}), seed=3)
    model(torch.arange(12)[None]).logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        if p.ndim > 1 and not name.endswith("bias"):
            assert p.std() > .01 and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", ["encoder", "bert"])
def test_every_matrix_of_an_encoder_is_drawn_too(kind):
    model = build(ModelConfig(kind, 61, 16, 2, 2, 40, d_ff=24,
                              **MODERN | {"ffn": "clamped experts"},
                              options={"n_experts": 4, "n_used": 2}))
    assert all(p.std() > .01 for name, p in model.named_parameters() if p.ndim > 1
               and not name.endswith("bias"))
