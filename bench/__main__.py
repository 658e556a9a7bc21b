"""Measure what the book keeps on record: python -m bench [--gpu] [PART ...]

A part is a module of this package with DEVICE ("cpu" or "gpu"), SEED, and `measure(seed) -> rows`, each row a dict with
the shape of its case and a spread (`tfmlib.proof.spread`) for each quantity. Its record goes to tfmlib/assets/records/; if
`measure` yields row after row, the record is written after each, and a run that is cut off keeps what it has.
It needs torch and numpy, and on a GPU triton; the repository's root must be on PYTHONPATH.
"""
import argparse
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import torch

from tfmlib.proof import circumstances, parse_record

RECORDS = Path(__file__).resolve().parent.parent / "tfmlib/assets/records"


def parts(device: str) -> list[str]:
    "The names of the parts that measure on `device`."
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
    return [name for name, text in sources.items() if re.search(rf'^DEVICE\b.*= "{device}"', text, re.M)]      # read, not imported


def commit() -> str:
    "The commit that is measured; + if the tree, its records aside, differs from it."
    asked = [["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "tfmlib", "bench", ":!tfmlib/assets/records"]]
    said = [subprocess.run(c, cwd=RECORDS.parents[2], capture_output=True, text=True).stdout.strip() for c in asked]
    return (said[0] or "unknown") + ("+" if said[1] else "")


def record(name: str, folder: Path = RECORDS) -> Path:
    "Run one part, on a CPU on one thread, and write its record; what lacks its circumstances or its spread is refused."
    part = importlib.import_module(f"bench.{name}")
    command = "make bench-gpu" if part.DEVICE == "gpu" else "make bench"
    facts, threads = circumstances(commit()), torch.get_num_threads()         # of the tree that is measured
    if part.DEVICE == "cpu": torch.set_num_threads(1)
    path, head, found = folder / f"{name}.json", {"name": name, "command": command, "seed": part.SEED, **facts}, []
    def keep() -> None:
        parse_record(text := json.dumps(head | {"rows": found}, indent=1) + "\n")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    try:
        measured = part.measure(part.SEED)
        if isinstance(measured, list): found += measured; keep()
        else:
            for row in measured: found.append(row); keep()
    finally: torch.set_num_threads(threads)
    return path


def table(path: Path) -> str:
    "The record as lines of text, medians only."
    rows = json.loads(path.read_text())["rows"]
    return "\n".join("  ".join(f"{k}={v['median']:.4g}" if isinstance(v, dict) else f"{k}={v}" for k, v in row.items()) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="the parts that need a GPU")
    parser.add_argument("parts", nargs="*", metavar="PART")
    given = parser.parse_args()
    device = "gpu" if given.gpu else "cpu"
    if given.gpu and not torch.cuda.is_available(): sys.exit("no GPU on this machine: its records stay as they are")
    known = parts(device)
    if unknown := set(given.parts) - set(known): parser.error(f"no such part on a {device}: {', '.join(sorted(unknown))}; there are {known}")
    if not known: print(f"no part of the book measures on a {device} yet")
    chosen = given.parts or known
    for i, name in enumerate(chosen, 1):
        print(f"{name} ({i} of {len(chosen)}) …", flush=True)
        path = record(name)
        print(f"{name} → {path}\n{table(path)}", flush=True)


if __name__ == "__main__":
    main()
