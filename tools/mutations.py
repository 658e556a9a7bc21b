"""Generic mutants: what can go wrong in any answer to any exercise, made from its solution alone.
`mutants.py` hands them to the checkers.

Those of the first half wrap the solution and know the calls that its checker makes; those of the
second half change its syntax tree.
"""
import ast
import contextlib
import inspect
import linecache
import math
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, wraps
from itertools import combinations

import torch
from torch import Tensor

KINDS = {
    "first value": "an argument is ignored: the first value that came stands for it",
    "usual value": "an argument is ignored: its most frequent value stands for it",
    "frozen size": "a number read off a shape is typed in",
    "remembered": "what was computed for a shape is given again",
    "kept": "the same tensor or list is given for the same arguments, which the caller may have "
            "changed",
    "detached": "no gradient flows back",
    "detached in 32 bits": "no gradient flows back in 32 bits",
    "gradient asked for": "an argument is made to require a gradient",
    "32 bits": "computed in 32 bits and cast back",
    "16 bits": "computed in 16 bits and cast back",
    "clamped": "numbers beyond a thousand are cut down",
    "flushed": "numbers below a millionth count as zero",
    "one type": "one floating type is refused, or given back whatever came",
    "contiguous": "an argument that is not contiguous is refused",
    "equal sizes": "wrong where two sizes that can differ are alike",
    "longer than 16": "wrong where there are more than sixteen",
    "first calls": "right for the first calls only",
    "changed input": "an argument is changed in place",
    "input returned": "an argument is the answer, or the answer is the caller's own list",
    "last element": "the last element is wrong",
    "one in eight": "one row in eight is wrong",
    "ties": "ties are broken the other way",
    "bound": "< for ≤, > for ≥, and the other way round",
    "off by one": "a whole number is one more or one less",
    "axis": "the axis 0 for −1, and the other way round",
    "min and max": "min for max, floor for ceil, any for all, and for or, and the other way round",
    "reshape": "numbers are read in another order, where axes should change places",
    "sign": "+ for −, and the other way round",
    "infinity": "a large number for ∞",
    "dropped term": "an operand is left out",
    "dropped keyword": "a keyword argument is left out",
    "dropped step": "a method's call or a statement is left out",
    "condition": "a condition always holds, or never",
}


@dataclass(frozen=True)
class Mutant:
    """A wrong answer: its class, what it does in words that are its own in its exercise, and how to
    make it afresh."""
    kind: str
    what: str
    made: Callable[[], Callable]

    @property
    def label(self) -> str: return f"{self.kind}: {self.what}"


@dataclass(frozen=True)
class Call:
    "A call that a checker made, its arguments by name."
    arguments: dict
    answer: object


# --- what a checker asks --------------------------------------------------------------------------

class Uncopied(Exception):
    "A call whose arguments cannot be copied."


def copied(arguments: dict) -> dict:
    "The arguments, apart from the caller's, with their strides."
    def leaf(x): return x if x.is_leaf else x.detach().requires_grad_(x.requires_grad)
    try: return deepcopy(each(leaf, arguments))
    except Exception as error: raise Uncopied from error


def recorder(f: Callable, calls: list[Call], most: int = 2000) -> Callable:
    "The function `f`; what it is asked is appended to `calls`."
    shape = inspect.signature(f)

    @wraps(f)
    def asked(*args, **kwargs):
        before = None
        with contextlib.suppress(TypeError, Uncopied):
            if len(calls) < most: before = copied(shape.bind(*args, **kwargs).arguments)
        answer = f(*args, **kwargs)
        if before is not None: calls.append(Call(before, answer))
        return answer
    return asked


def each(do: Callable, value):
    "The value with `do` applied to every tensor in it."
    if isinstance(value, Tensor): return do(value)
    if type(value) in (list, tuple): return type(value)(each(do, v) for v in value)
    if type(value) is dict: return {k: each(do, v) for k, v in value.items()}
    return value


def tensors(value) -> list[Tensor]:
    "All tensors in a value."
    found = []
    each(found.append, value)
    return found


def floats(value) -> list[Tensor]: return [t for t in tensors(value) if t.is_floating_point()]


def plain(value) -> bool:
    "Is it a number, a text, a type, or a few of them?"
    return (isinstance(value, int | float | str | bytes | torch.dtype | None)
            or isinstance(value, tuple) and all(map(plain, value)))


