"""Byte-level BPE against `tokenizers`, its round trips and refusals; the embedding part against
PyTorch; the figure in a browser."""
import argparse
import json
import os
import random
import textwrap
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Theirs

from bench import tokens_speed
from tfmlib.tokens import (
    BOOK_FILE,
    BYTES,
    ID,
    LETTERS,
    PATTERN,
    Embedding,
    Tokenizer,
    apply_bpe,
    as_text,
    book_tokenizer,
    bytes_to_unicode,
    learn_bpe,
    load_tokenizer,
    merge_pair,
    merge_steps,
    pair_counts,
    printable,
    save_tokenizer,
    show_tokens,
    simple_apply_bpe,
    simple_learn_bpe,
    train_book_tokenizer,
    train_tokenizer,
    unicode_to_bytes,
)
from tfmlib.workbench import book_text, load_record, prose

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def german(size: int, seed: int = 0) -> str:
    "German-like text: stems with umlauts and ß, compounds, endings, capitals."
    rng = random.Random(seed)
    stems = "haus straß groß grün mädch über früh schlüss büch tür köln fuß spät öffn äpfel weiß käuz müd löff bäum stück träum gäst".split()  # noqa: E501
    ends = "e en er es lich ung heit chen isch bar".split()
    def word():
        made = ("".join(rng.choice(stems) for _ in range(rng.choice((1, 1, 2, 3))))
                + rng.choice(ends))
        return made.capitalize() if rng.random() < 0.4 else made
    return " ".join(word() + rng.choice(("", "", "", ",", ".", ".\n", "  –")) for _ in range(size))


def signs(size: int, seed: int = 0) -> str:
    "Emoji (with joiners, skin tones and flags), Chinese, Japanese and Korean, mixed."
    rng = random.Random(seed)
    pool = ["🦉", "👩‍👩‍👧", "👍🏽", "🇩🇪", "❤️", "猫头鹰", "睡", "在", "谷仓", "，", "。", "ふくろう", "フクロウ", "は",  # noqa: E501
            "眠る", "올빼미", "가", " ", "\n", "  ", "12", "№"]
    return "".join(rng.choice(pool) for _ in range(size))


def code() -> str:
    "Python source of three modules of its library."
    return "\n".join(Path(module.__file__).read_text(encoding="utf-8")
                     for module in (argparse, textwrap, json))


CORPORA = {"prose": lambda: book_text("v1")[0] + prose(100_000, seed=3), "code": code,
           "german": lambda: german(9_000), "signs": lambda: signs(9_000)}
OTHER = {"prose": lambda: prose(20_000, seed=4),
         "code": lambda: Path(random.__file__).read_text(encoding="utf-8"),
         "german": lambda: german(2_000, seed=1), "signs": lambda: signs(2_000, seed=1)}


def theirs(texts: list[str], size: int, specials: tuple = ()) -> Theirs:
    "The library's byte-level BPE, special tokens added behind."
    made = Theirs(models.BPE())
    made.pre_tokenizer, made.decoder = BYTE_LEVEL, decoders.ByteLevel()
    made.train_from_iterator(texts,
                             trainers.BpeTrainer(vocab_size=size,
                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))  # noqa: E501
    made.add_special_tokens([AddedToken(s, normalized=False) for s in specials])
    return made


def merges_of(made: Theirs) -> list[tuple[str, str]]:
    return [tuple(m) for m in json.loads(made.to_str())["model"]["merges"]]


@pytest.mark.parametrize("name", sweep(CORPORA, "prose", "signs"))
def test_merges_and_ids_equal_the_library(name):
    text, size = CORPORA[name](), 256 + 1_500
    ours, other = train_tokenizer(text, size), theirs([text], size)
    assert ([tuple(map(bytes_to_unicode, m)) for m in ours.merges] == merges_of(other)
            and len(ours.merges) > 250)
    assert {bytes_to_unicode(t): i for i, t in enumerate(ours.vocab)} == other.get_vocab()
    for new in [text[:50_000], *(make() for make in OTHER.values())]:
        assert ours.encode(new) == other.encode(new).ids
        assert ours.decode(ours.encode(new)) == new


