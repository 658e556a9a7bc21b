"""Published encoder–decoders: T5, mT5, BART and mBART against Hugging Face's, key by key, tensor
by tensor and token by token; their parts against slow versions."""
import math

import families
import pytest
import torch
from conftest import sweep
from refusing import refuses
from torch import nn
from transformers.models.mt5 import modeling_mt5
from transformers.models.t5 import modeling_t5

from bench.denoiser_families import (
    CASES,
    PADDED,
    apart,
    batch,
    config_of,
    loud,
    ours_of,
    sides,
    written,
)
from tfmlib.checkpoints import (
    FAMILIES,
    IGNORED_KEYS,
    ModelConfig,
    build,
    config_from_pretrained,
    from_pretrained,
    to_pretrained,
)
from tfmlib.denoisers.families import (
    PUBLISHED_DENOISERS,
    TargetTokens,
    end_at,
    full_beam_search,
    init_t5,
    read_target_tokens,
    write_greedily,
    write_with_beams,
)
from tfmlib.heads import MultiHeadAttention
from tfmlib.transformer import beam_search, make_log_probs_fn
from tfmlib.workbench import own_tensors

BASES = {"t5": "t5, wide heads", "t5 v1.1": "t5 v1.1, wide heads", "mt5": "mt5",
         "bart": "bart, uneven", "mbart": "mbart, a language"}


@pytest.fixture(scope="module")
def pair():
    "Their model and ours of a case, made once."
    made = {}
    def of(name):
        if name not in made: made[name] = (theirs := loud(*CASES[name]), ours_of(theirs))
        return made[name]
    return of


# --- logits ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", sweep(CASES, *list(CASES)[::3]))
def test_logits_are_hugging_faces(pair, name):
    theirs, ours = pair(name)
    for source, target in PADDED:
        gap, size = apart(ours, theirs, source, target)
        assert gap < 1e-4 and .5 < size < 5, (source, target, gap, size)
    for S, T in ((1, 1), (2, 17), (23, 2)):
        assert apart(ours, theirs, "none", "none", S, T)[0] < 1e-4


@pytest.mark.parametrize("name", sweep(CASES, *BASES.values()))
def test_in_64_bits_nothing_is_left_of_the_difference(monkeypatch, name):
    "Their T5 takes its norm's mean square in 32 bits, whatever the weights have; here it does not."
    def forward(self, x):
        return (self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)
                                              + self.variance_epsilon))
    for kind in (modeling_t5.T5LayerNorm, modeling_mt5.MT5LayerNorm):
        monkeypatch.setattr(kind, "forward", forward)
    theirs = loud(*CASES[name], seed=1).double()
    if hasattr(theirs, "final_logits_bias"):
        theirs.final_logits_bias = theirs.final_logits_bias.double()
    ours = ours_of(theirs)
    assert (max(apart(ours, theirs, source, target)[0] for source, target in (("right", "none"),
            ("both", "both"))) < 1e-11)


@pytest.mark.parametrize("name", ["t5", "mt5, wide heads", "bart", "mbart, uneven"])
def test_padding_changes_nothing_of_ours_where_positions_are_relative(pair, name):
    """T5's bias counts from token to token; BART's positions count from the first column,
    padding included, and so do theirs."""
    theirs, ours = pair(name)
    x, y = batch(config_of(theirs), rows=1)
    here = torch.ones(1, 28, dtype=torch.bool)
    here[:, :5] = False
    with torch.no_grad():
        plain, moved = (ours(x, y)[0], ours(torch.cat([torch.zeros(1, 5, dtype=torch.long), x], 1),
                                            y, here)[0])
    assert (float((plain - moved).abs().max()) < 1e-4) == ("t5" in name)


@pytest.mark.parametrize("change, said", [
    (lambda m: (m[:3], None), r"padding_mask: torch.bool, \(3, 23\); expected bool, \(4, 23\)"),
    (lambda m: (m.long(), None), "padding_mask: torch.int64"),
    (lambda m: (m & False, None), "padding_mask: a row without a token"),
    (lambda m: (None, m), r"padding_mask: torch.bool, \(4, 23\); expected bool, \(4, 17\)")])
