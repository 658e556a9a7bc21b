"""Practice in the page, as a reader meets it: Chromium on the built book, with Python in a
worker."""
import json
import re

import pytest
from conftest import keys, laid_out, sweep, too_wide, violations
from test_edits import EDITS, EVERY, changed, stored, tagged
from test_inpage import BOOK, CHECKED, ROOT, TRIED, inpage, inpage_files

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PAGE = "chapters/practice/04_attention.html"
ASKED = next(page["exercises"]
             for page in json.loads((ROOT / "tfmlib/assets/kills.json").read_text(
                 encoding="utf-8"))["pages"] if page["page"] + ".html" == PAGE)
WIDE = {"width": 1400, "height": 900}
FIRST = 200_000                                   # bytes on the wire that the first focus may take
# bytes on the wire, with gzip, that the first press may take
MOST = 9_000_000
EDITOR = """const editorOf = async (cell) => {      // the editor that a focus brings
  cell.querySelector("textarea")?.focus();
  while (!cell.querySelector(".cm-editor")) await new Promise((go) => setTimeout(go, 20));
  const at = performance.getEntriesByType("resource").find((entry) => entry.name.includes("/codemirror.js")).name;
  return (await import(at)).view.EditorView.findFromDOM(cell.querySelector(".cm-editor"));
};
const pressed = async (cell, source) => {
  // as a reader does it: write, press, wait for the answer
  const editor = await editorOf(cell), place = cell.querySelector(".tfm-answered");
  editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: source } });
  delete place.dataset.answer;
  cell.querySelector(".tfm-try button").click();
  while (!place.dataset.answer) await new Promise((go) => setTimeout(go, 20));
  return JSON.parse(place.dataset.answer);
};"""  # noqa: E501
PRESS = (
    f"async ([name, source]) => {{ {EDITOR} return "
    f"pressed(document.querySelector(`.tag_stub.tag_exercise-${{name}}`), source); }}")
TEXT = f"async (cell) => {{ {EDITOR} return (await editorOf(cell)).state.doc.toString(); }}"


class Area:
    "The editor of a cell: its text area, and what takes its place."
    def __init__(self, cell): self.cell, self.page = cell, cell.page

    def focus(self):
        "Enter it, and wait until it is the editor of code."
        area = self.cell.locator("textarea")
        if area.count(): area.focus()
        self.cell.locator(".cm-content").focus()
        return self

    def type(self, text: str):
        "Type in place of everything, each line ended by Enter."
        self.focus().press("Control+a")
        for n, line in enumerate(text.split("\n")):
            if n: self.page.keyboard.press("Enter")
            self.page.keyboard.type(line)
        return self

    def press(self, *names: str):
        keys(self.page, *names)
        return self

    def text(self) -> str: return self.cell.evaluate(TEXT)
    def is_focused(self) -> bool:
        return self.cell.locator(".cm-content").evaluate("a => a === document.activeElement")


def of(page, name: str) -> Area: return Area(page.locator(f".tag_stub.tag_exercise-{name}"))


@pytest.fixture(scope="module")
def known(browser, served):
    "One context for all pages: what is fetched for the first stays in the browser's cache."
    context = browser.new_context(viewport=WIDE, base_url=served)
    yield context
    context.close()


def practice(page, stem: str = "04_attention"):
    "The page, which now shows an exercise page with its text areas."
    page.goto(f"chapters/practice/{stem}.html")
    page.locator(".tfm-editor textarea").first.wait_for()
    return page


@pytest.fixture
def page(visiting):
    "A fresh page with an empty cache and nothing remembered."
    return practice(visiting(viewport=WIDE, color_scheme="light", accept_downloads=True))


@pytest.fixture(scope="module")
def ready(known):
    "A page on which Python has been started."
    page = practice(known.new_page())
    press(page, "effect", "def effect(change): return 'same'")
    yield page
    page.close()


def press(page, name: str, source: str) -> dict: return page.evaluate(PRESS, [name, source])


