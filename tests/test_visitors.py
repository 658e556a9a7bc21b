"""What a visitor meets besides the pages: numbers that the build counts, a page for lost visitors, cards, a map and a feed once there is an address, sentences of the glossary."""
import json
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import counted
import pytest
import visitors
from pages import in_hours, reading

ROOT = Path(__file__).resolve().parent.parent
BASE = "https://some-one.github.io/book/"
ATOM = "{http://www.w3.org/2005/Atom}"


def app(base: str, out: Path | None = None):
    return SimpleNamespace(config=SimpleNamespace(html_baseurl=base), srcdir=ROOT, outdir=out, env=SimpleNamespace(found_docs={"index", "chapters/04_attention"}),
                           builder=SimpleNamespace(format="html", get_target_uri=lambda page: f"{page}.html"))


def test_the_numbers_are_those_of_the_book(book):
    html = (book / "index.html").read_text(encoding="utf-8")
    shown = {re.sub("<[^>]*>", "", what): number for number, what in re.findall(r"<li><strong>([\d,]+)</strong> (.*?)</li>", html)}
    kills = json.loads((ROOT / "tfmlib/assets/kills.json").read_text(encoding="utf-8"))["pages"]
    assert len(shown) == 6
    by = {word: int(number.replace(",", "")) for what, number in shown.items() for word in ("chapters", "claims", "exercises", "wrong answers") if re.match(rf"(common |plausible )?{word}", what)}
    assert by["chapters"] == len(list((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))) - len(list((ROOT / "chapters").glob("00_*.ipynb")))
    assert by["claims"] == len(re.findall(r"^- id:", (ROOT / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"), re.M))
    assert by["exercises"] == sum(len(page["exercises"]) for page in kills)
    assert by["wrong answers"] == sum(len(e["mutants"]) for page in kills for e in page["exercises"])
    [verdicts] = [what for what in shown if what.startswith("common claims")]
    assert sum(map(int, re.findall(r"(\d+) (?:hold|are)", verdicts))) == by["claims"]


def test_lists_in_words(): assert [counted.listed(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_hours_of_several_chapters_are_their_sum():
    assert reading(ROOT, "04_attention 10_decoders").endswith("hours")
    assert (in_hours(599), in_hours(600), in_hours(2000)) == ("10 hours", "10 hours", "33 hours")
    with pytest.raises(ValueError, match="99_gone: no such chapter"): reading(ROOT, "04_attention 99_gone")


def test_lost_visitors_find_the_book(book):
    html = (book / "404.html").read_text(encoding="utf-8")
    assert "No such page" in html and 'content="noindex"' in html and 'name="q"' in html
    moved = visitors.whole(html, BASE)
    links = re.findall(r'\b(?:href|src|action)="([^"]*)"', moved)
    assert len(links) > 20 and all(link.startswith((BASE, "#", "data:")) for link in links), "at any depth"


def test_without_an_address_nothing_pretends_to_have_one(book, tmp_path):
    assert not any((book / name).exists() for name in ("sitemap.xml", "robots.txt", "changes.xml")) and "og:" not in (book / "index.html").read_text(encoding="utf-8")
    context = {"title": "T"}
    visitors.cards(app(""), "index", "", context, None)
    assert "metatags" not in context


def test_with_an_address_there_are_cards_a_map_and_a_feed(tmp_path):
    context = {"title": 'A <em>title</em> & "more"', "description": "What it is."}
    visitors.cards(app(BASE), "chapters/04_attention", "", context, None)
    tags = dict(re.findall(r'property="([^"]*)" content="([^"]*)"', context["metatags"]))
    assert tags["og:title"] == "A title &amp; &quot;more&quot;" and tags["og:url"] == f"{BASE}chapters/04_attention.html"
    card = (ROOT / "extensions/theme/static/tfm/card.png").read_bytes()
    assert tags["og:image"].endswith("tfm/card.png") and (int.from_bytes(card[16:20]), int.from_bytes(card[20:24])) == (1200, 630)
    (tmp_path / "404.html").write_text('<a href="index.html">', encoding="utf-8")
    visitors.write(app(BASE, tmp_path), None)
    places = [e.text for e in ElementTree.parse(tmp_path / "sitemap.xml").iter() if e.tag.endswith("loc")]
    assert places == [f"{BASE}chapters/04_attention.html", BASE]
    feed = ElementTree.parse(tmp_path / "changes.xml").getroot()
    [entry] = feed.findall(f"{ATOM}entry")
    assert entry.find(f"{ATOM}title").text.startswith("0.1.0") and "<li>" in entry.find(f"{ATOM}content").text
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d", feed.find(f"{ATOM}updated").text)
    assert (tmp_path / "404.html").read_text() == f'<a href="{BASE}index.html">'


TERM = ".tfm-text a[href*='glossary.html#term-']"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_a_term_shows_its_sentence_to_pointer_keyboard_and_finger(browser, served, width):
    context = browser.new_context(viewport={"width": width, "height": 800}, has_touch=True, base_url=served)
    page = context.new_page()
    page.goto("chapters/04_attention.html")
    link, tip = page.locator(TERM).nth(3), page.locator(".tfm-tip")
    sentence = link.get_attribute("data-sentence")
    assert len(sentence) > 20 and link.get_attribute("title") is None and tip.is_hidden()
    link.hover()
    assert tip.is_visible() and tip.inner_text() == sentence and link.get_attribute("aria-describedby") == "tfm-tip"
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] >= 0 and box["y"] + box["height"] <= 800
    page.mouse.move(box["x"] + 10, box["y"] + 5, steps=4)
    page.wait_for_timeout(400)
    assert tip.is_visible(), "the pointer may rest on the sentence"
    page.keyboard.press("Escape")
    assert tip.is_hidden() and link.get_attribute("aria-describedby") is None
    page.mouse.move(2, 2)
    link.hover()
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")
    page.locator(TERM).nth(2).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert tip.is_visible() and tip.inner_text() == page.locator(TERM).nth(2).get_attribute("data-sentence")
    page.keyboard.press("Escape")
    link.scroll_into_view_if_needed()
    link.tap()
    assert "04_attention" in page.url and tip.is_visible()
    link.tap()
    page.wait_for_url("**/glossary.html#term-*")
    context.close()
