"""Check a folder of submitted practice notebooks: python tools/submissions.py FOLDER [--csv out.csv] [--timeout SECONDS]

A process of its own runs a notebook's cells, as far as they go, in an empty directory, and gives what they define under an
exercise's name to the book's own checkers, which were loaded before. Another, which never runs the students' code, asks each
answer that passed again, from outside, compares what comes back as plain data, and is the only one that reports. What the
notebook says about itself does not count. Time is the processor's, so that a busy machine fails nobody.

This runs the students' code with your rights. It guards against accidents and against plain cheating (a changed checker, a
changed PyTorch, a forged report, the book's own answers), but it is NO SANDBOX: use a machine or a container that has nothing
to lose.
"""
import argparse
import copy
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
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from multiprocessing import get_context
from operator import is_
from pathlib import Path

if __name__ == "__main__":                                            # before PyTorch reads it
    os.environ |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

from remote import Ended, Function, Peer, Unsupported  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
FORKS = sys.platform == "linux"                                       # elsewhere libraries may not survive a fork
COLUMNS = ("file", "exercise", "passed", "failed", "why")
WHOLE, START = 4, 300                 # an answer is stopped from outside after so many times its limit, or so many seconds more by the clock


# --- in the notebook's own process --------------------------------------------------------------------------------

class Overtime(Exception):
    "A cell or an attempt took longer than allowed."


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    "Interrupt what takes more of the processor's time, again and again (where the system can; from outside it is stopped everywhere)."
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_): raise Overtime(f"no end after {seconds:g} s")
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)
    try: yield
    finally: signal.setitimer(signal.ITIMER_PROF, 0)


def warm_up() -> None:
    "Load what PyTorch loads when something is done for the first time: a student's time does not pay for it."
    import torch

    from tfmlib.workbench import does_without, watched
    x = torch.ones(2, 2)
    watched(torch.add, x, x)
    does_without(("softmax",), torch.add, x, x)
    (x.requires_grad_() @ x).softmax(-1).sum().backward()
    torch.autograd.functional.jacobian(torch.exp, torch.ones(1))


def one_thread() -> None:
    "A fork does not have the threads that its parent computed with, and would wait for them for ever."
    import torch
    torch.set_num_threads(1)


def practice_modules() -> list[str]:
    "The modules of tfmlib.practice."
    import tfmlib.practice
    return [f"tfmlib.practice.{m.name}" for m in pkgutil.iter_modules(tfmlib.practice.__path__)]


def checkers(module: types.ModuleType) -> dict[str, object]:
    "The checkers of a practice module, by exercise."
    from tfmlib.workbench import Checker
    return {n.removeprefix("check_"): c for n, c in vars(module).items() if n.startswith("check_") and isinstance(c, Checker)}


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

    def same(now: dict, then: dict, of=all, each=map, size=len) -> bool: return size(now) == size(then) and of(each(is_, now, then)) and of(each(is_, now.values(), then.values()))

    def restore() -> None:
        sys.modules.update(loaded)
        for thing, then in held:
            now = vars(thing)
            if same(now, then): continue
            for name in [n for n, v in then.items() if n not in now or now[n] is not v]: setattr(thing, name, then[name])
            for name in [n for n in now if n not in then] if thing in classes else []: delattr(thing, name)
    return restore


class NoAnswers:
    "Refuses the modules that the chapters write: they hold the book's own answers. The workbench stays open."
    OPEN = {"practice", "workbench"}

    def find_spec(self, name: str, path=None, target=None) -> None:
        top, _, rest = name.partition(".")
        if top == "tfmlib" and rest and rest.split(".")[0] not in self.OPEN:
            raise ImportError(f"{name} holds the book's own answers; a submission has to do without it")


def forbid(folders: list[Path]) -> None:
    "Let nothing below these folders be opened from here on, however it is asked for."
    places, real, text = tuple(str(f) + os.sep for f in folders), os.path.realpath, os.fsdecode

    def refuse(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str | bytes) and (real(text(args[0])) + os.sep).startswith(places):
            raise PermissionError("this file holds the book's own answers; a submission has to do without it")
    sys.addaudithook(refuse)


