"""Planted defects: a copy of the book passes; with one thing wrong in it, it does not, and the
message names the thing.

Rules are tried on a copy of the whole book, the build and the notebooks' outputs on a small one
(the chapter 00_proof, the claims, the reference). Defects of practice pages are planted in
`test_exercises.py`, of formulas in `test_look.py` too.
"""
import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import built
import kills
import ledger_rules
import pytest
import rules
import yaml
from conftest import ROOT
from sound import FETCHED, Page

# ten times as fast, where it was built
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SKIP = ignore_patterns("__pycache__", ".ipynb_checkpoints", "text", "*.safetensors")
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


def copied(target: Path, *parts: str) -> Path:
    "These files and folders of the checkout, in `target`."
    for part in parts:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            copytree(ROOT / part, target / part, ignore=SKIP, dirs_exist_ok=True)
        else: copy(ROOT / part, target / part)
    return target


def write(file: Path, text: str) -> None:
    "Write a file anew: in a tree of links, the original stays as it is."
    file.unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")


def edit(root: Path, name: str, change) -> None:
    "Load the notebook `name`, let `change` have its cells by id (and the list), store it."
    file = root / f"{name}.ipynb"
    book = json.loads(file.read_text(encoding="utf-8"))
    change({cell["id"]: cell for cell in book["cells"]}, book["cells"])
    write(file, json.dumps(book, ensure_ascii=False, indent=1) + "\n")


def add(source: str, id: str = "planted", outputs: list = (), tags: list = (), prose: bool = True):
    "A change that appends a code cell, with a sentence above it."
    lead = {"cell_type": "markdown", "id": f"{id}-lead", "metadata": {}, "source": "Look at this:"}
    cell = {"cell_type": "code", "id": id, "metadata": {"tags": list(tags)}, "source": source,
            "outputs": list(outputs), "execution_count": None}
    return lambda cells, every: every.extend([lead, cell] if prose else [cell])


def shows(**data) -> list[dict]:
    return [{"output_type": "display_data", "metadata": {}, "data": data}]


def replace(file: str, old: str, new: str):
    "A change of the tree: `old` in a file becomes `new`."
    def change(root: Path):
        text = (root / file).read_text(encoding="utf-8")
        assert old in text, f"{file} has no {old!r} to spoil"
        write(root / file, text.replace(old, new, 1))
    return change


def spoil(name: str, change): return lambda root: edit(root, name, change)


# --- the rules ------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return copied(tmp_path_factory.mktemp("whole"), "chapters", "tfmlib", "tools", "pyproject.toml",
                  "README.md", "references.bib", "tests/claims_map.yml")


def loaded(file: Path) -> list[dict]: return yaml.load(file.read_text(encoding="utf-8"), LOADER)
# which is YAML too
def dumped(entries: list[dict]) -> str: return json.dumps(entries, ensure_ascii=False)


def drop(entry_id: str):
    "A change that takes an entry out of the ledger."
    def change(root: Path):
        file = root / "tfmlib/assets/claims.yml"
        write(file, dumped([e for e in loaded(file) if e["id"] != entry_id]))
    return change


def amend(entry_id: str, **fields):
    def change(root: Path):
        file = root / "tfmlib/assets/claims.yml"
        write(file, dumped([e | fields if e["id"] == entry_id else e for e in loaded(file)]))
    return change


def second(cells, every):
    every.append(json.loads(json.dumps(cells["claim-example"])) | {"id": "again"})


def stored_verdict(cells, every):
    cells["claim-example"]["outputs"][0]["data"]["application/vnd.tfmlib.claim+json"][
        "verdict"] = "holds"


def two(cells, every): add("a = 1", "first")(cells, every); add("b = 2", prose=False)(cells, every)


def rename(cells, every): cells["default-exp"]["source"] = "#| default_exp workbench.figures"


PROOF, CHAPTER = "chapters/00_proof", "chapters/04_attention"
LONG = ("#| export\ndef longest(x):\n" + "\n".join(f"    x = x + {i}" for i in range(30))
        + "\n    return x")
