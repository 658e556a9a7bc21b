"""Install what the book needs into this environment, and say what comes and how large it is:
python tools/install.py WHAT

WHAT is `book` (what builds the book: no PyTorch), `all` (everything, at the locked versions) or
`torch` (PyTorch alone, the newest). On Linux, PyTorch's default build brings gigabytes for GPUs;
the CPU build is asked for instead, of pip and then of uv, which knows where PyTorch keeps it. The
variable TORCH=default asks for the default build; a PyTorch that is there stays.
"""
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.txt"
SIZES = {"book": "What builds the book: about 116 MB to download, 0.5 GB on disk",
         "all": "The whole environment: about 666 MB to download, 2.8 GB on disk"}
LARGE = """\
Neither pip nor uv finds PyTorch's CPU build from here, so its default build comes: with CUDA, about 3 GB to download and 6 GB on
disk. To have the small one, stop (Ctrl-C) and name an index that has it in the variable PIP_EXTRA_INDEX_URL (see README)."""  # noqa: E501


def extra(name: str) -> list[str]:
    "The requirements of one extra of pyproject.toml, without tfmlib and what it needs."
    return tomllib.loads(
        (ROOT / "pyproject.toml").read_text(
            encoding="utf-8"))["project"]["optional-dependencies"][name]


def locked(name: str) -> str:
    "The locked version of a package."
    return re.search(rf"^{name}==([\w.]+)", LOCK.read_text(), re.M)[1]


# --- running pip ----------------------------------------------------------------------------------

class Failed(Exception):
    "A command failed; the text is what it said, if it was a quiet one."


def run(*command, quiet: bool = False, **env: str) -> None:
    "Run a command, which shows itself how far it has come; a quiet one is heard only if it fails."
    heard = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if quiet else {}
    done = subprocess.run([str(c) for c in command], text=True, errors="replace",
                          env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | env, **heard)
    if done.returncode:
        raise Failed((done.stdout or "").strip()[-3000:]
                     or f"{' '.join(map(str, command[:6]))} … failed")


def pip(*what, quiet: bool = False) -> None:
    run(sys.executable, "-m", "pip", "install", *what, quiet=quiet)


# --- PyTorch --------------------------------------------------------------------------------------

def there(version: str) -> bool:
    "Is PyTorch installed, in this version if one is given? Its build does not matter."
    try: found = metadata.version("torch")
    except metadata.PackageNotFoundError: return False
    return version in ("", found.partition("+")[0])


def by_pip(version: str) -> None:
    "The CPU build from pip's own sources, which its local version names. None there is no error."
    if version: pip("--no-deps", f"torch=={version}+cpu", quiet=True)
    else: raise Failed("No matching distribution: a local version belongs to a version")


def by_uv(version: str) -> None:
    "The CPU build from where uv knows it to be; uv itself comes from pip and goes again."
    with tempfile.TemporaryDirectory() as folder:
        pip("--no-deps", "--target", folder, "uv", quiet=True)
        wanted = ["--no-deps", f"torch=={version}" if version else "torch"]
        patience = {name: os.environ.get(name, value)
                    for name, value in (("UV_HTTP_TIMEOUT", "30"), ("UV_HTTP_RETRIES", "1"))}
        run(sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable,
            "--torch-backend", "cpu", *wanted, quiet=True, PYTHONPATH=folder, **patience)


def small_torch(version: str) -> bool:
    "Install the CPU build where the default one is large; is there nothing more to do?"
    if (there(version) or platform.system() != "Linux"
        or os.environ.get("TORCH", "cpu") == "default"):
        return True
    print(f"PyTorch {version or '(the newest)'} in its CPU build: about 190 MB to download",
          flush=True)
    for way in (by_pip, by_uv):
        try: way(version)
        except Failed as error:
            if way is by_pip and "No matching distribution" not in str(error): raise
        else: return True
    return False


# --- for the pages --------------------------------------------------------------------------------

PAGES = {"pyodide": ("Pyodide", "practice pages cannot check answers"),
         "codemirror": ("CodeMirror", "the pages' editors are plain text areas")}


def practice() -> None:
    """Pyodide, with which the pages check answers (6 MB, by npm), and CodeMirror, their editor (0.9
    MB). Without them the book is built all the same."""
    for script, (name, lost) in PAGES.items():
        try: run(sys.executable, ROOT / "extensions" / f"{script}.py", quiet=True)
        except Failed as error:
            why = str(error).strip().split("\n")[-1]
            print(
                f"{name} could not be had ({why}), so {lost}. With a network, `python "
                f"extensions/{script}.py` brings it.", flush=True)


def built() -> str:
    "Which PyTorch is installed, and for what."
    package = metadata.distribution("torch")
    cuda = re.search(r"^cuda\b.*= *'([\d.]+)'",
                     Path(package.locate_file("torch/version.py")).read_text(), re.M)
    return f"PyTorch {package.version}: " + (f"built for CUDA {cuda[1]}" if cuda
                                             else "the CPU build")


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in ("book", "all", "torch"):
        sys.exit(f"WHAT is {sys.argv[1:]}; expected one of: book, all, torch")
    what = sys.argv[1]
    if os.environ.get("TORCH", "cpu") not in ("cpu", "default"):
        sys.exit(f"TORCH is {os.environ['TORCH']!r}; expected cpu or default")
    try:
        if what in SIZES: print(SIZES[what], flush=True)
        if what == "book":
            pip("-c", LOCK, *extra("book"))
            return practice()
        if not small_torch(locked("torch") if what == "all" else ""): print(LARGE, flush=True)
        if what == "all":
            pip("-r", LOCK)
            practice()
        elif not there(""): pip("torch")
    except Failed as error: sys.exit(str(error))
    print(built())


if __name__ == "__main__":
    main()