def answers_of(root: Path) -> list[Path]:
    "Where the book's own answers are: its notebooks, what is built from them, and the modules that they write."
    modules = [p for p in (root / "tfmlib").iterdir() if p.is_dir() and (p / "core.py").is_file()]
    return [root / name for name in ("chapters", "_build", "build", ".git", "tests", "tfmlib/__pycache__")] + modules


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
    forbid(answers_of(ROOT))
    public = importlib.import_module("tfmlib.workbench.checkers")                     # what the cells import: a copy whose checks do nothing
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
    "The attempt; after each call, and each step of a generator, what it changed around the checker is undone."
    import torch
    if not callable(attempt) or hasattr(attempt, "fn"): return attempt        # a kernel runs in a process of its own

    def settled(call, *args, **kwargs):
        dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
        try: return call(*args, **kwargs)
        finally:
            restore()
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradients)

    def step_by_step(items):
        while True:
            try: item = settled(next, items)
            except StopIteration: return
            yield item

    def call(*args, **kwargs):
        found = settled(attempt, *args, **kwargs)
        if isinstance(found, torch.Tensor) and type(found) not in (torch.Tensor, torch.nn.Parameter): raise TypeError("its answer is a tensor of a class of its own; expected torch.Tensor")
        return step_by_step(found) if isinstance(found, Iterator) else found

    return wraps(attempt)(call) if isinstance(attempt, types.FunctionType) else call


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


def pupil(path: Path, seconds: float, names: list[str]) -> None:
    "Run the notebook at `path`, then answer questions about it on channels that its cells do not know, until there are no more."
    read, write = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(nowhere, stream)
    sys.modules["__main__"] = types.ModuleType("__main__")                # the cells' own, this module is out of their reach
    sources = cells_of(path)
    one_thread()
    found, restore = load(names or practice_modules(), sources)
    defined, failed = execute(sources, seconds)
    restore()
    settle()

    def around(do, *args, **kwargs):
        if do in told: return do(*args, **kwargs)
        with limit(seconds): return do(*args, **kwargs)

    told = {name: partial(examine, name, checker, defined, failed, restore, seconds) for name, checker in found.items()}
    peer, told = Peer(read, write, around=around), list(told.values())
    peer.kept = [*told, *(guarded(defined.get(name), restore) for name in found)]
    peer.send("done", None)
    try:
        while True: peer.serve(*peer.receive())
    except Ended: os._exit(0)                                             # whatever the cells left running ends here


# --- in the process that judges -----------------------------------------------------------------------------------

class Forked:
    "A process that runs `pupil` with what is loaded here already, and shares no channel with anybody but us."
    def __init__(self, *args):
        ours, theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.dup2(ours[0], 0)
                os.dup2(theirs[1], 1)
                os.closerange(3, 65_536)
                os.chdir(args[-1])
                pupil(*args[:-1])
            finally: os._exit(1)
        self.stdin, self.stdout = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        os.close(ours[0])
        os.close(theirs[1])

    def kill(self) -> None:
        with suppress(ProcessLookupError): os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None: os.waitpid(self.pid, 0)


def started(path: Path, seconds: float, names: list[str], empty: str):
    "A process that runs `pupil`: forked where that is safe, or else a fresh interpreter."
    if FORKS: return Forked(path, seconds, names, empty)
    flags = ["--pupil", str(path), "--timeout", str(seconds), *(x for n in names for x in ("--checkers", n))]
    return subprocess.Popen([sys.executable, __file__, *flags], cwd=empty, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def processor_time(pid: int) -> float:
    "The seconds of the processor's time that a process has taken; 0 where the system does not tell."
    try: fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError: return 0.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pupil:
    "The process that runs a notebook. `stopped` says why it is gone, if it is."
    def __init__(self, path: Path, seconds: float, names: list[str], exercises: list[str]):
        self.seconds, self.exercises, self.stopped = seconds, exercises, ""
        self.empty = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = started(path, seconds, names, self.empty.name)
        self.peer = Peer(self.process.stdout, self.process.stdin, strict=True)
        try:
            with self.patience(): self.peer.receive()
        except Ended:
            self.close()
            raise

    @contextmanager
    def patience(self) -> Iterator[None]:
        "Stop the process if it takes more of the processor's time than its own alarm would let it, or far too long by the clock."
        over, start, began = threading.Event(), processor_time(self.process.pid), time.monotonic()

        def watch():
            while not over.wait(0.5):
                if processor_time(self.process.pid) - start < WHOLE * self.seconds and time.monotonic() - began < START + WHOLE * self.seconds: continue
                self.stopped = "it did not come to an end and was stopped"
                return self.process.kill()

        threading.Thread(target=watch, daemon=True).start()
        try: yield
        except Ended:
            self.stopped = self.stopped or "the notebook ended the program before it was checked"
            raise
        finally: over.set()

    def examine(self, name: str) -> dict:
        "What the checker says there: by itself worth nothing."
        with self.patience(): row = self.peer.ask("call", self.exercises.index(name), (), {})
        fits = isinstance(row, dict) and row.keys() == {"exercise", "passed", "failed", "why"} and row["exercise"] == name and type(row["passed"]) is bool
        return row if fits else failure(name, "it is checked", "the notebook forged its report")

    def answer(self, name: str) -> Function: return Function(self.peer, len(self.exercises) + self.exercises.index(name), name)

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError): pipe.close()
        self.process.wait()
        self.empty.cleanup()