PLANTED = {
    "forward import, in a cell": ("order",
                                  spoil(PROOF, add("from tfmlib.workbench.training import train")),
                                  "chapters/00_proof «planted»: imports tfmlib.workbench.training, "
                                  "which chapters/00_training writes"),
    "forward import, inside a function": ("order",
                                          spoil(PROOF,
                                                add("def f():\n    from tfmlib import attention")),
                                          "«planted»: imports tfmlib.attention.core, which "
                                          "chapters/04_attention"),
    "forward import, from practice": ("order",
                                      spoil(CHAPTER, add("import tfmlib.practice.attention")),
                                      "chapters/04_attention «planted»: imports "
                                      "tfmlib.practice.attention"),
    "forward import, in a module": ("order", replace("tfmlib/workbench/figures.py", "\n# %% auto",
            "\nfrom .claims import claim\n# %% auto"),
                                    "tfmlib/workbench/figures.py: imports tfmlib.workbench.claims"),
    "import of everything": ("order", spoil(CHAPTER, add("from tfmlib.workbench.figures import *")),
                             "«planted»: imports * from workbench.figures"),
    "import of nobody's module": ("order", spoil(CHAPTER, add("from tfmlib.magic import wand")),
                                  "«planted»: imports tfmlib.magic, which no notebook writes"),
    "export below a code line": ("directive_lines", spoil(PROOF, add("x = 1\n#| export")),
                                 "«planted»: «#| export» stands below"),
    "an unknown directive": ("directive_lines", spoil(PROOF, add("#| exporti\nx = 1")),
                             "«planted»: #| exporti is not a directive"),
    "another chapter's module": ("directive_lines", spoil(PROOF, rename),
                                 "tfmlib.workbench.figures: 2 notebooks write it"),
    "a module of another chapter's package": ("directive_lines",
                                              spoil(CHAPTER, add("#| export heads.other\nx = 1")),
                                              "«planted»: it exports to heads.other; expected a "
                                              "module of the package attention"),
    "a second module of the workbench": ("directive_lines",
                                         spoil(PROOF, add("#| export other\nx = 1")),
                                         "«planted»: it exports to other"),
    "modules that import one another": ("circles", replace("tfmlib/flash_attention_gpu/config.py",
            "\n# %% auto", "\ndef late():\n    from .gluon import start_gluon\n# %% auto"),
                                        "tfmlib.flash_attention_gpu.config: imports "
                                        "tfmlib.flash_attention_gpu.gluon, and is imported from there"),  # noqa: E501
    "code without prose": ("led_in", spoil(PROOF, two),
                           "«planted»: no prose leads up to this cell"),
    "long cells": ("shape",
                   spoil(PROOF,
                         lambda cells, every: [add("\n".join(["x = 1"] * 13), f"long-{i}")(cells,
                                 every) for i in range(30)]),
                   "chapters/00_proof: a middling cell has 13"),
    "a line that its box cuts off": ("columns", spoil(CHAPTER, add(f"x = '{84 * 'y'}'")),
                                     "«planted»: a visible line of 90 characters"),
    "outputs that nobody compares": ("shape",
                                     spoil(PROOF,
                                           lambda cells, every: [add("assert 1", f"ignored-{i}",
                                                   tags=["nbval-ignore-output"])(cells, every)
                                                   for i in range(30)]),
                                     "are not compared; expected at most 15 %"),
    "an uncompared cell that asserts nothing": ("shape",
                                                spoil(PROOF,
                                                        add("1", tags=["nbval-ignore-output"])),
                                                "«planted»: its output is not compared, and it "
                                                "asserts nothing"),
    "a fold that only says «Code»": ("folds", spoil(CHAPTER, add("x = 1", tags=["hide-input"])),
                                     "«planted»: its fold has no name"),
    "a number glued in view": ("folds", spoil(CHAPTER, add("glue('x', '1')")),
                               "«planted»: glues in view"),
    "a cell that was not run": ("outputs", spoil(PROOF, add("(1, seconds)")),
                                "«planted»: ends in a value, and no output is stored"),
    "a stored error": ("outputs",
                       spoil(PROOF,
                             add("f()",
                                 outputs=[{"output_type": "error", "ename": "NameError",
                                           "evalue": "f", "traceback": []}])),
                       "«planted»: an error is stored, NameError"),
    "a rounding error that is shown": ("digits",
                                       spoil(PROOF,
                                             add("gap",
                                                 outputs=[{"output_type": "stream",
                                                         "name": "stdout", "text": "7e-07"}])),
                                       "«planted»: shows 7e-07"),
    "a rounding error that is glued": ("digits",
                                       spoil(PROOF,
                                             add("glue('gap', '2.1e-15')",
                                                 outputs=[{"output_type": "display_data",
                                                         "metadata": {},
                                                         "data": {
                                                             "application/papermill.record/text/plain": "'2.1e-15'"}}])), "«planted»: shows 2.1e-15"),  # noqa: E501
    "every digit of a float": ("digits",
                               spoil(PROOF,
                                     add("norm",
                                         outputs=[{"output_type": "execute_result", "metadata": {},
                                                   "execution_count": None,
                                                   "data": {"text/plain": "(1, 0.70710678)"}}])),
                               "«planted»: shows 0.70710678"),
    "a distance of nothing": ("exact", spoil(PROOF, add("claim('x', [gap(a, b) == 0])")),
                              "«planted»: «gap(a, b) == 0» asks"),
    "a difference of nothing": ("exact", spoil(PROOF, add("0 == (x - y).sum()")),
                                "«planted»: «0 == (x - y).sum()» asks"),
    "tensors that are equal": ("exact", spoil(PROOF, add("torch.equal(x @ y, z)")),
                               "«planted»: «torch.equal(x @ y, z)» asks"),
    "an excuse without a reason": ("exact",
                                   spoil(PROOF, add("torch.equal(x @ y, z)   # exact: yes")),
                                   "«planted»: «torch.equal(x @ y, z)» asks"),
    "a long function": ("size", replace("tfmlib/workbench/claims.py", "\ndef glue(",
                                        "\n" + LONG + "\n\ndef glue("),
                        "tfmlib.workbench.claims.longest: 31 statements"),
    "nine parameters": ("size", replace("tfmlib/workbench/claims.py", "\ndef glue(",
                                        "\ndef many(a, b, c, d, e, f, *, g, h, i): pass\n\ndef glue("), "tfmlib.workbench.claims.many: 9 parameters"),  # noqa: E501
    "a long kernel": ("size", replace("tfmlib/workbench/claims.py", "\ndef glue(", "\n@triton.jit\n"
                                      + LONG + 31 * "\n    x = 1" + "\n\ndef glue("),
                      "tfmlib.workbench.claims.longest: 62 statements; expected about 15, at most 40"),  # noqa: E501
    "a long module": ("size", replace("tfmlib/workbench/claims.py", "\ndef glue(",
                                      "\nx = 1" * 420 + "\n\ndef glue("),
                      "tfmlib.workbench.claims: "),
    "a module edited by hand": ("export",
                                replace("tfmlib/workbench/claims.py", "if true_when: return",
                                        "if true_when: return  "),
                                "tfmlib/workbench/claims.py: not what the notebooks give"),
    "an index edited by hand": ("export",
                                replace("tfmlib/_modidx.py", "proof.html#claim",
                                        "proof.html#chaim"),
                                "tfmlib/_modidx.py: not what the notebooks give"),
    "a module whose chapter is gone": ("export",
                                       lambda root: (root / "tfmlib/gone.py").write_text(
                                           "# AUTOGENERATED! DO NOT EDIT!\n"),
                                       "tfmlib/gone.py: not what the notebooks give"),
    "a statement that nothing takes up": ("taken_up", drop("minus-1e9"),
                                          "000-30: nothing in the ledger takes it up"),
    "a statement taken up twice": ("taken_up", amend("decimal-sum", settles=["000-30"]),
                                   "000-30: taken up 2 times"),
    "another chapter's statement": ("taken_up", amend("decimal-sum", settles=["000-01"]),
                                    "claim decimal-sum: takes up 000-01, which belongs to chapter 01"),  # noqa: E501
    "a false verdict in the ledger": ("verdicts", amend("decimal-sum", verdict="holds"),
                                      "claim decimal-sum: chapters/00_proof finds «holds under a "
                                      "condition», the ledger says «holds»"),
    "a false verdict in a stored output": ("verdicts", spoil(PROOF, stored_verdict),
                                           "claim decimal-sum: chapters/00_proof finds «holds», "
                                           "the ledger says"),
    "a claim that no cell settles": ("verdicts",
                                     spoil(PROOF,
                                           lambda cells, every: every.remove(
                                               cells["claim-example"])),
                                     "claim decimal-sum: no stored output settles it"),
    "a claim that two cells settle": ("verdicts", spoil(PROOF, second),
                                      "claim decimal-sum: settled 2 times"),
    "a box that the ledger does not know": ("verdicts", drop("decimal-sum"),
                                            "claim decimal-sum: settled in chapters/00_proof, and "
                                            "not in the ledger"),
    "a source that the bibliography lacks": ("form", amend("decimal-sum", citation="nobody1999"),
                                             "claim decimal-sum: cites nobody1999"),
    "a true sentence that begins with a pronoun": (
        "form", amend("decimal-sum", truth="It holds where the sum is exact in binary."),
        "claim decimal-sum: what is true begins with a pronoun"),
    "a condition without its sentence": (
        "form", amend("decimal-sum", truth="If the sum is exact in binary; otherwise not."),
        "claim decimal-sum: «If the sum is exact in binary;» answers a sentence"),
    "an imprecise claim without a better one": ("form", amend("decimal-sum", verdict="imprecise"),
                                                "claim decimal-sum: imprecise, and no amended "
                                                "statement"),
    "an invented verdict": ("form", amend("decimal-sum", verdict="mostly"),
                            "claim decimal-sum: no such verdict, «mostly»"),
    "typed evidence": ("evidence", spoil(PROOF, add('claim("decimal-sum", true_when=[True])')),
                       "chapters/00_proof: claim decimal-sum: true_when holds «True»"),
    "too few claims": ("number",
                       lambda root: [drop(e["id"])(root) for e in ledger_rules.entries(root)
                                     if e["chapter"] == "04"], "chapter 04: 0 claims"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_broken_rule_is_noticed(what, whole, tmp_path):
    """In a tree of links to the untouched copy. (That the book itself breaks no rule,
    `test_order.py` and `test_claims.py` show.)"""
    name, plant, said = PLANTED[what]
    copytree(whole, tmp_path / "book", copy_function=os.link)
    plant(tmp_path / "book")
    faults = (rules.RULES | ledger_rules.RULES)[name](tmp_path / "book")
    assert any(said in fault for fault in faults), faults


def test_every_rule_is_tried():
    assert {name for name, *_ in PLANTED.values()} == set(rules.RULES | ledger_rules.RULES)


# --- pages ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("html, said", [
    ('<img src="a/dot.png">', "the picture dot.png has no alt text"),
    ('<img src="a/dot.png" alt="">', "the picture dot.png has no alt text"),
    ('<img src="a/dot.png" alt="a/dot.png"/>', "the picture dot.png has no alt text"),
    ('<svg id="bare"><path d="M0 0"/></svg>', "a drawing (svg bare) without a text"),
    ('<svg role="img" aria-label=" "></svg>', "a drawing (svg) without a text"),
    ('<script src="https://example.org/a.js"></script>',
     "<script> loads from another site: https://example.org/a.js"),
    ('<script>import x from "https://example.org/a.js"</script>',
     "loads from another site: https://example.org/a.js"),
    ('<link rel="stylesheet" href="//example.org/a.css">',
     "<link> loads from another site: //example.org/a.css"),
    ('<style>@font-face { src: url("https://example.org/a.woff2") }</style>',
     "loads from another site: https://example.org/a.woff2"),
    ('<p style="background: url(http://example.org/a.png)">',
     "loads from another site: http://example.org/a.png"),
    ('<img alt="A dot." src="http://example.org/a.png">', "<img> loads from another site"),
    ('<img alt="A dot." src="a.png" srcset="a.png 1x, https://example.org/b.png 2x">',
     "https://example.org/b.png"),
    ('<iframe src="https://example.org"></iframe>', "<iframe> loads from another site"),
    ('<figure id="f"></figure><figure id="f"></figure>', "the id «f» stands on this page twice")])
