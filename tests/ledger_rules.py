"""What must be true of the ledger of claims, as functions of a checkout: each gives a list of
faults that name the claim."""
import ast
import re
from collections import Counter
from pathlib import Path

import rules
import yaml
from ledger import VERDICTS, faults, settled
from pages import notebook_files, notebooks
from pages import number as number_of
from pybtex.database import parse_file

# the box begins with what is true: these would have nothing to refer to
PRONOUNS = {"It", "Its", "They", "Their", "That", "This", "These", "Those"}
# answers to the common wording, and conditions without a main clause
BARE = re.compile(r"^(?:If|Unless)\b[^,;]*[;.]|\byes[;.,]|"
                  r"(?<!where they )\b(?:does|do|is|are|did|was|were|have);")
FIELDS = {"id", "chapter", "topic", "statement", "verdict", "settles"}
# ten times as fast, where it was built
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def entries(root: Path) -> list[dict]:
    return yaml.load((root / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"), LOADER)


def undertaken(root: Path) -> dict[str, list[str]]:
    "Id -> [chapter, topic] of every statement that the book has undertaken to settle."
    return yaml.safe_load((root / "tests/claims_map.yml").read_text())


def finished(root: Path) -> set[str]:
    "The numbers of the chapters that are written."
    return ({path.name[:2] for path in notebook_files(root / "chapters")
             if path.parent.name not in ("depth", "practice")} - {"00"})


def form(root: Path) -> list[str]:
    "Entries that lack a field, name an unknown verdict or source, or stand twice."
    made, sources = [], parse_file(root / "references.bib").entries
    every = entries(root)
    made += [f"claim {id}: stands {n} times in the ledger"
             for id, n in Counter(e["id"] for e in every).items() if n > 1]
    return made + [f"claim {e.get('id')}: {what}" for e in every for wrong, what in faults_of(e)
                   if wrong] + [
        f"claim {e.get('id')}: cites {e['citation']}, which references.bib does not have"
        for e in every if "citation" in e and e["citation"] not in sources]


def faults_of(entry: dict) -> list[tuple[object, str]]:
    "What an entry could have wrong with itself: (has it?, the words for it)."
    verdict, amended = entry.get("verdict"), entry.get("instead")
    true = entry.get("truth") or amended or ""
    missing = sorted(FIELDS - entry.keys())
    unknown = sorted(entry.keys() - FIELDS - {"instead", "citation", "truth"})
    bare = BARE.search(true)
    return [
        (missing, f"lacks {', '.join(missing)}"),
        (unknown, f"unknown field {', '.join(unknown)}"),
        (verdict not in VERDICTS, f"no such verdict, «{verdict}»"),
        (verdict == "imprecise" and not amended,
         "imprecise, and no amended statement (`instead`)"),
        (verdict in ("holds", "holds under a condition") and amended,
         "it holds, and yet has an amended statement"),
        (verdict == "holds" and "truth" in entry,
         "it holds, and needs no other sentence (`truth`)"),
        (verdict != "holds" and not 20 <= len(true) <= 200,
         f"what is true has {len(true)} letters; expected one sentence of at most 200 (`truth`)"),
        (true.split(" ")[0] in PRONOUNS,
         "what is true begins with a pronoun, and stands first"),
        (bare, f"«{bare and bare[0].strip()}» answers a sentence that stands below it; say what is "
               "true in full (`truth`)"),
        (verdict != "holds" and true.strip(".") == entry.get("statement", "").strip("."),
         "what is true is what is commonly said")]


def taken_up(root: Path) -> list[str]:
    "Ids of finished chapters that are not taken up exactly once, by an entry of their chapter."
    ids, written, made = undertaken(root), finished(root), []
    taken = [(id, e) for e in entries(root) for id in e["settles"]]
    times = Counter(id for id, _ in taken)
    made += [f"{id}: taken up {n} times, expected once" for id, n in times.items() if n > 1]
    made += [f"{id}: nothing in the ledger takes it up, and chapter {chapter} is written"
             for id, (chapter, _) in ids.items() if chapter in written and id not in times]
    for id, e in taken:
        if id not in ids:
            made.append(f"claim {e['id']}: takes up {id}, which the map does not have")
        elif ids[id][0] != e["chapter"]:
            made.append(f"claim {e['id']}: takes up {id}, which belongs to chapter {ids[id][0]}")
    return made


def verdicts(root: Path) -> list[str]:
    """Entries of finished chapters that no cell or source settles, or with another verdict;
    boxes that the ledger does not know."""
    books = notebooks(root)
    found, every, written = (settled(books), {e["id"]: e for e in entries(root)},
                             finished(root) | {"00"})
    made = [fault for e in every.values() if e["chapter"] in written
            and (fault := faults(e, found))]
    for id, ways in found.items():
        for page, left in ways:
            if id not in every:
                made.append(f"claim {id}: settled in {page}, and not in the ledger"); continue
            if number_of(page) != every[id]["chapter"]:
                made.append(
                    f"claim {id}: settled in {page}, recorded for chapter {every[id]['chapter']}")
            if left["statement"] != every[id]["statement"]:
                made.append(
                    f"claim {id}: the box of {page} has another statement; run the notebook")
    return made


def number(root: Path) -> list[str]:
    "Chapters with so many boxes that nobody reads them, or so few that statements are lumped."
    ids, counts = (Counter(chapter for chapter, _ in undertaken(root).values()),
                   Counter(e["chapter"] for e in entries(root)))
    return [f"chapter {c}: {counts[c]} claims; expected 12 to 20, or one for each of {ids[c]}"
            for c in sorted(finished(root)) if not min(12, ids[c]) <= counts[c] <= 20]


# --- evidence is computed -------------------------------------------------------------------------

def constant(node: ast.AST) -> bool:
    "Is the value of this expression fixed by how it is written?"
    if not any(isinstance(n, ast.Name | ast.Call | ast.Await) for n in ast.walk(node)): return True
    if isinstance(node, ast.BoolOp): return any(constant(v) for v in node.values)
    if isinstance(node, ast.UnaryOp): return constant(node.operand)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "bool":
        return all(map(constant, node.args))
    if isinstance(node, ast.Compare):
        return any(ast.dump(a) == ast.dump(b) for a, b in zip([node.left, *node.comparators],
                node.comparators))
    return False


def bound_to_constants(trees: list[ast.Module]) -> set[str]:
    "Names that a notebook gives a fixed boolean."
    assigned = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Assign)
                and isinstance(n.value, ast.Constant) and isinstance(n.value.value, bool)]
    return {t.id for n in assigned for t in n.targets if isinstance(t, ast.Name)}


