"""`make bench`: a part's record carries its circumstances, and what lacks them is refused."""
import importlib
import json
import re
import subprocess
import sys
import types

import pytest
import torch
from refusing import refuses

import bench.__main__ as runner
from bench import even_width, origin, over_seeds, rates, scaled
from tfmlib.workbench import load_record, parse_record, spread


@pytest.fixture
def part(monkeypatch):
    "A part that measures nothing much."
    module = types.ModuleType("bench.made_up")
    module.measure = lambda seed: [{"N": 8, "ms": spread([seed, 2.0, 4.0])}]
    monkeypatch.setattr(runner, "SEED", 3)
    monkeypatch.setitem(sys.modules, "bench.made_up", module)
    monkeypatch.setattr(runner, "digest", lambda name: f"sha256:of {name}")
    return module


def test_record_has_its_circumstances(part, tmp_path):
    path = runner.record("made_up", tmp_path)
    made = parse_record(path.read_text())
    assert ((made.name, made.seed, made.command, made.rows[0]["ms"]["median"])
            == ("made_up", 3, "make bench", 3.0))
    assert json.loads(path.read_text())["code"] == "sha256:of bench.made_up"
    assert made.device and made.commit and made.versions["torch"]
    assert "N=8  ms=3" in runner.table(path)


def test_a_record_of_kept_runs_says_so(part, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "KEPT", tmp_path)
    assert "runs" not in json.loads(runner.record("made_up", tmp_path / "none").read_text())
    (tmp_path / "made_up.jsonl").write_text("{}\n{}\n")
    said = json.loads(runner.record("made_up", tmp_path / "some").read_text())["runs"]
    assert said == "aggregated from kept runs, bench/runs/made_up.jsonl: 0 trained now, 2 before"


def test_committed_records_of_kept_runs_say_so():
    kept = {path.stem for path in (origin.ROOT / "bench/runs").glob("*.jsonl")}
    said = {path.stem: json.loads(path.read_text()).get("runs", "")
            for path in runner.RECORDS.glob("*.json")}
    assert (kept and {name for name, words in said.items()
                      if words.startswith("aggregated from kept runs")} == kept)


def test_a_number_without_spread_is_not_recorded(part, tmp_path):
    part.measure = lambda seed: [{"N": 8, "ms": 3.0}]
    refuses("row 0", runner.record, "made_up", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_cut_off_keeps_what_it_has(part, tmp_path):
    def measure(seed):
        yield {"N": 8, "ms": spread([1.0])}
        yield {"N": 16, "ms": spread([2.0])}
        raise TimeoutError("cut off")
    part.measure = measure
    with pytest.raises(TimeoutError): runner.record("made_up", tmp_path)
    assert ([row["N"] for row in parse_record((tmp_path / "made_up.json").read_text()).rows]
            == [8, 16])


def test_the_parts_are_found_by_device():
    assert "attention_cost" in runner.parts("cpu") and "attention_cost" not in runner.parts("gpu")


@pytest.mark.parametrize("path", sorted(runner.RECORDS.glob("*.json")), ids=lambda p: p.stem)
def test_committed_records_are_whole_and_can_be_made_again(path):
    made = load_record(path.stem)
    assert made.name == path.stem in runner.parts("cpu") + runner.parts("gpu")
    assert json.loads(path.read_text())["commit"]


def git(*words: str) -> str | None:
    "What git says here; nothing where it fails."
    done = subprocess.run(["git", *words], cwd=origin.ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def resolved(record: dict, known) -> bool:
    """Does a record say its code's digest, or an existing commit, or plainly that the code is
    not kept?"""
    if re.fullmatch("sha256:[0-9a-f]{64}", record.get("code", "")): return True
    named = re.findall(r"\b[0-9a-f]{7,40}\b", said := record["commit"])
    return "+" not in said and bool(named or "code not kept" in said) and all(map(known, named))


def test_the_origin_of_every_record_can_be_resolved():
    if git("rev-parse", "--is-shallow-repository") != "false": pytest.skip("no history here")
    def known(commit): return git("merge-base", "--is-ancestor", commit, "HEAD") is not None
    assert ([p.stem for p in sorted(runner.RECORDS.glob("*.json"))
             if not resolved(json.loads(p.read_text()), known)] == [])


@pytest.mark.parametrize("commit, holds",
                         [("abc1234", True), ("fff9999", False), ("abc1234+", False),
                          ("unknown", False), ("", False),
                                           ("code not kept", True),
                          ("code not kept; landed in fff9999", False)])
def test_what_resolves(commit, holds):
    assert resolved({"commit": commit}, {"abc1234"}.__contains__) == holds
    assert resolved({"commit": commit, "code": "sha256:" + 64 * "0"}, {"abc1234"}.__contains__)


def test_the_digest_follows_what_a_part_imports(tmp_path, monkeypatch):
    for name, text in {"bench/__init__": "", "bench/a": "def f():\n    from tfmlib.b import g",
                       "bench/c": "", "tfmlib/b": "from . import d", "tfmlib/d": "x = 1"}.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    before = origin.digest("bench.a")
    (tmp_path / "bench/c.py").write_text("y = 1")                          # not imported
    assert origin.digest("bench.a") == before
    (tmp_path / "tfmlib/d.py").write_text("x = 2")
    assert origin.digest("bench.a") != before
    refuses("module: got 'bench.none'", origin.digest, "bench.none")


def test_a_part_for_a_cpu_runs_on_one_thread_and_the_threads_come_back(part, tmp_path):
    threads, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    part.measure = lambda seed: seen.append(torch.get_num_threads()) or 1 / 0
    try:
        with pytest.raises(ZeroDivisionError): runner.record("made_up", tmp_path)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally: torch.set_num_threads(threads)


@pytest.mark.parametrize("name", runner.parts("cpu"))
def test_every_part_can_be_loaded(name):
    part = importlib.import_module(f"bench.{name}")
    assert callable(part.measure) and getattr(part, "SEED", runner.SEED) == runner.SEED


def test_units_of_a_spread():
    seconds = {"median": 2.0, "q10": 1.0, "q90": 4.0, "n": 3}
    assert scaled(seconds, 1e3) == {"median": 2000.0, "q10": 1000.0, "q90": 4000.0, "n": 3}
    assert rates(seconds, 8) == {"median": 4.0, "q10": 2.0, "q90": 8.0, "n": 3}
    assert over_seeds([{"a": 1.0}, {"a": 3.0}]) == {"a": spread([1.0, 3.0]) | {"each": [1.0, 3.0]}}
    assert even_width(lambda w: torch.nn.Linear(w, w), 42) == 6
