"""The search: an index of what the book defines (names, terms), says (headings, claims) and holds (words), and the page that reads it.

It takes the place of Sphinx's own search, which knows pages only, runs words together and fetches every page that it lists. The script
that ranks and shows is theme/static/tfm/search.js; `folded` and `words` there do what they do in findable.py.
"""
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

import yaml
from docutils import nodes
from findable import WORD, Entry, claims, folded, names, sections
from pages import notebooks, toc_pages
from sphinx.addnodes import glossary
from sphinx.util import logging

log = logging.getLogger(__name__)
KINDS = ("page", "name", "term", "section", "claim", "exercise", "back")      # what is found; "back": a section of the back matter
NUMBER = re.compile(r"(?!(19|20)\d\d$)\d+")                                      # years are words
COMMON = set("a an and are as at be been but by can do does for from has have if in into is it its no not of on one or so such than that the their them then "
             "there these they this to was we what when where which who will with you".split())


# --- where a term is defined --------------------------------------------------------------------------------------

def bold(documents: dict[str, nodes.document]) -> dict[str, tuple[str, str]]:
    "What chapters set in bold, where they introduce it: folded text -> (page, section), the first in the book's order."
    found = {}
    for page, document in documents.items():
        for strong in document.findall(nodes.strong):
            section = strong.parent
            while not isinstance(section, nodes.section | nodes.document): section = section.parent
            if section.parent is not document: found.setdefault(key(strong.astext()), (page, section["ids"][0]))
    return found


def key(text: str) -> str:
    "What two spellings of a term share: layer norm, LayerNorm."
    return "".join(w.lower() for w in WORD.findall(folded(re.sub(r" *\(.*\)", "", text))))


def most(term: str, sections: list[Entry]) -> tuple[str, str] | None:
    "The section that says a term most often; in its heading counts as twenty times."
    said = re.compile(r"\b" + r"[\W_]?".join(WORD.findall(folded(re.sub(r" *\(.*\)", "", term)))) + r"(s|es)?\b", re.I)
    times = {(e["page"], e["anchor"]): len(said.findall(e.said)) + 20 * len(said.findall(folded(e["title"]))) for e in sections}
    best = max(times, key=times.get, default=None)
    return best if best and times[best] else None


def terms(document: nodes.document, found: list[Entry], introduced: dict[str, tuple[str, str]], told: dict[str, tuple[str, str]]) -> Iterator[Entry]:
    "The glossary's terms, each where the book defines it: where `told`, else a name, a bold word, the section that says it most, the glossary."
    named = {key(e["title"]): (e["page"], e["anchor"]) for e in found if e["kind"] == "name" and "/practice/" not in e["page"] and not e["title"].isupper()}
    chapters = [e for e in found if e["kind"] == "section" and "take-away" not in e["anchor"]]
    for item in (i for g in document.findall(glossary) for i in g.findall(nodes.definition_list_item)):
        spelt = [t.astext().replace("’", "'") for t in item.findall(nodes.term)]
        place = next((p for t in spelt for p in (told.get(t), named.get(key(t)), introduced.get(key(t)), most(t, chapters)) if p), None)
        yield Entry("term", *(place or ("glossary", item.children[0]["ids"][0])), spelt[0], item.children[-1].astext(), tuple(spelt[1:]))


def told(path: Path, found: list[Entry]) -> dict[str, tuple[str, str]]:
    "The places that a file gives on the pages of this book; one that is no section and no name is a fault."
    places = {term: (f"chapters/{place.split('#')[0]}", place.split("#")[1]) for term, place in yaml.safe_load(path.read_text(encoding="utf-8")).items()}
    known = {(e["page"], e["anchor"]) for e in found}
    places = {term: place for term, place in places.items() if place[0] in {page for page, _ in known}}
    for term, place in places.items():
        if place not in known: log.warning("%s: no section and no name of the book is %s#%s, where «%s» should be defined", path.name, *place, term, type="search")
    return places


# --- the index ----------------------------------------------------------------------------------------------------

def packed(entries: list[Entry], titles: dict[str, str]) -> dict:
    "The index as the script reads it: pages, entries, and for each word the entries that say it: thrice the step from one to the next, and 1 if often, 2 if very often."
    pages = list(titles)
    where = defaultdict(list)
    for number, entry in enumerate(entries):
        for word, count in entry["text"].items():
            if word not in COMMON and (word == "√" or len(word) > 1 and not NUMBER.fullmatch(word)): where[word].append((number, (count > 1) + (count > 4)))
    steps = lambda hits: [3 * (b - a) + often for (a, _), (b, often) in zip([(0, 0), *hits], hits)]
    return {"pages": [[p, titles[p]] for p in pages],
            "entries": [[KINDS.index(e["kind"]), pages.index(e["page"]), e["anchor"], e["title"], shorten(e["line"], 160, placeholder=" …"), *e["also"]] for e in entries],
            "words": {word: steps(hits) for word, hits in sorted(where.items())}}


def index(app) -> dict:
    "All that can be found in the book."
    root, toc = Path(app.srcdir), toc_pages(Path(app.srcdir) / app.config.external_toc_path)
    documents = {page: app.env.get_doctree(page) for page in toc}
    books = notebooks(root, root / app.config.external_toc_path)
    found = [e for page, document in documents.items() for e in sections(page, document) if not page.startswith(("reference", "api/")) or e["kind"] == "page"]
    found += [e for page, notebook in books.items() for e in names(page, notebook)]
    chapters = {page: d for page, d in documents.items() if page.startswith("chapters/") and "/practice/" not in page}
    if "glossary" in documents: found += terms(documents["glossary"], found, bold(chapters), told(Path(__file__).with_name("defined.yml"), found))
    if "claims" in documents: found += claims(root, books)
    return packed(found, {page: app.env.titles[page].astext() for page in toc})


def write(app, exception) -> None:
    if exception or app.builder.format != "html": return
    text = json.dumps(index(app), ensure_ascii=False, separators=(",", ":"))
    (Path(app.outdir) / "searchindex.js").write_text(f"search({text})\n", encoding="utf-8")


def setup(app):
    def own(app): app.builder.search = False                 # Sphinx makes no index and no search page
    app.connect("builder-inited", own)
    app.connect("html-collect-pages", lambda app: [("search", {}, "search.html")])
    app.connect("build-finished", write, priority=940)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
