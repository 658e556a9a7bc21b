"""Pictures of data and tables: what they show is what they were given, and what does not fit is
refused by name."""
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from tfmlib.workbench import (
    AXES,
    COLOURS,
    ROLES,
    Labels,
    Marks,
    area,
    cell_mark,
    flow,
    note,
    picture,
    table,
)


def written(drawn: str) -> list[str]:
    "The texts of a drawing, in order."
    return [each.text for each in ET.fromstring(f"<svg>{drawn}</svg>").iter("text")]


def test_every_number_is_shown_once_with_a_true_minus():
    v = torch.tensor([[1.26, -0.04], [-2.0, 0.0]], requires_grad=True)
    assert written(area(v, (0, 0)).drawn) == ["1.3", "0.0", "−2.0", "0.0"]
    assert written(area(v, (0, 0), digits=None).drawn) == []


def test_a_hidden_cell_shows_no_number_and_does_not_set_the_scale():
    drawn = area([[1., 100.], [1., 1.]], (0, 0),
                 marks=Marks(hidden=[[False, True], [False, False]])).drawn
    assert written(drawn) == ["1.0", "1.0", "1.0"] and drawn.count("url(#@@h)") == 1
    assert ({*re.findall(r'fill-opacity="([\d.]+)"', drawn)}
            == {"0.50"}), "all that is seen is as strong"


def test_a_number_below_zero_is_grey_and_paler():
    drawn = area([[2., -2.]], (0, 0), "q", digits=None).drawn
    assert (drawn.count(f"--tfm-quiet,{COLOURS['quiet']}") == 1
            and drawn.count('fill:var(--tfm-q,') == 1)
    above, below = map(float, re.findall(r'fill-opacity="([\d.]+)"', drawn))
    assert below < 0.6 * above


def test_the_full_colour_can_be_kept_for_a_larger_number():
    drawn = area([[1., -1.]], (0, 0), digits=None, strongest=4).drawn
    assert max(map(float, re.findall(r'fill-opacity="([\d.]+)"', drawn))) < 0.2


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_one_hue_that_of_its_axis(role):
    drawn = area([[1.]], (0, 0), role, Labels(role)).drawn
    hues = {*re.findall(r"--tfm-(\w+),", drawn)} - {"ground"}
    assert hues == {ROLES[role]}
    of = {"stream": "width", "logits": "vocabulary", "probabilities": "vocabulary"}
    assert role not in of or ROLES[role] == AXES[of[role]]


@pytest.mark.parametrize("cell", [30, 40, 52])
@pytest.mark.parametrize("numbers", [[1., -2.6], [18.3, -20.6], [0.02, -0.98]])
def test_numbers_are_as_large_as_the_text_where_they_do_not_touch(cell, numbers):
    drawn = area([numbers], (0, 0), digits=1 if numbers[0] >= 1 else 2, cell=cell).drawn
    size, = map(float, re.findall(r'font-size="([\d.]+)"', drawn))
    assert size <= 15 and max(map(len, written(drawn))) * .5 * size < cell
    assert size == 15 or size > cell / 3
    small, = re.findall(r'font-size="([\d.]+)"', area([numbers], (0, 0), cell=14).drawn)
    assert float(small) == 11, "below that nobody reads them"


def test_letters_of_a_picture_have_the_size_of_the_text():
    drawn = picture(area(np.eye(2), (30, 30), labels=Labels(axes=("tokens", "width"))),
                    size=(120, 120), alt="Ones on a diagonal.").drawing
    assert '<g font-size="15">' in drawn


def test_labels_axes_and_lengths():
    drawn = area(np.ones((2, 3)), (0, 0), "k",
                 Labels("K", ["a", "b"], ["x", "y", "z"], ("keys", "width"))).drawn
    assert {"K", "a", "b", "x", "y", "z", "2 keys", "width 3"} <= {*written(drawn)}
    assert all(colour in COLOURS for colour in AXES.values())


def test_lengths_are_told_in_words():
    for n, told in ((3, "hidden width 3"), (2, "hidden 2")):    # as long as the side has room for
        drawn = area(np.ones((n, 6)), (0, 0),
                     labels=Labels(axes=("hidden", "width"), of=(0, 48))).drawn
        assert written(drawn)[-2:] == ["6 of width 48", told]
    assert "vocabulary of 2" in written(area(np.ones((1, 2)), (0, 0), labels=Labels(
        axes=("", "vocabulary"))).drawn)
    assert "W_Q" not in area(np.ones((1, 2)), (0, 0), labels=Labels("X W_Q")).drawn


