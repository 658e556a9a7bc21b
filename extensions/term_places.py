"""Where the book defines each term of the glossary."""
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from docutils import nodes
from findable import WORD, Entry, folded, names, sections
from pages import notebooks, toc_pages
from sphinx.addnodes import pending_xref
from sphinx.util import logging
from term_words import ASIDE, GLOSSARY, Known, key, known

log = logging.getLogger(__name__)


def bold(documents: dict[str, nodes.document], known: Known) -> dict[str, tuple[str, str]]:
    """The terms that chapters set in bold, where they introduce them: name -> (page, section), the
    first in the book's order."""
    found = {}
    for page, document in documents.items():
        for strong in document.findall(nodes.strong):
            section, name = around(strong), known.bold(strong.astext())
            if name and section.parent is not document:
                found.setdefault(name, (page, section["ids"][0]))
    return found


def around(node: nodes.Node) -> nodes.Node:
    "The section, or the page, that a node is in."
    while not isinstance(node, nodes.section | nodes.document): node = node.parent
    return node


def most(term: str, sections: list[Entry]) -> tuple[str, str] | None:
    "The section that says a term most often; in its heading counts as twenty times."
    said = re.compile(r"\b" + r"[\W_]?".join(WORD.findall(folded(ASIDE.sub("", term))))
                      + r"(s|es)?\b", re.I)
    times = {(e["page"], e["anchor"]): len(said.findall(e.said)) + 20
             * len(said.findall(folded(e["title"]))) for e in sections}
    best = max(times, key=times.get, default=None)
    return best if best and times[best] else None


def defined(document: nodes.document, found: list[Entry], introduced: dict[str, tuple[str, str]],
            told: dict[str, tuple[str, str]]) -> Iterator[Entry]:
    """The glossary's terms, each where the book defines it: where `told`, else a bold word, a name,
    the section that says it most, the glossary."""
    named = {key(e["title"]): (e["page"], e["anchor"]) for e in found if e["kind"] == "name"
             and "/practice/" not in e["page"] and not e["title"].isupper()}
    chapters = [e for e in found if e["kind"] in ("section", "depth")
                and "take-away" not in e["anchor"]]
    for item in document.findall(nodes.definition_list_item):
        spelt = [t.astext().replace("’", "'") for t in item.findall(nodes.term)]
        place = (told.get(spelt[0]) or next((p for t in spelt if (p := named.get(key(t)))), None)
                 or introduced.get(spelt[0]))
        place = place or next((p for t in spelt if (p := most(t, chapters))), None)
        yield Entry("term", *(place or (GLOSSARY, item.children[0]["ids"][0])), spelt[0],
                    item.children[-1].astext(), tuple(spelt[1:]))


def told(path: Path, found: list[Entry]) -> dict[str, tuple[str, str]]:
    """The places that a file gives on the pages of this book; one that is no section and no name is
    a fault."""
    places = {term: (f"chapters/{place.split('#')[0]}", place.split("#")[1])
              for term, place in yaml.safe_load(path.read_text(encoding="utf-8")).items()}
    known = {(e["page"], e["anchor"]) for e in found}
    places = {term: place for term, place in places.items()
              if place[0] in {page for page, _ in known}}
    for term, place in places.items():
        if place not in known:
            log.warning(
                "%s: no section and no name of the book is %s#%s, where «%s» should be defined",
                path.name, *place, term, type="search")
    return places


def entries(app) -> list[Entry]:
    "The book's sections, names and terms, as the search and the index know them."
    if not hasattr(app, "tfm_entries"):
        root, toc = Path(app.srcdir), toc_pages(Path(app.srcdir) / app.config.external_toc_path)
        documents = {page: app.env.get_doctree(page) for page in toc}
        found = [e for page, document in documents.items() for e in sections(page, document)
                 if not page.startswith(("about/reference", "api/")) or e["kind"] == "page"]
        found += [e for page, notebook in notebooks(root,
                                                    root / app.config.external_toc_path).items()
                                                    for e in names(page, notebook)]
        chapters = {page: d for page, d in documents.items() if page.startswith("chapters/")
                    and "/practice/" not in page}
        if GLOSSARY in documents:
            places = told(Path(__file__).with_name("defined.yml"), found)
            found += defined(documents[GLOSSARY], found, bold(chapters, known(root)), places)
        app.tfm_entries, app.tfm_uses = found, uses(chapters)
    return app.tfm_entries


def uses(chapters: dict[str, nodes.document]) -> dict[str, dict[str, str]]:
    "Term -> page -> the section of its first linked use there."
    found = {}
    for page, document in chapters.items():
        for link in document.findall(pending_xref):
            if link.get("reftype") == "term":
                found.setdefault(link["reftarget"], {}).setdefault(page, around(link)["ids"][0])
    return found
