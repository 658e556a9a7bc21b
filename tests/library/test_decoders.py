"""The decoder against Hugging Face's GPT-2 and Llama, its sampling against their processors, and
its own promises."""
import inspect
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as theirs_

from tfmlib.attention import attention
from tfmlib.checkpoints import (
    MODEL_CONFIGS,
    ModelConfig,
    build,
    count_parameters,
    from_pretrained,
    load_model,
    save_model,
    to_pretrained,
)
from tfmlib.decoders import (
    NextToken,
    SamplingConfig,
    chunk,
    cross_entropy,
    generate,
    min_p,
    next_token_loss,
    perplexity,
    repetition_penalty,
    sample,
    split_reasoning,
    temperature,
    top_k,
    top_p,
)
from tfmlib.decoders import core as decoders
from tfmlib.workbench import fill_weights, save_tensors

pytestmark = pytest.mark.usefixtures("early_families", "one_thread")

TINY = MODEL_CONFIGS["toy GPT-2"].sized(23, 15, 2, 3, 12)      # heads of width 5
MODERN = MODEL_CONFIGS["toy Llama"].sized(23, 20, 2, 4, 12, n_kv_heads=1, head_dim=6)


def gap(a, b): return float((a - b).detach().abs().max())


def tokens(seed, *shape, vocab=23):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


# --- equal to Hugging Face's ----------------------------------------------------------------------

def loud(model, std=.3):
    "Random weights large enough that a wrong formula shows."
    torch.manual_seed(0)
    for p in model.parameters(): torch.nn.init.normal_(p, std=std)
    return model.eval()


def gpt2(width, heads, layers=3):
    config = GPT2Config(vocab_size=61, n_embd=width, n_layer=layers, n_head=heads, n_positions=40,
                        bos_token_id=None, eos_token_id=None)
    return (loud(GPT2LMHeadModel(config)), MODEL_CONFIGS["GPT-2 small"].sized(61, width, layers,
            heads, 40), "gpt2")


def llama(width, heads, groups, head_width, tied=False):
    config = LlamaConfig(vocab_size=61, hidden_size=width, intermediate_size=37,
                         num_hidden_layers=3, num_attention_heads=heads, num_key_value_heads=groups,
                         head_dim=head_width, max_position_embeddings=40, rms_norm_eps=1e-5,
                         rope_theta=500_000., tie_word_embeddings=tied, bos_token_id=None,
                         eos_token_id=None)
    shape = MODEL_CONFIGS["Llama 3 8B"].sized(61, width, 3, heads, 40, n_kv_heads=groups,
                                              head_dim=head_width, d_ff=37, tie_embeddings=tied)
    return loud(LlamaForCausalLM(config)), shape, "llama"


def taken(theirs):
    "Their model as ours."
    return from_pretrained(theirs.state_dict(), theirs.config.to_dict())


PEERS = {"gpt2, heads of 5": lambda: gpt2(15, 3), "gpt2, one head of 16": lambda: gpt2(16, 1, 1),
         "llama, one key head": lambda: llama(20, 5, 1, 6),
         "llama, two key heads, wide": lambda: llama(12, 4, 2, 10),
         "llama, all key heads, tied": lambda: llama(12, 2, 2, 6, tied=True)}


@pytest.mark.parametrize("peer", PEERS)
def test_logits_and_greedy_tokens_are_hugging_faces(peer):
    """Plain, left-padded and at an offset, to 1e-5 of logits of size one and more; twenty greedy
    tokens; and the same tensors back."""
    theirs, shape, family = PEERS[peer]()
    ours, ids = taken(theirs), tokens(1, 4, 17, vocab=61)
    assert ours.config == shape
    state, there = to_pretrained(ours, family), theirs.state_dict()
    assert (state.keys() == there.keys()
        and all(torch.equal(state[name], t) for name, t in there.items()))
    with torch.no_grad():
        wanted = theirs(ids).logits
        tol = 1e-5 * max(1, float(wanted.abs().max()))
        assert gap(ours(ids), wanted) < tol
        real = torch.arange(17) >= torch.tensor([0, 3, 9, 16])[:, None]
        places = (real.cumsum(1) - 1).clamp(min=0)
        padded = theirs(ids, attention_mask=real.long(), position_ids=places).logits
        assert gap(ours(ids, real)[real], padded[real]) < tol
        later = torch.arange(20, 37)
        assert (gap(ours(ids, positions=later),
                    theirs(ids, position_ids=later[None].expand(4, -1)).logits) < tol)
        greedy = theirs.generate(ids, attention_mask=real.long(), max_new_tokens=20,
                                 do_sample=False, pad_token_id=0)
    assert torch.equal(generate(ours, ids, 20, padding_mask=real), greedy)
    assert len(greedy[0, 17:].unique()) > 1


