"""The exercises: stubs are red, solutions green, wrong answers rejected; and the tools for
teachers, on a small practice page."""
import ast
import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from conftest import sweep

READS = ("",)
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tools", "extensions", "tests/fixtures")]
import exercises  # noqa: E402
import kills  # noqa: E402
import practice  # noqa: E402
import submissions  # noqa: E402
from myst import Book, Unresolved  # noqa: E402
from pages import toc_pages  # noqa: E402

import gallery  # noqa: E402
from tfmlib.workbench import Checker  # noqa: E402

PAGES = kills.pages()
MODULES = [submissions.importlib.import_module(name) for name in submissions.practice_modules()]
CHECKERS = [pytest.param(c, id=f"{m.__name__.split('.')[-1]}-{n}") for m in MODULES
            for n, c in submissions.checkers(m).items()]
by_page = pytest.mark.parametrize("path", PAGES, ids=[p.stem for p in PAGES])


# --- the practice pages ---------------------------------------------------------------------------

def test_every_practice_page_has_a_module_and_a_module_a_page():
    names = {re.search(r"#\| default_exp ([\w.]+)", path.read_text())[1] for path in PAGES}
    assert {m.__name__ for m in MODULES} == {f"tfmlib.{name}" for name in names}


def test_the_published_table_is_what_the_checkers_say_now(verdicts):
    assert (kills.FILE.read_text(encoding="utf-8")
            == kills.text(list(verdicts.values()))), "run `python tools/kills.py`"


@by_page
def test_stubs_red_solutions_green_wrong_answers_rejected(path, verdicts):
    assert kills.faults(verdicts[path]) == []
    n = kills.counts(verdicts[path])
    assert n["red stubs"] == n["green solutions"] == n["exercises"] > 0
    assert n["rejected"] == n["mutants"] >= kills.FEWEST * n["exercises"]


def test_pages_state_the_common_rules_that_they_ask_for():
    said = {path.stem: re.search(r"\*\*What holds for every answer\.\*\*.*",
                                 nbformat.read(path, as_version=4).cells[0].source)
            for path in PAGES}
    asked = {path.stem for path in PAGES if "common_rules(" in path.read_text(encoding="utf-8")}
    assert ({name for name, found in said.items() if found} == asked
            and len({found[0] for found in said.values() if found}) == 1)


# what checkers may use
SHARED = {"tfmlib.workbench",
          *(f"tfmlib.workbench.{m}" for m in ("validation", "claims", "checkers", "checks",
                                              "gradients", "properties"))}
BLOCKED = f"SHARED = {SHARED}" + """
import importlib, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tfmlib.") and name not in SHARED and name.split(".")[1] != "practice": raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
for name in ("tfmlib.attention", "tfmlib.workbench.figures"):
    try: importlib.import_module(name)
    except ImportError: continue
    raise SystemExit(name + " can be imported")

import submissions
for name in submissions.practice_modules(): importlib.import_module(name)
print(json.dumps([n for n in sys.modules if n.startswith("tfmlib.") and n not in SHARED and n.split(".")[1] != "practice"]))
"""  # noqa: E501


@pytest.fixture(scope="session")
def verdicts() -> dict[Path, dict]:
    """What the checkers of each practice page say, as its stored outputs have it; the notebook
    stages run them again."""
    return {path: kills.recorded(path) for path in PAGES}


def test_verdicts_are_compared_when_the_notebooks_run():
    """Else the stored ones would say nothing: each cell that calls a checker has stored what it
    said, and its output is compared."""
    for path in PAGES:
        for c in nbformat.read(path, as_version=4).cells:
            if (c.cell_type != "code" or not kills.kind_of(c)
                or not re.search(r"^check_\w+\(", c.source, re.M)):
                continue
            assert "nbval-ignore-output" not in c.metadata.get("tags", []), (path.stem, c.id)
            assert (len([o for o in c.outputs if kills.VERDICT in o.get("data", {})])
                    == len(re.findall(r"^check_\w+\(", c.source, re.M))), (path.stem, c.id)


