"""How long each chapter's page takes to run, on one thread: what its head says.

On the clock; beside it, the kernel's processor time, which says how idle the machine was. (It lacks
the processes that a page starts itself, and other work can double even processor time where cores
share parts.)
"""
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ticked
from tfmlib.workbench import spread

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "extensions")]

from pages import notebook_files  # noqa: E402

REPEATS = 3


def chapters() -> list[Path]:
    "The notebooks whose head says how long they run."
    return [path for path in notebook_files(ROOT / "chapters") if path.parent.name != "practice"
            and "{runtime}`" in path.read_text(encoding="utf-8")]


def used() -> float:
    "The processor time of the kernels that have ended, and of what they started."
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def once(path: Path) -> tuple[float, float, int]:
    """Run a notebook in a kernel of its own: its processor time and its time on the clock, in
    seconds, and its code cells."""
    from execute import run
    before, start = used(), time.perf_counter()
    nb = run(path)
    return (used() - before, time.perf_counter() - start,
            sum(cell.cell_type == "code" for cell in nb.cells))


def measure(seed: int) -> Iterator[dict]:
    "Each chapter, several times, from the start of its kernel to its end."
    from lab import environment
    os.environ.update(environment(dict(os.environ)) | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"})
    for path in ticked(chapters(), "page"):
        runs = [once(path) for _ in range(REPEATS)]
        yield {"page": path.relative_to(ROOT / "chapters").with_suffix("").as_posix(),
               "cells": runs[0][2], "seconds": spread([r[0] for r in runs]),
               "seconds on the clock": spread([r[1] for r in runs])}