def failure(name: str, failed: str, why: str) -> dict: return {"exercise": name, "passed": False, "failed": failed, "why": why}


def asked_again(name: str, checker, pupil: Pupil) -> dict | None:
    "The first property that does not hold if only what comes back counts; questions that cannot be put from outside are left out."
    from tfmlib.workbench import reason
    for statement, test, cases in checker.properties:
        if {"untyped_storage", "data_ptr"} & set(test.__code__.co_names): continue         # whose memory it is, data cannot tell
        for case in cases:
            try:
                with pupil.patience(): test(pupil.answer(name), *copy.deepcopy(case))
            except Unsupported: break
            except Ended: raise
            except (Exception, SystemExit) as error:
                return failure(name, statement, f"{reason(error, case)}, asked again from outside")
    return None


def judged(name: str, checker, pupil: Pupil) -> dict:
    "The verdict on one exercise."
    try:
        row = pupil.examine(name)
        return row["passed"] and asked_again(name, checker, pupil) or row
    except Ended: return failure(name, "it comes to an end", pupil.stopped)


@dataclass(frozen=True)
class Row:
    "One exercise of one submission."
    file: str
    exercise: str
    passed: bool
    failed: str
    why: str


def grade(path: Path, seconds: float, names: list[str]) -> list[Row]:
    "The rows of one submission. None of its code runs in this process."
    try: module = belongs_to(cells_of(path), [importlib.import_module(n) for n in names or practice_modules()])
    except (ImportError, OSError, ValueError) as error: return [Row(path.name, "", False, "it is checked", str(error))]
    found, rows, learner, ended = checkers(module), [], None, ""
    for name, checker in found.items():
        try: learner = learner or not ended and Pupil(path, seconds, names, list(found)) or None
        except Ended: ended = "the notebook ended the program before it was checked, or did not come to an end"
        rows.append(failure(name, "it is checked", ended) if ended else judged(name, checker, learner))
        if learner and (learner.stopped or "no end after" in rows[-1]["why"]): learner = learner.close()     # what was interrupted may be half done
    if learner: learner.close()
    return [Row(path.name, **row) for row in rows]


def check(paths: list[Path], seconds: float = 10, jobs: int = 1, names: list[str] | None = None) -> list[Row]:
    "The rows of all submissions, in the order of `paths`."
    for name in names or practice_modules(): importlib.import_module(name)
    warm_up()
    graded = partial(grade, seconds=seconds, names=names or [])
    if not FORKS: return [row for path in paths for row in graded(path.resolve())]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        return [row for rows in pool.map(graded, [p.resolve() for p in paths]) for row in rows]


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
                        help="of the processor's time, for one cell and for one exercise (default: %(default)s); what ignores that is stopped from outside")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="notebooks at a time (default: %(default)s)")
    parser.add_argument("--checkers", action="append", default=[], metavar="MODULE", help="checkers of your own (default: those of tfmlib.practice)")
    parser.add_argument("--pupil", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if given.pupil: return pupil(given.pupil, given.timeout, given.checkers)
    if given.folder is None or not given.folder.is_dir(): parser.error(f"folder: {given.folder} is not a folder; expected one that holds notebooks")
    if given.timeout <= 0: parser.error(f"timeout: {given.timeout}; expected more than 0 seconds")
    paths = sorted(given.folder.glob("*.ipynb"))
    if not paths: parser.error(f"folder: {given.folder} holds no notebook (*.ipynb)")
    rows = check(paths, given.timeout, max(1, given.jobs), given.checkers)
    print(table(rows))
    if given.csv: given.csv.write_text(as_csv(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
