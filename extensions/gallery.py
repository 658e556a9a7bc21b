"""The gallery of wrong answers: what the checkers of the practice pages said to each, from tfmlib/assets/kills.json; and to generic mutants of
each solution, from mutants.json beside it."""
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

KILLS = "tfmlib/assets/kills.json"
MUTANTS = "tfmlib/assets/mutants.json"
LIVES = ("equivalent", "excused", "survived")
DEFINED = re.compile(r"^(?:def|class) +(\w+)|^(\w+) *=(?!=)", re.M)


def anchor(exercise: str, name: str) -> str:
    "The id of a wrong answer on its practice page."
    return re.sub(r"\W|_", "-", f"wrong-{exercise}-{name}")


def mark(app, doctree) -> None:
    "Give each cell that holds a wrong answer the ids that the gallery links to."
    for cell in doctree.findall(nodes.container):
        tags = [c.removeprefix("tag_") for c in cell["classes"] if c.startswith("tag_")]
        exercise = next((t.removeprefix("exercise-") for t in tags if t.startswith("exercise-")), "")
        if "mutant" not in tags or cell.get("nb_element") != "cell_code": continue
        source = next(cell.findall(nodes.literal_block)).astext()
        cell["ids"] += [anchor(exercise, a or b) for a, b in DEFINED.findall(source)]


def code(text: str) -> str:
    "Escaped text in which what stands between backticks is code."
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def row(page: str, exercise: str, mutant: dict) -> str:
    "One wrong answer: its name, and what its checker said."
    name = escape(mutant["name"]).replace("_", "_<wbr>")
    said = "not rejected" if mutant["passed"] else code(mutant["failed"])
    return (f'<tr><th scope="row"><a href="{page}.html#{anchor(exercise, mutant["name"])}"><code>{name}</code></a></th>'
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
    return (f'<table class="table tfm-kills"><caption>{code(exercise["title"])}: {rejected} of {len(mutants)} rejected{generic(mutated)}</caption><thead><tr>'
            f'<th scope="col">Wrong answer</th><th scope="col">The property that fails, and where</th></tr></thead><tbody>{rows}</tbody></table>')


def totals(pages: list[dict]) -> str:
    "How many exercises, wrong answers and refusals there are."
    exercises = [e for p in pages for e in p["exercises"]]
    mutants = [m for e in exercises for m in e["mutants"]]
    rows = {"exercises": len(exercises), "stubs rejected": sum(bool(e["stub"]) and not any(r["passed"] for r in e["stub"]) for e in exercises),
            "solutions accepted": sum(bool(e["solutions"]) and all(r["passed"] for r in e["solutions"]) for e in exercises),
            "wrong answers": len(mutants), "wrong answers rejected": sum(not m["passed"] for m in mutants)}
    cells = "".join(f'<tr><th scope="row">{what}</th><td>{n}</td></tr>' for what, n in rows.items())
    return f'<table class="table tfm-counts"><caption>All practice pages together</caption><tbody>{cells}</tbody></table>'


def by_class(found: dict) -> str:
    "The generic mutants by class: what they do wrong, how many were tried, and what became of them."
    exercises, rows = [e for p in found["pages"] for e in p["exercises"]], ""
    for kind, what in found["classes"].items():
        tried = sum(e["tried"].get(kind, 0) for e in exercises)
        lives = [sum(label.startswith(f"{kind}: ") for e in exercises for label in e[v]) for v in LIVES]
        cells = "".join(f"<td>{n}</td>" for n in (tried, tried - sum(lives), *lives))
        rows += f'<tr><th scope="row">{escape(kind)}<p class="tfm-seen">{escape(what)}</p></th>{cells}</tr>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("Class", "tried", "rejected", *LIVES))
    table = f'<table class="table tfm-classes"><caption>Generic mutants, by class</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="pst-scrollable-table-container" tabindex="0" role="region" aria-label="Generic mutants, by class">{table}</div>'


def excused(found: dict) -> str:
    "The generic mutants that checkers may let pass, and why."
    rows = "".join(f'<tr><th scope="row"><code>{escape(e["name"])}</code></th><td>{code(label)}<p class="tfm-seen">{code(why)}</p></td></tr>'
                   for p in found["pages"] for e in p["exercises"] for label, why in e["excused"].items())
    head = '<th scope="col">Exercise</th><th scope="col">The mutant, and why it may pass</th>'
    return f'<table class="table tfm-kills"><caption>Excused</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>' if rows else ""


class MutantTable(SphinxDirective):
    "`{mutant-table}`: the generic mutants by class, and those that are excused."

    def run(self) -> list[nodes.Node]:
        found = read(self, MUTANTS)
        return [nodes.raw("", by_class(found) + excused(found), format="html")] if found["pages"] else []


def read(directive: SphinxDirective, name: str) -> dict:
    "A file of the book's; without it, no pages."
    path = Path(directive.env.srcdir) / name
    directive.env.note_dependency(str(path))
    try: return {"pages": []} | (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
    except ValueError as error: raise directive.error(f"{name}: {type(error).__name__}: {error}") from error


class KillTable(SphinxDirective):
    "`{kill-table}`: totals, then a section a practice page with a table an exercise."

    def run(self) -> list[nodes.Node]:
        pages = read(self, KILLS)["pages"]
        mutated = {(p["page"], e["name"]): e for p in read(self, MUTANTS)["pages"] for e in p["exercises"]}
        made = [nodes.raw("", totals(pages), format="html")] if pages else [nodes.paragraph("", "There is no practice page yet.")]
        for page in pages:
            name = re.sub(r"\W|_", "-", Path(page["page"]).name)
            section = nodes.section("", nodes.title("", page["title"]), ids=[f"practice-{name}"], names=[f"practice-{name}"])
            section += [nodes.raw("", table(page["page"], e, mutated.get((page["page"], e["name"]))), format="html") for e in page["exercises"]]
            made.append(section)
        return made


def setup(app):
    app.add_directive("kill-table", KillTable)
    app.add_directive("mutant-table", MutantTable)
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
