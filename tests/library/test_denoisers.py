"""Denoisers: the stories against enumeration, T5's rule and BART's noises against slow samplers,
losses and the diffusion bound against slow versions, and what is refused."""
import itertools
import json
import math
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from bench import denoiser_instructions, denoiser_longer
from bench import denoiser_objectives as base
from tfmlib.accounting import shapes_of, training_flops
from tfmlib.alignment import BOS, EOS, PAD
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import SamplingConfig
from tfmlib.denoisers import (
    Denoising,
    Example,
    MaskedDiffusion,
    PrefixLM,
    SpanCorruption,
    at_random,
    by_confidence,
    causal_logits,
    collate,
    compose,
    diffusion_bound,
    document_rotation,
    encoder_decoder_logits,
    fill_sentinels,
    infilling_lengths,
    join,
    lengths_of,
    masked_logits,
    objectives,
    prefix_lm,
    prefix_logits,
    prefix_mask,
    random_segments,
    rolled_span_mask,
    sentence_permutation,
    span_corruption,
    span_counts,
    span_mask,
    text_infilling,
    token_deletion,
    token_masking,
    unmask,
)
from tfmlib.denoisers.story_grammar import (
    N_WORDS,
    SENTINELS,
    STOP,
    STORY_WORDS,
    condense,
    fill_in,
    fill_probabilities,
    split_story,
    story_ids,
    story_text,
    write_on,
)
from tfmlib.encoders.tag_grammar import MASK
from tfmlib.workbench import seeded

READS = ("chapters/",)
pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = base.GRAMMAR
STORIES = GRAMMAR.sample(40, 1)
# a gap after the first sentence, without the end
LONGEST = len(STORIES[0][STORIES[0] > EOS]) - len(split_story(STORIES[0])[0])
V = len(STORY_WORDS)


def bare(story): return story[:int((story > EOS).sum())]


def model(kind: str = "decoder", seed: int = 0):
    shape = ModelConfig(kind, V, 16, 2, 2, 64, **MODERN)
    return (PrefixLM(build(shape, seed=seed)).eval() if kind == "decoder"
            else build(shape, seed=seed).eval())


