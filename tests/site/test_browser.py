"""The built book as a reader meets it: every page in Chromium, both themes, phone width,
keyboard, no network."""
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import swept
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, Chromium, awake, giving_out, laid_out, painted, sweep, too_wide
from playwright.sync_api import Error

pytestmark = pytest.mark.browser
THEMES = ("light", "dark")
WIDE, PHONE, NARROW = ({"width": 1400, "height": 900}, {"width": 390, "height": 844},
                       {"width": 320, "height": 640})
MOST = 10_000                                     # elements of a page, with what its scripts add

EVERY_RULE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
OF_COLOURS = {"resultTypes": ["violations"],
              "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
# slow to check element by element
OF_KINDS = {"rules": [{"id": "color-contrast", "selector": "[data-kind]"},
                      {"id": "link-in-text-block", "selector": "a[data-kind]"}]}
AXE = Axe().axe_script
MARK_KINDS = """(known) => {                    // one element for each combination of colours and size (of a link, also of its line and its surroundings) that the page's text has, and that no page had before
  document.querySelectorAll("[data-kind]").forEach(e => e.removeAttribute("data-kind"));
  const seen = new Set(known), grounds = new Map([[null, ""]]);
  const ground = (e) => {
    if (!grounds.has(e)) { const s = getComputedStyle(e); grounds.set(e, ground(e.parentElement) + (/, 0\\)/.test(s.backgroundColor) ? "" : s.backgroundColor) + (s.opacity < 1 ? s.opacity : "")); }
    return grounds.get(e);
  };
  const look = (e) => { const s = getComputedStyle(e), p = getComputedStyle(e.parentElement);
  return [s.display, s.textDecorationLine, s.borderBottomStyle, p.display, p.color, p.fontWeight,
    e.closest("p, li, dd, td") ? 1 : 0]; };
  for (const e of document.querySelectorAll("body *")) {
    if (!e.matches("a") && ![...e.childNodes].some(n => n.nodeType === 3 &&
      n.data.trim())) continue;
    const s = getComputedStyle(e), kind = [s.color, s.fontSize, s.fontWeight, ground(e),
      e.matches("a") ? look(e) : ""].join();
    if (!seen.has(kind) && e.checkVisibility()) { seen.add(kind); e.dataset.kind = ""; }
  }
  return [...seen].slice(known.length);
}"""  # noqa: E501
MARK_UNSEEN = """() => {                      // what is not visible at this width, without what is in it
  const unseen = (e) => !e.checkVisibility() && e.parentElement.checkVisibility();
  for (const e of [...document.querySelectorAll("body *")].filter(unseen)) e.dataset.unseen = "";
}"""  # noqa: E501
NOW_SEEN = """() => {                         // of that, what is visible now; how much there is
  for (const e of document.querySelectorAll("[data-unseen]")) if (!e.checkVisibility()) e.removeAttribute("data-unseen");
  return document.querySelectorAll("[data-unseen]").length;
}"""  # noqa: E501


ONE_OF_EACH = ("index.html", "search.html", "about/glossary.html", "about/cards.html",
               "about/claims.html", "parts/attention.html", "chapters/04_attention.html",
               "chapters/practice/04_attention.html",
               # a kind of page each: its frame, its styles and its scripts
               "api/04_attention.html", "gallery/04_attention.html")


def pages() -> list[str]: return swept.pages_of(ROOT)


def only_if_new(book: Path, name: str) -> None:
    """Skip a page that the last whole proof saw as it is; but not one of each kind, nor in the
    whole proof itself."""
    if name not in ONE_OF_EACH and not os.environ.get("TFM_WHOLE") and swept.seen(book, name):
        pytest.skip("as it is, it passed in the whole proof")


@dataclass
class Visit:
    "What one visit to a page found."
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    fields: int = 0
    themes: list[str] = field(default_factory=list)
    overflow: int = 0
    narrow: int = 0
    too_many: int = 0


def violations(page, options: dict, within: str = "html") -> list[str]:
    "What axe-core, which the page has been given, finds in these elements."
    found = page.evaluate(
        "([within, options]) => axe.run(within, options).then(found => found.violations)",
        [within, options])
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found]