@settings(max_examples=often(300), deadline=None)
@given(st.lists(st.text("ab c", max_size=40), max_size=4), st.integers(256, 330))
def test_ties_and_overlaps_equal_the_library(texts, size):
    "Few letters: nearly every merge is a tie, and runs of one letter overlap."
    assert ([tuple(map(bytes_to_unicode, m)) for m in train_tokenizer(texts, size).merges]
            == merges_of(theirs(texts, size)))


@settings(max_examples=often(100), deadline=None)
@given(st.text("ab", min_size=20, max_size=120), st.text("ab", max_size=60))
def test_ids_equal_the_library_on_ties(learnt, text):
    assert train_tokenizer(learnt, 300).encode(text) == theirs([learnt], 300).encode(text).ids


def test_two_merges_may_make_one_token():
    "Then the vocabulary grows once, and the two pairs lead to one id."
    twice = Tokenizer([(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"a", b"bc")])
    assert len(twice) == 256 + 3 and len(twice.ranks) == 4
    assert twice.ranks[twice.ids[b"a"], twice.ids[b"bc"]] == (3, twice.ids[b"abc"])
    other = Theirs(models.BPE({bytes_to_unicode(t): i for i, t in enumerate(twice.vocab)},
                              [tuple(map(bytes_to_unicode, m)) for m in twice.merges]))
    other.pre_tokenizer = BYTE_LEVEL
    for text in ("abc", "abcabc", "xbc abc bcb", "aabcc"):
        assert twice.encode(text) == other.encode(text).ids


@settings(max_examples=often(300), deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=25).map(str.encode), st.integers(1, 5),
                       max_size=6))
def test_learning_never_makes_a_token_twice(counts):
    """Equal bytes are cut alike wherever no token crosses their ends, so that a second way to a
    token finds no pair."""
    made = [a + b for a, b in learn_bpe(counts, 400)]
    assert len(set(made)) == len(made)


@pytest.mark.whole
def test_pieces_equal_the_library_for_every_assigned_character():
    "Characters younger than either's Unicode tables apart."
    wrong = []
    for c in map(chr, range(0x110000)):
        if unicodedata.category(c) in ("Cn", "Cs"): continue
        text = f"a {c}b1{c} {c}"
        if PATTERN.findall(text) != [text[a:b] for _, (a, b) in BYTE_LEVEL.pre_tokenize_str(text)]:
            wrong.append(c)
    assert not wrong


def recounted(counts: dict[bytes, int], size: int) -> list[tuple[bytes, bytes]]:
    "Merges with everything counted again each time."
    words, vocab, merges = {w: [ID[b] for b in w] for w in counts}, [bytes([b]) for b in BYTES], []
    while len(vocab) < size:
        found = Counter()
        for w, ids in words.items():
            for pair in zip(ids, ids[1:]): found[pair] += counts[w]
        if not found: break
        pair = min(found, key=lambda p: (-found[p], p))
        merges.append((vocab[pair[0]], vocab[pair[1]]))
        if (token := b"".join(merges[-1])) not in vocab: vocab.append(token)
        words = {w: merge_pair(ids, pair, vocab.index(token)) for w, ids in words.items()}
    return merges


@pytest.mark.parametrize(("piece", "most", "size"), [
    (st.binary(min_size=1, max_size=8) | st.text("abc", min_size=1, max_size=9).map(str.encode),
     12, st.integers(256, 290)),
    (st.text("ab", min_size=1, max_size=30).map(str.encode), 5, st.just(500))],
    ids=["few merges", "to the last pair"])
