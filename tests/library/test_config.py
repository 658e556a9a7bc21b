"""One description of every model: what it refuses, what it builds, and what a call costs besides
arithmetic."""
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import sweep
from refusing import refuses
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MixtralConfig, Qwen3Config

from bench.checkpoint_families import CASES, loud
from tfmlib.alignment import shift_right
from tfmlib.checkpoints import (
    FFNS,
    MODEL_CONFIGS,
    POSITIONS,
    ModelConfig,
    Part,
    build,
    count_parameters,
    load_model,
    save_model,
    to_pretrained,
)
from tfmlib.positions import (
    DynamicNTK,
    Llama3Scaling,
    PositionalAttention,
    PositionInterpolation,
    RotaryEmbedding,
    SinusoidalEmbedding,
    YaRN,
)
from tfmlib.workbench import own_tensors

pytestmark = pytest.mark.usefixtures("early_families")

BOTH = MODEL_CONFIGS["base"].sized(14, 8, 2, 2, source_vocab_size=11, d_ff=12, dropout=0.)
ONE = MODEL_CONFIGS["toy Llama"].sized(23, 16, 2, 4, 12, n_kv_heads=2)
X, Y = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[4, 5, 2], [6, 2, 0]])


def run(model):
    "Logits, or an encoder's vectors, for two short sequences."
    if model.config.kind == "encoder-decoder": return model(X, shift_right(Y))[0]
    return model(X)[0] if model.config.kind == "encoder" else model(X)


# --- parts ----------------------------------------------------------------------------------------

def test_a_tensor_without_a_name_there_is_not_dropped():
    model = build(ONE)
    model.stack.scale = torch.nn.Parameter(torch.ones(1))
    refuses("^family: llama, whose models differ from this one in stack.scale", to_pretrained,
        model, "llama")


def test_a_part_may_depend_on_its_layer_and_on_options(monkeypatch):
    "Every second block without feed-forward layer, as an option says."
    monkeypatch.setitem(FFNS, "sparse",
                        Part(lambda config, layer: None if layer % config.option("every")
                             else FFNS["relu"].build(config, layer), {"every": 2}))
    for options, expected in (({}, [True, False, True]), ({"every": 3}, [True, False, False])):
        model = build(replace(ONE, n_layers=3, ffn="sparse", options=options))
        assert [hasattr(block, "feed_forward") for block in model.stack.blocks] == expected
    refuses(r"^options\['every'\]: 2.0; expected of type int", replace, ONE, ffn="sparse",
        options={"every": 2.})
    refuses(r"^options\['every'\]: 2; expected one of none", replace, ONE, options={"every": 2})


# --- what a configuration refuses, and what it keeps ----------------------------------------------

def test_choices_are_named_once():
    with pytest.raises(ValueError) as caught: replace(ONE, kind="nothing")
    names = str(caught.value).split("one of ")[1].split(", ")
    assert len(names) == len({*names})


@pytest.mark.parametrize("change, said", [
    ({"kind": "gpt"}, "kind: got 'gpt'"),
    ({"norm_position": "middle"}, "norm_position: got 'middle', expected one of post, pre, "
     ".*'pre, scaled'"),
    ({"attention": "linear"}, "attention: got 'linear'"),
    ({"max_len": 0}, "max_len: 0"), ({"source_vocab_size": 1.5}, "source_vocab_size: 1.5"),
    ({"n_encoder_layers": 0}, "n_encoder_layers: 0"), ({"head_dim": -1}, "head_dim: -1"),
    ({"norm_eps": 0}, "norm_eps: 0"),
    ({"norm_eps": math.nan}, "norm_eps: nan"), ({"embedding_scale": 0.}, "embedding_scale: 0.0"),
    ({"dropout": 1.}, "dropout: 1.0"), ({"dropout": "no"}, "dropout: 'no'"),
    ({"tie_embeddings": 1}, "tie_embeddings: 1"),
    ({"options": {"pads": 1}}, r"options\['pads'\]: 1; expected one of pad, logits_bias"),
    ({"options": {"pad": "0"}}, r"options\['pad'\]: '0'; expected of type int"),
    ({"options": [1]}, "options: list"),
    ({"rope_scaling": {"rule": "cubic"}},
     "rope_scaling: {'rule': 'cubic'}; expected None, or a mapping with a rule of linear"),
    ({"rope_scaling": "linear"}, "rope_scaling: 'linear'"),
    ({"rope_scaling": {"rule": "linear"}},
     "rope_scaling: .*expected the fields of PositionInterpolation: factor"),
    ({"rope_scaling": {"rule": "linear", "factor": .5}}, "factor: 0.5"),
    ({"rope_scaling": {"rule": "linear", "factor": 2., "beta": 1}}, "rope_scaling: ")])
