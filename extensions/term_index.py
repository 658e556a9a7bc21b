"""The page *Index of terms*: every term by letter, with where it is defined and used."""
from itertools import groupby

from docutils import nodes
from findable import Entry, folded
from sphinx.util.docutils import SphinxDirective
from term_places import entries
from term_words import GLOSSARY


class index_of_terms(nodes.General, nodes.Element):
    "Where the index will be."


class IndexOfTerms(SphinxDirective):
    """`{index-of-terms}`: every term of the glossary by letter, with the place where it is defined
    and the chapters that use it."""

    def run(self) -> list[nodes.Node]: return [index_of_terms()]


def letter(entry: Entry) -> str:
    "The letter under which a term is listed."
    return folded(entry["title"])[0].upper()


class Index:
    "The index as nodes of a page."
    def __init__(self, app, page: str):
        self.app, self.page = app, page
        self.titles = {(e["page"], e["anchor"]): e["title"]
                       for e in entries(app) if e["kind"] != "term"}

    def link(self, text: str, page: str, anchor: str = "") -> nodes.reference:
        uri = self.app.builder.get_relative_uri(self.page, page) if page != self.page else ""
        return nodes.reference("", "", nodes.Text(text), internal=True,
                               refuri=uri + (f"#{anchor}" if anchor else ""))

    def number(self, page: str) -> str:
        "A chapter's number as its title gives it."
        return self.app.env.titles[page].astext().split(" · ")[0]

    def place(self, entry: Entry) -> list[nodes.Node]:
        "Where a term is defined, and the other chapters that use it."
        home, anchor = entry["page"], entry["anchor"]
        made = []
        if home != GLOSSARY:
            made = [nodes.Text("Defined in "), self.link(self.app.env.titles[home].astext(), home),
                    nodes.Text(", "), self.link(self.titles[home, anchor], home, anchor),
                    nodes.Text(". ")]
        others = {page: at for page, at in self.app.tfm_uses.get(entry["title"], {}).items()
                  if page != home}
        links = [[self.link(self.number(page), page, at)] for page, at in others.items()]
        for i, link in enumerate(links):
            made += [nodes.Text("Used in " if not i else " and " if i == len(links) - 1 else ", "),
                     *link]
        return ([nodes.paragraph("", "", *made, *([nodes.Text(".")] if links else []),
                                 classes=["tfm-places"])] if made else [])

    def row(self, entry: Entry) -> nodes.definition_list_item:
        said = nodes.definition("", nodes.paragraph("", entry["line"]), *self.place(entry))
        return nodes.definition_list_item("",
                                          nodes.term("",
                                                  ", ".join([entry["title"], *entry["also"]])),
                                          said)

    def whole(self) -> list[nodes.Node]:
        terms = sorted((e for e in entries(self.app) if e["kind"] == "term"),
                       key=lambda e: folded(e["title"]).replace("'", "’").casefold())
        groups = [(name, list(group)) for name, group in groupby(terms, letter)]
        first = nodes.paragraph("", "", classes=["tfm-letters"])
        for name, _ in groups:
            first += [self.link(name, self.page, f"letter-{name.lower()}"), nodes.Text(" ")]
        made = [nodes.section("", nodes.title("", name),
                              nodes.definition_list("", *map(self.row, group)),
                              ids=[f"letter-{name.lower()}"]) for name, group in groups]
        return [first, *made]


def fill(app, document: nodes.document, page: str) -> None:
    "All pages are read, and this one is about to be written."
    for node in list(document.findall(index_of_terms)):
        node.replace_self(Index(app, page).whole() if GLOSSARY in app.env.found_docs else [])
