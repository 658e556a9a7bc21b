"""Where a record comes from: a digest of the code that made it, which no rebase loses, or a commit, or the plain words that it is not kept."""
import ast
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def imported(path: Path) -> set[str]:
    "The names that a module's source imports, wherever in it."
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import): names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level: base = ".".join((*path.relative_to(ROOT).parts[:-node.level], *filter(None, [base])))
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def sources(module: str) -> list[Path]:
    "The files of this project that `module` needs: its own, and those of what it imports, and so on."
    found, todo = set(), {module}
    while todo:
        stem = ROOT.joinpath(*(name := todo.pop()).split("."))
        path = next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)
        if path is None or path in found or name.split(".")[0] not in ("bench", "tfmlib"): continue
        found.add(path)
        todo |= imported(path)
    return sorted(found)


def digest(module: str) -> str:
    "A digest of the code that `module` runs, by the names and contents of its files."
    if not (files := sources(module)): raise ValueError(f"module: got {module!r}; expected a module of this project")
    lines = [f"{path.relative_to(ROOT).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
