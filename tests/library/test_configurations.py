"""Weights of other libraries: each family and variant gives equal logits or is refused by name;
none is silently wrong."""
import json

import families
import pytest
import torch
from conftest import sweep
from refusing import refuses
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    MarianConfig,
    MarianForCausalLM,
    MarianModel,
    MarianMTModel,
)

from bench.checkpoint_families import IDS, loud, rope
from tfmlib.alignment import PAD
from tfmlib.checkpoints import (
    FAMILIES,
    IGNORED_KEYS,
    MODEL_CONFIGS,
    check_config,
    config_from_pretrained,
    from_pretrained,
)

pytestmark = pytest.mark.usefixtures("early_families")

ENDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
G = dict(vocab_size=61, n_embd=16, n_layer=2, n_head=4, n_positions=64, **ENDS)
T = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
         num_attention_heads=4, num_key_value_heads=2,
         max_position_embeddings=64, **ENDS)
WIDE, NO_GROUPS = (T | {"head_dim": 4},
                   {name: n for name, n in T.items() if name != "num_key_value_heads"})


TRAINED = dict(factor=4., original_max_position_embeddings=16)
OURS = {  # what our parts implement: equal logits
    "gpt2": ("gpt2", G),
    "gpt2, GELU's other name": ("gpt2", G | dict(activation_function="gelu_pytorch_tanh")),
    "gpt2, upcast": ("gpt2", G | dict(reorder_and_upcast_attn=True)),
    "gpt2, untied": ("gpt2", G | dict(tie_word_embeddings=False)),
    "gpt2, another hidden width, large eps": ("gpt2", G | dict(n_inner=24, layer_norm_epsilon=.01)),
    "llama": ("llama", T), "llama, base": ("llama", T | rope("default") | dict(rope_theta=1e4)),
    "llama, old base": ("llama", T | dict(rope_theta=100.)),
    "llama, large eps": ("llama", T | dict(rms_norm_eps=.01)),
    "llama, tied": ("llama", T | dict(tie_word_embeddings=True)),
    "llama, wide heads": ("llama", T | dict(head_dim=10)),
    "llama, all key heads": ("llama", NO_GROUPS),
    "llama, swish": ("llama", T | dict(hidden_act="swish")),
    "mistral, no window": ("mistral", T | dict(sliding_window=None)),
}
VARIANTS = {  # of these families, and refused: the key that is named
    "gpt2, ReLU": ("gpt2", G | dict(activation_function="relu"), "activation_function"),
    "gpt2, exact GELU": ("gpt2", G | dict(activation_function="gelu"), "activation_function"),
    "gpt2, unscaled": ("gpt2", G | dict(scale_attn_weights=False), "scale_attn_weights"),
    "gpt2, scaled by layer": ("gpt2", G | dict(scale_attn_by_inverse_layer_idx=True),
                              "scale_attn_by_inverse_layer_idx"),
    "gpt2, cross-attention": ("gpt2", G | dict(add_cross_attention=True), "add_cross_attention"),
    "llama, GELU": ("llama", T | dict(hidden_act="gelu"), "hidden_act"),
    "llama, attention bias": ("llama", T | dict(attention_bias=True), "attention_bias"),
    "llama, bias": ("llama", T | dict(mlp_bias=True), "mlp_bias"),
    "llama, both ways": ("llama", T | dict(is_causal=False), "is_causal"),
    "llama, linear": ("llama", T | rope("linear", factor=4.), "rope_parameters"),
    "llama, dynamic": ("llama", T | rope("dynamic", **TRAINED), "rope_parameters"),
    "llama, YaRN": ("llama", T | rope("yarn", **TRAINED), "rope_parameters"),
    "llama 3.1": ("llama", T | rope("llama3", low_freq_factor=1., high_freq_factor=4., **TRAINED),
                  "rope_parameters"),
    "llama, LongRoPE": ("llama", T | rope("longrope", short_factor=[1., 2.], long_factor=[2., 4.],
                                          **TRAINED), "rope_parameters"),
    "llama, half rotated": ("llama", T | rope("proportional", partial_rotary_factor=.5),
                            "rope_parameters"),
    "llama, partly rotated": ("llama", T | dict(partial_rotary_factor=.5), "rope_parameters"),
    "mistral, window": ("mistral", T | dict(sliding_window=8), "sliding_window"),
    "mistral, linear": ("mistral", T | dict(sliding_window=None) | rope("linear", factor=4.),
                        "rope_parameters"),
}
# equal up to the trained length; a key that their Llama does not read
HARMLESS = {"llama, dynamic", "llama, partly rotated"}
FOREIGN = {  # of other families
    "qwen2": T, "qwen3": WIDE, "qwen2_moe": T, "gemma": WIDE, "gemma2": WIDE, "gemma3_text": WIDE,
    "smollm3": T | dict(no_rope_layer_interval=2),
    "granite": T | dict(embedding_multiplier=3., attention_multiplier=.5, logits_scaling=2.,
                        residual_multiplier=.5), "phi": T, "phi3": T,
    "falcon": {name: n for name, n in NO_GROUPS.items() if name != "intermediate_size"},
    "mpt": dict(vocab_size=61, d_model=16, n_heads=4, n_layers=2, max_seq_len=64),
    "bloom": dict(vocab_size=61, hidden_size=16, n_layer=2, n_head=4), "olmo": T, "olmo2": T,
    "stablelm": T, "cohere": T, "cohere2": T,
    "gpt_neo": dict(vocab_size=61, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24,
                    max_position_embeddings=64, attention_types=[[["global", "local"], 1]],
                    window_size=8),
    "gpt_neox": NO_GROUPS, "gptj": G | dict(rotary_dim=2),
    "opt": dict(vocab_size=61, hidden_size=16, ffn_dim=24, num_hidden_layers=2,
                num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=16),
    "starcoder2": T, "mixtral": T | dict(num_local_experts=2), "glm": WIDE, "nemotron": T,
    "seed_oss": WIDE, "arcee": T, "gpt_bigcode": G,
    "openai-gpt": {name: n for name, n in G.items() if name not in ENDS},
    "exaone4": T | dict(sliding_window=8, sliding_window_pattern=2), "diffllama": T,
    "ernie4_5": WIDE, "apertus": T,
    "deepseek_v3": T | dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
                            v_head_dim=4, n_routed_experts=4, n_group=1, topk_group=1,
                            num_experts_per_tok=2, moe_intermediate_size=8),
}


