"""The book's pages as they go on paper and on an e-reader: the text of the built pages, in the
book's order, without what only a screen can do.

What is folded follows one rule. Claims, answers to questions in the text, hints and solutions are
opened; hints and solutions stand at the end of their practice page, away from the exercises. Code
that a page folds away, and with it the checkers and the gallery of wrong answers, is left out: it
is in the notebooks. Pages for looking things up on a screen (the reference, the gallery) are left
out too, and a link to them is plain text.
"""
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import toc_pages  # noqa: E402

TITLE, FILE = "The Executable Transformer", "the-executable-transformer"
LICENCE = "Text under CC BY 4.0, code under the MIT licence."
RULE = (
    "This edition was made from the pages of the web edition. What is folded there follows one "
    "rule: claims and answers are included; hints and solutions are at the "
        "end of each practice page; folded code, the checkers and the gallery of wrong answers are "
        "left out, since they are in the notebooks. "
        "Interactive figures are shown in their initial state.")
LEFT_OUT = re.compile(r"(index|about/(reference|gallery|cards))$|(api|gallery)/")
# elements, and classes below, that only a screen can use
SCREEN = {"script", "style", "form", "button", "select"}
SCREEN_CLASSES = {"headerlink", "tfm-launch", "tfm-turn", "tfm-letters", "toctree-wrapper",
                  "tfm-overview", "tfm-kills", "tfm-solved-of", "sd-summary-state-marker",
                  "tag_check", "tag_mutant"}
CAMEL = {name.lower(): name
         for name in ("viewBox", "preserveAspectRatio", "refX", "refY", "markerWidth",
                      "markerHeight", "markerUnits", "patternUnits",
                                         "patternTransform", "gradientUnits", "gradientTransform",
                                         "clipPathUnits", "textLength", "lengthAdjust")}
CAMEL_TAGS = {"clippath": "clipPath", "lineargradient": "linearGradient", "textpath": "textPath"}


class Page(NamedTuple):
    """A page of the book: its name, its title, the part it opens if it is the first of one, the
    sentence at its head, and its text."""
    name: str
    title: str
    part: str
    lead: str
    text: Tag

    @property
    def slug(self) -> str: return slug(self.name)

    @property
    def is_cover(self) -> bool: return self.name.startswith("parts/")


def slug(name: str) -> str: return name.replace("/", "-")


def parts(toc: Path) -> dict[str, str]:
    "The first page of each part -> the part's caption."
    return {part["chapters"][0]["file"]: part["caption"]
            for part in yaml.safe_load(toc.read_text())["parts"]}


def names(root: Path = ROOT) -> list[str]:
    "The pages that an edition has, in the book's order."
    return [name for name in toc_pages(root / "_toc.yml") if not LEFT_OUT.match(name)]


def part_of(pages: list[Page], first: int) -> list[Page]:
    "The pages of the part that begins with page `first`."
    end = next((i for i in range(first + 1, len(pages)) if pages[i].part), len(pages))
    return pages[first:end]


def article(path: Path) -> str:
    "A built page's text, without the frame."
    return re.search(r'<article class="tfm-text">.*</article>', path.read_text(encoding="utf-8"),
                     re.S)[0]


def of_class(text: Tag, name: str, tag: str | bool = True) -> list[Tag]:
    "The elements of a class; faster than a selector."
    return [element for element in text.find_all(tag) if name in element.get("class", ())]


def edition(book: Path, wanted: list[str] | None = None) -> list[Page]:
    "The pages, cleaned; `book` is the folder of the built book."
    first, found = parts(ROOT / "_toc.yml"), []
    for name in wanted or names():
        text = BeautifulSoup(article(book / f"{name}.html"), "html.parser").article
        clean(text, name)
        lead = text.blockquote.get_text(" ", strip=True) if text.blockquote else ""
        found.append(Page(name, text.h1.get_text(), first.get(name, ""), lead, text))
    return found


# --- what is left out, and what is opened ---------------------------------------------------------

def clean(text: Tag, name: str) -> None:
    "Leave out what belongs to a screen, open what is folded, put hints and solutions last."
    def for_screens(e: Tag) -> bool:
        return (e.name in SCREEN or not SCREEN_CLASSES.isdisjoint(e.get("class", ()))
                or e.get("id", "").startswith("wrong-answers-to"))
    for element in text.find_all(for_screens): element.decompose()
    if "practice/" in name: to_the_end(text)
    for code in of_class(text, "hide", "details"): left_out(code)
    for fold in text.find_all("details"): opened(fold)
    for element in text.find_all(True):
        if "tabindex" in element.attrs:  # a box that scrolls has a name for the keyboard's sake
            for attribute in ("tabindex", "role", "aria-label"): element.attrs.pop(attribute, None)
        for attribute in [a for a in element.attrs if a.startswith("data-")]: del element[attribute]


