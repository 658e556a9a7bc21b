"""Denoisers: the stories against enumeration, T5's rule and BART's noises against slow samplers, losses and the diffusion bound against slow versions, and what is refused."""
import itertools
import math
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import notebooks

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
    StoryGrammar,
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
ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = StoryGrammar()
STORIES = GRAMMAR.sample(40, 1)
V = len(STORY_WORDS)


def bare(story): return story[:int((story > EOS).sum())]


def model(kind: str = "decoder", seed: int = 0):
    shape = ModelConfig(kind, V, 16, 2, 2, 64, **MODERN)
    return PrefixLM(build(shape, seed=seed)).eval() if kind == "decoder" else build(shape, seed=seed).eval()


def chi_square(found: Counter, expected: dict) -> float:
    "How far counts are from what is expected, as a number of standard deviations of the statistic."
    n = sum(found.values())
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    value = sum((found[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    return (value - (len(expected) - 1)) / (2 * max(len(expected) - 1, 1)) ** .5


# --- the stories ----------------------------------------------------------------------------------------------------

def test_every_state_has_a_distribution_and_every_story_an_end():
    assert torch.allclose(GRAMMAR.p.sum(1), torch.ones(len(GRAMMAR.p), dtype=torch.float64))
    for story in STORIES:
        assert int((story == EOS).sum()) == 1 and 4 <= len(split_story(story)) <= 6
        assert bool((GRAMMAR.next_words(story[None])[0].gather(-1, story[:, None]) > 0).all())


def test_the_probabilities_of_all_that_may_follow_sum_to_one():
    begun = torch.tensor(story_ids("ben has the old lamp at the hill . ben"))
    states = {int(GRAMMAR.states(begun[None])[0, -1]): 1.}
    for _ in range(12):                                                          # a state's words and what follows them
        after = Counter()
        for state, p in states.items():
            for word in GRAMMAR.p[state].nonzero()[:, 0].tolist(): after[int(GRAMMAR.after[state, word])] += p * float(GRAMMAR.p[state, word])
        states = after
        assert math.isclose(sum(states.values()), 1)


@pytest.mark.parametrize("text, summary", [
    ("ben has the old lamp at the hill . he gives the lamp to mia . she walks to the barn . tom rests .", None),
    ("ben has the old lamp at the hill . he gives the lamp to mia . she walks to the barn . tom sleeps . [EOS]", "mia has the lamp at the barn ."),
    ("at the river eva has the big drum . tom takes the drum from eva . the sun shines . he rests . [EOS]", "tom has the drum at the river ."),
])
def test_the_world_follows_the_story(text, summary):
    if summary is None:
        ids = torch.tensor([story_ids(text)])
        assert float(GRAMMAR.next_words(ids[:, :-1])[0, -1, story_ids("rests")[0]]) == 0           # nobody rests in a barn
        with pytest.raises(ValueError, match="ids: .*expected a text that the grammar can write"): GRAMMAR.next_words(ids)
        with pytest.raises(ValueError, match="ids: .*expected a text that the grammar can write"): GRAMMAR.states(ids[:, :-1])
    else: assert GRAMMAR.final_world(torch.tensor(story_ids(text))).summary() == summary


def test_what_is_hidden_has_the_probability_found_by_enumeration():
    story = torch.tensor(story_ids("ben has the old lamp at the hill . ben gives the lamp to mia . she rests . the sun shines . [EOS]"))
    seen = story.clone()
    hidden = [9, 10, 14, 16]
    seen[hidden] = MASK
    def logprob(ids): return float(GRAMMAR.next_words(ids[None])[0].gather(-1, ids[:, None]).log().sum())
    found, total = torch.zeros(len(seen), V).double(), 0.
    possible = [i for i in range(MASK + 1, N_WORDS)]
    def walk(t, ids, p):
        nonlocal total
        if p == 0: return
        if t == len(seen):
            total += p
            found[range(t), ids] += p
            return
        row = GRAMMAR.next_words(torch.tensor([[*ids, PAD]]))[0, t]
        for word in possible if seen[t] == MASK else [int(seen[t])]:
            if row[word] > 0: walk(t + 1, [*ids, word], p * float(row[word]))
    walk(0, [], 1.)
    ours, log_total = fill_probabilities(GRAMMAR, seen)
    assert math.isclose(log_total, math.log(total)) and torch.allclose(ours, found / total)
    assert math.isclose(fill_probabilities(GRAMMAR, story)[1], logprob(story))


def test_the_questions_are_parts_of_the_story():
    for i, story in enumerate(STORIES):
        whole, g = bare(story).tolist() + [EOS], seeded(i)
        gap, on, short = fill_in(story, g), write_on(story, g), condense(story, GRAMMAR)
        assert gap.left + gap.answer + gap.right == whole and len(gap.answer) == 4 and gap.left.count(STOP) >= 1 and EOS not in gap.answer
        assert (on.left + on.answer) == whole[:len(on.left) + len(on.answer)] and on.left.count(STOP) == 2 and on.right is None
        assert short.left == whole and story_text(short.answer) == GRAMMAR.final_world(story).summary()


def test_questions_that_a_story_cannot_ask_are_refused():
    story = STORIES[0]
    length = len(bare(story)) + 1
    longest = length - len(split_story(story)[0]) - 1                            # after the first sentence, without the end
    assert len(fill_in(story, seeded(0), longest).answer) == longest
    for n in (0, -1, longest + 1, 100, 2.5):
        with pytest.raises(ValueError, match="n: "): fill_in(story, seeded(0), n)
    for n in (0, -1, 1.5):
        with pytest.raises(ValueError, match="n: "): write_on(story, seeded(0), n)


def test_a_text_may_go_on_after_its_end_with_padding_only():
    padded = STORIES[[len(bare(story)) for story in STORIES].index(min(len(bare(story)) for story in STORIES))][None]
    assert padded[0, -1] == PAD and GRAMMAR.states(padded).shape == (1, padded.shape[1] + 1)
    with pytest.raises(ValueError, match="ids: "): GRAMMAR.states(torch.cat([padded, padded], 1))
    with pytest.raises(ValueError, match="ids: "): GRAMMAR.next_words(torch.tensor([story_ids("the the the")]))
    assert GRAMMAR.next_words(torch.tensor([story_ids("ben")])).shape == (1, 1, V)


def test_stories_that_are_none_are_refused():
    with pytest.raises(ValueError, match="text: 'ben has a dog'"): story_ids("ben has a dog")
    with pytest.raises(ValueError, match="ids: .*; expected a story of whole sentences"): GRAMMAR.final_world(torch.tensor(story_ids("ben has the")))
    with pytest.raises(ValueError, match="seen: .*expected a text that the grammar can write"): fill_probabilities(GRAMMAR, torch.tensor(story_ids("ben ben")))


# --- span corruption ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("length, counts", [(2, (1, 1)), (10, (2, 1)), (20, (3, 1)), (30, (4, 1)), (31, (5, 2)), (100, (15, 5)), (512, (77, 26))])
def test_how_much_is_dropped(length, counts): assert span_counts(length) == counts


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 80), st.floats(.01, .99), st.floats(1, 6), st.integers(0, 99))
def test_the_mask_has_as_much_noise_in_as_many_spans_as_the_rule_says(length, rate, mean, seed):
    mask = span_mask(length, seeded(seed), rate, mean).tolist()
    runs = [(key, len(list(group))) for key, group in itertools.groupby(mask)]
    assert len(mask) == length and (sum(mask), len(runs) / 2) == span_counts(length, rate, mean)
    assert runs[0][0] is False and runs[-1][0] is True


def test_every_segmentation_is_equally_likely():
    all_cuts = [c for c in itertools.product(range(1, 7), repeat=3) if sum(c) == 7]
    g = seeded(0)
    found = Counter(tuple(random_segments(7, 3, g)) for _ in range(3_000))
    assert abs(chi_square(found, dict.fromkeys(all_cuts, 1 / len(all_cuts)))) < 4


def test_the_mask_is_that_of_a_slow_sampler():
    def slow():                                              # every mask that fits the counts and alternates, all equally likely
        n_noise, n_spans = span_counts(9, .45, 2.)
        for mask in itertools.product((False, True), repeat=9):
            runs = [key for key, _ in itertools.groupby(mask)]
            if sum(mask) == n_noise and runs == [False, True] * n_spans: yield mask
    masks, g = list(slow()), seeded(1)
    found = Counter(tuple(span_mask(9, g, .45, 2.).tolist()) for _ in range(4_000))
    assert len(masks) == 4 * 3 and abs(chi_square(found, dict.fromkeys(masks, 1 / len(masks)))) < 4


def test_by_the_rule_a_text_ends_with_noise_and_rolled_masks_end_anywhere():
    g, n = seeded(2), 4_000
    rule, rolled = (torch.stack([mask(31, g) for _ in range(n)]).double() for mask in (span_mask, rolled_span_mask))
    assert rule[:, -1].eq(1).all() and rule[:, 0].eq(0).all()
    assert bool((rule.sum(1) == 5).all() and (rolled.sum(1) == 5).all())
    assert float((rolled.mean(0) - 5 / 31).abs().max()) < 5 * (5 / 31 / n) ** .5                 # every position alike
    corrupt = SpanCorruption(SENTINELS, mask=rolled_span_mask)
    ids = bare(STORIES[2])
    for seed in range(20):
        example = corrupt(ids, seeded(seed))
        assert fill_sentinels(example.inputs, example.targets, SENTINELS).tolist() == ids.tolist()


def test_t5_rounds_in_32_bits():
    def t5(length):                                          # as its code does: products and quotients of 32 bits
        n = min(max(int(np.round(np.float32(length) * np.float32(.15))), 1), length - 1)
        return n, min(max(int(np.round(np.float32(n) / np.float32(3))), 1), length - n)
    differ = [n for n in range(2, 5_000) if t5(n) != span_counts(n)]
    assert len(differ) == 39 and differ[0] == 190
    assert all(a - b == 1 for n in differ for a, b in zip(t5(n), span_counts(n)))


def test_span_corruption_by_hand():
    ids = torch.arange(10, 20)
    mask = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 0, 0]).bool()
    inputs, targets = span_corruption(ids, mask, [50, 51, 52])
    assert inputs.tolist() == [10, 11, 50, 14, 15, 16, 51, 18, 19, EOS] and targets.tolist() == [50, 12, 13, 51, 17, EOS]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24).filter(any), st.integers(0, 99))