def chi_square(found: Counter, expected: dict) -> float:
    "How far counts are from what is expected, as a number of standard deviations of the statistic."
    n = sum(found.values())
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    value = sum((found[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    return (value - (len(expected) - 1)) / (2 * max(len(expected) - 1, 1)) ** .5


# --- the stories ----------------------------------------------------------------------------------

def test_every_state_has_a_distribution_and_every_story_an_end():
    assert torch.allclose(GRAMMAR.p.sum(1), torch.ones(len(GRAMMAR.p), dtype=torch.float64))
    for story in STORIES:
        assert int((story == EOS).sum()) == 1 and 4 <= len(split_story(story)) <= 6
        assert bool((GRAMMAR.next_words(story[None])[0].gather(-1, story[:, None]) > 0).all())


@pytest.mark.parametrize("text, summary", [
    ("ben has the old lamp at the hill . he gives the lamp to mia . she walks to the barn . tom "
     "sleeps . [EOS]", "mia has the lamp at the barn ."),
    ("at the river eva has the big drum . tom takes the drum from eva . the sun shines . he rests "
     ". [EOS]", "tom has the drum at the river .")])
def test_the_world_follows_the_story(text, summary):
    assert GRAMMAR.final_world(torch.tensor(story_ids(text))).summary() == summary


LATE = (
    "ben has the old lamp at the hill . he gives the lamp to mia . she walks to the barn . tom "
    "rests .")


def test_nobody_rests_in_a_barn():
    ids = story_ids(LATE)
    assert next_word(ids[:-2])[ids[-2]] == 0
    for read in (GRAMMAR.next_words, GRAMMAR.states):
        refuses("ids: .*expected a text that the grammar can write", read, torch.tensor([ids]))


def next_word(ids): return GRAMMAR.next_words(torch.tensor([[*ids, PAD]]))[0, len(ids)]


def ways(left: list, allowed: list) -> dict:
    "Every way to go on, of the words that are allowed at each place, with its probability."
    found = {(): 1.}
    for words in allowed:
        found = {(*way, w): p * float(after[w]) for way, p in found.items()
                 for after in [next_word([*left, *way])] for w in words if after[w] > 0}
    return found


def test_what_is_hidden_has_the_probability_found_by_enumeration():
    story = torch.tensor(story_ids("ben has the old lamp at the hill . ben gives the lamp to mia . "
                                   "she rests . the sun shines . [EOS]"))
    seen, found = story.clone(), torch.zeros(len(story), V).double()
    seen[[9, 10, 14, 16]] = MASK
    whole = ways([], [range(MASK + 1, N_WORDS) if word == MASK else [word]
        for word in seen.tolist()])
    for words, p in whole.items(): found[range(len(seen)), words] += p
    ours, total = fill_probabilities(GRAMMAR, seen)
    assert (math.isclose(total, math.log(sum(whole.values())))
        and torch.allclose(ours, found / sum(whole.values())))
    assert math.isclose(fill_probabilities(GRAMMAR, story)[1],
        math.log(whole[tuple(story.tolist())]))


def test_the_questions_are_parts_of_the_story():
    for i, story in enumerate(STORIES):
        whole, g = bare(story).tolist() + [EOS], seeded(i)
        gap, on, short = fill_in(story, g), write_on(story, g), condense(story, GRAMMAR)
        assert (gap.left + gap.answer + gap.right == whole and len(gap.answer) == 4
                and gap.left.count(STOP) >= 1 and EOS not in gap.answer)
        assert ((on.left + on.answer) == whole[:len(on.left) + len(on.answer)]
                and on.left.count(STOP) == 2 and on.right is None)
        assert (short.left == whole and story_text(short.answer)
                == GRAMMAR.final_world(story).summary())
    assert len(fill_in(STORIES[0], seeded(0), LONGEST).answer) == LONGEST


def test_a_text_may_go_on_after_its_end_with_padding_only():
    padded = min(STORIES, key=lambda story: len(bare(story)))[None]
    assert padded[0, -1] == PAD and GRAMMAR.states(padded).shape == (1, padded.shape[1] + 1)
    refuses("ids: ", GRAMMAR.states, torch.cat([padded, padded], 1))
    assert GRAMMAR.next_words(torch.tensor([story_ids("ben")])).shape == (1, 1, V)


# --- span corruption ------------------------------------------------------------------------------

@pytest.mark.parametrize("length, counts", [(2, (1, 1)), (10, (2, 1)), (20, (3, 1)), (30, (4, 1)),
                                            (31, (5, 2)), (100, (15, 5)), (512, (77, 26))])
def test_how_much_is_dropped(length, counts): assert span_counts(length) == counts


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 80), st.floats(.01, .99), st.floats(1, 6), st.integers(0, 99))
def test_the_mask_has_as_much_noise_in_as_many_spans_as_the_rule_says(length, rate, mean, seed):
    mask = span_mask(length, seeded(seed), rate, mean).tolist()
    runs = [key for key, _ in itertools.groupby(mask)]
    assert len(mask) == length and (sum(mask), len(runs) / 2) == span_counts(length, rate, mean)
    assert runs[0] is False and runs[-1] is True


def pairs(n): return itertools.combinations(range(n), 2)


# 9 is the full stop; the last has none
SENTENCES = (10, 9), (11, 12, 9), (13,)
TEXT = torch.tensor([10, 11, 12, 13, 14])
EQUALLY = {  # what is drawn -> all that it may be
    "segments": (lambda g: random_segments(7, 3, g),
        [c for c in itertools.product(range(1, 7), repeat=3) if sum(c) == 7]),
    "span mask": (lambda g: span_mask(9, g, .45, 2.).tolist(), [
        # it fits the counts and alternates
        mask for mask in itertools.product((False, True), repeat=9)
        if (sum(mask), [key for key, _ in itertools.groupby(mask)]) == (4, [False, True] * 2)]),
    "masking": (lambda g: token_masking(TEXT, g, rate=.4).tolist(),
        [tuple(MASK if i in pair else 10 + i for i in range(5)) for pair in pairs(5)]),
    "deletion": (lambda g: token_deletion(TEXT, g, rate=.4).tolist(),
        [tuple(10 + i for i in range(5) if i not in pair) for pair in pairs(5)]),
    "permutation": (lambda g: sentence_permutation(torch.tensor(sum(SENTENCES, ())), g,
        stop=9).tolist(), [sum(order, ()) for order in itertools.permutations(SENTENCES)]),
    "rotation": (lambda g: document_rotation(TEXT, g).tolist(),
        [tuple(TEXT.roll(-i).tolist()) for i in range(5)])}


@pytest.mark.parametrize("name", EQUALLY)
def test_all_that_is_possible_is_equally_likely(name):
    (draw, possible), g = EQUALLY[name], seeded(1)
    found = Counter(tuple(draw(g)) for _ in range(4_000))
    assert abs(chi_square(found, dict.fromkeys(possible, 1 / len(possible)))) < 4


def test_noises_are_composed():
    both, g = compose(document_rotation, partial(token_deletion, rate=.4)), seeded(0)
    assert all(len(both(TEXT, g)) == 3 for _ in range(20))


def test_by_the_rule_a_text_ends_with_noise_and_rolled_masks_end_anywhere():
    g, n = seeded(2), 4_000
    rule, rolled = (torch.stack([mask(31, g) for _ in range(n)]).double()
                    for mask in (span_mask, rolled_span_mask))
    assert rule[:, -1].eq(1).all() and rule[:, 0].eq(0).all()
    assert bool((rule.sum(1) == 5).all() and (rolled.sum(1) == 5).all())
    # every position alike
    assert float((rolled.mean(0) - 5 / 31).abs().max()) < 5 * (5 / 31 / n) ** .5


def test_t5_rounds_in_32_bits():
    # as its code does: products and quotients of 32 bits
    def t5(length):
        n = min(max(int(np.round(np.float32(length) * np.float32(.15))), 1), length - 1)
        return n, min(max(int(np.round(np.float32(n) / np.float32(3))), 1), length - n)
    differ = [n for n in range(2, 5_000) if t5(n) != span_counts(n)]
    assert len(differ) == 39 and differ[0] == 190
    assert all(a - b == 1 for n in differ for a, b in zip(t5(n), span_counts(n)))


def test_span_corruption_by_hand():
    ids = torch.arange(10, 20)
    mask = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 0, 0]).bool()
    inputs, targets = span_corruption(ids, mask, [50, 51, 52])
    assert (inputs.tolist() == [10, 11, 50, 14, 15, 16, 51, 18, 19, EOS] and targets.tolist()
            == [50, 12, 13, 51, 17, EOS])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24).filter(any), st.integers(0, 99))
