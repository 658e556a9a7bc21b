"""CodeMirror, the editor of the pages' code, brought by npm, checked, and made one module:
python extensions/codemirror.py

Its packages are modules that import one another by name, which a browser cannot resolve. Each
becomes a function that returns what it exports, in the order in which they need one another;
comments and indentation go. No bundler is needed, for the packages are pinned: inpage/pins.json has
the version of each and the hash that npm publishes. Without a network nothing is kept, and editors
are text areas.
"""
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pyodide import PINS, integrity, npm

PACKAGES: dict[str, dict[str, str]] = PINS["codemirror"]  # each after those that it imports
LEFT_OUT = {  # the language offers completions, which the book does not show
    "@codemirror/autocomplete": "const none = () => null;\nexport { none as snippetCompletion, "
                                "none as ifNotIn, none as completeFromList };\n"}
OFFERED = {"state": "@codemirror/state", "view": "@codemirror/view",
           "language": "@codemirror/language", "commands": "@codemirror/commands",
           "python": "@codemirror/lang-python", "highlight": "@lezer/highlight"}
IMPORT = re.compile(r"""^import (?:(\w+)|\{([^}]*)\}) from ['"]([^'"]+)['"];?$""", re.M)
AGAIN = re.compile(r"""^export \{([^}]*)\} from ['"]([^'"]+)['"];?$""", re.M)
LIST = re.compile(r"^export \{([^}]*)\};?$", re.M)
ONE = re.compile(r"^export (default )?(?=(?:function|class|const|let|var) (\w+))", re.M)
COMMENT = re.compile(r"^[ \t]*(?:/\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n", re.M | re.S)
LICENCE = (
    "/* CodeMirror 6 and Lezer, by Marijn Haverbeke and others, MIT licence: "
    "LICENSE-CODEMIRROR.txt beside this file. */\n")


def kept() -> Path:
    "Where this environment keeps the packages' modules."
    return Path(sys.prefix) / "share" / "codemirror"


def file(name: str) -> Path:
    "The module of a package, as it is kept."
    return kept() / f"{name.replace('/', '+')}@{PACKAGES[name]['version']}.js"


def there() -> bool:
    return all(file(name).is_file() for name in PACKAGES) and (kept() / "LICENSE").is_file()


def unpack(name: str, package: Path) -> None:
    "Keep the module of a package that is the one we mean."
    found, wanted = integrity(package), PACKAGES[name]["integrity"]
    if found != wanted: raise ValueError(f"{package.name} has the hash {found}; expected {wanted}")
    with tarfile.open(package) as archive:
        def text(path: str) -> str: return archive.extractfile(f"package/{path}").read().decode()
        told = json.loads(text("package.json"))
        kept().mkdir(parents=True, exist_ok=True)
        file(name).write_text(text(told["exports"]["import"].removeprefix("./")), encoding="utf-8")
        if name == "@codemirror/view":
            (kept() / "LICENSE").write_text(text("LICENSE"), encoding="utf-8")


def fetch() -> None:
    "Bring the packages, unless they are there."
    if there(): return
    named = [f"{name}@{pin['version']}" for name, pin in PACKAGES.items()]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*npm(), "pack", *named, "--silent", "--ignore-scripts",
                        "--fetch-retries=1"], cwd=folder, check=True, timeout=600,
                        stdout=subprocess.DEVNULL)
        for name, pin in PACKAGES.items():
            unpack(name,
                   Path(folder)
                   / f"{name.removeprefix('@').replace('/', '-')}-{pin['version']}.tgz")


# --- one module of many ---------------------------------------------------------------------------

def variable(package: str) -> str:
    "What a package is called in the one module."
    return "$" + re.sub(r"\W+", "_", package).strip("_")


def given(names: str) -> str:
    "`a, b as c`, exported, as the parts of an object."
    return re.sub(r"([\w$]+) as ([\w$]+)", r"\2: \1", " ".join(names.split()))


def taken(whole: str, names: str, package: str) -> str:
    "An import as a pattern."
    parts = (f"default: {whole}" if whole
             else re.sub(r"([\w$]+) as ([\w$]+)", r"\1: \2", " ".join(names.split())))
    return f"const {{ {parts} }} = {variable(package)};"


def module(package: str, text: str) -> str:
    "A package's module as a function that returns what it exports."
    text = COMMENT.sub("", text).replace("/*@__PURE__*/", "")
    exports = [f"{name.split()[-1]}: {variable(source)}.{name.split()[0]}"
               for names, source in AGAIN.findall(text)
               for name in names.split(",") if name.strip()]
    exports += map(given, LIST.findall(text))
    exports += [f"{'default: ' if default else ''}{name}" for default, name in ONE.findall(text)]
    text = ONE.sub("", LIST.sub("", AGAIN.sub("", text)))
    text = IMPORT.sub(lambda m: taken(*m.groups(default="")), text).strip()
    if left := re.search(r"^(?:import|export)\b.*", text, re.M):
        raise ValueError(f"{package}: {left[0][:80]!r} is no import or export that we know")
    text = re.sub(r"^[ \t]+", "", text, flags=re.M)
    return (
        f"const {variable(package)} = (() => {{\n{text}\nreturn {{ {', '.join(exports)} "
        f"}};\n}})();\n")


def bundle() -> str:
    "All packages as one module for a browser."
    parts = [module(name, text)
             for name, text in LEFT_OUT.items()] + [module(name,
                                                           file(name).read_text(encoding="utf-8"))
                                                           for name in PACKAGES]
    offered = ", ".join(f"{variable(package)} as {name}" for name, package in OFFERED.items())
    return f"{LICENCE}{''.join(parts)}export {{ {offered} }};\n"


if __name__ == "__main__":
    fetch()
