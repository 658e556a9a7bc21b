"""Setting up: which Python, which PyTorch, and nothing is called done that failed."""
import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import install
import pytest
from conftest import ROOT

OLD = """#!/bin/sh
exec {python} -c 'import runpy, sys; sys.version_info = (3, 10, 13, "final", 0); {more} runpy.run_path(sys.argv[1], run_name="__main__")' "$@"
"""  # noqa: E501
BROKEN = """#!/bin/sh
case "$1" in tools/version.py) exit 0;; *) echo "no network here" >&2; exit 1;; esac
"""


@pytest.fixture
def house(tmp_path) -> Path:
    "The Makefile and its tools, without an environment."
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools",
                    ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make(house: Path, *what: str) -> subprocess.CompletedProcess:
    # an outer make's
    env = {name: value for name, value in os.environ.items()
           if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "VENV", "PYTHON", "TORCH")}
    return subprocess.run(["make", "--no-print-directory", *what], cwd=house, text=True,
                          capture_output=True, timeout=120, env=env)


# --- which Python ---------------------------------------------------------------------------------

def test_an_old_python_is_refused_in_one_sentence(house):
    old = script(house / "python3.10",
                 OLD.format(python=sys.executable, more='sys.prefix = sys.base_prefix = "/usr";'))
    for _ in range(2):
        done = make(house, "book", f"PYTHON={old}")
        said = [line for line in done.stderr.splitlines() if not re.match(r"make(\[\d+\])?:", line)]
        assert done.returncode != 0 and len(said) == 1, done.stderr
        assert (said[0].startswith(
            "The book needs Python 3.11 or later, and this is Python 3.10.13 (")
                and "make book PYTHON=python3.12" in said[0])
        assert not (house / ".venv").exists()


def test_an_environment_of_an_old_python_is_refused_even_if_it_was_stamped(house):
    script(house / ".venv/bin/python",
           OLD.format(python=sys.executable,
                      more='sys.prefix, sys.base_prefix = "/there/.venv", "/usr";'))
    for stamp in (".book", ".all"): (house / ".venv" / stamp).touch()
    for target in ("book", "test", "lab"):
        done = make(house, target)
        assert (done.returncode != 0
                and "the environment .venv was made by Python 3.10.13; remove it (rm -rf .venv)" in done.stderr), done.stderr  # noqa: E501


def test_the_oldest_python_is_the_one_that_pyproject_asks_for():
    source = (ROOT / "tools/version.py").read_text()
    [needed] = [ast.literal_eval(n.value) for n in ast.parse(source).body
                if isinstance(n, ast.Assign) and n.targets[0].id == "NEEDED"]
    assert (tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
            == ">={}.{}".format(*needed))
    assert not [n for n in ast.walk(ast.parse(source))
                if isinstance(n, ast.JoinedStr | ast.NamedExpr
                              | ast.AnnAssign)], "an old Python could not read it"


# --- nothing is called done that failed -----------------------------------------------------------

@pytest.mark.parametrize("target, stamp", [("book", ".book"), ("setup", ".all")])
def test_what_failed_is_not_stamped(house, target, stamp):
    script(house / ".venv/bin/python", BROKEN)
    for _ in range(2):
        done = make(house, target)
        assert (done.returncode != 0 and "no network here" in done.stderr
                and not (house / ".venv" / stamp).exists())


def test_an_environment_that_could_not_be_made_is_not_taken_for_one(house):
    "As on Debian without python3-venv: a Python is left there, but no pip."
    half = script(house / "python3.12", 'case "$1" in -m) mkdir -p $3/bin; touch $3/bin/python '
                                        '$3/bin/python3; exit 1;; esac')
    for _ in range(2):
        assert make(house, "book", f"PYTHON=sh {half}").returncode != 0
        assert (house / ".venv/bin").is_dir() and not list((house / ".venv/bin").glob("python*"))


def test_a_failure_in_a_pipe_is_a_failure(house):
    assert (make(house, "--eval", "piped: ; true | true", "piped").returncode == 0
            != make(house, "--eval", "piped: ; false | true", "piped").returncode)
    recipes = [line for line in (ROOT / "Makefile").read_text().splitlines()
               if line.startswith("\t") and " | " in line]
    assert (len(recipes) == 1
            and "grep -E" in recipes[0]), "make 3.81 ignores pipefail: no pipe may hide a failure"


# --- which PyTorch --------------------------------------------------------------------------------

NONE = install.Failed("ERROR: No matching distribution found for torch==2.13.0+cpu")