@pytest.mark.whole
def test_checkers_do_without_the_library_that_holds_the_answers(tmp_path):
    """Their modules are imported where it cannot be; and none of their functions, and no cell of
    a practice page, imports from it."""
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path),
           "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=tmp_path, env=env,
                          capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout) == [], done.stderr
    for path in PAGES:
        module = ROOT / "tfmlib/practice" / f"{path.stem[3:]}.py"
        code = [module.read_text(encoding="utf-8"),
                *(kills.code_of(c) for c in nbformat.read(path, as_version=4).cells
                  if c.cell_type == "code")]
        assert imported("\n".join(code)) <= {*SHARED, f"tfmlib.practice.{path.stem[3:]}"}, path.stem
    assert (imported("from tfmlib import attention") == {"tfmlib.attention"}
            and imported("from ..attention import attention") == {"tfmlib.attention"})
    assert imported("importlib.import_module('tfmlib.attention')") == {"tfmlib.attention"}


def imported(code: str) -> set[str]:
    "The modules of the library that code imports, also inside functions."
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import): found |= {a.name for a in node.names}
        if isinstance(node, ast.ImportFrom):
            name = ({0: node.module, 1: f"tfmlib.practice.{node.module}",
                     2: f"tfmlib.{node.module}"}[node.level] or "tfmlib")
            found |= ({f"tfmlib.{a.name}" for a in node.names} if name in ("tfmlib", "tfmlib.None")
                      else {name})
        # for importlib
        if isinstance(node, ast.Constant) and re.fullmatch(r"tfmlib(\.\w+)*", str(node.value)):
            found.add(node.value)
    return {name for name in found if name.split(".")[0] == "tfmlib"}


@pytest.fixture(scope="module")
def exported() -> set[str]:
    "Every name that a module of a practice page gives to something."
    text = "\n".join(p.read_text() for p in (ROOT / "tfmlib/practice").glob("*.py"))
    return {name for names in re.findall(r"\b(?:def|class) +(\w+)|^(\w+) *=", text, re.M)
            for name in names if name}


@by_page
def test_answers_are_not_exported(path, verdicts, exported):
    answers = {r["name"] for e in verdicts[path]["exercises"] for r in e["solutions"]
               + e["mutants"]}
    assert len(exported) > 100 and answers and not answers & exported


class Silent:
    "An object that is no function."


def endless(*args, **kwargs): return endless(*args, **kwargs)


STRANGE = [None, 7, "softmax", Silent, Silent(), torch.nn.Linear(2, 2), lambda: None,
           lambda *a, **k: None, lambda *a, **k: "a text", lambda *a, **k: math.nan,
           lambda *a, **k: a, lambda *a, **k: Silent(), lambda *a, **k: {},
           lambda *a, **k: torch.zeros(0), lambda *a, **k: (None, None),
           lambda *a, **k: [[1], [2, 3]], endless, lambda *a, **k: {}["x"], lambda *a,
           **k: sys.exit(3)]


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_never_raises(checker):
    for attempt in STRANGE if os.environ.get("TFM_WHOLE") else STRANGE[::5]:
        result = checker.examine(attempt)
        assert not result.passed and result.failed and result.why, attempt
        assert "\n" not in result.why and len(result.why) < 2000, result.why


# --- the verification itself ----------------------------------------------------------------------

def cell(nb, cell_id): return next(c for c in nb.cells if c.id == cell_id)


def without(nb, *ids): nb.cells = [c for c in nb.cells if c.id not in ids]


def put(id: str, source: str): return lambda nb: cell(nb, id).update(source=source)


def add(id: str, code: str):
    return lambda nb: cell(nb, id).update(source=cell(nb, id).source + code)


