"""The page *Names*: what stands in its first column exists in the library; and each module says
in a line what it offers."""
import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

FIRST = [cell for line in (ROOT / "about/names.md").read_text(encoding="utf-8").splitlines()
         if line.startswith("| `") for cell in [line.split("|")[1]]]
NAMES = [name for cell in FIRST for name in re.findall(r"`(\w+\.[\w.()]+)`", cell)]
MODULES = sorted(path for path in (ROOT / "tfmlib").rglob("*.py") if not path.stem.startswith("_")
                 and path.parent.name not in ("practice", "assets"))


@cache
def tree(module: str) -> ast.Module:
    "A module's code; of a chapter's package, that of all its modules."
    files = ([path] if (path := ROOT / f"tfmlib/{module.replace('.', '/')}.py").is_file()
             else sorted((ROOT / f"tfmlib/{module}").glob("[a-z]*.py")))
    return ast.parse("\n".join(file.read_text(encoding="utf-8") for file in files))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "tfmlib").with_suffix("").parts)


def members(node: ast.AST) -> dict[str, ast.AST]:
    "What a module or class defines: functions, classes, fields, and what `__init__` gives to self."
    found = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    found |= {n.target.id: n for n in node.body if isinstance(n, ast.AnnAssign)}
    if "__init__" in found:
        found |= {n.attr: n for n in ast.walk(found["__init__"]) if isinstance(n, ast.Attribute)
                  and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"}
    return found


def missing(name: str) -> str:
    """What of module.name, module.Class.member or module.function(parameter) does not exist;
    empty if all does."""
    path, _, parameter = name.removesuffix(")").partition("(")
    module, *rest = path.split(".")
    node = tree(module)
    for part in rest:
        if part not in (found := members(node)
                        if isinstance(node, ast.Module | ast.ClassDef) else {}):
            return part
        node = found[part]
    if not parameter: return ""
    bases = [node,
             *(members(tree(module)).get(getattr(b, "id", "")) for b in getattr(node, "bases", []))]
    made = next((m["__init__"] for b in bases if isinstance(b, ast.ClassDef)
                 and "__init__" in (m := members(b))), node)
    return ("" if parameter in {a.arg for a in [*made.args.args, *made.args.kwonlyargs]}
            else parameter)


def test_the_first_column_is_of_this_library():
    assert len(NAMES) > 60 and not {name: what for name in NAMES if (what := missing(name))}


@pytest.mark.parametrize("name", ["heads.Heads", "heads.MultiHeadAttention(heads)",
                                  "heads.MultiHeadAttention.query", "decoders.ModelConfig.width",
                                  "attention.attention.scores"])
def test_a_name_that_does_not_exist_is_found(name): assert missing(name)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_says_what_it_offers(path):
    said = ast.get_docstring(tree(dotted(path))) or ""
    assert (said.endswith(".") and len(said) <= 140 and "\n" not in said
            and not re.search(r"\bpage\b|\byou\b", said)), said


def public(path: Path) -> set[str]:
    "The names in a module's __all__."
    node = next(n for n in tree(dotted(path)).body if isinstance(n, ast.Assign)
                and ast.unparse(n.targets[0]) == "__all__")
    return set(ast.literal_eval(node.value))


def test_no_two_modules_use_one_name():
    owners = {}
    for path in MODULES:
        for name in public(path): owners.setdefault(name, []).append(path.stem)
    assert not {name: modules for name, modules in owners.items() if len(modules) > 1}


def test_names_in_the_notation_are_names_of_the_code():
    "What the table of symbols says a symbol is called in code occurs there as a name."
    table = (ROOT / "about/notation.md").read_text(encoding="utf-8").split("## Symbols")[1].split(
        "## Conventions")[0]
    given = {name for line in table.splitlines() if line.startswith("| $")
             for name in re.findall(r"`(\w+)`", line.split("|")[2])}
    used = {value for module in MODULES for n in ast.walk(tree(dotted(module)))
            for value in (getattr(n, "id", ""), getattr(n, "arg", ""), getattr(n, "attr", ""),
                          getattr(n, "name", ""))}
    assert len(given) > 40 and sorted(given - used) == []


# --- the letters of the formulas ------------------------------------------------------------------

NOTATION = (ROOT / "about/notation.md").read_text(encoding="utf-8")
PATHS = {path.stem: "\n".join("".join(c["source"])
                              for c in json.loads(path.read_text(encoding="utf-8"))["cells"]
                              if c["cell_type"] == "markdown")
         for path in sorted((ROOT / "chapters").glob("[0-2][0-9]_*.ipynb"))
         if path.stem[:2] != "00"}


def capitals(text: str) -> set[str]:
    """The capitals that are letters in the formulas of a text: not in words, not blackboard or
    script letters, not the names of functions."""
    found = set()
    for pair in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$",
                           re.sub(r"```.*?```", "", text, flags=re.S), re.S):
        plain = re.sub(r"\\(text|mathrm|operatorname|mathbb|mathcal|begin|end)\*?\{[^}]*\}", " ",
                       "".join(pair))
        # dO is a gradient, QK a product
        found |= set("".join(re.findall(r"(?<![A-Za-z])d?([A-Z]+)(?![A-Za-z])",
                                        re.sub(r"\\[A-Za-z]+", " ", plain))))
    return found


def elsewhere(notation: str) -> set[tuple[str, str]]:
    "(letter, page) where the table says that a letter has another meaning."
    rows = [line.split("|")[1:3]
            for line in notation.split("## Where a letter means something else")[1].split(
                "## Symbols")[0].splitlines() if line.startswith("| ")][1:]
    return {(letter.strip(), page) for letters, places in rows for letter in letters.split(",")
            for page in re.findall(r"/chapters/(\w+)`", places)}


def test_every_capital_of_a_path_is_on_the_page_notation():
    "As a dimension, or as what it is on that page; and nothing is listed that a page does not use."
    dimensions = set(re.findall(r"^\| ([A-Z]) \|", NOTATION.split("## Where a letter")[0], re.M))
    other, used = (elsewhere(NOTATION),
                   {(letter, page) for page, text in PATHS.items() for letter in capitals(text)})
    assert len(dimensions) == 13 and len(used) > 100
    assert sorted(pair for pair in used if pair[0] not in dimensions and pair not in other) == []
    assert sorted(other - used) == []


def test_a_page_that_gives_a_dimension_another_meaning_is_in_the_table():
    "Pages say so beside the formula: `(here, $N$ counts no weights)`."
    said = {(letter, page) for page, text in PATHS.items()
            for clause in re.findall(
                r"\(([^()]*(?:[Oo]n this page|[Ii]n this section|counts no|count parameters|is no "
                r")[^()]*)\)", text)
            for letter in capitals(clause)}
    assert (len(said) > 6 and sorted(said - elsewhere(NOTATION))
            == [("W",
                 "20_linear_and_state_space")]), "there, W is not a matrix but the width of the table"  # noqa: E501


def test_capitals_are_found():
    assert (capitals(
        r"Let $W_Q^\top x$ be $\mathbb{E}[q]$ and $\text{MHA}(X)$; $$ dO V = \mathcal{K} + \Delta "
        r"L $$ of \n```\n$Y$\n```") == {"W", "Q", "X", "O", "V", "L"})
