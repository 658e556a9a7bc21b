"""Keep what has been proved, and show it in README: tools/prove.py and tools/copies.py write with --record, python tools/proved.py shows anew.

One entry for each Python, system, processor and PyTorch: which stages passed, on how many cells, on what day and of which commit.
"""
import json
import os
import platform
import re
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/proved.json"
README = ROOT / "README.md"
HOLDS = ("python", "system", "processor", "torch", "outputs")            # what an entry is about
PYTHONS, SYSTEMS = ("3.11", "3.12", "3.13"), ("Linux", "macOS", "Windows")
PLACE = re.compile(r"(?<=<!-- proved -->\n).*?(?=<!-- end -->)", re.S)


def commit(root: Path = ROOT) -> str:
    "The commit that is proved; + if the tree differs from it in more than what this tool writes."
    asked = [["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", ".", ":!tests/proved.json", ":!README.md"]]
    said = [subprocess.run(c, cwd=root, capture_output=True, text=True).stdout.strip() for c in asked]
    return (said[0] or "unknown") + ("+" if said[1] else "")


def here() -> dict:
    "What this run is about."
    from torch.backends.cpu import get_cpu_capability

    from tfmlib.workbench import processor
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    return {"python": platform.python_version(), "system": system, "processor": f"{processor()}, {get_cpu_capability()}",
            "torch": metadata.version("torch"), "outputs": "run" if os.environ.get("TFM_LAX") else "compared"}


def cells(copies: Path) -> int:
    "How many code cells the copies have that the proof runs."
    from pages import notebook_files
    return sum(cell["cell_type"] == "code" for path in notebook_files(copies) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


def merged(entries: list[dict], new: dict) -> list[dict]:
    "The entries with a new one: it takes the place of an older one about the same, or, of the same commit, adds its stages to it."
    def same(entry: dict) -> bool: return all(entry[k] == new[k] for k in HOLDS)
    for old in filter(same, entries):
        if old["commit"] == new["commit"]: new = old | new | {"stages": old["stages"] | new["stages"], "cells": new["cells"] or old["cells"]}
    return sorted([*(e for e in entries if not same(e)), new], key=lambda e: [e[k] for k in HOLDS])


def listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names) or "none"


def row(entry: dict) -> str:
    "One line of the table."
    good, bad = ([name for name, passed in entry["stages"].items() if passed == wanted] for wanted in (True, False))
    said = ", ".join(good) + ("; failed: " + ", ".join(bad) if bad else "")
    return " | ".join(["", entry["python"], f"{entry['system']}, {entry['processor']}", entry["torch"], entry["outputs"], said, f"{entry['cells']:,}", f"{entry['date']}, `{entry['commit']}`", ""]).strip()


def shown(entries: list[dict]) -> str:
    "What README says of them: a table, and what is not in it."
    head = "| Python | system, processor, instructions | PyTorch | outputs | stages that passed | cells | day, commit |\n|---|---|---|---|---|---|---|\n"
    table = head + "".join(row(e) + "\n" for e in entries) if entries else "No run has been recorded yet.\n"
    pythons = [f"Python {p}" for p in PYTHONS if not any(e["python"].startswith(p + ".") for e in entries)]
    systems = [s for s in SYSTEMS if not any(e["system"] == s for e in entries)]
    return f"{table}\nNot recorded: {listed(pythons + systems)}.\n"


def show(entries: list[dict], readme: Path = README) -> None:
    "Write them where README shows them."
    text, times = PLACE.subn(lambda _: shown(entries), readme.read_text(encoding="utf-8"))
    if times != 1: raise ValueError(f"{readme.name}: expected one place between <!-- proved --> and <!-- end -->, found {times}")
    readme.write_text(text, encoding="utf-8")


def load(path: Path = RECORD) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def keep(stages: dict[str, bool], copies: Path, where: dict[str, str] | None = None) -> None:
    "Record a run of the proof, or of the copies in another environment, which `where` describes."
    ran = cells(copies) if {"notebooks", "older", "copies"} & stages.keys() else 0
    entries = merged(load(), here() | (where or {}) | {"stages": stages, "cells": ran, "date": date.today().isoformat(), "commit": commit()})
    RECORD.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    show(entries)
    print(f"recorded in {RECORD.relative_to(ROOT)} and README.md")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "extensions")]
    show(load())
