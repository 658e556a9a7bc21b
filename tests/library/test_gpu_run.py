"""`make bench-gpu` without a GPU: the whole run in Triton's interpreter at tiny sizes, and runs into which faults are put from outside."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import sweep

from bench import gpu
from bench.gpu import STAGES, adopt, card, choose, compile, correct, judge, kernels, run, settle, speed
from bench.gpu.journal import Journal, key
from tfmlib.flash_attention_gpu import accuracy, credited, show_record
from tfmlib.workbench import parse_record, spread

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parent
SMI = """#!/bin/sh
case "$*" in
  *-lms*) while :; do echo "1980, 650.5, 55"; sleep 0.1; done ;;
  *compute_cap*) echo "NVIDIA H200, 9.0, 570.86.15, 700.00, 1980, 3201, 143771" ;;
  *) echo "570.86.15" ;;
esac
"""
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    "A stand-in for nvidia-smi, an empty cache, and no git: the environment of the runs below."
    room = tmp_path_factory.mktemp("machine")
    (room / "nvidia-smi").write_text(SMI)
    (room / "nvidia-smi").chmod(0o755)
    for tool in ("sh", "sleep"): (room / tool).symlink_to(shutil.which(tool))
    kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "TFM_COMMIT")}
    return kept | {"PATH": str(room), "TRITON_CACHE_DIR": str(room / "cache"), "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}


# --- the whole, rehearsed -----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def rehearsal(machine, tmp_path_factory):
    "The folder of a run in two calls, and what both printed."
    folder = tmp_path_factory.mktemp("rehearsal") / "out"
    command = [sys.executable, "-W", "ignore", "-m", "bench", "--gpu", "--rehearse", "--out", str(folder), "--commit", "abc1234", "--seconds", "9000"]
    calls = [subprocess.run([*command, *stages], cwd=ROOT, env=machine, capture_output=True, text=True) for stages in (["compile", "choose"], [])]
    assert [done.returncode for done in calls] == [1, 0], calls[0].stdout + calls[1].stdout + calls[1].stderr + (folder / "log.txt").read_text()[-3000:]
    return folder, [done.stdout for done in calls]


@pytest.fixture(scope="module")
def records(rehearsal, tmp_path_factory):
    "The records that the rehearsal becomes."
    target = tmp_path_factory.mktemp("records")
    said = adopt.adopt(rehearsal[0], target)
    assert not any("refused" in line for line in said), said
    return {name: parse_record((target / f"{name}.json").read_text()) for name in gpu.RECORDS}


@pytest.mark.whole
def test_the_folder_can_be_brought_back(rehearsal):
    "At most eight files of 16 MiB, none in a folder of its own."
    files = list(rehearsal[0].iterdir())
    assert {f.name for f in files} == {"rows.jsonl", "card.csv", "log.txt", "judged.md"} and all(f.stat().st_size < 2**24 for f in files)


@pytest.mark.whole
def test_a_call_goes_on_where_the_last_one_ended(rehearsal):
    folder, said = rehearsal
    journal = Journal(folder / "rows.jsonl")
    done = [(e["stage"], key(e["case"])) for e in journal.entries if e["what"] == "done"]
    assert len(done) == len(set(done)) and {stage for stage, _ in done} == {s.name for s in STAGES}
    ends = [e for e in journal.entries if e["what"] == "end"]
    assert [e["complete"] for e in ends] == [False, True] and ends[1]["missing"] == []
    assert any(text.startswith("speed: ") and "not begun" in text for text in ends[0]["missing"]) and not any(text.startswith("choose") for text in ends[0]["missing"])
    assert "Not complete; it lacks:" in said[0] and "Complete." in said[1] and not [e for e in journal.entries if e["what"] in ("failed", "given up", "broken")]


@pytest.mark.whole
def test_a_run_says_where_it_was_made(rehearsal, records):
    journal = Journal(rehearsal[0] / "rows.jsonl")
    call = journal.last("call")
    assert (call["commit"], call["card"]["driver_version"], call["card"]["power.limit"]) == ("abc1234", "570.86.15", "700.00")
    rows = [row for stage in ("speed", "decode", "flex", "translators", "utilisation", "accounting", "cache", "sparse", "experts") for row in journal.rows(stage)]
    assert all(row["clock MHz"]["median"] == 1980 and row["power W"]["median"] == 650.5 for row in rows) and len((rehearsal[0] / "card.csv").read_text().splitlines()) > 10
    made = records["flash_gpu"]
    assert (made.commit, made.driver, made.missing) == ("abc1234", "570.86.15", []) and {"torch", "numpy", "python"} <= set(made.versions)


@pytest.mark.whole
def test_what_is_compiled_in_advance_is_found_in_the_cache(rehearsal, machine):
    "Compiled once: registers are counted; a process that launches the same finds it there, with tensors that have storage too."
    rows = Journal(rehearsal[0] / "rows.jsonl").rows("compile")
    assert rows and all(row["from the cache"] == "no" and row["registers"] > 0 for row in rows)
    case = next(s.case for (stage, _), s in Journal(rehearsal[0] / "rows.jsonl").states.items() if stage == "compile")
    done = subprocess.run([sys.executable, "-c", AGAIN, json.dumps(case)], cwd=ROOT, env=machine, capture_output=True, text=True)
    assert done.stdout.split() == ["yes", "0", "0", "1"], done.stdout + done.stderr[-2000:]


AGAIN = """
import json, sys
from unittest.mock import patch
import torch
from bench.gpu import compile, kernels
case = json.loads(sys.argv[1])
[row] = compile.measure("rehearsal", case, {}, None)
first = kernels.misses()
loaded, empty = kernels.load(), torch.empty
with compile.only_compiling(case["chip"]), patch("torch.empty", lambda *a, **k: empty(*a, **k | {"device": "cpu"})):
    compile.launch(loaded, case)
    stored = kernels.misses()
    compile.launch(loaded, case | {"T": case["T"] + 1, "S": case["S"] + 1})       # a length of another kind is another kernel
