"""The book's own answers against the references of its checkers, on random inputs and at the edges.

The whole proof draws as many as are cheap, the ordinary one a part of them; TFM_CASES=all, which
the weekly run sets, twenty times as many, up to ten thousand.
"""
import copy
import importlib
import linecache
import os
import sys
from pathlib import Path
from unittest.mock import ANY, patch

import nbformat
import pytest
import torch
from random_cases import EVERY, WHOLLY_ASKED, Draw, shown

READS = ("chapters/practice/",)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import kills  # noqa: E402

from tfmlib.workbench import Checker, gives  # noqa: E402

WEEKLY = 10_000
ASKED = [(path, name) for path in kills.pages()
         for name in kills.named(nbformat.read(path, as_version=4))]
NAMES: dict[Path, dict] = {}


def answers(path: Path) -> dict:
    "What a page defines without its stubs and wrong answers; its checks are not run."
    if path in NAMES: return NAMES[path]
    names = NAMES[path] = {"__name__": "__main__", "display": lambda *a, **k: None}
    with patch.object(Checker, "__call__", lambda *_: None):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or kills.kind_of(cell) in ("stub", "check", "mutant"):
                continue
            code, file = kills.code_of(cell), f"<{path.stem} {cell.id}>"
            linecache.cache[file] = len(code), None, code.splitlines(True), file
            exec(compile(code, file, "exec"), names)
    return names


@pytest.mark.parametrize(("path", "exercise"),
                         [pytest.param(*a, id=a[1], marks=pytest.mark.whole if i % 3 else [])
                          for i, a in enumerate(a for a in ASKED if a[1] in EVERY)])
def test_the_books_answer_is_right_on_random_inputs(path, exercise):
    module, page, how = (importlib.import_module(f"tfmlib.practice.{path.stem[3:]}"), answers(path),
                         EVERY[exercise])
    answer, properties, r = (page[f"{exercise}_solution"],
                             getattr(module, f"check_{exercise}").properties, Draw(exercise))
    count = how.count if os.environ.get("TFM_WHOLE") else min(how.count, 10 + how.count // 10)
    if os.environ.get("TFM_CASES") == "all": count = max(how.count, min(WEEKLY, 20 * how.count))
    for case in [*how.edges(module), *(how.draw(r, module) for _ in range(count))]:
        if exercise == "stream": gives(answer(*case), shown(*case))
        else:
            for at in how.at:
                properties[at][1](answer, *(copy.deepcopy(case) if how.at[1:] else case))


def test_no_exercise_is_left_out():
    assert sorted([*EVERY, *WHOLLY_ASKED]) == sorted(name for _, name in ASKED)


def test_what_equals_everything_answers_no_question():
    "Where answers are words, a checker that only compares would accept it."
    for path, name in ASKED:
        if name not in WHOLLY_ASKED: continue
        module = importlib.import_module(f"tfmlib.practice.{path.stem[3:]}")
        assert not getattr(module, f"check_{name}").examine(lambda *_: ANY).passed, name


def test_a_wrong_answer_is_found(monkeypatch):
    path = next(p for p, name in ASKED if name == "linear_scan")
    right = answers(path)["linear_scan_solution"]
    monkeypatch.setitem(answers(path), "linear_scan_solution",
                        lambda a, b: torch.where(torch.arange(len(b)).view(-1, *[1] * (b.ndim - 1))
                                                 < 19, right(a, b), 0))
    with pytest.raises(AssertionError):
        test_the_books_answer_is_right_on_random_inputs(path, "linear_scan")
