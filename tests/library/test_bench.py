"""`make bench`: a part's record carries its circumstances, and what lacks them is refused."""
import importlib
import io
import json
import sys
import types

import pytest
import torch

import bench.__main__ as runner
from bench import even_width, over_seeds, rates, scaled, ticked
from tfmlib.proof import load_record, parse_record, spread


@pytest.fixture
def part(monkeypatch):
    "A part that measures nothing much."
    module = types.ModuleType("bench.made_up")
    module.DEVICE, module.SEED, module.measure = "cpu", 3, lambda seed: [{"N": 8, "ms": spread([seed, 2.0, 4.0])}]
    monkeypatch.setitem(sys.modules, "bench.made_up", module)
    return module


def test_record_has_its_circumstances(part, tmp_path):
    path = runner.record("made_up", tmp_path)
    made = parse_record(path.read_text())
    assert (made.name, made.seed, made.command, made.rows[0]["ms"]["median"]) == ("made_up", 3, "make bench", 3.0)
    assert made.device and made.commit and made.versions["torch"]
    assert "N=8  ms=3" in runner.table(path)


def test_a_number_without_spread_is_not_recorded(part, tmp_path):
    part.measure = lambda seed: [{"N": 8, "ms": 3.0}]
    with pytest.raises(ValueError, match="row 0"): runner.record("made_up", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_cut_off_keeps_what_it_has(part, tmp_path):
    def measure(seed):
        yield {"N": 8, "ms": spread([1.0])}
        yield {"N": 16, "ms": spread([2.0])}
        raise TimeoutError("cut off")
    part.measure = measure
    with pytest.raises(TimeoutError): runner.record("made_up", tmp_path)
    assert [row["N"] for row in parse_record((tmp_path / "made_up.json").read_text()).rows] == [8, 16]


def test_the_parts_are_found_by_device():
    assert "attention_cost" in runner.parts("cpu") and "attention_cost" not in runner.parts("gpu")


@pytest.mark.parametrize("path", sorted(runner.RECORDS.glob("*.json")), ids=lambda p: p.stem)
def test_committed_records_are_whole_and_can_be_made_again(path):
    made = load_record(path.stem)
    assert made.name == path.stem in runner.parts("cpu") + runner.parts("gpu")
    assert json.loads(path.read_text())["commit"]


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
    assert callable(part.measure) and isinstance(part.SEED, int)


def test_units_of_a_spread():
    seconds = {"median": 2.0, "q10": 1.0, "q90": 4.0, "n": 3}
    assert scaled(seconds, 1e3) == {"median": 2000.0, "q10": 1000.0, "q90": 4000.0, "n": 3}
    assert rates(seconds, 8) == {"median": 4.0, "q10": 2.0, "q90": 8.0, "n": 3}
    assert over_seeds([{"a": 1.0}, {"a": 3.0}]) == {"a": spread([1.0, 3.0]) | {"each": [1.0, 3.0]}}
    assert even_width(lambda w: torch.nn.Linear(w, w), 42) == 6


class Terminal(io.StringIO):
    def isatty(self) -> bool: return True


def test_cases_are_counted_in_a_terminal_and_not_in_a_log(monkeypatch):
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(ticked("abc", "length")) == ["a", "b", "c"]
        assert ("0/3" in stream.getvalue() and "length" in stream.getvalue()) == drawn == bool(stream.getvalue())
