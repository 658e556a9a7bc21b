"""What a newcomer and a contributor do, tried literally: set up, read, edit, save."""
import functools
import io
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import colab
import execute
import kills
import lab
import nbformat
import pages
import prove
import pytest
import rules
from conftest import ROOT, serving
from test_defects import build, copied, small

WHOLE = ("chapters", "tfmlib", "tools", "extensions", "tests/nbval.cfg", "pyproject.toml",
         "README.md", "index.md", "about", "_toc.yml", "_config.yml", "references.bib",
         "api", "gallery", "parts")


# --- what JupyterLab leaves behind ----------------------------------------------------------------

def save_in_jupyterlab(folder: Path) -> None:
    """Leave behind what JupyterLab does when a notebook is saved: a copy of it, here one that
    nothing could read."""
    for path in list(folder.rglob("[0-9]*.ipynb")):
        kept = path.parent / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("{ saved half")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    "A copy of this checkout in which every notebook was saved in JupyterLab."
    root = copied(tmp_path_factory.mktemp("saved"), *WHOLE)
    save_in_jupyterlab(root / "chapters")
    return root


@pytest.mark.whole
def test_checkpoints_are_no_notebooks(saved, monkeypatch):
    """What lists the notebooks lists those of the book: the extensions, the copies, the
    exercises, the proof, the rules."""
    names = [str(p.relative_to(ROOT)) for p in pages.notebook_files(ROOT / "chapters")]
    assert (len(names) > 20 and [str(p.relative_to(saved))
                                 for p in pages.notebook_files(saved / "chapters")] == names)
    assert [f"{name}.ipynb" for name in pages.notebooks(saved)] == names
    made = colab.write(saved, saved / "build/colab")
    assert [str(p.relative_to(saved / "build/colab")) for p in made] == names
    monkeypatch.setattr(prove, "ROOT", saved)
    assert [str(p.relative_to(saved)) for p in prove.content_keys()] == names
    monkeypatch.setattr(kills, "ROOT", saved)
    assert [p.name for p in kills.pages()] == [Path(n).name for n in names if "practice" in n]
    for name in rules.RULES.keys() - {"export"}: assert rules.RULES[name](saved) == [], name


@pytest.mark.whole
def test_checkpoints_are_not_exported(saved):
    written = {p: p.read_bytes() for p in (saved / "tfmlib").rglob("*.py")}
    done = subprocess.run([sys.executable, "tools/export.py"], cwd=saved,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {p: p.read_bytes() for p in (saved / "tfmlib").rglob("*.py")} == written


@pytest.mark.whole
def test_checkpoints_are_not_built(tmp_path):
    root = small(tmp_path / "book")
    save_in_jupyterlab(root / "chapters")
    status, log = build(root)
    assert status == 0, log
    assert not [p for p in (root / "_build/html").rglob("*checkpoint*") if p.suffix == ".html"]


def test_one_function_lists_the_notebooks():
    "A search of the folders in any other place would find the checkpoints."
    searches = re.compile(r"""rglob\(.*ipynb|\*\*/.*ipynb|os\.walk""")
    code = [p for folder in ("tools", "extensions", "bench", "tests", "tests/site", "tests/library")
            for p in (ROOT / folder).glob("*.py") if p != Path(__file__)]
    found = [f"{p.relative_to(ROOT)}: {line.strip()}" for p in code
             for line in p.read_text().splitlines() if searches.search(line)]
    assert len(found) == 1 and found[0].startswith("extensions/pages.py:"), found


# --- notebooks in JupyterLab ----------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("target", ["lab", "read"])
def test_jupyterlab_opens(clone, target):
    """As a newcomer starts it, without a window, on any free port; `make read` has written clean
    copies before."""
    (clone.parent / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"open_browser": False, "port": 0}}))
    with serving(f"make {target}", clone,
                 r"http://(?:localhost|127\.0\.0\.1):\d+/lab\S*\?token=\w+", PYTHONPATH="",
                 JUPYTER_CONFIG_DIR=str(clone.parent), HOME=str(clone.parent),
                 OMP_NUM_THREADS="1") as url:
        assert urllib.request.urlopen(url, timeout=120).status == 200
    if target == "read":
        made = nbformat.read(clone / "reading/chapters/01_recurrence.ipynb", as_version=4)
        assert (colab.leftovers(made) == []
                and any(c.metadata.get("jupyter", {}).get("source_hidden") for c in made.cells))


def test_kernels_find_the_library_from_anywhere(tmp_path):
    env = lab.environment({k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    done = subprocess.run([sys.executable, "-c", "import tfmlib; print(tfmlib.__file__)"],
                          cwd=tmp_path, env=env, text=True, capture_output=True)
    assert Path(done.stdout.strip()).parent == ROOT / "tfmlib", done.stderr
    assert lab.environment({"PYTHONPATH": "mine"})["PYTHONPATH"] == f"{ROOT}{os.pathsep}mine"


def test_a_copy_that_the_reader_changed_is_kept(tmp_path):
    made, reading = tmp_path / "made", tmp_path / "reading"
    for name in ("01_a", "practice/01_b"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / f"{name}.ipynb").write_text("first")
    reading.mkdir()
    assert lab.refresh(made, reading) == [] == lab.refresh(made, reading)
    (reading / "practice/01_b.ipynb").write_text("my answer")
    for name in ("01_a", "practice/01_b"): (made / f"{name}.ipynb").write_text("second")
    # as often as it is asked
    for _ in range(2):
        assert lab.refresh(made, reading) == ["practice/01_b.ipynb"]
        assert ([(reading / f"{name}.ipynb").read_text() for name in ("01_a", "practice/01_b")]
                == ["second", "my answer"])
    (reading / "practice/01_b.ipynb").unlink()
    assert (lab.refresh(made, reading) == [] and (reading / "practice/01_b.ipynb").read_text()
            == "second")


def test_who_edits_and_who_reads_is_told():
    "`make lab` says that it shows sources, and README and CONTRIBUTING name the way to read."
    assert "make read" in lab.EDIT and "sources" in lab.EDIT
    assert ("make read" in (ROOT / "README.md").read_text()
            and "`make read`" in (ROOT / "CONTRIBUTING.md").read_text())


# --- executing ------------------------------------------------------------------------------------

class Terminal(io.StringIO):
    def isatty(self) -> bool: return True


def test_execute_says_which_cell_runs(tmp_path, monkeypatch):
    "In a terminal; in a log it says nothing until the notebook is done."
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"{i}", id=f"cell-{i}")
                                         for i in range(3)])
    nbformat.write(nb, tmp_path / "04_a.ipynb")
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(execute, "tqdm", functools.partial(execute.tqdm, mininterval=0))
        assert ([c.outputs[0].data["text/plain"]
                 for c in execute.run(tmp_path / "04_a.ipynb").cells] == ["0", "1", "2"])
        assert (bool(re.search(r"04_a: .*2/3.*cell-2", stream.getvalue())) == drawn
                == ("04_a" in stream.getvalue()))
