"""Encoders: the grammar against enumeration, the objectives against slow versions, BERT and its
relatives against Hugging Face's, and what is refused."""
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import transformers
from conftest import sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from tfmlib.checkpoints import (
    ModelConfig,
    build,
    from_pretrained,
    join_parts,
    split_parts,
    to_pretrained,
)
from tfmlib.encoders import (
    BERT,
    HEADS,
    POOLINGS,
    Electra,
    contrastive_loss,
    layer_fills,
    log_bucket,
    masked_lm_loss,
    replaced_token_loss,
)
from tfmlib.encoders.tag_grammar import (
    CLS,
    LEXICON,
    MASK,
    SEP,
    TAGS,
    TOPICS,
    TRANSITIONS,
    Corruption,
    HiddenMarkovModel,
    TagGrammar,
    best_fill,
    forward_backward,
    normalise,
    to_ids,
    to_text,
)
from tfmlib.workbench import seeded

pytestmark = pytest.mark.usefixtures("one_thread")
GRAMMAR = TagGrammar()


def config(heads: str = "masked-lm", width: int = 12, **more) -> ModelConfig:
    fields, options = ({k: v for k, v in more.items() if k in ModelConfig.__dataclass_fields__},
                       {k: v for k, v in more.items() if k not in ModelConfig.__dataclass_fields__})
    return ModelConfig(**dict(kind="bert", vocab_size=len(LEXICON), d_model=width, n_layers=2,
                              n_heads=3, max_len=40, **BERT) | fields,
                       options={"heads": heads} | options)


def words(n: int, length: int, seed: int = 0): return GRAMMAR.sample(n, length, seed)[0]


# --- the grammar ----------------------------------------------------------------------------------

def random_hmm(N: int, V: int, seed: int) -> HiddenMarkovModel:
    g = seeded(seed)
    def rows(*shape): return normalise(torch.rand(*shape, generator=g, dtype=torch.float64))
    return HiddenMarkovModel(rows(N), rows(N, N), rows(N, V))


def paths(hmm: HiddenMarkovModel, likelihood):
    """Every sequence of states with its probability together with what is seen: (T, N) -> path,
    probability."""
    T, N = likelihood.shape
    for path in itertools.product(range(N), repeat=T):
        p = hmm.start[path[0]] * likelihood[range(T), path].prod()
        for a, b in itertools.pairwise(path): p = p * hmm.transition[a, b]
        yield path, p


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_forward_backward_is_enumeration(N, T, seed):
    hmm, likelihood = (random_hmm(N, 3, seed),
                       torch.rand(2, T, N, generator=seeded(seed, 1), dtype=torch.float64))
    before, after, logprob = forward_backward(hmm, likelihood)
    for b in range(2):
        left, both = torch.zeros(2, T, N, dtype=torch.float64)
        for path, p in paths(hmm, likelihood[b]): both[range(T), path] += p
        for t in range(T):
            for path, p in paths(hmm, likelihood[b, :t + 1]): left[t, path[t]] += p
        assert torch.isclose(logprob[b], both[0].sum().log())
        torch.testing.assert_close(normalise(before[b] * likelihood[b]), normalise(left))
        torch.testing.assert_close(normalise(before[b] * likelihood[b] * after[b]), normalise(both))


def test_long_texts_do_not_underflow():
    some = words(2, 1_000)
    before, after, logprob = forward_backward(GRAMMAR.hmm, GRAMMAR.hmm.likelihood(some))
    assert (logprob.isfinite().all() and (logprob < -1_500).all() and before.isfinite().all()
            and after.isfinite().all())


IMPOSSIBLE = to_ids("the the old man")


def test_an_impossible_text_has_probability_0():
    assert forward_backward(GRAMMAR.hmm,
        GRAMMAR.hmm.likelihood(IMPOSSIBLE))[2].tolist() == [-math.inf]