def test_both_sides_give_the_text_back(mask, seed):
    ids = torch.randint(4, 40, (len(mask),), generator=seeded(seed))
    inputs, targets = span_corruption(ids, torch.tensor(mask), SENTINELS)
    assert fill_sentinels(inputs, targets, SENTINELS).tolist() == ids.tolist()
    kept = [i for i in [*inputs.tolist(), *targets.tolist()] if i not in (*SENTINELS, EOS)]
    assert sorted(kept) == sorted(ids.tolist())                                  # every token is on one side


def test_bad_spans_are_refused():
    ids, mask = torch.arange(10, 20), torch.arange(10) % 2 == 1
    for message, call in [
        ("length: 1", lambda: span_counts(1)), ("rate: 1.5", lambda: span_counts(9, 1.5)), ("mean: 0.5", lambda: span_counts(9, mean=.5)),
        ("n: 4; expected at most 3", lambda: random_segments(3, 4, seeded(0))),
        ("mask: ", lambda: span_corruption(ids, mask[:4], [50])), ("mask: ", lambda: span_corruption(ids, mask & False, [50])),
        ("sentinels: 1", lambda: span_corruption(ids, mask, [50])), ("ids: .*sentinel", lambda: span_corruption(ids, mask, [*range(19, 30)])),
        ("ids: ", lambda: span_corruption(ids[None], mask[None], [50])), ("targets: ", lambda: fill_sentinels(ids, ids, [50])),
        ("sentinels: ", lambda: span_corruption(ids, mask, [90] * 5)), ("sentinels: ", lambda: span_corruption(ids, mask, [90, 91, EOS, 92, 93])),
        ("ids: ", lambda: span_corruption(torch.tensor([5, EOS, 7, 8]), mask[:4], [90, 91])),        # the text would end there
        ("ids: ", lambda: span_corruption(torch.tensor([5, 19, 7, 8]), mask[:4], [90, 91], eos=19)),
    ]:
        with pytest.raises(ValueError, match=message): call()