def marked(page, known: list[str]) -> list[str]:
    "Mark text in combinations of colours and size that are not `known`; they are from here on."
    new = page.evaluate(MARK_KINDS, known)
    known += new
    return new


def visit(context, base: str, name: str, known: list[str],
          themes: tuple[str, ...] = THEMES) -> Visit:
    """Load a page at phone width, widen the window for what was not visible, let the system
    change to the other theme, and note what is wrong with the page."""
    found, page = Visit(), context.new_page()
    page.on("console", lambda m: found.errors.append(m.text)
            if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: found.errors.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith((base, "data:", "blob:"))
            else found.foreign.append(r.url))
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme=themes[0])
    page.goto(base + name)
    page.wait_for_load_state("networkidle")
    # what is not could be neither judged nor too wide
    laid_out(page)
    page.evaluate(AXE)
    page.evaluate("how => axe.configure(how)", OF_KINDS)
    found.overflow = too_wide(page)
    found.too_many = max(0, page.evaluate("document.querySelectorAll('*').length") - MOST)
    marked(page, known)
    found.violations += [f"at phone width, {themes[0]}: {v}" for v in violations(page, EVERY_RULE)]
    page.evaluate(MARK_UNSEEN)
    page.set_viewport_size(WIDE)
    painted(page)
    found.fields = page.locator("input[type=search]:visible, input[name=q]:visible").count()
    if page.evaluate(NOW_SEEN):
        found.violations += [f"{themes[0]}: {v}"
                             for v in violations(page, EVERY_RULE, "[data-unseen]")]
    for theme in themes:                           # nothing but colours depends on the theme
        page.emulate_media(color_scheme=theme)
        painted(page)
        found.themes.append(page.evaluate("document.documentElement.dataset.theme"))
        if marked(page, known):
            found.violations += [f"{theme}: {v}" for v in violations(page, OF_COLOURS)]
    page.set_viewport_size(NARROW)
    painted(page)
    found.narrow = too_wide(page)
    page.close()
    return found


def nameless(figure) -> list[str]:
    """The controls of a figure to which the browser gives no name, as a screen reader would meet
    them. (axe asks less: an <output> in a label takes the label from the control after it.)"""
    return re.findall(
        r"^ *- ((?:slider|combobox|textbox|checkbox|radio|spinbutton|button)(?![^:\n]* \").*)$",
        figure.aria_snapshot(), re.M)


def moves(page, figure) -> bool:
    """Whether one key press on a figure's first slider, or without sliders on a button that is
    not pressed, changes anything but the slider."""
    drawn = (
        "f => { const c = f.cloneNode(true); c.querySelectorAll('input').forEach(i => i.remove()); "
        "return c.innerHTML; }")
    slider = figure.locator("input[type=range]").first
    before = figure.evaluate(drawn)
    if not slider.count():
        figure.locator("button[aria-pressed=false]").first.press("Enter")
        return figure.evaluate(drawn) != before
    slider.focus()
    page.keyboard.press("ArrowRight" if slider.evaluate("s => Number(s.value) < Number(s.max)")
                        else "ArrowLeft")
    return figure.evaluate(drawn) != before


@pytest.fixture(scope="module")
def context(browser):
    "One context for all pages."
    return browser.new_context(viewport=WIDE)


@pytest.fixture(scope="module")
def known() -> list[str]:
    "The combinations of colours and size that have been checked on some page."
    return []


@pytest.fixture
def page(visiting): return visiting(viewport=WIDE, color_scheme="light")


every_page = pytest.mark.parametrize("name", pages())


@every_page
def test_page_is_sound(book, context, served, known, name):
    """No console message, no request to elsewhere, nothing for axe-core, no sideways scroll on a
    phone or at 320 pixels, one search field, the system's theme, few elements."""
    only_if_new(book, name)
    # every second page is loaded in the dark
    themes = THEMES[::-1] if pages().index(name) % 2 else THEMES
    assert (visit(context, served.rstrip("/") + "/", name, known, themes)
            == Visit(fields=1, themes=[*themes], overflow=0))


