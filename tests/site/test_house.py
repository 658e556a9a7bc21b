"""The house: its commands run as written, its licences and lock are whole, its papers say what
is."""
import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import prove
import pytest
import yaml
from conftest import ROOT, serving, tracked
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pybtex.database import parse_file
from test_defects import small

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# what installs packages is not locked with them
TOOLS = {"pip", "setuptools"}
HOLDER = "The Executable Transformer authors"


def read(name: str) -> str:
    return (ROOT / name).read_text()


def dry(*targets: str) -> str:
    "What make would run for `targets` from nothing."
    done = subprocess.run(["make", "--no-print-directory", "-nB", *targets, "VENV=.venv",
                           "PYTHON=python3"], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the two commands -----------------------------------------------------------------------------

def commands(text: str) -> list[str]:
    "The command lines of a page's sh blocks."
    return [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
            for line in block.splitlines()]


def test_readme_gives_the_two_commands():
    given = [c for c in commands(read("README.md")) if not c.startswith(("git clone ", "cd "))]
    of_library = [c.split()[3] for c in given if c.startswith("python -m tfmlib ")]
    assert ([c for c in given if not c.startswith("python -m tfmlib ")]
            == ["make book", "make test", "make help"])
    assert (len(of_library) > 2 and {*of_library}
            <= {*re.findall(r'^    "(\w+)": \(', read("tfmlib/__main__.py"), re.M)})


def test_make_help_explains_every_target():
    "`make help`, as README writes it."
    shown = subprocess.run("make help", shell=True, cwd=ROOT, text=True, capture_output=True,
                           check=True).stdout
    explained = dict(re.findall(r"^  make ([\w-]+) +(\S.*)$", shown, re.M))
    promised = {"setup", "book", "test", "check", "lab", "read", "execute", "export", "colab",
                "exercises", "bench", "bench-gpu", "address", "clean"}
    assert promised - set(explained) == set()
    assert read("Makefile").count("##") - 2 <= len(explained), "a target's explanation is not shown"


def test_test_and_ci_run_the_proof():
    assert dry("test").strip().split("\n")[-1].strip().endswith("tools/prove.py")
    assert read(".ci/run").strip().endswith("make test")


def test_contributing_fits_one_screen_and_gives_the_same_commands_without_make():
    assert len(read("CONTRIBUTING.md").splitlines()) <= 50
    rows = re.findall(r"^\| `make ([^`]+)` \| (.+) \|$", read("CONTRIBUTING.md"), re.M)
    assert ({"setup", "book", "check", "test", "lab", "export", "colab"}
            <= {target for target, _ in rows})
    for target, without in rows:
        made = dry(*target.split()).replace("pip install -q", "pip install")
        for command in re.findall(r"`((?:python3|\.venv/bin/)[^`]+)`", without):
            assert command in made, f"make {target} does not run {command!r}"


@pytest.mark.slow
def test_make_book_serves_the_book(clone):
    """`make book`, as README writes it: the address it prints gives the front page. (Of a small
    book: that the whole one can be built, the proof shows.)"""
    shutil.rmtree(clone / "chapters")
    small(clone)
    with serving("make book", clone, r"http://localhost:\d+/") as found:
        page = urllib.request.urlopen(found, timeout=120).read().decode()
    assert "<h1>A small book" in page and "<title>The Executable Transformer" in page


# --- licences, citation ---------------------------------------------------------------------------

def test_licences():
    code, text = read("LICENSE"), read("LICENSE-TEXT")
    assert code.startswith("MIT License") and HOLDER in code
    assert HOLDER in text and "Attribution 4.0 International Public License" in text
    assert (re.findall(r"^Section (\d) –", text, re.M)
            == list("12345678")), "the legal code is not whole"


@pytest.mark.slow
def test_wheel_carries_licences_and_assets(clone, tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, clone]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        about = wheel.read(next(n for n in names if n.endswith("dist-info/METADATA"))).decode()
    assert "License-Expression: MIT AND CC-BY-4.0" in about
    assert {Path(n).name for n in names if "/licenses/" in n} == {"LICENSE", "LICENSE-TEXT"}
    assert ({n for n in tracked() if n.startswith("tfmlib/")} - set(names)
            == set()), "the wheel lacks a part of tfmlib"


def test_citation():
    cited = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title"} <= set(cited)
    assert (cited["version"], cited["license"]) == (PROJECT["version"], "MIT")
    assert cited["authors"] == PROJECT["authors"] == [{"name": HOLDER}]


# --- the lock -------------------------------------------------------------------------------------

def locked(text: str) -> dict[str, Version]:
    "Name to version; anything but `name==version` is an error."
    pairs = [re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][\w.]*)(?: *;.*)?", line)
             for line in text.splitlines() if line.strip()]
    assert all(pairs), "a line of the lock is not `name==version`"
    return {canonicalize_name(m[1]): Version(m[2]) for m in pairs}


