"Only what listens to operations."
from .._absent import refuser
from . import _python_dispatch  # noqa: F401

__getattr__ = refuser("torch.utils")
