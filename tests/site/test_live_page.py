"""The book's models in its pages: what the figures that run one show in Chromium is what PyTorch
computes, and they ask for it only when told to."""
import json
import re

import live
import pytest
import torch
from conftest import ROOT, awake, laid_out, sweep, too_wide, violations

from tfmlib.decoders import generate
from tfmlib.tokens import book_tokenizer, printable

LIVE = ROOT / "tfmlib/assets/live"
FIGURES = {"chapters/depth/10_decoders.html": "next_token",
           "chapters/depth/05_heads.html": "own_sentence", "chapters/16_kv_cache.html": "both_ways",
           "chapters/00_tour.html": "next_token"}
# what a figure loads; the tour's tokens are words, and come with its model
FILES = {"chapters/00_tour.html": ["tour.safetensors"]}
PROSE = ["prose.safetensors", "tokenizer.json"]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def rounded():
    "The model of prose with the weights that the page loads."
    return live.rounded("prose")


@pytest.fixture(params=sweep(["light", "dark"], "dark"))
def opened(request, visiting):
    """Opens a page: its figure, before the model is loaded, and the addresses that the page asks
    for."""
    def go(name, width=1000):
        page, asked = visiting(viewport={"width": width, "height": 900},
                               color_scheme=request.param), []
        page.on("request", lambda r: asked.append(r.url))
        page.goto(name)
        laid_out(page)
        return page, awake(page.locator(f"figure[data-module={FIGURES[name]}]").first), asked
    return go


@pytest.fixture
def shown(opened): return opened("chapters/depth/10_decoders.html")


def loaded(figure):
    "Load the model, by keyboard."
    figure.get_by_role("button", name="load the model").press("Enter")
    figure.locator("textarea").wait_for()
    return figure.locator("textarea")


def count_of(figure) -> list[int]:
    "The numbers of the line that counts tokens."
    return [int(n) for n in re.findall(r"\d+", figure.locator(".tfm-count").text_content())]


@pytest.mark.slow
def test_a_reader_can_run_the_model_on_any_text(shown, rounded):
    page, figure, _ = shown
    text = loaded(figure)
    assert (text.input_value() == "The king wanted" and not figure.get_by_role("button",
            name="load the model").is_visible())

    tokenizer = book_tokenizer()
    text.fill(said := "A heron, that lives near Oarvale, waits — naïvely 🦉")
    ids = tokenizer.encode("\n\n" + said)
    chips = [c.rsplit(" ", 1)[0] for c in figure.locator("li.tfm-chip").all_text_contents()]
    assert chips == [printable(token) for token in tokenizer.tokens(ids)]
    with torch.no_grad(): shares = rounded(torch.tensor([ids]))[0, -1].softmax(-1)
    top = shares.topk(12)
    rows = figure.locator("tbody tr").all()[:12]
    assert ([row.locator("th").text_content() for row in rows]
            == [printable(token) for token in tokenizer.tokens(top.indices)])
    for row, share in zip(rows, top.values):
        assert (abs(float(row.locator("td").first.text_content().removesuffix(" %")) - 100
                    * float(share)) < .06)

    figure.get_by_label("attention of").select_option(label="layer 1, head 2")
    weights = live.attention_of(rounded, torch.tensor(ids))[1, 2, -1]
    told = [int(n or 0) for n in figure.locator("li.tfm-chip small").all_text_contents()]
    assert (all(abs(n - 100 * float(w)) < .51 for n, w in zip(told, weights, strict=True))
            and sum(told) > 50)

    # now it is greedy
    figure.get_by_label("top-k").fill("1")
    n, cached, whole = count_of(figure)
    figure.get_by_role("button", name="write 20 tokens").click()
    page.wait_for_function("n => document.querySelectorAll('li.tfm-chip').length === n",
                           arg=len(ids) + 20)
    written = generate(rounded, torch.tensor([ids]), 20)[0].tolist()
    assert text.input_value() == tokenizer.decode(written)[2:]
    assert count_of(figure) == [n + 20, cached + 20, whole + sum(range(n + 1, n + 21))]
    assert violations(page, "figure[data-module=next_token]") == []


