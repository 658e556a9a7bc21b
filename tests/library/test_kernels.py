"""What tools/kernels.py says of a configuration: its hash, its faults, what it believes; and
that the shipped ones keep the bars."""
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import kernels  # noqa: E402

CONFIG = {"kernel": "forward", "way": "pointers", "width": 128, "bits": 16, "causal": None,
          "rows": 128, "cols": 64, "warps": 8, "stages": 2}
GOOD = {"config": CONFIG, "chip": 90, "mask": "full", "lengths": "even", "stamp": "s",
        "registers": 200, "spills": 0, "shared": 98304, "warps": 8, "wgmma": 24, "mma": 0,
        "serial": 0}


# what is asked of the version that is not locked
HARDEST = {("full", "ragged"), ("causal", "even"), ("causal", "ragged"), ("window", "ragged")}


def changed(**told) -> dict:
    "A good row with other values, of the configuration too."
    config = CONFIG | {key: value for key, value in told.items() if key in CONFIG}
    return (GOOD | {"config": config} | {key: value for key, value in told.items()
                                         if key not in CONFIG})


@pytest.mark.parametrize("row, said", [
    (changed(spills=8), "8 bytes spilled"), (changed(spills=8, kernel="dq"), "8 bytes spilled"),
    (changed(spills=8, kernel="dkdv"), "8 bytes spilled"),
    (changed(wgmma=0), "no tensor-core instructions"),
    (changed(chip=80), "no tensor-core instructions"),
    (changed(shared=232_449), "at most 232448"),
    (changed(chip=80, mma=9, shared=166_913), "at most 166912"),
    (changed(bits=32, shared=300_000), "at most 232448"),
    (changed(fails="ValueError: no"), "does not compile, ValueError: no"),
    (changed(mask="window", spills=4), "4 bytes spilled"),
    (changed(kernel="dkdv", mask="window", spills=20), "20 bytes spilled"),
    (changed(lengths="ragged", spills=12), "ragged, sm_90"),
    (changed(serial=1), "wait for one another (C7515)"),
    (changed(way="gluon", cols=128, between=65),
     "65 exponentials while a product is running; expected all 66")])
def test_faults_are_named(row, said):
    [fault] = kernels.faults(row)
    assert said in fault and f"sm_{row['chip']}" in fault


@pytest.mark.parametrize("row", [
    GOOD, changed(chip=80, wgmma=0, mma=512), changed(bits=32, spills=999, wgmma=0),
    changed(width=256, spills=20, serial=1), changed(kernel="decode", wgmma=0, mma=9),
    changed(way="gluon", cols=128, between=66), changed(way="descriptors", chip=80, shared=200_000,
            wgmma=0), changed(way="specialised", chip=80, fails="RuntimeError: assertion")])
def test_what_is_only_reported(row):
    assert kernels.faults(row) == []


PRODUCT, GIVE, EXP, FIRST, SECOND = ("HGMMA.64x128x16.F32.BF16 R24;\n",
                                     "@!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ;\n", "MUFU.EX2 R7, R7;\n",
                                     "WARPGROUP.DEPBAR.LE gsb0, 0x1;\n",
                                     "WARPGROUP.DEPBAR.LE gsb0, 0x0;\n")
# the first tile: nothing runs meanwhile
ALONE = PRODUCT + GIVE + SECOND + GIVE + 9 * EXP


@pytest.mark.parametrize("steps, count", [
    (2 * PRODUCT + GIVE + FIRST + GIVE + 3 * EXP + SECOND + GIVE, 3),
    # the loop with masks and that without: the worse counts
    (2 * PRODUCT + GIVE + FIRST + GIVE + 3 * EXP + SECOND + GIVE + 2 * PRODUCT + GIVE + FIRST + GIVE
     + 2 * EXP + SECOND, 2),
    # what ptxas made of it
    (2 * PRODUCT + GIVE + FIRST + GIVE + SECOND + GIVE + 3 * EXP, 0),
    # the turn late, the keys late
    (2 * PRODUCT + FIRST + GIVE + GIVE + 3 * EXP + SECOND, 0),
    (2 * PRODUCT + GIVE + FIRST + 3 * EXP + GIVE + SECOND, 0),
    # one of the two waits is missing
    (2 * PRODUCT + GIVE + FIRST + GIVE + 3 * EXP, 0),
    (2 * PRODUCT + GIVE + SECOND + GIVE + 3 * EXP, 0)])
