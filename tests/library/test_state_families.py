"""Published models with recurrent layers: Mamba, Mamba-2 and Qwen3-Next have the logits and
tokens of `transformers`, with caches and without, or are refused by name."""
import copy
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import families
import pytest
import torch
from conftest import sweep
from test_checkpoints import FREE, changed_logits, others
from transformers import AutoModelForCausalLM, MambaModel

from bench.checkpoint_families import CASES, IDS, REAL, apart, loud, ours_of
from bench.expert_cases import EXPERT_CASES, expert_model_of, published_state
from bench.state_cases import STATE_CASES
from tfmlib.checkpoints import (
    FAMILIES,
    IGNORED_KEYS,
    MODERN,
    ModelConfig,
    build,
    config_from_pretrained,
    export_folder,
    from_pretrained,
    load,
    load_model,
    save_model,
    to_pretrained,
)
from tfmlib.decoders import GENERATORS, SamplingConfig, generate
from tfmlib.kv_cache import CachedCausalLM, KVCache
from tfmlib.linear_and_state_space import CachedHybridLM, Mamba2
from tfmlib.linear_and_state_space.families import STATE_CONFIGS
from tfmlib.linear_and_state_space.mixers import RecurrentState, ShortConvolution
from tfmlib.mixture_of_experts.families import EXPERT_CONFIGS
from tfmlib.workbench import own_tensors

pytestmark = pytest.mark.usefixtures("one_thread")
NEXT_CASES = {name: case for name, case in EXPERT_CASES.items() if case[0] == "qwen3_next"}
ALL_CASES = {**STATE_CASES, **NEXT_CASES}


def pair(name: str):
    "A model of `transformers`, and ours with its weights."
    kind, sizes = ALL_CASES[name]
    theirs = loud(kind, sizes)
    return theirs, (expert_model_of if kind == "qwen3_next" else ours_of)(theirs)


def rounding(model, ids, real) -> float:
    "How far the logits of tokens move between 32 and 64 bits: sums over states are long."
    seen = slice(None) if real is None else real
    exact = copy.deepcopy(model).double()(ids, padding_mask=real)
    return float((model(ids, padding_mask=real) - exact)[seen].abs().max())


@torch.no_grad()
@pytest.mark.parametrize("name", sweep(ALL_CASES, "mamba", "mamba2", "qwen3_next"))
def test_logits_and_tokens_are_those_of_transformers(name):
    "With and without padding, in one pass, in chunks and token by token."
    theirs, ours = pair(name)
    kind, _ = ALL_CASES[name]
    for length, real in ((33, None), (33, REAL), (11, None), (1, None)):
        gap, size = apart(ours, theirs, IDS[:, :length], real)
        limit = 1e-5 * max(10, size)
        if gap >= limit: limit = 2 * rounding(ours, IDS[:, :length], real)
        assert gap < limit < 3e-5 * max(10, size) and size > 1, (length, gap, size)
    ids, real = IDS[:, 11:24], REAL[:, 11:24]
    for mask in (real, torch.ones_like(real)):
        greedy = theirs.generate(ids, attention_mask=mask.long(), max_new_tokens=6, do_sample=False,
                                 pad_token_id=0, use_cache=False)
        assert torch.equal(generate(ours, ids, 6, padding_mask=mask), greedy)
        assert torch.equal(GENERATORS["cached"](ours, ids, 6, padding_mask=mask), greedy)
    # with their states
    assert torch.equal(theirs.generate(ids, attention_mask=mask.long(), max_new_tokens=6,
                                       do_sample=False, pad_token_id=0), greedy)
    whole, cached = ours(IDS, REAL), CachedHybridLM(ours)
    for cuts in ([1] * 33, [7, 20, 6]):
        cache = cached.new_cache()
        parts = torch.cat([cached(a, cache, b)
                           for a, b in zip(IDS.split(cuts, 1), REAL.split(cuts, 1))], 1)
        assert float((parts - whole)[REAL].abs().max()) < 1e-4 * float(whole.abs().max())
    state, file = to_pretrained(ours, kind), published_state(theirs)
    assert (state.keys() - file.keys() <= {"lm_head.weight"}
            and all(torch.equal(state[key], t) for key, t in file.items()))


