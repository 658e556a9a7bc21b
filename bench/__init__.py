"""Measurements whose results the book keeps as records: `make bench`, on a GPU `make bench-gpu`."""