def test_both_sides_give_the_text_back(mask, seed):
    ids = torch.randint(4, 40, (len(mask),), generator=seeded(seed))
    inputs, targets = span_corruption(ids, torch.tensor(mask), SENTINELS)
    assert fill_sentinels(inputs, targets, SENTINELS).tolist() == ids.tolist()
    kept = [i for i in [*inputs.tolist(), *targets.tolist()] if i not in (*SENTINELS, EOS)]
    # every token is on one side
    assert sorted(kept) == sorted(ids.tolist())


def test_sides_that_fit_may_be_padded_and_in_any_order():
    assert (fill_sentinels(torch.tensor([5, 90, 6, 91, 2, 0]), torch.tensor([91, 8, 90, 7, 7, 2]),
                           [90, 91]).tolist() == [5, 7, 7, 6, 8])


# --- BART's noises --------------------------------------------------------------------------------


def test_infilling_is_that_of_a_slow_sampler():
    "Poisson lengths until the budget of two is spent, in any order, at any places."
    rng, g, n = np.random.default_rng(0), seeded(0), 12_000
    def slow():
        spans, ids = [], [10, 11, 12, 13]
        while sum(spans) < 2: spans.append(min(int(rng.poisson(1.5)), 2 - sum(spans)))
        rng.shuffle(spans)
        row = [MASK if hidden else 0
            for hidden in rng.permutation([True] * len(spans) + [False] * 2)]
        for at, word in enumerate(row):
            if word == MASK: ids = ids[spans.pop():]
            else: row[at], *ids = ids
        return tuple(row)
    wanted, found = (Counter(draw() for _ in range(n))
        for draw in (slow, lambda: tuple(text_infilling(torch.arange(10, 14), g, .5,
            1.5).tolist())))
    assert sum(wanted.values()) == n and len(wanted) > 100
    for row in wanted | found:
        assert abs(found[row] - wanted[row]) < 5 * (found[row] + wanted[row]) ** .5, row


