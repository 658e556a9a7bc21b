"""Forced colours (Windows' contrast themes), emulated: what is pressed, slides, fills or is
settled stays legible in the reader's own colours."""
import re

import pytest
from conftest import ROOT, awake, laid_out, painted, sweep
from PIL import Image, ImageChops

pytestmark = [pytest.mark.browser, pytest.mark.slow]
THEMES = ("light", "dark")
STYLE = (
    "(e, [names, part]) => { const s = getComputedStyle(e, part); return "
    "Object.fromEntries(names.map(n => [n, s[n]])); }")
CONTRAST = """(pair) => {                            // WCAG's contrast of two colours as a canvas paints them
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (c) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = c;
  paint.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].slice(0,
      3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const [a, b] = pair.map(light).sort((x, y) => y - x);
  return (a + .05) / (b + .05);
}"""  # noqa: E501


def figures() -> dict[str, str]:
    "Each interactive figure of the chapters -> a page that shows it."
    found = {}
    for path in [*sorted((ROOT / "chapters").glob("*.ipynb")),
                 *sorted((ROOT / "chapters/depth").glob("*.ipynb"))]:
        page = path.relative_to(ROOT).with_suffix(".html").as_posix()
        for name in re.findall(r'data-module=\\"(\w+)\\"', path.read_text(encoding="utf-8")):
            found.setdefault(name, page)
    return found


