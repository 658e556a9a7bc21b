"""The proof's own choices: which notebooks it runs, and as which processor."""
import subprocess
from pathlib import Path
from types import SimpleNamespace

import prove
import pytest
from conftest import in_turn

QUICK, ORDINARY, WHOLE = (SimpleNamespace(quick=q, whole=w) for q, w in ((True, False), (False, False), (False, True)))
NAMES = [f"chapters/{name}.ipynb" for name in ("04_a", "05_b", "06_c", "practice/04_a", "practice/05_b")]


def git(root: Path, *command: str) -> None:
    subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b.c", *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    "Five notebooks, committed, and their copies."
    for name in NAMES:
        for folder in ("", "build/colab/"):
            (path := tmp_path / f"{folder}{name}").parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    for command in (["init", "-q"], ["add", "chapters"], ["commit", "-qm", "."], ["commit", "-qm", ".", "--allow-empty"]): git(tmp_path, *command)
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    return tmp_path


def chosen(root: Path, given, setting: str = "native") -> list[str]:
    return [str(path.relative_to(root / "build/colab")) for path in prove.chosen(root / "build/colab", given, setting)]


def test_quick_runs_the_copies_of_changed_notebooks_alone(checkout):
    assert chosen(checkout, QUICK) == []
    (checkout / NAMES[3]).write_text("{ }")
    for folder in ("", "build/colab/"): (checkout / folder / "chapters/07_new.ipynb").write_text("{}")
    (checkout / NAMES[1]).unlink()
    (checkout / "build/colab" / NAMES[1]).unlink()
    assert chosen(checkout, QUICK) == ["chapters/07_new.ipynb", NAMES[3]], "one that git does not know counts"
    assert chosen(checkout, WHOLE) == [NAMES[0], NAMES[2], "chapters/07_new.ipynb", *NAMES[3:]]


def test_every_notebook_runs_once_and_the_halves_change_places(checkout):
    seen = set()
    for attempt in range(40):
        git(checkout, "commit", "-qm", str(attempt), "--allow-empty")
        native, old = chosen(checkout, ORDINARY), chosen(checkout, ORDINARY, "baseline")
        assert sorted(native + old) == NAMES and abs(len(native) - len(old)) == 1
        seen.add(tuple(native))
        if len(seen) == 2: return
    raise AssertionError(f"after 40 commits still the same half: {seen}")


def test_what_has_just_changed_runs_as_both(checkout):
    (checkout / NAMES[0]).write_text("{ }")
    git(checkout, "commit", "-qam", "one in the last commit")
    (checkout / NAMES[3]).write_text("{ }")
    native, old = chosen(checkout, ORDINARY), chosen(checkout, ORDINARY, "baseline")
    assert set(native) & set(old) == {NAMES[0], NAMES[3]} and set(native) | set(old) == set(NAMES)


def test_without_git_everything_runs_as_both(checkout, monkeypatch):
    monkeypatch.setattr(prove, "git", lambda *command: "")
    assert chosen(checkout, ORDINARY) == chosen(checkout, ORDINARY, "baseline") == NAMES


@pytest.mark.parametrize("options", [["--quick", "--whole"], ["--quick", "--record"], ["--record"]])
def test_what_is_recorded_is_whole(options, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prove.py", *options, "lint"])
    monkeypatch.setattr(prove, "run", lambda *command, **how: pytest.fail("it runs"))
    with pytest.raises(SystemExit) as end: prove.main()
    assert end.value.code == 2


@pytest.mark.parametrize("status", [0, 1])
def test_the_book_is_built_beside_other_stages(monkeypatch, tmp_path, capfd, status):
    "It runs while they do; what it says, and whether it was a success, is told at the end."
    (tmp_path / "stand_in.py").write_text(f"import sys, time; time.sleep(0.3); print('said by', *sys.argv[1:]); sys.exit({status})")
    monkeypatch.setattr(prove, "__file__", str(tmp_path / "stand_in.py"))
    names, results = ["lint", "book", "tests"], {}
    wait = prove.beside(names, results)
    assert names == ["lint", "tests"] and results == {} and "said" not in capfd.readouterr().out
    wait()
    assert "said by book" in capfd.readouterr().out and results["book"][0] == (status == 0) and results["book"][1] > 0.2
    prove.beside(alone := ["book"], results)()
    assert alone == ["book"]                                   # nothing to run beside


def test_practice_pages_take_turns(monkeypatch):
    "Two commits see all of them; one that has just changed is always among them; a changed checker, and the whole proof, see all at once."
    stems, told = ["01_a", "02_b", "03_c"], {"commit": "0", "checking": "", "lately": ""}
    def git(command, *rest):
        if "inpage" in rest: return told["checking"]
        return {"rev-parse": told["commit"], "status": "", "diff": told["lately"]}[command]
    monkeypatch.setattr(prove, "git", git)
    monkeypatch.delenv("TFM_WHOLE", raising=False)
    assert in_turn(stems) == ["01_a", "03_c"]
    told["commit"] = "1"
    assert in_turn(stems) == ["02_b"]
    told["lately"] = "chapters/practice/01_a.ipynb\n"
    assert in_turn(stems) == ["01_a", "02_b"]
    told["checking"] = "tfmlib/practice/block.py\n"
    assert in_turn(stems) == stems
    told["checking"] = ""
    monkeypatch.setenv("TFM_WHOLE", "1")
    assert in_turn(stems) == stems
