"""What the proof has proved: the record, and what README shows of it."""
import json
import subprocess
from pathlib import Path

import copies
import prove
import proved
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY = {"python": "3.11.7", "system": "Linux", "processor": "AMD EPYC, AVX2", "torch": "2.13.0+cpu", "outputs": "compared",
         "stages": {"lint": True, "notebooks": True}, "cells": 2409, "date": "2026-11-22", "commit": "abc1234"}


def test_readme_shows_the_record():
    assert proved.PLACE.findall((ROOT / "README.md").read_text()) == [proved.shown(proved.load())], "run python tools/proved.py"
    assert proved.load(), "run tools/prove.py --record"
    for entry in proved.load(): assert entry.keys() == ENTRY.keys() and set(entry["stages"]) <= {*prove.STAGES, "copies", "baseline", "tests"}      # the last two until November 2026


def test_a_row_says_what_passed_and_what_failed():
    text = proved.shown([ENTRY, ENTRY | {"python": "3.13.0", "outputs": "run", "stages": {"lint": True, "tests": False}, "cells": 0}])
    assert "| 3.11.7 | Linux, AMD EPYC, AVX2 | 2.13.0+cpu | compared | lint, notebooks | 2,409 | 2026-11-22, `abc1234` |\n" in text
    assert "| run | lint; failed: tests | 0 |" in text
    assert text.endswith("\nNot recorded: Python 3.12, macOS and Windows.\n")
    assert proved.shown([]).startswith("No run has been recorded yet.")


@pytest.mark.parametrize("new, expected", [
    ({"stages": {"tests": True}, "cells": 0}, [({"lint": True, "notebooks": True, "tests": True}, 2409)]),                  # the same commit: more of it
    ({"stages": {"tests": True}, "cells": 0, "commit": "def5678"}, [({"tests": True}, 0)]),                                # a later one: all of it is told anew
    ({"stages": {"tests": False}, "cells": 0, "python": "3.12.1"}, [({"lint": True, "notebooks": True}, 2409), ({"tests": False}, 0)])])
def test_a_run_takes_the_place_of_an_older_one_about_the_same(new, expected):
    assert [(e["stages"], e["cells"]) for e in proved.merged([ENTRY], ENTRY | new)] == expected


def test_this_machine_is_told_without_its_places():
    told = proved.here()
    assert set(told) == set(proved.HOLDS) and not any("/home" in v or "/root" in v for v in told.values())
    assert set(prove.STAGES) == {"lint", "book", "wheel", "notebooks", "older", "library", "site"}


def test_a_run_is_kept_and_shown(tmp_path, monkeypatch):
    monkeypatch.delenv("TFM_LAX", raising=False)
    (tmp_path / "tests").mkdir()
    (tmp_path / "copies").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- proved -->\nold\n<!-- end -->\nafter\n")
    (tmp_path / "copies/04_a.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code"}, {"cell_type": "markdown"}, {"cell_type": "code"}]}))
    for name, value in (("ROOT", tmp_path), ("RECORD", tmp_path / "tests/proved.json"), ("README", tmp_path / "README.md")): monkeypatch.setattr(proved, name, value)
    monkeypatch.setattr(proved.show, "__defaults__", (tmp_path / "README.md",))
    monkeypatch.setattr(proved.load, "__defaults__", (tmp_path / "tests/proved.json",))
    proved.keep({"notebooks": True}, tmp_path / "copies")
    [entry] = proved.load()
    assert entry["cells"] == 2 and entry["stages"] == {"notebooks": True} and entry["outputs"] == "compared"
    copies.record([{"errors": []}], {"python": "3.13.0", "versions": {"torch": "2.15.0"}}, tmp_path / "copies")
    assert [(e["python"], e["torch"], e["outputs"], e["stages"], e["cells"]) for e in proved.load()][-1] == ("3.13.0", "2.15.0", "run", {"copies": True}, 2)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n<!-- proved -->\n| Python") and text.endswith("\n<!-- end -->\nafter\n") and "old" not in text
    (tmp_path / "README.md").write_text("no place\n")
    with pytest.raises(ValueError, match="expected one place"): proved.show([])


def test_a_changed_tree_is_marked(tmp_path):
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], ["commit", "-qm", "."]): subprocess.run([*git, *command], check=True)
    (tmp_path / "README.md").write_text("the table")
    clean = proved.commit(tmp_path)
    assert len(clean) >= 7 and not clean.endswith("+")
    (tmp_path / "a").write_text("2")
    assert proved.commit(tmp_path) == clean + "+"
