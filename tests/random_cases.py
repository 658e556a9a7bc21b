"""Random inputs for every exercise: `tests/library/test_solutions.py` gives them to the book's own
answers.

What is right, a checker's own reference says: a case goes to the property of this place (0 is the
checker's first). The references are slow and written another way than the answers: number by
number, by autograd, by PyTorch.
"""
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

EVERY: dict[str, "Cases"] = {}
# Exercises with so few questions that their checkers ask them all: a predicted number, a broken
# model named by a letter. Their pages' own cells leave nothing to draw.
WHOLLY_ASKED = set("""
    fate few_or_many diagnose_layer bleu_difference defect predicted_tokens broken_tokenizers implied_vocabulary better_merges effect suspect is_equivariant heads_table broken_layers
    zero_or_mean one_head_by_hand tuned own_rule diagnose_run changed_positions chosen_alpha from_the_table old_man masked_runs electra_gain survivors diagnosis odd_rows
    broken_batch standard_deviation written t5_table family_of faulty_load llama_table effects limit_of gpt3_table fault plan_runs causes obeys cache_table chosen
    worst_row design predicted_depth fault_of nsa_table what_is_read cause_of best_rate learns mixtral_table probe_verdict
""".split())  # noqa: E501


class Draw(random.Random):
    "Random numbers of a case; sizes differ from each other more often than not."
    def __init__(self, seed: str):
        super().__init__(seed)
        self.generator = torch.Generator().manual_seed(self.getrandbits(40))

    def tensor(self, *shape: int, scale: float = 1., dtype: torch.dtype = torch.float64) -> Tensor:
        return (scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)).to(dtype)

    def ints(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def sizes(self, count: int, high: int, low: int = 1) -> list[int]:
        return [self.randint(low, high) for _ in range(count)]

    def flags(self, *shape: int, share: float = .5) -> Tensor:
        return torch.rand(shape, generator=self.generator) < share

    def grows(self, low: float, high: float) -> float: return 10 ** self.uniform(low, high)


@dataclass
class Cases:
    """How the cases of one exercise are drawn, how many the proof draws, which properties judge
    them, and edges that it meets first."""
    draw: Callable
    count: int
    at: tuple[int, ...]
    edges: tuple = ()


def cases(exercise: str, count: int, *at: int, edges: Callable | None = None):
    "Declare how cases are drawn. `edges` gives a list of further cases from the page's module."
    def keep(draw):
        EVERY[exercise] = Cases(draw, count, at or (0,), edges or (lambda m: ()))
        return draw
    return keep


# --- 1: recurrence --------------------------------------------------------------------------------

@cases("lstm_step", 50, 0, 1)
def _(r, m):
    B, I, C = r.sizes(3, 3)
    return tuple(r.tensor(*s, scale=r.choice([1., 5.]))
                 for s in ((B, I), (B, C), (B, C), (4 * C, I), (4 * C, C), (4 * C,)))


cases("weight_gradient", 200, 2)(lambda r, m: m._net(r.randint(1, 4), r.randint(1, 9),
        r.getrandbits(30)))


@cases("steps_until", 10_000, edges=lambda m: [(.9, .81, 1.), (.3, .0081, 1.), (.5, 1e-200, 1e200),
                                               (.9, 1e-307, 1e308), (.1, 1e308, 1e-307),
                                               (.5, 1., 1.)])
def _(r, m):
    # hit exactly, on paper
    if r.random() < .3: return (f := r.randint(1, 9) / 10), f ** r.randint(0, 12), 1.
    return r.uniform(.001, .97), r.grows(-9, 9), r.grows(-9, 9)


@cases("linear_scan", 500)
def _(r, m):
    shape = (r.randint(1, 20), *r.sizes(r.randint(0, 2), 3))
    return r.tensor(*shape) * r.flags(*shape, share=.8), r.tensor(*shape)


@cases("layers_needed", 500, 0, edges=lambda m: [(0, [1]), (0, [5, 1]), (1, [1, 1, 2])])
def _(r, m):
    windows = [*r.sizes(r.randint(0, 3), 6), r.randint(2, 7)]
    r.shuffle(windows)
    return r.randint(0, 40), windows


cases("wavefront", 300, 0, 1, 2, 3, 4)(lambda r, m: (r.randint(1, 7), r.randint(1, 6),
        r.randint(1, 5)))


@cases("gradient_bounds", 500)
def _(r, m):
    C = r.randint(1, 4)
    return (tuple(tuple(r.grows(-3, 3) for _ in range(C)) for _ in range(r.randint(1, 6))),
            r.tensor(C))


@cases("newton_round", 300)
def _(r, m):
    T, C = r.sizes(2, 6)
    return (r.tensor(C, scale=r.choice([1., 5.])), r.tensor(T, C),
            r.tensor(T, C, scale=r.choice([1., 10.])))


cases("settings", 30)(lambda r, m: (r.uniform(-.5, .6),))
cases("keep_cell", 30)(lambda r, m: (r.randint(1, 30), r.randint(1, 4), r.getrandbits(30)))


# --- 2: alignment ---------------------------------------------------------------------------------

@cases("additive_scores", 500)
def _(r, m):
    B, S, A, C = r.sizes(4, 4)
    return (r.tensor(B, C), r.tensor(B, S, C), r.tensor(A, C), r.tensor(A, C),
            r.tensor(A, scale=r.choice([1., 1e3])))


@cases("look_at", 300, 0, 2)
def _(r, m):
    B, S, C = r.sizes(3, 5)
    return r.tensor(B, S, scale=r.choice([1., 1e4])), r.tensor(B, S, C), 1 + r.ints(S, B)


@cases("one_step", 150, 0, 1, 2)
def _(r, m):
    B, S, C = r.sizes(3, 5)
    return r.tensor(B, C), r.tensor(B, C), r.tensor(B, S, C), m._Score(), m._Cell()


@cases("greedy_words", 1_000, 0, 3)
def _(r, m):
    begin, end = r.sample(range(8), 2)
    text = [r.choice([w for w in range(8) if w != begin]) for _ in range(r.randint(1, 9))]
    [case] = m._scripts((text, end, r.randint(1, len(text))), begin=begin, state=r.randint(0, 9))
    return case


@cases("error_rate", 1_000, 5)
def _(r, m):
    T, S = r.sizes(2, 5)
    found, sure, possible = (r.flags(T, S, share=r.choice([0, .2, .7, 1])) for _ in range(3))
    sure[0, -1] = True
    return found, sure, possible


@cases("effective_number", 2_000, 1, edges=lambda m: [(torch.tensor([1., 0., 0.]).double(),),
        (torch.tensor([[1e-320, 1.]]).double(),), (torch.ones(1).double(),)])
def _(r, m):
    scores = r.tensor(*r.sizes(r.randint(1, 3), 4), scale=r.choice([1., 300.]))
    return (scores.softmax(-1),)


@cases("brevity_penalty", 10_000, 3, edges=lambda m: [([], []), ([0], [0]), ([0], [3]), ([5], [0])])
def _(r, m):
    n = r.randint(1, 4)
    return r.sizes(n, 9, 0), r.sizes(n, 9, 0)


cases("best_sharpness", 10, 1)(lambda r, m: (r.randint(2, 200),))
cases("align", 3, 2)(lambda r, m: (r.randint(0, 5),))


# --- 3: tokens ------------------------------------------------------------------------------------

def words(r: Draw, most: int, longest: int, letters: str = "abc") -> list[str]:
    return ["".join(r.choices(letters, k=r.randint(0, longest))) for _ in range(r.randint(0, most))]


@cases("count_pairs", 10_000,
       edges=lambda m: [([], []), ([[]], [3]), ([["a"]], [1]), ([["a", "a"]], [0])])
def _(r, m):
    some = [list(w) for w in words(r, 5, 6)]
    return some, r.sizes(len(some), 3, 0)


cases("join_pair", 10_000)(lambda r, m: (r.sizes(r.randint(0, 12), 3),
                                         (r.randint(1, 3), r.randint(1, 3)), r.randint(1, 9)))
cases("learn_merges", 1_000)(lambda r, m: ({w: r.randint(1, 3) for w in words(r, 5, 7)},
                                           r.randint(0, 7)))


@cases("encode", 3_000)
def _(r, m):
    parts, merges = ["a", "b", "c"], []
    for _ in range(r.randint(0, 6)):
        pair = r.choice(parts), r.choice(parts)
        if pair not in merges: merges.append(pair)
        parts.append("".join(pair))
    return "".join(r.choices("abc", k=r.randint(0, 14))), merges


@cache
def starts() -> set[bytes]:
    """What a character of two bytes or more may begin with. (A million characters take a second:
    only for whoever asks.)"""
    return {c.encode("utf-8", "surrogatepass")[:n] for i in range(0x110000) if not 0xD800 <= i
            < 0xE000 for c in [chr(i)] for n in (1, 2, 3)
            if n < len(c.encode("utf-8", "surrogatepass"))}


def shown(tokens: list[bytes]) -> list[str]:
    """What may be shown after each token: bytes wait only as long as they are the beginning of a
    character."""
    texts, kept = [], b""
    for token in [*tokens, None]:
        kept, text = kept + (token or b""), ""
        while kept:
            # so many bytes decide
            n = next((n for n in (1, 2, 3, 4) if kept[:n] not in starts()), 0)
            if not n or len(kept) < n:
                if token is not None: break
                text, kept = text + "\N{REPLACEMENT CHARACTER}", b""
                continue
            try: text, kept = text + kept[:n].decode(), kept[n:]
            except UnicodeDecodeError:
                text, kept = text + "\N{REPLACEMENT CHARACTER}", kept[max(n - 1, 1):]
        texts.append(text)
    return texts


@cases("stream", 10_000, edges=lambda m: [([],), ([b""],), ([b"\xed\xa0"],),
                                          ([b"\xed\xa0", b"\x80"],), ([b"\xf0\x9f\xa6", b"\x89"],)])
def _(r, m):
    if r.random() < .5:
        data = bytes(r.choice([0x41, 0x80, 0x9f, 0xa0, 0xbf, 0xc3, 0xe0, 0xed, 0xf0, 0xf4, 0xff])
                     for _ in range(r.randint(0, 7)))
    else: data = "".join(r.choices("aß語🦉", k=r.randint(0, 4))).encode()
    cuts = sorted(r.randint(0, len(data)) for _ in range(r.randint(0, 5)))
    return ([data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])],)


