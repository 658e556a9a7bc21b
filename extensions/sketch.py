"""Shapes for drawings that the build makes itself, in the figures' colours. (tfmlib.workbench.figures draws those of the chapters; a build does without it, and without NumPy.)"""
import re
from html import escape
from pathlib import Path

CSS = (Path(__file__).resolve().parents[1] / "tfmlib/assets/figures.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--tfm-([\w-]+):\s*(#[0-9a-f]{6})", re.search(r"\{([^{}]*--tfm-ink:[^{}]*)\}", CSS)[1]))
LARGER = 1.2                         # where there is room


def var(name: str) -> str:
    "A colour of the book: set by the page's theme, light without a stylesheet."
    return f"var(--tfm-{name},{COLOURS[name]})"


def tint(colour: str, part: int = 13) -> str: return f"color-mix(in srgb, {var(colour)} {part}%, {var('ground')})"


def text(x: float, y: float, said: str, at: str = "middle", colour: str = "ink", size: float = 13) -> str:
    "Words; W_O has a subscript."
    low = re.sub(r"\b(\w)_(\w)", r'\1<tspan dy="3" font-size="10">\2</tspan><tspan dy="-3">&#8203;</tspan>', escape(said))
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" font-size="{size:g}" style="fill:{var(colour)}">{low}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", more: str = 'rx="5"') -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" style="fill:{fill};stroke:{stroke}" {more}/>'


def box(x: float, y: float, width: float, height: float, *lines: str, colour: str = "quiet") -> str:
    "A box and the lines in it."
    first = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
    return rect(x, y, width, height, tint(colour), var(colour)) + "".join(text(x + width / 2, first + 16 * i, line) for i, line in enumerate(lines))


def frame(x: float, y: float, width: float, height: float, dashed: bool = False) -> str:
    return rect(x, y, width, height, "none", var("quiet" if dashed else "line"), 'rx="9" stroke-width="1.4"' + ' stroke-dasharray="4 4"' * dashed)


def line(path: str, colour: str = "quiet", width: float = 1.5, head: bool = True, dashed: bool = False) -> str:
    "A line, with an arrow's head at its end."
    how = (f' marker-end="url(#tfm-tip-{colour})"' if head else "") + ' stroke-dasharray="4 4"' * dashed
    return f'<path d="{path}" fill="none" style="stroke:{var(colour)}" stroke-width="{width:g}"{how}/>'


def tip(colour: str) -> str:
    return (f'<marker id="tfm-tip-{colour}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse">'
            f'<path d="M0 .5L8 4L0 7.5z" style="fill:{var(colour)}"/></marker>')


def figure(width: float, height: float, body: list[str], alt: str, caption: str) -> str:
    "The drawing with its text and its caption, in the form of the book's other figures."
    inside = "".join(body)
    tips = "".join(tip(colour) for colour in sorted(set(re.findall(r"url\(#tfm-tip-(\w+)\)", inside))))
    size = f"display:block;width:100%;max-width:{LARGER * width:g}px;height:auto;margin:auto"
    drawing = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" style="{size}" role="img" aria-label="{escape(alt)}" stroke-linejoin="round">'
               f"<defs>{tips}</defs>{inside}</svg>")
    return f'<figure class="tfm-figure" style="background:var(--tfm-paper,#fff);color:{var("ink")}">{drawing}<figcaption>{caption}</figcaption></figure>'
