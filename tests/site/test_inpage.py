"""Practice in the page: the stand-in for PyTorch against PyTorch, the verdicts that it gives, and
what the book is built with.

The stand-in is called torch, so it runs in a process of its own; `tests/inpage_cases.py` is the
program.
"""
import inspect
import json
import math
import os
import re
import subprocess
import sys
import textwrap

import codemirror
import inpage_cases
import inpage_files
import kills
import pyodide
import pytest
import torch
from conftest import ROOT, sweep
from formulas import node_binary

import inpage
from tfmlib.practice.attention import check_effect

PAGES = [path.stem for path in kills.pages()]
ALONE = [page for page, found in inpage_files.elsewhere().items() if "*" in found]
CHECKED = [page for page in PAGES if page not in ALONE]
# on each commit; all pages in the whole proof
TRIED = ("04_attention",)
BOOK = {page["page"].rpartition("/")[2]: page
        for page in json.loads(kills.FILE.read_text(encoding="utf-8"))["pages"]}
# last bits, and what they become in 16 bits
CLOSE = {"torch.float64": 1e-11, "torch.float32": 3e-6, "torch.float16": 2e-3,
         "torch.bfloat16": 2e-2}
KINDS = ("stub", "solutions", "mutants")


def standing_in(*command: str, **how) -> subprocess.CompletedProcess:
    "Run Python with the stand-in in PyTorch's place."
    env = (os.environ | {"PYTHONPATH": str(ROOT / "inpage"), "OMP_NUM_THREADS": "1",
                         "OPENBLAS_NUM_THREADS": "1"})
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env,
                          cwd=ROOT, **how)


def said(*command: str):
    "What a program says with the stand-in."
    done = standing_in(str(ROOT / "tests/inpage_cases.py"), *command)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def python(code: str) -> str:
    "What a few lines print with the stand-in."
    done = standing_in("-c", "import torch, sys\nsys.path.append('.')\n" + code)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


# --- against PyTorch ------------------------------------------------------------------------------

def same(a, b) -> bool:
    "Do two results agree: types and shapes exactly, numbers but for the last bits?"
    if not isinstance(a, list) or not isinstance(b, list): return a == b
    if len(a) == 3 and str(a[0]) in CLOSE and a[:2] == b[:2]:
        return all(near(x, y, CLOSE[a[0]]) for x, y in zip(a[2], b[2]))
    return len(a) == len(b) and all(map(same, a, b))


def near(x: float, y: float, tol: float) -> bool:
    return x == y or math.isnan(x) and math.isnan(y) or abs(x - y) <= tol * (1 + abs(x))


@pytest.fixture(scope="module")
def theirs() -> dict[str, list]:
    "What PyTorch gives for each case."
    return json.loads(json.dumps(inpage_cases.cases()))


def different(theirs: dict, ours: dict) -> dict:
    return {name: (theirs[name], ours[name]) for name in theirs
            if not same(theirs[name], ours[name])}


def test_values_types_gradients_errors_and_random_numbers_are_those_of_pytorch(theirs):
    ours = said("cases")
    assert list(ours) == list(theirs) and len(ours) > 800 and different(theirs, ours) == {}
    assert not [name for name in theirs if theirs[name][0] == "error"
                and name in {f"{c} at {s}"
                             for c, s in inpage_cases.SMOOTH}], "PyTorch itself refuses a case"


