"""Keep what has been proved, in tests/proved.json: tools/prove.py and tools/copies.py write with
--record.

One entry for each Python, system, processor and PyTorch: which stages passed, on how many cells, on
what day and of which commit.
"""
import json
import os
import platform
import subprocess
from datetime import date
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/proved.json"
HOLDS = ("python", "system", "processor", "torch", "outputs")            # what an entry is about


def commit(root: Path = ROOT) -> str:
    "The commit that is proved; + if the tree differs from it in more than what this tool writes."
    asked = [["git", "rev-parse", "--short", "HEAD"],
             ["git", "status", "--porcelain", ".", ":!tests/proved.json"]]
    said = [subprocess.run(c, cwd=root, capture_output=True, text=True).stdout.strip()
            for c in asked]
    return (said[0] or "unknown") + ("+" if said[1] else "")


def here() -> dict:
    "What this run is about."
    from torch.backends.cpu import get_cpu_capability

    from tfmlib.workbench import processor
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    return {"python": platform.python_version(), "system": system,
            "processor": f"{processor()}, {get_cpu_capability()}",
            "torch": metadata.version("torch"),
            "outputs": "run" if os.environ.get("TFM_LAX") else "compared"}


def cells(copies: Path) -> int:
    "How many code cells the copies have that the proof runs."
    from pages import notebook_files
    return sum(cell["cell_type"] == "code" for path in notebook_files(copies)
               for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


def merged(entries: list[dict], new: dict) -> list[dict]:
    """The entries with a new one: it takes the place of an older one about the same, or, of the
    same commit, adds its stages to it."""
    same = [entry for entry in entries if all(entry[k] == new[k] for k in HOLDS)]
    for old in same:
        if old["commit"] == new["commit"]:
            new = old | new | {"stages": old["stages"] | new["stages"], "cells": new["cells"]
                               or old["cells"]}
    return sorted([*(e for e in entries if e not in same), new],
                  key=lambda e: [e[k] for k in HOLDS])


def keep(stages: dict[str, bool], copies: Path, where: dict[str, str] | None = None) -> None:
    "Record a run of the proof, or of the copies in another environment, which `where` describes."
    ran = cells(copies) if {"notebooks", "older", "copies"} & stages.keys() else 0
    entry = here() | (where or {}) | {"stages": stages, "cells": ran,
                                      "date": date.today().isoformat(), "commit": commit()}
    RECORD.write_text(json.dumps(merged(json.loads(RECORD.read_text(encoding="utf-8")), entry),
                                 indent=1) + "\n", encoding="utf-8")
    print(f"recorded in {RECORD.relative_to(ROOT)}")
