"""The Colab copies: every MyST construct resolves, nothing raw is left, and the set-up cell
installs the library."""
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import colab
import myst
import nbformat
import pytest
from conftest import ROOT
from copies import repository as made_repository
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pages import notebook_files

NOTEBOOKS = notebook_files(ROOT / "chapters")
BIB = """
@inproceedings{vaswani2017, title={Attention}, author={Vaswani, Ashish and Shazeer, Noam and Parmar, Niki}, year={2017}, url={https://example.org/v}}
@article{jain2019, title={Attention is not}, author={Jain, Sarthak and Wallace, Byron C.}, year={2019}, doi={10.1/x}}
@misc{graves2013, title={Sequences}, author={Graves, Alex}, year={2013}, eprint={1308.0850}, archivePrefix={arXiv}}
@misc{nowhere, title={Lost}, author={van der Berg, Anna}, year={1999}}
"""  # noqa: E501
OTHER = """
# 2 · Other

$$
y = 2
$$ (eq-other)

(there)=
## The *other* place

```{exercise} Sum
:label: ex-sum
Add.
```
"""
PAGE = """
# 1 · Page

$$
x = 1
$$ (eq-first)

(here)=
## Here

```{exercise} Mix
:label: ex-mix
Mix.
```
"""
# what the chapter says, what the copy says
RESOLVED = [
    ("The loss is {glue:text}`loss`.", "The loss is 3.2."),
    ("{glue:text}`ratio:.2f` times", "1.23 times"),
    ("{cite:p}`vaswani2017,jain2019`", "([Vaswani et al. 2017](https://example.org/v); [Jain & "
                                       "Wallace 2019](https://doi.org/10.1/x))"),
    ("{cite:p}`graves2013`", "([Graves 2013](https://arxiv.org/abs/1308.0850))"),
    ("{cite:t}`nowhere` said", "van der Berg (1999) said"),
    ("by {eq}`eq-first` and {eq}`eq-other`", "by (1) and [(1)](02_other.ipynb)"),
    ("{doc}`02_other`, {doc}`that <02_other>`, {doc}`/chapters/02_other`",
     "[2 · Other](02_other.ipynb), [that](02_other.ipynb), [2 · Other](02_other.ipynb)"),
    ("{term}`key`, {term}`Keys <key>`", "key, Keys"),
    ("two {glue:text}`loss`\n{cite:p}`jain2019,\ngraves2013`",
     "two 3.2\n([Jain & Wallace 2019](https://doi.org/10.1/x); [Graves "
     "2013](https://arxiv.org/abs/1308.0850))"),
    ("[next](02_other.ipynb), [it](02_other.ipynb#the-place), [](#there), [`k` {term}`key`](#here)",
     "[next](02_other.ipynb), [it](02_other.ipynb), [The *other* place](02_other.ipynb), [`k` "
     "key](#here)"),
    ("[terms](../about/glossary.md), [](02_other.ipynb), [out](https://example.org/a_b)",
     "terms, [2 · Other](02_other.ipynb), [out](https://example.org/a_b)"),
    ("`{eq}` stays, ``{cite}`x` `` stays, $\\{a\\}`$ stays, \\$5 and $x_{{i}}$",
     "`{eq}` stays, ``{cite}`x` `` stays, $\\{a\\}`$ stays, \\$5 and $x_{{i}}$"),
    ("$$\ny = 2\n$$ (eq-first)", "$$\ny = 2\n\\tag{1}\n$$"),
    ("$$y = 2$$", "$$\ny = 2\n$$"),
    (":::{note}\nWhy {glue:text}`loss`.\n\nAnd more.\n:::",
     "> **Note**\n>\n> Why 3.2.\n>\n> And more."),
    ("```{warning}\nHot.\n```", "> **Warning**\n>\n> Hot."),
    (":::{tip} Short.\n:::", "> **Tip**\n>\n> Short."),
    (":::{admonition} One `k`\n:class: tip\nText\n:::", "> **One `k`**\n>\n> Text"),
    (":::{admonition} One `k`\n:class: note, dropdown\nText\n:::",
     "<details>\n<summary>One <code>k</code></summary>\n\nText\n\n</details>"),
    (":::{dropdown} Why?\nBecause.\n:::",
     "<details>\n<summary>Why?</summary>\n\nBecause.\n\n</details>"),
    (":::{hint}\n:class: dropdown\nLook.\n:::",
     "<details>\n<summary>Hint</summary>\n\nLook.\n\n</details>"),
    ("::::{note}\n:::{dropdown} In\n```python\nx = '{eq}`a`'\n```\n:::\n::::",
     "> **Note**\n>\n> <details>\n> <summary>In</summary>\n>\n> ```python\n> x = '{eq}`a`'\n> "
     "```\n>\n> </details>"),
    ("```{exercise} Mix\n:label: ex-mix\nDo.\n```",
     '<a id="ex-mix"></a>\n\n> **Exercise 1.1 (Mix)**\n>\n> Do.'),
    ("(here)=\n## Here", '<a id="here"></a>\n\n## Here'),
    ("1. one\n\n   ```{note}\n   In a list.\n   ```\n2. two",
     "1. one\n\n   > **Note**\n   >\n   > In a list.\n2. two"),
]
REFUSED = ["{unheard}`x`", "```{unheard}\nx\n```", "{glue:text}`missing`", "{cite:p}`missing`",
           "[](#missing)", "{eq}`missing`", "{doc}`missing`", "[x](missing.md)",
           "```{note}\nnever closed",
           "::: \nx\n:::", "```{exercise}\nno label\n```", "$$\nnever closed",
           # what Sphinx knows and the book does not use
           "{ref}`here`", "{numref}`ex-mix`", "{math}`x^2`", "{sub}`a`", "{py:func}`tfmlib.f`",
           "```{math}\nx\n```", "\\begin{align*}\na &= b\n\\end{align*}",
           "```{admonition} T\n---\nclass: dropdown\n---\nText\n```",
           ":::{margin}\nSmall.\n:::", "```{solution} ex-mix\nSo.\n```",
           "```{figure} dot.svg\nA key.\n```", "![a dot](dot.svg)",
           "```{code-block} python\nx = 1\n```", "```{raw} html\n<b>x</b>\n```",
           "```{table} Sizes\n| a |\n|---|\n```", "{.wide}\nText", "[part]{.quiet}",
           "`code`{.python}", "% a remark\nText", "+++\nText", "Query\n: what asks", "Said[^one].",
           "{{ name }} here"]


