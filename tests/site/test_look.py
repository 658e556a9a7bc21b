"""Formulas, code and the pages' frame, as files: KaTeX's version, bad formulas, few elements,
and what a page must not load."""
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT, giving_out
from pygments import highlight
from pygments.lexers import PythonLexer
from slim import Slim, slim

katex = pytest.importorskip("sphinxcontrib.katex")
SERVED = ROOT / "extensions/theme/static/tfm"


def test_katex_style_fits_its_script():
    "The style sheet and fonts are those of the KaTeX that sets the formulas."
    style = (SERVED / "katex/katex.css").read_text()
    script = (Path(katex.__file__).parent / "katex.min.js").read_text()
    assert re.search(r'content:"([\d.]+)"', style)[1] == katex.katex_version
    assert f'version:"{katex.katex_version}"' in script
    fonts = set(re.findall(r"url\(fonts/([^)]+)\)", style))
    assert fonts == {p.name for p in (SERVED / "katex/fonts").iterdir()} and len(fonts) == 20


def sphinx(folder: Path, text: str) -> subprocess.CompletedProcess:
    "Build one page with the book's formula extension."
    (folder / "index.md").write_text(text)
    (folder / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'extensions')!r})\nextensions = "
        "['myst_parser', 'formulas']\n"
                                    "html_math_renderer = 'katex'\nmyst_enable_extensions = "
                                    "['dollarmath', 'amsmath']\n")
    return subprocess.run([sys.executable, "-m", "sphinx", "-q", folder, folder / "out"],
                          capture_output=True, text=True, timeout=600, env={"PATH": ""})


def set_in_page(folder: Path, text: str) -> str:
    "The page that this text becomes."
    done = sphinx(folder, f"# Page\n\n{text}\n")
    assert done.returncode == 0, done.stderr
    return (folder / "out/index.html").read_text()


@pytest.mark.parametrize("bad", [r"$\frac{1}{$", r"$$ \undefinedmacro{x} $$", r"$é$"])
def test_bad_formula_fails_the_build(tmp_path, bad):
    "Even without -W, and the log says where."
    done = sphinx(tmp_path, f"# Page\n\nA formula: {bad}\n")
    assert (done.returncode != 0 and "KaTeX cannot set this formula" in done.stderr
            and "index.md:3" in done.stderr)


def test_formulas_are_set_and_numbered(tmp_path):
    "Finished HTML with MathML inside, one number each, no script."
    page = set_in_page(tmp_path, "$a^2$ and {eq}`law`\n\n$$ E = mc^2 $$ "
                                 "(law)\n\n\\begin{align}\nx &= 1\n\\end{align}")
    assert (page.count('class="katex-html') == 3 and page.count("<math") == 3
            and "eqn-num" not in page and "cdn" not in page)
    assert (len(re.findall(r'class="eqno">\(\d\)', page)) == 2
            and 'href="#equation-law">(1)' in page.replace('class="reference internal" ', ""))


def test_a_formula_without_scripts_is_text_and_a_strut_is_none(tmp_path):
    "What a formula would need more elements for than it has signs; spaces are margins."
    page = set_in_page(tmp_path, r"$T$ and $x_t$ and $2$ and $\alpha$ and $\ell + 1 = (2, 3)$")
    assert '<span class="math katex"><span class="mord mathnormal" style="margin-right:0.13889em;">T</span></span>' in page  # noqa: E501
    assert ('<span class="math katex"><span class="mord">2</span></span>' in page
            and '>α</span></span> and' in page)
    assert (page.count(
        'class="msupsub mtight tfm-script mord mathnormal" style="vertical-align:-0.2143em;') == 1
            and "vlist" not in page)
    assert (page.count("<math") == 1 and "strut\"" not in page.replace("pstrut", "")
            and page.count("--h:") == 4 and "mspace" not in page)
    text = re.search(r"α</span></span> and (.*)</p>", page)[1]
    assert re.sub("<[^>]*>", "", text) == "ℓ+1=(2,3)" and text.count("<span") == 10


def test_two_scripts_and_an_accent_are_flat(tmp_path):
    """A subscript below a transpose, and a bar, which the style sheet draws; any other pair of
    scripts keeps KaTeX's boxes."""
    page = set_in_page(tmp_path, "$k_t^\\top$ and $K_{[i]}^\\top$ and $\\bar A$\n\n$x_i^2$ "
                                 "and $K_{ij}^\\top$ and $x_N^\\top$")
    flat, boxes = page.split("<p>")[1:3]
    assert ("vlist" not in flat and boxes.count("vlist-t2") == 3 and flat.count("width:0;") == 2
            and flat.count('data-accent="ˉ"') == 1 and flat.count("<math") == 3)
    assert ([re.sub("<[^>]*>", "", t) for t in re.findall(r'width:0;[^>]*>(.)</span>', flat)]
            == ["t", "⊤"])


