"""Accounting: every formula against a count, on shapes that differ from each other in every
size; the calculator against the formulas."""
import dataclasses
import json
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from serve import server
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfmlib import encoders  # noqa: F401  (the kind of BERT)
from tfmlib.accounting import (
    COST_ROWS,
    NAMED_SHAPES,
    ExpertSizes,
    LatentSizes,
    LiveMemory,
    Machine,
    ModelCosts,
    ModelShape,
    RecomputedBlock,
    SavedTensors,
    activation_bytes,
    active_parameters,
    amount,
    block_numbers,
    cache_bytes,
    costs,
    crossing_batch,
    decode_cost,
    forward_flops,
    fused_causal,
    measure_machine,
    memory_at_loss,
    multiplied_parameters,
    peak_memory,
    prefill_cost,
    seconds,
    shapes_of,
    total_parameters,
    training_flops,
    training_memory,
    weight_matrices,
    weights_read,
)
from tfmlib.checkpoints import GPT2, LLAMA3, MODERN, ModelConfig, build, count_parameters
from tfmlib.decoders import next_token_loss
from tfmlib.heads import grouped_query_attention
from tfmlib.workbench import ASSETS

pytestmark = pytest.mark.usefixtures("one_thread")
PAPER = ModelShape(7, 6, 2, 3, 1, 2, 10)
MIXED = ModelShape(11, 8, 5, 4, 2, 3, 6, vectors=9, experts=ExpertSizes(7, 2, 1, 2, 13),
                   latent=LatentSizes(5, 3, 1, 2))
H100 = Machine(989e12, 3.35e12)

configs = st.builds(
    lambda parts, V, G, times, D, L, F, T: ModelConfig("decoder", V, 4 * G * times, L, G * times, T,
            n_kv_heads=G, head_dim=D, d_ff=F, **parts),
    st.sampled_from([GPT2, MODERN, LLAMA3]), st.integers(5, 23), st.integers(1, 3),
    st.integers(1, 3), st.sampled_from([2, 4, 6]), st.integers(1, 3), st.integers(1, 17),
    st.integers(2, 9))


def counted(run) -> int:
    "Operations, as PyTorch counts them."
    with FlopCounterMode(display=False) as counter: run()
    return counter.get_total_flops()


def tokens(config: ModelConfig, B: int) -> torch.Tensor:
    return torch.randint(config.vocab_size, (B, config.max_len + 1),
                         generator=torch.Generator().manual_seed(0))


def recomputed(model):
    model.stack.blocks = nn.ModuleList(map(RecomputedBlock, model.stack.blocks))
    return model


# --- parameters -----------------------------------------------------------------------------------

def test_the_case_on_paper():
    "Chapter 13 counts it without tied tables."
    tied = replace(PAPER, tied=True)
    assert (total_parameters(tied), multiplied_parameters(tied),
        cache_bytes(PAPER, 1, 1, 1)) == (594, 594, 8)


@settings(max_examples=40, deadline=None)
@given(configs)
def test_parameters_are_those_of_the_model(config):
    (shape,) = shapes_of(config)
    with torch.device("meta"): model = build(config)
    assert (total_parameters(shape) == sum(p.numel() for p in model.parameters())
            == sum(count_parameters(config).values()))


@pytest.mark.parametrize("more",
                         [{}, {"n_encoder_layers": 2}, {"positions": "learned", "max_len": 9},
                          {"tie_embeddings": False}])
def test_both_stacks_of_an_encoder_decoder(more):
    sizes = dict(norm="rmsnorm", norm_position="pre", positions="relative", ffn="relu", d_ff=7,
                 ffn_bias=False)
    config = ModelConfig("encoder-decoder", 13, 12, 3, 3, **sizes | more)
    with torch.device("meta"): model = build(config)
    assert (sum(map(total_parameters, shapes_of(config)))
            == sum(p.numel() for p in model.parameters()))


def test_named_shapes_are_those_of_the_publishers():
    billions = {"GPT-3 175B": 174.604, "Llama 2 7B": 6.738, "Llama 3 8B": 8.030,
                "Llama 3.1 405B": 405.853, "Mixtral 8x7B": 46.703, "DeepSeek-V3": 671.026}
    assert ({name: round(total_parameters(NAMED_SHAPES[name]) / 1e9, 3) for name in billions}
            == billions)
    assert (round(active_parameters(NAMED_SHAPES["Mixtral 8x7B"]) / 1e9, 2) == 12.88
            and round(active_parameters(NAMED_SHAPES["DeepSeek-V3"]) / 1e9, 1) == 37.6)


