"""The page of claims: every entry of the ledger with the verdict that a cell reached and what it
measured, or the source that settles it."""
import re
from collections import Counter
from functools import lru_cache
from html import escape
from itertools import groupby
from pathlib import Path

import yaml
from docutils import nodes
from pages import kind, notebooks, title
from sphinx.util.docutils import SphinxDirective

MIME = "application/vnd.tfmlib.claim+json"
VERDICTS = {"holds": "holds", "holds under a condition": "condition", "imprecise": "imprecise",
            "wrong": "wrong"}
# the verdict is on the common wording, and is followed by what is true instead
AS_SAID = {"holds": ":", "holds under a condition": ":",
           "imprecise": " as commonly said; more exactly:",
           "wrong": " as commonly said; in fact:"}
LEDGER = "tfmlib/assets/claims.yml"
SCRIPT = Path(__file__).with_suffix(".js")


def settled(books: dict[str, dict]) -> dict[str, list[tuple[str, dict]]]:
    "Claim -> where it is settled: (page, what its cell left)."
    found = {}
    for page, notebook in books.items():
        for data in (o.get("data", {}) for cell in notebook["cells"]
                     for o in cell.get("outputs", [])):
            if left := data.get(MIME):
                lines = [line.strip().split(": ", 1)
                         for line in "".join(data["text/plain"]).splitlines()[1:]]
                found.setdefault(left["id"], []).append((page, left | {"lines": lines}))
    return found


def faults(entry: dict, found: dict[str, list]) -> str:
    "What keeps an entry of the ledger from being settled once; empty if nothing does."
    ways, cited = found.get(entry["id"], []), "citation" in entry
    if not ways and not cited:
        return f"claim {entry['id']}: no stored output settles it, and it has no citation"
    if len(ways) + cited > 1:
        return f"claim {entry['id']}: settled {len(ways) + cited} times, expected once"
    if ways and ways[0][1]["verdict"] != entry["verdict"]:
        return (
            f"claim {entry['id']}: {ways[0][0]} finds «{ways[0][1]['verdict']}», the ledger says "
            f"«{entry['verdict']}»")
    return ("" if entry["verdict"] in VERDICTS
            else f"claim {entry['id']}: no such verdict, «{entry['verdict']}»")


def inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def entries_of(root: Path) -> list[dict]:
    "The ledger's entries, where a book has one."
    kept = root / LEDGER
    return listed(kept.read_text(encoding="utf-8")) if kept.is_file() else []


@lru_cache(2)
def listed(text: str) -> list[dict]:
    "The entries in the ledger's text, parsed once: each page asks for them."
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or []


def lead(verdict: str, rows: list, truth: str | None = None) -> str:
    """What is true: the sentence that the ledger has for it, or else, from the lines of a claim
    (kind, text), the correction or the cases for and against."""
    if truth: return truth
    first = {kind: text.rstrip(".")
             for kind, text in reversed([row for row in rows if len(row) == 2 and row[1]])}
    if "rather" in first: return f"{first['rather']}."
    if verdict == "holds": return ""
    if verdict == "wrong" and "against" in first:
        return f"{first['against'][:1].upper()}{first['against'][1:]}."
    cases = "; ".join(f"{word}: {first[kind]}" for kind, word in (("for", "yes"), ("against", "no"))
                      if kind in first)
    return f"{cases[:1].upper()}{cases[1:]}." if cases else ""


def joined(rows: list) -> list[tuple[str, str]]:
    """The lines of a claim, with all that speaks for it, and all that speaks against it, as one
    sentence each."""
    told = {}
    for what, text in rows: told.setdefault(what, []).append(text)
    def sentence(texts: list[str]) -> str:
        if len(texts) == 1: return texts[0]
        *before, last = [text.rstrip(".") for text in texts]
        return "; ".join([*before, last if last.startswith(("and ", "but ")) else f"and {last}"])
    return [(what, sentence(texts)) for what, texts in told.items()]


