"""The pages of `tfmlib`, one for each chapter: each public name with its call, its parameters, its
line and the cell that writes it.

Everything is read from the modules' source; `tfmlib` is never imported. Anchors are
`tfmlib.MODULE.SYMBOL`.
"""
import ast
import re
from html import escape
from pathlib import Path
from textwrap import shorten, wrap

from docments import Function, call, comments, fields, parameters, wrapped
from docutils import nodes
from nbdev_cells import directives, public_names
from pages import chapter, notebooks, title
from sphinx.util.docutils import SphinxDirective


def prose(text: str) -> str:
    """A docstring or comment as Markdown that means just its characters; what stands between
    backticks is code."""
    return "".join(part if i % 2 else re.sub(r"([\\*_$\[\]{}<>|#^~])", r"\\\1", part)
                   for i, part in enumerate(re.split("(`[^`]+`)", text or "")))


def listed(rows: list[tuple[str, str, str]]) -> str:
    "Rows as a Markdown list of definitions: the name and its type, then what it is."
    code = lambda text: f"`{text}`" if text else ""
    return "\n\n".join(f"{name if name == 'returns' else code(name)} {code(kind)}".strip()
                       + f"\n: {prose(note) or '&#160;'}" for name, kind, note in rows)


def describe(node: ast.stmt, name: str, source: str, notes: dict[int, str]) -> str:
    "The Markdown under a public name: its call, docstring and parameters."
    block = lambda text: f"```python\n{text}\n```"
    if isinstance(node, Function):
        return "\n\n".join([block(wrapped(call(node, name))), prose(ast.get_docstring(node)),
                            listed(parameters(node, notes))])
    if not isinstance(node, ast.ClassDef):
        short = shorten(text := ast.get_source_segment(source, node), 240, placeholder=" …")
        lines = "\n".join(wrap(short, 88, subsequent_indent="    ", break_long_words=False,
                               break_on_hyphens=False))
        # cut short or broken, it is no Python
        return block(lines) if lines == " ".join(text.split()) else f"```text\n{lines}\n```"
    methods = {m.name: m for m in node.body if isinstance(m, Function)}
    made = methods.get("__init__") or methods.get("forward")
    shown = [m for m in methods.values() if not m.name.startswith("_") and m is not made]
    others = "\n".join(f"- `{call(m, m.name)}` {prose(ast.get_docstring(m))}" for m in shown)
    first = call(made, name) if made and made.name == "__init__" else f"class {name}"
    own = listed(parameters(made, notes)) if made else ""
    return "\n\n".join([block(wrapped(first)), prose(ast.get_docstring(node)),
                        own or listed(fields(node, notes)), others])


def modules(root: Path, toc: Path) -> dict[str, dict[str, str]]:
    """The pages of the reference, as chapters are called, in the book's order: module -> the
    notebook that writes it, exercises last."""
    made, every = {}, notebooks(root, toc)
    for page, notebook in every.items():
        found = [directives("".join(c["source"])) for c in notebook["cells"]
                 if c["cell_type"] == "code"]
        own = next((d["default_exp"] for d in found if "default_exp" in d), None)
        for module in dict.fromkeys(d["export"] or own for d in found if "export" in d):
            made.setdefault(chapter(page, every), {})[module] = page
    return made


class Reference(SphinxDirective):
    """`{tfmlib-reference} NN_name`: the modules of a chapter and of its practice page, as sections.
    Without a name: all names of the library."""
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.root = Path(self.env.srcdir)
        every = modules(self.root, self.root / self.config.external_toc_path)
        if not self.arguments:
            return [*self.door(every),
                    *(node for chapter, its in every.items()
                      for node in self.overview(chapter, its))]
        if self.arguments[0] not in every:
            raise self.error(
                f"tfmlib-reference: no chapter is called {self.arguments[0]!r} and writes a module")
        return [self.module(page, module) for module, page in every[self.arguments[0]].items()]

    def read(self, module: str) -> tuple[str, str, list[str]]:
        "A module's file, its source and its public names."
        file = f"tfmlib/{module.replace('.', '/')}.py"
        self.env.note_dependency(str(self.root / file))
        source = (self.root / file).read_text(encoding="utf-8")
        return file, source, [name for name in public_names(source) if name != "__all__"]

    def overview(self, chapter: str, its: dict[str, str]) -> list[nodes.Node]:
        "The names that a chapter's modules hold, each a link to what it is."
        made = []
        for module in its:
            links = [
                f'<a href="../api/{chapter}.html#tfmlib.{module}.{name}"><code>{name}</code></a>'
                for name in self.read(module)[2]]
            where = f'<a href="../api/{chapter}.html#tfmlib.{module}"><code>tfmlib.{module}</code></a>'  # noqa: E501
            made.append(nodes.raw("", f'<p class="tfm-names">{where} {", ".join(links)}</p>',
                                  format="html"))
        return made

    def door(self, every: dict[str, dict[str, str]]) -> list[nodes.Node]:
        """The names that `tfmlib` itself offers, each a link to the module that writes it; nothing
        in a book that does not write them."""
        page = next((its["__init__"] for its in every.values() if "__init__" in its), None)
        if page is None: return []
        offers = re.findall(r'^    "(\w+)": "([\w ]+)",$', self.read("__init__")[1], re.M)
        homes = {(module.partition(".")[0], name): f"../api/{chapter}.html#tfmlib.{module}.{name}"
                 for chapter, its in every.items() for module in its
                 for name in self.read(module)[2]}
        links = [f'<a href="{homes[package, name]}"><code>{name}</code></a>'
                 for package, names in offers for name in names.split() if (package, name) in homes]
        return [nodes.raw("", '<p class="tfm-names"><a '
                              f'href="../{page}.html"><code>tfmlib</code></a> '
                              f'{", ".join(links)}</p>', format="html")]

    def module(self, page: str, module: str) -> nodes.section:
        file, source, names = self.read(module)
        notes, tree, chapter = (comments(source), ast.parse(source),
                                title(notebooks(self.root)[page]))
        link = f'<p>Written in <a href="../{page}.html">{escape(chapter)}</a>.</p>'
        section = self.section(f"tfmlib.{module}", nodes.raw("", link, format="html"))
        first = {name: node for node in reversed(tree.body)
                 for name in public_names(ast.unparse(node))}
        for name in names:
            node = first[name]
            links = (
                f'<p class="tfm-where"><a href="../{page}.html#tfm-{name}">its cell in the '
                f'chapter</a> · {self.line(file, node.lineno)}</p>')
            body = self.parse_text_to_nodes(describe(node, name, source, notes))
            section += self.section(f"tfmlib.{module}.{name}", *body,
                                    nodes.raw("", links, format="html"), text=name)
        return section

    def section(self, anchor: str, *content: nodes.Node, text: str = "") -> nodes.section:
        return nodes.section("", nodes.title("", "", nodes.literal("", text or anchor)), *content,
                             ids=[anchor], names=[anchor])

    def line(self, file: str, number: int) -> str:
        "Where a name stands: a link where the book's address is known."
        options, text = self.config.html_theme_options, f"{file}, line {number}"
        url = options.get("repository_url", "").rstrip("/")
        return (
            f'<a href="{url}/blob/{options.get("repository_branch") or "main"}/{file}#L{number}">{text}</a>' if url else text)  # noqa: E501


def setup(app):
    app.add_directive("tfmlib-reference", Reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
