"""Run the Colab copies as a reader opens them: python tools/copies.py [--python PYTHON] [--env FOLDER] [--copies FOLDER] [--record] [NAME ...]

Makes a virtual environment of the given Python that holds what INSTALLED lists, at the newest versions, and nothing else;
the set-up cell of the first copy installs the library. The copies are those in `--copies`. Without it they are those of
this checkout, and install the library from a local repository that holds it. A NAME (04, practice/04) selects copies.
One line for each copy, a table at the end; the exit code is 1 if any cell of any copy raised an error. With --record, the run
is kept in tests/proved.json.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "extensions")]

from pages import notebook_files  # noqa: E402

INSTALLED = ("torch", "matplotlib", "ipykernel", "nbclient")      # the first two are what Colab has; the others run notebooks
PEERS = ("transformers", "tokenizers", "onnx")                    # what a reader need not have
LEAKS = ("PYTHON", "JUPYTER", "IPYTHON", "TFM_", "VIRTUAL_ENV", "CONDA", "MPL")
ABSENT = ", so this cell does not compare"                         # what `compared` says where a package is missing
SECONDS = 3600                                                    # that one cell may take: only one that hangs takes as long
VERSIONS = "torch", "numpy", "matplotlib", "ipywidgets", "anywidget", "ipykernel"


# --- inside the environment ---------------------------------------------------------------------------------------

def run_copy(path: Path, env: dict[str, str] | None = None) -> dict:
    "Run the notebook at `path` from top to bottom in an empty folder: its cells, errors, warnings and seconds."
    import nbformat
    from nbclient import NotebookClient
    nb, start = nbformat.read(path, as_version=4), time.perf_counter()
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(nb, timeout=SECONDS, allow_errors=True, kernel_name="python3", resources={"metadata": {"path": empty}})
        client.execute(**({"env": env} if env else {}))
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    outputs = [(cell, output) for cell in code for output in cell.outputs]
    told = [(cell.id, "".join(o.text)) for cell, o in outputs if o.output_type == "stream"]
    errors = [f"{cell.id}: {o.ename}: {o.evalue}".split("\n")[0] for cell, o in outputs
              if o.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])]
    warned = [f"{cell.id}: {o.text.strip()}".split("\n")[0] for cell, o in outputs if o.output_type == "stream" and o.name == "stderr" and "Warning" in o.text]
    return {"cells": len(code), "errors": errors, "warnings": warned, "recorded": sum(ABSENT in text for _, text in told),
            "seconds": round(time.perf_counter() - start, 1)}


def run_copies(folder: Path, names: list[str]) -> None:
    "Run these copies; print a line of JSON for each, and one for the environment."
    from importlib.metadata import PackageNotFoundError, version
    for name in names: print(json.dumps({"name": name} | run_copy(folder / name)), flush=True)
    found = {}
    for package in (*VERSIONS, "tfmlib", "triton", *PEERS):
        try: found[package] = version(package)
        except PackageNotFoundError: continue
    print(json.dumps({"python": sys.version.split()[0], "versions": found}), flush=True)


# --- around it ----------------------------------------------------------------------------------------------------

def clean(env: dict[str, str], venv: Path) -> dict[str, str]:
    "The environment variables of a reader: without those that could point to this checkout or to another kernel."
    kept = {name: value for name, value in env.items() if not name.startswith(LEAKS)}
    bare = {f"{name}_DIR": str(venv / "empty") for name in ("JUPYTER_DATA", "JUPYTER_CONFIG", "JUPYTER_RUNTIME")}
    return kept | bare | {"IPYTHONDIR": str(venv / "empty"), "PATH": f"{venv / 'bin'}{os.pathsep}{env.get('PATH', '')}"}


def environment(python: str, venv: Path) -> Path:
    "The Python of an environment with what INSTALLED lists and without the library, made if it is not there."
    inside = venv / "bin/python"
    if not inside.exists(): subprocess.run([python, "-m", "venv", str(venv)], check=True)
    subprocess.run([inside, "-m", "pip", "install", "-q", *INSTALLED], check=True, env=clean(os.environ, venv))
    subprocess.run([inside, "-m", "pip", "uninstall", "-qy", "tfmlib"], check=True, env=clean(os.environ, venv), stderr=subprocess.DEVNULL)
    return inside


def repository(folder: Path, tag: str) -> str:
    "The address of a new git repository in `folder` whose `tag` holds this checkout's library."
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("tfmlib", "pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
        source = ROOT / name
        if source.is_dir(): shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else: shutil.copy(source, folder / name)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "The library"], ["tag", tag]): subprocess.run([*git, *command], check=True)
    return folder.resolve().as_uri()


def written(out: Path) -> Path:
    "The copies of this checkout in `out`, stamped with the address of a repository beside them."
    import colab
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    colab.write(ROOT, out, repository(out.with_name("repository"), f"v{version}"))
    return out


def line(found: dict) -> str:
    "What is said of one copy."
    more = [f"{found['recorded']} from records"] * bool(found["recorded"]) + [f"{len(found['warnings'])} with warnings"] * bool(found["warnings"])
    head = f"{found['name']}: {found['seconds']} s, {found['cells']} cells, {len(found['errors'])} errors"
    return "\n".join([", ".join([head, *more]), *(f"    {said}" for said in found["errors"] + found["warnings"])])


def table(copies: list[dict], around: dict) -> str:
    "The run as a table in Markdown."
    keys = "cells", "errors", "recorded", "warnings", "seconds"
    def count(value): return len(value) if isinstance(value, list) else value
    rows = [[c["name"], *(count(c[k]) for k in keys)] for c in copies]
    total = [f"{len(copies)} copies", *(round(sum(column), 1) for column in list(zip(*rows))[1:])]
    lines = [["copy", "cells", "errors", "from records", "warnings", "seconds"], ["---", *["---:"] * len(keys)], *rows, total]
    said = ", ".join(f"{k} {v}" for k, v in around["versions"].items())
    return f"Python {around['python']}: {said}\n\n" + "\n".join("| " + " | ".join(map(str, row)) + " |" for row in lines)


def record(copies: list[dict], around: dict, folder: Path) -> None:
    "Keep a run of all copies."
    import proved
    proved.keep({"copies": not any(c["errors"] for c in copies)}, folder, {"python": around["python"], "torch": around["versions"]["torch"], "outputs": "run"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="what the environment is made with")
    parser.add_argument("--env", type=Path, default=ROOT / "build/copies/env", help="its folder; made if it is not there")
    parser.add_argument("--copies", type=Path, help="the folder of the copies")
    parser.add_argument("--record", action="store_true", help="keep the run of all copies in tests/proved.json")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    if given.inside: return run_copies(given.copies, given.names)
    if given.record and given.names: parser.error("--record keeps a run of all copies: name none")
    folder = (given.copies or written(ROOT / f"build/copies/of-{given.env.name}/colab")).resolve()
    every = sorted(str(p.relative_to(folder)) for p in notebook_files(folder))
    names = [n for n in every if not given.names or any(n.startswith(f"chapters/{wanted}") for wanted in given.names)]
    if not names: parser.error(f"no copy in {folder} is called {' or '.join(given.names) or 'anything'}")
    python = environment(given.python, given.env.absolute())
    command = [python, __file__, "--inside", "--copies", folder, *names]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean(os.environ, given.env.absolute()), cwd=tempfile.gettempdir()) as process:
        for text in process.stdout:
            found.append(json.loads(text))
            if "name" in found[-1]: print(line(found[-1]), flush=True)
    if process.returncode or len(found) != len(names) + 1: sys.exit(f"the run ended after {len(found)} of {len(names)} copies")
    *copies, around = found
    print("\n" + table(copies, around))
    if given.record: record(copies, around, folder)
    sys.exit(any(c["errors"] for c in copies))


if __name__ == "__main__":
    main()