@torch.no_grad()
def apart(theirs, config) -> float:
    "How far our logits are from theirs, whose size is about one."
    return float((from_pretrained(theirs.state_dict(), config)(IDS)
                  - theirs(IDS).logits).abs().max())


@pytest.mark.parametrize("name", OURS)
def test_what_our_parts_implement_has_equal_logits(name):
    theirs = loud(*OURS[name])
    assert apart(theirs, theirs.config.to_dict()) < 1e-4
    assert (apart(theirs, json.loads(theirs.config.to_json_string()))
            < 1e-4), "as it is written to a file"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_refused_by_name(name):
    """And must be: with the plain configuration their logits would be wrong, unless their
    weights do not fit."""
    kind, sizes, key = VARIANTS[name]
    theirs = loud(kind, sizes)
    refuses(f"^{key}: .*expected", from_pretrained, theirs.state_dict(), theirs.config.to_dict())
    try:
        wrong = apart(theirs,
                      loud(kind, G if kind == "gpt2"
                           else T | dict(sliding_window=None)).config.to_dict())
    except ValueError as error: assert str(error).startswith("state: ")
    else: assert wrong > 1e-4 or name in HARMLESS


@pytest.mark.parametrize("kind", sweep(FOREIGN, *[*FOREIGN][::4]))
def test_other_families_are_refused_by_name(kind):
    """By what they are, and by what else their configuration says if they call themselves one of
    ours."""
    theirs = loud(kind, FOREIGN[kind])
    state, config = theirs.state_dict(), theirs.config.to_dict()
    refuses(f"^model_type: got '{kind}', expected one of gpt2, llama, mistral, marian",
        from_pretrained, state, config)
    for ours in FAMILIES:
        refuses(r"^[a-z_\d]+: .*expected", from_pretrained, state,
            config | {"model_type": ours, "architectures": None})


PUBLISHED = {  # as the files of 2019 and 2024 spell it
    "gpt2": """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
        "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
        "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
        "summary_type": "cls_index", "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}""",  # noqa: E501
    "llama": """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256}"""}  # noqa: E501
