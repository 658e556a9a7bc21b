"""The cells of chapters that a reader can change: each stands alone, gives its stored output,
and its question's answer is true."""
import ast
import json
import re
import symtable
import sys
import warnings
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml
from conftest import ROOT
from rules import Cell, cells_of

import inpage

# that folder is never on our path: it has another torch
spec = spec_from_file_location("cell", ROOT / "inpage/cell.py")
runner = module_from_spec(spec)
spec.loader.exec_module(runner)

EDITS = yaml.safe_load((ROOT / "tests/edits.yml").read_text(encoding="utf-8"))
EVERY = sorted(path.stem for path in (ROOT / "chapters").glob("*.ipynb")
               if not path.stem.startswith("00_"))
SOME = re.compile(r"\d+\.\d+")


def of(stem: str) -> tuple[Cell, ...]:
    return cells_of(f"chapters/{stem}",
                    (ROOT / f"chapters/{stem}.ipynb").read_text(encoding="utf-8"))


@cache
def tagged(stem: str) -> dict[str, Cell]:
    return {cell.id: cell for cell in of(stem) if "edit" in cell.tags}


def question(stem: str) -> str:
    "The cell of text that asks for the change: the first one below it that holds an answer."
    book = of(stem)
    at = next(i for i, cell in enumerate(book) if cell.id == EDITS[stem]["cell"])
    return next(c.source for c in book[at:] if c.kind == "markdown")


def changed(stem: str) -> str:
    "The cell after the change that its question asks for."
    edit, source = EDITS[stem], tagged(stem)[EDITS[stem]["cell"]].source
    assert source.count(edit["change"]) == 1
    return source.replace(edit["change"], edit["into"])


@cache
def given(source: str) -> str:
    "The value of a cell, run alone."
    with warnings.catch_warnings(record=True): found = runner.outputs(source)
    assert found["error"] is None, found
    return found["value"]


def stored(cell: Cell) -> str:
    "What the notebook shows for a cell."
    [output] = cell.outputs
    return "".join(output["data"]["text/plain"])


def names(source: str) -> tuple[set[str], set[str], set[str]]:
    """The names of the module that a cell binds, those that it reads before it binds them, and
    those that its functions read."""
    source = re.sub(r"^(\s*)[%!].*$", r"\1pass", "" if source.lstrip().startswith("%%")
                    else source, flags=re.M)
    top = symtable.symtable(source, "cell", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    inner, left = set(), list(top.get_children())
    while left:
        table = left.pop()
        left += table.get_children()
        inner |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    first: dict[str, tuple] = {}
    for node in ast.walk(ast.parse(source)):
        # of a variable, or of what `def` and `class` define
        name = getattr(node, "id", getattr(node, "name", None))
        if isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef) and name in bound:
            # on one line, the right side is read first
            key = (node.lineno, not isinstance(getattr(node, "ctx", None), ast.Load))
            first[name] = min(first.get(name, key), key)
    outside = {s.get_name() for s in top.get_symbols() if s.is_referenced()
               and s.get_name() not in bound}
    return bound, outside | {name for name, (_, stores) in first.items() if not stores}, inner


def test_every_chapter_has_one():
    assert [stem for stem in EVERY if not tagged(stem)] == [] and list(EDITS) == EVERY
    assert all(list(tagged(stem)) == [EDITS[stem]["cell"]] for stem in EVERY)


@pytest.mark.parametrize("stem", EVERY)
def test_it_stands_alone(stem):
    """It imports NumPy and Python's own modules only, defines every name that it reads, and is
    short."""
    for cell in tagged(stem).values():
        wanted = {n.name if isinstance(node, ast.Import) else node.module
                  for node in ast.walk(cell.tree) if isinstance(node, ast.Import | ast.ImportFrom)
                  for n in node.names}
        assert wanted - {"numpy"} <= sys.stdlib_module_names
        assert given(cell.source) == stored(cell)
        assert (cell.lines <= 12 and max(map(len, cell.source.splitlines())) <= 88
                and not cell.directives)


@pytest.mark.parametrize("stem", EVERY)
def test_it_changes_no_name_of_the_page(stem):
    "No other cell of the chapter reads a name that this one has bound."
    for cell in tagged(stem).values():
        book = [c for c in of(stem) if c.kind == "code"]
        at = next(i for i, c in enumerate(book) if c.id == cell.id)
        mine = names(cell.source)[0] - {"np", "Counter"}
        found = [(name, c.id) for c in book if c is not cell for name in mine & names(c.source)[2]]
        for later in book[at + 1:]:
            bound, read, _ = names(later.source)
            found += [(name, later.id) for name in mine & read]
            mine -= bound
        assert found == []