def test_masks_that_do_not_fit_are_refused(pair, change, said):
    theirs, ours = pair("t5")
    x, y = batch(config_of(theirs))
    refuses(f"^{said}", ours, x, y, *change(sides(23)["right"]))


# --- names ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", sweep(CASES, *BASES.values()))
def test_there_and_back(pair, name):
    theirs, ours = pair(name)
    state, back = theirs.state_dict(), to_pretrained(ours, CASES[name][0])
    assert (state.keys() == back.keys()
            and all(torch.equal(back[key], t) for key, t in state.items()))
    again = loud(*CASES[name], seed=1)
    again.load_state_dict(back)
    x, y = batch(config_of(theirs))
    with torch.no_grad():
        assert torch.equal(again(input_ids=x, decoder_input_ids=y).logits,
                           theirs(input_ids=x, decoder_input_ids=y).logits)
    ours_again = from_pretrained(back, config_of(theirs))
    assert (ours_again.config == ours.config
            and all(torch.equal(a, b) for a, b in zip(own_tensors(ours_again).values(),
                    own_tensors(ours).values(), strict=True)))


@pytest.mark.parametrize("name", BASES.values())
def test_files_may_omit_copies_and_hold_what_nothing_reads(pair, name):
    theirs, ours = pair(name)
    first, unused = {}, FAMILIES[CASES[name][0]].unused
    for key, t in theirs.state_dict().items(): first.setdefault(t.data_ptr(), (key, t))
    state = dict(first.values()) | {key: torch.zeros(3) for key in unused}
    assert len(state) < len(theirs.state_dict()) + len(unused) and len(unused) > 0
    x, y = batch(config_of(theirs))
    with torch.no_grad():
        assert torch.equal(from_pretrained(state, config_of(theirs))(x, y)[0], ours(x, y)[0])
    refuses("^state: a.b unknown", from_pretrained, state | {"a.b": torch.zeros(3)},
        config_of(theirs))
    missing = next(key for key in state if "relative" in key or "layernorm_embedding" in key)
    refuses(f"^state: {missing} missing", from_pretrained,
        {key: t for key, t in state.items() if key != missing}, config_of(theirs))


@pytest.mark.parametrize("name", BASES.values())
def test_one_family_is_not_another(pair, name):
    theirs, ours = pair(name)
    for family in FAMILIES:
        if (family == CASES[name][0] or {family, CASES[name][0]} == {"t5", "mt5"}
            and not ours.config.tie_embeddings):
            continue
        refuses(f"^(family: {family}, whose models differ|max_len: None)", to_pretrained, ours,
            family)


# --- configurations -------------------------------------------------------------------------------

def others(value):
    words = (["relu", "gated-relu", "gelu_new", "silu"] if isinstance(value, str)
             and ("gelu" in value or value in ("relu", "silu")) else [])
    return families.other_values(value) or words


READ = {"t5": {"relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj",
               "tie_word_embeddings", "scale_decoder_outputs"}}
READ |= {"t5 v1.1": READ["t5"] - {"tie_word_embeddings", "scale_decoder_outputs"}, "mt5": READ["t5"]
         - {"tie_word_embeddings", "scale_decoder_outputs"},
         "bart": {"scale_embedding", "activation_function"},
         "mbart": {"scale_embedding", "activation_function"}}


