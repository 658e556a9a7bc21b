"""Resolve the MyST Markdown that the book is written in into the plain Markdown that any notebook
program shows: roles, directives, labels, citations.

What the book does not use has no rule: it is refused by name, and a page that wants it adds one.
"""
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os.path import normpath, relpath
from pathlib import Path

import nbformat
import yaml
from markdown_it import MarkdownIt
from pybtex.database import Entry, parse_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "extensions"))

from durations import reading, runtime  # noqa: E402
from pages import notebook_files, toc_pages  # noqa: E402

FENCE = re.compile(r"^( *)(`{3,}|~{3,}|:{3,})(.*)$")
DOLLARS = re.compile(r"^( *)\$\$(.*)$")
DOLLARS_END = re.compile(r"^(.*?)\$\$ *(?:\(([^()\s]+)\))? *$")
TARGET = re.compile(r"^ *\(([\w:.-]+)\)= *$")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")
OPTION = re.compile(r"^:([\w-]+):(?: (.*))?$")
INLINE = re.compile(
    r"(?P<escape>\\[^\w\s])"
    r"|\{(?P<role>[a-zA-Z][\w:.+-]*)\}(?P<ticks>`+)(?P<content>.+?)(?<!`)(?P=ticks)(?!`)"
    r"|(?P<code>(?P<fence>`+)(?!`).+?(?<!`)(?P=fence)(?!`))"
    r"|(?P<math>\$\$.+?\$\$|\$(?![\s$])[^$]*?(?<![\s\\])\$)"
    r"|(?<!!)\[(?P<label>(?:`[^`]*`|[^\[\]]|\[[^\[\]]*\])*)\]\(<?(?P<dest>[^()<>\s]+)>?(?: "
    r"+\"[^\"]*\")?\)", re.S)
ASIDES = {"note": "Note", "warning": "Warning", "tip": "Tip", "hint": "Hint"}
TITLED = {"admonition", "dropdown"}
BARE = {"container"}


class Unresolved(ValueError):
    "MyST that these rules cannot turn into plain Markdown."


# --- blocks ---------------------------------------------------------------------------------------

@dataclass
class Block:
    """A piece of a page: text, code, math, target, or a directive with its name, argument and
    options."""
    kind: str
    lines: list[str]
    indent: str = ""
    name: str = ""
    argument: str = ""
    options: dict[str, str] = field(default_factory=dict)


def closing(lines: list[str], start: int, mark: str) -> int:
    "Index of the line that closes the fence opened at `start`."
    shut = re.compile(rf"^ *{re.escape(mark[0])}{{{len(mark)},}} *$")
    for i in range(start + 1, len(lines)):
        if shut.match(lines[i]):
            return i
    raise Unresolved(f"the block {lines[start].strip()!r} is never closed")


def options(lines: list[str]) -> tuple[dict[str, str], list[str]]:
    "Split a directive's body into its options and its content."
    if lines and lines[0].strip() == "---":
        raise Unresolved("options between lines of ---; expected :name: value")
    found = {}
    while lines and (m := OPTION.match(lines[0])): found[m[1]], lines = m[2] or "", lines[1:]
    return found, "\n".join(lines).strip("\n").split("\n") if lines else []


def fenced(lines: list[str], i: int, m: re.Match) -> tuple[Block, int]:
    "The fence that opens at line `i`: code, or a directive."
    end, info = closing(lines, i, m[2]), m[3].strip()
    inner = [re.sub(rf"^ {{0,{len(m[1])}}}", "", line) for line in lines[i + 1:end]]
    if not info.startswith("{"):
        if m[2][0] == ":":
            raise Unresolved(f"a colon fence without a directive: {lines[i].strip()!r}")
        return Block("code", lines[i:end + 1]), end + 1
    name, _, argument = info[1:].partition("}")
    opts, content = options(inner)
    return Block("directive", content, m[1], name.strip(), argument.strip(), opts), end + 1


def displayed(lines: list[str], i: int, m: re.Match) -> tuple[Block, int]:
    "The formula between double dollars that opens at line `i`."
    rest, tex = m[2], []
    while not (end := DOLLARS_END.match(rest)):
        tex.append(rest)
        i += 1
        if i == len(lines):
            raise Unresolved(f"the formula {m[0]!r} is never closed")
        rest = lines[i]
    tex.append(end[1])
    return (Block("math", [t.strip() for t in tex if t.strip()], m[1],
                  options={"label": end[2]} if end[2] else {}), i + 1)


