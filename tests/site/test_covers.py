"""The covers of the parts: each part with chapters has one, with a question, a short text, a
drawing that is described, and the chapters that the table of contents lists."""
import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from bs4 import BeautifulSoup
from conftest import ROOT, too_wide
from covers import DRAWINGS, elsewhere, figure
from durations import in_hours, reading, taken
from lean import COVER
from pages import book_map, lead, parts, title
from test_defects import build, small

PARTS = [part for part in parts(ROOT / "_toc.yml")
         if any(re.match(r"chapters/(?!00_)", page) for page in part.chapters)]
MAP = book_map(ROOT)


def notebook(page: str) -> dict:
    return json.loads((ROOT / f"{page}.ipynb").read_text(encoding="utf-8"))


def test_every_part_of_the_map_has_a_cover():
    assert [part.caption for part in PARTS] == list(MAP) and len(PARTS) == 6
    assert all(part.cover for part in PARTS) and len({part.cover for part in PARTS}) == 6
    assert ({p.relative_to(ROOT).with_suffix("").as_posix() for p in (ROOT / "parts").iterdir()}
            == {part.cover for part in PARTS})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.cover)
def test_a_cover_says_what_the_part_answers(part):
    "Its name, a question, one paragraph, a drawing of its own, and the chapters."
    head, question, text, drawn, chapters = (ROOT / f"{part.cover}.md").read_text(
        encoding="utf-8").strip().split("\n\n")
    assert head == f"# Part {part.caption}" and re.fullmatch(r"> [^\n]+\?", question)
    assert 60 <= len(text.split()) <= 120 and "Afterwards, you can" in text and "\n" not in text
    assert chapters == "```{part-chapters}\n```"
    name, alt, caption = re.fullmatch(r"```\{part-drawing\} (\w+)\n:alt: ([^\n]+)\n([^\n]+)\n```",
                                      drawn).groups()
    assert name in DRAWINGS and len(alt.split()) > 40 and len(caption.split()) > 8


def test_no_drawing_is_used_twice_or_not_at_all():
    used = re.findall(r"\{part-drawing\} (\w+)",
                      "".join((ROOT / f"{part.cover}.md").read_text(encoding="utf-8")
                              for part in PARTS))
    assert sorted(used) == sorted(DRAWINGS)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_fits_a_phone_and_follows_the_theme(name):
    "Nothing lies outside it, no letter is small, and every colour is one of the book's."
    html = figure(name, "some words & more", "a caption")
    tree = ElementTree.fromstring(html).find("{*}svg")
    _, _, width, height = map(float, tree.get("viewBox").split())
    assert (width <= 350 and tree.get("role") == "img" and tree.get("aria-label")
            == "some words & more")
    for e in tree.iter():
        kind = e.tag.rpartition("}")[2]
        if kind == "rect":
            assert (-.5 <= float(e.get("x")) and float(e.get("x")) + float(e.get("width")) <= width
                    and 0 <= float(e.get("y")) and float(e.get("y"))
                    + float(e.get("height")) <= height)
        if kind == "text":
            assert (float(e.get("font-size")) >= 11 and 0 < float(e.get("x")) <= width
                    and float(e.get("y")) < height)
    css = (ROOT / "tfmlib/assets/figures.css").read_text(encoding="utf-8")
    colours = (dict(re.findall(r"--tfm-([\w-]+):\s*(#[0-9a-f]{6})",
                               re.search(r"\{([^{}]*--tfm-ink:[^{}]*)\}", css)[1]))
               | {"paper": "#fff"})
    assert (re.findall(r"(?<!&)#[0-9a-f]{3,6}\b", re.sub(r"var\(--tfm-([\w-]+),(#[0-9a-f]{3,6})\)",
            lambda m: "" if colours[m[1]] == m[2] else m[0], html)) == [])
    assert set(re.findall(r"url\(#([\w-]+)\)", html)) == set(re.findall(r'id="([\w-]+)"', html))


def test_the_caption_in_the_sidebar_leads_to_the_cover():
    tree = (
        '<p class="caption"><span class="caption-text">I · One</span></p>\n<ul class="x">\n<li '
        'class="toctree-l1"><a class="r" href="parts/one.html">Part I · One</a></li>\n<li><a '
        'href="c.html">C</a></li>\n</ul>\n'
            '<p class="caption"><span class="caption-text">Back</span></p>\n<ul><li><a '
            'href="d.html">D</a></li></ul>')
    made = COVER.sub(r'<p class="caption">\2\1</a></p>\3', tree)
    assert (made.startswith(
        '<p class="caption"><a class="r" href="parts/one.html">I · One</a></p>\n<ul '
        'class="x">\n<li><a href="c.html">C')
            and made.endswith(
                tree[tree.index('<p class="caption"><span class="caption-text">Back'):]))


# --- as built -------------------------------------------------------------------------------------

def rows(html: str) -> list[tuple[str, str, str, list[str]]]:
    "What a cover lists: title, where it leads, what is said of it, and all links below it."
    listed = BeautifulSoup(html, "html.parser").find("dl", class_="tfm-part-chapters")
    return [(dt.get_text().replace("\xa0", " "), dt.a["href"] if dt.a else "",
             " ".join(dd.get_text(" ").split()), [a["href"] for a in dd.find_all("a")])
            for dt, dd in zip(listed.find_all("dt"), listed.find_all("dd"))]