def cells(stem: str):
    """The stub, solution and mutant cells of a page: what it is, its exercise, its code and the
    name that it hands to the checker."""
    for cell in inpage.cells_of(stem):
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        name = next((t.removeprefix("exercise-") for t in tags if t.startswith("exercise-")), "")
        kind = next((k for k in ("stub", "solution", "mutant") if k in tags), "")
        if kind and name and "#| export" not in source:
            called = re.search(r"^check_\w+\((\w+)\)", source, re.M)
            yield (kind, name, re.sub(r"^check_\w+\(.*$", "", source, flags=re.M),
                   called and called[1])


def answers(stem: str, every: int = 40) -> list[tuple[str, str, bool, str]]:
    """Answers to try in a page: all stubs, all solutions, and every so manieth wrong answer,
    each with its verdict in the book."""
    told = {(e["name"], v["name"]): v for e in BOOK[stem]["exercises"]
            for kind in ("stub", "solutions", "mutants") for v in e[kind]}
    found, before, wrong = [], "", 0
    for kind, name, code, called in cells(stem):
        if kind == "stub": found.append((name, code, told[name, name]))
        else: before += f"\n{code}"
        if kind == "mutant" and called: wrong += 1
        if called and (kind == "solution" or kind == "mutant" and wrong % every == 7):
            found.append((name, f"{before}\n{name} = {called}\n", told[name, called]))
    return [(name, source, verdict["passed"], verdict["failed"]) for name, source, verdict in found]


def unhurried(route) -> None:
    "The page, with ten minutes for a case: no outcome depends on how busy the machine is."
    answer = route.fetch()
    assert (limit := f'"limit": {inpage.LIMIT}') in answer.text()
    route.fulfill(response=answer, body=answer.text().replace(limit, '"limit": 600000'))


def begun(context, stem: str, tried: list, foreign: list):
    """A page on which these answers are checked, one after the other, while the test does
    something else."""
    page = context.new_page()
    page.route("**/practice/*.html", unhurried)
    page.on("request", lambda r: None if r.url.startswith(("http://127.0.0.1:", "blob:", "data:"))
            else foreign.append(r.url))
    practice(page, stem).evaluate(
        f"(tried) => {{ window.found = []; const press = {PRESS}; (async () => {{ for (const one "
        f"of tried) found.push(await press(one)); }})(); }}", [one[:2] for one in tried])
    return page


OTHERS = [stem for stem in CHECKED if stem not in TRIED]


@pytest.mark.parametrize("stems", [pytest.param([stem]) for stem in TRIED]
                         + [pytest.param(OTHERS[n:n + 2], marks=pytest.mark.whole)
                            for n in range(0, len(OTHERS), 2)], ids=" ".join)
def test_stubs_solutions_and_some_wrong_answers(known, stems):
    "The verdicts of the book, in two pages at a time."
    tried, foreign = {stem: answers(stem) for stem in stems}, []
    pages = {stem: begun(known, stem, tried[stem], foreign) for stem in stems}
    for stem, page in pages.items():
        assert ({name for name, *_ in tried[stem]} == set(inpage.titles_of(stem))
                - set(inpage_files.elsewhere().get(stem, {})))
        page.wait_for_function(f"found.length === {len(tried[stem])}", timeout=600_000)
        found = page.evaluate("found")
        page.close()
        assert ([(said["kind"], said.get("passed"), said.get("failed") or "", said.get("lacks"))
                 for said in found]
                == [("verdict", passed, failed, []) for *_, passed, failed in tried[stem]])
    assert foreign == []


def fetched(asked: list[str]) -> list[str]:
    "Which of the files that check answers in the page are among these addresses."
    return sorted(url.rpartition("/inpage/")[2].partition("?")[0] for url in asked
                  if "/inpage/" in url)


def python_files(*archives: str) -> list[str]:
    "What starts Python in the page, with the archives of code that the page needs."
    return ["worker.js", *(f"py/{name}" for name in (*inpage_files.pyodide.FILES,
                                                     inpage_files.numpy_wheel().name, *archives))]