def test_the_grammar_is_one():
    hmm = GRAMMAR.hmm
    for rows in (hmm.start[None], hmm.transition, hmm.emission):
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(rows), dtype=torch.float64))
    assert len(hmm.start) == 4 * len(TRANSITIONS) and not hmm.emission[:, :MASK + 1].any()
    for name, ways in TRANSITIONS.items():
        assert ways.keys() <= TRANSITIONS.keys() and math.isclose(sum(ways.values()), 1), name
    same = GRAMMAR.topic[:, None] == GRAMMAR.topic
    # a text keeps its topic
    assert not hmm.transition[~same].any()


def test_every_content_word_has_two_classes():
    tags = {w: {TAGS[int(GRAMMAR.tag[s])] for s in GRAMMAR.hmm.emission[:, i].nonzero()[:, 0]}
            for i, w in enumerate(LEXICON)}
    assert ({w: len(t) for w, t in tags.items() if len(t) != 2}.keys()
            == {"[PAD]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "a", "in", "by"})
    assert (len([w for w in LEXICON[LEXICON.index("old"):]]) == 30
            and all(len(tags[w]) == 2 for some in TOPICS.values() for w in some))


def test_samples_follow_the_grammar():
    "A calibrated reader is right as often as it says."
    some, tags, topics = GRAMMAR.sample(4_000, 12, 7)
    assert (torch.equal(GRAMMAR.sample(4_000, 12, 7)[0], some)
            and not torch.equal(GRAMMAR.sample(4_000, 12, 8)[0], some))
    assert GRAMMAR.read(some).shape == (4_000, 12, 36)
    read, topic = GRAMMAR.tag_probabilities(some), GRAMMAR.topic_probabilities(some)
    assert (read.gather(-1, tags[..., None]) > 0).all()
    for found, right, most in ((read, tags, .004), (topic, topics, .02)):
        assert abs(float(((found.argmax(-1) == right).double() - found.amax(-1)).mean())) < most


def test_words_and_ids_are_each_others_inverse():
    assert to_text(to_ids("the old man the boat .")[0]) == "the old man the boat ."


# --- masked-language modelling --------------------------------------------------------------------

@pytest.mark.parametrize("corruption", [Corruption(), Corruption(.4), Corruption(.15, 1., 0.),
                                        Corruption(1., .5, .5)])
def test_tokens_are_corrupted_at_the_stated_rates(corruption):
    ids = torch.cat([torch.full((200, 1), CLS), words(200, 100), torch.full((200, 1), SEP),
                     torch.zeros(200, 2, dtype=torch.long)], 1)
    before = ids.clone()
    seen, chosen = corruption(ids, len(LEXICON), seeded(1))
    special = ids <= MASK
    assert (torch.equal(ids, before) and not chosen[special].any()
            and torch.equal(seen[~chosen], ids[~chosen]))
    rate = float(chosen[~special].double().mean())
    masked, same = (float(x[chosen].double().mean()) for x in (seen == MASK, seen == ids))
    kept = 1 - corruption.masked - corruption.randomised
    expected = kept + corruption.randomised / (len(LEXICON) - MASK - 1)
    for found, wanted in ((rate, corruption.rate), (masked, corruption.masked), (same, expected)):
        assert abs(found - wanted) < .02
    assert (seen[chosen] >= MASK).all()
    again = corruption(ids, len(LEXICON), seeded(1))
    assert torch.equal(again[0], seen) and torch.equal(again[1], chosen)


@pytest.mark.parametrize("corruption",
                         [Corruption(.5, .6, .2), Corruption(.3, 1., 0.), Corruption(.3, .5, 0.)])
def test_the_best_fill_is_enumeration(corruption):
    "Bayes's rule over every text of three words and every choice of positions."
    V = 3
    hmm = random_hmm(2, MASK + 1 + V, 4)
    hmm = replace(hmm, emission=normalise(hmm.emission * (torch.arange(MASK + 1 + V) > MASK)))
    keep, noise = 1 - corruption.masked - corruption.randomised, corruption.randomised / V
    # of a chosen position
    def channel(seen, word):
        return corruption.masked if seen == MASK else noise + keep * (seen == word)
    for seen in itertools.product([MASK, *range(MASK + 1, MASK + 1 + V)], repeat=3):
        found = best_fill(SimpleNamespace(hmm=hmm), torch.tensor([seen]), corruption)[0]
        wanted = torch.zeros(3, MASK + 1 + V, dtype=torch.float64)
        for text in itertools.product(range(MASK + 1, MASK + 1 + V), repeat=3):
            p = float(forward_backward(hmm, hmm.likelihood(torch.tensor([text])))[2].exp())
            either = [corruption.rate * channel(s, w) + (1 - corruption.rate) * (s == w)
                      for s, w in zip(seen, text)]
            for t in range(3):
                wanted[t, text[t]] += (p * channel(seen[t], text[t])
                                       * math.prod(either[:t] + either[t + 1:]))
        possible = wanted.sum(-1) > 0
        torch.testing.assert_close(found[possible], normalise(wanted)[possible])


def test_no_prediction_beats_the_best_fill():
    ids = words(500, 24)
    seen, chosen = Corruption()(ids, len(LEXICON), seeded(2))
    best = best_fill(GRAMMAR, seen, Corruption())
    def loss(p): return float(-p.gather(-1, ids[..., None])[..., 0].log()[chosen].mean())
    unigram = F.one_hot(words(2_000, 24, 9), len(LEXICON)).double().mean((0, 1)).expand_as(best)
    assert (loss(best) < loss(.9 * best + .1 * unigram) < loss(unigram) < math.log(len(LEXICON))
            and 1.8 < loss(best) < 2)


def test_the_masked_lm_loss_is_pytorchs_at_the_chosen_positions():
    model, ids = build(config()), words(3, 9)
    seen, chosen = Corruption(.5)(ids, len(LEXICON), seeded(3))
    total, count = masked_lm_loss(model, seen, ids, chosen)
    logits = model(seen)["masked-lm"]
    torch.testing.assert_close(total / count,
                               F.cross_entropy(logits.flatten(0, 1),
                                               ids.masked_fill(~chosen, -100).flatten()))
    refuses("chosen: no position; expected at least one", masked_lm_loss, model, seen, ids,
        torch.zeros_like(chosen))


# --- the encoder ----------------------------------------------------------------------------------

@pytest.mark.parametrize("more", [{}, {"n_segments": 0}, {"embedding_dim": 5},
                                  {"attention": "disentangled", "positions": "disentangled",
                                   "max_relative": 4},
                                  {"positions": "learned, offset"}, {"positions": "relative"},
                                  {"positions": "rotary"}, {"norm_position": "pre"}])
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_padding_changes_no_result(more, side):
    names = "masked-lm+classification+tagging+span+next-sentence+replaced-token"
    model, ids = build(config(names, **more)).eval(), words(3, 9)
    there = torch.ones(3, 4, dtype=torch.bool)
    parts = [(ids, torch.ones_like(ids, dtype=torch.bool)),
             (torch.randint(len(LEXICON), (3, 4)), ~there)]
    padded, mask = (torch.cat(p, 1) for p in zip(*(parts if side == "right" else parts[::-1])))
    found, wanted = model(padded, padding_mask=mask), model(ids)
    for name, logits in wanted.items():
        own = found[name][mask].view_as(logits) if logits.shape[:2] == ids.shape else found[name]
        torch.testing.assert_close(own, logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_causal_option_hides_the_future_and_nothing_else():
    both, left, ids = build(config()), build(config(causal=True)), words(2, 8)
    assert all(torch.equal(a, b) for a, b in zip(both.parameters(), left.parameters()))
    other = ids.clone()
    other[:, 5] = (other[:, 5] - MASK) % (len(LEXICON) - MASK - 1) + MASK + 1
    moved = {name: (model(ids)["masked-lm"] - model(other)["masked-lm"]).abs().amax((0, 2)) > 0
             for name, model in (("both", both), ("left", left))}
    assert moved["both"].all() and moved["left"].tolist() == [False] * 5 + [True] * 3
    torch.testing.assert_close(left(ids)["masked-lm"][:, :3], left(ids[:, :3])["masked-lm"])


def test_pooling_is_what_it_says():
    h, mask = (torch.randn(3, 5, 4),
               torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]]).bool())
    spoilt = h.masked_fill(~mask[..., None], math.nan)
    for name, slow in (("first", lambda x: x[0]), ("mean", lambda x: x.mean(0)),
                       ("max", lambda x: x.amax(0))):
        wanted = torch.stack([slow(row[there]) for row, there in zip(h, mask)])
        torch.testing.assert_close(POOLINGS[name](spoilt, mask), wanted)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns(head):
    model, ids = build(config(head, n_labels=3)), words(4, 7)
    [logits] = model(ids).values()
    assert (logits.shape == {"masked-lm": (4, 7, len(LEXICON)), "tagging": (4, 7, 3),
                             "span": (4, 7, 2), "classification": (4, 3), "next-sentence": (4, 2),
                             "replaced-token": (4, 7), "pooler": (4, 12)}[head])
    logits.square().sum().backward()
    unused = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # a bias of keys changes no softmax
    assert not {n for n in unused if "k_proj.bias" not in n}, unused


