"""Write the repository's address where it is used: python tools/address.py https://github.com/NAME/REPOSITORY

It stands once, in `_config.yml` (repository.url). What derives from it is stamped here: the published book's address, the
package's links, the citation, the clone line and badges of the README. An empty address takes all of it away again.
"""
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPE = re.compile(r"https://github\.com/([A-Za-z0-9][A-Za-z0-9-]*)/([A-Za-z0-9._-]+)")


@dataclass(frozen=True)
class Address:
    "A repository on GitHub and what follows from it; empty where there is none."
    owner: str = ""
    name: str = ""

    @property
    def url(self) -> str:
        return f"https://github.com/{self.owner}/{self.name}" if self.owner else ""

    @property
    def book(self) -> str:
        "Where Pages publishes the book."
        host = f"{self.owner.lower()}.github.io"
        if not self.owner:
            return ""
        return f"https://{host}/" if self.name.lower() == host else f"https://{host}/{self.name}/"


def read(url: str) -> Address:
    "The address that a URL gives; the empty text gives the empty address."
    if not url:
        return Address()
    m = SHAPE.fullmatch(url.strip().rstrip("/").removesuffix(".git"))
    if not m or m[2] in (".", ".."):
        raise ValueError(f"URL is {url!r}; expected the address of a repository, https://github.com/NAME/REPOSITORY, or nothing")
    return Address(m[1], m[2])


def replace(pattern: str, new: Callable[[re.Match], str], text: str, what: str) -> str:
    "Replace the one place where `pattern` matches."
    text, times = re.subn(pattern, new, text, flags=re.M)
    if times != 1:
        raise ValueError(f"expected {what} once, found it {times} times")
    return text


def config(text: str, address: Address) -> str:
    "_config.yml: the repository and the published book."
    for section, key, value in (("repository", "url", address.url), ("html", "baseurl", address.book)):
        pattern = rf'^({section}:\n(?:[ #].*\n|\n)*?  {key}: )(?:"[^"\n]*"|[^\s#]*)'
        text = replace(pattern, lambda m, v=value: f'{m[1]}"{v}"', text, f"{section}.{key}")
    return text


def project(text: str, address: Address) -> str:
    "pyproject.toml: the package's links."
    text = re.sub(r"^\[project\.urls\]\n(?:\w.*\n)*\n?", "", text, flags=re.M)
    if not address.url:
        return text
    links = f'[project.urls]\nBook = "{address.book}"\nSource = "{address.url}"\nIssues = "{address.url}/issues"\n\n'
    return replace(r"^\[project\.optional-dependencies\]\n", lambda m: links + m[0], text, "the table [project.optional-dependencies]")


def citation(text: str, address: Address) -> str:
    "CITATION.cff: where the book and its source are."
    text = re.sub(r"^(repository-code|url): .*\n", "", text, flags=re.M)
    return text + (f"repository-code: {address.url}\nurl: {address.book}\n" if address.url else "")


def readme(text: str, address: Address) -> str:
    "README.md: badges and the clone line, between markers."
    badges = (f"[Read the book]({address.book}) · "
              f"[![proof]({address.url}/actions/workflows/proof.yml/badge.svg)]({address.url}/actions/workflows/proof.yml)\n")
    clone = f"```sh\ngit clone {address.url}\ncd {address.name}\n```\n"
    for name, made in (("badges", badges), ("clone", clone)):
        pattern = rf"^(<!-- address: {name} -->\n)(?:(?!<!--).*\n)*?(<!-- end -->\n)"
        text = replace(pattern, lambda m, v=made: m[1] + (v if address.url else "") + m[2], text, f"the place of the {name}")
    return text


FILES = {"_config.yml": config, "pyproject.toml": project, "CITATION.cff": citation, "README.md": readme}


def current(root: Path) -> Address:
    "The address that `_config.yml` holds."
    m = re.search(r'^repository:\n(?:[ #].*\n|\n)*?  url: "?([^"\s#]*)', (root / "_config.yml").read_text(), re.M)
    return read(m[1] if m else "")


def stamped(root: Path, address: Address) -> dict[Path, str]:
    "The text of each file with `address` in it."
    return {root / name: stamp((root / name).read_text(), address) for name, stamp in FILES.items()}


def main(url: str = "") -> None:
    try:
        address = read(url)
        texts = stamped(ROOT, address)                                # all or none: nothing is written if one fails
    except ValueError as error:
        sys.exit(str(error))
    for path, text in texts.items():
        path.write_text(text)
    print(f"The address is {address.url}; the book's is {address.book}" if url else "The address is taken away")


if __name__ == "__main__":
    main(*sys.argv[1:])
