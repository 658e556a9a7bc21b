"""What a page takes: how long it runs, as measured, and how long it takes to read, as counted;
for the extensions and the tests."""
import json
import re
from pathlib import Path

from pages import TOUR


def runtime(root: Path, page: str) -> str:
    "How long a chapter runs, in words, from the record that `python -m bench pages` writes."
    record = root / "tfmlib/assets/records/pages.json"
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if record.is_file() else []
    seconds = next((row["seconds on the clock"]["median"] for row in rows if row["page"] == page),
                   None)
    if seconds is None:
        raise ValueError(
            f"runtime {page}: not measured yet; PYTHONPATH=. .venv/bin/python -m bench pages "
            "measures it")
    if seconds < 52.5: return f"about {max(5, 5 * round(seconds / 5))} seconds"
    halves = round(seconds / 30)
    return "about a minute" if halves < 3 else f"about {halves // 2}{'½' * (halves % 2)} minutes"


FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def in_hours(minutes: float) -> str:
    "A time in words, to the quarter of an hour, from ten hours to the hour."
    if minutes >= 600: return f"{round(minutes / 60)} hours"
    whole, quarters = divmod(max(1, round(minutes / 15)), 4)
    if not whole: return f"{15 * quarters} minutes"
    return ("an hour" if (whole, quarters) == (1, 0)
            else f"{whole}{('', '¼', '½', '¾')[quarters]} hours")


WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
NO_WORDS = re.compile(r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$", re.S)


def estimate(notebook: dict) -> tuple[float, float]:
    """The minutes in which a page is read (180 words a minute, half a minute a figure), and in
    which its code is written, too (a quarter more for each line in sight)."""
    words = lines = figures = 0
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown": words += len(WORD.findall(NO_WORDS.sub("", text)))
        elif not FOLDED & set(cell["metadata"].get("tags", ())):
            lines += sum(bool(line.strip()) for line in text.splitlines())
        figures += any("<figure" in "".join(output.get("data", {}).get("text/html", ""))
                       for output in cell.get("outputs", ()))
    read = words / 180 + figures / 2
    return read, read + lines / 4


def divided(root: Path, name: str) -> bool:
    """Does a chapter have a page in depth, or is this such a page, or the tour? Of these it is said
    what takes how long; of a page of the workbench, together."""
    return name == Path(TOUR).name or (root / f"chapters/depth/{Path(name).name}.ipynb").is_file()


def section(notebook: dict, anchors: str) -> dict:
    "The part of a notebook below a heading of the second level, or below several."
    cells, here, missing = [], False, dict.fromkeys(anchors.split())
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            cells += [cell] * here
            continue
        kept = []
        for text in re.split(r"^(?=## )", "".join(cell["source"]), flags=re.M):
            if text.startswith("## "):
                words = WORD.findall(text.split("\n")[0].lower())
                here = (anchor := re.sub("['’]", "", "-".join(words))) in anchors.split()
                missing.pop(anchor, None)
            kept += [text] * here
        cells += [cell | {"source": "".join(kept)}] * bool(kept)
    if missing: raise ValueError(f"minutes #{' #'.join(missing)}: no such section")
    return {"cells": cells}


def taken(root: Path, name: str) -> float:
    "The minutes in which a page is read and its code written."
    return estimate(json.loads((root / f"chapters/{name}.ipynb").read_text(encoding="utf-8")))[1]


def to_five(minutes: float) -> int: return 5 * max(1, round(minutes / 5))


def reading(root: Path, page: str) -> str:
    """How long a chapter takes, or several (their names between spaces), in words; one that is
    divided, a page in depth, and sections of either (#anchor, between spaces), to read and to
    build."""
    names, _, anchor = page.partition("#")
    files = [root / f"chapters/{name}.ipynb" for name in names.split()]
    if gone := [file.stem for file in files if not file.is_file()]:
        raise ValueError(f"minutes {', '.join(gone)}: no such chapter")
    if len(files) == 1 and divided(root, names):
        notebook = json.loads(files[0].read_text(encoding="utf-8"))
        read, build = map(to_five, estimate(section(notebook, anchor) if anchor else notebook))
        return f"Read {read} min · Build {build} min{'' if anchor else ' (estimates)'}"
    return in_hours(sum(taken(root, name) for name in names.split()))
