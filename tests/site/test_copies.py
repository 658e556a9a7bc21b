"""What a reader need not have: cells use it only inside comparisons, and the Colab copies run
without it."""
import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import copies
import nbformat
import peer_rules
import pytest
import rules
import yaml
from conftest import ROOT, sweep
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from pages import notebook_files

RECORDED = set(json.loads((ROOT / "tfmlib/assets/compared.json").read_text(encoding="utf-8")))
COMPARES = 'compared("a", "peer", "a with b", f)'
HELPED = f"def g(): import peer\ndef f(): return g()\n{COMPARES}"


def test_an_error_in_a_copy_fails_the_run(tmp_path, monkeypatch, capfd):
    "The workflow reads the exit code."
    monkeypatch.setattr(copies, "environment", lambda python, venv: sys.executable)
    monkeypatch.setattr(sys, "argv",
                        ["copies.py", "--copies", str(tmp_path), "--env", str(tmp_path / "env")])
    (tmp_path / "chapters").mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    for first, bad in (("1 / 0", True), ("1", False)):
        for name, source in (("04_a", first), ("05_b", "1")):
            nbformat.write(new_notebook(cells=[new_code_cell(source, execution_count=1)],
                                        metadata=kernel), tmp_path / f"chapters/{name}.ipynb")
        with pytest.raises(SystemExit) as ended: copies.main()
        said = capfd.readouterr().out
        assert (bool(ended.value.code) == bad and f"{'1 failed, 1' if bad else '2'} passed" in said
                and "2 copies, Python and PyTorch 3." in said)


# --- in the chapters ------------------------------------------------------------------------------

@pytest.mark.whole
def test_cells_need_no_peer_outside_comparisons():
    assert not (found := peer_rules.faults(rules.cells(ROOT), RECORDED,
                                           peer_rules.given(ROOT))), "\n" + "\n".join(found)


def found_in(*sources: str, name: str = "chapters/04_x", recorded: tuple = ("a",)) -> list[str]:
    cells = [rules.Cell(f"{name} «{i}»", str(i), "code", source, set(), [])
             for i, source in enumerate(sources)]
    return peer_rules.faults({name: cells}, set(recorded), {"torch", "json"})


@pytest.mark.parametrize("sources", [
    ["def f():\n    import peer\n    return peer.x", COMPARES], [HELPED],
    ["import torch, json", f"def f(): from peer.b import c\n{COMPARES}"],
    ["def f(): import peer", 'x = compared("a", "peer", "a", lambda: [f() for _ in range(2)])'],
    ["def f(): import peer", f"claim('a', true_when=[{COMPARES}['b']])"],
    ['real_result("model", "a", f)']])
def test_comparison_is_no_fault(sources):
    assert found_in(*sources) == []


@pytest.mark.parametrize("sources, said", [
    (["import peer", f"def f(): pass\n{COMPARES}"],
     "«0»: «import peer» stands outside a comparison"),
    (["try: from peer.models import x\nexcept ImportError: x = None", COMPARES],
     "«0»: «from peer.models import x» stands outside"),
    (["def f(): import peer", COMPARES, "f()"],
     "«2»: uses f, which needs a peer, outside a comparison"),
    ([HELPED, "[g() for _ in range(3)]"], "«1»: uses g, which needs a peer"),
    (["class A:\n    def b(self): import peer", f"def f(): A().b()\n{COMPARES}\nA()"],
     "uses A, which needs a peer"),
    (["def f(): import other", COMPARES],
     "«0»: imports other, which no comparison of this page names"),
    (["m = importlib.import_module('other.part')", COMPARES], "imports other, which no comparison"),
    ([COMPARES, 'compared("b", "peer", "a", f)'], "«1»: no result of «b» is on record"),
    (["def f(path): import peer", 'real_result("model", "a", f)'],
     "uses f, which needs a peer, outside a comparison"),
    (['real_result("model", "b", f)'],
     "«0»: no result of «b» is on record; run it with TFM_REAL=record"),
    ([], "no cell compares «a»")])
def test_peer_outside_a_comparison_is_a_fault(sources, said):
    assert any(said in fault for fault in found_in(*sources)), found_in(*sources)


def test_a_key_belongs_to_one_notebook():
    book = {name: [rules.Cell(name, "1", "code", HELPED, set(), [])]
            for name in ("chapters/04_x", "chapters/05_y")}
    assert (peer_rules.faults(book, {"a"}, set())
            == ["chapters/05_y: the key «a» is that of a comparison in chapters/04_x"])


def test_chapter_18_alone_has_triton_its_own_way():
    for name, fault in (("chapters/18_flash_attention_gpu", False), ("chapters/04_x", True)):
        assert bool(found_in("import triton", name=name, recorded=())) == fault


