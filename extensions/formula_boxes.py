"""What KaTeX sets, with fewer elements: its boxes as regular expressions, and what replaces
them."""
import re

# of its two children, the first is one element
SOURCE = re.compile(
    r"<semantics>(?:<mrow>(.*?)</mrow>|(.*?))<annotation.*?</annotation></semantics>", re.S)
LETTER = re.compile(
    r'<span class="katex"><span '
    r'class="katex-mathml"><math[^>]*><m[in]>[^<]*</m[in]></math></span><span class="katex-html" '
    r'aria-hidden="true">'
                    r'<span class="base"><span class="strut"[^>]*></span>(<span '
                    r'class="mord[^>]*>[^<]*</span>)</span></span></span>')
STRUT = re.compile(
    r'<span class="base"><span class="strut" '
    r'style="height:([^;]*);(?:vertical-align:([^;]*);)?"></span>')

# KaTeX's boxes, as regular expressions: an atom is a span of text
SPAN, KIND = r'<span class="[^"]*"(?: style="[^"]*")?>', r"(?:mord|mopen|mclose|mrel|mbin|mpunct)"
ATOM = r'<span class="((?!sizing|fontsize)[^"]*)"(?: style="([^"]*)")?>([^<]+)</span>'
ROW = (
    r'<span style="top:-([\d.]+)em;([^"]*)"><span class="pstrut" '
    r'style="height:([\d.]+)em;"></span><span class="sizing reset-size6 size3 mtight">'
       rf'((?:{SPAN}[^<]*</span>)+|<span class="mord '
       rf'mtight">(?:{SPAN}[^<]*</span>)+</span>)</span></span>')
STACK, BELOW = (r'<span class="vlist-r"><span class="vlist" style="[^"]*">',
                r'<span class="vlist-s">[^<]*</span></span><span class="vlist-r"><span '
                r'class="vlist" style="[^"]*"><span></span></span>')
SCRIPT = re.compile(
    r'<span class="msupsub"><span class="vlist-t(?: '
    rf'vlist-t2)?">{STACK}{ROW}</span>(?:{BELOW})?</span></span></span>')
BOTH = re.compile(
    r'<span class="msupsub"><span class="vlist-t '
    rf'vlist-t2">{STACK}{ROW}{ROW}</span>{BELOW}</span></span></span>')
BAR = re.compile(
    rf'<span class="mord accent"><span class="vlist-t">{STACK}<span style="top:-3em;"><span '
    r'class="pstrut" style="height:3em;"></span>'
                 r'<span class="mord mathnormal"(?: style="([^"]*)")?>([^<])</span></span><span '
                 r'style="top:-([\d.]+)em;"><span class="pstrut" style="height:3em;"></span>'
                 r'<span class="accent-body" style="left:(-[\d.]+)em;"><span '
                 r'class="mord">(.)</span></span></span></span></span></span></span>')
SPACE = r'<span class="mspace" style="margin-right:(-?[\d.]+)em;"></span>'
# a space is a margin of the atom beside it
SPACED = re.compile(ATOM + SPACE), re.compile(SPACE + ATOM)

# … and what is left of them
LONE = '<span class="msupsub mtight tfm-script'
ONE = re.compile(rf'{LONE}" style="([^"]*)">{ATOM}</span>')
INNER = re.compile(
    rf'({LONE}" style="[^"]*">)<span class="mord mtight">((?:{SPAN}[^<]*</span>)+)</span></span>')
WRAPPED = re.compile(
    rf'<span class="mord">({SPAN}[^<]+</span>(?:{LONE}[^"]*" '
    rf'style="[^"]*">(?:[^<]+|(?:{SPAN}[^<]*</span>)+)</span>)+)</span>')
UPRIGHT = re.compile(
    rf'<span class="{KIND}( mtight)?">([^<]+)</span>(<span class="{KIND}(?(1) mtight)"(?: '
    r'style="margin-right:[^";]*;")?>)')
FLAT = re.compile(
    r'<span class="katex"><span class="katex-mathml">.*?</span><span class="katex-html" '
    r'aria-hidden="true">'
                  r'((?:<span class="base" '
                  rf'style="[^"]*">(?:{SPAN}[^<]+</span>)+</span>)+)</span></span>', re.S)
