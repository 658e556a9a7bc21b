"""What the book holds, and on which page:
python tools/manifest.py writes tests/manifest.tsv, whose diff shows what has moved.

A line each: kind, name, page. A name is that of a claim, an exercise, an exported name, a record, a
figure (its cell) or a heading; the last two with their chapter, so that a move from a path to a
page in depth changes the page only. What would vanish must be named in changelog.md, in backticks.
"""
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from nbdev_cells import directives, public_names  # noqa: E402
from pages import chapter, kind, notebooks  # noqa: E402

FILE = ROOT / "tests/manifest.tsv"
CALLS = {"claim": r'\bclaim\(\s*"([\w-]+)"', "record": r'\b(?:recorded|load_record)\(\s*"(\w+)"'}


def of_cell(chapter: str, cell: dict) -> Iterator[tuple[str, str]]:
    "The things that a cell of a chapter holds: kind, name."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        prose = re.sub(r"```.*?```", "", source, flags=re.S)
        yield from (("heading", f"{chapter} {line.lstrip('# ').strip()}")
                    for line in prose.splitlines() if re.match(r"##+ ", line))
        yield from (("exercise", name)
                    for name in re.findall(r"```\{exercise\}.*?:label: ([\w-]+)", source, re.S))
        return
    for what, pattern in CALLS.items():
        yield from ((what, name) for name in re.findall(pattern, source))
    if "export" in (found := directives(source)):
        yield from (("name", f"{chapter} {name}")
                    for name in public_names("\n".join(source.splitlines()[len(found):])))
    if any("<figure" in "".join(output.get("data", {}).get("text/html", ""))
           for output in cell.get("outputs", ())):
        yield "figure", f"{chapter} {cell.get('id')}"


def listed(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """All that the notebooks hold: kind, name, page. Practice pages repeat their headings from one
    to the next, and only their exercises count."""
    pages = notebooks(root)
    # a second page in depth, NN_name_topic, is of the chapter, too
    own = {page: chapter(page, pages) for page in pages}
    found = {(what, name, page) for page, notebook in pages.items() for cell in notebook["cells"]
             for what, name in of_cell(own[page], cell)
             if kind(page) != "practice" or what == "exercise"}
    return sorted(found)


def text(entries: list[tuple[str, str, str]]) -> str:
    return "".join("\t".join(entry) + "\n" for entry in entries)


def vanished(before: str, entries: list[tuple[str, str, str]], changelog: str) -> list[str]:
    "What was there, is nowhere now, and is not named in the changelog."
    there = {entry[:2] for entry in entries}
    gone = {tuple(line.split("\t")[:2]) for line in before.splitlines()} - there
    # an exported name, without its chapter
    called = {(what, name): name.split()[-1] if what == "name" else name for what, name in gone}
    return sorted(f"{what} {name}"
                  for what, name in gone if f"`{called[what, name]}`" not in changelog)


def main() -> None:
    entries = listed()
    lost = vanished(FILE.read_text(encoding="utf-8") if FILE.is_file() else "", entries,
                    (ROOT / "about/changelog.md").read_text(encoding="utf-8"))
    if lost:
        sys.exit("not in the book any more, and not in about/changelog.md:\n" + "\n".join(lost))
    FILE.write_text(text(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
