"""Accounting: every formula against a count, on shapes that differ from each other in every size; the calculator against the formulas."""
import dataclasses
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serve import server
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfmlib import encoders  # noqa: F401  (the kind of BERT)
from tfmlib.accounting import (
    NAMED_CONFIGS, NAMED_SHAPES, ExpertSizes, LatentSizes, LiveMemory, Machine, ModelCosts, ModelShape, RecomputedBlock, SavedTensors, activation_bytes, active_parameters,
    block_numbers, cache_bytes, costs, crossing_batch, decode_cost, forward_flops, fused_causal, measure_machine, multiplied_parameters, peak_memory, prefill_cost, seconds,
    shapes_of, total_parameters, training_flops, training_memory, weight_matrices, weights_read)
from tfmlib.decoders import GPT2, LLAMA3, MODERN, next_token_loss
from tfmlib.figures import ASSETS
from tfmlib.transformer import ModelConfig, build, count_parameters

PAPER = ModelShape(7, 6, 2, 3, 1, 2, 10)
MIXED = ModelShape(11, 8, 5, 4, 2, 3, 6, vectors=9, experts=ExpertSizes(7, 2, 1, 2, 13), latent=LatentSizes(5, 3, 1, 2))
H100 = Machine(989e12, 3.35e12)

configs = st.builds(
    lambda parts, V, G, times, D, L, F, T: ModelConfig("decoder", V, 4 * G * times, L, G * times, T, n_kv_heads=G, head_dim=D, d_ff=F, **parts),
    st.sampled_from([GPT2, MODERN, LLAMA3]), st.integers(5, 23), st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4, 6]), st.integers(1, 3), st.integers(1, 17), st.integers(2, 9))


def counted(run) -> int:
    "Operations, as PyTorch counts them."
    with FlopCounterMode(display=False) as counter: run()
    return counter.get_total_flops()


def tokens(config: ModelConfig, B: int) -> torch.Tensor:
    return torch.randint(config.vocab_size, (B, config.max_len + 1), generator=torch.Generator().manual_seed(0))


def recomputed(model):
    model.stack.blocks = nn.ModuleList(map(RecomputedBlock, model.stack.blocks))
    return model


# --- parameters ---------------------------------------------------------------------------------------------------

def test_the_case_on_paper():
    assert (total_parameters(PAPER), multiplied_parameters(PAPER), active_parameters(PAPER)) == (636, 594, 636)
    assert forward_flops(PAPER, 2, 5) == 14_280 and cache_bytes(PAPER, 1, 1, 1) == 8
    tied = replace(PAPER, tied=True)
    assert (total_parameters(tied), multiplied_parameters(tied)) == (594, 594)


@settings(max_examples=40, deadline=None)
@given(configs)
def test_parameters_are_those_of_the_model(config):
    (shape,) = shapes_of(config)
    with torch.device("meta"): model = build(config)
    assert total_parameters(shape) == sum(p.numel() for p in model.parameters()) == sum(count_parameters(config).values())


@pytest.mark.parametrize("more", [{}, {"n_encoder_layers": 2}, {"source_vocab_size": 9}])
def test_both_stacks_of_an_encoder_decoder(more):
    config = ModelConfig("encoder-decoder", 13, 12, 3, 3, norm="rmsnorm", norm_position="pre", positions="relative", ffn="relu", d_ff=7, ffn_bias=False, **more)
    extra = more.get("source_vocab_size", 0) * 12
    with torch.device("meta"): model = build(config)
    assert sum(map(total_parameters, shapes_of(config))) + extra == sum(p.numel() for p in model.parameters())


def test_named_shapes_are_those_of_the_publishers():
    billions = {"GPT-3 175B": 174.604, "Llama 2 7B": 6.738, "Llama 3 8B": 8.030, "Llama 3.1 405B": 405.853, "Mixtral 8x7B": 46.703, "DeepSeek-V3": 671.026}
    assert {name: round(total_parameters(NAMED_SHAPES[name]) / 1e9, 3) for name in billions} == billions
    assert round(active_parameters(NAMED_SHAPES["Mixtral 8x7B"]) / 1e9, 2) == 12.88 and round(active_parameters(NAMED_SHAPES["DeepSeek-V3"]) / 1e9, 1) == 37.6


def test_experts_are_stored_and_few_are_used():
    dense = replace(MIXED, experts=None, d_ff=13)
    wide = replace(MIXED, experts=ExpertSizes(7, 7, 1, 2, 13))
    assert multiplied_parameters(dense) < multiplied_parameters(MIXED) < multiplied_parameters(wide)
    assert active_parameters(wide) == total_parameters(wide) == total_parameters(MIXED)
    assert total_parameters(MIXED) - active_parameters(MIXED) == 3 * 5 * 3 * 8 * 6