# a page joins when its code is
WRAPPED = tuple(f"{place}18_flash_attention_gpu{more}.html" for place, more in [
    ("chapters/", ""), ("chapters/depth/", ""), ("chapters/depth/", "_measured"),
    ("chapters/practice/", ""), ("api/", "")])
SIDEWAYS = """all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => {
  const lines = e.textContent.split("\\n");
  return lines.reduce((a, b) => b.length > a.length ? b : a);
})"""


def scrolled(page) -> list[str]:
    "The longest line of every code box, folded or not, that has to be scrolled sideways."
    laid_out(page)
    page.locator("details:not([open])").evaluate_all("all => all.forEach(e => { e.open = true; })")
    return page.locator(".highlight pre").evaluate_all(SIDEWAYS)


@pytest.mark.parametrize("name", sweep(WRAPPED, WRAPPED[0]))
def test_code_fits_its_box(page, name):
    "At 1400 pixels."
    page.goto(name)
    assert page.locator(".highlight pre").count() > 30 and scrolled(page) == []
    code = page.locator(".highlight pre:not(.cell_output *)").last
    code.evaluate("e => { e.textContent = 'x'.repeat(120); }")
    assert scrolled(page) == [120 * "x"]


@every_page
def test_figures_move(book, request, name):
    "Each interactive figure answers the keyboard, and each of its controls has a name."
    if "data-module=" not in (book / name).read_text(encoding="utf-8"): return
    only_if_new(book, name)
    page = request.getfixturevalue("page")
    page.goto(name)
    for figure in page.locator("figure[data-module]").all():
        awake(figure)
        assert nameless(figure) == [] and moves(page, figure), figure.get_attribute("data-module")


def test_some_figure_is_interactive(page):
    "Else the test above would say nothing."
    page.goto("chapters/04_attention.html")
    assert page.locator("figure[data-module]").count() >= 1


def test_theme_button_by_keyboard(page):
    """Tab reaches it, Space presses it, the choice outlives the page; pressed back, the system
    decides again."""
    theme, ground = ("document.documentElement.dataset.theme",
                     "getComputedStyle(document.body).backgroundColor")
    page.goto("chapters/04_attention.html")
    light = page.evaluate(ground)
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('tfm-theme')"): break
    page.keyboard.press("Space")
    assert page.evaluate(theme) == "dark" and page.evaluate(ground) != light
    page.goto("index.html")
    assert page.evaluate(theme) == "dark"
    page.locator(".tfm-theme").press("Enter")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{theme} === 'dark'")


def test_skip_link_is_first(page):
    page.goto("chapters/04_attention.html")
    page.keyboard.press("Tab")
    assert (page.evaluate("document.activeElement.hash") == "#main-content"
            and page.locator(".tfm-skip").bounding_box()["y"] >= 0)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main-content"


def test_chapters_open_on_a_phone(page):
    page.set_viewport_size(PHONE)
    page.goto("chapters/04_attention.html")
    assert not page.locator("#tfm-nav").is_visible()
    page.locator(".tfm-menu").press("Enter")
    assert page.locator("#tfm-nav a[aria-current=page]").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#tfm-nav").is_visible()


def test_chapter_weighs_little(page):
    "At most 600 KB on the wire with a cold cache, all of the page scrolled through."
    sizes = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto("chapters/04_attention.html")
    page.evaluate(
        "async () => { for (let y = 0; y < document.body.scrollHeight; y += 800) { scrollTo(0, y); "
        "await new Promise(requestAnimationFrame); } }")
    page.wait_for_load_state("networkidle")
    assert 20_000 < sum(sizes) <= 600 * 1024