@settings(max_examples=often(150), deadline=None)
@given(st.data())
def test_the_heap_finds_what_recounting_finds(piece, most, size, data):
    """Also for pieces of one or two letters until nothing is left: runs that overlap, pieces that
    end in the pair, new tokens side by side."""
    counts = data.draw(st.dictionaries(piece, st.integers(1, 9), max_size=most))
    size = data.draw(size)
    assert learn_bpe(counts, size) == recounted(counts, size)


@settings(max_examples=often(150), deadline=None)
@given(st.dictionaries(st.binary(min_size=1, max_size=8) | st.text("abc ", min_size=1,
        max_size=9).map(str.encode), st.integers(1, 9), max_size=12), st.integers(0, 40),
       st.text("abc ", max_size=30) | st.text(max_size=9))
def test_the_learner_and_the_encoder_of_the_chapter_find_what_the_fast_ones_find(counts,
        merges, text):
    learned = simple_learn_bpe(counts, merges)
    assert learned == learn_bpe(counts, 256 + merges)
    made, piece = Tokenizer(learned), text.encode()
    assert (simple_apply_bpe(piece, learned)
            == made.tokens(apply_bpe([ID[b] for b in piece], made.ranks)))


def test_pairs_are_counted_with_their_overlaps():
    counts = {b"hooo": 2, b"owl": 3, b"h": 9, b"": 4}
    assert (pair_counts({piece: [*piece.decode()] for piece in counts}, counts)
            == {("h", "o"): 2, ("o", "o"): 4, ("o", "w"): 3, ("w", "l"): 3})


RECORDED = {row["shape"]: row for row in load_record("tokens_speed").rows if row["what"] == "shape"}