NAMES = {"gpt2, heads of 5": "transformer.h.1.mlp.c_fc.weight",
    "llama, one key head": "model.layers.1.mlp.up_proj.weight"}
STATES = {                                          # what is wrong with a tensor -> what is said
    "": (lambda state, name: {key: t for key, t in state.items() if key != name},
        "state: {} missing"),
    "more": (lambda state, name: state | {"a.new.one": torch.zeros(1)}, "state: a.new.one unknown"),
    "shape": (lambda state, name: state | {name: state[name][None]}, r"{}: \(1, "),
    "wide": (lambda state, name: state | {name: state[name].double()},
        "{}: torch.float64; expected torch.float32, as "),
    "whole": (lambda state, name: state | {name: state[name].long()},
        "{}: torch.int64; expected floating-point numbers"),
    "list": (lambda state, name: state | {name: state[name].tolist()},
        "{}: list; expected floating-point numbers")}


@pytest.mark.parametrize("fault", STATES)
@pytest.mark.parametrize("peer", NAMES)
def test_checkpoints_that_do_not_fit_are_refused_by_name(peer, fault):
    (theirs, *_), (wrong, said) = PEERS[peer](), STATES[fault]
    refuses(said.format(NAMES[peer]), from_pretrained, wrong(theirs.state_dict(), NAMES[peer]),
        theirs.config.to_dict())


@pytest.mark.parametrize("peer", NAMES)
def test_another_family_is_refused_by_name(peer):
    theirs, shape, family = PEERS[peer]()
    other = "llama" if family == "gpt2" else "gpt2"
    refuses("model_type: got 'bert', expected one of .*gpt2, llama, mistral", from_pretrained,
        theirs.state_dict(), theirs.config.to_dict() | {"model_type": "bert"})
    refuses("family: got 'bert'", to_pretrained, build(shape), "bert")
    refuses(f"family: {other}, whose models differ", to_pretrained, build(shape), other)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_number_type_is_kept(tmp_path, kind):
    "From another library's weights into a model, into a file and out of it."
    theirs, *_ = llama(20, 5, 1, 6)
    # every digit of the type is in use
    for p in theirs.to(kind).parameters(): torch.nn.init.normal_(p, std=.3)
    ours, ids = taken(theirs), tokens(1, 2, 9, vocab=61)
    kept = to_pretrained(ours, "llama")
    assert all(torch.equal(kept[name], t) for name, t in theirs.state_dict().items())
    assert {p.dtype for p in ours.parameters()} == {kind} and ours(ids).dtype == kind
    with torch.no_grad():
        assert (gap(ours(ids), theirs(ids).logits)
                < (1e-5 if kind in (torch.float64, torch.float32) else .1))
    save_model(tmp_path / "m.safetensors", ours)
    back = load_model(tmp_path / "m.safetensors")
    assert {p.dtype for p in back.parameters()} == {kind} and torch.equal(back(ids), ours(ids))
    assert (not back.training
        and all(torch.equal(back.state_dict()[name], t) for name, t in ours.state_dict().items()))


@pytest.mark.parametrize("name, wrong, said", [
    ("stack.norm.weight", torch.zeros(3), r"stack.norm.weight: \(3,\); expected \(15,\)"),
    ("positional_encoding.weight", torch.zeros(12, 15, dtype=torch.float16),
        "positional_encoding.weight: torch.float16")])
