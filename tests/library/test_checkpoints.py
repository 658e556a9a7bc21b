"""Published decoders: every family equals `transformers`, every key is read or refused, folders
are read and written whole or not at all."""
import copy
import dataclasses
import functools
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import families
import pytest
import torch
import transformers
from conftest import sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from bench.checkpoint_families import (
    CASES,
    GEMMA,
    IDS,
    NEO,
    REAL,
    E,
    F,
    G,
    N,
    W,
    apart,
    loud,
    ours_of,
    rope,
)
from tfmlib.checkpoints import (
    FAMILIES,
    IGNORED_KEYS,
    MODEL_CONFIGS,
    GenerationSettings,
    build,
    config_from_pretrained,
    export_folder,
    fill_from,
    folder_size,
    folders,
    from_pretrained,
    load,
    load_model,
    parts,
    read_generation,
    read_safetensors,
    simple_load,
    to_pretrained,
    with_head,
)
from tfmlib.checkpoints.published import PUBLISHED_CONFIGS, PUBLISHERS
from tfmlib.checkpoints.tensor_files import once, read_header, stored_tensors
from tfmlib.checkpoints.tokenizer_files import LoadedTokenizer
from tfmlib.decoders import SamplingConfig, generate
from tfmlib.tokens import train_tokenizer
from tfmlib.workbench import own_tensors, tensor_files

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", sweep(CASES, *list(CASES)[::3]))
def test_logits_and_greedy_tokens_are_those_of_transformers(name):
    kind, sizes = CASES[name]
    theirs = loud(kind, sizes)
    ours = ours_of(theirs)
    for T_, real in ((33, None), (33, REAL), (11, None), (1, None)):
        gap, size = apart(ours, theirs, IDS[:, :T_], real)
        assert gap < 1e-5 * max(10, size) and 1 < size, (T_, gap, size)
    ids, real = IDS[:, 11:24], REAL[:, 11:24]
    greedy = theirs.generate(ids, attention_mask=real.long(), max_new_tokens=6, do_sample=False,
                             pad_token_id=0, use_cache=False)
    assert torch.equal(generate(ours, ids, 6, padding_mask=real), greedy)
    varied = theirs.generate(ids[:1], attention_mask=real[:1].long(), max_new_tokens=6,
                             do_sample=False, pad_token_id=0, use_cache=False,
                             repetition_penalty=2.)
    assert (torch.equal(generate(ours, ids[:1], 6, SamplingConfig(top_k=1, repetition_penalty=2.)),
                        varied) and len(varied[0, 13:].unique()) > 2)
    state = to_pretrained(ours, kind)
    assert (all(torch.equal(state[key], t) for key, t in theirs.state_dict().items())
            and state.keys() == theirs.state_dict().keys())


# --- every key is read, derived or refused --------------------------------------------------------

RULES = [rope("linear", factor=2.), rope("yarn", factor=3., original_max_position_embeddings=16),
         rope(theta=77.), rope(partial_rotary_factor=.5), rope("default", mystery=1.),
         rope("mystery"), rope("linear", factor=2., beta_fast=3.)]


ACTS = ["relu", "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu"]


OTHERS = {                                     # further values of a key, by the kind of its value
    bool: lambda value: [not value], int: lambda value: [value + 1, 2 * value],
    float: lambda value: [1.5 * value + .1], list: lambda value: [value[::-1], value[1:], [3]],
    type(None): lambda value: [True, 2, .5],
    str: lambda value: [*ACTS, "mystery"] if value in ACTS else ["relu", "mystery"],
    dict: lambda value: [value | {name: other} for name, was in value.items()
                         for other in others(name, was)] or [{"mystery": 1}]}


def others(key, value):
    if key == "rope_parameters": return [rule[key] for rule in RULES]
    if key in ("layer_types", "attention_layers"):
        return [value[::-1], value[1:], ["mystery"] * len(value)]
    return OTHERS[type(value)](value)


FREE = {"id2label", "label2id", "transformers_version"}
FAMILY_CASES = ([name for name in CASES if name.split(",")[0] == CASES[name][0] and "," not in name]
                + ["falcon 7B", "falcon 40B", "falcon RW, ALiBi", "llama, YaRN", "llama 3.1",
                   "phi3, LongRoPE", "qwen2, windows", "mpt, clipped"])


@torch.no_grad()
def changed_logits(theirs, config):
    """The logits of `transformers` with the same weights and another configuration, if that is
    possible."""
    try:
        other = type(theirs)._from_config(type(theirs.config)(**copy.deepcopy(config)),
                                          attn_implementation=theirs.config._attn_implementation).eval()
        other.load_state_dict(theirs.state_dict())
        return other(IDS[:1, :20], use_cache=False).logits
    except Exception: return None                                                # noqa: BLE001 — their refusals are of many kinds


@pytest.mark.parametrize("name", sweep(FAMILY_CASES, *list(FAMILY_CASES)[::6]))
def test_no_key_is_silently_ignored(name):
    """Each key with another value: refused by its name, or it changes our configuration; then,
    and if it changes nothing, logits are those of `transformers`."""
    theirs = loud(*CASES[name])
    config = json.loads(theirs.config.to_json_string())
    base, refused, read = config_from_pretrained(config), set(), set()
    for key, value in [(name, value) for name, was in config.items() if name not in IGNORED_KEYS
                       | FREE | {"model_type"} for value in others(name, was)]:
        try: made = config_from_pretrained(config | {key: value})
        except ValueError as error:
            assert (key in str(error) or str(error).split(":")[0].split("[")[0] in {*config,
                    *PARTNERS, *vars(base)}), (key, value, error)
            refused.add(key)
            continue
        if made != base: read.add(key)
        if (wanted := changed_logits(theirs, config | {key: value})) is None: continue
        try: got = from_pretrained(theirs.state_dict(), config | {key: value})
        except ValueError as error:
            assert (str(error).startswith("state: ") or "expected (" in str(error)
                    or "other numbers" in str(error)), (key, value, error)
        else:
            with torch.no_grad(): gap = float((got(IDS[:1, :20]) - wanted).abs().max())
            assert gap < 2e-5 * max(10, float(wanted.abs().max())), (key, value, gap)
    assert len(read) >= 5 and len(refused) >= 1


PARTNERS = {"rope_theta", "rope_type", "sliding_window", "partial_rotary_factor", "rotary_pct",
            "original_max_position_embeddings"}             # keys whose fault may lie in another


REAL_KEYS = {  # of the files as they were published: what may be there besides, and what may not
    "openai-gpt": (dict(n_special=0, predict_special_tokens=True, n_ctx=512), dict(n_special=3)),
    "mpt": (dict(architectures=["MPTForCausalLM"],
                 auto_map={"AutoConfig": "configuration_mpt.MPTConfig"}, init_device="cpu",
                 verbose=0, tokenizer_name="x"), dict(architectures=["OtherModel"])),
    "falcon 7B": (dict(apply_residual_connection_post_layernorm=False,
                       auto_map={"AutoConfig": "configuration_falcon.FalconConfig"}),
                  dict(apply_residual_connection_post_layernorm=True)),
    "gemma2": (dict(sliding_window_size=6, cache_implementation="hybrid",
                    hidden_act="gelu_pytorch_tanh"), dict(sliding_window_size=7)),
    "smollm3": (dict(max_window_layers=28, pretraining_tp=2), dict(no_rope_layer_interval=0)),
    "cohere": (dict(model_max_length=131072, use_qk_norm=False), dict(use_qk_norm=3)),
    "gemma": (dict(hidden_activation="gelu_pytorch_tanh", hidden_act="gelu"),
              dict(hidden_activation="relu")),
    "bloom": (dict(masked_softmax_fusion=True, unk_token_id=0, offset_alibi=100, pretraining_tp=1),
              dict(offset_alibi=99)),
    "gptj": (dict(rotary=True, scale_attn_weights=True), dict(rotary=False)),
    "opt": (dict(prefix="</s>", _remove_final_layer_norm=False),
            dict(_remove_final_layer_norm=True)),
    "llama": (dict(unsloth_version="2024.9", auto_map={"AutoModel": "x.Y"}, pretraining_tp=1,
                   rope_scaling=None), dict(unsloth_mystery=1)),
    "phi3": (dict(auto_map={"AutoConfig": "x.Y"}, embd_pdrop=0., resid_pdrop=0.),
             dict(attention_bias=True)),
    "qwen2": (dict(use_mrope=False, max_window_layers=28), dict(use_mrope=True)),
    "gpt_neox": (dict(hidden_dropout=0., classifier_dropout=.1), dict(use_parallel_residual=3)),
    "phi": (dict(qk_layernorm=False, embd_pdrop=0.), dict(qk_layernorm=True)),
    "granite": (dict(mlp_bias=False), dict(residual_multiplier="x"))}


@pytest.mark.parametrize("name", REAL_KEYS)
def test_keys_of_published_files_are_known(name):
    more, wrong = REAL_KEYS[name]
    theirs = loud(*CASES[name])
    config = json.loads(theirs.config.to_json_string())
    assert apart(from_pretrained(theirs.state_dict(), config | more), theirs)[0] < 1e-4
    for key, value in wrong.items():
        refuses("^(sliding_window_size|hidden_act|" + key + "): .*expected", config_from_pretrained,
            config | {key: value})


