"""The whole book as PDF, in two volumes, the book and its pages in depth:
python tools/pdf.py [--book FOLDER] [--out FOLDER] [--paper a4 letter] [PAGE ...]

Each is one document, printed by Chromium from the built book, once to learn on which page
everything is, and again with these numbers in the contents, in the index and behind each reference
to another page, until no number changes.
"""
import argparse
import ctypes
import json
import re
import sys
import threading
from datetime import date
from html import escape
from itertools import product
from pathlib import Path

import pypdfium2 as pdfium
import pypdfium2.raw as raw
from bs4 import BeautifulSoup, Tag

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chromium import CHROMIUM, FLAGS  # noqa: E402
from editions import (  # noqa: E402
    FILE,
    LICENCE,
    ROOT,
    RULE,
    TITLE,
    Page,
    anchors,
    announce,
    edition,
    links,
    names,
    part_of,
    slug,
)
from epub import picture  # noqa: E402
from pages import kind  # noqa: E402
from serve import server  # noqa: E402

PAPERS = {"a4": ("210mm", "297mm"), "letter": ("8.5in", "11in")}
STYLES = "_static/figures/figures.css", "_static/tfm/katex/katex.css", "_static/tfm/book.css"
CSS = Path(__file__).resolve().with_name("pdf.css")
PRINTINGS, COLUMNS = 6, 9
REFERS = ("id", "for", "aria-labelledby", "aria-describedby", "headers")


# --- one document ---------------------------------------------------------------------------------

def anchor(name: str, place: str = "") -> str:
    "The name of a place in the document."
    return f"{slug(name)}--{place}" if place else slug(name)


def renamed(page: Page) -> None:
    "Ids and references to them, with the page's name before them: the document has each only once."
    for element in page.text.find_all(True):
        for attribute in REFERS:
            if attribute in element.attrs:
                element[attribute] = " ".join(anchor(page.name, i)
                                              for i in element[attribute].split())
        for attribute, value in element.attrs.items():
            if isinstance(value, str) and "url(#" in value:
                element[attribute] = value.replace("url(#", f"url(#{anchor(page.name)}--")


def lowered(page: Page) -> None:
    "Each heading one level down: parts are the first level, pages the second."
    for level in (4, 3, 2, 1):
        for heading in page.text.find_all(f"h{level}"): heading.name = f"h{level + 1}"


def referred(page: Page, there: dict[str, set[str]], number: dict[str, int]) -> None:
    "Links within the book lead to their place, and say its page where it is on another one."
    for link, (name, place) in links(page, there):
        to = anchor(name, place)
        link["href"] = f"#{to}"
        if (name == page.name or link.find_parent(["svg", "figure"]) or "term-" in place
            or name == "about/bibliography"):
            continue
        link.insert_after(slot(to, number, "p.\u00a0"))


def turned(page: Page) -> None:
    "Tables of many columns go on leaves that are turned."
    for table in page.text.find_all("table"):
        if len(table.find("tr").find_all(["th", "td"])) > COLUMNS:
            table.parent["class"] = [*table.parent.get("class", ()), "tfm-landscape"]


def slot(to: str, number: dict[str, int], before: str = "") -> Tag:
    "The number of the page on which a place is; zeros while it is unknown."
    made = BeautifulSoup("", "html.parser").new_tag("span", attrs={"class": "tfm-at"})
    made.string = f"{before}{number.get(to, '000')}"
    return made


def contents(pages: list[Page], number: dict[str, int]) -> str:
    "Parts and pages with their page numbers."
    def line(level: str, to: str, title: str) -> str:
        return (
            f'<p class="tfm-line {level}"><a '
            f'href="#{to}"><span>{escape(title)}</span></a>{slot(to, number)}</p>')
    rows = []
    for page in pages:
        if page.part and not page.is_cover:
            rows.append(f'<p class="tfm-part-line">{escape(page.part)}</p>')
        rows.append(line("tfm-part-line" if page.is_cover else "tfm-page-line", anchor(page.name),
                         page.title))
    return f'<section class="tfm-contents"><h1>Contents</h1>{"".join(rows)}</section>'


def opening(part: str, pages: list[Page]) -> str:
    "The leaf before a part that has no cover: its name, and what each of its pages establishes."
    rows = "".join(f"<dt>{escape(page.title)}</dt><dd>{escape(page.lead)}</dd>"
                   for page in pages if "practice/" not in page.name)
    return f'<section class="tfm-part"><h1>{escape(part)}</h1><dl>{rows}</dl></section>'


def cover(paper: str, day: date) -> str:
    "The first leaf, and on its back what the edition is."
    width, height = (float(re.sub("[a-z]", "", side)) for side in PAPERS[paper])
    return (f'<section class="tfm-cover">{picture(800, round(800 * height / width))}</section>'
            f'<section class="tfm-colophon"><h1>About this edition</h1><p>{RULE}</p><p>{LICENCE} '
            f'Printed on {day.day} {day:%B %Y}.</p></section>')


