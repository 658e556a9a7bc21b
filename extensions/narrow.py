"""Narrow screens: a drawing is never so small that its letters cannot be read, and long names in
tables may break.

Each drawing is told the width below which its smallest letters would have fewer than 11 pixels; on
a phone it is not narrower (book.css), and scrolls sideways in its figure instead. A subscript
counts as the letter that it belongs to.
"""
import math
import re

LEGIBLE = 11                                    # px of the smallest letters on a phone
NARROWEST = 300                                 # px: what is legible in this width needs nothing
DRAWING = re.compile(
    r'(<div class="tfm-scroll"[^>]*>)?(<svg\b[^>]*?viewBox="0 0 ([\d.]+) [\d.]+" '
    r'style="display:block;width:100%;)([^>]*>.*?</svg>)', re.S)
TAG = re.compile(r"<(/?)(svg|g|text)\b([^>]*?)(/?)>")
SIZE = re.compile(r"font-size[=:]\s*\"?([\d.]+)")
GROUP = (
    '<div class="tfm-scroll" style="overflow-x:auto" tabindex="0" role="group" aria-label="figure, '
    'scrolls sideways on a narrow screen">')
TABLE = re.compile(r"<td\b[^>]*>.*?</td>", re.S)
CODE = re.compile(r"(<code\b[^>]*>)([^<]{14,})(</code>)")
# after these a long name may go on in the next line,
PARTS = re.compile(r"(?<=\w)([.(=])(?=\w)")
# and within a part of it here,
WORDS = re.compile(r"(?<=\w{4}_)(?=\w{3})|(?<=[a-z]{3})(?=[A-Z][a-z]{2})")
LONG = 22                                       # if the part has more characters than this


def smallest(drawing: str) -> float:
    "The size of the smallest letters of a drawing, in its own units; 0 if it has none."
    sizes, found = [13.0], []
    for closes, kind, attributes, empty in TAG.findall(drawing):
        if closes:
            sizes.pop()
            continue
        own = SIZE.search(attributes)
        size = float(own[1]) if own else sizes[-1]
        if kind == "text": found.append(size)
        if not empty: sizes.append(size)
    return min(found, default=0)


def legible(body: str) -> str:
    "A page's text in which each drawing knows its least width, and can scroll."
    def told(match: re.Match) -> str:
        scrolls, head, width, rest = match.groups()
        size = smallest(match[0])
        least = math.ceil(float(width) * LEGIBLE / size) if size else 0
        if least <= NARROWEST: return match[0]
        drawing = f"{head}--least:{least}px;{rest}"
        return scrolls + drawing if scrolls else f"{GROUP}{drawing}</div>"
    return DRAWING.sub(told, body)


def breakable(body: str) -> str:
    "A page's text in which the long names in tables may break where a part of them ends."
    def part(said: str) -> str: return WORDS.sub("<wbr>", said) if len(said) > LONG else said
    def name(code: re.Match) -> str:
        return code[1] + "<wbr>".join(map(part, PARTS.sub(r"\1\n", code[2]).split("\n"))) + code[3]
    return TABLE.sub(lambda cell: CODE.sub(name, cell[0]), body)


def page(app, pagename, templatename, context, doctree) -> None:
    context["body"] = breakable(legible(context.get("body") or ""))


def setup(app):
    # after lean.py, which leaves wrappers out
    app.connect("html-page-context", page, priority=910)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