@pytest.mark.parametrize("family",
                         [family for family in FAMILIES
                          if family in {kind for kind, _ in CASES.values()}])
def test_unknown_keys_are_refused_by_name(family):
    sizes = next(sizes for kind, sizes in CASES.values() if kind == family)
    config = json.loads(AutoConfig.for_model(family, **copy.deepcopy(sizes)).to_json_string())
    for key, value in (("mystery", 3), ("quantization_config", {"bits": 4}),
                       ("is_encoder_decoder", True), ("architectures", ["OtherModel"])):
        refuses(f"^{key}: .*expected", config_from_pretrained, config | {key: value})


OLD = {  # as files of their time spell it
    "gpt_neox": N | dict(rotary_pct=.7, rotary_emb_base=500),
    "phi": E | dict(partial_rotary_factor=.7, rope_theta=500.),
    "llama": E | dict(rope_theta=5e5, rope_scaling=dict(type="linear", factor=2.)),
    "qwen2": E | dict(use_sliding_window=False, sliding_window=8, max_window_layers=2),
    "phi3": E | dict(original_max_position_embeddings=12,
                     rope_scaling=dict(type="longrope", original_max_position_embeddings=12,
                                       short_factor=[1., 1.5, 2.], long_factor=[2., 4., 7.])),
    "gemma3_text": GEMMA | dict(rope_theta=1e5, rope_local_base_freq=50.,
                                rope_scaling=dict(rope_type="linear", factor=3.),
                                sliding_window_pattern=2),
    "gemma2": {key: value for key, value in GEMMA.items() if key != "layer_types"},
    "smollm3": E | dict(rope_theta=5e5, no_rope_layer_interval=2),
    "cohere": E | dict(rope_theta=100.),
    "bloom": dict(vocab_size=61, n_embed=24, num_hidden_layers=3, num_attention_heads=6),
    "gemma": W | dict(hidden_act="gelu"), "falcon": F | dict(alibi=True, multi_query=False),
    "gpt_neo": NEO, "mistral": E | dict(sliding_window=5, rope_theta=1e5)}


@pytest.mark.parametrize("family", OLD)
def test_old_spellings_mean_what_transformers_takes_them_for(family):
    old = json.loads(json.dumps(OLD[family])) | {"model_type": family}
    theirs = loud(family, OLD[family])
    new = json.loads(theirs.config.to_json_string())
    shared = set(new) & {"hidden_act", "activation_function", "hidden_activation", "layer_norm_eps",
                         "rms_norm_eps", "layer_norm_epsilon", "activation",
                         "query_pre_attn_scalar", "attn_logit_softcapping",
                         "final_logit_softcapping", "ffn_hidden_size", "intermediate_size",
                         "num_kv_heads"}
    ours = from_pretrained(theirs.state_dict(), {key: new[key] for key in shared} | old)
    for real in (None, REAL):
        gap, size = apart(ours, theirs, IDS, real)
        assert gap < 1e-5 * max(10, size)


@pytest.mark.parametrize("name", ["llama 3.1", "gemma2", "gpt_neox", "cohere", "granite", "bloom"])
def test_sixteen_bits(name):
    families.in_sixteen_bits(*CASES[name], lambda theirs: theirs.state_dict())


def test_a_family_is_not_another():
    "Qwen 3 is a Llama whose queries and keys are normalised."
    theirs = loud(*CASES["qwen3"])
    state, config = theirs.state_dict(), json.loads(theirs.config.to_json_string())
    refuses("^state: model.layers.0.self_attn.k_norm.weight, .*unknown", from_pretrained, state,
            {key: config[key] for key in FAMILIES["llama"].fields} | {"model_type": "llama"})
    refuses("^family: llama, whose models differ from this one in attention", to_pretrained,
            ours_of(theirs), "llama")
    refuses("^state: model.layers.0.self_attn.q_norm.weight missing", from_pretrained,
            {name: t for name, t in state.items() if "layers.0.self_attn.q_norm" not in name},
            config)


# --- folders --------------------------------------------------------------------------------------

TEXTS = (["The quick brown fox jumps over the lazy dog. 12345 dogs don't care!\n\n",
          "Ein Käfer läuft über 3.14 Brücken; 東京は大きい。 🎉🎉",
          "def f(x):\n    return x**2  # x²\n\ttabs"] * 3)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False,
                                            use_regex=False)])


SPLITS = {  # the families' own ways of splitting a text
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "opt": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True), "llama3": lambda: split(LLAMA3),
    "qwen2": lambda: split(QWEN2),
    "falcon": lambda: pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False),
                                               pre_tokenizers.Digits(False),
                                               pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"),
                                                       "isolated")]),
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                       use_regex=True)]),
    "bloom": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "removed": lambda: pre_tokenizers.Sequence([pre_tokenizers.Split("x", "removed"),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "kept": lambda: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+| +"),
            "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False,
                    use_regex=False)])}


@functools.cache
def their_tokenizer(kind="gpt2", vocab_size=300, first=True, nfc=False, whole=False, spaces=False,
                    framed=False) -> Tokenizer:
    t = Tokenizer(models.BPE(ignore_merges=whole))
    t.pre_tokenizer, t.decoder = SPLITS[kind](), decoders.ByteLevel()
    if nfc: t.normalizer = normalizers.NFC()
    t.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=vocab_size,
            special_tokens=["<s>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False))
    if first:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                processors.TemplateProcessing(
                                                    single="<s> $A <|end|>", pair="<s> $A $B",
                                                    special_tokens=[("<s>", 0), ("<|end|>", 1)])])
    if framed:
        t.post_processor = processors.RobertaProcessing(("<|end|>", 1), ("<s>", 0),
                add_prefix_space=False)
    t.add_tokens([AddedToken("dogs", normalized=False), AddedToken("dogs don", normalized=False)])
    if spaces:
        t.add_tokens([*(AddedToken(" " * n, normalized=True) for n in (4, 3, 2)),
                      AddedToken("<mask>", lstrip=True, normalized=False),
                      AddedToken("<im>", lstrip=True, rstrip=True, special=True),
                      AddedToken("!?", rstrip=True, normalized=True)])
    return t


def content_of(t): return json.loads(t.to_str())


@functools.cache
def our_tokenizer(kind, **options):
    return LoadedTokenizer(content_of(their_tokenizer(kind, **options)))


CHARACTERS = st.one_of(st.sampled_from([" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "dogs",
                                        "dogs don't", "<s>", "<|end|>", "123", "²", "Ⅷ", "é", "é",
                                        "\u3000", "。", "!?", "x", "_", "<mask>", "<im>", "cafe",
                                        "\u0301", "caf\u00e9"]),
                       st.characters(exclude_categories=["Cs", "Cn", "Co"]))


@pytest.mark.parametrize("kind, options",
                         [*((kind, {}) for kind in SPLITS), ("qwen2", dict(nfc=True, first=False)),
                          ("gpt2", dict(nfc=True, spaces=True)), ("llama3", dict(spaces=True)),
                          ("llama3", dict(whole=True, vocab_size=340)),
                          ("gpt2", dict(framed=True, spaces=True))])
@settings(max_examples=60 if os.environ.get("TFM_WHOLE") else 15, deadline=None)
@given(text=st.lists(CHARACTERS, max_size=12).map("".join))
def test_ids_and_text_are_those_of_tokenizers(kind, options, text):
    theirs = their_tokenizer(kind, **options)
    ours = our_tokenizer(kind, **options)
    for given_ in (text, *TEXTS[:3]):
        encoded = theirs.encode(given_)
        assert ours.encode(given_) == encoded.ids
        assert (ours.encode(given_, add_special_tokens=False)
                == theirs.encode(given_, add_special_tokens=False).ids)
        for skip in (False, True):
            assert (ours.decode(encoded.ids, skip)
                    == theirs.decode(encoded.ids, skip_special_tokens=skip))


