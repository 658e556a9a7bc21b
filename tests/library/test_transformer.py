"""The transformer of chapter 8 against PyTorch's and Hugging Face's, its searches against all
sentences, and what they must refuse."""
import math
from dataclasses import replace
from itertools import product

import families
import pytest
import torch
import torch.nn.functional as F
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from torch import nn

from tfmlib.alignment import BOS, EOS, PAD, shift_right, translation_loss
from tfmlib.attention import causal_mask
from tfmlib.block import LayerNorm, RMSNorm
from tfmlib.checkpoints import (
    MODEL_CONFIGS,
    MODERN,
    ModelConfig,
    build,
    count_parameters,
    from_pretrained,
    to_pretrained,
)
from tfmlib.decoders import gpt2, llama
from tfmlib.denoisers import modern_transformer
from tfmlib.encoders import BERT, MaskedLMHead, bert
from tfmlib.positions import PositionalEncoding
from tfmlib.transformer import (
    InverseSqrtSchedule,
    SimpleTransformer,
    TokenEmbedding,
    Transformer,
    beam_search,
    greedy_search,
    label_smoothed_cross_entropy,
    label_smoothed_loss,
    length_penalty,
    make_log_probs_fn,
    original_transformer,
    source_mask,
    stacks_from_torch,
)
from tfmlib.transformer.figures import DecodingView

SMALL = ModelConfig("encoder-decoder", 14, 8, 2, 2, source_vocab_size=11, d_ff=12)
seeds = st.integers(0, 10_000)
quick = settings(max_examples=often(25), deadline=None)


def made(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    return build(config, seed=seed).double().eval()


def sentences(lengths: list[int], vocabulary: int, seed: int = 0) -> torch.Tensor:
    "Random sentences of these lengths, end mark included, padded."
    g = torch.Generator().manual_seed(seed)
    x = torch.full((len(lengths), max(lengths)), PAD)
    for row, n in zip(x, lengths):
        row[:n - 1], row[n - 1] = torch.randint(4, vocabulary, (n - 1,), generator=g), EOS
    return x


def numbers(model: nn.Module) -> int: return sum(p.numel() for p in model.parameters())


# --- sizes ----------------------------------------------------------------------------------------

@quick
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.booleans(),
       st.booleans())
def test_the_formula_counts_what_the_model_has(half, heads, layers, hidden, bias, one_table):
    config = ModelConfig("encoder-decoder", 9, 2 * half * heads, layers, heads,
                         source_vocab_size=None if one_table else 7, d_ff=hidden, dropout=.1,
                         attention_bias=bias)
    with torch.device("meta"):
        assert numbers(build(config)) == sum(count_parameters(config).values())


def test_the_sizes_of_the_paper():
    assert ([sum(count_parameters(MODEL_CONFIGS[name]).values()) for name in ("base", "big")]
            == [63_045_632, 214_171_648])
    with torch.device("meta"): assert numbers(build(MODEL_CONFIGS["big"])) == 214_171_648


def with_own_norms(model: nn.Module) -> nn.Module:
    "The model with the norms of chapter 7 in place of PyTorch's, which round otherwise."
    for part in [*model.modules()]:
        for name, norm in [*part.named_children()]:
            if type(norm) not in (nn.LayerNorm, nn.RMSNorm): continue
            own = (LayerNorm(*norm.normalized_shape, norm.eps, norm.bias is not None)
                   if isinstance(norm, nn.LayerNorm) else RMSNorm(*norm.normalized_shape, norm.eps))
            own.load_state_dict(norm.state_dict())
            setattr(part, name, own)
    return model


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(): r = model(ids, ids) if isinstance(model, Transformer) else model(ids)
    return r[0] if isinstance(r, tuple) else r["masked-lm"] if isinstance(r, dict) else r


