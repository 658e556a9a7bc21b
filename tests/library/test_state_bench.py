"""Chapter 20's measurements: the task, equal parameters, bytes that are counted, runs that are
kept, and a step that takes itself back."""
import json
from pathlib import Path

import pytest
import torch
from conftest import sweep

from bench import size, state_control, state_language, state_recall, state_speed
from tfmlib.checkpoints import build
from tfmlib.linear_and_state_space import CachedHybridLM, SoftmaxMixer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_an_update_replaces_every_value():
    ids, values = state_recall.texts("update", 6, 40, 3)
    first, last, asked = ids[:, :12], ids[:, 12:24], ids[:, 24:]
    assert (ids.shape == (40, 30) and (first[:, ::2] == last[:, ::2]).all()
            and (first[:, 1::2] != last[:, 1::2]).float().mean() > .8)
    found = (asked[:, :, None] == last[:, None, ::2]).long().argmax(-1)
    assert (last[:, 1::2].gather(1, found) == values).all()                       # exact: token ids
    assert (state_recall.texts("recall", 6, 4, 3)[0] == state_recall.texts("update", 6, 4,
            3)[0][:, 12:]).all()


@pytest.mark.parametrize("kind", sweep(state_recall.MIXERS, "linear"))
def test_parameters_are_equal_to_one_per_cent(kind):
    wanted = size(state_recall.made("softmax", state_recall.MIDDLE, 0))
    for D in state_recall.SIZES:
        assert abs(size(state_recall.made(kind, D, 0)) - wanted) <= .01 * wanted
    other = size(state_language.made("gated delta", 0))
    assert (abs(size(state_language.made(kind if kind != "softmax" else "attention", 0)) - other)
            <= .01 * other)


def test_the_control_differs_from_linear_attention_in_the_mixing_alone():
    "As many parameters, of the same shapes: the frame is the same, the short convolution too."
    ours, other = state_control.made(0), state_language.made("linear", 0)
    shapes = [[(name, p.shape) for name, p in model.named_parameters()] for model in (ours, other)]
    assert shapes[0] == shapes[1]
    mixers = [block.attention.inner for block in ours.stack.blocks]
    assert len(mixers) == 2 and all(isinstance(m, SoftmaxMixer) and m.window is None
                                    and m.conv.kernel_size == (4,) for m in mixers)


def test_the_control_is_trained_as_the_others_are(monkeypatch):
    g = torch.Generator().manual_seed(0)
    few = torch.randint(2048, (60, state_language.LENGTH + 1), generator=g)
    monkeypatch.setattr(state_language, "texts", lambda part, n: few[part % 7:][:n])
    monkeypatch.setattr(state_language, "made", lambda kind, seed: state_control.made(seed))
    monkeypatch.setattr(state_language, "WARM", 1)
    for seed in (1, 100):                                # that tests, and that chooses the rate
        theirs = state_language.run(state_language.case("linear", .01, seed, 3))
        assert state_control.run(state_control.case(.01, seed, 3))["loss"] == theirs["loss"]


def test_bytes_are_counted():
    D, T, C = 8, 48, 32
    convolution = 4 * 3 * (2 * D + C)
    assert state_recall.state_bytes("softmax", D, T) == 2 * (4 * T * (D + C) + convolution)
    assert state_recall.state_bytes("window", D, T) == 2 * (4 * 8 * (D + C) + convolution)
    assert (state_recall.state_bytes("delta", D, T) == state_recall.state_bytes("delta", D, 10 * T)
            == 2 * (4 * D * C + convolution))
    assert state_recall.state_bytes("Mamba", D, T) == 2 * 4 * (D * C + 3 * C)


def test_a_run_is_kept_and_not_made_again(tmp_path, monkeypatch):
    calls = []
    def run(c): calls.append(c); return {"loss": abs(c["peak"] - .024)}
    monkeypatch.setattr(state_recall.RUNS, "path", tmp_path / "runs/state_recall.jsonl")
    monkeypatch.setattr(state_recall, "run", run)
    (tmp_path / "runs").mkdir()
    # beyond the end of the grid, and one more
    assert state_recall.rate_of("recall", "delta") == .024 and len(calls) == 5
    assert state_recall.rate_of("recall", "delta") == .024 and len(calls) == 5


@pytest.mark.whole
@pytest.mark.parametrize("part", [state_recall, state_language, state_control])
def test_the_record_is_what_the_kept_runs_say(part, monkeypatch):
    "Every run of it is in the file, made by the code that stands here; nothing is trained."
    monkeypatch.setattr(part, "run", None)
    monkeypatch.setattr(state_recall, "predicted", lambda *case: 0.)             # it takes a while
    record = json.loads(
        (ROOT / f"tfmlib/assets/records/{part.__name__.split('.')[1]}.json").read_text())
    quantity = {state_recall: lambda row: (row["task"], row["mixer"], row["D"],
                                           row["16 pairs" if row["task"] == "recall"
                                               else "8 pairs"]["each"]),
                state_language: lambda row: (row["mixer"], row["loss"]["each"],
                                             row["loss in equal time"]),
                state_control: lambda row: (row["mixer"], row["peak"], row["loss"]["each"])}[part]
    assert [quantity(row) for row in part.measure(0)] == [quantity(row) for row in record["rows"]]


@pytest.mark.parametrize("kind", state_speed.PATTERNS)
def test_a_step_takes_itself_back(kind):
    cached = CachedHybridLM(build(state_speed.config_of(kind, 31, 16, 4, 2, 101)).eval())
    with torch.no_grad():
        cache = state_speed.memory_after(cached, 100)
        before, step = state_speed.bytes_of(cache), state_speed.step_of(cached, cache)
        for _ in range(3): step()
    assert state_speed.bytes_of(cache) == before and int(cache.lengths) == 100
    layers = (sum(name == "attention" for name in state_speed.PATTERNS[kind])
              * 4 // len(state_speed.PATTERNS[kind]))
    assert (before >= layers * 2 * 100 * 16 * 4 and (layers == 4)
            == (before == layers * 2 * 100 * 16 * 4))
