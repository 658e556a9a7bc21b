"""Chapter 3: learning 8,000 merges from 10 MB of prose, beside counting again and `tokenizers`;
texts of other shapes, learning and encoding; all in CPU time, one thread."""
import gc
import json
import os
import random
import time
from collections import Counter
from string import ascii_lowercase

from tfmlib.tokens import ID, PATTERN, Tokenizer, apply_bpe, bytes_to_unicode, learn_bpe, merge_pair
from tfmlib.workbench import prose, spread

BYTES, MERGES, AGAIN, REPEATS = 10_000_000, 8_000, 50, 5


def cpu(call) -> tuple[float, object]:
    "The seconds of CPU time that a call took, and what it gave."
    gc.collect()
    start = time.process_time()
    given = call()
    return time.process_time() - start, given


def seconds(call, repeats: int) -> tuple[dict, object]:
    "The spread of a call's seconds of CPU time, and what it gave."
    taken = [cpu(call) for _ in range(repeats)]
    return spread([s for s, _ in taken]), taken[-1][1]


def counted(text: str) -> dict[bytes, int]:
    "The distinct pieces of a text, and how often they occur."
    return {piece.encode(): n for piece, n in Counter(PATTERN.findall(text)).items()}


def again(counts: dict[bytes, int], done: list[tuple[bytes, bytes]],
          expected: list[tuple[bytes, bytes]]) -> list[float]:
    """The seconds of each merge after those that are done, when all pairs of all distinct pieces
    are counted at each."""
    cut = Tokenizer(done)
    words, times, vocab, taken = ([apply_bpe([ID[b] for b in piece], cut.ranks)
                                   for piece in counts], list(counts.values()), [*cut.vocab], [])
    for merge in expected:
        start = time.process_time()
        pairs = Counter()
        for word, n in zip(words, times):
            for pair in zip(word, word[1:]): pairs[pair] += n
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        words = [merge_pair(word, pair, len(vocab)) for word in words]
        taken.append(time.process_time() - start)
        if (found := (vocab[pair[0]], vocab[pair[1]])) != merge:
            raise ValueError(f"merge: {found}; expected {merge}, which `learn_bpe` found")
        vocab.append(b"".join(found))
    return taken


def library(text: str, size: int) -> list[tuple[str, str]]:
    "The merges that `tokenizers` learns."
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.train_from_iterator([text],
                               trainers.BpeTrainer(vocab_size=size,
                                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))  # noqa: E501
    return [tuple(merge) for merge in json.loads(theirs.to_str())["model"]["merges"]]


def same_in_library(ours: Tokenizer):
    "A tokenizer of `tokenizers` with the same merges."
    from tokenizers import Tokenizer, models, pre_tokenizers
    theirs = Tokenizer(models.BPE({bytes_to_unicode(t): i for i, t in enumerate(ours.vocab)},
                                  [tuple(map(bytes_to_unicode, m)) for m in ours.merges]))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return theirs


def drawn(size: int, seed: int, alphabet: str, width: int = 0) -> str:
    "Random letters, in one word or in lines of `width`."
    text = "".join(random.Random(seed).choices(alphabet, k=size))
    return "\n".join(text[i:i + width] for i in range(0, size, width)) if width else text


def short_words(size: int, seed: int) -> str:
    "Words of two to six random letters, nearly all different."
    rng, text = random.Random(seed), drawn(size, seed, ascii_lowercase)
    cuts = [0]
    while cuts[-1] < size: cuts.append(cuts[-1] + rng.randint(2, 6))
    return " ".join(text[a:b] for a, b in zip(cuts, cuts[1:]))


# what the text is: how it is made, merges
SHAPES = {
    "prose": (lambda seed: prose(1_000_000, seed), 4_000),
    "many short words": (lambda seed: short_words(400_000, seed), 4_000),
    "random bytes": (lambda seed: random.Random(seed).randbytes(250_000).decode("latin-1"), 2_000),
    "lines of 76 random letters": (lambda seed: drawn(250_000, seed, ascii_lowercase, 76), 4_000),
    "prose without spaces": (lambda seed: "".join(filter(str.isalpha, prose(20_000, seed))), 1_000),
    "a word of 10,000 DNA letters": (lambda seed: drawn(10_000, seed, "ACGT"), 1_000),
    "the same, to the last pair": (lambda seed: drawn(10_000, seed, "ACGT"), 10_000),
    "one letter, 10,000 times": (lambda seed: "a" * 10_000, 1_000),
}


def against(ours, theirs, repeats: int) -> tuple[dict, object, object]:
    """The spreads of the CPU times of two calls in turn and of their quotient, and what they
    gave last."""
    rounds = [(cpu(ours), cpu(theirs)) for _ in range(repeats)]
    taken = [(a, b) for (a, _), (b, _) in rounds]
    spreads = {"ours": spread([a for a, _ in taken]), "library": spread([b for _, b in taken]),
               "ratio": spread([a / b for a, b in taken])}
    return spreads, rounds[-1][0][1], rounds[-1][1][1]


def shaped(name: str, seed: int, repeats: int = REPEATS) -> dict:
    """A text of some shape, learnt from, and another of its kind encoded: CPU seconds, and what
    is equal."""
    make, merges = SHAPES[name]
    text, new = make(seed), make(seed + 1)
    learnt, ours, theirs = against(lambda: learn_bpe(counted(text), 256 + merges),
                                   lambda: library(text, 256 + merges), repeats)
    made = Tokenizer(ours)
    other = same_in_library(made)
    coded, ids, others = against(lambda: Tokenizer(ours).encode(new),
                                 lambda: other.encode(new).ids, repeats)
    return {"what": "shape", "shape": name, "bytes": len(text.encode()), "merges": len(ours),
            "same merges": [tuple(map(bytes_to_unicode, m)) for m in ours] == theirs,
            "same ids": ids == others,
            **{f"learn, {k}": v for k, v in learnt.items()},
            **{f"encode, {k}": v for k, v in coded.items()}}


def measure(seed: int) -> list[dict]:
    "CPU seconds and MB/s, in one process, one thread."
    import tokenizers
    os.environ["RAYON_NUM_THREADS"] = "1"
    text, new = prose(BYTES, seed), prose(BYTES // 10, seed + 1)
    size, shape = 256 + MERGES, {"bytes": len(text.encode()), "merges": MERGES}
    ours, merges = seconds(lambda: learn_bpe(counted(text), size), REPEATS)
    theirs, same = seconds(lambda: library(text, size), REPEATS)
    equal = sum((bytes_to_unicode(a), bytes_to_unicode(b)) == other
                for (a, b), other in zip(merges, same))
    first = spread([MERGES * s for s in again(counted(text), [], merges[:AGAIN])])
    last = spread([MERGES * s for s in again(counted(text), merges[:-AGAIN], merges[-AGAIN:])])
    encode, _ = seconds(lambda: Tokenizer(merges).encode(new), REPEATS)
    rate = (spread([len(new.encode()) / 1e6 / encode[q] for q in ("q10", "median", "q90")])
            | {"n": REPEATS})
    return [{"what": "learn", **shape, "s": ours},
            {"what": "tokenizers", **shape, "version": tokenizers.__version__,
             "equal merges": equal, "s": theirs},
            {"what": "counting again, as at the start", **shape, "timed merges": AGAIN, "s": first},
            {"what": "counting again, as at the end", **shape, "timed merges": AGAIN, "s": last},
            {"what": "encode", "bytes": len(new.encode()), "MB/s": rate},
            *(shaped(name, seed) for name in SHAPES)]
