"""What every built page must have: a text for each picture, nothing from another site, no id
twice. A fault is a warning, so it fails the build."""
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from sphinx.util import logging

log = logging.getLogger(__name__)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source",
        "track", "wbr"}
LOADED = {"img": ("src", "srcset"), "script": ("src",), "iframe": ("src",),
          "source": ("src", "srcset"), "video": ("src", "poster"), "audio": ("src",),
          "embed": ("src",), "object": ("data",), "image": ("href", "xlink:href"),
          "use": ("href", "xlink:href")}
LINKED = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect",
          "dns-prefetch", "manifest", "apple-touch-icon"}
REMOTE = re.compile(r"^\s*(https?:|wss?:)?//", re.I)
FETCHED = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["']|\bfrom\s*["']|\bimport\s*\(?\s*["']|\bfetch\(\s*["'])((?:https?:)?//[^\s"')]+)""", re.I)  # noqa: E501


class Page(HTMLParser):
    "Reads one page and keeps its faults, each with the line it stands on."

    def __init__(self, text: str):
        super().__init__()
        self.faults, self.ids, self.open, self.hidden = [], set(), [], []
        self.feed(text)

    def fault(self, what: str) -> None: self.faults.append((self.getpos()[0], what))

    def handle_starttag(self, tag, given):
        at = {name: value or "" for name, value in given}
        if (anchor := at.get("id")) is not None:
            if anchor in self.ids: self.fault(f"the id «{anchor}» stands on this page twice")
            self.ids.add(anchor)
        if tag not in VOID:
            quiet = (at.get("aria-hidden") == "true"
                     or (at.get("role") == "img" and bool(at.get("aria-label", "").strip())))
            self.open.append([tag, quiet, self.getpos()[0], at.get("id", "")])
        if tag == "img": self.picture(at)
        self.remote(tag, at)

    def handle_startendtag(self, tag, given):
        self.handle_starttag(tag, given)
        if tag not in VOID: self.handle_endtag(tag)

    def handle_endtag(self, tag):
        while self.open:
            name, quiet, line, anchor = self.open.pop()
            if name == "svg" and not quiet and not any(q for _, q, *_ in self.open):
                self.faults.append((line,
                                    f"a drawing (svg{' ' + anchor if anchor else ''}) without a "
                                    "text: it needs role=\"img\" and aria-label, or a title, or "
                                    "aria-hidden"))
            if name == tag: return

    def handle_data(self, data):
        inside = self.open[-1][0] if self.open else ""
        if inside == "title" and data.strip() and len(self.open) > 1 and self.open[-2][0] == "svg":
            self.open[-2][1] = True
        if inside in ("style", "script"): self.fetched(data)

    def picture(self, at: dict) -> None:
        text, file = at.get("alt", "").strip(), Path(unquote(at.get("src", ""))).name
        if at.get("aria-hidden") != "true" and (not text or Path(text).name == file):
            self.fault(f"the picture {file or '(no file)'} has no alt text")

    def remote(self, tag: str, at: dict) -> None:
        "What the browser would ask another site for by itself."
        names = (LOADED.get(tag, ()) if tag != "link" else ("href",)
                 if LINKED & set(at.get("rel", "").lower().split()) else ())
        for name in names:
            for part in at.get(name, "").split(",") if name == "srcset" else [at.get(name, "")]:
                if REMOTE.match(part):
                    self.fault(f"<{tag}> loads from another site: {part.strip()}")
        self.fetched(at.get("style", ""))

    def fetched(self, code: str) -> None:
        for address in FETCHED.findall(code):
            self.fault(f"a style or script loads from another site: {address}")


def check(app, exception) -> None:
    "Look at every page of the book, and at its own styles and scripts."
    if exception or app.builder.format != "html": return
    out = Path(app.outdir)
    for name in sorted(app.env.found_docs):
        if (file := Path(app.builder.get_outfilename(name))).is_file():
            for line, fault in Page(file.read_text(encoding="utf-8")).faults:
                log.warning("%s (line %s of the page)", fault, line, location=name, type="sound")
    for file in sorted(f for kind in ("css", "js") for f in (out / "_static").rglob(f"*.{kind}")):
        for address in FETCHED.findall(file.read_text(encoding="utf-8", errors="ignore")):
            log.warning("%s loads from another site: %s", file.relative_to(out), address,
                        type="sound")


def setup(app):
    app.connect("build-finished", check, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
