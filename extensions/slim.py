"""Pages with few elements: code is marked up only where the style sheet colours it, and wrappers
that nothing uses are left out."""
import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from pygments.formatters import HtmlFormatter
from pygments.token import (
    Comment,
    Error,
    Generic,
    Keyword,
    Name,
    Operator,
    String,
    Text,
    Token,
)
from sphinx.highlighting import PygmentsBridge

COLOURED = {  # kind of token -> the kind whose class book.css colours; any other is plain text
    Comment: Comment, Keyword: Keyword, Operator.Word: Keyword, Keyword.Constant: Text,
    String: String,
    Name.Function: Name.Function, Name.Class: Name.Function, Name.Decorator: Name.Function,
    Name.Tag: Name.Function,
    Name.Exception: Error, Generic.Error: Error, Generic.Traceback: Error, Error: Error,
    Generic.Prompt: Generic.Output, Generic.Output: Generic.Output, Generic.Heading: Generic.Output,
    Generic.Subheading: Generic.Output,
    Generic.Inserted: Generic.Inserted, Generic.Deleted: Generic.Deleted,
}
UNUSED = [  # wrappers in the markup of others -> what is kept of them
    (re.compile(r'<span class="pre">([^<]*)</span>'), r"\1"),
    (re.compile(r"(<pre[^>]*>)<span></span>"), r"\1"),
    (re.compile(
        r'<div class="((?:output text_plain )?highlight-[\w-]+ notranslate)"><div '
        r'class="highlight">(<pre\b.*?</pre>)</div>\s*</div>', re.S),
     r'<div class="\1 highlight">\2</div>'),
    (re.compile(r'(<div class="tfm-check[^>]*>)<p>(<strong>[^<]*</strong>)</p>'), r"\1\2"),
    (re.compile(
        r'<p class="collapsed admonition-title">([^<]*)</p>\s*<p class="expanded '
        r'admonition-title">\1</p>'), r'<p class="admonition-title">\1</p>'),
    (re.compile(r'<summary([^>]*)>\s*<p class="admonition-title">([^<]*)</p>\s*</summary>'),
     r"<summary\1>\2</summary>"),
    (re.compile(
        r'<div class="output text_html">(<div '
        r'class="tfm-(?:check|claim)\b(?:(?!</?div\b).)*</div>)\s*</div>', re.S), r"\1"),
    (re.compile(
        r"(<(t[dh]|dd)\b[^>]*>)<p>((?:(?!</?(?:p|div|ul|ol|pre|table)\b).)*)</p>\s*(?=</\2>)",
        re.S), r"\1\3"),
]


def colour(kind: Token) -> Token:
    "The kind of token as which the page shows `kind`."
    while kind is not None and kind not in COLOURED: kind = kind.parent
    return COLOURED.get(kind, Text)


def merged(tokens: Iterable[tuple[Token, str]]) -> Iterator[tuple[Token, str]]:
    "Neighbours that look the same are one, also if only space is between them."
    runs = []
    for kind, group in groupby(tokens, lambda token: colour(token[0])):
        text = "".join(text for _, text in group)
        if len(runs) > 1 and runs[-2][0] is kind and runs[-1][1].isspace():
            text = runs[-2][1] + runs[-1][1] + text
            del runs[-2:]
        runs.append((kind, text))
    yield from runs


class Slim(HtmlFormatter):
    "Code as HTML, with a span only around what is coloured."

    def format_unencoded(self, tokensource, outfile):
        super().format_unencoded(merged(tokensource), outfile)


def slim(body: str) -> str:
    "A page's text without the wrappers that no style and no script uses."
    for wrapper, kept in UNUSED: body = wrapper.sub(kept, body)
    return body


def setup(app):
    PygmentsBridge.html_formatter = Slim
    return {"parallel_read_safe": True, "parallel_write_safe": True}