def test_experts_are_stored_and_few_are_used():
    dense = replace(MIXED, experts=None, d_ff=13)
    wide = replace(MIXED, experts=ExpertSizes(7, 7, 1, 2, 13))
    assert multiplied_parameters(dense) < multiplied_parameters(MIXED) < multiplied_parameters(wide)
    assert active_parameters(wide) == total_parameters(wide) == total_parameters(MIXED)
    assert total_parameters(MIXED) - active_parameters(MIXED) == 3 * 5 * 3 * 8 * 6


# --- operations -----------------------------------------------------------------------------------

@settings(max_examples=often(25), deadline=None)
@given(configs, st.integers(1, 3), st.booleans())
def test_operations_are_those_of_the_model(config, B, again):
    # of the fused function on a CPU PyTorch counts none
    (shape,), model = shapes_of(config), build(config, grouped_query_attention)
    ids = tokens(config, B)
    forward = counted(lambda: model(ids[:, :-1]))
    assert forward == forward_flops(shape, B, config.max_len)
    if again: recomputed(model)
    assert (counted(lambda: next_token_loss(model, ids)[0].backward())
            == training_flops(shape, B, config.max_len, again))


def test_pairs_of_a_causal_mask():
    pairs = forward_flops(PAPER, 1, 5) - 2 * 5 * 594
    assert forward_flops(PAPER, 1, 5, causal=True) - 2 * 5 * 594 == pairs * 15 // 25
    steps = sum(forward_flops(PAPER, 1, 1, S) for S in range(1, 6))
    assert (steps == forward_flops(PAPER, 1, 5,
                                   causal=True)), "token by token is as much as all at once"


NOT_PLAIN = {"experts": ExpertSizes(4, 1), "latent": LatentSizes(5, 3, 1, 2), "cross": True,
    "plain_blocks": False}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_without_recomputation_the_way_back_is_twice_the_way_there(name):
    odd = replace(PAPER, **{name: NOT_PLAIN[name]})
    assert training_flops(odd, 1, 4) == 3 * forward_flops(odd, 1, 4)


@pytest.mark.parametrize("more, plain", [({}, True), ({"norm_position": "post"}, False),
                                         ({"ffn": "relu"}, False), ({"ffn": "silu"}, False),
                                         ({"ffn": "gelu"}, True), ({"ffn": "swiglu"}, True),
                                         ({"dropout": .1}, False)])
def test_which_blocks_are_plain(more, plain):
    assert shapes_of(ModelConfig("decoder", 11, 12, 2, 3, 7,
                                 **GPT2 | more))[0].plain_blocks is plain


def test_latents_are_read_as_the_cache_holds_them():
    layers, heads = MIXED.n_layers, MIXED.n_heads
    ahead = forward_flops(MIXED, 1, 1, 4) - 2 * multiplied_parameters(MIXED)
    assert (ahead == 2 * layers * heads * 4 * (2 * 3 + 1) and forward_flops(MIXED, 1, 1) - 2
            * multiplied_parameters(MIXED) == 2 * layers * heads * (3 + 2))


# --- memory ---------------------------------------------------------------------------------------

BLOCKS = {"GPT-2": GPT2, "Llama 3": LLAMA3, "centred": LLAMA3 | {"norm": "layernorm"},
    "rotated": GPT2 | {"norm": "rmsnorm", "positions": "rotary"}}
WIDTHS = [(2, 88), (1, 17), (4, 40)]
KEPT = [(name, *width, how) for name in BLOCKS for width in WIDTHS
    for how in ("fused", "matrix", "recomputed")]


@pytest.mark.parametrize("name, G, F, how", sweep(KEPT, *KEPT[::5]))
def test_activations_to_the_byte(name, G, F, how):
    config = ModelConfig("decoder", 61, 32, 3, 4, 12, n_kv_heads=G, d_ff=F, **BLOCKS[name])
    model = build(config, grouped_query_attention if how == "matrix" else fused_causal)
    if how == "recomputed": recomputed(model)
    predicted = activation_bytes(*shapes_of(config), 3, 12, how == "recomputed", how == "matrix")
    assert (SavedTensors(model).bytes(lambda: next_token_loss(model, tokens(config, 3))[0])
            == predicted["blocks"] + predicted["loss"])