def left_out(code: Tag) -> None:
    """Take folded code out; if its cell shows nothing else, the cell, its line about the library,
    and a paragraph that only announces it."""
    cell = code.find_parent("div", class_="cell")
    if cell is None:
        code.decompose()
        return
    code.decompose()
    line = cell.find_previous_sibling()
    if line is not None and "tfm-exported" in line.get("class", ()):
        above = line.find_previous_sibling()
        line.decompose()
        line = above
    if cell.get_text(strip=True) or cell.find(["svg", "img"]): return
    cell.decompose()
    if line is not None and line.name == "p" and line.get_text().rstrip().endswith(":"):
        line.decompose()


def opened(fold: Tag) -> None:
    "A fold as a box whose title is the fold's."
    summary = fold.find("summary", recursive=False)
    fold.name = "div"
    fold["class"] = [*fold.get("class", []), "tfm-opened"]
    fold.attrs.pop("open", None)
    if summary is None: return
    if re.match(r"Show\b", summary.get_text(strip=True)): summary.decompose()
    else: summary.name, summary["class"] = "p", ["tfm-opened-title"]


def to_the_end(text: Tag) -> None:
    "Move each exercise's hints and solution behind the last exercise."
    page, soup = text.find("section"), BeautifulSoup("", "html.parser")
    last = soup.new_tag("section", id="hints-and-solutions")
    heading = soup.new_tag("h2")
    heading.string = "Hints and solutions"
    last.append(heading)
    for exercise in page.find_all("section", recursive=False):
        hints, solutions = (of_class(exercise, "sd-dropdown", "details"),
                            of_class(exercise, "tag_solution", "div"))
        if not hints and not solutions: continue
        title = soup.new_tag("h3")
        title.string = exercise.find(["h2", "h3"]).get_text()
        last.append(title)
        for hint in hints: last.append(hint.extract())
        for cell in solutions:
            said = cell.find_previous_sibling()
            if said is not None and said.name == "p" and said.get_text().startswith("A solution"):
                said.decompose()
            if (box := cell.find("details")) is not None: box["class"] = ["tfm-solution"]
            if of_class(cell, "tfm-check"): cell.decompose()
            else: last.append(cell.extract())
    if last.find("h3"): page.append(last)


# --- the front page -------------------------------------------------------------------------------

OFFERED = re.compile(r'<!-- editions -->(<p class="tfm-editions">.*?</p>)?')
KINDS = {".epub": "EPUB", "-a4.pdf": "PDF for A4", "-letter.pdf": "PDF for letter paper",
         "-in-depth-a4.pdf": "the volume in depth for A4",
         "-in-depth-letter.pdf": "and for letter paper"}


def announce(book: Path, path: Path) -> None:
    "Put a finished edition beside the built pages, and link all that are there on the front page."
    folder, front = book / "editions", book / "index.html"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / path.name)
    links = [f'<a href="editions/{FILE}{end}">{kind}</a> ({file.stat().st_size / 2**20:.1f} MB)'
             for end, kind in KINDS.items() if (file := folder / f"{FILE}{end}").is_file()]
    row = (
        '<!-- editions --><p class="tfm-editions">The whole book in one file: '
        f'{", ".join(links)}.</p>')
    html, times = OFFERED.subn(row, front.read_text(encoding="utf-8"))
    if times != 1: raise ValueError(f"{front}: {times} places for editions, expected one")
    front.write_text(html, encoding="utf-8")


# --- links ----------------------------------------------------------------------------------------

def target(name: str, href: str) -> tuple[str, str] | None:
    "The page and the place to which a link on the page `name` leads, if it stays in the book."
    parts = urlsplit(href)
    if parts.scheme or parts.netloc or href.startswith("//"): return None
    path = (posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            if parts.path else name)
    return path.removesuffix(".html"), unquote(parts.fragment)


def anchors(pages: list[Page]) -> dict[str, set[str]]:
    "The places on each page to which a link can lead."
    return {page.name: {element["id"] for element in page.text.find_all(id=True)} for page in pages}


def links(page: Page, there: dict[str, set[str]]) -> Iterator[tuple[Tag, tuple[str, str]]]:
    """The page's links to pages of the edition, to the top of a page if their place was left out;
    those to other pages of the book become plain text."""
    for link in page.text.find_all("a", href=True):
        to = target(page.name, link["href"])
        if to is None: continue
        if to[0] in there: yield link, (to[0], to[1] if to[1] in there[to[0]] else "")
        elif link.find_parent("svg"): del link["href"]
        elif link.get("id"): link.name, link.attrs = "span", {"id": link["id"]}
        else: link.unwrap()


def camel(text: Tag) -> None:
    "The names in drawings that HTML writes small and XML does not."
    for element in (e for drawing in text.find_all("svg")
                    for e in (drawing, *drawing.find_all(True))):
        element.name = CAMEL_TAGS.get(element.name, element.name)
        for attribute in [a for a in element.attrs if a in CAMEL]:
            element[CAMEL[attribute]] = element.attrs.pop(attribute)
