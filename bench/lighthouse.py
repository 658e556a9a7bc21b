"""Measure built pages with Lighthouse, served with gzip: python bench/lighthouse.py [PAGE ...]

Optional, and not part of the proof. It needs Node's `lighthouse` (`npm install --prefix /tmp/lighthouse lighthouse`, then
LIGHTHOUSE=/tmp/lighthouse/node_modules/.bin/lighthouse) and Chromium (CHROME_PATH, else the first found on the PATH).
"""
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from serve import server  # noqa: E402

KINDS = ("performance", "accessibility", "best-practices", "seo")
AIM = {"desktop": (98, 100, 100, 95), "mobile": (90, 100, 100, 95)}
CHROME = "--headless=new --no-sandbox --disable-gpu --no-first-run"


def measure(tool: str, url: str, form: str) -> tuple[list[int], float]:
    "The four scores of a page out of 100, and its weight on the wire in KB (cold cache)."
    command = [tool, url, "--quiet", "--output=json", f"--only-categories={','.join(KINDS)}", f"--chrome-flags={CHROME}"]
    command += ["--preset=desktop"] if form == "desktop" else []
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for audit in report["audits"].values():
        if audit["score"] is not None and audit["score"] < 0.9 and os.environ.get("VERBOSE"): print("  ", audit["id"], audit.get("displayValue", ""))
    return [round(100 * report["categories"][k]["score"]) for k in KINDS], report["audits"]["total-byte-weight"]["numericValue"] / 1024


def main(pages: list[str]) -> int:
    tool = os.environ.get("LIGHTHOUSE") or which("lighthouse")
    chrome = os.environ.get("CHROME_PATH") or which("chromium") or which("chromium-browser") or which("google-chrome")
    if not tool or not chrome: sys.exit(f"{__doc__}\nlighthouse: {tool}, Chromium: {chrome}")
    os.environ["CHROME_PATH"] = chrome
    httpd = server(Path(os.environ.get("BOOK", ROOT / "_build/html")))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    low = 0
    print(f"{'page':44} {'form':8}", *(f"{k:>15}" for k in KINDS), f"{'KB':>7}")
    for page in pages or ["index.html", "chapters/04_attention.html"]:
        for form, aim in AIM.items():
            scores, weight = measure(tool, f"http://localhost:{httpd.server_port}/{page}", form)
            low += any(s < a for s, a in zip(scores, aim, strict=True))
            print(f"{page:44} {form:8}", *(f"{s:>15}" for s in scores), f"{weight:7.0f}", flush=True)
    return low


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