print(row["from the cache"], first, stored, kernels.misses())
"""


@pytest.mark.whole
def test_correctness_is_rehearsed(records):
    rows = records["flash_correct_gpu"].rows
    assert [row["case"] for row in rows] == ["accuracy"] * 4 + ["poison", "varlen", "varlen", "repetition", "length", "length"] and all(row["kept"] == "yes" for row in rows)
    assert rows[0]["out error"]["median"] < 1e-5 < rows[2]["out error"]["median"] < 1e-2


@pytest.mark.whole
def test_speed_is_rehearsed(rehearsal, records):
    rows = records["flash_gpu"].rows
    kinds = [row["case"] for row in rows]
    assert set(kinds) == {"configuration", "yardstick", "sweep", "shared keys", "window", "ragged", "decode", "flex"} and kinds.count("sweep") == 4 + 4 + 4
    chosen = [(row["kernel"], row["causal"]) for row in rows if row.get("chosen") == "yes"]
    assert sorted(chosen) == sorted((kernel, causal) for kernel in choose.KERNELS for causal in ("False", "True"))
    measured = [row for row in rows if "direction" in row and row["case"] != "flex"]
    assert all({"ours ms", "product ms"} <= set(row) and "SDPA cuDNN: " in row["missing"] for row in measured)     # what is missing says why
    assert all("SDPA flash ms" in row for row in measured if row["case"] != "window")
    assert ["SDPA math ms" in row for row in measured] == [row["N"] <= 16 for row in measured]
    assert {row["case"] for row in measured if "FlexAttention ms" in row} == {"sweep", "window"}
    assert [(row["T"], row["S"]) for row in rows if row["case"] == "decode"] == [(1, 64), (2, 64)]
    used = {tuple(map(tuple, s.case["configs"])) for (stage, _), s in Journal(rehearsal[0] / "rows.jsonl").states.items() if stage == "speed" and s.case.get("D") == 16}
    assert all(len(configs) == 3 for configs in used)                                          # one for each kernel: what was chosen is what is timed


@pytest.mark.whole
def test_the_page_draws_what_was_rehearsed(records):
    page = show_record(records["flash_gpu"])
    assert "<svg" in page.html and "ours" in page.alt
    shown = accuracy(records["flash_correct_gpu"])
    assert "float32 and float16" in shown.alt and "64 tokens forwards and backwards added 0 MiB" in shown.html and shown.html.count("<rect") == 8


@pytest.mark.whole
def test_other_records_are_rehearsed(records):
    assert {row["model"] for row in records["translators_gpu"].rows} == {"one vector", "attention", "transformer"}
    assert [(row["T"], row["B"]) for row in records["utilisation_gpu"].rows] == [(8, 1), (8, 2)]
    assert [row["case"] for row in records["accounting_gpu"].rows] == ["memory", "machine", "batch", "batch"]
    assert [row["S"] for row in records["cache_speed_gpu"].rows] == [8, 16]
    rows = records["sparse_gpu"].rows
    assert [(row["N"], row["pattern"]) for row in rows] == [(N, pattern) for N in (32, 20) for pattern in ("full", "window", "every fourth", "random blocks")]
    assert all({"FlexAttention ms", "list, 16×16 ms", "list, 32×16 ms", "product ms"} <= set(row) and row["missing"] == "nobody" for row in rows)      # whose results differ are missing
    assert all(("ours ms" in row) == (row["pattern"] in ("full", "window")) and row["pairs"] <= row["scores, list, 16×16"] <= row["scores, list, 32×16"] for row in rows)
    ladder = records["scaling_gpu"].rows
    assert [row["case"] for row in ladder] == ["text"] + 8 * ["run"] and len({(row["C"], row["D"], row["peak"]) for row in ladder[1:]}) == 8
    assert all(ladder[0]["loss"]["median"] < row["loss"]["median"] < 8 for row in ladder[1:])
    assert [row["E"] for row in records["experts_gpu"].rows] == [4, 8]
    assert [row["S"] for row in records["state_speed_gpu"].rows] == [80, 96]


@pytest.mark.whole
def test_a_folder_that_is_not_complete_is_adopted_only_when_told(rehearsal, tmp_path):
    part = tmp_path / "part"
    part.mkdir()
    lines = (rehearsal[0] / "rows.jsonl").read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if json.loads(line)["what"] == "done" and json.loads(line)["stage"] == "correct")
    (part / "rows.jsonl").write_text("".join(lines[:last + 1]) + '{"what": "row", "sta')
    said = adopt.adopt(part, tmp_path / "records")
    assert [line.split(":")[0] for line in said] == [*adopt.RECORDS] and all("refused" in line for line in said) and not (tmp_path / "records").exists()
    said = adopt.adopt(part, tmp_path / "records", partial=True)
    assert [line.split(":")[0] for line in said if "refused" not in line] == ["flash_correct_gpu", "flash_gpu"]
    made = json.loads((tmp_path / "records/flash_correct_gpu.json").read_text())
    assert made["complete"] is False and parse_record(json.dumps(made)).missing == ["the last call did not end"]


# --- faults in what is measured -----------------------------------------------------------------------------------

WRONG = {  # a module in place of a stage's: the stage as it is, with something wrong in it
    "wrong_choose": """
