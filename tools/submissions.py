"""Check a folder of submitted practice notebooks: python tools/submissions.py FOLDER [--csv out.csv] [--timeout SECONDS]

Each notebook runs in a process of its own, in an empty directory. Its cells run as far as they do; then what they define under
an exercise's name is given to the book's own checker, which was loaded before and which the notebook never sees. What the
notebook says about itself does not count.

This runs the students' code with your rights. It guards against accidents and against plain cheating (a changed checker, an
early exit), but it is NO SANDBOX: use a machine or a container that has nothing to lose.
"""
import argparse
import csv
import importlib
import io
import json
import linecache
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("file", "exercise", "passed", "failed", "why")
WHOLE, START = 6, 60                                                  # a notebook gets this many times a cell's limit, and seconds to start


# --- in the notebook's own process --------------------------------------------------------------------------------

class Overtime(Exception):
    "A cell or an attempt took longer than allowed."


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    "Interrupt what takes longer, again and again (where the system has alarms; the whole notebook has a limit everywhere)."
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_): raise Overtime(f"no end after {seconds:g} s")
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try: yield
    finally: signal.setitimer(signal.ITIMER_REAL, 0)


def practice_modules() -> list[str]:
    "The modules of tfmlib.practice."
    import tfmlib.practice
    return [f"tfmlib.practice.{m.name}" for m in pkgutil.iter_modules(tfmlib.practice.__path__)]


def checkers(module: types.ModuleType) -> dict[str, object]:
    "The checkers of a practice module, by exercise."
    from tfmlib.proof import Checker
    return {n.removeprefix("check_"): c for n, c in vars(module).items() if isinstance(c, Checker)}


def cells_of(path: Path) -> list[str]:
    "The sources of a notebook's code cells, without lines for the notebook program; a ValueError if it is no notebook."
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a notebook ({type(error).__name__}: {error})") from None
    return ["\n".join("" if line.startswith(("%", "!")) else line for line in s.split("\n")) for s in sources]


def names_in(source: str) -> set[str]:
    "The names that a cell defines or imports at its top level, whether or not it parses."
    found = re.findall(r"^(?:def|class) +(\w+)|^(\w+)(?: *:[^=\n]+)? *=(?!=)|^(?:from|import) .*\b(\w+) *$", source, re.M)
    return {a or b or c for a, b, c in found}


def belongs_to(sources: list[str], modules: list[types.ModuleType]) -> types.ModuleType:
    "The practice module with most exercises that these cells name."
    names = set().union(*map(names_in, sources))
    best = max(modules, key=lambda m: len(names & set(checkers(m))), default=None)
    if best is None or not names & set(checkers(best)): raise ValueError("it defines no exercise of any practice page")
    return best


def snapshot(used: list[types.ModuleType], classes: list[type]) -> Callable[[], None]:
    "A function that puts back what these modules and classes hold now."
    held, loaded = [(thing, dict(vars(thing))) for thing in [*used, *classes]], dict(sys.modules)

    def restore() -> None:
        sys.modules.update(loaded)
        for thing, then in held:
            now = vars(thing)
            for name in [n for n, v in then.items() if n not in now or now[n] is not v]: setattr(thing, name, then[name])
            for name in [n for n in now if n not in then] if thing in classes else []: delattr(thing, name)
    return restore


class NoAnswers:
    "Refuses the modules that the chapters write: they hold the book's own answers. The workbench stays open."
    OPEN = {"practice", "figures", "proof", "checks", "data", "training"}

    def find_spec(self, name: str, path=None, target=None) -> None:
        top, _, rest = name.partition(".")
        if top == "tfmlib" and rest and rest.split(".")[0] not in self.OPEN:
            raise ImportError(f"{name} holds the book's own answers; a submission has to do without it")


