"""The terms: a glossary in order, whose terms the chapters use and define; the first use on a
page leads there; the index says where."""
import json
import re
from types import SimpleNamespace

import pages
import pytest
import term_index
import term_places
import term_words
import terms
import yaml
from conftest import ROOT
from docutils import nodes
from docutils.utils import new_document
from findable import Entry, folded
from pages import notebooks
from sphinx.addnodes import pending_xref

SOURCE = (ROOT / "about/glossary.md").read_text(encoding="utf-8")
GLOSSARY = term_words.glossary(SOURCE)
KNOWN = term_words.known(ROOT)
LISTS = ("about/glossary", "about/terms")
MORE = yaml.safe_load((ROOT / "extensions/terms.yml").read_text(encoding="utf-8"))
TEXTS = {name: ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "markdown"]
         for name, book in notebooks(ROOT).items() if term_words.OURS.match(name)}


# --- the glossary ---------------------------------------------------------------------------------

def test_terms_are_in_order():
    "In each section, as a reader looks for them; so that a new one has one place."
    blocks = [[t.spelt[0].casefold() for t in term_words.glossary(f"```{{glossary}}\n{block}```")]
              for block in term_words.BLOCK.findall(SOURCE)]
    assert len(blocks) > 8 and [b for b in blocks if b != sorted(b)] == []


def test_a_word_is_one_term():
    "No spelling stands for two terms where it is recognised."
    spelt = [s for t in GLOSSARY for s in {term_words.key(s) for s in t.spelt if "(" not in s}]
    assert len(GLOSSARY) > 250 and sorted({s for s in spelt if spelt.count(s) > 1}) == []


def in_bold() -> dict[str, set[str]]:
    """What chapters set in bold in a sentence, and where; not what begins a paragraph and ends
    in a mark."""
    found = {}
    for name, cells in TEXTS.items():
        for text in re.findall(r"\*\*([^*\n]+)\*\*", "\n".join(cells)):
            if not text.endswith((".", ":")) and text != "You will be able to":
                found.setdefault(text, set()).add(name)
    return found


def test_what_is_set_in_bold_is_in_the_glossary():
    "A term is introduced in bold, once made plain; what is bold for another reason is listed."
    bold = {text: pages for text, pages in in_bold().items()
            if any(not page.startswith("chapters/00_") for page in pages)}
    assert (len(bold) > 150 and {text: pages for text, pages in bold.items() if not KNOWN.bold(text)
                                 and text not in MORE["no terms"]} == {})


def test_every_term_is_used():
    "On some page of the book: a glossary of words that nobody meets helps nobody."
    said = "\n".join("".join(c["source"]) for book in notebooks(ROOT).values()
                     for c in book["cells"] if c["cell_type"] == "markdown")
    said += "\n".join((ROOT / f"{name}.md").read_text(encoding="utf-8")
                      for name in pages.toc_pages(ROOT / "_toc.yml")
                      if name not in (*LISTS, *notebooks(ROOT)))
    bold = {KNOWN.bold(text) for text in in_bold()}
    def met(term):
        return (term.spelt[0] in bold
                or any(re.search(term_words.form(term_words.ASIDE.sub("", s)), said)
                       for s in term.spelt))
    assert [t.spelt[0] for t in GLOSSARY if not met(t)] == []


def test_places_are_told_of_terms():
    assert ({*yaml.safe_load((ROOT / "extensions/defined.yml").read_text(encoding="utf-8"))}
            <= {t.spelt[0] for t in GLOSSARY})


def test_exceptions_are_needed():
    bold = in_bold()
    names = {t.spelt[0] for t in GLOSSARY}
    assert set(MORE["also"].values()) <= names
    assert [w for w in [*MORE["also"], *MORE["no terms"]] if w not in bold] == []


# --- the first use --------------------------------------------------------------------------------

@pytest.fixture
def small() -> term_words.Known:
    source = (
        "```{glossary}\n:sorted:\n\nattention\n  It averages.\n\nattention weights\nattention "
        "weight\n  They average.\n\nkey (of attention)\n  It is found.\n\nROME\n  An "
        "edit.\n\nvocabulary\n  All tokens.\n\nsaturation\n  Flat.\n```\n")
    return term_words.Known(term_words.glossary(source), {"saturated": "saturation"})


@pytest.mark.parametrize("text, found", [
    ("Attention weights, then attention.", ["attention weights", "attention"]),
    ("self-attention and attention", ["attention"]),
    ("an attention\u2011weight", ["attention weights"]),
    ("the key of a dictionary", []), ("all roads lead to Rome, and ROME", ["ROME"]),
    ("two vocabularies", ["vocabulary"]), ("inattention, attentional", [])])
def test_terms_in_a_text(small, text, found):
    assert [name for *_, name in small.in_text(text)] == found


@pytest.mark.parametrize("text, name",
                         [("key", "key (of attention)"), ("keys", "key (of attention)"),
                          ("saturated", "saturation"), ("lock", None)])
def test_terms_in_bold(small, text, name):
    assert small.bold(text) == name


