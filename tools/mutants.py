"""Hand generic mutants of every solution to its checker and write tfmlib/assets/mutants.json: python tools/mutants.py [PAGE ...]

A mutant is killed if the checker rejects it. One that lives is equivalent if it gives what the solution gives, on the checker's own
inputs and on others like them; it is excused if tools/excused.yml says why. Any other one survives, and that is a defect of the checker: close its class, not the case.
"""
import argparse
import ast
import contextlib
import hashlib
import importlib
import inspect
import json
import linecache
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import nbformat
import torch
import yaml
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import kills  # noqa: E402
import mutations  # noqa: E402
from mutations import Call, Mutant, copied, each, floats, tensors  # noqa: E402

FILE = ROOT / "tfmlib/assets/mutants.json"
EXCUSES = ROOT / "tools/excused.yml"
FEW = 10                                                              # inputs of our own, before two functions are taken for one
VERDICTS = ("tried", "killed", "equivalent", "excused", "survived")


# --- running with an end -------------------------------------------------------------------------------------------

class Overtime(BaseException):
    "A mutant did not come to an end; no checker may catch this."


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    "Interrupt what takes more of the processor's time."
    def ring(*_): raise Overtime
    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- is it another function at all? --------------------------------------------------------------------------------

def drawn(x: Tensor, draw: torch.Generator, shape: tuple | None = None) -> Tensor:
    "A tensor like `x` with other numbers: of its type and sign, and of its shape and infinite where it is, or of another shape."
    size = x.shape if shape is None else shape
    if x.dtype == torch.bool: return torch.rand(size, generator=draw) < 0.5
    if not x.is_floating_point():
        if shape is None: return x.flatten()[torch.randperm(x.numel(), generator=draw)].view(x.shape)
        return torch.randint(int(x.min()), int(x.max()) + 1, size, generator=draw, dtype=x.dtype) if x.numel() else x.new_zeros(size)
    other = torch.randn(size, generator=draw, dtype=torch.float64)
    if x.numel() and x.min() >= 0: other = other.abs()
    return (other if shape is not None else torch.where(x.isfinite(), other, x.double())).to(x.dtype)


def resized(value, old: int, new: int, draw: torch.Generator):
    "A value in which every length `old` is `new`."
    if isinstance(value, Tensor): return drawn(value, draw, tuple(new if n == old else n for n in value.shape))
    if type(value) in (list, tuple): return type(value)(resized(v, old, new, draw) for v in value)
    if type(value) is dict: return {k: resized(v, old, new, draw) for k, v in value.items()}
    return new if type(value) is int and value == old else value


def moved(value, draw: random.Random):
    "A number, text or list like it."
    if isinstance(value, bool): return draw.random() < 0.5
    if isinstance(value, int): return max(value + draw.choice((-2, -1, -1, 0, 1, 1, 2, 3)), min(value, 0))
    if isinstance(value, float): return value * draw.choice((0.5, 0.9, 1., 1.1, 1.5))
    if type(value) in (list, bytes, str) and value:
        some = [moved(v, draw) if draw.random() < 0.3 else v for v in value] if isinstance(value, list) else list(value)
        change = draw.randrange(4)
        some = [some, some[:-1], some + some[:1], draw.sample(some, len(some))][change]
        return some if isinstance(value, list) else bytes(some) if isinstance(value, bytes) else "".join(some)
    if isinstance(value, tuple): return tuple(moved(v, draw) if draw.random() < 0.3 else v for v in value)
    if type(value) is dict: return {k: moved(v, draw) for k, v in value.items()}
    return value


def others(call: Call, draw: torch.Generator) -> Iterator[dict]:
    "Arguments like those of a call: of other types and strides, with other numbers, of other sizes."
    given, chance = call.arguments, random.Random(int(torch.randint(10**9, (), generator=draw)))
    for _ in range(8):
        changed = {n: moved(v, chance) if chance.random() < 0.6 else v for n, v in given.items()}
        if any(repr(changed[n]) != repr(given[n]) for n in given): yield changed
    if not tensors(given): return
    for dtype in (torch.float64, torch.float32): yield {n: mutations.cast(v, dtype) for n, v in given.items()}
    yield {n: each(turned, v) for n, v in given.items()}
    for _ in range(3): yield {n: each(lambda t: drawn(t, draw), v) for n, v in given.items()}
    for _ in range(2): yield {n: mutations.cast(each(lambda t: drawn(t, draw), v), torch.float64) for n, v in given.items()}
    for old in sorted({n for t in tensors(given) for n in t.shape}):
        for new in (old + 1, 2 * old, 2 * old + 1): yield {n: resized(v, old, new, draw) for n, v in given.items()}