def direct() -> list[Requirement]:
    "What pyproject asks for, extras included."
    return [Requirement(r) for group in [PROJECT["dependencies"],
                                         *PROJECT["optional-dependencies"].values()] for r in group]


def unmet(lock: dict[str, Version], python: str) -> list[str]:
    """What the locked packages ask for on this Python and the lock does not give, from the
    metadata of those installed here."""
    environment = (default_environment()
                   | {"python_version": python, "python_full_version": f"{python}.9", "extra": ""})
    faults = []
    for dist in metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"])
        if lock.get(name) != Version(Version(dist.version).public):
            continue
        if not SpecifierSet(dist.metadata.get("Requires-Python") or "").contains(f"{python}.9"):
            faults.append(f"{name} does not run on Python {python}")
        for needed in map(Requirement, dist.requires or []):
            if needed.name in TOOLS or needed.marker and not needed.marker.evaluate(environment):
                continue
            version = lock.get(canonicalize_name(needed.name))
            if version is None or not needed.specifier.contains(version, prereleases=True):
                faults.append(f"{name} needs {needed}, the lock has {version}")
    return faults


def test_lock_holds_every_direct_dependency_within_its_range():
    lock = locked(read("requirements.txt"))
    for asked in direct():
        name = canonicalize_name(asked.name)
        assert name in lock, f"{name} is not locked: run `make lock`"
        assert asked.specifier.contains(
            lock[name]), f"{name}: {lock[name]} is outside {asked.specifier}"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_lock_fits_together(python):
    lock = locked(read("requirements.txt"))
    installed = {canonicalize_name(d.metadata["Name"]) for d in metadata.distributions()}
    if len(set(lock) - installed) > 3:
        pytest.skip("this environment is not the lock's")
    assert unmet(lock, python) == []


def test_a_wrong_lock_is_noticed():
    lock = locked(read("requirements.txt"))
    assert any("jinja2" in fault
               for fault in unmet({n: v for n, v in lock.items() if n != "jinja2"}, "3.12"))
    assert any("docutils" in fault for fault in unmet(lock | {"docutils": Version("0.1")}, "3.13"))
    assert any("does not run on Python 3.6" in fault for fault in unmet(lock, "3.6"))
    with pytest.raises(AssertionError):
        locked("numpy>=2")


def test_ranges_are_wide():
    "What a reader installs beside the book has a lower bound and no pin."
    for asked in map(Requirement, PROJECT["dependencies"]):
        assert {s.operator for s in asked.specifier} == {">="}, asked


# --- nothing of the place where it was made -------------------------------------------------------

PLACES = re.compile("|".join([r"pypi\.(org|io)", r"pythonhos" r"ted", r"registry\.npm" r"js",
                              r"download\.pyto" r"rch\.org", r"/simple/\w",
                              r"(?<![\w.:/-])/(root|home/\w+|opt|srv|mnt|work|builds)/[\w.]",
                              r"file:///(?!nowhere)\w"]))


def test_no_file_names_a_registry_or_a_path_of_this_machine():
    found = [f"{name}: {m[0]}" for name in set(tracked()) - {"tests/site/test_house.py"}
             if (m := PLACES.search((ROOT / name).read_text(errors="ignore")))]
    assert found == []


@pytest.mark.parametrize("text", ["see /srv/book/x.py", 'File "/root/a.py"',
                                  "pip install --index-url https://example.org/simple/x",
                                  "https://pypi" + ".org", "/home/ann/b"])
def test_a_planted_place_is_found(text):
    assert PLACES.search(text)


# --- workflows, templates -------------------------------------------------------------------------

WORKFLOWS = {p.stem: yaml.safe_load(p.read_text())
             for p in (ROOT / ".github/workflows").glob("*.yml")}


def steps(workflow: str, job: str) -> list[dict]:
    return WORKFLOWS[workflow]["jobs"][job]["steps"]


