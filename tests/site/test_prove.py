"""The proof's own choices: what a step reads, which steps run, and what is noted of them."""
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import prove
import pytest
import steps
import swept

QUICK, ORDINARY, WHOLE, FRESH = (SimpleNamespace(quick=q, whole=w, fresh=f)
                                 for q, w, f in ((True, False, False), (False, False, False),
                                                 (False, True, False), (False, False, True)))
NAMES = [f"chapters/{name}.ipynb" for name in ("04_a", "05_b", "06_c", "practice/04_a",
                                               "practice/05_b")]
FILES = {
    "tfmlib/__init__.py": "", "tfmlib/base.py": "x = 1\n",
    "tfmlib/a.py": "def f():\n    from .base import x\n", "tfmlib/b.py": "from tfmlib import a\n",
    "tfmlib/far.py": "",
    "tfmlib/assets/claims.yml": "[]", "pyproject.toml": "", "requirements.txt": "torch==1\n",
    "tests/conftest.py": "", "tests/nbval.cfg": "",
    "tests/library/test_b.py": "import tfmlib.b\n",
    "tests/library/test_far.py": "CODE = 'import tfmlib.far'\n", "tests/site/test_page.py": ""}


def git(root: Path, *command: str) -> None:
    subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b.c", *command],
                   check=True, capture_output=True)


def notebook(code: str, prose: str = "Look:") -> str:
    return json.dumps({"cells": [{"cell_type": "markdown", "source": prose, "metadata": {}},
                                 {"cell_type": "code", "source": code, "metadata": {},
                                  "outputs": []}]})


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    "Five notebooks, a library of four modules and three files of tests, committed."
    for name, text in FILES.items() | {name: notebook("from tfmlib.b import a")
                                       for name in NAMES}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "."]): git(tmp_path, *command)
    for module in (prove, steps): monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, value in (("SWEPT", tmp_path / "tests/swept.json"),
                        ("PASSED", tmp_path / "build/passed.json"), ("BUILD", tmp_path / "build")):
        monkeypatch.setattr(prove, name, value)
    forget()
    for function, root in ((steps.closure, 1), (steps.data, 0), (steps.test_reads, 1),
                           (steps.notebook_modules, 1), (steps.files_digest, 1),
                           (steps.tracked, 0)):
        monkeypatch.setattr(steps, function.__name__,
                            (lambda f, n: lambda *args: f(*args, *[tmp_path] * (len(args) <= n)))(
                                function, root))
    (tmp_path / "tests/swept.json").write_text(
        json.dumps({"older": {name: steps.notebook_key(tmp_path / name) for name in NAMES},
                    "pages": {}}))
    yield tmp_path
    forget()


def forget() -> None:
    "What was read of the files before one of them changed."
    for function in (steps.content, steps.read_by, prove.base, prove.changed):
        function.cache_clear()