def test_what_runs_under_a_product(steps, count):
    assert kernels.between(ALONE + steps + ALONE) == count


SOURCE = '''"words"
CONFIGS = [1]
ONE, TWO = 1, 2
def kernel(x):
    "More words."
    return x + ONE  # a comment
def start(x):
    return kernel(x)
def other(x): return x
'''


def test_the_hash_knows_code_from_words():
    """Words, the table of configurations, what no launch needs and the order of functions may
    change; what a launch needs may not."""
    head, kernel, start = SOURCE.split("def ")[:3]
    same = [SOURCE.replace("words", "other words"), SOURCE.replace("# a comment", ""),
            SOURCE.replace("[1]", "[1, 2]"),
            SOURCE.replace("other(x): return x", "other(x): return 2 * x"),
            head + "def " + start + "def " + kernel]
    assert {kernels.essence(text) for text in same} == {kernels.essence(SOURCE)}
    other = [SOURCE + "ONE[2] = 3\n", SOURCE + "ONE |= 3\n", SOURCE + "ONE.update(3)\n",
             SOURCE.replace("+ ONE", "- ONE"), SOURCE.replace("= 1, 2", "= 3, 2"),
             SOURCE.replace("kernel(x)\n", "kernel(2 * x)\n")]
    assert len({kernels.essence(text) for text in [SOURCE, *other]}) == 7
    rows = (GOOD, changed(stages=3), changed(chip=80), changed(mask="causal"),
            changed(lengths="ragged"))
    stamps = ([kernels.stamp(row, SOURCE, "3") for row in rows]
              + [kernels.stamp(GOOD, other[-1], "3"), kernels.stamp(GOOD, SOURCE, "4")])
    assert len(set(stamps)) == 7 and kernels.stamp(changed(registers=3), SOURCE, "3") == stamps[0]


def asked(*names: str) -> list[dict]:
    return [{"config": CONFIG, "chip": 90, "mask": "full", "lengths": "even", "stamp": name}
            for name in names]


def test_only_what_is_new_and_a_sample_is_compiled():
    kept, seen = {name: GOOD | {"stamp": name} for name in "abcdefgh"}, []
    def compile_them(rows):
        seen.extend(row["stamp"] for row in rows)
        return [row | {key: GOOD[key] for key in kernels.COUNTED} for row in rows]
    whole, wrong = kernels.judged(asked(*"abcdefgh", "new"), kept, compile_them)
    assert (seen[0] == "new" and len(seen) == 1 + kernels.SAMPLE and wrong == []
            and [row["stamp"] for row in whole] == [*"abcdefgh", "new"])


def test_a_kept_row_that_is_not_what_compiles_is_found():
    kept = {name: GOOD | {"stamp": name, "registers": 100} for name in "ab"}
    _, wrong = kernels.judged(asked("a", "b"), kept,
                              lambda rows: [row | {key: GOOD[key] for key in kernels.COUNTED}
                                            for row in rows])
    assert (len(wrong) == 2 and all("'registers': 100" in fault and "'registers': 200" in fault
                                    for fault in wrong))


def test_another_version_is_believed_and_missed():
    "What cannot be compiled here must be in the table, under its hash; its faults count."
    kept = {"a": GOOD | {"stamp": "a"}, "b": changed(spills=8) | {"stamp": "b"}}
    whole, wrong = kernels.believed(asked(*"abc"), kept)
    assert [row["stamp"] for row in whole] == ["a", "b"] and len(wrong) == 2
    assert ("not in the table; compile it with --triton" in wrong[0]
            and "8 bytes spilled" in wrong[1])


