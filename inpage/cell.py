"""A cell of a chapter, run as a notebook runs it, but from fresh names.

It gives what the cell prints, the value of its last expression, and an error with its
line. With `judge.py` it shares how code is compiled, so that lines can be found.
"""
import ast
import contextlib
import io
import json
import linecache
import traceback
import warnings
from collections.abc import Callable

import numpy as np

FILE = "your code"
LONGEST = 4_000                        # characters of what a cell shows
MISSING = "Here there are only NumPy and Python's own modules; run this in Jupyter or Colab."


def remembered(source: str) -> str:
    "The code, which errors and warnings can quote from now on."
    linecache.cache[FILE] = len(source), None, source.splitlines(True), FILE
    return source


def line_of(error: BaseException) -> int | None:
    "The line of the code at which an error arose."
    if isinstance(error, SyntaxError) and error.filename == FILE: return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
             if f.filename == FILE]
    return lines[-1] if lines else None


def value_of(source: str, names: dict) -> str:
    "Run a cell; its last expression as text, unless it is None or a semicolon hides it."
    tree = ast.parse(remembered(source), FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILE, "exec"), names)
    if last is None: return ""
    value = eval(compile(ast.Expression(last.value), FILE, "eval"), names)
    return "" if value is None or source.rstrip().endswith(";") else repr(value)


def lines_of(error: BaseException) -> list[str]:
    "What went wrong, where, and what may help."
    kind, line = type(error).__name__, line_of(error)
    what = f"{kind}: {error.msg if isinstance(error, SyntaxError) else error}"
    head = f"✗ {kind} in line {line}" if line else f"✗ {kind}"
    quoted = linecache.getline(FILE, line).strip() if line else ""
    helps = MISSING if isinstance(error, ModuleNotFoundError) else ""
    return [head, *filter(None, (quoted, what, helps))]


def short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def outputs(source: str) -> dict:
    "What a cell prints, its value, the lines about its error, and where that arose."
    printed, value, error, line = io.StringIO(), "", None, None
    with (contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed),
          np.printoptions(), warnings.catch_warnings()):
        warnings.simplefilter("default")
        try: value = value_of(source, {"__name__": "__main__"})
        except BaseException as raised: error, line = lines_of(raised), line_of(raised)
    return {"printed": short(printed.getvalue()), "value": short(value), "error": error,
            "line": line}


def answer(source: str, tell: Callable) -> str:
    "The same for the page."
    return json.dumps(outputs(source))
