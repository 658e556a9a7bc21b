"""Run notebooks from top to bottom and store their outputs: python tools/execute.py
[chapters/04_attention.ipynb ...]"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebook_files  # noqa: E402

# names a live model by a random id: nothing to store
VIEW = "application/vnd.jupyter.widget-view+json"


def run(path: Path) -> nbformat.NotebookNode:
    "The notebook, executed in an empty directory. In a terminal, a bar says which cell runs."
    nb = nbformat.read(path, as_version=4)
    with (tempfile.TemporaryDirectory() as empty,
          tqdm(total=len(nb.cells), desc=path.stem, unit="cell", leave=False, disable=None) as bar):
        def begins(cell, cell_index: int) -> None:
            bar.set_postfix_str(cell.get("id", ""), refresh=False)
            bar.update(cell_index - bar.n)
        NotebookClient(nb, timeout=900, record_timing=False, store_widget_state=False,
                       resources={"metadata": {"path": empty}}, on_cell_start=begins).execute()
    return nb


def execute(path: Path) -> float:
    "Execute one notebook against this checkout and store its outputs; return the seconds it took."
    start = time.perf_counter()
    nb = run(path)
    for output in (o for cell in nb.cells for o in cell.get("outputs", [])):
        output.get("data", {}).pop(VIEW, None)
    nbformat.write(nb, path)
    return time.perf_counter() - start


def main(names: list[str]) -> None:
    # TFM_PEERS=record rewrites what comparisons with other libraries gave
    os.environ.setdefault("TFM_PEERS", "required")
    # a stored progress bar says nothing
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    paths = [Path(n).resolve() for n in names] or notebook_files(ROOT / "chapters")
    for path in paths:
        print(f"{path.relative_to(ROOT)}: {execute(path):.1f} s", flush=True)
        subprocess.run([Path(sys.executable).with_name("nbdev-clean"), "--fname", path], cwd=ROOT,
                       check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
