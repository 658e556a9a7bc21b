"""Exercises are numbered page by page, with the number of their chapter in front: the third of practice 4 is exercise 4.3."""
import re


def renumber(app, env) -> list[str]:
    "Give each exercise its chapter's number and its place on the page; Sphinx has counted through the whole book."
    for docname, kinds in env.toc_fignumbers.items():
        chapter = re.search(r"/(\d\d)_[^/]*$", docname)
        counted = sorted(kinds.get("exercise", {}).items(), key=lambda item: item[1])
        for place, (label, _) in enumerate(counted, 1):
            kinds["exercise"][label] = (int(chapter[1]), place) if chapter else (place,)
    return []


def setup(app):
    app.connect("env-get-updated", renumber, priority=900)   # after Sphinx itself, which numbers at this event, too
    return {"parallel_read_safe": True}