def test_generation_keeps_states_and_caches(monkeypatch):
    "`write` and the generator with caches do not fall back to reading the whole text again."
    _, ours = pair("qwen3_next")
    kinds = [type(layer) for layer in CachedHybridLM(ours).new_cache().layers]
    assert kinds == [RecurrentState, RecurrentState, KVCache]
    seen, forward = [], ShortConvolution.forward
    monkeypatch.setattr(ShortConvolution, "forward",
                        lambda self, x, before=None: seen.append(x.shape[1])
                        or forward(self, x, before))
    GENERATORS["cached"](ours, IDS[:, :13], 4, SamplingConfig(temperature=.8), seed=3)
    assert {*seen} == {13, 1}
    with pytest.raises(ValueError,
                       match="^model: with a layer GatedDeltaNet; expected attention in each layer"):  # noqa: E501
        CachedCausalLM(ours).new_cache()
    with pytest.raises(ValueError, match="^n: 1; expected 0: a state cannot forget"):
        RecurrentState().drop(1)
    # without a cache: whole texts, equal tokens
    for mixers in (("softmax",), ("gated delta", "softmax")):
        model = build(ModelConfig("decoder", 61, 16, 2, 2, 40, attention="hybrid",
                                  options={"mixers": mixers}, **MODERN)).eval()
        assert torch.equal(GENERATORS["cached"](model, IDS[:, :5], 4),
                           generate(model, IDS[:, :5], 4))


@torch.no_grad()
@pytest.mark.parametrize("name", ["mamba", "mamba2, tied, one group", "qwen3_next"])
def test_folders_are_read_and_written(name, tmp_path):
    theirs, _ = pair(name)
    theirs.save_pretrained(tmp_path / "theirs")
    made = load(tmp_path / "theirs", tokenizer=False)
    gap, size = apart(made.model, theirs)
    assert gap < 1e-5 * max(10, size)
    export_folder(tmp_path / "ours", made)
    eager = (dict(attn_implementation="eager", experts_implementation="eager") if name
             == "qwen3_next" else {})
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", **eager).eval()
    assert torch.equal(again(IDS, use_cache=False).logits, theirs(IDS, use_cache=False).logits)
    save_model(tmp_path / "m.safetensors", made.model)
    assert torch.equal(load_model(tmp_path / "m.safetensors")(IDS), made.model(IDS))


FRESH = """
import sys, torch
from tfmlib.checkpoints import load, load_model
assert not [name for name in sys.modules if name.startswith(('tfmlib.linear', 'tfmlib.mixture'))]
model = load_model(sys.argv[2]) if sys.argv[1] == 'file' else load(sys.argv[2], tokenizer=False).model
with torch.no_grad(): print(float(model(torch.arange(9)[None]).double().sum()))
"""  # noqa: E501