def test_infilling_spends_its_budget_and_inserts_masks():
    g = seeded(3)
    drawn = [infilling_lengths(9, g) for _ in range(500)]
    assert (all(sum(d) == 9 for d in drawn) and any(0 in d for d in drawn)
        and infilling_lengths(0, g) == [])
    for row in (text_infilling(torch.arange(10, 40), g) for _ in range(50)):
        assert int((row != MASK).sum()) == 21 and bool((row[row != MASK].diff() > 0).all())


# --- examples, masks and losses -------------------------------------------------------------------

def test_every_objective_can_be_trained_on():
    texts = [bare(story) for story in STORIES[:6]]
    for name, objective in objectives(N_WORDS, SENTINELS, STOP).items():
        network = model("encoder-decoder" if objective.logits is encoder_decoder_logits
                        else "decoder")
        total, count = objective.loss(network, *objective.batch(texts, seeded(1)))
        (total / count).backward()
        assert total.isfinite() and count > 0, name
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_prefix_lm_divides_the_text():
    ids = bare(STORIES[0])
    examples = [prefix_lm(ids, seeded(seed)) for seed in range(60)]
    assert all(torch.cat([e.inputs, e.targets]).tolist() == [BOS, *ids.tolist(), EOS]
        for e in examples)
    cuts = {len(e.inputs) for e in examples}
    assert min(cuts) >= 2 and max(cuts) <= len(ids) and len(cuts) > 10


def test_the_prefix_mask_entry_by_entry():
    mask = prefix_mask(torch.tensor([0, 2, 4]), 4)
    assert mask[:, 0].tolist() == [[[s <= t or s < n for s in range(4)] for t in range(4)]
        for n in (0, 2, 4)]


def test_without_a_prefix_it_is_a_causal_lm():
    network, ids = model(), STORIES[:3]
    plain = network.decoder
    torch.testing.assert_close(network(ids), plain(ids))
    both = network(ids, torch.tensor([5, 5, 5]))
    changed = ids.clone()
    changed[:, 4] = 20
    # the first sees the fifth
    assert not torch.allclose(network(changed, torch.tensor([5, 5, 5]))[:, 0], both[:, 0])
    changed = ids.clone()
    changed[:, 5] = 20
    torch.testing.assert_close(network(changed, torch.tensor([5, 5, 5]))[:, :5], both[:, :5])


def test_joined_rows_are_those_of_a_loop():
    ids, begin = join(torch.tensor([[1, 7, 8], [1, PAD, PAD]]),
        torch.tensor([[9, 2, PAD, PAD], [7, 8, 9, 2]]))
    assert ids.tolist() == [[1, 7, 8, 9, 2], [1, 7, 8, 9, 2]] and begin.tolist() == [3, 1]
    assert lengths_of(torch.tensor([[5, 6, 0], [0, 0, 0], [5, 4, 6]])).tolist() == [2, 0, 3]


@pytest.mark.parametrize("logits", [causal_logits, prefix_logits, encoder_decoder_logits])
def test_the_logits_are_those_of_one_row_at_a_time(logits):
    network = model("encoder-decoder" if logits is encoder_decoder_logits else "decoder", 3)
    examples = [prefix_lm(bare(story), seeded(i)) for i, story in enumerate(STORIES[:4])]
    inputs, targets, _ = collate(examples)
    together = logits(network, inputs, targets)
    assert together.shape == (*targets.shape, V)
    for i, e in enumerate(examples):
        alone = logits(network, e.inputs[None], e.targets[None])[0]
        torch.testing.assert_close(together[i, :len(e.targets)], alone, atol=1e-5, rtol=1e-4)


def test_weights_count():
    objective, network = objectives(N_WORDS, SENTINELS, STOP)["masked diffusion"], model()
    inputs, targets, weights = batch = objective.batch([bare(story) for story in STORIES[:5]],
        seeded(2))
    logprob = masked_logits(network, inputs, targets).log_softmax(-1).detach()
    slow = sum(-float(weights[b, t] * logprob[b, t, targets[b, t]]) for b in range(5)
               for t in range(targets.shape[1]))
    total, count = objective.loss(network, *batch)
    assert (math.isclose(total.item(), slow, rel_tol=1e-4) and int(count)
            == int((targets != PAD).sum()))
    refuses("weights: ", objective.loss, network, inputs, targets, weights[:, :3])
    refuses("targets: ", masked_logits, network, inputs, targets[:, :3])


