"""The gallery of wrong answers: what the checkers of the practice pages said to each, from tfmlib/assets/kills.json."""
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

KILLS = "tfmlib/assets/kills.json"
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


def table(page: str, exercise: dict) -> str:
    "The wrong answers to one exercise."
    mutants = exercise["mutants"]
    rejected = sum(not m["passed"] for m in mutants)
    rows = "".join(row(page, exercise["name"], m) for m in mutants)
    return (f'<table class="table tfm-kills"><caption>{code(exercise["title"])}: {rejected} of {len(mutants)} rejected</caption><thead><tr>'
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


class KillTable(SphinxDirective):
    "`{kill-table}`: totals, then a section a practice page with a table an exercise."

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / KILLS
        self.env.note_dependency(str(path))
        try: pages = json.loads(path.read_text(encoding="utf-8"))["pages"] if path.is_file() else []
        except (KeyError, ValueError) as error: raise self.error(f"{KILLS}: {type(error).__name__}: {error}") from error
        made = [nodes.raw("", totals(pages), format="html")] if pages else [nodes.paragraph("", "There is no practice page yet.")]
        for page in pages:
            name = re.sub(r"\W|_", "-", Path(page["page"]).name)
            section = nodes.section("", nodes.title("", page["title"]), ids=[f"practice-{name}"], names=[f"practice-{name}"])
            section += [nodes.raw("", table(page["page"], e), format="html") for e in page["exercises"]]
            made.append(section)
        return made


def setup(app):
    app.add_directive("kill-table", KillTable)
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