@pytest.mark.parametrize("stem", EVERY)
def test_the_answer_is_true(stem):
    """The change gives what the table says, and the answer's decimals are among the numbers
    before and after it."""
    edit, before = EDITS[stem], stored(tagged(stem)[EDITS[stem]["cell"]])
    after = given(changed(stem))
    assert after == edit["gives"] != before
    ask, told = question(stem).split(":::{dropdown} Answer\n")
    values = {"before": eval(before), "after": eval(after, {"nan": float("nan")})}
    assert eval(edit["claims"], values)
    assert set(SOME.findall(told)) <= set(SOME.findall(f"{before} {after} {edit['claims']} {ask}"))
    assert "run the cell again" in ask


def test_without_the_large_scores_the_maximum_changes_nothing():
    "What the answer of chapter 17 adds."
    small = re.sub(r"\b80(\d)\.", r"\1.", changed("17_flash_attention"))
    assert ("[2., 4., 3., 1.]" in small and given(small)
            == stored(tagged("17_flash_attention")["online-tiles"]))


def test_a_wrong_answer_is_found(monkeypatch):
    monkeypatch.setitem(EDITS, "04_attention", EDITS["04_attention"] | {"into": "-9.0"})
    with pytest.raises(AssertionError): test_the_answer_is_true("04_attention")
    monkeypatch.undo()
    monkeypatch.setitem(EDITS, "13_accounting", EDITS["13_accounting"]
                        | {"claims": "after[0] == before[0]"})
    with pytest.raises(AssertionError): test_the_answer_is_true("13_accounting")


def test_a_name_of_the_page_is_found(monkeypatch):
    cell = tagged("17_flash_attention")["online-tiles"]
    monkeypatch.setattr(cell, "source", cell.source.replace("divisor", "weights"))
    with pytest.raises(AssertionError, match="weights"):
        test_it_changes_no_name_of_the_page("17_flash_attention")


# --- how a cell is run ----------------------------------------------------------------------------

@pytest.mark.parametrize("source, printed, value, error", [
    ("1 + 1", "", "2", None), ("x = 3\nprint(x)\nx", "3\n", "3", None), ("None", "", "", None),
    ("7;", "", "", None), ("", "", "", None), ("for i in (): pass", "", "", None),
    ("import numpy as np\nnp.arange(3)", "", "array([0, 1, 2])", None),
    ("__name__", "", "'__main__'", None),
    ("print('a')\n1 / 0", "a\n", "",
     ["✗ ZeroDivisionError in line 2", "1 / 0", "ZeroDivisionError: division by zero"]),
    ("x = 1\ny = (", "", "",
     ["✗ SyntaxError in line 2", "y = (", "SyntaxError: '(' was never closed"]),
    ("def f(): return g\n\nf()", "", "",
     ["✗ NameError in line 1", "def f(): return g", "NameError: name 'g' is not defined"]),
    ("import torch_", "", "", ["✗ ModuleNotFoundError in line 1", "import torch_",
                               "ModuleNotFoundError: No module named 'torch_'", runner.MISSING]),
    ("import sys\nsys.exit(3)", "", "", ["✗ SystemExit in line 2", "sys.exit(3)", "SystemExit: 3"]),
    ("'x' * 9000", "", "'" + 3999 * "x" + " …", None)])
def test_a_cell_is_run_as_in_a_notebook(source, printed, value, error):
    line = int(error[0].rpartition(" ")[2]) if error else None
    assert (runner.outputs(source) == {"printed": printed, "value": value, "error": error,
                                       "line": line})


def test_each_run_starts_from_nothing():
    runner.outputs("import numpy as np\nkept = 1\nnp.set_printoptions(precision=1)")
    assert runner.outputs("kept")["error"][0] == "✗ NameError in line 1"
    assert runner.outputs("import numpy as np\nnp.array([.123])")["value"] == "array([0.123])"
    assert json.loads(runner.answer("2", print))["value"] == "2"


# --- what the page is told ------------------------------------------------------------------------

class App:
    "What the extension asks of Sphinx."
    def __init__(self, sizes: dict):
        self.inpage_sizes, self.config, self.files = (sizes,
                type("Config", (), {"tfm_inpage": "v"}), [])

    def add_css_file(self, name): self.files.append(name)
    def add_js_file(self, name, **more): self.files.append(name)


def test_a_chapter_gets_its_editors_and_without_pyodide_stays_as_it_is():
    body = (
        '<section><h2>A</h2><div class="cell tag_edit docutils '
        'container"><pre>x</pre></div></section>')
    for sizes, files in (({"book.zip": 1, "n.whl": 2},
                          ["inpage/check.css", "inpage/run.js"]), ({}, [])):
        app, context = App(sizes), {"body": body}
        inpage.page(app, "chapters/04_attention", "", context, None)
        assert app.files == files and (context["body"] == body) == (not sizes)
        if sizes:
            assert (json.loads(re.search(r'id="tfm-inpage">(.*?)</script>',
                                         context["body"])[1])["sizes"] == {"n.whl": 2})
    app = App({"n.whl": 2})
    inpage.page(app, "chapters/04_attention", "", context := {"body": "<p>tag_edit</p>"}, None)
    assert app.files == [] and context["body"] == "<p>tag_edit</p>"