def test_live_memory_sees_what_is_made_and_freed():
    with LiveMemory(nn.Linear(4, 4)) as watch:
        x = torch.zeros(100)
        y = x.view(10, 10)
        del x, y
        torch.zeros(1)
    sizes = [live for live, _ in watch.history]
    assert max(sizes) == 400 and sizes[-1] == 4


def measured_peak(config: ModelConfig, B: int, T: int, again: bool,
                  matrix: bool) -> tuple[int, int]:
    "The most bytes in memory during a second training step, and the most bytes of gradients."
    model = build(config, grouped_query_attention if matrix else fused_causal)
    if again: recomputed(model)
    optimiser, ids = torch.optim.AdamW(model.parameters()), tokens(replace(config, max_len=T), B)

    def step():
        optimiser.zero_grad()
        total, count = next_token_loss(model, ids)
        (total / count).backward()
        optimiser.step()
    step()
    means = [t for state in optimiser.state.values() for t in state.values()]
    with LiveMemory(model, *means) as watch: step()
    return (12 * total_parameters(*shapes_of(config)) + max(live for live, _ in watch.history),
            max(grads for _, grads in watch.history))


# V, C, L, H, G, F, B, T; parts; how; the moment of the peak: the loss, a block, or the update
PEAKS = {"the loss": (256, 32, 5, 4, 2, 88, 4, 64, LLAMA3, ""),
         "a wide block": (8, 64, 1, 4, 2, 2048, 8, 128, LLAMA3, ""),
         "a block": (8, 64, 6, 4, 2, 172, 8, 128, LLAMA3, ""),
         "a norm": (8, 64, 2, 4, 2, 8, 8, 128, LLAMA3, ""),
         "GPT-2's block": (8, 64, 2, 4, 4, 2048, 8, 128, GPT2, ""),
         "the matrix": (8, 32, 2, 4, 4, 64, 2, 256, LLAMA3, "matrix"),
         "the matrix of shared heads": (64, 32, 3, 4, 2, 64, 2, 256, LLAMA3, "matrix"),
         "a wide recomputed block": (64, 64, 4, 4, 2, 2048, 4, 64, LLAMA3, "again"),
         "beside the gradients": (64, 64, 24, 4, 2, 128, 8, 64, LLAMA3, "again"),
         "the update": (500, 64, 2, 4, 2, 172, 1, 4, LLAMA3, ""),
         "the update of a tied table": (2000, 64, 2, 4, 4, 256, 1, 4, GPT2, "")}


@pytest.mark.parametrize("moment",
    sweep(PEAKS, "the loss", "a wide block", "the matrix of shared heads", "beside the gradients",
        "the update of a tied table"))
def test_the_peak_of_a_step(moment):
    V, C, L, H, G, F, B, T, parts, how = PEAKS[moment]
    config = ModelConfig("decoder", V, C, L, H, T, n_kv_heads=G, d_ff=F, **parts)
    (shape,), flags = shapes_of(config), (how == "again", how == "matrix")
    found, grads = measured_peak(config, B, T, *flags)
    predicted = peak_memory(shape, B, T, *flags)
    assert predicted == pytest.approx(found, rel=.035) and grads == 4 * total_parameters(shape)
    if moment == "the loss":
        assert predicted < sum(training_memory(shape, B, T).values())
        assert sum(memory_at_loss(shape, B, T).values()) == pytest.approx(predicted, rel=.01)
    if "update" in moment: assert predicted == 16 * total_parameters(shape) + 2 * 4 * V * C


def test_three_rules_by_hand():
    """636 parameters; two layers of 97 numbers and a last norm of 19; five tensors of 7 logits."""
    assert memory_at_loss(PAPER, 2, 5) == {
        "state": 12 * 636, "activations": 4 * 10 * (2 * 97 + 19), "logits": 4 * 10 * 5 * 7}


def test_half_the_width_is_not_half_the_bytes():
    """Norms and attention compute in 32 bits: what the book's blocks keep in 16 bits is more
    than half of what they keep in 32."""
    config = ModelConfig("decoder", 61, 32, 3, 4, 12, n_kv_heads=2, d_ff=88, **LLAMA3)
    def kept(dtype):
        model = build(config, fused_causal).to(dtype)
        return SavedTensors(model).bytes(
            lambda: model.stack(torch.ones(3, 12, 32, dtype=dtype, requires_grad=True)))
    assert .55 < kept(torch.bfloat16) / kept(torch.float32) < .65


