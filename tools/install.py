"""Install what the book needs into this environment, and say what comes and how large it is: python tools/install.py WHAT

WHAT is `book` (what builds the book: no PyTorch), `all` (everything, at the locked versions) or `torch` (PyTorch alone, the
newest). On Linux, PyTorch's default build brings gigabytes for GPUs; the CPU build is asked for instead, of pip and then of
uv, which knows where PyTorch keeps it. The variable TORCH=default asks for the default build; a PyTorch that is there stays.
"""
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import deque
from importlib import metadata
from pathlib import Path

from progress import Line

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.txt"
SIZES = {"book": "about 116 MB to download, 0.5 GB on disk", "all": "about 666 MB to download, 2.8 GB on disk"}
LARGE = """\
Neither pip nor uv finds PyTorch's CPU build from here, so its default build comes: with CUDA, about 3 GB to download and 6 GB on
disk. To have the small one, stop (Ctrl-C) and name an index that has it in the variable PIP_EXTRA_INDEX_URL (see README)."""


def extra(name: str) -> list[str]:
    "The requirements of one extra of pyproject.toml, without tfmlib and what it needs."
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][name]


def locked(name: str) -> str:
    "The locked version of a package."
    return re.search(rf"^{name}==([\w.]+)", LOCK.read_text(), re.M)[1]


# --- running pip --------------------------------------------------------------------------------------------------

class Failed(Exception):
    "A command failed; the text is the end of what it said."


def follow(line: Line, said: str, seen: dict, total: int) -> None:
    "Take one line of pip's into account."
    if m := re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", said): seen[m[1]] = seen.get(m[1], 0)
    elif m := re.match(r"\s+Downloading (\S+?)-\d\S* \(([\d.]+) (kB|MB|GB)\)", said):
        seen[m[1]] = float(m[2]) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[m[3]]
    elif said.startswith("Installing collected packages"): return line.say(f"unpacking {said.count(',') + 1} packages")
    if not m: return
    of = f"{min(len(seen), total)} of {total}" if total else f"{len(seen)}"
    line.say(f"{of} packages, {sum(seen.values()):.0f} MB · {m[1]}")


def run(title: str, command: list, total: int = 0, **env: str) -> None:
    "Run a command that speaks as pip does, with one line of progress; what it says is shown only if it fails."
    seen, last = {}, deque(maxlen=30)
    with Line(title) as line:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   env=os.environ | {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | env)
        for said in process.stdout:
            last.append(said)
            follow(line, said, seen, total)
        taken = line.seconds()
        if process.wait(): raise Failed("".join(last))
    print(f"{title}: done in {taken}" + (f", {sum(seen.values()):.0f} MB downloaded" if sum(seen.values()) >= 1 else ""), flush=True)


def pip(title: str, *what, total: int = 0) -> None:
    run(title, [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--no-color", *what], total)


# --- PyTorch ------------------------------------------------------------------------------------------------------

def there(version: str) -> bool:
    "Is PyTorch installed, in this version if one is given? Its build does not matter."
    try: found = metadata.version("torch")
    except metadata.PackageNotFoundError: return False
    return version in ("", found.partition("+")[0])


def by_pip(version: str) -> None:
    "The CPU build from pip's own sources, which its local version names. None there is no error."
    if version: pip("PyTorch by pip", "--no-deps", f"torch=={version}+cpu")
    else: raise Failed("No matching distribution: a local version belongs to a version")


def by_uv(version: str) -> None:
    "The CPU build from where uv knows it to be; uv itself comes from pip and goes again."
    with tempfile.TemporaryDirectory() as folder:
        pip("uv, which knows where it is", "--no-deps", "--target", folder, "uv")
        wanted = ["--no-deps", f"torch=={version}" if version else "torch"]
        patience = {name: os.environ.get(name, value) for name, value in (("UV_HTTP_TIMEOUT", "30"), ("UV_HTTP_RETRIES", "1"))}
        run("PyTorch by uv",
            [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu", *wanted], PYTHONPATH=folder, **patience)


def small_torch(version: str) -> bool:
    "Install the CPU build where the default one is large; is there nothing more to do?"
    if there(version) or platform.system() != "Linux" or os.environ.get("TORCH", "cpu") == "default": return True
    print(f"PyTorch {version or '(the newest)'} in its CPU build: about 190 MB to download", flush=True)
    for way in (by_pip, by_uv):
        try: way(version)
        except Failed as error:
            if way is by_pip and "No matching distribution" not in str(error): raise
        else: return True
    return False


# --- for the pages ------------------------------------------------------------------------------------------------

PAGES = {"pyodide": ("Pyodide", "practice pages cannot check answers"), "codemirror": ("CodeMirror", "the pages' editors are plain text areas")}


def practice() -> None:
    "Pyodide, with which the pages check answers (6 MB, by npm), and CodeMirror, their editor (0.9 MB). Without them the book is built all the same."
    for script, (name, lost) in PAGES.items():
        try: run(f"{name} by npm", [sys.executable, ROOT / "extensions" / f"{script}.py"])
        except Failed as error:
            why = str(error).strip().split("\n")[-1]
            print(f"{name} could not be had ({why}), so {lost}. With a network, `python extensions/{script}.py` brings it.", flush=True)


def built() -> str:
    "Which PyTorch is installed, and for what."
    package = metadata.distribution("torch")
    cuda = re.search(r"^cuda\b.*= *'([\d.]+)'", Path(package.locate_file("torch/version.py")).read_text(), re.M)
    return f"PyTorch {package.version}: " + (f"built for CUDA {cuda[1]}" if cuda else "the CPU build")


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in ("book", "all", "torch"): sys.exit(f"WHAT is {sys.argv[1:]}; expected one of: book, all, torch")
    what = sys.argv[1]
    if os.environ.get("TORCH", "cpu") not in ("cpu", "default"): sys.exit(f"TORCH is {os.environ['TORCH']!r}; expected cpu or default")
    try:
        total = len(LOCK.read_text().split("\n")) - 1
        if what in SIZES: print({"book": "What builds the book", "all": f"The whole environment, {total} packages"}[what] + f": {SIZES[what]}", flush=True)
        if what == "book":
            pip("Packages", "-c", LOCK, *extra("book"))
            return practice()
        if not small_torch(locked("torch") if what == "all" else ""): print(LARGE, flush=True)
        if what == "all":
            pip("Packages", "-r", LOCK, total=total)
            practice()
        elif not there(""): pip("PyTorch", "torch")
    except Failed as error: sys.exit(str(error))
    print(built())


if __name__ == "__main__":
    main()
