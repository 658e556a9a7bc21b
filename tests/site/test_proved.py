"""What the proof has proved: the record, and how a run is put in it."""
import json
import subprocess
from pathlib import Path

import prove
import proved
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY = {"python": "3.11.7", "system": "Linux", "processor": "AMD EPYC, AVX2",
         "torch": "2.13.0+cpu", "outputs": "compared",
         "stages": {"lint": True, "notebooks": True}, "cells": 2409, "date": "2026-11-22",
         "commit": "abc1234"}


def test_the_record_says_what_ran_where():
    kept = json.loads(proved.RECORD.read_text())
    # the last two until November 2026
    assert (kept and all(entry.keys() == ENTRY.keys() and set(entry["stages"])
                         <= {*prove.STAGES, "copies", "baseline", "tests"} for entry in kept))
    assert "tests/proved.json" in (ROOT / "README.md").read_text()
    told = proved.here()
    assert (set(told) == set(proved.HOLDS)
            and not any("/home" in v or "/root" in v for v in told.values()))
    assert set(prove.STAGES) == {"lint", "book", "wheel", "notebooks", "older", "library", "site"}


@pytest.mark.parametrize("new, expected", [
    # the same commit: more of it
    ({"stages": {"tests": True}, "cells": 0},
     [({"lint": True, "notebooks": True, "tests": True}, 2409)]),
    # a later one: all of it is told anew
    ({"stages": {"tests": True}, "cells": 0, "commit": "def5678"}, [({"tests": True}, 0)]),
    ({"stages": {"tests": False}, "cells": 0, "python": "3.12.1"},
     [({"lint": True, "notebooks": True}, 2409), ({"tests": False}, 0)])])
def test_a_run_takes_the_place_of_an_older_one_about_the_same(new, expected):
    assert [(e["stages"], e["cells"]) for e in proved.merged([ENTRY], ENTRY | new)] == expected


def test_a_run_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("TFM_LAX", raising=False)
    (tmp_path / "proved.json").write_text("[]")
    (tmp_path / "04_a.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code"}, {"cell_type": "markdown"},
                              {"cell_type": "code"}]}))
    for name, value in (("ROOT", tmp_path), ("RECORD", tmp_path / "proved.json")):
        monkeypatch.setattr(proved, name, value)
    proved.keep({"notebooks": True}, tmp_path)
    proved.keep({"copies": True}, tmp_path,
                {"python": "3.13.0", "torch": "2.15.0", "outputs": "run"})
    kept = [(e["torch"], e["outputs"], e["stages"], e["cells"])
            for e in json.loads(proved.RECORD.read_text())]
    assert (kept == [(proved.here()["torch"], "compared", {"notebooks": True}, 2),
                     ("2.15.0", "run", {"copies": True}, 2)])


def test_a_changed_tree_is_marked(tmp_path):
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], ["commit", "-qm", "."]):
        subprocess.run([*git, *command], check=True)
    clean = proved.commit(tmp_path)
    (tmp_path / "a").write_text("2")
    assert len(clean) >= 7 and not clean.endswith("+") and proved.commit(tmp_path) == clean + "+"