@cases("tied_gradient", 400)
def _(r, m):
    V, C, T = r.randint(1, 5), r.randint(1, 5), r.randint(0, 6)
    return r.tensor(V, C), r.ints(V, T), r.tensor(T, V)


cases("skip_pairs", 5_000)(lambda r, m: (r.sizes(r.randint(0, 9), 5), r.randint(0, 11)))


# --- 4: attention ---------------------------------------------------------------------------------

@cases("one_row", 300, 0, 1, 2)
def _(r, m):
    D, S = r.sizes(2, 6)
    return r.tensor(D), r.tensor(S, D), r.tensor(S, scale=r.choice([1., 1e6]))


@cases("safe_softmax", 2_000, 3, edges=lambda m: [(torch.zeros(2, 0), 1), (torch.zeros(0, 3), 0),
                                                  (torch.zeros(3, 0, 2), 0), (torch.zeros(()), 0)])
def _(r, m):
    shape = r.sizes(r.randint(1, 3), 4)
    scores = r.tensor(*shape, scale=r.choice([1., 100., 1e300]))
    return (scores.masked_fill(r.flags(*shape, share=r.choice([0, .5, .9])), -math.inf),
            r.randint(-len(shape), len(shape) - 1))


@cases("sharpness_for", 100, 1)
def _(r, m):
    n = r.randint(1, 6)
    return r.tensor(n, scale=r.choice([1., 50.])), r.randrange(n), r.grows(-4, 1)


@cases("sink_weights", 400)
def _(r, m):
    scores = r.tensor(*r.sizes(r.randint(1, 3), 4), scale=r.choice([1., 100., 1e4]))
    return (scores.masked_fill(r.flags(*scores.shape, share=r.choice([0, .5, .9])), -math.inf),
            r.tensor(1, scale=r.choice([1., 1e4]))[0])


@cases("sink_for", 400, 1)
def _(r, m):
    return (r.tensor(*r.sizes(r.randint(1, 3), 4), scale=r.choice([1., 100., 1e4])),
            r.uniform(.01, .99))


@cases("look_mask", 400, 4)
def _(r, m):
    B, T, S = r.sizes(3, 5)
    return r.ints(S + 1, B), T, S, r.random() < .5


cases("to_additive", 300, 0,
      1)(lambda r, m: (r.flags(*r.sizes(r.randint(1, 4), 3)), r.choice(m._TYPES)))


@cases("my_attend", 300, 1)
def _(r, m):
    lead, (T, S, D, W) = r.sizes(r.randint(0, 2), 2), r.sizes(4, 4)
    mask = r.choice([None, r.flags(T, S), r.flags(*lead, T, S), r.flags(T, 1)])
    return (r.tensor(*lead, T, D, scale=r.choice([1., 1e4])), r.tensor(*lead, S, D),
            r.tensor(*lead, S, W), mask)


@cases("gradients", 150, 4)
def _(r, m):
    lead, (T, S, D, W) = r.sizes(r.randint(0, 2), 3), r.sizes(4, 4)
    return (r.tensor(*lead, T, D), r.tensor(*lead, S, D), r.tensor(*lead, S, W),
            r.tensor(*lead, T, W))


@cases("attend_in_chunks", 200)
def _(r, m):
    lead, (T, S, D, W) = r.sizes(r.randint(0, 2), 2), r.sizes(4, 5)
    causal = T <= S and r.random() < .5
    return (r.tensor(*lead, T, D), r.tensor(*lead, S, D), r.tensor(*lead, S, W),
            r.randint(1, 6), causal)


cases("counter", 100)(lambda r, m: ((T := r.randint(1, 60)), r.randint(0, T)))


# --- 5: heads -------------------------------------------------------------------------------------

@cases("split_heads", 1_000, 0, 1)
def _(r, m):
    B, T, H, D = r.sizes(4, 4)
    return r.tensor(B, T, H * D), H


@cases("many_heads", 60, 1)
def _(r, m):
    (B, T), (H, D) = r.sizes(2, 3), r.sizes(2, 3)
    mask = r.choice([None, r.flags(B, H, T, T) | torch.eye(T, dtype=torch.bool), m._lower(T)])
    return (r.tensor(B, T, H * D), *(r.tensor(H * D, H * D) for _ in range(4)), H, mask)


