"""Claims: all that the book has undertaken is taken up, each entry is settled once, by evidence
that was computed and would be missed."""
import ast
from collections import Counter

import ledger_rules
import pytest
from conftest import ROOT
from ledger import settled
from pages import notebooks

STORED = [(page, left) for ways in settled(notebooks(ROOT)).values() for page, left in ways]


@pytest.mark.parametrize("rule", ledger_rules.RULES)
def test_rule(rule):
    assert not (faults := ledger_rules.RULES[rule](ROOT)), "\n" + "\n".join(faults)


def test_map_is_whole():
    ids = ledger_rules.undertaken(ROOT)
    counts = Counter(chapter for chapter, _ in ids.values())
    assert len(ids) == 340 and counts["04"] == 58
    assert set(counts) <= {f"{n:02}" for n in range(1, 23)}


def evidence(left: dict) -> dict:
    return {"true_when": left["true_when"], "false_when": left["false_when"],
            "instead": left["instead"]}


def flips(left: dict) -> list[tuple[str, dict]]:
    "The evidence of a stored claim with one boolean turned round, each in turn."
    made = []
    for kind in ("true_when", "false_when"):
        for label, value in left[kind].items():
            made.append((f"{kind} «{label}»",
                         evidence(left) | {kind: left[kind] | {label: not value}}))
    return (made + ([("instead", evidence(left) | {"instead": not left["instead"]})]
                    if left["instead"] is not None else []))


@pytest.mark.parametrize("left", [left for _, left in STORED], ids=lambda left: left["id"])
def test_stored_evidence_gives_the_recorded_verdict(left):
    from tfmlib.workbench import claim, ledger
    assert (claim(left["id"], **evidence(left)).verdict == left["verdict"]
            == ledger()[left["id"]]["verdict"])


@pytest.mark.parametrize("left", [left for _, left in STORED], ids=lambda left: left["id"])
def test_any_flipped_boolean_is_noticed(left):
    from tfmlib.workbench import ClaimError, claim
    for what, flipped in flips(left):
        try: found = claim(left["id"], **flipped).verdict
        except ClaimError: continue
        pytest.fail(f"claim {left['id']}: with {what} turned round it still says «{found}»")


def test_flips_turns_each_boolean_once():
    left = {"id": "x", "true_when": {"a": True}, "false_when": {"b": True, "c": True},
            "instead": True}
    assert ([what for what, _ in flips(left)]
            == ["true_when «a»", "false_when «b»", "false_when «c»", "instead"])
    assert [f["true_when"]["a"] for _, f in flips(left)] == [False, True, True, True]


@pytest.mark.parametrize("code", [
    'claim("x", true_when=[True])', 'claim("x", [1 + 2 == 3])',
    'claim("x", true_when={"a": 2 > 1, "b": gap < 1})',
    'claim("x", true_when=[gap < 1 or True])', 'claim("x", true_when=[gap == gap])',
    'claim("x", true_when=[bool(1)])',
    'claim("x", true_when=[not False])', 'ok = True\nclaim("x", true_when=[ok])',
    'claim(name, true_when=[gap < 1])',
    'claim("x", true_when=found)', 'claim("x", **found)', 'claim("x", true_when={**found})',
    'claim("x", false_when=[gap > 1], instead=True)',
    'proof.claim("x", true_when=[1 < 2])', 'claim(id="x", true_when=[True for _ in range(3)])'])
def test_typed_evidence_is_seen(code):
    assert ledger_rules.typed_in([ast.parse(code)])


@pytest.mark.parametrize("code", [
    'claim("x", true_when=[gap < 1], instead=None)',
    'claim("x", true_when={"a": bool((w > 0).all()), f"{n}": len(w) == 3})',
    'gap = 0.5\nclaim("x", false_when=[gap > 0.1], instead=gap < 1, measured="0.5")',
    'claim("x", true_when=[g < 1 for g in gaps])'])
def test_computed_evidence_passes(code):
    assert not ledger_rules.typed_in([ast.parse(code)])
