"""The rules of the house that a machine can check, as functions of a checkout: each gives a list of
faults, which name file and cell.

`test_order.py` runs them on the book, `test_defects.py` on copies with planted faults.
"""
import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from nbdev_cells import DIRECTIVE, directives, public_names, title_of  # noqa: E402
from pages import kind, notebook_files, number  # noqa: E402

KNOWN = {"default_exp", "export", "hide"}
# more than eight, and why
MANY_PARAMETERS = {
    "tfmlib.workbench.figures.matrix": "a picture of a tensor is a tensor, its names and its words"}
LONG_MODULES: dict[str, tuple[int, str]] = {  # the statements it may have, and why
    "tfmlib.checkpoints": (355, "folders read and written as transformers does, and what must be "
                                "refused before anything is"),
    "tfmlib.flash_attention_gpu.kernels": (500, "kernels share their helpers, those of decoding "
                                                "too; what launches them and the table it chooses "
                                                "from are beside them"),
    "tfmlib.practice": (530, "a page of exercises is as long as its checkers, and cases of every "
                             "size, type and magnitude take a line each"),
}
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def statements(tree: ast.AST) -> int:
    "How much a reader has to follow, however it is wrapped: statements, without docstrings."
    told = (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in ast.walk(tree))
    return sum(isinstance(n, ast.stmt) for n in ast.walk(tree)) - sum(told)


@dataclass
class Cell:
    "A cell of a notebook, with what the rules ask about it."
    where: str
    id: str
    kind: str
    source: str
    tags: set[str]
    outputs: list[dict]

    @cached_property
    def directives(self) -> dict[str, str]:
        return directives(self.source) if self.kind == "code" else {}

    @property
    def exported(self) -> bool: return "export" in self.directives

    @property
    def silent(self) -> bool: return bool(self.directives.keys() & {"default_exp", "hide"})

    @property
    def shown(self) -> bool: return self.kind == "code" and not self.directives

    @property
    def lines(self) -> int: return sum(bool(line.strip()) for line in self.source.splitlines())

    @property
    def statements(self) -> int: return statements(self.tree)

    @cached_property
    def tree(self) -> ast.Module:
        "Its code, without the lines that only IPython understands."
        if re.match(r"\s*%%(?!time)", self.source): return ast.parse("")
        return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", self.source, flags=re.M))


@lru_cache(maxsize=256)
def parsed(source: str) -> ast.Module:
    "The tree of a module, which several rules look at in many copies of the book."
    return ast.parse(source)


@lru_cache(maxsize=256)
def cells_of(name: str, text: str) -> tuple[Cell, ...]:
    """The cells of one notebook, read once: the tests look at the same book many times, with one
    cell changed."""
    def made(cell) -> Cell:
        tags = set(cell["metadata"].get("tags", []))
        return Cell(f"{name} «{cell.get('id')}»", cell.get("id", ""), cell["cell_type"],
                    "".join(cell["source"]), tags, cell.get("outputs", []))
    return tuple(made(cell) for cell in json.loads(text)["cells"])


def cells(root: Path) -> dict[str, tuple[Cell, ...]]:
    "The notebooks of a checkout as cells."
    names = [str(path.relative_to(root).with_suffix(""))
             for path in notebook_files(root / "chapters")]
    return {name: cells_of(name, (root / f"{name}.ipynb").read_text(encoding="utf-8"))
            for name in names}


# --- order ----------------------------------------------------------------------------------------

def workbench(root: Path) -> list[str]:
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]["tfmlib"]["workbench"]


# the page of the workbench that writes tfmlib's own modules and uses everything: it stands after
# all
FRONT = "library"


def place(name: str, bench: list[str]) -> tuple[int, int, int, str]:
    """Where a notebook stands: the workbench in its declared order, the paths 01 to 22, then the
    pages in depth, those of a chapter by their names; a practice page after all of its chapter.

    The tour is read first, but it reads published files with the book's readers: nothing imports
    from it, and it writes no module.
    """
    which, (number, _, tail) = kind(name), Path(name).name.partition("_")
    if which == "tour" or which == "workbench" and tail == FRONT: return 4, 0, 0, ""
    if which == "workbench":
        if tail not in bench:
            raise ValueError(
                f"{name}: not in the workbench that pyproject.toml declares ({', '.join(bench)})")
        return 0, bench.index(tail), 0, ""
    return (1 + (which != "path"), int(number), int(which == "practice"),
            tail if which == "depth" else "")