def parse(lines: list[str]) -> Iterator[Block]:
    "The blocks of a page, or of a directive's body."
    i, text = 0, []
    while i < len(lines):
        line, block = lines[i], None
        if (m := FENCE.match(line)) and not (m[2][0] == "`" and "`" in m[3]):
            block, i = fenced(lines, i, m)
        elif m := DOLLARS.match(line): block, i = displayed(lines, i, m)
        elif m := TARGET.match(line): block, i = Block("target", [], name=m[1]), i + 1
        else: text, i = [*text, line], i + 1
        if not block: continue
        yield from ([Block("text", text)] if text else [])
        yield block
        text = []
    if text: yield Block("text", text)


# --- the book: what a page may refer to -----------------------------------------------------------

@dataclass
class Label:
    "Where a label stands, what a reference to it says, and its number if it has one."
    page: str
    text: str = ""
    number: str | None = None


def markdown(path: Path) -> str:
    "The Markdown of a page, whether notebook or text."
    if path.suffix == ".md":
        return path.read_text()
    return "\n\n".join(c.source for c in nbformat.read(path, as_version=4).cells
                       if c.cell_type == "markdown")


class Book:
    """The pages of the book in `root`, their titles and labels, the bibliography and the published
    address."""
    def __init__(self, root: Path):
        self.root = root
        config = yaml.safe_load((root / "_config.yml").read_text())
        self.repository = (config.get("repository") or {}).get("url") or ""
        self.address = (config.get("html") or {}).get("baseurl") or ""
        self.entries = {k: e for f in config.get("bibtex_bibfiles") or []
                        for k, e in parse_file(str(root / f)).entries.items()}
        self.pages, self.titles, self.labels, self.counts = {}, {}, {}, Counter()
        names = toc_pages(root / "_toc.yml")
        names += [str(p.relative_to(root).with_suffix("")) for p in self.notebooks()]
        for name in dict.fromkeys(names):
            if path := next((p for s in (".ipynb", ".md") if (p := root / f"{name}{s}").is_file()),
                            None):
                self.pages[name] = path
                self.scan(name, markdown(path).splitlines())

    def notebooks(self) -> list[Path]:
        "The chapters and their practice pages."
        return notebook_files(self.root / "chapters")

    def scan(self, page: str, lines: list[str]) -> None:
        "Note the title, the labels and the numbers of a page."
        waiting = []  # targets whose heading comes next
        for block in parse(lines):
            headings = ([m[1] for line in block.lines if (m := HEADING.match(line))]
                        if block.kind == "text" else [])
            for name in waiting:
                self.labels[name] = Label(page, headings[0] if headings else "")
            if headings:
                self.titles.setdefault(page, headings[0])
            waiting = [*waiting, block.name] if block.kind == "target" else []
            if "label" in block.options:
                self.number(page, block, "equation" if block.kind == "math" else "exercise")
            if block.kind == "directive": self.scan(page, block.lines)

    def number(self, page: str, block: Block, kind: str) -> None:
        """Give the page's next number to a labelled equation or exercise, to an exercise behind its
        chapter's."""
        chapter = re.search(r"/(\d\d)_[^/]*$", page)
        self.counts[page, kind] += 1
        n = str(self.counts[page, kind])
        if kind == "exercise" and chapter: n = f"{int(chapter[1])}.{n}"
        self.labels[block.options["label"]] = Label(page, f"({n})" if kind == "equation"
                                                    else f"Exercise {n}", n)

    def label(self, name: str) -> Label:
        "The label `name`."
        if name not in self.labels:
            raise Unresolved(f"no page has the label {name!r}")
        return self.labels[name]

    def entry(self, key: str) -> Entry:
        "The work `key` of the bibliography."
        if key not in self.entries:
            raise Unresolved(f"the bibliography has no {key!r}")
        return self.entries[key]


# --- one page -------------------------------------------------------------------------------------

def anchor(label: str) -> str:
    "The id that Sphinx gives to a label; only those of glossary terms keep their capitals."
    return re.sub(r"[^a-zA-Z0-9]+", "-", label).strip("-")


def link(text: str, url: str) -> str:
    "A link, or the text alone where there is nothing to link to."
    return f"[{text}]({url})" if url else text


def cited(entry: Entry) -> tuple[str, str]:
    "The authors and the year of a work, as a sentence names them."
    names = [" ".join(str(n) for n in [*p.rich_prelast_names, *p.rich_last_names])
             for p in entry.persons.get("author", [])]
    return (f"{names[0]} et al." if len(names) > 2 else " & ".join(names),
            entry.fields.get("year", ""))


def work(entry: Entry) -> str:
    "The address of a work: its own, else by DOI, else on arXiv."
    fields = entry.fields
    if "url" in fields:
        return fields["url"]
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else ""


def quoted(title: str, lines: list[str]) -> list[str]:
    "An aside as a quotation with a bold title."
    return [f"> {line}" if line else ">"
            for line in ([f"**{title}**", ""] if title else []) + lines]


