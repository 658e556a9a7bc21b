"""The book's own extensions: labels on exported cells, the reference, the page of claims."""
import ast
import html
import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import built
import colab
import findable
import ledger_rules
import nbdev_cells
import nbformat
import pytest
import reference
import rules
import touches
import yaml
from bs4 import BeautifulSoup
from conftest import ROOT
from docutils import nodes
from docutils.utils import new_document
from ledger import AS_SAID, VERDICTS, Ledger, faults, lead, settled
from pages import chapter, notebook_files, notebooks, title, toc_pages
from test_defects import build, replace, small

MIME = "application/vnd.tfmlib.claim+json"


# --- cells as the page shows them -----------------------------------------------------------------

def code(source, **more) -> dict:
    return {"cell_type": "code", "id": "a", "metadata": {}, "source": source, "outputs": []} | more


def prepared(*cells: dict) -> list[dict]:
    notebook = {"cells": list(cells)}
    nbdev_cells.prepare(notebook, "../api/05_heads.html")
    return notebook["cells"]


@pytest.mark.parametrize(("source", "title"), [
    ("x = 1\nclaim('a',\n      true_when={})", "How this is checked"),
    ("curves(x, y,\n       alt='a line', caption='A line.')", "How the figure was drawn"),
    ("import math\nfrom torch import (\n    nn,\n)\n\ntorch.set_printoptions(precision=4)",
     "Imports"), ("#| export\nimport math\n\ndef f(x): return x\n\nclass G: pass", "f, G"),
    ("#| export\n# fold: The library's class\ndef f(x): return x", "The library's class"),
    ("x = 1", "Code")])
def test_a_fold_is_named_by_what_it_holds(source, title):
    *_, cell = prepared(code("#| default_exp heads"),
                        code(source, metadata={"tags": ["hide-input"]}))
    assert cell["metadata"]["mystnb"] == {"code_prompt_show": title, "code_prompt_hide": title}


@pytest.mark.parametrize(("source", "tag"), [
    ('diagram({"x": Box("x (y)", (0, 0))}, alt="a box",\n        caption="x")', "remove-input"),
    ("#| hidden\ntimeline(\n    {},\n    alt='a bar',\n)", "remove-input"),
    ("rows = 3\ndiagram({}, alt='rows')", "hide-input"),
    ("diagram({}, alt='a')\nassert True", "hide-input"), ("diagrams(alt='a')", "hide-input")])
def test_the_code_of_a_diagram_is_not_shown(source, tag):
    *_, cell = prepared(code("#| default_exp heads"),
                        code(source, metadata={"tags": ["hide-input"]}))
    assert cell["metadata"]["tags"] == [tag]


def boxed(verdict: str, *rows: tuple[str, str]) -> str:
    "A stored claim's box as the page shows it."
    listed = "".join(f'<li><span class="tfm-kind">{kind}</span> {text}</li>' for kind, text in rows)
    box = (
        '<div class="tfm-claim"><p class="tfm-statement"><strong '
        f'class="tfm-verdict">{verdict}</strong> Common.</p><ul>{listed}</ul></div>')
    return prepared(code("claim('a')",
                         outputs=[{"data": {"text/html": box}}]))[0]["outputs"][0]["data"][
                             "text/html"]


@pytest.mark.parametrize("verdict, rows, first, folded", [
    ("imprecise", [("against", "a"), ("rather", "Better."), ("measured", "1")], "Better.", 2),
    ("imprecise", [("rather", "Better.")], "Better.", 0),
    ("holds under a condition", [("for", "x < 1"), ("for", "b"), ("against", "c")],
     "Yes: x < 1; no: c.", 2), ("wrong", [("against", "never so")], "Never so.", 1)])
def test_a_box_says_verdict_and_what_is_true_before_the_common_wording(verdict, rows,
        first, folded):
    box = boxed(verdict, *rows)
    assert (f'{verdict}{AS_SAID[verdict]}</strong> {first}</p><p '
            'class="tfm-common">Commonly said: Common.</p>' in box)
    assert box.count("<li>") == folded and ("<details>" in box) == (folded > 0)


def test_the_evidence_is_one_sentence_for_and_one_against():
    box = boxed("holds under a condition", ("for", "one does"), ("for", "and so does another."),
                ("against", "a"), ("against", "b"), ("measured", "1"))
    assert ([re.sub(r"<.*?>", "", row) for row in re.findall(r"<li>.*?</li>", box)]
            == ["for one does; and so does another", "against a; and b", "measured 1"])


