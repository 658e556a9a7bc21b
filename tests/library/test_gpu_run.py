"""`make bench-gpu` without a GPU: the whole run in Triton's interpreter at tiny sizes, and runs
into which faults are put from outside."""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import sweep

from bench import gpu
from bench.gpu import STAGES, adopt, choose, compile, judge, kernels, settle
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
    return (kept | {"PATH": str(room), "TRITON_CACHE_DIR": str(room / "cache"),
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"})


# --- the whole, rehearsed -------------------------------------------------------------------------

@pytest.fixture(scope="module")
def rehearsal(machine, tmp_path_factory):
    "The folder of a run in two calls, and what both printed."
    folder = tmp_path_factory.mktemp("rehearsal") / "out"
    command = [sys.executable, "-W", "ignore", "-m", "bench", "--gpu", "--rehearse", "--out",
               str(folder), "--commit", "abc1234", "--seconds", "9000"]
    calls = [subprocess.run([*command, *stages], cwd=ROOT, env=machine, capture_output=True,
                            text=True) for stages in (["compile", "choose"], [])]
    assert ([done.returncode for done in calls]
            == [1, 0]), calls[0].stdout + calls[1].stdout + calls[1].stderr + (
                folder / "log.txt").read_text()[-3000:]
    return folder, [done.stdout for done in calls]


@pytest.fixture(scope="module")
def records(rehearsal, tmp_path_factory):
    "The records that the rehearsal becomes."
    target = tmp_path_factory.mktemp("records")
    said = adopt.adopt(rehearsal[0], target)
    assert not any("refused" in line for line in said), said
    return {name: parse_record((target / f"{name}.json").read_text()) for name in gpu.RECORDS}


@pytest.mark.whole
def test_a_call_goes_on_where_the_last_one_ended(rehearsal):
    folder, said = rehearsal
    journal = Journal(folder / "rows.jsonl")
    done = [(e["stage"], key(e["case"])) for e in journal.entries if e["what"] == "done"]
    assert len(done) == len(set(done)) and {stage for stage, _ in done} == {s.name for s in STAGES}
    ends = [e for e in journal.entries if e["what"] == "end"]
    assert [e["complete"] for e in ends] == [False, True] and ends[1]["missing"] == []
    assert (any(text.startswith("speed: ") and "not begun" in text for text in ends[0]["missing"])
            and not any(text.startswith("choose") for text in ends[0]["missing"]))
    assert ("Not complete; it lacks:" in said[0] and "Complete." in said[1]
            and not [e for e in journal.entries if e["what"] in ("failed", "given up", "broken")])


@pytest.mark.whole
def test_a_run_says_where_it_was_made(rehearsal, records):
    journal = Journal(rehearsal[0] / "rows.jsonl")
    call = journal.last("call")
    assert ((call["commit"], call["card"]["driver_version"], call["card"]["power.limit"])
            == ("abc1234", "570.86.15", "700.00"))
    rows = [row for stage in ("speed", "decode", "flex", "translators", "utilisation", "accounting",
                              "cache", "sparse", "experts") for row in journal.rows(stage)]
    assert (all(row["clock MHz"]["median"] == 1980 and row["power W"]["median"] == 650.5
                for row in rows) and len((rehearsal[0] / "card.csv").read_text().splitlines()) > 10)
    made = records["flash_gpu"]
    assert ((made.commit, made.driver, made.missing) == ("abc1234", "570.86.15", [])
            and {"torch", "numpy", "python"} <= set(made.versions))


@pytest.mark.whole
def test_speed_is_rehearsed(rehearsal, records):
    rows = records["flash_gpu"].rows
    assert {row["case"] for row in rows} == {"configuration", "yardstick", "sweep", "shared keys",
        "packed", "window", "ragged", "decode", "flex"}
    chosen = [(row["kernel"], row["causal"]) for row in rows if row.get("chosen") == "yes"]
    assert (sorted(chosen) == sorted((kernel, causal) for kernel in choose.KERNELS
                                     for causal in ("False", "True")))
    measured = [row for row in rows if "direction" in row and row["case"] != "flex"]
    # what is missing says why
    assert all({"ours ms", "product ms"} <= set(row) and "SDPA cuDNN: " in row["missing"]
               for row in measured)
    used = [s.case["configs"] for (stage, _),
        s in Journal(rehearsal[0] / "rows.jsonl").states.items() if stage == "speed"
        and s.case.get("D") == 16]
    # one for each kernel: what was chosen is what is timed
    assert all(len(configs) == len(choose.KERNELS) for configs in used)


@pytest.mark.whole
def test_the_page_draws_what_was_rehearsed(records):
    page = show_record(records["flash_gpu"])
    assert "<svg" in page.html and "ours" in page.alt
    shown = accuracy(records["flash_correct_gpu"])
    assert ("float32 and float16" in shown.alt
            and "64 tokens forwards and backwards added 0 MiB" in shown.html
            and shown.html.count("<rect") == 8)


REHEARSED = {  # record -> a column of its rows
    "flash_correct_gpu": ("case",
        ["accuracy"] * 4 + ["one sweep"] * 4
        + ["poison", "varlen", "varlen", "repetition", "length", "length"]),
    "utilisation_gpu": ("B", [1, 2]),
    "accounting_gpu": ("case", ["memory", "machine", "batch", "batch"]),
    "cache_speed_gpu": ("S", [8, 16]),
    "sparse_gpu": ("pattern", ["full", "window", "every fourth", "random blocks"] * 2),
    "scaling_gpu": ("case", ["text"] + 8 * ["run"]),
    "experts_gpu": ("E", [4, 8]), "state_speed_gpu": ("S", [80, 96])}


@pytest.mark.whole
@pytest.mark.parametrize("name", REHEARSED)
def test_other_records_are_rehearsed(records, name):
    column, wanted = REHEARSED[name]
    assert [row[column] for row in records[name].rows] == wanted


@pytest.mark.whole
def test_what_is_rehearsed_is_right(records):
    "Whose results differ would be missing; what is wrong would not be kept."
    exact, _, half, *_ = rows = records["flash_correct_gpu"].rows
    assert (all(row["kept"] == "yes" for row in rows)
        and exact["out error"]["median"] < 1e-5 < half["out error"]["median"] < 1e-2)
    assert ({row["model"] for row in records["translators_gpu"].rows} == {"one vector", "attention",
            "transformer"})
    for row in records["sparse_gpu"].rows:
        assert {"FlexAttention ms", "list, 16×16 ms", "list, 32×16 ms",
            "product ms"} <= set(row) and row["missing"] == "nobody"
        assert ("ours ms" in row) == (row["pattern"] in ("full",
            "window")) and row["pairs"] <= row["scores, list, 16×16"] <= row["scores, list, 32×16"]
    text, *runs = records["scaling_gpu"].rows
    assert all(text["loss"]["median"] < row["loss"]["median"] < 8 for row in runs)


@pytest.mark.whole
def test_a_folder_that_is_not_complete_is_adopted_only_when_told(rehearsal, tmp_path):
    part = tmp_path / "part"
    part.mkdir()
    lines = (rehearsal[0] / "rows.jsonl").read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if json.loads(line)["what"] == "done"
                and json.loads(line)["stage"] == "correct")
    (part / "rows.jsonl").write_text("".join(lines[:last + 1]) + '{"what": "row", "sta')
    said = adopt.adopt(part, tmp_path / "records")
    assert ([line.split(":")[0] for line in said] == [*adopt.RECORDS]
            and all("refused" in line for line in said) and not (tmp_path / "records").exists())
    said = adopt.adopt(part, tmp_path / "records", partial=True)
    assert ([line.split(":")[0] for line in said if "refused" not in line]
            == ["flash_correct_gpu", "flash_gpu"])
    made = json.loads((tmp_path / "records/flash_correct_gpu.json").read_text())
    assert (made["complete"] is False and parse_record(json.dumps(made)).missing
            == ["the last call did not end"])


# --- faults in what is measured -------------------------------------------------------------------

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
""",  # noqa: E501
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
""",  # noqa: E501
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
""",  # noqa: E501
}


@pytest.fixture(scope="module")
def faulty(machine, tmp_path_factory):
    "A run in which configurations and a rival are wrong."
    room = tmp_path_factory.mktemp("faulty")
    for name, text in WRONG.items(): (room / f"{name}.py").write_text(text)
    environment = (machine | {"PYTHONPATH": f"{machine['PYTHONPATH']}{os.pathsep}{room}",
                              "TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, HERE / "gpu_call.py", room / "out", "rehearsal", "9000",
                           "400", *(f"{n.split('_')[1]}={n}" for n in WRONG)],
                          cwd=ROOT, env=environment, capture_output=True, text=True)
    return Journal(room / "out/rows.jsonl"), done.stdout


@pytest.mark.whole
def test_only_a_right_configuration_is_chosen(faulty):
    """One whose result differs and one whose time is not a number are not taken, however fast
    they were."""
    missing = " ".join(row["missing"] for row in faulty[0].rows("choose"))
    assert ("dq, pointers 16×32, 4 warps, 1 stages: differs from the pointers by 1 of" in missing
            and "dkdv, pointers 16×32, 4 warps, 1 stages: its time is not a number" in missing)


@pytest.mark.whole
def test_a_choice_that_proves_wrong_is_replaced_by_the_next(faulty):
    journal, said = faulty
    first = [row for row in journal.rows("correct") if row["kept"] == "no"]
    blamed = {tuple(c[:2]) for row in first for c in row["blamed"]}
    assert (blamed == {("forward", "specialised"), ("dkdv", "specialised")}
            and any("misaligned" in row["off"] for row in first)), (blamed, said)
    cases = {tuple((c[0], c[1], c[5]) for c in s.case["configs"])
             for (stage, _), s in journal.states.items() if stage == "speed"}
    assert (cases == {(("forward", "pointers", 32), ("dkdv", "pointers", 32),
                       ("dq", "pointers", 32), ("sweep", "pointers", 32))})
    now = judge.current(journal, "rehearsal", "correct")
    assert all(row["kept"] == "yes" for row in now) and Counter(row["case"] for row in now) == {
        "accuracy": 4, "one sweep": 4, "poison": 1, "varlen": 2, "repetition": 1, "length": 2}


@pytest.mark.whole
def test_a_rival_that_is_wrong_or_fails_wins_no_race(faulty):
    full, causal = sorted(faulty[0].rows("speed"), key=lambda row: row["causal"])
    assert "SDPA math: differs from the others by" in full["missing"] and "SDPA math ms" not in full
    assert ("SDPA math: OutOfMemoryError: CUDA out of memory" in causal["missing"]
            and {"ours ms", "SDPA flash ms", "product ms"} <= set(full) & set(causal))


# --- faults in the machinery: (fault, entries that failed, cases that are done of four, what case 1

FAULTS = [
    ("", [], 4, "nobody"),
    ("loud", [], 4, "nobody"),
    ("sticky", [("flash", "RuntimeError: CUDA error: an illegal memory access was encountered")], 4,
     "flash: RuntimeError"),
    ("memory", [("flash", "MemoryError: CUDA out of memory. Tried to allocate 17 GiB")], 4,
     "flash: MemoryError"),
    ("hang", [("flash", "no end in 8 seconds")], 4, "flash: no end in"),
    ("killed", [("flash", "its process was ended by signal 9")], 4,
     "flash: its process was ended by signal 9"),
    ("exit", [("flash", "SystemExit: 3")], 4, "flash: SystemExit"),
    ("nan", [(None, "ValueError: Out of range float values are not JSON compliant")] * 2, 3, None),
]


def begun(machine: dict, folder: Path, *stages: str, fault: str = "", seconds: float = 900,
          patience: float = 400, stdout=subprocess.DEVNULL, **how) -> subprocess.Popen:
    "One call of a run of toys, which goes on."
    command = [sys.executable, HERE / "gpu_call.py", folder, "toy", str(seconds), str(patience)]
    return subprocess.Popen([*command, *(stages or ["one=gpu_toys"])], cwd=ROOT, stdout=stdout,
        text=True,
                            env={"TFM_COMMIT": "abc"} | machine | {"TFM_FAULT": fault}, **how)


def call(machine: dict, folder: Path, *stages: str, **how) -> subprocess.CompletedProcess:
    "One call of a run of toys, and what it said."
    process = begun(machine, folder, *stages, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    said = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def rows(journal: Journal, stage: str = "one") -> list[dict]:
    return sorted(journal.rows(stage), key=lambda row: row["n"])


@pytest.mark.parametrize("fault, failed, done, lacks",
                         [pytest.param(*f, id=f[0] or "none", marks=[] if f[0] in ("killed", "nan")
                                       else pytest.mark.whole) for f in FAULTS])
def test_a_fault_costs_its_contestant_and_no_more(machine, tmp_path, fault, failed, done, lacks):
    made = call(machine, tmp_path, fault=fault, patience=8 if fault == "hang" else 400)
    journal = Journal(tmp_path / "rows.jsonl")
    assert ([(e["contestant"], e["reason"].split(": nan")[0]) for e in journal.entries if e["what"]
             == "failed"] == failed), made.stdout + made.stderr
    found = {row["n"]: row for row in rows(journal)}
    assert (len(found) == done and (made.returncode == 0) == (done == 4)
            == journal.last("end")["complete"])
    for n, row in found.items():
        assert ({"ours ms", "cuDNN ms"} <= set(row) and ("flash ms" in row)
                == (n != 1 or lacks == "nobody") and row["siblings"] == 0)
    if lacks: assert found[1]["missing"].startswith(lacks)
    else:
        assert "one: 1 of 4 cases (ValueError: Out of range float values are not JSON compliant" in journal.last("end")["missing"][0]  # noqa: E501


def test_what_failed_is_tried_once_more(machine, tmp_path):
    "A second call repairs what the first could not measure; after two it is left."
    assert [call(machine, tmp_path, fault=fault).returncode for fault in ("nan", "")] == [1, 0]
    assert [row["n"] for row in rows(Journal(tmp_path / "rows.jsonl"))] == [0, 1, 2, 3]
    for _ in range(3): call(machine, tmp_path / "other", fault="nan")
    journal = Journal(tmp_path / "other/rows.jsonl")
    assert ([e["call"] for e in journal.entries if e["what"] == "given up"] == [1, 2]
            and not journal.last("end")["complete"])


@pytest.mark.parametrize("module, fault, says",
                         [("gpu_nobody", "", "No module named"),
                          ("gpu_toys", "no cases",
                           "LookupError: this stage does not know its cases")])
def test_a_stage_that_cannot_begin_does_not_end_the_run(machine, tmp_path, module, fault, says):
    made = call(machine, tmp_path, f"broken={module}", "one=gpu_toys", fault=fault)
    journal = Journal(tmp_path / "rows.jsonl")
    assert (made.returncode == 1 and says in journal.last("end")["missing"][0]
            and len(rows(journal)) == (0 if fault else 4))


def children(parent: int) -> list[int]:
    "The workers of a process."
    found = []
    for entry in Path("/proc").iterdir():
        try: line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError: continue
        if b"bench.gpu.worker" in line and str(parent).encode() in line:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("with_", sweep([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
@pytest.mark.parametrize("lines", sweep([1, 3, 6], 3))
def test_a_run_that_is_killed_is_read_and_continued(machine, tmp_path, lines, with_):
    """Whenever it is killed: its entries can be read, its workers end, and a second call makes
    the same record."""
    stages, path = ("one=gpu_toys", "two=gpu_toys"), tmp_path / "rows.jsonl"
    first = begun(machine, tmp_path, *stages)
    while first.poll() is None and (not path.is_file() or path.read_bytes().count(b"\n") < lines):
        time.sleep(.002)
    workers = children(first.pid)
    first.send_signal(with_)
    first.wait(60)
    before = Journal(path)
    assert len(before.entries) >= lines and before.lost == 0 and gone(workers)
    if with_ == signal.SIGTERM:
        assert before.last("end")["stopped"] == "SIGTERM" and not before.last("end")["complete"]
    again = call(machine, tmp_path, *stages)
    assert again.returncode == 0 and Journal(path).last("end")["complete"], again.stdout
    for stage in ("one", "two"):
        assert [row["n"] for row in rows(Journal(path), stage)] == [0, 1, 2, 3]


def test_a_worker_that_hangs_ends_with_its_parent(machine, tmp_path):
    first = begun(machine | {"TFM_HUNG": str(tmp_path / "hung")}, tmp_path, fault="hang")
    while first.poll() is None and not (tmp_path / "hung").is_file(): time.sleep(.01)
    [worker] = children(first.pid)
    first.kill()
    first.wait(60)
    assert gone([worker])


def gone(workers: list[int], seconds: float = 60) -> bool:
    "Have these processes ended, or do they within some time?"
    until = time.monotonic() + seconds
    while ((left := [pid for pid in workers if Path(f"/proc/{pid}").is_dir()])
           and time.monotonic() < until):
        time.sleep(.01)
    return not left


@pytest.mark.whole
def test_a_call_ends_when_its_seconds_are_over(machine, tmp_path):
    "A case that does not end is cut by the call's end, is no failure, and stays to be done."
    made = call(machine, tmp_path, fault="hang", seconds=3)
    journal = Journal(tmp_path / "rows.jsonl")
    assert (made.returncode == 1
            and not [e for e in journal.entries if e["what"] in ("failed", "given up")])
    assert (journal.last("end")["missing"][0].startswith("one: ")
            and journal.last("end")["seconds"] < 60)


def test_a_full_disk_corrupts_nothing(machine, tmp_path):
    """What cannot be written is said and kept in memory; what was written can be read, and the
    next call goes on from it."""
    def small(): resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    made = call(machine, tmp_path, preexec_fn=small)
    assert (made.returncode == 1 and "File too large; the run goes on" in made.stdout
            and "entries are not on the disk" in made.stdout)
    journal = Journal(tmp_path / "rows.jsonl")
    assert (0 < len(journal.entries) < 10 and journal.lost == 0
            and (tmp_path / "rows.jsonl").read_bytes().endswith(b"}\n"))
    assert (call(machine, tmp_path).returncode == 0
            and [row["n"] for row in rows(Journal(tmp_path / "rows.jsonl"))] == [0, 1, 2, 3])


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
    assert (made.returncode == 0 and journal.last("call")["card"] == {}
            and "nvidia-smi did not answer" in made.stdout)
    assert all("clock MHz" not in row for row in rows(journal))


def test_a_folder_holds_measurements_of_one_commit(machine, tmp_path):
    call(machine, tmp_path)
    done = call(machine | {"TFM_COMMIT": "def"}, tmp_path)
    assert (done.returncode == 1
            and "holds measurements of the commit abc, and this is def; expected an empty folder" in done.stderr)  # noqa: E501


# --- the parts ------------------------------------------------------------------------------------

class Found(Journal):
    "An empty journal."
    def __init__(self): super().__init__(Path("/nowhere/rows.jsonl"))


def test_everything_that_may_be_chosen_is_compiled_first():
    from tfmlib.flash_attention_gpu.kernels import CONFIGS
    launched = [case["config"] for case in compile.cases("full", Found())]
    assert ([c for c in CONFIGS if c.bits == 16 and c.width in (64, 128)
        and list(c) not in launched] == [] and None in launched)
    settled = settle.cases("full", Found())
    assert ({(c["D"], c["type"], c["causal"]) for c in settled if c["config"] == ["varlen"]}
            >= {(D, kind, True) for D in (64, 128) for kind in ("bfloat16", "float16", "float32")})


def test_a_window_is_not_for_gluon():
    "The fastest configuration that takes the mask is chosen; one that broke a bar is not."
    def timed(way, ms):
        return {"case": "configuration", "kernel": "forward", "D": 128, "causal": "True",
                "config": ["forward", way, 128, 16, None, 128, 128, 4, 2], "ms": {"median": ms}}
    rows = [timed("pointers", 3.), timed("descriptors", 2.), timed("gluon", 1.)]
    def found(blamed):
        return SimpleNamespace(rows=lambda stage: rows if stage == "choose"
                               else [{"blamed": blamed}])
    def ways(window, blamed=()):
        return [config[1] for config in choose.chosen(found(list(blamed)), 128, True, window)]
    assert ((ways(0), ways(1024), ways(0, [rows[2]["config"]])) == (["gluon"], ["descriptors"],
            ["descriptors"]))
    firsts = [c for c in choose.cases("full", Found()) if "first" in c]
    assert ({(c["way"], c["D"], c["causal"], bool(c["window"])) for c in firsts if c["way"]
             == "gluon"} == {("gluon", D, causal, False) for D in (64, 128)
                             for causal in (False, True)})


def test_a_record_names_what_was_refused_before_anything_was_timed(monkeypatch):
    """A kernel whose first run was wrong, or never ended, is missing beside those that were
    timed, with its reason; once, whatever the mask."""
    def config(way): return ["forward", way, 128, 16, None, 128, 128, 4, 2]
    def why(row):
        return (row | {"missing": f"{kernels.named(config('specialised'))}: differs from the "
                                  f"pointers by nan, {row.pop('by')} of the largest number"})
    shape = {"kernel": "forward", "D": 128, "causal": "True"}
    rows = [why({"case": "refused", **shape, "by": by})
            for by in (.2, .3)] + [{"case": "configuration", **shape, "causal": causal,
                                    "config": config("pointers"), "missing": missing}
                                                                           for causal,
                                   missing in (("True", "somebody: slow"), ("False", "nobody"))]
    failed = [({"first": True, "kernel": "forward", "D": 128, "causal": True,
                "configs": [config("gluon")]}, "no end in 20 seconds")]
    monkeypatch.setattr(adopt, "current", lambda *_: rows)
    monkeypatch.setattr(adopt, "chosen", lambda *_: [config("pointers")])
    causal, full = adopt.configurations(SimpleNamespace(rows=lambda stage: rows,
            failures=lambda stage: failed), "full")
    assert causal["missing"].split("; ") == [
        "forward, specialised 128×128, 4 warps, 2 stages: differs from the pointers by nan, 0.2 of "
        "the largest number",
                                             "forward, gluon 128×128, 4 warps, 2 stages: no end in "
                                             "20 seconds", "somebody: slow"]
    assert full["missing"] == "nobody" and causal["chosen"] == full["chosen"] == "yes"


@pytest.mark.parametrize("N, window", [(7, 3), (7, 7), (7, 20), (64, 1)])
def test_visible_pairs_are_counted(N, window):
    "By counting, and as the page counts."
    seen = sum(0 <= t - s < window for t in range(N) for s in range(N))
    row = {"B": 2, "H": 3, "N": N, "D": 16, "causal": "True", "window": window,
           "direction": "backward"}
    assert (judge.pairs(N, True, window) == seen and judge.flops(row) == 4 * 2 * 3 * seen * 16 * 2.5
            == credited(row))
    for other in ({"window": 0}, {"window": 0, "causal": "False"}):
        assert judge.flops(row | other) == credited(row | other)


def test_bars_are_judged_from_rows():
    def row(D, direction, causal, ms, flash):
        return {"case": "sweep", "N": 16_384, "D": D, "B": 1, "H": 2048 // D, "G": 2048 // D,
                "causal": causal, "window": 0, "direction": direction, "square": 8192,
        "ours ms": spread([ms]), "SDPA flash ms": spread([flash]), "product ms": spread([1.5])}
    rows = {"speed": [row(128, "forward", "False", 4.4, 6.), row(128, "backward", "True", 10., 8.)],
            "decode": [], "correct": [{"kept": "yes"}, {"kept": "no"}],
            "flex": [row(128, "forward", "False", 4., 1.) | {"FlexAttention ms": spread([5.]),
                    "FlexAttention (BLOCK_M 128) ms": spread([3.])}]}
    found = {what: value for what, _, value, _ in judge.bars(rows)}
    assert (found["forward, width 128, full: times SDPA's flash"] == pytest.approx(6 / 4.4)
            and found["forward, width 128, full: speed"] == pytest.approx(499.8, abs=.1))
    assert (found["backward, width 128, causal: times SDPA's flash"] == .8
            and found["never behind FlexAttention: the worst case"] == .75)
    assert (found["correct: rows that kept their bar"] == .5
            and found["forward, width 64, full: speed"] is None
            and found["decoding: part of the copy's bandwidth, the worst case"] is None)
    assert (found["part of the roofline, forward, the worst case"]
            == pytest.approx(499.8 / 733, rel=.01))
