"""Write what the checkers say on the practice pages, as their stored outputs have it, to
tfmlib/assets/kills.json: python tools/kills.py

Every exercise has a stub (must be red), solutions (must be green) and wrong answers, called mutants
(each must be red). The exit code tells whether all of that holds; the file is written in any case,
so that the difference can be read. That the stored outputs are those of the code, the proof's
notebook stages tell: no verdict is left out of their comparison.
"""
import contextlib
import io
import json
import linecache
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tfmlib/assets/kills.json"
KINDS = ("stub", "check", "solution", "mutant")
VERDICT = "application/vnd.tfmlib.check+json"
FEWEST = 5                                                            # wrong answers an exercise


def pages() -> list[Path]:
    "The practice notebooks."
    return sorted((ROOT / "chapters/practice").glob("[0-9][0-9]_*.ipynb"))


def exercise_of(cell: dict) -> str:
    "The exercise that a cell belongs to, by its tag; empty if to none."
    return next((t.removeprefix("exercise-")
                 for t in cell["metadata"].get("tags", []) if t.startswith("exercise-")), "")


def kind_of(cell: dict) -> str:
    "What a cell is to its exercise: stub, check, solution or mutant; empty if none of them."
    return next((k for k in KINDS if k in cell["metadata"].get("tags", [])), "")


def heading(source: str) -> tuple[int, str]:
    "Level and text of the first heading in a piece of Markdown; (0, '') if it has none."
    for line in re.sub(r"^ *(`{3,}|~{3,}|:{3,}).*?^ *\1", "", source,
                       flags=re.S | re.M).split("\n"):
        if m := re.match(r"(#{1,6}) +(.*?) *#*$", line): return len(m[1]), m[2]
    return 0, ""


def code_of(cell: dict) -> str:
    "The Python of a code cell: lines for the notebook program (%, !) are blanked."
    return "\n".join("" if line.startswith(("%", "!")) else line
                     for line in cell["source"].split("\n"))


# --- running a page -------------------------------------------------------------------------------

@contextlib.contextmanager
def overheard() -> Iterator[list]:
    "Every result that a checker gives meanwhile, in order."
    from tfmlib.workbench import Checker
    heard, call = [], Checker.__call__

    def listen(self, attempt):
        heard.append(self.examine(attempt))
        return heard[-1]

    Checker.__call__ = listen
    try: yield heard
    finally: Checker.__call__ = call


def run(nb: dict) -> tuple[dict[str, list], dict[str, str], dict]:
    """Run the code cells in a fresh namespace: results by cell id, errors by cell id, and the
    namespace."""
    results, errors, names = {}, {}, {"__name__": "__main__", "display": lambda *a, **k: None}
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(
        empty), contextlib.redirect_stdout(io.StringIO()), patch.dict(
            os.environ), overheard() as heard:
        for cell in nb["cells"]:
            if cell["cell_type"] != "code": continue
            before, code, file = len(heard), code_of(cell), f"<cell {cell['id']}>"
            # kernels are run from their source
            linecache.cache[file] = len(code), None, code.splitlines(True), file
            try: exec(compile(code, file, "exec"), names)
            except Exception as error:
                errors[cell["id"]] = f"{type(error).__name__}: {error}".split("\n")[0]
            results[cell["id"]] = heard[before:]
    return results, errors, names


def named(nb: dict) -> dict[str, str]:
    "The exercises of a page in its order, each with the heading that it stands under."
    found, title = {}, ""
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown": title = heading(cell["source"])[1] or title
        if name := exercise_of(cell): found.setdefault(name, title)
    return found


def verdict(result) -> dict:
    "What a checker said to one attempt."
    return {"name": result.attempt, "passed": result.passed, "failed": result.failed or "",
            "why": result.why}


def verdicts(path: Path) -> dict:
    "What the checkers of the practice page at `path` say to its stubs, solutions and mutants."
    nb = nbformat.read(path, as_version=4)
    results, errors, _ = run(nb)
    return gathered(path, nb, results, errors)


def recorded(path: Path) -> dict:
    "What they said when the page was last executed: the verdicts of its stored outputs."
    nb = nbformat.read(path, as_version=4)
    outputs = {c["id"]: c["outputs"] for c in nb["cells"] if c["cell_type"] == "code"}
    results = {i: [SimpleNamespace(**o["data"][VERDICT])
                   for o in found if VERDICT in o.get("data", {})] for i, found in outputs.items()}
    errors = {i: f"{o['ename']}: {o['evalue']}".split("\n")[0] for i, found in outputs.items()
              for o in found if o["output_type"] == "error"}
    return gathered(path, nb, results, errors)


