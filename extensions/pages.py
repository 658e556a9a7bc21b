"""Where the book's pages are: the table of contents and the notebooks in it, and what a page takes, for the extensions and the tests."""
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

NOTEBOOK = re.compile(r"chapters/(?:(depth|practice)/)?((\d\d)_\w+)")


def kind(page: str) -> str:
    "What a page is: workbench, path (a chapter), depth or practice; empty if it is no notebook of the book."
    found = NOTEBOOK.fullmatch(page)
    return "" if not found else found[1] or ("workbench" if found[3] == "00" else "path")


def number(page: str) -> str:
    "The number of the chapter that a notebook belongs to, in two digits."
    return NOTEBOOK.fullmatch(page)[3]


def companion(page: str, kind: str) -> str:
    "The page of the same chapter in depth, or its practice page."
    return f"chapters/{kind}/{NOTEBOOK.fullmatch(page)[2]}"


def toc_pages(toc: Path) -> list[str]:
    "Every page of a table of contents, without its suffix, in the book's order."
    def below(entry) -> Iterator[str]:
        if isinstance(entry, list):
            for part in entry: yield from below(part)
        elif isinstance(entry, dict):
            if "root" in entry or "file" in entry: yield entry.get("root") or entry["file"]
            for key in ("parts", "chapters", "sections", "subtrees", "entries"): yield from below(entry.get(key))
    return [str(Path(page).with_suffix("")) if page.endswith((".md", ".ipynb")) else page for page in below(yaml.safe_load(toc.read_text()))]


class Part(NamedTuple):
    "A part of the book: its caption, its cover (a page in parts/) if it has one, and its other pages of the first level."
    caption: str
    cover: str
    chapters: tuple[str, ...]


def parts(toc: Path) -> list[Part]:
    "The parts of a table of contents."
    def one(part: dict) -> Part:
        first, *rest = names = [entry["file"] for entry in part["chapters"] if "file" in entry]
        return Part(part.get("caption", ""), first, tuple(rest)) if first.startswith("parts/") else Part(part.get("caption", ""), "", tuple(names))
    return [one(part) for part in yaml.safe_load(toc.read_text()).get("parts", ())]


def book_map(root: Path) -> dict[str, dict[str, str]]:
    "The front page's map: part -> chapter -> its short title. It names the chapters that are planned, too."
    said = re.search(r"^```\{book-map\}\n(.*?)^```", (root / "index.md").read_text(encoding="utf-8"), re.M | re.S)
    return {part["part"]: part["chapters"] for part in yaml.safe_load(said[1])} if said else {}


def notebook_files(folder: Path) -> list[Path]:
    "The notebooks below a folder. What JupyterLab keeps of them in hidden folders (.ipynb_checkpoints) is not of the book."
    def hidden(path: Path) -> bool: return any(part.startswith(".") for part in path.relative_to(folder).parts)
    return sorted(path for path in folder.rglob("[0-9][0-9]_*.ipynb") if not hidden(path))


def notebooks(root: Path, toc: Path | None = None) -> dict[str, dict]:
    "The chapters, their depth and practice pages: name below `root` without suffix -> notebook, in the order of the toc if one is given."
    names = [str(p.relative_to(root).with_suffix("")) for p in notebook_files(root / "chapters")]
    if toc: names = [name for name in toc_pages(toc) if name in names]
    return {name: parsed((root / f"{name}.ipynb").read_text(encoding="utf-8")) for name in names}


@lru_cache(256)
def parsed(text: str) -> dict:
    "A notebook, parsed once: a build asks for each a hundred times. Nobody changes it."
    return json.loads(text)


def runtime(root: Path, page: str) -> str:
    "How long a chapter runs, in words, from the record that `python -m bench pages` writes."
    record = root / "tfmlib/assets/records/pages.json"
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if record.is_file() else []
    seconds = next((row["seconds"]["median"] for row in rows if row["page"] == page), None)
    if seconds is None: raise ValueError(f"runtime {page}: not measured yet; PYTHONPATH=. .venv/bin/python -m bench pages measures it")
    if seconds < 52.5: return f"about {max(5, 5 * round(seconds / 5))} seconds"
    halves = round(seconds / 30)
    return "about a minute" if halves < 3 else f"about {halves // 2}{'½' * (halves % 2)} minutes"


FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
MORE = "## More claims, checked"


def minutes(notebook: dict) -> float:
    "What a chapter takes to read: 200 words a minute, and half a minute for each line of code in sight that is new. What is folded does not count."
    words, lines, folded = 0, set(), False
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if text.startswith("## "): folded = text.startswith(MORE)
            words += 0 if folded else len(text.split())
        elif not folded and not FOLDED & set(cell["metadata"].get("tags", ())) and not re.match(r"#\| *(default_exp|hide)\b", text):
            lines |= {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#|")}
    return words / 200 + len(lines) / 2


def in_hours(minutes: float) -> str:
    "A time in words, to the quarter of an hour, from ten hours to the hour."
    if minutes >= 600: return f"{round(minutes / 60)} hours"
    whole, quarters = divmod(max(1, round(minutes / 15)), 4)
    if not whole: return f"{15 * quarters} minutes"
    return "an hour" if (whole, quarters) == (1, 0) else f"{whole}{('', '¼', '½', '¾')[quarters]} hours"


def reading(root: Path, page: str) -> str:
    "How long a chapter takes to read, or several (their names between spaces), in words."
    files = [root / f"chapters/{name}.ipynb" for name in page.split()]
    if gone := [file.stem for file in files if not file.is_file()]: raise ValueError(f"minutes {', '.join(gone)}: no such chapter")
    return in_hours(sum(minutes(json.loads(file.read_text(encoding="utf-8"))) for file in files))


def title(notebook: dict) -> str:
    "A notebook's first heading."
    lines = (line for cell in notebook["cells"] if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines())
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("# ")), "untitled")


def lead(notebook: dict) -> str:
    "The sentence at a notebook's head, in Markdown."
    lines = (line for cell in notebook["cells"][:2] if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines())
    return " ".join(line.lstrip("> ").strip() for line in lines if line.startswith(">"))
