"Only the weak references of storages."
from .._absent import refuser
from . import reductions  # noqa: F401

__getattr__ = refuser("torch.multiprocessing")
