"""Pyodide, Python for browsers, brought by npm and checked: python extensions/pyodide.py

npm is the one that comes with Node's wheel, or the system's. The package is checked against the
hash in inpage/pins.json, which is the one that npm publishes, and what a page needs of it is kept
in the environment. Without a network nothing is kept, and the book is built without *Check*.
"""
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[1]
INPAGE = ROOT / "inpage"
PINS = json.loads((INPAGE / "pins.json").read_text(encoding="utf-8"))
FILES = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip",
         "pyodide-lock.json")
PACKAGE = f"pyodide@{PINS['pyodide']['version']}"


def kept() -> Path:
    "Where this environment keeps Pyodide."
    return Path(sys.prefix) / "share" / "pyodide" / PINS["pyodide"]["version"]


def there() -> bool: return all((kept() / name).is_file() for name in FILES)


def npm() -> list[str]:
    "The command that runs npm."
    from formulas import node_binary
    node = node_binary()
    inside = Path(node).parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    if inside.is_file(): return [node, str(inside)]
    found = which("npm")
    if not found: raise FileNotFoundError("there is no npm beside Node")
    return [found]


def integrity(package: Path) -> str:
    "A file's hash as npm publishes it."
    return "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()


def unpack(package: Path, target: Path) -> None:
    "Keep what a page needs of a package that is the one we mean."
    found, wanted = integrity(package), PINS["pyodide"]["integrity"]
    if found != wanted: raise ValueError(f"{package.name} has the hash {found}; expected {wanted}")
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as archive:
        for name in FILES:
            (target / name).write_bytes(archive.extractfile(f"package/{name}").read())


def fetch() -> None:
    "Bring Pyodide, unless it is there."
    if there(): return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*npm(), "pack", PACKAGE, "--silent", "--ignore-scripts",
                        "--fetch-retries=1"], cwd=folder, check=True, timeout=600,
                        stdout=subprocess.DEVNULL)
        [package] = Path(folder).glob("*.tgz")
        unpack(package, kept())


if __name__ == "__main__":
    fetch()
