"""The run: hands cases to workers, notes what they say, and replaces those that fail. It never
touches the GPU itself."""
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from bench.gpu import CALL, STAGES, Stage, card
from bench.gpu.journal import Journal, key, tell

ROOT = Path(__file__).resolve().parents[2]
LAST = 8.                      # seconds kept for the judgement
STARTING = 90.                 # seconds for a worker to import what it needs
# times the patience of a GPU's stages, for a rehearsal on a busy processor
SLOW = 20
TRIES = 8                      # of one case in one call


def commit(told: str | None = None) -> str:
    """The commit that is measured: as told, else as git says (+ if the tree differs, its records
    aside), else unknown."""
    if told := told or os.environ.get("TFM_COMMIT"): return told
    asked = [["git", "rev-parse", "--short", "HEAD"],
             ["git", "status", "--porcelain", "tfmlib", "bench", ":!tfmlib/assets/records"]]
    try:
        said = [subprocess.run(c, cwd=ROOT, capture_output=True, text=True,
                               check=True).stdout.strip() for c in asked]
    except (OSError, subprocess.CalledProcessError): return "unknown"
    return said[0] + ("+" if said[1] else "")


def machine(cache: Path) -> str:
    "A name for this machine's compiled kernels: a fresh machine has none."
    mark = cache / "machine"
    try:
        if not mark.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            mark.write_text(uuid.uuid4().hex)
        return mark.read_text()
    except OSError: return uuid.uuid4().hex


