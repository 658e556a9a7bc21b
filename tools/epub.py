"""The whole book for e-readers: python tools/epub.py [--book FOLDER] [--out FOLDER] [PAGE ...]

EPUB 3 from the built pages: their text as XHTML, formulas as MathML, drawings as SVG with colours
that any reader knows, no script. The same input gives the same bytes.
"""
import argparse
import re
import sys
import zipfile
from datetime import date
from functools import cache
from html import escape
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from bs4 import BeautifulSoup, Tag

sys.path.insert(0, str(Path(__file__).resolve().parent))

from editions import (  # noqa: E402
    FILE,
    LICENCE,
    ROOT,
    RULE,
    TITLE,
    Page,
    anchors,
    announce,
    camel,
    edition,
    links,
    of_class,
    part_of,
    slug,
)

CSS = Path(__file__).resolve().with_name("epub.css")
XHTML, MATHML, SVG, OPS = ("http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML",
                           "http://www.w3.org/2000/svg", "http://www.idpf.org/2007/ops")
STAMP = (1980, 1, 1, 0, 0, 0)


# --- colours --------------------------------------------------------------------------------------

def linear(code: str) -> list[float]:
    "A colour #rrggbb as linear light, 0 to 1."
    values = [int(code[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= .04045 else ((v + .055) / 1.055)**2.4 for v in values]


def code(values: list[float]) -> str:
    "Linear light as #rrggbb."
    curve = [12.92 * v if v <= .0031308 else 1.055 * v**(1 / 2.4) - .055
             for v in (min(1., max(0., v)) for v in values)]
    return "#" + "".join(f"{round(255 * v):02x}" for v in curve)


def times(matrix: tuple, values: list[float]) -> list[float]:
    return [sum(m * v for m, v in zip(row, values)) for row in matrix]


# Ottosson's Oklab, 2020
TO_LMS = ((.4122214708, .5363325363, .0514459929), (.2119034982, .6806995451, .1073969566),
          (.0883024619, .2817188376, .6299787005))
TO_LAB = ((.2104542553, .7936177850, -.0040720468), (1.9779984951, -2.4285922050, .4505937099),
          (.0259040371, .7827717662, -.8086757660))
FROM_LAB = ((1., .3963377774, .2158037573), (1., -.1055613458, -.0638541728),
            (1., -.0894841775, -1.2914855480))
FROM_LMS = ((4.0767416621, -3.3077115913, .2309699292), (-1.2684380046, 2.6097574011, -.3413193965),
            (-.0041960863, -.7034186147, 1.7076147010))


@cache
def mixed(space: str, a: str, share: float, b: str) -> str:
    "CSS's color-mix of `share` of the colour a and the rest of b."
    def mean(x, y): return [share * p + (1 - share) * q for p, q in zip(x, y)]
    if space == "srgb":
        return "#" + "".join(f"{round(v):02x}"
                             for v in mean(*([int(c[i:i + 2], 16) for i in (1, 3, 5)]
                                             for c in (a, b))))
    lab = mean(*(times(TO_LAB, [v**(1 / 3) for v in times(TO_LMS, linear(c))]) for c in (a, b)))
    return code(times(FROM_LMS, [v**3 for v in times(FROM_LAB, lab)]))


def plain(css: str) -> str:
    "CSS without variables and mixtures: a variable is what it falls back to."
    css = re.sub(r"var\(--[\w-]+, *(#\w{3,6}|[\w-]+)\)", lambda m: full(m[1]), css)
    return re.sub(r"color-mix\(in (oklab|srgb), *(#\w{6}) ([\d.]+)%, *(#\w{6})\)",
                  lambda m: mixed(m[1], m[2], float(m[3]) / 100, m[4]), css)


def full(colour: str) -> str:
    return "#" + "".join(2 * c for c in colour[1:]) if re.fullmatch(r"#\w{3}", colour) else colour


# --- pages ----------------------------------------------------------------------------------------

def as_mathml(text: Tag) -> None:
    """KaTeX's boxes give way to its MathML; a formula without scripts, which is text and has none,
    gets it."""
    for formula in of_class(text, "katex", "span"):
        math = formula.find("math") or spelled(formula)
        math["xmlns"] = MATHML
        del math["class"]
        formula.replace_with(math.extract() if math.parent else math)


def spelled(formula: Tag) -> Tag:
    "MathML of a formula that is text: letters, numbers and operators."
    new = BeautifulSoup("", "html.parser").new_tag
    math = new("math")
    for atom in formula.find_all("span"):
        if atom.find("span"): continue
        # the name of a function is one identifier
        letters = r"[^\W\d_]+" if "mop" in atom.get("class", ()) else r"[^\W\d_]"
        for word in re.findall(rf"[\d.]*\d|{letters}|\S", atom.get_text()):
            part = new("mn" if word[-1].isdigit() else "mi" if word[0].isalpha() else "mo")
            if part.name == "mi" and "mathnormal" not in atom.get("class", ()):
                part["mathvariant"] = "normal"
            part.string = word
            math.append(part)
    return math


def as_xml(page: Page, there: dict[str, set[str]]) -> str:
    "The page as XHTML."
    text = page.text
    as_mathml(text)
    camel(text)
    for link, (name, place) in links(page, there):
        link["href"] = ((f"{slug(name)}.xhtml" if name != page.name else "")
                        + (f"#{place}" if place else "") or f"{page.slug}.xhtml")
    for drawing in text.find_all("svg"): drawing["xmlns"] = SVG
    for element in text.find_all(True):
        for attribute in ("style", "fill", "stroke"):
            if attribute in element.attrs: element[attribute] = plain(element[attribute])
    return xhtml(page.title, text.decode_contents(formatter="minimal"))


def xhtml(title: str, body: str) -> str:
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="{XHTML}" '
        f'xmlns:epub="{OPS}" lang="en" xml:lang="en"><head><title>{escape(title)}</title>'
            f'<link rel="stylesheet" href="book.css"/></head><body>{body}</body></html>')


def leaf(title: str, body: str, kind: str = "") -> str:
    "A page that is not of the web edition."
    attribute = f' epub:type="{kind}"' if kind else ""
    return xhtml(title, f"<section{attribute}>{body}</section>")


def picture(width: int, height: int) -> str:
    """The title, and attention as lines from a word to the words that it attends to, on a ground of
    this size."""
    words = ("why", "does", "the", "owl", "sleep", "?")
    left, step, low = ((.1 * width, .136 * width, .66 * height) if height > width
                       else (.53 * width, .074 * width, .78 * height))
    high, size = low - .17 * max(height, 700), .0425 * min(width, 800)
    x = [left + step * (i + .5) for i in range(len(words))]
    lines = "".join(
        f'<path d="M{x[3]:g} {low - size:g}C{x[3]:g} {(low + high) / 2 - size / 2:g} {at:g} '
        f'{(low + high) / 2:g} {at:g} {high + size / 2:g}" fill="none" stroke="#9fc2ff" '
        f'stroke-width="{w}" stroke-linecap="round"/>'
                    for at, w in zip(x, (2, 3, 5, 14, 22, 2)))
    said = "".join(
        f'<text x="{at:g}" y="{y:g}" text-anchor="middle" font-size="{size:g}" '
        f'fill="#ffffff">{word}</text>' for y in (high, low) for at, word in zip(x, words))
    title = "".join(
        f'<text x="{.09 * width:g}" '
        f'y="{(.2 + .085 * i) * height if height > width else (.3 + .15 * i) * height:g}" '
        f'font-size="{.105 * min(width, 800):g}" fill="#ffffff">{line}</text>'
                    for i, line in enumerate(TITLE.rsplit(" ", 1)))
    foot = (
        f'<text x="{.09 * width:g}" y="{(.86 if height > width else .62) * height:g}" '
        f'font-size="{.04 * min(width, 800):g}" fill="#c9d6ec">A book on transformers that '
        'runs</text>')
    return (
        f'<svg xmlns="{SVG}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="serif"><title>{TITLE}</title><rect width="{width}" height="{height}" '
        f'fill="#14284b"/>{title}{lines}{said}{foot}</svg>')


def nested(pages: list[Page]) -> str:
    "The contents, part by part."
    rows, i = [], 0
    while i < len(pages):
        some = part_of(pages, i)
        cover = some[0].is_cover
        inner = "".join(f'<li><a href="{page.slug}.xhtml">{escape(page.title)}</a></li>'
                        for page in some[cover:])
        head = (f'<a href="{some[0].slug}.xhtml">{escape(some[0].title)}</a>' if cover
                else f'<a href="part-{some[0].slug}.xhtml">{escape(some[0].part)}</a>')
        rows.append(f"<li>{head}{f'<ol>{inner}</ol>' if inner else ''}</li>" if some[0].part
                    else inner)
        i += len(some)
    return "".join(rows)


def opening(part: str, pages: list[Page]) -> str:
    "The page before a part that has no cover: what each of its pages establishes."
    rows = "".join(
        f'<dt><a href="{p.slug}.xhtml">{escape(p.title)}</a></dt><dd>{escape(p.lead)}</dd>'
        for p in pages if "practice/" not in p.name)
    return leaf(part, f"<h1>{escape(part)}</h1><dl>{rows}</dl>", "part")


def files(pages: list[Page], day: date) -> dict[str, str]:
    "Every text of the archive below `book/`, by name, in reading order."
    there = anchors(pages)
    contents = leaf("Contents",
                    '<nav epub:type="toc" id="toc" '
                    f'role="doc-toc"><h1>Contents</h1><ol>{nested(pages)}</ol></nav>')
    about = leaf("About this edition",
                 f"<h1>About this edition</h1><p>{RULE}</p><p>{LICENCE} Made on {day.day} "
                 f"{day:%B %Y}.</p>")
    found = {"front.xhtml": leaf(TITLE,
                                 f'<img src="cover.svg" alt="{TITLE}: the words of a sentence, '
                                 'joined to “owl” by lines as thick as its attention weights"/>',
                                 "cover"),
             "about.xhtml": about, "nav.xhtml": contents}
    for i, page in enumerate(pages):
        if page.part and not page.is_cover:
            found[f"part-{page.slug}.xhtml"] = opening(page.part, part_of(pages, i))
        found[f"{page.slug}.xhtml"] = as_xml(page, there)
    return found


def package(texts: dict[str, str], day: date) -> str:
    "The list of what is there, in reading order, and what the book is."
    def kinds(text: str) -> str:
        found = [kind for kind, mark in (("mathml", "<math"), ("svg", "<svg")) if mark in text]
        return f' properties="{" ".join(found)}"' if found else ""
    items = "".join(
        f'<item id="i-{name[:-6]}" href="{name}" '
        f'media-type="application/xhtml+xml"{" properties=" + chr(34) + "nav" + chr(34) if name == "nav.xhtml" else kinds(text)}/>' for name, text in texts.items())  # noqa: E501
    spine = "".join(f'<itemref idref="i-{name[:-6]}"/>' for name in texts)
    access = "".join(f'<meta property="schema:{name}">{value}</meta>' for name, value in (
        ("accessMode", "textual"), ("accessMode", "visual"), ("accessModeSufficient", "textual"),
        ("accessibilityFeature", "structuralNavigation"), ("accessibilityFeature", "MathML"),
        ("accessibilityFeature", "alternativeText"), ("accessibilityFeature", "tableOfContents"),
        ("accessibilityHazard", "none"),
        ("accessibilitySummary",
         "Formulas are MathML; every drawing has a description; nothing moves.")))
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<package xmlns="http://www.idpf.org/2007/opf" '
        'version="3.0" unique-identifier="id" xml:lang="en"><metadata '
        'xmlns:dc="http://purl.org/dc/elements/1.1/">'
            '<dc:identifier '
            f'id="id">urn:uuid:{uuid5(NAMESPACE_URL, "the-executable-transformer")}</dc:identifier><dc:title>{TITLE}</dc:title><dc:language>en</dc:language>'  # noqa: E501
            "<dc:creator>The Executable Transformer authors</dc:creator><dc:rights>Text CC BY "
            "4.0, code MIT</dc:rights><dc:subject>Transformers (machine learning)</dc:subject>"
            f'<meta property="dcterms:modified">{day:%Y-%m-%d}T00:00:00Z</meta>{access}</metadata>'
            f'<manifest>{items}<item id="css" href="book.css" media-type="text/css"/><item '
            'id="cover" href="cover.svg" media-type="image/svg+xml" '
            f'properties="cover-image"/></manifest><spine>{spine}</spine></package>')


