"""Where Chromium is, and how it is started for pages of this machine alone."""
from pathlib import Path

CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser",
                             "/usr/bin/google-chrome") if Path(p).exists()), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