TEXTS, VECTORS = words(2, 5), torch.ones(5, 7)
CANNOT_BE = [
    ("words: a text of probability 0; expected texts of this language",
        lambda: GRAMMAR.read(IMPOSSIBLE)), ("n: 0; expected", lambda: GRAMMAR.sample(0, 3, 0)),
    *(("text: .*; expected words of LEXICON", lambda wrong=wrong: to_ids(wrong))
        for wrong in ("", "the olde man")),
    *(("words: ", lambda wrong=wrong: GRAMMAR.hmm.likelihood(wrong))
        for wrong in (torch.tensor([[99]]), torch.tensor([1, 2]),
            torch.zeros(1, 0, dtype=torch.long))),
    *(("rate, masked, randomised: .*; expected a rate above 0",
        lambda wrong=wrong: Corruption(*wrong))
        for wrong in ((0.,), (1.2,), (.15, -.1), (.15, .8, .3), (math.nan,))),
    *((said, lambda given=given: build(config())(*given)) for said, *given in (
        ("ids: ", TEXTS.float()), ("ids: ", TEXTS[0]),
        ("ids: 41 tokens; expected at most 40", words(1, 41)), ("ids: from ", TEXTS + 99),
        ("segments: from ", TEXTS, TEXTS),
        (r"segments: \(2, 4\); expected \(2, 5\)", TEXTS, torch.zeros(2, 4, dtype=torch.long)),
        ("padding_mask: torch.float32", TEXTS, None, torch.ones(2, 5)),
        ("padding_mask: a row without a token", TEXTS, None, torch.zeros(2, 5, dtype=torch.bool)))),
    ("segments: given; expected None",
        lambda: build(config(n_segments=0))(TEXTS, torch.zeros_like(TEXTS))),
        ("'masked'.* expected", lambda: build(config("masked"))),
    ("positions: .*; expected 'disentangled'",
        lambda: build(config(attention="disentangled", positions="rotary"))),
        ("max_len", lambda: build(config(max_len=None))),
    ("generator: .*to share it",
        lambda: Electra(build(config(width=6)), build(config("replaced-token")))),
    *(("b: ", lambda a=a, b=b, width=width: contrastive_loss(VECTORS[:a], VECTORS[:b, :width]))
        for a, b, width in ((5, 4, 7), (5, 5, 6), (1, 1, 7))),
    ("temperature: 0; expected", lambda: contrastive_loss(VECTORS, VECTORS, 0)),
    *(("n_buckets, furthest: ", lambda wrong=wrong: log_bucket(torch.arange(3), *wrong))
        for wrong in ((2, 16), (8, 4)))]