class Worker:
    "A process that computes cases of one stage."
    def __init__(self, stage: Stage, setting: str, log, environment: dict):
        command = [sys.executable, "-W", "ignore", "-m", "bench.gpu.worker", stage.module, setting,
                   str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=log, cwd=ROOT, env=environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.said, self.ready, self.case, self.until = b"", False, None, time.monotonic() + STARTING

    def give(self, case: dict, without: dict, attempt: str, patience: float) -> None:
        self.case, self.attempt, self.patience, self.contestant = case, attempt, patience, None
        self.began = self.timing = time.monotonic()
        if self.ready: self.until = self.began + patience
        try:
            self.process.stdin.write(
                json.dumps({"case": case, "without": without}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError: pass                                        # its end will be noticed

    def messages(self) -> list[dict]:
        "What it has said since last asked; a last message says that it is gone."
        gone = False
        try:
            while True:
                read = os.read(self.process.stdout.fileno(), 2**16)
                self.said += read
                if gone := not read: break
        except BlockingIOError: pass
        *lines, self.said = self.said.split(b"\n")
        return [json.loads(line) for line in lines] + ([{"gone": True}] if gone else [])

    def exit_reason(self) -> str:
        try: code = self.process.wait(5)
        except subprocess.TimeoutExpired: return "its process closed its output"
        return (f"its process was ended by signal {-code}" if code < 0
                else f"its process ended with {code}")

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            try: pipe.close()
            except OSError: pass
        try: self.process.wait(5)
        # the driver holds it; it costs no more than this
        except subprocess.TimeoutExpired: pass


class Run:
    "One call: as many stages and cases as its seconds allow, on top of what the folder holds."
    def __init__(self, folder: Path, stages: tuple[Stage, ...] = STAGES, setting: str = "full",
                 seconds: float = CALL, told: str | None = None, slack: float = 1):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.stages, self.setting, self.scale, self.slack = (folder, stages, setting,
                seconds / CALL, slack)
        self.start = time.monotonic()
        self.end = self.start + max(seconds - LAST * min(1, self.scale), 0)
        self.journal, self.stopped, self.broken = Journal(folder / "rows.jsonl"), "", {}
        self.without, self.faults, self.tried, self.timed_out = {}, {}, {}, {}
        facts, before = card.facts(), self.journal.last("call")
        told = commit(told)
        for name, was, now in (("commit", before.get("commit"), told),
                               ("setting", before.get("setting"), setting),
                               ("GPU", before.get("card", {}).get("name"), facts.get("name"))):
            if before and was != now:
                raise ValueError(
                    f"out: {folder} holds measurements of the {name} {was}, and this is {now}; "
                    "expected an empty folder")
        cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton/cache")
        self.machine, self.call = machine(cache), before.get("call", 0) + 1
        self.told = {"commit": told, "setting": setting, "card": facts,
                     "date": time.strftime("%Y-%m-%d"), "seconds": seconds, "machine": self.machine}
        self.environment = (os.environ | {"TRITON_CACHE_DIR": str(cache),
                                          "PYTHONPATH": os.pathsep.join([str(ROOT),
                                                  *filter(None, [os.environ.get("PYTHONPATH")])])})

    @staticmethod
    def opened(path: Path):
        try: return path.open("ab")
        except OSError: return subprocess.DEVNULL

    def go(self, names: list[str] | None = None) -> None:
        "All stages within their shares; then, with what is left, those that were cut."
        chosen = [s for s in self.stages if not names or s.name in names]
        others = [s for s in chosen if not s.here]
        before = {s: signal.signal(s, self.stop) for s in (signal.SIGTERM, signal.SIGINT)}
        self.journal.add("call", call=self.call, **self.told)
        self.samples, self.log = (card.Samples(self.folder / "card.csv"),
                                  self.opened(self.folder / "log.txt"))
        try:
            for share in (True, False):
                for stage in chosen:
                    # nobody needs it any more
                    if stage.here and others and not any(self.open_cases(s, set()) for s in others):
                        continue
                    began = time.monotonic()
                    self.work(stage, min(self.end, began + stage.share * self.scale) if share
                              else self.end)
        finally:
            self.samples.end()
            for s, handler in before.items(): signal.signal(s, handler)
        missing = self.missing()
        self.journal.add("end", call=self.call, complete=not missing, missing=missing,
                         stopped=self.stopped, seconds=round(time.monotonic() - self.start, 1))

    def stop(self, number, _) -> None: self.stopped = signal.Signals(number).name

    # --- what there is to do

    def cases(self, stage: Stage) -> list[dict]:
        """The cases of a stage, as far as one can know from what was found; none, and a reason,
        if its module cannot say."""
        try: return importlib.import_module(stage.module).cases(self.setting, self.journal)
        except Exception as error:
            self.give_up_stage(stage,
                               f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return []

    def give_up_stage(self, stage: Stage, why: str) -> None:
        if stage.name in self.broken: return
        self.broken[stage.name] = why
        self.journal.add("broken", stage=stage.name, reason=why, call=self.call)
        tell(f"  {stage.name}: {why}")

    def finished(self, stage: Stage, case: dict) -> bool:
        done = self.journal.state(stage.name, case).done
        return done is not None and (not stage.here or done["machine"] == self.machine)

    def open_cases(self, stage: Stage, busy: set[str]) -> list[dict]:
        """The cases that somebody can begin now: not done, not in work, not given up in this
        call or in two."""
        if stage.name in self.broken: return []
        found = [c for c in self.cases(stage) if not self.finished(stage, c) and key(c) not in busy]
        calls = {key(c): [e["call"] for e in self.journal.state(stage.name, c).given_up]
                 for c in found}
        return [c for c in found if len(calls[key(c)]) < 2 and self.call not in calls[key(c)]]

    def missing(self) -> list[str]:
        "What a complete record would have besides, in words."
        lacking = []
        for stage in self.stages:
            # code that is compiled later is no loss
            cases = self.cases(stage) if stage.name not in self.broken and not stage.here else []
            if why := self.broken.get(stage.name): lacking.append(f"{stage.name}: {why}")
            if left := [c for c in cases if not self.finished(stage, c)]:
                why = {s["reason"] for c in left
                       for s in self.journal.state(stage.name, c).given_up[-1:]}
                lacking.append(f"{stage.name}: {len(left)} of {len(cases)} cases"
                               + (f" ({'; '.join(sorted(why)[:3])})" if why else ", not begun"))
        return lacking

    # --- doing it

    def work(self, stage: Stage, until: float) -> None:
        "Let workers compute the open cases of a stage; begin none after `until`."
        workers, most, began = [], stage.workers or os.cpu_count() or 1, time.monotonic()
        self.selector = selectors.DefaultSelector()
        try:
            while not self.stopped and time.monotonic() < self.end:
                todo = (self.open_cases(stage, {key(w.case) for w in workers if w.case})
                        if time.monotonic() < until else [])
                if not todo and not any(w.case for w in workers): break
                for case in todo:
                    if self.skipped(stage, case): continue
                    worker = next((w for w in workers if not w.case), None)
                    if worker is None:
                        if len(workers) == most: break
                        workers.append(worker := Worker(stage, self.setting, self.log,
                                self.environment
                                | ({"CUDA_VISIBLE_DEVICES": ""} if stage.here else {})))
                        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                    name = (stage.name, key(case))
                    self.tried[name] = self.tried.get(name, 0) + 1
                    worker.give(case, self.without.get(name, {}), f"{self.call}.{self.tried[name]}",
                                stage.patience * self.slack)
                for ready, _ in self.selector.select(.25):
                    for message in ready.data.messages(): self.handle(stage, ready.data, message)
                for worker in [w for w in workers if w.case and time.monotonic() > w.until]:
                    self.fail(stage, worker, f"no end in {worker.patience:g} seconds"
                              if worker.ready
                              else f"its process was not ready in {STARTING:g} seconds",
                              timed_out=True)
                for worker in [w for w in workers if w.process is None]: workers.remove(worker)
        finally:
            for worker in workers:
                if worker.process: worker.end()
            self.selector.close()
        if (took := time.monotonic() - began) > .5: tell(f"{stage.name}: {took:.0f} s")

    def skipped(self, stage: Stage, case: dict) -> bool:
        "Give a case up unseen if another of its group did not end."
        why = self.timed_out.get(self.group(stage, case))
        if why:
            self.journal.add("given up", stage=stage.name, case=case, call=self.call,
                             reason=f"another of its group: {why}")
        return bool(why)

    def group(self, stage: Stage, case: dict):
        return ((stage.name, *(str(case[k]) for k in stage.grouped_by)) if stage.grouped_by
                and all(k in case for k in stage.grouped_by) else None)

    def handle(self, stage: Stage, worker: Worker, said: dict) -> None:
        "One message of a worker."
        if worker.process is None: return
        now, told = time.monotonic(), {"stage": stage.name, "case": worker.case, "call": self.call}
        if "ready" in said:
            worker.ready, worker.until, worker.began = True, now + worker.patience, now
            if (said["ready"] and not stage.here
                and not any(e["what"] == "machine" and e["call"] == self.call
                            for e in self.journal.entries)):
                self.journal.add("machine", call=self.call, circumstances=said["ready"])
        elif "row" in said:
            sampled = self.samples.between(worker.timing, now) if stage.timed else {}
            self.journal.add("row", **told, attempt=worker.attempt, row=said["row"] | sampled)
            worker.timing = now
        elif "done" in said:
            self.journal.add("done", **told, attempt=worker.attempt, machine=self.machine,
                             seconds=round(now - worker.began, 3), compiled=said["compiled"])
            worker.case, worker.until = None, float("inf")
        elif "failed" in said: self.fail(stage, worker, said["failed"])
        elif "gone" in said: self.fail(stage, worker, worker.exit_reason())
        else:
            worker.contestant = said["contestant"]
            if said["timing"]: worker.timing = now

    def fail(self, stage: Stage, worker: Worker, why: str, timed_out: bool = False) -> None:
        """End a worker; note why, and how its case will be tried again: without the contestant
        that was running, or once more as it is."""
        case, who, name = (worker.case, worker.contestant if worker.case else None,
                           (stage.name, key(worker.case or {})))
        ready, attempt = worker.ready, getattr(worker, "attempt", "")
        self.selector.unregister(worker.process.stdout)
        worker.end()
        worker.process = worker.case = None
        if case is None: return
        self.journal.add("failed", stage=stage.name, case=case, call=self.call, attempt=attempt,
                         contestant=who, reason=why)
        tell(f"  {stage.name}: {' '.join(filter(None, [who and f'{who}:', why]))}")
        if who: self.without.setdefault(name, {})[who] = why
        else: self.faults[name] = self.faults.get(name, 0) + 1
        if not ready and self.faults.get(name, 0) > 1: return self.give_up_stage(stage, why)
        if timed_out and self.group(stage, case): self.timed_out[self.group(stage, case)] = why
        if (self.faults.get(name, 0) > 1 or self.tried[name] >= TRIES or timed_out
            and self.group(stage, case)):
            self.journal.add("given up", stage=stage.name, case=case, call=self.call, reason=why)


def main(given) -> int:
    "As the command line says."
    if unknown := set(given.parts) - {s.name for s in STAGES}:
        raise SystemExit(
            f"no such stage: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(s.name for s in STAGES)}")
    setting = "rehearsal" if given.rehearse else "full"
    if given.rehearse: os.environ["TRITON_INTERPRET"] = "1"
    try:
        run = Run(Path(given.out), STAGES, setting, given.seconds, given.commit,
                  SLOW if given.rehearse else 1)
    except (ValueError, OSError) as error: raise SystemExit(str(error)) from None
    return whole(run, given.parts)


def whole(run: Run, names: list[str] | None = None) -> int:
    "A run and its judgement; 0 if the folder holds a complete run."
    from bench.gpu import judge
    # of this process; the workers have their own
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tell(f"call {run.call} into {run.folder}: {' '.join(names or (s.name for s in run.stages))}")
    run.go(names)
    try: text = judge.judged(run.journal, run.setting)
    except Exception as error:
        text = f"The bars could not be judged: {type(error).__name__}: {error}"
    tell(text)
    try: (run.folder / "judged.md").write_text(text + "\n")
    except OSError: pass
    if run.journal.waiting:
        tell(f"{len(run.journal.waiting)} entries are not on the disk: {run.journal.trouble}")
    end = run.journal.last("end")
    return 0 if end["complete"] and not run.journal.waiting else 1