# --- mutants that wrap ----------------------------------------------------------------------------

def changing(f: Callable, change: Callable[[dict], dict | None]) -> Callable:
    "The function `f`, of arguments that `change` has changed."
    shape = inspect.signature(f)

    @wraps(f)
    def attempt(*args, **kwargs):
        bound = shape.bind(*args, **kwargs)
        bound.arguments.update(change(dict(bound.arguments)) or {})
        return f(*bound.args, **bound.kwargs)
    return attempt


def answering(f: Callable, change: Callable) -> Callable:
    "The function `f`, its answer changed by `change(answer, arguments)`."
    shape = inspect.signature(f)

    @wraps(f)
    def attempt(*args, **kwargs):
        return change(f(*args, **kwargs), shape.bind(*args, **kwargs).arguments)
    return attempt


def ignored(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Arguments that are ignored."
    for name in inspect.signature(f).parameters:
        values = [c.arguments[name] for c in calls if name in c.arguments]
        if not values or not all(map(plain, values)): continue
        first, usual = values[0], Counter(map(repr, values)).most_common(1)[0][0]
        yield Mutant("first value", name,
                     lambda name=name, first=first: changing(f, lambda _: {name: first}))
        if usual != repr(first):
            value = next(v for v in values if repr(v) == usual)
            yield Mutant("usual value", name,
                         lambda name=name, value=value: changing(f, lambda _: {name: value}))


_FORMED: list = []  # kept, so that no two of them have one address


def form(value) -> str:
    "What a memory by shape knows of a value."
    if isinstance(value, Tensor): return f"{value.dtype} {tuple(value.shape)}"
    if type(value) in (list, tuple): return f"{type(value).__name__}({', '.join(map(form, value))})"
    if plain(value): return repr(value)
    _FORMED.append(value)
    return f"{type(value)} {id(value)}"


def remembered(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers, or arguments, that are kept for the next call with the same shapes."
    def by_shape():
        known: dict = {}
        shape = inspect.signature(f)

        @wraps(f)
        def attempt(*args, **kwargs):
            bound = shape.bind(*args, **kwargs).arguments
            key = str({n: form(v) for n, v in bound.items()})
            if key not in known: known[key] = f(*args, **kwargs)
            return each(Tensor.clone, known[key])
        return attempt

    def kept(name):
        known: dict = {}

        def change(arguments):
            value = arguments.get(name)
            return {name: known.setdefault(form(value), each(Tensor.clone, value))}
        return changing(f, change)

    given = {n for c in calls for n, v in c.arguments.items() if tensors(v)}
    if given: yield Mutant("remembered", "the answer", by_shape)
    for name in sorted(given): yield Mutant("remembered", name, lambda name=name: kept(name))


def exactly(value) -> str:
    "What a memory by value knows of it."
    if isinstance(value, Tensor):
        return (
            f"{form(value)} {value.requires_grad} "
            f"{hash(value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else value.item())}")  # noqa: E501
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(exactly, value))})"
    if type(value) is dict:
        return f"dict({', '.join(f'{k!r}: {exactly(v)}' for k, v in value.items())})"
    return form(value)


