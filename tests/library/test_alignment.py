"""The translators of chapter 2 against loops, against themselves, and against what they must
refuse."""
import pytest
import torch
import torch.nn.functional as F
from attending import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from torch import nn

from tfmlib.alignment import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    AdditiveScore,
    BahdanauDecoder,
    FixedContextDecoder,
    GRUEncoder,
    LuongDecoder,
    MultiplicativeScore,
    Seq2Seq,
    SoftDictionary,
    Vocabulary,
    alignment_error_rate,
    context_vector,
    final_state,
    greedy_decode,
    hard_alignment,
    shift_right,
    show_alignments,
    translation_loss,
)

V, C = 12, 6
DECODERS = {"one": lambda: FixedContextDecoder(V, C), "bahdanau": lambda: BahdanauDecoder(V, C,
        AdditiveScore(C)), "bahdanau, product": lambda: BahdanauDecoder(V, C,
                MultiplicativeScore(C)),
            "luong": lambda: LuongDecoder(V, C, MultiplicativeScore(C)),
            "luong, additive": lambda: LuongDecoder(V, C, AdditiveScore(C))}
every_decoder = pytest.mark.parametrize("kind", DECODERS)
seeds = st.integers(0, 10_000)


def made(kind: str, seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(GRUEncoder(V, C), DECODERS[kind]()).double().eval()


def sources(lengths: list[int], seed: int = 0, width: int | None = None) -> torch.Tensor:
    "Random sentences of these lengths, end mark included, padded."
    g = torch.Generator().manual_seed(seed)
    x = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, n in zip(x, lengths):
        row[:n - 1], row[n - 1] = torch.randint(len(SPECIALS), V, (n - 1,), generator=g), EOS
    return x


# --- words ----------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1,
                max_size=6).filter(lambda w: w not in SPECIALS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(words, max_size=5), min_size=1, max_size=4))
def test_words_come_back(sentences):
    vocabulary = Vocabulary(w for s in sentences for w in s)
    x = vocabulary.batch(sentences)
    assert x.shape == (len(sentences), 1 + max(map(len, sentences)))
    assert [vocabulary.decode(row) for row in x] == sentences
    assert (((x == EOS).sum(1) == 1).all()
            and ((x == PAD).sum(1) == x.shape[1] - 1
                 - torch.tensor([len(s) for s in sentences])).all())


def test_a_vocabulary_does_not_depend_on_order_or_number():
    a, b = Vocabulary(["b", "a", "c"]), Vocabulary(["c", "c", "a", "b", "a"])
    assert a.words == b.words == [*SPECIALS, "a", "b", "c"] and len(a) == 7
    assert (PAD, BOS, EOS, UNK) == tuple(a.ids[w] for w in SPECIALS)


def test_unknown_words_are_refused_by_name_or_marked():
    v = Vocabulary(["a", "b"])
    refuses(r"^sentence: \['x', 'y'\]", v.encode, ["a", "x", "y"])
    assert v.encode(["a", "x"], unknown=True) == [v.ids["a"], UNK, EOS]
    assert (v.encode(["<end>", "a"], unknown=True)
            == [UNK, v.ids["a"], EOS]), "a mark in the text is no mark"


@pytest.mark.parametrize("call, says", [
    (lambda: Vocabulary("the owl"), "^words: "),
    (lambda: Vocabulary(["a", "<pad>"]), r"^words: \['<pad>'\]"),
    (lambda: Vocabulary(["a"]).encode("a"), "^sentence: 'a'"),
    (lambda: Vocabulary(["a"]).encode(["<begin>"]), "^sentence: "),
    (lambda: Vocabulary(["a"]).batch([]), "^sentences: none"),
    (lambda: Vocabulary(["a"]).decode(torch.zeros(2, 2)), "^ids: "),
    (lambda: Vocabulary(["a"]).decode(torch.tensor([4, -1, 5])), r"^ids: \[-1, 5\]"),
])
def test_vocabulary_refuses(call, says):
    refuses(says, call)


# --- padding changes nothing ----------------------------------------------------------------------