@pytest.mark.parametrize("wrong, named", [({"d_model": 0}, "d_model"), ({"n_layers": 1.5}, "n_layers"), ({"n_kv_heads": 2}, "n_kv_heads"), ({"d_ff": -1}, "d_ff"), ({"vocab_size": True}, "vocab_size")])
def test_a_shape_that_is_none_is_refused_by_name(wrong, named):
    with pytest.raises(ValueError, match=named): replace(PAPER, **wrong)


# --- operations ---------------------------------------------------------------------------------------------------

@settings(max_examples=25, deadline=None)
@given(configs, st.integers(1, 3), st.booleans())
def test_operations_are_those_of_the_model(config, B, again):
    (shape,), model = shapes_of(config), build(config)
    ids = tokens(config, B)
    forward = counted(lambda: model(ids[:, :-1]))
    assert forward == forward_flops(shape, B, config.max_len)
    if again: recomputed(model)
    assert counted(lambda: next_token_loss(model, ids)[0].backward()) == training_flops(shape, B, config.max_len, again)


def test_pairs_of_a_causal_mask():
    pairs = forward_flops(PAPER, 1, 5) - 2 * 5 * 594
    assert forward_flops(PAPER, 1, 5, causal=True) - 2 * 5 * 594 == pairs * 15 // 25
    steps = sum(forward_flops(PAPER, 1, 1, S) for S in range(1, 6))
    assert steps == forward_flops(PAPER, 1, 5, causal=True), "token by token is as much as all at once"
    with pytest.raises(ValueError, match="S"): forward_flops(PAPER, 1, 5, 4)
    with pytest.raises(ValueError, match="B"): forward_flops(PAPER, 0, 5)


def test_latents_are_read_as_the_cache_holds_them():
    layers, heads = MIXED.n_layers, MIXED.n_heads
    ahead = forward_flops(MIXED, 1, 1, 4) - 2 * multiplied_parameters(MIXED)
    assert ahead == 2 * layers * heads * 4 * (2 * 3 + 1) and forward_flops(MIXED, 1, 1) - 2 * multiplied_parameters(MIXED) == 2 * layers * heads * (3 + 2)


# --- memory -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("parts", [GPT2, LLAMA3])
@pytest.mark.parametrize("G, F", [(2, 88), (1, 17), (4, 40)])
@pytest.mark.parametrize("how", ["fused", "matrix", "recomputed"])
def test_activations_to_the_byte(parts, G, F, how):
    if how == "matrix" and G != 2: pytest.skip("how heads are stacked decides which copies are made")
    config = ModelConfig("decoder", 61, 32, 3, 4, 12, n_kv_heads=G, d_ff=F, **parts)
    model = build(config, *[fused_causal] * (how != "matrix"))
    if how == "recomputed": recomputed(model)
    predicted = activation_bytes(*shapes_of(config), 3, 12, how == "recomputed", how == "matrix")
    assert SavedTensors(model).bytes(lambda: next_token_loss(model, tokens(config, 3))[0]) == predicted["blocks"] + predicted["loss"]


def test_live_memory_sees_what_is_made_and_freed():
    model = nn.Linear(4, 4)
    with LiveMemory(model) as watch:
        x = torch.zeros(100)
        y = x.view(10, 10)
        del x, y
        torch.zeros(1)
    sizes = [live for live, _ in watch.history]
    assert max(sizes) == 400 and sizes[-1] == 4


def test_the_peak_of_a_step():
    config = ModelConfig("decoder", 256, 32, 5, 4, 64, n_kv_heads=2, d_ff=88, **LLAMA3)
    model, (shape,) = build(config, fused_causal), shapes_of(config)
    optimiser, ids = torch.optim.AdamW(model.parameters()), tokens(config, 4)

    def step():
        optimiser.zero_grad()
        total, count = next_token_loss(model, ids)
        (total / count).backward()
        optimiser.step()
    step()
    means = [t for state in optimiser.state.values() for t in state.values()]
    with LiveMemory(model, *means) as watch: step()
    found = 12 * total_parameters(shape) + max(live for live, _ in watch.history)
    assert found == pytest.approx(peak_memory(shape, 4, 64), rel=.02)
    assert max(grads for _, grads in watch.history) == 4 * total_parameters(shape)
    assert peak_memory(shape, 4, 64) < sum(training_memory(shape, 4, 64).values())