def on_the_wire(names: list[str]) -> int:
    "The bytes that a static host sends for these files."
    from serve import PACKED, packed
    paths = [ROOT / "_build/html/_static/inpage" / name for name in names]
    return sum(len(packed(path, 0)) if path.suffix in PACKED else path.stat().st_size
               for path in paths)


def test_nothing_is_fetched_before_the_press_and_little_after_it(visiting, served):
    page, asked = visiting(), []
    page.context.on("request", lambda request: asked.append(request.url))
    practice(page).wait_for_load_state("networkidle")
    assert (fetched(asked) == ["check.css", "check.js", "editor.js"]
            and sum((ROOT / "inpage" / name).stat().st_size for name in fetched(asked)) < 17_500)
    before = len(asked)
    of(page, "effect").focus()
    assert (fetched(asked[before:]) == ["code.js", "codemirror.js"]
            and on_the_wire(fetched(asked[before:])) < FIRST)
    before = len(asked)
    assert press(page, "effect", "def effect(change): return 'same'")["kind"] == "verdict"
    needed = fetched(asked[before:])
    assert {*needed} == {*python_files("book.zip", "attention.zip")}
    assert all(url.startswith(served) for url in asked)
    assert 8_000_000 < on_the_wire([*{*needed}]) <= MOST


@pytest.mark.whole
def test_two_presses_wait_for_each_other(ready):
    "Two exercises checked at once: each gets its own verdict."
    both = ready.evaluate(
        f"Promise.all([({PRESS})(['effect', 'def effect(change): return 1']), "
        f"({PRESS})(['one_row', 'def one_row(q, k, v): return 2'])])")
    assert [b["lines"][0] for b in both] == ["✗ effect: not yet", "✗ one_row: not yet"]


@pytest.mark.whole
def test_a_name_that_is_not_in_the_page_is_no_wrong_answer(ready):
    said = press(ready, "one_row", "def one_row(q, k, v): return torch.compile(v)")
    assert said["lacks"] == ["torch.compile"]
    text = ready.locator(".tag_stub.tag_exercise-one_row .tfm-answered").inner_text()
    assert "cannot be checked here" in text and "run this one in Jupyter or Colab" in text


def test_the_keyboard_writes_indents_checks_and_leaves(page):
    area = of(page, "effect").type("def effect(change):\nx = 1")
    assert area.text() == "def effect(change):\n    x = 1"
    assert area.press("Shift+Tab").text() == "def effect(change):\nx = 1"
    # to the next column of four
    assert area.press("Tab").text().endswith("x = 1   ") and area.is_focused()
    assert area.press("Control+z").text().endswith("x = 1")
    assert area.press("Control+a", "Tab").text() == "    def effect(change):\n    x = 1"
    # also the second time
    for _ in range(2):
        area.press("Escape", "Tab")
        assert page.evaluate("document.activeElement.textContent") == "Check"
        assert area.press("Shift+Tab").is_focused()
    assert area.press("Tab").is_focused(), "what Escape allowed ended when the editor was left"


def test_undo_and_redo_lose_nothing_and_what_is_typed_survives_a_reload(page):
    """Three lines with Enter, undone step by step and redone; what was typed before the editor
    came can be undone too."""
    area = of(page, "effect")
    stub, lines = (area.cell.locator("textarea").input_value(),
                   "def effect(change):\n    a = [1]\n    return a")
    area.type("def effect(change):\na = [1]\nreturn a")
    assert area.text() == lines
    back = area.press("Control+z").text()
    assert lines.startswith(back) and back.startswith("def effect(change):\n    a = [1]")
    assert area.press("Control+y").text() == lines
    assert area.press(*["Control+z"] * 20).text() == stub
    assert area.press(*["Control+Shift+Z"] * 20).text() == lines
    page.reload()
    assert area.cell.locator("textarea").input_value() == lines and area.text() == lines


