"Who is told of what the graph keeps."
from .._absent import refuser
from .._engine import State

__getattr__ = refuser("torch.autograd.graph")


class saved_tensors_hooks:
    "Calls `pack` with each tensor that is kept for the gradient."
    def __init__(self, pack_hook, unpack_hook): self.pack = pack_hook

    def __enter__(self):
        State.hooks.append(self)
        return self

    def __exit__(self, *_): State.hooks.remove(self)