@pytest.mark.whole
def test_they_are_the_same_in_pyodide(theirs, tmp_path):
    "Where integers for indices have 32 bits, and sums may run in another order."
    if not pyodide.there(): pytest.skip("Pyodide could not be downloaded at set-up")
    inpage_files.lay_out(tmp_path / "inpage")
    done = subprocess.run([node_binary(), ROOT / "tests/inpage_node.mjs", tmp_path / "inpage/py",
                           ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert different(theirs, json.loads(done.stdout)) == {}


def test_every_operation_is_compared():
    """Every operation of the stand-in runs in some case above, or is one of the few that are
    checked below."""
    code = """
    import json
    from torch import _modes
    names, made = set(), _modes.operation
    sys.path.insert(0, "tests")
    import inpage_cases
    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.add(operation.word)
            return operation(*args, **(kwargs or {}))
    with Names(): inpage_cases.cases()
    there = {x.op.word for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("torch.") for x in vars(m).values() if hasattr(x, "op")}
    print(json.dumps([sorted(there - names), len(there)]))
    """  # noqa: E501
    left, count = json.loads(python(re.sub(r"^    ", "", code, flags=re.M)))
    # composite: heard as their parts
    assert (count > 150 and set(left) <= {"linear", "nll_loss", "cross_entropy_loss", "lstm_cell",
                                          "multi_head_attention_forward"}), left


def test_layers_are_those_of_pytorch():
    def layer(t):
        with t.device("meta"):
            made = t.nn.TransformerEncoderLayer(6, 2, 8, dropout=0., batch_first=True)
        return {name: tuple(w.shape) for name, w in made.state_dict().items()}
    source = textwrap.dedent(inspect.getsource(layer))
    assert (json.loads(python(f"import json\n{source}\nprint(json.dumps(layer(torch)))"))
            == {name: list(shape) for name, shape in layer(torch).items()})




# --- what it lacks --------------------------------------------------------------------------------

SENTENCE = "not in the page's stand-in for PyTorch; run this one in Jupyter or Colab"


@pytest.mark.parametrize("code, name", [
    ("torch.compile", "torch.compile"), ("torch.nn.LSTM", "torch.nn.LSTM"),
    ("torch.nn.functional.conv1d", "torch.nn.functional.conv1d"),
    ("torch.linalg.expm", "torch.linalg.expm"),
    ("torch.zeros(2).lerp(torch.ones(2), .5)", "Tensor.lerp"),
    ("torch.zeros(2).sum(out=torch.zeros(1))", "sum(out=…)"),
    ("torch.Tensor(3)", "torch.Tensor(…)"),
    ("torch.multinomial(torch.ones(2), 3, replacement=True)",
     "torch.multinomial(replacement=True)"),
    ("torch.nn.functional.dropout(torch.ones(2))", "torch.nn.functional.dropout with p > 0"),
    ("torch.autograd.grad(torch.ones(1, requires_grad=True).sum(), torch.ones(1), "
     "create_graph=True)", "torch.autograd.grad(create_graph=True)"),
    ("torch.nn.Linear(2, 3)(torch.ones(2))", "numbers of a tensor that has none (meta, or unset)"),
    ("torch.func.vmap", "torch.func.vmap"),
    ("torch.linalg.qr(torch.eye(2).requires_grad_())", "the gradient of torch.linalg.qr"),
    ("(torch.ones(2, requires_grad=True) * 1j)", "gradients of complex numbers"),
    ("torch.ones(2, requires_grad=True).view(torch.int32)", "the gradient of view(dtype)"),
    ("setattr(torch.ones(2), 'data', torch.zeros(2))", "Tensor.data = …"),
    ("torch.ones(2).view(torch.int64)", "view(dtype) of another size"),
    ("torch.zeros(2, device='cuda')", "")])
def test_what_it_lacks_it_refuses_by_name(code, name):
    found = python(
        f"try: print('gave', {code})\nexcept Exception as error: "
        "print(error)\nprint(torch._absent.seen)")
    assert (found.startswith(f"{name}: {SENTENCE}\n") if name
            else "no device 'cuda' in the page" in found), found


def judged(source: str, page: str = "attention", name: str = "effect") -> dict:
    return json.loads(
        python(
            f"import json, judge\nprint(json.dumps(judge.verdict({page!r}, {name!r}, {source!r})))").splitlines()[-1])  # noqa: E501


def test_a_refusal_that_an_answer_swallows_is_no_verdict():
    source = (
        "def one_row(q, k, v):\n    try: return torch.lobpcg(k)\n    except Exception: return None")
    found = judged(source, name="one_row")
    assert (not found["passed"] and found["lacks"] == ["torch.lobpcg"] and found["lines"]
            == ["one_row: this answer cannot be checked here", f"torch.lobpcg: {SENTENCE}"])


def test_a_cell_that_does_not_run_is_told_with_its_line():
    assert judged("x = 1\ndef effect(:\n")["lines"][1] == "  fails: the cell runs (line 2)"
    assert (judged("x = 1\n\n1 / 0\n")["lines"][1:] == ["  fails: the cell runs (line 3)",
            "  it raised ZeroDivisionError: division by zero", "in line 3 of your answer: 1 / 0"])
    assert judged("print('x' * 9999)\n")["printed"] == "x" * 4000
    assert (judged("y = 2")["lines"][1:]
            == ["  fails: the cell defines effect", "  there is no effect after it"])
    assert judged("import sys; sys.exit(3)")["failed"] == "the cell runs (line 1)"


def test_an_error_in_a_checked_answer_is_told_with_its_line():
    "The line of the answer itself, not that of the checker or of the library in which it surfaced."
    found = judged(
        "import math\ndef effect(change):\n    change = change.lower()\n    return "
        "math.sqrt(change)\n\nx = 1\n")
    assert (found["line"] == 4 and found["lines"][-1]
            == "in line 4 of your answer: return math.sqrt(change)")
    wrong = judged("def effect(change): return 'same'")
    assert wrong["line"] is None and not wrong["passed"] and "line" not in " ".join(wrong["lines"])
    assert judged("x = 1\ndef effect(:\n")["line"] == 2


def test_an_empty_answer_is_told_from_a_wrong_one():
    empty = judged("def effect(change):\n    raise NotImplementedError('eight predictions')")
    assert not empty["passed"] and not empty["written"] and empty["line"] is None
    assert (empty["lines"] == ["– effect: nothing is written yet",
                               "  it still raises NotImplementedError"])
    assert judged(
        "def other(): raise NotImplementedError('x')\ndef effect(change): return other()")[
            "written"]


PASTED = """
import json, judge
found = {}
for name, source in json.loads(sys.stdin.read())["parts"].items():
    said = judge.verdict(PAGE, name, source["own"], printed=source["others"])
    if not said["passed"]: found[name] = said["lines"]
print(json.dumps(found))"""


@pytest.mark.slow
@pytest.mark.parametrize("stem", sweep(CHECKED, *TRIED, "03_tokens", "14_scaling_laws"))
def test_printed_solutions_pass_as_they_are(stem):
    """Pasted as the page prints them, under the name that they have there; they may call one
    another."""
    parts = {}
    for cell in inpage.cells_of(stem):
        tags, source = cell["metadata"].get("tags", []), "".join(cell["source"])
        if "solution" not in tags or "def " not in source: continue
        name = next(t for t in tags if t.startswith("exercise-"))[9:]
        # a solution may be printed in several cells
        parts[name] = f"{parts.get(name, '')}{source}\n\n"
    assert parts.keys() == inpage.titles_of(stem).keys()
    others = {name: "\n".join(other for about, other in parts.items() if about != name)
              for name in parts}
    asked = {"parts": {name: {"own": source, "others": others[name]}
                       for name, source in parts.items()}}
    code = (
        f"import torch, sys\nsys.path.append('.')\nPAGE = {inpage_files.module_of(stem)!r}{PASTED}")
    done = standing_in("-c", code, input=json.dumps(asked))
    assert done.returncode == 0, done.stderr[-3000:]
    elsewhere = inpage_files.elsewhere().get(stem, {})
    assert ({name: lines for name, lines in json.loads(done.stdout.splitlines()[-1]).items()
             if name not in elsewhere} == {})


def test_a_checker_tells_where_it_is_and_is_left_as_it_was():
    found = python("""
import judge, tfmlib.practice.attention as page
before = page.check_effect.properties
heard = []
judge.verdict("attention", "effect", "def effect(x): return None", lambda *at: heard.append(at))
print(heard[0][:2], page.check_effect.properties is before)""")
    assert found == f"(1, {len(check_effect.properties)}) True"


# --- the verdicts ---------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize("stem", sweep(CHECKED, *TRIED))
def test_verdicts_are_those_of_the_book(stem):
    """The same verdict and the same failing property for every stub, solution and wrong answer;
    and nothing was asked for that is not there."""
    found = said("verdicts", stem)
    assert found["page"]["errors"] == {} and found["lacking"] == {}
    elsewhere = inpage_files.elsewhere().get(stem, {})
    for ours, theirs in zip(found["page"]["exercises"], BOOK[stem]["exercises"], strict=True):
        if ours["name"] in elsewhere: continue
        assert ([(kind, v["name"], v["passed"], v["failed"]) for kind in KINDS for v in ours[kind]]
                == [(kind, v["name"], v["passed"], v["failed"]) for kind in KINDS
                    for v in theirs[kind]])


def test_few_exercises_are_left_to_jupyter():
    "At most five, besides the kernels of chapter 18; each says why."
    assert ALONE == ["18_flash_attention_gpu"]
    left = [(page, name, why) for page, found in inpage_files.elsewhere().items()
            for name, why in found.items() if page not in ALONE]
    assert (len(left) <= 5 and all(name in inpage.titles_of(page) and why.endswith(".")
                                   for page, name, why in left))


# --- what the book is built with ------------------------------------------------------------------

def test_numpys_wheel_is_the_one_that_is_pinned():
    assert inpage_files.numpy_wheel().stat().st_size < 3.2e6
    assert "NumPy Developers" in (ROOT / "inpage/LICENSE-NUMPY").read_text(encoding="utf-8")


def test_another_package_is_refused(tmp_path):
    other = tmp_path / "pyodide-0.27.7.tgz"
    other.write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected sha512-RUSVJlhQ"):
        pyodide.unpack(other, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_another_editor_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(codemirror, "kept", lambda: tmp_path / "kept")
    other = tmp_path / "codemirror-view-6.0.0.tgz"
    other.write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected sha512-"):
        codemirror.unpack("@codemirror/view", other)
    assert not codemirror.there() and not (tmp_path / "kept").exists()


def test_modules_become_one(tmp_path, monkeypatch):
    """Each way in which a package imports and exports; what is not known is refused, and so is
    nothing that only looks like it."""
    monkeypatch.setattr(codemirror, "kept", lambda: tmp_path)
    sources = {
        "crelt": "/** says */\nexport default function made() { return 'made'; }\n",
        "w3c-keyname": "// what\nexport var base = { 1: 'one' };\nexport class Kept {}\n",
        "@codemirror/state": "import made from 'crelt';\nimport { base as b,\n  Kept } from "
                             "\"w3c-keyname\";\nconst told = { import: 1, export: 2 };\nexport { "
                             "told as said, made, b };\nexport { Kept as Same } from "
                             "'w3c-keyname';\n"}
    monkeypatch.setattr(codemirror, "PACKAGES", {name: {"version": "1"} for name in sources})
    monkeypatch.setattr(codemirror, "OFFERED", {"state": "@codemirror/state"})
    for name, source in sources.items(): codemirror.file(name).write_text(source, encoding="utf-8")
    (tmp_path / "one.mjs").write_text(codemirror.bundle()
                                      + "console.log(JSON.stringify([$codemirror_state.said, "
                                        "$codemirror_state.made(), $codemirror_state.b, typeof "
                                        "$codemirror_state.Same]));", encoding="utf-8")
    done = subprocess.run([node_binary(), tmp_path / "one.mjs"], capture_output=True, text=True)
    assert (json.loads(done.stdout) == [{"import": 1, "export": 2}, "made", {"1": "one"},
                                        "function"]), done.stderr
    assert "says" not in codemirror.bundle() and "// what" not in codemirror.bundle()
    with pytest.raises(ValueError, match="export async function f"):
        codemirror.module("x", "export async function f() {}")


def test_without_codemirror_pages_are_told_so(tmp_path, monkeypatch):
    assert (inpage.told("04_attention", {}, "v")["code"] == inpage.told_chapter("04_attention", {},
            "v")["code"] == codemirror.there())
    monkeypatch.setattr(codemirror, "kept", lambda: tmp_path / "none")
    inpage_files.lay_out(tmp_path / "inpage")
    assert (not (tmp_path / "inpage/codemirror.js").exists()
            and (tmp_path / "inpage/editor.js").exists())
    assert inpage.told("04_attention", {}, "v")["code"] is inpage.told_chapter("04_attention", {},
            "v")["code"] is False


def test_another_numpy_is_refused():
    text = json.dumps({"info": {},
                       "packages": {"numpy": {"file_name": "numpy-9.whl", "sha256": "0"}}})
    with pytest.raises(inpage_files.ConfigError, match="another NumPy"): inpage_files.lock(text)


def test_without_a_network_the_book_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pyodide, "there", lambda: False)
    assert inpage_files.lay_out(tmp_path / "inpage") == {} and not (tmp_path / "inpage/py").exists()
    class App:
        inpage_sizes = {}
        def add_css_file(self, name): pass
    context = {"body": '<h1>Practice</h1>\n<p>Write your answer in the cell below.</p><div '
                       'class="cell tag_stub tag_exercise-effect docutils '
                       'container"><pre>x</pre></div>'}
    inpage.page(App(), "chapters/practice/04_attention", "", context, None)
    assert ("<em>Check</em> is not available" in context["body"]
            and "tfm-inpage" not in context["body"])


def test_the_same_files_make_the_same_book():
    assert (inpage_files.book_zip() == inpage_files.book_zip()
            and len(inpage_files.book_zip()) < 100_000)


def test_kernels_are_left_to_jupyter_on_their_page():
    cell = (
        '<div class="cell tag_stub tag_exercise-add_kernel docutils container">\n<div '
        'class="cell_input docutils container">\n<div><pre>x</pre></div>\n</div>\n</div>')
    assert "<strong>Jupyter or Colab only</strong>: the answers are Triton kernels" in inpage.only(
        "18_flash_attention_gpu", cell)
    assert inpage.only("04_attention", cell) == cell


@pytest.mark.parametrize("stem", CHECKED)
def test_a_page_is_told_of_its_exercises(stem):
    told = inpage.told(stem, {}, "v")
    assert (set(told["titles"]) == {e["name"] for e in BOOK[stem]["exercises"]} and told["page"]
            == inpage_files.module_of(stem))
    compile(told["imports"], stem, "exec")


def test_the_stand_in_is_never_on_the_books_own_path():
    "Only the worker and these tests import it."
    assert "stand-in" not in torch.__version__ and str(ROOT / "inpage") not in sys.path
