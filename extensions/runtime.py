"""Two roles for a chapter's head: how long its page runs, as measured, and how long it takes to read, as counted.

{runtime}`04_attention` becomes: about 20 seconds. {minutes}`04_attention` becomes: 2½ hours; with several names, their sum.
"""
from collections.abc import Callable
from pathlib import Path

from docutils import nodes
from durations import reading, runtime

SOURCES = {"runtime": (runtime, "tfmlib/assets/records/pages.json"), "minutes": (reading, "chapters/{page}.ipynb")}


def role(says: Callable, source: str) -> Callable:
    "A role whose text `says` gives for a page; where it cannot, a warning, which fails a strict build."
    def run(name, rawtext, text, lineno, inliner, options=None, content=()):
        env = inliner.document.settings.env
        for page in text.partition("#")[0].split(): env.note_dependency(str(Path(env.srcdir) / source.format(page=page)))
        try: return [nodes.Text(says(Path(env.srcdir), text))], []
        except ValueError as error: return [], [inliner.reporter.error(str(error), line=lineno)]
    return run


def setup(app):
    for name, how in SOURCES.items(): app.add_role(name, role(*how))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