def test_a_refused_state_changes_nothing(name, wrong, said):
    model = build(TINY)
    before = {k: t.clone() for k, t in model.state_dict().items()}
    refuses(said, fill_weights, model, {k: t + 1 for k, t in before.items()} | {name: wrong})
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.sampled_from([(2, 1), (4, 2), (3, 3)]),
       st.sampled_from([2, 4, 6]), st.sampled_from([None, 5]),
       st.sampled_from(["layernorm", "rmsnorm"]),
       st.sampled_from(["learned", "rotary", "none"]),
       st.sampled_from(["gelu_tanh", "swiglu", "none"]), st.booleans(), st.booleans())
def test_the_formula_counts_what_the_model_has(vocab, layers, heads, D, hidden, norm, places, feed,
                                               bias, tied):
    shape = ModelConfig("decoder", vocab, 12, layers, heads[0], 7, n_kv_heads=heads[1], head_dim=D,
                        d_ff=hidden, norm=norm, norm_position="pre", positions=places, ffn=feed,
                        attention_bias=bias, ffn_bias=bias, tie_embeddings=tied)
    with torch.device("meta"): model = build(shape)
    found = {"embedding": model.embedding, "positions": model.positional_encoding,
             "head": model.lm_head or torch.nn.Identity()}
    counted = {name: sum(p.numel() for p in part.parameters()) for name, part in found.items()}
    for name, word in (("attention", "attention.inner"), ("feed-forward", "feed_forward.inner"),
                       ("norms", "norm.")):
        counted[name] = sum(p.numel() for n, p in model.named_parameters() if word in n)
    assert counted == count_parameters(shape)


# --- what it promises -----------------------------------------------------------------------------

@pytest.mark.parametrize("shape",
                         [TINY, MODERN, TINY.sized(23, 12, 1, 2, 12, positions="none", ffn="none")],
                         ids=["old", "modern", "bare"])
def test_the_future_is_not_seen_and_padding_is_not_read(shape):
    model, ids = build(shape), tokens(0, 3, 9)
    for t in range(1, 9):
        other = ids.clone()
        other[:, t:] = (other[:, t:] + 1) % 23
        assert (gap(model(ids)[:, :t], model(other)[:, :t]) < 1e-6
                < gap(model(ids)[:, t:], model(other)[:, t:]))
    real = torch.arange(9) >= 4
    real = real.expand(3, -1)
    noise = ids.where(real, (ids + 5) % 23)
    assert gap(model(ids, real)[:, 4:], model(noise, real)[:, 4:]) < 1e-6
    # counted from the first real token
    assert gap(model(ids, real)[:, 4:], model(ids[:, 4:])) < 1e-5


def test_weights_are_shown_and_the_part_can_be_chosen():
    seen = []
    def noted(q, k, v, mask): seen.append(mask); return attention(q, k, v, mask)
    model, ids = build(TINY, attention_fn=noted), tokens(0, 2, 5)
    x, shown = model.hidden_states(ids)
    assert (x.shape == (2, 5, 15) and [w.shape for w in shown] == [(2, 3, 5, 5)] * 2
            and len(seen) == 2)
    assert all(float(w.detach().triu(1).abs().max()) == 0 and gap(w.sum(-1), torch.ones(2, 3, 5))
               < 1e-5 for w in shown)


@pytest.mark.parametrize("made", [decoders.gpt2, decoders.llama])
def test_both_shapes_are_seeded_alike(made):
    """Neither takes a seed: what they give is drawn from seed 0, and `initialised` draws from
    others."""
    def first(model): return next(model.parameters()).detach().clone()
    assert "seed" not in inspect.signature(made).parameters
    again = made(9, 8, 1, 2, 4)
    assert (torch.equal(first(again), first(made(9, 8, 1, 2, 4)))
            and torch.equal(first(decoders.initialised(made(9, 8, 1, 2, 4), 0)), first(again)))
    assert not torch.equal(first(decoders.initialised(made(9, 8, 1, 2, 4), 1)), first(again))
    assert torch.equal(first(decoders.initialised(again, 1)),
                       first(decoders.initialised(made(9, 8, 1, 2, 4), 1)))


