"""Admonitions, exercises and solutions of the class `dropdown` fold by the browser's own <details>, without a script."""
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


def setup(app):
    app.add_post_transform(Fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
