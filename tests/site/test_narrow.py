"""Narrow screens: what is wider than its place scrolls and shows it, and the letters of drawings
are legible on a phone."""
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from conftest import awake, laid_out, painted
from narrow import LEGIBLE, breakable, legible, smallest

# a table of twelve columns, one a field of a configuration
SCROLLS_WIDE = {"chapters/depth/12_checkpoints_families.html"}
OPEN = "() => document.querySelectorAll('details:not([open])').forEach((e) => { e.open = true; })"
TABLES = """() => [...document.querySelectorAll(".tfm-text table")].filter((e) => e.checkVisibility()).map((table) => {
  let box = table.parentElement;                   // what it lies in and would scroll in
  while (box !== document.body &&
    getComputedStyle(box).overflowX === "visible") box = box.parentElement;
  const style = getComputedStyle(box), cut = box.scrollWidth > box.clientWidth + 1;
  const shown = style.overflowX === "auto" &&
    style.backgroundAttachment.split(", ").includes("local") &&
      style.backgroundImage.split("gradient(").length === 5;
  return { name: table.textContent.trim().slice(0, 40), cut, lost: cut && !(shown &&
    box.tabIndex === 0) };
})"""  # noqa: E501
LETTERS = """() => [...document.querySelectorAll(".tfm-text svg:not(.katex svg)")].filter((e) => e.checkVisibility()).map((svg) => {
  let least = Infinity, said = "";
  for (const text of svg.querySelectorAll("text")) {      // a subscript counts as its letter
    const m = text.getScreenCTM(),
      px = parseFloat(getComputedStyle(text).fontSize) * Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
    if (text.textContent.trim() && px < least) [least, said] = [px, text.textContent];
  }
  const box = svg.closest(".tfm-scroll"), drawn = svg.getBoundingClientRect(), style = box &&
    getComputedStyle(box);
  const scrolls = box && box.scrollWidth > box.clientWidth + 1, cued = scrolls &&
    box.tabIndex === 0 && style.backgroundImage.split("gradient(").length === 5;
  return { name: (svg.getAttribute("aria-label") ?? "").slice(0, 40), said, least, hidden: !cued &&
    (drawn.left < -1 || drawn.right > innerWidth + 1) };
})"""  # noqa: E501
EQUATIONS = """() => [...document.querySelectorAll(".katex-display")].filter((e) => e.clientWidth).map((e) => {
  const style = getComputedStyle(e);
  return { name: e.textContent.slice(0, 40), cut: e.scrollWidth > e.clientWidth + 1,
    shown: style.overflowX === "auto" && style.backgroundAttachment.split(", ").includes("local") &&
      style.backgroundImage.split("gradient(").length === 5 };
})"""  # noqa: E501
ASKED = {"tables": TABLES, "equations": EQUATIONS, "letters": LETTERS}


@pytest.fixture(scope="module")
def found(book, served, browser):
    """What tables, equations and drawings say of themselves, with the name of their page: of each
    page that holds one, in the ordinary proof of every seventh. It is loaded once, on a phone,
    where its figures are drawn; all that is folded is open."""
    names = [p.relative_to(book).as_posix() for p in sorted(Path(book).rglob("*.html"))
             if "_static" not in p.parts and re.search("<table|<svg|katex-display",
                                                       p.read_text(encoding="utf-8"))]
    page, found, pages = browser.new_page(), defaultdict(list), Counter()
    step = 1 if os.environ.get("TFM_WHOLE") else 7
    for name in names[::step]:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{served}/{name}")
        page.add_style_tag(content="* { content-visibility: visible !important }")
        page.evaluate(OPEN)
        laid_out(page)
        for figure in page.locator("figure[data-module]").all(): awake(figure)
        for width in (390, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            painted(page)
            for what, script in ASKED.items():
                here = page.evaluate(script)
                found[what, width] += [(name, each) for each in here]
                pages[what] += bool(here)
    page.close()
    assert min(pages[what] for what in ASKED) * step > 15
    return found


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_tables_are_whole_or_show_that_they_go_on(found, width):
    """On a wide screen each fits; on a phone one that does not has a shadow at its edge, and the
    arrow keys move it."""
    cut = [(name, each["name"]) for name, each in found["tables", width]
           if each["cut"] and name not in SCROLLS_WIDE]
    lost = [(name, each["name"]) for name, each in found["tables", width] if each["lost"]]
    assert lost == [] and (cut == [] or width < 600)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_display_equations_are_whole_or_show_that_they_go_on(found, width):
    """On a wide screen each fits; on a phone one that does not has a shadow at its edge, which
    goes when it has been scrolled."""
    assert [(name, each) for name, each in found["equations", width]
            if each["cut"] and (width > 600 or not each["shown"])] == []


@pytest.mark.browser
def test_letters_of_drawings_are_legible_on_a_phone(found):
    "At least eleven pixels, also where a script draws; what is wider for it scrolls in its figure."
    drawn = found["letters", 390]
    assert [(name, each) for name, each in drawn
            if each["least"] and each["least"] < LEGIBLE - .01] == []
    assert [(name, each["name"]) for name, each in drawn if each["hidden"]] == []


DRAWN = (
    '<figure><svg viewBox="0 0 {} 260" '
    'style="display:block;width:100%;max-width:400px;height:auto" font-size="13"><g '
    'font-size="15"><text>a</text></g>{}</svg></figure>')


@pytest.mark.parametrize("width, more, least", [
    (300, "", 0), (1010, "<text>b</text>", 855),
    (400, '<text style="font-size: 9px">c</text>', 489),
    (400, '<text>x<tspan font-size="6">2</tspan></text>', 339), (400, "<path/>", 0)])
def test_a_drawing_knows_where_its_letters_become_too_small(width, more, least):
    told = legible(DRAWN.format(width, more))
    assert (f"--least:{least}px;" in told) == bool(least) == ('<div class="tfm-scroll"' in told)
    assert told.replace("</div>", "").count("<text") == DRAWN.format(width, more).count("<text")


def test_what_scrolls_already_is_not_wrapped_again():
    once = legible(DRAWN.format(1010, "<text>b</text>"))
    assert (legible(once.replace("--least:855px;", "")).count("tfm-scroll") == 1
            and smallest("<svg><path/></svg>") == 0)


@pytest.mark.parametrize("name, shown", [
    ("checkpoints.ModelConfig.d_model", "checkpoints.<wbr>ModelConfig.<wbr>d_model"),
    ("num_attention_heads", "num_attention_heads"),
    ("heads.split(value_dim=4)", "heads.<wbr>split(<wbr>value_dim=<wbr>4)"),
    ("max_position_embeddings", "max_position_<wbr>embeddings"), ("nn.GRU", "nn.GRU"),
    ("MarianSinusoidalPositionalEmbedding", "Marian<wbr>Sinusoidal<wbr>Positional<wbr>Embedding")])
def test_a_long_name_in_a_table_breaks_between_its_parts(name, shown):
    assert (breakable(f"<table><td><code>{name}</code></td></table><code>{name}</code>")
            == f"<table><td><code>{shown}</code></td></table><code>{name}</code>")
