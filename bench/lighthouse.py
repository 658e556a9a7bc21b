"""Measure every page of the built book with Lighthouse, on a desktop and on a phone: python bench/lighthouse.py [PAGE ...]

Optional, and not part of the proof. It needs Node's `lighthouse` (in an empty folder: `npm init -y && npm install lighthouse@12`, then
LIGHTHOUSE=node_modules/.bin/lighthouse with that folder before it) and Chromium (CHROME_PATH, else the first found on the PATH). Build the
book first, and leave the machine alone: the scores are made from the time that the browser takes. A page is measured once, and one that
misses the aim twice more: its median counts, all are kept. The record, bench/lighthouse.json, is written after each page; a run that was
cut off goes on where it stopped with --resume. Exit status 0: every page reaches the aim.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path
from shutil import which
from statistics import median_low

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "extensions")]
from pages import toc_pages  # noqa: E402
from serve import server  # noqa: E402

KINDS = ("performance", "accessibility", "best-practices", "seo")
AIM = {"desktop": (98, 100, 100, 95), "mobile": (90, 100, 100, 95)}
NOT_INDEXED = {"search.html"}                    # asks not to be found by search engines, so its SEO is no aim
CHROME = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions"
RECORD, TRIES, PATIENCE = Path(__file__).with_suffix(".json"), 3, 300


def measure(tool: str, url: str, form: str) -> dict:
    "One report on a page: its four scores out of 100, its weight in KB (cold cache), its elements, and how fast Lighthouse found the machine."
    command = [tool, url, "--quiet", "--output=json", f"--only-categories={','.join(KINDS)}", f"--chrome-flags={CHROME}"]
    command += ["--preset=desktop"] if form == "desktop" else []
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    report = json.loads(said)
    scores = [report["categories"][k]["score"] for k in KINDS]
    if None in scores: raise ValueError(f"no score: {report.get('runtimeError', {}).get('message', 'Lighthouse does not say why')}")
    audits = report["audits"]
    low = [name for name, a in audits.items() if a["score"] is not None and a["score"] < 0.9 and a.get("scoreDisplayMode") != "informative"]
    return {"scores": [round(100 * s) for s in scores], "kb": round(audits["total-byte-weight"]["numericValue"] / 1024),
            "elements": round(audits["dom-size"]["numericValue"]) if "numericValue" in audits.get("dom-size", {}) else None,
            "blocking_ms": round(audits["total-blocking-time"]["numericValue"]), "machine": round(report["environment"]["benchmarkIndex"]), "below_90": low}


def patient(tool: str, url: str, form: str) -> dict:
    "A report; a browser that does not start or end is tried again."
    for left in reversed(range(TRIES)):
        try: return measure(tool, url, form)
        except (subprocess.SubprocessError, ValueError, KeyError) as error:
            if not left: raise
            print(f"  {type(error).__name__}, tried again: {str(error)[:120]}", flush=True)


def row(tool: str, base: str, page: str, form: str) -> dict:
    "A page's reports, as many as it takes: one if it reaches the aim, else three and their median."
    reached = lambda report: all(s >= a or (k == "seo" and page in NOT_INDEXED) for s, a, k in zip(report["scores"], AIM[form], KINDS, strict=True))
    reports = [patient(tool, base + page, form)]
    if not reached(reports[0]): reports += [patient(tool, base + page, form) for _ in range(2)]
    middle = {"scores": [median_low(r["scores"][k] for r in reports) for k in range(len(KINDS))]}
    return {"page": page, "form": form, **reports[-1], **middle, "performances": [r["scores"][0] for r in reports], "reached": reached(middle)}


def circumstances(tool: str, chrome: str) -> dict:
    "On what and of what the record is."
    asked = {"commit": ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], "lighthouse": [tool, "--version"], "chromium": [chrome, "--version"]}
    said = {name: subprocess.run(command, capture_output=True, text=True).stdout.strip() for name, command in asked.items()}
    info = Path("/proc/cpuinfo")
    models = [line.split(": ", 1)[1] for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else [platform.processor()]
    return {"command": "python bench/lighthouse.py", "date": date.today().isoformat(), "processor": models[0] if models else "", "cores": os.cpu_count(), **said,
            "load": round(os.getloadavg()[0], 2), "aim": AIM}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="pages of the built book; all, and only then a record, if none is named")
    parser.add_argument("--resume", action="store_true", help="keep the pages that the record has")
    given = parser.parse_args()
    tool = os.environ.get("LIGHTHOUSE") or which("lighthouse")
    chrome = os.environ.get("CHROME_PATH") or which("chromium") or which("chromium-browser") or which("google-chrome")
    book = Path(os.environ.get("BOOK", ROOT / "_build/html"))
    if not tool or not chrome: sys.exit(f"{__doc__}\nlighthouse: {tool}, Chromium: {chrome}")
    if not (book / "index.html").is_file(): sys.exit(f"no built book in {book}: run `make book`")
    os.environ["CHROME_PATH"] = chrome
    facts = circumstances(tool, chrome)
    if facts["load"] > 0.5: print(f"*** this machine is busy (load {facts['load']}): what follows says little about the pages ***", file=sys.stderr)
    found = json.loads(RECORD.read_text())["rows"] if given.resume and RECORD.is_file() else []
    httpd = server(book)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    print(f"{'page':44} {'form':8}", *(f"{k:>15}" for k in KINDS), f"{'elements':>9} {'KB':>6}")
    every = [f"{name}.html" for name in toc_pages(ROOT / "_toc.yml")] + ["search.html"]
    for page, form in [(p, f) for p in given.pages or every for f in AIM if (p, f) not in {(r["page"], r["form"]) for r in found}]:
        found.append(made := row(tool, f"http://localhost:{httpd.server_port}/", page, form))
        print(f"{page:44} {form:8}", *(f"{s:>15}" for s in made["scores"]), f"{made['elements'] or 0:9} {made['kb']:6}", "" if made["reached"] else "below the aim", flush=True)
        if not given.pages: RECORD.write_text(json.dumps(facts | {"rows": found}, indent=1) + "\n")
    missed = [f"{r['page']} ({r['form']}: {r['scores'][0]})" for r in found if not r["reached"]]
    print(f"{len(found) - len(missed)} of {len(found)} measurements reach the aim" + (f"; not {', '.join(missed)}" if missed else ""))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
