"""Draw the card that social networks show for the book: python tools/card.py (writes extensions/theme/static/tfm/card.png; needs Chromium)."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chromium import CHROMIUM, FLAGS  # noqa: E402
from editions import ROOT, TITLE  # noqa: E402
from epub import picture  # noqa: E402

WIDTH, HEIGHT = 1200, 630


def main() -> None:
    if not CHROMIUM: sys.exit("no Chromium on this machine (Debian's package: chromium)")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        page = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS).new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(f'<title>{TITLE}</title><style>body{{margin:0}}</style>{picture(WIDTH, HEIGHT)}')
        page.screenshot(path=ROOT / "extensions/theme/static/tfm/card.png")


if __name__ == "__main__":
    main()
