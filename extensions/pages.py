"""Where the book's pages are: the table of contents and the notebooks in it, for the extensions
and the tests."""
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

# the book's first page: neither a chapter nor of the workbench; nothing imports from it
TOUR = "chapters/00_tour"
NOTEBOOK = re.compile(r"chapters/(?:(depth|practice)/)?((\d\d)_\w+)")


def kind(page: str) -> str:
    """What a page is: tour, workbench, path (a chapter), depth or practice; empty if it is no
    notebook of the book."""
    if page == TOUR: return "tour"
    found = NOTEBOOK.fullmatch(page)
    return "" if not found else found[1] or ("workbench" if found[3] == "00" else "path")


def number(page: str) -> str:
    "The number of the chapter that a notebook belongs to, in two digits."
    return NOTEBOOK.fullmatch(page)[3]


def chapter(page: str, pages: Iterable[str]) -> str:
    """The file name of the chapter, among these pages, that a notebook belongs to; a second page in
    depth has a longer one (NN_name_topic)."""
    return next((Path(p).name for p in pages if kind(page) == "depth" and kind(p) == "path"
                 and number(p) == number(page)), Path(page).name)


def companions(page: str, which: str, pages: Iterable[str]) -> list[str]:
    "The pages of the same chapter in depth, or its practice page, among these pages."
    return [p for p in pages if kind(p) == which and number(p) == number(page)]


def toc_pages(toc: Path) -> list[str]:
    "Every page of a table of contents, without its suffix, in the book's order."
    def below(entry) -> Iterator[str]:
        if isinstance(entry, list):
            for part in entry: yield from below(part)
        elif isinstance(entry, dict):
            if "root" in entry or "file" in entry: yield entry.get("root") or entry["file"]
            for key in ("parts", "chapters", "sections", "subtrees", "entries"):
                yield from below(entry.get(key))
    return [str(Path(page).with_suffix("")) if page.endswith((".md", ".ipynb")) else page
            for page in below(yaml.safe_load(toc.read_text()))]


class Part(NamedTuple):
    """A part of the book: its caption, its cover (a page in parts/) if it has one, and its other
    pages of the first level."""
    caption: str
    cover: str
    chapters: tuple[str, ...]


def parts(toc: Path) -> list[Part]:
    "The parts of a table of contents."
    def one(part: dict) -> Part:
        first, *rest = names = [entry["file"] for entry in part["chapters"] if "file" in entry]
        return (Part(part.get("caption", ""), first, tuple(rest)) if first.startswith("parts/")
                else Part(part.get("caption", ""), "", tuple(names)))
    return [one(part) for part in yaml.safe_load(toc.read_text()).get("parts", ())]


def book_map(root: Path) -> dict[str, dict[str, str]]:
    "The front page's map: part -> chapter -> its short title."
    said = re.search(r"^```\{book-map\}\n(.*?)^```",
                     (root / "index.md").read_text(encoding="utf-8"), re.M | re.S)
    return {part["part"]: part["chapters"] for part in yaml.safe_load(said[1])} if said else {}


def notebook_files(folder: Path) -> list[Path]:
    """The notebooks below a folder. What JupyterLab keeps of them in hidden folders
    (.ipynb_checkpoints) is not of the book."""
    def hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)
    return sorted(path for path in folder.rglob("[0-9][0-9]_*.ipynb") if not hidden(path))


def notebooks(root: Path, toc: Path | None = None) -> dict[str, dict]:
    """The chapters, their depth and practice pages: name below `root` without suffix -> notebook,
    in the order of the toc if one is given."""
    names = [str(p.relative_to(root).with_suffix("")) for p in notebook_files(root / "chapters")]
    if toc: names = [name for name in toc_pages(toc) if name in names]
    return {name: parsed((root / f"{name}.ipynb").read_text(encoding="utf-8")) for name in names}


@lru_cache(256)
def parsed(text: str) -> dict:
    "A notebook, parsed once: a build asks for each a hundred times. Nobody changes it."
    return json.loads(text)


def title(notebook: dict) -> str:
    "A notebook's first heading."
    lines = (line for cell in notebook["cells"] if cell["cell_type"] == "markdown"
             for line in "".join(cell["source"]).splitlines())
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("# ")), "untitled")


def lead(notebook: dict) -> str:
    "The sentence at a notebook's head, in Markdown."
    lines = (line for cell in notebook["cells"][:2] if cell["cell_type"] == "markdown"
             for line in "".join(cell["source"]).splitlines())
    return " ".join(line.lstrip("> ").strip() for line in lines if line.startswith(">"))
