"""Hand generic mutants of every solution to its checker and write tfmlib/assets/mutants.json:
python tools/mutants.py [PAGE ...]

A mutant is killed if the checker rejects it. One that lives is equivalent if it gives what the
solution gives, and tools/equivalent.yml lists it; it is excused if tools/excused.yml says why. Any
other one survives, and that is a defect of the checker: close its class, not the case.
"""
import argparse
import ast
import contextlib
import hashlib
import importlib
import inspect
import json
import linecache
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import nbformat
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import kills  # noqa: E402
import mutations  # noqa: E402

FILE = ROOT / "tfmlib/assets/mutants.json"
EXCUSES = ROOT / "tools/excused.yml"
EQUIVALENT = ROOT / "tools/equivalent.yml"
VERDICTS = ("tried", "killed", "equivalent", "excused", "survived")


# --- running with an end --------------------------------------------------------------------------

class Overtime(BaseException):
    "A mutant did not come to an end; no checker may catch this."


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    "Interrupt what takes more of the processor's time."
    def ring(*_): raise Overtime
    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- a page ---------------------------------------------------------------------------------------

def statement_of(node: ast.stmt, kinds: tuple[type, ...]) -> bool:
    "Is it one of these, alone or in a `try`?"
    return (isinstance(node, kinds) or isinstance(node, ast.Try)
            and all(statement_of(n, kinds) for n in node.body))


def space(nb: dict, module) -> dict:
    "What a page's solutions know: what its module holds, what it imports, and themselves."
    names = dict(vars(module)) | {"__name__": "__main__", "display": lambda *a, **k: None}
    for cell in (c for c in nb["cells"] if c["cell_type"] == "code"):
        code, file, kind = kills.code_of(cell), f"<cell {cell['id']}>", kills.kind_of(cell)
        tree = ast.parse(code)
        if (kind not in ("", "solution") or code.startswith("#| export")
            or not any(statement_of(n, (ast.Import, ast.ImportFrom, ast.FunctionDef))
                       for n in tree.body)):
            continue
        kept = ((ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign) if kind
                else (ast.Import, ast.ImportFrom))
        tree.body = [n for n in tree.body if statement_of(n, kept)]
        # kernels are run from their source
        linecache.cache[file] = len(code), None, code.splitlines(True), file
        exec(compile(tree, file, "exec"), names)
    return names


def cells_of(nb: dict, exercise: str) -> list[str]:
    "The sources of an exercise's solution cells."
    return [kills.code_of(c) for c in nb["cells"] if kills.exercise_of(c) == exercise
            and kills.kind_of(c) == "solution"]


def excuses(page: str) -> dict[str, dict[str, str]]:
    """What is excused on a page: exercise -> a label, its beginning before an ellipsis, or a class
    -> the reason."""
    return yaml.safe_load(EXCUSES.read_text(encoding="utf-8")).get(page, {})


def same_as(page: str) -> dict[str, list[str]]:
    "The mutants of a page's solutions that are the same functions: exercise -> labels."
    return yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")).get(page, {})


def excuse(label: str, known: dict[str, str]) -> str:
    "What excuses this mutant, or nothing."
    return next((e for e in known if e in (label, label.split(":")[0]) or e.endswith("…")
                 and label.startswith(e[:-1])), "")


def passes(checker, attempt: Callable, seconds: float) -> bool:
    "Does the checker accept it, in this time?"
    try:
        with limit(seconds): return checker.examine(attempt).passed
    except Overtime: return False


def judged(checker, name: str, source: str, known: dict[str, str], names: dict, part: int = 1,
           same: Iterable[str] = ()) -> dict[str, str]:
    """The verdict on the mutants of one solution, by label: all; or one in so many, and whether it
    was killed or lives."""
    solution, calls, found = names[name], [], {}
    kernel, start = not inspect.isfunction(solution), time.process_time()
    checker.examine(solution if kernel else mutations.recorder(solution, calls))
    seconds = 0.3 + 5 * (time.process_time() - start)
    made = [*mutations.wrappers(solution, calls), *mutations.rewritten(source, name, names, calls)]
    for mutant in made[::part]:
        try: attempt = mutant.made()
        except Exception: continue                                     # it is no program
        if not passes(checker, attempt, seconds): found[mutant.label] = "killed"
        elif part > 1: found[mutant.label] = "lives"
        elif mutant.label in same: found[mutant.label] = "equivalent"
        else: found[mutant.label] = "excused" if excuse(mutant.label, known) else "survived"
    return found


