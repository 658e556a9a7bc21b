"""Practice in the page: gives practice pages the editors' script, and the book the Python that checks the answers.

Everything lies in `_static/inpage/`. A page loads editor.js, check.js and check.css; the rest (worker.js, Pyodide, NumPy, the stand-in for
PyTorch in book.zip, and the page's checkers) is fetched when a reader presses *Check*. Where set-up could not bring Pyodide, pages say so.

A chapter's cell that is tagged `edit` needs NumPy alone. It becomes an editor too, by run.js; *Run* fetches no stand-in and no checker, only
cell.py. Without Pyodide the cell stays as it is.
"""
import hashlib
import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import pyodide
import yaml
from sphinx.errors import ConfigError

ROOT = pyodide.ROOT
HERE = pyodide.INPAGE
KILLS = ROOT / "tfmlib/assets/kills.json"
ELSEWHERE = HERE / "elsewhere.yml"
SERVED = ("editor.js", "check.js", "run.js", "check.css", "worker.js")
LIBRARY = ("__init__.py", "proof.py", "checks.py", "practice/__init__.py")
COUNTED = ("pyodide.asm.wasm", "python_stdlib.zip")      # what Pyodide fetches, and is long
LIMIT = 10_000                                          # ms that one case may take in a page
DATE = (2020, 1, 1, 0, 0, 0)                            # the same bytes whenever they are packed
CHAPTERS = "chapters/"
PRACTICE = f"{CHAPTERS}practice/"
INTRO = ("On this page you can also write your answers in place and press <em>Check</em>. The first press loads Python and NumPy from this site, 9 MB that your "
         "browser keeps. Your answers stay in your browser. A small stand-in takes the place of PyTorch; if an answer needs what it lacks, it says so.")
UNAVAILABLE = ("<em>Check</em> is not available in this copy of the book, because Pyodide could not be downloaded when the book was set up. "
               "The exercises run in Jupyter and in Colab.")
STUB = re.compile(r'(<div class="cell tag_stub tag_exercise-(\w+)[^>]*>.*?</pre></div>\s*</div>\s*)(?=</div>)', re.S)
EDIT = re.compile(r'<div class="cell [^"]*\btag_edit\b')
FIRST = re.compile(r"(<p>Write your answer in the cell.*?</p>)", re.S)


def elsewhere() -> dict[str, dict[str, str]]:
    "The exercises that the stand-in cannot check: page -> exercise -> why."
    return yaml.safe_load(ELSEWHERE.read_text(encoding="utf-8"))


def practice_modules() -> list[Path]:
    "The modules of the practice pages that have at least one exercise for the page."
    alone = {module_of(page) for page, found in elsewhere().items() if "*" in found}
    return [p for p in sorted((ROOT / "tfmlib/practice").glob("[!_]*.py")) if p.stem not in alone]