from bench.gpu.choose import *
from bench.gpu import choose, kernels
ORDER = {("specialised", 32): 1., ("pointers", 32): 2., ("pointers", 16): 3.}
def measure(*told):
    loaded = kernels.load()
    if not hasattr(loaded, "whole"):
        loaded.whole = loaded.trial
        def trial(config, inputs, others, *more):
            took = loaded.whole(config, inputs, others, *more)
            if (config.kernel, config.rows, config.cols) == ("dq", 16, 32): others[-1].mul_(2)       # fast and wrong
            if (config.kernel, config.rows) == ("dkdv", 16): return [float("nan")] * len(took)
            return [.5 if config.kernel == "dq" and config.rows == 16 else ORDER[config.way, config.rows]] * len(took)
        loaded.trial = trial
    return choose.measure(*told)
""",
    "wrong_correct": """
from bench.gpu.correct import *
from bench.gpu import correct, kernels
def measure(*told):
    loaded = kernels.load()
    if not hasattr(loaded, "right"):
        loaded.right = loaded.start
        def start(config, tensors, *more):
            if (config.kernel, config.way) == ("dkdv", "specialised"): raise RuntimeError("CUDA error: misaligned address")
            loaded.right(config, tensors, *more)
            if (config.kernel, config.way) == ("forward", "specialised") and tensors[0].shape[2] % 8: tensors[-1].add_(1)     # wrong for some lengths
        loaded.start = start
    return correct.measure(*told)
""",
    "wrong_speed": """
from dataclasses import asdict
from bench.gpu.speed import *
from bench.gpu import speed
right, SMALL = speed.pinned, ("sweep", "forward", 16)
def cases(name, found): return [c for c in speed.cases(name, found) if (c["kind"], c.get("direction"), c.get("N")) == SMALL and c["D"] == 16]
def pinned(backend, q, k, v, case):
    out = right(backend, q, k, v, case)
    if case.causal and "MATH" in str(backend): raise torch.OutOfMemoryError("CUDA out of memory")
    return out + 1 if "MATH" in str(backend) else out