@pytest.mark.parametrize("shape", [TINY, MODERN])
def test_half_precision_and_gradients_for_every_weight(shape):
    model, ids = build(shape), tokens(0, 64, 12)
    loss, count = next_token_loss(model, ids)
    loss.backward()
    assert abs(float(loss.detach() / count) - math.log(23)) < .5, "at first nothing is known"
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.parameters())
    assert gap(model(ids), model.bfloat16()(ids).float()) < .1


@pytest.mark.parametrize("ids, real, said", [
    (torch.zeros(1, 13, dtype=torch.long), None, "ids: 13 tokens; expected at most 12"),
    (torch.zeros(1, 0, dtype=torch.long), None, "ids: \\(1, 0\\); expected at least one token"),
    (torch.zeros(0, 3, dtype=torch.long), None, "ids: \\(0, 3\\)"),
    (torch.zeros(3, dtype=torch.long), None, "ids: \\(3,\\)"),
    (torch.tensor([[1, 23]]), None, "ids: from 1 to 23; expected from 0 to 22"),
    (torch.tensor([[-1, 2]]), None, "ids: from -1 to 2"),
    (torch.tensor([[1., 2.]]), None, "ids: torch.float32"),
    (torch.tensor([[1, 2]]), torch.tensor([[0, 1]]), "padding_mask: torch.int64"),
    (torch.tensor([[1, 2]]), torch.tensor([[True]]), "padding_mask: torch.bool, \\(1, 1\\)"),
    (torch.tensor([[1, 2]]), torch.tensor([[False, False]]),
     "padding_mask: a row without a token")])
def test_bad_tokens_are_refused(ids, real, said):
    for act in (lambda: build(TINY)(ids, real),
                lambda: generate(build(MODERN), ids, 0 if ids.dim() == 2 and ids.shape[1] == 13
                                 else 1, padding_mask=real)):
        refuses(said, act)


# --- loss -----------------------------------------------------------------------------------------

def test_loss_is_pytorchs_and_hugging_faces():
    theirs, *_ = gpt2(15, 3)
    ours, ids = taken(theirs), tokens(0, 4, 11, vocab=61)
    total, count = next_token_loss(ours, ids)
    assert count == 40 and gap(total / count, theirs(ids, labels=ids).loss) < 1e-5
    counted = torch.arange(11).expand(4, -1) >= torch.tensor([2, 5, 10, 11])[:, None]
    total, count = next_token_loss(ours, ids, counted)
    assert (count == 9 + 6 + 1
            and gap(total / count, theirs(ids, labels=ids.masked_fill(~counted, -100)).loss) < 1e-5)
    assert (abs(perplexity(ours, ids, counted, batch_size=3)
                - math.exp(float(total.detach()) / count)) < 1e-3)


def test_surprise_adds_up_to_the_text():
    "The sum of the surprises is minus the log-probability found one step at a time."
    model, ids = build(MODERN), tokens(0, 1, 12)
    step = sum(float(model(ids[:, :t])[0, -1].detach().log_softmax(-1)[ids[0, t]])
               for t in range(1, 12))
    assert abs(step + float(next_token_loss(model, ids)[0].detach())) < 1e-4


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30), st.integers(2, 120))
def test_rows_predict_every_token_once(length, count):
    ids = list(range(count))
    if count < length: return refuses("ids", chunk, ids, length)
    cut = chunk(ids, length)
    predicted = cut[:, 1:].flatten().tolist()
    assert predicted == ids[1:len(predicted) + 1] and count - 1 - len(predicted) < length - 1


# --- sampling -------------------------------------------------------------------------------------