def test_fault_of_a_page_is_seen(html, said):
    faults = [fault for _, fault in Page(html).faults]
    assert len(faults) == 1 and said in faults[0]


@pytest.mark.parametrize("html", [
    '<a href="https://example.org">out</a><link rel="canonical" href="https://example.org">',
    '<img src="dot.png" alt="A red dot.">',
    '<svg role="img" aria-label="A dot."><defs><svg></svg></defs></svg>',
    '<svg><title>A dot</title></svg>', '<svg aria-hidden="true"/>',
    '<span aria-hidden="true"><svg></svg></span>', '<svg xmlns="http://www.w3.org/2000/svg" '
                                                   'role="img" aria-label="A dot."><image '
                                                   'href="data:image/png;base64,A"/></svg>',
    '<p>See import x from "https://example.org"</p>'])
def test_sound_page_passes(html):
    assert Page(html).faults == []


def test_styles_and_scripts_are_read():
    assert (FETCHED.findall("a { src: url( //example.org/a ) } import('https://example.org/b.js')")
            == ["//example.org/a", "https://example.org/b.js"])
    assert (FETCHED.findall('const ns = "http://www.w3.org/2000/svg"; // from https://example.org')
            == [])


# --- the build ------------------------------------------------------------------------------------

TOC = {"format": "jb-book", "root": "index", "chapters": [{"file": "chapters/00_proof"},
        {"file": "about/claims"},
        {"file": "about/reference", "sections": [{"file": "api/00_proof"}]}]}


