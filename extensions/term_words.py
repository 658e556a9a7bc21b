"""The glossary as the build reads it: spellings of its terms, and where a text uses them."""
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from findable import WORD, folded

PAGE, GLOSSARY = "about/terms", "about/glossary"
# a chapter, its page in depth or a page of the workbench, no practice page
OURS = re.compile(r"chapters/(?:depth/)?(\d\d)_\w+$")
BLOCK = re.compile(r"```\{glossary\}\n(?::\w+:[^\n]*\n)*(.*?)```", re.S)
ASIDE = re.compile(r" *\(.*\)")


class Term(NamedTuple):
    "An entry of the glossary: its spellings, the first of which names it, and its sentence."
    spelt: tuple[str, ...]
    sentence: str


def glossary(text: str) -> list[Term]:
    "The entries of the glossary's source."
    found = []
    for block in BLOCK.findall(text):
        for entry in re.split(r"\n\s*\n", block.strip()):
            *spelt, sentence = entry.split("\n")
            found.append(Term(tuple(spelt), sentence.strip()))
    return found


def key(text: str) -> str:
    "What spellings of a term share: layer norm, LayerNorm; the plural, too."
    whole = "".join(w.lower() for w in WORD.findall(folded(ASIDE.sub("", text))))
    return whole[:-1] if whole.endswith("s") and not whole.endswith("ss") else whole


class Known:
    "The glossary's terms, to be recognised in a text."
    def __init__(self, terms: list[Term], also: dict[str, str]):
        self.named = {key(s): t.spelt[0] for t in reversed(terms) for s in reversed(t.spelt)}
        self.also = also
        self.plain = {s: t.spelt[0] for t in terms for s in t.spelt if "(" not in s}
        self.every = sorted(self.plain, key=len, reverse=True)
        by_letter: dict[str, list[str]] = {}  # few of them are tried at each word
        for i, s in enumerate(self.every):
            by_letter.setdefault(s[0].lower(), []).append(f"(?P<t{i}>{form(s)})")
        self.pattern = re.compile(r"(?<![\w\-–‑])(?:"
                                  + "|".join(f"(?=(?i:{re.escape(a)}))(?:{'|'.join(forms)})"
                                             for a, forms in by_letter.items()) + r")(?![\w\-–‑])")

    def bold(self, text: str) -> str | None:
        "The term that these words in bold name."
        return self.also.get(text) or self.named.get(key(text))

    def in_text(self, text: str) -> Iterator[tuple[int, int, str]]:
        "Where a text uses terms: from, to, the term's name. A longer term hides those in it."
        for match in self.pattern.finditer(text):
            yield *match.span(), self.plain[self.every[int(match.lastgroup[1:])]]


def form(spelt: str) -> str:
    """A pattern for a term in a sentence: with a plural, its hyphens and spaces as they come;
    capitals count if it has some inside."""
    words = [re.escape(w) for w in re.split(r"[ \-–‑]", spelt)]
    last = words.pop()
    ending = ("(?:y|ies)" if last.endswith("y") else "s?" if last.endswith("e") else ""
              if last.endswith("s") else "(?:es|s)?")
    whole = r"[ \u00a0\-–‑]".join([*words, last[:-1] if last.endswith("y")
                                   else last]).replace("'", "['’]") + ending
    return whole if re.search("[A-Z]", spelt[1:]) else f"(?i:{whole})"


def known(root: Path) -> Known:
    "The terms of the book at `root`."
    more = yaml.safe_load(Path(__file__).with_name("terms.yml").read_text(encoding="utf-8"))
    return Known(glossary((root / f"{GLOSSARY}.md").read_text(encoding="utf-8")), more["also"])