@pytest.mark.whole
@pytest.mark.parametrize("shape", sweep(tokens_speed.SHAPES, list(tokens_speed.SHAPES)[0]))
def test_learning_has_no_cliff(shape, monkeypatch):
    """The library's merges and ids on every shape of text; in CPU time against the library's,
    measured in turn, as in the record."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")                     # one thread, as there
    row = tokens_speed.shaped(shape, seed=5, repeats=2)
    assert row["same merges"] and row["same ids"]
    for what in ("learn, ratio", "encode, ratio"):
        assert row[what]["q10"] < 3 * max(.3, RECORDED[shape][what]["median"]), what


OWL = train_tokenizer(book_text("v1")[0][:20_000] + "say hello 🦉 Grüße\n" * 9, 700,
                      ["<|end|>", "<|end|>!", "<|user|>"])


@settings(max_examples=often(300), deadline=None)
@given(st.text())
def test_any_text_comes_back(text):
    ids = OWL.encode(text)
    assert OWL.encode(text.encode()) == ids
    assert OWL.decode(ids) == text and OWL.decode(ids, errors="strict") == text
    assert b"".join(OWL.tokens(ids)) == text.encode() and all(0 <= i < len(OWL.vocab) for i in ids)


@settings(max_examples=often(300), deadline=None)
@given(st.binary())
def test_any_bytes_come_back(data):
    ids = OWL.encode(data)
    assert b"".join(OWL.tokens(ids)) == data and OWL.decode(ids) == data.decode("utf-8", "replace")


@settings(max_examples=often(200), deadline=None)
@given(st.lists(st.sampled_from(["<|end|>", "<|end|>!", "<|user|>", "<|end", "!", " hello", "|>",
                                 ""]), max_size=8))
def test_special_tokens_equal_the_library(parts):
    text, other = ("".join(parts),
                   theirs(["say hello to the owl " * 9], 280, ("<|end|>", "<|end|>!", "<|user|>")))
    ours = train_tokenizer("say hello to the owl " * 9, 283, ["<|end|>", "<|end|>!", "<|user|>"])
    base = min(ours.specials.values())
    assert base == other.token_to_id("<|end|>")
    assert (ours.encode(text, allowed_special=ours.specials) == other.encode(text).ids
            and ours.decode(ours.encode(text, ours.specials)) == text)
    assert not any(i >= base for i in ours.encode(text)) and ours.decode(ours.encode(text)) == text


def test_only_the_special_tokens_that_are_allowed_count():
    ids = OWL.encode("<|end|><|user|>", allowed_special=["<|user|>"])
    assert ids.count(OWL.specials["<|user|>"]) == 1 and OWL.specials["<|end|>"] not in ids
    assert OWL.encode("<|end|><|user|>", allowed_special=iter(["<|user|>"])) == ids


def test_empty_text():
    assert (OWL.encode("") == [] == OWL.encode(b"") == OWL.encode("", allowed_special=OWL.specials)
            and OWL.decode([]) == "")
    assert (len(train_tokenizer("", 300)) == 256 and len(train_tokenizer([], 300, ["<s>"])) == 257
            and train_tokenizer("x", 256).merges == [])


def test_a_tokenizer_can_be_learnt_from_bytes_that_are_no_text():
    assert (train_tokenizer(b"\xff\xfe\xff\xfe", 257).merges == train_tokenizer([b"\xff\xfe", "a"],
            257).merges == [(b"\xff", b"\xfe")])


def test_long_pieces_do_not_take_quadratic_time():
    "A million letters without a space: seconds, where n² steps would take days."
    for text in ("a" * 300_000, "ab" * 100_000, "x" + "the" * 60_000):
        assert OWL.decode(OWL.encode(text)) == text


def test_the_memory_is_bounded_and_nobody_writes_into_it():
    fresh = Tokenizer(OWL.merges)
    ids = fresh.encode("hello")
    ids.append(7)
    assert fresh.encode("hello") == ids[:-1]
    fresh.encode(" ".join(str(n) + "x" for n in range(70_000)))
    assert len(fresh.cache) <= 1 << 16


@pytest.mark.parametrize("call, says", [
    (lambda: train_tokenizer("x", 255), "^vocab_size: 255; expected a whole number, at least 256"),
    (lambda: train_tokenizer("x", 257, ["a", "b"]),
     "^vocab_size: 257; expected a whole number, at least 258: 256 bytes and 2 special"),
    (lambda: train_tokenizer("\ud800", 300), r"^text: a lone surrogate, U\+D800, at 0"),
    (lambda: train_tokenizer(["ok", 5], 300), "^text: int; expected str or bytes"),
    (lambda: OWL.encode("ab\udc80c"), r"^text: a lone surrogate, U\+DC80, at 2; expected"),
    (lambda: OWL.encode(None), "^text: NoneType; expected str or bytes"),
    (lambda: OWL.encode("x", allowed_special=["<|stop|>"]),
     r"^allowed_special: \['<\|stop\|>'\]; expected a list of some of"),
    (lambda: OWL.encode("x", allowed_special="<|end|>"),
     r"^allowed_special: <\|end\|>; expected a list"),
    (lambda: OWL.decode([len(OWL)]),
     rf"^ids: \[{len(OWL)}\]; expected whole numbers from 0 to {len(OWL) - 1}"),
    (lambda: OWL.decode([-1]), r"^ids: \[-1\]"), (lambda: OWL.decode([1.0]), r"^ids: \[1.0\]"),
    (lambda: OWL.decode([True]), r"^ids: \[True\]"),
    (lambda: OWL.decode([ID[0xFF]], errors="strict"), "invalid start byte"),
    (lambda: Tokenizer(specials=[""]), "^specials: "),
    (lambda: Tokenizer(specials=["a", "a"]), "^specials: .*none twice"),
    (lambda: Tokenizer(specials=["\ud800"]), "^specials: a lone surrogate"),
    (lambda: Tokenizer(specials="ab"), "^specials: ab; expected a list"),
    (lambda: Tokenizer(source="\udfff"), "^source: a lone surrogate"),
    (lambda: Tokenizer(source=5), "^source: int; expected str"),
    (lambda: learn_bpe({b"ab": 1}, 255), "^vocab_size: 255; expected a whole number, at least 256"),
    (lambda: learn_bpe({b"ab": 0}, 300),
     "^counts: 0 times b'ab'; expected a whole number, 1 or more"),
    (lambda: OWL.encode("x", allowed_special=iter(["<|stop|>"])),
     r"^allowed_special: \['<\|stop\|>'\]"),
    (lambda: Tokenizer([(b"ab", b"c")]), r"^merges\[0\]: 'ab', which does not exist yet"),
    (lambda: Tokenizer([(b"a", b"b"), (b"a", b"b")]),
     r"^merges\[1\]: a b, for the second time; expected each merge once"),
    (lambda: Tokenizer([(b"", b"b")]), r"^merges\[0\]: '', which does not exist"),
    (lambda: unicode_to_bytes("a b"), "^written: 'a b'; expected letters"),
    *[(lambda n=n: train_tokenizer("x", n),
       "^vocab_size: .*; expected a whole number, at least 256")
      for n in (300.0, "300", None, True, float("nan"), -1)],
    *[(lambda n=n: learn_bpe({b"ab": 1}, n),
       "^vocab_size: .*; expected a whole number, at least 256")
      for n in (300.0, "300", None, True, float("inf"))],
    *[(lambda n=n: learn_bpe({b"ab": n}, 300), "^counts: .* times b'ab'; expected a whole number")
      for n in (1.0, "1", None, True, -1)],
    (lambda: learn_bpe({"ab": 1}, 300), "^counts: 'ab' among the pieces; expected bytes"),
    (lambda: learn_bpe([b"ab"], 300), "^counts: list; expected a mapping"),
    (lambda: learn_bpe({b"ab": 1 << 61}, 300), "^counts: .* bytes in all; expected fewer than"),
    *[(lambda m=m: Tokenizer([(b"a", b"b"), m]), r"^merges\[1\]: .*; expected a pair of bytes")
      for m in ("bc", b"bc", ("b", "c"), (b"a", b"b", b"c"), (b"a",), (), None, 5, (b"a", 98),
                {b"a": 1, b"b": 2}, iter((b"a", b"b")))],
    *[(lambda m=m: Tokenizer(m), "^merges: .*; expected pairs of bytes") for m in (None, 5)],
    (lambda: Tokenizer("ab"), r"^merges\[0\]: 'a'; expected a pair"),
    *[(lambda x=x: Tokenizer(specials=x), "^specials: .*; expected a list of texts")
      for x in (None, 5, [5], b"ab", [b"ab"], [["a"]])],
    *[(lambda x=x: train_tokenizer("x", 300, x), "^specials: .*; expected a list of texts")
      for x in ("ab", None, 5, [5])],
    (lambda: train_tokenizer(5, 300), "^texts: 5; expected a text or several"),
    (lambda: train_tokenizer(None, 300), "^texts: None"),
    *[(lambda x=x: OWL.encode("x", allowed_special=x),
       "^allowed_special: .*; expected a list of some of") for x in (None, 5, [5], [["a"]], b"ab")],
    *[(lambda x=x: OWL.decode(x), "^ids: ") for x in (None, 5, "ab", [None], torch.tensor(5),
            torch.tensor([[1]]), torch.tensor([1.0]))],
    *[(lambda x=x: OWL.decode([1], errors=x),
       "^errors: .*; expected 'replace', 'strict' or 'ignore'") for x in (None, 5, "loud", True)],
])
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says): call()


def test_reading_a_token_does_not_copy_the_vocabulary():
    class Watched(list):
        def __add__(self, other): raise AssertionError("copied")
        def __iter__(self): raise AssertionError("walked through")
    tokenizer = Tokenizer([(b"a", b"b")], ["<end>", "<pad>"])
    tokenizer.vocab = Watched(tokenizer.vocab)
    ids = tokenizer.encode("ab<pad>c<end>", ["<end>", "<pad>"])
    assert tokenizer.decode(ids) == "ab<pad>c<end>" and max(ids) < len(tokenizer)


def test_tensors_are_ids_too():
    assert OWL.decode(torch.tensor(OWL.encode("hello owl"))) == "hello owl"


def test_a_file_gives_the_same_tokenizer(tmp_path):
    save_tokenizer(OWL, tmp_path / "owl.json")
    again = load_tokenizer(tmp_path / "owl.json")
    assert (again.merges == OWL.merges and again.specials == OWL.specials and again.source
            == OWL.source)
    assert (again.encode("say hello 🦉<|end|>", again.specials) == OWL.encode("say hello 🦉<|end|>",
            OWL.specials))
    save_tokenizer(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "owl.json").read_bytes()


def changed(**fields):
    def change(content): content.update(fields); return json.dumps(content)
    return change


@pytest.mark.parametrize("change, says", [
    (lambda c: "{", "^path: .* is not valid JSON"), (lambda c: "[]", "^format: "),
    (changed(format="other"), "^format: "),
    (changed(version=2), "^version: 2; expected 1"),
    (lambda c: json.dumps({k: v for k, v in c.items() if k != "version"}), "^version: None"),
    (changed(pattern=r"\S+"), "^pattern: "),
    (lambda c: json.dumps({k: v for k, v in c.items() if k != "merges"}), "^merges: missing"),
    (changed(merges=[1]), "^merges: missing .*or no list of texts"),
    (changed(merges=["a b c"]), r"^merges\[0\]: 'a b c'; expected two tokens"),
    (changed(merges=["ab c"]), r"^merges\[0\]: 'ab', which does not exist yet"),
    (changed(merges=["a b", "a b"]), r"^merges\[1\]: a b, for the second time"),
    (changed(merges=["a \x00"]), r"^merges\[0\]: .*in letters"),
    (changed(specials="<|end|>"), "^specials: missing"),
    (changed(specials=["<|stop|>"]), "^digest: "),
    (changed(source="another text"), "^digest: "), (changed(source=None), "^source: NoneType"),
    (changed(more=1), "^digest: .*the file was changed"),
    (changed(version=1.0), "^digest: "), (changed(version=True), "^digest: "),
    (changed(merges=["a "]), r"^merges\[0\]: '', which does not exist"),
    (lambda c: json.dumps(c).replace('"version": 1', '"version": ' + 5_000 * "1"),
     "^path: .* is not valid JSON"),
    (lambda c: json.dumps(c).replace('"version": 1', '"version": NaN'),
     "^version: nan; expected 1"), (lambda c: 100_000 * "[", "^path: .* is not valid JSON"),
    (lambda c: json.dumps(c | {"merges": c["merges"][:-1]}), "^digest: "),
    (lambda c: json.dumps({k: v for k, v in c.items() if k != "digest"}), "^digest: None"),
])
def test_a_file_that_was_changed_is_refused_by_name(tmp_path, change, says):
    path = tmp_path / "owl.json"
    save_tokenizer(OWL, path)
    path.write_text(change(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match=says): load_tokenizer(path)


def test_a_damaged_file_is_refused_or_says_the_same(tmp_path):
    """Each byte flipped, left out, doubled; each line left out, doubled, moved; each value of
    another kind."""
    path, small, rng = (tmp_path / "small.json", train_tokenizer("say hello, owl 🦉 hello\n" * 3,
            290, ["<|end|>", "<|user|>"], "an owl"), random.Random(0))
    save_tokenizer(small, path)
    good = path.read_bytes()
    lines, content, damaged = good.split(b"\n"), json.loads(good), []
    for i in range(len(good)):
        damaged += [good[:i] + bytes([good[i] ^ 1 << rng.randrange(8)]) + good[i + 1:],
                    good[:i] + good[i + 1:], good[:i + 1] + good[i:]]
    for i in range(len(lines)):
        rest = lines[:i] + lines[i + 1:]
        j = rng.randrange(len(lines))
        damaged += [b"\n".join(x) for x in (rest, lines[:i + 1] + lines[i:], rest[:j] + [lines[i]]
                                            + rest[j:])]
    others = [None, True, 0, -1, 1.0, 10**400, float("nan"), "", "x", [], [[]], {}, [None],
              [["a", "b"]], ["\ud800"], ["a \ud800"], [""], [" "], ["a b", "a b"]]
    damaged += [json.dumps(content | {name: other}).encode() for name in content
                for other in others]
    damaged, refused = damaged[::1 if os.environ.get("TFM_WHOLE") else 5], 0
    for data in damaged:
        path.write_bytes(data)
        try: read = load_tokenizer(path)
        except ValueError: refused += 1
        else:
            assert ((read.merges, read.specials, read.source) == (small.merges, small.specials,
                    small.source))
    # the rest differs in white space, or says a line twice
    assert refused > 0.85 * len(damaged)


def test_the_books_tokenizer_is_what_its_function_learns(tmp_path):
    save_tokenizer(train_book_tokenizer(), tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == Path(str(BOOK_FILE)).read_bytes()
    book = book_tokenizer()
    assert len(book) == 2048 and book.specials == {"<|end|>": 2047} and "SHA-256" in book.source


def test_letters_are_gpt2s():
    assert (sorted(pre_tokenizers.ByteLevel.alphabet()) == LETTERS and sorted(BYTES)
            == list(range(256)))
    assert (all(unicode_to_bytes(bytes_to_unicode(bytes([b]))) == bytes([b]) for b in range(256))
            and bytes_to_unicode(b" ") == "Ġ")


@given(st.lists(st.integers(0, 2), max_size=12))
def test_join_leaves_no_pair_and_keeps_the_rest(ids):
    done = merge_pair(ids, (0, 1), 9)
    assert ([x for i in done for x in ((0, 1) if i == 9 else (i,))] == ids
            and (0, 1) not in zip(done, done[1:]))
    assert merge_pair([0] * len(ids), (0, 0), 9) == [9] * (len(ids) // 2) + [0] * (len(ids) % 2)


def test_apply_does_not_touch_its_argument():
    ids = [ID[b] for b in b"the the"]
    kept = list(ids)
    apply_bpe(ids, OWL.ranks)
    assert ids == kept


# Embeddings

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 5), st.sampled_from([1.0, 3.0]),
       st.integers(0, 99))
def test_embedding_equals_pytorch(vocab, width, T, scale, seed):
    torch.manual_seed(seed)
    part, ids = Embedding(vocab, width, 5, scale), torch.randint(0, vocab, (3, T))
    torch.testing.assert_close(part(ids), scale * F.embedding(ids, part.weight)
                               + part.positions[:T], rtol=0, atol=0)
    x = torch.randn(2, width)
    torch.testing.assert_close(part.logits(x), F.linear(x, part.weight))
    assert (dict(part.named_parameters()).keys() == {"weight", "positions"} and part(ids).shape
            == (3, T, width))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_embedding_keeps_its_dtype_and_takes_any_layout(dtype):
    torch.manual_seed(0)
    part, ids = Embedding(7, 3, 4).to(dtype), torch.randint(0, 7, (4, 2))
    assert (part(ids.T).dtype == dtype and torch.equal(part(ids.T), part(ids.T.contiguous()))
            and torch.equal(part(ids.T.int()), part(ids.T)))
    assert part(ids[:0].T).shape == (2, 0, 3) and part.logits(part(ids.T)).shape == (2, 4, 7)


def test_rows_begin_at_the_size_that_gives_scores_of_size_one():
    torch.manual_seed(0)
    part = Embedding(4_000, 256)
    assert abs(part.logits(torch.randn(50, 256)).std() - 1) < 0.02 and part.positions is None


@pytest.mark.parametrize("call, says", [
    (lambda: Embedding(0, 4), "^vocab_size: 0; expected a whole number, 1 or more"),
    (lambda: Embedding(4, 0), "^d_model: 0"), (lambda: Embedding(4, 4, -1), "^max_len: -1"),
    *[(lambda n=n: Embedding(n, 4), "^vocab_size: .*; expected a whole number, 1 or more")
      for n in (2.0, "2", None, True)],
    *[(lambda x=x: Embedding(4, 2, scale=x), "^scale: .*; expected a finite number")
      for x in (float("nan"), float("inf"), "1", None, True)],
    (lambda: Embedding(4, 2, 3)(torch.zeros(1, 4, dtype=torch.long)),
     "^ids: 4 tokens; expected at most 3, the positions of the table"),
    (lambda: Embedding(4, 2)(torch.tensor([4])), "^ids: from 4 to 4; expected from 0 to 3"),
    (lambda: Embedding(4, 2)(torch.tensor([-1])), "^ids: from -1"),
    (lambda: Embedding(4, 2)(torch.tensor([1.0])), "^ids: torch.float32"),
    (lambda: Embedding(4, 2)(torch.tensor(1)), r"^ids: torch.int64, shape \(\)"),
    (lambda: Embedding(4, 2).logits(torch.zeros(3)), "^x: width 3; expected 2"),
])
def test_the_embedding_refuses_by_name(call, says):
    with pytest.raises(ValueError, match=says): call()


# Pictures

def test_tokens_are_shown():
    assert ([printable(t) for t in (b" a", b"\n\t", b"\xf0\x9f", "ß".encode())]
            == ["␣a", "⏎⇥", "⟨F0 9F⟩", "ß"])
    assert "five boxes" in show_tokens([b"a"], "a row of five boxes").html


TYPED = ["The owl's  2017 eggs", "Grüße aus Köln,  ß", "🦉👩‍👩‍👧 and 猫头鹰!", "  two\n\n\t tabs ",
         "aaaaaaa bababab", "a\u00a0b\u2009c \u0085x", "", "I'll we've DON'T 'tis",
         "<|end|> <b>&amp;", "उल्लू ١٢٣ ½²"]


@pytest.mark.browser
def test_the_figure_gives_the_ids_that_python_gives(browser, tmp_path):
    "Typed into the figure, in a browser, without a kernel; and step by step back to bytes."
    import threading

    from serve import server
    assets, book = Path(str(BOOK_FILE)).parent, book_tokenizer()
    for name in ("mount.js", "merge_steps.js", "figures.css"):
        (tmp_path / name).write_bytes((assets / name).read_bytes())
    drawn = merge_steps(book, "start", "a text cut into boxes").figure().html
    (tmp_path / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" '
        f'href="figures.css">{drawn}<script type="module" src="mount.js"></script>',
        encoding="utf-8")
    with server(tmp_path) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{httpd.server_port}/index.html")
        page.locator("figure[data-live]").wait_for()
        ids = lambda: [int(i) for i in page.locator(".tfm-chip").evaluate_all(
            "chips => chips.map(c => c.dataset.id)")]
        for text in TYPED:
            page.locator("textarea").fill(text)
            assert ids() == book.encode(text), text
            read = page.locator(".tfm-readout").inner_text()
            assert (read.startswith(f"{len(text.encode())} byte")
                    and f"{len(text)} character" in read
                    and f"{len(book.encode(text))} token" in read)
        page.locator("textarea").fill(" attention")
        page.locator("input[type=range]").press("Home")
        assert ids() == [ID[b] for b in b" attention"]
        page.get_by_role("button", name="next merge").press("Enter")
        assert len(ids()) == len(b" attention") - 1
        page.close()
        httpd.shutdown()


def test_as_text_keeps_bytes():
    assert as_text(b"\xff").encode("utf-8", "surrogateescape") == b"\xff" and as_text("é") == "é"
