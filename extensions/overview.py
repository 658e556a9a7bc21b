"""The overview: one drawing of the whole transformer, theme/overview.svg, whose parts lead to their
chapters.

It is on the front page, by the directive `{overview}`, and at the head of every chapter that builds
a part of it, where that part is lit. It is laid out by hand, on 350 by 156 pixels, so that it is
legible in a phone's column; its colours are the page's own (book.css).
"""
import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

DRAWING = (Path(__file__).parent / "theme/overview.svg").read_text(encoding="utf-8")
LINK = re.compile(r'href="((\d\d_\w+)\.html)"')
CHAPTERS = {chapter for _, chapter in LINK.findall(DRAWING)}
TITLE = re.search("<title>(.*?)</title>", DRAWING)[1]


def overview(lit: str = "", way: str = "") -> nodes.raw:
    "The drawing with its caption; `way` leads from the page to the chapters."
    drawing = LINK.sub(lambda m: f'href="{way}{m[1]}"' + ' aria-current="page"' * (m[2] == lit),
                       DRAWING)
    caption = ("This page is highlighted; each part is a link." if lit
               else "The whole transformer: each part is a link to its chapter.")
    return nodes.raw("", '<nav class="tfm-overview" '
                         f'aria-label="{TITLE}">{drawing}<p>{caption}</p></nav>', format="html")


class Overview(SphinxDirective):
    "`{overview}`: the drawing, no part of it lit."

    def run(self) -> list[nodes.Node]:
        return [overview(way="../" * self.env.docname.count("/") + "chapters/")]


def head(app, document: nodes.document) -> None:
    "Put the drawing at the end of a chapter's head, before its first section."
    chapter, page = (app.env.docname.removeprefix("chapters/"),
                     next(iter(document.findall(nodes.section)), None))
    if chapter not in CHAPTERS or page is None: return
    page.insert(next((i for i, node in enumerate(page) if isinstance(node, nodes.section)),
                     len(page)), overview(chapter))


def setup(app):
    app.add_directive("overview", Overview)
    app.connect("doctree-read", head)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 2}
