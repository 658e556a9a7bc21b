"""Chapter 15: each part of a decoder under tensor, sequence and context parallelism: the
single-process step, or a refusal by name."""
from dataclasses import replace
from functools import partial

import device_cases as cases
import pytest
import torch
from conftest import sweep

import tfmlib.checkpoints.families  # noqa: F401 — all parts are registered
import tfmlib.linear_and_state_space.hybrid  # noqa: F401
import tfmlib.mixture_of_experts.families  # noqa: F401
from tfmlib.checkpoints import MODEL_CONFIGS
from tfmlib.checkpoints.builder import build
from tfmlib.many_devices.context import RingAttention, train_context_parallel
from tfmlib.many_devices.local_processes import Processes, ProcessFailed
from tfmlib.many_devices.pipeline import Stage
from tfmlib.many_devices.recorder import Job, largest_difference, train_alone
from tfmlib.many_devices.tensor import train_tensor_parallel

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = MODEL_CONFIGS["toy Llama"].sized(48, 16, 4, 4, 32, n_kv_heads=4, d_ff=24)
FORMS = {"tensor": (train_tensor_parallel,), "sequence": (train_tensor_parallel, True),
         "context": (train_context_parallel,),
         "context in one piece": (train_context_parallel, False)}
CUT, TILED = ("tensor", "sequence"), ("context", "context in one piece")


def adapted(**options) -> dict: return dict(attention="adapted", options=options)


HEADS, EXPERTS = dict(kind="adapted decoder"), dict(n_experts=4, n_used=2)
# name -> what differs from the toy Llama, the forms that refuse it, and the name that they give
PARTS = {
    "plain": ({}, (), ""), "no positions": (dict(positions="none"), (), ""),
    "learned": (dict(positions="learned"), (), ""), "sinusoidal": (dict(positions="sinusoidal"), (),
            ""), "groups": (dict(n_kv_heads=2), (), ""), "wide heads": (dict(head_dim=10), (), ""),
    "partly rotated": (dict(positions="partial rotary", options=dict(rotary_dim=2)), (), ""),
    "rotated by layer": (dict(positions="layered rotary") | adapted(rotated="1010", local="0101",
            local_base=100.), (), ""),
    "YaRN": (dict(rope_scaling=dict(rule="yarn", factor=2., original_max_len=16)), (), ""),
    "ALiBi": (dict(positions="alibi"), (*CUT, *TILED), "positions"),
    "relative": (dict(positions="relative"), (*CUT, *TILED), "positions"),
    "window": (adapted(window=3), TILED, "options['window']"),
    "window longer than a chunk": (adapted(window=9), TILED, "options['window']"),
    "some windows": (adapted(window=3, local="0101"), TILED, "options['window']"),
    "caps": (adapted(softcap=2.), TILED, "options['softcap']"),
    "sinks": (adapted(sinks=True), (*CUT, *TILED), "options['sinks']"),
    "norms per head": (adapted(qk_norm="head"), (), ""),
    "norms with biases": (dict(norm="layernorm") | adapted(qk_norm="head"), (), ""),
    "norms of each head": (adapted(qk_norm="each head"), CUT, "options['qk_norm']"),
    "norms of all heads": (adapted(qk_norm="all heads"), CUT, "options['qk_norm']"),
    "own scale": (adapted(query_scale=.3, clip_qkv=.5), (), ""),
    "biases": (dict(attention_bias=True, ffn_bias=True), (), ""),
    "biased output": (dict(attention_bias=True) | adapted(biased="o"), (), ""),
    "experts": (dict(ffn="experts", options=EXPERTS), CUT, "ffn"),
    "few tokens for many experts": (dict(ffn="experts", options=dict(n_experts=60, n_used=1)), CUT,
                                    "ffn"), "clamped experts": (dict(ffn="clamped experts",
                                            options=EXPERTS), CUT, "ffn"),
    "mixers": (dict(attention="hybrid", options=dict(mixers=("gated delta", "attention"))),
               (*CUT, *TILED), "attention"),
    "hybrid": (dict(kind="hybrid decoder", attention="hybrid", positions="none",
                    options=dict(mixers=("gated delta",))), (*CUT, *TILED), "kind"),
    "adapted decoder": (HEADS, (), ""),
    "normed, scaled and capped": (HEADS | dict(options=dict(logit_scale=.5, logit_cap=3.,
            embedding_norm=True)), (), ""), "narrow": (HEADS | dict(options=dict(embedding_dim=8)),
                    CUT, "options['embedding_dim']"),
    "biased head": (HEADS | dict(options=dict(head_bias=True)), CUT, "options['head_bias']"),
    **{place: (dict(norm_position=place), (), "") for place in ("post", "after", "both", "parallel",
            "parallel, one norm")},
    "scaled": (dict(norm_position="pre, scaled", options=dict(residual_scale=.5)), (), ""),
    "offset norm": (dict(norm="rmsnorm, 1 + weight"), (), ""),
    "gated": (dict(ffn="gated gelu"), (), ""), "not gated": (dict(ffn="gelu"), (), ""),
    "no feed-forward": (dict(ffn="none"), (), ""), "untied": (dict(tie_embeddings=False), (), ""),
    "scaled embedding": (dict(embedding_scale=3.), (), "")}