def before(owner: str, name: str, bench: list[str]) -> bool:
    "Does one notebook stand before another, which imports from it?"
    return place(owner, bench) < place(name, bench)


def package_of(name: str) -> str:
    "The name of a chapter in the library, by the file's."
    return re.match(r"\d\d_(\w+)", Path(name).name)[1]


def module_of(name: str, book: Iterable[Cell] = ()) -> str:
    """The module that a notebook owns by its file name; a page in depth declares one in the
    chapter's package, a page of the workbench one in the workbench."""
    tail, which = package_of(name), kind(name)
    declared = next((c.directives["default_exp"] for c in book
                     if "default_exp" in c.directives), "")
    if which == "depth":                                          # NN_name, or NN_name_topic
        said = re.fullmatch(r"(\w+)\.(?!core$)\w+", declared)
        return declared if said and f"{tail}_".startswith(f"{said[1]}_") else f"{tail}.depth"
    if which == "workbench" and tail == FRONT: return "__main__"
    if which == "workbench" and re.fullmatch(r"workbench\.\w+", declared): return declared
    return {"practice": f"practice.{tail}", "workbench": f"workbench.{tail}"}.get(which,
            f"{tail}.core")


def owners(books: dict[str, list[Cell]]) -> dict[str, str]:
    """Module -> the notebook that owns it. A package's own module, which the export writes,
    belongs to none: its names are looked up where they are written."""
    extra = {c.directives["export"]: name for name, book in books.items() for c in book
             if c.directives.get("export")}
    return {module_of(name, book): name for name, book in books.items()} | extra


