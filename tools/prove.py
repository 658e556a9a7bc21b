"""Prove the book, stage by stage: python tools/prove.py [--quick | --whole] [--fresh] [STAGE ...]

Stages: lint; book (the strict build); wheel; notebooks (on this processor); older (notebooks as on
a processor without AVX); library (tests of tfmlib, bench and kernels); site (tests of the pages,
the tools and the house).

A file of tests or a notebook whose key, the hash of what it reads (tools/steps.py), has passed in
this clone is skipped, and counted as skipped; --fresh runs it again. As on the older processor,
notebooks run whose content is not in tests/swept.json; so do pages in Chromium. --whole runs
everything, also the sweeps that only repeat a class (marked `whole`), and writes that list anew; a
stage that was stopped goes on where it was. --quick runs, of what differs from the branch's base,
what is not slow.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import steps

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebook_files  # noqa: E402

# A library of numbers picks its code by the processor it runs on, and sums in another order give
# other last bits. Each can be told by a variable to behave
# as on an older one: PyTorch's own loops, MKL (its products), oneDNN, NumPy's products, NumPy's
# loops, the C library's exp and sin.
SETTINGS = {
    "native": {},
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE",
                 "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem",
                 "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
                 "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"},
}
BUILD = ROOT / "build/proof"
PASSED = BUILD / "passed.json"
# what passed in the last whole proof: notebooks as on the older processor, pages in Chromium
SWEPT = ROOT / "tests/swept.json"
PY = sys.executable
# in a terminal Sphinx says which page it is at; a log stays short
QUIET = [] if sys.stdout.isatty() else ["-q"]
CORES = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            or 1, 4)


def shared(processes: int) -> list[str]:
    "Share files out among processes: a file's cells and fixtures stay together."
    return ["-n", str(processes), "--dist", "loadfile"]


def run(*command, cwd: Path = ROOT, **env: str) -> bool:
    "Run a command with extra environment variables; was it a success?"
    return subprocess.run([str(c) for c in command], cwd=cwd, env=os.environ | env).returncode == 0


# --- what runs ------------------------------------------------------------------------------------

def git(*command: str) -> str:
    "What git says; nothing where there is no git, or no such commit."
    try: done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError: return ""
    return done.stdout if done.returncode == 0 else ""


@cache
def base() -> str:
    "The commit from which this branch left the one that it follows, or else the last one."
    return git("merge-base", "HEAD", "@{upstream}").strip() or "HEAD"


@cache
def changed() -> frozenset[Path]:
    "The files that differ from the base; of notebooks, those of which more than prose differs."
    names = {*git("diff", "--name-only", "--no-renames", base()).splitlines(),
             *git("ls-files", "-o", "--exclude-standard").splitlines()}
    def only_prose(name: str) -> bool:
        before = git("show", f"{base()}:{name}")
        return (name.endswith(".ipynb") and bool(before) and (ROOT / name).is_file()
                and steps.code(before) == steps.code((ROOT / name).read_text(encoding="utf-8")))
    return frozenset(ROOT / name for name in names if not only_prose(name))


def due(stage: str, keys: dict[Path, str], given: argparse.Namespace) -> dict[Path, str]:
    "The files whose key has not passed in this clone; says how many are skipped."
    passed = {} if given.fresh else steps.load(PASSED)
    left = {path: key for path, key in keys.items() if passed.get(name_of(stage, path)) != key}
    print(
        f"{stage}: {len(left)} files run, {len(keys) - len(left)} skipped, which have passed in "
        "this clone as they are", flush=True)
    return left


def name_of(stage: str, path: Path) -> str: return f"{stage} {path.relative_to(ROOT).as_posix()}"


def planned(stage: str, files: dict[str, tuple[str, str]]) -> dict[str, str]:
    "The environment that has pytest note which of these files pass."
    plan = BUILD / f"{stage}.plan.json"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps({"record": str(PASSED), "steps": files}))
    return {steps.PLAN: str(plan)}


# --- stages ---------------------------------------------------------------------------------------

def lint(_) -> bool:
    "ruff over the code that people write; notebooks too, generated modules not."
    return run(PY, "-m", "ruff", "check", ".")


def book(given: argparse.Namespace) -> bool:
    "The strict build, from stored outputs, and that every page of the table of contents is there."
    jupyter_book, built = Path(PY).with_name("jupyter-book"), ROOT / "_build/html/searchindex.js"
    key = steps.digest(steps.files_digest(ROOT / name for name in steps.tracked()), steps.machine())
    if not given.fresh and built.is_file() and steps.load(PASSED).get("book") == key:
        print("book: skipped, it was built in this clone from what is there")
        return True
    done = (run(jupyter_book, "build", ".", "-W", "-n", "--keep-going", *QUIET)
            and run(PY, "tools/built.py"))
    if done: steps.keep(PASSED, "book", key)
    return done


def wheel(_) -> bool:
    "The wheel, unpacked where nothing of this checkout can be imported instead."
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    if not run(PY, "-m", "build", "--wheel", "--no-isolation", "-o", BUILD / "wheel", "."):
        return False
    [made] = (BUILD / "wheel").glob("*.whl")
    return run(PY, "-m", "pip", "install", "-q", "--no-deps", "--target", BUILD / "site", made)


def content_keys() -> dict[Path, str]:
    "Each notebook of the book: the hash of its code and outputs."
    return {path: steps.notebook_key(path) for path in notebook_files(ROOT / "chapters")}


def chosen(given: argparse.Namespace, setting: str) -> dict[Path, str]:
    "The notebooks of which it is to be shown that they run under a setting, with their keys."
    notebooks = content_keys()
    if given.quick: notebooks = {path: key for path, key in notebooks.items() if path in changed()}
    elif setting != "native" and not given.whole:
        swept = json.loads(SWEPT.read_text())["older"]
        notebooks = {path: key for path, key in notebooks.items()
                     if swept.get(path.relative_to(ROOT).as_posix()) != key}
    def key(path: Path, own: str) -> str:
        return steps.digest(own, steps.files_digest([*steps.notebook_modules(path), *steps.data()]),
                            json.dumps(SETTINGS[setting]), steps.machine())
    return {path: key(path, own) for path, own in notebooks.items()}


def notebooks(given: argparse.Namespace, setting: str = "native") -> bool:
    """nbval over the Colab copies, in an empty directory, against the wheel, on this processor or
    as on another."""
    stage = "notebooks" if setting == "native" else "older"
    left = due(stage, chosen(given, setting), given)
    if not left: return True
    copies, empty = BUILD / "colab", BUILD / "empty"
    if not run(PY, "tools/colab.py", copies): return False
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir(parents=True)
    names = {path.relative_to(ROOT).as_posix(): (name_of(stage, path), key)
             for path, key in left.items()}
    how = ["--nbval-lax"] if os.environ.get("TFM_LAX") else ["--nbval"]
    flags = ["--nbval-sanitize-with", ROOT / "tests/nbval.cfg", "--nbval-current-env",
             "--nbval-cell-timeout", "1800", "--nbval-kernel-startup-timeout", "300"]
    return run(PY, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", copies, "-p",
               "no:cacheprovider", "-p", "steps", "-p", "kernel_copies", "--durations=5",
               "--no-loadscope-reorder", *shared(CORES), *how, *flags,
               *(copies / name for name in slowest_first(names)), cwd=empty,
               PYTHONPATH=os.pathsep.join([str(BUILD / "site"), str(ROOT / "tools")]),
               TFM_PEERS="required", OMP_NUM_THREADS="1", TQDM_DISABLE="1", **SETTINGS[setting],
               **planned(stage, names))


def slowest_first(names: dict) -> list[str]:
    "Notebooks by their measured time: a long one that began last would run alone."
    rows = json.loads((ROOT / "tfmlib/assets/records/pages.json").read_text(
        encoding="utf-8"))["rows"]
    taken = {f"chapters/{row['page']}.ipynb": row["seconds on the clock"]["median"] for row in rows}
    return sorted(names, key=lambda name: -taken.get(name, 0))


def older(given: argparse.Namespace) -> bool:
    """The same, as on a processor without AVX: sums run in another order, so nothing may hang on
    their last bits. Not in the quick part."""
    return given.quick or notebooks(given, "baseline")


def tests(stage: str, given: argparse.Namespace) -> bool:
    "The files of tests in a folder."
    reads = {path: steps.test_reads(path)
             for path in sorted((ROOT / "tests" / stage).glob("test_*.py"))}
    if given.quick:
        reads = {path: read for path, read in reads.items() if stage == "site" or read & changed()}
    if given.quick and not changed_at_all(): reads = {}
    whole = "whole" if given.whole else ""
    keys = {path: steps.digest(steps.files_digest(read), steps.machine(), steps.chromium())
            for path, read in reads.items()}
    left = due(f"{whole} {stage}".strip(), keys, given)
    if not left: return True
    names = {path.relative_to(ROOT).as_posix(): (name_of(f"{whole} {stage}".strip(), path), key)
             for path, key in left.items()}
    without = (["-m", "not whole and not slow and not browser"] if given.quick
               else ["-m", "not whole"] if not given.whole else [])
    return run(PY, "-m", "pytest", "-p", "steps", "--durations=12", "--no-loadscope-reorder",
               *shared(CORES + (stage == "site")), *without, *names,
               PYTHONPATH=str(ROOT / "tools"), OMP_NUM_THREADS="1",
               **({"TFM_WHOLE": "1"} if given.whole else {}),
               **({} if given.quick else planned(stage, names)))


def changed_at_all() -> bool:
    return bool(git("diff", "--name-only", base()) or git("ls-files", "-o", "--exclude-standard"))


def library(given: argparse.Namespace) -> bool: return tests("library", given)


def site(given: argparse.Namespace) -> bool: return tests("site", given)


# Minutes that each may take on two idle cores: the ordinary proof, --quick, --whole.
STAGES: dict[str, tuple[Callable, float, float, float]] = {
    "lint": (lint, .1, .1, .1), "book": (book, 3, 2.5, 3), "wheel": (wheel, .2, .2, .2),
    "notebooks": (notebooks, 7, 2.5, 7), "older": (older, 2, .1, 14),
    "library": (library, 2.7, 2, 20), "site": (site, 3, 1, 30)}


def beside(names: list[str], results: dict, fresh: bool = False) -> Callable[[], None]:
    """Begin the book, which keeps one processor busy, while other stages run; what is returned
    waits for it and says what it said."""
    if "book" not in names or len(names) == 1: return lambda: None
    start, log, ended = time.perf_counter(), tempfile.TemporaryFile("w+"), []
    process = subprocess.Popen([PY, __file__, *["--fresh"] * fresh, "book"], cwd=ROOT,
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    names.remove("book")
    clock = threading.Thread(target=lambda: ended.append((process.wait() == 0,
                                                          time.perf_counter() - start)))
    clock.start()
    def wait() -> None:
        clock.join()
        log.seek(0)
        print(log.read(), flush=True)
        results["book"] = ended[0]
    return wait


def sweep() -> None:
    "After a whole proof: what has passed as on the older processor, and which pages in Chromium."
    import swept
    SWEPT.write_text(json.dumps({"older": {path.relative_to(ROOT).as_posix(): key
                                           for path, key in content_keys().items()},
                                           "pages": swept.pages(ROOT / "_build/html")},
                                           indent=1) + "\n")


def shown(results: dict[str, tuple[bool, float]], column: int) -> str:
    "The stages with their minutes, against those that they may take."
    def row(name: str, good: bool, taken: float) -> str:
        limit = STAGES[name][column]
        return (
            f"{'ok    ' if good else 'FAILED'} {name:10} {taken / 60:5.1f} min of "
            f"{limit:4.1f}{'   OVER ITS LIMIT' * (taken / 60 > limit)}")
    return "\n".join(row(name, *result) for name, result in results.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--whole", action="store_true",
                        help="every sweep, and every notebook as on the older processor too")
    parser.add_argument("--fresh", action="store_true",
                        help="also what has passed in this clone as it is")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    given = parser.parse_args()
    unknown = set(given.stages) - set(STAGES)
    if unknown: parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    if given.quick and given.whole:
        parser.error("--quick leaves out parts of what --whole runs")
    results, names, began = {}, list(given.stages or STAGES), time.perf_counter()
    wait = beside(names, results, given.fresh)
    for name in names:
        if name == "site": wait()                         # its tests look at the book
        print(f"\n── {name} " + "─" * (70 - len(name)), flush=True)
        start = time.perf_counter()
        results[name] = (STAGES[name][0](given), time.perf_counter() - start)
    if "book" in (given.stages or STAGES) and "book" not in results: wait()
    print("\n" + shown(results,
                       1 + given.quick + 2 * given.whole)
          + f"\n       together   {(time.perf_counter() - began) / 60:5.1f} min")
    failed = sum(not good for good, _ in results.values())
    if given.whole and not failed and {"older", "site"} <= results.keys(): sweep()
    print(f"\nstages: {len(results) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
