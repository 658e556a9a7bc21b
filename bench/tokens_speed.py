"""Chapter 3: learning 8,000 merges from 10 MB of prose, beside counting again and `tokenizers`; encoding; and that the merges are equal."""
import gc
import json
import os
import time
from collections import Counter

from tfmlib.data import prose
from tfmlib.proof import spread
from tfmlib.tokens import ID, PATTERN, Tokenizer, apply, join, learn, letters

DEVICE = "cpu"
SEED = 0
BYTES, MERGES, AGAIN, REPEATS = 10_000_000, 8_000, 50, 5


def seconds(call, repeats: int) -> tuple[dict, object]:
    "The spread of a call's seconds, and what it gave."
    taken = []
    for _ in range(repeats):
        gc.collect(); start = time.perf_counter()
        given = call()
        taken.append(time.perf_counter() - start)
    return spread(taken), given


def counted(text: str) -> dict[bytes, int]:
    "The distinct pieces of a text, and how often they occur."
    return {piece.encode(): n for piece, n in Counter(PATTERN.findall(text)).items()}


def again(counts: dict[bytes, int], done: list[tuple[bytes, bytes]], expected: list[tuple[bytes, bytes]]) -> list[float]:
    "The seconds of each merge after those that are done, when all pairs of all distinct pieces are counted at each."
    cut = Tokenizer(done)
    words, times, vocab, taken = [apply([ID[b] for b in piece], cut.ranks) for piece in counts], list(counts.values()), [*cut.vocab], []
    for merge in expected:
        start = time.perf_counter()
        pairs = Counter()
        for word, n in zip(words, times):
            for pair in zip(word, word[1:]): pairs[pair] += n
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        words = [join(word, pair, len(vocab)) for word in words]
        taken.append(time.perf_counter() - start)
        if (found := (vocab[pair[0]], vocab[pair[1]])) != merge: raise ValueError(f"merge: {found}; expected {merge}, which `learn` found")
        vocab.append(b"".join(found))
    return taken


def library(text: str, size: int) -> list[tuple[str, str]]:
    "The merges that `tokenizers` learns."
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return [tuple(merge) for merge in json.loads(theirs.to_str())["model"]["merges"]]


def measure(seed: int) -> list[dict]:
    "Seconds and MB/s, in one process, one thread."
    import tokenizers
    os.environ["RAYON_NUM_THREADS"] = "1"
    text, new = prose(BYTES, seed), prose(BYTES // 10, seed + 1)
    size, shape = 256 + MERGES, {"bytes": len(text.encode()), "merges": MERGES}
    ours, merges = seconds(lambda: learn(counted(text), size), REPEATS)
    theirs, same = seconds(lambda: library(text, size), REPEATS)
    equal = sum((letters(a), letters(b)) == other for (a, b), other in zip(merges, same))
    first = spread([MERGES * s for s in again(counted(text), [], merges[:AGAIN])])
    last = spread([MERGES * s for s in again(counted(text), merges[:-AGAIN], merges[-AGAIN:])])
    encode, _ = seconds(lambda: Tokenizer(merges).encode(new), REPEATS)
    rate = spread([len(new.encode()) / 1e6 / encode[q] for q in ("q10", "median", "q90")]) | {"n": REPEATS}
    return [{"what": "learn", **shape, "s": ours}, {"what": "tokenizers", **shape, "version": tokenizers.__version__, "equal merges": equal, "s": theirs},
            {"what": "counting again, as at the start", **shape, "timed merges": AGAIN, "s": first},
            {"what": "counting again, as at the end", **shape, "timed merges": AGAIN, "s": last}, {"what": "encode", "bytes": len(new.encode()), "MB/s": rate}]
