"""The proof runs the notebooks as two processors would: here it is shown that these are two."""
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import processors
import prove
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output

READS = ("",)
PROBE = """
import hashlib, json, math
import numpy as np
import torch

def bits(*arrays): return hashlib.md5(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
n = np.random.default_rng(0).standard_normal((97, 131))
t = torch.tensor(n)
print(json.dumps({
    "PyTorch's loops": bits(t.sum(1), t.softmax(1)),
    "PyTorch's products, by MKL": bits(t @ t.T, t.float() @ t.float().T),
    "PyTorch's products, by oneDNN": bits((t.bfloat16() @ t.bfloat16().T).float()),
    "NumPy's products": bits(n @ n.T),
    "NumPy's loops": bits(np.exp(n), np.tanh(n)),
    "the C library": bits(np.array([math.exp(x) for x in n.ravel()]))}))
"""
NEW = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def probed(setting: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in processors.SETTINGS["baseline"]} | processors.SETTINGS[setting] | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not NEW, reason="this processor has no AVX2 that could be taken away")
@pytest.mark.whole
def test_the_baseline_is_another_processor():
    "Each library that the notebooks compute with gives other last bits there, and the same ones each time."
    native, again, other = probed("native"), probed("native"), probed("baseline")
    assert native == again
    same = {name for name in native if native[name] == other[name]}
    assert same <= {"PyTorch's products, by oneDNN", "the C library"}, f"no difference in: {', '.join(sorted(same))}"


def test_both_are_in_the_proof(monkeypatch, tmp_path):
    "The notebooks run natively and as the baseline, with its variables; the quick part runs them natively alone."
    runs = []
    monkeypatch.setattr(prove, "run", lambda *command, **how: runs.append((command, how)) or True)
    monkeypatch.setattr(prove, "chosen", lambda given, setting: {prove.ROOT / "chapters/a.ipynb": "key"})
    for name, value in (("BUILD", tmp_path), ("PASSED", tmp_path / "passed.json")): monkeypatch.setattr(prove, name, value)
    whole, quick = SimpleNamespace(quick=False, whole=True, fresh=False), SimpleNamespace(quick=True, whole=False, fresh=False)
    assert prove.notebooks(whole) and prove.older(whole)
    (_, native), (_, old) = [r for r in runs if "pytest" in r[0]]
    assert processors.SETTINGS["baseline"].items() <= old.items() and not processors.SETTINGS["baseline"].keys() & native.keys()
    assert prove.older(quick) and len([r for r in runs if "pytest" in r[0]]) == 2


def test_a_cell_that_changes_is_seen(monkeypatch, tmp_path):
    "In any bit, in what is compared, or by an error."
    def book(shown, figure, raised=False):
        outputs = [[new_output("execute_result", data={"text/plain": shown}, execution_count=1)],
                   [new_output("display_data", data={"text/html": f'<figure class="tfm-figure">{figure}</figure>'})],
                   [new_output("error", ename="ClaimError", evalue="", traceback=[])] if raised else [],
                   [new_output("display_data", data={"text/html": f'<p>{shown}</p><figure class="tfm-figure">x</figure>'})]]
        return new_notebook(cells=[new_code_cell("1", id=i, outputs=o) for i, o in zip("abcd", outputs)])
    path = tmp_path / "n.ipynb"
    nbformat.write(book("0.1", "0.10"), path)
    monkeypatch.setattr(processors, "ROOT", tmp_path)
    monkeypatch.setattr(processors, "executed", lambda path, setting: {"native": book("0.1", "0.10"), "baseline": book("0.2", "0.11", True)}[setting])
    found = SimpleNamespace(**processors.examined(path, ["native", "baseline"])["settings"])
    assert found.native["raw"] == found.native["compared"] == found.native["raised"] == []
    assert found.baseline["raw"] == ["a", "b", "c", "d"] and found.baseline["compared"] == ["a", "c", "d"] and found.baseline["raised"] == ["c"]