def test_what_is_typed_while_the_editor_is_on_its_way_stays(page):
    held = []
    page.route("**/codemirror.js*", lambda route: held.append(route))
    plain = page.locator(".tag_stub.tag_exercise-effect textarea")
    stub = plain.input_value()
    with page.expect_request("**/codemirror.js*"): plain.focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("x = 12")
    page.keyboard.press("ArrowLeft")
    while not held: page.wait_for_timeout(20)
    assert page.locator(".cm-editor").count() == 0
    held[0].continue_()
    area = of(page, "effect")
    page.locator(".tag_stub.tag_exercise-effect .cm-content").wait_for()
    assert area.is_focused() and area.text() == "x = 12"
    page.keyboard.type("0")
    assert area.text() == "x = 102"
    assert area.press("Control+z", "Control+z").text() == stub


def test_code_has_the_books_colours_numbers_and_matching_brackets(page):
    area = of(page, "effect").type("def effect(change):\nreturn [1, 'a', None]  # so")
    area.press("Home", *["ArrowRight"] * 7)
    shown = area.cell.locator(".cm-content").evaluate(
        "e => [...e.querySelectorAll('.k, .nf, .m, .s, .c')].map(s => [s.className, s.textContent])")  # noqa: E501
    assert (shown == [["k", "def"], ["nf", "effect"], ["k", "return"], ["s", "'a'"],
                      ["c", "# so"]])
    word = "e => getComputedStyle(e).color"
    assert (area.cell.locator(".cm-content .k").first.evaluate(word)
            == page.locator(".highlight pre .k").first.evaluate(word))
    assert ([n for n in area.cell.locator(".cm-lineNumbers .cm-gutterElement").all_text_contents()
             if n] [-2:] == ["1", "2"])
    assert area.cell.locator(".cm-matchingBracket").all_text_contents() == ["[", "]"]


def test_the_line_that_failed_is_marked_and_named(ready):
    said = press(ready, "one_row",
                 "def one_row(q, k, v):\n    scores = k @ q\n    return scores / nothing\n")
    cell = ready.locator(".tag_stub.tag_exercise-one_row")
    assert (said["line"] == 3
            and "in line 3 of your answer: return scores / nothing" in cell.locator(
                ".tfm-answered").inner_text())
    assert cell.locator(".tfm-failed").all_text_contents() == ["    return scores / nothing"]
    ready.emulate_media(forced_colors="active")
    assert cell.locator(".tfm-failed").evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    ready.emulate_media(forced_colors="none")
    area = Area(cell).focus().press("Control+Home", "Enter")
    # it goes with its line
    assert cell.locator(".tfm-failed").all_text_contents() == ["    return scores / nothing"]
    area.press("Control+z", "ArrowDown", "ArrowDown", "End", "Backspace")
    assert cell.locator(".tfm-failed").count() == 0
    assert (press(ready, "one_row", "def one_row(q, k, v): return 2")["line"] is None
            and cell.locator(".tfm-failed").count() == 0)


@pytest.mark.parametrize("how", sweep(["it was not there at set-up", "it does not come"],
                                      "it does not come"))
def test_without_codemirror_the_text_area_stays_with_the_browsers_own_undo(visiting, how):
    page = visiting()
    def without(route):
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace('"code": true', '"code": false'))
    if how == "it does not come": page.route("**/codemirror.js*", lambda route: route.abort())
    else: page.route("**/practice/*.html", without)
    page.goto(PAGE)
    cell = page.locator(".tag_stub.tag_exercise-effect")
    area = cell.locator("textarea")
    stub = area.input_value()
    area.focus()
    cell.locator(".tfm-try-keys").get_by_text(re.compile("^Ctrl and Enter check")).wait_for()
    page.keyboard.press("Control+a")
    for line in ("def effect(change):", "    a = 1"):
        page.keyboard.type(line)
        page.keyboard.press("Enter")
    page.keyboard.type("    return a")
    lines = "def effect(change):\n    a = 1\n    return a"
    assert area.input_value() == lines
    keys(page, "Control+z", "Control+Shift+Z")
    assert area.input_value() == lines
    page.reload()
    assert area.input_value() == lines
    cell.get_by_role("button", name="Reset").click()
    page.wait_for_function(
        "stub => document.querySelector('.tag_stub.tag_exercise-effect textarea').value === stub",
        arg=stub)
    area.press("Control+z")
    assert area.input_value() == lines
    area.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Check"
    assert (page.evaluate(f"typeof ({PRESS})") == "function"
            and page.locator(".cm-editor").count() == 0)
    area.press("Control+Enter")
    cell.locator(".tfm-check").wait_for()