@pytest.mark.parametrize("change, said", [
    (dict(model=dict(type="Unigram")), "model.type: got 'Unigram'"),
    (dict(model=dict(byte_fallback=True)), "model.byte_fallback: True"),
    (dict(model=dict(unk_token="<s>")), "model.unk_token: '<s>'"),
    (dict(model=dict(dropout=.1)), "model.dropout: 0.1"),
    (dict(model=dict(merges=[["q", "z"]])), r"merges\[0\]: \['q', 'z'\]"),
    (dict(normalizer=dict(type="Lowercase")), "normalizer.type: got 'Lowercase'"),
    (dict(pre_tokenizer=dict(type="Sequence",
                             pretokenizers=[dict(type="Split", pattern=dict(Regex=r"\\w+"),
                                                 behavior="Isolated"), dict(type="ByteLevel")])),
     "pre_tokenizer: .*different things in different libraries"),
    (dict(pre_tokenizer=dict(type="Metaspace")), r"pre_tokenizer: \['Metaspace'\]"),
    (dict(pre_tokenizer=None), r"pre_tokenizer: \[\]"),
    (dict(decoder=dict(type="WordPiece")), r"decoder: \['WordPiece'\]"),
    (dict(pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, mystery=1)),
     "pre_tokenizer.*mystery: 1"), (dict(post_processor=dict(type="BertProcessing")),
                                    "post_processor.type: got 'BertProcessing'"),
    (dict(post_processor=dict(type="RobertaProcessing", cls=["<s>", 0])),
     "post_processor: .*'RobertaProcessing'.*expected special tokens and the text"),
    (dict(post_processor=dict(type="RobertaProcessing", cls="<s>", sep=["<|end|>", 1])),
     "post_processor: "),
    (dict(truncation=dict(max_length=3)), "truncation: "),
    (dict(normalizer=dict(type="NFC"),
          added_tokens=[dict(id=300, content="e\u0301", normalized=True, special=False)]),
     "added_tokens.*normalized: True; expected False"),
    (dict(added_tokens=[dict(id=0, content="<s>", single_word=True, special=True)]),
     "added_tokens.*single_word: True"),
    (dict(pre_tokenizer=dict(type="Sequence",
                             pretokenizers=[dict(type="Split", pattern=dict(Regex="[a"),
                                                 behavior="Isolated"), dict(type="ByteLevel")])),
     "pre_tokenizer: "),
    (dict(pre_tokenizer=dict(type="Sequence",
                             pretokenizers=[dict(type="Split", pattern=dict(Regex="a"),
                                                 behavior="MergedWithNext"),
                                            dict(type="ByteLevel")])),
     "pre_tokenizer.*behavior: got 'MergedWithNext'")])
def test_other_tokenizers_are_refused_by_name(change, said):
    content = content_of(their_tokenizer())
    content = (content | change | ({"model": content["model"] | change["model"]}
                                   if "model" in change else {}))
    refuses(f"^{said}", LoadedTokenizer, content)


FOLDERS = {"gpt2": ("gpt2", G), "llama 3.1": CASES["llama 3.1"],
           "gemma3_text": CASES["gemma3_text"], "gpt_neox": CASES["gpt_neox"],
           "phi3": CASES["phi3, partial"], "falcon": CASES["falcon 40B"], "gptj": CASES["gptj"],
           "opt": CASES["opt, post-norm, projected"], "cohere": CASES["cohere"],
           "mpt": CASES["mpt"]}


def their_folder(path, name="llama 3.1", kind=torch.float32, shard="5GB", **generation):
    "A folder that `transformers` writes, with a tokenizer that `tokenizers` trained."
    family, sizes = FOLDERS[name]
    theirs = loud(family, sizes | dict({"vocab_size": 310})).to(kind)
    theirs.generation_config = GenerationConfig(eos_token_id=[1, 0], **generation)
    theirs.save_pretrained(path, max_shard_size=shard)
    PreTrainedTokenizerFast(tokenizer_object=their_tokenizer(first=False),
                            eos_token="<|end|>").save_pretrained(path)
    return theirs


@torch.no_grad()
def continued(theirs, path, text, count):
    "What `transformers` writes."
    tokenizer = AutoTokenizer.from_pretrained(path)
    out = theirs.generate(**tokenizer(text, return_tensors="pt", return_token_type_ids=False),
                          max_new_tokens=count, pad_token_id=0)
    return tokenizer.decode(out[0, len(tokenizer(text)["input_ids"]):], skip_special_tokens=True,
                            clean_up_tokenization_spaces=False)


FOLDER_ROWS = [*((name, torch.float32, 9000 if name == "opt" else 10**9) for name in FOLDERS),
               ("llama 3.1", torch.bfloat16, 4000), ("gemma3_text", torch.float16, 9000),
               ("gptj", torch.bfloat16, 10**9)]


@pytest.mark.parametrize("name, kind, most", sweep(FOLDER_ROWS, *(
    row for row in FOLDER_ROWS if row[1] != torch.float32
    or row[0] not in ("llama 3.1", "gemma3_text", "phi3", "cohere"))))
def test_folders_come_from_transformers_and_go_there(tmp_path, name, kind, most):
    "Weights are the same, of what is read and of what is written, and so is the text."
    theirs = their_folder(tmp_path / "a", name, kind, repetition_penalty=1.3)
    made = load(tmp_path / "a")
    export_folder(tmp_path / "b", made, max_bytes=most)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "b",
                                                attn_implementation=theirs.config._attn_implementation)
    assert ({t.dtype for t in back.parameters()} == {kind}
            == {t.dtype for t in made.model.parameters()})
    for state in (to_pretrained(made.model, made.config["model_type"]), back.state_dict()):
        assert all(torch.equal(t, theirs.state_dict()[key]) for key, t in state.items())
    assert (len([*(tmp_path / "b").glob("*.safetensors")]) > 1) == (most < 10**9)
    again = load(tmp_path / "b")
    assert (again.write("The lazy", 12) == made.write("The lazy", 12) and again.config["model_type"]
            == theirs.config.model_type)
    if kind == torch.float32:
        for text in ("The quick", "don't über 12345"):
            assert made.write(text, 20) == continued(theirs, tmp_path / "a", text, 20)
        assert made.write("The lazy", 12) == continued(back, tmp_path / "b", "The lazy", 12)


@pytest.mark.parametrize("family, config",
                         [("gpt2", MODEL_CONFIGS["toy GPT-2"].sized(300, 16, 2, 2, 40)),
                          ("llama", MODEL_CONFIGS["toy Llama"].sized(300, 16, 2, 4, 40,
                                  n_kv_heads=2)), ("qwen3", None)])
def test_a_model_of_the_book_is_written_for_transformers(tmp_path, family, config):
    tokenizer = train_tokenizer(TEXTS, 300, ["<|end|>"])
    if config is None:
        config = config_from_pretrained(
            json.loads(AutoConfig.for_model(family, **CASES["qwen3"][1]
                                            | {"vocab_size": 300}).to_json_string()))
    ours = build(config, seed=3).eval()
    export_folder(tmp_path, ours, family, tokenizer)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert float((theirs(IDS % 61).logits - ours(IDS % 61)).abs().max()) < 1e-5
    assert AutoTokenizer.from_pretrained(tmp_path)(TEXTS[1])["input_ids"] == tokenizer.encode(
        TEXTS[1])
    assert load(tmp_path).tokenizer.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
    assert load(tmp_path).write("The") == continued(theirs, tmp_path, "The", 20)


TOY = MODEL_CONFIGS["toy Llama"].sized(300, 16, 2, 4, 40, n_kv_heads=2)


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


REFUSED_EXPORTS = {
    "no tokenizer": (dict(tokenizer="bpe"), "tokenizer: got 'bpe', expected a LoadedTokenizer, a "
                                            "Tokenizer of the book, or None"),
    "more tokens than rows": (dict(model=TOY.sized(290, 16, 2, 4, 40, n_kv_heads=2)),
                              "tokenizer: 300 tokens; expected at most 290"),
    "no room": (dict(max_bytes=0), "max_bytes: got 0, expected a number above 0"),
    "another family": (dict(config="gpt2"), "^family: gpt2, which does not tell")}


@pytest.mark.parametrize("name", REFUSED_EXPORTS)
def test_an_export_that_is_refused_changes_nothing(tmp_path, name):
    tokenizer = train_tokenizer(TEXTS, 300, ["<|end|>"])
    export_folder(tmp_path, build(TOY, seed=1), "llama", tokenizer, 5000)
    before, (change, said) = content(tmp_path), REFUSED_EXPORTS[name]
    given = dict(model=TOY, config="llama", tokenizer=tokenizer, max_bytes=9000) | change
    refuses(said, export_folder, tmp_path, build(given.pop("model"), seed=2), **given)
    assert content(tmp_path) == before


@pytest.mark.parametrize("template", ["tokenizer_config.json", "chat_template.jinja"])
def test_what_a_folder_says_of_its_tokenizer_survives_an_export(tmp_path, template):
    "Also into a folder that holds another's, and into its own."
    their_folder(tmp_path / "a")
    change_json(tmp_path / "a/tokenizer_config.json", model_max_length=128, auto_map={"a": "b.C"})
    chat = "{{ messages[0].content }}<|end|>"
    if template.endswith("json"): change_json(tmp_path / "a" / template, chat_template=chat)
    else: (tmp_path / "a" / template).write_text(chat)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/chat_template.jinja").write_text("of another")
    for into in ("b", "a"): export_folder(tmp_path / into, load(tmp_path / "a"))
    for path in (tmp_path / "b", tmp_path / "a"):
        theirs = AutoTokenizer.from_pretrained(path)
        assert (theirs.eos_token, theirs.model_max_length) == ("<|end|>", 128)
        assert theirs.chat_template == chat
        assert "auto_map" not in json.loads((path / "tokenizer_config.json").read_text())


def test_an_end_token_is_written_for_all_who_load(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 300, ["<|end|>"])
    export_folder(tmp_path, build(TOY), "llama", tokenizer, eos="<|end|>")
    end = tokenizer.specials["<|end|>"]
    assert load(tmp_path).generation.eos == (end,)
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token_id == end
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id == end
    export_folder(tmp_path / "again", load(tmp_path))
    assert load(tmp_path / "again").generation.eos == (end,)
    refuses("^eos: '<end>'; expected a token", export_folder, tmp_path, build(TOY), "llama",
            tokenizer, eos="<end>")


