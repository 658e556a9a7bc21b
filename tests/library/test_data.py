"""The worlds of chapter 00_data: each answer is found again by other means, each promise is
tried on many seeds."""
import re
from collections import Counter
from hashlib import sha256
from random import Random

import freeze
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tfmlib.workbench import (
    ROWS,
    RULES,
    WORDS,
    Writer,
    adding,
    bleu,
    book_text,
    data,
    held_out,
    lexicon,
    one_line,
    pairs,
    prose,
    recall,
    recalled,
    sequences,
    spell,
    stream,
    translated,
    writer,
)

seeds, sizes = st.integers(0, 2**40), st.integers(1, 9)
quick = settings(max_examples=40, deadline=None)


# --- seeds ----------------------------------------------------------------------------------------

MAKERS = {
    "copy": lambda seed: sequences("copy", 4, 16, seed=seed)[0].tolist(),
    "recall": lambda seed: recall(4, 6, seed=seed)[0].tolist(),
    "adding": lambda seed: adding(4, 8, seed=seed)[0].tolist(),
    "pairs": lambda seed: pairs(5, seed=seed),
    "held-out": lambda seed: pairs(2, "held-out", seed=seed),
    "prose": lambda seed: prose(300, seed=seed),
}


@pytest.mark.parametrize("world", MAKERS)
@quick
@given(seeds, seeds)
def test_a_seed_decides_the_data(world, one, other):
    make = MAKERS[world]
    assert make(one) == make(one) and (one == other or make(one) != make(other))


@pytest.mark.parametrize("world", MAKERS)
def test_a_generator_goes_on_where_it_stood(world):
    rng, make = Random(1), MAKERS[world]
    first, second = make(rng), make(rng)
    assert first != second and first == make(Random(1))


def test_the_data_are_those_of_this_book():
    "Drawn once and written down: a change here changes every result of the book."
    made = repr([MAKERS[world](0) for world in MAKERS]) + repr(lexicon())
    assert (sha256(made.encode()).hexdigest()
            == "9d2fa951adcbc08fdd80c3eec13b9c882ca53b716bf04b5982732b14e4080077")


def test_only_the_promised_method_is_used():
    "Python keeps `Random.random` as it is for ever; its other methods may change."
    class Strict(Random):
        def refuse(self, *args, **kwargs): raise AssertionError("a method without that promise")
        getrandbits = randrange = randint = choice = choices = shuffle = sample = uniform = gauss = refuse  # noqa: E501
    for make in MAKERS.values(): make(Strict(3))


def test_worlds_share_no_stream():
    assert stream(0, "one").random() != stream(0, "another").random()


# --- puzzles --------------------------------------------------------------------------------------

@quick
@given(seeds, sizes, sizes, sizes)
def test_copy_reverse_sort(seed, batch, length, symbols):
    for rule, by_hand in (("copy", list), ("reverse", lambda row: row[::-1]), ("sort", sorted)):
        x, y = sequences(rule, batch, length, symbols, seed)
        assert x.shape == y.shape == (batch, length) and x.min() >= 0 and x.max() < symbols
        assert y.tolist() == [by_hand(row) for row in x.tolist()]


def test_every_symbol_comes_about_as_often():
    x, _ = sequences("copy", 100, 100, symbols=5)
    # five standard deviations
    assert (torch.bincount(x.flatten(), minlength=5) - 2000).abs().max() < 5 * 40


@quick
@given(seeds, sizes, sizes, sizes)
def test_one_line(seed, batch, length, symbols):
    x, y = sequences("reverse", batch, length, symbols, seed)
    tokens, answer = one_line(x, y, mark=symbols)
    assert (tokens[answer].view_as(y).equal(y) and tokens[:, :length].equal(x)
            and (tokens[:, length] == symbols).all())
    assert not answer[:, :length + 1].any()


@quick
@given(seeds, sizes, st.data())
def test_recall(seed, batch, draw):
    keys = draw.draw(st.integers(1, 12))
    many = draw.draw(st.integers(1, keys))
    questions = draw.draw(st.integers(1, many))
    x, y = recall(batch, many, keys, 7, questions, seed)
    assert x.shape == (batch, 2 * many + questions) and y.shape == (batch, questions)
    for row, answers in zip(x.tolist(), y.tolist(), strict=True):
        book = dict(zip(row[:2 * many:2], row[1:2 * many:2], strict=True))
        assert (len(book) == many and max(book) < keys
                and all(keys <= value < keys + 7 for value in book.values()))
        asked = row[2 * many:]
        assert len(set(asked)) == questions and [book[key] for key in asked] == answers


