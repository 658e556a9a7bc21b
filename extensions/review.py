"""Review cards, made from the glossary and the ledger of claims: a question, its answer, and where
the book settles it.

The page *Review cards* shows them one at a time (theme/static/tfm/review.js keeps in the reader's
browser what is known how well); the same cards are written as a text file that Anki imports.
"""
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from findable import Entry, claims
from ledger import settled
from pages import notebooks, toc_pages
from sphinx.util.docutils import SphinxDirective
from term_places import entries

PAGE, SCRIPT, ANKI = "about/cards", "about/cards.js", "about/cards-anki.txt"
HEAD = (
    "#separator:tab\n#html:true\n#notetype:Basic\n#deck:The Executable Transformer\n#tags "
    "column:3\n")


def number(page: str) -> str:
    """The number of the chapter that a page belongs to; nothing for the back matter and the
    workbench."""
    found = re.search(r"(?:^|/)(\d\d)_", page)
    return found[1] if found and found[1] != "00" else ""


def card(entry: Entry, measured: str = "") -> dict[str, str]:
    """An entry as a card, with what the cell of a claim measured; its name keeps what a reader has
    learnt when others come and go."""
    term = entry["kind"] == "term"
    also = f" (also {', '.join(f'“{name}”' for name in entry['also'])})" if entry["also"] else ""
    front = (f"What does “{entry['title']}”{also} mean?" if term
             else f"Does this hold? {entry['title']}")
    name = f"term {entry['title']}" if term else f"claim {entry['anchor'].split('-', 1)[1]}"
    back = entry["line"][:1].upper() + entry["line"][1:]
    if measured: back = f"{back.rstrip('.')}. Measured: {measured}"
    return {"name": name, "kind": entry["kind"], "chapter": number(entry["page"]), "front": front,
            "back": back,
            "at": f"{entry['page']}.html{'#' + entry['anchor'] if entry['anchor'] else ''}"}


def cards(app) -> list[dict[str, str]]:
    "All cards: by chapter, terms before claims, each in the order of its page."
    root, toc = Path(app.srcdir), Path(app.srcdir) / app.config.external_toc_path
    made = [card(e) for e in entries(app) if e["kind"] == "term"]
    if "about/claims" in toc_pages(toc):
        books = notebooks(root, toc)
        said = {f"claim-{name}": dict(line
                                      for line in ways[0][1]["lines"]
                                      if len(line) == 2).get("measured", "")
                                      for name, ways in settled(books).items()}
        made += [card(e, said.get(e["anchor"], "")) for e in claims(root, books)]
    return sorted(made, key=lambda c: c["chapter"] or "99")


def anki(made: list[dict[str, str]], base: str = "") -> str:
    "The cards as a file for Anki's import: front, back with its source, tags."
    def back(c: dict[str, str]) -> str:
        return escape(c["back"]) + (f'<br><a href="{base}{c["at"]}">in the book</a>' if base
                                    else "")
    def tags(c: dict[str, str]) -> str:
        return f"{c['kind']} chapter-{c['chapter']}" if c["chapter"] else c["kind"]
    return HEAD + "".join(f"{escape(c['front'])}\t{back(c)}\t{tags(c)}\n".replace("\r", " ")
                          for c in made)


def write(app, exception) -> None:
    if exception or app.builder.format != "html" or PAGE not in app.env.found_docs: return
    made, out = cards(app), Path(app.outdir)
    titles = {number(page): app.env.titles[page].astext() for page in app.env.titles if number(page)
              and re.fullmatch(r"chapters/\d\d_\w+", page)}
    text = json.dumps({"chapters": dict(sorted(titles.items())), "cards": made}, ensure_ascii=False,
                      separators=(",", ":"))
    (out / SCRIPT).write_text(f"review({text})\n", encoding="utf-8")
    (out / ANKI).write_text(anki(made, app.config.html_baseurl.rstrip("/") + "/"
                                 if app.config.html_baseurl else ""), encoding="utf-8")


class Cards(SphinxDirective):
    "`{review-cards}`: the place where the cards are shown."

    def run(self) -> list[nodes.Node]:
        html = (
            '<div class="tfm-cards" id="cards"><noscript><p>The cards need JavaScript. Their '
            'questions and answers are in the <a href="glossary.html">glossary</a> and on the page of '  # noqa: E501
                '<a href="claims.html">claims</a>.</p></noscript></div>'
                '<script src="../_static/tfm/review.js" defer></script><script '
                f'src="{Path(SCRIPT).name}" defer></script>')
        return [nodes.raw("", html, format="html")]


def setup(app):
    app.add_directive("review-cards", Cards)
    app.connect("build-finished", write, priority=945)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