def test_what_is_of_another_kind_is_refused_by_name(tmp_path):
    their_folder(tmp_path)
    refuses("^attention_fn: got 'cuda', expected a function", load, tmp_path, "cuda")
    refuses("^dtype: got 'bfloat16', expected torch.bfloat16", load, tmp_path, dtype="bfloat16")
    refuses("is a folder; expected a file that `save_model` wrote", load_model, tmp_path)
    refuses("no facts in its header, as published weights", load_model,
            tmp_path / "model.safetensors")
    change_json(tmp_path / "generation_config.json", eos_token_id=50256)
    refuses("^eos_token_id: 310 rows in the table, and a token with id 50256", load, tmp_path)


def test_a_published_model_may_be_sampled_in_another_way(tmp_path):
    their_folder(tmp_path)
    made = load(tmp_path)
    likely, hot = SamplingConfig(top_k=1), SamplingConfig(temperature=9.)
    assert made.write("The", 12, sampling=likely) == made.write("The", 12, greedy=True)
    hot = {made.write("The", 12, seed, sampling=hot) for seed in range(4)}
    assert len(hot) > 1
    refuses("^sampling: ", made.write, "The", 12, greedy=True, sampling=SamplingConfig())


@pytest.mark.parametrize("family", [*folders.DROPOUTS, "llama"])
def test_dropout_keys_are_those_of_transformers(family):
    "GPT-2's file said nothing of `resid_pdrop`, which is 0.1 there by default."
    there = {key: rate for key, rate in AutoConfig.for_model(family).to_dict().items()
             if "drop" in key and type(rate) is float
             and not re.search("layerdrop|first|classifier|att|activ", key)}
    own = {*folders.DROPOUTS.get(family, ())}
    assert own == there.keys() or not own and not any(there.values())


@pytest.mark.parametrize("rate", [0., .25])
def test_dropout_is_exported(tmp_path, rate):
    config = MODEL_CONFIGS["toy GPT-2"].sized(300, 16, 2, 2, 40, dropout=rate)
    export_folder(tmp_path, build(config), "gpt2")
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (theirs.resid_pdrop, theirs.embd_pdrop, theirs.attn_pdrop) == (rate, rate, 0.)


@pytest.mark.parametrize("at", range(3))
def test_an_export_that_fails_leaves_the_older_one(tmp_path, monkeypatch, at):
    "A full disk, at each of its files."
    export_folder(tmp_path, build(TOY, seed=1), "llama", train_tokenizer(TEXTS, 300), 5000)
    before, full = content(tmp_path), Mock(side_effect=[*[None] * at, OSError("no space left")])
    for module in (folders, tensor_files): monkeypatch.setattr(module, "flush", full)
    with pytest.raises(OSError, match="no space"):
        export_folder(tmp_path, build(TOY, seed=2), "llama")
    assert content(tmp_path) == before


@pytest.mark.parametrize("at", range(5))
def test_an_export_that_is_killed_while_it_replaces_is_no_mixture(tmp_path, monkeypatch, at):
    "Whatever was moved: the folder is the older export, the new one, or no checkpoint."
    export_folder(tmp_path, build(TOY, seed=1), "llama", max_bytes=40_000)
    moves = Mock(wraps=os.replace, side_effect=[DEFAULT] * at + [SystemExit])
    inside = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (
        moves if Path(b).parent == tmp_path else inside)(a, b))
    with suppress(SystemExit):
        export_folder(tmp_path, build(TOY, seed=2), "llama", max_bytes=40_000)
    if not (tmp_path / "config.json").exists(): return
    want = build(TOY, seed=2).state_dict()
    assert all(torch.equal(t, want[key]) for key, t in load(tmp_path).model.state_dict().items())


def test_a_second_export_leaves_nothing_of_the_first(sound, tmp_path):
    base = load(sound / "one")
    bare = {key: was for key,
        was in base.config.items() if key != "dtype"} | {"torch_dtype": "float32"}
    export_folder(tmp_path / "a", base, max_bytes=5_000)
    (tmp_path / "a" / "README.md").write_text("kept")
    (tmp_path / "a" / "generation_config.json").write_text('{"eos_token_id": 7, "do_sample": true}')
    half = base.model.bfloat16()
    for folder in ("a", "b"): export_folder(tmp_path / folder, half, bare, max_bytes=9_000)
    assert content(tmp_path / "a") == content(tmp_path / "b") | {"README.md": b"kept"}
    written_config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert written_config["dtype"] == "bfloat16" and "torch_dtype" not in written_config


def test_reading_names_takes_time_in_proportion_to_them():
    "SmolLM2's 49,152 tokens took 80 seconds."
    pairs, begin = [(f"token {i}", i) for i in range(20_000)], time.process_time()
    assert once(pairs) == dict(pairs) and time.process_time() - begin < 1
    refuses("token 7.*given twice", once, [*pairs, ("token 7", 0)])


def test_filling_a_model_takes_time_in_proportion_to_its_tensors(tmp_path):
    "Qwen3 30B-A3B has 18,867: each was looked for among all of them."
    whole = build(TOY.sized(300, 16, 8, 4, 40, n_kv_heads=2))
    export_folder(tmp_path, whole, "llama")
    with torch.device("meta"): model = build(whole.config)
    model.named_parameters = Mock(wraps=model.named_parameters)
    fill_from(model, "llama", stored_tensors(tmp_path))
    assert all(torch.equal(whole.state_dict()[key], t) for key, t in model.state_dict().items())
    assert model.named_parameters.call_count < 8


def change_json(path, **change): path.write_text(json.dumps(json.loads(path.read_text()) | change))


def keep_first(path, part): path.write_bytes(path.read_bytes()[:int(len(path.read_bytes()) * part)])