def test_of_many_names_the_line_shows_the_first_and_every_name_keeps_its_anchor():
    said = nbdev_cells.label("heads", [f"n{i}" for i in range(9)], set(), "../api/x.html")
    assert (said.count("<a") == 5 and "and 5 more</a>" in said
            and all(f'id="tfm-n{i}"' in said for i in range(9)))
    assert ("more" not in nbdev_cells.label("heads", [f"n{i}" for i in range(5)], set(), "")
            and 'id="tfm-' not in nbdev_cells.label("heads", [*"abcdefgh"], {*"abcdefgh"}, ""))


def test_a_claim_that_holds_is_said_first_and_its_evidence_folded():
    assert ("holds</strong> Common.</p><details><summary>Evidence</summary>" in boxed("holds",
            ("for", "a")) and "Commonly said" not in boxed("holds", ("for", "a")))


def test_the_sentence_of_the_ledger_comes_before_the_evidence_and_the_whole_correction_stays_in_the_fold():  # noqa: E501
    box = (
        '<div class="tfm-claim" id="claim-a"><p class="tfm-statement"><strong '
        'class="tfm-verdict">imprecise</strong> Common.</p><ul><li><span '
        'class="tfm-kind">rather</span> A long one.</li></ul></div>')
    notebook = {"cells": [code("claim('a')", outputs=[{"data": {"text/html": box}}])]}
    nbdev_cells.prepare(notebook, "", {"a": "True, if `x < 1`."})
    said = notebook["cells"][0]["outputs"][0]["data"]["text/html"]
    assert (
        'imprecise as commonly said; more exactly:</strong> True, if <code>x &lt; 1</code>.</p>'
        '<p class="tfm-common">Commonly '
        'said: Common.</p>' in said and "<details>" in said and "A long one." in said)


def test_the_ledger_and_the_search_say_it_first_too():
    found, entry = (
        {"a": [("chapters/x",
                {"verdict": "imprecise", "lines": [["against", "b"], ["rather", "Better `x`."]]})]},
        {"id": "a", "topic": "t", "verdict": "imprecise", "statement": "Common."})
    box = Ledger.box(None, entry, found)[0].astext()
    assert (box.index("more exactly:</strong> Better <code>x</code>.")
            < box.index("Commonly said: Common.") and "rather" not in box)
    lines = {e["anchor"]: e["line"] for e in findable.claims(ROOT, notebooks(ROOT))}
    assert (lines["claim-decimal-sum"]
            == "holds under a condition. In decimal arithmetic 0.1 + 0.2 equals 0.3; in binary "
               "floating point the sum is off by a rounding error.")


def test_every_claim_that_a_cell_qualifies_has_what_is_true_for_its_first_sentence():
    "On its page, too: the same sentence that the ledger has."
    found = settled(notebooks(ROOT))
    led = {e["id"]: lead(e["verdict"], found[e["id"]][0][1]["lines"] if e["id"] in found
                         else [("rather", e.get("instead"))], e.get("truth"))
           for e in ledger_rules.entries(ROOT) if e["verdict"] != "holds"}
    assert (len(led) > 130 and not {id: said for id, said in led.items()
                                    if not (20 <= len(said) <= 200 and said.endswith(".")
                                            and not said.startswith(("Yes:", "No:")))})


def test_the_code_of_a_figure_lies_beneath_it_and_other_code_above_what_it_prints():
    def cell(html: str, *tags: str) -> nodes.container:
        return nodes.container("", nodes.container("", nodes.Text("code")), nodes.container(
            "", nodes.raw("", html, format="html")), classes=["cell", *tags])
    figure = '<figure class="tfm-figure"></figure>'
    document = new_document("")
    document += [cell(figure, "tag_hide-input"), cell("<p>4</p>", "tag_hide-input"), cell(figure)]
    touches.CodeBelow(document).run()
    assert [each[0].astext() == "code" for each in document.children] == [False, True, True]


def test_further_claims_are_one_fold_and_their_heading_stays_in_sight():
    document, section = new_document(""), nodes.section(ids=["more"])
    section += [nodes.title("", touches.MORE), nodes.paragraph("", "lead"),
                *(nodes.raw("", f'<div class="tfm-claim" id="{n}"></div>', format="html")
                  for n in "ab")]
    document += [nodes.section("", nodes.title("", "Masks"), nodes.paragraph("", "text")), section]
    touches.FoldSection(document).run()
    assert ([child.astext()[:40] for child in section.children[:3]]
            == [touches.MORE, "<details><summary>Show all 2</summary>", "lead"])
    assert (section.children[-1].astext() == "</details>" and len(section.children) == 6
            and len(document[0].children) == 2)


