"""What a function or class says about itself in its source: how it is called, and the comments
beside its parameters."""
import ast
import copy
import io
import re
import tokenize

Function = ast.FunctionDef | ast.AsyncFunctionDef


def comments(source: str) -> dict[int, str]:
    "Line -> the comment at its end."
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def call(node: Function, name: str) -> str:
    "How a function is called: its parameters and defaults."
    args = copy.deepcopy(node.args)
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg): arg.annotation = None
    args.args = [arg for arg in args.args if arg.arg != "self"]
    return f"{name}({ast.unparse(args)})"


def wrapped(signature: str, width: int = 88) -> str:
    "A call on lines of this width, broken between its parameters."
    if "(" not in signature: return signature
    name, _, rest = signature.partition("(")
    lines = [f"{name}("]
    for part in re.split(r"(?<=,) (?![^(\[{]*[)\]}])", rest.removesuffix(")")):
        if len(lines[-1]) + len(part) >= width: lines.append(" " * len(name))
        lines[-1] += part if lines[-1].endswith("(") else f" {part}"
    return "\n".join(lines) + ")"


def parameters(node: Function, notes: dict[int, str]) -> list[tuple[str, str, str]]:
    "The docments of a function, line by line: (names, type, comment); what it returns comes last."
    a, lines = node.args, {}
    for arg in [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs,
                *filter(None, [a.kwarg])]:
        if arg.arg != "self": lines.setdefault(arg.lineno, []).append(arg)
    typed = lambda arg: ast.unparse(arg.annotation) if arg.annotation else ""
    rows = [(", ".join(x.arg for x in args), typed(args[0]), notes.get(line, ""))
            for line, args in lines.items()]
    if (node.returns and (note := notes.get(node.returns.end_lineno, ""))
        and node.returns.lineno not in lines):
        rows.append(("returns", ast.unparse(node.returns), note))
    return [row for row in rows if row[2]]


def fields(node: ast.ClassDef, notes: dict[int, str]) -> list[tuple[str, str, str]]:
    "The fields of a class: (name, type, comment). One without a type counts if it has a comment."
    typed = [(f.target.id, ast.unparse(f.annotation), notes.get(f.end_lineno, ""))
             for f in node.body if isinstance(f, ast.AnnAssign)]
    return typed + [(ast.unparse(f.targets[0]), "", notes[f.end_lineno])
                    for f in node.body if isinstance(f, ast.Assign) and f.end_lineno in notes]