def small(target: Path) -> Path:
    "A book of one chapter, with its claims and its reference."
    copied(target, "extensions", "inpage", "tfmlib", "tools", "tests/nbval.cfg",
           "chapters/00_proof.ipynb", "_config.yml", "references.bib", "about/claims.md",
           "api/00_proof.md", "pyproject.toml")
    entries = [e for e in ledger_rules.entries(target) if e["chapter"] == "00"]
    (target / "tfmlib/assets/claims.yml").write_text(yaml.safe_dump(entries, allow_unicode=True),
            encoding="utf-8")
    (target / "index.md").write_text(
        "# A small book\n\nIt has one chapter, its claims and its reference, and is there to be "
        "spoilt by the tests.\n")
    (target / "about/reference.md").write_text(
        "# All names\n\nThe book's own page leads to pages that are not "
        "here.\n\n```{tfmlib-reference}\n```\n")
    (target / "_toc.yml").write_text(yaml.safe_dump(TOC))
    return target


def build(root: Path) -> tuple[int, str]:
    """Build strictly, as `make book` does: exit status and log. (To a file: KaTeX's server may
    outlive a failed build and hold a pipe open.)"""
    with (root / "build.log").open("w+") as log:
        jupyter_book = Path(sys.executable).with_name("jupyter-book")
        status = subprocess.run([jupyter_book, "build", ".", "-W", "-n", "--keep-going", "-q"],
                                cwd=root, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log).returncode
        log.seek(0)
        return status, re.sub(r"\x1b\[[\d;]*m", "", log.read())


