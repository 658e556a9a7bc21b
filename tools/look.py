"""Show a page of the built book as it looks in both themes, wide and on a phone:
python tools/look.py chapters/04_attention [--at ANCHOR | --figure N]

The pictures lie in build/look. Build the book first; needs Chromium.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chromium import CHROMIUM, FLAGS  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", help="a page, as _toc.yml names it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--at",
                       help="the anchor of a section; without it and --figure, the page's head")
    where.add_argument("--figure", type=int,
                       help="the number of a figure on the page, from 1: that figure alone")
    args = parser.parse_args()
    html, out = ROOT / f"_build/html/{args.page}.html", ROOT / "build/look"
    if not html.is_file():
        sys.exit(
            f"page: got {args.page!r}, which is not in _build/html; run `make build-book`, and "
            "name a page of _toc.yml")
    if not CHROMIUM: sys.exit("no Chromium on this machine (Debian's package: chromium)")
    out.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM,
                                    args=[*FLAGS, "--allow-file-access-from-files"])
        for width, theme in ((w, t) for w in (1400, 390) for t in ("light", "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            page.goto(f"{html.as_uri()}#{args.at or ''}")
            seen = page.locator("figure.tfm-figure").nth(args.figure - 1) if args.figure else page
            path = out / f"{html.stem}-{width}-{theme}.png"
            seen.screenshot(path=path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