@st.composite
def scores(draw_):
    "Rows of scores, many of them with ties or with tokens that are out already."
    B, V, seed = draw_(st.integers(1, 4)), draw_(st.integers(1, 30)), draw_(st.integers(0, 2**31))
    made = (draw_(st.sampled_from([.1, 1., 30.]))
            * torch.randn(B, V, generator=torch.Generator().manual_seed(seed)))
    if draw_(st.booleans()): made = (2 * made).round() / 2
    if draw_(st.booleans()): made[:, : V // 2] = -torch.inf
    return made


@settings(max_examples=often(300), deadline=None)
@given(scores(), st.integers(1, 40),
       st.one_of(st.floats(.01, 1), st.sampled_from([1., .5, .25, 1e-6])), st.floats(0, 1),
       st.floats(.05, 5), st.integers(0, 9))
def test_filters_are_hugging_faces(logits, k, p, least, t, seed):
    ids = tokens(seed, len(logits), 6, vocab=logits.shape[1])
    pairs = [(top_k(logits, k), theirs_.TopKLogitsWarper(k)),
             (top_p(logits, p), theirs_.TopPLogitsWarper(p)),
             (min_p(logits, least), theirs_.MinPLogitsWarper(least)),
             (temperature(logits, t), theirs_.TemperatureLogitsWarper(t)),
             (repetition_penalty(logits, ids, t), theirs_.RepetitionPenaltyLogitsProcessor(t))]
    # which of equals goes is arbitrary there
    def alike(a, b):
        return (torch.equal(a, b) if bool((logits.sort().values.diff() != 0).all())
                else torch.equal(a.sort().values, b.sort().values))
    for ours, theirs in pairs:
        assert (alike(ours, theirs(ids, logits.clone()))
                and (theirs.__class__ is theirs_.TopPLogitsWarper
                     or torch.equal(ours, theirs(ids, logits.clone()))))
    chained = logits
    for each in (theirs_.RepetitionPenaltyLogitsProcessor(t), theirs_.TemperatureLogitsWarper(t),
                 theirs_.TopKLogitsWarper(k), theirs_.TopPLogitsWarper(p),
                 theirs_.MinPLogitsWarper(least)):
        chained = each(ids, chained)
    assert alike(SamplingConfig(t, k, p, least, t)(logits, ids), chained)


@settings(max_examples=often(200), deadline=None)
@given(scores(), st.floats(.01, 1))
def test_top_p_keeps_the_fewest_that_suffice(logits, p):
    kept, shares = top_p(logits, p) > -torch.inf, logits.double().softmax(-1)
    for row, share in zip(kept, shares):
        held = share[row].sum()
        assert row.any() and held >= p - 1e-5 and held - share[row].min() <= p + 1e-5
        if (~row).any(): assert share[row].min() >= share[~row].max()


def test_a_filter_leaves_its_argument_alone_and_one_token_at_least():
    logits = tokens(0, 3, 7).float()
    before = logits.clone()
    for made in (top_k(logits, 1), top_p(logits, 1e-9), min_p(logits, 1.),
                 SamplingConfig(.5, 2, .5, .5, 2.)(logits, tokens(1, 3, 4, vocab=7))):
        assert (made > -torch.inf).any(-1).all()
    assert torch.equal(logits, before)


def test_draws_follow_the_shares_and_the_seed():
    logits = torch.tensor([[0., 1., -torch.inf, 2.]]).expand(40_000, 4)
    drawn = sample(logits, torch.Generator().manual_seed(0))
    found = F.one_hot(drawn, 4).double().mean(0)
    assert found[2] == 0 and gap(found, logits[0].double().softmax(-1)) < .01
    assert torch.equal(drawn, sample(logits, torch.Generator().manual_seed(0)))
    only = torch.full((500, 3), -torch.inf)
    only[:, 1] = 0
    assert (sample(only, torch.Generator().manual_seed(1)) == 1).all()


# --- generation -----------------------------------------------------------------------------------

def test_generation_is_seeded_greedy_and_stops():
    model, ids, warm = build(MODERN), tokens(0, 3, 4), SamplingConfig(temperature=2.)
    def warmly(seed, **more): return generate(model, ids, 8, warm, seed=seed, **more)
    a, best = warmly(1), generate(model, ids, 8)
    assert (torch.equal(a, warmly(1)) and not torch.equal(a, warmly(2))
        and torch.equal(a[:, :4], ids))
    assert (torch.equal(best, generate(model, ids, 8, SamplingConfig(top_k=1), seed=5))
            and torch.equal(generate(model, ids, 0), ids))
    assert torch.equal(best[:, 4], model(ids)[:, -1].argmax(-1))
    ended = warmly(1, eos=int(a[0, 5]))
    assert (ended[0, 5:] == a[0, 5]).all() and torch.equal(ended[0, :6], a[0, :6])


@pytest.mark.parametrize("cached", [False, True])
def test_no_pass_is_made_after_every_row_has_ended(cached):
    from tfmlib.kv_cache import CachedCausalLM, generate_cached
    model, ids = build(MODERN), tokens(0, 2, 4)
    first = generate(model, ids, 8)[:, 4]
    passes = []
    body = CachedCausalLM(model) if cached else model
    stack = body.model.stack if cached else model.stack
    stack.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    out = (generate_cached if cached else generate)(body, ids, 8, eos=[*map(int, first)])
    assert len(passes) == 1 and torch.equal(out, torch.cat([ids, first[:, None]], 1))


def test_the_loss_of_16_bits_is_computed_in_32():
    "The sum over the vocabulary, kept in bfloat16, was off by up to 0.1 nats a token."
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(64, 5000, generator=g)).bfloat16()
    y = torch.randint(5000, (64,), generator=g)
    ours = cross_entropy(z, y)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, F.cross_entropy(z.float(), y, reduction="none"))
    assert cross_entropy(z.double(), y).dtype == torch.float64


