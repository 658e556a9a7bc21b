"""The tools that keep the pages honest, tried on what could fool them."""
import json
import math

import numpy as np
import pytest
import torch

from tfmlib import proof
from tfmlib.proof import (
    Checker,
    ClaimError,
    Mismatch,
    claim,
    evidence,
    expect,
    glue,
    parse_record,
    refusal,
    spread,
    timed,
    verdict_of,
)


@pytest.mark.parametrize("yes, no, instead, verdict", [
    ({"a": True}, {}, None, "holds"), ({"a": True}, {"b": True}, None, "holds under a condition"),
    ({}, {"b": True}, True, "imprecise"), ({}, {"b": True}, None, "wrong")])
def test_verdicts(yes, no, instead, verdict):
    assert verdict_of(yes, no, instead) == verdict


@pytest.mark.parametrize("yes, no", [({"a": False}, {}), ({}, {"a": False}), ({"a": True, "b": False}, {}), ({"a": True}, {"b": False}), ({}, {})])
def test_evidence_that_failed_is_no_verdict(yes, no):
    with pytest.raises(ClaimError): verdict_of(yes, no)


@pytest.mark.parametrize("value", [0.3, 1, 0, None, "yes", torch.tensor([True]), np.array([True, False]), torch.tensor(1)])
def test_only_booleans_are_evidence(value):
    with pytest.raises(TypeError, match="expected a boolean"): evidence([value], "true_when")


def test_booleans_of_any_library_are_evidence():
    assert evidence({"a": True, "b": np.bool_(True), "c": torch.tensor(False)}, "x") == {"a": True, "b": True, "c": False}


def test_claim_refuses_another_verdict_and_an_unknown_id():
    with pytest.raises(ClaimError, match="the cell finds «holds», the ledger says"): claim("decimal-sum", true_when=[True])
    with pytest.raises(ClaimError, match="not in the ledger"): claim("no-such-claim", true_when=[True])


def test_claim_box_escapes_and_says_the_same_in_text_and_html():
    made = claim("decimal-sum", true_when={"a < b": True}, false_when=[True], measured="`x` & y")
    bundle = made._repr_mimebundle_()
    assert "a &lt; b" in bundle["text/html"] and "<code>x</code> &amp; y" in bundle["text/html"]
    assert "for: a < b" in bundle["text/plain"] and bundle["application/vnd.tfmlib.claim+json"]["false_when"] == {"false_when[0]": True}
    json.dumps(bundle)


def test_refusal_fails_when_nothing_is_refused():
    with pytest.raises(AssertionError, match="accepted what it should refuse"): refusal(len, [])
    assert refusal(int, "x").startswith("ValueError: ")


def test_glue_takes_text_alone():
    with pytest.raises(TypeError, match="^text: 3"): glue("n", 3)


@pytest.mark.parametrize("got, wanted", [
    (math.nan, 1.0), (1.0, math.nan), (torch.tensor([1., math.nan]), torch.ones(2)), (torch.ones(2), torch.ones(1, 2)), (torch.ones(1), 1.0),
    (None, 1.0), ("1", 1.0), ([1.0], 1.0), (torch.tensor(1 + 2j), torch.tensor(1.)), (math.inf, -math.inf), (1 + 1e-5, 1.0)])
def test_expect_rejects(got, wanted):
    with pytest.raises(Mismatch): expect(got, wanted)


@pytest.mark.parametrize("got, wanted", [(math.nan, math.nan), (torch.tensor([1, 2]), [1., 2.]), (1 + 1e-8, 1.0), (np.float32(1), 1), (-math.inf, -math.inf)])
def test_expect_accepts(got, wanted):
    expect(got, wanted)


class Odd:
    "An attempt that makes trouble when it is looked at."
    def __getattr__(self, name): raise RuntimeError(name)
    def __call__(self, x): raise Worse()


class Worse(Exception):
    def __str__(self): raise KeyError("no words")


def leave(x): raise SystemExit(0)
def deep(x): return deep(x)


checker = Checker("double")


@checker.property("it doubles", (np.array([1., 2.]),))
def _(attempt, x): expect(attempt(x), np.array([2., 4.]))


@pytest.mark.parametrize("attempt", [None, 3, dict, pytest.param(Odd(), id="odd"), leave, deep, lambda: 1, lambda x: None, lambda x: "22", lambda x: x])
def test_a_checker_never_raises(attempt):
    result = checker(attempt)
    assert not result.passed and result.failed == "it doubles" and "\n" not in result.why