def test_a_configuration_refuses_by_name(change, said):
    refuses(f"^{said}", replace, BOTH, **change)


@pytest.mark.parametrize("config, said", [
    (partial(replace, ONE, source_vocab_size=7), "source_vocab_size: 7, of decoder; expected None"),
    (partial(replace, ONE, n_encoder_layers=1), "n_encoder_layers: 1, of decoder"),
    (lambda: build(replace(ONE, max_len=None)), "max_len: None"),
    (lambda: build(replace(BOTH, positions="learned")), "max_len: None"),
    (lambda: build(replace(ONE, positions="learned, offset")),
     "positions: 'learned, offset'; expected a kind with an option pad"),
    (lambda: run(build(replace(BOTH, max_len=3))), "x: 4 tokens; expected at most 3"),
    (lambda: count_parameters(replace(BOTH, positions="sines first")),
     "positions: got 'sines first'")])
def test_what_does_not_go_together_is_refused_by_name(config, said): refuses(f"^{said}", config)


def test_a_configuration_is_a_value_and_can_be_stored():
    scaled = replace(ONE, rope_scaling={"rule": "llama3", "factor": 4., "original_max_len": 8})
    for config in (BOTH, ONE, scaled, replace(BOTH, options={"pad": 3, "logits_bias": True})):
        assert (ModelConfig(**json.loads(json.dumps(asdict(config)))) == config and hash(config)
                == hash(replace(config)))


@pytest.mark.parametrize("config",
                         [BOTH, replace(BOTH, source_vocab_size=None, tie_embeddings=False,
                                        options={"logits_bias": True}),
                          replace(ONE, kind="encoder", positions="relative"), ONE],
                         ids=["two tables", "untied", "encoder", "decoder"])
def test_each_kind_is_written_and_read(tmp_path, config):
    model = build(config, seed=3).eval()
    save_model(tmp_path / "m.safetensors", model, made="here")
    back = load_model(tmp_path / "m.safetensors")
    assert (back.config == config and back.facts["made"] == "here"
            and torch.equal(run(back), run(model)))


ELSEWHERE = {"experts": dict(ffn="experts", options={"n_experts": 3}),
             "recurrent": dict(attention="hybrid", options={"mixers": ("mamba", "attention")}),
             "adapted": dict(kind="adapted decoder", attention="adapted"),
             "hybrid": dict(kind="hybrid decoder", attention="hybrid"),
             "gated": dict(attention="hybrid", options={"mixers": ("gated attention", "mamba2"),
                     "qk_norm": "head"}), "latent": dict(attention="latent", head_dim=6,
                             positions="partial rotary", options={"kv_rank": 3, "rotary_dim": 2}),
             "bert": dict(kind="bert", positions="learned"), "no prefix": dict(ffn="gated gelu")}
FRESH = """
import importlib, json, pkgutil, sys
from tfmlib.checkpoints import FAMILIES, config_from_pretrained, load_model
from tfmlib.checkpoints import LATER, MODELS, REGISTRIES
what, paths = sys.argv[1], sys.argv[2:-1]
def fresh(): assert not [n for n in sys.modules if n.removeprefix('tfmlib.') in LATER[-2:]]
fresh()
if what == 'folder':
    from tfmlib.checkpoints import folder_size
    fresh()
    try: folder_size(paths[0])
    except ValueError as error: assert 'has no model.safetensors' in str(error), error
for path in paths[what == 'folder':]: load_model(path)
config_from_pretrained(json.loads(sys.argv[-1]))
def rows(): return {name: {key: id(row) for key, row in r.items()} for name, r in {**REGISTRIES, 'models': MODELS, 'families': FAMILIES}.items()}
before = rows()
import tfmlib
for module in pkgutil.walk_packages(tfmlib.__path__, 'tfmlib.'):
    try: importlib.import_module(module.name)
    except ImportError: pass
assert rows() == before, 'LATER lacks a module that adds rows'
"""  # noqa: E501