def plain(markdown: str) -> str:
    return " ".join(re.sub(r"\*\*|\*|`", "", markdown).replace("'", "’").split())


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.cover)
def test_a_cover_lists_the_chapters_of_the_toc_and_has_its_drawing_with_words_for_it(book, part):
    html = (book / f"{part.cover}.html").read_text(encoding="utf-8")
    found = rows(html)
    assert [href for _, href, *_ in found] == [f"../{page}.html" for page in part.chapters]
    assert ([int(name.split(" ·")[0]) for name, *_ in found]
            == sorted(int(name[:2]) for name in MAP[part.caption]))
    for page, (name, _, said, links) in zip(part.chapters, found):
        nb = notebook(page)
        assert (name == title(nb) and said.replace("'", "’").startswith(plain(elsewhere(lead(nb))))
                and reading(ROOT, page.removeprefix("chapters/")) in said)
        assert f"../{page.replace('chapters/', 'chapters/practice/')}.html" in links
    time = in_hours(sum(taken(ROOT, page.removeprefix("chapters/")) for page in part.chapters))
    assert re.search(rf"reading time: {time}, without the exercises", html)
    [drawing] = re.findall(r'<article.*?(<figure class="tfm-figure".*?</figure>)', html, re.S)
    alt = unescape(re.search(r'role="img" aria-label="([^"]*)"', drawing)[1])
    assert (len(alt.split()) > 40 and alt in (ROOT / f"{part.cover}.md").read_text(encoding="utf-8")
            and "<figcaption>" in drawing)


def test_covers_are_where_readers_pass(book):
    "The map and the sidebar lead to them, and so do previous and next."
    front = (book / "index.html").read_text(encoding="utf-8")
    assert (re.findall(r'<h3><a href="(parts/\w+)\.html">([^<]*)</a></h3>', front)
            == [(part.cover, part.caption) for part in PARTS])
    nav = re.search(r'<nav id="tfm-nav".*?</nav>',
                    (book / "about/glossary.html").read_text(encoding="utf-8"), re.S)[0]
    assert (re.findall(r'<p class="caption"><a [^>]*href="\.\./(parts/\w+)\.html">([^<]*)</a></p>',
                       nav) == [(part.cover, part.caption) for part in PARTS]
            and nav.count("parts/") == 6)
    for part in PARTS:
        html = (book / f"{part.cover}.html").read_text(encoding="utf-8")
        assert (html.count('aria-current="page"') == 1
                and f'<a rel="next" href="../{part.chapters[0]}.html"' in html)
        assert f'<a rel="prev" href="../{part.cover}.html"' in (
            book / f"{part.chapters[0]}.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_a_cover_is_legible_on_a_phone(visiting):
    """The drawing is as wide as it was made, its letters are not small, and nothing is wider
    than the page."""
    tab = visiting(viewport={"width": 390, "height": 844})
    for part in PARTS:
        tab.goto(f"{part.cover}.html")
        box = tab.locator(".tfm-text figure svg").bounding_box()
        assert 345 <= box["width"] <= 1.2 * 350 and box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert (min(tab.locator(".tfm-text figure text").evaluate_all(
            "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")) >= 11)
        assert too_wide(tab) <= 0


# --- mistakes -------------------------------------------------------------------------

COVER_PAGE = (
    "# Part I · Tools\n\n> What for?\n\nText.\n\n```{part-drawing} shortcut\n:alt: a drawing of "
    "words and states, described at some length for the test\nA "
    "caption.\n```\n\n```{part-chapters}\n```\n")
FRONT = (
    "# A small book\n\n```{book-map}\n- part: I · Tools\n  chapters:\n    00_proof: Proof\n```\n")


def with_cover(root: Path, cover: str = COVER_PAGE,
               of: tuple[str, ...] = ("parts/tools", "chapters/00_proof")) -> Path:
    "The tests' small book, with a part."
    small(root)
    (root / "parts").mkdir()
    (root / "parts/tools.md").write_text(cover, encoding="utf-8")
    (root / "index.md").write_text(FRONT, encoding="utf-8")
    toc = {"format": "jb-book", "root": "index",
           "parts": [{"caption": "I · Tools", "chapters": [{"file": page} for page in of]},
                     {"caption": "Back",
                      "chapters": [{"file": "about/claims"},
                                   {"file": "about/reference",
                                    "sections": [{"file": "api/00_proof"}]}]}]}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc, allow_unicode=True), encoding="utf-8")
    return root


@pytest.mark.whole
@pytest.mark.parametrize("change, said", [
    (lambda text: text.replace("described at some length for the test", ""),
     "part-drawing shortcut: it needs a caption, and an :alt:"),
    (lambda text: text.replace("A caption.\n", ""), "it needs a caption"),
    (lambda text: text.replace("} shortcut", "} nothing"),
     f"part-drawing: got 'nothing', expected one of {', '.join(DRAWINGS)}")],
                         ids=["no alternative", "no caption", "no drawing"])
def test_a_cover_without_its_drawing_fails_the_build(tmp_path, change, said):
    status, log = build(with_cover(tmp_path / "book", change(COVER_PAGE)))
    assert status != 0 and said in log, log


@pytest.mark.slow
def test_a_cover_that_opens_no_part_fails_the_build(tmp_path):
    status, log = build(with_cover(tmp_path / "book", of=("chapters/00_proof", "parts/tools")))
    assert status != 0 and "part-chapters: parts/tools is not the first page of a part" in log, log