def test_padded_prompts_go_on_as_they_would_alone():
    for shape in (TINY, MODERN):
        model, ids = build(shape), tokens(0, 2, 5)
        real = torch.tensor([[False, False, True, True, True], [True] * 5])
        together = generate(model, ids, 4, padding_mask=real)
        assert (torch.equal(together[:1, 2:], generate(model, ids[:1, 2:], 4))
                and torch.equal(together[1:], generate(model, ids[1:], 4)))


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change, said", [
    ({"positional_encoding.weight": None}, "state: positional_encoding.weight missing"),
    ({"x": torch.zeros(1)}, "state: x unknown"),
    ({"positional_encoding.weight": torch.zeros(12, 14)},
        r"positional_encoding.weight: \(12, 14\); expected \(12, 15\)"),
        (None, "tells no configuration")])
def test_files_that_do_not_fit_are_refused(tmp_path, change, said):
    state = {name: t for name,
        t in {**build(TINY).state_dict(), **(change or {})}.items() if t is not None}
    save_tensors(tmp_path / "m.safetensors", state,
        {} if change is None else {"config": json.dumps(asdict(TINY))})
    refuses(said, load_model, tmp_path / "m.safetensors")


def test_a_file_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_model("a-model-that-is-not-there")


# --- traces and the figure ------------------------------------------------------------------------

@pytest.mark.parametrize("text, parts", [
    ("<think> a b </think> c", ("a b", "c")), ("c", ("", "c")), ("", ("", "")),
    ("<think> a b", ("a b", "")), ("<think></think>c", ("", "c")),
    ("x <think>a</think> c", ("a", "x  c")),
    ("a </think> c", ("", "a </think> c"))])
def test_a_trace_is_cut_out(text, parts): assert split_reasoning(text) == parts


def test_a_trace_may_stand_between_other_marks():
    assert split_reasoning("(a)b", "(", ")") == ("a", "b")


# --- what is refused, by name ---------------------------------------------------------------------

def shape(**change):
    return ModelConfig(**dict(kind="decoder", vocab_size=5, d_model=4, n_layers=1, n_heads=2,
        max_len=3) | change)


def written(config=TINY, **told):
    return generate(build(config), tokens(0, 1, 4), **dict(max_new_tokens=1) | told)


def loss(ids, counted=None): return next_token_loss(build(TINY), ids, counted)


FILTERS = (lambda x: temperature(x, 1.), lambda x: top_k(x, 1), lambda x: top_p(x, .5),
    lambda x: min_p(x, .5))
