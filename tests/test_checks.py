"""What the checkers of the practice pages share: each finds what it is there for, and lets pass what is right."""
import pytest
import torch

from tfmlib.checks import Watch, does_without, gives, number, parts, refuses, rounded, same_type, watched, whole
from tfmlib.proof import Mismatch

X = rounded(4, 4)


@pytest.mark.parametrize("check, right, wrong", [
    (parts, [((1, 2), "a", "b"), ([1, 2], "a", "b")], [(X, "a", "b", "c", "d"), ((1,), "a", "b"), (None, "a")]),
    (whole, [(3, 3, "it")], [(3.0, 3, "it"), (True, 1, "it"), (4, 3, "it"), (torch.tensor(3), 3, "it")]),
    (number, [(3,), (0.5,), (torch.tensor(2.),)], [(True,), (torch.ones(1),), ("3",), (None,)]),
    (same_type, [(X, torch.float64)], [(X.float(), torch.float64), (0.5, torch.float64)]),
    (gives, [([1, 2], [1, 2]), ("a", "a"), ({1: 2}, {1: 2})], [([True], [1]), ([1.0], [1]), ((1, 2), [1, 2]), ({1: 3}, {1: 2}), (None, [])]),
    (refuses, [(lambda x: torch.zeros(2).view(3) if x else int("x"), 0)], [(lambda: 1,), (lambda: [][0],)]),
    (does_without, [(("softmax",), torch.exp, X)], [(("softmax",), lambda x: x.softmax(0), X), (("exp",), torch.exp, X)]),
])
def test_right_passes_and_wrong_does_not(check, right, wrong):
    for case in right: check(*case)
    for case in wrong:
        with pytest.raises(Mismatch): check(*case)


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
