"The library that the chapters of The Executable Transformer write."

__version__ = "0.1.0"