def turned(x: Tensor) -> Tensor:
    "The same numbers, not contiguous."
    return x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x


def outcome(f: Callable, arguments: dict) -> tuple:
    "What a function gives, or raises, and what it leaves of its arguments, which it gets a copy of."
    try: arguments = copied(arguments)
    except mutations.Uncopied: return "no question", None, None
    try:
        with limit(1.):
            answer = f(**arguments)
            if inspect.isgenerator(answer): answer = list(answer)
    except Overtime: return "no end", None, None
    except Exception as error: return "raises", type(error), arguments
    return "gives", answer, arguments


def alike(a, b) -> bool:
    "Are two values the same, but for rounding?"
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype: return False
        if not a.is_floating_point(): return bool((a == b).all())
        tol = {torch.float64: 1e-10, torch.float32: 1e-5}.get(a.dtype, 1e-2)
        return torch.allclose(a.double(), b.double(), rtol=tol, atol=tol, equal_nan=True)
    if type(a) is not type(b): return False
    if isinstance(a, float): return a == b or a != a and b != b or abs(a - b) <= 1e-10 * max(abs(a), abs(b))
    if isinstance(a, list | tuple): return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict): return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, type): return a is b
    if callable(a): return True
    try: return bool(a == b)
    except Exception: return True


def gradients(f: Callable, arguments: dict, dtype: torch.dtype = torch.float64) -> list:
    "The gradients of a function's answer at its arguments; None where none flows."
    given = {n: mutations.cast(v, dtype) for n, v in arguments.items()}
    given = {n: each(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), v) for n, v in given.items()}
    (state, answer, given), made = outcome(f, given), []
    at = floats(given)
    if state == "gives": made = [t for t in floats([answer] if not isinstance(answer, tuple) else answer) if t.requires_grad]
    if not made or not at: return [None] * len(at)
    return list(torch.autograd.grad(sum(t.nan_to_num(0, 0, 0).sum() + t.nan_to_num(0, 0, 0).square().sum() for t in made), at, allow_unused=True))


def spoils(f: Callable, arguments: dict) -> bool:
    "Does a change of its answer change its next answer?"
    try: arguments = copied(arguments)
    except mutations.Uncopied: return False
    def asked():
        with contextlib.suppress(Exception), limit(1.): return f(**arguments)
    first = asked()
    if inspect.isgenerator(first): return False
    before = deepcopy(each(Tensor.detach, first))
    for part in first if type(first) is tuple else (first,): mutations.into(part)
    return not alike(asked(), before)


def moves(slope) -> bool: return slope is not None and bool((slope != 0).any())


def shared(answer, arguments: dict | None) -> bool:
    "Is a part of the answer one of the arguments itself, and a list or a mapping?"
    held = [id(v) for v in (arguments or {}).values() if isinstance(v, list | dict)]
    return any(id(a) in held for a in (answer if type(answer) is tuple else [answer]))


