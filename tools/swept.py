"""What a page of the built book is, as a hash: in Chromium the ordinary proof visits those that
the last whole proof did not see like this."""
import json
import re
from functools import cache
from pathlib import Path

import steps
from pages import toc_pages

ROOT = steps.ROOT
ASSETS = ROOT / "tfmlib/assets"
ARTICLE = re.compile(r"<article\b.*</article>", re.S)
# of files that are the same for every page
STAMP = re.compile(r'\?v=\w+|\?digest=\w+|"version": "\w+"|"book.zip": \d+')


def pages_of(root: Path) -> list[str]:
    "Every page of the table of contents, and the search page."
    return [f"{name}.html" for name in toc_pages(root / "_toc.yml")] + ["search.html"]


@cache
def page(html: Path, name: str) -> str:
    """The hash of a page's article, without what frames every page, and of the scripts of its
    interactive figures."""
    article = STAMP.sub("", ARTICLE.search((html / name).read_text(encoding="utf-8"))[0])
    modules = sorted(set(re.findall(r'data-module="(\w+)"', article)))
    return steps.digest(article, *((ASSETS / f"{module}.js").read_bytes() for module in modules))


def pages(html: Path) -> dict[str, str]: return {name: page(html, name) for name in pages_of(ROOT)}


def seen(html: Path, name: str) -> bool:
    "Did this page pass as it is in the last whole proof?"
    return (json.loads((ROOT / "tests/swept.json").read_text())["pages"].get(name)
            == page(html, name))
