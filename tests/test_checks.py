"""What the checkers of the practice pages share: each finds what it is there for, and lets pass what is right."""
import pytest
import torch

from tfmlib.checks import (
    Watch,
    common_rules,
    does_without,
    gives,
    number,
    own,
    parts,
    refuses,
    rounded,
    same_type,
    watched,
    whole,
)
from tfmlib.proof import Checker, Mismatch

X = rounded(4, 4)


@pytest.mark.parametrize("check, right, wrong", [
    (parts, [((1, 2), "a", "b"), ([1, 2], "a", "b")], [(X, "a", "b", "c", "d"), ((1,), "a", "b"), (None, "a")]),
    (whole, [(3, 3, "it")], [(3.0, 3, "it"), (True, 1, "it"), (4, 3, "it"), (torch.tensor(3), 3, "it")]),
    (number, [(3,), (0.5,), (torch.tensor(2.),)], [(True,), (torch.ones(1),), ("3",), (None,)]),
    (same_type, [(X, torch.float64)], [(X.float(), torch.float64), (0.5, torch.float64)]),
    (gives, [([1, 2], [1, 2]), ("a", "a"), ({1: 2}, {1: 2})], [([True], [1]), ([1.0], [1]), ((1, 2), [1, 2]), ({1: 3}, {1: 2}), (None, [])]),
    (own, [([1], [1])], [(X, 0, X)]),
    (refuses, [(lambda x: torch.zeros(2).view(3) if x else int("x"), 0)], [(lambda: 1,), (lambda: [][0],)]),
    (does_without, [(("softmax",), torch.exp, X)], [(("softmax",), lambda x: x.softmax(0), X), (("exp",), torch.exp, X)]),
])
def test_right_passes_and_wrong_does_not(check, right, wrong):
    for case in right: check(*case)
    for case in wrong:
        with pytest.raises(Mismatch): check(*case)


def scaled(x, w, keep): return (x * w.sum()).masked_fill(~keep, 0), x.sum(-1)


def forgetful(x, w, keep, known={}): return known.setdefault((x.shape, x.dtype), scaled(x, w, keep))      # noqa: B006


@pytest.mark.parametrize(("attempt", "failed"), [
    (scaled, None), (lambda x, w, keep: (scaled(x, w, keep)[0], (x @ torch.ones_like(x[0]))), None),
    (lambda x, w, keep: tuple(y.float() for y in scaled(x, w, keep)), "32 bits"), (lambda x, w, keep: tuple(y.double() for y in scaled(x, w, keep)), "32 bits"),
    (lambda x, w, keep: tuple(y.to(x.dtype) for y in scaled(x.float(), w.float(), keep)), "32 bits"),
    (lambda x, w, keep: scaled(x.view(-1).view_as(x), w, keep), "views"), (forgetful, "other numbers"),
    (lambda x, w, keep: scaled(x, w, torch.arange(24).view(8, 3) % 3 > 0), "32 bits"), (lambda x, w, keep: tuple(y.detach() for y in scaled(x, w, keep)), "gradients"),
    (lambda x, w, keep: scaled(x, w.detach(), keep), "gradients"), (lambda x, w, keep: (scaled(x, w, keep)[0], x.sum(-1).detach()), "gradients"),
    (lambda x, w, keep: tuple(y - 2 * z for y, z in zip(scaled(3 * x, w, keep), scaled(x.detach(), w, keep))), "gradients")])
def test_the_common_rules_find_what_they_are_there_for(attempt, failed):
    check = Checker("scaled")
    common_rules(check, scaled, lambda seed: (rounded(8, 3, seed=seed), rounded(2, seed=seed + 5), rounded(8, 3, seed=seed + 9) > 0), "it", "the sums")
    found = check.examine(attempt)
    assert (found.failed or "").startswith(failed or "") and found.passed == (failed is None), found


def test_views_and_arguments_do_not_count():
    seen = watched(lambda x: x.view(16).view(2, 8).T, X)
    assert (seen.calls, seen.numbers, seen.largest, seen.most) == (0, 0, 0, 0)
    assert watched(lambda x: x.mul_(2), X.clone()).largest == 0                     # in its argument's own memory
    assert watched(lambda x: x.expand(100, 4, 4).contiguous(), X).largest == 1600


def test_what_is_let_go_is_not_alive():
    def one_after_another(x):
        for _ in range(10): x = x + 1
        return x
    assert watched(one_after_another, X).most <= 32 < watched(one_after_another, X).numbers
    with Watch() as watch: kept = [X + i for i in range(10)]
    assert watch.most == 160 and len(kept) == 10
