"""What pages that run Python need, as the book serves it in `_static/inpage/`: scripts, Pyodide,
NumPy, and zips with the book's own Python.

A page loads editor.js, check.js and check.css. The first focus or press fetches code.js and
codemirror.js, the editor; the rest (worker.js, Pyodide, NumPy, the stand-in for PyTorch in
book.zip, and the page's checkers) is fetched when a reader presses *Check*. A chapter's cell needs
NumPy and cell.zip alone.
"""
import hashlib
import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import codemirror
import pyodide
import yaml
from sphinx.errors import ConfigError

ROOT = pyodide.ROOT
HERE = pyodide.INPAGE
ELSEWHERE = HERE / "elsewhere.yml"
SERVED = ("editor.js", "check.js", "run.js", "check.css", "worker.js", "code.js")
LIBRARY = ("__init__.py", "workbench/__init__.py", "workbench/validation.py",
           *(f"workbench/{module}.py" for module in ("claims", "checkers", "checks", "gradients",
                                                     "properties")), "practice/__init__.py")
COUNTED = ("pyodide.asm.wasm", "python_stdlib.zip")      # what Pyodide fetches, and is long
DATE = (2020, 1, 1, 0, 0, 0)                            # the same bytes whenever they are packed


def elsewhere() -> dict[str, dict[str, str]]:
    "The exercises that the stand-in cannot check: page -> exercise -> why."
    return yaml.safe_load(ELSEWHERE.read_text(encoding="utf-8"))


def practice_modules() -> list[Path]:
    "The modules of the practice pages that have at least one exercise for the page."
    alone = {module_of(page) for page, found in elsewhere().items() if "*" in found}
    return [p for p in sorted((ROOT / "tfmlib/practice").glob("[!_]*.py")) if p.stem not in alone]


def module_of(page: str) -> str:
    "The module of tfmlib.practice that a page writes."
    return re.sub(r"^\d+_", "", page)


def packed(parts: dict[str, Path]) -> bytes:
    "Files in a zip, whose bytes depend on them alone."
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, path in parts.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), path.read_bytes(), zipfile.ZIP_DEFLATED,
                             compresslevel=9)
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
    return re.sub(rb'"(\./(?:editor|codemirror)\.js)"', rf'"\1?v={version()}"'.encode(),
                  (HERE / name).read_bytes())


def lock(text: str) -> str:
    "Pyodide's list of packages, NumPy alone; ours must be the one that it names."
    found, pin = json.loads(text), pyodide.PINS["numpy"]
    numpy = found["packages"]["numpy"]
    if (numpy["file_name"], numpy["sha256"]) != (pin["file"], pin["sha256"]):
        raise ConfigError("inpage/pins.json names another NumPy than Pyodide's list")
    return json.dumps({"info": found["info"], "packages": {"numpy": numpy}})


def numpy_wheel() -> Path:
    "NumPy for Pyodide, which lies in inpage/."
    pin = pyodide.PINS["numpy"]
    wheel = HERE / pin["file"]
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != pin["sha256"]:
        raise ConfigError(f"inpage/{pin['file']} is not the file that inpage/pins.json describes")
    return wheel


def lay_out(target: Path) -> dict[str, int]:
    "Put everything into a folder; the sizes of the long files."
    shutil.rmtree(target, ignore_errors=True)
    (target / "py").mkdir(parents=True)
    for name in SERVED: (target / name).write_bytes(script(name))
    if codemirror.there():
        (target / "codemirror.js").write_text(codemirror.bundle(), encoding="utf-8")
        shutil.copyfile(codemirror.kept() / "LICENSE", target / "LICENSE-CODEMIRROR.txt")
    if not pyodide.there():
        shutil.rmtree(target / "py")
        return {}
    for name in pyodide.FILES: shutil.copyfile(pyodide.kept() / name, target / "py" / name)
    (target / "py/pyodide-lock.json").write_text(
        lock((pyodide.kept() / "pyodide-lock.json").read_text(encoding="utf-8")), encoding="utf-8")
    wheel = numpy_wheel()
    shutil.copyfile(wheel, target / "py" / wheel.name)
    (target / "py/book.zip").write_bytes(book_zip())
    (target / "py/cell.zip").write_bytes(cell_zip())
    for path in practice_modules():
        (target / "py" / f"{path.stem}.zip").write_bytes(
            packed({f"tfmlib/practice/{path.name}": path}))
    return {name: (target / "py" / name).stat().st_size
            for name in (*COUNTED, wheel.name, "book.zip")}


def version() -> str:
    "A name for all that the editors need; pages are written anew when it changes."
    parts = [book_zip(), cell_zip(), *(p.read_bytes() for p in practice_modules()),
             *((HERE / name).read_bytes() for name in (*SERVED, "elsewhere.yml", "pins.json")),
             Path(codemirror.__file__).read_bytes(),
             str((pyodide.there(), codemirror.there())).encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]