def pieces(node: ast.AST) -> list[ast.AST] | None:
    "The booleans of one evidence argument; None if they cannot be seen in the call."
    if isinstance(node, ast.Dict): return None if None in node.keys else node.values
    if isinstance(node, ast.List | ast.Tuple): return node.elts
    if isinstance(node, ast.ListComp | ast.GeneratorExp): return [node.elt]
    return [node.value] if isinstance(node, ast.DictComp) else None


def typed_in(trees: list[ast.Module]) -> list[str]:
    """What is wrong with the claim(…) calls of a notebook: evidence that is typed and not
    computed, ids that are not literal."""
    fixed, made = bound_to_constants(trees), []
    calls = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)
             and getattr(n.func, "id", getattr(n.func, "attr", "")) == "claim"]
    for call in calls:
        given = ({k.arg: k.value for k in call.keywords}
                 | dict(zip(("id", "true_when", "false_when", "instead"), call.args)))
        literal = isinstance(given.get("id"), ast.Constant)
        name = f"claim {given['id'].value if literal else ast.unparse(given['id']) if 'id' in given else '?'}"  # noqa: E501
        if not literal: made.append(f"{name}: its id is not a literal")
        if None in given: made.append(f"{name}: arguments in ** cannot be seen")
        for argument in ("true_when", "false_when", "instead"):
            node = given.get(argument)
            if (node is None or argument == "instead" and isinstance(node, ast.Constant)
                and node.value is None):
                continue
            booleans = [node] if argument == "instead" else pieces(node)
            if booleans is None:
                made.append(
                    f"{name}: write {argument} out in the call; expected a dictionary or list")
            for b in booleans or []:
                if constant(b) or isinstance(b, ast.Name) and b.id in fixed:
                    made.append(
                        f"{name}: {argument} holds «{ast.unparse(b)}», which is typed and not "
                        "computed")
    return made


def evidence(root: Path) -> list[str]:
    "Evidence in any notebook that is typed and not computed."
    return [f"{name}: {fault}" for name, book in rules.cells(root).items()
            for fault in typed_in([c.tree for c in book if c.kind == "code"])]


RULES = {f.__name__: f for f in (form, taken_up, verdicts, number, evidence)}