def test_no_dependency_of_the_library_is_a_peer():
    known = peer_rules.given(ROOT)
    assert ({"torch", "sacrebleu", "yaml", "json", "tfmlib"} <= known and not known
            & {*copies.PEERS, "triton"})
    for module in (ROOT / "tfmlib").rglob("*.py"):
        if "flash_attention_gpu" not in str(module.relative_to(ROOT)):
            assert (peer_rules.peers_of(ast.parse(module.read_text(encoding="utf-8")), known)
                    == set()), module


# --- the copies -----------------------------------------------------------------------------------

HIDE = '''
import sys
class Hidden:
    "A finder that finds no peer."
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *rest): return None if name.partition(".")[0] in {hidden!r} else self.finder.find_spec(name, *rest)
sys.meta_path[:] = [Hidden(finder) for finder in sys.meta_path]
'''  # noqa: E501


@pytest.fixture
def reader(tmp_path) -> dict[str, str]:
    """The environment variables of a reader's kernel on this machine, in which no peer and no
    Triton can be imported."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/sitecustomize.py").write_text(HIDE.format(hidden={*copies.PEERS, "triton"}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFM_")}
    return (kept | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "hide"), str(ROOT)]),
                    "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"})


def test_hidden_packages_are_not_found(reader):
    """And on this machine the proof has what is hidden: otherwise the tests below would show
    nothing."""
    code = (
        "from importlib.util import find_spec as f; import torch; print(*[bool(f(n)) for n in "
        "('transformers', 'tokenizers', 'onnx', 'triton', 'numpy')])")
    assert (subprocess.run([sys.executable, "-c", code], env=reader, capture_output=True,
                           text=True).stdout.split() == [*["False"] * 4, "True"])
    assert all(find_spec(name) for name in copies.PEERS)


@pytest.mark.slow
@pytest.mark.parametrize("name, recorded",
                         sweep([("00_proof", True), ("depth/06_positions", True),
                                ("18_flash_attention_gpu", False),
                                ("practice/18_flash_attention_gpu", False)], ("00_proof", True)))
def test_copy_runs_without_peers(reader, tmp_path, name, recorded):
    import colab
    import myst
    made = colab.copy(ROOT / f"chapters/{name}.ipynb", myst.Book(ROOT), "0")
    nbformat.write(made, tmp_path / "copy.ipynb")
    nb = nbformat.read(tmp_path / "copy.ipynb", as_version=4)
    # an error ends it
    NotebookClient(nb, timeout=3600, kernel_name="python3",
                   resources={"metadata": {"path": tmp_path}}).execute(env=reader)
    asked = [key for c in made.cells if c.cell_type == "code" and "compared(" in c.source
             for key, _ in peer_rules.comparisons(ast.parse(c.source))]
    assert (bool(asked) == recorded and str(nb.cells).count(", so this cell does not compare")
            >= len(set(asked)) * recorded)


def test_nothing_of_the_checkout_reaches_a_copy(tmp_path):
    env = copies.clean({"PYTHONPATH": ".", "TFM_PEERS": "required", "JUPYTER_PATH": "x",
                        "IPYTHONDIR": "x", "PATH": "/bin", "PIP_CERT": "c"}, tmp_path)
    assert (env["PIP_CERT"] == "c" and env["PATH"] == f"{tmp_path / 'bin'}{os.pathsep}/bin"
            and not env.keys() & {"PYTHONPATH", "TFM_PEERS", "JUPYTER_PATH"})
    assert (env["IPYTHONDIR"].startswith(str(tmp_path))
            and env["JUPYTER_DATA_DIR"].startswith(str(tmp_path)))


@pytest.mark.whole
def test_copies_are_stamped_with_a_repository_of_this_checkout(tmp_path):
    "Its tag holds the library as it is here, so the set-up cell installs that."
    out = copies.written(tmp_path / "colab")
    sources = {nbformat.read(path, 4).cells[0].source for path in notebook_files(out)}
    [address] = {source.split('"git+')[1].split('"')[0] for source in sources}
    url, tag = address.rsplit("@", 1)
    assert url == (tmp_path / "repository").as_uri()
    shown = subprocess.run(["git", "-C", tmp_path / "repository", "show",
                            f"{tag}:tfmlib/assets/compared.json"], capture_output=True,
                           text=True, check=True)
    assert set(json.loads(shown.stdout)) == RECORDED


def test_weekly_runs_the_copies_by_this_tool_alone():
    job = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]["copies"]
    runs = "\n".join(step.get("run", "") for step in job["steps"])
    assert ("tools/copies.py --copies" in runs and "pip install" not in runs
            and "jupyter execute" not in runs)
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    assert (set(copies.INSTALLED) == {"torch", "matplotlib", "ipykernel", "nbval"}
            and not set(copies.INSTALLED) & set(copies.PEERS))