# a defect -> how it is planted in the practice page, and what is said of it
SPOILT = {
    "weak checker": (add("double-checker", "\n\n"
                         "check_double.properties[:] = [('all', lambda f: 0, ((),))]"),
                     "accepts the wrong answer squares"),
    "weak property": (lambda nb: put("largest-checker",
                                     cell(nb, "largest-checker").source.replace("[-2., -1., -3.]",
                                             "[0., 4.]"))(nb),
                      "accepts the wrong answer takes_the_last"),
    "wrong solution": (put("double-solution", "def double_solution(values): return 3 * values"),
                       "rejects the solution double_solution"),
    "solution that raises": (put("double-solution", "def double_solution(values) return"),
                             "cell double-solution raises SyntaxError"),
    "answer in the stub": (put("double-stub", "def double(values): return 2 * values"),
                           "accepts the stub double"),
    "four mutants": (lambda nb: without(nb, "double-squares"), "has 4 wrong answers"),
    "no stub": (lambda nb: without(nb, "double-stub"), "has no cell tagged stub"),
    "no check": (lambda nb: without(nb, "double-check"), "has no cell tagged check"),
    "no solution": (lambda nb: without(nb, "double-solution", "double-solution-check"),
                    "has no cell tagged solution"),
    "unchecked solution": (lambda nb: without(nb, "double-solution-check"),
                           "no solution cell calls its checker"),
    "unchecked mutant": (put("double-halves", "def halves(values): return values / 2"),
                         "the mutant cell double-halves calls no checker"),
    "a mutant twice": (lambda nb: put("double-halves", cell(nb, "double-squares").source)(nb),
                       "two wrong answers are called squares"),
    "another's checker": (add("largest-by-size", "\n\ncheck_double(by_size)"),
                          "one of its cells is checked by the checker of double"),
    "no exercises": (lambda nb: without(nb, *(c.id for c in nb.cells if kills.exercise_of(c))),
                     "no cell tagged exercise-NAME"),
}


@pytest.fixture
def lists(tmp_path) -> Path:
    return practice.write(practice.notebook(), tmp_path / "99_lists.ipynb")


def test_the_small_page_has_no_faults(lists):
    page = kills.verdicts(lists)
    assert kills.faults(page) == []
    assert (kills.counts(page) == {"exercises": 2, "red stubs": 2, "green solutions": 2,
                                   "mutants": 10, "rejected": 10, "told apart": 10})
    assert ([e["title"] for e in page["exercises"]]
            == ["The exercise double", "The exercise largest"])


@pytest.mark.parametrize("defect", SPOILT)
def test_a_planted_defect_is_reported(defect, tmp_path):
    nb, (plant, said) = practice.notebook(), SPOILT[defect]
    plant(nb)
    faults = kills.faults(kills.verdicts(practice.write(nb, tmp_path / "99_lists.ipynb")))
    assert any(said in fault for fault in faults), faults


def test_a_stale_table_is_told_from_a_fresh_one(lists):
    nb, before, call = practice.notebook(), kills.text([kills.verdicts(lists)]), Checker.__call__
    assert before == kills.text(
        [kills.verdicts(lists)]) and Checker.__call__ is call, "overhearing ends with the run"
    cell(nb, "double-halves").source = cell(nb, "double-halves").source.replace("/ 2", "/ 3")
    assert before != kills.text([kills.verdicts(practice.write(nb, lists))])


# --- handing out ----------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def the_book() -> Book:
    return Book(ROOT)


def shown(nb) -> str: return "\n".join(c.source for c in nb.cells)


@pytest.mark.parametrize("with_hints", [False, True])
def test_a_handout_holds_no_answers(with_hints, lists, the_book):
    nb = exercises.handout(lists, the_book, "1", with_hints)
    nbformat.validate(nb)
    text = shown(nb)
    for name, answer in practice.SOLUTIONS.items():
        assert (f"Write `{name}(values)`" in text and "NotImplementedError" in text
                and f"check_{name}({name})" in text)
        assert answer not in text and "secret" not in text and f"{name}_solution" not in text
        assert ((f"A nudge for {name}." in text) == (f"Another nudge for {name}." in text)
                == with_hints)
    assert not any(mutant in text for mutants in practice.MUTANTS.values() for mutant in mutants)
    assert "Wrong answers" not in text and "What to take away" in text
    assert "#|" not in text and "{doc}" not in text and ":::" not in text
    assert not any(c.outputs for c in nb.cells if c.cell_type == "code")