def cells_of(page: str) -> list[dict]:
    "The cells of a practice page's notebook."
    return json.loads((ROOT / PRACTICE / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]


def module_of(page: str) -> str:
    "The module of tfmlib.practice that a page writes."
    return re.sub(r"^\d+_", "", page)


def imports_of(page: str) -> str:
    "The cell with which the notebook of a reader's answers begins."
    [found] = ["".join(c["source"]) for c in cells_of(page) if c["id"] == "imports"]
    kept = [line for line in found.split("\n") if not line.startswith("#|")]
    return "\n".join([*kept, "", f"from tfmlib.practice.{module_of(page)} import *"]).strip()


def titles_of(page: str) -> dict[str, str]:
    "The exercises of a page, each with its heading."
    pages = json.loads(KILLS.read_text(encoding="utf-8"))["pages"]
    return next(({e["name"]: e["title"] for e in p["exercises"]} for p in pages if p["page"].endswith(page)), {})


# --- what is served -----------------------------------------------------------------------------------------------

def packed(parts: dict[str, Path]) -> bytes:
    "Files in a zip, whose bytes depend on them alone."
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, path in parts.items(): archive.writestr(zipfile.ZipInfo(name, DATE), path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return held.getvalue()


def book_zip() -> bytes:
    "The stand-in, the judge and what all checkers use."
    parts = {f"tfmlib/{name}": ROOT / "tfmlib" / name for name in LIBRARY}
    parts |= {str(p.relative_to(HERE)): p for p in sorted((HERE / "torch").rglob("*.py"))}
    return packed(parts | {f"{name}.py": HERE / f"{name}.py" for name in ("judge", "cell")})


def cell_zip() -> bytes:
    "What runs a chapter's cell."
    return packed({"cell.py": HERE / "cell.py"})


def script(name: str) -> bytes:
    "A file that is served; the one that it imports is fetched anew when anything changes."
    return (HERE / name).read_bytes().replace(b'"./editor.js"', f'"./editor.js?v={version()}"'.encode())


def lock(text: str) -> str:
    "Pyodide's list of packages, NumPy alone; ours must be the one that it names."
    found, pin = json.loads(text), pyodide.PINS["numpy"]
    numpy = found["packages"]["numpy"]
    if (numpy["file_name"], numpy["sha256"]) != (pin["file"], pin["sha256"]): raise ConfigError("inpage/pins.json names another NumPy than Pyodide's list")
    return json.dumps({"info": found["info"], "packages": {"numpy": numpy}})


def numpy_wheel() -> Path:
    "NumPy for Pyodide, which lies in inpage/."
    pin = pyodide.PINS["numpy"]
    wheel = HERE / pin["file"]
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != pin["sha256"]: raise ConfigError(f"inpage/{pin['file']} is not the file that inpage/pins.json describes")
    return wheel


def lay_out(target: Path) -> dict[str, int]:
    "Put everything into a folder; the sizes of the long files."
    shutil.rmtree(target, ignore_errors=True)
    (target / "py").mkdir(parents=True)
    for name in SERVED: (target / name).write_bytes(script(name))
    if not pyodide.there():
        shutil.rmtree(target / "py")
        return {}
    for name in pyodide.FILES: shutil.copyfile(pyodide.kept() / name, target / "py" / name)
    (target / "py/pyodide-lock.json").write_text(lock((pyodide.kept() / "pyodide-lock.json").read_text(encoding="utf-8")), encoding="utf-8")
    wheel = numpy_wheel()
    shutil.copyfile(wheel, target / "py" / wheel.name)
    (target / "py/book.zip").write_bytes(book_zip())
    (target / "py/cell.zip").write_bytes(cell_zip())
    for path in practice_modules(): (target / "py" / f"{path.stem}.zip").write_bytes(packed({f"tfmlib/practice/{path.name}": path}))
    return {name: (target / "py" / name).stat().st_size for name in (*COUNTED, wheel.name, "book.zip")}


def version() -> str:
    "A name for all that the editors need; pages are written anew when it changes."
    parts = [book_zip(), cell_zip(), *(p.read_bytes() for p in practice_modules()), *((HERE / name).read_bytes() for name in (*SERVED, "elsewhere.yml", "pins.json")), str(pyodide.there()).encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]


# --- what a page is told ------------------------------------------------------------------------------------------

def written(facts: dict) -> str:
    "Facts as a script reads them."
    text = json.dumps(facts, ensure_ascii=False).replace("</", "<\\/")
    return f'<script type="application/json" id="tfm-inpage">{text}</script>'


def told(page: str, sizes: dict[str, int], name: str) -> dict:
    "What the script of a practice page needs to know."
    module = module_of(page)
    python = {"zips": ["book", module], "modules": ["judge", f"tfmlib.practice.{module}"]}
    return python | {"page": module, "version": name, "sizes": sizes, "limit": LIMIT, "titles": titles_of(page), "elsewhere": elsewhere().get(page, {}), "imports": imports_of(page)}


def told_chapter(page: str, sizes: dict[str, int], name: str) -> dict:
    "What the script of a chapter needs to know."
    return {"zips": ["cell"], "modules": ["cell"], "page": page, "version": name, "sizes": {n: size for n, size in sizes.items() if n != "book.zip"}, "limit": LIMIT}


def only(page: str, body: str) -> str:
    "The body, with a note below each exercise that Jupyter or Colab alone can check."
    reasons = elsewhere().get(page, {})
    def note(match: re.Match) -> str:
        why = reasons.get(match[2], reasons.get("*"))
        return match[1] if why is None else f'{match[1]}<p class="tfm-only"><strong>Jupyter or Colab only</strong>: {why}</p>'
    return STUB.sub(note, body)


def prepare(app, config) -> None: config.tfm_inpage = version()


def copy(app) -> None:
    if app.builder.format == "html": app.inpage_sizes = lay_out(Path(app.outdir) / "_static" / "inpage")


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
    context["body"] = FIRST.sub(rf'\1\n<p>{INTRO if app.inpage_sizes else UNAVAILABLE}</p>', context["body"], count=1)
    if app.inpage_sizes: editors(app, context, "check.js", told(stem, app.inpage_sizes, app.config.tfm_inpage))


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