@pytest.mark.parametrize("base", sweep(BASES, list(BASES)[0]))
def test_each_key_is_refused_or_changes_our_logits_as_theirs(pair, base):
    theirs, _ = pair(BASES[base])
    state, config, equal, refused = theirs.state_dict(), config_of(theirs), set(), set()
    with torch.no_grad(): plain = theirs(*inputs(config)).logits
    for key, value in [(key, value) for key, was in config_of(theirs).items()
                       for value in others(was)]:
        config = {k: v for k, v in config_of(theirs).items() if k not in DERIVED.get(key, ())}
        if key in ("use_cache", "output_attentions", "output_hidden_states", "return_dict"):
            continue
        try:
            changed = type(theirs)(type(theirs.config)(**config | {key: value})).eval()
            changed(*inputs(config))
        except Exception: continue                                            # noqa: S112 — their refusals are of many kinds
        if {n: t.shape for n, t in changed.state_dict().items()} != {n: t.shape
                for n, t in state.items()}:
            continue
        if "lm_head.weight" in state:
            changed.lm_head.weight = nn.Parameter(torch.empty_like(changed.lm_head.weight))
        changed.load_state_dict(state)
        x, mask, y = inputs(config)
        with torch.no_grad(): wanted = changed(x, mask, y).logits
        try: ours = from_pretrained(state, config | {key: value})
        except ValueError as error:
            assert str(error).startswith((f"{key}: ",
                                          *(f"{k}: " for k in REPEATED.get(key, ())))), (key,
                                                  value, error)
            refused.add(key)
            continue
        with torch.no_grad(): got = ours(x, y, mask.bool())[0]
        assert float((got - wanted).abs().max()) < 1e-4, (key, value)
        if float((plain - wanted).abs().max()) > 1e-3: equal.add(key)
    assert READ[base] <= equal, READ[base] - equal


# what the refusal may name instead
REPEATED = {"scale_decoder_outputs": ("lm_head.weight",), "encoder_layers": ("num_hidden_layers",)}
DERIVED = {"feed_forward_proj": {"is_gated_act", "dense_act_fn"},
           "tie_word_embeddings": {"scale_decoder_outputs"}}


def inputs(config):
    x, y = batch(config)
    here = sides(23)["right"]
    return x.masked_fill(~here, config["pad_token_id"]), here.long(), y


@pytest.mark.parametrize("base, change, said", [
    ("t5", {"architectures": ["T5EncoderModel"]},
     r"architectures: \['T5EncoderModel'\]; expected None"),
    ("t5", {"is_decoder": True}, "is_decoder: True"),
    ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder: False"),
    ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj: 'gated-tanh'"),
    ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn: 'gelu'; expected 'relu', as feed_forward_proj"),
    ("t5 v1.1", {"dense_act_fn": "gelu"}, "dense_act_fn: 'gelu'; expected 'gelu_new'"),
    ("t5", {"is_gated_act": True}, "is_gated_act: True; expected False"),
    ("t5", {"relative_attention_num_buckets": 6},
     "relative_attention_num_buckets: 6; expected a multiple of 4"),
    ("t5", {"relative_attention_max_distance": 4},
     "relative_attention_max_distance: 4; expected more than 4"),
    ("t5", {"d_kv": None}, "d_kv: None; expected a whole number"),
    ("t5", {"num_heads": "3"}, "num_heads: '3'"),
    ("t5", {"tie_word_embeddings": False},
     "scale_decoder_outputs: True; expected False, as tie_word_embeddings"),
    ("t5", {"scale_decoder_outputs": 1.}, "scale_decoder_outputs: 1.0"),
    ("t5", {"num_hidden_layers": 7}, "num_hidden_layers: 7; expected 2, as num_layers"),
    ("t5", {"quantization_config": {"bits": 8}}, "quantization_config: "),
    ("t5", {"layer_norm_epsilon": 0.}, "layer_norm_epsilon: 0.0"),
    ("mt5", {"feed_forward_proj": "gelu_fast"}, "feed_forward_proj: "),
    ("mt5", {"scale_embedding": True}, "scale_embedding: True; expected no such key"),
    ("bart", {"normalize_before": True}, "normalize_before: True; expected False"),
    ("mbart", {"normalize_before": False}, "normalize_before: False; expected True"),
    ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm: True"),
    ("bart", {"normalize_embedding": False}, "normalize_embedding: False"),
    ("bart", {"static_position_embeddings": True}, "static_position_embeddings: True"),
    ("bart", {"extra_pos_embeddings": 0}, "extra_pos_embeddings: 0; expected 2"),
    ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings: False"),
    ("bart", {"scale_embedding": 2.}, "scale_embedding: 2.0"),
    ("bart", {"activation_function": "tanh"}, "activation_function: 'tanh'"),
    ("bart", {"add_bias_logits": True}, "add_bias_logits: True"),
    ("bart", {"architectures": ["BartModel"]}, r"architectures: \['BartModel'\]"),
    ("bart", {"num_hidden_layers": 9}, "num_hidden_layers: 9; expected 1, as encoder_layers"),
    ("mbart", {"max_position_embeddings": 0}, "max_position_embeddings: 0"),
    ("mbart", {"a_new_key": 1}, "a_new_key: 1; expected no such key")])