def test_answers_gathered_in_a_section_of_their_own_go_too(lists, the_book):
    nb = practice.notebook()
    answers = [c for c in nb.cells if kills.kind_of(c) in exercises.ANSWERS]
    rest = [c for c in nb.cells if c not in answers and c.id not in ("double-lead", "double-wrong",
            "largest-lead", "largest-wrong")]
    gallery_head = nbformat.v4.new_markdown_cell("## All answers\n\nHere they are.", id="gallery")
    nb.cells = [*rest[:-1], gallery_head, *answers, rest[-1]]
    text = shown(exercises.handout(practice.write(nb, lists), the_book, "1"))
    assert ("All answers" not in text and "What to take away" in text and "_solution" not in text
            and "Write `largest(values)`" in text)


def test_a_handout_says_where_the_hints_are_that_it_leaves_out(lists, the_book):
    nb = practice.notebook()
    nb.cells[0].source += "\n\nEach exercise has hints, a solution, and a gallery of wrong answers."
    assert "\n\nIn the book, each exercise has hints" in shown(
        exercises.handout(practice.write(nb, lists), the_book, "1"))


def test_a_handout_that_names_an_answer_is_refused(lists, the_book):
    nb = practice.notebook()
    cell(nb, "double-about").source += "\n\nDo it as `double_solution` does."
    with pytest.raises(Unresolved, match="the answer double_solution is still named"):
        exercises.handout(practice.write(nb, lists), the_book, "1")


@pytest.mark.parametrize("path", sweep(PAGES, *PAGES[3::9]), ids=[p.stem for p in PAGES])
def test_the_handouts_of_the_book_keep_every_exercise_and_no_answer(path, the_book, verdicts):
    whole, text = nbformat.read(path, as_version=4), {}
    for with_hints in (False, True):
        text[with_hints] = shown(exercises.handout(path, the_book, "1", with_hints))
    for exercise in verdicts[path]["exercises"]:
        assert all(f"def {exercise['name']}(" in t
                   and f"check_{exercise['name']}({exercise['name']})" in t for t in text.values())
    answers = {line.strip() for c in whole.cells if kills.kind_of(c) in exercises.ANSWERS
               for line in c.source.split("\n")}
    public = "\n".join(c.source for c in whole.cells if kills.kind_of(c) not in exercises.ANSWERS)
    told = [line for line in answers if len(line) > 12 and line in text[False]
            and line not in public]
    assert told == []
    assert "<summary>Hint" not in text[False] and "<summary>Hint 1</summary>" in text[True]


def test_the_tool_writes_the_handouts(tmp_path):
    written = exercises.write(PAGES[:2], tmp_path / "out")
    assert ([p.name for p in written] == [p.name for p in PAGES[:2]]
            and all(p.is_file() for p in written))


# --- handing in -----------------------------------------------------------------------------------

GOOD = {"double": "def double(values):\n    return 2 * values",
        "largest": "def largest(values):\n    return values.max()"}
BAD = "def double(values):\n    return values\n\ndef largest(values):\n    return values[0]"
PATCHES = {
    "a changed checker": "import tfmlib.workbench.checkers as p\np.Checker.examine = "
                         "p.Checker.__call__ = lambda self, a: p.Result(self.exercise, 'x', True, 1)",  # noqa: E501
    "a changed expect": "import tfmlib.workbench.checkers as p\np.expect = lambda *a, **k: "
                        "None\nimport sys\nsys.modules['practice_fixture'] = None",
    "emptied properties": "import practice_fixture as "
                          "f\nf.check_double.properties.clear()\nf.check_largest.properties.clear()",
    "changed code": "import tfmlib.workbench.checkers as p\np.expect.__code__ = (lambda *a, **k: "
                    "None).__code__\np.Checker.examine.__code__ = (lambda self, a: None).__code__",
}
# handed in in the ordinary proof
ORDINARY = ("good", "half", "no function", "no end", "syntax", "no notebook", "a changed checker")