@pytest.mark.parametrize("inputs, targets", [
    ([5, 90, 6, 91, 2], [90, 7, 2]),                         # a span is missing
    ([5, 90, 6, 2], [90, 7, 91, 8, 2]),                      # a gap is missing
    ([5, 90, 6, 90, 2], [90, 7, 2]),                         # one span for two gaps
    ([5, 90, 6, 2], [90, 7, 90, 8, 2]),                      # two spans for one gap
    ([5, 6, 2], [90, 7, 2]),
])
def test_sides_that_do_not_fit_are_refused(inputs, targets):
    with pytest.raises(ValueError, match="targets: .*expected .*once"): fill_sentinels(torch.tensor(inputs), torch.tensor(targets), [90, 91])


def test_sides_that_fit_may_be_padded_and_in_any_order():
    assert fill_sentinels(torch.tensor([5, 90, 6, 91, 2, 0]), torch.tensor([91, 8, 90, 7, 7, 2]), [90, 91]).tolist() == [5, 7, 7, 6, 8]


# --- BART's noises --------------------------------------------------------------------------------------------------

def many(noise, ids, n=3_000, seed=0):
    g = seeded(seed)
    return Counter(tuple(noise(ids, g).tolist()) for _ in range(n))


def test_masking_and_deletion_take_every_subset_alike():
    ids = torch.tensor([10, 11, 12, 13, 14])
    pairs = list(itertools.combinations(range(5), 2))
    masked = {tuple(MASK if i in pair else 10 + i for i in range(5)): .1 for pair in pairs}
    left = {tuple(10 + i for i in range(5) if i not in pair): .1 for pair in pairs}
    assert abs(chi_square(many(partial(token_masking, rate=.4), ids), masked)) < 4
    assert abs(chi_square(many(partial(token_deletion, rate=.4), ids), left)) < 4