def folded(title: str, lines: list[str]) -> list[str]:
    "A box that opens on a press."
    return ["<details>", f"<summary>{MarkdownIt().renderInline(title)}</summary>", "", *lines, "",
            "</details>"]


class Page:
    "Turns the Markdown of one page into plain Markdown."
    def __init__(self, book: Book, name: str, glued: dict[str, str] | None = None):
        self.book, self.name, self.glued = book, name, glued or {}

    def resolve(self, text: str) -> str:
        "Plain Markdown for `text`."
        out = "\n".join(self.blocks(text.splitlines()))
        return re.sub(r"\n{3,}", "\n\n", out).strip("\n")

    def blocks(self, lines: list[str]) -> list[str]:
        out = []
        for block in parse(lines):
            made = getattr(self, f"show_{block.kind}")(block)
            out += ([f"{block.indent}{line}" if line.strip() else "" for line in made] if block.kind
                    != "code" else made)
        return out

    def show_code(self, block: Block) -> list[str]:
        return block.lines

    def show_target(self, block: Block) -> list[str]:
        return [f'<a id="{anchor(block.name.lower())}"></a>', ""]

    def show_math(self, block: Block) -> list[str]:
        label = block.options.get("label")
        number = [rf"\tag{{{self.book.label(label).number}}}"] if label else []
        return ["$$", *block.lines, *number, "$$"]

    def show_text(self, block: Block) -> list[str]:
        return self.inline("\n".join(block.lines)).split("\n")

    def show_directive(self, block: Block) -> list[str]:
        "Plain Markdown for a directive."
        name, argument, body = block.name, block.argument, block.lines
        if name == "bibliography": return []
        if name == "exercise": return self.exercise(block)
        if name in ASIDES:
            return self.aside(block, ASIDES[name], [argument] * bool(argument) + body)
        if name in TITLED: return self.aside(block, argument, body)
        if name in BARE: return self.blocks(body)
        raise Unresolved(f"no plain form is known for the directive {{{name}}}")

    def aside(self, block: Block, title: str, body: list[str]) -> list[str]:
        "An aside: folded if the page folds it, or if it is a hint; else a quotation."
        title, body = self.inline(title), self.blocks(body)
        closed = (block.name in ("dropdown", "hint")
                  or re.search(r"dropdown|toggle", block.options.get("class", "")))
        return (folded(title or "More", body) if closed
                and "open" not in block.options else quoted(title, body))

    def exercise(self, block: Block) -> list[str]:
        "An exercise as a quotation."
        if "label" not in block.options:
            raise Unresolved(f"the exercise {block.argument!r} has no :label:")
        label = self.book.label(block.options["label"])
        title = f"{label.text} ({block.argument.strip('()')})" if block.argument else label.text
        return [*self.show_target(Block("target", [], name=block.options["label"])),
                *self.aside(block, title, block.lines)]

    def inline(self, text: str) -> str:
        "Resolve roles and links; code and formulas stay as they are."
        return INLINE.sub(self.token, text)

    def token(self, m: re.Match) -> str:
        if m["role"]: return self.role(m["role"], " ".join(m["content"].split()))
        return self.hyperlink(self.inline(m["label"]), m["dest"]) if m["dest"] else m[0]

    def url(self, page: str, fragment: str = "") -> str:
        """The address of another page: in the published book, else the neighbouring notebook, else
        none."""
        if page == self.name:
            return f"#{fragment}" if fragment else ""
        if page not in self.book.pages:
            raise Unresolved(f"the book has no page {page!r}")
        end = f"#{fragment}" if fragment else ""
        if self.book.address:
            return f"{self.book.address.rstrip('/')}/{page}.html{end}"
        notebook = self.book.pages[page].suffix == ".ipynb"
        return relpath(f"{page}.ipynb", Path(self.name).parent) if notebook else ""

    def hyperlink(self, text: str, dest: str) -> str:
        "A Markdown link, wherever it leads."
        if re.match(r"(https?|mailto):", dest):
            return link(text, dest)
        path, _, fragment = dest.removeprefix("project:").partition("#")
        if not path or path in self.book.labels:
            return self.reference(fragment or path, text)
        page = normpath(Path(self.name).parent / re.sub(r"\.(ipynb|md|html)$", "", path))
        return link(text or self.book.titles.get(page, page),
                    self.url(page, anchor(fragment.lower())))

    def reference(self, name: str, text: str = "") -> str:
        "A link to a label, in its own words unless `text` is given."
        label = self.book.label(name)
        if not (text or label.text):
            raise Unresolved(f"a reference to {name!r} needs a text: no heading follows the label")
        return link(text or label.text, self.url(label.page, anchor(name.lower())))

    def role(self, name: str, text: str) -> str:
        "Plain Markdown for a role."
        if name not in ROLES:
            raise Unresolved(f"no plain form is known for the role {{{name}}}")
        return ROLES[name](self, text)