SCALED = {"factor": 8., "low_freq_factor": 1., "high_freq_factor": 4.,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"}


def test_published_files_give_the_published_shapes():
    assert config_from_pretrained(json.loads(PUBLISHED["gpt2"])) == MODEL_CONFIGS["GPT-2 small"]
    assert config_from_pretrained(json.loads(PUBLISHED["llama"])) == MODEL_CONFIGS["Llama 3 8B"]


@pytest.mark.parametrize("family, change, said", [
    ("llama", {"rope_scaling": SCALED},
     "rope_scaling: {'factor': 8.0.*'llama3'}; expected the type 'default'"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.}}, "rope_scaling: "),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
     "rope_parameters: "),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling: 'linear'; expected a mapping"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
     "rope_parameters: 10000.0; expected 500000.0, as rope_theta"),
    ("llama", {"rope_theta": "1e6"}, "rope_theta: '1e6'; expected a base above 0"),
    ("llama", {"rope_theta": float("nan")}, "rope_theta: nan"),
    ("gpt2", {"rope_theta": 1e4}, "rope_theta: 10000.0; expected no such key"),
    ("llama", {"rms_norm_eps": None}, "rms_norm_eps: None; expected a number above 0"),
    ("gpt2", {"layer_norm_epsilon": 0.}, "layer_norm_epsilon: 0.0"),
    ("gpt2", {"n_layer": "12"}, "n_layer: '12'; expected a whole number"),
    ("llama", {"num_attention_heads": True}, "num_attention_heads: True"),
    ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no'; expected True or False"),
    ("llama", {"architectures": ["LlamaBidirectionalModel"]}, "architectures: "),
    ("llama", {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map: "),
    ("llama", {"quantization_config": {"bits": 4}},
     "quantization_config: {'bits': 4}; expected no such key"),
    ("llama", {"layer_types": ["full_attention"]}, "layer_types: "),
    ("llama", {"final_logit_softcapping": 30.}, "final_logit_softcapping: 30.0"),
    ("llama", {"no_rope_layers": [1, 0]}, "no_rope_layers: "),
    ("llama", {"model_type": None}, "model_type: got None")])
def test_each_key_is_refused_by_its_name(family, change, said):
    refuses(f"^{said}", config_from_pretrained, json.loads(PUBLISHED[family]) | change)


@pytest.mark.parametrize("config",
                         [None, "llama", [("model_type", "llama")], AutoConfig.for_model("gpt2")])
def test_a_configuration_is_a_mapping(config):
    refuses("^config: .*expected a mapping", from_pretrained, {}, config)


def test_a_key_without_a_value_says_nothing():
    assert (config_from_pretrained(json.loads(PUBLISHED["gpt2"])
                                   | {"something_new": None, "pruned_heads": {}})
            == MODEL_CONFIGS["GPT-2 small"])


def others(value):
    return families.other_values(value) or (["relu"] if value in ("silu", "gelu_new", "gelu")
                                            else [])


# --- Marian ---------------------------------------------------------------------------------------

def from_marian(theirs): return from_pretrained(theirs.state_dict(), theirs.config.to_dict())


X, Y = torch.tensor([[5, 6, 7, 8, 2], [9, 2, PAD, PAD, PAD]]), torch.tensor([[1, 7, 9], [1, 8, 4]])


@torch.no_grad()
def marian_apart(theirs) -> float:
    wanted = theirs(input_ids=X, attention_mask=(X != theirs.config.pad_token_id).long(),
                    decoder_input_ids=Y).logits
    got = from_marian(theirs)(X, Y)[0]
    assert got.dtype == next(theirs.parameters()).dtype
    return float((got - wanted).abs().max())


@pytest.mark.parametrize("kind, most",
                         [(torch.float64, 1e-5), (torch.float32, 1e-4), (torch.bfloat16, .1)])
def test_marian_keeps_the_number_type(kind, most):
    theirs = families.marian(scale_embedding=True, activation_function="swish").to(kind)
    # every digit of the type is in use
    torch.nn.init.normal_(theirs.model.shared.weight, std=.3)
    assert (marian_apart(theirs) < most and torch.equal(from_marian(theirs).source_embedding.weight,
            theirs.model.shared.weight))