def renamed(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def to_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


NAME = "transformer.h.1.attn.c_attn.weight"
FAULTS = {
    "header cut off": (lambda f: keep_first(f / "model.safetensors", .002),
                       "path: .*header is cut off"),
    "numbers cut off": (lambda f: keep_first(f / "model.safetensors", .7),
                        "path: .*the file is truncated"),
    "empty file": (lambda f: keep_first(f / "model.safetensors", 0), "path: .*cut off"),
    "noise": (lambda f: (f / "model.safetensors").write_bytes(b"\x10" + bytes(7) + b"x" * 99),
              "path: .*no readable header"),
    "no config": (lambda f: (f / "config.json").unlink(), "folder: .*no config.json"),
    "config cut off": (lambda f: keep_first(f / "config.json", .5),
                       "config.json: .*not valid JSON"),
    "no tensors": (lambda f: (f / "model.safetensors").unlink(), "folder: .*no model.safetensors"),
    "pickle": (to_pickle,
               "folder: .*pytorch_model.bin.*a pickle can run any code.*save_pretrained"),
    "prefix": (lambda f: renamed(f / "model.safetensors",
                                 lambda t: [t.update({f"_orig_mod.{name}": t.pop(name)})
                                            for name in [*t]]),
               r"state: lm_head.weight missing \(41 in all\), "
               r"_orig_mod.transformer.h.0.attn.c_attn.bias unknown \(40 in all\); expected"),
    "missing tensor": (lambda f: renamed(f / "model.safetensors", lambda t: t.pop(NAME)),
                       f"state: {NAME} missing"),
    "unknown tensor": (lambda f: renamed(f / "model.safetensors",
                                         lambda t: t.update(mystery=torch.zeros(1))),
                       "state: mystery unknown"),
    "wrong shape": (lambda f: renamed(f / "model.safetensors",
                                      lambda t: t.update({NAME: t[NAME].T.contiguous()})),
                    rf"{NAME}: \(72, 24\); expected \(24, 72\)"),
    "wrong type": (lambda f: renamed(f / "model.safetensors",
                                     lambda t: t.update({NAME: t[NAME].long()})),
                   f"{NAME}: I64; expected one of F64, F32, BF16, F16"),
    "mixed types": (lambda f: renamed(f / "model.safetensors",
                                      lambda t: t.update({NAME: t[NAME].double()})),
                    f"{NAME}: torch.float64; expected torch.float32"),
    "unknown family": (lambda f: change_json(f / "config.json", model_type="mystery"),
                       "model_type: got 'mystery'"),
    "small table": (lambda f: change_json(f / "config.json", vocab_size=290),
                    "vocab_size: 290 rows in the table, and a token with id 30"),
    "rope key": (lambda f: change_json(f / "config.json", rope_parameters={"mystery": 1}),
                 "rope_parameters: "),
    "beams": (lambda f: change_json(f / "generation_config.json", num_beams=4),
              "num_beams: 4; expected 1"),
    "tokenizer cut off": (lambda f: keep_first(f / "tokenizer.json", .5),
                          "tokenizer.json: .*not valid JSON"),
    "adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "folder: .*an adapter"),
    "kind of family": (lambda f: change_json(f / "config.json", model_type=["gpt2"]),
                       "model_type: "),
    "vast": (lambda f: change_json(f / "config.json", vocab_size=2**62),
             f"vocab_size: {2**62}; expected at most"),
    "endless": (lambda f: change_json(f / "config.json", n_layer=10**9), "n_layers: .*at most"),
    "key twice": (lambda f: (f / "config.json").write_text('{"n_embd": 1, '
            + (f / "config.json").read_text()[1:]), "config.json: .*given twice"),
    "one parameter twice": (lambda f: renamed(f / "model.safetensors",
                                              lambda t: t.update(
                                                  {"wpe.weight": t["transformer.wpe.weight"] + 1})),
                            "transformer.wpe.weight: given twice"),
    "alias of another family": (lambda f: renamed(f / "model.safetensors",
                                                  lambda t: t.update(
                                                      {"embed_out.weight": t[
                                                          "transformer.wte.weight"].clone()})),
                                "state: embed_out.weight unknown"),
    "token of another file": (lambda f: (f / "added_tokens.json").write_text('{"<new>": 305}'),
                              "added_tokens.json: <new>: "),
    "id of another file": (lambda f: (f / "added_tokens.json").write_text('{"<|end|>": 99}'),
                           "added_tokens.json: "),
    "special token": (lambda f: change_json(f / "tokenizer_config.json", bos_token="<new>"),
                      "tokenizer_config.json: bos_token: '<new>'"),
    "special tokens": (lambda f: change_json(f / "tokenizer_config.json",
                                             additional_special_tokens=[{"content": "<new>"}]),
                       "tokenizer_config.json: additional_special_tokens: '<new>'"),
    "decoder of tokens": (lambda f: change_json(f / "tokenizer_config.json",
                                                added_tokens_decoder={"7": {"content": "<new>"}}),
                          "tokenizer_config.json: added_tokens_decoder: '<new>' with id 7"),
    "space": (lambda f: change_json(f / "tokenizer_config.json", add_prefix_space=True),
              "tokenizer_config.json: add_prefix_space: True"),
    "special map": (lambda f: (f / "special_tokens_map.json").write_text(
        '{"eos_token": {"content": "<new>"}}'), "special_tokens_map.json: eos_token: "),
    "other head": (lambda f: renamed(f / "model.safetensors",
                                     lambda t: t.update(
                                         {"lm_head.weight": t["transformer.wte.weight"] + 1})),
                   "lm_head.weight: other numbers"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound")
    their_folder(path / "one", "gpt2")
    their_folder(path / "many", "gpt2", shard="20KB")
    return path


def written(header: bytes | dict, data: bytes = b"") -> bytes:
    "A safetensors file from its header, as it is, and its data."
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + data


def entry(first, last, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [first, last]}


MALFORMED = {
    "overlap": (written({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)),
                "b: data from byte .*no gap and no overlap"),
    "gap": (written({"a": entry(0, 4), "b": entry(6, 10)}, bytes(10)), "b: data from byte"),
    "hole in front": (written({"a": entry(4, 8)}, bytes(8)), "a: data from byte"),
    "bytes left over": (written({"a": entry(0, 4)}, bytes(5)),
                        "path: .*nothing after the last tensor"),
    "name twice": (
        written(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)), "path: .*no readable header"),  # noqa: E501
    "key twice": (written(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                          bytes(4)), "path: .*no readable header"),
    "UTF-16": (written('{"a":1}'.encode("utf-16")), "path: .*no readable header"),
    "deep": (written(b'{"a":' + b"[" * 100_000), "path: .*no readable header"),
    "list": (written(b"[]"), "path: .*no readable header"),
    "metadata": (written({"__metadata__": [1], "a": entry(0, 4)}, bytes(4)), "__metadata__: "),
    "huge": (written({"a": entry(0, 4, (2**40, 2**40))}, bytes(4)), "a: .*whole numbers"),
    "huge and empty": (written({"a": entry(0, 0, (0, 2**62, 2**62))}), "a: .*whole numbers"),
    "beyond 64 bits": (written({"a": entry(0, 4, (2**70,))}, bytes(4)), "a: .*whole numbers"),
    "type": (written({"a": entry(0, 4, dtype=["F32"])}, bytes(4)), "a: .*a type"),
    "no shape": (written({"a": {"dtype": "F32"}}), "a: .*expected type, shape, offsets"),
    "negative": (written({"a": entry(0, 4, (-1,))}, bytes(4)), "a: .*whole numbers"),
    "size": (written({"a": entry(0, 4, (2,))}, bytes(4)), r"a: 4 bytes; expected 8 for F32 \(2,\)"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_tensor_files_are_refused_by_name(tmp_path, name):
    content, said = MALFORMED[name]
    (tmp_path / "f.safetensors").write_bytes(content)
    refuses(f"^{said}", read_header, tmp_path / "f.safetensors")
    if name != "huge and empty":     # which the library reads
        with pytest.raises(SafetensorError): load_file(tmp_path / "f.safetensors")


def shard(folder): return sorted(folder.glob("model-*.safetensors"))[1]


SHARD_FAULTS = {
    "stale file": (lambda f: save_file(load_file(shard(f)), f / "model.safetensors"),
                   "folder: .* holds both model.safetensors.index.json and model.safetensors; "
                   "expected .*remove the one that is stale"),
    "frequencies of another name": (lambda f: renamed(shard(f),
            lambda t: t.update({"h.0.my_rotary_emb.inv_freq": torch.ones(3)})),
                                    "model-00002-of.*: h.0.my_rotary_emb.inv_freq in one of it and "
                                    "the index only"),
    "missing shard": (lambda f: shard(f).unlink(), "weight_map: model-00002.* missing"),
    "cut off": (lambda f: keep_first(shard(f), .8), "path: .*truncated"),
    "other place": (lambda f: change_json(f / "model.safetensors.index.json",
                                          weight_map={"a": "../secret.safetensors"}),
                    "weight_map: "),
    "no map": (lambda f: change_json(f / "model.safetensors.index.json", weight_map=None),
               "weight_map: "),
    "tensor not in its shard": (lambda f: renamed(shard(f), lambda t: t.popitem()),
                                "model-00002-of.*: .* in one of it and the index only"),
    "index cut off": (lambda f: keep_first(f / "model.safetensors.index.json", .5),
                      "model.safetensors.index.json: .*JSON")}


@pytest.mark.parametrize("kind, fault",
    [*(("one", fault) for fault in FAULTS), *(("many", fault) for fault in SHARD_FAULTS)])
def test_a_faulty_folder_is_refused_by_name(sound, tmp_path, kind, fault):
    change, said = (FAULTS if kind == "one" else SHARD_FAULTS)[fault]
    shutil.copytree(sound / kind, tmp_path / "f")
    change(tmp_path / "f")
    refuses(f"^{said}", load, tmp_path / "f")


@torch.no_grad()
def test_sharded_tensors_are_those_of_one_file(sound):
    one, many = (load(sound / kind).model for kind in ("one", "many"))
    assert torch.equal(one(IDS), many(IDS))


def test_frequencies_that_old_files_hold_are_recomputed(sound, tmp_path):
    "In a shard, also where the index does not name them."
    shutil.copytree(sound / "many", tmp_path / "f")
    renamed(shard(tmp_path / "f"),
            lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3),
                                "rotary_emb.inv_freq": torch.ones(3)}))
    assert load(tmp_path / "f").write("The", 8) == load(sound / "one").write("The", 8)


@pytest.mark.parametrize("content, sampling, eos", [
    ({}, None, ()), (dict(do_sample=True, temperature=.6, top_p=.9, eos_token_id=[3, 4]),
                     SamplingConfig(.6, 50, .9), (3, 4)),
    (dict(do_sample=True, top_k=0, min_p=.1, eos_token_id=2), SamplingConfig(min_p=.1), (2,)),
    (dict(repetition_penalty=1.2, temperature=.5), SamplingConfig(top_k=1, repetition_penalty=1.2),
     ()), (dict(num_beams=1, transformers_version="4", typical_p=1.), None, ())])
def test_settings_of_generation(content, sampling, eos):
    made = read_generation(content)
    assert (made.sampling, made.eos) == (sampling, eos)


@pytest.mark.parametrize("key, value", [("num_beams", 2), ("no_repeat_ngram_size", 3),
                                        ("suppress_tokens", [1]), ("mystery", 1),
                                        ("eos_token_id", "x"), ("do_sample", 1),
                                        ("temperature", "warm"), ("max_new_tokens", 0),
                                        ("max_length", "long"), ("max_length", -5),
                                        ("typical_p", .5), ("min_p", "x"), ("top_k", "x"),
                                        ("top_k", -1), ("top_p", "x")])
def test_settings_that_we_do_not_have_are_refused_by_name(key, value):
    refuses(f"^{key}: .*expected", read_generation,
        {key: value, **({"do_sample": True} if key == "temperature" else {})})


# --- encoders and translators ---------------------------------------------------------------------

SMALL = dict(vocab_size=61, hidden_size=20, num_hidden_layers=2, num_attention_heads=5,
             intermediate_size=37, max_position_embeddings=40)
BUCKETS = dict(relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"],
               position_buckets=4, max_relative_positions=20, share_att_key=True,
               norm_rel_ebd="layer_norm", type_vocab_size=2)
READERS = {
    "BertForMaskedLM": SMALL, "BertForSequenceClassification": SMALL, "RobertaForMaskedLM": SMALL
    | dict(pad_token_id=1), "ElectraForPreTraining": SMALL | dict(embedding_size=7),
    "DebertaV2ForTokenClassification": SMALL | BUCKETS,
    "DebertaForMaskedLM": SMALL | dict(relative_attention=True, position_biased_input=False,
                                       pos_att_type=["c2p", "p2c"], max_relative_positions=6),
    "MarianMTModel": dict(vocab_size=61, d_model=20, encoder_layers=1, decoder_layers=2,
                          encoder_attention_heads=5, decoder_attention_heads=5, encoder_ffn_dim=28,
                          decoder_ffn_dim=28, max_position_embeddings=40, pad_token_id=60,
                          decoder_start_token_id=60, eos_token_id=0)}
BARTS = dict(vocab_size=61, d_model=20, encoder_layers=1, decoder_layers=2,
             encoder_attention_heads=5, decoder_attention_heads=5, encoder_ffn_dim=28,
             decoder_ffn_dim=28, max_position_embeddings=40)
T5S = dict(vocab_size=61, d_model=24, d_kv=10, d_ff=28, num_layers=2, num_decoder_layers=3,
           num_heads=3, decoder_start_token_id=0)
READERS |= {"T5ForConditionalGeneration": T5S, "MT5ForConditionalGeneration": T5S,
            "BartForConditionalGeneration": BARTS, "MBartForConditionalGeneration": BARTS}
X, Y = 4 + IDS[:, :17] % 55, 4 + IDS[:, 4:13] % 55                # texts for both sides


def their_config(name, **sizes):
    "The configuration of a class of `transformers`."
    return getattr(transformers, re.sub("(For.*|MTModel|Model)$", "", name) + "Config")(**sizes)


def their_class(name, **sizes):
    torch.manual_seed(0)
    return getattr(transformers, name)(their_config(name, **copy.deepcopy(sizes))).eval()


def drawn(theirs) -> list:
    "The parameters that may have any numbers: Marian's positions are computed."
    return [(key, p) for key, p in theirs.named_parameters()
            if theirs.config.model_type != "marian" or "embed_positions" not in key]


def scored(theirs): return theirs(input_ids=X, attention_mask=torch.ones_like(X),
    decoder_input_ids=Y).logits


@torch.no_grad()
@pytest.mark.parametrize("name", READERS)
def test_folders_of_encoders_and_translators_are_read_and_written(tmp_path, name):
    "With a configuration and tensors that are equal, logits are, as other tests have it."
    theirs = their_class(name, **READERS[name])
    for _, p in drawn(theirs): torch.nn.init.normal_(p, std=.5)
    # the library ties the tables of a new model
    if name.startswith("MT5"): theirs.lm_head.weight = torch.nn.Parameter(torch.randn(61, 24))
    theirs.save_pretrained(tmp_path / "a")
    made, state = load(tmp_path / "a"), theirs.state_dict()
    export_folder(tmp_path / "b", made)
    back = getattr(transformers, name).from_pretrained(tmp_path / "b")
    assert all(torch.equal(t, state[key]) for key, t in back.state_dict().items())
    again = load(tmp_path / "b").model
    assert again.config == made.model.config == from_pretrained(state,
        theirs.config.to_dict()).config
    kept = to_pretrained(again, theirs.config.model_type)
    for key in {*state} - {"model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight"} if "Marian" in name else state:
        assert torch.equal(kept[key].reshape(state[key].shape), state[key]), key
    reads = made.model.config.kind == "bert"
    refuses("^model: .*: an encoder writes no text" if reads else "^tokenizer: None", made.write,
        "The")


# --- base models ----------------------------------------------------------------------------------

def base_folder(path, name, sizes, whole):
    """What `transformers` writes of a base model with loud weights, and the model with a head
    that it makes of the folder."""
    theirs = their_class(name, **sizes)
    shift = "gemma" not in theirs.config.model_type
    for key, p in drawn(theirs):
        torch.nn.init.normal_(p, float(shift and p.ndim == 1 and not key.endswith("bias")), .35)
    theirs.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["architectures"] == [name]
    return whole.from_pretrained(path,
        attn_implementation="sdpa" if theirs.config.model_type == "falcon" else "eager").eval()


TRANSLATORS = {"BartModel": BARTS, "MBartModel": BARTS | dict(scale_embedding=True),
               "MarianModel": READERS["MarianMTModel"], "T5Model": T5S}


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("copies", [False, True])
def test_base_models_of_encoder_decoders_are_read(tmp_path, name, copies):
    """As `facebook/bart-base` is stored: no prefix, no bias on the logits, with or without
    copies of the table."""
    theirs = base_folder(tmp_path / "a", name, TRANSLATORS[name],
                         transformers.AutoModelForSeq2SeqLM)
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert (not {"final_logits_bias", "lm_head.weight"} & {*stored}
            and not any(key.startswith("model.") for key in stored))
    if copies:
        renamed(tmp_path / "a" / "model.safetensors",
                lambda t: t.update({f"{side}.embed_tokens.weight": t["shared.weight"].clone()
                                    for side in ("encoder", "decoder")}))
    made = load(tmp_path / "a")
    wanted = scored(theirs)
    assert float((made.model(X, Y)[0] - wanted).abs().max()) < 1e-4 < float(wanted.std())
    count, size = folder_size(tmp_path / "a")
    assert (count == sum(p.numel() for p in made.model.parameters()) and size
            == sum(4 * t.numel() for t in load_file(tmp_path / "a" / "model.safetensors").values()))
    export_folder(tmp_path / "b", made)
    assert (load(tmp_path / "b").config["architectures"] == made.config["architectures"]
            == [type(theirs).__name__])
    back = type(theirs).from_pretrained(tmp_path / "b", attn_implementation="eager")
    assert torch.equal(scored(back), wanted)


def test_a_missing_bias_is_zero_in_the_type_of_the_file_and_only_in_a_base_model(tmp_path):
    base_folder(tmp_path, "BartModel", BARTS, transformers.AutoModelForSeq2SeqLM)
    path = tmp_path / "model.safetensors"
    renamed(path, lambda t: t.update({key: v.bfloat16() for key, v in t.items()}))
    bias = load(tmp_path).model.source_embedding.bias
    assert bias.dtype == torch.bfloat16 and bias.shape == (61,) and not bias.any()
    renamed(path, lambda t: t.update({"final_logits_bias":
                                      torch.ones(1, 61, dtype=torch.bfloat16)}))
    assert bool((load(tmp_path).model.source_embedding.bias == 1).all())
    renamed(path, lambda t: t.pop("final_logits_bias"))
    missing = "state: final_logits_bias missing .1 in all"
    for names, said in ((["BartForConditionalGeneration"], missing), (None, missing), ([], missing),
                        *((names, "architectures: ") for names in (
                            ["BartForSequenceClassification"], ["BartEncoder"], ["T5Model"],
                            ["BartModel"] * 2, [["BartModel"]], "BartModel"))):
        change_json(tmp_path / "config.json", architectures=names)
        refuses(f"^{said}", load, tmp_path)


UNTIED = {"T5Model": T5S | dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
          "MT5Model": T5S, "LlamaModel": E | dict(tie_word_embeddings=False),
          "PhiModel": CASES["phi"][1]}


@pytest.mark.parametrize("name", UNTIED)
def test_a_base_model_whose_head_is_missing_is_refused_by_its_name(tmp_path, name):
    base_folder(tmp_path, name, UNTIED[name], transformers.AutoModelForCausalLM
                if name in ("LlamaModel", "PhiModel") else transformers.AutoModelForSeq2SeqLM)
    refuses(r"^state: lm_head\.(weight|bias) missing \([12] in all\); expected", load, tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("name, sizes", [("BertModel", SMALL), ("RobertaModel", SMALL),
                                         ("ElectraModel", SMALL | dict(embedding_size=7)),
                                         ("DebertaModel",
                                          SMALL | dict(relative_attention=True,
                                                  position_biased_input=False,
                                                  pos_att_type=["c2p"])),
                                         ("DebertaV2Model",
                                          SMALL | BUCKETS | dict(position_biased_input=False))])
def test_encoders_without_a_task_give_their_hidden_states(tmp_path, name, sizes):
    """And the pooler's vector, where a family has one; as an encoder with a head, such a file is
    refused."""
    theirs = their_class(name, **sizes)
    for p in theirs.parameters():
        p.copy_(.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    theirs.save_pretrained(tmp_path)
    ours, ids = (load(tmp_path).model,
                 torch.randint(3, sizes["vocab_size"], (2, 9),
                               generator=torch.Generator().manual_seed(1)))
    right = theirs(ids)
    torch.testing.assert_close(ours.hidden_states(ids)[0], right.last_hidden_state,
                               atol=1e-4, rtol=1e-4)
    pooled = right.get("pooler_output")
    assert [*ours(ids)] == ([] if pooled is None else ["pooler"])
    if pooled is not None:
        torch.testing.assert_close(ours(ids)["pooler"], pooled, atol=1e-4, rtol=1e-4)
    change_json(tmp_path / "config.json",
                architectures=[f"{name.removesuffix('Model')}ForMaskedLM"])
    refuses("^state: (cls.pred|lm_head|generator)[^ ]* missing", load, tmp_path)


@torch.no_grad()
def test_texts_are_embedded_as_sentence_transformers_does(tmp_path):
    """The mean over the tokens, of length 1: a folder with WordPiece, whose tokenizer_config
    must agree with it."""
    from test_files import IDS, content
    sizes = SMALL | dict(vocab_size=len(IDS))
    theirs = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content()))
    ours, texts = load(tmp_path), ["The owl.", "playing"]
    vectors = [theirs(torch.tensor([ours.tokenizer.encode(t)])).last_hidden_state.mean(1)[0]
               for t in texts]
    torch.testing.assert_close(ours.embed(texts),
                               torch.nn.functional.normalize(torch.stack(vectors), dim=1),
                               atol=1e-5, rtol=0)
    refuses("^model: Bert; expected a decoder", ours.write, "the")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    refuses("^tokenizer_config.json: do_lower_case: False; expected True", load, tmp_path)
    refuses("^tokenizer: None", load(tmp_path, tokenizer=False).embed, texts)


BASE_CASES = ([name for name in FAMILY_CASES if name != "falcon RW, ALiBi"]
              + ["llama, tied", "opt, post-norm, projected"])


@torch.no_grad()
@pytest.mark.parametrize("name", BASE_CASES)
def test_base_models_of_decoders_are_read(tmp_path, name):
    """As files of base models are: without the path before each name, and without a head where
    it is tied."""
    family, sizes = CASES[name]
    # whose heads have biases
    tied = family not in ("gptj", "phi")
    theirs = base_folder(tmp_path, MODEL_MAPPING_NAMES[family],
                         sizes | dict(tie_word_embeddings=tied), AutoModelForCausalLM)
    if not tied: return refuses("^state: lm_head.bias missing .2 in all", load, tmp_path)
    made = load(tmp_path)
    gap, size = apart(made.model, theirs)
    assert (gap < 1e-5 * max(10, size) and size > .5 and made.config["architectures"]
            == FAMILIES[family].values["architectures"][-1])


def test_gpt2_as_it_was_published_is_read(tmp_path):
    "Its class has a head, its tensors have no prefix, and there are masks."
    base_folder(tmp_path, "GPT2Model", G, AutoModelForCausalLM)
    renamed(tmp_path / "model.safetensors",
        lambda t: t.update({"h.0.attn.bias": torch.ones(1, 1, 48, 48),
            "h.0.attn.masked_bias": torch.tensor(-1e4)}))
    plain = load(tmp_path)
    change_json(tmp_path / "config.json", architectures=["GPT2LMHeadModel"])
    assert load(tmp_path).config == plain.config
    with torch.no_grad(): assert torch.equal(load(tmp_path).model(IDS), plain.model(IDS))


# --- targets --------------------------------------------------------------------------------------

TOKENS = dict(vocab_size=310, bos_token_id=0, eos_token_id=1, pad_token_id=2,
              decoder_start_token_id=0, forced_eos_token_id=None)
WRITERS = {"T5ForConditionalGeneration": T5S, "BartForConditionalGeneration": BARTS,
           "MBartForConditionalGeneration": BARTS | dict(scale_embedding=True),
           "MarianMTModel": READERS["MarianMTModel"]}
SETTINGS = {"none": {}, "two ends": dict(eos_token_id=[1, 7]),
            "many ends": dict(eos_token_id=[*range(1, 300, 4)]),
            "a first token": dict(forced_bos_token_id=5),
            "a last token": dict(forced_eos_token_id=1, max_new_tokens=6),
            "longest": dict(max_length=9),
            "both": dict(forced_bos_token_id=5, forced_eos_token_id=1, max_length=8),
            "begins with bos": dict(decoder_start_token_id=None, bos_token_id=11)}


def writer_folder(path, name, **settings):
    "An encoder–decoder with a tokenizer that frames each text, and settings of generation."
    theirs = their_class(name, **WRITERS[name] | TOKENS)
    # so that a text is not one token again and again
    table, inner = (1., .5) if name == "MarianMTModel" else (.1, .2)
    for key, p in drawn(theirs):
        if "embed_positions" in key: torch.nn.init.normal_(p, std=2.)
        elif p.ndim == 1: torch.nn.init.normal_(p, mean=float(not key.endswith("bias")), std=.1)
        else: torch.nn.init.normal_(p, std=table if "shared" in key else inner)
    if hasattr(theirs, "final_logits_bias"): torch.nn.init.normal_(theirs.final_logits_bias, std=.2)
    theirs.generation_config = GenerationConfig(**{key: TOKENS[key] for key in TOKENS
                                                   if key.endswith("_id")} | settings)
    theirs.save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=their_tokenizer(first=False, framed=True),
                            eos_token="<|end|>", bos_token="<s>").save_pretrained(path)
    return theirs