def kept(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that are given again, the very same object, for the same arguments."
    def by_value():
        known: dict = {}
        shape = inspect.signature(f)

        @wraps(f)
        def attempt(*args, **kwargs):
            key = exactly(dict(shape.bind(*args, **kwargs).arguments))
            if key not in known: known[key] = f(*args, **kwargs)
            return known[key]
        return attempt

    parts = [a for c in calls for a in (c.answer if type(c.answer) is tuple else [c.answer])]
    # not of what is predicted once and for all
    asked = any(isinstance(v, Tensor | list | dict) for c in calls for v in c.arguments.values())
    if asked and any(isinstance(a, Tensor | list | dict | set) for a in parts):
        yield Mutant("kept", "the answer", by_value)


def detached(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    """Gradients that do not flow, at all, to one argument or in one type; and gradients that nobody
    asked for."""
    yield Mutant("detached", "the answer",
                 lambda: answering(f, lambda answer, _: each(Tensor.detach, answer)))
    if not any(floats(c.arguments) for c in calls): return
    yield Mutant("detached in 32 bits", "the answer",
                 lambda: answering(f, lambda answer, a: each(Tensor.detach, answer)
                                   if widest(a) == torch.float32 else answer))
    yield Mutant("gradient asked for", "all arguments",
                 lambda: changing(f, lambda a: [t.requires_grad_() for t in floats(a) if t.is_leaf]
                                  and None))
    for name in sorted({n for c in calls for n, v in c.arguments.items() if floats(v)}):
        yield Mutant("detached", name,
                     lambda name=name: changing(f, lambda a: {name: each(Tensor.detach, a[name])}
                                                if name in a else {}))


def cast(value, dtype: torch.dtype):
    return each(lambda t: t.to(dtype) if t.is_floating_point() else t, value)


def widest(arguments: dict) -> torch.dtype | None:
    "The widest floating type among the arguments."
    found = [t.dtype for t in floats(dict(arguments))]
    return max(found, key=lambda d: torch.finfo(d).bits) if found else None


def types(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers of fewer bits, and answers that know one floating type only."
    if not any(floats(c.arguments) for c in calls): return

    def fewer(dtype):
        inner = changing(f, lambda a: {n: cast(v, dtype) for n, v in a.items()})
        return answering(inner, lambda answer, a: cast(answer, widest(a) or torch.float64))

    def refuses(dtype):
        def change(arguments):
            if widest(arguments) == dtype:
                raise RuntimeError(f"expected scalar type other than {dtype}")
        return changing(f, change)

    for kind, dtype in (("32 bits", torch.float32), ("16 bits", torch.float16)):
        yield Mutant(kind, "the answer", lambda dtype=dtype: fewer(dtype))
    for dtype in (torch.float32, torch.float64):
        yield Mutant("one type", f"refuses {dtype}", lambda dtype=dtype: refuses(dtype))
        yield Mutant("one type", f"gives {dtype}",
                     lambda dtype=dtype: answering(f, lambda answer, _: cast(answer, dtype)))


def ranges(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers for numbers that are neither large nor small."
    if not any(floats(c.arguments) for c in calls): return

    def of_each(do):
        return changing(f, lambda a: {n: each(lambda t: do(t) if t.is_floating_point() else t, v)
                                      for n, v in a.items()})
    yield Mutant("clamped", "all arguments",
                 lambda: of_each(lambda t: torch.where(t.isfinite(), t.clamp(-1e3, 1e3), t)))
    yield Mutant("flushed", "all arguments",
                 lambda: of_each(lambda t: torch.where(t.abs() < 1e-6, 0 * t, t)))


def axes(arguments: dict) -> dict[str, int]:
    """The sizes of a call's tensors and the lengths of its lists and texts, each by the words for
    it."""
    found = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            found |= {f"axis {i - value.ndim} of {name}": n for i, n in enumerate(value.shape)}
        elif isinstance(value, list | str | bytes): found[f"len({name})"] = len(value)
    return found


def wrong_if(f: Callable, asked: Callable[[dict], bool]) -> Callable:
    "The function `f`, wrong for the arguments that `asked` is true of."
    return answering(f, lambda answer, a: wrong(answer) if asked(a) else answer)


def sized(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that are wrong for certain sizes."
    texts = {name: {c.arguments.get(name) for c in calls} for c in calls
             for name, v in c.arguments.items() if isinstance(v, str)}
    # one of a few words, which has no length
    chosen = {name for name, given in texts.items() if len(given) < 10}
    seen = [{n: size for n, size in axes(c.arguments).items()
             if n.removeprefix("len(")[:-1] not in chosen} for c in calls]
    names = sorted({name for found in seen for name in found})
    lengths = {argument: [n for n in names if n.endswith((f" of {argument}", f"({argument})"))]
               for c in calls for argument in c.arguments}

    def alike(sizes, argument):
        there = [sizes[n] for n in lengths[argument] if sizes.get(n, 1) > 1]
        return len(set(there)) < len(there)

    def ranks(argument): return [sum(n in found for n in lengths[argument]) for found in seen]

    for argument in sorted(lengths):
        several = [found for found in seen if sum(n in found for n in lengths[argument]) > 1]
        if any(not alike(found, argument) for found in several):
            yield Mutant("equal sizes", f"two axes of {argument}",
                         lambda argument=argument: wrong_if(f,
                                                            lambda given: alike(
                                                                axes(given), argument)))
    for a, b in combinations([n for n in lengths if lengths[n]], 2):
        # of tensors the axis before the last, which holds the rows
        m, n = lengths[a][-2:][0], lengths[b][-2:][0]
        if ranks(a) == ranks(b) and any(found.get(m) != found.get(n) for found in seen):
            yield Mutant("equal sizes", f"{m} and {n}",
                         lambda m=m, n=n: wrong_if(f,
                                                   lambda given: (s := axes(given)).get(m, 0)
                                                   == s.get(n, 1) > 1))
    if any(len({found[n] for found in seen if n in found}) > 1 for n in names):
        yield Mutant("longer than 16", "any axis",
                     lambda: wrong_if(f, lambda given: max((n for name, n in axes(given).items()
                                                            if name in names), default=0) > 16))


def strides(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that cannot do with views."
    def change(arguments):
        if not all(t.is_contiguous() for t in tensors(arguments)):
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
    if any(tensors(c.arguments) for c in calls):
        yield Mutant("contiguous", "all arguments", lambda: changing(f, change))


def wrong(value):
    "Something like it that is not it."
    if isinstance(value, Tensor):
        if value.dtype == torch.bool: return ~value
        if not value.is_floating_point(): return value + 1
        return torch.where(value.isfinite(), 1.01 * value + 0.01, torch.zeros_like(value))
    if isinstance(value, bool): return not value
    if isinstance(value, int): return value + 1
    if isinstance(value, float): return 1.01 * value + 0.01 if math.isfinite(value) else 0.
    if isinstance(value, str): return value + "?"
    if isinstance(value, bytes): return value + b"?"
    if type(value) in (list, tuple): return type(value)(map(wrong, value))
    if isinstance(value, dict): return {k: wrong(v) for k, v in value.items()}
    if isinstance(value, set): return {*value, "?"}
    return value


def spoilt(value, which: slice):
    """The value with some of its elements wrong; a tensor's are its rows, or its numbers if `which`
    is the last."""
    if isinstance(value, Tensor) and value.ndim:
        whole = which.start == -1
        rows = value.flatten() if whole or value.ndim == 1 else value.flatten(0, -2)
        bad = torch.zeros(rows.shape[:1], dtype=torch.bool)
        bad[which] = True
        bad = bad if rows.ndim == 1 else bad[:, None].expand_as(rows)
        return torch.where(bad.reshape(value.shape), wrong(value), value)
    if isinstance(value, list):
        bad = set(range(len(value))[which])
        return [wrong(v) if i in bad else v for i, v in enumerate(value)]
    if isinstance(value, dict):
        bad = set(list(value)[which])
        return type(value)({k: wrong(v) if k in bad else v for k, v in value.items()})
    return value


def elements(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that are nearly right: a part of several, or the only one, of which some is wrong."
    several = Counter(len(c.answer) if type(c.answer) is tuple else 0
                      for c in calls).most_common(1)[0][0]
    for part in range(several or 1):
        seen = [c.answer[part] if several else c.answer for c in calls if not several
                or type(c.answer) is tuple and len(c.answer) == several]
        if not any(isinstance(v, list | dict) or isinstance(v, Tensor) and v.ndim for v in seen):
            continue

        def change(answer, which, part=part):
            if not several: return spoilt(answer, which)
            return (tuple(spoilt(a, which) if i == part else a for i, a in enumerate(answer))
                    if type(answer) is tuple else answer)
        named = f"part {part}" if several else "the answer"
        for kind, which in (("last element", slice(-1, None)), ("one in eight", slice(7, None, 8))):
            yield Mutant(kind, named,
                         lambda change=change, which=which: answering(f,
                                 lambda answer, _: change(answer, which)))


def calls_only(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that are right until they have been asked some times."
    def until(k):
        asked = [0]

        def change(answer, _):
            asked[0] += 1
            return answer if asked[0] <= k else wrong(answer)
        return answering(f, change)
    for k in sorted({1, max(1, len(calls) // 2)}):
        yield Mutant("first calls", f"{'one' if k == 1 else 'half of them'}", lambda k=k: until(k))


def into(value) -> None:
    "Change a value in place."
    if isinstance(value, Tensor): value.data = value.data
    with contextlib.suppress(Exception), torch.no_grad():
        if isinstance(value, Tensor): value.copy_(wrong(value))
        elif isinstance(value, list): value.append(value[-1] if value else 0)
        elif isinstance(value, dict): value.popitem()


def inputs(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "Answers that change an argument, give it back, or give the caller's own list."
    def writes(name):
        def change(answer, arguments):
            answer = each(Tensor.clone, answer)
            into(arguments.get(name))
            return answer
        return answering(f, change)

    def own(answer, arguments):
        if type(answer) is tuple: return tuple(own(a, arguments) for a in answer)
        return next((a for a in arguments.values() if type(a) is type(answer)
                     and isinstance(a, list | dict) and a == answer), answer)

    names = sorted({n for c in calls
                    for n, v in c.arguments.items() if isinstance(v, Tensor | list | dict)})
    for name in names:
        yield Mutant("changed input", name, lambda name=name: writes(name))
        yield Mutant("input returned", name,
                     lambda name=name: answering(f, lambda answer, a: a.get(name, answer)))
    parts = [a for c in calls for a in (c.answer if type(c.answer) is tuple else [c.answer])]
    if any(isinstance(a, list | dict) for a in parts):
        yield Mutant("input returned", "the caller's own", lambda: answering(f, own))


WRAPPING = (ignored, remembered, kept, detached, types, ranges, sized, strides, calls_only, inputs,
            elements)


def wrappers(f: Callable, calls: list[Call]) -> Iterator[Mutant]:
    "All mutants of `f` that wrap it; `calls` is what its checker asked."
    for make in WRAPPING if calls else (): yield from make(f, calls)  # of a kernel no call is known


# --- mutants of the syntax tree -------------------------------------------------------------------

class Ties:
    """What PyTorch and Python call by these names, with the last of equals where they give the
    first."""
    @staticmethod
    def argmax(x, dim=None, keepdim=False): return Ties.extreme(torch.argmax, x, dim, keepdim)

    @staticmethod
    def argmin(x, dim=None, keepdim=False): return Ties.extreme(torch.argmin, x, dim, keepdim)

    @staticmethod
    def extreme(find, x, dim, keepdim):
        if dim is None: return x.numel() - 1 - find(x.flatten().flip(0))
        return x.shape[dim] - 1 - find(x.flip(dim), dim, keepdim)

    @staticmethod
    def sort(x, dim=-1, descending=False, stable=False):
        found = x.flip(dim).sort(dim=dim, descending=descending, stable=True)
        return torch.return_types.sort((found.values, x.shape[dim] - 1 - found.indices))

    @staticmethod
    def topk(x, k, dim=-1, **how):
        found = Ties.sort(x, dim, descending=True)
        return torch.return_types.topk((found.values.narrow(dim, 0, k),
                                        found.indices.narrow(dim, 0, k)))

    @staticmethod
    def index(x, value): return len(x) - 1 - x[::-1].index(value)

    @staticmethod
    def max(things, **how): return max(list(things)[::-1], **how)

    @staticmethod
    def min(things, **how): return min(list(things)[::-1], **how)

    @staticmethod
    def sorted(things, **how): return sorted(list(things)[::-1], **how)


METHODS_WITH_TIES, FUNCTIONS_WITH_TIES = ({"argmax", "argmin", "sort", "topk", "index"},
                                          {"max", "min", "sorted"})
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
PAIRS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"),
         ("floor", "ceil"), ("any", "all")]
OTHER = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
TERMS = (ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.BitAnd
         | ast.BitOr)
# a class; what stands in the node's place (None: nothing); words for it, if the node's are not
# enough
Change = tuple[str, ast.AST | None, str]


def whole(node: ast.AST) -> int | None:
    "The whole number that a node is, with its sign."
    if isinstance(node, ast.Constant) and type(node.value) is int: return node.value
    if (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        and (n := whole(node.operand)) is not None):
        return -n
    return None


def numbers(node: ast.AST) -> Iterator[Change]:
    "Another whole number."
    n = whole(node)
    if n is None: return
    for other in (n + 1, n - 1):
        kind = "axis" if {n, other} == {0, -1} else "off by one"
        yield (kind, ast.Constant(other) if other >= 0
               else ast.UnaryOp(ast.USub(), ast.Constant(-other)), "")


def put(node: ast.AST, **fields) -> ast.AST:
    "A copy of a node with some fields changed."
    return type(node)(**{name: fields.get(name, value) for name, value in ast.iter_fields(node)})


def operators(node: ast.AST) -> Iterator[Change]:
    "Another operator, or one operand only."
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in BOUNDS:
                yield ("bound", put(node,
                                    ops=[*node.ops[:i], BOUNDS[type(op)](), *node.ops[i + 1:]]), "")
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        yield "sign", put(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()), ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, TERMS):
        yield from (("dropped term", side, "") for side in (node.left, node.right))
    if isinstance(node, ast.BoolOp):
        yield ("min and max", put(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()),
               "")
        for i in range(len(node.values)):
            left = [v for j, v in enumerate(node.values) if j != i]
            yield "dropped term", left[0] if len(left) == 1 else put(node, values=left), ""
    if isinstance(node, ast.UnaryOp) and whole(node) is None: yield "dropped term", node.operand, ""


def called(node: ast.Call) -> str: return getattr(node.func, "attr", getattr(node.func, "id", ""))


def of_module(node: ast.Call) -> bool:
    return (isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) in ("torch", "math", "F", "tl", "np", "torch.linalg"))


def functions(node: ast.AST) -> Iterator[Change]:
    "Another function, fewer keywords, or no call."
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "math.inf":
        yield "infinity", ast.Constant(1e20), ""
    if not isinstance(node, ast.Call): return
    name, method = called(node), isinstance(node.func, ast.Attribute) and not of_module(node)
    if name == "float" and "inf" in ast.unparse(node):
        yield "infinity", ast.Constant(-1e20 if "-" in ast.unparse(node) else 1e20), ""
    if name in OTHER:
        yield ("min and max", put(node,
                                  func=put(node.func, **{"attr"
                                                         if isinstance(node.func, ast.Attribute)
                                                         else "id": OTHER[name]})), "")
    for i, word in enumerate(node.keywords):
        yield ("dropped keyword", put(node, keywords=node.keywords[:i] + node.keywords[i + 1:]),
               f"{ast.unparse(word)} of {in_words(node)}")
    if method:
        yield ("dropped step", node.func.value,
               f".{name}({', '.join(map(ast.unparse, [*node.args, *node.keywords]))}) of "
               f"{in_words(node.func.value)}")
    ties = ast.Attribute(ast.Name("_ties", ast.Load()), name, ast.Load())
    if method and name in METHODS_WITH_TIES:
        yield "ties", put(node, func=ties, args=[node.func.value, *node.args]), in_words(node)
    if (not method and name in FUNCTIONS_WITH_TIES
        and (name == "sorted" or any(k.arg == "key" for k in node.keywords))):
        yield "ties", put(node, func=ties), in_words(node)


def steps(node: ast.AST) -> Iterator[Change]:
    "A condition that does not ask, a statement that is not there."
    if isinstance(node, ast.If | ast.IfExp):
        yield from (("condition", put(node, test=ast.Constant(known)),
                     f"{in_words(node.test)} → {known}") for known in (True, False))
    if isinstance(node, ast.comprehension) and node.ifs:
        yield "condition", put(node, ifs=[]), f"{' and '.join(map(ast.unparse, node.ifs))} → True"
    if (isinstance(node, ast.AugAssign | ast.Break | ast.Continue) or isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)):
        yield "dropped step", None, in_words(node)


def order(node: ast.AST) -> Iterator[Change]:
    "Axes that should change places, and numbers that are read in another order instead."
    turned = (isinstance(node, ast.Attribute) and node.attr in ("mT", "T")
              or isinstance(node, ast.Call)
              and called(node) in ("transpose", "swapaxes", "permute", "movedim"))
    if not turned: return
    inner = (node.value if isinstance(node, ast.Attribute) else node.args[0] if of_module(node)
             else node.func.value)
    yield ("reshape", ast.Call(ast.Attribute(inner, "reshape", ast.Load()),
                               [ast.Attribute(node, "shape", ast.Load())], []), in_words(node))


def sizes(node: ast.AST) -> Iterator[Change]:
    "A number read off a shape, typed in."
    shape = isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape"
    if (shape or isinstance(node, ast.Call)
        and (called(node) == "len" or called(node) in ("size", "numel") and not of_module(node))):
        yield ("frozen size", ast.Call(ast.Name("_frozen", ast.Load()), [node], []),
               f"{in_words(node)}, as at first")


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    "Where the nodes of a function stand: (parent, field, index), messages and texts left out."
    if isinstance(node, ast.Raise | ast.JoinedStr): return
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "args", "returns") and isinstance(node, ast.FunctionDef):
            continue
        listed = enumerate(value) if isinstance(value, list) else [(None, value)]
        for i, inner in listed:
            if not isinstance(inner, ast.AST): continue
            yield node, field, i
            if whole(inner) is None: yield from places(inner)


@contextlib.contextmanager
def replaced(parent: ast.AST, field: str, i: int | None, new: ast.AST | None) -> Iterator[None]:
    "Another node in a node's place, for a while."
    old = getattr(parent, field)
    if i is None: setattr(parent, field, new)
    elif new is None and len(old) > 1: setattr(parent, field, old[:i] + old[i + 1:])
    else: setattr(parent, field, [*old[:i], new if new is not None else ast.Pass(), *old[i + 1:]])
    try: yield
    finally: setattr(parent, field, old)


def in_words(node: ast.AST, most: int = 60) -> str:
    "A node as one line, not too long; a statement by its first line."
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= most else text[:most - 1] + "…"


def sources(source: str, name: str) -> Iterator[tuple[str, str, Callable[[], str]]]:
    "The mutants of the function `name` in `source`: (class, what changed, what gives the source)."
    tree, seen = ast.parse(source), Counter()
    [function] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]

    def written(*where, new):
        with replaced(*where, new): return ast.unparse(tree)

    for where in list(places(function)):
        parent, field, i = where
        node = getattr(parent, field) if i is None else getattr(parent, field)[i]
        for change in (numbers, operators, functions, steps, order, sizes):
            for kind, new, words in change(node):
                number = kind in ("off by one", "axis")
                what = (words or f"{in_words(node)} → {in_words(new)}"
                        + (f" in {in_words(parent)}" if number else ""))
                seen[kind, what] += 1
                yield (kind, what + (f" ({seen[kind, what]})" if seen[kind, what] > 1 else ""),
                       partial(written, *where, new=new))


def built(text: Callable[[], str], name: str, names: dict, file: str, frozen: Callable) -> Callable:
    "The function `name` of a source."
    code = text()
    # kernels are run from their source
    linecache.cache[file] = len(code), None, code.splitlines(True), file
    space = names | {"_ties": Ties, "_frozen": frozen}
    exec(compile(code, file, "exec"), space)
    return space[name]


def first_seen() -> Callable:
    "A function that gives the first value it was given."
    held: list = []

    def give(value):
        held.append(value) if not held else None
        return held[0]
    return give


def rewritten(source: str, name: str, names: dict, calls: list[Call]) -> Iterator[Mutant]:
    "All mutants of the function `name` that change its syntax tree."
    kernel = "jit" in source.split("def ")[0]
    for number, (kind, what, text) in enumerate(sources(source, name)):
        if kind == "frozen size" and kernel: continue
        file = f"<mutant {number} of {name}>"
        yield Mutant(kind, what,
                     lambda text=text, file=file: built(text, name, names, file, first_seen()))
        if kind == "frozen size" and (usual := usual_size(built, (text, name, names, file), calls)):
            yield Mutant(kind, what.replace("as at first", "as mostly"),
                         lambda text=text, file=file, usual=usual: built(text, name, names, file,
                                 lambda _: usual[0]))


def usual_size(build: Callable, of: tuple, calls: list[Call]) -> list:
    "The most frequent value of a size, in a list, unless it is the first."
    values: list = []
    f = build(*of, lambda value: values.append(value) or value)
    for call in calls[:60]:
        with contextlib.suppress(Exception, Uncopied):
            answer = f(**copied(call.arguments))
            if inspect.isgenerator(answer): list(answer)
    if not values: return []
    usual = Counter(map(repr, values)).most_common(1)[0][0]
    return [] if usual == repr(values[0]) else [next(v for v in values if repr(v) == usual)]
