"""The measurement of the pages with Lighthouse, with a stand-in for it: every page in both forms, a record, and a browser that fails at first."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """#!{python}
import json, sys, pathlib
if "--version" in sys.argv: print("12.0.0"); sys.exit()
page, form = sys.argv[1].split("/", 3)[3], "desktop" if "--preset=desktop" in sys.argv else "mobile"
seen = pathlib.Path({seen!r}); lines = seen.read_text().splitlines() if seen.exists() else []
seen.write_text("\\n".join([*lines, page + " " + form]))
if not lines: sys.exit(1)                       # the first start fails
times = lines.count(page + " " + form)
good = .99 if page != "slow.html" else (.5, .95, .6)[times % 3]
kinds = ("performance", "accessibility", "best-practices", "seo")
print(json.dumps(dict(categories={{k: dict(score=good if k == "performance" else 1) for k in kinds}}, environment=dict(benchmarkIndex=1000),
    audits={{"total-byte-weight": dict(score=1, numericValue=2048), "dom-size": dict(score=1, numericValue=77), "total-blocking-time": dict(score=.4, numericValue=5)}})))
"""


@pytest.fixture
def measured(tmp_path):
    "Runs the measurement of a small tree; gives its exit status, what it printed and the folder."
    (tmp_path / "book").mkdir()
    for folder in ("bench", "tools", "extensions"): (tmp_path / folder).mkdir()
    for file in ("bench/lighthouse.py", "tools/serve.py", "extensions/pages.py"): (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / "_toc.yml").write_text("root: index\nchapters:\n- file: slow\n")
    for page in ("index", "slow", "search"): (tmp_path / f"book/{page}.html").write_text("<p>x")
    tool = tmp_path / "lighthouse"
    tool.write_text(STAND_IN.format(python=sys.executable, seen=str(tmp_path / "seen")))
    tool.chmod(0o755)

    def run(*given):
        env = os.environ | {"LIGHTHOUSE": str(tool), "CHROME_PATH": "/bin/true", "BOOK": str(tmp_path / "book")}
        done = subprocess.run([sys.executable, str(tmp_path / "bench/lighthouse.py"), *given], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
        return done.returncode, done.stdout + done.stderr, tmp_path
    return run


def test_every_page_is_measured_and_recorded(measured):
    status, said, folder = measured()
    rows = json.loads((folder / "bench/lighthouse.json").read_text())["rows"]
    assert [(r["page"], r["form"]) for r in rows] == [(p, f) for p in ("index.html", "slow.html", "search.html") for f in ("desktop", "mobile")]
    assert status == 1 and "tried again" in said and "4 of 6 measurements reach the aim; not slow.html (desktop: 60)" in said
    assert [r["performances"] for r in rows] == [[99], [99], [50, 95, 60], [50, 95, 60], [99], [99]] and rows[0]["elements"] == 77
    (folder / "seen").write_text("again")
    assert measured("--resume")[0] == 1 and (folder / "seen").read_text() == "again"          # nothing was left to measure


def test_named_pages_leave_the_record_alone(measured):
    status, said, folder = measured("index.html")
    assert status == 0 and "2 of 2" in said and not (folder / "bench/lighthouse.json").exists()


def test_without_lighthouse_it_says_how_to_get_it(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "LIGHTHOUSE"} | {"PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(ROOT / "bench/lighthouse.py")], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 1 and "npm install" in done.stderr