def stated(verdict: str, first: str, common: str) -> str:
    """The head of a claim's box: the verdict on what is commonly said, then what is true, then the
    common wording, small; the wording alone if it is true, or if a source settles it."""
    said = f"{verdict}{AS_SAID[verdict]}" if first else verdict
    head = f'<p class="tfm-statement"><strong class="tfm-verdict">{said}</strong> '
    return (f'{head}{first}</p><p class="tfm-common">Commonly said: {common}</p>' if first
            else f"{head}{common}</p>")


class Ledger(SphinxDirective):
    """`{claims-ledger}`: counts, then the claims by chapter and topic, with a filter where
    scripts run."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        books, kept = notebooks(root), root / LEDGER
        for file in [kept, SCRIPT, *(root / f"{name}.ipynb" for name in books)]:
            self.env.note_dependency(str(file))
        entries, found = entries_of(root), settled(books)
        if problems := [p for e in entries if (p := faults(e, found))] :
            raise self.error("; ".join(problems))
        chapters = {name.split("/")[1][:2]: title(book) for name, book in books.items()
                    if kind(name) == "path"}
        made = [nodes.raw("", self.head(entries), format="html")]
        for chapter, group in groupby(sorted(entries, key=lambda e: (e["chapter"] == "00",
                e["chapter"])), lambda e: e["chapter"]):
            section = nodes.section("", nodes.title("", chapters.get(chapter, "The workbench")),
                                    ids=[f"chapter-{chapter}"], names=[f"chapter-{chapter}"])
            for entry in sorted(group, key=lambda e: e["topic"]): section += self.box(entry, found)
            made.append(section)
        return [*made, nodes.raw("", f'<script type="module">{SCRIPT.read_text()}</script>',
                                 format="html")]

    def head(self, entries: list[dict]) -> str:
        "How many there are of each verdict, and the filter."
        counts, topics = (Counter(e["verdict"] for e in entries),
                          sorted({e["topic"] for e in entries}))
        option = lambda value: f"<option>{escape(value)}</option>"
        pick = lambda name, values: (
            f'<label>{name} <select name="{name.lower()}"><option value="">all</option>'
                                     f'{"".join(map(option, values))}</select></label>')
        rows = "".join(f"<tr><th scope=\"row\">{v}</th><td>{counts[v]}</td></tr>" for v in VERDICTS)
        return (
            f'<table class="table tfm-counts"><caption>{len(entries)} claims, by '
            f'verdict</caption><tbody>{rows}</tbody></table>'
                '<form class="tfm-filter" aria-label="Filter the claims" '
                f'hidden>{pick("Verdict", VERDICTS)} {pick("Topic", topics)} '
                f'<output aria-live="polite"></output></form>')

    def box(self, entry: dict, found: dict[str, list]) -> list[nodes.Node]:
        "One claim."
        page, left = found.get(entry["id"], [("", {})])[0]
        rows = [*left.get("lines", [["rather", entry.get("instead")]]), ["topic", entry["topic"]]]
        first = lead(entry["verdict"], rows, truth := entry.get("truth"))
        listed = "".join(
            f'<li><span class="tfm-kind">{kind}</span> <span>{inline(text)}</span></li>'
            for kind, text in joined([row for row in rows if row[1]]) if truth or kind != "rather")
        head = (
            f'<div class="tfm-claim tfm-{VERDICTS[entry["verdict"]]}" id="ledger-{entry["id"]}" '
            f'data-verdict="{entry["verdict"]}" '
                f'data-topic="{escape(entry["topic"])}">{stated(entry["verdict"], inline(first), inline(entry["statement"]))}<ul>{listed}</ul>')  # noqa: E501
        if page:
            return [nodes.raw("", f'{head}<p><a href="../{page}.html#claim-{entry["id"]}">The cell '
                                  'that settles it</a></p></div>', format="html")]
        source = self.parse_text_to_nodes(f"Source: {{cite:t}}`{entry['citation']}`")
        return [nodes.raw("", head, format="html"), *source, nodes.raw("", "</div>", format="html")]


def setup(app):
    app.add_directive("claims-ledger", Ledger)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