@pytest.mark.whole
def test_a_text_that_is_too_long_is_said_to_be(shown):
    page, figure, _ = shown
    loaded(figure).fill("the water " * 100)
    figure.locator("textarea").press("End")
    assert (figure.locator("li.tfm-chip").count() == 128
            and "at most 128 tokens, so the last" in figure.locator(".tfm-count").text_content())
    assert figure.get_by_role("button", name="write a token").is_disabled()
    figure.get_by_role("button", name="reset").click()
    assert (figure.locator("textarea").input_value() == "The king wanted"
            and figure.get_by_role("button", name="write a token").is_enabled())


@pytest.mark.whole
def test_a_model_that_does_not_come_is_said_so(shown):
    page, figure, _ = shown
    page.route("**/prose.safetensors", lambda route: route.fulfill(status=404))
    figure.get_by_role("button", name="load the model").click()
    figure.get_by_text("The model could not be loaded (prose.safetensors: 404).").wait_for()
    page.unroute("**/prose.safetensors")
    loaded(figure)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(FIGURES, "chapters/depth/10_decoders.html"))
def test_nothing_is_loaded_before_the_press(opened, served, name):
    """Then the weights, and the tokenizer where the model has no words of its own, come from the
    book itself; with the scripts that run the model, at most 1 MB."""
    page, figure, asked = opened(name)
    def heavy(): return [url for url in asked if url.endswith((".safetensors", "tokenizer.json"))]
    assert heavy() == [] and not figure.locator("textarea").is_visible()
    before, lengths = len(asked), []
    page.on("response", lambda r: lengths.append(len(r.body())) if r.url in heavy() else None)
    loaded(figure)
    page.wait_for_load_state("networkidle")
    # a body arrives after its headers; if none does, the test fails below
    for _ in range(3600):
        if len(lengths) == len(FILES.get(name, PROSE)): break
        page.wait_for_timeout(50)
    assert ([url.rsplit("/", 1)[1] for url in asked[before:]] == FILES.get(name, PROSE)
            and all(url.startswith(served) for url in asked))
    assert (sum(lengths) + sum(path.stat().st_size for path in LIVE.glob("*.js")) <= 1e6
            and len(lengths) == len(FILES.get(name, PROSE)))


@pytest.mark.whole
@pytest.mark.slow
def test_a_reader_can_see_the_heads_on_any_sentence(opened, rounded):
    page, figure, _ = opened("chapters/depth/05_heads.html", width=390)
    example = json.loads((LIVE / "heads.json").read_text(encoding="utf-8"))
    assert ([t.rsplit(" ", 1)[0] for t in figure.locator(".tfm-token").all_text_contents()]
            == example["tokens"])
    text, tokenizer = loaded(figure), book_tokenizer()
    assert text.input_value() == example["text"]
    figure.get_by_role("button", name="layer 1").press("Enter")
    figure.get_by_role("button", name="head 2").press("Space")
    text.fill("Oarvale saw the <king>, and Oarvale waits — naïvely 🦉. The end")
    ids = tokenizer.encode("\n\n" + text.input_value())
    tokens = [printable(token) for token in tokenizer.tokens(ids[:live.SHOWN])]
    assert (len(ids) > live.SHOWN
            and f"{len(ids) - live.SHOWN} more" in figure.locator(".tfm-readout").text_content())
    chips = figure.locator(".tfm-token")
    assert [c.rsplit(" ", 1)[0] for c in chips.all_text_contents()] == tokens
    weights = live.attention_of(rounded, torch.tensor(ids[:live.SHOWN]))[1, 2]
    for query in (9, 4):
        chips.nth(query).focus()
        page.keyboard.press("Enter")
        assert (chips.nth(query).evaluate("e => e === document.activeElement")
                and chips.nth(query).get_attribute("aria-pressed") == "true")
        told = [int(n or 0) for n in figure.locator(".tfm-token small").all_text_contents()]
        assert all(abs(n - 100 * float(w)) < .51 for n, w in zip(told, weights[query]))
        best = int(weights[query].argmax())
        said = figure.locator(".tfm-readout").text_content()
        assert f"“{tokens[query]}”, token {query}, attends most to “{tokens[best]}”, token {best}{' (itself)' * (best == query)}: {float(weights[query, best]):.2f}" in said  # noqa: E501
        later = weights[query + 1:, query].mean()
        equal = (1 / torch.arange(query + 2, live.SHOWN + 1)).mean()
        gets, would = map(float,
                          re.search(r"gets (\S+) on average; equal weights would give (\S+)\.",
                                    said).groups())
        assert abs(gets - float(later)) < .0051 and abs(would - float(equal)) < .0051
        assert (said in figure.locator("svg.tfm-heat").get_attribute("aria-label")
                or said.startswith(figure.locator("svg.tfm-heat").get_attribute("aria-label").split(
                    "token. ", 1)[1]))
    found = live.places(ids[:live.SHOWN], tokens)
    for row in figure.locator("tbody tr").all():
        place, mean, equal = row.locator("th, td").all_text_contents()
        chosen = found[place]
        assert (abs(float(mean) - sum(float(weights[t, keys].sum()) for t, keys in chosen)
                    / len(chosen)) < .0051)
        assert (abs(float(equal) - sum(len(keys) / (t + 1) for t, keys in chosen)
                    / len(chosen)) < .0051)
    assert violations(page, "figure[data-module=own_sentence]") == [] and too_wide(page) <= 0
    text.fill("")
    assert figure.locator(".tfm-token").count() == 2 and "NaN" not in figure.text_content()
    figure.get_by_role("button", name="reset").click()
    assert (text.input_value() == example["text"]
            and figure.get_by_role("button",
                                   name="layer 0").get_attribute("aria-pressed") == "true")