def test_the_weight_of_diffusion_makes_up_for_its_rate():
    ids, g = bare(STORIES[0]), seeded(5)
    drawn = [MaskedDiffusion()(ids, g) for _ in range(2_000)]
    # on average every token counts once
    weights = torch.stack([e.weights for e in drawn])
    assert weights[:, 0].sum() == 0 and abs(float(weights[:, 1:].mean()) - 1) < .1
    assert all(bool((e.inputs == MASK).eq(e.weights > 0).all()) for e in drawn[:50])


@pytest.mark.parametrize("mask", [span_mask, rolled_span_mask])
def test_span_corruption_restores_the_text(mask):
    ids, corrupt = bare(STORIES[1]), SpanCorruption(SENTINELS, mask=mask)
    for example in (corrupt(ids, seeded(seed)) for seed in range(20)):
        assert torch.equal(fill_sentinels(example.inputs, example.targets, SENTINELS), ids)


def test_denoising_and_diffusion_predict_the_text():
    ids = bare(STORIES[1])
    bart, whole = Denoising(text_infilling)(ids, seeded(0)), MaskedDiffusion(1.)(ids, seeded(0))
    assert bart.targets.tolist() == [*ids.tolist(), EOS] and isinstance(bart, Example)
    # all may be hidden
    assert bool((whole.inputs[1:] == MASK).all()) and set(whole.weights[1:].tolist()) == {1.}


# --- masked diffusion -----------------------------------------------------------------------------

# tokens of a tiny world, in texts of three
TINY = 4, 5, 6


def tiny(seed: int):
    "Logits that depend on what is seen, not those of any joint distribution."
    table = torch.randn(7, 7, 7, 3, 7, generator=seeded(seed))
    table[..., :4] = -math.inf
    return lambda ids: table[ids[:, 0], ids[:, 1], ids[:, 2]]


def orders(predict, ids):
    "The log-probability with which each order of unmasking writes a text."
    for order in itertools.permutations(range(3)):
        row, logprob = torch.full((1, 3), MASK), 0.
        for t in order:
            logprob += float(predict(row)[0, t].log_softmax(-1)[ids[t]])
            row[0, t] = ids[t]
        yield logprob


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_the_mean_over_orders_and_at_least_the_exact_value(seed):
    predict = tiny(seed)
    text = torch.tensor([4 + seed, 6, 5])
    each = torch.tensor(list(orders(predict, text)), dtype=torch.float64)
    # of a sampler that draws its order
    nll = -float(each.exp().mean().log())
    bound = float(diffusion_bound(predict, text.expand(400, 3), seeded(seed), 100).mean())
    assert abs(bound + float(each.mean())) < .05 and bound > nll


def test_even_odds_have_the_bound_of_even_odds():
    def even(ids): return torch.zeros(*ids.shape, 7)
    assert (abs(float(diffusion_bound(even, torch.tensor([[BOS, 5, EOS]]), seeded(0))) - 3
                * math.log(7)) < 1e-5)


def test_the_sampler_draws_from_its_distribution():
    predict = tiny(1)
    expected = {text: sum(math.exp(p) for p in orders(predict, text)) / 6
                for text in itertools.product(TINY, repeat=3)}
    assert math.isclose(sum(expected.values()), 1, rel_tol=1e-5)
    drawn = unmask(predict, torch.full((4_000, 3), MASK), 3, seeded(0), at_random, SamplingConfig())
    assert abs(chi_square(Counter(map(tuple, drawn.tolist())), expected)) < 4


def test_confidence_comes_first():
    logits, seen = torch.zeros(1, 3, 7), []
    logits[0, range(3), range(4, 7)] = torch.tensor([3., 9., 6.])
    def predict(ids): return seen.append(ids.tolist()) or logits
    written = unmask(predict, torch.full((1, 3), MASK), 3, seeded(0), by_confidence)
    assert (written.tolist() == [[4, 5, 6]]
        and seen == [[[MASK] * 3], [[MASK, 5, MASK]], [[MASK, 5, 6]]])
    few = unmask(predict, torch.tensor([[4, MASK, MASK]]), 1, seeded(0), by_confidence)
    assert few.tolist() == [[4, 5, 6]]