def test_infilling_is_that_of_a_slow_sampler():
    ids, budget = [10, 11, 12, 13], 2
    def poisson(k): return math.exp(-1.5) * 1.5**k / math.factorial(k)
    def lengths(left):                                       # lists of lengths with their probabilities, up to six spans
        if left == 0: yield (), 1.
        else:
            for k in range(left):
                for rest, p in lengths_up_to(left - k): yield (k, *rest), poisson(k) * p
            yield (left,), 1 - sum(map(poisson, range(left)))
    def orders(drawn):                                       # what is equal may change places
        if not drawn: yield ()
        for k in set(drawn):
            left = list(drawn)
            left.remove(k)
            for more in orders(left): yield (k, *more)
    depth = []
    def lengths_up_to(left):
        if len(depth) > 6: return
        depth.append(0)
        yield from lengths(left)
        depth.pop()
    expected = Counter()
    lists = Counter()
    for drawn, p in lengths(budget): lists[tuple(sorted(drawn))] += p
    for drawn, p in lists.items():
        ordered = list(orders(drawn))
        for order in ordered:
            slots = len(ids) - budget + len(order)
            places = list(itertools.combinations(range(slots), len(order)))
            for place in places:
                row, at, spans = [], 0, list(order)
                for slot in range(slots):
                    if slot in place: row, at = [*row, MASK], at + spans.pop(0)
                    else: row, at = [*row, ids[at]], at + 1
                expected[tuple(row)] += p / len(ordered) / len(places)
    found = many(partial(text_infilling, rate=.5, mean=1.5), torch.tensor(ids), 6_000)
    common = {row: p for row, p in expected.items() if p > .003}
    assert sum(common.values()) > .8
    for row, p in common.items(): assert abs(found[row] / 6_000 - p) < 5 * (p / 6_000) ** .5, row


def test_infilling_spends_its_budget_and_inserts_masks():
    g = seeded(3)
    drawn = [infilling_lengths(9, g) for _ in range(500)]
    assert all(sum(d) == 9 for d in drawn) and any(0 in d for d in drawn)
    ids = torch.arange(10, 40)
    for _ in range(50):
        row = text_infilling(ids, g)
        kept = row[row != MASK]
        assert len(kept) == 21 and bool((kept.diff() > 0).all())


