"""Gives pages the figures' stylesheet, and the loader where a figure is interactive. Both lie in `_static/figures/`.

The modules are copied, not listed in `html_static_path`: Jupyter Book loads every script it finds there on every page.
"""
import shutil
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "tfmlib" / "assets"
FIGURE = 'class="tfm-figure tfm-interactive"'


def copy(app):
    "Put the stylesheet and the modules where every page of an HTML build finds them."
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for path in [ASSETS / "figures.css", *sorted(ASSETS.glob("*.js"))]:
        shutil.copyfile(path, target / path.name)
    shutil.copytree(ASSETS / "live", target / "live", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.json"))          # what a figure loads when it is asked to
    shutil.copyfile(ASSETS / "tokenizer.json", target / "live" / "tokenizer.json")


def load(app, pagename, templatename, context, doctree):
    "Add the loader to this page alone if it has an interactive figure."
    if FIGURE in context.get("body", ""):
        app.add_js_file("figures/mount.js", type="module")


def setup(app):
    app.add_css_file("figures/figures.css")
    app.connect("builder-inited", copy)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