@cases("without_heads", 1_000, 1)
def _(r, m):
    B, H, T, D, C = r.sizes(5, 4)
    return (r.tensor(B, H, T, D), r.tensor(H * D, C), r.tensor(C),
            tuple(r.sample(range(H), r.randint(0, H))))


cases("parameters", 150,
      1)(lambda r, m: (r.randint(1, 40), (G := r.randint(1, 4)) * r.randint(1, 4), G,
                       r.randint(1, 9), r.randint(1, 9), r.random() < .5))


@cases("shared_keys", 100, 1)
def _(r, m):
    B, G, R, T, S, D, W = r.sizes(7, 3)
    mask = r.choice([None, torch.cat([r.flags(T, S - 1), torch.ones(T, 1, dtype=torch.bool)], 1)])
    return r.tensor(B, G * R, T, D), r.tensor(B, G, S, D), r.tensor(B, G, S, W), mask


@cases("unpack", 400, 1)
def _(r, m):
    H, D = r.sizes(2, 5)
    return r.tensor(3 * H * D, *r.sizes(r.randint(0, 1), 4)), H


cases("ring_by_hand", 60, 2)(lambda r, m: (r.randint(3, 30), r.randint(1, 5)))


@cases("pool_heads", 1_000, 2)
def _(r, m):
    G, R, D, C = r.sizes(4, 4)
    return r.tensor(G * R * D, C), G * R, G


# --- 6: positions ---------------------------------------------------------------------------------

cases("sinusoids", 1_000,
      3)(lambda r, m: (r.ints(10 ** r.randint(1, 7), *r.sizes(r.randint(0, 2), 4)) - 3,
                       2 * r.randint(1, 5), r.grows(.3, 6)))
cases("alibi", 100, 3)(lambda r, m: (r.randint(1, 20), (T := r.randint(1, 4)), T + r.randint(0, 5)))


@cases("turn", 1_000, 4)
def _(r, m):
    B, H, T, D = r.sizes(4, 4)
    places = r.ints(10 ** r.randint(1, 6), *r.choice([(T,), (B, T)]))
    return (r.tensor(B, H, T, 2 * D, dtype=r.choice([torch.float64, torch.float32])), places,
            r.grows(1, 6), r.random() < .5)


@cases("bucket", 2_000, 4)
def _(r, m):
    buckets = 2 * r.randint(2, 20)
    told = buckets, buckets + r.randint(0, 300), r.random() < .5
    return m._offsets((r.randint(-9, 9) if r.random() < .3 else r.randint(-500, 500)
                       for _ in range(6)), *told)


cases("ntk_base", 3_000, 2)(lambda r, m: (2 * r.randint(2, 100), r.grows(.3, 6), r.grows(0, 2)))


@cases("for_halves", 1_000, 4)
def _(r, m):
    G, R, D = r.sizes(3, 4)
    C = r.sizes(r.randint(0, 1), 3)
    return r.tensor(G * R * 2 * D, *C), r.tensor(G * 2 * D, *C), r.tensor(G * 2 * D, *C), G * R, G


@cases("three_bands", 2_000, 2)
def _(r, m):
    slow = r.uniform(.1, 10)
    return (2 * r.randint(1, 20), r.grows(1, 6), r.uniform(1, 30), r.randint(1, 9_000), slow,
            slow + r.grows(-1, 2))


@cases("next_scores", 200, 4)
def _(r, m):
    calls = r.sizes(r.randint(1, 4), 3)
    longest = sum(calls) + r.randint(0, 3)
    lengths = [longest, *(r.randint(1, longest) for _ in range(r.randint(0, 2)))]
    r.shuffle(lengths)
    return tuple(lengths), r.randint(1, 3), *calls


cases("offset_only", 6, 0)(lambda r, m: (r.choice([*m._KEEP, *m._BREAK]), 2 * r.randint(1, 4)))
cases("invariances", 5)(lambda r, m: (r.choice(m._ENCODINGS),))
cases("broken_ports", 6)(lambda r, m: (r.choice([*m._PATIENTS]),))


# --- 7: the block ---------------------------------------------------------------------------------

@cases("layer_norm", 1_000, 2,
       edges=lambda m: [m._scored(torch.zeros(0, 3).double()),
                        m._scored(torch.ones(2, 1).double())])
def _(r, m):
    C = r.randint(2, 6)
    return (r.tensor(*r.sizes(r.randint(0, 2), 4), C, scale=r.grows(-3, 3)), r.tensor(C),
            r.tensor(C), r.grows(-12, 0))


cases("gated_width", 60, 1)(lambda r, m: (r.randint(1, 40), r.randint(1, 200), r.randint(1, 16),
                                          r.random() < .5))


@cases("rms_norm", 1_000, 0, edges=lambda m: [m._factors(torch.zeros(0, 3).double()),
                                              m._factors(torch.zeros(2, 3).double()),
                                              m._factors(1e150 * m.rounded(2, 3)),
                                              m._factors(1e-150 * m.rounded(2, 3))])
def _(r, m):
    C = r.randint(1, 6)
    return (r.tensor(*r.sizes(r.randint(0, 2), 4), C, scale=r.grows(-3, 3)), r.tensor(C),
            r.grows(-12, 0))


@cases("norm_gradient", 1_000, 3)
def _(r, m):
    shape = (*r.sizes(r.randint(0, 2), 4), r.randint(2, 6))
    return r.tensor(*shape), r.tensor(*shape), r.grows(-5, 0)


cases("through", 300, 1, 3)(lambda r, m: (r.tensor(*r.sizes(r.randint(0, 2), 4), r.randint(2, 5)),
                                          r.randint(0, 4)))
cases("growth", 2_000,
      1)(lambda r, m: (r.grows(-2, 2), [r.grows(-2, 1) for _ in range(r.randint(0, 9))],
                       r.choice(m._ORDERS)))


@cases("encoder_layer", 60, 2)
def _(r, m):
    B, T, H, D, hidden = r.sizes(5, 3)
    mask = r.choice([None, r.flags(B, r.choice([1, H]), T, T) | torch.eye(T, dtype=torch.bool)])
    x, weights, *rest = m._layer_case(B, T, H * D if H * D > 1 else 2 * H, hidden, H,
                                      r.random() < .5, mask=mask)
    return (r.tensor(*x.shape),
            m._Weights((n, r.tensor(*w.shape)) for n, w in weights.items()), *rest)


cases("forgotten", 24, 1)(lambda r, m: (r.choice(("pre", "post")), r.choice((0.25, 0.5, 1., 2.))))
cases("residual_rule", 4, 0, 1, 2, 3)(lambda r, m: (r.randint(2, 1000),))


# --- 8: the transformer ---------------------------------------------------------------------------

cases("count_parameters",
      3_000)(lambda r, m: (*r.sizes(3, 50), r.randint(1, 5), r.choice([None, r.randint(1, 50)]),
                           r.random() < .5))


@cases("tied", 200, 0, 1, 2)
def _(r, m):
    V, C, B, T = r.sizes(4, 6)
    return r.tensor(V, C), r.ints(V, B, T), r.tensor(B, T + 1, C)


cases("taught", 500, 0, 1, 2, 3,
      4)(lambda r, m: ([[r.randint(3, 20) for _ in range(r.randint(0, 6))]
                        for _ in range(r.randint(1, 5))],))


