"""`make bench`: a part's record carries its circumstances, and what lacks them is refused."""
import json
import sys
import types

import pytest

import bench.__main__ as runner
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


def test_the_parts_are_found_by_device():
    assert "attention_cost" in runner.parts("cpu") and "attention_cost" not in runner.parts("gpu")


@pytest.mark.parametrize("path", sorted(runner.RECORDS.glob("*.json")), ids=lambda p: p.stem)
def test_committed_records_are_whole_and_can_be_made_again(path):
    made = load_record(path.stem)
    assert made.name == path.stem in runner.parts("cpu") + runner.parts("gpu")
    assert json.loads(path.read_text())["commit"]