def test_proof_runs_what_readme_says():
    """Its stages, in three jobs beside each other; what has passed is kept from run to run. On
    the other Pythons, the wheel, the cells and the library."""
    jobs = WORKFLOWS["proof"]["jobs"]
    def run(job): return [s["run"] for s in jobs[job]["steps"] if "run" in s]
    shards = jobs["exact"]["strategy"]["matrix"]["stages"]
    assert (sorted(" ".join(shards).split()) == sorted(prove.STAGES) and run("exact")
            == ['make test STAGES="${{ matrix.stages }}"'])
    assert (run("lax") == ['make test STAGES="wheel notebooks library"']
            and dry("test",
                    "STAGES=wheel notebooks").strip().endswith("tools/prove.py wheel notebooks"))
    assert "TFM_LAX" not in jobs["exact"].get("env", {}) and jobs["lax"]["env"]["TFM_LAX"] == "1"
    assert steps("proof", "exact")[1]["with"]["python-version"] == "3.11"
    for job in jobs:
        [kept] = [s["with"] for s in steps("proof", job)
                  if s.get("uses", "").startswith("actions/cache@")]
        assert kept["path"] == str(prove.PASSED.relative_to(ROOT)) and "restore-keys" in kept
    assert jobs["lax"]["strategy"]["matrix"]["python"] == ["3.12", "3.13"]
    # YAML reads the key `on` as True
    assert set(WORKFLOWS["proof"][True]) >= {"push", "pull_request"}


def test_publishing_follows_the_proof():
    assert WORKFLOWS["publish"][True]["workflow_run"]["workflows"] == [WORKFLOWS["proof"]["name"]]
    assert "conclusion == 'success'" in WORKFLOWS["publish"]["jobs"]["build"]["if"]
    assert any("HEAD:colab" in s.get("run", "") and "--force" in s["run"]
               for s in steps("publish", "colab"))


def test_weekly_is_unpinned_and_dates_the_front_page():
    runs = "\n".join(s.get("run", "") for job in WORKFLOWS["weekly"]["jobs"].values()
                     for s in job["steps"])
    assert ("schedule" in WORKFLOWS["weekly"][True] and "requirements.txt" not in runs
            and "make " not in runs)
    assert "tools/install.py torch\n" in runs, "the CPU build, not gigabytes for GPUs"
    assert "origin/colab" in runs and "> last_passed.json" in runs
    assert (set(WORKFLOWS["weekly"]["jobs"]["record"]["needs"])
            == {"newest", "processors", "compilers", "answers", "copies"})
    assert "tools/prove.py --whole --fresh" in runs, "the proof on a push leaves out the sweeps"
    written = re.search(r"printf '(\{.*?\})\\n'", runs)[1].replace("%s", "x")
    assert "date" in json.loads(written)