@pytest.fixture
def book(tmp_path):
    "A book of two chapters that refer to each other."
    (tmp_path / "chapters").mkdir()
    for name, text in (("01_page", PAGE), ("02_other", OTHER)):
        nbformat.write(new_notebook(cells=[new_markdown_cell(text, id="text")]),
                       tmp_path / f"chapters/{name}.ipynb")
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nchapters: [{file: chapters/01_page}, {file: "
        "chapters/02_other}, {file: about/glossary}]\n")
    (tmp_path / "_config.yml").write_text("bibtex_bibfiles: [r.bib]\n")
    (tmp_path / "r.bib").write_text(BIB)
    (tmp_path / "index.md").write_text("# Front\n")
    (tmp_path / "about").mkdir()
    (tmp_path / "about/glossary.md").write_text("# Glossary\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.3"\n')
    return tmp_path


def page(root: Path, name="chapters/01_page") -> myst.Page:
    return myst.Page(myst.Book(root), name, {"loss": "'3.2'", "ratio": "1.2345"})


@pytest.mark.parametrize("source, expected", RESOLVED)
def test_construct(book, source, expected):
    made = page(book).resolve(source)
    assert made == expected
    assert myst.remains(made) == []


@pytest.mark.parametrize("source, expected", RESOLVED)
def test_finder_sees_each_construct(book, source, expected):
    "What the rules change is what the finder finds; what they leave, it leaves."
    # plain Markdown already, only resolved or laid out anew
    links = r"\]\([^)]*\.(ipynb|svg)|^\$\$|^\\begin"
    if source != expected and not re.search(links, source, re.M):
        assert myst.remains(source), source
    elif source == expected:
        assert not myst.remains(source)


@pytest.mark.parametrize("source", REFUSED)
def test_unknown_is_an_error_that_says_where(book, source):
    nb = new_notebook(cells=[new_markdown_cell(source, id="the-cell")])
    nbformat.write(nb, book / "chapters/03_new.ipynb")
    said = ("chapters/03_new, cell the-cell: the bibliography has no 'missing'"
            if source == "{cite:p}`missing`" else None)
    with pytest.raises(myst.Unresolved, match=said):
        colab.write(book, book / "out")


def test_links_go_to_the_published_book(book):
    (book / "_config.yml").write_text((book / "_config.yml").read_text()
                                      + "html: {baseurl: 'https://a.github.io/b/'}\n")
    made = page(book).resolve(
        "[](#there) {eq}`eq-other` {term}`Zipf's law` [t](../about/glossary.md) [](#here)")
    assert made == ("[The *other* place](https://a.github.io/b/chapters/02_other.html#there) "
                    "[(1)](https://a.github.io/b/chapters/02_other.html#equation-eq-other) "
                    "[Zipf's law](https://a.github.io/b/about/glossary.html#term-Zipf-s-law) "
                    "[t](https://a.github.io/b/about/glossary.html) [Here](#here)")


def test_cells_are_kept_and_solutions_folded(book):
    glue = new_output("display_data", data={"application/papermill.record/text/plain": "'0.5'"},
                      metadata={"scrapbook": {"name": "half",
                                              "mime_prefix": "application/papermill.record/"}})
    shown = new_output("execute_result", data={"text/plain": "2"}, execution_count=None)
    nb = new_notebook(cells=[
        new_markdown_cell("---\nmeta: 1\n---\n# T {glue:text}`half`", id="title"),
        new_code_cell("#| default_exp attention", id="exp"),
        new_code_cell("#| export\nx = 2\nx", id="two", outputs=[shown],
                      metadata={"tags": ["nbval-ignore-output"]}),
        new_code_cell("y = x / 4", id="half", outputs=[glue]),
        new_code_cell("def answer(): return 2", id="answer",
                      metadata={"tags": ["solution", "exercise-a"]}),
        new_code_cell("#| hide\nimport os", id="hidden")])
    nbformat.write(nb, book / "chapters/03_new.ipynb")
    colab.write(book, book / "out")
    made = nbformat.read(book / "out/chapters/03_new.ipynb", as_version=4)
    nbformat.validate(made)
    cells = {c.id: c for c in made.cells}
    assert [c.id for c in made.cells] == ["set-up", "title", "two", "half", "answer", "hidden"]
    assert cells["title"].source == "# T 0.5"
    assert ((cells["two"].source, cells["two"].outputs, cells["two"].metadata.tags)
            == ("x = 2\nx", [shown], ["nbval-ignore-output"]))
    assert cells["answer"].source == "# @title Solution\ndef answer(): return 2"
    for name in ("answer", "hidden"):
        assert (cells[name].metadata.cellView == "form"
                and cells[name].metadata.jupyter.source_hidden)
    assert cells["answer"].metadata.tags == ["solution", "exercise-a"]
    assert made.metadata.kernelspec.name == "python3"
    assert colab.leftovers(made) == []


def test_finder_sees_planted_remains():
    nb = new_notebook(cells=[new_markdown_cell("see {eq}`x`", id="a"),
                             new_code_cell("#| export\nx = 1", id="b")])
    assert (colab.leftovers(nb) == ["cell a: a role: '{eq}`'",
                                    "cell b: a directive line: '#| export'"])


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict[Path, Path]:
    "The copy of each notebook of the book."
    out = tmp_path_factory.mktemp("colab")
    return dict(zip(NOTEBOOKS, colab.write(ROOT, out), strict=True))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT / "chapters")))
