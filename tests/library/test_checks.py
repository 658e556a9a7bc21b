"""What the checkers of the practice pages share: each finds what it is there for, and lets pass
what is right."""
import math
import re
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import mutants
import nbformat
import numpy as np
import pytest
import torch

from tfmlib.workbench import (
    Checker,
    Mismatch,
    Watch,
    all_right,
    asked_again,
    attention_masks,
    called,
    common_rules,
    does_without,
    doubles,
    expect_bool,
    expect_number,
    expect_whole,
    gives,
    own,
    parts,
    refuses,
    right_answer,
    rounded,
    same_shape,
    same_type,
    views,
    watched,
)

READS = ("chapters/practice/",)
ROOT = Path(__file__).resolve().parents[2]
X = rounded(4, 4)


@pytest.mark.parametrize("check, right, wrong", [
    (parts, [((1, 2), "a", "b"), ([1, 2], "a", "b")],
     [(X, "a", "b", "c", "d"), ((1,), "a", "b"), (None, "a")]),
    (expect_whole, [(3, 3, "it")],
     [(3.0, 3, "it"), (True, 1, "it"), (4, 3, "it"), (torch.tensor(3), 3, "it")]),
    (expect_number, [(3,), (0.5,), (torch.tensor(2.),), (Fraction(1, 3),), (np.float32(2),),
                     (np.int64(2),)],
     [(True,), (torch.ones(1),), ("3",), (None,), (np.True_,), (1j,)]),
    (expect_bool, [(True,), (np.False_,), (torch.tensor(True),)],
     [(1,), ("True",), (None,), (torch.tensor([True]),), (np.int64(1),)]),
    (right_answer, [(6.01, 6.0056, 0, 3), (6.0056, 6.0056, 0, 3), (Fraction(1, 3), 1 / 3),
                    (2.5, 2, .5), ("a", "a"), (["a"], ["a"])],
     [(6.0, 6.0056, 0, 3), (6.02, 6.0056, 0, 3), (2.6, 2, .5), (math.nan, 2, .5), ("b", "a"),
      ("a", ["a"]), (("a",), ["a"]), (True, 1)]),
    (all_right, [({"A": np.True_}, {"A": True})],
     [({"A": 1, "B": 2}, {"A": 1, "B": 3}), ({"A": 1, "B": False}, {"A": True, "B": True})]),
    (same_type, [(X, torch.float64)], [(X.float(), torch.float64), (0.5, torch.float64)]),
    (same_shape, [(X, X), (X.float(), X), (X.new_zeros(0, 2), X.new_ones(0, 2))],
     [(X[0], X), (X.T[:2], X), (0.5, X), (None, X), (X.tolist(), X)]),
    (gives, [([1, 2], [1, 2]), ("a", "a"), ({1: 2}, {1: 2}), (np.True_, True)],
     [([True], [1]), ([1.0], [1]), ((1, 2), [1, 2]), ({1: 3}, {1: 2}), (None, [])]),
    (own, [([1], [1])], [(X, 0, X)]),
    (refuses, [(lambda x: torch.zeros(2).view(3) if x else int("x"), 0)],
     [(lambda: 1,), (lambda: [][0],)]),
    (does_without, [(("softmax",), torch.exp, X)],
     [(("softmax",), lambda x: x.softmax(0), X), (("exp",), torch.exp, X)]),
])
def test_right_passes_and_wrong_does_not(check, right, wrong):
    for case in right: check(*case)
    for case in wrong:
        with pytest.raises(Mismatch): check(*case)


def scaled(x, w, keep): return (x * w.sum()).masked_fill(~keep, 0), x.sum(-1)


def forgetful(x, w, keep, known={}): return known.setdefault((x.shape, x.dtype), scaled(x, w, keep))      # noqa: B006