def test_the_matrix_grows_with_the_square():
    assert (block_numbers(PAPER, 100, matrix=True) - block_numbers(PAPER, 50, matrix=True)
            == 2 * 3 * 50)
    assert block_numbers(PAPER, 100) == block_numbers(PAPER, 50)


def test_what_a_block_keeps_by_hand():
    assert (block_numbers(PAPER, 5) == 6 * 6 + 2 + (2 * 3 + 2) * 2 + 3 + 4 * 10 == 97
            and block_numbers(replace(PAPER, layer_norm=True), 5) == 97 - 2 * (6 - 1))
    assert (block_numbers(replace(PAPER, rotary=False), 5)
            == 97), "the heads are merged without a copy, with RoPE as without"
    plain, again = (sum(activation_bytes(PAPER, 4, 5, how).values())
                    - sum(activation_bytes(replace(PAPER, rotary=False), 4, 5, how).values())
                    for how in (False, True))
    assert (plain == again == 4 * 2 * 5
            * 2), "cosines and sines once: not for each layer, sequence or head"


# --- generation -----------------------------------------------------------------------------------

def test_a_step_reads_weights_and_cache():
    ops, moved = decode_cost(PAPER, 3, 5)
    assert (ops, moved) == (forward_flops(PAPER, 3, 1, 5), 2 * 594 + 2 * 8 * 3 * 5)
    assert (prefill_cost(PAPER, 3, 5) == (forward_flops(PAPER, 3, 5, causal=True) - 2 * 3 * 4 * 7
                                          * 6, moved)), "logits of the last token"
    assert (prefill_cost(MIXED, 3, 5)[1] == 2 * weights_read(MIXED, 15) + cache_bytes(MIXED, 3, 5)
            and cache_bytes(MIXED, 3, 5) == 2 * 5 * (3 + 1) * 3 * 5)


def test_a_batch_reads_more_experts():
    shape = NAMED_SHAPES["Mixtral 8x7B"]
    few, many = weights_read(shape, 1), weights_read(shape, 1000)
    assert (few == pytest.approx(multiplied_parameters(shape)) and many
            == pytest.approx(total_parameters(shape) - shape.vectors - 32_000 * 4096))
    assert few < weights_read(shape, 4) < many


def test_the_slower_decides():
    assert seconds(Machine(10, 2), 100, 4) == 10 and seconds(Machine(10, 2), 100, 40) == 20
    B, N = crossing_batch(H100), multiplied_parameters(PAPER)
    assert 2 * B * N / H100.peak == pytest.approx(2 * N / H100.bandwidth)


def test_a_machine_is_measured(): assert min(measure_machine(64, 1, 2)) > 1e6


# --- what is refused, by name ---------------------------------------------------------------------

