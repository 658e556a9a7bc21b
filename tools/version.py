"""Refuse a Python that is too old for the book, in one sentence: python tools/version.py. It
must itself run on an old one."""
import os
import sys

NEEDED = (3, 11)

if sys.version_info < NEEDED:
    found = "Python %d.%d.%d" % sys.version_info[:3]
    needed = "The book needs Python %d.%d or later" % NEEDED
    name = "name a newer one, for example: make book PYTHON=python3.12"
    if sys.prefix != getattr(sys, "base_prefix", sys.prefix):
        folder = os.path.basename(sys.prefix)
        sys.exit("%s, and the environment %s was made by %s; remove it (rm -rf %s) and %s" % (
            needed, folder, found, folder, name))
    sys.exit("%s, and this is %s (%s); %s" % (needed, found, sys.executable, name))