@pytest.mark.parametrize("said, call", CANNOT_BE)
def test_what_cannot_be_is_refused_by_name(said, call): refuses(said, call)


@torch.no_grad()
def test_the_last_layer_fills_in_what_the_model_says():
    model, ids = build(config()).eval(), words(2, 6)
    found = layer_fills(model, ids)
    assert found.shape == (3, 2, 6, len(LEXICON))
    torch.testing.assert_close(found[-1], model(ids)["masked-lm"].softmax(-1))
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 2, 6))


# --- ELECTRA, sentence vectors --------------------------------------------------------------------

def electra() -> Electra:
    return Electra(build(config(width=6, embedding_dim=12), seed=1),
                   build(config("replaced-token")))


def test_the_replaced_token_loss_is_the_slow_one():
    model, ids = (electra(),
                  torch.cat([torch.full((3, 1), CLS), words(3, 9), torch.full((3, 1), SEP)], 1))
    seen, chosen = Corruption(.4)(ids, len(LEXICON), seeded(5))
    torch.manual_seed(7)
    found = replaced_token_loss(model, seen, ids, chosen, weight=3.)
    torch.manual_seed(7)
    logits = model.generator(seen)["masked-lm"]
    drawn = iter(torch.multinomial(logits[chosen].softmax(-1), 1)[:, 0].tolist())
    filled = torch.tensor([[next(drawn) if chosen[b, t] else int(ids[b, t]) for t in range(11)]
                           for b in range(3)])
    judged, losses = model.discriminator(filled)["replaced-token"].sigmoid(), []
    for b, t in itertools.product(range(3), range(1, 10)):
        losses.append(-(judged[b, t] if filled[b, t] != ids[b, t] else 1 - judged[b, t]).log())
    torch.testing.assert_close(found, F.cross_entropy(logits[chosen], ids[chosen]) + 3
                               * torch.stack(losses).mean())