@pytest.fixture(scope="module")
def processes():
    with Processes(*cases.PRELOADED[:2]) as started:
        started.run = partial(started.run, timeout=1800)
        yield started


OFTEN = "ALiBi", "window longer than a chunk", "norms of all heads", "rotated by layer", "experts"


@pytest.mark.parametrize("name", sweep(PARTS, *OFTEN))
def test_each_part_is_the_single_process_step_or_refused_by_name(name, processes):
    change, refusing, said = PARTS[name]
    job = Job(replace(SMALL, **change), steps=2)
    alone = train_alone(job)
    for form, (function, *more) in FORMS.items():
        if form in refusing:
            with pytest.raises(ProcessFailed) as caught:
                processes.run(cases.with_all_parts, 2, function, job, *more)
            assert all(error.startswith(f"ValueError: {said}: ") and "expected" in error
                       for error in caught.value.errors.values()), (form, caught.value.errors)
        else:
            assert (largest_difference(
                [result.value for result in processes.run(cases.with_all_parts, 2, function, job,
                        *more)], alone) < 1e-10), form


def test_draws_that_no_form_can_repeat_are_refused():
    with pytest.raises(ValueError, match="^dropout: 0.5; expected 0"):
        Job(replace(SMALL, dropout=.5))


@pytest.mark.parametrize("mask", [torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.bool),
                                  torch.ones(4, 4, dtype=torch.bool).tril()
                                  & torch.ones(4, 4, dtype=torch.bool).triu(-1),
                                  torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
                                  & torch.tensor([False, True, True, True])])
def test_ring_attention_refuses_a_mask_that_it_would_ignore(mask):
    q = torch.randn(2, 1, 4, 3)
    with pytest.raises(ValueError, match="^mask: .*expected the causal mask"):
        RingAttention()(q, q, q, mask)


@pytest.mark.parametrize("change, said", [
    (dict(positions="relative"), "positions: 'relative'"),
    *((HEADS | dict(options={name: value}), rf"options\['{name}'\]: {value}") for name, value in
      (("embedding_dim", 8), ("head_bias", True), ("embedding_norm", True)))])
def test_a_pipeline_refuses_what_no_stage_would_train_or_two_would(change, said):
    with pytest.raises(ValueError, match=f"^{said}"): Stage(build(replace(SMALL, **change)), 0, 2)


def test_every_parameter_is_trained_by_one_stage():
    tried = 0
    for name, (change, *_) in PARTS.items():
        try:
            model = build(replace(SMALL, **change))
            stages = [Stage(model, s, 2) for s in range(2)]
        except ValueError: continue
        a, b = (s.parameters_by_name().keys() for s in stages)
        assert a | b == dict(model.named_parameters()).keys(), name
        assert a & b <= {"embedding.weight"}, name
        tried += 1
    assert tried > 3