@pytest.fixture
def ran(monkeypatch) -> list[list[str]]:
    "The commands that were run, on a Linux without PyTorch; none that a test spoils fails."
    commands = []
    monkeypatch.setattr(install, "run",
                        lambda *command, quiet=False, **_: commands.append(
                            [str(c) for c in command]))
    monkeypatch.setattr(install, "there", lambda version: False)
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.delenv("TORCH", raising=False)
    return commands


def fails(error: Exception):
    def way(version): raise error
    return way


def test_pip_is_asked_for_the_cpu_build_by_its_local_version(ran):
    assert install.small_torch("2.13.0") and len(ran) == 1
    assert ran[0][1:4] == ["-m", "pip", "install"] and "torch==2.13.0+cpu" in ran[0]


def test_uv_is_asked_where_pip_knows_of_none(ran, monkeypatch):
    told = []
    monkeypatch.setattr(install, "by_pip", fails(NONE))
    monkeypatch.setattr(install, "run",
                        lambda *command, quiet=False, **env: ran.append([str(c) for c in command])
                        or told.append(env))
    assert install.small_torch("2.13.0")
    fetch, use = ran
    assert (told[1]["PYTHONPATH"]
            == fetch[fetch.index("--target") + 1]), "uv is found where it was put"
    assert (fetch[1:3] == ["-m", "pip"] and fetch[-1] == "uv"
            and "--target" in fetch), "uv does not stay in the environment"
    assert (use[1:5] == ["-m", "uv", "pip", "install"]
            and " ".join(use).endswith("--torch-backend cpu --no-deps torch==2.13.0"))


def test_the_default_build_comes_last_and_is_announced(ran, monkeypatch, capsys):
    for way in ("by_pip", "by_uv"): monkeypatch.setattr(install, way, fails(NONE))
    assert not install.small_torch("2.13.0")
    monkeypatch.setattr(install, "built", lambda: "PyTorch 2.13.0: built for CUDA 13.0")
    monkeypatch.setattr(sys, "argv", ["install.py", "all"])
    install.main()
    said = capsys.readouterr().out
    assert ("3 GB" in said and "Ctrl-C" in said and "PIP_EXTRA_INDEX_URL" in said
            and said.endswith("built for CUDA 13.0\n"))
    assert ("requirements.txt" in ran[-3][-1] and ran[-2][-1].endswith("pyodide.py")
            and ran[-1][-1].endswith("codemirror.py"))


def test_without_pyodide_set_up_goes_on_and_says_what_is_missing(monkeypatch, capsys):
    def fail(*_, **__):
        raise install.Failed("npm error\nnpm error network: getaddrinfo ENOTFOUND\n")
    monkeypatch.setattr(install, "run", fail)
    install.practice()
    said = capsys.readouterr().out
    assert ("ENOTFOUND" in said and "practice pages cannot check answers" in said
            and "extensions/pyodide.py" in said)
    assert "the pages' editors are plain text areas" in said and "extensions/codemirror.py" in said


def test_another_failure_is_not_taken_for_a_missing_build(ran, monkeypatch):
    monkeypatch.setattr(install, "by_pip", fails(install.Failed("ERROR: No space left on device")))
    with pytest.raises(install.Failed, match="No space"): install.small_torch("2.13.0")
    assert ran == []


@pytest.mark.parametrize("change",
                         [lambda m: m.setattr(install, "there", lambda version: version
                                              == "2.13.0"), lambda m: m.setenv("TORCH", "default"),
                                    lambda m: m.setattr(install.platform, "system",
                                            lambda: "Darwin")],
                         ids=["there already", "asked for", "no Linux"])
def test_what_is_there_or_asked_for_stays(ran, monkeypatch, change):
    change(monkeypatch)
    assert install.small_torch("2.13.0") and ran == []


@pytest.mark.parametrize("torch, asked, said", [
    ("gpu", "all", "TORCH is 'gpu'; expected cpu or default"),
    ("gpu", "everything", "expected one of: book, all, torch")])
def test_wrong_wishes_are_refused_by_name(monkeypatch, torch, asked, said):
    monkeypatch.setenv("TORCH", torch)
    monkeypatch.setattr(sys, "argv", ["install.py", asked])
    with pytest.raises(SystemExit, match=said): install.main()


def test_a_failed_command_says_why_and_a_quiet_one_nothing_else(capfd):
    install.run(sys.executable, "-c", "print('much')", quiet=True)
    with pytest.raises(install.Failed, match="the reason"):
        install.run(sys.executable, "-c", "print('the reason'); raise SystemExit(1)", quiet=True)
    assert capfd.readouterr().out == ""
