"""`edited` and `edited_many` against solvers that know nothing of their formulas."""
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmlib.block import edited, edited_many

sizes = st.integers(1, 6)


def draw(seed, *shape): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def memories(draw_):
    "A matrix, kept keys that span all features, edits, and a strength."
    C, F_, n = draw_(sizes), draw_(sizes), draw_(sizes)
    seed, more = draw_(st.integers(0, 2**31)), draw_(st.integers(4, 30))
    kept = draw(seed, F_ + more, F_) * draw(seed + 1, F_).abs().add(.2)   # features of different sizes
    return draw(seed + 2, C, F_), kept, draw(seed + 3, n, F_), draw(seed + 4, n, C), draw_(st.floats(.01, 100))


def second_moment(kept): return kept.T @ kept / len(kept)


@settings(max_examples=150, deadline=None)
@given(memories())
def test_one_edit_is_exact_of_rank_one_and_the_least_change_to_kept_answers(memory):
    W, kept, keys, values, _ = memory
    key, value = keys[0], values[0]
    new = edited(W, key, value, second_moment(kept))
    torch.testing.assert_close(new @ key, value, rtol=1e-8, atol=1e-8)
    assert torch.linalg.matrix_rank(new - W, rtol=1e-9) <= 1
    # all changes that fulfil the condition: one of them, plus anything on the keys at a right angle; the best by least squares
    free = torch.linalg.svd(key[None])[2][1:]                             # (F - 1, F), orthogonal to key
    first = torch.outer(value - W @ key, key) / (key @ key)
    along = torch.linalg.lstsq(kept @ free.T, -(kept @ first.T)).solution.T if len(free) else torch.zeros(len(W), 0, dtype=W.dtype)
    torch.testing.assert_close(new, W + first + along @ free, rtol=1e-6, atol=1e-7)


@settings(max_examples=150, deadline=None)
@given(memories())
def test_many_edits_are_the_least_squares_of_kept_and_edited(memory):
    W, kept, keys, values, strength = memory
    weight = math.sqrt(strength / len(kept))
    least = torch.linalg.lstsq(torch.cat([kept * weight, keys]), torch.cat([kept @ W.T * weight, values])).solution.T
    torch.testing.assert_close(edited_many(W, keys, values, second_moment(kept), strength), least, rtol=1e-6, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(memories())
def test_one_edit_is_the_limit_of_many_and_scale_does_not_count(memory):
    W, kept, keys, values, _ = memory
    C = second_moment(kept)
    one = edited(W, keys[0], values[0], C)
    torch.testing.assert_close(edited(W, keys[0], values[0], 7 * C), one)                                 # only the direction of C⁻¹ k counts
    size = float(keys[0] @ torch.linalg.solve(C, keys[0]))
    for s in (1., 1e-2, 1e-4):                                            # with one edit, a share 1 / (1 + s) of it is made
        torch.testing.assert_close(edited_many(W, keys[:1], values[:1], C, s * size), W + (one - W) / (1 + s), rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(memories())
def test_nothing_missing_nothing_changed_and_arguments_stay(memory):
    W, kept, keys, values, strength = memory
    C, before = second_moment(kept), [t.clone() for t in (W, keys, values)]
    torch.testing.assert_close(edited(W, keys[0], W @ keys[0], C), W)
    torch.testing.assert_close(edited_many(W, keys, keys @ W.T, C, strength), W)
    edited(W, keys[0], values[0], C), edited_many(W, keys, values, C, strength)
    assert all(torch.equal(a, b) for a, b in zip((W, keys, values), before))


def test_the_example_on_paper():
    W, keys = torch.tensor([[10., 0.], [0., 20.]]), torch.tensor([[1., 0.], [1., 1.]])
    new = edited(W, keys[1], torch.tensor([10., 60.]), second_moment(keys))
    torch.testing.assert_close(new @ keys.T, torch.tensor([[10., 10.], [0., 60.]]))


def test_float32_stays_float32():
    W, kept = draw(0, 3, 4).float(), draw(1, 20, 4).float()
    assert edited(W, kept[0], draw(2, 3).float(), second_moment(kept)).dtype == torch.float32
    assert edited_many(W, kept[:2], draw(2, 2, 3).float(), second_moment(kept), 1.).dtype == torch.float32


W, KEY, VALUE, C = draw(0, 3, 4), draw(1, 4), draw(2, 3), second_moment(draw(3, 20, 4))
REFUSED = {
    "weight of three axes": (dict(weight=W[None]), "weight"),
    "key of the values' width": (dict(key=VALUE), r"key: \(3,\); expected \(4,\)"),
    "value of the keys' width": (dict(value=KEY), r"value: \(4,\); expected \(3,\)"),
    "a key as a row": (dict(key=KEY[None]), "key"),
    "a zero key": (dict(key=KEY * 0), "key: zero"),
    "a key of another type": (dict(key=KEY.float()), "key: torch.float32"),
    "a key that is not finite": (dict(key=KEY * math.inf), "key"),
    "a value that is not finite": (dict(value=VALUE * math.nan), "value"),
    "second moment of the values": (dict(second_moment=torch.eye(3).double()), r"second_moment: \(3, 3\)"),
    "second moment of another type": (dict(second_moment=C.float()), "second_moment"),
    "second moment not symmetric": (dict(second_moment=C + torch.triu(torch.ones(4, 4), 1)), "second_moment: not symmetric"),
    "second moment of too few keys": (dict(second_moment=second_moment(draw(4, 3, 4))), "second_moment: singular"),
    "second moment with a negative direction": (dict(second_moment=-C), "second_moment"),
    "half precision": (dict(weight=W.half(), key=KEY.half(), value=VALUE.half(), second_moment=C.half()), "weight: torch.float16"),
    "no features": (dict(weight=W[:, :0], key=KEY[:0], second_moment=C[:0, :0]), "key"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED)
def test_one_edit_refuses_by_name(change, message):
    with pytest.raises(ValueError, match=message): edited(**{"weight": W, "key": KEY, "value": VALUE, "second_moment": C} | change)


MANY_REFUSED = {
    "one key without its axis": (dict(keys=KEY), r"keys: \(4,\); expected \(n, F\)"),
    "fewer values than keys": (dict(values=VALUE[None]), r"values: \(1, 3\); expected \(2, 3\)"),
    "keys of another width": (dict(keys=draw(0, 2, 3)), "keys"),
    "no edits": (dict(keys=draw(0, 0, 4), values=draw(0, 0, 3)), "keys"),
    "a number for a key": (dict(keys=torch.tensor(1.).double()), "keys"),
    "strength zero": (dict(strength=0), "strength: 0"),
    "strength negative": (dict(strength=-1.), "strength"),
    "strength not a number": (dict(strength=math.nan), "strength"),
    "second moment singular": (dict(second_moment=torch.zeros(4, 4).double()), "second_moment: singular"),
}


@pytest.mark.parametrize("change, message", MANY_REFUSED.values(), ids=MANY_REFUSED)
def test_many_edits_refuse_by_name(change, message):
    given_ = {"weight": W, "keys": draw(5, 2, 4), "values": draw(6, 2, 3), "second_moment": C, "strength": 1.} | change
    with pytest.raises(ValueError, match=message): edited_many(**given_)
