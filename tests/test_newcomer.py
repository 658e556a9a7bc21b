"""What a newcomer and a contributor do, tried literally: set up, read, edit, save."""
import re
import subprocess
import sys
from pathlib import Path

import colab
import kills
import pages
import prove
import pytest
import rules
from test_defects import build, copied, small

ROOT = rules.ROOT
WHOLE = ("chapters", "tfmlib", "tools", "extensions", "tests/nbval.cfg", "pyproject.toml", "README.md", "index.md", "glossary.md", "_toc.yml", "_config.yml", "references.bib",
         "notation.md", "teaching.md", "claims.md", "reference.md", "gallery.md", "changelog.md")


# --- what JupyterLab leaves behind --------------------------------------------------------------------------------

def save_in_jupyterlab(folder: Path) -> None:
    "Leave behind what JupyterLab does when a notebook is saved: a copy of it, here one that nothing could read."
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


def test_checkpoints_are_no_notebooks(saved, monkeypatch):
    "What lists the notebooks lists those of the book: the extensions, the copies, the exercises, the proof, the rules."
    names = [str(p.relative_to(ROOT)) for p in pages.notebook_files(ROOT / "chapters")]
    assert len(names) > 20 and [str(p.relative_to(saved)) for p in pages.notebook_files(saved / "chapters")] == names
    assert [f"{name}.ipynb" for name in pages.notebooks(saved)] == names
    made = colab.write(saved, saved / "build/colab")
    assert [str(p.relative_to(saved / "build/colab")) for p in made] == names
    save_in_jupyterlab(saved / "build/colab")
    assert prove.chosen(saved / "build/colab", quick=False) == made
    monkeypatch.setattr(kills, "ROOT", saved)
    assert [p.name for p in kills.pages()] == [Path(n).name for n in names if "practice" in n]
    assert {name: found for name, rule in rules.RULES.items() if name != "export" and (found := rule(saved))} == {}


@pytest.mark.slow
def test_checkpoints_are_not_exported(saved):
    written = {p: p.read_bytes() for p in (saved / "tfmlib").rglob("*.py")}
    done = subprocess.run([sys.executable, "tools/export.py"], cwd=saved, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {p: p.read_bytes() for p in (saved / "tfmlib").rglob("*.py")} == written


@pytest.mark.slow
def test_checkpoints_are_not_built(tmp_path):
    root = small(tmp_path / "book")
    save_in_jupyterlab(root / "chapters")
    status, log = build(root)
    assert status == 0, log
    assert not [p for p in (root / "_build/html").rglob("*checkpoint*") if p.suffix == ".html"]


def test_one_function_lists_the_notebooks():
    "A search of the folders in any other place would find the checkpoints."
    searches = re.compile(r"""rglob\(.*ipynb|\*\*/.*ipynb|os\.walk""")
    code = [p for folder in ("tools", "extensions", "bench", "tests") for p in (ROOT / folder).glob("*.py") if p != Path(__file__)]
    found = [f"{p.relative_to(ROOT)}: {line.strip()}" for p in code for line in p.read_text().splitlines() if searches.search(line)]
    assert len(found) == 1 and found[0].startswith("extensions/pages.py:"), found