def test_copy_is_whole_promises_nothing_elsewhere_and_its_links_lead_somewhere(copies, path):
    original, made = nbformat.read(path, as_version=4), nbformat.read(copies[path], as_version=4)
    nbformat.validate(made)
    assert colab.leftovers(made) == [] and made.cells[0].id == "set-up"
    # hints, solutions and wrong answers are in the copy itself
    assert "In the book, each exercise has" not in "\n".join(c.source for c in made.cells)
    for cell in (c for c in made.cells if c.cell_type == "markdown"):
        for target in re.findall(r"\]\(([^):]+\.ipynb)\)", cell.source):
            assert (copies[path].parent / target).is_file(), target
    code = {c.id: c for c in original.cells if c.cell_type == "code"}
    for cell in (c for c in made.cells[1:] if c.cell_type == "code"):
        before = code.pop(cell.id)
        assert any(line and not line.startswith("#") for line in cell.source.split("\n")), cell.id
        assert cell.outputs == before.outputs
        assert cell.metadata.get("tags") == before.metadata.get("tags")
        assert "\n".join(line for line in before.source.split("\n")
                         if not line.startswith("#|")).strip("\n") in cell.source
    assert all(line.startswith("#") or not line for c in code.values()
               for line in c.source.split("\n")), "a code cell is lost"
    for cell in (c for c in made.cells if "solution" in c.metadata.get("tags", [])):
        assert cell.metadata.jupyter.source_hidden and cell.metadata.cellView == "form"