def nowhere(ids): return torch.full((*ids.shape, 9), math.nan)


# --- what is refused, by name ---------------------------------------------------------------------

IDS, EVERY_OTHER, ONE = torch.arange(10, 20), torch.arange(10) % 2 == 1, torch.tensor([[5, 6, 4]])
SIDES = [  # a span is missing, a gap is; one span for two gaps, two spans for one; no gap
    ([5, 90, 6, 91, 2], [90, 7, 2]), ([5, 90, 6, 2], [90, 7, 91, 8, 2]),
    ([5, 90, 6, 90, 2], [90, 7, 2]), ([5, 90, 6, 2], [90, 7, 90, 8, 2]), ([5, 6, 2], [90, 7, 2])]
REFUSED = [
    *(("n: ", lambda n=n: fill_in(STORIES[0], seeded(0), n))
        for n in (0, -1, LONGEST + 1, 100, 2.5)),
        *(("n: ", lambda n=n: write_on(STORIES[0], seeded(0), n)) for n in (0, -1, 1.5)),
    ("ids: ", lambda: GRAMMAR.next_words(torch.tensor([story_ids("the the the")]))),
    ("text: 'ben has a dog'", lambda: story_ids("ben has a dog")),
    ("ids: .*; expected a story of whole sentences",
        lambda: GRAMMAR.final_world(torch.tensor(story_ids("ben has the")))),
    ("seen: .*expected a text that the grammar can write",
        lambda: fill_probabilities(GRAMMAR, torch.tensor(story_ids("ben ben")))),
    # spans
    ("length: 1", lambda: span_counts(1)), ("rate: 1.5", lambda: span_counts(9, 1.5)),
    ("mean: 0.5", lambda: span_counts(9, mean=.5)),
    ("n: 4; expected at most 3", lambda: random_segments(3, 4, seeded(0))),
    ("mask: ", lambda: span_corruption(IDS, EVERY_OTHER[:4], [50])),
    ("mask: ", lambda: span_corruption(IDS, EVERY_OTHER & False, [50])),
    ("sentinels: 1", lambda: span_corruption(IDS, EVERY_OTHER, [50])),
    ("ids: .*sentinel", lambda: span_corruption(IDS, EVERY_OTHER, [*range(19, 30)])),
    ("ids: ", lambda: span_corruption(IDS[None], EVERY_OTHER[None], [50])),
    ("targets: ", lambda: fill_sentinels(IDS, IDS, [50])),
    ("sentinels: ", lambda: span_corruption(IDS, EVERY_OTHER, [90] * 5)),
    ("sentinels: ", lambda: span_corruption(IDS, EVERY_OTHER, [90, 91, EOS, 92, 93])),
    # the text would end there
    ("ids: ", lambda: span_corruption(torch.tensor([5, EOS, 7, 8]), EVERY_OTHER[:4], [90, 91])),
    ("ids: ", lambda: span_corruption(torch.tensor([5, 19, 7, 8]), EVERY_OTHER[:4], [90, 91],
        eos=19)),
    *(("targets: .*expected .*once",
        lambda sides=sides: fill_sentinels(*map(torch.tensor, sides), [90, 91]))
        for sides in SIDES),
    # noises: of the means, 0 and inf never ended
    *(("ids: .*expected", lambda noise=noise: noise(torch.zeros(2, 3, dtype=torch.int64),
        seeded(0))) for noise in (token_masking, token_deletion, text_infilling,
        document_rotation)),
    ("rate: 0", lambda: token_masking(torch.tensor([5]), seeded(0), rate=0)),
    *(("budget: ", lambda budget=budget: infilling_lengths(budget, seeded(0)))
        for budget in (-1, 2.5)),
    *(("mean: ", lambda mean=mean, draw=draw: draw(mean))
        for mean in (0., -1., 1e-9, math.inf, math.nan, "3")
      for draw in (lambda mean: text_infilling(torch.arange(5, 25), seeded(0), mean=mean),
          lambda mean: infilling_lengths(4, seeded(0), mean))),
    # examples
    *(("prefix: ", lambda bad=bad: prefix_mask(bad, 4))
        for bad in (torch.tensor([5]), torch.tensor([-1]), torch.tensor([1.]), torch.tensor(1))),
        ("examples: ", lambda: collate([])),
    ("decoder: with a relative bias for one direction",
        lambda: PrefixLM(build(ModelConfig("decoder", 9, 8, 1, 2, 8, positions="relative")))),
    ("inputs: an empty row", lambda: join(torch.zeros(2, 3).long(), torch.ones(2, 4).long())),
    ("targets: ", lambda: join(torch.ones(2, 3).long(), torch.ones(1, 4).long())),
    *((f"{name}: .*padding .*; expected padding at the end", lambda a=a,
        b=b: join(torch.tensor(a), torch.tensor(b))) for a, b, name in (
        ([[0, 0, 5, 6]], [[7, 8]], "inputs"), ([[5, 6, 7]], [[7, 0, 8]], "targets"),
        ([[5, 0, 6]], [[7, 8]], "inputs"))),
    ("ids: padding before other tokens in row 1; expected padding at the end",
        lambda: lengths_of(torch.tensor([[5, 0], [0, 7]]))),
    # masked diffusion
    *(("least: ", lambda least=least: MaskedDiffusion(least))
        for least in (-1., 0., 1.1, 3., math.nan, "1")),
    *(("ids: .*; expected", lambda ids=ids: diffusion_bound(tiny(0), torch.tensor(ids), seeded(0)))
        for ids in ([[5, 6, PAD]], [[5, MASK, 6]], [5, 6, 4])),
        ("draws: ", lambda: diffusion_bound(tiny(0), ONE, seeded(0), 0)),
    *(("^logits: a row without probabilities",
        lambda sampling=sampling: unmask(nowhere, torch.tensor([[4, MASK]]), 1, seeded(0),
            sampling=sampling)) for sampling in (None, SamplingConfig())),
    ("ids: no MASK", lambda: unmask(nowhere, torch.tensor([[4, 5]]), 1, seeded(0))),
    ("steps", lambda: unmask(nowhere, torch.tensor([[MASK]]), 0, seeded(0)))]


