"""Run the Colab copies as a reader opens them:
python tools/copies.py [--python PYTHON] [--env FOLDER] [--copies FOLDER] [NAME ...]

Makes a virtual environment of the given Python that holds what INSTALLED lists, at the newest
versions, and nothing else; the set-up cell of the first copy installs the library. The copies are
those in `--copies`. Without it they are those of this checkout, and install the library from a
local repository that holds it. A NAME (04, practice/04) selects copies. nbval runs them from an
empty folder; the exit code is not 0 if any cell of any copy raised an error.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "extensions")]

from pages import notebook_files  # noqa: E402

# the first two are what Colab has; the others run notebooks
INSTALLED = ("torch", "matplotlib", "ipykernel", "nbval")
PEERS = ("transformers", "tokenizers", "onnx")                    # what a reader need not have
LEAKS = ("PYTHON", "JUPYTER", "IPYTHON", "TFM_", "VIRTUAL_ENV", "CONDA", "MPL")
SECONDS = 3600  # that one cell may take: only one that hangs takes as long


def clean(env: dict[str, str], venv: Path) -> dict[str, str]:
    """The environment variables of a reader: without those that could point to this checkout or to
    another kernel."""
    kept = {name: value for name, value in env.items() if not name.startswith(LEAKS)}
    bare = {f"{name}_DIR": str(venv / "empty")
            for name in ("JUPYTER_DATA", "JUPYTER_CONFIG", "JUPYTER_RUNTIME")}
    return kept | bare | {"IPYTHONDIR": str(venv / "empty"),
                          "PATH": f"{venv / 'bin'}{os.pathsep}{env.get('PATH', '')}"}


def environment(python: str, venv: Path) -> Path:
    """The Python of an environment with what INSTALLED lists and without the library, made if it is
    not there."""
    inside = venv / "bin/python"
    if not inside.exists(): subprocess.run([python, "-m", "venv", str(venv)], check=True)
    subprocess.run([inside, "-m", "pip", "install", "-q", *INSTALLED], check=True,
                   env=clean(os.environ, venv))
    subprocess.run([inside, "-m", "pip", "uninstall", "-qy", "tfmlib"], check=True,
                   env=clean(os.environ, venv), stderr=subprocess.DEVNULL)
    return inside


def repository(folder: Path, tag: str) -> str:
    "The address of a new git repository in `folder` whose `tag` holds this checkout's library."
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("tfmlib", "pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else: shutil.copy(source, folder / name)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "The library"], ["tag", tag]):
        subprocess.run([*git, *command], check=True)
    return folder.resolve().as_uri()


def written(out: Path) -> Path:
    "The copies of this checkout in `out`, stamped with the address of a repository beside them."
    import colab
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    colab.write(ROOT, out, repository(out.with_name("repository"), f"v{version}"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable,
                        help="what the environment is made with")
    parser.add_argument("--env", type=Path, default=ROOT / "build/copies/env",
                        help="its folder; made if it is not there")
    parser.add_argument("--copies", type=Path, help="the folder of the copies")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    folder = (given.copies or written(ROOT / f"build/copies/of-{given.env.name}/colab")).resolve()
    every = sorted(str(p.relative_to(folder)) for p in notebook_files(folder))
    names = [n for n in every if not given.names
             or any(n.startswith(f"chapters/{wanted}") for wanted in given.names)]
    if not names:
        parser.error(f"no copy in {folder} is called {' or '.join(given.names) or 'anything'}")
    python, env = (environment(given.python, given.env.absolute()),
                   clean(os.environ, given.env.absolute()))
    flags = ["-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider",
             "--durations=10", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout",
             str(SECONDS)]
    with tempfile.TemporaryDirectory() as empty:
        failed = subprocess.run([python, "-m", "pytest", *flags,
                                 *(folder / name for name in names)], cwd=empty, env=env).returncode
    said = subprocess.run([python, "-c",
                           "import sys, importlib.metadata as m; print(sys.version.split()[0], "
                           "m.version('torch'))"], capture_output=True, text=True, env=env)
    print(
        f"{len(names)} copies, Python and PyTorch {said.stdout.strip()}: "
        f"{'FAILED' if failed else 'passed'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
