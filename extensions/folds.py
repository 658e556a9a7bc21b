"""Admonitions, exercises and solutions of the class `dropdown`, a chapter's further claims and an exercise's wrong answers fold by the browser's own <details>, without a script."""
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform


class Fold(SphinxPostTransform):
    "Keep a box's title in sight and put the rest of it into a fold."
    default_priority = 900
    formats = ("html",)

    def run(self, **_) -> None:
        for box in list(self.document.findall(nodes.Admonition)):
            if not {"dropdown", "toggle"} & set(box["classes"]): continue
            box["classes"] = [c for c in box["classes"] if c not in ("dropdown", "toggle")] + ["tfm-fold"]
            title, rest = box.children[:1], box.children[1:]
            box.children = [*title, nodes.raw("", "<details><summary>Show</summary>", format="html"), *rest, nodes.raw("", "</details>", format="html")]


MORE = "More claims, checked"


class FoldSection(SphinxPostTransform):
    "Keep the heading of a chapter's further claims in sight, and how many there are, and put the rest of the section into a fold."
    default_priority = 901
    formats = ("html",)

    def run(self, **_) -> None:
        for section in list(self.document.findall(nodes.section)):
            if not isinstance(section[0], nodes.title) or section[0].astext() != MORE: continue
            title, *rest = section.children
            count = sum('class="tfm-claim' in raw.astext() for part in rest for raw in part.findall(nodes.raw))
            summary = f"Show all {count}" if count > 1 else "Show it"
            section["classes"].append("tfm-more")
            section.children = [title, nodes.raw("", f"<details><summary>{summary}</summary>", format="html"), *rest, nodes.raw("", "</details>", format="html")]


WRONG = "Wrong answers to "


class FoldWrongAnswers(SphinxPostTransform):
    "Keep the heading of an exercise's wrong answers in sight, and put what is said about them into a fold, for it gives much away."
    default_priority = 902
    formats = ("html",)

    def run(self, **_) -> None:
        for section in list(self.document.findall(nodes.section)):
            if not isinstance(section[0], nodes.title) or not section[0].astext().startswith(WRONG): continue
            title, *rest = section.children
            count = sum("tag_mutant" in cell["classes"] for part in rest for cell in part.findall(nodes.container))
            summary = f"Show {count} wrong answers: each with its mistake, and what the check says"
            section.children = [title, nodes.raw("", f'<details class="tfm-wrong-answers"><summary>{summary}</summary>', format="html"), *rest, nodes.raw("", "</details>", format="html")]


def setup(app):
    app.add_post_transform(FoldWrongAnswers)
    app.add_post_transform(Fold)
    app.add_post_transform(FoldSection)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