def test_the_builder_makes_what_the_chapters_assemble():
    """The configured builder returns the same classes, and from one seed the same weights, as
    the models put together by hand; only its norms are PyTorch's."""
    bert_shape = ModelConfig("bert", 20, 16, 2, 2, 12, **BERT,
                             options={"heads": "masked-lm", "n_segments": 0, "causal": True})
    both = ModelConfig("encoder-decoder", 30, 16, 2, 2, source_vocab_size=20, d_ff=40, dropout=.1)
    modern = ModelConfig("encoder-decoder", 30, 16, 2, 2, **MODERN)
    pairs = [(build(both), original_transformer(30, 16, 2, 2, 40, 20)),
             (build(replace(both, source_vocab_size=None), seed=5),
              original_transformer(30, 16, 2, 2, 40, seed=5)),
             (build(MODEL_CONFIGS["toy GPT-2"]), gpt2(2048, 96, 2, 4, 128)),
             (build(MODEL_CONFIGS["toy Llama"]), llama(2048, 96, 2, 4, 128, 2)),
             (build(replace(MODEL_CONFIGS["toy Llama"], tie_embeddings=False, d_ff=100)),
              llama(2048, 96, 2, 4, 128, 2, 100, tied=False)),
             (build(bert_shape), bert(20, 16, 2, 2, 12, {"masked-lm": MaskedLMHead}, 0,
                                      causal=True)),
             (build(modern), modern_transformer(30, 16, 2, 2))]
    for ours, by_hand in pairs:
        a, b = ours.state_dict(), by_hand.state_dict()
        assert (type(ours) is type(by_hand) and [*a] == [*b]
                and all(torch.equal(a[name], b[name]) for name in a)), type(ours)
        ids = torch.randint(3, 20, (2, 7))
        torch.testing.assert_close(logits_of(ours.double().eval(), ids),
                                   logits_of(by_hand.double().eval(), ids), rtol=0, atol=1e-12)
        assert torch.equal(*(logits_of(with_own_norms(model.float()), ids)
                             for model in (ours, by_hand)))


# --- words ----------------------------------------------------------------------------------------

def test_words_that_go_in_are_dropped():
    words, ids = TokenEmbedding(9, 6, PositionalEncoding(), dropout=.5, scale=1.), [3, 8]
    torch.manual_seed(0)
    dropped, wanted = words.train()(torch.tensor([ids]))[0], 2 * words.weight[ids]
    assert ((dropped == 0) | torch.isclose(dropped, wanted)).all() and (dropped == 0).any()


# --- who sees what --------------------------------------------------------------------------------

@pytest.mark.parametrize("around", ["post", "pre"])
@quick
@given(seeds, st.integers(1, 5), st.integers(1, 6), st.integers(0, 4))
def test_neither_future_nor_padding_nor_company_is_seen(around, seed, S, T, more):
    model, x, y = (made(replace(SMALL, norm_position=around)), sentences([S, 4], 11, seed),
                   sentences([T, 3], 14, seed + 1))
    scores = model(x, shift_right(y))[0]
    g = torch.Generator().manual_seed(seed)
    longer = model(F.pad(x, (0, more)), F.pad(shift_right(y), (0, more)))[0][:, :y.shape[1]]
    torch.testing.assert_close(longer, scores, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(x[:1, :S], shift_right(y)[:1, :T])[0], scores[:1, :T],
                               rtol=0, atol=1e-10)
    t = int(torch.randint(1, y.shape[1] + 1, (), generator=g)) - 1
    given_y = shift_right(y).clone()
    given_y[0, t] = 4 + (given_y[0, t] - 3) % 10
    moved = (model(x, given_y)[0] - scores)[0].detach().abs().amax(-1)
    assert float(moved[:t].sum()) == 0 and float(moved[t]) > 0


def test_the_short_class_computes_the_same_and_takes_the_same_weights():
    model = made()
    parts = (model.source_embedding, model.encoder, model.target_embedding, model.decoder)
    short = SimpleTransformer(*parts)
    x, y = sentences([6, 3], 11), shift_right(sentences([4, 2], 14, seed=1))
    torch.testing.assert_close(short(x, y), model(x, y)[0])
    assert [*short.state_dict()] == [*model.state_dict()]


