"""The proof runs the notebooks as two processors would: here it is shown that these are two."""
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import prove
import pytest
import torch

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
"""  # noqa: E501
NEW = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def probed(setting: str) -> dict[str, str]:
    env = ({k: v for k, v in os.environ.items() if k not in prove.SETTINGS["baseline"]}
           | prove.SETTINGS[setting] | {"OMP_NUM_THREADS": "1"})
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not NEW, reason="this processor has no AVX2 that could be taken away")
@pytest.mark.whole
def test_the_baseline_is_another_processor():
    """Each library that the notebooks compute with gives other last bits there, and the same
    ones each time."""
    native, again, other = probed("native"), probed("native"), probed("baseline")
    assert native == again
    same = {name for name in native if native[name] == other[name]}
    assert same <= {"PyTorch's products, by oneDNN",
                    "the C library"}, f"no difference in: {', '.join(sorted(same))}"


def test_both_are_in_the_proof(monkeypatch, tmp_path):
    """The notebooks run natively and as the baseline, with its variables; the quick part runs
    them natively alone."""
    runs = []
    monkeypatch.setattr(prove, "run", lambda *command, **how: runs.append((command, how)) or True)
    monkeypatch.setattr(prove, "chosen",
                        lambda given, setting: {prove.ROOT / "chapters/a.ipynb": "key"})
    for name, value in (("BUILD", tmp_path), ("PASSED", tmp_path / "passed.json")):
        monkeypatch.setattr(prove, name, value)
    whole, quick = (SimpleNamespace(quick=False, whole=True, fresh=False),
                    SimpleNamespace(quick=True, whole=False, fresh=False))
    assert prove.notebooks(whole) and prove.older(whole)
    (_, native), (_, old) = [r for r in runs if "pytest" in r[0]]
    assert (prove.SETTINGS["baseline"].items() <= old.items()
            and not prove.SETTINGS["baseline"].keys() & native.keys())
    assert prove.older(quick) and len([r for r in runs if "pytest" in r[0]]) == 2
