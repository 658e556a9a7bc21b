"""Two directives of the front page: a figure as a chapter stores it, and the map of the book's
parts."""
import json
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from durations import in_hours, taken
from pages import parts
from sphinx.util.docutils import SphinxDirective


def stored_html(notebook: dict, cell_id: str) -> str:
    "The text/html output of the cell `cell_id`."
    outputs = next((c.get("outputs", []) for c in notebook["cells"] if c.get("id") == cell_id),
                   None)
    if outputs is None: raise ValueError(f"no cell has the id {cell_id!r}")
    pages = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    if not pages: raise ValueError(f"the cell {cell_id!r} has no stored HTML output")
    return "".join(pages[0])


class FigureFrom(SphinxDirective):
    "`{figure-from} chapters/04_attention.ipynb#row`: the figure that this cell stores."
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name, _, cell_id = self.arguments[0].partition("#")
        path = self.env.relfn2path("/" + name)[1]
        self.env.note_dependency(path)
        try:
            with open(path, encoding="utf-8") as file: html = stored_html(json.load(file), cell_id)
        except (OSError, ValueError) as error:
            raise self.error(f"figure-from {self.arguments[0]}: {error}") from error
        return [nodes.raw("", html, format="html")]


class BookMap(SphinxDirective):
    "The parts and their chapters, as YAML: each a link; a part leads to its cover."
    has_content = True

    def run(self) -> list[nodes.Node]:
        toc = Path(self.env.srcdir) / self.config.external_toc_path
        self.env.note_dependency(str(toc))
        self.covers = {part.caption: part.cover for part in parts(toc)}
        rows = "".join(map(self.part, yaml.safe_load("\n".join(self.content))))
        return [nodes.raw("", f'<div class="tfm-map">{rows}</div>', format="html")]

    def part(self, part: dict) -> str:
        rows = "".join(
            f'<li><span class="tfm-number">{name[:2]}</span> <a '
            f'href="chapters/{name}.html">{escape(title)}</a></li>'
            for name, title in part["chapters"].items())
        if gone := [name for name in part["chapters"]
                    if f"chapters/{name}" not in self.env.found_docs]:
            raise self.error(f"book-map: the book has no chapter {', '.join(gone)}")
        title, cover = escape(part["part"]), self.covers.get(part["part"])
        if cover: title = f'<a href="{cover}.html">{title}</a>'
        time = in_hours(sum(taken(Path(self.env.srcdir), name) for name in part["chapters"]))
        return f"<section><h3>{title}</h3><p>{time}</p><ol>{rows}</ol></section>"


def setup(app):
    app.add_directive("figure-from", FigureFrom)
    app.add_directive("book-map", BookMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