@pytest.mark.parametrize("name, what", [("mamba2", "file"), ("qwen3_next", "folder")])
def test_a_fresh_process_finds_them(name, what, tmp_path):
    "Without an import of the chapters that own their parts."
    theirs, ours = pair(name)
    theirs.save_pretrained(tmp_path)
    save_model(tmp_path / "m.st", ours)
    with torch.no_grad(): wanted = float(ours(torch.arange(9)[None]).double().sum())
    path = tmp_path if what == "folder" else tmp_path / "m.st"
    done = subprocess.run([sys.executable, "-c", FRESH, what, str(path)], capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr[-1500:]
    assert float(done.stdout) == pytest.approx(wanted, abs=1e-2)


def test_a_base_model_is_read(tmp_path):
    theirs = loud(*STATE_CASES["mamba"])
    base = MambaModel(theirs.config).eval()
    base.load_state_dict(theirs.backbone.state_dict())
    base.save_pretrained(tmp_path)
    with torch.no_grad():
        assert (float((load(tmp_path, tokenizer=False).model(IDS)
                       - theirs(IDS, use_cache=False).logits).abs().max()) < 1e-4)


# --- every key is read, derived or refused --------------------------------------------------------

@pytest.mark.parametrize("name", ["mamba", "mamba2", "mamba, no bias", "qwen3_next"])
def test_no_key_is_silently_ignored(name):
    """Each key with another value: refused by its name, or it changes our configuration; then,
    and if it changes nothing, logits are those of `transformers`."""
    theirs, _ = pair(name)
    written, file = (json.loads(theirs.config.to_json_string(use_diff=False)),
                     published_state(theirs))
    # which their class does not read as it writes it
    config = written | ({"time_step_limit": [0., math.inf]} if "time_step_limit" in written else {})
    assert config_from_pretrained(written) == config_from_pretrained(config)
    base, refused, read = config_from_pretrained(config), set(), set()
    for key, value in [(name_, value) for name_, was in config.items() if name_ not in IGNORED_KEYS
                       | FREE | {"model_type"} for value in others(name_, was)]:
        try: made = config_from_pretrained(config | {key: value})
        except ValueError as error:
            assert key in str(error) or str(error).split(":")[0] in config, (key, value, error)
            refused.add(key)
            continue
        if made != base: read.add(key)
        if (wanted := changed_logits(theirs, config | {key: value})) is None: continue
        try: got = from_pretrained(file, config | {key: value})
        except ValueError as error:
            assert (str(error).startswith("state: ") or "expected (" in str(error)
                    or "other numbers" in str(error)), (key, value, error)
        else:
            with torch.no_grad(): gap = float((got(IDS[:1, :20]) - wanted).abs().max())
            assert gap < 2e-5 * max(10, float(wanted.abs().max())), (key, value, gap)
    assert len(read) >= 5 and len(refused) >= 3, (read, refused)
    with pytest.raises(ValueError, match="^mystery: 3; expected no such key"):
        config_from_pretrained(config | {"mystery": 3})
    with pytest.raises(ValueError, match="^quantization_config: "):
        config_from_pretrained(config | {"quantization_config": {"bits": 4}})
    with pytest.raises(ValueError, match="^architectures: "):
        config_from_pretrained(config | {"architectures": ["OtherModel"]})


SPELT = {  # further keys of published files, and what may not be there
    "Mamba 130M": (dict(architectures=["MambaForCausalLM"], d_inner=1536, d_model=768,
                        intermediate_size=1536, n_layer=24, fused_add_norm=True, rms_norm=True,
                        ssm_cfg={}, pad_vocab_size_multiple=8, residual_in_fp32=True,
                        rescale_prenorm_residual=False,
                        time_step_rank=48, time_step_floor=1e-4, time_step_init_scheme="random",
                        time_step_max=.1, time_step_min=.001, time_step_scale=1., use_bias=False,
                        use_conv_bias=True, use_cache=True, hidden_act="silu",
                        torch_dtype="float32"),
                   dict(d_inner=1537, d_model=769, intermediate_size=768, n_layer=23,
                        rms_norm=False, ssm_cfg={"layer": "Mamba2"}, time_step_rank="x", expand=1.5,
                        use_bias=True, hidden_act="relu", conv_kernel=None, state_size="16")),
    "Codestral Mamba 7B": (dict(architectures=["Mamba2ForCausalLM"], chunk_size=256,
                                intermediate_size=8192, norm_before_gate=True, rms_norm=True,
                                time_step_limit=[0., float("inf")], time_step_rank=256,
                                time_step_scale=1.),
                           dict(num_heads=64, head_dim=32, n_groups=3, time_step_limit=[0., .1],
                                intermediate_size=4096)),
    "Qwen3-Next 80B-A3B": (dict(architectures=["Qwen3NextForCausalLM"], attention_bias=False,
                                decoder_sparse_step=1, hidden_act="silu", mlp_only_layers=[],
                                output_router_logits=False, partial_rotary_factor=.25,
                                rope_scaling=None, router_aux_loss_coef=.001,
                                use_sliding_window=False, tie_word_embeddings=False),
                           dict(use_sliding_window=True, full_attention_interval=0,
                                layer_types=["full_attention"], linear_num_key_heads=5,
                                linear_key_head_dim=None, num_experts=0, head_dim=None,
                                hidden_act="gelu", partial_rotary_factor=.005))}


@pytest.mark.parametrize("name", SPELT)
def test_keys_of_published_files_are_known(name):
    published = (STATE_CONFIGS | EXPERT_CONFIGS)[name]
    more, wrong = SPELT[name]
    assert config_from_pretrained(published | more) == config_from_pretrained(published)
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=rf"\b{key}\b"):
            config_from_pretrained(published | more | {key: value})


def test_published_sizes():
    "The first is that of the file; its name rounds it."
    counts = {}
    for name, published in STATE_CONFIGS.items():
        with torch.device("meta"): model = build(config_from_pretrained(published))
        counts[name] = sum(p.numel() for p in own_tensors(model).values())
    assert counts["Mamba 130M"] == 129_135_360
    assert ({name: round(n / 1e9, 2) for name, n in counts.items()}
            == {"Mamba 130M": .13, "Mamba 2.8B": 2.77, "Mamba-2 2.7B": 2.7,
                "Codestral Mamba 7B": 7.29})


def test_the_pattern_of_layers():
    published = EXPERT_CONFIGS["Qwen3-Next 80B-A3B"]
    mixers = config_from_pretrained(published).option("mixers")
    assert mixers == (("gated delta",) * 3 + ("gated attention",)) * 12
    spelt = {"layer_types": [["linear_attention", "full_attention"][(layer + 1) % 4 == 0]
                             for layer in range(48)]}
    bare = {key: value for key, value in published.items() if key != "full_attention_interval"}
    assert (config_from_pretrained(bare | spelt) == config_from_pretrained(bare)
            == config_from_pretrained(published))


