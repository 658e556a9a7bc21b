"""Diagrams: what is described is drawn, said and linked; what cannot be drawn is refused by
name."""
import re
import xml.etree.ElementTree as ElementTree

import pytest
from refusing import refuses

from tfmlib.workbench.diagrams import (
    COLUMN,
    Arrow,
    Box,
    Group,
    _shifts,
    diagram,
    timeline,
)

BOXES = {"x": Box("x", (0, 2), "data", "(T, C)"), "branch": Box("", (0, 1.4), "dot"),
         "f": Box("f", (0, .7), "q"), "sum": Box("+", (0, 0), "add"),
         "y": Box("y\nis new", (1.5, 0), href="04.html#y")}
ARROWS = [Arrow("x", "branch"), Arrow("branch", "f"), Arrow("f", "sum", "new"),
          Arrow("branch", "sum", "kept", column=.8), Arrow("sum", "y", dashed=True)]


def drawn(**more):
    return diagram(BOXES, ARROWS, "A part with its residual connection",
                   groups=(Group("× 3", ("branch", "f", "sum")),), **more)


def test_every_arrow_and_frame_is_said():
    assert (drawn().alt == ("A part with its residual connection. x (T, C) to branch; branch to f; "
                            "f to sum (new); branch to sum (kept); sum to y is new; × 3 frames f, sum."))  # noqa: E501


def test_everything_described_is_drawn_inside_the_picture():
    tree = ElementTree.fromstring(drawn().drawing)
    tag = lambda name: [e for e in tree.iter() if e.tag.endswith("}" + name)]
    _, _, width, height = map(float, tree.get("viewBox").split())
    dx, dy = map(float,
                 re.findall(r"-?[\d.]+",
                            next(e for e in tag("g") if e.get("transform")).get("transform")))
    assert ([t.text for t in tag("text")] == ["new", "kept", "x", "(T, C)", "f", "y",
                                              "is new", "× 3"])
    assert (len([p for p in tag("path") if p.get("marker-end")])
            == 4), "an arrow that ends at a junction has no head"
    assert ([a.get("href") for a in tag("a")] == ["04.html#y"]
            and [p.get("stroke-dasharray") for p in tag("path")
                 if p.get("stroke-dasharray")] == ["4 4"])
    for r in tag("rect"):
        x, y, w, h = (float(r.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 < x + dx and x + dx + w < width and 0 < y + dy and y + dy + h < height
    for path in tag("path"):
        if not path.get("stroke-width") == "1.5": continue
        points = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d"))]
        assert all(0 < x + dx < width for x in points[::2] if len(points) % 2 == 0)


def test_data_erase_no_frame_and_a_dot_without_arrows_is_not_drawn():
    boxes = {"x": Box("x", (0, 0), "data"), "f": Box("f", (1, 0)), "free": Box("", (2, 0), "dot")}
    shown = diagram(boxes, [Arrow("x", "f")], "A tensor, an operation and a free place").drawing
    assert shown.count("<rect") == 1 and "<circle" not in shown


def test_a_wide_diagram_reaches_into_the_margin():
    row = {str(n): Box("a box", (n, 0)) for n in range(7)}
    assert ("tfm-full" in diagram(row, [], "Seven boxes in a row").html
            and "tfm-full" not in diagram(BOXES, [], "A few boxes below").html)


def test_arrows_that_enter_one_side_lie_apart_in_the_order_of_their_sources():
    boxes = {"left": Box("l", (0, 0)), "middle": Box("m", (1, 0)), "right": Box("r", (2, 0)),
             "end": Box("a wide box", (1, 2), wide=2)}
    arrows = [Arrow("right", "end"), Arrow("left", "end"), Arrow("middle", "end")]
    moved = _shifts(boxes, arrows)
    assert (moved[arrows[1]] < moved[arrows[2]] == 0 < moved[arrows[0]] and moved[arrows[0]]
            - moved[arrows[2]] >= 20)
    narrow = boxes | {"end": Box("+", (1, 2), "add")}
    assert (max(map(abs, _shifts(narrow, arrows).values()))
            < 11), "they end on the sum, not beside it"


@pytest.mark.parametrize("wrong, named", [
    (dict(boxes=BOXES | {"z": Box("z", (3, 3), "cloud")}), r"boxes\['z'\]: got kind 'cloud'"),
    (dict(arrows=[Arrow("x", "nowhere")]), "arrows: got 'nowhere'"),
    (dict(groups=(Group("g", ("x", "lost")),)), "groups: got 'lost'"),
    (dict(boxes=BOXES | {"z": Box("z", (.1, .7))}), "boxes: got 'f' and 'z' one over the other")])
def test_what_cannot_be_drawn_is_refused(wrong, named):
    refuses(named, diagram,
        **{"boxes": BOXES, "arrows": ARROWS, "alt": "some boxes and arrows"} | wrong)


def test_a_box_holds_its_words():
    for box in (Box("a rather long operation", (0, 0)), Box("x", (0, 0), shape="(B, H, T, D)"),
                Box("a\nb", (0, 0))):
        assert box.size()[0] >= 6 * max(map(len, [*box.label.split("\n"), box.shape])) + 10
    assert (Box("a\nb", (0, 0), shape="(T,)").size()[1] == Box("a", (0, 0)).size()[1] + 32
            and Box("x", (0, 0), wide=2).size()[0] == 2 * COLUMN - 14)


def test_timeline():
    shown = timeline({"one": [(0, 1, "load", "k"), (1, 3, "work", "w")], "other": []},
                     "one loads and then works", unit=50)
    tree = ElementTree.fromstring(shown.drawing)
    bars = [r for r in tree.iter() if r.tag.endswith("rect") and r.get("height") == "28"]
    assert ([float(b.get("width")) for b in bars] == [48, 98] and float(bars[1].get("x"))
            - float(bars[0].get("x")) == 50)
    refuses(r"lanes\['one'\]: got 'load' from 2 to 1", timeline, {"one": [(2, 1, "load", "k")]},
        "one loads backwards")
