"""The book's own pages on sphinx-book-theme: our templates and style sheet in place of the theme's,
and nothing that a page does not use.

The theme stays what it was (its directives, its table markup, its options); only what it sends to
the reader is replaced, by the files in extensions/theme. Served assets live in `_static/tfm`
(ours), `_static/figures` (the interactive figures') and `_static/inpage` (the editors of practice
pages).
"""
import hashlib
import json
import re
import shutil
from pathlib import Path

from docutils import nodes
from slim import slim

THEME = Path(__file__).parent / "theme"
OURS = ("_static/tfm/", "_static/figures/", "_static/inpage/")
WHEN_USED = {  # asset: what a page's text holds when the page needs it
    "_static/tfm/katex/katex.css": r'class="(math )?katex"',
    "_static/sphinx-design.min.css": r"sd-(container-fluid|tab-set|btn|badge)",
    "_static/design-tabs.js": "sd-tab-set",
    "_static/figures/mount.js": "data-module",
}
REPAIRS = {                                     # what axe-core finds in the markup of others
    ' aria-label="Toggle hidden content"': "",  # contradicts the words on the button
    ' role="doc-biblioentry"': ' role="listitem"',
    ' id="exercise-content"': "", ' id="solution-content"': "",  # one id on every exercise
}


# The title of a chapter in a link to it, up to the dot, which stays with its number.
TITLE = re.compile(r'(<span class="doc">(?:Practice )?[\d.]+) · ')
# A part's caption leads to its cover, which is the first of its pages and has its name.
COVER = re.compile(
    r'<p class="caption"><span '
    r'class="caption-text">([^<]*)</span></p>(?=\s*<ul[^>]*>\s*<li[^>]*>(<a [^>]*>)Part '
    r'\1</a></li>)(\s*<ul[^>]*>)\s*<li[^>]*>.*?</li>', re.S)


def adopt(app, config) -> None:
    "Put our templates before the theme's and our files beside its own."
    config.templates_path.insert(0, str(THEME / "templates"))
    config.html_static_path.append(str(THEME / "static"))
    # the theme would write them for each page, to see whether they are empty
    config.html_sidebars = {"**": []}
    files = sorted(p for p in THEME.parent.rglob("*")
                   if p.suffix in {".py", ".html", ".css", ".js", ".svg"})
    # changed: all pages are written anew
    config.tfm_extensions = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def assets(files: list, body: str) -> list:
    "Those of a page's assets that are the book's own or are used on this page."
    name = lambda f: str(getattr(f, "filename", f)).split("?")[0]
    used = lambda n: re.search(WHEN_USED[n], body) if n in WHEN_USED else n.startswith(OURS)
    return [f for f in files if used(name(f))]


def description(doctree, limit: int = 160) -> str:
    "A page's first paragraph, for search engines."
    text = next((p.astext() for p in doctree.findall(nodes.paragraph)), "") if doctree else ""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def navigation(context: dict) -> str:
    "The chapters; the page that is shown also lists its sections."
    tree = context["toctree"](collapse=True, includehidden=True, titles_only=True, maxdepth=3) or ""
    tree = re.sub(r' (role="heading"|aria-level="\d")', "", tree)
    tree = COVER.sub(r'<p class="caption">\2\1</a></p>\3', tree)
    parts = re.search(r"<ul>.*?</a>\s*(<ul>.*</ul>)\s*</li>\s*</ul>", context.get("toc") or "",
                      re.S)
    here = re.compile(r'(<a class="current reference internal" href=")#("[^>]*)(>.*?</a>)', re.S)
    return here.sub(lambda m: f'{m[1]}#{m[2]} aria-current="page"{m[3]}'
                    + (sections(parts[1]) if parts else ""), tree, count=1)


def sections(toc: str) -> str:
    "A page's table of contents without its third level."
    return re.sub(r"(<li>.*?</a>)\s*<ul>.*?</ul>\s*(?=</li>)", r"\1", toc,
                  flags=re.S).replace("<ul>", '<ul class="tfm-sections">', 1)


def colab(app, pagename: str) -> str:
    "Where a notebook's copy opens in Colab; nothing while the book's address is unknown."
    url = app.config.html_theme_options.get("repository_url", "").rstrip("/").removesuffix(".git")
    is_notebook = (str(app.env.doc2path(pagename)).endswith(".ipynb")
                   if pagename in app.env.found_docs else False)
    return (
        f"https://colab.research.google.com/github/{url.split('github.com/')[1]}/blob/colab/{pagename}.ipynb" if is_notebook and "github.com/" in url else "")  # noqa: E501


def page(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    for fault, repair in REPAIRS.items():
        body = body.replace(fault, repair)
    body = TITLE.sub(r"\1&#160;· ", slim(body))
    context |= {"body": body, "css_files": assets(context["css_files"], body),
                "script_files": assets(context["script_files"], body),
                "book_nav": lambda: slim(navigation(context)), "description": description(doctree),
                "colab": colab(app, pagename)}
    for way in ("prev", "next"):
        if context.get(way): context[way] = context[way] | {"title": slim(context[way]["title"])}
    passed = Path(app.srcdir) / "last_passed.json"
    context["last_passed"] = (json.loads(passed.read_text()).get("date", "")
                              if passed.is_file() else "")


def sweep(app, exception) -> None:
    "Remove what no page asks for: the theme's scripts, icon fonts and translations."
    static = Path(app.outdir) / "_static"
    keep = {Path(a).name for a in WHEN_USED} | {"tfm", "figures", "inpage"}
    for path in static.iterdir() if app.builder.format == "html" and not exception else ():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def setup(app):
    app.add_config_value("tfm_extensions", "", "html")
    app.connect("config-inited", adopt)
    app.connect("html-page-context", page, priority=900)
    app.connect("build-finished", sweep, priority=900)
    app.add_css_file("tfm/book.css", priority=900)
    app.add_css_file("tfm/katex/katex.css", priority=800)
    app.add_js_file("tfm/book.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