def test_label_before_an_exported_cell_names_the_module_that_it_goes_to():
    _, label, cell, other, _ = prepared(code("#| default_exp heads"), code(
        "#| export\nWIDTH: int = 4\ndef f(): pass\nclass G:\n    x = 1\n_h = 2"),
                                        code("#| export tails\ng = 1"))
    assert "tfmlib.tails.g" in other["source"]
    assert (cell["source"].startswith("WIDTH") and "exported" in cell["metadata"]["tags"]
            and label["cell_type"] == "markdown")
    assert re.findall(r'<a id="(\S+)" href="(\S+)">(\S+)</a>', label["source"]) == [
        (f"tfm-{n}", f"../api/05_heads.html#tfmlib.heads.{n}",
         f"{'tfmlib.heads.' * (n == 'WIDTH')}{n}") for n in ("WIDTH", "f", "G")]


def test_cells_that_direct_are_hidden_and_others_left():
    made = prepared(code("#| default_exp heads"), code("#| hide\nx = 1"),
                    code("x = 1\n# | not a directive"), code(["#| export\n", "import math"]))
    assert ([("remove-cell" in c["metadata"].get("tags", [])) for c in made]
            == [True, True, False, False, False])
    assert [c["source"] for c in made[:3]] == ["", "x = 1", "x = 1\n# | not a directive"]
    assert ('href="../api/05_heads.html#tfmlib.heads"' in made[3]["source"] and made[4]["source"]
            == "import math")


def test_a_name_defined_twice_is_an_anchor_once():
    made = prepared(code("#| default_exp heads"), code("#| export\nf = 1"),
                    code("#| export\nf = 2"))
    assert "".join(c["source"] for c in made).count('id="tfm-f"') == 1


def test_what_programs_read_is_not_on_the_page():
    outputs = [{"output_type": "display_data", "metadata": {},
                "data": {MIME: {}, "text/html": "<b>"}}, {"output_type": "stream", "text": "x"}]
    [cell] = prepared(code("f()", outputs=outputs))
    assert cell["outputs"][0]["data"] == {"text/html": "<b>"} and cell["outputs"][1]["text"] == "x"


@pytest.mark.parametrize("name, notebook", notebooks(ROOT).items())
def test_no_directive_is_left(name, notebook):
    notebook = deepcopy(notebook)
    nbdev_cells.prepare(notebook, "../api/05_heads.html")
    shown = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert not [c["id"] for c in shown if re.search(r"^\s*#\s*\|", "".join(c["source"]), re.M)]
    anchors = re.findall(r'id="(tfm-\w+)"',
                         "".join("".join(c["source"]) for c in notebook["cells"]
                                 if c["id"].endswith("-label")))
    assert len(anchors) == len(set(anchors))


# --- the reference --------------------------------------------------------------------------------

SOURCE = '''@torch.no_grad()
def blend(
    self, q: Tensor, k: Tensor,  # queries | keys (B, T, D)
    *rest: float,                # more
    mask: Tensor | None = None,  # True = may look
    seed=0,
) -> Tensor:                     # *(B, T, D)*
    "Mix with `softmax(q*k)` where a_b < 1."
'''


def test_a_function_is_described():
    node = ast.parse(SOURCE).body[0]
    notes = reference.comments(SOURCE)
    assert reference.call(node, "blend") == "blend(q, k, *rest, mask=None, seed=0)"
    assert reference.parameters(node, notes) == [("q, k", "Tensor", "queries | keys (B, T, D)"),
                                                 ("rest", "float", "more"),
                                                 ("mask", "Tensor | None", "True = may look"),
                                                 ("returns", "Tensor", "*(B, T, D)*")]
    text = reference.describe(node, "blend", SOURCE, notes)
    assert (r"Mix with `softmax(q*k)` where a\_b \< 1." in text
            and "`mask` `Tensor | None`\n: True = may look" in text and r"\*(B, T, D)\*" in text)


