"""How long a page runs and takes: its head says the one from a record and the other as counted,
in the book and in the copies alike, and types no time."""
import json
import re
from pathlib import Path

import durations
import myst
import pages
import pytest
from conftest import ROOT
from test_defects import build, small

RECORD = ROOT / "tfmlib/assets/records/pages.json"
EVERY = {p.relative_to(ROOT / "chapters").with_suffix("").as_posix(): "".join(
    json.loads(p.read_text())["cells"][0]["source"])
         for p in pages.notebook_files(ROOT / "chapters") if p.parent.name != "practice"}
HEADS = {name: head for name, head in EVERY.items() if not name.startswith("00") or name
         == "00_tour"}


@pytest.mark.parametrize("name", HEADS)
def test_head_says_it_from_the_record(name):
    "Each chapter whose page runs anywhere; the record's page is still about as long as this one."
    head = HEADS[name]
    assert not re.search(r"runs in (?!\{runtime\})", head), "a typed time"
    assert re.findall(r"\{runtime\}`([^`]*)`", head) == [name]
    rows = {row["page"]: row for row in json.loads(RECORD.read_text())["rows"]}
    code = sum(cell["cell_type"] == "code"
               for cell in pages.notebooks(ROOT)[f"chapters/{name}"]["cells"])
    assert (0.85 < rows[name]["cells"] / code < 1.15), f"{rows[name]['cells']} cells were measured, {code} are there: PYTHONPATH=. .venv/bin/python -m bench pages"  # noqa: E501



@pytest.mark.parametrize("name",
                         [name for name, head in EVERY.items() if "*Time:*" in head
                          or not name.startswith("00")])
def test_head_says_how_long_it_takes_as_counted(name):
    assert re.findall(r"\*Time:\* (\S+?)(?=[,.] )", EVERY[name]) == [f"{{minutes}}`{name}`"]


CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": "word " * 400},
    {"cell_type": "code", "metadata": {}, "source": "#| default_exp x\n# ten words"},
    {"cell_type": "code", "metadata": {}, "source": "#| export\nx = 1\n\ny = 2"},
    {"cell_type": "code", "metadata": {}, "source": "x = 1\nz = 3"},
    {"cell_type": "code", "metadata": {"tags": ["hide-input"]}, "source": "w = 4"},
    {"cell_type": "markdown", "metadata": {}, "source": "## More claims, checked\n\n"
     + "word " * 400},
    {"cell_type": "code", "metadata": {}, "source": "v = 5"},
    {"cell_type": "markdown", "metadata": {}, "source": "## What to take away"}]


@pytest.mark.parametrize("minutes, words",
                         [(2, "15 minutes"), (22, "15 minutes"), (23, "30 minutes"),
                          (58, "an hour"), (75, "1¼ hours"), (209, "3½ hours"), (240, "4 hours"),
                          (599, "10 hours"), (600, "10 hours"), (2000, "33 hours")])
def test_in_hours(minutes, words): assert durations.in_hours(minutes) == words


def test_a_chapter_with_a_page_in_depth_says_reading_and_building(tmp_path):
    "400 words at 180 a minute, a figure, and five lines in sight at four a minute."
    drawn = {"cell_type": "code", "metadata": {"tags": ["hide-input"]}, "source": "draw()",
             "outputs": [{"data": {"text/html": "<figure class='x'>"}}]}
    read, build = durations.estimate({"cells": [*CELLS[:1], *CELLS[2:5], drawn]})
    assert read == 400 / 180 + .5 and build == read + 5 / 4
    (tmp_path / "chapters/depth").mkdir(parents=True)
    for name in ("17_a", "depth/17_a"):
        (tmp_path / f"chapters/{name}.ipynb").write_text(
            json.dumps({"cells": [*CELLS[:1], *CELLS[2:5], drawn]}))
    assert (durations.reading(tmp_path, "17_a") == durations.reading(tmp_path, "depth/17_a")
            == "Read 5 min · Build 5 min (estimates)")


def test_a_section_of_a_page_in_depth_has_times_of_its_own(tmp_path):
    (tmp_path / "chapters/depth").mkdir(parents=True)
    text = {"cell_type": "markdown", "metadata": {}, "source": "word " * 900 + "\n\n## One, two\n\n"
            + "word " * 1800}
    last = {"cell_type": "markdown", "metadata": {}, "source": "## Three\n\nword"}
    code = {"cell_type": "code", "metadata": {}, "source": "x = 1\n" * 40, "outputs": []}
    (tmp_path / "chapters/depth/17_a.ipynb").write_text(
        json.dumps({"cells": [text, code, last, code]}))
    assert durations.reading(tmp_path, "depth/17_a#one-two") == "Read 10 min · Build 20 min"
    assert durations.reading(tmp_path, "depth/17_a#one-two three") == "Read 10 min · Build 30 min"
    with pytest.raises(ValueError, match="minutes #four: no such section"):
        durations.reading(tmp_path, "depth/17_a#three four")