@pytest.mark.parametrize(("attempt", "failed"), [
    (scaled, None), (lambda x, w, keep: (scaled(x, w, keep)[0], (x @ torch.ones_like(x[0]))), None),
    (lambda x, w, keep: tuple(y.float() for y in scaled(x, w, keep)), "32 bits"),
    (lambda x, w, keep: tuple(y.double() for y in scaled(x, w, keep)), "32 bits"),
    (lambda x, w, keep: tuple(y.to(x.dtype) for y in scaled(x.float(), w.float(), keep)),
     "32 bits"),
    (lambda x, w, keep: scaled(x.view(-1).view_as(x), w, keep), "views"),
    (forgetful, "other numbers"),
    (lambda x, w, keep: scaled(x, w, torch.arange(24).view(8, 3) % 3 > 0), "32 bits"),
    (lambda x, w, keep: tuple(y.detach() for y in scaled(x, w, keep)), "gradients"),
    (lambda x, w, keep: scaled(x, w.detach(), keep), "gradients"),
    (lambda x, w, keep: (scaled(x, w, keep)[0], x.sum(-1).detach()), "gradients"),
    (lambda x, w, keep: tuple(y - 2 * z for y, z in zip(scaled(3 * x, w, keep),
            scaled(x.detach(), w, keep))), "gradients")])
def test_the_common_rules_find_what_they_are_there_for(attempt, failed):
    check = Checker("scaled")
    common_rules(check, scaled, lambda seed: (rounded(8, 3, seed=seed), rounded(2, seed=seed + 5),
                                              rounded(8, 3, seed=seed + 9) > 0), "it", "the sums")
    found = check.examine(attempt)
    assert (found.failed or "").startswith(failed or "") and found.passed == (failed is None), found


# --- an answer to one more question: rows of three axes, moved to where `at` says, and the list of
# their lengths

def moved(x, at): return [(x * 2)[at], (x.sum(-1) * at.sum()).square(), x[:1].clone()]


def written(x, at):
    x.mul_(2)
    x.div_(2)
    return moved(x, at)


def kept_list(x, at, known={}): return known.setdefault(str((x.tolist(), at.tolist(), x.dtype, x.requires_grad)), moved(x, at))  # noqa: B006, E501


@pytest.mark.parametrize(("attempt", "says"), [
    (moved, ""), (lambda x, at: moved(x.requires_grad_(), at),
                  "x.requires_grad is True afterwards; expected False"),
    (written, "it wrote into x for a while"),
    (lambda x, at: moved(x.view(-1, 4).view(x.shape), at), "every second element"),
    (lambda x, at: moved(x, at.view(-1).view(at.shape)), "every second element"),
    (lambda x, at: moved(x.as_strided(x.shape, x.stride(), 0), at), "every second element"),
    (lambda x, at: moved(x if x.stride(0) else x + 1, at), "expanded along its first axis"),
    (lambda x, at: moved(x if x.stride(0) >= x.stride(1) else x + 1, at),
     "transposed in axes 0 and 1"), (kept_list, "asked again after its answer was changed"),
    (lambda x, at: moved(x if x.dtype == torch.float64 else x.detach(), at),
     "no gradient flows back through it, in 32 bits;"),
    (lambda y, at: [(y * 2)[at], (y.detach().sum(-1) * at.sum()).square(), y[:1].clone()],
     "the gradient at y, times a random direction")])
def test_arguments_stay_and_views_do_and_gradients_flow_in_32_bits(attempt, says):
    check = Checker("moved")
    common_rules(check, moved,
                 lambda seed: (rounded(3, 2, 4, seed=seed),
                               torch.tensor([[0, 2], [1, 1]]).roll(seed)), "rows", "sums",
                 "the first")
    found = check.examine(attempt)
    assert found.passed == (not says) and says in found.why, found


def grown(x, w): return x.exp() * w


@pytest.mark.parametrize(("attempt", "says"), [
    (grown, ""), (lambda x, w: grown(x, w) if x.requires_grad else grown(x, w).detach(),
                  "no gradient reaches w, where it alone requires a gradient;"),
    (lambda x, w: grown(x, w.clamp(-1e5, 1e5)), "other numbers"),
    (lambda x, w: torch.where((w.abs() < 1e-6) & (w != 0), 0, grown(x, w)), "other numbers"),
    (lambda x, w: grown(x, w.clamp(-1e8, 1e8)), "w may be tiny or huge"),
    (lambda x, w: torch.where((w.abs() < 1e-6) & (w != 0), 0, grown(x, w)) if w.dtype
     != torch.float64 else grown(x, w), "w may be tiny or huge"),
    (lambda x, w: torch.cat([grown(x, w)[:64], x[64:]]), "some hundreds"),
    (lambda x, w: grown(x.exp().log(), w), "the gradient at x, times a random direction is nan"),
    (lambda x, w: grown(x.clamp(min=-9), w), "expected [0, 3.297]")])