def test_no_activations_of_what_the_book_does_not_build():
    for wrong in (NAMED_SHAPES["Mixtral 8x7B"], replace(PAPER, latent=LatentSizes(5, 3, 1, 2))):
        with pytest.raises(ValueError, match="shape"): activation_bytes(wrong, 1, 4)


def test_the_matrix_grows_with_the_square():
    assert block_numbers(PAPER, 100, matrix=True) - block_numbers(PAPER, 50, matrix=True) == 2 * 3 * 50
    assert block_numbers(PAPER, 100) == block_numbers(PAPER, 50)


# --- generation ---------------------------------------------------------------------------------------------------

def test_a_step_reads_weights_and_cache():
    ops, moved = decode_cost(PAPER, 3, 5)
    assert (ops, moved) == (forward_flops(PAPER, 3, 1, 5), 2 * 594 + 2 * 8 * 3 * 5)
    assert prefill_cost(PAPER, 3, 5)[1] == moved and prefill_cost(PAPER, 3, 5)[0] > 4 * ops


def test_a_batch_reads_more_experts():
    shape = NAMED_SHAPES["Mixtral 8x7B"]
    few, many = weights_read(shape, 1), weights_read(shape, 1000)
    assert few == pytest.approx(multiplied_parameters(shape)) and many == pytest.approx(total_parameters(shape) - shape.vectors - 32_000 * 4096)
    assert few < weights_read(shape, 4) < many


def test_the_slower_decides():
    assert seconds(Machine(10, 2), 100, 4) == 10 and seconds(Machine(10, 2), 100, 40) == 20
    B = crossing_batch(H100)
    shape = replace(PAPER, n_layers=200)
    def both(B): return 2 * B * multiplied_parameters(shape) / H100.peak, 2 * multiplied_parameters(shape) / H100.bandwidth
    assert both(B)[0] == pytest.approx(both(B)[1])
    for wrong in (Machine(0, 1), Machine(1, -1)):
        with pytest.raises(ValueError, match="machine"): crossing_batch(wrong)


def test_a_machine_is_measured():
    found = measure_machine(64, 1, 2)
    assert found.peak > 1e6 and found.bandwidth > 1e6
    with pytest.raises(ValueError, match="repeats"): measure_machine(repeats=0)


# --- the calculator -----------------------------------------------------------------------------------------------

SHAPES = [*NAMED_SHAPES.values(), PAPER, MIXED, replace(PAPER, gated=False, rotary=False, tied=True, vectors=5), replace(PAPER, cross=True, head=False),
          replace(PAPER, n_kv_heads=3, experts=ExpertSizes(4, 1))]
SETTINGS = [(1, 1, 2, 1), (1, 8192, 2, 1), (16, 131_072, 1, 8), (1024, 2048, 4, 16_384), (3, 7, 4, 5)]


@pytest.mark.browser
def test_the_calculator_computes_the_same(browser):
    "Every number of `costs`, in Chromium, over a grid of shapes and settings."
    calls = [(dataclasses.asdict(shape), *setting, list(H100)) for shape in SHAPES for setting in SETTINGS]
    wanted = [costs(shape, *setting, H100) for shape in SHAPES for setting in SETTINGS]
    with server(Path(str(ASSETS))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{httpd.server_port}/model_costs.js")
        found = page.evaluate("async calls => { const { costs } = await import('/model_costs.js'); return calls.map(call => costs(...call)); }", calls)
        page.close()
        httpd.shutdown()
    assert len(found) == len(SHAPES) * len(SETTINGS) > 50
    for a, b in zip(found, wanted):
        assert a.keys() == b.keys() and {n for n in a if a[n] is None} == {n for n in b if b[n] is None}
        assert {n: x for n, x in a.items() if x is not None} == pytest.approx({n: x for n, x in b.items() if x is not None}, rel=1e-9)


def test_the_still_picture_has_the_numbers():
    fields = [dataclasses.asdict(NAMED_SHAPES[name]) for name in ("Llama 3 8B", "DeepSeek-V3")]
    for chosen, said in ((0, "8.03e+09"), (1, "6.71e+11")):
        made = ModelCosts("what a model costs", names=["a", "b"], shapes=fields, sizes=fields[chosen], machine=[989., 3.35, 80.])
        assert said in made.picture() and ("–" in made.picture()) == (chosen == 1)


def test_every_named_configuration_is_built():
    for config in NAMED_CONFIGS.values():
        with torch.device("meta"): assert sum(p.numel() for p in build(config).parameters()) > 1e8


def test_matrices_have_names():
    assert [*weight_matrices(PAPER)] == ["embedding", "query", "key", "value", "output", "up", "down", "head"]
    assert weight_matrices(replace(PAPER, tied=True))["head"][2:] == (0, 1)