@pytest.fixture(scope="module")
def sound_book(tmp_path_factory) -> Path:
    "The small book, built; it is sound and whole."
    root = small(tmp_path_factory.mktemp("sound"))
    status, log = build(root)
    assert status == 0 and "WARNING" not in log, log
    assert built.faults(root, root / "_build/html") == []
    return root


FAULTY = """# A page with faults

![](dot.png)

<svg id="bare" viewBox="0 0 1 1"></svg>

<script src="https://example.org/spy.js"></script>

<figure id="same"></figure><figure id="same"></figure>

{cite}`nobody1999`

[nowhere](missing.md)
"""
SAID = {
    "alt text, Markdown": "faulty.md: WARNING: the picture dot.png has no alt text",
    "alt text, a notebook's picture": "00_proof.ipynb: WARNING: the picture",
    "alt text, a notebook's drawing": "00_proof.ipynb: WARNING: a drawing (svg planted-svg) "
                                      "without a text",
    "remote script": "faulty.md: WARNING: <script> loads from another site: "
                     "https://example.org/spy.js",
    "remote font in a style sheet": "_static/tfm/planted.css loads from another site: "
                                    "https://example.org/font.woff2",
    "id twice": "faulty.md: WARNING: the id «same» stands on this page twice",
    "unknown source": "could not find bibtex key \"nobody1999\"",
    "link to no page": "missing.md",
}


@pytest.fixture(scope="module")
def faulty_book(sound_book, tmp_path_factory) -> tuple[int, str]:
    "The small book with faults in pages, outputs and styles: exit status and log."
    root = small(tmp_path_factory.mktemp("faulty"))
    (root / "faulty.md").write_text(FAULTY)
    (root / "dot.png").write_bytes(DOT)
    (root / "extensions/theme/static/tfm/planted.css").write_text(
        "@font-face { src: url(https://example.org/font.woff2) }")
    (root / "_toc.yml").write_text(
        yaml.safe_dump(TOC | {"chapters": [*TOC["chapters"], {"file": "faulty"}]}))
    picture = shows(**{"image/png": base64.b64encode(DOT).decode(), "text/plain": "a dot"})
    drawing = shows(**{"text/html": '<figure><svg id="planted-svg"></svg></figure>',
                       "text/plain": "a drawing"})
    edit(root, PROOF, add("draw()", outputs=picture + drawing))
    return build(root)


