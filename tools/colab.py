"""Write the Colab copies of the chapters to build/colab: python tools/colab.py [FOLDER]

A copy shows right in any notebook program: MyST is resolved, solutions are folded, and its first
cell installs `tfmlib` where it is missing; without an address of the book, a wheel is laid beside
the copies, which Colab is asked to upload. Code, ids, tags and stored outputs are those of the
chapter.
"""
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
from myst import Book, Page, Unresolved, remains
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parent.parent
GLUE = "application/papermill.record/text/plain"
FOLDED = {"solution": "Solution", "mutant": "A wrong answer", "hide-input": "Code",
          "remove-input": "Code",
          "hide-cell": "Code", "remove-cell": "Code"}

LOOK = '''\
# @title Set-up: `tfmlib`, the library that the chapters write
import importlib
import importlib.util
'''
INSTALL = LOOK + '''\
import subprocess
import sys

if not all(map(importlib.util.find_spec, ("tfmlib", "anywidget"))):
    wanted = ["git+{url}@v{version}", "tfmlib[notebook]"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted], check=True)
    importlib.invalidate_caches()'''
EXPLAIN = LOOK + '''import subprocess
import sys

if not all(map(importlib.util.find_spec, ("tfmlib", "anywidget"))):
    if "google.colab" not in sys.modules:
        raise ModuleNotFoundError("tfmlib is not installed. In a terminal, in your clone of the book, run "
                                  "`python -m pip install '.[notebook]'`, then restart this notebook's kernel.")
    from google.colab import files

    print("Choose tfmlib-{version}-py3-none-any.whl, which lies beside this copy.")
    wheel = f"./{next(iter(files.upload()))}[notebook]"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", wheel], check=True)
    importlib.invalidate_caches()'''  # noqa: E501


def setup_source(url: str, version: str) -> str:
    """The set-up cell: installs the tagged library from `url`; without an address, says how to
    install a clone."""
    return (INSTALL.format(url=url.removesuffix("/"), version=version) if url
            else EXPLAIN.replace("{version}", version))


def glued(nb: NotebookNode) -> dict[str, str]:
    "What the notebook's cells glued: name to text."
    outputs = (o for c in nb.cells for o in c.get("outputs", []))
    named = ((o.get("metadata", {}).get("scrapbook", {}).get("name"), o.get("data", {}))
             for o in outputs)
    return {name: data.get(GLUE, data.get("text/plain", "")) for name, data in named if name}


def fold(cell: NotebookNode, title: str) -> None:
    "Close a code cell: behind a title in Colab, behind a button in JupyterLab."
    cell.metadata["cellView"] = "form"
    cell.metadata["jupyter"] = {"source_hidden": True}
    if not cell.source.startswith(("# @title", "%%")):
        cell.source = f"# @title {title}\n{cell.source}"


def code_cell(cell: NotebookNode) -> NotebookNode | None:
    """The cell without nbdev's directive lines, folded if the page folds it; nothing if it held
    only directives."""
    lines = cell.source.split("\n")
    hidden = any(re.match(r"#\|\s*hide\b", line) for line in lines)
    cell.source = "\n".join(line for line in lines if not line.startswith("#|")).strip("\n")
    tags = cell.metadata.get("tags", [])
    if title := next((FOLDED[t] for t in FOLDED if t in tags), "Code" if hidden else ""):
        named = re.search(r"^# fold: (.+)$", cell.source, re.M) if title == "Code" else None
        fold(cell, named[1] if named else title)
    # comments alone (what the modules hold, under the directives) are nothing to run
    return cell if any(line and not line.startswith("#")
                       for line in cell.source.split("\n")) else None


def text_cell(cell: NotebookNode, page: Page) -> NotebookNode:
    "The cell in plain Markdown."
    source = re.sub(r"\A---\n.*?\n---\n", "", cell.source, flags=re.S)
    try:
        cell.source = page.resolve(source)
    except Unresolved as error:
        raise Unresolved(f"{page.name}, cell {cell.id}: {error}") from None
    return cell


def copy(path: Path, book: Book, version: str, repository: str | None = None) -> NotebookNode:
    """The Colab copy of the notebook at `path`; its library comes from the book's repository, or
    from another one."""
    nb = nbformat.read(path, as_version=4)
    page = Page(book, str(path.relative_to(book.root).with_suffix("")), glued(nb))
    cells = [text_cell(c, page) if c.cell_type == "markdown" else code_cell(c) for c in nb.cells]
    first = new_code_cell(setup_source(book.repository if repository is None else repository,
                                       version), id="set-up", metadata={"cellView": "form"})
    nb.cells = [first, *(c for c in cells if c is not None)]
    # nbval takes none for "never run"
    for n, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), 1):
        cell.execution_count = n
    nb.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python",
                                 "name": "python3"}
    nb.metadata["colab"] = {"provenance": [], "name": path.name}
    return nb


def leftovers(nb: NotebookNode) -> list[str]:
    "What a reader of the copy would see raw: MyST syntax in text, directive lines in code."
    found = []
    for cell in nb.cells:
        seen = remains(cell.source) if cell.cell_type == "markdown" else [
            f"a directive line: {line!r}"
            for line in cell.source.split("\n") if line.startswith("#|")]
        found += [f"cell {cell.id}: {what}" for what in seen]
    return found


def write(root: Path, out: Path, repository: str | None = None) -> list[Path]:
    "Write every copy under `out`; return their paths."
    book = Book(root)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    shutil.rmtree(out, ignore_errors=True)
    written = []
    for path in book.notebooks():
        nb, target = copy(path, book, version, repository), out / path.relative_to(root)
        if left := leftovers(nb):
            raise Unresolved("\n".join([f"{path.relative_to(root)}: syntax that no rule resolves",
                                        *left]))
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, target)
        written.append(target)
    return written


def main(folder: str | None = None) -> None:
    """Copies in the folder; without one in build/colab, and there the wheel, unless it can be had
    from the book's address."""
    alone, folder = folder is None, folder or "build/colab"
    try:
        paths = write(ROOT, ROOT / folder)
    except Unresolved as error:
        sys.exit(str(error))
    if alone and not Book(ROOT).repository:
        subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o",
                        str(ROOT / folder), str(ROOT)], check=True, capture_output=True)
    print(f"{len(paths)} Colab copies in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