TWO = tokens(0, 2, 4)
REFUSED = [
    *((f"family: llama, whose models differ from this one in .*{name}", lambda name=name,
        value=value: to_pretrained(build(replace(MODERN, **{name: value})), "llama"))
      # the names alone do not tell
      for name, value in dict(positions="none", norm="layernorm", attention_bias=True,
          ffn="gelu_tanh").items()),
    # shapes
    *((f"{name}: {said}", lambda name=name, value=value: shape(**{name: value})) for name, value,
        said in (
        ("norm", "BatchNorm", "got 'BatchNorm'"), ("positions", "sin", "got 'sin'"),
        ("ffn", "moe", "got 'moe'"), ("n_layers", 0, "0"), ("n_kv_heads", 0, "0"),
        ("vocab_size", 2.5, "2.5"),
        ("ffn_bias", "no", "'no'"), ("attention_bias", 1, "1"), ("tie_embeddings", None, "None"),
        ("rope_base", 0., "0.0"), ("rope_base", -5., "-5.0"))),
    ("n_heads: 2", lambda: build(TINY.sized(5, 15, 1, 2, 3))),
    ("n_kv_heads: 3", lambda: build(MODERN.sized(5, 16, 1, 4, 3, n_kv_heads=3))),
    ("dim: 5", lambda: build(MODERN.sized(5, 15, 1, 3, 3))),
    *(("positions: from 8 to 12; expected from 0 to 11",
        lambda config=config: build(config)(tokens(0, 1, 5), positions=torch.arange(8, 13)))
        for config in (TINY, MODERN)),
    # losses; also the last of a row, which is predicted and never looked up, and the -100 of other
    # libraries
    (r"ids: \(2, 1\)", lambda: loss(tokens(0, 2, 1))), ("ids", lambda: loss(tokens(0, 5))),
    ("ids: 13 tokens", lambda: loss(tokens(0, 1, 14))),
    ("loss_mask: torch.float32", lambda: loss(TWO, torch.ones(2, 4))),
    (r"loss_mask: torch.bool, \(2, 3\)", lambda: loss(TWO, torch.ones(2, 3, dtype=torch.bool))),
    ("loss_mask: no token after the first", lambda: loss(TWO, torch.arange(4).expand(2, 4) == 0)),
    ("ids: from 1 to 23; expected from 0 to 22", lambda: loss(torch.tensor([[1, 1, 2, 23]]))),
    ("ids: from -100 to 2", lambda: loss(torch.tensor([[1, 1, 2, -100]]))),
    (r"targets: \(3,\); expected \(2,\)",
        lambda: cross_entropy(torch.zeros(2, 5), torch.zeros(3, dtype=torch.long))),
        ("ids: torch.float32; expected int64",
            lambda: cross_entropy(torch.zeros(1, 3), torch.zeros(1))),
    ("length: 1", lambda: chunk([1, 2, 3], 1)),
    (r"loss_mask: \(2, 4\)",
        lambda: perplexity(build(TINY), TWO, torch.zeros(2, 4, dtype=torch.bool))),
        (r"ids: \(0, 5\)", lambda: perplexity(build(TINY), torch.zeros(0, 5, dtype=torch.long))),
    # sampling
    *((said, lambda told=told: SamplingConfig(**told)) for said, told in (
        ("^temperature: 0.0; expected", {"temperature": 0.}),
        ("^temperature: -1", {"temperature": -1.}),
        ("^temperature: nan", {"temperature": math.nan}),
        ("^top_k: 0", {"top_k": 0}), ("^top_k: 2.5", {"top_k": 2.5}),
        ("^top_p: 0.0; expected above 0, at most 1", {"top_p": 0.}),
        ("^top_p: 1.5", {"top_p": 1.5}), ("^top_p: -0.1", {"top_p": -.1}),
        ("^min_p: 1.1", {"min_p": 1.1}),
        ("^repetition_penalty: 0.0", {"repetition_penalty": 0.}))),
    *(("logits", lambda f=f, wrong=wrong: f(wrong)) for f in FILTERS
        for wrong in (torch.zeros(5), torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 0))),
    *(("ids: from", lambda bad=bad: repetition_penalty(torch.zeros(1, 3), torch.tensor([[bad]]),
        2.)) for bad in (3, -1)),
    (r"ids: \(1, 1\); expected \(2, T\)",
        lambda: repetition_penalty(torch.zeros(2, 3), torch.zeros(1, 1, dtype=torch.long), 2.)),
    # it would be the last token, each time
    *(("logits: a row without probabilities",
        lambda row=row: sample(torch.tensor([[0., 1., 2.], row]), torch.Generator().manual_seed(0)))
      for row in ([-torch.inf] * 3, [0., math.nan, 1.], [0., torch.inf, 1.])),
    # generation
    ("max_new_tokens: 9 after 4 tokens; expected at most 8", lambda: written(max_new_tokens=9)),
    ("max_new_tokens: -1", lambda: written(max_new_tokens=-1)),
    ("max_new_tokens: 1.5", lambda: written(max_new_tokens=1.5)),
    *(("padding_mask: padding after a token",
        lambda real=real: written(padding_mask=torch.tensor([real])))
        for real in ([True, True, True, False], [True, False, True, True])),
    (r"eos: \[\]; expected None, or at least one", lambda: written(eos=[])),
    ("eos: from 99", lambda: written(eos=99)), ("eos: ", lambda: written(eos=.5)),
    ("eos: from 23 to 23", lambda: written(eos=23)),
    # traces
    *(("text: <think> twice", lambda text=text: split_reasoning(text))
        for text in ("<think>a<think>b</think>c", "<think>a</think>c<think>d")),
        ("end: ''", lambda: split_reasoning("a", end=""))]


