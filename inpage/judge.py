"""The verdict on one answer, as the page shows it.

The answer runs among the names of its practice module, so it finds what the notebook's
reader finds; the checker is the notebook's own, unchanged. While it checks, `tell` hears
of each case, so that whoever listens can end what does not come back.
"""
import contextlib
import io
import json
import linecache
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from cell import FILE, LONGEST, line_of, remembered
from torch import _absent

from tfmlib.workbench import Result, checkers, said


class Told(tuple):
    "Cases that tell when each one begins."
    def __new__(cls, cases: tuple, tell: Callable): return super().__new__(cls, cases)
    def __init__(self, cases: tuple, tell: Callable): self.tell = tell

    def __iter__(self) -> Iterator:
        for case in super().__iter__():
            self.tell()
            yield case


@contextlib.contextmanager
def telling(checker, tell: Callable) -> Iterator[None]:
    "A checker that tells, before each case, which property it is at."
    before, count = checker.properties, len(checker.properties)
    def at(n: int, statement: str): return lambda: tell(n + 1, count, statement)
    checker.properties = [
        (statement, test, Told(cases, at(n, statement)))
        for n, (statement, test, cases) in enumerate(before)
    ]
    try: yield
    finally: checker.properties = before


def ran(source: str, names: dict, name: str, printed: str) -> tuple[Result | None, int | None]:
    "Run the cell, after the printed answers that it calls; a Result and its line if it raises."
    exec(printed, names)
    try: exec(compile(remembered(source), FILE, "exec"), names)
    except BaseException as error:
        line = line_of(error)
        where = f"the cell runs (line {line})" if line else "the cell runs"
        return Result(name, name, False, 0, where, said(error)), line
    if name not in names and f"{name}_solution" in names:    # as the book prints it
        names[name] = names[f"{name}_solution"]
    if name in names: return None, None
    return Result(name, name, False, 0, f"the cell defines {name}",
                  f"there is no {name} after it"), None


@contextlib.contextmanager
def noting() -> Iterator[list]:
    "While a checker checks: the line of the answer at which an error arose."
    lines, reason = [], checkers.reason

    def note(error: BaseException, *more) -> str:
        lines.append(line_of(error))
        return reason(error, *more)

    checkers.reason = note
    try: yield lines
    finally: checkers.reason = reason


def judged(page: str, name: str, source: str, printed: str,
           tell: Callable) -> tuple[Result, int | None]:
    "What the checker of an exercise says to an answer, and the line that failed."
    module = import_module(f"tfmlib.practice.{page}")
    names = dict(vars(module)) | {"__name__": "__main__"}
    broken, line = ran(source, names, name, printed)
    if broken is not None: return broken, line
    checker = getattr(module, f"check_{name}")
    with telling(checker, tell), noting() as lines: result = checker.examine(names[name])
    return result, lines[-1] if lines else None


def verdict(page: str, name: str, source: str, tell: Callable = lambda *_: None,
            printed: str = "") -> dict:
    "The verdict on an answer: whether it passed, its lines, and what it wrote."
    written = io.StringIO()
    before = sys.gettrace()
    _absent.seen.clear()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try: result, line = judged(page, name, source, printed, tell)
        finally: sys.settrace(before)
    lacks = list(dict.fromkeys(_absent.seen))
    if "C ssize_t" in result.why and sys.maxsize < 2**32:
        lacks.append("lengths beyond 32 bits")
    found = {"passed": result.passed, "failed": result.failed, "lacks": lacks,
             "written": result.written, "line": line if result.written else None,
             "printed": written.getvalue()[:LONGEST]}
    if not lacks or result.passed:
        return found | {"lines": [*result.text().split("\n"), *at_line(found["line"])]}
    head = f"{name}: this answer cannot be checked here"
    return found | {"lines": [head, *(f"{n}: {_absent.SENTENCE}" for n in lacks)]}


def at_line(line: int | None) -> list[str]:
    "Where an error arose, in words."
    quoted = linecache.getline(FILE, line).strip() if line else ""
    return [f"in line {line} of your answer: {quoted}"] if line else []


def answer(page: str, name: str, source: str, printed: str, tell: Callable) -> str:
    "The same for the page, whose printed answers to other exercises this one may call."
    return json.dumps(verdict(page, name, source, tell, printed))