def imported(tree: ast.AST, inside: str) -> Iterator[tuple[str, bool]]:
    """What of tfmlib a piece of code imports: (dotted name below tfmlib, with a star?). `inside`
    is the package of a module with relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): found = [(a.name, False) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (["tfmlib",
                      *inside.split(".")][: len(["tfmlib", *filter(None, inside.split("."))]) + 1
                                          - node.level] if node.level else [])
            base = ".".join([*above, *filter(None, [node.module])])
            found = [(base if a.name == "*" else f"{base}.{a.name}", a.name == "*")
                     for a in node.names]
        elif (isinstance(node, ast.Call)
              and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module",
                      "__import__")):
            found = [(a.value, False) for a in node.args[:1] if isinstance(a, ast.Constant)]
        else: found = []
        for name, star in found:
            if star or str(name).startswith("tfmlib."):
                yield str(name).removeprefix("tfmlib."), star


@lru_cache(maxsize=8192)
def imports(tree: ast.AST, inside: str = "") -> list[tuple[str, bool]]:
    return list(imported(tree, inside))


def homes(books: dict[str, list[Cell]], owned: dict[str, str]) -> dict[str, str]:
    "What a chapter's package offers -> the module that writes it."
    found = {module.removesuffix(".core"): module for module in owned if module.endswith(".core")}
    for cell in (c for name, book in books.items() if kind(name) != "practice" for c in book
                 if c.exported):
        name = cell.where.partition(" ")[0]
        module = cell.directives["export"] or module_of(name, books[name])
        found |= {f"{module.partition('.')[0]}.{public}": module
                  for public in public_names(
                      "\n".join(cell.source.splitlines()[len(cell.directives):]))}
    return found


def writer(dotted: str, owned: dict[str, str], offered: dict[str, str]) -> str:
    "The module that defines what is imported; as it stands if nobody does."
    parts = dotted.split(".")
    for name in (".".join(parts[:n]) for n in range(len(parts), 0, -1)):
        if name in owned: return name
        if name in offered: return offered[name]
    return ".".join(parts[:-1]) or dotted


def arrows(tree: ast.AST, name: str, where: str, owned: dict[str, str], bench: list[str],
           inside: str | None = "", offered: dict[str, str] | None = None) -> Iterator[str]:
    "The imports of one piece of code that no chapter may have."
    # the first is the page's own
    own = [module for module, owner in owned.items() if owner == name]
    for dotted, star in imports(tree, inside):
        module = writer(dotted, owned, offered or {})
        if star: yield f"{where}: imports * from {module}; name what it needs"
        # a second module is there when it is called
        elif module in own and (inside is not None or module != own[0]): continue
        elif module not in owned:
            yield (f"{where}: imports tfmlib.{module}, which no notebook writes" if module
                   != "__version__" else "")
        elif not before(owned[module], name, bench):
            yield (
                f"{where}: imports tfmlib.{module}, which {owned[module]} writes: the arrow points "
                "forward")


def order(root: Path) -> list[str]:
    "Imports that point forward, in cells and in the modules written from them."
    books, bench, faults = cells(root), workbench(root), []
    owned = owners(books)
    offered = homes(books, owned)
    for name, book in books.items():
        for cell in (c for c in book if c.kind == "code"):
            faults += arrows(cell.tree, name, cell.where, owned, bench,
                             "" if cell.directives.get("export") else None, offered)
    for module, name in owned.items():
        file = root / "tfmlib" / f"{module.replace('.', '/')}.py"
        if file.is_file():
            faults += arrows(parsed(file.read_text()), name, str(file.relative_to(root)), owned,
                             bench, module.rpartition(".")[0], offered)
    return [fault for fault in faults if fault]


def circles(root: Path) -> list[str]:
    "Modules of tfmlib that import one another, at once or in a function."
    books = cells(root)
    owned = owners(books)
    offered, waiting = homes(books, owned), {}
    for module in owned:
        file = root / "tfmlib" / f"{module.replace('.', '/')}.py"
        found = (imports(parsed(file.read_text()), module.rpartition(".")[0])
                 if file.is_file() else [])
        waiting[module] = {other for dotted, _ in found
                           if (other := writer(dotted, owned, offered)) in owned
                           and other != module}
    while free := [module for module, others in waiting.items() if not others & waiting.keys()]:
        for module in free: del waiting[module]
    return [
        f"tfmlib.{module}: imports "
        f"{', '.join(f'tfmlib.{n}' for n in sorted(others & waiting.keys()))}, and is imported "
        "from there" for module, others in waiting.items()]


# --- directives -----------------------------------------------------------------------------------

def directive_lines(root: Path) -> list[str]:
    """Directives that nbdev would silently not obey, and modules that do not belong to their
    notebook."""
    faults, books = [], cells(root)
    owned = owners(books)
    for name, book in books.items():
        declared = [c.directives["default_exp"] for c in book if "default_exp" in c.directives]
        core = owned.get(f"{module_of(name, book).partition('.')[0]}.core", name)
        if kind(name) == "depth" and number(core) != number(name):
            faults.append(
                f"{name}: default_exp {', '.join(declared)}; the package is that of {core}")
        if declared != [module_of(name, book)] and (declared or kind(name) != "tour"):
            faults.append(
                f"{name}: default_exp {', '.join(declared) or 'is missing'}; expected "
                f"{module_of(name, book)}, once")
        for cell in (c for c in book if c.kind == "code"):
            faults += [
                f"{cell.where}: #| {word} is not a directive of this book "
                f"({', '.join(sorted(KNOWN))})" for word in cell.directives.keys() - KNOWN]
            code = cell.source.splitlines()[len(cell.directives):]
            faults += [
                f"{cell.where}: «{line.strip()}» stands below the cell's first line and would be "
                "ignored" for line in code if DIRECTIVE.match(line.strip())]
            elsewhere = cell.directives.get("export")
            package = module_of(name, book).partition(".")[0]
            if (elsewhere and not elsewhere.startswith(f"{package}.") and (package, elsewhere)
                != ("__main__", "__init__")):
                faults.append(
                    f"{cell.where}: it exports to {elsewhere}; expected a module of the package "
                    f"{package}")
    written = [c.directives["default_exp"] for book in books.values() for c in book
               if "default_exp" in c.directives]
    return (faults + [f"tfmlib.{module}: {written.count(module)} notebooks write it"
                      for module in sorted(set(written)) if written.count(module) > 1])


# --- the shape of cells ---------------------------------------------------------------------------

def led_in(root: Path) -> list[str]:
    "Code that no prose leads up to. A run of exported cells needs it once, imports need none."
    faults = []
    for book in cells(root).values():
        before = None
        for cell in (c for c in book if not c.silent):
            run = cell.exported and before is not None and before.exported
            same = (before is not None
                    and bool({t for t in cell.tags & before.tags if t.startswith("exercise-")}))
            # what draws, or judges, what the cell above it computed
            folded = bool(cell.tags & FOLDED) and before is not None
            names = (cell.kind == "code"
                     and all(isinstance(n, ast.Import | ast.ImportFrom) for n in cell.tree.body))
            if (cell.kind == "code" and not (run or same or folded or names)
                and (before is None or before.kind != "markdown")):
                faults.append(f"{cell.where}: no prose leads up to this cell")
            before = cell
    return faults


# where it is explained, a reader sees it
GLUED = "chapters/00_proof"


def folds(root: Path) -> list[str]:
    "Folded cells that only say «Code», and cells in view that glue numbers."
    faults = []
    for name, book in cells(root).items():
        for cell in (c for c in book if c.kind == "code" and not c.silent):
            if "hide-input" in cell.tags and title_of(cell.source, cell.directives) == "Code":
                faults.append(f"{cell.where}: its fold has no name; begin with `# fold: …`")
            if cell.tags & {*FOLDED, "solution", "mutant"} or name == GLUED: continue
            if "glue(" in cell.source and any(
                    isinstance(n, ast.Call) and getattr(n.func, "id", "") == "glue"
                    for n in ast.walk(cell.tree)):
                faults.append(f"{cell.where}: glues in view; expected a folded cell beneath")
    return faults


# a comment above the line whose result it tells
LONE_SHAPE = re.compile(r"^ *# *\([A-Z][\w, ×/·]*\)$", re.M)


def shape(root: Path) -> list[str]:
    """Chapters whose demonstration cells are long, or that leave too many outputs uncompared;
    shapes on lines of their own."""
    faults = []
    for name, book in cells(root).items():
        code = [c for c in book if c.kind == "code" and not c.silent]
        faults += [f"{c.where}: a shape has a line of its own; write it where it arises"
                   for c in code if LONE_SHAPE.search(c.source)]
        ignored = [c for c in code if "nbval-ignore-output" in c.tags]
        if len(ignored) > 0.15 * len(code):
            faults.append(
                f"{name}: {len(ignored)} of {len(code)} cells are not compared; expected at most 15 %")  # noqa: E501
        faults += [f"{c.where}: its output is not compared, and it asserts nothing" for c in ignored
                   if not re.search(r"\bassert|\bclaim\(", c.source)]
        seen = [c for c in code if c.shown and not c.tags & FOLDED]
        if "/practice/" in name or not seen: continue
        middling = median(c.statements for c in seen)
        if middling > 6:
            faults.append(f"{name}: a middling cell has {middling} statements; expected at most 6")
        long = sum(c.statements > 12 or c.lines > 24 for c in seen)
        if long > 0.1 * len(seen):
            faults.append(
                f"{name}: {long} of {len(seen)} cells have more than 12 statements or 24 lines; "
                "expected at most 10 %")
    return faults


WIDE = 88                                       # characters of code that fit its box (book.css)


def columns(root: Path) -> list[str]:
    "Visible lines of the path pages that are wider than their box, where they would be cut off."
    bench = [*workbench(root), FRONT]
    return [f"{cell.where}: a visible line of {len(line)} characters; expected at most {WIDE}: "
            f"{line.strip()[:40]}"
            for name, book in cells(root).items() if re.match(r"chapters/\d", name)
            and name.removeprefix("chapters/00_") not in bench
            for cell in book if cell.kind == "code" and not (cell.silent or cell.tags & FOLDED)
            for line in cell.source.splitlines() if len(line) > WIDE]


def outputs(root: Path) -> list[str]:
    "Cells that were not run, or that stored an error."
    faults = []
    for cell in (c for book in cells(root).values() for c in book if c.kind == "code"
                 and not c.silent):
        last = cell.tree.body[-1] if cell.tree.body else None
        value = (isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call | ast.Constant
                | ast.Await) and not cell.source.rstrip().endswith(";"))
        if value and not cell.outputs:
            faults.append(f"{cell.where}: ends in a value, and no output is stored: run it")
        faults += [f"{cell.where}: an error is stored, {o.get('ename')}" for o in cell.outputs
                   if o["output_type"] == "error"]
    return faults


# --- the same on every processor ------------------------------------------------------------------

# Sums in another order have other last bits. A cell whose numbers are safe all the same says why,
# in a comment: `# digits: why`
# for what it shows, `# exact: why` for what it compares.
FLOAT = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)")
DISTANCES = {"abs", "dist", "distance", "gap", "norm"}
EQUAL = {"array_equal", "equal", "torch.equal"}
SHOWN = ("text/plain", "application/papermill.record/text/plain")


def excused(cell: Cell, word: str) -> bool:
    "Does a comment of the cell say why?"
    return bool(re.search(rf"#.*\b{word}: \S+ \S+", cell.source))


def fragile(number: str) -> bool:
    """Is this the size of a rounding error (a power of ten is a bound, and no measurement), or
    has it more digits than 32 bits guarantee?"""
    digits, _, power = number.lower().partition("e")
    if "." not in digits and not power: return False
    if power and int(power) <= -6 and float(digits) != 1: return True
    return len(digits.replace(".", "").strip("0")) >= 7


def digits(root: Path) -> list[str]:
    "Outputs that are compared, and show digits that another processor need not give."
    faults = []
    for cell in (c for book in cells(root).values() for c in book if c.kind == "code"
                 and "nbval-ignore-output" not in c.tags and not excused(c, "digits")):
        texts = [t for o in cell.outputs
                 for t in (o.get("text"), *(o.get("data", {}).get(kind) for kind in SHOWN)) if t]
        found = [n for text in texts for n in FLOAT.findall("".join(text)) if fragile(n)]
        if found:
            faults.append(
                f"{cell.where}: shows {found[0]}; round it, or give a bound that is asserted (or "
                "say `# digits: why`)")
    return faults


def different(node: ast.AST) -> bool:
    "Is it a difference, or the size of one?"
    called = {getattr(n.func, "attr", getattr(n.func, "id", "")) for n in ast.walk(node)
              if isinstance(n, ast.Call)}
    return (bool(called & DISTANCES) or any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub)
                                            for n in ast.walk(node)))


def to_the_last_bit(node: ast.AST) -> bool:
    "Does it ask that a difference be a certain number, or that tensors be equal?"
    if isinstance(node, ast.Call): return getattr(node.func, "attr", "") in EQUAL
    if not isinstance(node, ast.Compare): return False
    sides = [node.left, *node.comparators]
    pairs = [(a, b) for op, *two in zip(node.ops, sides, sides[1:])
             if isinstance(op, ast.Eq | ast.NotEq) for a, b in (two, two[::-1])]
    return any(isinstance(a, ast.Constant) and isinstance(a.value, int | float) and different(b)
               for a, b in pairs)


def exact(root: Path) -> list[str]:
    """Evidence that asks floats to be equal to the last bit. (Practice pages and exported code
    are tested elsewhere.)"""
    return [
        f"{cell.where}: «{ast.unparse(node)[:60]}» asks for equality to the last bit; allow a "
        "rounding error (or say `# exact: why`)"
            for name, book in cells(root).items() if "/practice/" not in name
            for cell in book if cell.kind == "code" and not cell.exported
        and not excused(cell, "exact")
            for node in ast.walk(cell.tree) if to_the_last_bit(node)]


# --- what is exported -----------------------------------------------------------------------------

def functions(tree: ast.Module, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    "The functions and methods of a module, by their dotted names."
    for node in tree.body:
        if isinstance(node, ast.FunctionDef): yield f"{prefix}.{node.name}", node
        elif isinstance(node, ast.ClassDef): yield from functions(node, f"{prefix}.{node.name}")


def length(node: ast.FunctionDef, source: list[str]) -> int:
    "Lines of a function's body that hold something, its docstring aside."
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return sum(bool(line.strip()) for line in source[body[0].lineno - 1 : node.end_lineno])


@lru_cache(maxsize=256)
def too_large(name: str, text: str) -> tuple[str, ...]:
    "What does not fit in one module."
    faults, source, tree = [], text.splitlines(), parsed(text)
    held, limit = (statements(tree),
                   next((most for start, (most, _) in LONG_MODULES.items()
                         if name.startswith(start)), 330))
    if held > limit:
        faults.append(f"{name}: {held} statements; expected about 250, at most {limit}")
    for called, node in functions(tree, name):
        # takes addresses, strides and sizes one by one
        kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
        held, limit = statements(node) - 1, 40 if kernel else 28
        if held > limit:
            faults.append(f"{called}: {held} statements; expected about 15, at most {limit}")
        if length(node, source) > 50:
            faults.append(f"{called}: {length(node, source)} lines; expected a screen, at most 50")
        count = len([a for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                     if a.arg not in ("self", "cls")])
        if count > 8 and not kernel and called not in MANY_PARAMETERS:
            faults.append(f"{called}: {count} parameters; expected at most 8")
    return tuple(faults)


def size(root: Path) -> list[str]:
    "Functions and modules that do not fit on a screen, and functions that take too much."
    files = {module: root / "tfmlib" / f"{module.replace('.', '/')}.py"
             for module in owners(cells(root))}
    return [fault for module, file in files.items() if file.is_file()
            for fault in too_large(f"tfmlib.{module}", file.read_text())]


def written(folder: Path) -> dict[Path, bytes]:
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*.py")}


# the same notebooks give the same library: it is written once
EXPORTED: dict[str, dict[Path, bytes] | str] = {}


def exported(root: Path) -> dict[Path, bytes] | str:
    "The library that the notebooks give; what went wrong if it cannot be written."
    made = hashlib.sha256()
    for path in sorted([*notebook_files(root / "chapters"), root / "tools/export.py",
                        root / "pyproject.toml"]):
        made.update(path.read_bytes())
    hand = {name for name, text in written(root / "tfmlib").items()
            if b"AUTOGENERATED" not in text[:200]}
    key = f"{made.hexdigest()} {sorted(map(str, hand))}"
    if key not in EXPORTED: EXPORTED[key] = export_of(root)
    return EXPORTED[key]


def export_of(root: Path) -> dict[Path, bytes] | str:
    "Run the export on a copy."
    with tempfile.TemporaryDirectory() as place_:
        copied = Path(place_)
        for part in ("chapters", "tfmlib", "tools"):
            copytree(root / part, copied / part,
                     ignore=ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        (copied / "extensions").mkdir()
        # which a copy with a planted fault need not have
        copy(ROOT / "extensions/pages.py", copied / "extensions")
        for file in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
            if (root / file).is_file(): copy(root / file, copied)
        done = subprocess.run([sys.executable, "tools/export.py"], cwd=copied,
                              capture_output=True, text=True)
        return (written(copied / "tfmlib") if done.returncode == 0
                else f"the export fails: {done.stderr.strip()[-400:]}")


def export(root: Path) -> list[str]:
    "Files of tfmlib that are not what the notebooks give."
    ours, theirs = written(root / "tfmlib"), exported(root)
    if isinstance(theirs, str): return [theirs]
    return [f"tfmlib/{name}: not what the notebooks give; run `make export`"
            for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]


RULES: dict[str, Callable[[Path], list[str]]] = {
    f.__name__: f for f in (order, circles, directive_lines, led_in, shape, folds, columns, outputs,
                            digits, exact, size, export)
}
