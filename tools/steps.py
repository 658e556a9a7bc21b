"""What each step of the proof reads, as one hash, and which steps have passed in this clone; a
plugin of pytest that notes them.

A step is a file of tests or a notebook. Its key is the hash of what it reads and of the machine
that runs it: a step whose key has passed here before need not run again. The record lies in
`build/`, so that a fresh clone runs everything.
"""
import ast
import hashlib
import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# where code finds its modules
FOLDERS = ("tests", "tests/library", "tests/site", "tests/fixtures", "tools", "extensions", "")
NAMED = re.compile(r"\b(?:tfmlib|bench)(?:\.\w+)+")  # also in the code of other processes
VERDICTS = ("tfmlib/assets/kills.json", "tfmlib/assets/mutants.json")
PLAN = "TFM_STEPS"  # a file that tells the plugin the steps: file -> [name, key]


def tracked(root: Path = ROOT) -> list[str]:
    "The files that git holds or would hold; without git, all."
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root,
                            capture_output=True, text=True)
    if listed.returncode:
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()
                      and not p.relative_to(root).parts[0].startswith((".venv", "build", "_build")))
    return sorted(name for name in listed.stdout.split("\0") if name and (root / name).is_file())


def digest(*parts: bytes | str) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return made.hexdigest()[:20]


@cache
def content(path: Path) -> bytes: return path.read_bytes()


def files_digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    return digest(*(part for path in sorted(set(paths))
                    for part in (path.relative_to(root).as_posix(), content(path))))


# --- what code reads ------------------------------------------------------------------------------

def module_file(name: str, root: Path) -> Path | None:
    "The file of this checkout that an import of `name` reads."
    for folder in FOLDERS:
        for file in (f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__init__.py"):
            if (path := root / folder / file).is_file(): return path
    return None


def imported(source: str, package: str = "") -> set[str]:
    "The modules that code imports, also inside functions, and those of the library that it names."
    found = set(NAMED.findall(source))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import): found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = (package.split(".")[: len(package.split(".")) + 1 - node.level]
                     if node.level else [])
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {base, *(f"{base}.{a.name}" for a in node.names)}
    return {".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 2)}


@cache
def read_by(path: Path, root: Path) -> frozenset[Path]:
    "The files of this checkout that a module imports itself."
    package = ".".join(path.relative_to(root).parent.parts)
    return frozenset(filter(None, (module_file(name, root)
                                   for name in imported(content(path).decode(), package))))


def closure(start: Iterable[Path], root: Path = ROOT) -> set[Path]:
    "These modules and all that they import, directly or not."
    seen, todo = set(), list(start)
    while todo:
        if (path := todo.pop()) not in seen:
            seen.add(path)
            todo += read_by(path, root)
    return seen


def code(notebook: bytes | str) -> list:
    "What of a notebook runs or is compared: its code, outputs and tags, not its prose."
    return [[cell["source"], cell.get("outputs", []), cell["metadata"].get("tags", [])]
            for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]


def notebook_key(path: Path) -> str:
    "The hash of a notebook's code and outputs."
    return digest(json.dumps(code(content(path)), sort_keys=True))


def notebook_modules(path: Path, root: Path = ROOT) -> set[Path]:
    "The modules that a notebook's code imports, directly or not."
    sources = "\n".join("".join(cell[0]) for cell in code(content(path)))
    python = "\n".join(re.sub(r"^(\s*)[%!].*$", r"\1pass", line) for line in sources.splitlines())
    return closure(filter(None, (module_file(name, root) for name in imported(python))), root)


def data(root: Path = ROOT) -> list[Path]:
    """What code may read besides code, wherever it runs: the assets, kept runs, and how packages
    and comparisons are set up; the tables of verdicts only those read that name them."""
    common = (*(name for name in tracked(root)
                if name.startswith(("tfmlib/assets/", "bench/runs/"))), "pyproject.toml",
                "requirements.txt", "tests/nbval.cfg")
    return [root / name for name in common if name not in VERDICTS and (root / name).is_file()]


def test_reads(path: Path, root: Path = ROOT) -> set[Path]:
    """What a file of tests reads: those of the library, modules, assets and what their READS names,
    which conftest.py watches; those of the site, anything."""
    if path.parent.name != "library": return {root / name for name in tracked(root)}
    named = re.search(r"^READS = (\(.*?\))", content(path).decode(), re.M | re.S)
    more = ast.literal_eval(named[1]) if named else ()
    return closure([path, *filter(Path.is_file, [root / "tests/conftest.py"])],
                   root) | set(data(root)) | {root / name
                                              for name in tracked(root) if name.startswith(more)}


@cache
def machine() -> str:
    "This Python and processor: a step that has passed on one need not pass on another."
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(),
                          re.M)[1]
    except (OSError, TypeError): flags = platform.processor()
    return digest(platform.python_version(), platform.system(), platform.machine(), flags,
                  os.environ.get("TFM_LAX", ""))


@cache
def chromium() -> str:
    "The version of the browser that the tests use."
    from chromium import CHROMIUM
    return (subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True).stdout
            if CHROMIUM else "none")


# --- what has passed ------------------------------------------------------------------------------

def load(record: Path) -> dict[str, str]:
    return json.loads(record.read_text()) if record.is_file() else {}


def keep(record: Path, name: str, key: str) -> None:
    "Note a step that has passed; a run that is stopped in its middle keeps what it had."
    record.parent.mkdir(parents=True, exist_ok=True)
    beside = record.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(load(record) | {name: key}, indent=1, sort_keys=True))
    beside.replace(record)


class Noting:
    """A plugin of pytest: when every test of a file has ended and none has failed, its step has
    passed."""
    def __init__(self, plan: dict):
        self.steps, self.record = plan["steps"], Path(plan["record"])
        self.left, self.failed = Counter(), set()

    def file(self, nodeid: str) -> str: return nodeid.partition("::")[0]

    def begun(self, ids: Iterable[str]) -> None:
        if not self.left: self.left = Counter(map(self.file, ids))

    def pytest_collection_finish(self, session): self.begun(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids): self.begun(ids)

    def pytest_runtest_logreport(self, report):
        name = self.file(report.nodeid)
        if report.failed: self.failed.add(name)
        if report.when != "teardown": return
        self.left[name] -= 1
        if self.left[name] == 0 and name not in self.failed and name in self.steps:
            keep(self.record, *self.steps[name])


def pytest_configure(config):
    if PLAN in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Noting(json.loads(Path(os.environ[PLAN]).read_text())))