class Compared:
    "A solution, and what it gives on what its checker asks and on inputs like that."
    def __init__(self, solution: Callable, calls: list[Call]):
        draw = torch.Generator().manual_seed(0)
        self.solution, self.chosen, self.pairs, self.new = solution, calls[:: max(1, len(calls) // 10)], [], 0
        asked = [c.arguments for c in calls[:40]]
        for number, arguments in enumerate(asked + [a for c in self.chosen for a in others(c, draw)], 40 - len(asked)):
            wanted = outcome(solution, arguments)
            if wanted[0] == "raises" and wanted[1] is not ValueError or wanted[0] == "no question": continue
            self.pairs.append((arguments, wanted))
            self.new += number >= 40 and wanted[0] == "gives"

    def differs(self, mutant: Mutant) -> bool:
        "Does a mutant give anything that the solution does not?"
        if mutant.kind in ("one in eight", "longer than 16", "gradient asked for"): return True     # inputs like small ones are small; what an argument requires is not compared
        if mutant.kind.startswith("detached"):
            dtype = torch.float32 if "32" in mutant.kind else torch.float64
            return any(moves(a) and not moves(b) for c in self.chosen
                       for a, b in zip(gradients(self.solution, c.arguments, dtype), gradients(mutant.made(), c.arguments, dtype)))
        if mutant.kind == "kept": return any(spoils(mutant.made(), c.arguments) for c in self.chosen)
        attempt = mutant.made()
        for arguments, wanted in self.pairs:
            found = outcome(attempt, arguments)
            if not all(map(alike, found, wanted)): return True
            if mutant.what == "the caller's own" and shared(found[1], found[2]) and not shared(wanted[1], wanted[2]): return True
        return self.new < FEW                                                        # too little was asked to know


# --- a page --------------------------------------------------------------------------------------------------------

def statement_of(node: ast.stmt, kinds: tuple[type, ...]) -> bool:
    "Is it one of these, alone or in a `try`?"
    return isinstance(node, kinds) or isinstance(node, ast.Try) and all(statement_of(n, kinds) for n in node.body)


def space(nb: dict, module) -> dict:
    "What a page's solutions know: what its module holds, what it imports, and themselves."
    names = dict(vars(module)) | {"__name__": "__main__", "display": lambda *a, **k: None}
    for cell in (c for c in nb["cells"] if c["cell_type"] == "code"):
        code, file, kind = kills.code_of(cell), f"<cell {cell['id']}>", kills.kind_of(cell)
        tree = ast.parse(code)
        if kind not in ("", "solution") or code.startswith("#| export") or not any(statement_of(n, (ast.Import, ast.ImportFrom, ast.FunctionDef)) for n in tree.body): continue
        kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign) if kind else (ast.Import, ast.ImportFrom)
        tree.body = [n for n in tree.body if statement_of(n, kept)]
        linecache.cache[file] = len(code), None, code.splitlines(True), file             # kernels are run from their source
        exec(compile(tree, file, "exec"), names)
    return names


def cells_of(nb: dict, exercise: str) -> list[str]:
    "The sources of an exercise's solution cells."
    return [kills.code_of(c) for c in nb["cells"] if kills.exercise_of(c) == exercise and kills.kind_of(c) == "solution"]


def excuses(page: str) -> dict[str, dict[str, str]]:
    "What is excused on a page: exercise -> a label, its beginning before an ellipsis, or a class -> the reason."
    return yaml.safe_load(EXCUSES.read_text(encoding="utf-8")).get(page, {})


def excuse(label: str, known: dict[str, str]) -> str:
    "What excuses this mutant, or nothing."
    return next((e for e in known if e in (label, label.split(":")[0]) or e.endswith("…") and label.startswith(e[:-1])), "")


def passes(checker, attempt: Callable, seconds: float) -> bool:
    "Does the checker accept it, in this time?"
    try:
        with limit(seconds): return checker.examine(attempt).passed
    except Overtime: return False


def judged(checker, name: str, source: str, known: dict[str, str], names: dict, part: int = 1) -> dict[str, str]:
    "The verdict on the mutants of one solution, by label: all; or one in so many, and whether it was killed or lives."
    solution, calls, found, compared = names[name], [], {}, None
    kernel, start = not inspect.isfunction(solution), time.process_time()
    checker.examine(solution if kernel else mutations.recorder(solution, calls))
    seconds = 0.3 + 5 * (time.process_time() - start)
    made = [*mutations.wrappers(solution, calls), *mutations.rewritten(source, name, names, calls)]
    for mutant in made[::part]:
        try: attempt = mutant.made()
        except Exception: continue                                     # it is no program
        if not passes(checker, attempt, seconds): found[mutant.label] = "killed"
        elif part > 1: found[mutant.label] = "lives"
        elif calls and not (compared := compared or Compared(solution, calls)).differs(mutant): found[mutant.label] = "equivalent"
        else: found[mutant.label] = "excused" if excuse(mutant.label, known) else "survived"
    return found


def page(path: Path, part: int = 1, only: str = "") -> dict[str, dict[str, str]]:
    "The verdicts on the mutants of a page's solutions: exercise -> label -> verdict."
    nb, module = nbformat.read(path, as_version=4), module_of(path)
    names, known, found = space(nb, module), excuses(path.stem), {}
    with patch.object(module, "_SECONDS", 2, create=True), warnings.catch_warnings():     # a kernel that never ends ends here
        warnings.simplefilter("ignore")
        for exercise in kills.named(nb):
            if only not in ("", exercise): continue
            cells = cells_of(nb, exercise)
            source = next(s for s in cells if re.search(r"^def ", s, re.M))
            checker, name = getattr(module, f"check_{exercise}"), re.search(r"^def (\w+)", source, re.M)[1]
            found[exercise] = judged(checker, name, source, known.get(exercise, {}), names, part)
    return found


def module_of(path: Path): return importlib.import_module("tfmlib." + re.search(r"#\| default_exp ([\w.]+)", path.read_text(encoding="utf-8"))[1])


def fingerprint(path: Path) -> str:
    "What the verdicts on a page hang on, as far as the page holds it: its checkers and its solutions."
    nb = nbformat.read(path, as_version=4)
    held = [c.source for c in nb.cells if c.cell_type == "code" and (c.source.startswith("#| export") or kills.kind_of(c) == "solution")]
    return hashlib.sha256("\n\n".join(held).encode()).hexdigest()[:16]


# --- the table -----------------------------------------------------------------------------------------------------

def recorded(path: Path, found: dict[str, dict[str, str]]) -> dict:
    "What the table keeps of a page: counts by class, and every mutant that lives."
    kept = []
    for exercise, verdicts in found.items():
        known = excuses(path.stem).get(exercise, {})
        lives = {v: sorted(label for label in verdicts if verdicts[label] == v) for v in ("equivalent", "excused", "survived")}
        kinds = Counter(label.split(":")[0] for label in verdicts)
        kept.append({"name": exercise, "tried": {k: kinds[k] for k in mutations.KINDS if kinds[k]}} | lives |
                    {"excused": {label: known[excuse(label, known)] for label in lives["excused"]}})
    return {"page": f"chapters/practice/{path.stem}", "of": fingerprint(path), "exercises": kept}


def known_before() -> dict[str, dict]:
    "The table as it is: page -> what it keeps."
    return {p["page"]: p for p in json.loads(FILE.read_text(encoding="utf-8"))["pages"]} if FILE.is_file() else {}


def text(pages: list[dict]) -> str:
    "The table as the file holds it."
    return json.dumps({"classes": mutations.KINDS, "pages": pages}, indent=1, ensure_ascii=False) + "\n"


def counts(pages: list[dict]) -> dict[str, Counter]:
    "How many mutants of each class there are: tried, killed, equivalent, excused, survived."
    found = {kind: Counter() for kind in mutations.KINDS}
    for e in (e for p in pages for e in p["exercises"]):
        for kind, n in e["tried"].items(): found[kind].update(tried=n, killed=n)
        for verdict in ("equivalent", "excused", "survived"):
            for label in e[verdict]: found[label.split(":")[0]].update({verdict: 1, "killed": -1})
    return found


def table(pages: list[dict]) -> str:
    "The counts, to be read."
    rows = counts(pages)
    rows["all"] = sum(rows.values(), Counter())
    head = f"{'class':16}" + "".join(f"{v:>12}" for v in VERDICTS)
    return "\n".join([head, *(f"{name:16}" + "".join(f"{n[v]:12}" for v in VERDICTS) for name, n in rows.items())])


def faults(path: Path, kept: dict) -> list[str]:
    "The mutants of a page that survive, and excuses that excuse nothing."
    said, known = [], excuses(path.stem)
    for e in kept["exercises"]:
        said += [f"{kept['page']}: {e['name']}: survives «{label}»" for label in e["survived"]]
        idle = {x for x in known.get(e["name"], {}) if not any(excuse(label, {x: ""}) for label in e["excused"])}
        said += [f"{kept['page']}: {e['name']}: no mutant needs the excuse «{x}»" for x in sorted(idle)]
    there = {e["name"] for e in kept["exercises"]}
    return said + [f"{kept['page']}: no exercise {e}, which is excused" for e in known if e not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="numbers of practice pages, such as 04 (default: all)")
    parser.add_argument("--only", default="", metavar="EXERCISE", help="one exercise; the table is left as it is")
    given, before, said = parser.parse_args(), known_before(), []
    for path in kills.pages():
        name = f"chapters/practice/{path.stem}"
        if given.pages and path.stem[:2] not in given.pages: continue
        start = time.process_time()
        kept = recorded(path, page(path, only=given.only))
        said += faults(path, kept)
        print(f"{path.stem}: {time.process_time() - start:.1f} s of the processor", file=sys.stderr)
        before = before | {name: kept}
    names = [f"chapters/practice/{path.stem}" for path in kills.pages()]
    if not given.only: FILE.write_text(text([before[n] for n in names if n in before]), encoding="utf-8")
    print(table([before[n] for n in names if n in before]))
    sys.exit("\n".join(said) if said else 0)


if __name__ == "__main__":
    main()
