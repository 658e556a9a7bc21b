"""What the front page counts: `{counts}` becomes numbers that the build finds in the book
itself."""
import json
import re
from pathlib import Path

from docutils import nodes
from ledger import listed as entries_of_text
from pages import kind, notebooks
from sphinx.util.docutils import SphinxDirective

ASSETS = Path("tfmlib/assets")
SOURCES = (ASSETS / "claims.yml", ASSETS / "kills.json", ASSETS / "compared.json")
VERDICTS = {"holds": "hold", "holds under a condition": "hold under a condition",
            "imprecise": "are imprecise", "wrong": "are wrong"}


def listed(parts: list[str]) -> str:
    "Parts of a sentence as a list in words."
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def linked(text: str) -> str:
    "Text with links, as Markdown writes them, in HTML."
    return re.sub(r"\[([^]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', text)


def counts(root: Path) -> list[tuple[str, str]]:
    """Numbers and what they count, from the ledger, the table of wrong answers, the comparisons and
    the notebooks."""
    claims, kills, compared = ((entries_of_text if path.suffix == ".yml"
                                else json.loads)((root / path).read_text(encoding="utf-8"))
                               for path in SOURCES)
    books = notebooks(root, root / "_toc.yml")
    chapters = [name for name in books if kind(name) == "path"]
    cells = [cell for name, book in books.items() if kind(name) != "practice"
             for cell in book["cells"] if cell["cell_type"] == "code"]
    exercises = [e for page in kills["pages"] for e in page["exercises"]]
    rejected = sum(not m["passed"] for e in exercises for m in e["mutants"])
    of = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}
    return [(f"{len(chapters)}", "chapters, each a notebook and a module"),
            (f"{len(claims)}", "[common claims](about/claims.html) settled: "
                               f"{listed([f'{n} {VERDICTS[v]}' for v, n in of.items()])}"),
            (f"{len(exercises)}", "exercises, each with a checker"),
            (f"{rejected:,}",
             "plausible [wrong answers](about/gallery.html) that the checkers reject"),
            (f"{len(compared)}",
             "comparisons with other libraries on the pages, and many more in the tests"),
            (f"{len(cells):,}", "cells of code outside the exercises, which the proof runs")]


class Counts(SphinxDirective):
    "`{counts}`: a row of numbers."

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        for source in SOURCES: self.env.note_dependency(str(root / source))
        rows = "".join(f"<li><strong>{number}</strong> {linked(what)}</li>"
                       for number, what in counts(root))
        return [nodes.raw("", f'<ul class="tfm-numbers">{rows}</ul>', format="html")]


def setup(app):
    app.add_directive("counts", Counts)
    # it counts every page
    app.connect("env-updated", lambda app, env: ["index"] if "index" in env.found_docs else [])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