def write(path: Path, pages: list[Page], day: date) -> None:
    "The archive; its first entry is its type, not compressed."
    texts = files(pages, day)
    container = (
        '<?xml version="1.0"?><container version="1.0" '
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
        'full-path="book/package.opf" '
                 'media-type="application/oebps-package+xml"/></rootfiles></container>')
    rest = {"META-INF/container.xml": container, "book/package.opf": package(texts, day),
            "book/book.css": CSS.read_text(encoding="utf-8"),
            "book/cover.svg": f'<?xml version="1.0" encoding="utf-8"?>\n{picture(800, 1200)}'}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("mimetype", STAMP), "application/epub+zip")
        for name, text in (rest | {f"book/{name}": text for name, text in texts.items()}).items():
            archive.writestr(zipfile.ZipInfo(name, STAMP), text, zipfile.ZIP_DEFLATED)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--book", type=Path, default=ROOT / "_build/html")
    parser.add_argument("--out", type=Path, default=ROOT / "build/paper")
    given = parser.parse_args(arguments)
    if not (given.book / "index.html").is_file():
        sys.exit(f"no built book in {given.book}: run `make book`")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{FILE}.epub"
    write(path, edition(given.book, given.pages or None), date.today())
    print(path, f"{path.stat().st_size / 2**20:.1f} MB")
    if not given.pages: announce(given.book, path)


if __name__ == "__main__":
    main()