@torch.no_grad()
def target(theirs, path, text, **settings):
    "What `transformers` writes."
    tokenizer = AutoTokenizer.from_pretrained(path)
    out = theirs.generate(**tokenizer(text, return_tensors="pt", return_token_type_ids=False),
                          use_cache=False, **settings)[0, 1:].tolist()
    ends = {*torch.atleast_1d(torch.tensor(theirs.generation_config.eos_token_id)).tolist()}
    length = next((n for n, i in enumerate(out) if i in ends), len(out))
    return tokenizer.decode(out[:length], skip_special_tokens=True,
                            clean_up_tokenization_spaces=False)


LINES = "The quick", "don't über 12345", "Ein Käfer"


@pytest.mark.parametrize("name", sweep(WRITERS, *list(WRITERS)[::4]))
@pytest.mark.parametrize("settings", sweep(SETTINGS, *list(SETTINGS)[:1]))
def test_targets_are_those_of_transformers(tmp_path, name, settings):
    theirs = writer_folder(tmp_path, name, **SETTINGS[settings])
    made, said = load(tmp_path), []
    for text in LINES:
        assert made.write(text) == target(theirs, tmp_path, text)
        if settings != "longest":
            assert made.write(text, 12) == target(theirs, tmp_path, text, max_new_tokens=12)
        said.append(made.write(text, 12))
    assert len({*"".join(said)}) > 2 or settings == "many ends"
    export_folder(tmp_path / "b", made)
    assert (load(tmp_path / "b").write(text) == made.write(text) and made.generation.content
            == json.loads((tmp_path / "b" / "generation_config.json").read_text()))