@every_decoder
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 4), seeds)
def test_padding_changes_nothing(kind, lengths, more, seed):
    model, x = made(kind, seed), sources(lengths, seed, max(lengths) + more)
    y = sources([4] * len(lengths), seed + 1)
    scores, weights = model(x, shift_right(y))
    for b, n in enumerate(lengths):
        alone, w = model(x[b:b + 1, :n], shift_right(y[b:b + 1]))
        torch.testing.assert_close(scores[b], alone[0], rtol=0, atol=1e-12)
        if w is not None:
            torch.testing.assert_close(weights[b, :, :n], w[0], rtol=0, atol=1e-12)
            assert (weights[b, :, n:] == 0).all()


def test_annotations_equal_two_plain_walks():
    encoder, x = made("one").encoder, sources([5], 1)
    words, half = encoder.embedding(x), C // 2
    walks = []
    for suffix, sequence in (("", words), ("_reverse", words.flip(1))):
        gru = nn.GRU(C, half, batch_first=True).double()
        gru.load_state_dict({name: getattr(encoder.gru, name + suffix)
                             for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
                                          "bias_hh_l0")})
        walks.append(gru(sequence))
    h = encoder(x, x != PAD)
    torch.testing.assert_close(h, torch.cat([walks[0][0], walks[1][0].flip(1)], -1))
    torch.testing.assert_close(final_state(h, x != PAD),
                               torch.cat([walks[0][1][0], walks[1][1][0]], -1))


def test_the_target_is_shifted_by_one_place():
    assert (shift_right(torch.tensor([[5, 6, EOS], [7, EOS, PAD]])).tolist()
            == [[BOS, 5, 6], [BOS, 7, EOS]])


def test_the_loss_leaves_padding_out():
    model, x, y = made("bahdanau"), sources([4, 4]), sources([2, 5])
    by_hand = [-model(x[b:b + 1],
                      shift_right(y[b:b + 1, :n]))[0][0].log_softmax(-1)[range(n), y[b, :n]]
               for b, n in enumerate((2, 5))]
    torch.testing.assert_close(translation_loss(model, x, y), torch.cat(by_hand).mean())


# --- scores, looks, decoders ----------------------------------------------------------------------

@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), seeds)
def test_scores_equal_loops(B, S, seed):
    torch.manual_seed(seed)
    s, h, a, m = (draw(seed, B, C), draw(seed + 1, B, S, C), AdditiveScore(C).double(),
                  MultiplicativeScore(C).double())
    for b in range(B):
        for j in range(S):
            bent = sum(a.v.weight[0, i] * torch.tanh(a.W.weight[i] @ s[b] + a.U.weight[i] @ h[b, j])
                       for i in range(C))
            torch.testing.assert_close(a(s, a.keys(h))[b, j], bent)
            torch.testing.assert_close(m(s, m.keys(h))[b, j], s[b] @ m.W.weight @ h[b, j])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), seeds, st.floats(-1e6, 1e6))
def test_look_equals_a_softmax_of_the_real_words(lengths, seed, shift):
    scores, h = draw(seed, len(lengths), 5) + shift, draw(seed + 1, len(lengths), 5, 3)
    context, weights = context_vector(scores, h, torch.arange(5) < torch.tensor(lengths)[:, None])
    for b, n in enumerate(lengths):
        alone = scores[b, :n].softmax(0)
        torch.testing.assert_close(weights[b], F.pad(alone, (0, 5 - n)))
        torch.testing.assert_close(context[b], alone @ h[b, :n])


class Asked(MultiplicativeScore):
    "A score that remembers its states."
    def forward(self, s, keys):
        self.states = [*getattr(self, "states", []), s]
        return super().forward(s, keys)


@pytest.mark.parametrize("kind, first", [(BahdanauDecoder, "before"), (LuongDecoder, "after")])
def test_which_state_asks(kind, first):
    torch.manual_seed(0)
    decoder = kind(V, C, Asked(C)).double()
    s, source = decoder.begin(draw(0, 2, 3, C), torch.ones(2, 3, dtype=torch.bool))
    states = [s]
    for _ in range(3): states.append(decoder(torch.tensor([BOS, 5]), states[-1], source)[1])
    wanted = states[:-1] if first == "before" else states[1:]
    assert all(torch.equal(a, b) for a, b in zip(decoder.score.states, wanted, strict=True))


