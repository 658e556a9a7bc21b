"""How practice page 18 runs a learner's kernel: in a process of its own, which nothing brings
down for good, whatever mode this one is in."""
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import sweep

READS = ("chapters/practice/18_",)
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]
import kills  # noqa: E402
import submissions  # noqa: E402

from tfmlib.practice import flash_attention_gpu as page  # noqa: E402
from tfmlib.workbench import Mismatch  # noqa: E402

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
NOTEBOOK = ROOT / "chapters/practice/18_flash_attention_gpu.ipynb"
TWO, PLAIN = tl.constexpr(2.), 2.


@triton.jit
def doubled(x): return x * TWO


@triton.jit
def by_a_helper(X, OUT, S, COLS: tl.constexpr):
    s = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(OUT + s, doubled(tl.load(X + s, mask=s < S, other=0.)), mask=s < S)


@triton.jit
def by_a_plain_number(X, OUT, S, COLS: tl.constexpr): tl.store(OUT, tl.load(X) * PLAIN)


@triton.jit
def without_other(X, OUT, S, COLS: tl.constexpr):
    s = tl.arange(0, COLS)
    tl.store(OUT + s, tl.sum(tl.load(X + s, mask=s < S)) + tl.zeros([COLS], tl.float32), mask=s < S)


@triton.jit
def reads_far_away(X, OUT, S, COLS: tl.constexpr): tl.store(OUT, tl.load(X + 10_000_000))


@triton.jit
def writes_beside(X, OUT, S, COLS: tl.constexpr):
    tl.store(OUT + tl.arange(0, COLS), tl.zeros([COLS], tl.float32))


@triton.jit
def writes_its_input(X, OUT, S, COLS: tl.constexpr): tl.store(X, 0.)


@triton.jit
def last_program_wins(X, OUT, S, COLS: tl.constexpr): tl.store(OUT, tl.program_id(0).to(tl.float32))


@triton.jit
def endless(X, OUT, S, COLS: tl.constexpr):
    while S > 0: S = S + 0


@triton.jit
def ends_its_process(X, OUT, S, COLS: tl.constexpr): os.abort()


def launched(kernel, size: int = 3, grid: int = 2):
    import torch
    return page._launch(kernel, (grid,), [torch.arange(1., size + 1), page._answer(size)],
                        size, COLS=4)


def test_a_kernel_is_run_with_what_it_calls_and_its_constants():
    found, counts = launched(by_a_helper, 5)
    assert found[1].tolist() == [2, 4, 6, 8, 10] and found[0].tolist() == [1, 2, 3, 4, 5]
    assert counts["masked_load"] == 8 and counts["fmul"] == 8


WRONG = [
    (by_a_plain_number, "PLAIN = 2 from outside"),
    (reads_far_away, "reads outside its tensors, 1 number"),
    (writes_beside, "writes outside its tensors, 1 number"),
    (writes_its_input, "tensor 1, which is only to be read"),
    (last_program_wins, "in reverse order, 1 number of tensor 2 comes out"),
    (ends_its_process, r"the process that ran it ended \(-6\)"),
    (lambda: None, "expected a kernel")]


@pytest.mark.parametrize("which", sweep(range(len(WRONG)), 0, 4, 5))
def test_what_goes_wrong_is_said_and_the_next_kernel_runs(which):
    kernel, said = WRONG[which]
    with pytest.raises(Mismatch, match=said): launched(kernel)
    assert launched(by_a_helper)[0][1].tolist() == [2, 4, 6]


def test_a_place_that_a_mask_leaves_out_is_nan():
    assert launched(without_other, grid=1)[0][1].isnan().all()


def test_a_kernel_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(page, "_SECONDS", 1)
    launched(by_a_helper)
    with pytest.raises(Mismatch, match="no end: stopped after 1 s"): launched(endless)


@pytest.mark.whole
def test_an_interrupted_check_does_not_leave_its_answer_to_the_next(monkeypatch):
    launched(by_a_helper)
    with monkeypatch.context() as m:
        m.setattr(page.pickle, "load", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt): launched(by_a_helper, 5)
    assert launched(by_a_helper)[0][1].tolist() == [2, 4, 6]


def test_without_triton_kernel_exercises_say_so_and_the_others_work(monkeypatch):
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    for name in ("delta_rows", "row_lse", "weights_again", "value_gradient", "scaled_heads"):
        result = getattr(page, f"check_{name}").examine(lambda *a, **k: None)
        assert not result.passed and "Triton is not installed here" in result.why
    def flops(N, D, rows, cols, causal): return page._flops(N, D, rows, cols, causal)
    assert page.check_backward_flops.examine(flops).passed


@pytest.mark.whole
def test_the_page_can_be_read_to_the_end_without_triton():
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton": raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else real(name, *a)
import json, kills
from pathlib import Path
page = kills.verdicts(Path(sys.argv[1]))
print(json.dumps([page["errors"], {e["name"]: (e["solutions"][0]["passed"], e["solutions"][0]["why"]) for e in page["exercises"]}]))
"""  # noqa: E501
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "PATH": "/usr/bin:/bin",
           "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(NOTEBOOK)], env=env,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors, said = json.loads(done.stdout)
    assert (errors == {} and {name for name, (passed, _) in said.items() if passed}
            == {"borders", "backward_flops", "best_config", "predicted", "faulty", "design"})
    assert all(passed or "Triton is not installed here" in why for passed, why in said.values())


def test_the_environment_of_a_page_ends_with_it():
    nb = {"cells": [{"cell_type": "code", "id": "a", "metadata": {},
                     "source": "import os\nos.environ['TRITON_INTERPRET'] = '1'\ndef f(): return 1"},  # noqa: E501
                    {"cell_type": "code", "id": "b", "metadata": {},
                     "source": "import inspect\nseen, source = os.environ['TRITON_INTERPRET'], "
                               "inspect.getsource(f)"}]}
    before = dict(os.environ)
    _, errors, names = kills.run(nb)
    assert (errors == {} and names["seen"] == "1" and names["source"] == "def f(): return 1"
            and dict(os.environ) == before)


@pytest.mark.whole
def test_a_submitted_kernel_is_graded(tmp_path):
    nb = nbformat.read(NOTEBOOK, as_version=4)
    answer = next(c.source for c in nb.cells if c.id == "delta-solution").replace("_solution", "")
    wrong = next(c.source for c in nb.cells if c.id == "heads-mutant-stored").split(
        "\n\n")[0].replace("reads_by_head_writes_flat", "scaled_heads")
    kept = [c for c in nb.cells if kills.kind_of(c) not in ("solution", "mutant")]
    for c in kept: c.source = {"delta-stub": answer, "heads-stub": wrong}.get(c.id, c.source)
    nb.cells = kept
    nbformat.write(nb, tmp_path / "one.ipynb")
    rows = {r["exercise"]: r for r in submissions.check([tmp_path / "one.ipynb"], seconds=60)}
    assert (rows["delta_rows"]["passed"] and "reverse order" in rows["scaled_heads"]["why"]
            and "NotImplementedError" in rows["row_lse"]["why"])


def test_no_tensor_lies_where_another_ends():
    """Else a number that is written beside one would be taken for another's, or not, as the
    memory happens to be."""
    import torch
    tensors = [page._apart(*page._padded(torch.ones(5, 16), 0)) for _ in range(20)]
    places = sorted((x.data_ptr(), x.data_ptr() + 4 * x.numel()) for x in tensors)
    assert (all(after - end >= 8 * page._ROOM for (_, end), (after, _) in zip(places, places[1:]))
            and all((x == 1).all() for x in tensors))