@quick
@given(seeds, sizes, st.integers(2, 30))
def test_adding(seed, batch, length):
    x, y = adding(batch, length, seed)
    for row, answer in zip(x.tolist(), y.tolist(), strict=True):
        marked = [i for i, (_, flag) in enumerate(row) if flag == 1]
        assert len(marked) == 2 and marked[0] < length // 2 <= marked[1]
        assert all(0 <= number < 1 and flag in (0, 1) for number, flag in row)
        assert answer == pytest.approx(sum(row[i][0] for i in marked), abs=1e-6)


# --- translation ----------------------------------------------------------------------------------

FORMS = {}                                    # French word -> {(kind, row, form)}
for kind, rows in ROWS.items():
    for i, (_, french) in enumerate(rows):
        for form, word in enumerate(french): FORMS.setdefault(word, set()).add((kind, i, form))
NOUNS = {word: (kind == "feminine", form) for kind in ("masculine", "feminine")
         for _, french in ROWS[kind] for form, word in enumerate(french)}


def entries(english: str, french: str) -> set:
    "The rows in which both words stand."
    return {(kind, i, form) for kind, i, form in FORMS.get(french, ())
            if english in ROWS[kind][i][0]}


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(0, 4))
def test_the_alignment_is_a_bijection_that_the_dictionary_confirms(seed, depth):
    pair = translated(seed, depth)
    assert (sorted(pair.order) == list(range(len(pair.source))) and len(pair.target)
            == len(pair.source) == len(pair.heads))
    assert all(entries(pair.source[s], pair.target[t]) for t, s in enumerate(pair.order))
    assert pair.alignment.sum(0).eq(1).all() and pair.alignment.sum(1).eq(1).all()
    assert all(pair.alignment[t, s] for t, s in enumerate(pair.order))


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(0, 4))
def test_words_agree_with_their_noun_at_any_distance(seed, depth):
    pair = translated(seed, depth)
    for t, s in enumerate(pair.order):
        head = pair.heads[s]
        kinds = {kind for kind, _, _ in entries(pair.source[s], pair.target[t])}
        assert (head == -1) == (not kinds - {"pronoun", "adverb", "place", "join", "that"})
        if head == -1: continue
        feminine, plural = NOUNS[pair.target[pair.order.index(head)]]
        wanted = ((feminine + 2 * plural,) if kinds & {"determiner", "before", "after"}
                  else (plural, plural + 2) if kinds & {"be", "alone", "acting"} else (plural,))
        assert any(form in wanted for _, _, form in entries(pair.source[s], pair.target[t]))


def first_words(kind): return {row[0][0] for row in ROWS[kind]}


def test_the_order_is_that_of_french():
    "Adjectives, adverbs and pronouns move, nothing else does; and all three do."
    before, after, adverbs, pronouns = map(first_words, ("before", "after", "adverb", "pronoun"))
    moved = Counter()
    for pair in pairs(1000):
        place = {s: t for t, s in enumerate(pair.order)}
        for s, (word, head) in enumerate(zip(pair.source, pair.heads)):
            if head > s and word in before | after: assert (place[s]
                < place[head]) == (word in before)
            if word in adverbs: assert place[s] == place[s + 1] + 1
            if word in pronouns: assert place[s] == place[s - 1] - 1
            moved.update({"adjective": head > s and word in after, "adverb": word in adverbs,
                "pronoun": word in pronouns})
    assert min(moved.values()) > 50 and len(moved) == 3


def test_the_dictionary_has_no_two_readings():
    "Within a kind no French form serves two words, so that a translation can be read back."
    for kind, rows in ROWS.items():
        if kind == "that": continue
        assert (len({row[0] for row in rows}) == len(rows) and len({row[1] for row in rows})
                == len(rows))
        assert not any(set(a[1]) & set(b[1]) for i, a in enumerate(rows) for b in rows[:i])


@settings(max_examples=15, deadline=None)
@given(seeds, seeds, st.integers(0, 3))
def test_splits_share_no_sentence_whatever_the_seeds(one, other, depth):
    train, test = pairs(60, "train", one, depth), pairs(20, "held-out", other, depth)
    for side in ("source", "target"):
        a, b = ({getattr(pair, side) for pair in split} for split in (train, test))
        assert len(a) == 60 and len(b) == 20 and not a & b
    assert (all(held_out(pair.source) for pair in test)
            and not any(held_out(pair.source) for pair in train))


