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


MORE, WRONG = "More claims, checked", "Wrong answers to "


class FoldSection(SphinxPostTransform):
    "Keep the heading of a chapter's further claims, or of an exercise's wrong answers, in sight, and how many there are; the rest of the section goes into a fold."
    default_priority = 901
    formats = ("html",)

    def run(self, **_) -> None:
        for section in list(self.document.findall(nodes.section)):
            title, *rest = section.children
            if not isinstance(title, nodes.title): continue
            if title.astext() == MORE:
                count = sum('class="tfm-claim' in raw.astext() for part in rest for raw in part.findall(nodes.raw))
                opening, summary = "<details>", f"Show all {count}" if count > 1 else "Show it"
                section["classes"].append("tfm-more")
            elif title.astext().startswith(WRONG):
                count = sum("tag_mutant" in cell["classes"] for part in rest for cell in part.findall(nodes.container))
                opening, summary = '<details class="tfm-wrong-answers">', f"Show {count} wrong answers: each with its mistake, and what the check says"
            else: continue
            section.children = [title, nodes.raw("", f"{opening}<summary>{summary}</summary>", format="html"), *rest, nodes.raw("", "</details>", format="html")]


def setup(app):
    app.add_post_transform(Fold)
    app.add_post_transform(FoldSection)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