# --- equal to others ------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_stacks_equal_torch(first, bias, activation):
    torch.manual_seed(1)
    theirs = nn.Transformer(12, 3, 2, 3, 20, batch_first=True, norm_first=first, bias=bias,
                            activation=activation).double().eval()
    for p in theirs.parameters(): nn.init.normal_(p, std=.4)
    reader, writer = stacks_from_torch(theirs)
    a, b, hidden = (torch.randn(3, 7, 12).double(), torch.randn(3, 5, 12).double(),
                    torch.arange(7) >= torch.tensor([[7], [1], [4]]))
    memory, mask = reader(a, mask=~hidden[:, None, None])[0], ~hidden[:, None, None]
    wanted = theirs(a, b, tgt_mask=~causal_mask(5, 5), src_key_padding_mask=hidden,
                    memory_key_padding_mask=hidden)
    torch.testing.assert_close(writer(b, mask=causal_mask(5, 5),
                                      cross={"memory": memory, "mask": mask})[0], wanted,
                               rtol=0, atol=1e-11)


def ours_of(theirs): return from_pretrained(theirs.state_dict(), theirs.config.to_dict())


@pytest.mark.parametrize("choice",
                         [{}, {"scale_embedding": False}, {"activation_function": "swish"},
                          {"activation_function": "relu", "d_model": 6,
                           "decoder_attention_heads": 1},
                          {"decoder_attention_heads": 2, "decoder_ffn_dim": 24},
                          # as its published files have them: the last number for padding and to
                          # begin with, 0 for the end
                          {"pad_token_id": 39, "decoder_start_token_id": 39, "eos_token_id": 0}])
@pytest.mark.parametrize("seed", sweep(range(3), 0))
@torch.no_grad()
def test_marian_scores_and_writes_the_same_there_and_back(seed, choice):
    """The same names and numbers come back, copies of the table and the code of positions among
    them; those may also be absent."""
    theirs, x = families.marian(seed=seed, **choice), sentences([9, 4, 6], 40, seed)
    pad, start, end = (getattr(theirs.config, f"{mark}_token_id")
                       for mark in ("pad", "decoder_start", "eos"))
    x = torch.where(x == PAD, pad, torch.where(x == EOS, end, x.clamp(max=38)))
    y = shift_right(sentences([7, 3, 5], 39, seed + 1))
    ours, y[:, 0], mask = ours_of(theirs), start, (x != pad).long()
    wanted = theirs(input_ids=x, attention_mask=mask, decoder_input_ids=y).logits
    assert float((ours(x, y)[0] - wanted).abs().max()) < 1e-4
    told = theirs.generate(x, attention_mask=mask, num_beams=1, do_sample=False,
                           max_new_tokens=12)[:, 1:]
    assert torch.equal(told, greedy_search(make_log_probs_fn(ours, x), torch.full((3, 1), start),
                                           12, eos=end, pad=pad))
    back, state = to_pretrained(ours, "marian"), theirs.state_dict()
    assert back.keys() == state.keys()
    for name, t in state.items():
        torch.testing.assert_close(back[name], t, rtol=0, atol=1e-6 * ("embed_positions" in name))
    own = {name: t for name, t in state.items() if "embed_" not in name
           and name != "lm_head.weight"}
    assert torch.equal(from_pretrained(own, theirs.config.to_dict())(x, y)[0], ours(x, y)[0])


# --- training -------------------------------------------------------------------------------------

@quick
@given(seeds, st.floats(0, .99), st.integers(1, 4), st.integers(1, 5))
def test_smoothing_equals_torch(seed, smoothing, B, T):
    g = torch.Generator().manual_seed(seed)
    scores, y = (torch.randn(B, T, 7, generator=g, dtype=torch.float64),
                 torch.randint(0, 7, (B, T), generator=g))
    y[0, 0] = 3
    wanted = F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=PAD,
                             label_smoothing=smoothing)
    torch.testing.assert_close(label_smoothed_cross_entropy(scores, y, smoothing), wanted)


