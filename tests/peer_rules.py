"""Packages that a reader need not have: cells may import them only inside what they give to
`compared`."""
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from rules import Cell

# by what tfmlib depends on, or its name in an import
BROUGHT = {"PIL", "cycler", "IPython", "traitlets", "yaml"}
# leave their own cells out
OWN_WAY = {f"chapters/{name}": {"triton"} for name in ("18_flash_attention_gpu",
        "depth/18_flash_attention_gpu", "depth/18_flash_attention_gpu_measured",
        "practice/18_flash_attention_gpu")}


def given(root: Path) -> set[str]:
    """The packages that every reader has: Python's own, this one, and what it depends on in a
    notebook."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return ({re.match(r"[\w-]+", line)[0] for line in [*project["dependencies"],
            *project["optional-dependencies"]["notebook"]]} | BROUGHT | set(sys.stdlib_module_names)
            | {"tfmlib"})


def peers_of(tree: ast.AST, known: set[str]) -> set[str]:
    "The packages that a piece of code imports and that are not known."
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
              and not node.level]
    names += [node.args[0].value for node in ast.walk(tree) if isinstance(node, ast.Call)
              and node.args and isinstance(node.args[0], ast.Constant)
              and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module",
                      "__import__")]
    return {str(name).partition(".")[0] for name in names} - known


def makes_comparison(node: ast.AST) -> bool:
    "Is it a call `compared(\"key\", \"packages\", …)`? (Chapter 2 has a figure of the same name.)"
    return (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "compared"
            and isinstance(node.args[0], ast.Constant))


def comparisons(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    "The comparisons that a piece of code makes: their keys and their packages."
    for node in ast.walk(tree):
        if makes_comparison(node): yield node.args[0].value, set(node.args[1].value.split())


def asked(tree: ast.AST) -> Iterator[tuple[str, str]]:
    "The results on record that a piece of code asks for: of its comparisons, and of real models (`real_result(\"model\", \"key\", …)`). Their keys, and what records them."  # noqa: E501
    for key, _ in comparisons(tree): yield key, "TFM_PEERS"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "real_result":
            yield node.args[1].value, "TFM_REAL"


def outside(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a cell runs, comparisons aside: not the bodies of functions, not what
    `compared` is given."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) or makes_comparison(node): return
    yield node
    for child in ast.iter_child_nodes(node): yield from outside(child)


def names(tree: ast.AST) -> set[str]:
    "The names that a function or class uses and does not define itself."
    every = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = ({node.id for node in every if isinstance(node.ctx, ast.Store)}
           | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)})
    return {node.id for node in every} - own


def needing(cells: list[Cell], known: set[str]) -> set[str]:
    "The functions of a notebook that import a peer, or use one that does."
    bodies = [node for cell in cells for node in cell.tree.body
              if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found: set[str] = set()
    while more := {b.name for b in bodies if peers_of(b, known) or names(b) & found} - found:
        found |= more
    return found


def in_cells(name: str, cells: list[Cell], known: set[str]) -> Iterator[str]:
    "The faults of one notebook."
    code = [cell for cell in cells if cell.kind == "code"]
    known = known | OWN_WAY.get(name, set())
    declared = set().union(*(packages for cell in code for _, packages in comparisons(cell.tree)))
    need = needing(code, known)
    for cell in code:
        yield from (f"{cell.where}: imports {p}, which no comparison of this page names"
                    for p in sorted(peers_of(cell.tree, known) - declared))
        for node in (n for statement in cell.tree.body for n in outside(statement)):
            if isinstance(node, ast.Import | ast.ImportFrom) and peers_of(node, known):
                yield f"{cell.where}: «{ast.unparse(node)}» stands outside a comparison"
            if isinstance(node, ast.Name) and node.id in need:
                yield f"{cell.where}: uses {node.id}, which needs a peer, outside a comparison"


def faults(books: dict[str, list[Cell]], recorded: set[str], known: set[str]) -> list[str]:
    "Peers outside comparisons, and comparisons without a record, or records without a comparison."
    found, keys = [], {}
    for name, cells in books.items():
        found += in_cells(name, cells, known)
        for cell in (c for c in cells if c.kind == "code"):
            for key, switch in asked(cell.tree):
                if keys.setdefault(key, name) != name:
                    found.append(
                        f"{cell.where}: the key «{key}» is that of a comparison in {keys[key]}")
                if key not in recorded:
                    found.append(
                        f"{cell.where}: no result of «{key}» is on record; run it with "
                        f"{switch}=record")
    return (found + [f"compared.json: no cell compares «{key}»"
                     for key in sorted(recorded - keys.keys())])
