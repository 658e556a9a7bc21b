"""The gallery of wrong answers: what the checkers of the practice pages said to each, from
tfmlib/assets/kills.json; and to generic mutants of each solution, from mutants.json beside it."""
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from gallery_counts import LIVES, by_class, code, contents, excused, totals
from sphinx.util.docutils import SphinxDirective

KILLS = "tfmlib/assets/kills.json"
MUTANTS = "tfmlib/assets/mutants.json"
DEFINED = re.compile(r"^(?:def|class) +(\w+)|^(\w+) *=(?!=)", re.M)


def anchor(exercise: str, name: str) -> str:
    "The id of a wrong answer on its practice page."
    return re.sub(r"\W|_", "-", f"wrong-{exercise}-{name}")


def mark(app, doctree) -> None:
    "Give each cell that holds a wrong answer the ids that the gallery links to."
    for cell in doctree.findall(nodes.container):
        tags = [c.removeprefix("tag_") for c in cell["classes"] if c.startswith("tag_")]
        exercise = next((t.removeprefix("exercise-") for t in tags if t.startswith("exercise-")),
                        "")
        if "mutant" not in tags or cell.get("nb_element") != "cell_code": continue
        source = next(cell.findall(nodes.literal_block)).astext()
        cell["ids"] += [anchor(exercise, a or b) for a, b in DEFINED.findall(source)]


def row(page: str, exercise: str, mutant: dict) -> str:
    "One wrong answer: its name, and what its checker said."
    name = escape(mutant["name"]).replace("_", "_<wbr>")
    said = "not rejected" if mutant["passed"] else code(mutant["failed"])
    return (
        '<tr><th scope="row"><a '
        f'href="{page}.html#{anchor(exercise, mutant["name"])}"><code>{name}</code></a></th>'
            f'<td>{said}<p class="tfm-seen">{code(mutant["why"])}</p></td></tr>')


def generic(exercise: dict | None) -> str:
    "What became of the generic mutants of one solution, in words."
    if exercise is None: return ""
    tried, lives = sum(exercise["tried"].values()), {v: len(exercise[v]) for v in LIVES}
    rest = "".join(f", {n} {what}" for what, n in lives.items() if n)
    return f"; generic mutants: {tried - sum(lives.values())} of {tried} rejected{rest}"


def table(page: str, exercise: dict, mutated: dict | None) -> str:
    "The wrong answers to one exercise."
    mutants = exercise["mutants"]
    rejected = sum(not m["passed"] for m in mutants)
    rows = "".join(row(page, exercise["name"], m) for m in mutants)
    return (
        f'<table class="table tfm-kills"><caption>{code(exercise["title"])}: {rejected} of '
        f'{len(mutants)} rejected{generic(mutated)}</caption><thead><tr>'
            '<th scope="col">Wrong answer</th><th scope="col">The property that fails, and '
            f'where</th></tr></thead><tbody>{rows}</tbody></table>')


class MutantTable(SphinxDirective):
    "`{mutant-table}`: the generic mutants by class."

    def run(self) -> list[nodes.Node]:
        found = read(self, MUTANTS)
        return [nodes.raw("", by_class(found), format="html")] if found["pages"] else []


def read(directive: SphinxDirective, name: str) -> dict:
    "A file of the book's; without it, no pages."
    path = Path(directive.env.srcdir) / name
    directive.env.note_dependency(str(path))
    try:
        return {"pages": []} | (json.loads(path.read_text(encoding="utf-8")) if path.is_file()
                                else {})
    except ValueError as error:
        raise directive.error(f"{name}: {type(error).__name__}: {error}") from error


class KillTable(SphinxDirective):
    """`{kill-table}`: totals and the practice pages. `{kill-table} NN_name`: a table an exercise of
    this page, and what is excused."""
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        pages = read(self, KILLS)["pages"]
        if not pages: return [nodes.paragraph("", "There is no practice page yet.")]
        if not self.arguments:
            return [nodes.raw("", totals(pages) + contents(pages), format="html")]
        page = next((p for p in pages if Path(p["page"]).name == self.arguments[0]), None)
        if page is None: raise self.error(f"there is no practice page {self.arguments[0]}")
        mutated = next((p for p in read(self, MUTANTS)["pages"] if p["page"] == page["page"]),
                       {"exercises": []})
        of = {e["name"]: e for e in mutated["exercises"]}
        tables = [table("../" + page["page"], e, of.get(e["name"])) for e in page["exercises"]]
        return [nodes.raw("", html, format="html") for html in (*tables, excused(mutated)) if html]


def setup(app):
    app.add_directive("kill-table", KillTable)
    app.add_directive("mutant-table", MutantTable)
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
