"""Links to sections, in Chromium: on every page each lands on its heading, on a wide screen; on a
phone too, which test_sections_phone.py tries, so that two processes share them."""
import re

import pytest
import swept
from conftest import sweep

pytestmark = pytest.mark.browser
OFF = """() => {                               // how far the heading that the address names is from where it should be: just below the bar at the top, or on the last screen
  const section = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const { top } = (section.querySelector("h1, h2, h3, h4, h5") ?? section).getBoundingClientRect(),
    last = scrollY + innerHeight > document.documentElement.scrollHeight - 2;
  return top >= 40 && (top < 200 || (last && top < innerHeight)) ? 0 : Math.round(top) || 1;
}"""  # noqa: E501
FOLLOW = """async (ids) => {                    // the same for each address in turn, as links, search results and Back change it
  const off = {}, frame = () => new Promise(requestAnimationFrame);
  for (const id of ids) { location.hash = id; await frame(); await frame(); off[id] = (OFF)(); }
  return Object.entries(off).filter(([, px]) => px);
}""".replace("OFF", OFF, 1)  # noqa: E501
SHOWN = """() => [...document.querySelectorAll(".tfm-text section[id]")].filter(s =>
  s.checkVisibility()).map(s => s.id)"""
SCREEN = {"width": 1400, "height": 900}
AMONG = ("chapters/10_decoders.html", "chapters/06_positions.html",
         "chapters/practice/04_attention.html", "about/glossary.html")


def misplaced(page, address: str, middle: str, settle: int = 400) -> tuple[int, list]:
    """How many links to sections a page has, and those that miss their heading: opened,
    followed, gone back to, reloaded."""
    page.goto(f"{address}#{middle}")
    page.wait_for_timeout(settle)
    missed = [("opened", middle, off)] if (off := page.evaluate(OFF)) else []
    ids = page.evaluate(SHOWN)
    missed += page.evaluate(FOLLOW, ids)
    # nothing to go back to
    if len(ids) == 1: return 1, missed
    # a reader stays for a moment: what Back returns to is noted then
    for place in (ids[len(ids) * 2 // 3], ids[0]):
        page.evaluate("place => { location.hash = place }", place)
        page.wait_for_timeout(2 * settle)
    for what, act in (("back", page.go_back), ("back, reloaded", page.reload)):
        act()
        page.wait_for_timeout(settle)
        missed += [(what, page.url, off)] if (off := page.evaluate(OFF)) else []
    return len(ids), missed


@pytest.fixture(scope="module")
def context(request, browser):
    "What is fetched for the first page stays in its cache."
    made = browser.new_context(viewport=request.module.SCREEN, reduced_motion="reduce")
    yield made
    made.close()


@pytest.mark.parametrize("name", sweep(swept.pages_of(swept.ROOT), *AMONG))
def test_links_to_sections_land_on_their_heading(book, served, context, name):
    ids = re.findall(r'<section\b[^>]* id="([^"]+)"', (book / name).read_text(encoding="utf-8"))
    if not ids: return
    page = context.new_page()
    number, missed = misplaced(page, f"{served}/{name}", ids[len(ids) * 2 // 3])
    page.close()
    assert not missed, f"{len(missed)} of {number + 2}: {missed[:5]}"