def test_a_word_that_may_not_be_costs_nothing_without_smoothing():
    scores, y = torch.tensor([[[1., -torch.inf, 2., 0.]]]), torch.tensor([[2]])
    torch.testing.assert_close(label_smoothed_cross_entropy(scores, y, 0.),
                               F.cross_entropy(scores[0], y[0]))
    assert label_smoothed_cross_entropy(scores, y, .1) == torch.inf


def test_without_smoothing_it_is_the_loss_of_chapter_2():
    model, x, y = made(), sentences([5, 3], 11), sentences([4, 6], 14)
    torch.testing.assert_close(label_smoothed_loss(model, x, y, 0.), translation_loss(model, x, y))
    torch.testing.assert_close(label_smoothed_loss(model, x, y),
                               label_smoothed_cross_entropy(model(x, shift_right(y))[0], y, .1))


def words(ids): TokenEmbedding(9, 6, PositionalEncoding())(ids)
def translate(x, y): made()(torch.tensor(x), torch.tensor(y))
def beams(start=(BOS,), max_len=4, ask=None, **how):
    beam_search(ask or chain(0, 5)[0], torch.tensor(start, dtype=torch.int64), max_len, **how)
def greedy(start, max_len=4): greedy_search(chain(0, 5)[0], torch.tensor(start), max_len)
def smoothed(y, *smoothing, scores=(1, 2, 5)):
    label_smoothed_cross_entropy(torch.zeros(scores), torch.tensor(y), *smoothing)


REFUSED = [
    ("ids: .*from 0 to 9; expected token ids, 0 to 8", lambda: words(torch.tensor([[0, 9]]))),
    ("ids: .*from -1 to 2", lambda: words(torch.tensor([[-1, 2]]))),
    (r"ids: .*\(2,\)", lambda: words(torch.tensor([1, 2]))),
    ("ids: .*float32", lambda: words(torch.tensor([[1.]]))),
    (r"ids: .*\(1, 0\)", lambda: words(torch.zeros(1, 0, dtype=torch.int64))),
    ("ids: .*list", lambda: words([[1]])),
    ("x: padding before a word", lambda: source_mask(torch.tensor([[PAD, 5]]))),
    ("x: a row of padding", lambda: source_mask(torch.tensor([[5, 2], [PAD, PAD]]))),
    ("x: from 4 to 11; expected token ids, 0 to 10", lambda: translate([[4, 11]], [[1, 5]])),
    ("y: from 1 to 14", lambda: translate([[4, 5]], [[1, 14]])),
    ("y: 1 targets; expected 2", lambda: translate([[4], [5]], [[1]])),
    *[(f"{name}: ", lambda wrong=wrong: build(replace(SMALL, **wrong))) for name, wrong in (
        ("n_heads", {"n_heads": 3}), ("n_layers", {"n_layers": 0}),
        ("vocab_size", {"vocab_size": 0}), ("d_ff", {"d_ff": 1.5}), ("dropout", {"dropout": 1.}),
        ("dim", {"d_model": 7, "n_heads": 1}))],
    ("label_smoothing: ", lambda: smoothed([[4, 4]], 1.)), ("y: ", lambda: smoothed([[4, 4, 4]])),
    ("y: ", lambda: smoothed([[4, 5]])), ("y: ", lambda: smoothed([[0, 0]])),
    ("y: ", lambda: smoothed([4, 4], scores=(2, 5))),
    ("d_model: ", lambda: InverseSqrtSchedule(0)),
    ("warmup_steps: ", lambda: InverseSqrtSchedule(8, 0)),
    ("factor: ", lambda: InverseSqrtSchedule(8, factor=0.)),
    ("beam_size: ", lambda: beams(beam_size=0)), ("beam_size: ", lambda: beams(beam_size=1.5)),
    ("max_len: ", lambda: beams(max_len=0)), ("alpha: ", lambda: beams(alpha=-1.)),
    ("start: ", lambda: beams([[BOS]])), ("start: ", lambda: beams([])),
    *[("log_probs_fn: ", lambda logs=logs: beams(ask=lambda rows: logs)) for logs in (
        torch.zeros(7, 5), torch.full((1, 5), math.nan), torch.full((1, 5), -math.inf))],
    ("start: ", lambda: greedy([BOS])), ("max_len: ", lambda: greedy([[BOS]], 0)),
    ("start: ", lambda: greedy_search(chain(0, 5)[0], [[BOS]], 3)),
    ("log_probs_fn: ", lambda: greedy_search(
        lambda rows: torch.ones(len(rows), 5), torch.tensor([[BOS]]), 3)),
    ("model: ", lambda: make_log_probs_fn(made().train(), sentences([3], 11))),
    ("y: ", lambda: make_log_probs_fn(made(), sentences([3, 3], 11))(torch.tensor([[BOS]]))),
]