def test_a_printed_solution_passes_and_its_exercise_gets_a_tick(ready):
    ready.evaluate(
        "Object.keys(localStorage).filter((key) => key.startsWith('tfm-solved')).forEach((key) => "
        "localStorage.removeItem(key))")
    ready.reload()
    progress, line = ready.locator(".tfm-solved-of progress"), ready.locator(".tfm-solved-of span")
    of_all = f"of {len(ASKED)} exercises solved."
    heading = ready.locator("section:has(> .tag_stub.tag_exercise-one_row) > h2")
    assert line.inner_text() == f"0 {of_all}" and heading.locator(".tfm-solved").count() == 0
    asked = []
    ready.on("request", lambda request: asked.append(request.url))
    printed = ready.locator(".tag_solution.tag_exercise-one_row pre").first.text_content()
    assert press(ready, "one_row", printed)["passed"]
    assert (heading.locator(".tfm-solved").inner_text().strip() == "✓ solved"
            and "solved" in heading.aria_snapshot())
    assert (line.inner_text() == f"1 {of_all} Next: What changes the output?"
            and progress.evaluate("p => p.value") == 1)
    assert progress.get_attribute("aria-label") == "Exercises solved on this page"
    assert [url for url in asked if "/_static/inpage/" not in url] == [], "a tick asks for nothing"
    ready.reload()
    assert (heading.locator(".tfm-solved").count() == 1
            and line.inner_text().startswith(f"1 {of_all}"))
    ready.locator(".tag_exercise-one_row").get_by_role("button", name="Reset").click()
    line.get_by_text(f"0 {of_all}").wait_for()
    assert heading.locator(".tfm-solved").count() == 0


@pytest.mark.whole
def test_a_printed_solution_may_call_another(known):
    "As learn_merges does, which calls the solutions of two exercises above it."
    page = known.new_page()
    page.goto("chapters/practice/03_tokens.html")
    printed = page.locator(".tag_solution.tag_exercise-learn_merges pre").first.text_content()
    assert "count_pairs_solution(" in printed and press(page, "learn_merges", printed)["passed"]
    page.close()


def test_an_empty_answer_is_not_called_wrong(ready):
    "Neither as the page is built, nor when it is checked; and what gives answers away is folded."
    ready.reload()
    assert (ready.locator(".tag_check .tfm-check").count() == len(ASKED)
            and ready.locator(".tag_check .tfm-check:not(.tfm-none)").count() == 0)
    said = ready.locator(".tag_check.tag_exercise-effect .tfm-check").text_content()
    assert "nothing is written yet" in said and "✗" not in said
    ready.locator(".tag_stub.tag_exercise-effect").get_by_role("button", name="Reset").click()
    of(ready, "effect").focus().press("Control+Enter")
    box = ready.locator(".tag_stub.tag_exercise-effect .tfm-check")
    box.wait_for()
    assert "tfm-none" in box.get_attribute("class") and "nothing is written yet" in box.inner_text()
    wrong = ready.locator("section[id^=wrong-answers-to]")
    assert (wrong.count() == len(ASKED)
            and ready.locator("section[id^=wrong-answers-to] > :is(p, .cell)").count() == 0)
    assert re.fullmatch(r"Show \d+ wrong answers: .*",
                        wrong.first.locator("> details > summary").inner_text())
    assert not wrong.first.locator("details p").first.is_visible()
    ready.goto(PAGE + "#" + ready.locator(".tag_mutant[id]").first.get_attribute("id"))
    assert ready.locator(
        ".tag_mutant[id]").first.is_visible(), "a link to a wrong answer opens the fold"