@pytest.mark.parametrize("name", WRITERS)
def test_settings_of_targets_in_the_configuration_count_where_there_is_no_other_file(
    tmp_path, name):
    "As in a folder of a base model, which `transformers` writes without it."
    writer_folder(tmp_path, name)
    (tmp_path / "generation_config.json").unlink()
    change_json(tmp_path / "config.json", decoder_start_token_id=9, forced_bos_token_id=6)
    theirs, made = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path), load(tmp_path)
    for text in LINES:
        assert made.write(text, 8) == target(theirs, tmp_path, text, max_new_tokens=8)


@pytest.mark.parametrize("key, value",
                         [("num_beams", 4), ("do_sample", True), ("repetition_penalty", 1.3),
                          ("no_repeat_ngram_size", 3), ("bad_words_ids", [[58]]), ("min_length", 5),
                          ("length_penalty", 2.), ("mystery", 1)])
def test_another_search_is_refused_by_name_or_set_aside(tmp_path, key, value):
    theirs = writer_folder(tmp_path, "BartForConditionalGeneration", forced_bos_token_id=5)
    wanted = target(theirs, tmp_path, "The quick", max_new_tokens=7)
    change_json(tmp_path / "generation_config.json", **{key: value})
    made = load(tmp_path)
    refuses(f"^{key}: .*; expected .*, or greedy=True to set it aside", made.write, "The quick", 7)
    assert made.write("The quick", 7, greedy=True) == wanted


def test_greedy_sets_sampling_of_a_decoder_aside(sound, tmp_path):
    shutil.copytree(sound / "one", tmp_path / "f")
    change_json(tmp_path / "f" / "generation_config.json", do_sample=True, temperature=3.)
    plain, made = load(sound / "one").write("The", 9), load(tmp_path / "f")
    assert made.write("The", 9, greedy=True) == plain and made.write("The", 9) != plain


def test_targets_that_cannot_begin_or_are_too_short_are_refused_by_name(tmp_path):
    writer_folder(tmp_path, "BartForConditionalGeneration", forced_bos_token_id=5)
    made = load(tmp_path)
    usual = made.generation.content
    refuses("^max_new_tokens: 1; expected at least 2", made.write, "The", 1)
    for said, change in {
            "decoder_start_token_id: None": dict(decoder_start_token_id=None, bos_token_id=None),
            "decoder_start_token_id: 'x'": dict(decoder_start_token_id="x"),
            "eos_token_id: None": dict(eos_token_id=None), "eos_token_id: ": dict(eos_token_id="x"),
            "max_length: 2; expected at least 3": dict(max_length=2),
            "max_new_tokens: 1; expected at least 2": dict(max_new_tokens=1)}.items():
        made.generation = GenerationSettings(content={**usual, **change})
        refuses(f"^{said}", made.write, "The")