def test_a_key_is_refused_by_its_name(pair, base, change, said):
    config = config_of(pair(BASES[base])[0])
    refuses(f"^{said}", config_from_pretrained, config | change)


def test_keys_of_old_files_change_nothing():
    t5, bart = PUBLISHED_DENOISERS["T5 small"], PUBLISHED_DENOISERS["BART large"]
    old = {"n_positions": 512, "output_past": True, "dropout_rate": .1, "initializer_factor": 1.,
           "architectures": ["T5WithLMHeadModel"],
           "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
           "relative_attention_num_buckets": 32}
    assert config_from_pretrained(t5 | old) == config_from_pretrained(t5)
    old = {"normalize_before": False, "add_final_layer_norm": False, "add_bias_logits": False,
           "normalize_embedding": True, "static_position_embeddings": False,
           "extra_pos_embeddings": 2, "classif_dropout": 0., "num_hidden_layers": 12,
           "encoder_layerdrop": 0.,
           "force_bos_token_to_be_generated": True, "no_repeat_ngram_size": 3,
           "early_stopping": True, "id2label": {"0": "a"}, "gradient_checkpointing": False,
           "save_step": 9, "output_past": False, "scale_embedding": False,
           "activation_function": "gelu"}
    assert config_from_pretrained(bart | old) == config_from_pretrained(bart)
    # as version 5 of the library saves T5 v1.1
    newer = {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    v11 = PUBLISHED_DENOISERS["T5 v1.1 small, FLAN-T5 small"]
    assert config_from_pretrained(v11 | newer) == config_from_pretrained(v11)
    flan = {"dense_act_fn": "gelu_new", "is_gated_act": True, "num_decoder_layers": 8,
            "relative_attention_max_distance": 128, "classifier_dropout": 0.}
    assert config_from_pretrained(v11 | flan) == config_from_pretrained(v11)


SIZES = {"T5 small": 60_506_624, "T5 base": 222_903_552, "T5 v1.1 small, FLAN-T5 small": 76_961_152,
    "mT5 small": 300_176_768,
         "BART base": 139_420_416 + 50_265, "BART large": 406_291_456 + 50_265,
         "mBART large": 610_851_840 + 250_027}


@pytest.mark.whole
@pytest.mark.parametrize("name", SIZES)
def test_published_shapes_have_the_published_sizes(name):
    with torch.device("meta"): made = build(config_from_pretrained(PUBLISHED_DENOISERS[name]))
    assert sum(p.numel() for p in own_tensors(made).values()) == SIZES[name]


def test_the_tables_of_keys_do_not_overlap():
    for name in ("t5", "mt5", "bart", "mbart"):
        family = FAMILIES[name]
        assert not (IGNORED_KEYS - {"pad_token_id"}) & {*family.fields, *family.values,
                *family.read_keys}
        assert (not {*family.fields} & {*family.values} and not {*family.fields, *family.values}
                & {*family.read_keys})


# --- texts ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name",
                         sweep(["t5, wide heads", "t5, one head", "t5 v1.1", "flan-t5's shape",
                                "mt5", "bart", "bart, uneven, scaled", "bart, a first token",
                                "mbart", "mbart, a language"], "t5, wide heads",
                               "bart, uneven, scaled", "mbart, a language"))
def test_texts_are_hugging_faces(pair, name):
    "Greedily, from sources padded on either side, and with beams, token for token."
    found = written(*pair(name), length=7)
    assert len(found) == 6 and all(found.values()), found