def test_answers_stay_can_be_reset_and_become_a_notebook(page):
    area = of(page, "effect")
    stub = area.cell.locator("textarea").input_value()
    area.type("def effect(change): return 'same'")
    of(page, "one_row").type("def one_row_solution(q, k, v): return 1")
    page.reload()
    assert area.cell.locator("textarea").input_value() == "def effect(change): return 'same'"
    with page.expect_download() as download:
        page.locator(".tag_exercise-effect").get_by_role("button", name="Download notebook").click()
    notebook = json.loads(open(download.value.path(), encoding="utf-8").read())
    sources = [cell["source"] for cell in notebook["cells"]]
    assert (download.value.suggested_filename == "practice_attention.ipynb"
            and "def effect(change): return 'same'" in sources
            and "check_effect(effect)" in sources)
    assert any(source.endswith("return 1\n\n\none_row = one_row_solution") for source in sources)
    assert "from tfmlib.practice.attention import *" in sources[2]
    import nbformat
    nbformat.validate(nbformat.from_dict(notebook))
    page.locator(".tag_exercise-effect").get_by_role("button", name="Reset").click()
    area.cell.locator(".cm-editor").wait_for()
    assert (area.text() == stub
            and page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('tfm-answer'))")
            == ["tfm-answer:attention/one_row"])
    assert area.press("Control+z").text() == "def effect(change): return 'same'"


@pytest.mark.parametrize("theme", sweep(["light", "dark"], "dark"))
def test_editors_and_verdicts_are_accessible_and_fit_a_phone(ready, theme):
    ready.set_viewport_size(WIDE)
    ready.emulate_media(color_scheme=theme)
    press(ready, "effect", "print('seen')\ndef effect(change): return 'same'")
    cell = ready.locator(".tag_stub.tag_exercise-effect")
    assert (cell.locator(".tfm-answered").get_attribute("aria-live") == "polite"
            and cell.get_by_role("status").count() == 1)
    snapshot = cell.aria_snapshot()
    assert all(part in snapshot for part in ('textbox "Your answer: What changes the output?"',
                                             'button "Check: What changes the output?"',
                                             "effect: not yet", "seen"))
    assert cell.locator(".cm-content").evaluate(
        "a => document.getElementById(a.getAttribute('aria-describedby')).textContent").startswith(
            "Tab indents; Escape")
    assert wrong_at_any_width(ready, ".tag_stub") == []