@cases("masks", 100, 0, 1, 2, 3)
def _(r, m):
    B, S, T = r.sizes(3, 4)
    x, given = r.ints(9, B, S) * r.flags(B, S, share=.7), r.ints(9, B, T) * r.flags(B, T, share=.7)
    # a word in each row
    for ids in (x, given):
        ids[torch.arange(B), torch.tensor([r.randrange(ids.shape[1]) for _ in range(B)])] = 5
    return x, given


@cases("label_smoothed_loss", 3_000, 2, edges=lambda m: [(m._IMPOSSIBLE, torch.tensor([[2]]), 0.),
        (m._IMPOSSIBLE, torch.tensor([[2]]), .1), (m._IMPOSSIBLE, torch.tensor([[1]]), 0.)])
def _(r, m):
    B, T, V = r.sizes(2, 4) + [r.randint(2, 6)]
    y = r.ints(V, B, T)
    y[r.randrange(B), r.randrange(T)] = V - 1
    scores = r.tensor(B, T, V, scale=r.choice([1., 1e4]))
    return (scores.masked_fill(r.flags(B, T, V, share=.3) & (torch.arange(V) != y[..., None])
                               & (r.random() < .3), -math.inf), y, r.choice([0., r.random()]))


cases("rate", 10_000, 2)(lambda r, m: (r.randint(0, 10 ** r.randint(1, 6)), r.randint(1, 9_000),
                                       r.randint(1, 10 ** r.randint(1, 4))))


@cases("greedy_rows", 500, 2)
def _(r, m):
    end, pad = r.sample(range(12), 2)
    longest = r.randint(1, 6)
    texts = [[r.choice([w for w in range(12) if w != pad]) for _ in range(longest)]
             for _ in range(r.randint(1, 4))]
    return m._texts(texts, longest, end, pad, [[r.randrange(12) for _ in range(2)] for _ in texts])


@cases("beam_step", 500, 2)
def _(r, m):
    while True:  # a beam holds no sequence twice
        case = m._beam(r.randint(1, 5), r.randint(1, 4), r.randint(1, 7), r.randint(1, 40),
                       r.getrandbits(30), r.choice([0., 1e4]))
        if len(case[0].unique(dim=0)) == len(case[0]): return case


@cases("ranked", 3_000, 0, 3)
def _(r, m):
    end = r.randint(2, 4)
    return ([(tuple(r.sizes(r.randint(1, 8), 5)), -r.uniform(.1, 9))
             for _ in range(r.randint(1, 6))], r.choice([0., r.random()]), end)


@cases("leaks", 8, 2)
def _(r, m):
    x, given = r.choice([m._PAIR, m._MORE])
    place = r.randrange(given.shape[1] - 1)
    return (m._Suspect("sees a later token",
                       ahead=[(None, place, r.randint(place + 1, given.shape[1] - 1))],
                       size=r.grows(-3, 0)), x, given)


cases("trap", 50, 0, 1, 2)(lambda r, m: (r.randint(2, 80),))
cases("search_within", 10)(lambda r, m: (r.randint(0, 10_000),))


# --- 9: encoders ----------------------------------------------------------------------------------

cases("mask_tokens", 300, edges=lambda m: [m._ON_PAPER, m._AT_BOUNDS, m._text(0, 2),
                                           m._text(2, 0)])(lambda r, m: m._text(*r.sizes(2, 9),
                                                   r.getrandbits(30), r.randrange(9),
                                                   tuple(r.sample(range(9), r.randint(0, 9)))))


@cases("pool", 500, 0, 1)
def _(r, m):
    B, T, C = r.sizes(3, 6)
    return m._padded(tuple(r.sizes(B, T)), T, C, r.choice(["right", "left", "between"]),
                     r.choice([9., 1e200, math.nan, math.inf, -math.inf]), r.getrandbits(30))


@cases("replaced", 300)
def _(r, m):
    B, T = r.sizes(2, 7)
    *rest, logits = m._filled(tuple(r.sizes(B, T)), T, r.getrandbits(30),
                              r.choice(["right", "left", "between"]),
                              r.choice([9., math.nan, math.inf]))
    return *rest, logits * r.choice([1., 1_000.])


cases("filtered", 200, 0)(lambda r, m: m._chain(*r.sizes(2, 4), r.randint(1, 5), r.getrandbits(30),
                                                r.choice([0., .3, .6])))


@cases("best_span", 3_000, edges=lambda m: [(*m._LOGITS, 0, 4)])
def _(r, m):
    T = r.randint(1, 30)
    start, end, *rest = r.choice([m._spans, m._flat])(T, r.randrange(T), r.randint(1, 12),
            r.getrandbits(30))
    first = rest[0]
    # one span is always possible
    hidden = r.flags(T, share=r.choice([0., .4])) & (torch.arange(T) > first)
    return start.masked_fill(hidden, -math.inf), end, *rest


@cases("contrastive", 200)
def _(r, m):
    B, C = r.sizes(2, 7)
    return m._batch(tuple(r.sizes(B, r.randint(1, 9))), C, r.choice([.001, .05, .5, 3.]),
                    r.getrandbits(30))


cases("position_scores", 100)(lambda r, m: m._disentangled(*r.sizes(4, 6), r.randint(1, 7),
        r.getrandbits(30)))
cases("join_patches", 200, 0, 1)(lambda r, m: m._patches(r.randint(1, 3), *r.sizes(4, 4),
        r.getrandbits(30)))


@cases("rotate_film", 100, 0, 1, 2)
def _(r, m):
    return m._shot(*r.sizes(3, 4), r.randint(1, 3), r.randint(0, 2),
                   (r.randint(1, 2), r.randint(1, 3)), r.getrandbits(30),
                   r.choice([1., 10., 100., 10_000.]))


cases("garden_path", 4)(lambda r, m: r.choice([(5, 2), (8, 3), (12, 4), (24, 9)]))


# --- 10: decoders ---------------------------------------------------------------------------------

@cases("perplexity_of", 300, 2)
def _(r, m):
    B, T, V = r.sizes(3, 5, 2)
    counted = r.flags(B, T)
    counted[r.randrange(B), r.randint(1, T - 1)] = True
    return r.tensor(B, T, V, scale=r.choice([1., 100.])), r.ints(V, B, T), counted


@cases("nucleus", 2_000, 0,
       edges=lambda m: [(m.doubles(0., -40.)[None], 1.), (torch.zeros(2, 1).double(), .3),
                        (m._FOUR, 1e-300), (torch.zeros(0, 3).double(), .5)])
def _(r, m):
    B, V = r.randint(1, 3), r.randint(1, 9)
    logits = r.tensor(B, V, scale=r.choice([1., 20.]))
    # with ties, at which the exact number is kept
    if r.random() < .3: logits = logits.round() / 2
    hidden = r.flags(B, V, share=.3) & (torch.arange(V) > 0)
    p = 1. if r.random() < .2 else r.random() or .5
    return (logits + torch.arange(V) * 1e-6).masked_fill(hidden, -math.inf), p


@cases("write_on", 2_000, 0, 1)
def _(r, m):
    V = r.randint(2, 9)
    prompt, steps = [r.randrange(V) for _ in range(r.randint(1, 4))], r.randint(0, 6)
    return (r.choice(list(m._MODELS)), V, prompt, steps, len(prompt) + steps + r.randint(0, 2),
            r.choice([None, r.randrange(V)]))


cases("answer_tokens", 3_000, 5)(lambda r, m: (r.ints(4, *r.sizes(2, 8)), *r.sample(range(4), 2)))