def test_steps_as_the_formulas_read():
    h, mask, word = draw(0, 2, 3, C), torch.ones(2, 3, dtype=torch.bool), torch.tensor([4, 7])
    for decoder in (BahdanauDecoder(V, C, AdditiveScore(C)).double(),
                    LuongDecoder(V, C, MultiplicativeScore(C)).double()):
        s0, source = decoder.begin(h, mask)
        scores, s1, weights = decoder(word, s0, source)
        context = torch.einsum("bs,bsc->bc", weights, h)
        read = (torch.cat([decoder.embedding(word), context], -1)
                if isinstance(decoder, BahdanauDecoder) else decoder.embedding(word))
        asked = s0 if isinstance(decoder, BahdanauDecoder) else s1
        torch.testing.assert_close(s1, decoder.cell(read, s0))
        torch.testing.assert_close(weights, decoder.score(asked, decoder.score.keys(h)).softmax(-1))
        torch.testing.assert_close(scores,
                                   decoder.to_logits(
                                       torch.tanh(decoder.combine(torch.cat([s1, context], -1)))))


def test_one_context_sees_the_ends_of_the_walks_only():
    decoder, h, mask = (FixedContextDecoder(V, C).double(), draw(0, 1, 5, C),
                        torch.ones(1, 5, dtype=torch.bool))
    other = draw(1, 1, 5, C)
    other[:, 0, C // 2:], other[:, -1, :C // 2] = h[:, 0, C // 2:], h[:, -1, :C // 2]
    for a, b in zip(decoder.begin(h, mask), decoder.begin(other, mask)): assert torch.equal(a, b)


# --- greedy ---------------------------------------------------------------------------------------

@every_decoder
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 8), seeds)
def test_greedy_is_what_teacher_forcing_finds_likeliest(kind, lengths, longest, seed):
    model, x = made(kind, seed), sources(lengths, seed)
    with torch.no_grad():
        # fresh ones say one word for ever, which agrees with any shift
        for p in model.parameters(): p.mul_(3)
        # so that some sentences end
        model.decoder.to_logits.bias[EOS] += 0.3
        said = greedy_decode(model, x, longest)
        assert said.shape[1] <= longest
        again = model(x, shift_right(said))[0].argmax(-1)
    for row, seen in zip(said.tolist(), again.tolist()):
        n = row.index(EOS) + 1 if EOS in row else len(row)
        assert row[:n] == seen[:n] and set(row[n:]) <= {PAD}


# --- alignment ------------------------------------------------------------------------------------

links = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=2)


@settings(max_examples=200, deadline=None)
@given(links, links, links)
def test_alignment_error_equals_sets(found, sure, possible):
    sure[0][0] = True
    A, S, P = ({(t, s) for t, row in enumerate(m) for s, on in enumerate(row) if on}
               for m in (found, sure, possible))
    P |= S
    wanted = 1 - (len(A & S) + len(A & P)) / (len(A) + len(S))
    got = alignment_error_rate(*map(torch.tensor, (found, sure, possible)))
    assert got == pytest.approx(wanted) and 0 <= got <= 1


def test_rows_that_do_not_count_have_no_link():
    found = hard_alignment(draw(0, 2, 3, 4),
                           torch.tensor([[True, True, False], [False, True, False]]))
    assert found.sum(-1).tolist() == [[1, 1, 0], [0, 1, 0]]


# --- refusals -------------------------------------------------------------------------------------

