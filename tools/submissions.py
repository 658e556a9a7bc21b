"""Check a folder of submitted practice notebooks:
python tools/submissions.py FOLDER [--csv out.csv] [--timeout SECONDS]

A process of its own runs a notebook's cells, as far as they go, in an empty directory, and gives
what they define under an exercise's name to the book's own checkers, which were loaded before; a
checker that the notebook defines or changes does not count. Time is the processor's, so that a busy
machine fails nobody.

This runs the students' code with your rights, in the process that checks it. It is NO SANDBOX, and
a student who means to deceive it can: use a machine or a container that has nothing to lose, and
look at what you grade.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("file", "exercise", "passed", "failed", "why")
PATIENCE = 300  # seconds more by the clock, after which a notebook is stopped from outside
QUIET = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
         "CUDA_VISIBLE_DEVICES": ""}


# --- in the notebook's own process ----------------------------------------------------------------

class Overtime(Exception):
    "A cell or an attempt took longer than allowed."


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    "Interrupt what takes more of the processor's time, again and again, where the system can."
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_): raise Overtime(f"no end after {seconds:g} s")
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)
    try: yield
    finally: signal.setitimer(signal.ITIMER_PROF, 0)


def practice_modules() -> list[str]:
    "The modules of tfmlib.practice."
    import tfmlib.practice
    return [f"tfmlib.practice.{m.name}" for m in pkgutil.iter_modules(tfmlib.practice.__path__)]


def checkers(module: types.ModuleType) -> dict[str, object]:
    "The checkers of a practice module, by exercise."
    from tfmlib.workbench import Checker
    return {n.removeprefix("check_"): c for n, c in vars(module).items() if n.startswith("check_")
            and isinstance(c, Checker)}


def cells_of(path: Path) -> list[str]:
    """The sources of a notebook's code cells, without lines for the notebook program; a ValueError
    if it is no notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a notebook ({type(error).__name__}: {error})") from None
    return ["\n".join("" if line.startswith(("%", "!")) else line for line in s.split("\n"))
            for s in sources]


def names_in(source: str) -> set[str]:
    "The names that a cell defines or imports at its top level, whether or not it parses."
    found = re.findall(
        r"^(?:def|class) +(\w+)|^(\w+)(?: *:[^=\n]+)? *=(?!=)|^(?:from|import) .*\b(\w+) *$",
        source, re.M)
    return {a or b or c for a, b, c in found}


def belongs_to(sources: list[str], modules: list[types.ModuleType]) -> types.ModuleType:
    "The practice module with most exercises that these cells name."
    names = set().union(*map(names_in, sources))
    best = max(modules, key=lambda m: len(names & set(checkers(m))), default=None)
    if best is None or not names & set(checkers(best)):
        raise ValueError("it defines no exercise of any practice page")
    return best


class NoAnswers:
    """Refuses the modules that the chapters write: they hold the book's own answers. The workbench
    stays open."""
    OPEN = {"practice", "workbench"}

    def find_spec(self, name: str, path=None, target=None) -> None:
        top, _, rest = name.partition(".")
        if top == "tfmlib" and rest and rest.split(".")[0] not in self.OPEN:
            raise ImportError(
                f"{name} holds the book's own answers; a submission has to do without it")


def failure(name: str, failed: str, why: str) -> dict:
    return {"exercise": name, "passed": False, "failed": failed, "why": why}


def loaded(sources: list[str], names: list[str]) -> dict[str, object]:
    """The checkers for these cells, which get copies of their own of the modules that checkers are
    made of, and not the book's answers."""
    found = checkers(belongs_to(sources,
                                [importlib.import_module(n) for n in names or practice_modules()]))
    for name in [n for n in sys.modules if n.partition(".")[0] == "tfmlib" or n in names]:
        del sys.modules[name]
    sys.meta_path.insert(0, NoAnswers())
    # what the notebook checks itself takes time only
    importlib.import_module("tfmlib.workbench").Checker.__call__ = lambda *_: None
    return found


def execute(sources: list[str], seconds: float) -> tuple[dict, list[tuple[str, str]]]:
    """Run the cells, each as far as it gets: what they define, and (source, error) of those that
    fail."""
    names, failed = vars(sys.modules["__main__"]), []
    names |= {"display": lambda *a, **k: None, "get_ipython": lambda: None}
    for number, source in enumerate(sources, 1):
        file = f"<code cell {number}>"
        # kernels are run from their source
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        try:
            with limit(seconds): exec(compile(source, file, "exec"), names)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too
            failed.append((source,
                           f"code cell {number} stops with {type(error).__name__}: {error}"))
    return names, failed