def test_marian_of_mixed_number_types_is_refused():
    theirs = families.marian()
    theirs.model.encoder.layers[0].fc1.double()
    refuses(r"^model.encoder.layers.0.fc1.weight: torch.float64; expected torch.float32, as ",
        from_marian, theirs)


@pytest.mark.parametrize("change, said", [
    ({"activation_function": "gelu_new"},
     "activation_function: 'gelu_new'; expected 'gelu' or 'relu'"),
    ({"activation_function": "tanh"}, "activation_function: 'tanh'"),
    ({"normalize_before": True}, "normalize_before: True; expected False"),
    ({"static_position_embeddings": False}, "static_position_embeddings"),
    ({"add_final_layer_norm": True}, "add_final_layer_norm"),
    ({"normalize_embedding": True}, "normalize_embedding"),
    ({"share_encoder_decoder_embeddings": False},
     "share_encoder_decoder_embeddings: False; expected True"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"scale_embedding": 2.}, "scale_embedding: 2.0"),
    ({"decoder_vocab_size": 41}, "decoder_vocab_size: 41; expected None or 40"),
    ({"d_model": "12"}, "d_model: '12'; expected a whole number"),
    ({"a_new_key": 1}, "a_new_key: 1; expected no such key")])
def test_marian_refuses_each_key_by_its_name(change, said):
    theirs = families.marian()
    vars(theirs.config).update(change)
    refuses(f"^{said}", from_marian, theirs)


@pytest.mark.parametrize("kind", ["bart", "mbart", "pegasus", "t5", "m2m_100", "blenderbot", "fsmt",
                                  "plbart", "bigbird_pegasus"])
def test_marian_refuses_other_families_by_name(kind):
    sizes = (dict(d_ff=24, d_kv=4, num_layers=1, num_heads=4) if kind == "t5"
             else {n: v for n, v in families.MARIAN.items() if n != "vocab_size"}
             | dict(max_position_embeddings=64))
    if kind == "fsmt": sizes |= dict(langs=["de", "en"], src_vocab_size=40, tgt_vocab_size=40)
    theirs = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, vocab_size=40,
            **{n: v for n, v in sizes.items() if n != "vocab_size"}))
    refuses(f"^model_type: got '{kind}', expected one of gpt2, llama, mistral, marian", from_marian,
        theirs)
    theirs.config.model_type = "marian"
    refuses(r"^[a-z_\d]+: .*expected", from_marian, theirs)


@pytest.mark.parametrize("name, said",
                         [("model.encoder.embed_positions.weight", "those that our part computes"),
                          ("model.decoder.embed_tokens.weight", "those of model.shared.weight"),
                          ("lm_head.weight", "those of model.shared.weight")])
def test_marian_whose_copies_differ_is_refused(name, said):
    """Tables that the configuration calls equal, and a code of positions that is not the one it
    should be."""
    theirs = families.marian()
    module = theirs.get_submodule(name.removesuffix(".weight"))
    module.weight = torch.nn.Parameter(module.weight.detach() + .1)
    refuses(f"^{name}: other numbers; expected {said}", from_marian, theirs)


def test_marian_without_scores_or_encoder_is_refused_by_name():
    refuses("^state: final_logits_bias, lm_head.weight, model.decoder", from_marian,
        families.marian(MarianModel))
    refuses("^is_encoder_decoder: False", from_marian, families.marian(MarianForCausalLM))


def test_no_key_of_marian_that_we_ignore_changes_a_score():
    first, equal = families.marian(), set()
    config = first.config.to_dict()
    for key, value in [(key, value) for key, was in config.items() for value in others(was)]:
        try:
            changed = MarianMTModel(MarianConfig(**config | {key: value})).eval()
            changed.load_state_dict(first.state_dict())
        except Exception: continue         # noqa: S112 — they refuse it, or its shapes are others
        changed.config.return_dict = True
        try: assert marian_apart(changed) < 1e-4, (key, value)
        except ValueError: continue
        equal.add(key)
    assert {"scale_embedding", "dropout", "encoder_layerdrop", "activation_function"} <= equal


def test_the_tables_of_keys_do_not_overlap():
    for family in FAMILIES.values():
        assert not (IGNORED_KEYS - {"pad_token_id"}) & {*family.fields, *family.values,
                *family.read_keys}
    refuses("^new: 3; expected no such key", check_config, {"new": 3, "dropout": .1}, {})