@pytest.mark.parametrize("said, call", REFUSED)
def test_what_does_not_fit_is_refused_by_name(said, call):
    refuses(f"^{said}", call)


@given(st.integers(1, 2000), st.integers(1, 5000))
def test_the_rate_rises_in_a_line_and_falls_with_the_root(width, warmup):
    rate = InverseSqrtSchedule(width, warmup)
    assert (math.isclose(rate.peak, (width * warmup) ** -.5)
            and math.isclose(rate(warmup - 1), rate.peak))
    assert (math.isclose(rate(0), rate.peak / warmup) and math.isclose(rate(4 * warmup - 1),
            rate.peak / 2))
    assert all(rate(n) <= rate.peak * (1 + 1e-12) for n in (0, warmup // 2, warmup, 3 * warmup))


# --- searching ------------------------------------------------------------------------------------

def chain(seed: int, V: int, sharp: float = 2.):
    "A random answer to what comes next, after the last word, and its table."
    logs = (sharp * torch.randn(V, V, generator=torch.Generator().manual_seed(seed),
                                dtype=torch.float64)).log_softmax(-1)
    return (lambda rows: logs[rows[:, -1]]), logs


def every_ending(logs: torch.Tensor, longest: int) -> list[tuple]:
    "All sentences that end, with their log-probabilities, the slow way."
    V, made = len(logs), []
    for n in range(1, longest + 1):
        for body in product([w for w in range(V) if w != EOS], repeat=n - 1):
            ids = (*body, EOS)
            made.append((ids, sum(float(logs[a, b]) for a, b in zip((BOS, *body), ids))))
    return made


@quick
@given(seeds, st.integers(3, 4), st.integers(1, 4), st.sampled_from([0., .6, 1., 2.]))
def test_a_beam_wide_enough_finds_the_best_of_all(seed, V, longest, alpha):
    ask, logs = chain(seed, V)
    found = beam_search(ask, torch.tensor([BOS]), longest, beam_size=V**longest, alpha=alpha)
    wanted = sorted(((lp / length_penalty(len(ids), alpha), ids)
                     for ids, lp in every_ending(logs, longest)), reverse=True)
    ended = [h for h in found if h.ended]
    assert len(ended) == len(wanted) and found[:len(ended)] == ended
    assert [h.score for h in ended] == pytest.approx([s for s, _ in wanted])
    assert (len(found) - len(ended) == (V - 1) ** longest and len({h.ids for h in found})
            == len(found))


@quick
@given(seeds, st.integers(3, 8), st.integers(1, 8))
def test_one_beam_is_greedy(seed, V, longest):
    ask, _ = chain(seed, V)
    (one,), greedy = (beam_search(ask, torch.tensor([BOS]), longest, beam_size=1),
                      greedy_search(ask, torch.tensor([[BOS]]), longest)[0].tolist())
    assert list(one.ids) == greedy and one.ended == (greedy[-1] == EOS)


@quick
@given(seeds, st.integers(4, 7), st.integers(1, 6), st.integers(1, 5), st.floats(0, 2))
def test_what_a_beam_says_of_its_sentences_is_true(seed, V, longest, beams, alpha):
    ask, logs = chain(seed, V)
    found = beam_search(ask, torch.tensor([BOS]), longest, beams, alpha)
    assert 1 <= len(found) <= beams and len({h.ids for h in found}) == len(found)
    for h in found:
        assert (h.logprob
                == pytest.approx(sum(float(logs[a, b]) for a, b in zip((BOS, *h.ids), h.ids))))
        assert h.score == pytest.approx(h.logprob / length_penalty(len(h.ids), alpha))
        assert (h.ended == (h.ids[-1] == EOS) and EOS not in h.ids[:-1]
                and (h.ended or len(h.ids) == longest))


def test_impossible_words_are_never_written():
    logs = torch.full((5, 5), -math.inf, dtype=torch.float64)
    logs[1, 3], logs[3, 2] = 0., 0.
    assert ([h.ids for h in beam_search(lambda rows: logs[rows[:, -1]], torch.tensor([BOS]), 6,
                                        beam_size=9)] == [(3, EOS)])


def test_searches_start_where_they_are_told_and_know_other_marks():
    ask, logs = chain(6, 6)
    found = beam_search(ask, torch.tensor([BOS, 4]), 3, beam_size=50, alpha=0., eos=5)
    assert all(h.logprob
               == pytest.approx(sum(float(logs[a, b]) for a, b in zip((4, *h.ids), h.ids)))
               and 5 not in h.ids[:-1] for h in found)
    rows = greedy_search(ask, torch.tensor([[1, 5], [1, 3]]), 4, eos=int(logs[5].argmax()), pad=9)
    assert rows[0].tolist() == [int(logs[5].argmax()), 9], "the other row goes on"


def test_length_penalty():
    assert length_penalty(1, .6) == 1 and length_penalty(7, 1.) == 2 and length_penalty(50, 0.) == 1


@quick
@given(seeds)
def test_a_translation_does_not_depend_on_the_batch(seed):
    model, x = made(seed=seed % 7), sentences([3, 6, 2], 11, seed)
    rows = greedy_search(make_log_probs_fn(model, x), torch.full((3, 1), BOS), 6)
    for row, source in zip(rows, x):
        n = int((source != PAD).sum())
        alone = greedy_search(make_log_probs_fn(model, source[None, :n]),
                              torch.tensor([[BOS]]), 6)[0]
        assert (alone.tolist() == row.tolist()[:len(alone)]
                and all(w == PAD for w in row.tolist()[len(alone):]))


def test_one_source_serves_many_rows_and_scores_are_those_of_training():
    model, x, y = made(), sentences([5], 11), sentences([4, 4, 4], 14)
    many = make_log_probs_fn(model, x)(shift_right(y))
    torch.testing.assert_close(many,
                               model(x.expand(3, -1), shift_right(y))[0][:, -1].log_softmax(-1))


def test_the_figure_draws_what_was_written_so_far():
    figure = DecodingView(
        alt="lines from words to words", sources=[["the", "owl", "<end>"]],
        targets=[["le", "hibou", "<end>"]], looks=["layer 1"],
        words=[[["le"], ["hibou"], ["<end>"]]], chances=[[[.9], [.8], [1.]]],
        weights=[[[[.9, .1, 0.], [.2, .8, 0.], [0., .1, .9]]]], step=1)
    drawn = figure.picture()
    assert "hibou" in drawn and drawn.count("&lt;end") == 1 and drawn.count("<path") == 3
    figure.step = 2
    assert figure.picture().count("&lt;end") == 2