@pytest.mark.parametrize("name", ["proof", "publish", "weekly"])
def test_workflows_ask_for_little(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"} and workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        assert all(re.fullmatch(r"[\w/-]+@v\d+", s["uses"]) for s in job["steps"] if "uses" in s)
        assert all(("run" in s) != ("uses" in s) for s in job["steps"])


@pytest.mark.parametrize("script", [s["run"] for w in WORKFLOWS.values() for j in w["jobs"].values()
                                    for s in j["steps"] if "run" in s])
def test_workflow_scripts_parse(script):
    assert (subprocess.run(["bash", "-n"], input=re.sub(r"\$\{\{.*?\}\}", "x", script),
                           text=True).returncode == 0)


@pytest.mark.parametrize("name", ["mistake", "exercise"])
def test_issue_templates_ask_for_chapter_and_cell(name):
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    asked = {f["id"] for f in form["body"] if f.get("validations", {}).get("required")}
    assert {"chapter", "cell"} <= asked and {"name", "description"} <= set(form)


def test_devcontainer():
    box = json.loads(read(".devcontainer/devcontainer.json"))
    assert "3.11" in box["image"] and box["postCreateCommand"] == "make setup"
    assert (box["remoteEnv"]["PYTHONPATH"]
            == "${containerWorkspaceFolder}"), "a kernel that the editor starts beside its notebook must find tfmlib"  # noqa: E501


# --- papers ---------------------------------------------------------------------------------------

def test_map_of_the_house():
    "Each place that README's map names is there, and each folder of the house is in it."
    drawn = re.search(r"## The map of the house\n\n```\n(.*?)```", read("README.md"), re.S)[1]
    named = [n for line in drawn.splitlines() if not line.startswith("  ")
             for n in line[:21].split()]
    assert all((ROOT / n).exists() for n in named), [n for n in named if not (ROOT / n).exists()]
    folders = {n.split("/")[0] for n in tracked() if "/" in n}
    assert folders - {n.split("/")[0] for n in named} - {".devcontainer"} == set()


def test_picture_is_small_and_said_in_words():
    alt, path = re.search(r"!\[([^\]]+)\]\(([^)]+)\)", read("README.md")).groups()
    assert len(alt) > 40 and (ROOT / path).stat().st_size < 60_000


def table(page: str, heading: str) -> list[list[str]]:
    "The rows of the first table under a heading."
    part = read(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines()
            if line.startswith("|")][2:]


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


CHAPTERS = {numbers(row[0])[0]: row
            for row in table("about/teaching.md", "The chapters and what they need")}


HELPS = re.compile(r"\bhelps?\b|baseline|one check|taken? as given|take both")


def asked_first(chapter: int) -> tuple[set[int], set[int]]:
    """The chapters that a path page names under *You need first*: those it needs, and those of
    which it says that they help."""
    [path] = (ROOT / "chapters").glob(f"{chapter:02}_*.ipynb")
    said = re.search(r"\*You need first:\*(.*?)\*Time",
                     "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]),
                     re.S)[1]
    parts = [(set(map(int, re.findall(r"\{doc\}`(\d\d)_", part))) - {0}, HELPS.search(part))
             for part in re.split(r";|\.\s|, (?=`?\{doc\}`\d\d_\w+` helps)", said)]
    return tuple(set().union(*(found for found, helps in parts if bool(helps) == kind))
                 for kind in (False, True))


def test_the_table_of_prerequisites_is_what_the_pages_say():
    """What a page needs first, it needs in the table, itself or through another chapter; and the
    table asks for nothing else, and for nothing that comes later."""
    through = {}
    assert list(CHAPTERS) == list(range(1, 23))
    for chapter, row in CHAPTERS.items():
        direct = set(numbers(row[1]))
        assert all(n < chapter for n in numbers(row[1]) + numbers(row[2])), row
        through[chapter] = direct.union(*(through[n] for n in direct))
        needs, helps = asked_first(chapter)
        assert needs <= through[chapter], f"chapter {chapter} needs {needs - through[chapter]}"
        assert direct <= needs, f"chapter {chapter} does not say that it needs {direct - needs}"
        assert helps <= through[chapter] | set(numbers(row[2])), f"chapter {chapter}: {helps} help"


def test_chapters_are_linked():
    for chapter, row in CHAPTERS.items():
        [path] = (ROOT / "chapters").glob(f"{chapter:02}_*.ipynb")
        assert f"](../{path.relative_to(ROOT)})" in row[0]


def too_early(order: list[int]) -> list[int]:
    "The chapters of a course that come before what they need, or a second time."
    return [n for i, n in enumerate(order)
            if n in order[:i] or not {*numbers(CHAPTERS[n][1])} <= {*order[:i]}]


@pytest.mark.parametrize("title, weeks", [("Four weeks", 4), ("Twelve weeks", 12)])
def test_syllabi_respect_the_prerequisites(title, weeks):
    rows = table("about/teaching.md", title)
    assert [numbers(row[0])[0] for row in rows] == list(range(1, weeks + 1))
    order = [n for row in rows for n in numbers(row[1])]
    assert too_early(order) == [] and (weeks == 4 or set(order) == set(CHAPTERS))


def test_glossary_is_one_sentence_a_word():
    entries = re.findall(r"^(\S.*)\n  (\S.*)$",
                         "\n".join(re.findall(r":sorted:\n(.*?)```", read("about/glossary.md"),
                                              re.S)), re.M)
    words = [word.lower() for word, _ in entries]
    assert len(words) == len(set(words)) > 40
    for word, meaning in entries:
        assert meaning.endswith(".") and ". " not in meaning, word


def test_bibliography_keys():
    """A key is the first author's name, the year and perhaps a letter; each work can be found by
    its entry."""
    for key, entry in parse_file(str(ROOT / "references.bib")).entries.items():
        first = "".join(str(n) for n in entry.persons["author"][0].rich_last_names)
        assert re.fullmatch(re.sub(r"[^a-z]", "", first.lower()) + entry.fields["year"]
                            + "[b-z]?", key), key
        assert {"doi", "eprint", "url", "publisher", "pages", "number"} & set(entry.fields), key


def test_the_routes_of_the_front_page_respect_the_prerequisites():
    "One day with chapters 4 and 10 left out what they need."
    routes = [[int(name[:2]) for name in route.split() if name[:2] != "00"]
              for route in re.findall(r"\{minutes\}`([^`]+)`", read("index.md"))]
    assert len(routes) > 1 and [route for route in routes if too_early(route)] == []
