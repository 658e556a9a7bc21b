"""Open the notebooks in JupyterLab, where they find `tfmlib`:
python tools/lab.py [--read] [JUPYTERLAB'S OPTIONS]

Without --read, the chapters themselves, to be edited. With it, clean copies in the folder
`reading`, to be read and tried out: a copy that you have changed stays as you left it, the others
follow the chapters.
"""
import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "extensions"))

from pages import notebook_files  # noqa: E402

READING = ROOT / "reading"
WRITTEN = ".written.json"  # in the folder of the copies: what each was when it was written
EDIT = """\
These are the sources of the book, as contributors edit them: what the pages resolve ({glue:text}, {cite:p}, :::, #| export) shows as it
is typed, and nothing is folded. To read, use `make read` (python tools/lab.py --read), or `make book` for the book itself.
"""  # noqa: E501


def digest(path: Path) -> str:
    "What a file holds, in short."
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refresh(made: Path, reading: Path) -> list[str]:
    """Bring the copies in `made` to `reading`, but leave alone those that the reader has changed;
    return their names."""
    record = reading / WRITTEN
    before = json.loads(record.read_text()) if record.is_file() else {}
    names = sorted(p.relative_to(made).as_posix() for p in notebook_files(made))
    kept = [name for name in names if (reading / name).is_file()
            and digest(reading / name) != before.get(name)]
    for name in set(names) - set(kept):
        (reading / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / name, reading / name)
    record.write_text(json.dumps({name: digest(made / name) for name in names if name not in kept},
                                 indent=1) + "\n")
    return kept


def copies(reading: Path = READING) -> None:
    "Write the clean copies, and say which were left as the reader had them."
    import colab
    print("Writing the clean copies of the chapters (half a minute) …", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "copies"
        colab.write(ROOT, made)
        reading.mkdir(exist_ok=True)
        kept = refresh(made, reading)
    if kept: print(f"Left as you changed them (delete one to have it anew): {', '.join(kept)}")


def environment(given: dict[str, str]) -> dict[str, str]:
    """What a kernel needs: this checkout's library, wherever the notebook lies, and the kernel of
    this Python before any of the user's."""
    paths = [str(ROOT), *filter(None, [given.get("PYTHONPATH")])]
    return given | {"PYTHONPATH": os.pathsep.join(paths), "JUPYTER_PREFER_ENV_PATH": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", action="store_true", help="clean copies instead of the sources")
    given, options = parser.parse_known_args()
    if given.read: copies()
    else: print(EDIT, flush=True)
    from jupyterlab.labapp import main as lab
    os.environ.update(environment(dict(os.environ)))
    # in a container, where nobody else is
    if getattr(os, "geteuid", lambda: 1)() == 0: options.append("--allow-root")
    start = ["--LabApp.default_url=/lab/tree/01_recurrence.ipynb"] if given.read else []
    sys.exit(lab([str(READING / "chapters" if given.read else ROOT / "chapters"), *start,
                  *options]))


if __name__ == "__main__":
    main()