@torch.no_grad()
@pytest.mark.parametrize("name, change",
                         [("BartForConditionalGeneration", {}),
                          ("BartForConditionalGeneration", dict(encoder_layers=2)),
                          ("BartForConditionalGeneration",
                           dict(encoder_attention_heads=4, encoder_ffn_dim=12)),
                          ("MBartForConditionalGeneration", dict(scale_embedding=True)),
                          ("MarianMTModel", {}),
                          ("MarianMTModel", dict(encoder_layers=2, encoder_ffn_dim=13)),
                          ("T5ForConditionalGeneration", {}),
                          ("T5ForConditionalGeneration",
                           dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu")),
                          ("MT5ForConditionalGeneration", {})])
@pytest.mark.parametrize("short", [False, True])
def test_an_encoder_decoder_is_written_by_the_name_of_its_family(tmp_path, name, change, short):
    "Also if its configuration leaves to defaults what equals them."
    config = their_config(name, **READERS[name] | change)
    described = config_from_pretrained(json.loads(config.to_json_string()))
    if short:
        layers = (None if described.n_encoder_layers == described.n_layers
                  else described.n_encoder_layers)
        described = dataclasses.replace(described, n_encoder_layers=layers,
                                        options={key: value
                                                 for key, value in described.options.items()
                                                 if key != "pad"} | {"pad": 0})
    ours = build(described, seed=3).eval()
    for p in ours.parameters(): torch.nn.init.normal_(p, std=.35)
    export_folder(tmp_path, ours, config.model_type)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path,
            attn_implementation="eager").eval()
    wanted = ours(X, Y)[0]
    assert float((scored(theirs) - wanted).abs().max()) < 1e-4 < float(wanted.std())
    again = load(tmp_path)
    assert type(theirs).__name__ == name and torch.equal(again.model(X, Y)[0], wanted)
    again.tokenizer = our_tokenizer("gpt2")
    refuses("^eos_token_id: None" if "Marian" in name else "^decoder_start_token_id: None",
        again.write, "The")


def test_a_family_of_encoders_needs_its_configuration(tmp_path):
    config = json.loads(transformers.BertConfig(**SMALL,
                                                architectures=["BertForMaskedLM"]).to_json_string())
    ours = build(config_from_pretrained(config))
    refuses("^config: 'bert'; expected config.json, whose class tells the head", export_folder,
        tmp_path, ours, "bert")
    export_folder(tmp_path, ours, config)
    refuses("^family: got 'mystery'", export_folder, tmp_path, ours, "mystery")


def test_classes_of_base_models_are_those_of_transformers():
    "Encoders are read without a head; other base models as the last class of their row."
    for family, row in FAMILIES.items():
        base = {"model_type": family, "architectures": [MODEL_MAPPING_NAMES[family]]}
        known = row.values.get("architectures") or [base["architectures"]]
        assert with_head(base)["architectures"] == known[-1]
        for config in ({"model_type": family, "architectures": names} for names in known):
            assert with_head(config) is config


def test_a_tokenizer_that_is_not_wanted_is_not_read(sound, tmp_path):
    shutil.copytree(sound / "one", tmp_path / "f")
    keep_first(tmp_path / "f" / "tokenizer.json", .5)
    refuses("^tokenizer: None", load(tmp_path / "f", tokenizer=False).write, "The")


def test_the_size_of_a_folder_is_known_without_reading_a_tensor(sound):
    made = load(sound / "one")
    count = sum(p.numel() for p in made.model.parameters())
    assert folder_size(sound / "one") == folder_size(sound / "many") == (count, 4 * count)
    refuses("^folder: .*expected a folder", folder_size, sound / "none")


def test_parts_in_words_leave_nothing_out():
    "Each option of the output is named, and a model without any is not."
    words = {name: parts.describe_parts(
        config_from_pretrained(PUBLISHED_CONFIGS[name]))["output"] for name in PUBLISHED_CONFIGS}
    assert (words["GPT-J 6B"] == words["Phi-2"] == "separate, bias" and words["Command R"]
            == "tied, × 0.0625" and words["Gemma 2 9B"] == "tied, cap 30")
    assert words["Llama 3 8B"] == "separate" and words["Granite 3 2B"] == "tied, × 0.125"
    assert PUBLISHED_CONFIGS.keys() == PUBLISHERS.keys()


def test_settings_in_the_configuration_count_where_there_is_no_other_file(sound, tmp_path):
    "As Hugging Face's library has it; with the other file they do not count."
    shutil.copytree(sound / "one", tmp_path / "f")
    change_json(tmp_path / "f" / "config.json", eos_token_id=7, repetition_penalty=1.5,
                no_repeat_ngram_size=2)
    assert load(tmp_path / "f").generation == load(sound / "one").generation
    (tmp_path / "f" / "generation_config.json").unlink()
    refuses("^no_repeat_ngram_size: 2; expected 0", load, tmp_path / "f")
    change_json(tmp_path / "f" / "config.json", no_repeat_ngram_size=0)
    ours, theirs = load(tmp_path / "f"), AutoModelForCausalLM.from_pretrained(tmp_path / "f")
    assert (ours.generation.eos == (7,) and ours.generation.sampling
            == SamplingConfig(top_k=1, repetition_penalty=1.5))
    ids = torch.tensor([ours.tokenizer.encode("The river")])
    wanted = theirs.generate(ids, max_new_tokens=12, pad_token_id=0)[0, ids.shape[1]:].tolist()
    wanted = wanted[:wanted.index(7)] if 7 in wanted else wanted
    assert (ours.write("The river", 12)
            == ours.tokenizer.decode([i for i in wanted if i in ours.tokenizer.table],
                                     skip_special_tokens=True))


def test_a_length_includes_the_prompt(sound):
    base = load(sound / "one")
    n, plain = len(base.tokenizer.encode("The river")), base.write("The river", 3)
    assert read_generation({"max_length": 50, "max_new_tokens": 4}).max_length is None
    base.generation = read_generation({"max_length": n + 3})
    assert base.generation.max_length == n + 3 and base.write("The river") == plain
    base.generation = read_generation({"max_length": 1})
    refuses("^max_length: 1; expected at least", base.write, "The river")


@pytest.mark.parametrize("heads, length", [(16, 33), (32, 33), (4, 600), (16, 300)])
def test_alibi_of_falcon_is_computed_in_bfloat16(heads, length):
    keys = dict(vocab_size=61, hidden_size=64, num_hidden_layers=2, num_attention_heads=heads,
                max_position_embeddings=1024, alibi=True, multi_query=False, parallel_attn=False,
                bias=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    theirs = loud("falcon", keys)
    ids = torch.randint(61, (2, length), generator=torch.Generator().manual_seed(1))
    real = torch.arange(length) >= torch.tensor([0, 9])[:, None]
    for there in (None, real): assert apart(ours_of(theirs), theirs, ids, there)[0] < 1e-4


@pytest.mark.parametrize("name, keys",
                         [("gpt_neox", dict(rotary_pct=.01)),
                          ("phi", dict(partial_rotary_factor=.01)), ("gptj", dict(rotary_dim=0)),
                          ("bloom", dict(slow_but_exact=True, pretraining_tp=2)),
                          ("llama",
                           dict(rope_scaling=dict(rope_type="llama3", factor=4.,
                                                  original_max_position_embeddings=12)))])
def test_what_would_load_and_compute_something_else_is_refused(name, keys):
    sizes = dict(gpt_neox=["Pythia 6.9B"], phi=["Phi-2"], gptj=["GPT-J 6B"], bloom=["BLOOM 7B"],
                 llama=["Llama 3 8B"])[name]
    refuses(f"^({'|'.join(keys)}|rope_scaling)", config_from_pretrained,
        {key: value for key, value in PUBLISHED_CONFIGS[sizes[0]].items() if key not in keys}
        | keys)


HEAD = "lm_head.weight"
STORED = {                                                    # what a file holds -> what is said
    "all": (lambda state: state, None),
    "one more": (lambda state: state | {"mystery": torch.ones(2)},
        "folder: mystery; expected only"),
    "one fewer": (lambda state: dict([*state.items()][:-2]), "missing"),
    "another shape": (lambda state: dict(state, **{[*state][-2]: torch.zeros(3, 5)}), "expected"),
    "no copy": (lambda state: {key: t for key, t in state.items() if key != HEAD}, None),
    "another copy": (lambda state: state | {HEAD: state[HEAD] + 1},
                     "lm_head.weight: other numbers; expected a copy of embedding.weight")}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family, name", [("gpt2", "toy GPT-2"), ("llama", "toy Llama")])
def test_the_short_loader_gives_the_same_model_or_refuses_by_name(tmp_path, family, name, stored):
    "An equal copy of the table loads, and so does a file without one; other numbers do not."
    ours, (change, said) = build(MODEL_CONFIGS[name], seed=3).eval(), STORED[stored]
    export_folder(tmp_path, ours, family)
    path, state = tmp_path / "model.safetensors", to_pretrained(ours, family)
    save_file({key: t.clone() for key, t in change(state).items()}, path)
    if said: return refuses(said, simple_load, tmp_path)
    again, read = simple_load(tmp_path), read_safetensors(path)
    assert again.config == load(tmp_path).model.config and load_file(path).keys() == read.keys()
    assert all(torch.equal(read[key], state[key]) for key in read)
    for key, t in own_tensors(again).items(): assert torch.equal(t, own_tensors(ours)[key]), key