# --- the set-up cell ------------------------------------------------------------------------------

def run(*command, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([str(c) for c in command], text=True, capture_output=True, **kwargs)


def test_setup_without_address_says_how_to_install(tmp_path):
    done = run(sys.executable, "-S", "-I", "-c", colab.setup_source("", "1.0"), cwd=tmp_path)
    assert done.returncode == 1
    assert ("ModuleNotFoundError: tfmlib is not installed" in done.stderr
            and "pip install '.[notebook]'" in done.stderr)


def test_setup_on_colab_without_address_asks_for_the_wheel(tmp_path):
    """Colab's upload is played: the file that was chosen is what pip is asked for, with what
    notebooks need."""
    play = ("import subprocess, sys, types\ncolab = types.ModuleType('google.colab')\n"
            "colab.files = types.SimpleNamespace(upload=lambda: {'tfmlib-1.0-py3-none-any "
            "(1).whl': b''})\n"
            "sys.modules |= {'google': types.ModuleType('google'), 'google.colab': "
            "colab}\nsubprocess.run = lambda command, **k: print(*command[1:])\n")
    done = run(sys.executable, "-S", "-I", "-c", play + colab.setup_source("", "1.0"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.splitlines()
            == ["Choose tfmlib-1.0-py3-none-any.whl, which lies beside this copy.",
                "-m pip install -q ./tfmlib-1.0-py3-none-any (1).whl[notebook]"])


def test_setup_does_nothing_where_tfmlib_is(tmp_path):
    for url in ("", "https://example.invalid/a/b"):
        done = run(sys.executable, "-c", colab.setup_source(url, "1.0"), cwd=tmp_path,
                   env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_setup_pins_only_the_book(tmp_path):
    source = colab.setup_source("https://github.com/a/b", "1.2.3")
    assert (re.findall(r"wanted = (.*)", source)
            == ['["git+https://github.com/a/b@v1.2.3", "tfmlib[notebook]"]'])
    assert not re.search(r"torch|numpy", source)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> str:
    "A git repository, at a file:// address, whose tag v9.9 holds this checkout's library."
    return made_repository(tmp_path_factory.mktemp("of") / "repository", "v9.9")


@pytest.mark.slow
def test_setup_installs_from_the_address(repository, tmp_path):
    """In an environment that has torch but not tfmlib, the cell installs the tag, and the
    chapters' import works."""
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", venv).returncode == 0
    site = next((venv / "lib").glob("python*/site-packages"))
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "borrowed.pth").write_text(packages + "\n")
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1",
               "PYTHONPATH": ""}
    code = colab.setup_source(repository, "9.9") + textwrap.dedent("""
        import tfmlib, torch
        print(tfmlib.__file__)""")
    done = run(venv / "bin/python", "-c", code, cwd=tmp_path, env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip().splitlines()[-1]).is_relative_to(venv)
    again = run(venv / "bin/python", "-c", colab.setup_source("file:///nowhere", "9.9"),
                cwd=tmp_path, env=os.environ | offline)
    assert again.returncode == 0, "a second run must find the library and install nothing"