def load(names: list[str], sources: list[str]) -> tuple[dict[str, object], Callable[[], None]]:
    "The checkers for these cells, out of their reach, and a function that undoes what the cells changed around them."
    import builtins

    import torch
    modules = [importlib.import_module(n) for n in names]
    found = checkers(belongs_to(sources, modules))
    ours = [m for n, m in sys.modules.items() if n.partition(".")[0] == "tfmlib" or n in names]
    theirs = [v for m in ours for v in vars(m).values() if isinstance(v, types.ModuleType)]
    for name in [n for n, m in sys.modules.items() if m in ours]: del sys.modules[name]
    restore = snapshot([builtins, json, os, signal, *{id(m): m for m in [*theirs, *ours]}.values()], [torch.Tensor])
    sys.meta_path.insert(0, NoAnswers())
    public = importlib.import_module("tfmlib.proof")                     # what the cells import: a copy whose checks do nothing
    public.Checker.__call__ = lambda self, attempt: public.Result(self.exercise, getattr(attempt, "__name__", ""), False, 0)
    return found, restore


def execute(sources: list[str], seconds: float) -> tuple[dict, list[tuple[str, str]]]:
    "Run the cells, each as far as it gets: what they define, and (source, error) of those that fail."
    names, failed = vars(sys.modules["__main__"]), []
    names |= {"display": lambda *a, **k: None, "get_ipython": lambda: None}
    for number, source in enumerate(sources, 1):
        file = f"<code cell {number}>"
        linecache.cache[file] = len(source), None, source.splitlines(True), file     # kernels are run from their source
        try:
            with limit(seconds): exec(compile(source, file, "exec"), names)
        except BaseException as error:                                    # SystemExit and KeyboardInterrupt too
            failed.append((source, f"code cell {number} stops with {type(error).__name__}: {error}"))
    return names, failed


def guarded(attempt: object, restore: Callable[[], None]) -> object:
    "The attempt; after each call of a function, what it changed around the checker is undone."
    import torch
    if not isinstance(attempt, types.FunctionType): return attempt

    @wraps(attempt)
    def call(*args, **kwargs):
        dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
        try: return attempt(*args, **kwargs)
        finally:
            restore()
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradients)
    return call


def settle() -> None:
    "PyTorch as a program finds it at its start."
    import torch
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def examine(name: str, checker, names: dict, failed: list[tuple[str, str]], restore: Callable[[], None], seconds: float) -> dict:
    "What the book's checker says to the attempt at one exercise."
    row = {"exercise": name, "passed": False, "failed": "", "why": ""}
    if name not in names:
        why = next((error for source, error in failed if name in names_in(source)), "no cell defines it")
        return row | {"failed": "it is defined", "why": why}
    try:
        with limit(seconds): result = checker.examine(guarded(names[name], restore))
    except BaseException as error: return row | {"failed": "it comes to an end", "why": f"it raised {type(error).__name__}: {error}"}
    return row | {"passed": result.passed, "failed": result.failed or "", "why": result.why}


def child(path: Path, seconds: float, names: list[str]) -> None:
    "Grade the notebook at `path`: one line of JSON an exercise, on a channel that its cells do not know."
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(nowhere, stream)
    say = lambda row: (channel.write(json.dumps(row) + "\n"), channel.flush())
    sys.modules["__main__"] = types.ModuleType("__main__")                # the cells' own, this module is out of their reach
    try:
        sources = cells_of(path)
        found, restore = load(names or practice_modules(), sources)
    except (ImportError, OSError, ValueError) as error:
        say({"error": str(error)})
        os._exit(0)
    say({"exercises": list(found)})
    defined, failed = execute(sources, seconds)
    restore()
    settle()
    for name, checker in found.items(): say(examine(name, checker, defined, failed, restore, seconds))
    say({"done": True})
    os._exit(0)                                                           # whatever the cells left running ends here


# --- in ours ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Row:
    "One exercise of one submission."
    file: str
    exercise: str
    passed: bool
    failed: str
    why: str