@pytest.mark.parametrize("name", ["t5, wide heads", "mt5", "bart", "mbart, a language"])
@pytest.mark.parametrize("size", [1, 3])
def test_beams_of_chapter_8_are_hugging_faces_if_no_text_ends_early(pair, name, size):
    """Where all texts have one length, neither the length penalty nor what becomes of an ended
    hypothesis matters."""
    theirs, ours = pair(name)
    config, n = config_of(theirs), 7
    tokens, x = read_target_tokens(config), batch(config, rows=1, seed=3)[0]
    log_probs_fn = end_at(make_log_probs_fn(ours, x), n, tokens.last)
    early = n - (tokens.last is not None)
    def endless(y):
        log_probs = log_probs_fn(y)
        return (log_probs if y.shape[1] > early
                else log_probs.index_fill(1, torch.tensor(tokens.eos), -math.inf))
    start = torch.tensor(tokens.start)
    wanted = theirs.generate(input_ids=x, min_new_tokens=early, max_new_tokens=n, num_beams=size,
                             do_sample=False, use_cache=False)[0, 1:].tolist()
    for search in (beam_search, full_beam_search):
        found = search(endless, start, n + 1 - len(start), size, eos=tokens.eos)
        assert [*tokens.start[1:], *found[0].ids] == wanted and len(wanted) == n


def test_which_tokens_begin_and_end_a_target():
    bart = PUBLISHED_DENOISERS["BART large"]
    assert (read_target_tokens(bart) == TargetTokens((2,), 2, 1, 2)
            and read_target_tokens(bart | {"forced_bos_token_id": 0}).start == (2, 0)
            == read_target_tokens(bart | {"force_bos_token_to_be_generated": True}).start)
    assert (read_target_tokens(PUBLISHED_DENOISERS["T5 small"]) == TargetTokens((0,), 1, 0)
            and read_target_tokens(PUBLISHED_DENOISERS["mBART large"]).start == (0,))
    for change, said in (({"decoder_start_token_id": None, "bos_token_id": None},
                          "decoder_start_token_id: None"),
                         ({"eos_token_id": [1, 2]}, r"eos_token_id: \[1, 2\]"),
                         ({"eos_token_id": None}, "eos_token_id: None"),
                         ({"forced_bos_token_id": "x"}, "forced_bos_token_id: 'x'")):
        refuses(f"^{said}", read_target_tokens, bart | change)


def test_a_text_that_is_cut_off_ends_with_its_last_token(pair):
    theirs, ours = pair("bart")
    x = batch(config_of(theirs))[0]
    for last in (None, 2, 7):
        out = write_greedily(ours, x, TargetTokens((2,), 60, 1, last), 5)
        assert out.shape == (4, 5) and (last is None or bool((out[:, -1] == last).all()))
    for act in (lambda t: write_greedily(ours, x, t, 1),
                lambda t: write_with_beams(ours, x[:1], t, 1)):
        refuses("^max_len: 1; expected at least 2", act, TargetTokens((2, 0), 2, 1))
    refuses("^x: 4 sources; expected one", write_with_beams, ours, x, TargetTokens((2,), 2, 1), 5)


def table(probs: dict):
    """Log-probabilities of the next token by prefix, from a table; what it does not hold is
    equally likely."""
    def log_probs_fn(y):
        return torch.tensor([probs.get(tuple(row), [1 / 4] * 4) for row in y.tolist()]).log()
    return log_probs_fn


def test_an_ended_hypothesis_keeps_its_place_in_one_search_and_not_in_the_other():
    """With two beams: the end token comes first, so chapter 8 goes on with one prefix, the other
    search with two."""
    # 1 ends
    step = table({(0,): [0, .5, .3, .2], (0, 2): [0, .34, .33, .33], (0, 3): [0, .98, .01, .01]})
    a, b = (beam_search(step, torch.tensor([0]), 2, 2, alpha=0., eos=1),
            full_beam_search(step, torch.tensor([0]), 2, 2, power=0., eos=1))
    assert [h.ids for h in a] == [(1,), (2, 1)] and [h.ids for h in b] == [(1,), (3, 1)]
    assert [round(math.exp(h.logprob), 3) for h in (*a, *b)] == [.5, .102, .5, .196]