def test_a_page_has_one_viewport_and_fetches_both_faces_of_its_text(book):
    html = (Path(book) / "chapters/04_attention.html").read_text(encoding="utf-8")
    assert html.count('name="viewport"') == 1
    assert (re.findall(r'<link rel="preload" href="[^"]*wght-(\w+)\.woff2', html)
            == ["normal", "italic"])


def test_an_unknown_address_is_answered_with_the_books_page(tmp_path):
    "With the status 404, and links that hold at any depth."
    (tmp_path / "404.html").write_text(
        '<a href="index.html">Begin</a><a href="https://example.org/">x</a>')
    with (giving_out(tmp_path) as address,
          pytest.raises(urllib.error.HTTPError) as failed):
        urllib.request.urlopen(f"{address}/a/b.html")
    body = failed.value.read().decode()
    assert (failed.value.code == 404 and body
            == '<a href="/index.html">Begin</a><a href="https://example.org/">x</a>')


@pytest.mark.slow
@pytest.mark.browser
def test_what_is_left_out_of_a_formula_moves_nothing(visiting):
    """Every kind of formula is as wide as KaTeX sets it, and its signs stand where they stood,
    to half a pixel."""
    import formulas
    asked = [r"D = 16", r"(2.5, 0) + (0, 10)", r"h_0 = \tanh(x_{t-1}) + 1", r"k_t^\top v_t",
             r"K_{[i]}^\top V", r"x_N^\top x_i^2", r"\bar A = e^{\Delta A}",
             r"S \leftarrow \alpha S, \quad a < b",
             r"\frac12 \sqrt{P/D}", r"\sum_{s \le t} (q_t \cdot k_s)\, v_s",
             r"\lVert k \rVert^2 \bmod w", r"\mathrm{elu}(x) + \exp(-\lambda_t)"]
    setter = formulas.Setter(formulas.node_binary())
    raw = [setter(tex, False)["html"] for tex in asked]
    setter.close()
    page = visiting("chapters/20_linear_and_state_space.html")
    where = """(both) => document.fonts.ready.then(() => both.map(all => all.map(html => {
      const p = document.createElement("p");
      p.innerHTML = html;
      document.querySelector("article, main").prepend(p);
      p.style.whiteSpace = "nowrap";
      const formula = p.querySelector(".katex"), left = formula.getBoundingClientRect().left,
        found = [formula.getBoundingClientRect().width], walk = document.createTreeWalker(formula,
          4);
      while (walk.nextNode()) {
        if (walk.currentNode.parentElement.closest("math") || !walk.currentNode.data.trim() ||
          walk.currentNode.data === "\\u200b") continue;
        for (let i = 0; i < walk.currentNode.length; i++) {
          const range = document.createRange();
          range.setStart(walk.currentNode, i); range.setEnd(walk.currentNode, i + 1);
          const box = range.getBoundingClientRect();
          if (walk.currentNode.data[i] !== "ˉ") found.push(walk.currentNode.data[i],
            box.left - left, box.bottom - p.getBoundingClientRect().top);
        }
      }
      return found;
    })))"""
    # its fonts are fetched now
    page.evaluate(where, [raw, raw])
    page.wait_for_timeout(500)
    before, after = page.evaluate(where, [raw, [formulas.lean(html) for html in raw]])
    for tex, wanted, found in zip(asked, before, after):
        signs = [sorted(zip(xs[1::3], xs[2::3], xs[3::3])) for xs in (wanted, found)]
        assert ([sign for sign, *_ in signs[0]] == [sign for sign, *_ in signs[1]]
                and abs(wanted[0] - found[0]) < .5), (tex, wanted, found)
        assert all(abs(a - b) < .5 for one, other in zip(*signs)
                   for a, b in zip(one[1:], other[1:])), (tex, signs)


def test_mathml_is_valid(tmp_path):
    "Which KaTeX's is not for an index that is a function's name, or for an operator of letters."
    page = set_in_page(tmp_path, r"$\sigma_{\max}$ and $\sigma_{\min}^n$ and $p \bmod w$")
    formulas = [ElementTree.fromstring(f.replace("&nbsp;", " "))
                for f in re.findall(r"<math.*?</math>", page, re.S)]
    children = {"msub": 2, "msup": 2, "msubsup": 3}
    assert len(formulas) == 3
    for formula in formulas:
        for element in formula.iter():
            kind = element.tag.split("}")[1]
            assert (len(element) == children.get(kind, len(element))
                    and (kind not in ("mi", "mn", "mo") or not len(element)))
    assert "mod" in [element.text for element in formulas[2].iter()]


def test_nothing_of_the_stock_themes_weight_is_published(book):
    names = {p.name for p in Path(book).rglob("_static/**/*")}
    assert (not names & {"fontawesome.js", "bootstrap.js", "thebe.js", "clipboard.min.js"}
            and "book.css" in names)


# Few elements