@cases("copying", 1_000, 6)
def _(r, m):
    H, T = r.sizes(2, 8)
    return r.tensor(H, T, T).softmax(-1), r.ints(r.randint(1, 6), T)


@cases("split_joint", 1_000, 0,
       edges=lambda m: [(torch.zeros(1, 3).double(), torch.zeros(3).double(),
                         torch.zeros(0, 1).double())])
def _(r, m):
    C = r.randint(1, 6)
    return r.tensor(C, 3 * C), r.tensor(3 * C), r.tensor(r.randint(1, 4), C)


cases("induction_by_hand", 5, 0, 1)(lambda r, m: (r.randint(4, 12), r.randint(10, 30)))


@cases("advantages_without_own", 1_000)
def _(r, m):
    N, G = r.sizes(2, 9)
    return (r.tensor(N, G + 1, scale=r.grows(-2, 6)),)


@cases("preference_gradients", 1_000)
def _(r, m):
    B = r.randint(1, 6)
    return (*(-r.tensor(B, scale=r.choice([1., 30., 3_000.])).abs() for _ in range(4)),
            r.grows(-2, 1))


# --- 11: denoisers --------------------------------------------------------------------------------

cases("fitting", 500, edges=lambda m: [(3, .15, 3.), (3, .5, 1.), (3, .99, 8.), (512, .15, 3.)])(
    lambda r, m: (r.randint(3, 150), r.choice([.15, .3, .5, .25, r.uniform(.01, .97)]),
                  r.choice([1., 2., 3., r.uniform(1, 9)])))
cases("two_sides", 1_000, edges=lambda m: [m._dropped(flags) for flags in ("", ".", "x", "xx")])(
    lambda r, m: m._dropped("".join(r.choices(".x", k=r.randint(0, 12))), r.getrandbits(30),
                            r.randint(60, 99)))


@cases("mixing_rates", 2_000, edges=lambda m: [([1], 1, .001), ([0, 10**15], math.inf, math.inf),
                                               ([10**15, 1, 0], 10**9, .001)])
def _(r, m):
    sizes = ([r.choice([0, r.randint(1, 9), round(r.grows(0, 15))]) for _ in range(r.randint(0, 6))]
             + [r.randint(1, 10**6)])
    return (sizes, r.choice([math.inf, r.randint(1, 10**6)]),
            r.choice([1., 2., math.inf, r.grows(-3, 3)]))


cases("packed_mask", 500)(lambda r, m: m._rows(r.randint(0, 3), r.randint(0, 7), r.getrandbits(30),
                                               r.randint(0, 4)))
cases("forward_flops", 2_000)(lambda r, m: (r.choice(m._KINDS), *r.sizes(2, 40), *r.sizes(4, 30)))
cases("infilling_weight", 2_000,
      edges=lambda m: [([], [], [1.]), ([], ["_"], [1.]), (["a"], [], [1.]),
                       ([], ["a"], [.5, .5])])(lambda r, m: (r.choices("ab", k=r.randint(0, 8)),
                               r.choices("ab__", k=r.randint(0, 7)),
                               [r.random() for _ in range(r.randint(1, 5))]))


@cases("offsets_of", 100, edges=lambda m: [(0, 4, 2, True), (3, 4, 2, True), (0, 4, 3, False),
                                           (3, 4, 3, False)])
def _(r, m):
    n, both = 4 * r.randint(1, 8), r.random() < .5
    return r.randrange(n), n, n // (4 if both else 2) + r.randint(1, 60), both


@cases("exact_bound", 200)
def _(r, m):
    T = r.randint(1, 5)
    return (r.tensor(2**T, T),)


@cases("unmasking_order", 40)
def _(r, m):
    stay, steps = [r.uniform(.02, .98) for _ in range(r.randint(0, 6))], r.randint(1, 4)
    return stay, steps, m.bits_lost(stay, [[*range(len(stay) + 1)]]) + 1e-9


# --- 12: checkpoints ------------------------------------------------------------------------------

@cases("place_of", 300)
def _(r, m):
    tensors = {f"{r.choice(['w', 'größe', '重み'])}.{n}": (r.choice(["F32", "BF16", "I64"]),
            *r.sizes(r.randint(0, 3), 4, 0)) for n in range(r.randint(1, 5))}
    return m._file(tensors, meta=r.random() < .5), r.choice([*tensors])


cases("number_of",
      2_000)(lambda r, m: (
          r.choice([n for n in (r.randrange(65_536), r.randrange(32_640), r.randrange(200))
                    if n % 32_768 <= 32_640]),))


@cases("weights_of", 1_000)
def _(r, m):
    G = r.randint(1, 4)
    H = G * r.randint(1, 3)
    more = {"num_key_value_heads": G, "head_dim": r.randint(1, 5), "tie_word_embeddings": r.random()
            < .5, "attention_bias": r.random() < .5, "qk_norm": r.random() < .5}
    return (m._described(r.randint(1, 9), H * r.randint(1, 4), r.randint(1, 9), r.randint(1, 4), H,
                         **{k: v for k, v in more.items() if r.random() < .6}),)


cases("reach_of", 1_000)(lambda r, m: ("".join(r.choices("LG", [6, 1], k=r.randint(0, 6))),
                                       r.randint(1, 6), r.randint(0, 40)))


@cases("unfused", 300)
def _(r, m):
    G = r.randint(1, 4)
    return m._matrix(G * r.randint(1, 3), G, *r.sizes(2, 5), r.getrandbits(30))


cases("to_halves", 300)(lambda r, m: m._projection(r.randint(1, 4), 2 * r.randint(1, 5),
                                                   r.randint(1, 4), r.getrandbits(30)))


@cases("read_config", 300)
def _(r, m):
    fields = [f"key{n}" for n in range(r.randint(0, 4))]
    config = ({key: r.randint(1, 9) for key in fields}
              | {key: value for key, value in (("bias", False), ("act", "silu"),
                                               ("rate", r.random()), ("other", None))
                 if r.random() < .5})
    order = r.sample([*config], len(config))
    return ({key: config[key] for key in order},
            {"read": {key: f"field of {key}" for key in fields},
             "required": {"bias": False, "act": "silu"}, "free": ["rate"]})


cases("folding", 200)(lambda r, m: (*(r.grows(-1, 1) for _ in range(4)), r.randint(1, 70)))


@cases("heron", 200)
def _(r, m):
    G = r.randint(1, 3)
    H = G * r.randint(1, 3)
    more = {"num_key_value_heads": G, "head_dim": 2 * r.randint(1, 4),
            "rope_theta": 10. ** r.randint(2, 6), "hidden_act": r.choice(["relu", "silu"]),
            "qkv_bias": r.random() < .5, "tie_word_embeddings": r.random() < .5}
    sizes = {"model_type": "heron", "vocab_size": r.randint(11, 15), "hidden_size": 2 * H
             * r.randint(1, 4), "intermediate_size": r.randint(1, 9),
             "num_hidden_layers": r.randint(1, 3), "num_attention_heads": H, "rms_norm_eps": 1e-5}
    return (sizes | {key: value for key, value in more.items() if r.random() < .6},)


@cases("name_patterns", 200)
def _(r, m):
    n = r.randint(2, 4)
    names = m._layers({f"{part}_proj": r.choice(["weight", "bias", "weight bias"])
                       for part in r.sample("qkvoud", r.randint(0, 5))}, n,
                      *r.sample(["embed.weight", "norm.weight", "norm.bias", "head.weight"],
                                r.randint(0, 4)))
    return names, n, sum(map(len, names))


