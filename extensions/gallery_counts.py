"""What the gallery of wrong answers counts, as tables: exercises and wrong answers a page,
generic mutants a class, and those that are excused."""
import re
from html import escape
from pathlib import Path

LIVES = ("equivalent", "excused", "survived")


def code(text: str) -> str:
    "Escaped text in which what stands between backticks is code."
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def wide(caption: str, columns: tuple, rows: str) -> str:
    "A table that scrolls if the page is too narrow for it."
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    table = (
        '<table class="table '
        f'tfm-classes"><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')
    return (
        '<div class="pst-scrollable-table-container" tabindex="0" role="region" '
        f'aria-label="{caption}">{table}</div>')


def totals(pages: list[dict]) -> str:
    "How many exercises, wrong answers and refusals there are."
    exercises = [e for p in pages for e in p["exercises"]]
    mutants = [m for e in exercises for m in e["mutants"]]
    rows = {"exercises": len(exercises),
            "stubs rejected": sum(bool(e["stub"]) and not any(r["passed"] for r in e["stub"])
                                  for e in exercises),
            "solutions accepted": sum(bool(e["solutions"])
                                      and all(r["passed"] for r in e["solutions"])
                                      for e in exercises),
            "wrong answers": len(mutants),
            "wrong answers rejected": sum(not m["passed"] for m in mutants)}
    cells = "".join(f'<tr><th scope="row">{what}</th><td>{n}</td></tr>' for what, n in rows.items())
    return (
        '<table class="table tfm-counts"><caption>All practice pages '
        f'together</caption><tbody>{cells}</tbody></table>')


def contents(pages: list[dict]) -> str:
    "The practice pages, with how many exercises and wrong answers each has."
    rows = ""
    for p in pages:
        mutants = [m for e in p["exercises"] for m in e["mutants"]]
        counts = len(p["exercises"]), len(mutants), sum(not m["passed"] for m in mutants)
        rows += (
            '<tr><th scope="row"><a '
            f'href="../gallery/{Path(p["page"]).name}.html">{code(p["title"])}</a></th>'
            + "".join(f"<td>{n}</td>" for n in counts) + "</tr>")
    return wide("The wrong answers, page by page",
                ("Practice page", "exercises", "wrong answers", "rejected"), rows)


def by_class(found: dict) -> str:
    """The generic mutants by class: what they do wrong, how many were tried, and what became of
    them."""
    exercises, rows = [e for p in found["pages"] for e in p["exercises"]], ""
    for kind, what in found["classes"].items():
        tried = sum(e["tried"].get(kind, 0) for e in exercises)
        lives = [sum(label.startswith(f"{kind}: ") for e in exercises for label in e[v])
                 for v in LIVES]
        cells = "".join(f"<td>{n}</td>" for n in (tried, tried - sum(lives), *lives))
        rows += (
            f'<tr><th scope="row">{escape(kind)}<p '
            f'class="tfm-seen">{escape(what)}</p></th>{cells}</tr>')
    return wide("Generic mutants, by class", ("Class", "tried", "rejected", *LIVES), rows)


def excused(page: dict) -> str:
    "The generic mutants that the checkers of one page may let pass, and why."
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(e["name"])}</code></th><td>{code(label)}<p '
        f'class="tfm-seen">{code(why)}</p></td></tr>'
                   for e in page["exercises"] for label, why in e["excused"].items())
    head = '<th scope="col">Exercise</th><th scope="col">The mutant, and why it may pass</th>'
    return (
        '<table class="table tfm-kills"><caption>Generic mutants that may '
        f'pass</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        if rows else "")