def settle() -> None:
    "PyTorch as a program finds it at its start."
    import torch
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def examine(name: str, checker, names: dict, failed: list[tuple[str, str]], seconds: float) -> dict:
    "What the book's checker says to the attempt at one exercise."
    if name not in names:
        return failure(name, "it is defined",
                       next((error for source, error in failed if name in names_in(source)),
                            "no cell defines it"))
    try:
        with limit(seconds): result = checker.examine(names[name])
    except BaseException as error:
        return failure(name, "it comes to an end", f"it raised {type(error).__name__}: {error}")
    return {"exercise": name, "passed": result.passed, "failed": result.failed or "",
            "why": result.why}


def end_after(seconds: float) -> None:
    "Have the system end this process when it has taken so much more of the processor's time."
    try:
        import resource
    except ImportError: return
    resource.setrlimit(resource.RLIMIT_CPU, (int(sum(os.times()[:2]) + seconds) + 1,) * 2)


def run(path: Path, seconds: float, names: list[str]) -> None:
    """Run the notebook at `path`; one line of JSON for the names of its exercises, and one for each
    of them."""
    report, nowhere = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(nowhere, stream)
    def tell(what: object) -> None: print(json.dumps(what), file=report, flush=True)
    try: found = loaded(sources := cells_of(path), names)
    except (ImportError, OSError, ValueError) as error:
        return [tell([""]), tell(failure("", "it is checked", str(error)))] and None
    tell(list(found))
    sys.modules["__main__"] = types.ModuleType("__main__")                # the cells' own
    end_after(seconds * (len(sources) + len(found)))
    defined, failed = execute(sources, seconds)
    for name, checker in found.items():
        settle()
        tell(examine(name, checker, defined, failed, seconds))
    os._exit(0)  # whatever the cells left running ends here


# --- around it ------------------------------------------------------------------------------------

def grade(path: Path, seconds: float, names: list[str]) -> list[dict]:
    "The rows of one submission."
    command = [sys.executable, __file__, "--run", path.resolve(), "--timeout", str(seconds),
               *(x for n in names for x in ("--checkers", n))]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        how = {"cwd": empty, "env": os.environ | QUIET, "stdin": subprocess.DEVNULL,
               "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try: said = subprocess.run(command, timeout=PATIENCE + 40 * seconds, **how).stdout
        except subprocess.TimeoutExpired as error: said = error.stdout or b""
    exercises, *rows = [json.loads(line) for line in said.splitlines()] or [[""]]
    rows += [failure(name, "it comes to an end",
                     "the notebook ended the program, or did not come to an end and was stopped")
                     for name in exercises[len(rows):]]
    return [{"file": path.name} | row for row in rows]


def check(paths: list[Path], seconds: float = 10, jobs: int = 1,
          names: list[str] | None = None) -> list[dict]:
    "The rows of all submissions, in the order of `paths`."
    with ThreadPoolExecutor(jobs) as pool:
        return [row for rows in pool.map(partial(grade, seconds=seconds, names=names or []), paths)
                for row in rows]


def table(rows: list[dict]) -> str:
    "One line a submission, then one a failure."
    files = {row["file"]: [r for r in rows if r["file"] == row["file"]] for row in rows}
    wide = max(map(len, files))
    marks = "\n".join(f"{name:{wide}}  {sum(r['passed'] for r in of)}/{len(of)}  "
                      + " ".join(("✓ " if r["passed"] else "✗ ") + r["exercise"] for r in of)
                      for name, of in files.items())
    failures = "\n".join(": ".join(r[c] for c in COLUMNS if c != "passed")
                         for r in rows if not r["passed"])
    return f"{marks}\n\nWhat failed\n{failures or 'nothing'}"


def as_csv(rows: list[dict]) -> str:
    "The rows as CSV; a text that a spreadsheet would run as a formula gets an apostrophe."
    plain = lambda value: f"'{value}" if str(value).startswith(("=", "+", "-", "@")) else value
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([plain({True: "yes", False: "no"}.get(v, v)) for v in (r[c] for c in COLUMNS)]
                     for r in rows)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where the notebooks are")
    parser.add_argument("--csv", type=Path,
                        help="write every result there too: " + ", ".join(COLUMNS))
    parser.add_argument("--timeout", type=float, default=10, metavar="SECONDS",
                        help="of the processor's time, for one cell and for one exercise (default: "
                             "%(default)s); what ignores that is stopped from outside")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2),
                        help="notebooks at a time (default: %(default)s)")
    parser.add_argument("--checkers", action="append", default=[], metavar="MODULE",
                        help="checkers of your own (default: those of tfmlib.practice)")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if given.run: return run(given.run, given.timeout, given.checkers)
    if given.folder is None or not given.folder.is_dir():
        parser.error(f"folder: {given.folder} is not a folder; expected one that holds notebooks")
    if given.timeout <= 0: parser.error(f"timeout: {given.timeout}; expected more than 0 seconds")
    paths = sorted(given.folder.glob("*.ipynb"))
    if not paths: parser.error(f"folder: {given.folder} holds no notebook (*.ipynb)")
    rows = check(paths, given.timeout, max(1, given.jobs), given.checkers)
    print(table(rows))
    if given.csv: given.csv.write_text(as_csv(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