@pytest.mark.parametrize("what", sweep(["model", "folder"], "model"))
def test_what_a_configuration_names_is_found_in_a_fresh_process(tmp_path, what):
    """Whatever was imported: models with the parts of later chapters are read, and so are all
    families and folders."""
    paths = []
    if what == "folder":
        paths.append(str(tmp_path))
        MixtralConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                      num_attention_heads=2, num_key_value_heads=2,
                      architectures=["MixtralForCausalLM"]).save_pretrained(tmp_path)
    for name, parts in ELSEWHERE.items():
        model = build(replace(ONE, **parts), seed=3)
        paths.append(str(tmp_path / f"{name}.safetensors"))
        save_model(paths[-1], model)
        assert load_model(paths[-1]).config == model.config
    qwen = json.dumps(Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=24,
                                  num_hidden_layers=2, num_attention_heads=2,
                                  num_key_value_heads=2).to_dict())
    done = subprocess.run([sys.executable, "-c", FRESH, what, *paths, qwen], capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr[-1500:]


FIRST = """
import os, random, sys, traceback
import tfmlib as tfm
from tfmlib.checkpoints import folders
assert 'tfmlib.checkpoints.families' not in sys.modules
paths = sys.argv[1:]
for path in paths:  # each is the first that its process loads
    if not (child := os.fork()):
        try: tfm.load(path)
        except BaseException: traceback.print_exc(); os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path
random.Random(0).shuffle(paths)
for path in paths: tfm.load(path)
"""
SOME = ("llama", "llama 3.1", "llama, YaRN", "llama, LongRoPE", "mistral", "qwen3", "phi3")


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(CASES), marks=pytest.mark.whole)],
                         ids=len)