@pytest.mark.whole
@pytest.mark.slow
def test_a_reader_can_write_in_both_ways(opened, rounded):
    page, figure, _ = opened("chapters/16_kv_cache.html", width=390)
    n_example = len(book_tokenizer().encode("\n\nThe king wanted"))
    def said() -> str: return figure.locator(".tfm-readout").text_content()
    def tallies() -> list[str]: return figure.locator(".tfm-tally").all_text_contents()
    assert (tallies() == [f"{20 * n_example + 190} tokens in 20 passes",
                          f"{n_example + 19} tokens in 20 passes"])
    text = loaded(figure)
    assert tallies() == ["Nothing has been written yet."] * 2
    text.fill("A heron lives <near> Oarvale 🦉 and")
    ids = book_tokenizer().encode("\n\n" + text.input_value())
    for new in (20, 5):
        figure.get_by_label("new tokens").fill(str(new))
        assert "Let the model write in both ways." in said()
        written = generate(rounded, torch.tensor([ids]), new)[0].tolist()
        with torch.no_grad():
            best = rounded(torch.tensor([written[:-1]]))[0, len(ids) - 1:].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-3, "rounding could decide: take another text"
        # the second waits for the first
        for way in ("without", "with"):
            figure.get_by_role("button", name=f"write {new} tokens {way} a cache").press("Enter")
        for way in ("without", "with"):
            page.wait_for_function(
                "([n, at]) => document.querySelectorAll('.tfm-tally')[at].textContent.includes(`in "
                "${n} passes`)", arg=[new, int(way == "with")])
        assert (figure.locator(".tfm-wrote").all_text_contents()
                == [book_tokenizer().decode(written)[2:]] * 2)
        counts = new * len(ids) + new * (new - 1) // 2, len(ids) + new - 1
        assert ([re.match(r"(\d+) tokens in (\d+) passes, [\d.]+ ms$", t).groups()
                 for t in tallies()] == [(str(count), str(new)) for count in counts])
        assert said().startswith(
            f"{new} new tokens: without a cache, {counts[0]} tokens were processed, with a cache "
            f"{counts[1]}. The two texts are identical. In this browser, ")
    assert violations(page, "figure[data-module=both_ways]") == [] and too_wide(page) <= 0
    text.fill("the water " * 100)
    assert ("The model reads at most 128 tokens, new ones included." in said()
            and figure.get_by_role("button", name="write 5 tokens with a cache").is_disabled())
    figure.get_by_role("button", name="reset").click()
    assert (text.input_value() == "The king wanted"
            and figure.get_by_role("button", name="write 20 tokens with a cache").is_enabled())


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(FIGURES, "chapters/depth/10_decoders.html"))
def test_without_a_network_the_figure_says_so(opened, name):
    page, figure, _ = opened(name)
    page.context.set_offline(True)
    figure.get_by_role("button", name="load the model").click()
    figure.get_by_text("The model could not be loaded").wait_for()
    page.context.set_offline(False)
    loaded(figure)