def test_further_cases(attempt, says):
    check = Checker("grown")
    common_rules(check, grown, lambda seed: (rounded(5, seed=seed), rounded(5, seed=seed + 9)),
                 linear_in=("w",), large=(rounded(300), rounded(300, seed=3)),
                 also=((doubles(-math.inf, 0.5), doubles(1, 2)),))
    found = check.examine(attempt)
    assert (found.passed == (not says)
            and (not says or says in found.why or says in found.failed)), found


@pytest.mark.parametrize(("symmetric", "passes"),
                         [(("S",), (True, True, False)), ((), (True, False, False))])
def test_a_symmetric_argument_is_moved_symmetrically(symmetric, passes):
    check = Checker("solved")
    common_rules(check, lambda S, x: torch.linalg.solve(S, x),
                 lambda seed: ((a := rounded(3, 3, seed=seed)) @ a.T + torch.eye(3),
                               rounded(3, seed=seed + 1)), symmetric=symmetric)
    answers = lambda S, x: S.inverse() @ x, lambda S, x: x @ S.inverse(), lambda S, x: x @ S.detach().inverse()  # noqa: E501
    assert tuple(check.examine(f).passed for f in answers) == passes
    with pytest.raises(ValueError, match="no argument 'T'; expected one of S, x"):
        common_rules(check, lambda S, x: x, lambda seed: (X, X), symmetric=("T",))


@pytest.mark.parametrize(("right", "other", "passes"), [
    # e to the millionth is infinite: nobody is asked
    (lambda x: (-x).exp().reciprocal(), torch.exp, True),
    # and the reference that rounds has no digits left
    (lambda x: (x * x).sum().round(decimals=9), lambda x: (x * x).sum(), True),
    (lambda x: x.sum() - x[:1].sum(), lambda x: x[1:].sum(), True),
    (lambda x: 1 / (1 + x * x), lambda x: 1 / (1 + x.clamp(-9, 9) ** 2), False)])
def test_large_numbers_are_asked_where_the_reference_is_steady(right, other, passes):
    check = Checker("steady")
    common_rules(check, right, lambda seed: (rounded(9, seed=seed),), flows=False)
    assert check.examine(other).passed == passes


def test_the_second_case_is_shown_if_the_second_fails():
    check = Checker("twice")
    common_rules(check, lambda x: 2 * x, lambda seed: (torch.full((2,), seed + 3.).double(),))
    assert (check.examine(lambda x: 2 * x if x[0] == 3 else 0 * x).why
            == "it is [0, 0]; expected [8, 8] (with [4, 4])")
    assert check.examine(lambda x: 2 * x if x[0] == 3
                         else int("x")).why.endswith(
                             "literal for int() with base 10: 'x' (with [4, 4])")


def test_views_are_the_same_numbers():
    case = rounded(2, 3, 2), torch.arange(4), torch.tensor(True), "text", rounded(1, 2)
    kinds = list(views(case, lambda *case: case))
    assert len(kinds) == 1 + 2 + 1
    for given, _ in kinds[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(given, case) if isinstance(b, torch.Tensor))
    assert (not any(x.is_contiguous() or not x.storage_offset()
                    for x in (kinds[0][0][0], kinds[0][0][1])) and kinds[-1][0][0].stride(0) == 0)


def test_what_is_given_again_must_be_new():
    table = {2: [1, 2]}
    asked_again(lambda n: list(table[n]), 2)
    for attempt in (lambda n: table[n], lambda n: (1, table[n])):
        table[2] = [1, 2]
        with pytest.raises(Mismatch, match="once more"): asked_again(attempt, 2)
    zeros = torch.zeros(2)
    with pytest.raises(Mismatch, match="after the first one was changed, is"):
        asked_again(lambda n: zeros, 2)