speed.pinned = pinned
""",
}


@pytest.fixture(scope="module")
def faulty(machine, tmp_path_factory):
    "A run in which configurations and a rival are wrong."
    room = tmp_path_factory.mktemp("faulty")
    for name, text in WRONG.items(): (room / f"{name}.py").write_text(text)
    environment = machine | {"PYTHONPATH": f"{machine['PYTHONPATH']}{os.pathsep}{room}", "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, HERE / "gpu_call.py", room / "out", "rehearsal", "9000", "400", *(f"{n.split('_')[1]}={n}" for n in WRONG)],
                          cwd=ROOT, env=environment, capture_output=True, text=True)
    return Journal(room / "out/rows.jsonl"), done.stdout


@pytest.mark.whole
def test_only_a_right_configuration_is_chosen(faulty):
    "One whose result differs and one whose time is not a number are not taken, however fast they were."
    missing = " ".join(row["missing"] for row in faulty[0].rows("choose"))
    assert "dq, pointers 16×32, 4 warps, 1 stages: differs from the pointers by 1 of" in missing and "dkdv, pointers 16×32, 4 warps, 1 stages: its time is not a number" in missing


@pytest.mark.whole
def test_a_choice_that_proves_wrong_is_replaced_by_the_next(faulty):
    journal, said = faulty
    first = [row for row in journal.rows("correct") if row["kept"] == "no"]
    blamed = {tuple(c[:2]) for row in first for c in row["blamed"]}
    assert blamed == {("forward", "specialised"), ("dkdv", "specialised")} and any("misaligned" in row["off"] for row in first), (blamed, said)
    cases = {tuple((c[0], c[1], c[5]) for c in s.case["configs"]) for (stage, _), s in journal.states.items() if stage == "speed"}
    assert cases == {(("forward", "pointers", 32), ("dkdv", "pointers", 32), ("dq", "pointers", 32))}
    now = judge.current(journal, "rehearsal", "correct")
    assert len(now) == 10 and all(row["kept"] == "yes" for row in now)


@pytest.mark.whole
def test_a_rival_that_is_wrong_or_fails_wins_no_race(faulty):
    full, causal = sorted(faulty[0].rows("speed"), key=lambda row: row["causal"])
    assert "SDPA math: differs from the others by" in full["missing"] and "SDPA math ms" not in full
    assert "SDPA math: OutOfMemoryError: CUDA out of memory" in causal["missing"] and {"ours ms", "SDPA flash ms", "product ms"} <= set(full) & set(causal)


# --- faults in the machinery: (fault, entries that failed, cases that are done of four, what case 1 lacks) -----------

FAULTS = [
    ("", [], 4, "nobody"),
    ("loud", [], 4, "nobody"),
    ("sticky", [("flash", "RuntimeError: CUDA error: an illegal memory access was encountered")], 4, "flash: RuntimeError"),
    ("memory", [("flash", "MemoryError: CUDA out of memory. Tried to allocate 17 GiB")], 4, "flash: MemoryError"),
    ("hang", [("flash", "no end in 8 seconds")], 4, "flash: no end in"),
    ("killed", [("flash", "its process was ended by signal 9")], 4, "flash: its process was ended by signal 9"),
    ("exit", [("flash", "SystemExit: 3")], 4, "flash: SystemExit"),
    ("nan", [(None, "ValueError: Out of range float values are not JSON compliant")] * 2, 3, None),
]


def call(machine: dict, folder: Path, *stages: str, fault: str = "", seconds: float = 900, patience: float = 400, **how) -> subprocess.CompletedProcess:
    "One call of a run of toys."
    command = [sys.executable, HERE / "gpu_call.py", folder, "toy", str(seconds), str(patience), *(stages or ["one=gpu_toys"])]
    return subprocess.run(command, cwd=ROOT, env=machine | {"TFM_FAULT": fault, "TFM_COMMIT": "abc"}, capture_output=True, text=True, **how)


def rows(journal: Journal, stage: str = "one") -> list[dict]: return sorted(journal.rows(stage), key=lambda row: row["n"])


@pytest.mark.parametrize("fault, failed, done, lacks", [pytest.param(*f, id=f[0] or "none", marks=[] if f[0] in ("killed", "nan") else pytest.mark.whole) for f in FAULTS])
def test_a_fault_costs_its_contestant_and_no_more(machine, tmp_path, fault, failed, done, lacks):
    made = call(machine, tmp_path, fault=fault, patience=8 if fault == "hang" else 400)
    journal = Journal(tmp_path / "rows.jsonl")
    assert [(e["contestant"], e["reason"].split(": nan")[0]) for e in journal.entries if e["what"] == "failed"] == failed, made.stdout + made.stderr
    found = {row["n"]: row for row in rows(journal)}
    assert len(found) == done and (made.returncode == 0) == (done == 4) == journal.last("end")["complete"]
    for n, row in found.items(): assert {"ours ms", "cuDNN ms"} <= set(row) and ("flash ms" in row) == (n != 1 or lacks == "nobody") and row["siblings"] == 0
    if lacks: assert found[1]["missing"].startswith(lacks)
    else: assert "one: 1 of 4 cases (ValueError: Out of range float values are not JSON compliant" in journal.last("end")["missing"][0]


def test_several_workers_share_the_cases(machine, tmp_path):
    assert call(machine, tmp_path, "one*3=gpu_toys").returncode == 0
    found = rows(Journal(tmp_path / "rows.jsonl"))
    assert [row["n"] for row in found] == [0, 1, 2, 3] and len({row["process"] for row in found}) >= 2


def test_what_failed_is_tried_once_more(machine, tmp_path):
    "A second call repairs what the first could not measure; after two it is left."
    assert [call(machine, tmp_path, fault=fault).returncode for fault in ("nan", "")] == [1, 0]
    assert [row["n"] for row in rows(Journal(tmp_path / "rows.jsonl"))] == [0, 1, 2, 3]
    other = tmp_path / "other"
    for _ in range(3): call(machine, other, fault="nan")
    journal = Journal(other / "rows.jsonl")
    assert [e["call"] for e in journal.entries if e["what"] == "given up"] == [1, 2] and not journal.last("end")["complete"]


@pytest.mark.parametrize("module, fault, says", [("gpu_nobody", "", "No module named"), ("gpu_toys", "no cases", "LookupError: this stage does not know its cases")])
def test_a_stage_that_cannot_begin_does_not_end_the_run(machine, tmp_path, module, fault, says):
    made = call(machine, tmp_path, f"broken={module}", "one=gpu_toys", fault=fault)
    journal = Journal(tmp_path / "rows.jsonl")
    assert made.returncode == 1 and says in journal.last("end")["missing"][0] and len(rows(journal)) == (0 if fault else 4)


def test_a_worker_that_cannot_import_ends_its_stage_only(machine, tmp_path):
    "The process that hands out cases can import what the worker cannot."
    (tmp_path / "half.py").write_text("import sys\nif 'worker' in sys.argv[0]: raise ImportError('no such library here')\nfrom gpu_toys import *\n")
    made = call(machine | {"PYTHONPATH": f"{machine['PYTHONPATH']}{os.pathsep}{tmp_path}"}, tmp_path / "out", "broken=half", "one=gpu_toys")
    journal = Journal(tmp_path / "out/rows.jsonl")
    assert made.returncode == 1 and "no such library here" in journal.last("broken")["reason"] and len(rows(journal)) == 4


def children(parent: int) -> list[int]:
    "The workers of a process."
    found = []
    for entry in Path("/proc").iterdir():
        try: line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError: continue
        if b"bench.gpu.worker" in line and str(parent).encode() in line: found.append(int(entry.name))
    return found


@pytest.mark.parametrize("with_", sweep([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
@pytest.mark.parametrize("lines", sweep([1, 3, 6], 3))
def test_a_run_that_is_killed_is_read_and_continued(machine, tmp_path, lines, with_):
    "Whenever it is killed: its entries can be read, its workers end, and a second call makes the same record."
    command = [sys.executable, HERE / "gpu_call.py", tmp_path, "toy", "900", "400", "one=gpu_toys", "two=gpu_toys"]
    first = subprocess.Popen(command, cwd=ROOT, env=machine | {"TFM_COMMIT": "abc"}, stdout=subprocess.DEVNULL)
    path = tmp_path / "rows.jsonl"
    while first.poll() is None and (not path.is_file() or path.read_bytes().count(b"\n") < lines): time.sleep(.002)
    workers = children(first.pid)
    first.send_signal(with_)
    first.wait(60)
    before = Journal(path)
    assert len(before.entries) >= lines and before.lost == 0
    if with_ == signal.SIGTERM: assert before.last("end")["stopped"] == "SIGTERM" and not before.last("end")["complete"]
    assert gone(workers)
    again = subprocess.run(command, cwd=ROOT, env=machine | {"TFM_COMMIT": "abc"}, capture_output=True, text=True)
    journal = Journal(path)
    assert again.returncode == 0 and journal.last("end")["complete"], again.stdout
    for stage in ("one", "two"): assert [row["n"] for row in rows(journal, stage)] == [0, 1, 2, 3]


def test_a_worker_that_hangs_ends_with_its_parent(machine, tmp_path):
    command = [sys.executable, HERE / "gpu_call.py", tmp_path, "toy", "900", "400", "one=gpu_toys"]
    first = subprocess.Popen(command, cwd=ROOT, env=machine | {"TFM_COMMIT": "abc", "TFM_FAULT": "hang", "TFM_HUNG": str(tmp_path / "hung")}, stdout=subprocess.DEVNULL)
    while first.poll() is None and not (tmp_path / "hung").is_file(): time.sleep(.01)
    [worker] = children(first.pid)
    first.kill()
    first.wait(60)
    assert gone([worker])


def gone(workers: list[int], seconds: float = 60) -> bool:
    "Have these processes ended, or do they within some time?"
    until = time.monotonic() + seconds
    while (left := [pid for pid in workers if Path(f"/proc/{pid}").is_dir()]) and time.monotonic() < until: time.sleep(.01)
    return not left


def test_a_run_goes_on_when_nobody_listens(machine, tmp_path):
    "Its output is piped into something that ends: it still measures everything."
    command = [sys.executable, HERE / "gpu_call.py", tmp_path, "toy", "900", "400", "one=gpu_toys"]
    made = subprocess.Popen(command, cwd=ROOT, env=machine | {"TFM_COMMIT": "abc", "TFM_FAULT": "sticky"}, stdout=subprocess.PIPE)
    made.stdout.close()
    made.wait(120)
    assert Journal(tmp_path / "rows.jsonl").last("end")["complete"] and (tmp_path / "judged.md").is_file()


@pytest.mark.whole
def test_a_call_ends_when_its_seconds_are_over(machine, tmp_path):
    "A case that does not end is cut by the call's end, is no failure, and stays to be done."
    made = call(machine, tmp_path, fault="hang", seconds=3)
    journal = Journal(tmp_path / "rows.jsonl")
    assert made.returncode == 1 and not [e for e in journal.entries if e["what"] in ("failed", "given up")]
    assert journal.last("end")["missing"][0].startswith("one: ") and journal.last("end")["seconds"] < 60


def test_a_full_disk_corrupts_nothing(machine, tmp_path):
    "What cannot be written is said and kept in memory; what was written can be read, and the next call goes on from it."
    def small(): resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    made = call(machine, tmp_path, preexec_fn=small)
    assert made.returncode == 1 and "File too large; the run goes on" in made.stdout and "entries are not on the disk" in made.stdout
    journal = Journal(tmp_path / "rows.jsonl")
    assert 0 < len(journal.entries) < 10 and journal.lost == 0 and (tmp_path / "rows.jsonl").read_bytes().endswith(b"}\n")
    assert call(machine, tmp_path).returncode == 0 and [row["n"] for row in rows(Journal(tmp_path / "rows.jsonl"))] == [0, 1, 2, 3]


def test_half_a_line_is_no_entry(machine, tmp_path):
    call(machine, tmp_path)
    path = tmp_path / "rows.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"what": "row", "stage": "one", "ca')
    assert len(Journal(path).entries) == whole.count(b"\n")
    assert call(machine, tmp_path).returncode == 0 and Journal(path).lost == 0


def test_without_nvidia_smi_the_run_goes_on(machine, tmp_path):
    made = call(machine | {"PATH": str(tmp_path)}, tmp_path / "out")
    journal = Journal(tmp_path / "out/rows.jsonl")
    assert made.returncode == 0 and journal.last("call")["card"] == {} and "nvidia-smi did not answer" in made.stdout
    assert all("clock MHz" not in row for row in rows(journal))


def test_a_folder_holds_measurements_of_one_commit(machine, tmp_path):
    call(machine, tmp_path)
    done = subprocess.run([sys.executable, HERE / "gpu_call.py", tmp_path, "toy", "900", "400", "one=gpu_toys"], cwd=ROOT, env=machine | {"TFM_COMMIT": "def"}, capture_output=True, text=True)
    assert done.returncode == 1 and "holds measurements of the commit abc, and this is def; expected an empty folder" in done.stderr


def test_the_commit_is_told_or_asked_or_unknown(monkeypatch, tmp_path):
    monkeypatch.delenv("TFM_COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{7,}\+?|unknown", run.commit(None))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (run.commit(None), run.commit("abc")) == ("unknown", "abc")
    monkeypatch.setenv("TFM_COMMIT", "def")
    assert run.commit(None) == "def"


# --- the parts ----------------------------------------------------------------------------------------------------

class Found(Journal):
    "An empty journal."
    def __init__(self): super().__init__(Path("/nowhere/rows.jsonl"))


def test_the_table_of_stages_is_what_runs():
    told = re.findall(r"^\| (\w+) +\| .*\| +(\d+) s \| +(\d+) s \|$", gpu.__doc__, re.M)
    assert [(name, float(a), float(b)) for name, a, b in told] == [(s.name, s.expected, s.share) for s in STAGES]
    whole = sum(s.expected for s in STAGES)
    assert 2 * gpu.CALL < whole < 3 * gpu.CALL and f"about {round(whole, -2):,.0f}: three or four\ncalls" in gpu.__doc__
    assert {stage for stages in gpu.RECORDS.values() for stage in stages} <= {s.name for s in STAGES}


def test_everything_that_may_be_chosen_is_compiled_first():
    from tfmlib.flash_attention_gpu.kernels import CONFIGS
    first = compile.cases("full", Found())
    launched = [c["config"] for c in first]
    assert not [c for c in first if c["config"] and c["config"][1:2] == ["gluon"] and c["window"]]
    assert {(c["T"], c["S"]) for c in first if c["config"] == ["decode"]} >= {(T, S) for T in (1, 8, 16) for S in (131_072, 32_768, 4096)}
    wanted = [list(c) for c in CONFIGS if c.bits == 16 and c.width in (64, 128)]
    assert [c for c in wanted if c not in launched] == [] and None in launched
    settled = settle.cases("full", Found())
    assert {(c["D"], c["type"], c["causal"]) for c in settled if c["config"] == ["varlen"]} >= {(D, kind, True) for D in (64, 128) for kind in ("bfloat16", "float16", "float32")}
    assert {c["type"] for c in settled} == {"bfloat16", "float16", "float32"} and {c["D"] for c in settled} == {16, 32, 64, 128, 256}
    assert any(c["T"] % 16 for c in settled) and any(c["window"] for c in settled) and len(launched) + len(settled) < 700


@pytest.mark.parametrize("change, other", [({"T": 32, "S": 32}, False), ({"T": 33, "S": 33}, True), ({"causal": False}, True), ({"window": 8}, True), ({"type": "float16"}, True),
                                           ({"H": 8, "G": 2}, True), ({"B": 7}, False), ({"S": 40}, True)])
def test_launches_that_agree_are_compiled_once(change, other):
    launch = {"config": ["forward", "pointers", 64, 16, None, 32, 32, 4, 1], "B": 1, "H": 2, "G": 2, "T": 64, "S": 64, "D": 64, "type": "bfloat16", "causal": True, "window": 0}
    assert (compile.signature(launch | change) != compile.signature(launch)) == other


def test_what_hung_once_is_not_tried_again(tmp_path, monkeypatch):
    "A way that did not end for a kernel would cost its time limit at each further width and mask."
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = run.Run(tmp_path, STAGES[1:2], "rehearsal", 100, "abc")
    stage, cases = STAGES[1], [c for c in choose.cases("rehearsal", Found()) if "first" in c]
    hung = next(c for c in cases if c["kernel"] == "forward")
    made.timed_out[made.group(stage, hung)] = "no end in 20 seconds"
    assert [c["kernel"] for c in cases if not made.skipped(stage, c)] == [c["kernel"] for c in cases if c["kernel"] == "dkdv"]
    left = [c for c in choose.cases("rehearsal", made.journal) if "first" not in c]
    assert left and not any(c["kernel"] == "forward" and config[1] == "specialised" for c in left for config in c["configs"])
    assert any(config[1] == "specialised" for c in left for config in c["configs"])            # of the other kernel


def test_a_window_is_not_for_gluon():
    "The fastest configuration that takes the mask is chosen; one that broke a bar is not."
    def timed(way, ms): return {"case": "configuration", "kernel": "forward", "D": 128, "causal": "True", "config": ["forward", way, 128, 16, None, 128, 128, 4, 2], "ms": {"median": ms}}
    rows = [timed("pointers", 3.), timed("descriptors", 2.), timed("gluon", 1.)]
    def found(blamed): return SimpleNamespace(rows=lambda stage: rows if stage == "choose" else [{"blamed": blamed}])
    def ways(window, blamed=()): return [config[1] for config in choose.chosen(found(list(blamed)), 128, True, window)]
    assert (ways(0), ways(1024), ways(0, [rows[2]["config"]])) == (["gluon"], ["descriptors"], ["descriptors"])
    firsts = [c for c in choose.cases("full", Found()) if "first" in c]
    assert {(c["way"], c["D"], c["causal"], bool(c["window"])) for c in firsts if c["way"] == "gluon"} == {("gluon", D, causal, False) for D in (64, 128) for causal in (False, True)}


def test_a_record_names_what_was_refused_before_anything_was_timed(monkeypatch):
    "A kernel whose first run was wrong, or never ended, is missing beside those that were timed, with its reason; once, whatever the mask."
    def config(way): return ["forward", way, 128, 16, None, 128, 128, 4, 2]
    def why(row): return row | {"missing": f"{kernels.named(config('specialised'))}: differs from the pointers by nan, {row.pop('by')} of the largest number"}
    shape = {"kernel": "forward", "D": 128, "causal": "True"}
    rows = [why({"case": "refused", **shape, "by": by}) for by in (.2, .3)] + [{"case": "configuration", **shape, "causal": causal, "config": config("pointers"), "missing": missing}
                                                                           for causal, missing in (("True", "somebody: slow"), ("False", "nobody"))]
    failed = [({"first": True, "kernel": "forward", "D": 128, "causal": True, "configs": [config("gluon")]}, "no end in 20 seconds")]
    monkeypatch.setattr(adopt, "current", lambda *_: rows)
    monkeypatch.setattr(adopt, "chosen", lambda *_: [config("pointers")])
    causal, full = adopt.configurations(SimpleNamespace(rows=lambda stage: rows, failures=lambda stage: failed), "full")
    assert causal["missing"].split("; ") == ["forward, specialised 128×128, 4 warps, 2 stages: differs from the pointers by nan, 0.2 of the largest number",
                                             "forward, gluon 128×128, 4 warps, 2 stages: no end in 20 seconds", "somebody: slow"]
    assert full["missing"] == "nobody" and causal["chosen"] == full["chosen"] == "yes"


@pytest.mark.parametrize("N, window", [(7, 3), (7, 7), (7, 20), (64, 1)])
def test_visible_pairs_are_counted(N, window):
    "By counting, and as the page counts."
    seen = sum(0 <= t - s < window for t in range(N) for s in range(N))
    row = {"B": 2, "H": 3, "N": N, "D": 16, "causal": "True", "window": window, "direction": "backward"}
    assert judge.pairs(N, True, window) == seen and judge.flops(row) == 4 * 2 * 3 * seen * 16 * 2.5 == credited(row)
    for other in ({"window": 0}, {"window": 0, "causal": "False"}): assert judge.flops(row | other) == credited(row | other)


def test_bars_are_judged_from_rows():
    def row(D, direction, causal, ms, flash): return {"case": "sweep", "N": 16_384, "D": D, "B": 1, "H": 2048 // D, "G": 2048 // D, "causal": causal, "window": 0, "direction": direction, "square": 8192,
        "ours ms": spread([ms]), "SDPA flash ms": spread([flash]), "product ms": spread([1.5])}
    rows = {"speed": [row(128, "forward", "False", 4.4, 6.), row(128, "backward", "True", 10., 8.)], "decode": [], "correct": [{"kept": "yes"}, {"kept": "no"}],
            "flex": [row(128, "forward", "False", 4., 1.) | {"FlexAttention ms": spread([5.]), "FlexAttention (BLOCK_M 128) ms": spread([3.])}]}
    found = {what: value for what, _, value, _ in judge.bars(rows)}
    assert found["forward, width 128, full: times SDPA's flash"] == pytest.approx(6 / 4.4) and found["forward, width 128, full: speed"] == pytest.approx(499.8, abs=.1)
    assert found["backward, width 128, causal: times SDPA's flash"] == .8 and found["never behind FlexAttention: the worst case"] == .75
    assert found["correct: rows that kept their bar"] == .5 and found["forward, width 64, full: speed"] is None and found["decoding: part of the copy's bandwidth, the worst case"] is None
    assert found["part of the roofline, forward, the worst case"] == pytest.approx(499.8 / 733, rel=.01)


def test_samples_are_what_was_sampled_meanwhile():
    samples = card.Samples.__new__(card.Samples)
    samples.found = [(float(t), [1000. + t, 500., 50.]) for t in range(10)]
    assert samples.between(2, 4)["clock MHz"] == {"median": 1003., "q10": 1002.2, "q90": 1003.8, "n": 3} and samples.between(4.2, 4.4)["clock MHz"]["median"] == 1004.
    assert samples.between(-2, -1) == {} and card.middle([1., 2., 4., 9.]) == pytest.approx(spread([1., 2., 4., 9.]))


def test_contestants_take_turns_at_the_beginning(monkeypatch):
    began = []
    class Clock:
        def __init__(self, setting): pass
        def __call__(self, call): call(); return lambda: 1.
    monkeypatch.setattr(speed, "Clock", Clock)
    calls = {name: (lambda name=name: began.append(name)) for name in "abc"}
    assert speed.rounds(calls, speed.Setting(warm=1, repeats=4)) == dict.fromkeys("abc", [1.] * 4)
    assert "".join(began) == "abc" + "abc" + "bca" + "cab" + "abc"


def test_memory_is_read_before_anything_checks(monkeypatch):
    "A check allocates too; what is read after it is not the kernels' memory."
    order = []
    monkeypatch.setattr(speed, "peak", lambda call, device: order.append("peak") or 1.)
    monkeypatch.setattr(speed, "strange", lambda gave, most: order.append("check") or {})
    case = speed.Case("sweep", "forward", 4, 16, 1, 1, 1, False)
    setting = speed.Setting("cpu", torch.float32, square=4, repeats=1, warm=0, flush=4)
    row = speed.raced({"a": lambda q, k, v, case: q, "b": lambda q, k, v, case: q}, case, setting, {}, lambda *_, **__: None, case.tensors(setting, 0))
    assert order == ["peak"] * 4 + ["check"] and row["missing"] == "nobody" and {"a ms", "b MiB", "product ms"} <= set(row)


def test_every_kind_of_shape_is_tested_for_correctness():
    cases = correct.cases("full", Found())
    assert {c["type"] for c in cases if c["kind"] == "accuracy"} == {"bfloat16", "float16", "float32"} and {c["kind"] for c in cases} == {"accuracy", "poison", "varlen", "repetition", "lengths"}
    buried = [c["shape"] for c in cases if c["kind"] == "poison"]
    assert {shape[5] for shape in buried} == {64, 128} and any(shape[7] for shape in buried) and any(shape[1] != shape[2] for shape in buried)
    assert any(shape[1] != shape[2] for shape in (c["shape"] for c in cases if c["kind"] == "repetition"))


def test_the_kernels_are_asked_for_their_table_without_a_gpu():
    rows = kernels.fitting("forward", 64, 16, True)
    assert rows[0][1] != "pointers" and {row[2] for row in rows} >= {64, 128} and {row[1] for row in kernels.fitting("forward", 64, 16, True, capability=(8, 0))} == {"pointers"}
