"""What a visitor meets besides the pages: a page for addresses that lead nowhere and, once the
book's address is known, cards for social networks, a map for search engines and a feed of the
changelog.
"""
import re
from datetime import UTC, datetime
from html import escape, unescape
from pathlib import Path
from subprocess import run
from xml.sax.saxutils import escape as plain

from markdown_it import MarkdownIt

CARD = "_static/tfm/card.png"


def lost(app):
    "The page that a host shows for an address that leads nowhere."
    yield "404", {}, "404.html"


def address(app) -> str:
    return app.config.html_baseurl.rstrip("/") + "/" if app.config.html_baseurl else ""


def cards(app, pagename, templatename, context, doctree) -> None:
    "The lines of a page's head that networks read; only with an address, since they must be whole."
    if not address(app) or pagename in ("404", "search"): return
    book = app.config.html_title
    said = {"og:site_name": book, "og:type": "website" if pagename == "index" else "article",
            "og:title": unescape(re.sub("<[^>]*>", "", context.get("title", book))),
            "og:description": context.get("description", ""),
            "og:url": address(app) + app.builder.get_target_uri(pagename),
            "og:image": address(app) + CARD}
    lines = [f'<meta property="{name}" content="{escape(value)}">'
             for name, value in said.items() if value]
    feed = (
        f'<link rel="alternate" type="application/atom+xml" title="{escape(book)}: changes" '
        f'href="{address(app)}changes.xml">')
    context["metatags"] = context.get("metatags",
                                      "") + "\n".join([*lines,
                                                       '<meta name="twitter:card" '
                                                       'content="summary_large_image">', feed])


def sitemap(base: str, pages: list[str]) -> str:
    rows = "".join(f"<url><loc>{plain(base + page)}</loc></url>" for page in pages)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<urlset '
        f'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{rows}</urlset>\n')


def versions(text: str) -> list[tuple[str, str, str]]:
    "The changelog's versions: number, the rest of the heading, and what changed, in Markdown."
    parts = re.split(r"^## (\S+)(.*)$", text, flags=re.M)[1:]
    return [(number.rstrip(","), rest.strip(" ,"), body.strip())
            for number, rest, body in zip(parts[::3], parts[1::3], parts[2::3])]


def changed(path: Path) -> datetime:
    "When a file was last changed, as git knows it, else the file system."
    done = run(["git", "log", "-1", "--format=%cI", "--", path.name], cwd=path.parent,
               capture_output=True, text=True)
    return (datetime.fromisoformat(done.stdout.strip()) if done.returncode == 0
            and done.stdout.strip() else datetime.fromtimestamp(path.stat().st_mtime, UTC))


def feed(base: str, book: str, changelog: Path) -> str:
    "The changelog as an Atom feed: an entry for each version, the one in preparation as well."
    day = changed(changelog).isoformat()
    def entry(number: str, rest: str, body: str) -> str:
        said = re.search(r"\d{4}-\d\d-\d\d", rest)
        when = f"{said[0]}T00:00:00+00:00" if said else day
        return (
            f"<entry><id>{plain(base)}about/changelog.html#{number}</id><title>{plain(number)}{f' ({plain(rest)})' if rest and not said else ''}</title><updated>{when}</updated>"  # noqa: E501
                f'<link href="{plain(base)}about/changelog.html"/><content '
                f'type="html">{plain(MarkdownIt().render(body))}</content></entry>')
    entries = "".join(entry(*version)
                      for version in versions(changelog.read_text(encoding="utf-8")))
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed '
        f'xmlns="http://www.w3.org/2005/Atom"><id>{plain(base)}</id><title>{plain(book)}</title><updated>{day}</updated>'
            f'<author><name>{plain(book)} authors</name></author><link rel="self" '
            f'href="{plain(base)}changes.xml"/><link href="{plain(base)}"/>{entries}</feed>\n')


def whole(html: str, base: str) -> str:
    "A page whose links hold wherever it is shown: a host shows it at any depth."
    return re.sub(r'\b(href|src|action)="(?!https?:|data:|#)([^"]*)"',
                  lambda m: f'{m[1]}="{base}{m[2]}"', html)


def write(app, exception) -> None:
    "The map and the feed, and the links of the page for lost visitors."
    base, out = address(app), Path(app.outdir)
    if exception or app.builder.format != "html" or not base: return
    pages = [app.builder.get_target_uri(page) for page in sorted(app.env.found_docs)]
    (out / "sitemap.xml").write_text(sitemap(base, pages), encoding="utf-8")
    (out / "404.html").write_text(whole((out / "404.html").read_text(encoding="utf-8"), base),
                                  encoding="utf-8")
    (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n",
                                    encoding="utf-8")
    if (changelog := Path(app.srcdir) / "about/changelog.md").is_file():
        (out / "changes.xml").write_text(feed(base, app.config.html_title, changelog),
                                         encoding="utf-8")


def setup(app):
    app.connect("html-collect-pages", lost)
    app.connect("html-page-context", cards, priority=950)
    app.connect("build-finished", write, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