def test_a_checker_sees_an_argument_changed_and_says_that_first():
    def both(x): x *= 3; return x
    assert checker(lambda x: 2 * x).passed
    assert "changed in place" in checker(both).why


def test_a_property_needs_cases():
    with pytest.raises(ValueError, match="^cases: "): Checker("x").property("y")


def test_differences_that_four_digits_hide_are_shown():
    with pytest.raises(Mismatch, match="off by up to 2.0e-06"): expect(torch.tensor([0.500002], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))


def test_spread_and_timed():
    assert spread(range(11)) == {"median": 5.0, "q10": 1.0, "q90": 9.0, "n": 11}
    for bad in ([], [math.nan]):
        with pytest.raises(ValueError, match="^values: "): spread(bad)
    ran = []
    took = timed({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 3)
    assert "".join(ran) == "abababab" and took["a"]["n"] == 3
    with pytest.raises(ValueError, match="^repeats: 0"): timed({}, 0)


whole = {"name": "n", "command": "c", "device": "d", "driver": "1", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01", "seed": 0,
         "rows": [{"N": 1, "ms": spread([1.0])}]}


@pytest.mark.parametrize("field", proof.RECORD_FIELDS)
def test_a_record_without_its_circumstances_is_refused(field):
    parse_record(json.dumps(whole))
    with pytest.raises(ValueError, match=f"lacks {field}"): parse_record(json.dumps({k: v for k, v in whole.items() if k != field}))


@pytest.mark.parametrize("row", [{"N": 1}, {"N": 1, "ms": 3.0}, {"N": 1, "ms": {"median": 1}}])
def test_a_record_without_spread_is_refused(row):
    with pytest.raises(ValueError, match="row 0"): parse_record(json.dumps(whole | {"rows": [row]}))


def test_circumstances_fill_a_record():
    made = proof.circumstances("abc")
    assert set(made) == {"device", "driver", "versions", "commit", "date"} and all(made.values())


@pytest.mark.parametrize("yes, no, instead", [({}, {"b": True}, False), ({"a": True}, {}, True), ({"a": True}, {"b": True}, True)])
def test_an_amended_sentence_must_be_shown_true_and_be_needed(yes, no, instead):
    with pytest.raises(ClaimError, match="^instead: "): verdict_of(yes, no, instead)


@pytest.mark.parametrize("case", [[3., 1.], {"x": [3., 1.]}, (torch.tensor([3., 1.]),)])
def test_arguments_inside_lists_and_mappings_are_watched(case):
    watcher = Checker("keep")

    @watcher.property("it returns nothing", (case,))
    def _(attempt, value): attempt(value)

    def write(value):
        inner = value["x"] if isinstance(value, dict) else value
        (inner[0].zero_() if isinstance(inner, tuple) else inner.sort())
    assert watcher(lambda value: None).passed and "changed in place" in watcher(write).why


@pytest.mark.parametrize("row", [{"N": 1, "ms": spread([1.0]), "gb": 0.5}, {"ms": {"median": None, "q10": 1, "q90": 1, "n": 1}},
                                 {"ms": {"median": 1, "q10": 1, "q90": 1, "n": 0}}, {"ms": {"median": math.inf, "q10": 1, "q90": 1, "n": 2}}])
def test_a_quantity_with_an_empty_spread_is_refused(row):
    with pytest.raises(ValueError, match="row 0"): parse_record(json.dumps(whole | {"rows": [row]}))


def test_a_record_that_is_missing_is_named_and_one_that_is_broken_is_an_error(monkeypatch):
    missing = proof.recorded("nobody", lambda record: record.source)
    assert "nobody" in repr(missing) and "make bench-gpu" in missing._repr_html_()
    assert proof.recorded("attention_cost", lambda record: record.name) == "attention_cost"
    monkeypatch.setattr(proof, "load_record", lambda name: proof.parse_record("{}"))
    with pytest.raises(ValueError, match="lacks"): proof.recorded("attention_cost", lambda record: record.name)


@pytest.mark.parametrize("got, wanted, tol", [(1e99, 1e98, 1e-6), (math.inf, 1e98, 1e-6), (1 + 1e-9, 1., 1e-12), ([1., 1 + 1e-9], [1., 1.], 1e-12)])
def test_pythons_numbers_are_compared_in_64_bits(got, wanted, tol):
    with pytest.raises(Mismatch): expect(np.array(got) if isinstance(got, list) else got, wanted, tol)
    expect(wanted if not isinstance(wanted, list) else np.array(wanted), wanted, tol)
