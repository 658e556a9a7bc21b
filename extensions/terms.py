"""The terms of the glossary: on each page of a chapter their first use leads there, and the page
*Index of terms* says where each is defined.

A term whose word has other meanings, too, bears a parenthesis in the glossary, such as `key (of
attention)`: it is recognised where it is set in bold, and nowhere else. Spellings that differ from
the glossary's, and words in bold that are no terms, are in terms.yml.
"""
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform
from term_index import IndexOfTerms, fill, index_of_terms
from term_words import GLOSSARY, OURS, PAGE, Known, known

QUIET = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math,
         nodes.math_block, nodes.raw, nodes.caption, nodes.table,
         nodes.block_quote, nodes.footnote, nodes.citation, pending_xref)


def proper(document: nodes.document) -> Iterator[nodes.Text]:
    """The texts of a page's paragraphs, without its head and without what is said in passing:
    headings, captions, tables, links, code."""
    page = next(iter(document.findall(nodes.section)), None)
    for section in (s for s in page or () if isinstance(s, nodes.section)):
        for text in section.findall(nodes.Text):
            above, node = [], text.parent
            while node is not section: above, node = [*above, node], node.parent
            if (any(isinstance(n, nodes.paragraph) for n in above)
                and not any(isinstance(n, QUIET) for n in above)):
                yield text


def leading(text: str, name: str) -> pending_xref:
    "A link to a term's entry in the glossary."
    return pending_xref("", nodes.Text(text), refdomain="std", reftype="term", reftarget=name,
                        refexplicit=True, refwarn=True)


def linked(document: nodes.document, terms: Known) -> None:
    """Make the first use of each term on a page a link to the glossary. Links that the page has
    itself count, too."""
    seen = {n["reftarget"] for n in document.findall(pending_xref) if n.get("reftype") == "term"}
    for text in list(proper(document)):
        if isinstance(text.parent, nodes.strong) and (name := terms.bold(text.parent.astext())):
            if name not in seen: text.parent.replace(text, leading(str(text), name))
            seen.add(name)
            continue
        parts, at = [], 0
        for start, end, name in terms.in_text(str(text)):
            if name in seen: continue
            seen.add(name)
            parts += [nodes.Text(text[at:start]), leading(text[start:end], name)]
            at = end
        if parts: text.parent.replace(text, [*parts, nodes.Text(text[at:])])


def read(app, document: nodes.document) -> None:
    "Sphinx has read a page."
    env, source = app.env, Path(app.srcdir) / f"{GLOSSARY}.md"
    if not OURS.match(env.docname) or GLOSSARY not in env.found_docs: return
    env.note_dependency(str(source))
    env.note_dependency(str(Path(__file__).with_suffix(".yml")))
    linked(document, known(Path(app.srcdir)))


class Said(SphinxPostTransform):
    "A link to the glossary says the term's sentence under the pointer."
    default_priority = 20
    formats = ("html",)

    def run(self, **_) -> None:
        for link in self.document.findall(nodes.reference):
            page, _, anchor = link.get("refuri", "").partition("#term-")
            if anchor and page.endswith(f"{GLOSSARY}.html"):
                link["reftitle"] = self.sentence(f"term-{anchor}")

    def sentence(self, anchor: str) -> str:
        if not hasattr(self.app, "tfm_sentences"):
            items = self.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item)
            self.app.tfm_sentences = {t["ids"][0]: i.children[-1].astext() for i in items
                                      for t in i.findall(nodes.term)}
        return self.app.tfm_sentences[anchor]


def setup(app):
    app.add_node(index_of_terms)
    app.add_directive("index-of-terms", IndexOfTerms)
    app.connect("doctree-read", read)
    # it depends on every page
    app.connect("env-updated", lambda app, env: [PAGE] if PAGE in env.found_docs else [])
    app.connect("doctree-resolved", fill)
    app.add_post_transform(Said)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 1}