def test_one_sentence_in_ten_is_held_out():
    rng = stream(5)
    share = np.mean([held_out(pair.source) for pair in {translated(rng) for _ in range(4000)}])
    assert 0.08 < share < 0.12


def test_fewer_pairs_begin_more_pairs_and_none_is_too_long():
    assert pairs(10, seed=4) == pairs(40, seed=4)[:10]
    assert max(len(pair.source) for pair in pairs(200, longest=7)) <= 7


# --- prose ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def text(): return prose(400_000, seed=11)


def test_the_lexicon_is_large_and_has_no_stem_twice():
    stems = [stem for kind in lexicon().values() for stem in kind]
    assert len(set(stems)) == len(stems) >= 20_000


def test_the_writer_draws_rank_r_with_weight_one_over_r_plus_2():
    weights = np.diff([0, *Writer(Random(0)).ranks["noun"]])
    assert weights == pytest.approx(1 / (np.arange(1, len(weights) + 1) + 2))


@quick
@given(seeds, st.integers(0, 4000), st.integers(0, 4000))
def test_a_shorter_text_begins_a_longer_one(seed, one, other):
    short, long = sorted((prose(one, seed), prose(other, seed)), key=len)
    assert long.startswith(short) and len(short) >= min(one, other)


def test_the_text_looks_like_prose(text):
    assert text.isascii() and text.endswith(".\n\n") and "  " not in text and " ," not in text
    for paragraph in text.strip().split("\n\n")[:300]:
        assert 3 <= len(re.findall(r"\.", paragraph)) <= 8
        assert (not re.search(r"\ban? (?:[aeiou]\w*)", re.sub(r"\b[Aa]n [aeiou]", "", paragraph))
                and not re.search(r"\b[Aa]n [^aeiou]", paragraph))


def test_a_paragraph_keeps_its_tense_and_its_person(text):
    for paragraph in text.strip().split("\n\n")[:300]:
        assert not (re.search(r"\b(was|were)\b", paragraph)
                    and re.search(r"\b(is|are)\b", paragraph))
        assert len(set(re.findall(r"(?<=[a-z,] )[A-Z]\w+ [A-Z]\w+", paragraph))) <= 1


@quick
@given(seeds)
def test_verbs_of_the_prose_agree(seed):
    """Said with the names of the kinds in place of stems, the first word of a predicate shows
    its number, in both tenses."""
    writer = Writer(Random(seed))
    writer.stem = lambda kind: kind
    for tense, one, many in ((0, {"verbed", "was"}, {"verbed", "were"}),
                             (1, {"verbs", "is"}, {"verb", "are"})):
        writer.rules = writer.tenses[tense]
        assert writer.say("does1").split()[0] in one and writer.say("does2").split()[0] in many


def test_the_grammar_joins_only_what_agrees():
    """In every rule that holds a subject and a verb both have the same number; a relative clause
    has that of its noun."""
    for ways in WORDS["prose"]["grammar"].values():
        for way in ways:
            numbers = {part[-1] for part in way.split()
                       if re.fullmatch(r"(thing|one|does|verb|noun|a)[12]", part)}
            assert len(numbers) <= 1, way


@pytest.mark.parametrize("word, stem, ending", [
    ("cities", "city", "s"), ("days", "day", "s"), ("carried", "carry", "ed"),
    ("carrying", "carry", "ing"), ("moved", "move", "ed"),
    ("moving", "move", "ing"), ("moves", "move", "s"), ("branches", "branch", "s"),
    ("happiness", "happy", "ness"), ("largely", "large", "ly"),
    ("passes", "pass", "s"), ("houseless", "house", "less"), ("stayer", "stay", "er"),
    ("carrier", "carry", "er"),
    ("fully", "full", "ly"), ("simply", "simple", "ly"), ("gently", "gentle", "ly"),
    ("solely", "sole", "ly"), ("fullness", "full", "ness")])
def test_spelling(word, stem, ending): assert spell(stem, ending) == word


# --- BLEU -----------------------------------------------------------------------------------------