TWO, LATENT = replace(PAPER, cross=True), LatentSizes(5, 3, 1, 2)
REFUSED = [
    *((name, lambda change=change: shapes_of(
        ModelConfig(**dict(kind="decoder", vocab_size=13, d_model=12, n_layers=2, n_heads=3,
            max_len=9) | change))) for name, change in (
        ("ffn", {"ffn": "none"}),
        ("attention", {"attention": "disentangled", "positions": "disentangled"}),
        ("source_vocab_size", {"kind": "encoder-decoder", "source_vocab_size": 9}))),
    *((name, lambda change=change: replace(PAPER, **change)) for name, change in [
        ("d_model", {"d_model": 0}), ("n_layers", {"n_layers": 1.5}),
        ("n_kv_heads", {"n_kv_heads": 2}), ("d_ff", {"d_ff": -1}),
        ("vocab_size", {"vocab_size": True}), ("vectors", {"vectors": -5}),
        ("vectors", {"vectors": 1.5}),
        ("gated", {"gated": 2}), ("cross", {"cross": 3}), ("tied", {"tied": 1}),
        ("plain_blocks", {"plain_blocks": None}), ("tied", {"tied": True, "embedding": False}),
        ("cross", {"cross": True, "latent": LATENT}),
        *((name, {"experts": sizes}) for name,
            sizes in (("experts", [4, 1, 0, 0, 0]), ("n_experts", ExpertSizes(-4, 1)),
                ("n_used", ExpertSizes(2, 5)), ("n_used", ExpertSizes(4, 0)),
                ("n_used", ExpertSizes(4, 1.5)),
                                                         ("n_shared", ExpertSizes(4, 1, -1)),
                                                         ("dense_layers", ExpertSizes(4, 1, 0, 3,
                                                         5)), ("dense_d_ff", ExpertSizes(4, 1, 0,
                                                         1)))),
        *((name, {"latent": sizes}) for name,
            sizes in (("latent", [5, 3, 1, 2]), ("query_rank", LatentSizes(-5, 3, 1, 2)),
                ("kv_rank", LatentSizes(5, 0, 1, 2)), ("rotated", LatentSizes(5, 3, 3, 2)),
                                                        ("rotated", LatentSizes(5, 3, -1, 2)),
                                                        ("value_dim", LatentSizes(5, 3, 1, 0))))]),
    ("S", lambda: forward_flops(PAPER, 1, 5, 4)), ("B", lambda: forward_flops(PAPER, 0, 5)),
    *(("cross", call) for call in (lambda: forward_flops(TWO, 1, 2, 4),
        lambda: forward_flops(TWO, 1, 4, causal=True), lambda: cache_bytes(TWO, 1, 4),
        lambda: decode_cost(TWO, 1, 4), lambda: prefill_cost(TWO, 1, 4),
                                   lambda: costs(TWO, 1, 4, 2, 1, H100))),
    *((name, lambda call=call, name=name, value=value: call(replace(PAPER, **{name: value}), 1, 4))
      for call in (activation_bytes, training_memory, memory_at_loss, peak_memory)
      for name, value in (NOT_PLAIN | {"head": False}).items()),
    *((name, lambda name=name: training_flops(replace(PAPER, **{name: NOT_PLAIN[name]}),
                                              1, 4, True))
      for name in NOT_PLAIN),
    *((".*", lambda name=name: peak_memory(NAMED_SHAPES[name], 1, 4))
        for name in ("BERT base", "T5 base", "Mixtral 8x7B", "DeepSeek-V3")),
        ("recompute", lambda: activation_bytes(PAPER, 1, 4, True, True)),
    *(("machine", lambda wrong=wrong, call=call: call(wrong))
        for wrong in (Machine(0, 1), Machine(1, -1), Machine(float("nan"), 1),
            Machine(1, float("nan")))
      for call in (crossing_batch, lambda machine: seconds(machine, 1, 1))),
      (".*width", lambda: crossing_batch(H100, -1)),
      (".*repeats", lambda: measure_machine(repeats=0))]


@pytest.mark.parametrize("name, call", REFUSED)
def test_what_cannot_be_is_refused_by_name(name, call): refuses(f"^{name}:", call)


# --- the calculator -------------------------------------------------------------------------------

SHAPES = [shape for shape in NAMED_SHAPES.values() if not shape.cross] + [PAPER, MIXED,
        replace(PAPER, gated=False, rotary=False, layer_norm=True, tied=True, vectors=5),
        replace(PAPER, head=False),
          replace(PAPER, plain_blocks=False),
        replace(PAPER, n_kv_heads=3, experts=ExpertSizes(4, 1))]
SETTINGS = [(1, 1, 2, 1), (1, 8192, 2, 1), (16, 131_072, 1, 8), (1024, 2048, 4, 16_384),
            (3, 7, 4, 5)]
CALLS = [(dataclasses.asdict(shape), *setting, list(H100)) for shape in SHAPES
         for setting in SETTINGS]


def same_costs(found: list[dict]) -> None:
    wanted = [costs(shape, *setting, H100) for shape in SHAPES for setting in SETTINGS]
    assert len(found) == len(SHAPES) * len(SETTINGS) > 50
    for a, b in zip(found, wanted):
        assert (a.keys() == b.keys() and {n for n in a if a[n] is None}
                == {n for n in b if b[n] is None})
        assert ({n: x for n, x in a.items() if x is not None}
                == pytest.approx({n: x for n, x in b.items() if x is not None}, rel=1e-9))


def in_node(tmp_path, program: str, given: list):
    "What a program gives that may use everything the calculator's script exports."
    if shutil.which("node") is None: pytest.skip("needs node")
    (tmp_path / "costs.mjs").write_text((ASSETS / "model_costs.js").read_text())
    (tmp_path / "run.mjs").write_text(
        'import * as script from "./costs.mjs"; import fs from "fs"; const given = '
        f'JSON.parse(fs.readFileSync(0)); console.log(JSON.stringify({program}));')
    return json.loads(subprocess.run(["node", str(tmp_path / "run.mjs")], input=json.dumps(given),
                                     capture_output=True, text=True, check=True).stdout)