# a submission -> the sources of its cells
HANDED_IN = {
    "good": dict(**GOOD),
    "half": dict(double=GOOD["double"], largest="def largest(values):\n    return values[-1]"),
    "no end": dict(double="def double(values):\n    while True: pass", largest=GOOD["largest"]),
    "slow by the clock": dict(
        double="import time\ndef double(values):\n    time.sleep(3)\n    return 2 * values",
        largest=GOOD["largest"]),
    "no end in a cell": dict(double="while True: pass", largest=GOOD["largest"]),
    "syntax": dict(double="def double(values) return 2 * values", largest=GOOD["largest"]),
    "deleted": dict(double="", imports="", largest="import torch\n" + GOOD["largest"]),
    "all deleted": dict(double="", largest=""),
    "leaves": dict(double="import sys\n" + GOOD["double"] + "\nsys.exit('done')",
                   largest=GOOD["largest"]),
    "leaves when called": dict(double="import sys\ndef double(values): sys.exit()",
                               largest=GOOD["largest"]),
    "magics": dict(double="%matplotlib inline\n!pip list\n" + GOOD["double"],
                   largest="import torch\ntorch.set_default_dtype(torch.float64)\ndisplay(1)\n"
                   + GOOD["largest"]),
    "no function": dict(double="double = None"),
    "ends": dict(double=GOOD["double"] + "\nimport os\nos._exit(0)"),
    "borrowed": dict(double="from tfmlib.attention import attention as double",
                     largest="import tfmlib.workbench.data\n" + GOOD["largest"]),
    "stubborn": dict(double=GOOD["double"], largest="import signal\ndef largest(values):\n    "
                                                    "signal.signal(signal.SIGPROF, "
                                                    "signal.SIG_IGN)\n    while True: pass"),
}