# --- what does not fit ----------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_next"])
def test_tensors_that_do_not_fit_are_refused(name):
    theirs, _ = pair(name)
    file, config = published_state(theirs), json.loads(theirs.config.to_json_string())
    some = next(key for key in file if "A_log" in key)
    for wrong in ({key: t for key, t in file.items() if key != some},
                  file | {"extra.weight": torch.zeros(1)}, file | {some: file[some][:1]},
                  file | {some: file[some].half()}):
        with pytest.raises(ValueError, match=rf"^(state: (extra|{some})|{some}: )"):
            from_pretrained(wrong, config)


def test_heads_of_several_tokens_are_set_aside():
    """The published files of Qwen3-Next hold a further layer, which predicts a second token;
    `transformers` does not read it either."""
    theirs, ours = pair("qwen3_next")
    config, file = json.loads(theirs.config.to_json_string()), published_state(theirs)
    extra = {"mtp.fc.weight": torch.zeros(2),
             "mtp.layers.0.mlp.experts.511.up_proj.weight": torch.zeros(3),
             "mtp.pre_fc_norm_hidden.weight": torch.zeros(1),
             "mtp.layers.0.self_attn.q_norm.weight": torch.zeros(1)}
    with torch.no_grad(): assert torch.equal(from_pretrained(file | extra, config)(IDS), ours(IDS))
    with pytest.raises(ValueError, match="^state: mtp.mystery"):
        from_pretrained(file | {"mtp.mystery": torch.zeros(1)}, config)


def test_one_family_is_not_another():
    models = {name: pair(name)[1] for name in ("mamba", "mamba2", "qwen3_next")}
    for kind, model in models.items(): families.of_no_other(kind, model, FAMILIES)
    for kind in ("llama", "gpt2", "gemma2"):
        for family in models:
            with pytest.raises(ValueError, match=f"^family: {family}"):
                to_pretrained(ours_of(loud(*CASES[kind])), family)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_next"])
def test_sixteen_bits(name):
    families.in_sixteen_bits(*ALL_CASES[name], published_state)


# --- the parts ------------------------------------------------------------------------------------

def test_gated_attention_in_a_hybrid_by_hand():
    """Chapter 4's gates around chapter 12's norms: with gates of one half, half of the attention
    without gates."""
    config = ModelConfig("decoder", 61, 16, 1, 4, 40, n_kv_heads=2, attention="hybrid",
                         options={"mixers": ("gated attention",), "qk_norm": "head"},
                         **MODERN | {"attention_bias": True})
    gated, plain = (build(replace(config, options=config.options | {"mixers": (kind,)}),
                          seed=5).double().eval().stack.blocks[0].attention.inner
                    for kind in ("gated attention", "attention"))
    plain.load_state_dict({name: t for name, t in gated.state_dict().items()
                           if "gate_proj" not in name})
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).double()
    for layer in (gated, plain): torch.nn.init.zeros_(layer.o_proj.bias)
    torch.nn.init.zeros_(gated.gate_proj.weight)
    with torch.no_grad():
        torch.testing.assert_close(2 * gated(x)[0], plain(x)[0])
        torch.nn.init.constant_(gated.gate_proj.bias, 40.)
        torch.testing.assert_close(gated(x)[0], plain(x)[0])


def test_a_joint_convolution_is_one_convolution():
    layer, x = (Mamba2(12, 4, 2, 5, 3).double(),
                torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)).double())
    one = ShortConvolution(32, 4, True).double()
    one.load_state_dict(
        {kind: torch.cat([getattr(getattr(layer.conv, part), kind) for part in "qkv"])
         for kind in ("weight", "bias")})
    for before in (None,
                   torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1)).double()):
        for got, wanted in zip(layer.conv(x, before), one(x, before)):
            torch.testing.assert_close(got, wanted)


def test_recurrent_layers_can_have_heads_of_their_own():
    options = {"mixers": ("gated delta", "attention"), "mixer_heads": 6, "mixer_dim": 5,
               "value_dim": 7, "n_key_heads": 3, "conv_bias": True}
    model = build(ModelConfig("decoder", 61, 16, 2, 4, 40, norm_eps=1e-3, attention="hybrid",
                              options=options, **MODERN))
    mixer, attention = (block.attention.inner for block in model.stack.blocks)
    assert ((mixer.n_heads, mixer.widths, mixer.norm.eps) == (6, (15, 15, 42), 1e-3)
            and mixer.conv.bias is not None and attention.n_heads == 4)
    assert (build(ModelConfig("decoder", 61, 16, 1, 4, 40, norm_eps=1e-3, attention="hybrid",
                              options={"mixers": ("mamba2",), "conv_bias": False},
                              **MODERN)).stack.blocks[0].attention.inner.eps == 1e-3)