def test_arguments_have_names():
    def right(q, k, parts): pass
    assert called((X, X, [X, X]), lambda a, b, c: 0, right) == ["a", "b", "c[0]", "c[1]"]
    assert called((X, 3, [X, X]), lambda *all: 0, right) == ["q", "parts[0]", "parts[1]"]
    assert called((X, X), lambda *all: 0, max) == ["argument 1", "argument 2"]


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (3, 3, 3, 3), (3, 3, 3, 4), (1, 2, 1, 3),
                                   (2, 2, 2, 2), (1, 1, 1, 1)])
def test_masks_broadcast_and_tell_axes_apart(sizes):
    masks = attention_masks(*sizes)
    assert ({m.ndim for m in masks} == {1, 2, 3, 4} and len({m.shape for m in masks}) == len(masks)
            and all(torch.broadcast_shapes(m.shape, sizes) == sizes for m in masks))
    assert all(m.dtype == torch.bool and m.any(-1).all() and (sizes[3] == 1 or not m.all(-1).any())
               for m in masks)
    if min(sizes) > 2:
        assert not any(torch.equal(m, m.transpose(i, j)) for m in masks for i in range(m.ndim)
                       for j in range(i) if m.shape[i] == m.shape[j] > 1)
        assert not any(torch.equal(m, m.roll(1, i)) for m in masks for i in range(m.ndim)
                       if m.shape[i] > 1)
    blind = attention_masks(*sizes, blind=True)
    assert (all(map(torch.equal, blind, masks)) and len(blind) == len(masks) + 3
            and all((~m.expand(sizes)).all(-1).any() for m in blind[len(masks):]))


def test_views_and_arguments_do_not_count():
    seen = watched(lambda x: x.view(16).view(2, 8).T, X)
    assert (seen.calls, seen.numbers, seen.largest, seen.most) == (0, 0, 0, 0)
    # in its argument's own memory
    assert watched(lambda x: x.mul_(2), X.clone()).largest == 0
    assert watched(lambda x: x.expand(100, 4, 4).contiguous(), X).largest == 1600


def test_what_is_let_go_is_not_alive():
    def one_after_another(x):
        for _ in range(10): x = x + 1
        return x
    assert watched(one_after_another, X).most <= 32 < watched(one_after_another, X).numbers
    with Watch() as watch: kept = [X + i for i in range(10)]
    assert watch.most == 160 and len(kept) == 10


# --- messages that show both numbers

@lru_cache
def solutions(number: str) -> tuple:
    "A practice page's module, and what its solutions know."
    path = next((ROOT / "chapters/practice").glob(f"{number}_*.ipynb"))
    module = mutants.module_of(path)
    return module, mutants.space(nbformat.read(path, as_version=4), module)


def off(value, by: float):
    "An answer whose floats are wrong by this part of themselves."
    if isinstance(value, list | tuple): return type(value)(off(x, by) for x in value)
    return value * (1 + by) if isinstance(value, float) else value


@pytest.mark.parametrize(("number", "exercise", "by"), [
    ("08", "rate", 3e-9), ("08", "ranked", 3e-9), ("15", "global_norm", 3e-9),
    ("16", "tokens_per_pass", 3e-9), ("16", "best_tree", 3e-9), ("20", "hold", 3e-9),
    ("21", "route", 3e-9), ("21", "router_gradient", 3e-8), ("21", "balancing_loss", 3e-9)])
def test_two_numbers_that_look_alike_are_said_to_differ(number, exercise, by):
    module, names = solutions(number)
    check, solution = getattr(module, f"check_{exercise}"), names[f"{exercise}_solution"]
    def told(part): return check.examine(lambda *case: off(solution(*case), part))
    near, far = told(by), told(.5)
    assert not near.passed and re.search(
        r"is (\S+); expected \1; the digits beyond these differ \(with"
        r"|is (\S+); expected (?!\2,)\S+, in 64 bits \(with"
        "|right in its first digits only", near.why), near
    assert re.search(r"is \S+; expected \S+ \(with", far.why), far


def test_a_hyphen_is_as_good_as_a_dash():
    "A table of chapter 11 prints dashes, which few keyboards have."
    module, names = solutions("11")
    def typed(question):
        given = names["t5_table_solution"](question)
        return tuple(x.replace("–", "-") for x in given) if isinstance(given, tuple) else given
    assert "–" in str(names["t5_table_solution"]("same budget"))
    assert module.check_t5_table.examine(typed).passed
