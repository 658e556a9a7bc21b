"""The generic mutants: the table is of these pages, what it says is so, and a weak checker is
found out by the class that it is weak in."""
import json
import sys
from pathlib import Path

import pytest
import torch

READS = ("chapters/practice/", "tools/", "tfmlib/assets/mutants.json")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import kills  # noqa: E402
import mutants  # noqa: E402
import mutations  # noqa: E402

from tfmlib.workbench import Checker, expect, rounded  # noqa: E402

# the proof tries every eighth mutant; `python tools/mutants.py`, once a week, all
PART = 8
PAGES = kills.pages()
TABLE = mutants.known_before()
by_page = pytest.mark.parametrize("path", PAGES, ids=[p.stem for p in PAGES])


def kept(path: Path) -> dict: return TABLE[f"chapters/practice/{path.stem}"]


@by_page
def test_the_table_is_of_this_page(path):
    assert (kept(path)["of"]
            == mutants.fingerprint(path)), f"run `python tools/mutants.py {path.stem[:2]}`"
    assert ([e["name"] for e in kept(path)["exercises"]]
            == list(kills.named(mutants.nbformat.read(path, as_version=4))))


@by_page
def test_every_mutant_is_killed_equivalent_or_excused(path):
    assert not (said := mutants.faults(path, kept(path))), "\n".join(said)


@pytest.mark.whole                          # that the table is of the page as it is, is shown above
@by_page
def test_what_lives_is_in_the_table(path):
    said = {(e["name"], label) for e in kept(path)["exercises"]
            for v in ("equivalent", "excused", "survived") for label in e[v]}
    found = mutants.page(path, PART)
    assert sum(map(len, found.values())) > 20
    assert ({(e, label) for e, verdicts in found.items() for label, v in verdicts.items()
             if v != "killed"} - said == set())


def test_the_published_classes_are_those_that_are_tried():
    assert json.loads(mutants.FILE.read_text(encoding="utf-8"))["classes"] == mutations.KINDS
    assert ({kind for kind, n in mutants.counts(list(TABLE.values())).items() if n["tried"]}
            == set(mutations.KINDS))


# --- on an exercise of our own --------------------------------------------------------------------

SOURCE = '''
def weighted(x, w, n, names):
    if n < 1: raise ValueError("n")
    total = x * w.sum() + 1
    rows = total.flip(-1).cumsum(-1)[:, :n] if len(x) > 1 else total[:, :n]
    return rows / x.shape[-1], [*names]
'''


# the numbers that are drawn are neither large nor small
SAME = ("clamped: all arguments", "flushed: all arguments")


def weighted():
    """The solution, its names, and a checker that asks all that matters unless some of it is
    left out."""
    names = {"torch": torch}
    exec(SOURCE, names)
    return names["weighted"], names


def checker(without: str = "") -> Checker:
    "A checker for `weighted`; without «types», say, it asks 64 bits only."
    solution, _ = weighted()
    check = Checker("weighted")

    def case(rows, wide, n, seed, names=("a", "b"), dtype=torch.float64):
        return (rounded(rows, wide, seed=seed, dtype=dtype), rounded(3, seed=seed + 1, dtype=dtype),
                n, list(names))
    cases = [case(1, 4, 2, 1), case(2, 4, 3, 2), case(3, 5, 3, 3, ("c",)), case(3, 5, 3, 5, ()),
             case(9, 6, 5, 9, "abcdefgh"), case(4, 4, 1, 11, dtype=torch.float32),
             case(3, 5, 3, 7, "abc"), case(2, 20, 3, 13)]
    if without == "sizes":
        cases = [case(3, 5, 3, seed, dtype=dtype)
                 for seed, dtype in ((1, torch.float64), (3, torch.float64), (5, torch.float32))]
    if without in ("long", "alike"): del cases[{"long": 7, "alike": 6}[without]]
    if without == "rows": del cases[4]
    if without == "types": del cases[5]

    @check.property("the answer is right", *cases)
    def _(attempt, x, w, n, names):
        found, wanted = attempt(x, w, n, names), solution(x, w, n, names)
        expect(found[0], wanted[0], tol=1e-6 if x.dtype == torch.float32 or without
               == "bits" else 1e-12)
        assert (found[1] == wanted[1] and (without == "own" or found[1] is not names)
                and (without == "types" or found[0].dtype == x.dtype))
        if without != "gradients":
            assert all(g is not None for g in torch.autograd.grad(attempt(x.requires_grad_(),
                    w.requires_grad_(), n, names)[0].sum(), (x, w), allow_unused=True))
        assert (without == "gradients" or not attempt(x.detach(), w.detach(), n,
                names)[0].requires_grad)
        kept = found[0].detach().clone()
        found[0].detach().zero_()
        expect(attempt(x.detach(), w.detach(), n, names)[0], kept, tol=1e-6)
        if without != "strides": attempt(x.detach().mT.contiguous().mT, w.detach(), n, names)

    @check.property("an argument that is no number of columns is refused",
                    (rounded(2, 2), rounded(3), 0, []))
    def _(attempt, *case): assert raised(attempt, *case) is ValueError
    return check


def raised(attempt, *case):
    try: attempt(*case)
    except Exception as error: return type(error)


def verdicts(without: str, excuses: dict | None = None) -> dict[str, str]:
    solution, names = weighted()
    return mutants.judged(checker(without), "weighted", SOURCE, excuses or {}, names, same=SAME)


def test_a_strong_checker_leaves_nothing():
    found = verdicts("")
    assert [label for label, v in found.items() if v == "survived"] == []
    assert (len(found) > 50 and {label for label, v in found.items() if v == "equivalent"}
            == set(SAME)), found


@pytest.mark.parametrize(("without", "left"), [
    ("sizes", {"frozen size: x.shape[-1], as at first", "bound: n < 1 → n <= 1",
               "one in eight: part 0"}), ("rows", {"one in eight: part 0"}),
    ("types", {"one type: gives torch.float64", "one type: refuses torch.float32"}),
    ("bits", {"32 bits: the answer"}), ("own", {"input returned: the caller's own"}),
    ("gradients", {"detached: the answer", "detached: x", "detached: w"}),
    ("strides", {"contiguous: all arguments"}),
    ("long", {"longer than 16: any axis"}),
    ("alike", {"equal sizes: axis -1 of w and len(names)"})])
def test_a_weak_checker_is_found_out(without, left):
    found = {label for label, v in verdicts(without).items() if v == "survived"}
    assert left <= found, found


def test_excuses_are_of_pages_that_there_are():
    for file in (mutants.EXCUSES, mutants.EQUIVALENT):
        assert (set(mutants.yaml.safe_load(file.read_text(encoding="utf-8")))
                <= {p.stem for p in PAGES})


def test_an_excuse_excuses_its_mutants_only():
    said = {"detached": "the answer is shown only", "one in eight: part…": "short"}
    assert ([mutants.excuse(label, said) for label in ("detached: x", "one in eight: part 1",
            "one type: x")] == ["detached", "one in eight: part…", ""])
    assert (set(v for label, v in verdicts("gradients", said).items()
                if label.startswith("detached:")) == {"excused"})


def test_what_never_ends_is_stopped():
    source = "def count(n):\n    i = 0\n    while i < n:\n        i += 1\n    return i"
    names: dict = {}
    exec(source, names)
    check = Checker("count")

    @check.property("it counts", (3,), (5,), (0,))
    def _(attempt, n): assert attempt(n) == n
    assert mutants.judged(check, "count", source, {}, names)["dropped step: i += 1"] == "killed"
