"""Reading order is dependency order, the library is what the chapters say, and cells have the shape that the house asks for."""
import ast
from pathlib import Path

import pytest
import rules

ROOT = rules.ROOT


@pytest.mark.parametrize("rule", rules.RULES)
def test_rule(rule):
    "No notebook breaks it. (That each rule notices what breaks it is shown in test_defects.)"
    assert not (faults := rules.RULES[rule](ROOT)), "\n" + "\n".join(faults)


def test_there_are_notebooks_to_judge():
    "A rule that finds no notebook finds no fault."
    books = rules.cells(ROOT)
    assert {f"chapters/00_{name}" for name in rules.workbench(ROOT)} <= set(books)
    assert sum(cell.exported for book in books.values() for cell in book) > 20


@pytest.mark.parametrize("earlier, later", [
    ("chapters/00_figures", "chapters/00_proof"), ("chapters/00_training", "chapters/01_recurrence"),
    ("chapters/04_attention", "chapters/depth/04_attention"), ("chapters/depth/04_attention", "chapters/practice/04_attention"), ("chapters/22_inside", "chapters/depth/01_recurrence"),
    ("chapters/09_encoders", "chapters/10_decoders")])
def test_place(earlier, later):
    bench = rules.workbench(ROOT)
    assert rules.place(earlier, bench) < rules.place(later, bench)


def test_undeclared_workbench_has_no_place():
    with pytest.raises(ValueError, match="00_extra: not in the workbench"): rules.place("chapters/00_extra", ["figures"])


@pytest.mark.parametrize("code, inside, found", [
    ("from tfmlib.attention import attention", "", [("attention.attention", False)]),
    ("from tfmlib import attention, data", "", [("attention", False), ("data", False)]),
    ("import tfmlib.practice.attention as p", "", [("practice.attention", False)]),
    ("from tfmlib.practice import attention", "", [("practice.attention", False)]),
    ("from tfmlib.heads import *", "", [("heads", True)]),
    ("from torch import *", "", [("torch", True)]),
    ("from .figures import show", "", [("figures.show", False)]),
    ("from . import figures", "", [("figures", False)]),
    ("from ..attention import attention", "practice", [("attention.attention", False)]),
    ("from .attention import check", "practice", [("practice.attention.check", False)]),
    ("def f():\n    from tfmlib.heads import MultiHeadAttention", "", [("heads.MultiHeadAttention", False)]),
    ("importlib.import_module('tfmlib.heads')", "", [("heads", False)]),
    ("import torch, numpy", "", [])])
def test_imports_are_seen(code, inside, found):
    assert list(rules.imports(ast.parse(code), inside)) == found


def test_exceptions_are_needed():
    "An exception that nothing uses any more is taken out."
    every = {f"tfmlib.{m}": ROOT / "tfmlib" / f"{m.replace('.', '/')}.py" for m in rules.owners(rules.cells(ROOT))}
    names = set(every) | {called for name, file in every.items() if file.is_file() for called, _ in rules.functions(ast.parse(Path(file).read_text()), name)}
    assert set(rules.MANY_PARAMETERS) <= names
    usual = {}
    for start in rules.LONG_MODULES:
        held = [rules.statements(ast.parse(file.read_text())) for name, file in every.items() if name.startswith(start) and file.is_file()]
        usual[start] = max(held, default=0) <= 330
    assert not [start for start, small in usual.items() if small]
