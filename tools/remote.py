"""A function in another process: what crosses between the two processes is data, and neither runs the other's code.

`submissions.py` judges answers with it. Numbers, texts, tensors and what holds them are copied. A function or an iterator stays
where it is; the other side gets a stand-in, which asks. What is neither arrives as `Foreign`, which can do nothing.
"""
import builtins
import io
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor


class Unsupported(BaseException):
    "This question cannot be put to another process. (No `except Exception` swallows it.)"


class Ended(Exception):
    "The other process is gone."


class Foreign:
    "Stands for what is no data."
    def __init__(self, kind: str): self.kind = kind

    def __repr__(self) -> str: return f"a value of the type {self.kind}"


# --- tensors ------------------------------------------------------------------------------------------------------

def packed(x: Tensor) -> tuple:
    "A tensor as data, with its strides."
    x = x.detach()
    if x.device.type != "cpu" or x.layout != torch.strided: raise Unsupported(f"a tensor on {x.device}, {x.layout}")
    if x.untyped_storage().nbytes() > 4 * x.numel() * x.element_size() + 64: x = x.clone()
    memory = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    return "tensor", str(x.dtype).partition(".")[2], tuple(x.shape), x.stride(), x.storage_offset(), memory.numpy().tobytes()


def unpacked(dtype: str, shape: tuple, stride: tuple, offset: int, memory: bytes) -> Tensor:
    "The tensor that `packed` described."
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype): raise pickle.UnpicklingError(f"{dtype} is no type of numbers")
    if 0 in shape: return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(memory), dtype=torch.uint8).view(kind).as_strided(shape, stride, offset)


# --- messages -----------------------------------------------------------------------------------------------------

class Writer(pickle.Pickler):
    "Writes data; what is none goes through the peer that owns it."
    def __init__(self, file, peer: "Peer"):
        super().__init__(file, protocol=5)
        self.peer = peer

    def persistent_id(self, x):
        kind = type(x)
        if kind is Tensor or kind is torch.nn.Parameter:
            if self.peer.strict and x.requires_grad and torch.is_grad_enabled(): raise Unsupported("gradients are asked for")
            return packed(x)
        if kind is torch.dtype: return "dtype", str(x).partition(".")[2]
        if isinstance(x, np.ndarray | np.generic) and np.asarray(x).dtype.kind in "biuf": return "array", np.asarray(x).tolist(), np.asarray(x).dtype.str, isinstance(x, np.generic)
        if isinstance(x, tuple) and kind is not tuple: return "tuple", list(tuple.__iter__(x))
        if isinstance(x, list) and kind is not list: return self.peer.refused(x) or ("list", list(list.__iter__(x)))
        if isinstance(x, dict) and kind is not dict: return "dict", list(dict.items(x))
        if kind in (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset, range): return None
        if isinstance(x, Iterator): return "iterator", self.peer.keep(x)
        if callable(x) and not isinstance(x, Tensor): return "function", self.peer.keep(x)
        return self.peer.refused(x) or ("foreign", kind.__name__)


class Reader(pickle.Unpickler):
    "Reads data. No name in a message leads to anything."
    def __init__(self, file, peer: "Peer"):
        super().__init__(file)
        self.peer = peer

    def find_class(self, module, name): raise pickle.UnpicklingError(f"{module}.{name} is no data")

    def persistent_load(self, told):
        kind, *rest = told
        if kind == "tensor": return unpacked(*rest)
        if kind == "dtype": return getattr(torch, rest[0])
        if kind == "array": return np.dtype(rest[1]).type(rest[0]) if rest[2] else np.array(rest[0], dtype=rest[1])
        if kind in ("tuple", "list", "dict"): return {"tuple": tuple, "list": list, "dict": dict}[kind](rest[0])
        if kind == "function": return Function(self.peer, rest[0])
        if kind == "iterator": return Items(self.peer, rest[0])
        return Foreign(str(rest[0]))


class Function:
    "Stands for a function of the other process."
    def __init__(self, peer: "Peer", number: int, name: str = "function"): self.peer, self.number, self.__name__ = peer, number, name

    def __call__(self, *args, **kwargs): return self.peer.ask("call", self.number, args, kwargs)

    @property
    def fn(self): raise Unsupported("is it a kernel?")                         # its source is compiled where it is


class Items:
    "Stands for an iterator of the other process."
    def __init__(self, peer: "Peer", number: int): self.peer, self.number = peer, number

    def __iter__(self): return self

    def __next__(self): return self.peer.ask("next", self.number, (), {})


def takes_text(kind) -> bool:
    "Is this one of Python's own errors, and made of a text?"
    own = isinstance(kind, type) and issubclass(kind, Exception) and vars(builtins).get(kind.__name__) is kind
    return own and not issubclass(kind, UnicodeDecodeError | UnicodeEncodeError | UnicodeTranslateError | OSError | StopIteration | BaseExceptionGroup)


def base_of(error: BaseException) -> str:
    "The name of the nearest of Python's own errors: what is caught as a ValueError there has to be caught as one here."
    return next((kind.__name__ for kind in type(error).__mro__ if takes_text(kind)), "Exception")


def error_of(name: str, text: str, base: str) -> Exception:
    "An error of this name, derived from this one of Python's own."
    kind = vars(builtins).get(base)
    kind = kind if takes_text(kind) else Exception
    return kind(text) if name == base else type(name if name.isidentifier() else "Exception", (kind,), {})(text)


class Peer:
    "One end of the line. `strict`: refuse to send what is no data; else the other side is told its name."
    def __init__(self, read: BinaryIO, write: BinaryIO, strict: bool = False, around: Callable | None = None):
        self.read, self.write, self.strict, self.kept, self.around = read, write, strict, [], around

    def keep(self, x) -> int:
        "The number under which the other side may ask for a function or an iterator of ours."
        self.kept.append(x)
        return len(self.kept) - 1

    def refused(self, x) -> None:
        if self.strict: raise Unsupported(f"a value of the type {type(x).__name__}")

    def send(self, *message) -> None:
        out = io.BytesIO()
        Writer(out, self).dump(message)
        try:
            self.write.write(struct.pack(">Q", len(out.getbuffer())) + out.getbuffer())
            self.write.flush()
        except (OSError, ValueError): raise Ended from None

    def receive(self) -> tuple:
        try:
            head = self.read.read(8)
            body = self.read.read(struct.unpack(">Q", head)[0]) if len(head) == 8 else b""
        except (OSError, ValueError): raise Ended from None
        if not body: raise Ended
        try: return Reader(io.BytesIO(body), self).load()
        except Exception: raise Ended from None                               # it does not speak our language

    def ask(self, kind: str, number: int, args: tuple, kwargs: dict):
        "Have something done over there; answer what is asked meanwhile."
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack(): raise Unsupported("what PyTorch does is watched")
        self.send(kind, number, args, kwargs, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        while True:
            what, *rest = self.receive()
            if what == "done": return rest[0]
            if what == "stop": raise StopIteration
            if what == "raised": raise error_of(*map(str, rest))
            self.serve(what, *rest)

    def serve(self, kind: str, number: int, args: tuple, kwargs: dict, grad: bool, inference: bool) -> None:
        "Do what is asked of us, and say what came of it."
        do = self.kept[number] if kind == "call" else self.kept[number].__next__
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad and not inference):
                found = self.around(do, *args, **kwargs) if self.around else do(*args, **kwargs)
            told = "done", found
        except StopIteration: told = ("stop",)
        except (Ended, Unsupported): raise
        except BaseException as error: told = "raised", type(error).__name__, str(error), base_of(error)
        self.send(*told)