# --- 13: accounting -------------------------------------------------------------------------------

cases("fewest_flops", 500)(lambda r, m: (r.randint(1, 9), r.sizes(r.randint(1, 8), 9)))


@cases("experts_that_fit", 500)
def _(r, m):
    E = r.randint(1, 20)
    C, F, L, stored, active = m._totals(*r.sizes(3, 4), E, r.randint(1, E), r.randint(0, 4))
    return C, F, L, stored + r.choice([0, 0, 0, 1]), active + r.choice([0, 0, 0, 1, L * C])


cases("cache_numbers", 1_000)(lambda r, m: ("".join(r.choices("LG", k=r.randint(0, 6))),
                                            *r.sizes(4, 12)))
cases("attention_from", 1_000)(lambda r, m: (r.randint(1, 10**r.randint(1, 11)), *r.sizes(3, 99),
                                             r.randint(1, 99)))
cases("crossing", 2_000)(lambda r, m: (r.randint(1, 50), r.randint(1, 10**r.randint(1, 4)),
                                       r.randint(0, 9), *r.sizes(2, 9)))
cases("peak_of",
      1_000)(lambda r, m: ([(r.choice("abcde"), r.choice([0, r.randint(1, 9)]))
                            for _ in range(r.randint(0, 12))],))


@cases("kept_names", 1_000)
def _(r, m):
    names, ops = list("xyw"), []
    for n in range(r.randint(0, 7)):
        kind = r.choice([*m._NEEDS])
        ops.append((kind,
                    tuple(r.choices(names, k=1 + (kind in ("matmul", "mul", "add")))), f"t{n}"))
        names.append(f"t{n}")
    return ops, r.sample(names[:3], r.randint(0, 3))


cases("best_spacing", 1_000)(lambda r, m: r.sizes(3, 40))