LINE = re.compile(
    r'<span class="katex-html" aria-hidden="true"><span class="base" '
    r'style="([^"]*)">((?:(?!class="base").)*)</span></span></span>$', re.S)
# KaTeX applies the function σ_max's index is to nothing: one child too many
APPLIED = re.compile(
    r"<(msub|msup|msubsup)>(<(m[ion])\b[^>]*>[^<]*</\3>)(<mi>[^<]*</mi>)<mo>\u2061</mo>")
# … and spells mod as three letters inside an operator, which may hold only text
SPELLED = re.compile(r"(<mo\b[^>]*>)<mrow>((?:<mi\b[^>]*>[^<]*</mi>)+)</mrow></mo>")


def script(found: re.Match, first: int = 0) -> str:
    """A subscript or superscript as one element; its lengths are in units of its own, smaller
    letters."""
    top, margins, strut, atoms = found.groups()[first:first + 4]
    margins = re.sub(r"(-?[\d.]+)em", lambda m: f"{float(m[1]) / .7:.4g}em", margins)
    return (
        '<span class="msupsub mtight tfm-script" '
        f'style="vertical-align:{(float(top) - float(strut)) / .7:.4g}em;{margins}">{atoms}</span>')


def both(found: re.Match) -> str:
    """A subscript below a transpose: two scripts, of which the narrower has no width; other pairs
    keep their boxes."""
    sub, sup = script(found, 0), script(found, 4)
    below, above = (re.sub("<[^>]*>", "", text) for text in (found[4], found[8]))
    # which is wider is not certain
    if above != "⊤" or len(below) == 2 or below == "m" or below.isupper(): return found[0]
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
    return (
        f'<span class="mord mathnormal tfm-accent" data-accent="{sign}" '
        f'style="--x:{left}em;--y:-{float(top) - 3:.4g}em;{style or ""}">{letter}</span>')


def joined(html: str) -> str:
    "Upright atoms beside each other, without space between them, as one."
    while (fewer := UPRIGHT.sub(r"\3\2", html)) != html: html = fewer
    return html


def widened(style: str, **by: float) -> str:
    "A style with wider margins."
    rules = dict(rule.split(":", 1) for rule in (style or "").split(";") if rule)
    for side, more in by.items():
        rules[f"margin-{side}"] = f"{float(rules.get(f'margin-{side}', '0em')[:-2]) + more:.5g}em"
    return "".join(f"{name}:{value};" for name, value in rules.items())


def own(kind: str, width: str) -> float:
    "A width in units of an atom's own letters, which are smaller in a script."
    return float(width) / (.7 if "tfm-script" in kind else 1)


def one(found: re.Match) -> str:
    "A script of one atom, which needs no element of its own."
    outer, kind, inner, text = found.groups()
    margins = {name[7:]: float(value[:-2])
               for name, value in (rule.split(":") for rule in (inner or "").split(";") if rule)
               if name.startswith("margin-")}
    return (
        f'<span class="msupsub mtight tfm-script {kind.replace(" mtight", "")}" '
        f'style="{widened(outer, **margins)}">{text}</span>')


def lean(html: str) -> str:
    """A formula with fewer elements.

    What has no scripts, roots, accents or fractions is text, which a screen reader reads without
    MathML; a space is a margin, a lone script is one element, struts are drawn by the style sheet,
    and MathML has no copy of its TeX and is valid.
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
    html = SPACED[0].sub(
        lambda m: f'<span class="{m[1]}" '
                  f'style="{widened(m[2], right=own(m[1], m[4]))}">{m[3]}</span>', html)
    html = SPACED[1].sub(
        lambda m: f'<span class="{m[2]}" '
                  f'style="{widened(m[3], left=own(m[2], m[1]))}">{m[4]}</span>', html)
    html = joined(html)
    if "msupsub" not in html and "tfm-accent" not in html:
        html = FLAT.sub(r'<span class="katex">\1</span>', html)
    if not html.startswith('<span class="katex-display">'):
        html = LINE.sub(
            r'<span class="katex-html base" aria-hidden="true" style="\1">\2</span></span>', html)
    return html.replace('<span class="katex-mathml"><math xmlns',
                        '<math class="katex-mathml" xmlns').replace("</math></span>", "</math>")
