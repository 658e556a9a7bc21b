"""The address stands once; what derives from it is stamped, and taken away without a trace."""
import re
import shutil
import tomllib
from pathlib import Path

import address
import pytest
import yaml
from conftest import ROOT, tracked

URL = "https://github.com/some-one/some.book"
STRAY = re.compile(
    r"https?://[\w.-]*\.github\.io|colab\.research\.google\.com/github/\w|git\+(https?|ssh)://|git@github\.com|"
    r"github\.com/[\w.-]+/[\w.-]*(executable|tfmlib)|raw\.githubusercontent\.com|mybinder\.org|shields\.io", re.I)  # noqa: E501
MAKERS = {"tools/address.py", "tools/colab.py", "tests/site/test_address.py",
          "tests/site/test_colab.py", "references.bib"}


def strays(names: list[str], root: Path = ROOT) -> list[str]:
    "Places where an address stands that nobody stamped."
    own = address.derived(address.current(root))
    known = re.compile("|".join(re.escape(own[name].rstrip("/")) for name in ("url", "book")
                                if own) or r"(?!)")
    found = []
    for name in set(names) - MAKERS:
        text = (root / name).read_text(errors="ignore")
        text = known.sub("", text) if name in address.FILES else text
        found += [f"{name}: {m[0]}" for m in (STRAY.search(text), own and known.search(text)) if m]
    return found


@pytest.fixture
def copy(tmp_path):
    "The stamped files alone, without an address."
    for name in address.FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path, "")
    return tmp_path


def write(root: Path, url: str) -> dict[str, str]:
    for path, text in address.stamped(root, url).items():
        path.write_text(text)
    return {name: (root / name).read_text() for name in address.FILES}


def test_no_stray_address():
    assert strays(tracked()) == []


@pytest.mark.parametrize("planted", ["git clone https://github.com/a/executable-transformer",
                                     "https://a.github.io/book/",
                                     "https://colab.research.google.com/github/a/b/blob/colab/x.ipynb", "pip install git+https://x.org/y"])  # noqa: E501
def test_a_planted_address_is_found(copy, planted):
    (copy / "page.md").write_text(f"See {planted}.")
    assert strays(["page.md"], copy)


def test_an_address_outside_the_stamped_files_is_found(copy):
    write(copy, URL)
    (copy / "page.md").write_text(f"[source]({URL}/tree/main)")
    assert strays(["page.md", *address.FILES], copy) == [f"page.md: {URL}"]


def test_tree_agrees_with_its_address():
    "Whatever the address is, every file says what it would be stamped with."
    for path, text in address.stamped(ROOT, address.current(ROOT)).items():
        assert path.read_text() == text, f"{path.name}: run `make address URL={address.current(ROOT)}`"  # noqa: E501


def test_stamped_taken_away_and_idempotent(copy):
    before = {name: (copy / name).read_text() for name in address.FILES}
    once = write(copy, URL)
    assert all(once[name] != before[name] for name in address.FILES)
    assert write(copy, URL) == once
    write(copy, "https://github.com/other/book")
    assert write(copy, "") == before


def test_what_is_stamped(copy):
    made = write(copy, URL + ".git/")
    book = "https://some-one.github.io/some.book/"
    settings = yaml.safe_load(made["_config.yml"])
    assert (settings["repository"]["url"], settings["html"]["baseurl"]) == (URL, book)
    assert (made["_config.yml"].count("#")
            == (ROOT / "_config.yml").read_text().count("#")), "comments are kept"
    assert (tomllib.loads(made["pyproject.toml"])["project"]["urls"]
            == {"Book": book, "Source": URL, "Issues": URL + "/issues"})
    cited = yaml.safe_load(made["CITATION.cff"])
    assert (cited["repository-code"], cited["url"]) == (URL, book)
    assert (f"git clone {URL}\ncd some.book\n" in made["README.md"]
            and f"{URL}/actions/workflows/proof.yml/badge.svg" in made["README.md"])
    assert address.current(copy) == URL
    # a personal page is at its root
    assert (address.derived("https://github.com/Ann/ann.github.io")["book"]
            == "https://ann.github.io/")


@pytest.mark.parametrize("url", ["github.com/a/b", "http://github.com/a/b", "https://github.com/a",
                                 "https://example.org/a/b",
                                 "https://github.com/a/b/tree/main", "https://github.com/a b/c",
                                 "git@github.com:a/b.git",
                                 "https://github.com/a/b?x=1", 'https://github.com/a/b"',
                                 "https://github.com/a/.."])
def test_a_wrong_address_is_refused(url):
    with pytest.raises(ValueError, match=r"URL is .*expected the address of a repository, "
                                         r"https://github.com/NAME/REPOSITORY"):
        address.derived(url)


def test_a_lost_place_is_an_error_and_nothing_is_written(copy):
    (copy / "README.md").write_text("# No markers\n")
    with pytest.raises(ValueError, match=r"README.md: expected the place of .*Read the book.* "
                                         r"once, found it 0 times"):
        address.stamped(copy, URL)
