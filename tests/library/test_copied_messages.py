"""No message of a checker gives the answer to a question: whoever copies what a wrong answer is
told does not get on, nor whoever guesses small numbers."""
import ast
import copy
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial, wraps
from pathlib import Path

import nbformat
import numpy as np
import pytest

READS = ("chapters/practice/",)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import kills  # noqa: E402
import mutants  # noqa: E402

from tfmlib.workbench import Checker, said  # noqa: E402

PROBES = 0.123, 7, "?", True, None, ["?"], {}
GUESSES = *range(21), True, False, None
# questions that nobody copies: functions of a text
MOST = 40


def asks(stub: str) -> str | None:
    "The name of what a stub asks for, if it is given a question or nothing."
    name, given = re.search(r"def (\w+)\((.*?)\)", re.sub(r"#.*", "", stub), re.S).groups()
    return name if re.fullmatch(r"\s*(\w+: str,?)?\s*", given) else None


ASKED = [(path, name) for path in kills.pages() for c in nbformat.read(path, as_version=4).cells
         if kills.kind_of(c) == "stub" and (name := asks(c.source))]
every_question = pytest.mark.parametrize(("path", "name"), ASKED, ids=[name for _, name in ASKED])


@cache
def answered(path: Path, name: str) -> tuple[Checker, Callable]:
    "The checker of an exercise, and the book's answer."
    module = importlib.import_module(f"tfmlib.practice.{path.stem[3:]}")
    names = mutants.space(nbformat.read(path, as_version=4), module)
    return getattr(module, f"check_{name}"), names[f"{name}_solution"]


def questions(checker: Checker, solution: Callable) -> tuple[dict, dict]:
    """What a checker asks: the right answer to each question that is a text, and the properties
    that ask each of its cases."""
    asked, tests = [], {}
    checker.examine(wraps(solution)(lambda *case: [asked.append(case), solution(*case)][1]))
    for _, test, cases in checker.properties:
        for case in cases: tests.setdefault(case, []).append(test)
    return {q[0]: solution(*q) for q in asked if len(q) == 1 and isinstance(q[0], str)}, tests


def read(text: str) -> Iterator:
    "Everything in a message that could be an answer: literals, numbers, quoted texts, words."
    last = re.split(r"expected ", text)[-1]
    pieces = [last, *re.split(r", ", last, maxsplit=1)[1:],
              *re.findall(r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}", text),
              *re.findall(r"'[^']*'|\"[^\"]*\"", text),
              *re.findall(r"-?\d[\d.,]*(?:e[+-]?\d+)?", text), "True" * ("True" in text),
              "False" * ("False" in text), "None" * ("None" in text)]
    for piece in pieces:
        for written in (piece, piece.replace(",", "").rstrip(".")):
            try: yield ast.literal_eval(written)
            except (SyntaxError, ValueError): continue
    yield from re.findall(r"[\w+=-]+", text)


def every_one(tests: list, attempt: Callable, *case) -> None:
    "What all properties ask about one question."
    for test in tests: test(attempt, *case)


def heard(test: Callable, case: tuple, answer, keyed: bool = False) -> str | None:
    "What a wrong answer is told, or several of them by question; None for right ones."
    try:
        test((lambda question: answer[question]) if keyed
             else lambda *_: copy.deepcopy(answer), *case)
    except Exception as error: return said(error)
    return None


