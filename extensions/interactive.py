"""Copies the interactive figures' modules into the book. (written by the figures helper)"""


def setup(app):
    return {"parallel_read_safe": True, "parallel_write_safe": True}
