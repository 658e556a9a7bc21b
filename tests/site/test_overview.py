"""The overview: its parts lie apart, lead to chapters of the book, and the page's own part is
lit."""
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest
from conftest import ROOT
from overview import CHAPTERS, DRAWING, overview
from pages import book_map

LINKS = ElementTree.fromstring(DRAWING).findall(".//{*}a")


def test_parts_are_chapters_of_the_map():
    assert (len(CHAPTERS) > 8 and {a.get("href") for a in LINKS}
            == {f"{chapter}.html" for chapter in CHAPTERS})
    assert CHAPTERS <= {chapter for part in book_map(ROOT).values() for chapter in part}
    assert all(a.get("aria-label") == f"{a.find('{*}text').text}, chapter {int(a.get('href')[:2])}"
               for a in LINKS)


def test_parts_lie_apart_and_hold_their_words():
    "And are as large as a finger asks for, in a picture that fits a phone and is low."
    _, _, width, height = map(int, ElementTree.fromstring(DRAWING).get("viewBox").split())
    boxes = [[int(a.find("{*}rect").get(name)) for name in ("x", "y", "width", "height")]
             for a in LINKS]
    assert width <= 350 and height <= 160
    for a, (x, y, w, h) in zip(LINKS, boxes):
        text = a.find("{*}text")
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height and min(w, h) >= 24
        assert (len(text.text) * (5.2 if text.get("class") == "tfm-small" else 5.9) <= w
                + 4), text.text
    assert all(a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3]
               <= a[1] for a, b in combinations(boxes, 2))


def test_links_lead_from_the_page_and_its_own_are_lit():
    html = overview("07_block", "../").astext()
    found = [(a.get("href"), a.get("aria-current")) for a in ElementTree.fromstring(html).iter()
             if a.get("href")]
    assert (found == [(f"../{a.get('href')}", "page" if a.get("href") == "07_block.html" else None)
                      for a in LINKS] and html.count("aria-current") == 2)


@pytest.mark.slow
def test_every_chapter_of_the_drawing_has_it(book):
    """Once, with its own parts lit; the front page has it without a lit one, and other pages
    have none."""
    for path in sorted(book.glob("chapters/*.html")):
        html = path.read_text(encoding="utf-8")
        own = sum(a.get("href") == path.name for a in LINKS)
        drawn = re.findall(r'<nav class="tfm-overview".*?</nav>', html, re.S)
        assert (len(drawn) == bool(own)
                and (not own or drawn[0].count("aria-current") == own)), path.name
    front = (book / "index.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<nav class="tfm-overview".*?</nav>', front, re.S)
    assert (len(drawn) == 1 and "aria-current" not in drawn[0] and drawn[0].count("<a ")
            == len(LINKS))


@pytest.mark.slow
@pytest.mark.browser
def test_it_is_legible_and_answers_the_keyboard(visiting):
    """On a phone: letters of ten pixels, not wider than the page, a focus that is seen, and
    Enter follows it."""
    page = visiting("chapters/04_attention.html", viewport={"width": 390, "height": 844})
    box = page.locator(".tfm-overview svg").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] <= 160
    assert (min(page.locator(".tfm-overview text").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().height)")) >= 10)
    link = page.locator(".tfm-overview a").first
    stroke = "e => getComputedStyle(e.querySelector('rect')).strokeWidth"
    before = link.evaluate(stroke)
    page.locator(".tfm-skip").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("e => e === document.activeElement"): break
    assert float(link.evaluate(stroke)[:-2]) > float(before[:-2])
    page.keyboard.press("Enter")
    page.wait_for_url("**/03_tokens.html")