def test_permutation_and_rotation_take_every_order_alike():
    ids = torch.tensor([10, 9, 11, 12, 9, 13])               # 9 is the full stop; the last sentence has none
    parts = [(10, 9), (11, 12, 9), (13,)]
    orders = {tuple(sum(order, ())): 1 / 6 for order in itertools.permutations(parts)}
    turns = {tuple(ids.roll(-i).tolist()): 1 / 6 for i in range(6)}
    assert abs(chi_square(many(partial(sentence_permutation, stop=9), ids), orders)) < 4
    assert abs(chi_square(many(document_rotation, ids), turns)) < 4
    both = compose(document_rotation, partial(token_deletion, rate=.5))
    assert all(len(row) == 3 for row in many(both, ids, 20))


def test_bad_noise_is_refused():
    for noise in (token_masking, token_deletion, text_infilling, document_rotation):
        with pytest.raises(ValueError, match="ids: .*expected"): noise(torch.zeros(2, 3, dtype=torch.int64), seeded(0))
    with pytest.raises(ValueError, match="rate: 0"): token_masking(torch.tensor([5]), seeded(0), rate=0)
    for mean in (0., -1., 1e-9, math.inf, math.nan, "3"):    # of these, 0 and inf never ended
        with pytest.raises(ValueError, match="mean: "): text_infilling(torch.arange(5, 25), seeded(0), mean=mean)
        with pytest.raises(ValueError, match="mean: "): infilling_lengths(4, seeded(0), mean)
    for budget in (-1, 2.5):
        with pytest.raises(ValueError, match="budget: "): infilling_lengths(budget, seeded(0))
    assert infilling_lengths(0, seeded(0)) == []


# --- examples, masks and losses -------------------------------------------------------------------------------------

def test_every_objective_can_be_trained_on():
    texts = [bare(story) for story in STORIES[:6]]
    for name, objective in objectives(N_WORDS, SENTINELS, STOP).items():
        network = model("encoder-decoder" if objective.logits is encoder_decoder_logits else "decoder")
        total, count = objective.loss(network, *objective.batch(texts, seeded(1)))
        (total / count).backward()
        assert total.isfinite() and count > 0, name
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_prefix_lm_divides_the_text():
    ids = bare(STORIES[0])
    cuts = set()
    for seed in range(60):
        example = prefix_lm(ids, seeded(seed))
        assert [*example.inputs.tolist(), *example.targets.tolist()] == [BOS, *ids.tolist(), EOS]
        cuts.add(len(example.inputs))
    assert min(cuts) >= 2 and max(cuts) <= len(ids) and len(cuts) > 10


def test_the_prefix_mask_entry_by_entry():
    mask = prefix_mask(torch.tensor([0, 2, 4]), 4)
    for b, n in enumerate((0, 2, 4)):
        for t, s in itertools.product(range(4), repeat=2): assert bool(mask[b, 0, t, s]) == (s <= t or s < n)
    for bad in (torch.tensor([5]), torch.tensor([-1]), torch.tensor([1.]), torch.tensor(1)):
        with pytest.raises(ValueError, match="prefix: "): prefix_mask(bad, 4)
    with pytest.raises(ValueError, match="decoder: with a relative bias for one direction"): PrefixLM(build(ModelConfig("decoder", 9, 8, 1, 2, 8, positions="relative")))


def test_without_a_prefix_it_is_a_causal_lm():
    network, ids = model(), STORIES[:3]
    plain = network.decoder
    torch.testing.assert_close(network(ids), plain(ids))
    both = network(ids, torch.tensor([5, 5, 5]))
    changed = ids.clone()
    changed[:, 4] = 20
    assert not torch.allclose(network(changed, torch.tensor([5, 5, 5]))[:, 0], both[:, 0])   # the first sees the fifth
    changed = ids.clone()
    changed[:, 5] = 20
    torch.testing.assert_close(network(changed, torch.tensor([5, 5, 5]))[:, :5], both[:, :5])