def margins(pages: list[Page], paper: str) -> str:
    "The size of the paper, and for each page of the book the line at its head."
    heads = "".join(
        f'@page {anchor(p.name)} {{ @top-right {{ content: '
        f'{json.dumps(p.title, ensure_ascii=False)}; }} }}\n#{anchor(p.name)} {{ page: '
        f'{anchor(p.name)}; }}\n' for p in pages if not p.is_cover)
    return (
        f"@page {{ size: {' '.join(PAPERS[paper])}; }}\n@page landscape {{ size: "
        f"{' '.join(PAPERS[paper][::-1])}; }}\n{heads}")


def document(pages: list[Page], paper: str, day: date, number: dict[str, int]) -> str:
    "The whole document, with the numbers of pages that are known."
    there, body = anchors(pages), []
    for i, page in enumerate(pages):
        if page.part and not page.is_cover: body.append(opening(page.part, part_of(pages, i)))
        renamed(page)
        if not page.is_cover: lowered(page)
        turned(page)
        referred(page, there, number)
        body.append(
            f'<article class="tfm-text{" tfm-opens" if page.is_cover else ""}" '
            f'id="{anchor(page.name)}">{page.text.decode_contents()}</article>')
    head = "".join(f'<link rel="stylesheet" href="{path}">' for path in STYLES)
    style = f"<style>{CSS.read_text(encoding='utf-8')}\n{margins(pages, paper)}</style>"
    return (
        '<!DOCTYPE html><html lang="en" data-theme="light"><head><meta '
        f'charset="utf-8"><title>{TITLE}</title>{head}{style}</head>'
            f'<body class="tfm-print">{cover(paper, day)}{contents(pages, number)}<main>{"".join(body)}</main></body></html>')  # noqa: E501


# --- printing -------------------------------------------------------------------------------------

def printed(browser, html: str, book: Path) -> bytes:
    "The document as Chromium prints it, tagged and with an outline."
    httpd = server(book)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{httpd.server_port}"
    page = browser.new_page()
    try:
        page.route(f"{base}/print.html",
                   lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
        page.goto(f"{base}/print.html", timeout=300_000)
        page.evaluate("document.fonts.ready")
        return page.pdf(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)
    finally:
        page.close()
        httpd.shutdown()
        httpd.server_close()


def places(pdf: pdfium.PdfDocument) -> dict[str, int]:
    "On which page, counted from 1, each named place is."
    found = {}
    for i in range(raw.FPDF_CountNamedDests(pdf)):
        size = ctypes.c_long(0)
        raw.FPDF_GetNamedDest(pdf, i, None, size)
        name = ctypes.create_string_buffer(size.value)
        dest = raw.FPDF_GetNamedDest(pdf, i, name, size)
        found[name.raw[:size.value].decode("utf-16-le").rstrip("\0")] = (
            raw.FPDFDest_GetDestPageIndex(pdf, dest) + 1)
    return found


def make(browser, book: Path, paper: str, day: date, wanted: list[str] | None = None) -> bytes:
    "The book, printed until its page numbers are right."
    number = {}
    for _ in range(PRINTINGS):
        pdf = printed(browser, document(edition(book, wanted), paper, day, number), book)
        found = places(pdfium.PdfDocument(pdf))
        if found == number: return pdf
        number = found
    raise SystemExit(f"after {PRINTINGS} printings, page numbers still change")


def volumes(wanted: list[str]) -> dict[str, list[str]]:
    """What of a file's name tells a volume -> its pages: the book, and its pages in depth; or only
    what is wanted."""
    if wanted: return {"": wanted}
    deep = [name for name in names() if kind(name) == "depth"]
    return {"": [name for name in names()
                 if name not in deep]} | ({"-in-depth": [*deep, "about/bibliography"]} if deep
                                          else {})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book", type=Path, default=ROOT / "_build/html")
    parser.add_argument("--out", type=Path, default=ROOT / "build/paper")
    parser.add_argument("--paper", nargs="+", choices=PAPERS, default=list(PAPERS))
    parser.add_argument("pages", nargs="*")
    given = parser.parse_args(arguments)
    if not (given.book / "index.html").is_file():
        sys.exit(f"no built book in {given.book}: run `make book`")
    if not CHROMIUM: sys.exit("no Chromium on this machine (Debian's package: chromium)")
    from playwright.sync_api import sync_playwright
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for paper, (volume, pages) in product(given.paper, volumes(given.pages).items()):
            path = given.out / f"{FILE}{volume}-{paper}.pdf"
            path.write_bytes(make(browser, given.book, paper, date.today(), pages))
            print(path,
                  f"{path.stat().st_size / 2**20:.1f} MB, {len(pdfium.PdfDocument(path))} pages")
            if not given.pages: announce(given.book, path)


if __name__ == "__main__":
    main()