def test_generator_and_discriminator_share_one_table_and_no_gradient():
    model, ids = electra(), words(3, 9)
    assert model.generator.embedding.weight is model.discriminator.embedding.weight is model.generator.heads["masked-lm"].table  # noqa: E501
    seen, chosen = Corruption(.4)(ids, len(LEXICON), seeded(5))
    def slopes(weight):
        torch.manual_seed(0)
        return torch.autograd.grad(replaced_token_loss(model, seen, ids, chosen, weight),
            [*model.generator.stack.parameters()])
    # the discriminator teaches the generator nothing
    assert all(map(torch.equal, slopes(0.), slopes(50.)))


def test_the_contrastive_loss_is_the_slow_one():
    a, b = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    slow = 0.
    for i in range(5):
        s = [float(a[i] @ b[j] / a[i].norm() / b[j].norm()) / .1 for j in range(5)]
        slow += math.log(sum(map(math.exp, s))) - s[i]
    assert float(contrastive_loss(a, b, .1)) == pytest.approx(slow / 5)
    assert float(contrastive_loss(a, 3 * a, .05)) < float(contrastive_loss(a, b, .05))


# --- DeBERTa --------------------------------------------------------------------------------------

@pytest.mark.parametrize(("n_buckets", "furthest"),
                         [(4, 20), (6, 40), (8, 16), (32, 128), (256, 512)])
def test_buckets_of_offsets_are_hugging_faces(n_buckets, furthest):
    offset = torch.arange(-3 * furthest, 3 * furthest + 1)
    found = log_bucket(offset, n_buckets, furthest)
    wanted = make_log_bucket_position(offset, n_buckets, furthest).long()
    # beyond, both are clamped to the table
    within = found.abs() < n_buckets
    assert (torch.equal(found.clamp(-n_buckets, n_buckets - 1),
                        wanted.clamp(-n_buckets, n_buckets - 1)) and within.any())
    assert (torch.equal(found, -log_bucket(-offset, n_buckets, furthest))
            and (found.diff() >= 0).all())


# --- published encoders ---------------------------------------------------------------------------

SIZES = dict(vocab_size=61, hidden_size=20, num_hidden_layers=3, num_attention_heads=5,
             intermediate_size=37, max_position_embeddings=40)