# --- roles ----------------------------------------------------------------------------------------

def titled(text: str) -> tuple[str, str]:
    "Split `title <target>`; without a target the title is empty."
    m = re.fullmatch(r"(.*?)\s*<([^<>]+)>", text)
    return (m[1], m[2]) if m else ("", text)


def glue(page: Page, text: str) -> str:
    "A measured number, from the stored output of the cell that measured it."
    key, _, spec = text.partition(":") if "::" not in text else (text, "", "")
    if key not in page.glued:
        raise Unresolved(f"no stored output of this page is glued as {key!r}")
    try:
        value = ast.literal_eval(page.glued[key])
    except (SyntaxError, ValueError):
        value = page.glued[key]
    return format(value, spec) if spec else str(value)


def cite(page: Page, text: str, form: str) -> str:
    "Readable citations, each a link to the work."
    made = []
    for entry in map(page.book.entry, re.split(r"\s*,\s*", text)):
        names, year = cited(entry)
        made.append(link(f"{names} ({year})" if form == "t" else f"{names} {year}", work(entry)))
    return " and ".join(made) if form == "t" else f"({'; '.join(made)})"


def lasts(page: Page, text: str, says: Callable = runtime) -> str:
    "How long a chapter runs, as measured, or takes to read, as counted."
    try: return says(page.book.root, text)
    except ValueError as error: raise Unresolved(str(error)) from None


def eq(page: Page, text: str) -> str:
    label = page.book.label(text)
    return (label.text if label.page == page.name
            else link(label.text, page.url(label.page, f"equation-{anchor(text.lower())}")))


def doc(page: Page, text: str) -> str:
    title, target = titled(text)
    return page.hyperlink(title, target.lstrip("/") if not target.startswith("/")
                          else relpath(target[1:], Path(page.name).parent))


def term(page: Page, text: str) -> str:
    title, target = titled(text)
    return link(title or target, page.url("about/glossary", f"term-{anchor(target)}")
                if "about/glossary" in page.book.pages else "")


ROLES: dict[str, Callable[[Page, str], str]] = {
    "glue:text": glue, "runtime": lasts, "minutes": lambda page, text: lasts(page, text, reading),
    "eq": eq, "doc": doc, "term": term,
    "cite:p": lambda page, text: cite(page, text, "p"),
    "cite:t": lambda page, text: cite(page, text, "t"),
}


# --- what must not be left ------------------------------------------------------------------------

REMAINS = {
    "a role": r"\{[a-zA-Z][\w:.+-]*\}`",
    "a directive": r"^[>\s]*(`{3,}|~{3,})\s*\{",
    "a colon fence": r"^[>\s]*:{3,}",
    "a directive's option": r"^[>\s]*:[\w-]+:( |$)",
    "a target": r"^[>\s]*\([\w:.-]+\)=\s*$",
    "an equation's label": r"\$\$\s*\([\w:.-]+\)\s*$",
    "a substitution": r"\{\{.*?\}\}",
    "a footnote": r"\[\^[\w-]+\]",
    "a comment": r"^%( |$)",
    "a cell break": r"^\+\+\+",
    "attributes": r"[\]`)]\{[.#a-z][^{}]*\}|^[>\s]*\{[.#][^{}]*\}\s*$",
    "a definition": r"^[>\s]*: +\S",
    "a picture": r"!\[[^\]]*\]\((?!data:|https?:)",
    "a bare environment": r"^[>\s]*\\begin\{\w+\*?\}",
    "a link to a page's source": r"\]\([^)\s]*\.md(#[^)]*)?\)",
    "a link by label": r"\[\]\(|\]\(project:",
    "front matter": r"\A---\s*$",
}


def bare(text: str) -> str:
    """The text without what is shown as it stands: code blocks, code spans, formulas (their closing
    mark and label stay)."""
    text = re.sub(r"^([>\s]*)(`{3,}|~{3,})(?!\s*\{)[^`\n]*\n.*?^[>\s]*\2[`~]*\s*$", r"\1", text,
                  flags=re.S | re.M)
    text = re.sub(r"(?<![}`])(`+)(?!`)[^\n]+?(?<!`)\1(?!`)", "`", text)
    text = re.sub(r"\$\$.*?\$\$", "$$", text, flags=re.S)
    return re.sub(r"\$(?![\s$])[^$\n]*?(?<![\s\\])\$", "$", text)


def remains(text: str) -> list[str]:
    "The MyST syntax left in a piece of Markdown."
    text = bare(text)
    return [f"{what}: {m[0].strip()!r}" for what, pattern in REMAINS.items()
            for m in re.finditer(pattern, text, re.M)]
