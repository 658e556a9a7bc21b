"""Prove the book, stage by stage: python tools/prove.py [--quick | --whole] [STAGE ...]

Stages: lint, book, wheel, notebooks (on this processor), baseline (notebooks as on an older one), tests. Every notebook runs, one
half here and the other half as the baseline; the halves change places from commit to commit, and a notebook that the last commit
or the working tree has changed runs as both. In the tests of practice in the page and of handouts, practice pages take turns in the
same way. `--whole` runs all of everything, as the weekly workflow does; `--quick` leaves out slow and browser tests, and runs only
the notebooks that differ from the last commit, once. A stage that fails does not stop the others; the exit code tells. The book is built beside the stages before `tests`. `--record` notes in tests/proved.json and README what
passed, and where; it goes with `--whole`.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from processors import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebook_files  # noqa: E402

BUILD = ROOT / "build"
PY = sys.executable
QUIET = [] if sys.stdout.isatty() else ["-q"]            # in a terminal Sphinx says which page it is at; a log stays short
CORES = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)


def shared(processes: int) -> list[str]:
    "Share files out among processes: a file's cells and fixtures stay together."
    return ["-n", str(processes), "--dist", "loadfile"]


def run(*command, cwd: Path = ROOT, **env: str) -> bool:
    "Run a command with extra environment variables; was it a success?"
    return subprocess.run([str(c) for c in command], cwd=cwd, env=os.environ | env).returncode == 0


def lint(_) -> bool:
    "ruff over the code that people write; notebooks too, generated modules not."
    return run(PY, "-m", "ruff", "check", ".")


def book(_) -> bool:
    "The strict build, from stored outputs, and that every page of the table of contents is there."
    jupyter_book = Path(PY).with_name("jupyter-book")
    return run(jupyter_book, "build", ".", "-W", "-n", "--keep-going", *QUIET) and run(PY, "tools/built.py")


def wheel(_) -> bool:
    "The wheel, unpacked where nothing of this checkout can be imported instead."
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    if not run(PY, "-m", "build", "--wheel", "--no-isolation", "-o", BUILD / "wheel", "."): return False
    [made] = (BUILD / "wheel").glob("*.whl")
    return run(PY, "-m", "pip", "install", "-q", "--no-deps", "--target", BUILD / "site", made)


def git(*command: str) -> str:
    "What git says; nothing where there is no git, or no such commit."
    try: done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError: return ""
    return done.stdout if done.returncode == 0 else ""


def changed() -> set[str]:
    "The notebooks that differ from the last commit, as git names them."
    return {line[3:] for line in git("status", "--porcelain", "-uall", "--no-renames", "chapters").splitlines()}


def halves(names: list[str], setting: str) -> list[str]:
    "The notebooks whose turn it is to run under a setting: every second one, which ones depends on the commit, and those that have just changed."
    commit = git("rev-parse", "HEAD").strip()
    if not commit: return names
    lately = changed() | set(git("diff", "--name-only", "--no-renames", "HEAD~1", "HEAD", "--", "chapters").split("\n"))
    turn = (int(commit[-1], 16) + (setting == "baseline")) % 2
    return [name for i, name in enumerate(names) if i % 2 == turn or name in lately]


def chosen(copies: Path, given: argparse.Namespace, setting: str) -> list[Path]:
    "The Colab copies to run: those whose turn it is, all, or those whose notebook differs from the last commit."
    names = [str(path.relative_to(copies)) for path in notebook_files(copies)]
    if given.quick: names = [name for name in names if name in changed()]
    elif not given.whole: names = halves(names, setting)
    return [copies / name for name in names]


def notebooks(given: argparse.Namespace, setting: str = "native") -> bool:
    "nbval over the Colab copies, in an empty directory, against the wheel, on this processor or as on another."
    if not run(PY, "tools/colab.py"): return False
    copies, empty = BUILD / "colab", BUILD / "empty"
    paths = chosen(copies, given, setting)
    if not paths:
        print("no notebook differs from the last commit")
        return given.quick
    print(f"{len(paths)} notebooks, {setting}", flush=True)
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir(parents=True)
    how = ["--nbval-lax"] if os.environ.get("TFM_LAX") else ["--nbval"]
    flags = ["--nbval-sanitize-with", ROOT / "tests/nbval.cfg", "--nbval-current-env", "--nbval-cell-timeout", "1800", "--nbval-kernel-startup-timeout", "300"]
    return run(PY, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", copies, "-p", "no:cacheprovider", "--durations=5", *shared(CORES), *how, *flags, *paths,
               cwd=empty, PYTHONPATH=str(BUILD / "site"), TFM_PEERS="required", OMP_NUM_THREADS="1", TQDM_DISABLE="1", **SETTINGS[setting])


def baseline(given: argparse.Namespace) -> bool:
    "The same, as on a processor without AVX: sums run in another order, so nothing may hang on their last bits. Not in the quick part."
    return given.quick or notebooks(given, "baseline")


def tests(given: argparse.Namespace) -> bool:
    "Everything in tests/, with a process more than processors: some tests wait, for a browser, a server or another process."
    return run(PY, "-m", "pytest", "--durations=12", "--no-loadscope-reorder", *shared(CORES + 1), *(["-m", "not slow and not browser"] if given.quick else []), OMP_NUM_THREADS="1", **({"TFM_WHOLE": "1"} if given.whole else {}))


STAGES = {"lint": lint, "book": book, "wheel": wheel, "notebooks": notebooks, "baseline": baseline, "tests": tests}


def beside(names: list[str], results: dict) -> Callable[[], None]:
    "Begin the book, which keeps one processor busy, while other stages run; what is returned waits for it and says what it said."
    if "book" not in names or len(names) == 1: return lambda: None
    start, log = time.perf_counter(), tempfile.TemporaryFile("w+")
    process = subprocess.Popen([PY, __file__, "book"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    names.remove("book")
    def wait() -> None:
        good = process.wait() == 0
        log.seek(0)
        print(log.read(), flush=True)
        results["book"] = (good, time.perf_counter() - start)
    return wait


def note(results: dict[str, bool]) -> None:
    "Keep what this run has shown."
    sys.path.insert(0, str(ROOT))
    import proved
    proved.keep(results, BUILD / "colab")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--whole", action="store_true", help="every notebook on this processor and as on the older one")
    parser.add_argument("--record", action="store_true", help="note what passed, and where")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    given = parser.parse_args()
    unknown = set(given.stages) - set(STAGES)
    if unknown: parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    if given.quick and (given.record or given.whole): parser.error("--quick leaves out parts of what --whole runs and --record notes")
    if given.record and not given.whole: parser.error("--record notes whole stages: add --whole")
    results, names = {}, list(given.stages or STAGES)
    wait = beside(names, results)
    for name in names:
        if name == "tests": wait()                         # they look at the book
        print(f"\n── {name} " + "─" * (70 - len(name)), flush=True)
        start = time.perf_counter()
        results[name] = (STAGES[name](given), time.perf_counter() - start)
    if "book" in (given.stages or STAGES) and "book" not in results: wait()
    print("\n" + "\n".join(f"{'ok    ' if good else 'FAILED'} {name:10} {taken:6.1f} s" for name, (good, taken) in results.items()))
    failed = sum(not good for good, _ in results.values())
    print(f"\nstages: {len(results) - failed} passed, {failed} failed")
    if given.record: note({name: good for name, (good, _) in results.items()})
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
