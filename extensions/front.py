"""Two directives of the front page: a figure as a chapter stores it, and the map of the book's parts."""
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
    outputs = next((c.get("outputs", []) for c in notebook["cells"] if c.get("id") == cell_id), None)
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
    "The parts and their chapters, as YAML: what the book holds is a link, the rest is marked as planned; a part leads to its cover."
    has_content = True

    def run(self) -> list[nodes.Node]:
        toc = Path(self.env.srcdir) / self.config.external_toc_path
        self.env.note_dependency(str(toc))
        self.covers = {part.caption: part.cover for part in parts(toc)}
        named = yaml.safe_load("\n".join(self.content))
        names = [name for part in named for name in part["chapters"]]
        written = sum(map(self.written, names))
        note = f'<p class="tfm-planned-note">{written} of {len(names)} chapters: what is a link is written, the rest is planned.</p>'
        rows = "".join(map(self.part, named))
        return [nodes.raw("", f'{note if written < len(names) else ""}<div class="tfm-map">{rows}</div>', format="html")]

    def written(self, name: str) -> bool:
        return f"chapters/{name}" in self.env.found_docs

    def part(self, part: dict) -> str:
        rows = "".join(self.chapter(name, title) for name, title in part["chapters"].items())
        title, cover = escape(part["part"]), self.covers.get(part["part"])
        there = [name for name in part["chapters"] if self.written(name)]
        time = in_hours(sum(taken(Path(self.env.srcdir), name) for name in there)) if there else ""
        if cover: title = f'<a href="{cover}.html">{title}</a>'
        return f'<section><h3>{title}</h3>{f"<p>{time}</p>" if time else ""}<ol>{rows}</ol></section>'

    def chapter(self, name: str, title: str) -> str:
        number = f'<span class="tfm-number">{name[:2]}</span>'
        if self.written(name): return f'<li>{number} <a href="chapters/{name}.html">{escape(title)}</a></li>'
        return f'<li class="tfm-planned">{number} <span>{escape(title)}</span></li>'


def setup(app):
    app.add_directive("figure-from", FigureFrom)
    app.add_directive("book-map", BookMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
