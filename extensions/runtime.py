"""A role for a chapter's head: how long its page runs, as measured. {runtime}`04_attention` becomes: about 20 seconds."""
from pathlib import Path

from docutils import nodes
from pages import runtime


def role(name, rawtext, text, lineno, inliner, options=None, content=()):
    "The text that the record gives; without it, a warning, which fails a strict build."
    env = inliner.document.settings.env
    env.note_dependency(str(Path(env.srcdir) / "tfmlib/assets/records/pages.json"))
    try: return [nodes.Text(runtime(Path(env.srcdir), text))], []
    except ValueError as error: return [], [inliner.reporter.error(str(error), line=lineno)]


def setup(app):
    app.add_role("runtime", role)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