def test_joined_rows_are_those_of_a_loop():
    inputs = torch.tensor([[1, 7, 8], [1, PAD, PAD]])
    targets = torch.tensor([[9, 2, PAD, PAD], [7, 8, 9, 2]])
    ids, begin = join(inputs, targets)
    assert ids.tolist() == [[1, 7, 8, 9, 2], [1, 7, 8, 9, 2]] and begin.tolist() == [3, 1]
    with pytest.raises(ValueError, match="inputs: an empty row"): join(inputs * 0, targets)
    for a, b, name in (([[0, 0, 5, 6]], [[7, 8]], "inputs"), ([[5, 6, 7]], [[7, 0, 8]], "targets"), ([[5, 0, 6]], [[7, 8]], "inputs")):
        with pytest.raises(ValueError, match=f"{name}: .*padding .*; expected padding at the end"): join(torch.tensor(a), torch.tensor(b))
    assert lengths_of(torch.tensor([[5, 6, 0], [0, 0, 0], [5, 4, 6]])).tolist() == [2, 0, 3]
    with pytest.raises(ValueError, match="ids: padding before other tokens in row 1; expected padding at the end"): lengths_of(torch.tensor([[5, 0], [0, 7]]))
    with pytest.raises(ValueError, match="targets: "): join(inputs, targets[:1])


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
    batch = objective.batch([bare(story) for story in STORIES[:5]], seeded(2))
    inputs, targets, weights = batch
    logprob = masked_logits(network, inputs, targets).log_softmax(-1)
    logprob = logprob.detach()
    slow = sum(-float(weights[b, t] * logprob[b, t, targets[b, t]]) for b in range(5) for t in range(targets.shape[1]))
    total, count = objective.loss(network, *batch)
    assert math.isclose(total.item(), slow, rel_tol=1e-4) and int(count) == int((targets != PAD).sum())
    with pytest.raises(ValueError, match="weights: "): objective.loss(network, inputs, targets, weights[:, :3])
    with pytest.raises(ValueError, match="targets: "): masked_logits(network, inputs, targets[:, :3])
    with pytest.raises(ValueError, match="examples: "): collate([])


def test_the_weight_of_diffusion_makes_up_for_its_rate():
    ids, g = bare(STORIES[0]), seeded(5)
    drawn = [MaskedDiffusion()(ids, g) for _ in range(2_000)]
    weights = torch.stack([e.weights for e in drawn])                             # on average every token counts once
    assert weights[:, 0].sum() == 0 and abs(float(weights[:, 1:].mean()) - 1) < .1
    assert all(bool((e.inputs == MASK).eq(e.weights > 0).all()) for e in drawn[:50])


@pytest.mark.parametrize("least", [-1., 0., 1.1, 3., math.nan, "1"])
def test_rates_that_are_none_are_refused(least):
    with pytest.raises(ValueError, match="least: "): MaskedDiffusion(least)


def test_every_text_may_be_hidden_entirely():
    example = MaskedDiffusion(1.)(bare(STORIES[0]), seeded(0))
    assert bool((example.inputs[1:] == MASK).all()) and set(example.weights[1:].tolist()) == {1.}


def test_objectives_restore_the_text():
    ids = bare(STORIES[1])
    span = SpanCorruption(SENTINELS)(ids, seeded(0))
    assert fill_sentinels(span.inputs, span.targets, SENTINELS).tolist() == ids.tolist()
    bart = Denoising(text_infilling)(ids, seeded(0))
    assert bart.targets.tolist() == [*ids.tolist(), EOS] and isinstance(bart, Example)


# --- masked diffusion -----------------------------------------------------------------------------------------------

TINY = 4, 5, 6                                                                    # tokens of a tiny world, in texts of three


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
    nll = -float(each.exp().mean().log())                                         # of a sampler that draws its order
    bound = float(diffusion_bound(predict, text.expand(400, 3), seeded(seed), 100).mean())
    assert abs(bound + float(each.mean())) < .05 and bound > nll


def test_a_text_of_the_bound_has_neither_padding_nor_masks():
    for ids in ([[5, 6, PAD]], [[5, MASK, 6]]):
        with pytest.raises(ValueError, match="ids: .*; expected"): diffusion_bound(tiny(0), torch.tensor(ids), seeded(0))
    with pytest.raises(ValueError, match="ids: "): diffusion_bound(tiny(0), torch.tensor([5, 6, 4]), seeded(0))
    with pytest.raises(ValueError, match="draws: "): diffusion_bound(tiny(0), torch.tensor([[5, 6, 4]]), seeded(0), 0)
    def even(ids): return torch.zeros(*ids.shape, 7)
    assert abs(float(diffusion_bound(even, torch.tensor([[BOS, 5, EOS]]), seeded(0))) - 3 * math.log(7)) < 1e-5


