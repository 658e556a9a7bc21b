"""Say whether the built book is whole: python tools/built.py [FOLDER OF THE BUILT BOOK]

Every page of the table of contents is there and has words in it, every notebook is in the table of
contents, and every link from page to page arrives at something.
"""
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebooks, toc_pages  # noqa: E402


def words(html: str) -> int:
    "How many words stand in a page's text."
    text = re.search(r"<(article|main)\b.*</\1>", html, re.S)
    return (len(re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", text[0], flags=re.S).split())
            if text else 0)


def links(html: str) -> set[str]:
    "The addresses within the book that a page leads to."
    found = re.findall(r'<a\b[^>]*?\bhref="([^"]*)"',
                       re.sub(r"<script\b.*?</script>", "", html, flags=re.S))
    return {link.replace("&amp;", "&") for link in found if link and not urlsplit(link).scheme
            and not link.startswith("//")}


def broken(book: Path, pages: dict[str, str]) -> list[str]:
    "Links from these pages that lead nowhere."
    anchors = {(book / name).resolve(): set(re.findall(r'\b(?:id|name)="([^"]+)"', html))
               for name, html in pages.items()}
    faults = []
    for name, html in pages.items():
        for link in sorted(links(html)):
            parts = urlsplit(link)
            target = (((book / name).parent / unquote(parts.path)).resolve() if parts.path
                      else (book / name).resolve())
            if not target.is_file(): faults.append(f"{name}: {link} leads to no file")
            elif (parts.fragment and target in anchors
                  and unquote(parts.fragment) not in anchors[target]):
                faults.append(f"{name}: {link} leads to no such place")
    return faults


def faults(root: Path, book: Path) -> list[str]:
    "What is missing from the book that was built from `root`."
    names = toc_pages(root / "_toc.yml")
    found = [f"{name}: a notebook that is not in the table of contents"
             for name in notebooks(root) if name not in names]
    pages = {f"{name}.html": (book / f"{name}.html").read_text(encoding="utf-8")
             for name in names if (book / f"{name}.html").is_file()}
    found += [f"{name}: in the table of contents, but not built"
              for name in names if f"{name}.html" not in pages]
    found += [f"{name}: built, but empty" for name, html in pages.items() if words(html) < 10]
    return found + broken(book, pages)


def main(book: str = str(ROOT / "_build/html")) -> None:
    found = faults(ROOT, Path(book))
    if found: sys.exit("The book is not whole:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