mask = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize("call, says", [
    (lambda: GRUEncoder(V, 5), "^hidden_size: 5; expected an even"),
    (lambda: GRUEncoder(V, 0), "^hidden_size: 0"),
    (lambda: GRUEncoder(V, 4)(torch.ones(2, 3).long(), mask & torch.tensor([[True], [False]])),
     r"^mask: \[3, 0\]"),
    (lambda: GRUEncoder(V, 4)(torch.ones(2, 3).long(),
                              torch.tensor([[True, False, True], [True] * 3])), "^mask: a gap"),
    (lambda: made("one")(torch.ones(3).long(), torch.ones(3, 2).long()), "^x: "),
    (lambda: made("one")(torch.ones(2, 3), torch.ones(2, 2).long()), "^x: .*float"),
    (lambda: made("one")(torch.ones(0, 3).long(), torch.ones(0, 2).long()), r"^x: \(0, 3\)"),
    (lambda: GRUEncoder(V, 4)(torch.ones(2, 3).long(), mask[:1]), r"^mask: \(1, 3\)"),
    (lambda: GRUEncoder(V, 4)(torch.ones(2, 3).long(), mask.long()), "^mask: .*int64"),
    (lambda: made("one")(torch.ones(2, 3).long(), torch.ones(3, 2).long()),
     r"^y: \(3, 2\), torch.int64; expected whole numbers \(B, T\), B = 2"),
    (lambda: made("one")(torch.ones(2, 3).long(), torch.ones(2, 0).long()), r"^y: \(2, 0\)"),
    (lambda: made("one")(torch.ones(2, 3).long(), torch.ones(2, 2)), "^y: .*float"),
    (lambda: greedy_decode(made("one"), torch.ones(2, 3).long(), 0), "^max_len: 0"),
    (lambda: context_vector(torch.zeros(2, 3), torch.zeros(2, 3, 4), mask[:1]), r"^mask: \(1, 3\)"),
    (lambda: context_vector(torch.zeros(2, 3), torch.zeros(1, 3, 4), mask), r"^h: \(1, 3, 4\)"),
    (lambda: context_vector(torch.zeros(2, 3), torch.zeros(2, 3, 4), mask.long()), "^mask: "),
    (lambda: context_vector(torch.zeros(2, 3), torch.zeros(2, 3, 4),
                            mask & torch.tensor([[True], [False]])),
     "^mask: a row without a real word"),
    (lambda: hard_alignment(torch.zeros(2, 3), torch.ones(3).bool()), "^target_mask: "),
    (lambda: alignment_error_rate(mask, mask.int()), "^sure: "),
    (lambda: alignment_error_rate(mask, mask[:1]), "^sure: "),
    (lambda: alignment_error_rate(mask, mask, mask[:, :1]), "^possible: "),
    (lambda: alignment_error_rate(~mask, ~mask), "^predicted, sure: no link"),
    (lambda: show_alignments(torch.zeros(2, 3), mask, ["a"], ["b"] * 3, "what is to be seen"),
     r"^weights: \(2, 3\)"),
    (lambda: SoftDictionary(values=[1.0], alt="what is to be seen").row(), "^values: "),
    (lambda: SoftDictionary(values=[1.0, 2.0], place=3.0, alt="what is to be seen").row(),
     "^place: 3.0"),
])
def test_bad_input_is_refused_by_name(call, says):
    refuses(says, call)


# --- the soft dictionary --------------------------------------------------------------------------

@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.floats(0, 1), st.floats(0, 50))
def test_soft_dictionary_row(n, part, sharpness):
    place = 1 + part * (n - 1)
    agreement, shares = SoftDictionary(values=list(map(float, range(n))), place=place,
                                       sharpness=sharpness, alt="what is to be seen").row()
    assert ((agreement**2).sum() == pytest.approx(1) and (agreement >= 0).all()
            and (agreement > 1e-12).sum() <= 2)
    wanted = (sharpness * torch.from_numpy(agreement)).softmax(0)
    torch.testing.assert_close(torch.from_numpy(shares), wanted)


def test_soft_dictionary_from_mean_to_lookup():
    def at(sharpness, place=3.0):
        _, shares = SoftDictionary(values=[1.0, 2.0, 3.0, 4.0], place=place, sharpness=sharpness,
                                   alt="what is to be seen").row()
        return float(shares @ [1, 2, 3, 4])
    assert at(0.0) == 2.5 and at(50.0) == pytest.approx(3) and 2.5 < at(1.0) < at(2.0) < 3
    assert (at(50.0, 4.0) == pytest.approx(4) and at(50.0, 1.0) == pytest.approx(1)
            and at(50.0, 2.5) == pytest.approx(2.5))


@torch.no_grad()
def test_a_model_whose_weights_are_nan_writes_nothing():
    model = made("one")
    next(model.parameters()).fill_(float("nan"))
    refuses("model: nan or inf as a logit", greedy_decode, model, torch.ones(2, 3).long(), 4)