def run(*command: str) -> subprocess.CompletedProcess:
    "In a process of its own, without the interpreter."
    env = ({key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
           | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"})
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env,
                          capture_output=True, text=True)


@pytest.mark.whole
def test_the_shipped_configurations():
    """The committed table is complete, true where it is asked again, and every bar in it is
    kept; a newer Triton keeps them in a few rows."""
    triton = pytest.importorskip("triton")
    done = run("tools/kernels.py")
    assert done.returncode == 0, done.stderr[-3000:]
    if triton.__version__ in kernels.VERSIONS:
        assert re.search(rf"Triton {triton.__version__}: .*: 0 compiled, 3 of the others",
                         done.stdout), f"{done.stdout}run `python tools/kernels.py --write` and commit tfmlib/assets/kernels.json"  # noqa: E501


def test_the_table_holds_what_the_page_says():
    rows = json.loads(kernels.TABLE.read_text())["rows"]
    assert not [fault for row in rows for fault in kernels.faults(row)]
    assert (len({json.dumps(row["config"]) for row in rows}) <= 62 and {row["chip"] for row in rows}
            == {90, 80})
    bars = [row for row in rows if kernels.required(row)]
    cases = [(k, w, chip, mask, lengths, version) for k in ("forward", "dkdv", "dq", "sweep")
             for w in (64, 128) for chip in (90, 80)
             for mask, lengths in itertools.product(kernels.MASKS, kernels.LENGTHS)
             for version in kernels.VERSIONS
             if version == kernels.VERSIONS[0] or (mask, lengths) in HARDEST]
    assert ({(r["config"]["kernel"], r["config"]["width"], r["chip"], r["mask"], r["lengths"],
              r["triton"]) for r in bars} >= set(cases))
    kinds = ([("forward", "gluon", D, 90) for D in (64, 128)] + [("sweep", "gluon", 64, 90)]
             + [(kernel, "pointers", D, chip) for kernel in ("varlen", "varlen dkdv", "varlen dq")
                for D in (64, 128) for chip in (90, 80)])
    hardest = [("full", "ragged"), ("causal", "even"), ("causal", "ragged")]
    assert {(r["config"]["kernel"], r["config"]["way"], r["config"]["width"], r["chip"], r["mask"],
             r["lengths"], r["triton"]) for r in bars} >= {
        (*kind, *how, version) for kind in kinds for how in hardest for version in kernels.VERSIONS}


def test_a_page_number_is_fetched_a_step_ahead():
    """Decoding with pages keeps as many tiles on their way as without: it needs as much of the
    fast memory."""
    rows = [r for r in json.loads(kernels.TABLE.read_text())["rows"] if r["config"]["kernel"]
            == "decode" and r["config"]["bits"] == 16]
    shared = {(r["triton"], r["chip"], json.dumps(r["config"]), r["mask"],
               r["lengths"]): r["shared"] for r in rows}
    paged = [(key, most) for key, most in shared.items() if key[-1] == "ragged"
             and (*key[:-1], "even") in shared]
    assert len(paged) >= 20 and all(most == shared[*key[:-1], "even"] for key, most in paged)


def test_a_triton_in_a_folder_is_asked(tmp_path):
    "Another process finds it before the installed one; what it says when it fails is passed on."
    pytest.importorskip("triton")
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("__version__ = '9'")
    assert (kernels.with_triton(str(tmp_path), "-c",
                                "import triton; print(triton.__version__)") == "9\n")
    assert kernels.elsewhere(str(tmp_path), []) == []
    (tmp_path / "triton/__init__.py").write_text("raise RuntimeError('no compiler here')")
    with pytest.raises(RuntimeError,
                       match="(?s)expected a folder with Triton in it: .*no compiler here"):
        kernels.compilers(str(tmp_path))


CODE = """
import json, sys, kernels
if __name__ == "__main__":
    print(json.dumps(kernels.compile_all(json.loads(sys.argv[1]))))
"""


@pytest.mark.whole
def test_the_compiler_is_asked(tmp_path):
    """A tile too large for the registers is seen to spill; float16 compiles as bfloat16 does;
    what Triton refuses is said."""
    pytest.importorskip("triton")
    def row(**told):
        return ({"config": CONFIG | {key: value for key, value in told.items() if key in CONFIG},
                 "chip": 90, "mask": "causal"}
                | {key: value for key, value in told.items() if key not in CONFIG})
    rows = [row(way="descriptors", cols=128, type="float16"),
            row(kernel="dkdv", way="descriptors", cols=128), row(rows=100)]
    (tmp_path / "ask.py").write_text(CODE)
    done = run(str(tmp_path / "ask.py"), json.dumps(rows))
    fine, spilling, refused = json.loads(done.stdout.splitlines()[-1])
    assert (fine["spills"] == 0 < fine["wgmma"] and spilling["spills"] > 0
            and "power of 2" in refused["fails"])