@pytest.mark.slow
@pytest.mark.parametrize("what", SAID)
def test_faulty_page_fails_the_build(what, faulty_book):
    status, log = faulty_book
    assert status != 0 and SAID[what] in log, log


# the build says so in the same way as of the pages above
@pytest.mark.whole
@pytest.mark.parametrize("what, plant, said", [
    ("formula",
     spoil(PROOF,
           lambda cells, every: cells["title"]["source"].append("\n\nA bad formula: $\\frac{1}{$")),
     "KaTeX cannot set this formula"),
    ("a claim that no output settles",
     spoil(PROOF, lambda cells, every: cells["claim-example"].update(outputs=[])),
     "claim decimal-sum: no stored output settles it"),
    ("a false verdict", amend("decimal-sum", verdict="wrong"),
     "claim decimal-sum: chapters/00_proof finds «holds under a condition», the ledger says «wrong»")],  # noqa: E501
    ids=["formula", "no output", "false verdict"])
def test_defect_fails_the_build(what, plant, said, sound_book, tmp_path):
    plant(root := small(tmp_path))
    status, log = build(root)
    assert status != 0 and said in log, log


@pytest.mark.slow
@pytest.mark.parametrize("what, plant, said", [
    ("not built", lambda root: (root / "_build/html/about/claims.html").unlink(),
     "about/claims: in the table of contents, but not built"),
    ("empty",
     lambda root: (root / "_build/html/about/claims.html").write_text("<html><main></main></html>"),
     "about/claims.html: built, but empty"),
    ("not in the toc", lambda root: copied(root, "chapters/04_attention.ipynb"),
     "chapters/04_attention: a notebook that is not in the table of contents"),
    ("broken link", replace("_build/html/about/claims.html", "#claim-decimal-sum",
                            "#claim-decimal-some"),
     "about/claims.html: ../chapters/00_proof.html#claim-decimal-some leads to no such place")],
    ids=["not built", "empty", "not in the toc", "broken link"])
def test_missing_page_is_noticed(what, plant, said, sound_book, tmp_path):
    copytree(sound_book, tmp_path / "book")
    plant(tmp_path / "book")
    assert any(said in fault for fault in built.faults(tmp_path / "book",
            tmp_path / "book/_build/html"))


# --- stored outputs -------------------------------------------------------------------------------

def proved(root: Path) -> subprocess.CompletedProcess:
    "The proof's stage `notebooks`, in a copy of the book that stands in for the wheel."
    (root / "build/proof").mkdir(parents=True, exist_ok=True)
    if not (root / "build/proof/site").exists(): (root / "build/proof/site").symlink_to(root)
    return subprocess.run([sys.executable, "tools/prove.py", "notebooks"], cwd=root,
                          capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_wrong_stored_output_is_noticed(tmp_path):
    root = small(tmp_path)
    def wrong(cells, every):
        cells["verdict-four"]["outputs"][0]["data"]["text/plain"] = (
            "['holds', 'holds', 'imprecise', 'wrong']")
    edit(root, PROOF, wrong)
    done = proved(root)
    # the others of the same run are as they are stored
    passed = re.search(r"1 failed, (\d+) passed", done.stdout)
    assert (done.returncode != 0 and passed and int(passed[1]) > 10
            and "['holds', 'holds', 'imprecise', 'wrong']" in done.stdout), done.stdout


# --- exercises ------------------------------------------------------------------------------------

def test_checker_that_accepts_a_wrong_answer_is_noticed(tmp_path):
    sys.path.insert(0, str(ROOT / "tests/fixtures"))
    import practice
    page = practice.notebook()
    assert kills.faults(kills.verdicts(practice.write(page, tmp_path / "99_lists.ipynb"))) == []
    checker = next(cell for cell in page.cells if cell.id == "largest-checker")
    checker.source = checker.source.replace("expect(attempt(values), values.max())",
                                            "attempt(values)")
    faults = kills.faults(kills.verdicts(practice.write(page, tmp_path / "99_lists.ipynb")))
    assert any("accepts the wrong answer takes_the_last" in fault for fault in faults)