def handed_in(folder: Path, name: str, **sources: str) -> None:
    """A submission: the handout with these sources in place of the stubs' (or of other cells',
    by id)."""
    nb = practice.notebook()
    nb.cells = [c for c in nb.cells if kills.kind_of(c) not in exercises.ANSWERS]
    for key, source in sources.items():
        target = cell(nb, key if key in {c.id for c in nb.cells}
                      else f"{key.replace('_', '-')}-stub")
        if source: target.source = source
        else: nb.cells.remove(target)
    practice.write(nb, folder / f"{name}.ipynb")


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict[str, dict[str, dict]]:
    """The CSV that the command writes for a class of good and broken submissions, and of some
    that change the checkers: file -> exercise -> row."""
    folder, modules = tmp_path_factory.mktemp("class"), tmp_path_factory.mktemp("modules")
    (modules / f"{practice.MODULE}.py").write_text(practice.module_source())
    for name, cells in (HANDED_IN | {name: dict(double=f"{BAD}\n\n{patch}", largest="pass")
                                     for name, patch in PATCHES.items()}).items():
        if os.environ.get("TFM_WHOLE") or name in ORDINARY: handed_in(folder, name, **cells)
    (folder / "no notebook.ipynb").write_text("once there was a notebook")
    env = {"PYTHONPATH": str(modules), "PATH": "/usr/bin:/bin", "HOME": str(modules)}
    command = [sys.executable, ROOT / "tools/submissions.py", folder, "--csv", modules / "out.csv",
               "--timeout", "2", "--jobs", "2", "--checkers", practice.MODULE]
    done = subprocess.run(command, cwd=modules, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows: dict[str, dict[str, dict]] = {"printed": done.stdout}
    for row in csv.DictReader((modules / "out.csv").open(encoding="utf-8", newline="")):
        rows.setdefault(row["file"].removesuffix(".ipynb"), {})[row["exercise"]] = row
    return rows


def passed(rows: dict[str, dict]) -> list[str]:
    return [name for name, row in rows.items() if row["passed"] == "yes"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exercise", "why"),
                         [case if case[0] in ORDINARY
                          else pytest.param(*case, marks=pytest.mark.whole) for case in [
    ("no function", "largest", "it raised NotImplementedError: about 1 line"),
                              ("half", "largest", "it is -3; expected -1 (with [-2, -1, -3])"),
    ("no end", "double", "it raised Overtime: no end after 2 s (with [1])"),
                              ("no end in a cell", "double", "no cell defines it"),
    ("syntax", "double", "code cell 4 stops with SyntaxError"),
                              ("deleted", "double", "no cell defines it"),
                              ("leaves when called", "double", "SystemExit"),
    ("borrowed", "double", "holds the book's own answers"),
    ("no function", "double", "it raised TypeError"), ("no notebook", "", "not a notebook"),
    ("all deleted", "", "it defines no exercise of any practice page"),
                              ("ends", "double", "the notebook ended the program"),
    ("stubborn", "largest", "was stopped")]])
def test_a_failed_exercise_says_why(name, exercise, why, graded):
    row = graded[name][exercise]
    assert row["passed"] == "no" and why in row["why"], row
    assert f"{row['file']}: {exercise}: " in graded["printed"]


@pytest.mark.slow
@pytest.mark.whole
def test_what_stands_beside_a_failure_still_counts(graded):
    assert ([n for n in ("good", "leaves", "magics", "slow by the clock") if passed(graded[n])
             != ["double", "largest"]] == [])
    assert passed(graded["half"]) == passed(graded["stubborn"]) == ["double"]
    beside = ("no end", "no end in a cell", "syntax", "deleted", "leaves when called", "borrowed")
    assert [n for n in beside if passed(graded[n]) != ["largest"]] == []
    assert re.search(r"^good\.ipynb +2/2  ✓ double ✓ largest$", graded["printed"], re.M)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(PATCHES, *(name for name in PATCHES if name in ORDINARY)))
def test_a_changed_checker_does_not_count(name, graded):
    assert passed(graded[name]) == [] and len(graded[name]) == 2


def filled_in(path: Path, book: Book) -> nbformat.NotebookNode:
    "The handout of a page with the book's answers in it."
    whole, nb = nbformat.read(path, as_version=4), exercises.handout(path, book, "1")
    nb.cells = [c for c in nb.cells if c.id != "set-up"]
    for stub in (c for c in nb.cells if kills.kind_of(c) == "stub"):
        name = kills.exercise_of(stub)
        source = next(c.source for c in whole.cells if kills.exercise_of(c) == name
                      and kills.kind_of(c) == "solution")
        stub.source = f"{source}\n\n{name} = {re.search('def (' + name + '_solution)', source)[1]}"
    return nb


@pytest.mark.whole
def test_handouts_that_are_filled_in_pass(the_book, tmp_path):
    (tmp_path / "class").mkdir()
    for path in PAGES: practice.write(filled_in(path, the_book), tmp_path / "class" / path.name)
    done = subprocess.run([sys.executable, ROOT / "tools/submissions.py", tmp_path / "class",
                           "--csv", tmp_path / "out.csv", "--timeout", "30", "--jobs", "2"],
                          capture_output=True, text=True)
    rows = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8", newline="")))
    assert done.returncode == 0 and [r for r in rows if r["passed"] != "yes"] == [], done.stderr
    assert (sorted(r["exercise"] for r in rows)
            == sorted(name for path in PAGES
                      for name in kills.named(nbformat.read(path, as_version=4))))