def run_child(path: Path, seconds: float, names: list[str]) -> tuple[str, str]:
    "What the child said, and how it ended if not well."
    flags = ["--child", str(path), "--timeout", str(seconds), *(x for n in names for x in ("--checkers", n))]
    env = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        try:
            done = subprocess.run([sys.executable, __file__, *flags], cwd=empty, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, encoding="utf-8", errors="replace", timeout=WHOLE * seconds + START)
        except subprocess.TimeoutExpired as error:
            return (error.stdout or b"").decode(errors="replace"), "the notebook did not come to an end and was stopped"
    last = (done.stderr.strip().split("\n") or [""])[-1]
    return done.stdout, "the notebook ended the program before it was checked" + (f" ({last})" if last else "")


def grade(path: Path, seconds: float, names: list[str]) -> list[Row]:
    "The rows of one submission."
    said, ending = run_child(path, seconds, names)
    facts = [json.loads(line) for line in said.split("\n") if line.startswith("{") and line.endswith("}")]
    known = next((f["exercises"] for f in facts if "exercises" in f), [])
    rows = {f["exercise"]: Row(path.name, **f) for f in facts if "exercise" in f}
    why = next((f["error"] for f in facts if "error" in f), ending)
    return [rows.get(n) or Row(path.name, n, False, "it is checked", why) for n in known] or [Row(path.name, "", False, "it is checked", why)]


def check(paths: list[Path], seconds: float = 10, jobs: int = 1, names: list[str] | None = None) -> list[Row]:
    "The rows of all submissions, in the order of `paths`."
    with ThreadPoolExecutor(jobs) as pool:
        graded = pool.map(partial(grade, seconds=seconds, names=names or []), [p.resolve() for p in paths])
        return [row for rows in graded for row in rows]


def table(rows: list[Row]) -> str:
    "One line a submission, then one a failure."
    files = {row.file: [r for r in rows if r.file == row.file] for row in rows}
    wide = max(map(len, files))
    marks = "\n".join(f"{name:{wide}}  {sum(r.passed for r in of)}/{len(of)}  " + " ".join(("✓ " if r.passed else "✗ ") + r.exercise for r in of)
                      for name, of in files.items())
    failures = "\n".join(f"{r.file}: {r.exercise}: {r.failed}: {r.why}" for r in rows if not r.passed)
    return f"{marks}\n\nWhat failed\n{failures or 'nothing'}"


def as_csv(rows: list[Row]) -> str:
    "The rows as CSV; a text that a spreadsheet would run as a formula gets an apostrophe."
    plain = lambda value: f"'{value}" if str(value).startswith(("=", "+", "-", "@")) else value
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([plain({True: "yes", False: "no"}.get(v, v)) for v in (getattr(r, c) for c in COLUMNS)] for r in rows)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where the notebooks are")
    parser.add_argument("--csv", type=Path, help="write every result there too: " + ", ".join(COLUMNS))
    parser.add_argument("--timeout", type=float, default=10, metavar="SECONDS",
                        help=f"for one cell and for one exercise (default: %(default)s); the whole notebook gets {WHOLE} times that, and {START} s to start")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="notebooks at a time (default: %(default)s)")
    parser.add_argument("--checkers", action="append", default=[], metavar="MODULE", help="checkers of your own (default: those of tfmlib.practice)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child: child(given.child, given.timeout, given.checkers)
    if given.folder is None or not given.folder.is_dir(): parser.error(f"folder: {given.folder} is no folder; expected one that holds notebooks")
    if given.timeout <= 0: parser.error(f"timeout: {given.timeout}; expected more than 0 seconds")
    paths = sorted(given.folder.glob("*.ipynb"))
    if not paths: parser.error(f"folder: {given.folder} holds no notebook (*.ipynb)")
    rows = check(paths, given.timeout, max(1, given.jobs), given.checkers)
    print(table(rows))
    if given.csv: given.csv.write_text(as_csv(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
