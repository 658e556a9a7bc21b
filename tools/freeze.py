"""Freeze the book's prose as a text to train on: python tools/freeze.py v1 [--again]

Collects paragraphs, headings and list items from the chapters and pages, in reading order, without
code, tables, pictures and displayed formulas. Writes tfmlib/assets/text/VERSION.txt and its
checksum into SHA256SUMS beside it. A version that exists is refused: what was trained on it would
no longer be what it says. `--again` overwrites it all the same; then everything that read it must
be executed and trained again.
"""
import argparse
import re
import sys
from hashlib import sha256
from pathlib import Path

import nbformat
from colab import glued
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from myst import Block, Book, Page, Unresolved

ROOT = Path(__file__).resolve().parent.parent
READER = MarkdownIt().enable("table").use(dollarmath_plugin)
# directives that draw and say nothing
DRAWN = {"book-map", "figure-from", "part-drawing", "part-chapters"}


class Words(Page):
    "A page of which only the words are wanted, not where links lead or what pictures hold."
    def url(self, page: str, fragment: str = "") -> str: return ""
    def picture(self, source: str) -> str: return ""

    def show_directive(self, block: Block) -> list[str]:
        if block.name == "glossary": return self.blocks(block.lines)
        return [] if block.name in DRAWN else super().show_directive(block)


def words(inline: Token) -> str:
    "The words of a paragraph: its text and code spans, without pictures, notes and HTML."
    forms = {"text": "{}", "code_inline": "{}", "math_inline": "${}$", "softbreak": " ",
             "hardbreak": " "}
    parts = [forms.get(t.type, "").format(t.content) for t in inline.children or []]
    return " ".join("".join(parts).split())


def prose(markdown: str) -> list[str]:
    "The paragraphs, headings and list items of a piece of Markdown."
    found, in_table = [], False
    for token in READER.parse(markdown):
        in_table = token.type == "table_open" or in_table and token.type != "table_close"
        if token.type == "inline" and not in_table and (text := words(token)):
            found.append(text)
    return found


def page_prose(book: Book, name: str) -> list[str]:
    "The prose of one page of the book."
    path = book.pages[name]
    if path.suffix == ".md":
        return prose(Words(book, name).resolve(path.read_text(encoding="utf-8")))
    nb = nbformat.read(path, as_version=4)
    page = Words(book, name, glued(nb))
    return [text for cell in nb.cells if cell.cell_type == "markdown"
            for text in prose(page.resolve(cell.source))]


def collect(root: Path) -> tuple[str, list[str]]:
    """The prose of the whole book, and the pages left out because they are generated. A notebook is
    never left out."""
    book, texts, left_out = Book(root), [], []
    for name, path in book.pages.items():
        try:
            texts += page_prose(book, name)
        except Unresolved as error:
            if path.suffix == ".ipynb": raise Unresolved(f"{name}: {error}") from None
            left_out.append(f"{name}: {error}")
    return "\n\n".join(texts) + "\n", left_out


def freeze(text: str, version: str, folder: Path, again: bool = False) -> str:
    "Write the text and its checksum; return the checksum."
    if not re.fullmatch(r"v[1-9][0-9]*", version):
        raise ValueError(f"version: got {version!r}, expected v1, v2, …")
    sums, name = folder / "SHA256SUMS", f"{version}.txt"
    known = (dict(reversed(line.split()) for line in sums.read_text().splitlines()) if sums.exists()
             else {})
    if name in known and not again:
        raise ValueError(
            f"version: got {version!r}, which is frozen; expected a new one (or --again)")
    data = text.encode("utf-8")
    (folder / name).write_bytes(data)
    known[name] = sha256(data).hexdigest()
    sums.write_bytes("".join(f"{known[n]}  {n}\n"
                             for n in sorted(known, key=lambda n: int(n[1:-4]))).encode())
    return known[name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Freeze the book's prose.")
    parser.add_argument("version")
    parser.add_argument("--again", action="store_true", help="overwrite a version that exists")
    args = parser.parse_args()
    try:
        text, left_out = collect(ROOT)
        digest = freeze(text, args.version, ROOT / "tfmlib/assets/text", args.again)
    except ValueError as error:
        sys.exit(str(error))
    print(
        f"{args.version}: {len(text):,} characters, {len(text.split()):,} words, SHA-256 {digest}")
    print("".join(f"left out: {line}\n" for line in left_out), end="")


if __name__ == "__main__":
    main()