def test_front_page_stands_still(page):
    "The live figure takes the still one's place without moving the page."
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver(l => l.getEntries().forEach(e => shift += "
        "e.value)).observe({type: 'layout-shift', buffered: true})")
    page.goto("index.html")
    page.locator("figure[data-live]").first.wait_for()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("shift") < 0.1


@pytest.mark.parametrize("width", [1400, 390])
def test_the_still_picture_of_the_front_page_fills_its_place(visiting, width):
    """Without scripts: it is drawn as wide as its column, or as high as the figure that would
    take its place."""
    page = visiting("index.html", java_script_enabled=False,
                    viewport={"width": width, "height": 900})
    still = page.locator(".tfm-front .tfm-stage svg")
    box, place = still.bounding_box(), page.locator(".tfm-front .tfm-stage").bounding_box()
    across, along = map(float, still.get_attribute("viewBox").split()[2:])
    scale = min(box["width"] / across, box["height"] / along)
    assert (max(scale * across / place["width"], scale * along / place["height"]) > .95
            and min(scale * across / place["width"], scale * along / place["height"]) > .6)


def test_chapter_reads_without_scripts(visiting):
    page = visiting("chapters/04_attention.html", java_script_enabled=False)
    assert (page.locator(".katex-html").first.is_visible()
            and page.locator("figure[data-module] svg").first.is_visible())


PLANTED = """<!doctype html><html lang="en"><title>Planted</title><body><main><h1>Planted</h1><input type="search"><input name="q">
<div style="width: 900px">wide</div><p>fine</p><p>fine, and a <a href="#lost" style="color: #223; text-decoration: none">link</a> like the words around it</p><p>fine <span style="color: #ccc">faint</span></p><style>@media (prefers-color-scheme: dark) { b { color: #555; background: #444 } }</style><p><b>faint in the dark</b></p><script src="http://elsewhere.example/x.js"></script><script>console.error("planted")</script>
<script>for (let i = 0; i < 10000; i++) document.body.append(document.createElement("i"))</script>
<form><label>lost <output></output><input type="range"></label><label>kept <input type="range"></label><input><button type="button"></button><button type="button">b</button></form>
<div class="wide"><button type="button"></button></div><div><button type="button" style="width: 9px" aria-label="small"></button><button type="button" style="width: 9px" aria-label="beside"></button></div><style>@media (max-width: 600px) { .wide { display: none } }</style>
<figure data-module="dead" data-live><input type="range" aria-label="dead"><p>still</p></figure></main></body></html>"""  # noqa: E501


def test_planted_faults_are_seen(context, tmp_path):
    "A page with every fault: the visit above names each of them."
    (tmp_path / "planted.html").write_text(PLANTED)
    with giving_out(tmp_path) as base:
        found = visit(context, f"{base}/", "planted.html", [])
        page = context.new_page()
        page.goto(f"{base}/planted.html")
        assert not moves(page, page.locator("figure"))
        assert ([n.split(":")[0] for n in nameless(page.locator("form"))]
                == ["slider", "textbox", "button"])
        page.close()
    assert ("planted" in found.errors and found.foreign == ["http://elsewhere.example/x.js"]
            and found.fields == 2)
    assert found.overflow > 0 and found.narrow > found.overflow and found.too_many > 0 and {
        v.split(": <")[0] for v in found.violations} >= {
        *(f"at phone width, light: {rule}" for rule in ("label", "color-contrast",
                "link-in-text-block", "target-size")), "light: button-name",
            "dark: color-contrast"} and found.themes == [None, None]


def test_a_browser_that_has_ended_is_started_again(browser):
    """Else every test after it would fail, too. It is said; and what a running browser refuses
    is refused."""
    own = Chromium(browser.launch)
    with pytest.raises(Error): own.running.new_browser_cdp_session().send("Browser.crash")
    with pytest.warns(UserWarning, match="Chromium had ended.*; it is started again"):
        page = own.new_page()
    page.goto("data:text/html,<p>here")
    assert page.inner_text("p") == "here"
    again = own.running
    with pytest.raises(Error): own.new_context(viewport={"width": "wide", "height": 9})
    assert own.running is again and page.inner_text("p") == "here"
    again.close()
