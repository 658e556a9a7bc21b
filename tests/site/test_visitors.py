"""What a visitor meets besides the pages: numbers that the build counts, a page for lost
visitors, cards, a map and a feed once there is an address, sentences of the glossary."""
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import counted
import pytest
from conftest import ROOT, keys
from durations import reading

BASE = "https://example.org/book/"
ATOM = "{http://www.w3.org/2005/Atom}"


def test_the_numbers_are_those_of_the_book(book):
    html = (book / "index.html").read_text(encoding="utf-8")
    shown = {re.sub("<[^>]*>", "", what): number
             for number, what in re.findall(r"<li><strong>([\d,]+)</strong> (.*?)</li>", html)}
    kills = json.loads((ROOT / "tfmlib/assets/kills.json").read_text(encoding="utf-8"))["pages"]
    assert len(shown) == 6
    by = {word: int(number.replace(",", "")) for what, number in shown.items()
          for word in ("chapters", "claims", "exercises", "wrong answers")
          if re.match(rf"(common |plausible )?{word}", what)}
    assert (by["chapters"] == len(list((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb")))
            - len(list((ROOT / "chapters").glob("00_*.ipynb"))))
    assert (by["claims"]
            == len(re.findall(r"^- id:",
                              (ROOT / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"),
                              re.M)))
    assert by["exercises"] == sum(len(page["exercises"]) for page in kills)
    assert (by["wrong answers"] == sum(len(e["mutants"]) for page in kills
                                       for e in page["exercises"]))
    [verdicts] = [what for what in shown if what.startswith("common claims")]
    assert sum(map(int, re.findall(r"(\d+) (?:hold|are)", verdicts))) == by["claims"]


def test_lists_in_words():
    assert ([counted.listed(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])]
            == ["a", "a and b", "a, b and c"])


def test_hours_of_several_chapters_are_their_sum():
    assert reading(ROOT, "04_attention 10_decoders").endswith("hours")
    with pytest.raises(ValueError, match="99_gone: no such chapter"):
        reading(ROOT, "04_attention 99_gone")


def test_lost_visitors_find_the_book(book):
    html = (book / "404.html").read_text(encoding="utf-8")
    assert "No such page" in html and 'content="noindex"' in html and 'name="q"' in html


def test_without_an_address_nothing_pretends_to_have_one(book):
    assert not any((book / name).exists() for name in ("sitemap.xml", "robots.txt", "changes.xml"))
    assert not re.search('property="og:|rel="canonical"',
                         (book / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    "A small book in our frame, with an address."
    folder = tmp_path_factory.mktemp("published")
    pages = {"index": 'A *title* & "more"\n\nWhat it is.', "about/glossary": "Glossary\n\nTerms.",
             "about/terms": "Terms\n\nPlaces.",
             "about/changelog": "Changelog\n\n## 0.2.0, 2026-03-01\n\n- Two & two.\n\n## 0.1.0, "
                                "not released yet\n\n- One."}
    (folder / "about").mkdir()
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(f"---\norphan: true\n---\n# {text}\n", encoding="utf-8")
    (folder / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'extensions')!r})\nextensions = "
        "['myst_parser', 'lean', 'visitors']\nhtml_theme = 'sphinx_book_theme'\n"
                                    f"project = html_title = 'A book'\nhtml_baseurl = {BASE!r}\n",
        encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", folder, folder / "out"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_with_an_address_each_page_has_a_card(published):
    html = (published / "index.html").read_text(encoding="utf-8")
    tags = {name: unescape(value)
            for name, value in re.findall(r'property="([^"]*)" content="([^"]*)"', html)}
    assert ((tags["og:title"], tags["og:site_name"], tags["og:description"])
            == ("A title & “more”", "A book", "What it is."))
    assert (tags["og:url"] == f"{BASE}index.html"
            == re.search('rel="canonical" href="([^"]*)"', html)[1])
    card = (published / tags["og:image"].removeprefix(BASE)).read_bytes()
    # of a PNG
    assert (int.from_bytes(card[16:20]), int.from_bytes(card[20:24])) == (1200, 630)
    assert "og:" not in (published / "404.html").read_text(encoding="utf-8")


def test_with_an_address_there_are_a_map_and_a_feed(published):
    places = [e.text for e in ElementTree.parse(published / "sitemap.xml").iter()
              if e.tag.endswith("loc")]
    assert (places == [f"{BASE}{name}.html" for name in ("about/changelog", "about/glossary",
            "about/terms", "index")]
            and f"Sitemap: {BASE}sitemap.xml" in (published / "robots.txt").read_text())
    new, old = (entry := ElementTree.parse(published / "changes.xml").getroot()).findall(
        f"{ATOM}entry")
    assert ((new.find(f"{ATOM}title").text, old.find(f"{ATOM}title").text)
            == ("0.2.0", "0.1.0 (not released yet)"))
    assert (new.find(f"{ATOM}updated").text == "2026-03-01T00:00:00+00:00"
            and "<li>Two &amp; two.</li>" in new.find(f"{ATOM}content").text)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d",
                            e.find(f"{ATOM}updated").text) for e in (entry, old))


def test_with_an_address_lost_visitors_find_the_book_from_any_depth(published):
    links = re.findall(r'\b(?:href|src|action)="([^"]*)"',
                       (published / "404.html").read_text(encoding="utf-8"))
    assert len(links) > 10 and all(link.startswith((BASE, "#", "data:")) for link in links)


TERM = ".tfm-text a[href*='glossary.html#term-']"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_a_term_shows_its_sentence_to_pointer_keyboard_and_finger(visiting, width):
    page = visiting("chapters/04_attention.html", viewport={"width": width, "height": 800},
                    has_touch=True)
    # a font that comes late moves the words from under the pointer
    page.evaluate("document.fonts.ready")
    link, tip = page.locator(TERM).nth(3), page.locator(".tfm-tip")
    sentence = link.get_attribute("data-sentence")
    assert len(sentence) > 20 and link.get_attribute("title") is None and tip.is_hidden()
    link.hover()
    tip.wait_for(state="visible")
    assert tip.inner_text() == sentence and link.get_attribute("aria-describedby") == "tfm-tip"
    box = tip.bounding_box()
    assert (box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] >= 0 and box["y"]
            + box["height"] <= 800)
    page.mouse.move(box["x"] + 10, box["y"] + 5)
    page.wait_for_timeout(400)
    assert tip.is_visible(), "the pointer may rest on the sentence"
    page.keyboard.press("Escape")
    assert tip.is_hidden() and link.get_attribute("aria-describedby") is None
    page.mouse.move(2, 2)
    link.hover()
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")
    page.locator(TERM).nth(2).focus()
    keys(page, "Tab", "Shift+Tab")
    assert (tip.is_visible() and tip.inner_text()
            == page.locator(TERM).nth(2).get_attribute("data-sentence"))
    before = tip.bounding_box()["y"]
    page.evaluate("scrollBy({ top: 20, behavior: 'instant' })")
    # it goes with its word
    page.wait_for_function(
        "y => document.querySelector('.tfm-tip').getBoundingClientRect().y !== y", arg=before)
    page.keyboard.press("Escape")
    link.scroll_into_view_if_needed()
    link.tap()
    assert "04_attention" in page.url and tip.is_visible()
    link.tap()
    page.wait_for_url("**/glossary.html#term-*")


@pytest.mark.browser
def test_a_citation_shows_its_reference(visiting):
    page = visiting("chapters/04_attention.html", viewport={"width": 390, "height": 800},
                    has_touch=True)
    cited, tip = (page.locator(".tfm-text a[href*='bibliography.html#']").first,
                  page.locator(".tfm-tip"))
    assert (cited.get_attribute("title") is None
            and cited.get_attribute("data-sentence").count(".") > 2)
    cited.focus()
    keys(page, "Tab", "Shift+Tab")
    assert (tip.is_visible() and "Attention is all you need" in tip.inner_text()
            and "2017" in tip.inner_text())
    page.keyboard.press("Escape")
    cited.tap()
    assert tip.is_visible() and "04_attention" in page.url, "the first touch shows it"
    cited.tap()
    page.wait_for_url("**/bibliography.html#*")