def test_the_sampler_draws_from_its_distribution():
    predict = tiny(1)
    expected = {text: sum(math.exp(p) for p in orders(predict, text)) / 6 for text in itertools.product(TINY, repeat=3)}
    assert math.isclose(sum(expected.values()), 1, rel_tol=1e-5)
    drawn = unmask(predict, torch.full((4_000, 3), MASK), 3, seeded(0), at_random, SamplingConfig())
    assert abs(chi_square(Counter(map(tuple, drawn.tolist())), expected)) < 4


def test_confidence_comes_first():
    seen = []
    def predict(ids):
        seen.append(ids.clone())
        logits = torch.zeros(1, 3, 7)
        logits[0, 0, 4], logits[0, 1, 5], logits[0, 2, 6] = 3., 9., 6.
        return logits
    written = unmask(predict, torch.full((1, 3), MASK), 3, seeded(0), by_confidence)
    assert written.tolist() == [[4, 5, 6]] and [(row == MASK).sum().item() for row in seen] == [3, 2, 1]
    assert seen[1].tolist() == [[MASK, 5, MASK]] and seen[2].tolist() == [[MASK, 5, 6]]
    few = unmask(predict, torch.tensor([[4, MASK, MASK]]), 1, seeded(0), by_confidence)
    assert few.tolist() == [[4, 5, 6]]
    for sampling in (None, SamplingConfig()):
        with pytest.raises(ValueError, match="^logits: a row without probabilities"): unmask(lambda ids: torch.full((*ids.shape, 9), math.nan), torch.tensor([[4, MASK]]), 1, seeded(0), sampling=sampling)
    with pytest.raises(ValueError, match="ids: no MASK"): unmask(predict, torch.tensor([[4, 5]]), 1, seeded(0))
    with pytest.raises(ValueError, match="steps"): unmask(predict, torch.tensor([[MASK]]), 0, seeded(0))


# --- the measurement ----------------------------------------------------------------------------------------------------

def test_operations_are_those_of_the_formula_attention_included():
    "PyTorch does not count its fused attention on a processor, so the measurement counts a network that attends in plain products."
    steps = [base.batch("causal LM", 0, step)[1].shape for step in range(8)]       # they follow a token to begin with
    [shape] = shapes_of(base.made("causal LM", 0).decoder.config)
    assert base.operations("causal LM") == round(sum(training_flops(shape, B, 1 + T) for B, T in steps) / 8)


def test_a_reader_of_the_left_side_knows_that_a_gap_does_not_hold_the_end():
    some = base.questions("fill in", 0, -3, 40)
    logprob, _ = base.from_left(some)
    for q, row in zip(some[:12], logprob):
        ways, total = {(): 1.}, len(q.answer)
        for i in range(total):                       # every filling without an end, by brute force
            more = {}
            for words, p in ways.items():
                after = GRAMMAR.next_words(torch.tensor([[*q.left, *words, 0]]))[0, len(q.left) + i]
                more |= {(*words, int(w)): p * float(after[w]) for w in after.nonzero()[:, 0] if w not in (EOS, PAD)}
            ways = more
        assert float(row.sum()) == pytest.approx(math.log(ways[tuple(q.answer)] / sum(ways.values())), abs=1e-9)


def test_the_page_tells_how_it_was_measured():
    "The numbers of the protocol that no record holds."
    pages = "chapters/11_denoisers", "chapters/depth/11_denoisers"
    text = "\n".join("".join(c["source"]) for page in pages for c in notebooks(ROOT)[page]["cells"])
    words = {3: "three", 4: "four", 8: "eight", 6: "six", 16: "16"}
    said = (f"{base.LABELLED} labelled cases of each task for {base.TUNED} steps", f"is the best of {words[len(base.PEAKS)]}, each tried in one run of "
            f"{100 * base.TRIED // base.STEPS} per cent of these steps", f"one of {words[len(base.TUNE_PEAKS)]} (or a higher one", f"first of {words[len(base.SEEDS)]} seeds",
            f"steps of {base.TEXTS} new stories", f"{words[denoiser_longer.LONGER]} times as long", f"All {words[len(denoiser_longer.KINDS)]} objectives",
            f"{words[denoiser_instructions.SHOWN]} labelled cases of the held-out question", f"{words[len(denoiser_instructions.ASKED)]} questions about a story")
    assert [sentence for sentence in said if sentence not in text] == []
