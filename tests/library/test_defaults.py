"""Keys of published configurations that are left out or null: they mean here what they mean in
`transformers`, or are refused by name."""
import copy
import json

import pytest
import torch
import transformers
from conftest import sweep
from refusing import refuses
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from bench import checkpoint_families, denoiser_families, expert_cases, state_cases
from bench.checkpoint_families import rope
from tfmlib.checkpoints import (
    IGNORED_KEYS,
    MODERN,
    ModelConfig,
    build,
    completed,
    config_from_pretrained,
    from_pretrained,
    load,
)
from tfmlib.checkpoints.tensor_files import read_header

pytestmark = pytest.mark.usefixtures("one_thread")
BERT = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=28, max_position_embeddings=48)
DEBERTA = (BERT | dict(relative_attention=True, position_biased_input=False,
                       pos_att_type=["c2p", "p2c"], max_relative_positions=8, type_vocab_size=0,
                       legacy=True))
STEMS = {"bert": ("Bert", BERT), "roberta": ("Roberta", BERT),
         "electra": ("Electra", BERT | dict(embedding_size=24)), "deberta": ("Deberta", DEBERTA),
         "deberta-v2": ("DebertaV2", DEBERTA)}
MARIAN = dict(vocab_size=40, d_model=12, encoder_layers=1, decoder_layers=1,
              encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=24,
              decoder_ffn_dim=10, max_position_embeddings=64, pad_token_id=39,
              decoder_start_token_id=1, eos_token_id=2)
ENCODERS = {f"{kind}, {task}": (kind, sizes | dict(architectures=[f"{stem}For{task}"]))
            for kind, (stem, sizes) in STEMS.items()
            for task in ("MaskedLM", "SequenceClassification")}
FAMILY_CASES = {**checkpoint_families.CASES, **expert_cases.EXPERT_CASES, **state_cases.STATE_CASES,
                **denoiser_families.CASES, **ENCODERS, "marian": ("marian", MARIAN)}
FAMILY_CASES |= {"qwen3, windows": ("qwen3", checkpoint_families.E | dict(head_dim=6,
        use_sliding_window=True, sliding_window=5, max_window_layers=1)),
                 "gemma3_text, global only": ("gemma3_text", checkpoint_families.GEMMA
                                              | dict(layer_types=["full_attention"] * 3)),
                 "gemma3_text, local only": ("gemma3_text", checkpoint_families.GEMMA
                                             | dict(layer_types=["sliding_attention"] * 3)),
                 "deepseek_v3, 16 experts": ("deepseek_v3", expert_cases.V3 | rope()
                                             | dict(n_routed_experts=16, n_group=8, topk_group=4,
                                                    num_experts_per_tok=4,
                                                    first_k_dense_replace=3))}
NOT_READ = {"model_type", "transformers_version", "architectures"}
PARTNERS = {  # key -> what a refusal may name in its stead
    "use_sliding_window": "sliding_window", "rope_parameters": "rotary",
    "_sliding_window_pattern": "sliding_window_pattern",
    "relative_attention_num_buckets": "relative_attention_max_distance",
    "num_attention_heads": "head", "layer_types": "sliding_window"}


def whole(kind: str, keys: dict) -> dict:
    "All keys that `transformers` writes for these, its defaults filled in."
    config = type(AutoConfig.for_model(kind))(**copy.deepcopy(keys))
    # as they write infinity
    return json.loads(config.to_json_string(use_diff=False), object_hook=lambda found: (
        float(found["__float__"]) if {*found} == {"__float__"} else found))


def reading(config: dict) -> ModelConfig | str:
    "Our reading of a configuration, or why it is refused."
    try: return completed(config_from_pretrained(config))
    except ValueError as error: return str(error)


def their_model(kind: str, keys: dict):
    "A model of `transformers`."
    config = type(AutoConfig.for_model(kind))(**copy.deepcopy(keys))
    if kind in STEMS: return getattr(transformers, keys["architectures"][0])(config).eval()
    made = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return made.from_config(config, attn_implementation="sdpa" if kind == "falcon"
                            else "eager").eval()


@torch.no_grad()
def difference(kind: str, base: dict, rest: dict) -> float | None:
    """How far our logits are from theirs, in sizes of a logit; nothing, if theirs cannot be
    computed."""
    torch.manual_seed(0)
    state = their_model(kind, base).state_dict()
    state = {name: t + .3 * torch.randn(t.shape) if "embed_positions" not in name or kind
             != "marian" else t for name, t in state.items()}
    for name in ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name in state and "shared.weight" in state: state[name] = state["shared.weight"]
    ids = torch.arange(3, 36).view(3, 11)
    given = (ids, ids.flip(1)) if base["is_encoder_decoder"] else (ids,)
    try:
        theirs = their_model(kind, rest)
        theirs.load_state_dict(state)
        wanted = theirs(**dict(zip(("input_ids", "decoder_input_ids"), given)),
                        **({} if kind in STEMS else dict(use_cache=False))).logits
    except Exception: return None                                                 # noqa: BLE001 — their refusals are of many kinds
    state = (expert_cases.published_state(theirs)
             if kind in {kind for kind, _ in expert_cases.EXPERT_CASES.values()}
             else theirs.state_dict())
    got = from_pretrained(state, rest)(*given)
    got = got[0] if isinstance(got, tuple) else got
    return float((got - wanted).abs().max() / wanted.abs().max())


