"""Write the exercises without their answers to build/exercises, for handing out:
python tools/exercises.py [--hints] [FOLDER]

What goes: the cells tagged `solution` and `mutant`, and everything else between an exercise's check
and the next heading of the exercise's own level. `--hints` keeps the hints. Outputs are cleared,
and the Markdown is readable outside the book.
"""
import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
from colab import code_cell, glued, leftovers, setup_source, text_cell
from kills import ROOT, code_of, exercise_of, heading, kind_of, pages
from myst import FENCE, Book, Page, Unresolved, closing
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

ANSWERS = ("solution", "mutant")


class Handout(Page):
    "A page that stands alone: other pages are links only where the book has an address."
    def url(self, page: str, fragment: str = "") -> str:
        return super().url(page, fragment) if page == self.name or self.book.address else ""


# --- hints ----------------------------------------------------------------------------------------

def pieces(source: str) -> Iterator[tuple[bool, list[str]]]:
    "The lines of a text, in pieces: is it a hint?, its lines."
    lines, i = source.split("\n"), 0
    while i < len(lines):
        end, hint = i + 1, False
        if (m := FENCE.match(lines[i])) and not (m[2][0] == "`" and "`" in m[3]):
            end = closing(lines, i, m[2]) + 1
            hint = bool(re.match(r"\s*\{hint\}|\s*\{(dropdown|admonition)\}\s*hints?\b", m[3],
                                 re.I))
        yield hint, lines[i:end]
        i = end


def hints(source: str, wanted: bool) -> str:
    "Only the hints of a text, or all but them."
    kept = "\n".join(line for hint, lines in pieces(source) if hint == wanted
                     for line in [*lines, *[""] * hint])
    return re.sub(r"\n{3,}", "\n\n", kept).strip("\n")


# --- answers --------------------------------------------------------------------------------------

def level_of(cells: list[NotebookNode]) -> int:
    "The level of the headings that the exercises stand under."
    level, found = 6, []
    for cell in cells:
        if cell.cell_type == "markdown": level = heading(cell.source)[0] or level
        if kind_of(cell) == "stub": found.append(level)
    return min(found, default=6)


def sections(cells: list[NotebookNode]) -> Iterator[range]:
    "The parts of a page that begin with a heading of the exercises' level, or of a higher one."
    level = level_of(cells)
    starts = [i for i, c in enumerate(cells) if c.cell_type == "markdown"
              and 0 < heading(c.source)[0] <= level]
    edges = sorted({0, *starts, len(cells)})
    yield from (range(a, b) for a, b in zip(edges, edges[1:]))


def given_away(cells: list[NotebookNode]) -> set[int]:
    """The cells that give an answer away: answers, and what follows an exercise's check; a section
    of nothing but answers whole."""
    gone = set()
    for section in sections(cells):
        answers = [i for i in section if kind_of(cells[i]) in ANSWERS]
        if not answers: continue
        asked = [i for i in section if kind_of(cells[i]) in ("stub", "check") and i < answers[0]]
        after = range(asked[-1] + 1 if asked else section.start, section.stop)
        gone |= {i for i in after if kind_of(cells[i]) not in ("stub", "check")
                 and not cells[i].source.startswith("#| export")}
    return gone


def reduced(cells: list[NotebookNode], with_hints: bool) -> list[NotebookNode]:
    "The cells without answers, and with or without hints."
    gone, kept = given_away(cells), []
    for i, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            # hints, a solution, and wrong answers: not here
            cell.source = cell.source.replace("Each exercise has", "In the book, each exercise has")
            text = "" if i in gone else hints(cell.source, wanted=False)
            ladder = hints(cell.source, wanted=True) if with_hints else ""
            cell.source = (cell.source if i not in gone
                           and with_hints else "\n\n".join(t for t in (text, ladder) if t))
            kept += [cell] if cell.source.strip() else []
        elif i not in gone:
            cell.outputs, cell.execution_count = [], None
            kept.append(cell)
    return kept


def defined(cells: list[NotebookNode]) -> set[str]:
    """The functions and classes that these code cells define, without those inside others, which
    nobody can call by name."""
    trees = [ast.parse(code_of(c)) for c in cells if c.cell_type == "code"]
    return {n.name for t in trees for n in t.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def leaks(nb: NotebookNode, handout: NotebookNode) -> list[str]:
    """The functions of solutions and mutants that the handout's code, or code in its prose, still
    names."""
    answers = defined([c for c in nb.cells
                       if kind_of(c) in ANSWERS]) - defined([c for c in nb.cells
                                                             if kind_of(c) not in ANSWERS])
    code = [c.source if c.cell_type == "code" else " ".join(re.findall(r"`[^`]+`", c.source))
            for c in handout.cells]
    return sorted(name for name in answers if re.search(rf"\b{name}\b", "\n".join(code)))


# --- notebooks ------------------------------------------------------------------------------------

def handout(path: Path, book: Book, version: str, with_hints: bool = False) -> NotebookNode:
    "The practice page at `path` without its answers, as plain Markdown and code."
    whole, nb = (nbformat.read(path, as_version=4) for _ in range(2))
    name = (str(path.resolve().relative_to(book.root)) if path.resolve().is_relative_to(book.root)
            else path.name)
    page = Handout(book, name.removesuffix(".ipynb"), glued(nb))
    cells = [text_cell(c, page) if c.cell_type == "markdown" else code_cell(c)
             for c in reduced(nb.cells, with_hints)]
    first = new_code_cell(setup_source(book.repository, version), id="set-up",
                          metadata={"cellView": "form"})
    nb.cells = [first, *(c for c in cells if c is not None)]
    nb.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python",
                                 "name": "python3"}
    faults = leftovers(nb) + [f"the answer {n} is still named" for n in leaks(whole, nb)]
    lost = {exercise_of(c) for c in whole.cells
            if kind_of(c) == "stub"} - {exercise_of(c) for c in nb.cells if kind_of(c) == "stub"}
    faults += [f"the exercise {n} lost its stub" for n in sorted(lost)]
    if faults: raise Unresolved("\n".join([f"{path.name}:", *faults]))
    return nb


def write(paths: list[Path], out: Path, with_hints: bool = False, root: Path = ROOT) -> list[Path]:
    "Write the handouts of these practice pages under `out`; return their paths."
    book = Book(root)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    out.mkdir(parents=True, exist_ok=True)
    written = [out / path.name for path in paths]
    for path, target in zip(paths, written):
        nbformat.write(handout(path, book, version, with_hints), target)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="build/exercises",
                        help="where they go (default: %(default)s)")
    parser.add_argument("--hints", action="store_true", help="keep the hints")
    given = parser.parse_args()
    try: written = write(pages(), ROOT / given.folder, given.hints)
    except Unresolved as error: sys.exit(str(error))
    print(
        f"{len(written)} handouts in {given.folder}, {'with' if given.hints else 'without'} hints")


if __name__ == "__main__":
    main()