OFFSETS = dict(relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"])
GENERAL = "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"
VARIANTS = {
    "Bert": [{}, dict(hidden_act="relu", type_vocab_size=3, layer_norm_eps=.01)],
    "Roberta": [dict(pad_token_id=1), dict(pad_token_id=0, hidden_act="relu")],
    "Electra": [dict(embedding_size=7), dict(embedding_size=20, hidden_act="silu")],
    "Deberta": [OFFSETS, OFFSETS | dict(max_relative_positions=6),
                OFFSETS | dict(pos_att_type="c2p", type_vocab_size=2, pooler_hidden_act="tanh"),
                OFFSETS | dict(pos_att_type=None)],
    "DebertaV2": [OFFSETS, OFFSETS | dict(position_buckets=4, share_att_key=True,
                                          norm_rel_ebd="layer_norm", max_relative_positions=20,
                                          type_vocab_size=2),
                  OFFSETS | dict(position_buckets=6, pos_att_type="p2c")],
}
FURTHER = {"Bert": ("NextSentencePrediction", "PreTraining"), "Electra": ("PreTraining",)}
PEERS = [(stem, task, i) for stem, variants in VARIANTS.items()
         for task in (*GENERAL, *FURTHER.get(stem, ())) for i in range(len(variants))]


def theirs(stem: str, task: str, **fields):
    "Hugging Face's model of one class, its weights far from those of a new one."
    name = f"{stem}For{task}"
    labels = {} if task == "QuestionAnswering" else {"num_labels": 3}
    model = getattr(transformers,
                    name)(getattr(transformers, f"{stem}Config")(**SIZES | labels | fields,
                            architectures=[name])).eval()
    g = seeded(11)
    with torch.no_grad():
        for p in model.parameters(): p.copy_(.5 * torch.randn(p.shape, generator=g))
    return model


def pooled(stem, task) -> bool:
    return (task in ("SequenceClassification", "NextSentencePrediction") or (stem, task)
            == ("Bert", "PreTraining"))


@pytest.mark.parametrize(("stem", "task", "i"),
    sweep(PEERS, *(peer for peer in PEERS if peer[1] == "MaskedLM" or peer[2] == 0)))
@torch.no_grad()
def test_logits_are_hugging_faces(stem, task, i):
    model = theirs(stem, task, **VARIANTS[stem][i])
    facts = model.config.to_dict()
    ours, pad, kinds = (from_pretrained(model.state_dict(), facts), facts["pad_token_id"],
                        facts["type_vocab_size"])
    back = to_pretrained(ours, facts["model_type"])
    assert (back.keys() == model.state_dict().keys()
            and all(torch.equal(back[k], t) for k, t in model.state_dict().items()))
    for T, lengths in ((17, [17, 14, 8, 1]), (1, [1, 1, 1, 1])):
        ids, lengths, largest = (torch.randint(4, 61, (4, T), generator=seeded(12)),
                                 torch.tensor(lengths)[:, None], 0.)
        segments = torch.randint(kinds, (4, T), generator=seeded(13)) if kinds else None
        for there in (torch.arange(T) < lengths, torch.arange(T) >= T - lengths):
            x, more = (ids.masked_fill(~there, pad), {} if segments is None
                       else {"token_type_ids": segments})
            own = [*ours(x, segments, there).values()]
            if task == "QuestionAnswering": own = [*own[0].unbind(-1)]
            # theirs pools the first column, padding or not
            if pooled(stem, task) and not there[:, 0].all():
                found = [model(x[b:b + 1, on], **{k: t[b:b + 1, on] for k, t in more.items()})
                         for b, on in enumerate(there)]
                found = [[v for k, v in out.items() if "logits" in k] for out in found]
                pairs = [(a[0], o[b][there[b]] if o.ndim == 3 else o[b])
                         for b, out in enumerate(found) for a, o in zip(out, own, strict=True)]
            else:
                positions = (there.cumsum(1) - 1).clamp(min=0) + (pad + 1) * (stem == "Roberta")
                out = model(x, attention_mask=there.long(), position_ids=positions, **more)
                pairs = [(a[there], o[there]) if a.shape[:2] == there.shape else (a, o)
                         for a, o in zip([v for k, v in out.items() if "logits" in k], own,
                                         strict=True)]
            for a, o in pairs:
                torch.testing.assert_close(o, a, atol=1e-4, rtol=0)
                largest = max(largest, float(a.abs().max()))
        assert largest > .5


@pytest.mark.parametrize("stem", ["Bert", "Electra", "Roberta"])
@torch.no_grad()
def test_positions_count_tokens_as_the_docstring_says(stem):
    """With padding on the left, BERT and ELECTRA count columns there unless they are given
    positions; RoBERTa counts tokens itself."""
    model = theirs(stem, "MaskedLM", **VARIANTS[stem][0])
    ours, pad = (from_pretrained(model.state_dict(), model.config.to_dict()),
                 model.config.pad_token_id)
    ids = torch.randint(4, 61, (2, 9), generator=seeded(14))
    for there, agrees in ((torch.arange(9) < 6, True), (torch.arange(9) >= 3, stem == "Roberta")):
        x, there = ids.masked_fill(~there, pad), there.expand(2, 9)
        plain, got = (model(x, attention_mask=there.long()).logits[there],
                      ours(x, padding_mask=there)["masked-lm"][there])
        assert bool((plain - got).abs().max() < 1e-4) is agrees


REFUSED = [
    ("Bert", "MaskedLM", {"architectures": ["BertLMHeadModel"]}, "architectures"),
    ("Bert", "MaskedLM", {"architectures": None}, "architectures"),
    ("Bert", "MaskedLM", {"is_decoder": True}, "is_decoder"),
    ("Bert", "MaskedLM", {"add_cross_attention": True}, "add_cross_attention"),
    ("Bert", "MaskedLM", {"hidden_act": "gelu_fast"}, "hidden_act"),
    ("Bert", "MaskedLM", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ("Bert", "MaskedLM", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("Bert", "MaskedLM", {"surprise": 1}, "surprise"),
    ("Bert", "MaskedLM", {"pad_token_id": None}, "pad_token_id"),
    ("Bert", "MaskedLM", {"model_type": "albert"}, "model_type"),
    ("Deberta", "MaskedLM", {"relative_attention": False}, "relative_attention"),
    ("Deberta", "MaskedLM", {"position_biased_input": True}, "position_biased_input"),
    ("Deberta", "MaskedLM", {"talking_head": True}, "talking_head"),
    ("Deberta", "MaskedLM", {"pos_att_type": ["p2p"]}, "pos_att_type"),
    ("Deberta", "MaskedLM", {"legacy": False}, "legacy"),
    ("Deberta", "SequenceClassification", {"pooler_hidden_act": "relu"}, "pooler_hidden_act"),
    ("Deberta", "SequenceClassification", {"pooler_hidden_size": 7}, "pooler_hidden_size"),
    ("DebertaV2", "MaskedLM", {"conv_kernel_size": 3}, "conv_kernel_size"),
    ("DebertaV2", "MaskedLM", {"norm_rel_ebd": "rms"}, "norm_rel_ebd"),
]


@pytest.mark.parametrize(("stem", "task", "change", "key"), REFUSED,
                         ids=[f"{s}-{k}" for s, _, _, k in REFUSED])
def test_what_is_not_built_is_refused_by_the_name_of_its_field(stem, task, change, key):
    model = theirs(stem, task, **VARIANTS[stem][0])
    refuses(f"^{key}: ", from_pretrained, model.state_dict(), model.config.to_dict() | change)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_parts_by_head_are_joined_and_split(heads, n, width):
    parts = [torch.randn(heads * n * (i + 1), width) for i in range(3)]
    for by_head in (0, heads):
        assert all(map(torch.equal,
            split_parts(join_parts(parts, by_head), [len(p) for p in parts], by_head), parts))
    assert torch.equal(join_parts(parts, heads),
        torch.cat([p.unflatten(0, (heads, -1))[h] for h in range(heads) for p in parts]))