def test_a_notebook_of_the_book_finds_its_own_checkers():
    for path in PAGES:
        assert (submissions.belongs_to(submissions.cells_of(path), MODULES).__name__
                == f"tfmlib.practice.{path.stem[3:]}")


def test_csv_does_not_run_in_a_spreadsheet():
    rows = [dict(zip(submissions.COLUMNS, ("=1+1.ipynb", "double", True, "", "-1")))]
    assert (submissions.as_csv(rows)
            == "file,exercise,passed,failed,why\n'=1+1.ipynb,double,yes,,'-1\n")


@pytest.mark.parametrize(("flags", "said"),
                         [([], "folder: None is not a folder"),
                          (["nowhere"], "folder: nowhere is not a folder"),
                                             (["."], "holds no notebook"),
                          ([".", "--timeout", "0"], "timeout: 0.0")])
def test_a_bad_call_is_refused(flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["submissions.py", *flags])
    with pytest.raises(SystemExit, match="2"): submissions.main()
    assert said in capsys.readouterr().err


# --- the gallery ----------------------------------------------------------------------------------

@by_page
def test_every_name_in_the_gallery_leads_to_a_cell(path, verdicts):
    cells = [c for c in nbformat.read(path, as_version=4).cells if kills.kind_of(c) == "mutant"]
    marked = {gallery.anchor(kills.exercise_of(c), a or b) for c in cells
              for a, b in gallery.DEFINED.findall(c.source)}
    linked = [gallery.anchor(e["name"], m["name"]) for e in verdicts[path]["exercises"]
              for m in e["mutants"]]
    assert set(linked) <= marked and len(set(linked)) == len(linked)


@pytest.fixture
def built(tmp_path):
    """Builds a book that is only the gallery, strictly, from a given table: its front page, and
    the page of the lists."""
    def build(table: dict) -> tuple[str, str]:
        (tmp_path / "tfmlib/assets").mkdir(parents=True)
        (tmp_path / kills.FILE.relative_to(ROOT)).write_text(json.dumps(table))
        (tmp_path / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(ROOT / 'extensions')!r})\nextensions = "
            "['myst_parser', 'gallery']\n")
        (tmp_path / "index.md").write_text((ROOT / "about/gallery.md").read_text()
                                           + "\n```{toctree}\ngallery/99_lists\n```\n")
        (tmp_path / "gallery").mkdir()
        (tmp_path / "gallery/99_lists.md").write_text(
            "# Wrong answers\n\n```{kill-table} 99_lists\n```\n")
        done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "-n", "-q", tmp_path,
                               tmp_path / "out"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tuple((tmp_path / f"out/{name}.html").read_text()
                     for name in ("index", "gallery/99_lists"))
    return build


def test_every_practice_page_has_its_page_in_the_gallery():
    told = [f"gallery/{path.stem}" for path in kills.pages()]
    assert [page for page in toc_pages(ROOT / "_toc.yml") if page.startswith("gallery/")] == told
    for page in told:
        assert f"{{kill-table}} {page.removeprefix('gallery/')}\n" in (
            ROOT / f"{page}.md").read_text()


@pytest.mark.slow
def test_the_gallery_shows_what_the_table_holds(built, lists):
    page = kills.verdicts(lists)
    page["exercises"][0]["mutants"][0] |= {"passed": True, "why": "<b>"}
    front, text = built({"pages": [kills.published(page)]})
    counted = dict(re.findall(r'<th scope="row">([\w ]+)</th><td>(\d+)</td></tr>', front))
    assert (counted == {"exercises": "2", "stubs rejected": "2", "solutions accepted": "2",
                        "wrong answers": "10", "wrong answers rejected": "9"})
    assert ('<a href="../gallery/99_lists.html">' in front
            and "<td>2</td><td>10</td><td>9</td>" in front)
    assert "4 of 5 rejected" in text and "not rejected" in text and "<b>" not in text
    assert (text.count('href="../chapters/practice/99_lists.html#wrong-') == 10
            and text.count('<th scope="col">') == 4)