def wrong_at_any_width(page, within: str) -> list:
    "What axe-core finds in these elements, wide and narrow, and where the page scrolls sideways."
    found = []
    for width in (1400, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        laid_out(page)
        found += violations(page, within) + [width] * (too_wide(page) > 0)
    return found


@pytest.mark.whole
def test_a_loop_without_an_end_is_ended_and_the_next_answer_is_checked(ready):
    said = press(ready, "effect", "def effect(change):\n    while True: pass")
    assert said["kind"] == "stopped" and said["at"]["property"] == "the prediction is what happens"
    verdict = ready.locator(".tag_stub.tag_exercise-effect .tfm-answered")
    assert ("a case took more than 10 seconds" in verdict.inner_text()
            and "loop" in verdict.inner_text())
    assert press(ready, "effect", "def effect(change): return 'same'")["kind"] == "verdict"


# --- a chapter's cell to change -------------------------------------------------------------------

CHAPTER = "chapters/04_attention.html"
RUN = (
    f"async ([source]) => {{ {EDITOR} return pressed(document.querySelector('.tag_edit'), source); }}")  # noqa: E501


@pytest.fixture(scope="module")
def chapter(known):
    "A chapter's page, what it has asked for before the first press, and then Python."
    page, asked = known.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(CHAPTER)
    page.locator(".tag_edit textarea").wait_for()
    page.wait_for_load_state("networkidle")
    page.asked, page.before = asked, fetched(asked)
    yield page
    page.close()


def run(page, source: str) -> dict: return page.evaluate(RUN, [source])


@pytest.mark.whole
def test_a_chapter_shows_the_cell_as_it_is_until_it_runs(chapter, served):
    """Nothing is fetched before the press, nothing from elsewhere, and no stand-in for PyTorch
    after it."""
    cell, source = chapter.locator(".tag_edit"), tagged("04_attention")["attend-numpy"].source
    # far below, a page is not laid out, and has no text
    cell.scroll_into_view_if_needed()
    cell.locator(".cell_output:visible").wait_for()
    assert (chapter.before == ["check.css", "editor.js", "run.js"]
            and sum((ROOT / "inpage" / name).stat().st_size for name in chapter.before) < 14_000)
    assert (cell.locator("textarea").input_value() == source + "\n"
            and stored(tagged("04_attention")["attend-numpy"]) in cell.locator(
                ".cell_output").inner_text())
    assert "The first Run loads Python and NumPy from this site, 9 MB" in cell.inner_text()
    count = len(chapter.asked)
    assert (run(chapter, "print('seen')\n3 * 4") == {"kind": "verdict", "printed": "seen\n",
            "value": "12", "error": None, "line": None})
    assert ({*fetched(chapter.asked[count:])}
            == {"code.js", "codemirror.js", *python_files("cell.zip")})
    assert all(url.startswith((served, "blob:", "data:")) for url in chapter.asked)
    assert cell.locator(".cell_output:visible").inner_text().split() == ["seen", "12"]


def test_every_cell_gives_its_output_and_what_its_answer_says(chapter):
    "The cells of all chapters, in Python for browsers; each run starts from fresh names."
    for stem in EVERY:
        [cell] = tagged(stem).values()
        assert (stem, run(chapter, cell.source)["value"]) == (stem, stored(cell))
        assert (stem, run(chapter, changed(stem))["value"]) == (stem, EDITS[stem]["gives"])


def test_an_error_names_its_line_and_reset_brings_the_output_back(chapter):
    cell, area = chapter.locator(".tag_edit"), Area(chapter.locator(".tag_edit"))
    area.type("x = [1, 2]\nx[2]\n").press("Control+Enter")
    cell.get_by_text("✗ IndexError in line 2").wait_for()
    assert cell.locator(".tfm-failed").all_text_contents() == ["x[2]"]
    assert ("x[2]" in cell.locator(".tfm-check").inner_text()
            and cell.locator(".cell_output:visible").count() == 0)
    assert "only NumPy" in " ".join(run(chapter, "import torch")["error"])
    assert (run(chapter, "x = 1") == {"kind": "verdict", "printed": "", "value": "", "error": None,
                                      "line": None} and "(no output)" in cell.inner_text())
    area.focus().press("Escape")
    for name in ("Run", "Reset"):
        area.press("Tab")
        assert chapter.evaluate("document.activeElement.textContent") == name
    chapter.keyboard.press("Enter")
    source = tagged("04_attention")["attend-numpy"]
    assert (area.text() == source.source + "\n"
            and cell.locator(".cell_output:visible").inner_text().strip() == stored(source))
    assert chapter.evaluate("Object.keys(localStorage).filter(k => k.startsWith('tfm-edit'))") == []


@pytest.mark.parametrize("theme", sweep(["light", "dark"], "dark"))
def test_a_cell_is_accessible_and_fits_a_phone(chapter, theme):
    chapter.set_viewport_size(WIDE)
    chapter.emulate_media(color_scheme=theme)
    run(chapter, "print(list(range(99)))\n1 / 0")
    cell = chapter.locator(".tag_edit")
    snapshot = cell.aria_snapshot()
    assert all(part in snapshot
               for part in ('textbox "Code to change: Masks: who may attend to whom"',
                            'button "Run: Masks: who may attend to whom"',
                            "ZeroDivisionError in line 2", "[0, 1, 2"))
    assert wrong_at_any_width(chapter, ".tag_edit") == []
