"""Reading order is dependency order, the library is what the chapters say, and cells have the
shape that the house asks for."""
import ast
import json
from pathlib import Path

import pytest
import rules
from conftest import ROOT
from pages import chapter, companions


@pytest.mark.parametrize("rule", rules.RULES)
def test_rule(rule):
    "No notebook breaks it. (That each rule notices what breaks it is shown in test_defects.)"
    assert not (faults := rules.RULES[rule](ROOT)), "\n" + "\n".join(faults)


def test_there_are_notebooks_to_judge():
    "A rule that finds no notebook finds no fault."
    books = rules.cells(ROOT)
    assert {f"chapters/00_{name}" for name in rules.workbench(ROOT)} <= set(books)
    assert sum(cell.exported for book in books.values() for cell in book) > 20


@pytest.mark.parametrize("owner, name, allowed", [
    ("04_a", "05_b", True), ("05_b", "04_a", False), ("04_a", "depth/04_a", True),
    ("depth/04_a", "04_a", False), ("05_b", "depth/04_a", True), ("depth/04_a", "depth/05_b", True),
    ("depth/05_b", "depth/04_a", False), ("depth/04_a", "05_b", False),
    ("depth/04_a", "practice/04_a", True), ("practice/04_a", "05_b", False),
    ("00_figures", "00_proof", True), ("00_training", "01_recurrence", True),
    ("22_inside", "depth/01_recurrence", True), ("09_encoders", "10_decoders", True),
    ("depth/12_checkpoints", "depth/12_checkpoints_families", True),
    ("depth/12_checkpoints_families", "practice/12_checkpoints", True)])
def test_paths_come_first_and_then_what_is_in_depth(owner, name, allowed):
    "A path never leans on depth, depth may lean on any path."
    assert rules.before(f"chapters/{owner}", f"chapters/{name}", rules.workbench(ROOT)) == allowed


@pytest.mark.parametrize("name, declared, module", [
    ("chapters/04_a", "a.core", "a.core"), ("chapters/04_a", "a", "a.core"),
    ("chapters/depth/04_a", "a.more", "a.more"), ("chapters/depth/04_a", "a.core", "a.depth"),
    ("chapters/depth/04_a", "b.more", "a.depth"),
    ("chapters/depth/04_a_proofs", "a.proofs", "a.proofs"),
    ("chapters/depth/04_ab", "a.more", "ab.depth"),
    ("chapters/practice/04_a", "practice.a", "practice.a"),
    ("chapters/00_figures", "figures", "workbench.figures"),
    ("chapters/00_proof", "workbench.claims", "workbench.claims")])
def test_the_module_of_a_notebook(name, declared, module):
    "A second page in depth, NN_name_topic, writes another module of its chapter's package."
    assert (rules.module_of(name,
                            rules.cells_of(name,
                                           json.dumps({"cells": [{"cell_type": "code",
                                                   "metadata": {},
                                                   "source": f"#| default_exp {declared}"}]})))
            == module)


def test_the_chapter_of_a_page():
    pages = ["chapters/04_a", "chapters/05_b", "chapters/depth/04_a", "chapters/depth/04_a_proofs",
             "chapters/practice/04_a", "about/claims"]
    assert [chapter(page, pages) for page in pages[:-1]] == ["04_a", "05_b", "04_a", "04_a", "04_a"]
    assert (companions("chapters/04_a", "depth", pages) == pages[2:4]
            and companions("chapters/05_b", "practice", pages) == [])


def test_a_name_from_a_package_belongs_to_the_page_that_writes_it():
    books = rules.cells(ROOT)
    owned = rules.owners(books)
    offered = rules.homes(books, owned)
    assert (rules.writer("flash_attention.merge_states", owned, offered) == "flash_attention.core"
            and rules.writer("flash_attention.Tiles", owned, offered)
            == "flash_attention.blockwise")
    leaning = rules.parsed("from tfmlib.flash_attention import Tiles")
    assert list(rules.arrows(leaning, "chapters/17_flash_attention", "here", owned,
                             rules.workbench(ROOT), None, offered)) == [
        "here: imports tfmlib.flash_attention.blockwise, which chapters/depth/17_flash_attention "
        "writes: the arrow points forward"]


def test_undeclared_workbench_has_no_place():
    with pytest.raises(ValueError, match="00_extra: not in the workbench"):
        rules.place("chapters/00_extra", ["figures"])


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
    ("def f():\n    from tfmlib.heads import MultiHeadAttention", "",
     [("heads.MultiHeadAttention", False)]),
    ("importlib.import_module('tfmlib.heads')", "", [("heads", False)]),
    ("import torch, numpy", "", [])])
def test_imports_are_seen(code, inside, found):
    assert list(rules.imports(ast.parse(code), inside)) == found


def test_exceptions_are_needed():
    "An exception that nothing uses any more is taken out."
    every = {f"tfmlib.{m}": ROOT / "tfmlib" / f"{m.replace('.', '/')}.py"
             for m in rules.owners(rules.cells(ROOT))}
    names = (set(every) | {called for name, file in every.items() if file.is_file()
                           for called, _ in rules.functions(
                               ast.parse(Path(file).read_text()), name)})
    assert set(rules.MANY_PARAMETERS) <= names
    usual = {}
    for start in rules.LONG_MODULES:
        held = [rules.statements(ast.parse(file.read_text())) for name, file in every.items()
                if name.startswith(start) and file.is_file()]
        usual[start] = max(held, default=0) <= 330
    assert not [start for start, small in usual.items() if small]
