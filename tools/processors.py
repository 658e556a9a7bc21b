"""Run notebooks as other processors would: python tools/processors.py [--settings NAME,NAME] [--out FILE] [NOTEBOOK ...]

A library of numbers picks its code by the processor it runs on, and sums in another order give other last bits. Each library can
be told by a variable to behave as on an older processor. This runs every notebook under each setting and counts the cells that
change: in any bit of any output (raw), in an output that the proof compares (compared), and the cells that raise an error.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebook_files  # noqa: E402

# What each variable speaks to: PyTorch's own loops, MKL (its products), oneDNN, NumPy's products, NumPy's loops, the C library's exp and sin.
SETTINGS = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Zen",
             "NPY_DISABLE_CPU_FEATURES": "X86_V4"},
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem",
                 "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"},
}
FIGURE = re.compile(r'<figure class="tfm-figure.*?</figure>', re.S)                      # as tests/nbval.cfg does
SKIPPED = {"image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json"}    # as nbval does
ONE = """
import sys, nbformat
from nbclient import NotebookClient
nb = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(nb, timeout=1800, allow_errors=True, store_widget_state=False, resources={"metadata": {"path": sys.argv[3]}}).execute()
nbformat.write(nb, sys.argv[2])
"""


def executed(path: Path, setting: str) -> nbformat.NotebookNode:
    "The notebook after a run under a setting; a cell that raises does not stop it."
    env = os.environ | SETTINGS[setting] | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        (empty := Path(folder) / "empty").mkdir()
        out = Path(folder) / "out.ipynb"
        subprocess.run([sys.executable, "-c", ONE, path, out, empty], env=env, check=True, capture_output=True)
        return nbformat.read(out, as_version=4)


def contents(cell, raw: bool) -> list:
    "What a cell shows: everything, or what the proof compares of it."
    if not raw and "nbval-ignore-output" in cell.metadata.get("tags", []): return []
    shown = []
    for output in cell.outputs:
        if output.output_type == "stream": shown.append(output.text)
        elif output.output_type == "error": shown.append(f"{output.ename}: {output.evalue}")
        else: shown.append({k: v if raw else FIGURE.sub("a figure", str(v)) for k, v in output.data.items() if k not in SKIPPED})
    return [s for s in shown if s]


def codes(nb) -> dict:
    "The code cells by id."
    return {c.id: c for c in nb.cells if c.cell_type == "code"}


def differing(one, other, raw: bool) -> list[str]:
    "The ids of the cells in which two runs of a notebook differ."
    theirs = codes(other)
    return [i for i, c in codes(one).items() if contents(c, raw) != contents(theirs[i], raw)]


def raised(nb) -> list[str]:
    "The ids of the cells that raised."
    return [i for i, c in codes(nb).items() if any(o.output_type == "error" for o in c.outputs)]


def examined(path: Path, settings: list[str]) -> dict:
    "What changes in one notebook under each setting, against the stored outputs and against the native run; native runs twice."
    stored, runs = nbformat.read(path, as_version=4), {s: executed(path, s) for s in settings}
    native = runs.get("native", stored)
    varying = set(differing(native, executed(path, "native"), True)) if "native" in runs else set()
    return {"notebook": str(path.relative_to(ROOT)), "cells": len(codes(stored)), "varying": len(varying), "settings": {
        s: {"raw": sorted(set(differing(native, nb, True)) - varying), "compared": differing(stored, nb, False), "raised": raised(nb),
            "texts": {i: [contents(codes(stored)[i], False), contents(codes(nb)[i], False)] for i in differing(stored, nb, False)}}
        for s, nb in runs.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("notebooks", nargs="*", type=Path)
    given = parser.parse_args()
    settings = given.settings.split(",")
    if unknown := set(settings) - set(SETTINGS): parser.error(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(SETTINGS)}")
    paths = [p.resolve() for p in given.notebooks] or notebook_files(ROOT / "chapters")
    found = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for result in pool.map(lambda p: examined(p, settings), paths):
            found.append(result)
            counts = ", ".join(f"{s}: {len(r['raw'])} raw, {len(r['compared'])} compared, {len(r['raised'])} raised" for s, r in result["settings"].items())
            print(f"{result['notebook']} ({result['cells']} cells, {result['varying']} vary by themselves): {counts}", flush=True)
            for s, r in result["settings"].items():
                for i in sorted(set(r["compared"]) | set(r["raised"])): print(f"    {s}: {i}", flush=True)
            if given.out: given.out.write_text(json.dumps(found, indent=1))
    total = {s: Counter({k: sum(len(r["settings"][s][k]) for r in found) for k in ("raw", "compared", "raised")}) for s in settings}
    print("\n| setting | cells | raw outputs differ from native | compared outputs differ from the stored | raised |\n|---|---|---|---|---|\n" + "\n".join(
        f"| {s} | {sum(r['cells'] for r in found)} | {t['raw']} | {t['compared']} | {t['raised']} |" for s, t in total.items()))
    sys.exit(any(t["compared"] or t["raised"] for t in total.values()))


if __name__ == "__main__":
    main()