def change(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    forget()


def chosen(root: Path, given, setting: str = "native") -> list[str]:
    return [str(path.relative_to(root)) for path in prove.chosen(given, setting)]


def test_natively_every_notebook_runs_and_as_on_the_older_processor_those_that_have_not_passed_there(checkout):  # noqa: E501
    assert chosen(checkout, ORDINARY) == NAMES and chosen(checkout, ORDINARY, "baseline") == []
    change(checkout, NAMES[0], notebook("from tfmlib.b import a", "Look again:"))
    assert chosen(checkout, ORDINARY, "baseline") == [], "prose is not what runs"
    change(checkout, NAMES[1], notebook("1 + 1"))
    assert (chosen(checkout, ORDINARY, "baseline") == [NAMES[1]]
            and chosen(checkout, WHOLE, "baseline") == NAMES)


def test_the_commit_does_not_decide(checkout):
    before = {given: prove.chosen(ORDINARY, given) for given in ("native", "baseline")}
    for attempt in range(3):
        git(checkout, "commit", "-qm", str(attempt), "--allow-empty")
        assert {given: prove.chosen(ORDINARY, given) for given in ("native", "baseline")} == before


def test_quick_runs_the_notebooks_of_which_more_than_prose_differs(checkout):
    assert chosen(checkout, QUICK) == []
    change(checkout, NAMES[0], notebook("from tfmlib.b import a", "Look again:"))
    change(checkout, NAMES[3], notebook("1 + 1"))
    change(checkout, "chapters/07_new.ipynb", notebook("2"))
    (checkout / NAMES[1]).unlink()
    assert (chosen(checkout, QUICK)
            == ["chapters/07_new.ipynb", NAMES[3]]), "one that git does not know counts"


def test_what_a_step_reads(checkout):
    """Modules that are imported inside a function, relatively, or named in the code of another
    process; of the site, everything."""
    def reads(name):
        return {str(p.relative_to(checkout)) for p in steps.test_reads(checkout / name)}
    # notebooks do not read conftest.py
    data = {"tfmlib/assets/claims.yml", "pyproject.toml", "requirements.txt", "tests/conftest.py",
            "tests/nbval.cfg"}
    assert (reads("tests/library/test_b.py") == data | {"tests/library/test_b.py",
            "tfmlib/__init__.py", "tfmlib/a.py", "tfmlib/b.py", "tfmlib/base.py"})
    assert (reads("tests/library/test_far.py") == data | {"tests/library/test_far.py",
            "tfmlib/__init__.py", "tfmlib/far.py"})
    assert reads("tests/site/test_page.py") == {*FILES, *NAMES, "tests/swept.json"}
    assert ({p.name for p in steps.notebook_modules(checkout / NAMES[0])}
            == {"__init__.py", "a.py", "b.py", "base.py"})


@pytest.mark.parametrize("name, text, again", [
    ("tfmlib/base.py", "x = 2\n", NAMES), ("tfmlib/far.py", "y = 1\n", []),
    ("requirements.txt", "torch==2\n", NAMES), ("tfmlib/assets/claims.yml", "[1]", NAMES),
    (NAMES[2], notebook("1 + 1"), [NAMES[2]]),
    (NAMES[2], notebook("from tfmlib.b import a", "Other prose."), [])])
def test_a_key_is_the_hash_of_what_is_read(checkout, name, text, again):
    "Also the lock, and the processor that is asked for."
    before = prove.chosen(ORDINARY, "native")
    assert (before != prove.chosen(WHOLE, "baseline") and before.keys()
            == prove.chosen(WHOLE, "baseline").keys())
    for path, key in before.items(): steps.keep(prove.PASSED, prove.name_of("notebooks", path), key)
    change(checkout, name, text)
    def left(given):
        return [str(path.relative_to(checkout))
                for path in prove.due("notebooks", prove.chosen(given, "native"), given)]
    assert left(ORDINARY) == again and left(FRESH) == NAMES


def test_what_is_skipped_is_counted(checkout, capsys):
    keys = prove.chosen(ORDINARY, "native")
    for path in list(keys)[:2]:
        steps.keep(prove.PASSED, prove.name_of("notebooks", path), keys[path])
    assert len(prove.due("notebooks", keys, ORDINARY)) == 3
    assert "notebooks: 3 files run, 2 skipped" in capsys.readouterr().out


@pytest.mark.parametrize("processes", [0, 2])
def test_only_files_of_which_every_test_passes_are_noted(tmp_path, processes):
    "Also if the run is stopped before its end; and none that were not asked for."
    texts = {"good": "def test_a(): pass\ndef test_b(): pass",
             "bad": "def test_a(): pass\ndef test_b(): assert 0",
             "error": "import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert 0\ndef "
                      "test_a(f): pass",
             "other": "def test_a(): pass"}
    for name, text in texts.items(): (tmp_path / f"test_{name}.py").write_text(text)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"record": str(tmp_path / "passed.json"),
                                "steps": {f"test_{name}.py": [f"library test_{name}.py", name]
                                          for name in ("good", "bad", "error")}}))
    env = os.environ | {steps.PLAN: str(plan), "PYTHONPATH": str(prove.ROOT / "tools")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "steps", "-c", "/dev/null", "--rootdir",
               tmp_path,
               *(["-n", str(processes), "--dist", "loadfile"] if processes else []), tmp_path]
    done = subprocess.run([str(c) for c in command], cwd=tmp_path, env=env,
                          capture_output=True, text=True)
    assert (done.returncode == 1 and steps.load(tmp_path / "passed.json")
            == {"library test_good.py": "good"}), done.stdout


def test_quick_is_not_whole(monkeypatch):
    monkeypatch.setattr("sys.argv", ["prove.py", "--quick", "--whole", "lint"])
    monkeypatch.setattr(prove, "run", lambda *command, **how: pytest.fail("it runs"))
    with pytest.raises(SystemExit) as end: prove.main()
    assert end.value.code == 2


@pytest.mark.parametrize("status", [0, 1])
def test_the_book_is_built_beside_other_stages(monkeypatch, tmp_path, capfd, status):
    "It runs while they do; what it says, and whether it was a success, is told at the end."
    (tmp_path / "stand_in.py").write_text(
        f"import sys, time; time.sleep(0.3); print('said by', *sys.argv[1:]); sys.exit({status})")
    monkeypatch.setattr(prove, "__file__", str(tmp_path / "stand_in.py"))
    names, results = ["lint", "book", "site"], {}
    wait = prove.beside(names, results)
    assert names == ["lint", "site"] and results == {} and "said" not in capfd.readouterr().out
    wait()
    assert ("said by book" in capfd.readouterr().out and results["book"][0] == (status == 0)
            and results["book"][1] > 0.2)
    prove.beside(alone := ["book"], results)()
    assert alone == ["book"]                                   # nothing to run beside


def test_minutes_are_shown_against_their_limits():
    lines = prove.shown({"lint": (True, 1.2), "site": (False, 60 * (prove.STAGES["site"][1] + 1))},
                        1).splitlines()
    assert (lines[0].startswith("ok     lint") and "OVER" not in lines[0]
            and lines[1].startswith("FAILED site") and lines[1].endswith("OVER ITS LIMIT"))


def test_the_limits_add_up_to_what_is_promised():
    "The book is built beside the other stages."
    ordinary, quick, whole = (sum(stage[column] for name, stage in prove.STAGES.items() if name
                                  != "book") for column in (1, 2, 3))
    assert ordinary <= 15 and quick <= 6 and whole <= 75


def test_a_page_is_what_its_article_says(tmp_path, monkeypatch):
    "What frames it, and stamps in addresses, do not count; the scripts of its figures do."
    def page(article, frame="", script="1"):
        (tmp_path / "a.html").write_text(
            f"<html>{frame}<article class='x'>{article}</article></html>")
        (tmp_path / "fig.js").write_text(script)
        swept.page.cache_clear()
        return swept.page(tmp_path, "a.html")
    monkeypatch.setattr(swept, "ASSETS", tmp_path)
    text = '<p>one</p><figure data-module="fig"></figure><img src="a.svg?v=12ab">'
    assert page(text) == page(text, "<nav>other</nav>") == page(text.replace("12ab", "34cd"))
    assert len({page(text), page(text.replace("one", "two")), page(text, script="2")}) == 3