def bleu_by_hand(hypotheses, references, order):
    "From the definition, on words."
    right, total = np.zeros(order), np.zeros(order)
    c = r = 0
    for hypothesis, reference in zip(map(str.split, hypotheses), map(str.split, references),
                                     strict=True):
        c, r = c + len(hypothesis), r + len(reference)
        for n in range(1, order + 1):
            runs, known = (Counter(tuple(s[i:i + n]) for i in range(len(s) - n + 1))
                           for s in (hypothesis, reference))
            right[n - 1] += (runs & known).total()
            total[n - 1] += runs.total()
    return 100 * np.exp(min(0, 1 - r / c)) * np.exp(np.log(right / total).mean())


@quick
@given(seeds, st.integers(1, 3))
def test_bleu_is_its_definition(seed, order):
    rng = stream(seed)
    references = [" ".join(pair.target) for pair in pairs(12, seed=rng)]
    hypotheses = [" ".join(word for word in reference.split() if rng.random() < 0.9) or "le"
                  for reference in references]
    assert (bleu(hypotheses, references, order=order)
            == pytest.approx(bleu_by_hand(hypotheses, references, order)))


def test_bleu_ends_of_the_scale():
    texts = ["le chien voit le chat noir", "la reine dort toujours ici"]
    assert bleu(texts, texts) == pytest.approx(100)
    assert bleu(["x y z v w", "x y z v w"], texts) < 10
    # too short for a run of four
    assert round(bleu(["le chien dort"], ["le chien dort"])) == 100
    stuck, apart = ["le chien, voit."], ["le chien , voit ."]
    assert bleu(stuck, apart, "13a") == pytest.approx(100) and bleu(stuck, apart) < 50


def test_bleu_counts_what_never_matches_as_half_a_match_then_a_quarter():
    shares = np.array([3 / 5, 1 / 2 / 4, 1 / 4 / 3, 1 / 8 / 2])
    assert bleu(["a b c d e"], ["a x b y c"]) == pytest.approx(100 * np.exp(np.log(shares).mean()))
    assert bleu(["a b c d e"], ["v w x y z"]) == 0


# --- the frozen text ------------------------------------------------------------------------------

def test_the_frozen_text_is_what_its_checksum_says():
    frozen, digest = book_text("v1")
    assert (sha256(frozen.encode()).hexdigest() == digest and len(frozen) > 20_000
            and "\r" not in frozen)
    assert not re.findall(r"\{[a-z:]+\}`|```|:::|\]\(|^#|#\|", frozen, re.M)


def test_a_changed_text_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "assets/text"
    folder.mkdir(parents=True)
    (folder / "v1.txt").write_text("one")
    (folder / "SHA256SUMS").write_text(f"{sha256(b'two').hexdigest()}  v1.txt\n")
    monkeypatch.setattr(writer, "files", lambda package: tmp_path)
    refuses(r"version: v1\.txt was changed", book_text, "v1")


def test_freezing_refuses_a_version_that_exists(tmp_path):
    freeze.freeze("one\n", "v1", tmp_path)
    second = freeze.freeze("two\n", "v2", tmp_path)
    refuses("which is frozen", freeze.freeze, "three\n", "v1", tmp_path)
    refuses("version", freeze.freeze, "one\n", "../v1", tmp_path)
    assert (tmp_path / "v1.txt").read_text() == "one\n" and second == sha256(b"two\n").hexdigest()
    freeze.freeze("three\n", "v1", tmp_path, again=True)
    assert (tmp_path / "SHA256SUMS").read_text().splitlines()[1] == f"{second}  v2.txt"


def test_freezing_keeps_words_and_drops_the_rest():
    page = (
        "# A title\n\nSome *words* with `code` and $a\\,b$,\nagain "
        "<b>bold</b>.\n\n```python\ncode()\n```\n\n$$ x $$\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- "
        "an item\n- [a link](https://example.org)\n")
    assert (freeze.prose(page) == ["A title", r"Some words with code and $a\,b$, again bold.",
                                   "an item", "a link"])


