"""Write the repository's address where it is used:
python tools/address.py https://github.com/NAME/REPOSITORY

It stands once, in `_config.yml` (repository.url). What derives from it is stamped here: the
published book's address, the package's links, the citation, the clone line and badges of the
README. An empty address takes all of it away again.
"""
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SHAPE = re.compile(r"https://github\.com/([A-Za-z0-9][A-Za-z0-9-]*)/(?!\.\.?$)([A-Za-z0-9._-]+)")
SECTION, MARKED = (r'^({}:\n(?:[ #].*\n|\n)*?  {}: )"[^"\n]*"()',
                   r"^(<!-- address: {} -->\n)(?:(?!<!--).*\n)*?(<!-- end -->\n)")
# a file, the place in it between two groups, what stands there once there is an address, what
# stands there before
PLACES = [
    ("_config.yml", SECTION.format("repository", "url"), '"{url}"', '""'),
    ("_config.yml", SECTION.format("html", "baseurl"), '"{book}"', '""'),
    ("pyproject.toml",
     r"()(?:^\[project\.urls\]\n(?:\w.*\n)*\n)?(^\[project\.optional-dependencies\]\n)",
     '[project.urls]\nBook = "{book}"\nSource = "{url}"\nIssues = "{url}/issues"\n\n', ""),
    ("CITATION.cff", r"(^license: .*\n)(?:repository-code: .*\nurl: .*\n)?()",
     "repository-code: {url}\nurl: {book}\n", ""),
    ("README.md", MARKED.format("badges"),
     "[Read the book]({book}) · "
     "[![proof]({url}/actions/workflows/proof.yml/badge.svg)]({url}/actions/workflows/proof.yml)\n",
     ""),
    ("README.md", MARKED.format("clone"), "```sh\ngit clone {url}\ncd {name}\n```\n", "")]
FILES = tuple(dict.fromkeys(file for file, *_ in PLACES))


def derived(url: str) -> dict[str, str]:
    "What follows from the address of a repository on GitHub; nothing from an empty one."
    if not url: return {}
    m = SHAPE.fullmatch(url.strip().rstrip("/").removesuffix(".git"))
    if not m:
        raise ValueError(
            f"URL is {url!r}; expected the address of a repository, "
            "https://github.com/NAME/REPOSITORY, or nothing")
    host = f"{m[1].lower()}.github.io"
    return {"url": m[0], "name": m[2],
            "book": f"https://{host}/" if m[2].lower() == host else f"https://{host}/{m[2]}/"}


def current(root: Path) -> str:
    "The address that `_config.yml` holds."
    return yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]


def stamped(root: Path, url: str) -> dict[Path, str]:
    "The text of each file with an address in it."
    found, texts = derived(url), {root / name: (root / name).read_text() for name in FILES}
    for name, place, made, before in PLACES:
        said = made.format(**found) if found else before
        texts[root / name], times = re.subn(place, lambda m, said=said: m[1] + said + m[2],
                                            texts[root / name], flags=re.M)
        if times != 1:
            raise ValueError(
                f"{name}: expected the place of {made.strip()!r} once, found it {times} times")
    return texts


def main(url: str = "") -> None:
    try: texts = stamped(ROOT, url)  # all or none: nothing is written if one fails
    except ValueError as error: sys.exit(str(error))
    for path, text in texts.items(): path.write_text(text)
    print(f"The address is {url}" if url else "The address is taken away")


if __name__ == "__main__":
    main(*sys.argv[1:])