def test_a_folder_is_read_whatever_was_loaded_before(tmp_path, names):
    """Llama 3.1 and Mistral were refused until something had imported the rows in depth, since
    the path has a row of the same name."""
    for n, name in enumerate(names): loud(*CASES[name]).save_pretrained(tmp_path / str(n))
    done = subprocess.run(
        [sys.executable, "-c", FIRST, *(str(tmp_path / str(n)) for n in range(len(names)))],
        capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr[-1500:]


@pytest.mark.parametrize("made", [lambda f: "m.st", lambda f: str(f / "m"), lambda f: f / "m",
                                  lambda f: Path("m"), lambda f: "./m.safetensors",
                                  lambda f: "some/m"])
def test_a_model_is_read_where_it_was_written(tmp_path, monkeypatch, made):
    monkeypatch.chdir(tmp_path)
    save_model(made(tmp_path), build(ONE, seed=3))
    assert [p.is_file() for p in tmp_path.rglob("m*")] == [True]
    assert torch.equal(run(load_model(made(tmp_path))), run(build(ONE, seed=3).eval()))


def test_a_name_alone_is_a_model_of_the_book(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("path: 'prose'; expected a file with an ending, such as 'prose.safetensors'",
        save_model, "prose", build(ONE))
    assert load_model("prose").config.vocab_size > 0 and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_rule_of_scaling_is_read_or_refused(positions):
    "Learned positions and ALiBi ignored it."
    rule = {"rule": "linear", "factor": 4.}
    given = dict(positions=positions, max_len=40, attention="adapted" if positions
                 == "layered rotary" else ONE.attention)
    try: model = build(replace(ONE, rope_scaling=rule, **given))
    except ValueError as error:
        assert (str(error) == f"rope_scaling: {rule}; expected None: the positions are "
                              f"{positions!r}, without a rotation")
        return
    ids = torch.arange(20)[None]
    assert not torch.equal(model(ids), build(replace(ONE, **given))(ids))


# --- what is built --------------------------------------------------------------------------------

OWN = "none", "sinusoidal", "learned", "relative", "alibi", "rotary"     # of chapter 6
SPARE = {"max_len": 9, "d_model": 12, "n_heads": 2, "n_layers": 2, "vocab_size": 14}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("positions", OWN)
@pytest.mark.parametrize("norm_position, norm, ffn, more",
                         [("post", "layernorm", "relu", {}),
                          ("pre", "rmsnorm", "swiglu", dict(n_kv_heads=1, head_dim=4)),
                          ("pre", "layernorm", "none", dict(attention_bias=True))])
def test_all_parts_go_together(kind, positions, norm_position, norm, ffn, more):
    """Each builds, has as many parameters as the formula says, hides the future where it must,
    and knows positions where it should."""
    untied = (dict(tie_embeddings=False, source_vocab_size=11, n_encoder_layers=1,
                   options={"encoder_heads": 3}) if kind == "encoder-decoder" else {})
    model = build(ModelConfig(kind, **SPARE, positions=positions, norm_position=norm_position,
                              norm=norm, ffn=ffn, **more | untied)).double().eval()
    assert (sum(p.numel() for p in model.parameters())
            == sum(count_parameters(model.config).values()))
    for p in model.parameters(): torch.nn.init.normal_(p, std=.3)
    out, changed = run(model), X.clone()
    changed[0, 1] = 9
    moved = {"encoder": lambda: model(changed)[0], "decoder": lambda: model(changed),
             "encoder-decoder": lambda: model(X, shift_right(torch.where(Y == 5, 9, Y)))[0]}[kind]()
    apart = (out - moved)[0].detach().abs().amax(-1)
    assert (apart[0] > 1e-9) == (kind == "encoder") and apart[2] > 1e-9
    if kind == "encoder":
        assert (torch.allclose(out[0, [0, 2, 1, 3]], model(X[:1, [0, 2, 1, 3]])[0][0])
                == (positions == "none"))


def test_a_seed_is_a_model_of_any_kind_and_leaves_the_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for config in (BOTH, replace(ONE, kind="encoder")):
        a, b, c = (own_tensors(build(config, seed=seed)) for seed in (3, 3, 4))
        assert (all(torch.equal(t, b[name]) for name, t in a.items())
                and any(not torch.equal(t, c[name]) for name, t in a.items()))
    assert torch.equal(torch.get_rng_state(), before)


# --- tables of positions --------------------------------------------------------------------------

RULES = [None, PositionInterpolation(3.), DynamicNTK(2., 16), Llama3Scaling(4., 16), YaRN(4., 16)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rows_of_the_table_are_what_is_computed(rule):
    """For every number type in turn, for lengths that rise and fall, bit for bit; an untouched
    model of 64 bits gets 64 bits."""
    rope = RotaryEmbedding(8, **({"scaling": rule} if rule else {}))
    for length in (5, 40, 200, 17, 40):
        positions = torch.randint(length, (2, 7), generator=torch.Generator().manual_seed(length))
        for kind in (torch.float32, torch.float64, torch.bfloat16):
            t = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(0)).to(kind)
            assert torch.equal(rope.rotate_known(t, positions, length),
                               rope.rotate(t, positions, length))


def test_tables_are_kept_grow_and_do_not_follow_casts():
    model, wide, words = build(ONE).eval(), build(ONE).double().eval(), SinusoidalEmbedding(6)
    model(X)
    torch.testing.assert_close(model.double()(X), wide(X), rtol=0, atol=1e-15)
    assert not any("table" in name for name in model.state_dict())
    for x in (torch.randn(1, T, 6, dtype=kind) for T in (3, 100, 5)
        for kind in (torch.float32, torch.float64)):
        assert torch.equal(words.add(x), words.add(x, torch.arange(x.shape[1])))


@pytest.mark.parametrize("positions, length",
                         [(torch.tensor([0, 1, 90]), 64), (torch.tensor([0, -1, 2]), 3)])
def test_a_broken_promise_does_not_pass_unseen(positions, length):
    with pytest.raises(IndexError):
        PositionalAttention(RotaryEmbedding(4))(*torch.randn(3, 1, 2, 3, 4), positions=positions,
                                                length=length)


# --- what a call asks of the host -----------------------------------------------------------------

class Counted(TorchDispatchMode):
    "Counts what makes the host wait for a tensor's value, and angles that are computed in 64 bits."
    WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "item"}

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out, name = op(*args, **kwargs or {}), op.overloadpacket.__name__
        if name in self.WAITS: self.found["waits"] += 1
        if name in ("cos", "sin") and out.dtype == torch.float64: self.found["angles"] += 1
        return out


def counted(config, *given) -> Counter:
    "What a second call counts."
    model = build(config).eval()
    if config.kind == "encoder-decoder": given = X, shift_right(Y)
    if config.kind == "encoder": given = (X,)
    model(*given)
    with Counted() as counter: model(*given)
    return counter.found


REAL = torch.tensor([[True] * 4, [False, True, True, True]])


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("positions", sweep(OWN, "sinusoidal", "rotary"))
@pytest.mark.parametrize("given", [(X,), (X, REAL), (X, None, torch.arange(3, 7))],
                         ids=["plain", "padded", "positions"])
def test_the_host_waits_as_often_for_eight_layers_as_for_one(kind, positions, given):
    if kind != "decoder" and len(given) > 1: return
    one, eight = (counted(ModelConfig(kind, **SPARE | {"n_layers": layers}, positions=positions,
                                      norm_position="pre"), *given) for layers in (1, 8))
    assert one["waits"] == eight["waits"] <= 8
    assert (one["angles"] == eight["angles"]
            == (2 if positions == "sinusoidal" and len(given) > 1 else 0))