# --- refusals -------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, call", [
    ("seed", lambda: stream(-1)), ("seed", lambda: stream(1.5)), ("seed", lambda: stream(True)),
    ("seed", lambda: prose(9, seed="a")),
    ("rule", lambda: sequences("shuffle", 1, 1)), ("batch", lambda: sequences("copy", 0, 1)),
    ("length", lambda: sequences("copy", 1, 0)),
    ("symbols", lambda: sequences("copy", 1, 1, symbols=0)),
    ("mark", lambda: one_line(*sequences("copy", 1, 9, 1), mark=0)),
    ("x, y", lambda: one_line(torch.zeros(2, 3), torch.zeros(3, 3), 9)),
    ("pairs", lambda: recall(1, 9, keys=8)), ("questions", lambda: recall(1, 2, questions=3)),
    ("values", lambda: recall(1, 2, values=0)),
    ("x", lambda: recalled(torch.tensor([[1, 8, 2, 9, 3]]))),
    ("x", lambda: recalled(torch.tensor([[1, 8, 1, 9, 1]]))),
    ("x", lambda: recalled(torch.tensor([[1, 8, 2, 9, 1]]), 2)),
    ("x", lambda: recalled(torch.tensor([1, 8, 1]))), ("x", lambda: recalled(torch.tensor([[1]]))),
    ("questions", lambda: recalled(torch.tensor([[1, 8, 1]]), 0)),
    ("length", lambda: adding(1, 1)), ("depth", lambda: translated(0, -1)),
    ("split", lambda: pairs(1, "test")),
    ("n", lambda: pairs(-1)), ("n", lambda: pairs(3000, depth=0, longest=3)),
    ("longest", lambda: pairs(1, longest=2)),
    ("size", lambda: prose(-1)), ("size", lambda: prose(1.5)), ("version", lambda: book_text("v0")),
    ("hypotheses", lambda: bleu("le chien", ["le chien"])),
    ("hypotheses", lambda: bleu(["a"], ["a", "b"])),
    ("references", lambda: bleu(["a b"], [["a", "b"]])), ("hypotheses", lambda: bleu([], [])),
    ("tokenize", lambda: bleu(["a"], ["a"], "words")),
    ("order", lambda: bleu(["a"], ["a"], order=0)),
    *[("mark", lambda x=x: one_line(torch.zeros(1, 2).long(), torch.zeros(1, 2).long(), x))
      for x in (2.5, "2", None, True)],
    *[("x, y", lambda x=x: one_line(x, torch.zeros(1, 2), 5))
      for x in ([[1]], None, 5, torch.tensor(1))],
    *[("x", lambda x=x: recalled(x)) for x in ([[1, 2, 1]], None, torch.tensor(1))],
    *[("source", lambda x=x: held_out(x)) for x in ("the owl", None, 5, b"the owl")],
    *[("hypotheses", lambda x=x: bleu(x, ["a"])) for x in (None, 5, "a", ["a", "b"], [1])],
    *[("references", lambda x=x: bleu(["a"], x)) for x in (None, 5, "a", [1])],
    *[("rule", lambda x=x: sequences(x, 1, 1)) for x in (None, 5, "walk", ["copy"])],
    ("version", lambda: book_text(5)), ("split", lambda: pairs(1, None)),
    *[(name, lambda x=x, call=call: call(x)) for x in (2.5, 2.0, "2", None, True, float("nan"), -1)
        for name, call in (
        ("batch", lambda x: sequences("copy", x, 3)), ("length", lambda x: sequences("copy", 2, x)),
        ("symbols", lambda x: sequences("copy", 2, 3, x)),
        ("seed", lambda x: sequences("copy", 2, 3, seed=x)), ("pairs", lambda x: recall(2, x)),
        ("questions", lambda x: recall(2, 3, questions=x)),
        ("keys", lambda x: recall(2, 3, keys=x)), ("values", lambda x: recall(2, 3, values=x)),
        ("length", lambda x: adding(2, x)), ("batch", lambda x: adding(x, 4)),
        ("depth", lambda x: translated(0, x)), ("n", lambda x: pairs(x)),
        ("longest", lambda x: pairs(1, longest=x)), ("size", lambda x: prose(x)),
        ("order", lambda x: bleu(["a"], ["a"], order=x)),
        ("questions", lambda x: recalled(torch.zeros(1, 5), x)))]])
def test_errors_name_the_argument(name, call): refuses(f"^{name}: got .*expected", call)


def test_names_with_a_comma_are_told_apart():
    refuses(
        r"^routing: got 'x', expected one of 'softmax, then top-k', 'top-k, then softmax', relu$",
        data.one_of, ["softmax, then top-k", "top-k, then softmax", "relu"], routing="x")


def test_rules_know_every_puzzle():
    x, y = adding(3, 5)
    assert RULES["adding"](x).equal(y) and RULES["recall"](recall(3, 4)[0]).equal(recall(3, 4)[1])


