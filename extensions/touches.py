"""Small things that pages need: numbers of exercises, times in a chapter's head, glued texts,
folds, where a figure's code lies, and what interactive figures load."""
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from docutils import nodes
from durations import reading, runtime
from myst_nb.core import variables
from myst_nb.ext.glue import crossref, roles
from sphinx.transforms.post_transforms import SphinxPostTransform

ASSETS = Path(__file__).resolve().parents[1] / "tfmlib" / "assets"
FIGURE = 'class="tfm-figure tfm-interactive"'
SOURCES = {"runtime": (runtime, "tfmlib/assets/records/pages.json"),
           "minutes": (reading, "chapters/{page}.ipynb")}
formatted = variables.format_plain_text


def renumber(app, env) -> list[str]:
    """Give each exercise its chapter's number and its place on the page; Sphinx has counted through
    the whole book."""
    for docname, kinds in env.toc_fignumbers.items():
        chapter = re.search(r"/(\d\d)_[^/]*$", docname)
        counted = sorted(kinds.get("exercise", {}).items(), key=lambda item: item[1])
        for place, (label, _) in enumerate(counted, 1):
            kinds["exercise"][label] = (int(chapter[1]), place) if chapter else (place,)
    return []


def role(says: Callable, source: str) -> Callable:
    """A role whose text `says` gives for a page; where it cannot, a warning, which fails a strict
    build."""
    def run(name, rawtext, text, lineno, inliner, options=None, content=()):
        env = inliner.document.settings.env
        for page in text.partition("#")[0].split():
            env.note_dependency(str(Path(env.srcdir) / source.format(page=page)))
        try: return [nodes.Text(says(Path(env.srcdir), text))], []
        except ValueError as error: return [], [inliner.reporter.error(str(error), line=lineno)]
    return run


def as_glued(text: str, fmt_spec: str) -> str:
    """A glued text as it was glued, unless a format is asked for: myst-nb reads `1.60` as a number
    and prints 1.6."""
    return text if fmt_spec in ("", "s") else formatted(text, fmt_spec)


class Fold(SphinxPostTransform):
    "Keep a box's title in sight and put the rest of it into a fold."
    default_priority = 900
    formats = ("html",)

    def run(self, **_) -> None:
        for box in list(self.document.findall(nodes.Admonition)):
            if not {"dropdown", "toggle"} & set(box["classes"]): continue
            box["classes"] = [c for c in box["classes"]
                              if c not in ("dropdown", "toggle")] + ["tfm-fold"]
            title, rest = box.children[:1], box.children[1:]
            box.children = [*title,
                            nodes.raw("", "<details><summary>Show</summary>", format="html"), *rest,
                            nodes.raw("", "</details>", format="html")]


MORE, WRONG = "More claims, checked", "Wrong answers to "


class FoldSection(SphinxPostTransform):
    """Keep the heading of a chapter's further claims, or of an exercise's wrong answers, in sight,
    and how many there are; the rest of the section goes into a fold."""
    default_priority = 901
    formats = ("html",)

    def run(self, **_) -> None:
        for section in list(self.document.findall(nodes.section)):
            title, *rest = section.children
            if not isinstance(title, nodes.title): continue
            if title.astext() == MORE:
                count = sum('class="tfm-claim' in raw.astext() for part in rest
                            for raw in part.findall(nodes.raw))
                opening, summary = "<details>", f"Show all {count}" if count > 1 else "Show it"
                section["classes"].append("tfm-more")
            elif title.astext().startswith(WRONG):
                count = sum("tag_mutant" in cell["classes"] for part in rest
                            for cell in part.findall(nodes.container))
                opening, summary = ('<details class="tfm-wrong-answers">',
                                    f"Show {count} wrong answers: each with its mistake, and what "
                                    "the check says")
            else: continue
            section.children = [title,
                                nodes.raw("", f"{opening}<summary>{summary}</summary>",
                                          format="html"), *rest,
                                nodes.raw("", "</details>", format="html")]


class CodeBelow(SphinxPostTransform):
    "Put the folded code of a figure beneath it, so that nothing is between the prose and it."
    default_priority = 250                      # after myst-nb has folded it
    formats = ("html",)

    def run(self, **_) -> None:
        for cell in self.document.findall(nodes.container):
            if "tag_hide-input" not in cell["classes"] or len(cell) != 2: continue
            fold, output = cell.children
            if any("tfm-figure" in raw.astext() for raw in output.findall(nodes.raw)):
                cell.children = [output, fold]


def copy(app):
    """Put the figures' stylesheet and modules where every page of an HTML build finds them; Jupyter
    Book would load every script of `html_static_path` on every page."""
    if app.builder.format != "html": return
    target = Path(app.outdir) / "_static" / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for path in [ASSETS / "figures.css", *sorted(ASSETS.glob("*.js"))]:
        shutil.copyfile(path, target / path.name)
    # what a figure loads when it is asked to
    shutil.copytree(ASSETS / "live", target / "live", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.json"))
    shutil.copyfile(ASSETS / "tokenizer.json", target / "live" / "tokenizer.json")


def load(app, pagename, templatename, context, doctree):
    "Add the loader to this page alone if it has an interactive figure."
    if FIGURE in context.get("body", ""): app.add_js_file("figures/mount.js", type="module")


def setup(app):
    for module in (variables, crossref, roles): module.format_plain_text = as_glued
    for name, how in SOURCES.items(): app.add_role(name, role(*how))
    for transform in (Fold, FoldSection, CodeBelow): app.add_post_transform(transform)
    # after Sphinx itself, which numbers at this event, too
    app.connect("env-get-updated", renumber, priority=900)
    app.add_css_file("figures/figures.css")
    app.connect("builder-inited", copy)
    app.connect("html-page-context", load)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