def test_the_script_computes_the_same(tmp_path):
    same_costs(in_node(tmp_path, "given.map(call => script.costs(...call))", CALLS))


@pytest.mark.browser
def test_the_calculator_computes_the_same(browser):
    "Every number of `costs`, in Chromium, over a grid of shapes and settings."
    with server(Path(str(ASSETS))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{httpd.server_port}/model_costs.js")
        found = page.evaluate(
            "async calls => { const { costs } = await import('/model_costs.js'); return "
            "calls.map(call => costs(...call)); }", CALLS)
        page.close()
        httpd.shutdown()
    same_costs(found)


def test_the_script_refuses_what_no_model_has(tmp_path):
    "As the class of shapes does."
    deep, llama = (dataclasses.asdict(NAMED_SHAPES[name]) for name in ("DeepSeek-V3", "Llama 3 8B"))
    given = [deep, llama, llama | {"n_layers": 1}, deep | {"n_layers": 2}, deep | {"head_dim": 63},
        llama | {"n_kv_heads": 12}]
    made = [fields | {"experts": fields["experts"] and ExpertSizes(*fields["experts"]),
        "latent": fields["latent"] and LatentSizes(*fields["latent"])} for fields in given]
    assert [bool(sentence)
        for sentence in in_node(tmp_path, "given.map(script.fault)",
            given)] == [False] * 3 + [True] * 3
    for sizes in made[:3]: ModelShape(**sizes)
    for sizes in made[3:]: refuses("", ModelShape, **sizes)


NUMBERS = [(0, "0 B"), (.4, "0.4 B"), (2e-4, "0.0002 B"), (12, "12 B"), (999, "999 B"),
           (999.6, "1 kB"), (1000, "1 kB"), (999_600, "1 MB"), (123_456, "123 kB"),
           (1.5e15, "1.5 PB"), (3e18, "3,000 PB"), (None, "–")]


def test_amounts_have_three_digits_and_a_prefix(tmp_path):
    assert [amount(x, "B") for x, _ in NUMBERS] == [said for _, said in NUMBERS]
    assert (amount(2.5e6, "s", "n,µ,m,") == "2.5 ms" and amount(3e12, "s", "n,µ,m,") == "3,000 s"
            and amount(8.03e9, "", ",thousand,million,billion") == "8.03 billion")
    assert (in_node(tmp_path, "given.map(x => script.amount(x, 'B'))", [x for x, _ in NUMBERS])
            == [said for _, said in NUMBERS])


def test_numbers_of_the_calculator():
    found = costs(replace(PAPER, vectors=4), 2, 3, 2, 5, Machine(7, 11))
    kept = 6 * (2 * 97 + 3 * 6 + 7 + 2) + 2 * 3 * 2
    step = 2 * 2 * (594 + 2 * 3 * 3 * 2 * 2), 2 * 594 + 2 * 8 * 2 * 3
    assert ({n: found[n] for n in ("total", "active", "N")}
            == {"total": 640, "active": 640, "N": 594})
    assert found["training operations"] == 3 * (2 * 6 * 594 + 4 * 2 * 2 * 3 * 2 * 9)
    assert (found["training seconds"] == found["training operations"] / 7 / 5 and found["state"]
            == 16 * 640 / 5 and found["weights"] == 2 * 640 / 5)
    assert (found["kept"] == 2 * kept / 5 and found["cache"] == 2 * 8 * 6 / 5 and found["intensity"]
            == step[0] / step[1])
    assert (found["decode seconds"] == max(step[0] / 7, step[1] / 11) / 5
            and found["tokens a second"] == 2 / found["decode seconds"])


def test_the_still_picture_has_the_numbers():
    fields = [dataclasses.asdict(NAMED_SHAPES[name]) for name in ("Llama 3 8B", "DeepSeek-V3")]
    script = (ASSETS / "model_costs.js").read_text()
    for chosen, said in ((0, "8.03 billion"), (1, "671 billion")):
        made = ModelCosts("what a model costs", names=["a", "b"], shapes=fields,
                          sizes=fields[chosen], machine=[989., 3.35, 80.])
        assert said in made.picture() and ("–" in made.picture()) == (chosen == 1)
    assert all(label in script for label, *_ in COST_ROWS.values())


def test_matrices_have_names():
    assert ([*weight_matrices(PAPER)] == ["embedding", "query", "key", "value", "output", "up",
                                          "down", "head"])
    assert weight_matrices(replace(PAPER, tied=True))["head"][2:] == (0, 1)