def test_classes_and_constants_are_described():
    source = (
        'class Shape:\n    "A shape."\n    width: int = 4  # features\n    def area(self): "Its '
        'area."\n    def _own(self): pass\nLIMIT = [1,\n  2]')
    shape, limit = ast.parse(source).body
    text = reference.describe(shape, "Shape", source, reference.comments(source))
    assert ("class Shape" in text and "`width` `int`\n: features" in text
            and r"- `area()` Its area." in text and "_own" not in text)
    assert "LIMIT = [1, 2]" in reference.describe(limit, "LIMIT", source, {})
    long = f"NAMES = {[f'name {n}' for n in range(99)]}"
    assert (reference.describe(ast.parse(long).body[0], "NAMES", long,
                               {}).startswith("```text\nNAMES = ['name 0'")
            and "```python" in reference.describe(limit, "LIMIT", source, {}))


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(book):
    """What the modules themselves call public is what the pages show: every chapter that writes
    a module has one (api/NN_name.md, and in _toc.yml)."""
    overview = (book / "about/reference.html").read_text()
    books = rules.cells(ROOT)
    for module, owner in rules.owners(books).items():
        # a page in depth that only reads
        if not any(cell.exported for cell in books[owner]): continue
        # also of a second page in depth, NN_name_topic
        page = f"api/{chapter(owner, list(books))}.html"
        soup = BeautifulSoup((book / page).read_text(), "html.parser")
        ids = {e["id"] for e in soup.find_all(id=True)}
        tree = ast.parse((ROOT / f"tfmlib/{module.replace('.', '/')}.py").read_text())
        [public] = [ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign)
                    and ast.unparse(n.targets[0]) == "__all__"]
        assert public and {f"tfmlib.{module}.{name}" for name in public} <= ids
        assert all(f'href="../{page}#tfmlib.{module}.{name}"' in overview for name in public)


@pytest.mark.slow
def test_the_book_is_whole(book):
    assert built.faults(ROOT, book) == []


# --- claims ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("change, said", [
    ({}, ""), ({"id": "other"}, "no stored output settles it"),
    ({"verdict": "wrong"}, "finds «holds», the ledger says «wrong»"),
    ({"citation": "vaswani2017"}, "settled 2 times"),
    ({"id": "other", "citation": "vaswani2017"}, "")])
def test_entries_that_are_not_settled_once(change, said):
    output = {"data": {MIME: {"id": "a", "verdict": "holds"},
                       "text/plain": "[holds] A.\n  for: always"}}
    found = settled({"chapters/04_x": {"cells": [code("claim()", outputs=[output])]}})
    assert found["a"][0][1]["lines"] == [["for", "always"]]
    assert (said in (fault := faults({"id": "a", "verdict": "holds"} | change, found))
            and bool(said) == bool(fault))


@pytest.mark.slow
def test_every_claim_has_its_box(book):
    html = (book / "about/claims.html").read_text()
    shown = dict(re.findall(r'id="ledger-([\w-]+)" data-verdict="([^"]+)"', html))
    assert shown == {e["id"]: e["verdict"] for e in ledger_rules.entries(ROOT)}
    counts = dict(re.findall(r'<th scope="row">([^<]+)</th><td>(\d+)</td>', html))
    assert ({v: int(counts[v]) for v in VERDICTS}
            == {v: list(shown.values()).count(v) for v in VERDICTS})


@pytest.mark.browser
@pytest.mark.slow
def test_claims_are_filtered_by_keyboard(visiting):
    page = visiting("about/claims.html")
    every = len(ledger_rules.entries(ROOT))
    seen = lambda: page.locator(".tfm-claim[data-verdict]:visible")
    assert (seen().count() == every and page.locator(".tfm-filter output").inner_text()
            == f"{every} of {every} claims shown")
    page.get_by_label("Verdict").focus()
    page.keyboard.press("w")                                       # picks "wrong"
    ordered = sorted(ledger_rules.entries(ROOT), key=lambda e: (e["chapter"] == "00", e["chapter"],
            e["topic"]))
    wrong = [e["id"] for e in ordered if e["verdict"] == "wrong"]
    assert seen().evaluate_all("boxes => boxes.map(b => b.id)") == [f"ledger-{id}" for id in wrong]
    assert (page.locator("output[aria-live=polite]").inner_text()
            == f"{len(wrong)} of {every} claims shown")
    page.reload()                                                  # the choice is in the address
    assert seen().count() == len(wrong)


@pytest.mark.browser
@pytest.mark.slow
def test_without_scripts_every_claim_shows(visiting):
    page = visiting("about/claims.html", java_script_enabled=False)
    assert (page.locator(".tfm-claim[data-verdict]:visible").count()
            == len(ledger_rules.entries(ROOT)))
    assert page.locator(".tfm-filter:visible").count() == 0


# --- the build ------------------------------------------------------------------------------------