def page(path: Path, part: int = 1, only: str = "") -> dict[str, dict[str, str]]:
    "The verdicts on the mutants of a page's solutions: exercise -> label -> verdict."
    nb, module = nbformat.read(path, as_version=4), module_of(path)
    names, known, same, found = space(nb, module), excuses(path.stem), same_as(path.stem), {}
    # a kernel that never ends ends here
    with patch.object(module, "_SECONDS", 2, create=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for exercise in kills.named(nb):
            if only not in ("", exercise): continue
            cells = cells_of(nb, exercise)
            source = next(s for s in cells if re.search(r"^def ", s, re.M))
            checker, name = (getattr(module, f"check_{exercise}"),
                             re.search(r"^def (\w+)", source, re.M)[1])
            found[exercise] = judged(checker, name, source, known.get(exercise, {}), names, part,
                                     same.get(exercise, ()))
    return found


def module_of(path: Path):
    return importlib.import_module("tfmlib." + re.search(r"#\| default_exp ([\w.]+)",
                                                         path.read_text(encoding="utf-8"))[1])


def fingerprint(path: Path) -> str:
    """What the verdicts on a page hang on, as far as the page holds it: its checkers and its
    solutions."""
    nb = nbformat.read(path, as_version=4)
    held = [c.source for c in nb.cells if c.cell_type == "code"
            and (c.source.startswith("#| export") or kills.kind_of(c) == "solution")]
    return hashlib.sha256("\n\n".join(held).encode()).hexdigest()[:16]


# --- the table ------------------------------------------------------------------------------------

def recorded(path: Path, found: dict[str, dict[str, str]]) -> dict:
    "What the table keeps of a page: counts by class, and every mutant that lives."
    kept = []
    for exercise, verdicts in found.items():
        known = excuses(path.stem).get(exercise, {})
        lives = {v: sorted(label for label in verdicts if verdicts[label] == v)
                 for v in ("equivalent", "excused", "survived")}
        kinds = Counter(label.split(":")[0] for label in verdicts)
        kept.append({"name": exercise,
                     "tried": {k: kinds[k] for k in mutations.KINDS if kinds[k]}} | lives |
                    {"excused": {label: known[excuse(label, known)] for label in lives["excused"]}})
    return {"page": f"chapters/practice/{path.stem}", "of": fingerprint(path), "exercises": kept}


def known_before() -> dict[str, dict]:
    "The table as it is: page -> what it keeps."
    return ({p["page"]: p for p in json.loads(FILE.read_text(encoding="utf-8"))["pages"]}
            if FILE.is_file() else {})


def text(pages: list[dict]) -> str:
    "The table as the file holds it."
    return json.dumps({"classes": mutations.KINDS, "pages": pages}, indent=1,
                      ensure_ascii=False) + "\n"


def counts(pages: list[dict]) -> dict[str, Counter]:
    "How many mutants of each class there are: tried, killed, equivalent, excused, survived."
    found = {kind: Counter() for kind in mutations.KINDS}
    for e in (e for p in pages for e in p["exercises"]):
        for kind, n in e["tried"].items(): found[kind].update(tried=n, killed=n)
        for verdict in ("equivalent", "excused", "survived"):
            for label in e[verdict]: found[label.split(":")[0]].update({verdict: 1, "killed": -1})
    return found


def table(pages: list[dict]) -> str:
    "The counts, to be read."
    rows = counts(pages)
    rows["all"] = sum(rows.values(), Counter())
    head = f"{'class':16}" + "".join(f"{v:>12}" for v in VERDICTS)
    return "\n".join([head, *(f"{name:16}" + "".join(f"{n[v]:12}" for v in VERDICTS)
                              for name, n in rows.items())])


def faults(path: Path, kept: dict) -> list[str]:
    "The mutants of a page that survive, and excuses that excuse nothing."
    said, known, same = [], excuses(path.stem), same_as(path.stem)
    for e in kept["exercises"]:
        said += [f"{kept['page']}: {e['name']}: survives «{label}»" for label in e["survived"]]
        idle = {x for x in known.get(e["name"], {})
                if not any(excuse(label, {x: ""}) for label in e["excused"])}
        said += [f"{kept['page']}: {e['name']}: no mutant needs the excuse «{x}»"
                 for x in sorted(idle)]
        said += [
            f"{kept['page']}: {e['name']}: «{x}» is listed as equivalent, and is killed or no "
            "mutant" for x in sorted({*same.get(e["name"], ())} - {*e["equivalent"]})]
    there = {e["name"] for e in kept["exercises"]}
    return said + [f"{kept['page']}: no exercise {e}, of which mutants are excused or equivalent"
                   for e in {**known, **same} if e not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE",
                        help="numbers of practice pages, such as 04 (default: all)")
    parser.add_argument("--only", default="", metavar="EXERCISE",
                        help="one exercise; the table is left as it is")
    given, before, said = parser.parse_args(), known_before(), []
    for path in kills.pages():
        name = f"chapters/practice/{path.stem}"
        if given.pages and path.stem[:2] not in given.pages: continue
        start = time.process_time()
        kept = recorded(path, page(path, only=given.only))
        said += faults(path, kept)
        print(f"{path.stem}: {time.process_time() - start:.1f} s of the processor", file=sys.stderr)
        before = before | {name: kept}
    names = [f"chapters/practice/{path.stem}" for path in kills.pages()]
    if not given.only:
        FILE.write_text(text([before[n] for n in names if n in before]), encoding="utf-8")
    print(table([before[n] for n in names if n in before]))
    sys.exit("\n".join(said) if said else 0)


if __name__ == "__main__":
    main()
