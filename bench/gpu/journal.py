"""The file of a run: one entry a line, written by one process, readable after an end at any
moment."""
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path


def key(case: dict) -> str:
    "A case as text: what tells it from others."
    return json.dumps(case, sort_keys=True)


def tell(text: str) -> None:
    "Print a line; that nobody listens any more ends no run."
    try: print(text, flush=True)
    except OSError: sys.stdout = open(os.devnull, "w")


@dataclass
class State:
    "What became of one case."
    case: dict
    rows: dict[str, list[dict]] = field(default_factory=dict)      # by attempt
    done: dict | None = None                                       # the entry that says so
    failed: list[dict] = field(default_factory=list)
    given_up: list[dict] = field(default_factory=list)


class Journal:
    """The entries of a folder, and what they say of each case. What cannot be written is kept,
    and tried again with the next entry."""
    def __init__(self, path: Path):
        self.path, self.entries, self.states, self.waiting = path, [], {}, []
        self.size, self.lost, self.trouble, self.file = 0, 0, "", None
        raw = path.read_bytes() if path.is_file() else b""
        # a last line without an end was cut off while it was written
        self.size = raw.rfind(b"\n") + 1
        for line in raw[:self.size].splitlines():
            try: self.take(json.loads(line))
            except ValueError: self.lost += 1

    def add(self, what: str, **told) -> None:
        "Note something, at once and for good."
        entry = json.loads(json.dumps({"what": what, **told}))
        self.take(entry)
        self.waiting.append(entry)
        self.write()

    def take(self, entry: dict) -> None:
        "Keep an entry in memory."
        self.entries.append(entry)
        if "case" not in entry: return
        state = self.states.setdefault((entry["stage"], key(entry["case"])), State(entry["case"]))
        if entry["what"] == "row": state.rows.setdefault(entry["attempt"], []).append(entry["row"])
        elif entry["what"] == "done": state.done = entry
        elif entry["what"] == "failed": state.failed.append(entry)
        elif entry["what"] == "given up": state.given_up.append(entry)

    def write(self) -> None:
        "Bring to the disk what waits, all of it or nothing."
        data = "".join(json.dumps(entry, ensure_ascii=False) + "\n"
                       for entry in self.waiting).encode()
        try:
            if self.file is None:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                os.ftruncate(self.file, self.size)
            os.lseek(self.file, self.size, os.SEEK_SET)
            written = 0
            while written < len(data): written += os.write(self.file, data[written:])
            os.fsync(self.file)
            self.size, self.trouble = self.size + len(data), ""
            self.waiting.clear()
        except OSError as error:
            if not self.trouble:
                tell(
                    f"{self.path}: {error.strerror}; the run goes on, and what cannot be written "
                    "is kept in memory")
            self.trouble = str(error.strerror)
            self.cut()

    def cut(self) -> None:
        "Take half an entry off the end of the file."
        try:
            if self.file is not None: os.ftruncate(self.file, self.size)
        except OSError: pass

    # --- what the entries say

    def state(self, stage: str, case: dict) -> State:
        return self.states.get((stage, key(case))) or State(case)

    def rows(self, stage: str) -> list[dict]:
        "The rows of all cases of a stage that were finished, in their order."
        return [row for (name, _), state in self.states.items() if name == stage
                for row in self.of(state)]

    def rows_of(self, stage: str, case: dict) -> list[dict]: return self.of(self.state(stage, case))

    def of(self, state: State) -> list[dict]:
        return state.rows.get(state.done["attempt"], []) if state.done else []

    def failures(self, stage: str) -> list[tuple[dict, str]]:
        "The cases that were given up, and why."
        return [(s.case, s.given_up[-1]["reason"]) for (name, _), s in self.states.items() if name
                == stage and s.given_up and not s.done]

    def last(self, what: str) -> dict:
        "The last entry of a kind; empty if there is none."
        return next((e for e in reversed(self.entries) if e["what"] == what), {})