def gathered(path: Path, nb: dict, results: dict[str, list], errors: dict[str, str]) -> dict:
    "The results of a run, by exercise and by what the cells are to it."
    exercises = []
    belonging = [(exercise_of(c), kind_of(c), c["id"]) for c in nb["cells"]]
    for name, title in named(nb).items():
        of_kind = {k: [i for of, kind, i in belonging if (of, kind) == (name, k)] for k in KINDS}
        said = {k: [r for i in ids for r in results.get(i, [])] for k, ids in of_kind.items()}
        strange = sorted({r.exercise for rs in said.values()
                          for r in rs if r.exercise.replace("-", "_") != name.replace("-", "_")})
        silent = [i for i in of_kind["mutant"] if not results.get(i)]
        exercises.append({"name": name, "title": title, "has": [k for k in KINDS if of_kind[k]],
                          "checked_by": strange, "silent": silent,
                          "stub": [verdict(r) for r in said["check"]],
                          "solutions": [verdict(r) for r in said["solution"]],
                          "mutants": [verdict(r) for r in said["mutant"]]})
    title = next((t for c in nb["cells"] if c["cell_type"] == "markdown"
                  and (t := heading(c["source"])[1])), path.stem)
    return {"page": f"chapters/practice/{path.stem}", "title": title, "errors": errors,
            "exercises": exercises}


# --- judging what it said -------------------------------------------------------------------------

def faults_of(exercise: dict) -> Iterator[str]:
    "What is wrong with one exercise."
    for kind in ("stub", "check", "solution"):
        if kind not in exercise["has"]: yield f"has no cell tagged {kind}"
    for kind, said in (("check", exercise["stub"]), ("solution", exercise["solutions"])):
        if kind in exercise["has"] and not said: yield f"no {kind} cell calls its checker"
    yield from (f"its checker accepts the stub {r['name']}"
                for r in exercise["stub"] if r["passed"])
    yield from (f"its checker rejects the solution {r['name']}: {r['failed']}: {r['why']}"
                for r in exercise["solutions"] if not r["passed"])
    yield from (f"its checker accepts the wrong answer {r['name']}"
                for r in exercise["mutants"] if r["passed"])
    yield from (f"the mutant cell {i} calls no checker" for i in exercise["silent"])
    yield from (f"one of its cells is checked by the checker of {other}"
                for other in exercise["checked_by"])
    names = [r["name"] for r in exercise["mutants"]]
    yield from (f"two wrong answers are called {n}"
                for n in sorted({n for n in names if names.count(n) > 1}))
    if len(set(names)) < FEWEST:
        yield f"has {len(set(names))} wrong answers; expected at least {FEWEST}"


def faults(page: dict) -> list[str]:
    "Everything that is wrong with a page's verdicts; empty for a page that may be published."
    found = [f"cell {i} raises {error}" for i, error in page["errors"].items()]
    found += [f"{e['name']}: {fault}" for e in page["exercises"] for fault in faults_of(e)]
    if not page["exercises"]: found.append("has no cell tagged exercise-NAME")
    return [f"{page['page']}: {fault}" for fault in found]


def counts(page: dict) -> dict[str, int]:
    """How many there are on a page: exercises, stubs red, solutions green, mutants rejected,
    mutants rejected in words of their own."""
    exercises = page["exercises"]
    mutants = [r for e in exercises for r in e["mutants"]]
    red = [(e["name"], r["failed"], r["why"]) for e in exercises
           for r in e["mutants"] if not r["passed"]]
    return {"exercises": len(exercises),
            "red stubs": sum(bool(e["stub"]) and not any(r["passed"] for r in e["stub"])
                             for e in exercises),
            "green solutions": sum(bool(e["solutions"]) and all(r["passed"] for r in e["solutions"])
                                   for e in exercises),
            "mutants": len(mutants), "rejected": len(red), "told apart": len(set(red))}


def published(page: dict) -> dict:
    "What kills.json keeps of a page."
    kept = ("name", "title", "stub", "solutions", "mutants")
    return {"page": page["page"], "title": page["title"],
            "exercises": [{k: e[k] for k in kept} for e in page["exercises"]]}


def text(found: list[dict]) -> str:
    "The content of kills.json for these pages."
    return json.dumps({"pages": [published(p) for p in found]}, indent=1, ensure_ascii=False,
                      sort_keys=True) + "\n"


def main() -> None:
    found = [recorded(path) for path in pages()]
    FILE.write_text(text(found), encoding="utf-8")
    for page in found:
        print(f"{page['page']}: " + ", ".join(f"{n} {what}" for what, n in counts(page).items()))
    wrong = [fault for page in found for fault in faults(page)]
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