@pytest.mark.parametrize("said, call", REFUSED)
def test_what_cannot_be_is_refused_by_name(said, call): refuses(said, call)


def test_the_figure_shows_what_sampling_keeps():
    logits = (300 * torch.randn(1, 40,
                                generator=torch.Generator().manual_seed(0))).round().int().tolist()
    figure = NextToken(prompts=["so"], logits=logits, tokens=[f"t{i}" for i in range(40)],
                       octaves=1., k=20, p=.8, least=.05,
                       alt="The likeliest tokens after so, with shares")
    before, after = figure.probabilities()
    scores = torch.tensor(logits).double() / 100
    assert gap(before, scores.softmax(-1)[0]) < 1e-12
    assert (gap(after,
                SamplingConfig(2., 20, .8, .05)(scores,
                                                torch.zeros(1, 0, dtype=torch.long)).softmax(-1)[0])
            < 1e-12)
    assert "<svg" in figure.picture() and f"t{int(before.argmax())}" in figure.picture()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_filters_at_their_edges_in_other_precisions(kind):
    """The type stays; k above V cuts nothing, p = 1 only what is rounded to share 0, as theirs
    does; one token is always left; -inf everywhere stays so."""
    logits, one, none = (tokens(3, 2, 9).to(kind), torch.zeros(1, 1, dtype=kind),
                         torch.full((1, 4), -torch.inf, dtype=kind))
    ids = torch.zeros(2, 1, dtype=torch.long)
    for keep in (lambda x: top_k(x, 99), lambda x: min_p(x, 0.)):
        assert torch.equal(keep(logits), logits)
    assert (torch.equal(top_p(logits, 1.), theirs_.TopPLogitsWarper(1.)(ids, logits))
            and bool((logits.softmax(-1)[top_p(logits, 1.) == -torch.inf] < 1e-7).all()))
    assert (torch.equal(top_p(logits, .8), theirs_.TopPLogitsWarper(.8)(ids, logits))
            and torch.equal(min_p(logits, .1), theirs_.MinPLogitsWarper(.1)(ids, logits)))
    for keep in (lambda x: top_k(x, 1), lambda x: top_p(x, 1e-9), lambda x: min_p(x, 1.),
                 lambda x: temperature(x, .5)):
        assert torch.equal(keep(one), one) and torch.equal(keep(none), none)
        assert keep(logits).dtype == kind and bool((keep(logits) > -torch.inf).any(-1).all())
    assert SamplingConfig(.7, 4, .9, .1, 1.3)(logits, ids).dtype == kind