OFTEN = ["mistral", "gemma2", "qwen2", "phi3", "falcon 7B", "gemma3_text, global only", "mixtral",
    "deepseek_v2", "deepseek_v3", "gpt_oss", "mamba", "mamba2", "qwen3_next", "t5", "mt5", "mbart",
         "deberta, MaskedLM",
    "bert, SequenceClassification"]


@pytest.mark.parametrize("name", sweep(FAMILY_CASES, *OFTEN))
def test_a_key_that_is_absent_or_null_means_what_it_means_there(name):
    """Left out, or null: what `transformers` fills in, read by us, gives the same model; what it
    leaves null gives the same logits; or our refusal names the key."""
    kind, keys = FAMILY_CASES[name]
    base = whole(kind, keys)
    assert isinstance(reading(base), ModelConfig), reading(base)
    for key in base.keys() - NOT_READ:
        for rest in ({name: value for name, value in base.items() if name != key},
                     base | {key: None}):
            ours = reading(rest)
            if isinstance(ours, str):
                assert key in ours or PARTNERS.get(key, key) in ours, (key, key in rest, ours)
                continue
            try: theirs = whole(kind, rest)
            except Exception: continue                                            # noqa: BLE001 — they refuse
            assert reading(theirs) == ours, (key, key in rest, theirs.get(key))
            if (key in rest and theirs.get(key) is None and base[key] is not None
                and key not in IGNORED_KEYS):
                gap = difference(kind, base, rest)
                assert gap is None or gap < 1e-4, (key, gap)


PATTERNS = {  # family -> sizes that give local layers a window
    "gemma2": checkpoint_families.GEMMA, "gemma3_text": checkpoint_families.GEMMA,
    "gpt_oss": expert_cases.OSS | rope(theta=500.), "smollm3": checkpoint_families.E
    | dict(sliding_window=5, use_sliding_window=True),
    "qwen2": checkpoint_families.E | dict(sliding_window=5, use_sliding_window=True),
    "qwen3": checkpoint_families.W | dict(sliding_window=5, use_sliding_window=True)}


@pytest.mark.parametrize("types", [["full_attention"] * 3, ["sliding_attention"] * 3,
                                   ["full_attention", "sliding_attention", "full_attention"]],
                         ids=["global", "local", "both"])
@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_with_layers_of_one_kind(kind, types):
    "Only global layers, only local ones, or both: equal logits."
    base = whole(kind, PATTERNS[kind] | dict(layer_types=types))
    assert base["layer_types"] == types and difference(kind, base, base) < 1e-4


def test_the_pattern_that_newer_files_repeat_is_read_as_there():
    """Gemma 3's second spelling of the pattern is written beside the list of layers, and not
    read by the library."""
    config = whole("gemma3_text", checkpoint_families.GEMMA | dict(sliding_window_pattern=2))
    rest = {key: value for key, value in config.items()
            if key not in ("layer_types", "sliding_window_pattern")}
    assert ("111" in str(reading(whole("gemma3_text", rest))) and reading(rest)
            == "_sliding_window_pattern: 2; expected 6")


@pytest.mark.parametrize("kind, more", [("mt5", {}), ("t5", denoiser_families.OWN), ("t5", {})])
def test_files_of_todays_library_lack_the_output_of_t5(kind, more, tmp_path):
    "It ties the output to the table in what it builds from a configuration, and stores it once."
    torch.manual_seed(0)
    theirs = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **denoiser_families.T
            | more)).eval()
    theirs.save_pretrained(tmp_path)
    assert "lm_head.weight" not in read_header(tmp_path / "model.safetensors")
    config, state = (json.loads((tmp_path / "config.json").read_text()),
                     load_file(tmp_path / "model.safetensors"))
    ids = torch.arange(3, 36).view(3, 11)
    with torch.no_grad(): wanted = theirs(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
    for ours in (load(tmp_path, tokenizer=False).model, from_pretrained(state, config)):
        with torch.no_grad():
            torch.testing.assert_close(ours(ids, ids.flip(1))[0], wanted, atol=1e-4, rtol=1e-4)
    refuses("^state: .*missing", from_pretrained,
            {name: t for name, t in state.items() if name != "shared.weight"}, config)


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2",
                                  "deepseek_v3"])
def test_experts_that_are_joined_in_memory_are_refused_by_name(kind):
    theirs = checkpoint_families.loud(*expert_cases.EXPERT_CASES[kind])
    refuses(r"^state: model\.layers\.\d\.mlp\.experts\.down_proj, which holds all experts; "
            "expected a tensor for each expert, as in the files", from_pretrained,
            theirs.state_dict(), json.loads(theirs.config.to_json_string()))


def test_positions_by_layer_need_an_attention_that_asks_for_them():
    for attention in ("multi-head", "latent"):
        refuses(f"^attention: '{attention}'; expected 'adapted'", build,
                ModelConfig("decoder", 61, 24, 2, 4, 48, attention=attention,
                            **MODERN | {"positions": "layered rotary"}))


def test_a_mistral_without_a_window_says_so(early_families):
    "As chapter 10 reads it: an absent key means a window of 4,096 there."
    config = whole("mistral", checkpoint_families.T | dict(sliding_window=None))
    assert isinstance(reading(config), ModelConfig)
    del config["sliding_window"]
    assert reading(config) == "sliding_window: absent, which means 4096; expected None"
