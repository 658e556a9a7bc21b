"""Fixtures that the tests share: the built book, served as a static host would."""
import contextlib
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "extensions")]

import steps  # noqa: E402
from chromium import CHROMIUM, FLAGS  # noqa: E402

# what the library says of tiny models is of no use here
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

# while the tests are collected: what is imported stays
gc.disable()

# How long an example takes depends on what else the machine does: nothing fails for it.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


# The files that take longest, which begin first: one that began last would run alone while the
# other processors wait.
LONGEST = ("test_sections", "test_sections_phone", "test_cluster", "test_browser",
           "test_many_devices", "test_inpage_browser", "test_flash_kernels", "test_exercises",
           "test_checkpoints", "test_defects", "test_live_page", "test_narrow", "test_figures",
           "test_training",
           "test_forced_colours", "test_inpage", "test_gpu_run", "test_newcomer", "test_mutants",
           "test_tokens", "test_copies", "test_editions", "test_search", "test_solutions",
           "test_house")


def pytest_collection_modifyitems(items):
    """Long files first. Without Chromium the browser tests are skipped with a loud line; in CI
    they fail instead."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST
               else len(LONGEST))
    if CHROMIUM or os.environ.get("CI") == "true": return
    print("\n*** no Chromium on this machine: the tests of the book in a browser are SKIPPED ***",
          file=sys.stderr)
    for item in items:
        if "browser" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no Chromium on this machine"))


def pytest_collection_finish():
    "What has been imported stays: the garbage collector need not look through it again and again."
    gc.freeze()
    gc.enable()


def sweep(values, *ordinary) -> list:
    "The values of a class, of which the ordinary proof tries these, and `prove.py --whole` all."
    values = list(values)
    assert set(ordinary) <= set(values), f"not of the class: {set(ordinary) - set(values)}"
    def left(value):
        return pytest.param(*value if isinstance(value, tuple) else (value,),
                            marks=pytest.mark.whole)
    return [value if value in ordinary else left(value) for value in values]


def often(examples: int) -> int:
    "How many random examples a slow property is tried on: in the ordinary proof a fifth."
    return examples if os.environ.get("TFM_WHOLE") else max(6, examples // 5)


def stale(html: Path) -> bool:
    "Is the built book missing, or older than what it is made from?"
    index = html / "index.html"
    if not index.exists(): return True
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True).stdout.split()
    parts = ("chapters/", "extensions/", "inpage/", "parts/", "tfmlib/", "_config.yml", "_toc.yml")
    sources = [ROOT / n for n in names if n.startswith(parts)
               or ("/" not in n and n.endswith(".md"))]
    newest = max(s.stat().st_mtime for s in sources if s.exists())
    return newest > (html / "searchindex.js").stat().st_mtime


OPENED: set[str] = set()


def noted(event: str, args: tuple) -> None:
    "Python tells of every file that it opens."
    if (event == "open" and isinstance(args[0], str) and args[0].startswith(str(ROOT))
        and not args[0].endswith((".py", ".pyc"))):
        OPENED.add(args[0])


sys.addaudithook(noted)


@cache
def may_not_be_read(path: Path) -> set[str]:
    "The files of the repository of which the key of a file of tests is not made."
    return ({str(ROOT / name) for name in steps.tracked()}
            - {str(file) for file in steps.test_reads(path)})


@pytest.fixture(autouse=True)
def reads_what_its_key_says(request):
    "Else its step could be skipped though something has changed that it reads."
    OPENED.clear()
    yield
    if OPENED and request.path.parent.name == "library":
        assert not OPENED & may_not_be_read(request.path), f"{request.path.name} reads what its READS does not name: {sorted(OPENED & may_not_be_read(request.path))[:3]}"  # noqa: E501


@pytest.fixture(scope="module")
def one_thread():
    "For tiny models, which are slower on several."
    import torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def book() -> Path:
    "The folder of the built book; built first if it is older than its sources."
    html = ROOT / "_build/html"
    if stale(html):
        build = Path(sys.executable).with_name("jupyter-book")
        made = subprocess.run([build, "build", ".", "-W", "-n", "--keep-going", "-q"], cwd=ROOT,
                              capture_output=True, text=True)
        assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    return html


@contextlib.contextmanager
def giving_out(folder: Path):
    "The address of a server that gives the files of a folder out, gzipped."
    from serve import server
    httpd = server(folder)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try: yield f"http://127.0.0.1:{httpd.server_port}"
    finally: httpd.shutdown()


@pytest.fixture(scope="session")
def served(book) -> str:
    "The address at which the built book is given out."
    with giving_out(book) as address: yield address


class Chromium:
    """A browser without a window. One that has ended, which the tests that follow can do nothing
    about, is started again when it is asked for something."""
    def __init__(self, launch): self.launch, self.running = launch, launch()
    def new_context(self, **how): return self.opened("new_context", how)
    def new_page(self, **how): return self.opened("new_page", how)

    def opened(self, kind: str, how: dict):
        "A context or a page, which waits for what it waits for longer than a loaded machine needs."
        from playwright.sync_api import Error
        try: found = getattr(self.running, kind)(**how)
        except Error:
            if self.running.is_connected(): raise
            warnings.warn(
                "Chromium had ended between two tests or in one of them; it is started again",
                stacklevel=3)
            self.running = self.launch()
            found = getattr(self.running, kind)(**how)
        found.set_default_timeout(180_000)
        return found


@pytest.fixture
def visiting(browser, served):
    """Opens pages of the book in a browser with an empty cache that remembers nothing; they are
    closed after the test."""
    contexts = []
    def visit(name: str = "about:blank", **how):
        contexts.append(browser.new_context(base_url=served, **how))
        page = contexts[-1].new_page()
        page.goto(name)
        return page
    yield visit
    for context in contexts: context.close()


def keys(page, *names: str) -> None:
    "Press one key after the other."
    for name in names: page.keyboard.press(name)


def violations(page, within: str) -> list[str]:
    "What axe-core finds in these elements, controls that are small for a finger included."
    from axe_playwright_python.sync_playwright import Axe
    rules = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
    found = Axe().run(page, {"include": [[within]]}, rules).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found]


def too_wide(page) -> float:
    "By how many pixels a page can be scrolled sideways."
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def painted(page) -> None:
    "Wait until what has just changed is on the screen: two frames."
    page.wait_for_function(
        "new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f(true))))")


def laid_out(page) -> None:
    """Wait until the page has its fonts, which move what stands below their text, and is on the
    screen."""
    page.evaluate("document.fonts.ready.then(() => true)")
    painted(page)


def awake(figure, rounds: int = 600):
    """The interactive figure, scrolled to until it moves: sections above it may be laid out only
    then, and push it away again."""
    for _ in range(rounds):
        figure.evaluate("f => f.scrollIntoView({ block: \"center\" })")
        if figure.get_attribute("data-live") is not None: return figure
        figure.page.wait_for_timeout(100)
    raise AssertionError(f"the figure {figure.get_attribute('data-module')} does not come alive")


@pytest.fixture(scope="session")
def browser():
    "Chromium, without a window."
    from playwright.sync_api import sync_playwright
    assert CHROMIUM, "no Chromium on this machine (Debian's package: chromium)"
    with sync_playwright() as playwright:
        chromium = Chromium(lambda: playwright.chromium.launch(executable_path=CHROMIUM,
                args=FLAGS))
        yield chromium
        chromium.running.close()


def tracked(*which: str) -> list[str]:
    "The files that git holds, and with further options those that it would."
    names = subprocess.run(["git", "ls-files", "-z", *which], cwd=ROOT, text=True,
                           capture_output=True, check=True).stdout
    return [n for n in names.split("\0") if n and (ROOT / n).is_file()]


@contextlib.contextmanager
def serving(command: str, folder: Path, address: str, **env: str):
    "The address, of this form, at which `command` says in its log that it serves something."
    with (folder.parent / "serving.log").open("w+") as log:
        process = subprocess.Popen(command, shell=True, cwd=folder, env=os.environ | env,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        try:
            end = time.monotonic() + 300
            while not (found := re.search(address, said := Path(log.name).read_text())):
                assert time.monotonic() < end and process.poll() is None, said[-3000:]
                time.sleep(0.2)
            yield found[0]
        finally:
            with contextlib.suppress(ProcessLookupError): os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=120)


@pytest.fixture
def clone(tmp_path):
    "A copy of this checkout with an environment that is set up already."
    target = tmp_path / "clone"
    for name in tracked("-co", "--exclude-standard"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    (target / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.is_dir():
            (target / ".venv" / path.name).symlink_to(path)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", target / ".venv")
    for marker in (".book", ".all"):
        (target / ".venv" / marker).touch()
    return target


@pytest.fixture
def early_families(monkeypatch):
    """The two families that chapter 12 reads first, and Marian, whatever else this process has
    imported."""
    from tfmlib.checkpoints import FAMILIES, LATER, llama_family, read_mistral
    for module in LATER: import_module(f"tfmlib.{module}")
    for name in [name for name in FAMILIES if name not in ("marian", "gpt2", "llama", "mistral")]:
        monkeypatch.delitem(FAMILIES, name)
    monkeypatch.setitem(FAMILIES, "llama", llama_family("LlamaForCausalLM"))
    monkeypatch.setitem(FAMILIES, "mistral",
                        llama_family("MistralForCausalLM")._replace(read=read_mistral))
