"""What the search can find, as entries: sections and exercises from the pages, names from the
chapters' cells, claims from the ledger."""
import ast
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from docutils import nodes
from ledger import lead, listed, settled
from nbdev_cells import directives, public_names
from pages import kind as kind_of

WORD = re.compile(r"[^\W_]+|√")
NAME = re.compile(r"[\w√]+(?:[-‐–’'][\w√]+)*")
# what would give an exercise away, or is found elsewhere
HIDDEN = {"tag_mutant", "tag_solution", "tfm-part-chapters"}
TAGS = re.compile(r"<(style|script|svg)\b.*?</\1>|<[^>]*>", re.S)


def folded(text: str) -> str:
    "Text as it is compared: without accents, and every square root written √."
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.sub(r"\bsqrt(?![a-z])|\bsquare[ -]roots?\b", " √ ", text, flags=re.I)


def words(text: str) -> list[str]:
    """The words of a text; a compound or a name in parts is found by its parts and, run together,
    as a whole: layer_norm, LayerNorm."""
    found = []
    for name in NAME.findall(folded(text)):
        parts = [w.lower()
                 for w in WORD.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])",
                                              "_", name).replace("√", "_√_"))]
        found += parts + (["".join(parts)] if 1 < len(parts) < 5 else [])
    return found


class Entry(dict):
    """What can be found: its kind, page, anchor and title, a line about it, other titles, and the
    words of its text (of layer_norm both parts, by which it is found)."""
    def __init__(self, kind: str, page: str, anchor: str, title: str, line: str = "",
                 also: tuple[str, ...] = (), said: str = ""):
        super().__init__(kind=kind, page=page, anchor=anchor, title=" ".join(title.split()),
                         line=" ".join(line.split()), also=also,
                         text=Counter(words(said.replace("_", " "))))
        self.said = folded(said)


# --- what the pages say ---------------------------------------------------------------------------

def spoken(node: nodes.Node) -> Iterator[str]:
    """The texts in a section, without those of the sections in it, printed outputs, and folded
    code, whose definitions are found by name."""
    for child in node.children:
        if isinstance(child, nodes.Text): yield str(child)
        elif isinstance(child, nodes.raw):
            if not any(name in child.rawsource + child.astext()[:400]
                       for name in ("tfm-claim", "tfm-exported")):
                yield unescape(TAGS.sub(" ", child.astext()))
        elif (isinstance(child, nodes.section)
              or child.__class__.__name__ == "exercise_enumerable_node"):
            continue
        elif "classes" in child.attributes and HIDDEN & set(child["classes"]): continue
        elif ("classes" in child.attributes and "cell_input" in child["classes"]
              and "tag_hide-input" in node["classes"]):
            continue
        elif (isinstance(child, nodes.literal_block)
              and isinstance(child.parent.parent, nodes.container)
              and "cell_output" in child.parent.parent["classes"]):
            continue
        else: yield from spoken(child)


def sections(page: str, document: nodes.document) -> Iterator[Entry]:
    "A page's sections, with their words; one that sets an exercise is found as that."
    for section in document.findall(nodes.section):
        heading = next(iter(section.findall(nodes.title)), None)
        if heading is None or heading.parent is not section: continue
        first, title = section.parent is document, heading.astext()
        kind = ("page" if first else {"path": "section", "workbench": "section",
                                      "depth": "depth"}.get(kind_of(page), "back"))
        paragraphs = [p.astext() for p in section.children if isinstance(p, nodes.paragraph)]
        exercise = next((n for n in section.children
                         if n.__class__.__name__ == "exercise_enumerable_node"), None)
        if exercise and not first:
            # the first says how long it takes
            kind, title, paragraphs = ("exercise", f"Exercise: {title}",
                                       [p.astext() for p in exercise.findall(nodes.paragraph)][1:])
        said = [*spoken(section), exercise.astext() if exercise else ""]
        yield Entry(kind, page, "" if first else section["ids"][0], title,
                    next(iter(paragraphs), ""), said=" \n".join(said))


def names(page: str, notebook: dict) -> Iterator[Entry]:
    """The public names that a chapter exports, at the cells that define them; those of its figures
    come last, since of equal hits the first is listed first."""
    seen = set()
    def drawn(cell):
        return directives("".join(cell["source"])).get("export", "").endswith("figures")

    for cell in sorted(notebook["cells"], key=drawn):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "export" not in (found := directives(source)): continue
        source = "\n".join(source.splitlines()[len(found):])
        said = {n.name: ast.get_docstring(n) or ""
                for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for name in [n for n in public_names(source) if n not in seen]:
            seen.add(name)
            yield Entry("name", page, f"tfm-{name}", name, said.get(name, "").split("\n")[0])


def claims(root: Path, books: dict[str, dict]) -> Iterator[Entry]:
    "The claims of the ledger, at the boxes that settle them."
    found = settled(books)
    for entry in listed((root / "tfmlib/assets/claims.yml").read_text(encoding="utf-8")):
        page, left = found.get(entry["id"], [("about/claims", {})])[0]
        anchor = f"claim-{entry['id']}" if left else f"ledger-{entry['id']}"
        rather = next((text for kind, *rest in left.get("lines", ())
                       for text in rest if kind == "rather"), entry.get("instead") or "")
        text = " ".join(text for _, *rest in left.get("lines", ()) for text in rest)
        first = lead(entry["verdict"], left.get("lines") or [("rather", rather)],
                     entry.get("truth")).replace("`", "")
        yield Entry("claim", page, anchor, entry["statement"].replace("`", ""),
                    f"{entry['verdict']}. {first}".strip(". ") + ("." if first else ""),
                    said=f"{entry['verdict']} {rather} {text} {entry['topic']}")
