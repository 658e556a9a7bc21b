"""Review cards: one for each term and each claim, in the page and for Anki; what is known comes
again when it should."""
import json
import re

import pytest
import review
import yaml
from conftest import ROOT
from findable import Entry


@pytest.fixture(scope="module")
def made(book) -> dict:
    return json.loads(re.fullmatch(r"review\((.*)\)\n",
                                   (book / "about/cards.js").read_text(encoding="utf-8"), re.S)[1])


def test_a_card_for_each_term_and_each_claim(book, made):
    claims = yaml.safe_load((ROOT / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"))
    glossary = (book / "about/glossary.html").read_text(encoding="utf-8")
    kinds = [card["kind"] for card in made["cards"]]
    assert (kinds.count("claim") == len(claims) and kinds.count("term")
            == len(re.findall(r"</dt>\s*<dd>", glossary)))
    assert (len({card["name"] for card in made["cards"]}) == len(kinds)
            and all(card["front"] and card["back"] for card in made["cards"]))
    assert sum("Measured: " in card["back"] for card in made["cards"]) > len(claims) / 2
    assert ([c["chapter"] or "99" for c in made["cards"]]
            == sorted(c["chapter"] or "99" for c in made["cards"]))


def test_each_card_leads_to_its_place(book, made):
    pages = {}
    for card in made["cards"]:
        page, _, anchor = card["at"].partition("#")
        html = pages.setdefault(page, (book / page).read_text(encoding="utf-8"))
        assert not anchor or f'id="{anchor}"' in html, card


def test_a_claim_asks_and_its_answer_begins_with_the_verdict():
    card = review.card(Entry("claim", "chapters/04_attention", "claim-x-y", "A is B.",
                             "wrong. A is C."))
    assert (card == {"name": "claim x-y", "kind": "claim", "chapter": "04",
                     "front": "Does this hold? A is B.", "back": "Wrong. A is C.",
                     "at": "chapters/04_attention.html#claim-x-y"})
    assert (review.card(Entry("claim", "chapters/04_attention", "claim-x-y", "A is B.", "holds"),
                        "2 of 3")["back"] == "Holds. Measured: 2 of 3")


def test_anki_gets_three_columns(book, made):
    lines = (book / "about/cards-anki.txt").read_text(encoding="utf-8").splitlines()
    head, rows = ([line for line in lines if line.startswith("#")],
                  [line.split("\t") for line in lines if not line.startswith("#")])
    assert "#separator:tab" in head and "#tags column:3" in head
    assert len(rows) == len(made["cards"]) and all(len(row) == 3 and all(row) for row in rows)
    assert not any("<" in row[0] for row in rows)
    with_link = review.anki([{"front": "a < b?", "back": "yes", "kind": "term", "chapter": "",
                              "at": "x.html"}], "https://some.one/")
    assert (with_link.splitlines()[-1]
            == 'a &lt; b?\tyes<br><a href="https://some.one/x.html">in the book</a>\tterm')


@pytest.fixture
def page(visiting):
    page = visiting(viewport={"width": 390, "height": 800})
    page.clock.install(time="2026-03-01T10:00:00")
    page.goto("about/cards.html")
    return page


def grade(page, name: str) -> str:
    "Look at the answer and say how well it was known; what the card asked."
    front = page.locator(".tfm-cards-front").inner_text()
    page.get_by_role("button", name="Show the answer").click()
    page.get_by_role("button", name=f"{name}: the card").click()
    return front


@pytest.mark.browser
def test_what_is_known_comes_again_when_it_should(page):
    again, good, easy = (grade(page, name) for name in ("Again", "Good", "Easy"))
    count = page.locator(".tfm-cards-count")
    assert re.match(r"1 due, 17 new today; 2 of \d+ cards", count.inner_text())
    page.reload()                                                                   # it is kept
    assert (page.locator(".tfm-cards-front").inner_text() == again
            and re.match("1 due, 17 new", count.inner_text()))
    def due(day: str) -> str:
        page.clock.set_system_time(f"2026-03-{day}T09:00:00")
        page.reload()
        return count.inner_text()
    assert (due("02").startswith("2 due, 20 new") and due("03").startswith("2 due")
            and due("04").startswith("3 due"))
    page.clock.set_system_time("2026-03-02T09:00:00")
    page.reload()
    assert {grade(page, "Good"), grade(page, "Good")} == {again, good} and easy not in (again, good)
    # the one that was not known at first; the other has gone on to three days
    assert due("03").startswith("1 due")


@pytest.mark.browser
def test_cards_by_keyboard_and_by_chapter(page):
    page.locator("#cards").get_by_label("Chapter").select_option("04")
    page.locator("#cards").get_by_label("Kind").select_option("claim")
    front = page.locator(".tfm-cards-front")
    assert front.inner_text().startswith("Does this hold?")
    asked = front.inner_text()
    front.focus()
    page.keyboard.press("Space")
    assert (page.locator(".tfm-cards-back").is_visible()
            and page.locator(".tfm-cards-back").evaluate("e => e === document.activeElement"))
    assert page.get_by_role("link",
                            name="Where the book settles it").get_attribute("href").startswith(
                                "../chapters/04_")
    page.keyboard.press("2")
    assert front.inner_text() != asked and front.evaluate("e => e === document.activeElement")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Forget my progress").click()
    assert front.inner_text() == asked
