"""The page *Names*: what stands in its first column exists in the library; and each module says in a line what it offers."""
import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST = [cell for line in (ROOT / "about/names.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `") for cell in [line.split("|")[1]]]
NAMES = [name for cell in FIRST for name in re.findall(r"`(\w+\.[\w.()]+)`", cell)]
MODULES = sorted(path for path in (ROOT / "tfmlib").rglob("*.py") if not path.stem.startswith("_") and path.parent.name not in ("practice", "assets"))


@cache
def tree(module: str) -> ast.Module:
    "A module's code; of a chapter's package, that of all its modules."
    files = [path] if (path := ROOT / f"tfmlib/{module.replace('.', '/')}.py").is_file() else sorted((ROOT / f"tfmlib/{module}").glob("[a-z]*.py"))
    return ast.parse("\n".join(file.read_text(encoding="utf-8") for file in files))


def dotted(path: Path) -> str: return ".".join(path.relative_to(ROOT / "tfmlib").with_suffix("").parts)


def members(node: ast.AST) -> dict[str, ast.AST]:
    "What a module or class defines: functions, classes, fields, and what `__init__` gives to self."
    found = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    found |= {n.target.id: n for n in node.body if isinstance(n, ast.AnnAssign)}
    if "__init__" in found:
        found |= {n.attr: n for n in ast.walk(found["__init__"]) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"}
    return found


def missing(name: str) -> str:
    "What of module.name, module.Class.member or module.function(parameter) does not exist; empty if all does."
    path, _, parameter = name.removesuffix(")").partition("(")
    module, *rest = path.split(".")
    node = tree(module)
    for part in rest:
        if part not in (found := members(node) if isinstance(node, ast.Module | ast.ClassDef) else {}): return part
        node = found[part]
    if not parameter: return ""
    bases = [node, *(members(tree(module)).get(getattr(b, "id", "")) for b in getattr(node, "bases", []))]
    made = next((m["__init__"] for b in bases if isinstance(b, ast.ClassDef) and "__init__" in (m := members(b))), node)
    return "" if parameter in {a.arg for a in [*made.args.args, *made.args.kwonlyargs]} else parameter


def test_the_first_column_is_of_this_library():
    assert len(NAMES) > 60 and not {name: what for name in NAMES if (what := missing(name))}


@pytest.mark.parametrize("name", ["heads.Heads", "heads.MultiHeadAttention(heads)", "heads.MultiHeadAttention.query", "decoders.ModelConfig.width", "attention.attention.scores"])
def test_a_name_that_does_not_exist_is_found(name): assert missing(name)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_says_what_it_offers(path):
    said = ast.get_docstring(tree(dotted(path))) or ""
    assert said.endswith(".") and len(said) <= 140 and "\n" not in said and not re.search(r"\bpage\b|\byou\b", said), said


def public(path: Path) -> set[str]:
    "The names in a module's __all__."
    node = next(n for n in tree(dotted(path)).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    return set(ast.literal_eval(node.value))


def test_no_two_modules_use_one_name():
    owners = {}
    for path in MODULES:
        for name in public(path): owners.setdefault(name, []).append(path.stem)
    assert not {name: modules for name, modules in owners.items() if len(modules) > 1}


def test_names_in_the_notation_are_names_of_the_code():
    "What the table of symbols says a symbol is called in code occurs there as a name."
    table = (ROOT / "about/notation.md").read_text(encoding="utf-8").split("## Symbols")[1].split("## Conventions")[0]
    given = {name for line in table.splitlines() if line.startswith("| $") for name in re.findall(r"`(\w+)`", line.split("|")[2])}
    used = {value for module in MODULES for n in ast.walk(tree(dotted(module))) for value in (getattr(n, "id", ""), getattr(n, "arg", ""), getattr(n, "attr", ""), getattr(n, "name", ""))}
    assert len(given) > 40 and sorted(given - used) == []
