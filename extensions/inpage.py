"""Practice in the page: gives practice pages and chapters the editors' script, and says what it
needs to know.

An exercise's empty answer becomes an editor by check.js; *Check* asks the book's own checkers. A
chapter's cell that is tagged `edit` becomes one by run.js. Nothing else is fetched before the first
focus or press (inpage_files.py says what then is). Where set-up could not bring Pyodide, practice
pages say so, and a chapter's cell stays as it is; where it could not bring CodeMirror, editors are
text areas.
"""
import json
import re
from pathlib import Path

import codemirror
from inpage_files import ROOT, elsewhere, lay_out, module_of, version

KILLS = ROOT / "tfmlib/assets/kills.json"
LIMIT = 10_000                                          # ms that one case may take in a page
CHAPTERS = "chapters/"
PRACTICE = f"{CHAPTERS}practice/"
INTRO = (
    "On this page you can also write your answers in place and press <em>Check</em>. The first "
    "press loads Python and NumPy from this site, 9 MB that your "
         "browser keeps. Your answers, and which exercises you have solved, stay in your browser. "
         "A small stand-in takes the place of PyTorch; if an answer needs what it lacks, it says so.")  # noqa: E501
SOLVED = (
    '<div class="tfm-solved-of"><progress max="{n}" value="0" aria-label="Exercises solved on this '
    'page"></progress>'
          "<span>0 of {n} exercises solved.</span></div>")
UNAVAILABLE = (
    "<em>Check</em> is not available in this copy of the book, because Pyodide could not be "
    "downloaded when the book was set up. "
               "The exercises run in Jupyter and in Colab.")
STUB = re.compile(
    r'(<div class="cell tag_stub tag_exercise-(\w+)[^>]*>.*?</pre></div>\s*</div>\s*)(?=</div>)',
    re.S)
EDIT = re.compile(r'<div class="cell [^"]*\btag_edit\b')
FIRST = re.compile(r"(<p>Write your answer in the cell.*?</p>)", re.S)


def cells_of(page: str) -> list[dict]:
    "The cells of a practice page's notebook."
    return json.loads((ROOT / PRACTICE / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]


def imports_of(page: str) -> str:
    "The cell with which the notebook of a reader's answers begins."
    [found] = ["".join(c["source"]) for c in cells_of(page) if c["id"] == "imports"]
    kept = [line for line in found.split("\n") if not line.startswith("#|")]
    return "\n".join([*kept, "", f"from tfmlib.practice.{module_of(page)} import *"]).strip()


def titles_of(page: str) -> dict[str, str]:
    "The exercises of a page, each with its heading."
    pages = json.loads(KILLS.read_text(encoding="utf-8"))["pages"]
    return next(({e["name"]: e["title"] for e in p["exercises"]}
                 for p in pages if p["page"].endswith(page)), {})


def written(facts: dict) -> str:
    "Facts as a script reads them."
    text = json.dumps(facts, ensure_ascii=False).replace("</", "<\\/")
    return f'<script type="application/json" id="tfm-inpage">{text}</script>'


def told(page: str, sizes: dict[str, int], name: str) -> dict:
    "What the script of a practice page needs to know."
    module = module_of(page)
    python = {"zips": ["book", module], "modules": ["judge", f"tfmlib.practice.{module}"]}
    return python | {"page": module, "code": codemirror.there(), "version": name, "sizes": sizes,
                     "limit": LIMIT, "titles": titles_of(page),
                     "elsewhere": elsewhere().get(page, {}), "imports": imports_of(page)}


def told_chapter(page: str, sizes: dict[str, int], name: str) -> dict:
    "What the script of a chapter needs to know."
    return {"zips": ["cell"], "modules": ["cell"], "page": page, "code": codemirror.there(),
            "version": name, "sizes": {n: size for n, size in sizes.items() if n != "book.zip"},
            "limit": LIMIT}


def only(page: str, body: str) -> str:
    "The body, with a note below each exercise that Jupyter or Colab alone can check."
    reasons = elsewhere().get(page, {})
    def note(match: re.Match) -> str:
        why = reasons.get(match[2], reasons.get("*"))
        return (match[1] if why is None
                else f'{match[1]}<p class="tfm-only"><strong>Jupyter or Colab only</strong>: '
                     f'{why}</p>')
    return STUB.sub(note, body)


def prepare(app, config) -> None: config.tfm_inpage = version()


def copy(app) -> None:
    if app.builder.format == "html":
        app.inpage_sizes = lay_out(Path(app.outdir) / "_static" / "inpage")


def page(app, pagename, templatename, context, doctree) -> None:
    "Give a practice page and a chapter their editors; say why a practice page has none."
    body, stem = context.get("body", ""), pagename.removeprefix(PRACTICE).removeprefix(CHAPTERS)
    if pagename.startswith(PRACTICE) and "tag_stub" in body: practice(app, stem, context)
    elif pagename.startswith(CHAPTERS) and EDIT.search(body) and app.inpage_sizes:
        app.add_css_file("inpage/check.css")
        editors(app, context, "run.js", told_chapter(stem, app.inpage_sizes, app.config.tfm_inpage))


def practice(app, stem: str, context) -> None:
    app.add_css_file("inpage/check.css")
    context["body"] = only(stem, context["body"])
    if "*" in elsewhere().get(stem, {}): return
    count = len(titles_of(stem).keys() - elsewhere().get(stem, {}).keys())
    said = (f"<p>{INTRO}</p>{SOLVED.format(n=count)}" if app.inpage_sizes
            else f"<p>{UNAVAILABLE}</p>")
    context["body"] = FIRST.sub(lambda match: f"{match[1]}\n{said}", context["body"], count=1)
    if app.inpage_sizes:
        editors(app, context, "check.js", told(stem, app.inpage_sizes, app.config.tfm_inpage))


def editors(app, context, name: str, facts: dict) -> None:
    "Give a page the script of its editors, and what that needs to know."
    context["body"] += written(facts)
    app.add_js_file(f"inpage/{name}", type="module")


def setup(app):
    app.add_config_value("tfm_inpage", "", "html")
    app.connect("config-inited", prepare)
    app.connect("builder-inited", copy)
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