@cases("largest_shape", 6)
def _(r, m):
    memory, B, S, least = r.choice(m._DEVICES)
    return memory + r.randint(0, memory // 100), B, S, least


@cases("round_number", 2_000)
def _(r, m):
    format = r.choice([m._E2M1, m._E4M3, m._E5M2, m._E3M2])
    grid = m._grid(*format)
    k = r.randrange(len(grid) - 1)
    return (r.choice([1, -1])
            * r.choice([grid[k], (grid[k] + grid[k + 1]) / 2, r.uniform(grid[k], grid[k + 1]),
                        1.7 * grid[-1]]), *format)


cases("row_errors",
      500)(lambda r, m: (2 ** r.randint(1, 7), r.choice([r.randint(2, 200), r.uniform(1.1, 200)])))


# --- 14: scaling laws -----------------------------------------------------------------------------

def _law(r): return r.grows(-1, 4), r.uniform(.1, 1.2), r.grows(-1, 4), r.uniform(.1, 1.2)


def _distinct(r, n, low, high, least=1.1):
    "Sizes, each at least so many times as large as the one before, in any order."
    found = [r.grows(low, low + 1)]
    while len(found) < n: found.append(found[-1] * (least + r.grows(-2, (high - low) / n)))
    r.shuffle(found)
    return found


@cases("power_fit", 1_000, 1)
def _(r, m):
    x = _distinct(r, r.randint(2, 12), r.uniform(-3, 18), 24, 2)
    x += r.choices(x, k=r.randint(0, 3))
    return x, [r.grows(-1, 1) for _ in x]


cases("first_right", 1_000)(lambda r, m: (r.grows(-1, 2), r.uniform(.1, 1.2), r.randint(1, 100),
                                          r.randint(2, 10_000)))
cases("best_size", 1_000, 1)(lambda r, m: (*_law(r), r.grows(8, 26)))
cases("moves", 9, 0)(lambda r, m: (r.choice([*m._MOVES]),))
cases("frontier_slopes", 500)(lambda r, m: (r.uniform(.05, 1.5), r.uniform(.05, 1.5)))


@cases("fit_with_floor", 200, 2)
def _(r, m):
    x, loss, floors = m._runs(r.randint(4, 12), r.getrandbits(30), r.choice([.002, .01, .03]),
                              r.uniform(0, 3), r.grows(1, 3), r.uniform(.1, .7))
    return x, loss, r.sample(floors, 40) + [0.]


@cases("valley", 1_000, 1)
def _(r, m):
    N = _distinct(r, r.randint(3, 12), 7, 10)
    return N, [r.uniform(2, 3) for _ in N]


@cases("predicted_range", 500, 2)
def _(r, m):
    x = _distinct(r, r.randint(3, 12), 4, 9)
    floor = r.choice([0., r.uniform(0, 3)])
    return x, [floor + r.grows(-1, 1) for _ in x], floor, r.grows(3, 12), r.uniform(.5, 3)


cases("model_budgets", 7,
      0)(lambda r, m: (r.choice(["ratio", "fewest", "compute", "size", "budget", "loss",
                                 "excess"]),))
cases("second_epoch_from", 500)(lambda r, m: (*_law(r), r.grows(3, 13), r.grows(-1, 2)))


@cases("served_optimum", 500, 0, 2)
def _(r, m):
    (A, alpha, B, beta), reducible = _law(r), r.grows(-1, 0)
    return A, alpha, B, beta, reducible, r.grows(-2, 3) * (2 * B / reducible) ** (1 / beta)


@cases("steps_trained", 1_000, 1)
def _(r, m):
    lengths = _distinct(r, r.randint(1, 9), r.uniform(0, 5), 7)
    return lengths, r.uniform(.01, 1)


cases("wider", 500)(lambda r, m: (r.choice(["input", "hidden", "output"]),
                                  r.choice(["Adam", "SGD"]), r.grows(-2, 2)))


@cases("best_precision", 200)
def _(r, m):
    n = r.randint(2, 5)
    return [r.uniform(.3, 6) for _ in range(n)], [r.choice([0., r.uniform(0, 3)]) for _ in range(n)]


@cases("steepest", 200, 0, 1, 2)
def _(r, m):
    G = m._gradient(*r.sizes(2, 7), r.getrandbits(30), r.uniform(.01, 3))
    return (r.grows(-3, 3) * G,)


# --- 15: many devices -----------------------------------------------------------------------------

@cases("ring_bytes", 1_000)
def _(r, m):
    p = r.randint(1, 40)
    return (r.choice(["all_reduce", "reduce_scatter", "all_gather"]),
            p * r.randint(1, 10**r.randint(1, 11)), p)


@cases("chunk_sent", 1_000)
def _(r, m):
    p = r.randint(2, 20)
    return r.randrange(p), r.randrange(2 * p - 2), p


cases("sharded_step", 200)(lambda r, m: (*r.sizes(2, 9), r.choice([.5, .1, 2.]), r.randint(0, 999)))
cases("fill_buckets", 1_000)(lambda r, m: (r.sizes(r.randint(1, 30), r.choice([3, 9, 40])),
                                           r.randint(1, 60)))


@cases("global_norm", 1_000)
def _(r, m):
    names, ranks = "abcdef"[:r.randint(1, 6)], range(r.randint(1, 6))
    held = {name: r.sample(ranks, r.randint(1, len(ranks))) for name in names}
    return ([{name: r.grows(-6, 6) for name in names if rank in held[name]} for rank in ranks],
            {name: len(held[name]) for name in names})


@cases("zigzag", 500)
def _(r, m):
    p = r.randint(1, 12)
    return 2 * p * r.randint(1, 20), r.randrange(p), p


@cases("one_f_one_b", 500)
def _(r, m):
    stages = r.randint(1, 12)
    return r.randrange(stages), stages, r.randint(1, 30)


cases("plans", 200)(lambda r, m: (r.choice([1, 2, 4, 6, 8, 12, 16, 24, 48]),
                                  r.choice([1, 2, 4, 6, 8]), r.choice([4, 6, 8, 12, 32]),
                                  r.choice([1, 2, 4, 6, 8]),
                                  *(r.choice([1, 3, 4, 6, 12, 80]) for _ in range(2))))
cases("best_plan", 6)(lambda r, m: (r.choice([64, 128, 256, 512]), r.choice([64, 128, 512])))


# --- 16: the KV cache -----------------------------------------------------------------------------

cases("tokens_read", 1_000)(lambda r, m: (r.randint(1, 30), r.randint(0, 30)))
cases("ring_contents", 1_000)(lambda r, m: (r.randint(0, 30), r.randint(1, 8), r.randint(0, 5)))


@cases("mask_of", 1_000)
def _(r, m):
    queries, keys = ([r.randint(-1, 12) for _ in range(r.randint(0, 6))] for _ in range(2))
    return queries, keys, r.choice([None, r.randint(1, 6)]), r.randint(0, 4)


@cases("blocks_used", 1_000)
def _(r, m):
    steps, running, begun = [], [], 0
    for _ in range(r.randint(0, 12)):
        what = r.choice(["new", "fork", "write", "write", "end"]) if running else "new"
        which = r.randint(1, 9) if what == "new" else r.choice(running)
        steps.append((what, which))
        if what in ("new", "fork"): running.append(begun); begun += 1
        if what == "end": running.remove(which)
    return steps, r.randint(1, 5)


@cases("tokens_per_pass", 1_000)
def _(r, m):
    n = r.randint(1, 5)
    def drawn():
        weights = [r.randint(0, 9) for _ in range(n - 1)] + [1]
        return [w / sum(weights) for w in weights]
    return drawn(), drawn(), r.randint(0, 8)


cases("shared_blocks",
      1_000)(lambda r, m: ([[r.randint(0, 2) for _ in range(r.randint(0, 9))]
                            for _ in range(r.randint(0, 5))], r.randint(1, 4)))
cases("finish_times", 1_000)(lambda r, m: (r.sizes(r.randint(0, 9), 9), r.randint(1, 4),
                                           r.choice(["continuous", "static"])))


@cases("tree_sees", 1_000)
def _(r, m):
    n = r.randint(0, 10)
    # a predecessor is older, wherever it is listed
    order, parents = r.sample(range(n), n), [0] * n
    for age, i in enumerate(order): parents[i] = r.choice([-1, *order[:age]])
    return parents, r.randint(1, 20)


@cases("best_tree", 1_000)
def _(r, m):
    def head():
        drawn = [r.random() for _ in range(r.randint(1, 4))]
        return [r.random() * x / sum(drawn) for x in drawn]
    return [head() for _ in range(r.randint(0, 4))], r.randint(0, 40)


@cases("token_passes", 1_000)
def _(r, m):
    n = r.randint(0, 6)
    arrivals = sorted(r.randint(0, 20) for _ in range(n))
    return [(at, r.randint(1, 12), r.randint(1, 6)) for at in arrivals], max(1, n) + r.randint(0, 8)


@cases("best_order", 50)
def _(r, m):
    n = r.randint(0, 12)
    return r.sizes(n, 30), r.sizes(n, 9), r.randint(1, 4)


# --- 20: linear attention and state spaces --------------------------------------------------------

@cases("chunk_of", 200)
def _(r, m):
    T, D, chunk = r.sizes(3, 12)
    return T, D, chunk, r.randint(0, 999), tuple(r.sample(range(D), r.randint(0, D - 1)))


@cases("decayed_state", 200)
def _(r, m):
    T, D, W = r.sizes(3, 6)
    return (r.tensor(T, D), r.tensor(T, W),
            torch.tensor([r.choice([0., 1., r.random()]) for _ in range(T)], dtype=torch.float64))


@cases("delta_writes", 200)
def _(r, m):
    T, D, W = r.sizes(3, 7)
    return (torch.nn.functional.normalize(r.tensor(T, D), dim=-1), r.tensor(T, W),
            r.tensor(T).sigmoid(), r.tensor(D, W))


cases("matrix_of", 100)(lambda r, m: (r.randint(1, 9), r.randint(1, 99)))


@cases("combine", 100)
def _(r, m):
    D, W = r.sizes(2, 4)
    return r.tensor(D, D), r.tensor(D, W), r.tensor(D, D), r.tensor(D, W)


cases("hold", 100)(lambda r, m: (r.choice([-1, 1]) * r.grows(-15, .8), r.uniform(-3, 3),
                                 r.grows(-6, .3)))


# --- 17: FlashAttention ---------------------------------------------------------------------------

@cases("running", 2_000, 2, edges=lambda m: [([], []), ([-math.inf], [2.])])
def _(r, m):
    n, size = r.randint(0, 9), r.choice([1., 5_000.])
    return ([-math.inf if r.random() < .2 else r.gauss(0, size) for _ in range(n)],
            [r.gauss(0, 1) for _ in range(n)])


@cases("merge_answers", 1_000, 2)
def _(r, m):
    lead, W = r.sizes(r.randint(1, 2), 4), r.randint(1, 4)
    parts = []
    for _ in "ab":
        lse = r.tensor(*lead, scale=r.choice([1., 5_000.])).masked_fill(r.flags(*lead,
                share=.3), -math.inf)
        parts += [r.tensor(*lead, W).masked_fill((lse == -math.inf)[..., None], 0), lse]
    return tuple(parts)


@cases("in_tiles", 500, 2)
def _(r, m):
    T, S, D, W, rows, cols = r.sizes(6, 7)
    return r.tensor(T, D, scale=r.choice([1., 2_000.])), r.tensor(S, D), r.tensor(S, W), rows, cols


@cases("tile_gradient", 1_000, 3)
def _(r, m):
    T, S, W = r.sizes(3, 6)
    start = r.randrange(S)
    scores = r.tensor(T, S, scale=r.choice([1., 2_000.])).masked_fill(r.flags(T, S,
            share=r.choice([0, .3, .8])), -math.inf)
    return scores, r.tensor(S, W), r.tensor(T, W), start, r.randint(start + 1, S)


cases("causal_tiles", 2_000)(lambda r, m: (*r.sizes(2, 14), *r.sizes(2, 6)))
cases("keys_outside", 1_000)(lambda r, m: (r.randint(1, 20), r.randint(1, 40), *r.sizes(2, 9),
                                           r.randint(1, 50)))
cases("attainable", 1_000)(lambda r, m: (r.randint(1, 2_000), r.randint(1, 300), r.randint(0, 8),
                                         r.choice([1, 2, 4, 8]), r.grows(9, 15), r.grows(6, 13)))
cases("faults", 6)(lambda r, m: (r.choice([*m._PROGRAMS]),))
cases("reading", 3)(lambda r, m: (r.choice(m._QUESTIONS),))


# --- 18: FlashAttention on a GPU (kernels, interpreted: a case takes long) ------------------------

@cases("delta_rows", 4)
def _(r, m):
    H, T, W = r.sizes(3, 5)
    return (r.tensor(H, T, W).float(), r.tensor(H, T, W).float(), r.tensor(H, T).float(),
            r.choice([1, 2, 4]))


@cases("row_lse", 8)
def _(r, m):
    T, S = r.sizes(2, 8)
    z = r.tensor(T, S, scale=r.choice([1., 1_000.])).float().masked_fill(r.flags(T, S,
            share=r.choice([0, .5])), -math.inf)
    return z, r.choice([1, 2, 4]), r.choice([1, 2, 4])


@cases("weights_again", 8)
def _(r, m):
    T, S = r.sizes(2, 7)
    z = r.tensor(T, S).float().masked_fill(r.flags(T, S, share=r.choice([0, .5])), -math.inf)
    z[:, 0] = z[:, 0].nan_to_num(neginf=0.)
    return z, r.choice([.125, .5, 1.]), r.choice([1, 2, 4]), r.choice([1, 2, 4])


cases("borders", 1_000)(lambda r, m: (*r.sizes(2, 14), *r.sizes(2, 5), r.random() < .5,
                                      r.choice([None, r.randint(1, 12)])))
cases("value_gradient", 4)(lambda r, m: (*r.sizes(2, 40), 16, r.choice([16, 32])))
cases("scaled_heads", 6)(lambda r, m: (r.randint(1, 3), r.randint(1, 9), r.choice([1, 2, 4])))
cases("backward_flops", 2_000)(lambda r, m: (r.randint(1, 60), r.randint(1, 40), *r.sizes(2, 12),
                                             r.random() < .5))
cases("best_config", 2_000)(lambda r, m: (m._candidates(r.getrandbits(30), r.randint(0, 12)),
                                          r.choice([32, 64, 128, 256]), r.choice([1, 2, 4]),
                                          r.randint(20_000, 250_000)))
cases("predicted", 5)(lambda r, m: (r.choice(m._NUMBERS),))
cases("faulty", 6)(lambda r, m: (r.choice([*m._FAULTY]),))


# --- 19: sparse attention -------------------------------------------------------------------------

cases("pairs_left", 1_000)(lambda r, m: (r.randint(0, 40), r.randint(1, 12), r.randint(0, 6)))


@cases("sources", 1_000)
def _(r, m):
    n = r.randint(1, 8)
    return ([[r.sample(range(n), r.randint(0, min(n, 3))) for _ in range(n)]
             for _ in range(r.randint(0, 4))], r.randrange(n))


@cases("block_kinds", 1_000)
def _(r, m):
    T, S, rows, cols = r.sizes(4, 7)
    share = r.choice([.1, .5, .9])
    return [[r.random() < share for _ in range(S)] for _ in range(T)], rows, cols


cases("tile_scores", 1_000)(lambda r, m: (r.randint(0, 60), r.randint(1, 30), r.randint(1, 12)))


@cases("selected_blocks", 1_000)
def _(r, m):
    i, size, heads = r.randint(0, 40), r.randint(1, 6), r.randint(1, 4)
    return ([[r.randint(0, 5) for _ in range((i + 1) // size)] for _ in range(heads)], i, size,
            r.randint(2, 8))


@cases("indexed_keys", 1_000)
def _(r, m):
    (D, H), S = r.sizes(2, 3), r.randint(1, 8)
    def drawn(n): return [r.randint(-4, 4) for _ in range(n)]
    return ([drawn(D) for _ in range(H)], [drawn(D) for _ in range(S)],
            [r.randint(-3, 4) for _ in range(H)], r.randint(1, 8))


cases("pays_from", 1_000)(lambda r, m: (r.randint(1, 30), r.randint(0, 30), r.randint(0, 30),
                                        r.randint(1, 20)))
cases("dilations", 200)(lambda r, m: (r.randint(1, 120), r.randint(1, 7)))
cases("relays", 60)(lambda r, m: (r.randint(1, 60),))
# --- 21: mixture of experts -----------------------------------------------------------------------

def shares(r, n: int) -> list[float]:
    "Different probabilities."
    weights = r.sample(range(1, 100), n)
    return [w / sum(weights) for w in weights]


@cases("route", 1_000, edges=lambda m: [([.25] * 4, 2, True)])
def _(r, m):
    n = r.randint(1, 7)
    return shares(r, n), r.randint(1, n), r.random() < .5


@cases("sorted_pairs", 1_000)
def _(r, m):
    E = r.randint(1, 6)
    return [r.randrange(E) for _ in range(r.randint(0, 12))], E


@cases("router_gradient", 1_000)
def _(r, m):
    n = r.randint(1, 6)
    return shares(r, n), [r.uniform(-9, 9) for _ in range(n)], r.randint(1, n), r.random() < .5


@cases("balancing_loss", 1_000)
def _(r, m):
    E = r.randint(1, 5)
    return [shares(r, E) for _ in range(r.randint(1, 6))], r.randint(1, E)


@cases("dropped", 1_000)
def _(r, m):
    E, k = r.randint(1, 5), r.randint(1, 3)
    return ([r.sample(range(E), r.randint(0, min(k, E))) for _ in range(r.randint(0, 9))],
            r.randint(1, 4))


cases("diagnose", 24)(lambda r, m: (r.choice(m._FAULTS), r.randint(0, 999)))
cases("next_bias", 2)(lambda r, m: (r.randint(2, 99),))


# --- 22: inside a trained model -------------------------------------------------------------------

@cases("neurons", 300, 0, 1, 2)
def _(r, m):
    T, C, hidden = r.sizes(3, 5)
    return r.tensor(T, C), r.tensor(hidden, C), r.tensor(hidden), r.tensor(C, hidden)


@cases("edit_one", 500, 0, 2)
def _(r, m):
    out, features = r.sizes(2, 6)
    return (r.tensor(out, features), r.tensor(features), r.tensor(out),
            m._in_use(features, r.getrandbits(30)))


@cases("edit_several", 300, 1, 2)
def _(r, m):
    features = r.randint(2, 7)
    return m._to_edit(r.randint(1, 5), features, r.randint(1, features - 1), seed=r.getrandbits(30))


@cases("ablate", 100, 0)
def _(r, m):
    B, T, H, D = r.sizes(4, 4)
    return r.tensor(B, T, H, D), r.randint(0, H - 1), r.choice(("zero", "mean", "resample"))


@cases("states_that_know", 60, 0)
def _(r, m):
    first, family, last = sorted(r.sample(range(6), 3))
    return first, family, last, [r.choice((None, 0, 1, 2)) for _ in range(r.randint(1, 3))]


@cases("hidden_constant", 100, 0, 1)
def _(r, m):
    D, H = r.randint(1, 3), r.randint(1, 3)
    return m._case(r.randint(D, 6), H, D, r.randint(0, H - 1), seed=r.getrandbits(20))


@cases("sparse_code", 200, 1)
def _(r, m):
    # in one dimension, all projections are equally long
    T, C, M = r.randint(1, 4), r.randint(2, 6), r.randint(1, 6)
    return r.tensor(T, C), r.tensor(M, C), r.randint(1, M)


@cases("pursue", 200, 4)
def _(r, m):
    C, M = r.randint(2, 6), r.randint(2, 8)
    return (r.tensor(C), torch.nn.functional.normalize(r.tensor(M, C), dim=-1),
            r.randint(1, min(C, M) - 1))


cases("edit_few", 30, 0)(lambda r, m: (r.randint(0, 1000),))
