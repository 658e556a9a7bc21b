"""Two directives of the covers, the pages in parts/ that open the parts: the drawing, and the
chapters of the part.

What is said of a chapter is taken from it, and the table of contents says which chapters the part
has.
"""
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from durations import in_hours, reading, taken
from pages import companions, lead, parts
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective

DRAWINGS = {path.stem: path for path in sorted(Path(__file__).parent.glob("theme/drawings/*.svg"))}
FIGURE = (
    '<figure class="tfm-figure" '
    'style="background:var(--tfm-paper,#fff);color:var(--tfm-ink,#15191e)">{}<figcaption>{}</figcaption></figure>')


def figure(name: str, alt: str, caption: str) -> str:
    "A drawing with its text and its caption, in the form of the book's other figures."
    svg = DRAWINGS[name].read_text(encoding="utf-8").replace("<svg ",
                                                             '<svg role="img" '
                                                             f'aria-label="{escape(alt)}" ', 1)
    return FIGURE.format(svg, escape(caption))


class PartDrawing(SphinxDirective):
    """`{part-drawing} shortcut`: one of the drawings in theme/drawings, with its text for those who
    cannot see it (`:alt:`) and its caption."""
    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        name, alt, caption = (self.arguments[0], " ".join(self.options.get("alt", "").split()),
                              " ".join(self.content))
        if name not in DRAWINGS:
            raise self.error(f"part-drawing: got {name!r}, expected one of {', '.join(DRAWINGS)}")
        if len(alt.split()) < 10 or not caption:
            raise self.error(
                f"part-drawing {name}: it needs a caption, and an :alt: that says what is to be seen")  # noqa: E501
        self.env.note_dependency(str(DRAWINGS[name]))
        return [nodes.raw("", figure(name, alt, caption), format="html")]


def link(page: str, said: str, docname: str) -> pending_xref:
    "A link to a page, with these words or, without any, with its title."
    return pending_xref("", nodes.inline("", said), refdomain="std", reftype="doc",
                        reftarget=f"/{page}", refexplicit=bool(said), refwarn=True, refdoc=docname)


def elsewhere(said: str) -> str:
    "A sentence of a chapter about itself, as another page says it."
    return re.sub(r"\b([Tt])his page", r"\1he chapter", said)


class PartChapters(SphinxDirective):
    "`{part-chapters}`: the chapters of the part that this page opens."

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        toc = root / self.config.external_toc_path
        for source in (toc, __file__): self.env.note_dependency(str(source))
        part = next((p for p in parts(toc) if p.cover == self.env.docname), None)
        if part is None:
            raise self.error(
                f"part-chapters: {self.env.docname} is not the first page of a part in {toc.name}")
        books = {page: self.read(root, page) for page in part.chapters}
        times = sum(taken(root, page.removeprefix("chapters/")) for page in books)
        time = (
            f"{len(books)} chapter{'s' * (len(books) > 1)}; reading time: {in_hours(times)}, "
            "without the exercises.")
        rows = [self.row(page, book) for page, book in books.items()]
        return [nodes.paragraph("", time, classes=["tfm-part-time"]),
                nodes.definition_list("", *rows, classes=["tfm-part-chapters"])]

    def read(self, root: Path, page: str) -> dict:
        self.env.note_dependency(str(root / f"{page}.ipynb"))
        return json.loads((root / f"{page}.ipynb").read_text(encoding="utf-8"))

    def row(self, page: str, notebook: dict) -> nodes.definition_list_item:
        "A chapter: its title, the sentence at its head, how long it takes, and its practice page."
        said = nodes.definition()
        self.state.nested_parse(StringList([elsewhere(lead(notebook))], self.env.docname),
                                self.content_offset, said)
        written = sorted(self.env.found_docs)
        others = [(words, other)
                  for words, kind in (("; in depth: ", "depth"), ("; exercises: ", "practice"))
                  for other in companions(page, kind, written)]
        more = [node for words, other in others
                for node in (nodes.Text(words), link(other, "", self.env.docname))]
        time = reading(Path(self.env.srcdir), page.removeprefix("chapters/"))
        said += nodes.paragraph("", time if time.startswith("Read ") else f"Reading time: {time}",
                                *more, nodes.Text("."), classes=["tfm-part-time"])
        return nodes.definition_list_item("", nodes.term("", "", link(page, "", self.env.docname)),
                                          said)


def setup(app):
    app.add_directive("part-drawing", PartDrawing)
    app.add_directive("part-chapters", PartChapters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