@pytest.mark.parametrize("settings, said", [
    ({"power": math.nan}, "power: nan; expected a finite number"),
    ({"power": math.inf}, "power: inf; expected"), ({"power": "1"}, "power: '1'"),
    ({"eos": -1}, "eos: -1; expected the id of a token"), ({"eos": 1.}, "eos: 1.0"),
    ({"eos": None}, "eos: None"),
])
def test_settings_that_a_search_cannot_use_are_refused(settings, said):
    refuses(f"^{said}", full_beam_search, table({}), torch.tensor([0]), 3, 2, **settings)
    # long texts may cost
    assert full_beam_search(table({}), torch.tensor([0]), 3, 2, power=-1., eos=1)


# --- parts ----------------------------------------------------------------------------------------


def config(**more) -> ModelConfig:
    options = {name: more.pop(name) for name in ("embeddings", "n_buckets", "logits_bias")
               if name in more}
    return ModelConfig(**dict(kind="encoder-decoder", vocab_size=23, d_model=24, n_layers=2,
                              n_heads=3, max_len=20, head_dim=4) | more, options=options)


def test_all_layers_of_a_stack_share_one_bias_and_the_stacks_share_none():
    model = build(config(attention="scale-free", positions="relative", norm="rmsnorm",
                         norm_position="pre", embeddings="scaled output", n_buckets=8))
    biases = {side: {id(block.attention.inner.attention_fn.encoding.weight)
                     for block in getattr(model, side).blocks} for side in ("encoder", "decoder")}
    assert all(len(ids) == 1 for ids in biases.values()) and biases["encoder"] != biases["decoder"]
    assert ([getattr(model, side).blocks[0].attention.inner.attention_fn.encoding.bidirectional
             for side in ("encoder", "decoder")] == [True, False])
    assert all(not hasattr(block.cross.inner.attention_fn, "encoding")
               for block in model.decoder.blocks)


def test_embeddings_of_bart_share_the_table_and_nothing_else():
    model = build(config(positions="learned, from row 2", embeddings="normed", logits_bias=True))
    a, b = model.source_embedding, model.target_embedding
    assert a is not b and a.weight is b.weight and a.bias is b.bias
    assert (a.norm.weight is not b.norm.weight
            and a.positional_encoding.weight is not b.positional_encoding.weight
            and a.positional_encoding.weight.shape == (22, 24))
    refuses("^source_vocab_size: 9; expected None", build,
        config(positions="learned", embeddings="normed", source_vocab_size=9))
    refuses(r"^options\['embeddings'\]: .*'half'", lambda: build(config(embeddings="half")))
    refuses("^ids: 21 tokens; expected at most 20", a, torch.zeros(1, 21, dtype=torch.long))


def test_t5s_weights_give_scores_and_logits_of_size_one():
    model = build(config(vocab_size=400, d_model=256, head_dim=64, attention="scale-free",
                         positions="relative", norm="rmsnorm", norm_position="pre",
                         embeddings="scaled output", embedding_scale=1., ffn_bias=False,
                         max_len=None))
    init_t5(model)
    x = torch.randint(4, 400, (4, 30), generator=torch.Generator().manual_seed(0))
    inner = model.encoder.blocks[0].attention.inner
    with torch.no_grad():
        h = model.encoder.blocks[0].attention.norm(model.source_embedding(x))
        q, (k, _) = MultiHeadAttention.project_q(inner, h), inner.project_kv(h)
        assert .9 < float((q @ k.mT).std()) < 1.1 and abs(float(q.std()) - 64**-.5) < .01
        logits = model(x, x)[0]
    assert .8 < float(logits.std()) < 1.2
    assert (len({float(p.detach().std()) for p in model.parameters() if p.ndim > 1}) > 4
            and all(float(p.detach().std()) == 0 for p in model.parameters() if p.ndim == 1))
    before = own_tensors(model)["encoder.blocks.0.attention.inner.q_proj.weight"].clone()
    init_t5(model, seed=1)
    assert not torch.equal(before,
                           own_tensors(model)["encoder.blocks.0.attention.inner.q_proj.weight"])
