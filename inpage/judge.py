"""The verdict on one answer, as the page shows it.

The answer runs among the names of its practice module, so it finds what the notebook's
reader finds; the checker is the notebook's own, unchanged. While it checks, `tell` hears
of each case, so that whoever listens can end what does not come back.
"""
import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from cell import FILE, LONGEST, line_of, remembered
from torch import _absent

from tfmlib.workbench import Result, said


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


def ran(source: str, names: dict, name: str) -> Result | None:
    "Run the cell; a Result if it raises."
    try: exec(compile(remembered(source), FILE, "exec"), names)
    except BaseException as error:
        line = line_of(error)
        where = f"the cell runs (line {line})" if line else "the cell runs"
        return Result(name, name, False, 0, where, said(error))
    if name in names: return None
    return Result(name, name, False, 0, f"the cell defines {name}",
                  f"there is no {name} after it")


def judged(page: str, name: str, source: str, tell: Callable) -> Result:
    "What the checker of an exercise says to an answer."
    module = import_module(f"tfmlib.practice.{page}")
    names = dict(vars(module)) | {"__name__": "__main__"}
    if (broken := ran(source, names, name)) is not None: return broken
    checker = getattr(module, f"check_{name}")
    with telling(checker, tell): return checker.examine(names[name])


def verdict(page: str, name: str, source: str, tell: Callable = lambda *_: None) -> dict:
    "The verdict on an answer: whether it passed, its lines, and what it printed."
    printed = io.StringIO()
    before = sys.gettrace()
    _absent.seen.clear()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try: result = judged(page, name, source, tell)
        finally: sys.settrace(before)
    lacks = list(dict.fromkeys(_absent.seen))
    if "C ssize_t" in result.why and sys.maxsize < 2**32:
        lacks.append("lengths beyond 32 bits")
    found = {"passed": result.passed, "failed": result.failed, "lacks": lacks,
             "printed": printed.getvalue()[:LONGEST]}
    if not lacks or result.passed: return found | {"lines": result.text().split("\n")}
    head = f"{name}: this answer cannot be checked here"
    return found | {"lines": [head, *(f"{n}: {_absent.SENTENCE}" for n in lacks)]}


def answer(page: str, name: str, source: str, tell: Callable) -> str:
    "The same for the page."
    return json.dumps(verdict(page, name, source, tell))