@pytest.mark.parametrize("said, call", REFUSED)
def test_what_cannot_be_is_refused_by_name(said, call): refuses(said, call)


# --- the measurement ------------------------------------------------------------------------------

@pytest.mark.whole
def test_operations_are_those_of_the_formula_attention_included():
    """PyTorch does not count its fused attention on a processor, so the measurement counts a
    network that attends in plain products."""
    # they follow a token to begin with
    steps = [base.batch("causal LM", 0, step)[1].shape for step in range(8)]
    [shape] = shapes_of(base.made("causal LM", 0).decoder.config)
    assert (base.operations("causal LM")
            == round(sum(training_flops(shape, B, 1 + T) for B, T in steps) / 8))


def test_a_reader_of_the_left_side_knows_that_a_gap_does_not_hold_the_end():
    "Every filling without an end, by brute force."
    some = base.questions("fill in", 0, -3, 40)
    logprob, _ = base.from_left(some)
    for q, row in zip(some[:12], logprob):
        fillings = ways(q.left, [[w for w in range(V) if w not in (EOS, PAD)]] * len(q.answer))
        assert float(row.sum()) == pytest.approx(
            math.log(fillings[tuple(q.answer)] / sum(fillings.values())), abs=1e-9)


def test_the_page_tells_how_it_was_measured():
    "The numbers of the protocol that no record holds."
    pages = "chapters/11_denoisers", "chapters/depth/11_denoisers"
    text = "\n".join("".join(c["source"]) for page in pages for c in json.loads(
        (ROOT / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"])
    words = {3: "three", 4: "four", 8: "eight", 6: "six", 16: "16"}
    said = (f"{base.LABELLED} labelled cases of each task for {base.TUNED} steps",
            f"is the best of {words[len(base.PEAKS)]}, each tried in one run of "
            f"{100 * base.TRIED // base.STEPS} per cent of these steps",
            f"one of {words[len(base.TUNE_PEAKS)]} (or a higher one",
            f"first of {words[len(base.SEEDS)]} seeds",
            f"steps of {base.TEXTS} new stories", f"{words[denoiser_longer.LONGER]} times as long",
            f"All {words[len(denoiser_longer.KINDS)]} objectives",
            f"{words[denoiser_instructions.SHOWN]} labelled cases of the held-out question",
            f"{words[len(denoiser_instructions.ASKED)]} questions about a story")
    assert [sentence for sentence in said if sentence not in text] == []