def wronged(value, others: list):
    "An answer of the right form in which everything is wrong."
    if isinstance(value, bool | np.bool_): return not value
    if isinstance(value, str):
        return next((o for o in others if isinstance(o, str) and o != value), "?")
    if isinstance(value, int | float):
        return 1.7 * value + 3 if isinstance(value, float) else 2 * value + 3
    if isinstance(value, dict): return {k: wronged(v, [*value.values()]) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(wronged(v, [*value, *others]) for v in value)
    return value


def equal(a, b) -> bool: return type(a) is type(b) and repr(a) == repr(b)


def names(told: str, key) -> bool:
    return re.search(rf"(?<!\w){re.escape(str(key))}(?!\w)", told) is not None


def texts(value) -> set:
    "The texts in an answer."
    if isinstance(value, dict): return set().union(*map(texts, value.values()))
    if isinstance(value, list | tuple): return set().union(*map(texts, value))
    return {value} if isinstance(value, str) else set()


def candidates(told: str, answer, alone: bool, words: set) -> list:
    """What a copyist makes of a message: what it holds, unless it lists all choices; a number
    also as a factor; the opposite of a boolean."""
    offers = re.search(r"expected [^;]*(one of|\bor\b|\bkeys\b)", told)
    found = [c for c in read(told) if not equal(c, answer) and texts(c) <= words
             and not (offers and isinstance(c, str | tuple | list))]
    # told which one is wrong, it says the opposite
    if isinstance(answer, bool) and not alone: found.append(not answer)
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        # not its own
        numbers = [c for c in found if isinstance(c, int | float) and not isinstance(c, bool) and c
                   and abs(c - answer) > .01 * abs(answer)]
        found += [x for c in numbers for x in (answer / c, answer * c, answer - c, answer + c)]
    return found


def parts(answer) -> list:
    "The keys, or the numbers, of the parts of an answer."
    return ([*answer] if isinstance(answer, dict) else [*range(len(answer))]
            if isinstance(answer, tuple) else [])


def changed(answer, at, part):
    "The answer with another part."
    return (answer | {at: part} if isinstance(answer, dict)
            else type(answer)(part if i == at else x for i, x in enumerate(answer)))


def copied(test: Callable, case: tuple, wrong: list, keyed: bool, words: set) -> bool:
    "Does a copyist get this question right, from what it is told about wrong answers?"
    said_before = {}
    def heard_of(x):
        if (key := (type(x), repr(x))) not in said_before:
            said_before[key] = heard(test, case, x, keyed)
        return said_before[key]

    for answer in wrong:
        for _ in range(len(parts(answer)) + 1):
            told = heard_of(answer)
            if told is None: break
            if (not keyed and any(heard(test, case, c) is None
                                  for c in candidates(told, answer, case == (), words))):
                return True
            at = [k for k in parts(answer) if not isinstance(answer, dict) or names(told, k)]
            tried = [changed(answer, k, c) for k in at
                     for c in candidates(told, answer[k], False, words)]
            now = [heard_of(t) for t in tried]
            if None in now: return True
            answer = next((t for t, n in zip(tried, now) if isinstance(t, dict)
                           and not any(names(n, k) for k in at)), None)
            if answer is None: break
    return False


def leaks(checker: Checker, solution: Callable) -> list[str]:
    "The questions that a copyist gets right."
    alone, found = not inspect.signature(solution).parameters, []
    every, tests = questions(checker, solution)
    if len(tests) > MOST: return []
    asked = [(partial(every_one, found_by), case) for case, found_by in tests.items()]
    for test, case in asked:
        keyed = not alone and case == ()
        right = solution() if alone else every if keyed else solution(*case)
        # only the form is asked for
        if heard(test, case, wronged(right, [*every.values()]), keyed) is None: continue
        others = [] if alone else [*every.values()]
        wrong = ([wronged(right, others)] if keyed
                 else [x for x in [wronged(right, others), *others[:2], *PROBES]
                       if not equal(x, right)])
        if copied(test, case, wrong, keyed, texts([*every.values(), right])):
            found.append(" ".join(map(str, case)) or "all")
    return found


@every_question
def test_nobody_passes_by_copying_messages(path, name):
    assert leaks(*answered(path, name)) == []


def typed(value):
    "Numbers as NumPy's and as fractions, truth values as NumPy's, wherever they are."
    if isinstance(value, bool): return np.bool_(value)
    if isinstance(value, float): return Fraction(value) if math.isfinite(value) else value
    if isinstance(value, list | tuple): return type(value)(map(typed, value))
    return {k: typed(v) for k, v in value.items()} if isinstance(value, dict) else value


@every_question
def test_numbers_of_other_types_are_numbers(path, name):
    checker, right = answered(path, name)
    found = checker.examine(wraps(right)(lambda *case: typed(right(*case))))
    assert found.passed, found.why


def guessed(checker: Checker, solution: Callable) -> bool:
    """Does a guesser pass who tries small numbers, yes and no for each question, one after another,
    and hears which of them are right?

    Of questions that are asked together, he hears the message, and keeps a change after which it
    has a smaller number.
    """
    alone, (right, tests) = not inspect.signature(solution).parameters, questions(checker, solution)
    if alone: right = solution()
    if len(right if isinstance(right, dict | tuple) else ()) in (0, *range(MOST, 10**4)):
        return False
    if not alone and () in tests:                                           # together
        count = lambda found: int(
            (re.findall(r"\d+", heard(partial(every_one, tests[()]), (), found, True) or "0")
             or [99])[0])
        found = dict.fromkeys(right, False)
        for question in right:
            found = min(({**found, question: guess} for guess in (False, True)), key=count)
        return heard(partial(every_one, tests[()]), (), found, True) is None
    fits = lambda at, guess: equal(guess, right[at])
    return all(any(fits(at, guess) for guess in GUESSES)
               for at in (right if isinstance(right, dict) else range(len(right))))


@every_question
def test_nobody_passes_by_guessing(path, name):
    assert not guessed(*answered(path, name))
