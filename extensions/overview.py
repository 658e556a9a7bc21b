"""The overview: one drawing of the whole transformer, whose parts lead to their chapters.

It is on the front page, by the directive `{overview}`, and at the head of every chapter that builds a part of it, where that part is lit.
It is laid out by hand, on 350 by 156 pixels, so that it is legible in a phone's column; its colours are the page's own (book.css).
"""
import re
from html import escape
from typing import NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

WIDTH, HEIGHT = 350, 156


class Part(NamedTuple):
    "A part of the drawing: its label, the chapter that builds it, and its place."
    label: str
    chapter: str
    x: int
    y: int
    width: int
    small: bool = False
    height: int = 24             # what a finger can hit


PARTS = (
    Part("tokens", "03_tokens", 1, 4, 76), Part("embeddings", "03_tokens", 1, 40, 76), Part("positions", "06_positions", 1, 92, 76),
    Part("attention", "04_attention", 97, 4, 102), Part("heads", "05_heads", 97, 28, 34, True), Part("flash", "17_flash_attention", 131, 28, 34, True),
    Part("GPU", "18_flash_attention_gpu", 165, 28, 34, True), Part("KV cache", "16_kv_cache", 220, 28, 64),
    Part("cross-attention", "08_transformer", 97, 60, 102), Part("encoder", "08_transformer", 220, 60, 64),
    Part("feed-forward", "07_block", 97, 92, 102), Part("add & norm, each", "07_block", 97, 124, 102),
    Part("logits", "10_decoders", 220, 124, 50), Part("loss", "10_decoders", 292, 92, 57), Part("sampling", "10_decoders", 288, 124, 61),
)
FRAME = (82, 0, 124, 155)        # round the block, which is repeated
ARROWS = ("M39 28V38", "M39 64V69", "M39 92V87", "M46 78H80V16H95", "M148 52V56H97", "M148 84V88H97", "M148 116V120H97", "M306 72H286", "M220 72H201",
          "M199 136H218", "M270 136H286", "M245 124V104H290")
LINES = {"16_kv_cache": "M199 40H220"}                                           # what joins a part that is not there yet
SUM = '<circle cx="39" cy="78" r="7"/><path d="M35 78H43M39 74V82"/>'
STREAM, ADDED = 90, (56, 88, 120)                                                # it flows down past the layers, and each adds to it
PAST = f"M{STREAM} 16V136H95", f"M{STREAM} 72H95", f"M{STREAM} 104H95"           # each reads from it
WORDS = (("× N", 210, 14), ("source", 312, 76))
HEAD = '<marker id="tfm-head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z"/></marker>'
TITLE = "The transformer, part by part"
SAID = ("Tokens become embeddings, to which an encoding of their positions is added. N blocks follow. Each has attention, with several heads; "
        "in an encoder–decoder model, cross-attention to the output of the encoder, which has read the source; and a feed-forward layer. "
        "The rows flow past these layers as a stream, to which each adds its output, with a norm. The output of the last block gives the logits, for the loss in training "
        "and for sampling in generation. FlashAttention computes attention in tiles, on any machine and on a GPU.")


def number(chapter: str) -> int:
    "A chapter's number."
    return int(chapter[:2])


def part(which: Part, lit: str, way: str) -> str:
    "One part as a link, or as the lit one."
    middle = f'x="{which.x + which.width / 2:g}" y="{which.y + which.height / 2 + 4:g}"'
    box = f'<rect x="{which.x}" y="{which.y}" width="{which.width}" height="{which.height}" rx="5"/>'
    here = ' aria-current="page"' if which.chapter == lit else ""
    small = ' class="tfm-small"' if which.small else ""
    text = f"<text {middle}{small}>{escape(which.label)}</text>"
    return f'<a href="{way}{which.chapter}.html" aria-label="{escape(which.label)}, chapter {number(which.chapter)}"{here}>{box}{text}</a>'


def drawing(there: list[str], lit: str = "", way: str = "") -> str:
    "The drawing with the parts of the chapters that are there; `way` leads from the page to the chapters."
    x, y, width, height = FRAME
    arrows = "".join(f'<path d="{d}" marker-end="url(#tfm-head)"/>' for d in ARROWS) + "".join(f'<path d="{d}"/>' for chapter, d in LINES.items() if chapter in there)
    arrows += "".join(f'<path d="{d}" marker-end="url(#tfm-head)"/>' for d in PAST)
    arrows += "".join(f'<circle class="tfm-sum" cx="{STREAM}" cy="{y}" r="5"/><path d="M{STREAM - 3} {y}h6m-3 -3v6"/>' for y in ADDED)
    frame = f'<rect class="tfm-block" x="{x}" y="{y + .5}" width="{width}" height="{height}" rx="8"/>'
    words = "".join(f'<text class="tfm-word" x="{x}" y="{y}">{text}</text>' for text, x, y in WORDS)
    links = "".join(part(p, lit, way) for p in PARTS if p.chapter in there)
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-describedby="tfm-overview-said"><title>{TITLE}</title><desc id="tfm-overview-said">{SAID}</desc>'
            f'<defs>{HEAD}</defs><g class="tfm-lines" aria-hidden="true">{frame}{arrows}{SUM}</g>{words}{links}</svg>')


def overview(there: list[str], lit: str = "", way: str = "") -> nodes.raw:
    "The drawing with its caption."
    caption = "This page is highlighted; each part is a link." if lit else "The whole transformer: each part is a link to its chapter."
    return nodes.raw("", f'<nav class="tfm-overview" aria-label="{TITLE}">{drawing(there, lit, way)}<p>{caption}</p></nav>', format="html")


def there(env) -> list[str]:
    "The chapters of the drawing that the book has."
    return [p.chapter for p in PARTS if f"chapters/{p.chapter}" in env.found_docs]


class Overview(SphinxDirective):
    "`{overview}`: the drawing, no part of it lit."

    def run(self) -> list[nodes.Node]: return [overview(there(self.env), way="../" * self.env.docname.count("/") + "chapters/")]


def head(app, document: nodes.document) -> None:
    "Put the drawing at the end of a chapter's head, before its first section."
    match = re.fullmatch(r"chapters/(\d\d_\w+)", app.env.docname)
    page = next(iter(document.findall(nodes.section)), None)
    if not match or match[1] not in {p.chapter for p in PARTS} or page is None: return
    at = next((i for i, node in enumerate(page) if isinstance(node, nodes.section)), len(page))
    page.insert(at, overview(there(app.env), match[1]))


def setup(app):
    app.add_directive("overview", Overview)
    app.connect("doctree-read", head)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 1}
