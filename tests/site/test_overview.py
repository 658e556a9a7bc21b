"""The overview: its parts lie apart, name chapters of the book, and link to those that are there; the page's own part is lit."""
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import pytest
import rules  # noqa: F401  (the extensions' folder on the path)
from overview import ADDED, ARROWS, FRAME, HEIGHT, LINES, PARTS, PAST, STREAM, WIDTH, drawing

ROOT = Path(__file__).resolve().parents[2]
THERE = [p.chapter for p in PARTS if (ROOT / f"chapters/{p.chapter}.ipynb").exists()]


def ends(path: str) -> list[tuple[float, float]]:
    "The first and the last point of a path of straight lines."
    at, points = [0.0, 0.0], []
    for letter, numbers in re.findall(r"([MHVL])([\d. ]+)", path):
        given = [float(n) for n in numbers.split()]
        if letter in "ML": at = given
        elif letter == "H": at = [given[0], at[1]]
        else: at = [at[0], given[0]]
        points.append(tuple(at))
    return [points[0], points[-1]]


def near(point: tuple[float, float], x: float, y: float, width: float, height: float) -> bool:
    "Is it within three pixels of a box?"
    return x - 3 <= point[0] <= x + width + 3 and y - 3 <= point[1] <= y + height + 3


def test_parts_are_chapters_of_the_map():
    planned = re.findall(r"^    (\d\d_\w+):", (ROOT / "index.md").read_text(encoding="utf-8"), re.M)
    assert {p.chapter for p in PARTS} <= set(planned) and len(set(THERE)) >= 8


def test_parts_lie_apart_and_hold_their_words():
    "And are as large as a finger asks for, in a picture that fits a phone and is low."
    assert WIDTH <= 350 and HEIGHT <= 160
    for p in PARTS:
        assert 0 <= p.x and p.x + p.width <= WIDTH and 0 <= p.y and p.y + p.height <= HEIGHT and min(p.width, p.height) >= 24
        assert len(p.label) * (5.2 if p.small else 5.9) <= p.width + 4, p.label
    for a, b in combinations(PARTS, 2):
        assert a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y, (a.label, b.label)


@pytest.mark.parametrize("path", [*ARROWS, *LINES.values()])
def test_arrows_join_parts(path):
    "Each begins and ends at a part, at the sum, or at the word «source»."
    places = [(p.x, p.y, p.width, p.height) for p in PARTS] + [(32, 71, 14, 14), (306, 66, 43, 12)] + [(STREAM - 5, y - 5, 10, 10) for y in ADDED]
    assert all(any(near(point, *place) for place in places) for point in ends(path))


def test_each_layer_reads_from_the_stream_and_adds_to_it():
    inside = [p for p in PARTS if FRAME[0] < p.x < FRAME[0] + FRAME[2] and not p.small]
    assert all(any(near(ends(path)[1], p.x, p.y, p.width, p.height) for path in (*PAST, *ARROWS)) for p in inside), "each is reached"
    assert all(any(ends(path)[1] == (STREAM + 7, y) for path in ARROWS) for y in ADDED) and FRAME[0] + 5 < STREAM < min(p.x for p in inside) - 6


def test_the_block_frames_what_is_repeated():
    x, y, width, height = FRAME
    inside = {p.label for p in PARTS if x < p.x and p.x + p.width < x + width}
    assert inside == {"attention", "heads", "flash", "GPU", "cross-attention", "feed-forward", "add & norm, each"} and height <= HEIGHT


def test_links_lead_to_what_is_there():
    tree = ElementTree.fromstring(drawing(["03_tokens", "04_attention"], "04_attention", "../"))
    links = [e for e in tree.iter() if e.tag.endswith("a") and e.get("href")]
    assert [(a.get("href"), a.get("aria-label"), a.get("aria-current")) for a in links] == [
        ("../03_tokens.html", "tokens, chapter 3", None), ("../03_tokens.html", "embeddings, chapter 3", None), ("../04_attention.html", "attention, chapter 4", "page")]
    assert "KV cache" not in drawing(THERE) or "16_kv_cache" in THERE


@pytest.mark.slow
def test_every_chapter_of_the_drawing_has_it(book):
    "Once, with its own parts lit; the front page has it without a lit one, and other pages have none."
    for path in sorted(book.glob("chapters/*.html")):
        html = path.read_text(encoding="utf-8")
        own = sum(p.chapter == path.stem for p in PARTS)
        drawn = re.findall(r'<nav class="tfm-overview".*?</nav>', html, re.S)
        assert len(drawn) == bool(own) and (not own or drawn[0].count("aria-current") == own), path.name
    front = (book / "index.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<nav class="tfm-overview".*?</nav>', front, re.S)
    assert len(drawn) == 1 and "aria-current" not in drawn[0] and drawn[0].count("<a ") == sum(p.chapter in THERE for p in PARTS)


@pytest.mark.slow
@pytest.mark.browser
def test_it_is_legible_and_answers_the_keyboard(browser, served):
    "On a phone: letters of ten pixels, not wider than the page, a focus that is seen, and Enter follows it."
    context = browser.new_context(base_url=served, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto("chapters/04_attention.html")
    box = page.locator(".tfm-overview svg").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] <= 160
    assert min(page.locator(".tfm-overview text").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")) >= 10
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
    context.close()
