"""The search: an index of what the book defines (names, terms), says (headings, claims) and holds
(words), and the page that reads it.

It takes the place of Sphinx's own search, which knows pages only, runs words together and fetches
every page that it lists. The script that ranks and shows is theme/static/tfm/search.js; `folded`
and `words` there do what they do in findable.py.
"""
import json
import re
from collections import defaultdict
from pathlib import Path
from string import ascii_letters, digits
from textwrap import shorten

from findable import Entry, claims
from pages import notebooks, toc_pages
from term_places import entries

# what is found; "back": a section of the back matter
KINDS = ("page", "name", "term", "section", "depth", "claim", "exercise", "back")
NUMBER = re.compile(r"(?!(19|20)\d\d$)\d+(e\d*)?")    # years are words, 1e-05 is none
DIGITS = ascii_letters + digits + "-_"  # 64, none of which JSON escapes
COMMON = set(
    "a an and are as at be been but by can do does for from has have if in into is it its no not "
    "of on one or so such than that the their them then "
             "there these they this to was we what when where which who will with you about all "
             "also any both each every here how its many may more most must only other over "
             "own same still those too up whole would "
             "two three four five eight first second last nothing none def without after before "
             "return right holds true out below under gives need needs your once "
             "yet left per next new take takes against between instead above try least again never "
             "far much itself whose see want raise raises implemented "
             "notimplementederror int part use different ones single large "
             "number numbers read reads written write answer answers wrong times chapter check end "
             "minutes exercise checker "
             "solution hint half were some others give few another keeps because back given says "
             "else make page through "
             "less cannot alone uses used since comes several longer later everything makes way "
             "shows twice six py runs "
             "figure returns lines computed count counted counts differ adds result depends "
             "our now well even third taken come comes gets whatever nearly together further "
             "within exactly enough depend begin begins start better larger look know should "
             "change changes compare compute computes added folded passes short name names line "
             "keep kept costs difference writes called happens must like way ways made "
             "agree agrees seen sees look looks take taken again once easily really quite".split())


# --- the index ------------------------------------------------------------------------------------

def coded(n: int) -> str:
    "A number as letters: digits to base 32, all but the last from the second half of DIGITS."
    text = DIGITS[n % 32]
    while n := n // 32: text = DIGITS[32 + n % 32] + text
    return text


def numbers(text: str) -> list[int]:
    "The numbers that such letters hold, one after the other."
    found, n = [], 0
    for digit in map(DIGITS.index, text):
        n = 32 * n + digit % 32
        if digit < 32: found, n = [*found, n], 0
    return found


def place(entry: Entry) -> str | int:
    """Where an entry is on its page; nothing for a name, whose anchor is made of it, and 0 where
    the anchor is `slug` of the title."""
    if entry["kind"] == "name": return ""
    return 0 if entry["anchor"] and entry["anchor"] == slug(entry["title"]) else entry["anchor"]


def slug(title: str) -> str:
    "What most headings' anchors are; the script computes the same."
    return re.sub("^[-0-9]+|-+$", "",
                  re.sub("[^a-z0-9]+", "-", title.removeprefix("Exercise: ").lower()))


def packed(entries: list[Entry], titles: dict[str, str]) -> dict:
    """The index as the script reads it: pages, entries (anchors that can be computed left out), the
    words that say nothing, the others, and for each of these the entries that say it: thrice the
    step from one to the next, and 1 if often, 2 if very often."""
    pages = list(titles)
    where = defaultdict(list)
    for number, entry in enumerate(entries):
        for word, count in entry["text"].items():
            if word not in COMMON and (word == "√" or len(word) > 1 and not NUMBER.fullmatch(word)):
                where[word].append((number, (count > 1) + (count > 4)))
    steps = lambda hits: [3 * (b - a) + often for (a, _), (b, often) in zip([(0, 0), *hits], hits)]
    return {"pages": [[p, titles[p]] for p in pages],
            "entries": [[KINDS.index(e["kind"]), pages.index(e["page"]), place(e), e["title"],
                         shorten(e["line"], 92, placeholder=" …"), *e["also"]] for e in entries],
            "common": " ".join(sorted(COMMON)), "words": " ".join(sorted(where)),
            "said": " ".join("".join(map(coded, steps(where[word]))) for word in sorted(where))}


def index(app) -> dict:
    "All that can be found in the book."
    root, toc = Path(app.srcdir), toc_pages(Path(app.srcdir) / app.config.external_toc_path)
    found = list(entries(app))
    if "about/claims" in toc:
        found += claims(root, notebooks(root, root / app.config.external_toc_path))
    return packed(found, {page: app.env.titles[page].astext() for page in toc})


def write(app, exception) -> None:
    if exception or app.builder.format != "html": return
    text = json.dumps(index(app), ensure_ascii=False, separators=(",", ":"))
    (Path(app.outdir) / "searchindex.js").write_text(f"search({text})\n", encoding="utf-8")


def setup(app):
    def own(app): app.builder.search = False  # Sphinx makes no index and no search page
    app.connect("builder-inited", own)
    app.connect("html-collect-pages", lambda app: [("search", {}, "search.html")])
    app.connect("build-finished", write, priority=940)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