BLOCK = """import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tfmlib", "numpy"): raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.slow
def test_build_needs_no_torch_and_links_to_sources(tmp_path, monkeypatch):
    """A book whose address is known, with a claim of history, built where torch, numpy and
    tfmlib cannot be imported."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block/sitecustomize.py").write_text(BLOCK)
    root = small(tmp_path / "book")
    replace("_config.yml", 'url: ""', 'url: "https://github.com/example/book"')(root)
    entry = {"id": "first-paper", "chapter": "08", "topic": "history",
             "statement": "It was first `one`.", "verdict": "wrong", "instead": "It was two.",
             "citation": "vaswani2017", "settles": []}
    (root / "tfmlib/assets/claims.yml").write_text(
        yaml.safe_dump([*ledger_rules.entries(root), entry], allow_unicode=True))
    (root / "index.md").write_text((root / "index.md").read_text() + "\n```{bibliography}\n```\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "block"))
    assert (subprocess.run([sys.executable, "-c", "import torch"],
                           capture_output=True).returncode != 0)
    status, log = build(root)
    assert status == 0, log
    page = (root / "_build/html/api/00_proof.html").read_text()
    source = (root / "tfmlib/workbench/claims.py").read_text()
    line = source[:source.index("def verdict_of(")].count("\n") + 1
    assert (
        f'href="https://github.com/example/book/blob/main/tfmlib/workbench/claims.py#L{line}"' in page and 'href="../chapters/00_proof.html#tfm-verdict_of"' in page)  # noqa: E501
    claims = (root / "_build/html/about/claims.html").read_text()
    box = re.search(r'id="ledger-first-paper".*?</div>', claims, re.S)[0]
    assert ("It was first <code>one</code>." in box and "It was two." in box
            and re.search(r'href="../index.html#id\d+"[^>]*Vaswani', box))


# --- pages ----------------------------------------------------------------------------------------

def test_pages_of_a_toc(tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "root: index\nparts:\n- chapters:\n  - file: a/b.md\n    sections:\n    - file: c\n- "
        "chapters:\n  - file: d.ipynb\n  - url: https://example.org\n")
    assert toc_pages(tmp_path / "_toc.yml") == ["index", "a/b", "c", "d"]


def test_notebooks_in_the_books_order():
    names = list(notebooks(ROOT, ROOT / "_toc.yml"))
    assert (names == [p for p in toc_pages(ROOT / "_toc.yml") if p.startswith("chapters/")]
            and set(names) == set(notebooks(ROOT)))
    assert title(json.loads((ROOT / f"{names[0]}.ipynb").read_text())) != "untitled"


def test_every_extension_is_used_and_short():
    "Each is readable in a minute, and named in _config.yml or imported by one that is."
    named = set(yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["local_extensions"])
    files = {p.stem: p for p in Path(ROOT / "extensions").glob("*.py")}
    assert (named <= set(files) and set(files) - named
            == {n for n, p in files.items() if "def setup(" not in p.read_text()})
    def statements(path):
        return sum(isinstance(n, ast.stmt) for n in ast.walk(ast.parse(path.read_text())))
    assert max(map(statements, files.values())) <= 125


# --- numbers --------------------------------------------------------------------------------------

def test_equations_and_exercises_are_numbered_page_by_page(book):
    for path in sorted((book / "chapters").rglob("[0-9][0-9]_*.html")):
        page, chapter = path.read_text(encoding="utf-8"), int(path.name[:2])
        equations = [int(n) for n in re.findall(r'class="eqno">\((\d+)\)', page)]
        exercises = re.findall(r'class="caption-number">Exercise ([\d.]+)', page)
        assert equations == list(range(1, len(equations) + 1)), path.name
        assert exercises == [f"{chapter}.{n}" for n in range(1, len(exercises) + 1)], path.name
        assert exercises or path.parent.name != "practice"


# --- texts that cells have glued ------------------------------------------------------------------

@pytest.mark.slow
def test_glued_texts_stand_as_they_were_glued(book):
    "Also 1.60, of which myst-nb makes 1.6."
    used, lost = 0, []
    for name in notebooks(ROOT):
        nb, page = (nbformat.read(ROOT / f"{name}.ipynb", as_version=4),
                    (book / f"{name}.html").read_text(encoding="utf-8"))
        texts, pasted = (colab.glued(nb),
                         set(map(html.unescape,
                                 re.findall(r'<span class="pasted-text">(.*?)</span>', page))))
        asked = {key for c in nb.cells if c.cell_type == "markdown"
                 for key in re.findall(r"\{glue:text\}`([^`:]+)`", c.source)}
        used += len(asked)
        lost += [(name, key, texts[key]) for key in sorted(asked) if texts[key] not in pasted]
    assert used > 300 and lost == []


def test_no_notebook_stores_a_widget():
    "A widget's id is random and its model is gone: nothing to store."
    for path in notebook_files(ROOT / "chapters"):
        assert "application/vnd.jupyter.widget-" not in path.read_text(), f"{path.name}: run tools/execute.py on it"  # noqa: E501
