"""Glued texts stand in the sentence as they were glued: myst-nb reads `1.60` as a number and prints 1.6."""
from myst_nb.core import variables
from myst_nb.ext.glue import crossref, roles

formatted = variables.format_plain_text


def as_glued(text: str, fmt_spec: str) -> str:
    "The text itself, unless a format other than that of a text is asked for."
    return text if fmt_spec in ("", "s") else formatted(text, fmt_spec)


def setup(app) -> dict:
    for module in (variables, crossref, roles): module.format_plain_text = as_glued
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