def test_minutes_of_no_chapter(house):
    with pytest.raises(myst.Unresolved, match="minutes 05_b: no such chapter"):
        myst.Page(myst.Book(house), "chapters/05_b").resolve("{minutes}`05_b`")


FIRST = ("one", "two", "three", "four", "five", "six")


@pytest.mark.parametrize("name",
                         [p.stem for p in sorted(
                             (ROOT / "chapters/practice").glob("[0-9][0-9]_*.ipynb"))])
def test_practice_page_takes_as_long_as_its_exercises(name):
    "All of them, and the first ones that its head names."
    texts = ["".join(c["source"])
             for c in pages.notebooks(ROOT)[f"chapters/practice/{name}"]["cells"] if c["cell_type"]
             == "markdown"]
    times = [int(t) for text in texts for t in re.findall(r"^[●○]{3} · (\d+) minutes", text, re.M)]
    assert (len(times) == sum("```{exercise}" in text
                              for text in texts)), "each exercise says how long it takes"
    every, some, first = re.search(
        r"\*Time:\* (\d+) minutes for everything, (\d+) of them for the first (\w+)\.",
        texts[0]).groups()
    assert (int(every), int(some)) == (sum(times), sum(times[:FIRST.index(first) + 1]))


def test_bench_measures_what_the_heads_say():
    from bench import pages as measured
    assert ([p.relative_to(ROOT / "chapters").with_suffix("").as_posix()
             for p in measured.chapters()]
            == [name for name, head in HEADS.items() if "{runtime}" in head] != [])


@pytest.fixture
def house(tmp_path) -> Path:
    "A place with a record of one page."
    (tmp_path / "tfmlib/assets/records").mkdir(parents=True)
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").write_text("root: index\n")
    (tmp_path / "_config.yml").write_text("title: x\n")
    return tmp_path


def keep(house: Path, seconds: float) -> None:
    rows = [{"page": "04_a", "cells": 9, "seconds on the clock": {"median": seconds}}]
    (house / "tfmlib/assets/records/pages.json").write_text(json.dumps({"rows": rows}))


@pytest.mark.parametrize("seconds, words", [(0.4, "about 5 seconds"), (12.4, "about 10 seconds"),
                                            (12.6, "about 15 seconds"), (52.4, "about 50 seconds"),
                                            (52.6, "about a minute"),
                                            (74, "about a minute"), (76, "about 1½ minutes"),
                                            (118, "about 2 minutes"), (150, "about 2½ minutes"),
                                            (600, "about 10 minutes")])
def test_in_words(house, seconds, words):
    keep(house, seconds)
    assert (durations.runtime(house, "04_a") == words == myst.Page(myst.Book(house),
            "chapters/04_a").resolve("{runtime}`04_a`"))


def test_what_was_not_measured_is_an_error_that_names_the_command(house):
    for change in (lambda: None, lambda: keep(house, 1)):
        change()
        with pytest.raises(ValueError, match="bench pages measures it"):
            durations.runtime(house, "05_b")
        with pytest.raises(myst.Unresolved, match="runtime 05_b: not measured yet"):
            myst.Page(myst.Book(house), "chapters/05_b").resolve("{runtime}`05_b`")


@pytest.mark.slow
def test_the_book_says_it_too(book):
    name = next(name for name, head in HEADS.items() if "{runtime}" in head)
    assert f"runs in {durations.runtime(ROOT, name)} on one core" in (
        book / f"chapters/{name}.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_that_was_not_measured_fails_the_build(tmp_path):
    root = small(tmp_path)
    (root / "index.md").write_text((root / "index.md").read_text()
                                   + "\nIt runs in {runtime}`04_attention`, the other in "
                                     "{runtime}`05_nobody`.\n")
    status, log = build(root)
    assert status != 0 and "runtime 05_nobody: not measured yet" in log
    assert f"It runs in {durations.runtime(ROOT, '04_attention')}, the other" in (
        root / "_build/html/index.html").read_text(encoding="utf-8")