def page(*paragraphs: str) -> nodes.document:
    """A page with a head, and one section with these paragraphs; `*x*` is bold, `x` in backticks
    code."""
    document = new_document("page")
    def made(text):
        kinds = {"*": nodes.strong, "`": nodes.literal}
        return nodes.paragraph("", "",
                               *(kinds[p[0]]("", p.strip("*`")) if p[:1] in kinds else nodes.Text(p)
                                 for p in re.split(r"(\*[^*]+\*|`[^`]+`)", text) if p))
    inner = nodes.section("", nodes.title("", "About attention"), *map(made, paragraphs),
                          ids=["about"])
    document += nodes.section("", nodes.title("", "Page"),
                              nodes.paragraph("", "The head says attention."), inner, ids=["page"])
    return document


def links(document) -> list[tuple[str, str]]:
    return [(n.astext(), n["reftarget"]) for n in document.findall(pending_xref)]


def test_first_use_is_linked_once(small):
    document = page("Code `attention`, attention and attention; a key.",
                    "Attention weights, *keys* and *key*, *saturated* again.",
                    "An attention weight.")
    before = document.astext()
    terms.linked(document, small)
    assert (links(document) == [("attention", "attention"),
                                ("Attention weights", "attention weights"),
                                ("keys", "key (of attention)"), ("saturated", "saturation")])
    assert document.astext() == before, "no word is lost"
    assert [n.parent.__class__ for n in document.findall(pending_xref)][2] is nodes.strong
    assert term_places.uses({"page": document})["attention"] == {"page": "about"}


def test_a_link_that_the_page_has_counts(small):
    document = page("attention")
    document[0][1] += pending_xref("", nodes.inline("", "attention"), reftype="term",
                                   reftarget="attention")
    terms.linked(document, small)
    assert len(links(document)) == 1


def test_a_row_of_the_index():
    """The section that defines a term by its heading, and not by the terms in it; then the other
    chapters, by number."""
    entry = Entry("term", "chapters/01_a", "first", "gate", "It scales.", ("gates",))
    told = [Entry("section", "chapters/01_a", "first", "Gates that scale"),
            Entry("term", "chapters/01_a", "first", "another term"), entry]
    title = {f"chapters/0{n}_{c}": nodes.title("", f"{n} · Page {c}")
             for n, c in enumerate("abcd", 1)}
    app = SimpleNamespace(tfm_entries=told, tfm_uses={"gate": dict.fromkeys(title, "there")},
                          env=SimpleNamespace(titles=title),
                          builder=SimpleNamespace(
                              get_relative_uri=lambda page, other: f"{other}.html"))
    row = term_index.Index(app, "about/terms").row(entry)
    assert ([n.astext() for n in row[1]]
            == ["It scales.", "Defined in 1 · Page a, Gates that scale. Used in 2, 3 and 4."]
            and row[0].astext() == "gate, gates")
    assert ([n["refuri"] for n in row.findall(nodes.reference)] == ["chapters/01_a.html",
            "chapters/01_a.html#first", *(f"{page}.html#there" for page in [*title][1:])])
    groups = term_index.Index(app, "about/terms").whole()
    assert (groups[0].astext().split() == ["A", "G"] and [g["ids"] for g in groups[1:]]
            == [["letter-a"], ["letter-g"]])


# --- the built pages ------------------------------------------------------------------------------

TERM = re.compile(
    r'<a class="reference internal" href="(?:\.\./)+about/glossary\.html#(term-[^"]+)"( '
    r'title="([^"]*)")?')


@pytest.mark.slow
def test_chapters_lead_to_the_glossary(book):
    "Each term once a page, with its sentence; the anchors are there."
    anchors = set(re.findall(r'<dt id="(term-[^"]+)"',
                             (book / "about/glossary.html").read_text(encoding="utf-8")))
    for name in (n for n in TEXTS if not n.startswith("chapters/00_")):
        found = TERM.findall((book / f"{name}.html").read_text(encoding="utf-8"))
        ids = [anchor for anchor, *_ in found]
        assert (len(ids) >= (10 if "/depth/" in name else 20) and len(ids) == len(set(ids))
                and set(ids) <= anchors and all(said.endswith(".") for *_, said in found)), name


@pytest.mark.slow
def test_index_says_where(book):
    """Every term of the glossary, by letter; what it links to is there; nearly all are defined
    in a section."""
    html = (book / "about/terms.html").read_text(encoding="utf-8")
    rows = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", html, re.S)
    assert ([re.sub("<[^>]*>", "", title).split(", ")[0].replace("'", "’") for title, _ in rows]
            == sorted((t.spelt[0].replace("'", "’") for t in GLOSSARY),
                      key=lambda s: folded(s).casefold()))
    homes = {title: re.search(r'Defined in .*?href="[^"#]*#([^"]*)"', body, re.S)
             for title, body in rows}
    assert sum(bool(home) for home in homes.values()) > .9 * len(rows)
    for page, anchor in set(re.findall(r'href="(chapters/[^"#]+\.html)#([^"]+)"', html)):
        assert f'id="{anchor}"' in (book / page).read_text(encoding="utf-8"), (page, anchor)
    index = json.loads((book / "searchindex.js").read_text(encoding="utf-8").removeprefix(
        "search(").removesuffix(")\n"))
    assert ([e for e in index["entries"] if e[0] == 2 and e[3] == "additive attention"][0][2]
            == homes["additive attention"][1]), "the search leads to the same place"