def test_an_arrow_begins_below_the_name_of_the_axis():
    a = area(np.ones((2, 2)), (0, 0), labels=Labels(axes=("tokens", "width")))
    at, = (float(each.get("y")) for each in ET.fromstring(f"<svg>{a.drawn}</svg>").iter("text")
           if each.text == "width 2")
    assert a.middle("down")[1] > at and a.middle("right")[0] > a.box[2] + 20


def test_a_slab_shows_the_numbers_of_its_first_layer():
    v = np.arange(8).reshape(2, 2, 2)
    made = area(v, (10, 20), digits=0)
    assert written(made.drawn) == ["0", "1", "2", "3"] and made.box[2] > 10 + 2 * made.cell


def test_an_arrow_leads_from_side_to_side():
    a, b = area([[1.]], (0, 0)), area([[1.]], (200, 0), labels=Labels(rows=["word"]))
    x, u = map(float, re.search(r'd="M([\d.]+) [\d.]+L([\d.]+)', flow(a, b, "then"))[1].split()
               + re.search(r'L([\d.]+) ', flow(a, b))[1].split())
    assert a.box[2] < x < u < b.box[0] - 8 * 4, "it ends before the names of the rows"


def test_a_picture_holds_its_parts():
    a = area(np.eye(3), (10, 10))
    made = picture(a, cell_mark(a, 1, 1), note(50, 150, "one", "two"), size=(200, 200),
                   alt="A picture of three ones.")
    assert ("tfm-full" in made.html and made.alt == "A picture of three ones." and {"one", "two"}
            <= {*re.findall(r">(\w+)</text>", made.html)})


@pytest.mark.parametrize("wrong, message", [
    (lambda: area([1., 2.], (0, 0)), "values: "),
    (lambda: area(np.ones((2, 2)), (0, 0), labels=Labels(rows=["a"])),
     "rows: got 1 names, expected 2"),
    (lambda: area(np.ones((2, 2)), (0, 0), labels=Labels(columns=["a"])),
     "columns: got 1 names, expected 2"),
    (lambda: area(np.ones((2, 2)), (0, 0), labels=Labels(axes=("time", ""))),
     "axes: got 'time', expected one of tokens"),
    (lambda: area(np.ones((2, 2)), (0, 0), marks=Marks(row=2)),
     "row: got 2, expected a number below 2"),
    (lambda: area(np.ones((2, 2)), (0, 0), marks=Marks(column=-1)), "column: got -1"),
    (lambda: area(np.ones((2, 2)), (0, 0), marks=Marks(hidden=np.ones((2, 3)))),
     r"hidden: got shape \(2, 3\), expected \(2, 2\)"),
    (lambda: picture(area(np.ones((9, 9)), (0, 0)), size=(50, 500), alt="An area that is cut off"),
     r"size: got \(50, 500\)"),
    (lambda: picture(size=(50, 50), alt=""), "alt: "),
    (lambda: picture(size=(1041, 50), alt="A picture that is too wide"),
     r"size: got \(1041, 50\), expected a width of at most 1040"),
    (lambda: table({}, ["a", "b"]), "rows: got none"),
    (lambda: table({"a": (1, 2)}, ["", "b"]), "rows: 'a' has 2 values, expected 1"),
    (lambda: table({"a": (1, 2)}, ["", "b", "c"], digits=[1]), "digits: got 1, expected 2"),
    (lambda: table({"a": 1}, ["", "b"], best="least"), "best: got"),
])
def test_what_does_not_fit_is_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"): wrong()


def test_a_table_is_the_dictionary_that_it_shows():
    rows = {"a": (1.256, 1234), "b": (-0.001, None), 3: (2.5, 7)}
    shown = table(rows, ["row", "x", "n"], digits=(2, 0), best=("max", "min"))
    assert shown == rows and shown["a"][0] == 1.256
    assert (repr(shown).splitlines() == ["row      x      n", "a     1.26  1,234",
                                         "b     0.00      –", "3    *2.50     *7"])
    html = shown._repr_html_()
    assert (html.count("<strong>") == 2 and "<strong>2.50</strong>" in html
            and '<th scope="row">a</th>' in html and html.count('scope="col"') == 3)


def test_columns_of_words_are_set_from_the_left():
    html = table({"a": ("ten of them", 1.5, "10 %", True), "b": (None, 2, "−3 %", False)},
                 ["row", "words", "numbers", "shares", "yes or no"])._repr_html_()
    assert re.findall(r'<t[hd][^>]*class="text-left">([^<]*)', html) == [
        "words", "yes or no", "ten of them", "True", "–", "False"]


def test_words_in_a_table_cannot_become_markup():
    assert "<b>" not in table({"<b>": "<i>"}, ["<u>", "x"],
                              caption="<s>")._repr_html_().replace("<body>", "")