@pytest.fixture(scope="module")
def tab(browser, served):
    context = browser.new_context(base_url=served, viewport={"width": 1000, "height": 900},
                                  forced_colors="active", reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module", params=sweep(THEMES, "dark"))
def page(request, tab):
    "The page that is open, in the theme that the system has now."
    tab.emulate_media(color_scheme=request.param)
    painted(tab)
    return tab


@pytest.fixture(scope="module", params=sweep(figures(), "attention_row"))
def drawn(request, tab):
    """A figure, drawn by its script; the tests that use it follow one another, those in the
    other theme last, so that its page is loaded once."""
    tab.goto(figures()[request.param])
    laid_out(tab)
    return awake(tab.locator(f"figure[data-module={request.param}]").first)


@pytest.fixture
# in this order: the theme changes before the figure does
def figure(page, drawn): return drawn


def styled(element, *names: str, part: str | None = None) -> dict[str, str]:
    return element.evaluate(STYLE, [list(names), part])
def contrast(page, *pair: str) -> float: return page.evaluate(CONTRAST, list(pair))
def ground(page) -> str: return page.evaluate("getComputedStyle(document.body).backgroundColor")


def differ(a: bytes, b: bytes, tmp_path) -> float:
    "The part of two pictures' pixels that differ clearly."
    (tmp_path / "a.png").write_bytes(a), (tmp_path / "b.png").write_bytes(b)
    one, two = (Image.open(tmp_path / f"{n}.png").convert("L") for n in "ab")
    if one.size != two.size: two = two.resize(one.size)
    seen = ImageChops.difference(one, two).histogram()
    return sum(seen[64:]) / sum(seen)


LOOKED_FOR = ("button[aria-pressed=true]", "button[aria-pressed=false]", "button:disabled",
              "input[type=range]", ".tfm-bar", ".tfm-split span", ".tfm-stage svg text")


@pytest.fixture(scope="module")
def seen():
    """What each figure shows of that; all of it is shown by some figure, else the tests below
    would say nothing."""
    found: dict[str, set[str]] = {}
    yield found
    if found.keys() == figures().keys(): assert set().union(*found.values()) == set(LOOKED_FOR)


def test_every_figure_is_tried():
    assert (figures().keys() == {path.stem for path in (ROOT / "tfmlib/assets").glob("*.js")}
            - {"mount"})


def test_the_figure_has_something_to_look_at(figure, seen):
    seen[figure.get_attribute("data-module")] = found = {what for what in LOOKED_FOR
            if figure.locator(what).count()}
    assert found


def test_pressed_buttons_differ(page, figure):
    """By their ground and by their words, each readable; one that cannot be pressed by a broken
    line."""
    keep = ("backgroundColor", "color", "borderTopStyle")
    looks = {state: [styled(b, *keep)
                     for b in figure.locator(f"button[aria-pressed={state}]").all()]
             for state in ("true", "false")}
    for button in looks["true"]:
        assert (button["backgroundColor"] not in [b["backgroundColor"] for b in looks["false"]]
                and contrast(page, button["backgroundColor"], ground(page)) >= 3)
    for button in looks["true"] + looks["false"]:
        under = (ground(page) if button["backgroundColor"].endswith(", 0)")
                 else button["backgroundColor"])
        assert contrast(page, button["color"], under) >= 4.5, button
    assert all(styled(b, "borderTopStyle")["borderTopStyle"] == "dashed"
               for b in figure.locator("button:disabled").all())


def test_sliders_are_seen(page, figure, tmp_path):
    "Track and thumb stand out from the ground, and the thumb is where the value is."
    for slider in figure.locator("input[type=range]").all()[:3]:
        assert (styled(slider, "backgroundImage")["backgroundImage"] != "none"
                and styled(slider, "forcedColorAdjust")["forcedColorAdjust"] == "none")
        pictures = []
        for value in ("min", "max"):
            slider.evaluate(
                "(e, value) => { e.value = e[value]; e.style.setProperty('--at', value === 'max' ? "
                "1 : 0); }", value)
            pictures.append(slider.screenshot())
        assert differ(*pictures, tmp_path) > .01
        # the slider at its least value
        track = Image.open(tmp_path / "a.png").convert("L")
        far = track.crop((track.width * 2 // 3, 0, *track.size))              # where no thumb is
        base = far.getpixel((far.width - 1, 0))
        assert (sum(n for value, n in enumerate(far.histogram()) if abs(value - base) >= 100) > .03
                * far.width * far.height)


def test_bars_are_seen(page, figure):
    for bar in figure.locator(".tfm-bar").all()[:4]:
        full = styled(bar, "backgroundColor", part="::before")["backgroundColor"]
        frame = styled(bar, "borderTopColor", "borderTopWidth")
        assert (contrast(page, full, ground(page)) >= 3 and contrast(page, frame["borderTopColor"],
                ground(page)) >= 3 and float(frame["borderTopWidth"][:-2]) >= 1)
    for part in figure.locator(".tfm-split span").all():
        assert (styled(part, "borderTopStyle")["borderTopStyle"] == "solid"
                and contrast(page, styled(part, "borderTopColor")["borderTopColor"],
                             ground(page)) >= 3)


def test_focus_is_seen(page, figure):
    "Each control that the keyboard reaches has a ring that stands out."
    for control in figure.locator("button:enabled, select, input, textarea").filter(
        visible=True).all()[:12]:
        control.focus()
        # now it is the keyboard that moves the focus
        page.keyboard.press("Shift")
        ring = styled(control, "outlineStyle", "outlineWidth", "outlineColor")
        assert (ring["outlineStyle"] == "solid" and float(ring["outlineWidth"][:-2]) >= 2
                and contrast(page, ring["outlineColor"], ground(page)) >= 3), ring


def test_drawings_are_on_the_readers_ground(page, figure, tmp_path):
    "Drawn text is readable on it, and weights keep colours: more than black and white."
    texts = figure.evaluate(
        "f => [...f.querySelectorAll('.tfm-stage svg text')].filter(t => "
        "t.textContent.trim()).map(t => getComputedStyle(t).fill)")
    assert min((contrast(page, fill, ground(page)) for fill in set(texts)), default=21) >= 4.5
    if not figure.locator(".tfm-stage svg").count(): return
    (tmp_path / "x.png").write_bytes(figure.locator(".tfm-stage svg").last.screenshot())
    assert (len({p for _, p in Image.open(tmp_path / "x.png").convert("RGB").quantize(16).convert(
        "RGB").getcolors()}) > 3)


def test_matrices_keep_their_colours(page, tmp_path):
    "A drawn matrix of weights still shows large and small ones apart."
    page.goto("chapters/04_attention.html")
    drawn = page.locator(".tfm-figure svg:has(rect)").filter(visible=True).first
    fills = drawn.evaluate(
        "s => [...s.querySelectorAll('rect')].map(r => getComputedStyle(r).fill)")
    assert len(set(fills)) > 2


def test_verdicts_and_checks_are_told_apart(page):
    "By the line around the box, by a sign, and by their words."
    page.goto("about/claims.html")
    lines = {}
    for kind in ("holds", "condition", "imprecise", "wrong"):
        box = page.locator(f".tfm-claim.tfm-{kind}").first
        lines[kind] = styled(box, "borderTopStyle", "borderTopColor")
        sign = styled(box, "backgroundColor", "maskImage", part="::before")
        assert (contrast(page, sign["backgroundColor"], ground(page)) >= 3
                and "svg" in sign["maskImage"] and contrast(page, lines[kind]["borderTopColor"],
                        ground(page)) >= 3)
    assert len({s["borderTopStyle"] for s in lines.values()}) == 4
    page.goto("chapters/practice/04_attention.html")
    passed, failed = (page.locator(f".tfm-check.tfm-{k}").first for k in ("pass", "fail"))
    assert (styled(passed, "borderTopStyle")["borderTopStyle"] == "solid"
            and styled(failed, "borderTopStyle")["borderTopStyle"] == "double")
    assert passed.text_content().startswith("✓") and failed.text_content().startswith("✗")


def test_the_system_chooses_the_theme(page):
    """A theme that was chosen before does not put light figures on a dark ground; there is no
    button to choose one."""
    page.goto("chapters/04_attention.html")
    theme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    page.evaluate("t => localStorage.setItem('tfm-theme', t)", "light" if theme == "dark"
                  else "dark")
    page.reload()
    assert (page.evaluate("document.documentElement.dataset.theme") == theme
            and not page.locator(".tfm-theme").is_visible())
    page.evaluate("localStorage.removeItem('tfm-theme')")


def test_the_place_in_the_contents_and_the_target_are_seen(page):
    page.goto("about/claims.html#ledger-gates-keep-it")
    assert (styled(page.locator(".tfm-nav a[aria-current=page]"), "borderLeftStyle",
                   "borderLeftWidth") == {"borderLeftStyle": "solid", "borderLeftWidth": "4px"})
    assert styled(page.locator(":target"), "outlineStyle")["outlineStyle"] == "solid"