def test_code_has_a_span_only_where_it_is_coloured():
    code = (
        "@cached\ndef f(x, *, y=None):  # why\n    return x[0] + 1 if y not in 'ab' else "
        "f\"{x!r}\"\n")
    html = highlight(code, PythonLexer(), Slim(nowrap=True))
    # nothing is lost
    assert re.sub(r"</?span[^>]*>", "", html).replace("&#39;", "'").replace("&quot;", '"') == code
    assert (re.findall(r'<span class="(\w+)">(.*?)</span>', html)[:5]
            == [("nf", "@cached"), ("k", "def"), ("nf", "f"), ("c", "# why"), ("k", "return")])
    assert html.count("<span") == 11 and "y=None)" in html and "x[" in html and "(x, *, y=" in html


def test_brackets_commas_and_numbers_have_no_colour():
    html = highlight(
        "x = f([1, 2.5, [-3, None]], 4) + 5\ny = ('a', 'b')\nz = {'a': 1 if x not in y else 2}\n",
        PythonLexer(), Slim(nowrap=True))
    spans = re.findall(r'<span class="(\w+)">(.*?)</span>', html.replace("&#39;", "'"))
    assert spans == [("s", "'a'"), ("s", "'b'"), ("s", "'a'"), ("k", "if"), ("k", "not in"),
                     ("k", "else")]


@pytest.mark.parametrize("html, kept", [
    ('<div class="highlight-ipython3 notranslate"><div '
     'class="highlight"><pre>x\ny</pre></div>\n</div>',
     '<div class="highlight-ipython3 notranslate highlight"><pre>x\ny</pre></div>'),
    ('<div class="output text_plain highlight-myst-ansi notranslate"><div '
     'class="highlight"><pre>1</pre></div>\n</div>',
     '<div class="output text_plain highlight-myst-ansi notranslate highlight"><pre>1</pre></div>'),
    ('<div class="output text_html"><div class="tfm-claim tfm-wrong"><p>x</p></div></div>',
     '<div class="tfm-claim tfm-wrong"><p>x</p></div>'),
    ('<p class="collapsed admonition-title">Code</p>\n<p class="expanded admonition-title">Code</p>', '<p class="admonition-title">Code</p>'),  # noqa: E501
    ('<summary>\n<p class="admonition-title">Code</p>\n</summary>', "<summary>Code</summary>"),
    ('<div class="output text_html"><div class="tfm-check tfm-fail"><p>x</p></div></div>',
     '<div class="tfm-check tfm-fail"><p>x</p></div>'),
    ('<div class="output text_html"><div class="tfm-check"><div>x</div></div></div>',) * 2,
    ('<div class="tfm-check tfm-pass" role="status"><p><strong>✓ f</strong></p><p>x</p></div>',
     '<div class="tfm-check tfm-pass" role="status"><strong>✓ f</strong><p>x</p></div>'),
    ('<p class="collapsed admonition-title">Show</p>\n<p class="expanded admonition-title">Hide</p>',) * 2,  # noqa: E501
    ('<code><span class="pre">a</span> <span class="pre">b</span></code>', "<code>a b</code>"),
    ("<pre><span></span>x</pre>", "<pre>x</pre>"),
    ("<td><p>one</p></td>", "<td>one</td>"),
    ('<td class="n"><p>a <em>b</em></p>\n</td>', '<td class="n">a <em>b</em></td>'),
    ("<td><p>one</p><p>two</p></td>", "<td><p>one</p><p>two</p></td>"),
    ("<dd><p>one</p>\n<ul><li>x</li></ul></dd>", "<dd><p>one</p>\n<ul><li>x</li></ul></dd>"),
    ("<li><p>one</p></li>", "<li><p>one</p></li>")])
def test_wrappers_that_nothing_uses_go(html, kept):
    assert slim(html) == kept


@pytest.mark.slow
def test_pages_have_few_elements(book):
    "At most 10,000 on any page as it is served; in code only spans whose class has a colour."
    coloured = set(re.findall(r"^\.highlight \.(\w+)|(?<=} )\.highlight \.(\w+)",
                              (SERVED / "book.css").read_text(), re.M))
    coloured = {a or b for a, b in coloured}
    pages = [p for p in Path(book).rglob("*.html") if "_static" not in p.parts]
    assert len(pages) > 30 and len(coloured) == 9
    seen = set()
    for path in pages:
        html = path.read_text(encoding="utf-8")
        assert len(re.findall(r"<[a-zA-Z]",
                              re.sub(r"<script\b.*?</script>", "", html,
                                     flags=re.S))) <= 10_000, path.name
        spans = {c for pre in re.findall(r"<pre\b.*?</pre>", html, re.S)
                 for c in re.findall(r'<span(?: class="([^"]*)")?', pre)}
        assert (spans <= coloured and 'class="pre"' not in html), (path.name, spans - coloured,
                html.count('class="pre"'))
        seen |= spans
    assert seen == {"c", "err", "k", "nf", "s"}, "code is coloured"
