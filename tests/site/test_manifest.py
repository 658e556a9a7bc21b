"""The manifest: what the book holds, on which page; nothing vanishes unsaid."""
import json
from pathlib import Path

import manifest
import pytest

ENTRIES = manifest.listed()


def test_it_is_what_the_notebooks_hold():
    assert (manifest.FILE.read_text(encoding="utf-8")
            == manifest.text(ENTRIES)), "run `python tools/manifest.py`"


def test_every_kind_is_there():
    counts = {what: sum(entry[0] == what for entry in ENTRIES)
              for what in ("claim", "exercise", "figure", "heading", "name", "record")}
    assert (counts["claim"] > 200 and counts["exercise"] > 180 and counts["name"] > 1000
            and min(counts.values()) > 30), counts


def book(root: Path, **pages: list) -> list:
    "The entries of a book of these pages."
    for page, cells in pages.items():
        path = root / f"chapters/{page.replace('__', '/')}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cells": cells}))
    return manifest.listed(root)


CELLS = [{"cell_type": "markdown", "source": "## A heading\n\n```\n## none\n```"},
         {"cell_type": "code", "id": "drawn", "source": "claim(\n    \"it-holds\", 1)",
          "outputs": [{"data": {"text/html": ["<figure>"]}}]},
         {"cell_type": "code", "id": "x",
          "source": "#| export\ndef given(): pass\ndef _own(): pass", "outputs": []}]


def test_a_move_changes_the_page_only(tmp_path):
    before = book(tmp_path / "a", **{"depth/04_x": [], "04_x": CELLS})
    after = book(tmp_path / "b", **{"depth/04_x": CELLS, "04_x": []})
    assert ([entry[:2] for entry in before] == [entry[:2] for entry in after]
            == [("claim", "it-holds"), ("figure", "04_x drawn"), ("heading", "04_x A heading"),
                ("name", "04_x given")])
    assert ({entry[2] for entry in before} == {"chapters/04_x"} and {entry[2] for entry in after}
            == {"chapters/depth/04_x"})
    assert manifest.vanished(manifest.text(before), after, "") == []


@pytest.mark.parametrize("said, lost",
                         [("", ["claim it-holds"]), ("it-holds is gone", ["claim it-holds"]),
                          ("`it-holds` was two claims", [])])
def test_what_vanishes_is_named(tmp_path, said, lost):
    before, after = (book(tmp_path / "a", **{"04_x": CELLS}),
                     book(tmp_path / "b",
                          **{"04_x": [CELLS[0], {**CELLS[1], "source": "1"}, CELLS[2]]}))
    assert manifest.vanished(manifest.text(before), after, said) == lost
