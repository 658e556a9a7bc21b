"""The page of `tfmlib`: each public name with its call, its parameters, its line and the cell of the chapter that writes it.

Everything is read from the modules' source; `tfmlib` is never imported. Anchors are `tfmlib.MODULE.SYMBOL`.
"""
import ast
import re
from html import escape
from pathlib import Path
from textwrap import shorten, wrap

from docments import Function, call, comments, fields, parameters, wrapped
from docutils import nodes
from nbdev_cells import directives, public_names
from pages import notebooks, title
from sphinx.util.docutils import SphinxDirective


def prose(text: str) -> str:
    "A docstring or comment as Markdown that means just its characters; what stands between backticks is code."
    return "".join(part if i % 2 else re.sub(r"([\\*_$\[\]{}<>|#^~])", r"\\\1", part) for i, part in enumerate(re.split("(`[^`]+`)", text or "")))


def listed(rows: list[tuple[str, str, str]]) -> str:
    "Rows as a Markdown list of definitions: the name and its type, then what it is."
    code = lambda text: f"`{text}`" if text else ""
    return "\n\n".join(f"{name if name == 'returns' else code(name)} {code(kind)}".strip() + f"\n: {prose(note) or '&#160;'}" for name, kind, note in rows)


def describe(node: ast.stmt, name: str, source: str, notes: dict[int, str]) -> str:
    "The Markdown under a public name: its call, docstring and parameters."
    block = lambda text: f"```python\n{text}\n```"
    if isinstance(node, Function): return "\n\n".join([block(wrapped(call(node, name))), prose(ast.get_docstring(node)), listed(parameters(node, notes))])
    if not isinstance(node, ast.ClassDef):
        short = shorten(text := ast.get_source_segment(source, node), 240, placeholder=" …")
        lines = "\n".join(wrap(short, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))
        return block(lines) if lines == " ".join(text.split()) else f"```text\n{lines}\n```"      # cut short or broken, it is no Python
    methods = {m.name: m for m in node.body if isinstance(m, Function)}
    made = methods.get("__init__") or methods.get("forward")
    shown = [m for m in methods.values() if not m.name.startswith("_") and m is not made]
    others = "\n".join(f"- `{call(m, m.name)}` {prose(ast.get_docstring(m))}" for m in shown)
    first = call(made, name) if made and made.name == "__init__" else f"class {name}"
    own = listed(parameters(made, notes)) if made else ""
    return "\n\n".join([block(wrapped(first)), prose(ast.get_docstring(node)), own or listed(fields(node, notes)), others])


class Reference(SphinxDirective):
    "`{tfmlib-reference}`: the modules in the book's order, as sections."

    def run(self) -> list[nodes.Node]:
        root, made = Path(self.env.srcdir), []
        for page, notebook in notebooks(root, root / self.config.external_toc_path).items():
            found = [directives("".join(c["source"])) for c in notebook["cells"] if c["cell_type"] == "code"]
            own = next((d["default_exp"] for d in found if "default_exp" in d), None)
            modules = dict.fromkeys(d["export"] or own for d in found if "export" in d)
            made += [self.module(root, page, title(notebook), module) for module in modules]
        return made

    def module(self, root: Path, page: str, chapter: str, module: str) -> nodes.section:
        file = f"tfmlib/{module.replace('.', '/')}.py"
        self.env.note_dependency(str(root / file))
        source = (root / file).read_text(encoding="utf-8")
        names, notes, tree = public_names(source), comments(source), ast.parse(source)
        link = f'<p>Written in <a href="{page}.html">{escape(chapter)}</a>.</p>'
        section = self.section(f"tfmlib.{module}", nodes.raw("", link, format="html"))
        for name in [n for n in names if n != "__all__"]:
            node = next(n for n in tree.body if name in public_names(ast.unparse(n)))
            links = f'<p class="tfm-where"><a href="{page}.html#tfm-{name}">its cell in the chapter</a> · {self.line(file, node.lineno)}</p>'
            body = self.parse_text_to_nodes(describe(node, name, source, notes))
            section += self.section(f"tfmlib.{module}.{name}", *body, nodes.raw("", links, format="html"), text=name)
        return section

    def section(self, anchor: str, *content: nodes.Node, text: str = "") -> nodes.section:
        return nodes.section("", nodes.title("", "", nodes.literal("", text or anchor)), *content, ids=[anchor], names=[anchor])

    def line(self, file: str, number: int) -> str:
        "Where a name stands: a link where the book's address is known."
        options, text = self.config.html_theme_options, f"{file}, line {number}"
        url = options.get("repository_url", "").rstrip("/")
        return f'<a href="{url}/blob/{options.get("repository_branch") or "main"}/{file}#L{number}">{text}</a>' if url else text


def setup(app):
    app.add_directive("tfmlib-reference", Reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
