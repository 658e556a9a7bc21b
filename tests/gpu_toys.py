"""Stages of a GPU run that measure nothing, and fail as TFM_FAULT says: sticky, nan, hang,
killed, memory, exit. They need neither GPU nor PyTorch."""
import os
import signal
import time
from pathlib import Path

FAULT, WHERE = os.environ.get("TFM_FAULT", ""), {"n": 1, "who": "flash"}
# after one error every later call of a process fails
BROKEN = False


def cases(setting: str, found) -> list[dict]:
    if FAULT == "no cases": raise LookupError("this stage does not know its cases")
    return [{"n": n} for n in range(4)]


def run(n: int, who: str) -> float:
    "One contestant in one case, or what goes wrong with it."
    global BROKEN
    if BROKEN: raise RuntimeError("CUDA error: an illegal memory access was encountered")
    time.sleep(.01)
    if {"n": n, "who": who} != WHERE: return 1. + n
    if FAULT == "sticky":
        BROKEN = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if FAULT == "nan": return float("nan")
    if FAULT == "hang":
        if "TFM_HUNG" in os.environ: Path(os.environ["TFM_HUNG"]).touch()
        time.sleep(600)
    if FAULT == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "memory": raise MemoryError("CUDA out of memory. Tried to allocate 17 GiB")
    if FAULT == "exit": raise SystemExit(3)
    return 1. + n


def siblings() -> int:
    "Other workers of the same run, alive now: one that hung must be gone before the next begins."
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try: line, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
        except OSError: continue
        found += (b"bench.gpu.worker" in line and state.rpartition(")")[2].split()[1]
                  == str(os.getppid()))
    return found - 1


def measure(setting: str, case: dict, without: dict, say):
    times = {}
    for who in ("ours", "flash", "cuDNN"):
        if who in without: continue
        say(who)
        times[f"{who} ms"] = {"median": run(case["n"], who), "n": 1}
    say(timing=True)
    if FAULT == "loud": print("what a library prints is no message", flush=True)
    yield {"n": case["n"], "process": os.getpid(), "siblings": siblings(), **times,
           "missing": "; ".join(f"{who}: {why}" for who, why in without.items()) or "nobody"}
