"Operations as the listeners know them: each has a name, and says whether it only views."
import inspect

from ._absent import absent
from ._engine import State

functions, dispatches = [], []         # the modes that listen, the innermost last
ALSO = {"axis": "dim", "keepdims": "keepdim", "x": "input", "other": "other"}
DEVICES = {"layout": None, "pin_memory": None}


class Operation:
    "An operation as a dispatch mode is handed it."
    def __init__(self, name: str, body, is_view: bool):
        self.word, self.body, self.is_view = name, body, is_view
        self.__name__ = name

    def name(self) -> str: return f"aten::{self.word}"
    def __repr__(self): return f"<operation {self.name()}>"
    def __call__(self, *args, **kwargs): return below(self, args, kwargs or {})


def below(op: Operation, args: tuple, kwargs: dict):
    "The operation, told to the next dispatch mode if there is one."
    if not dispatches: return op.body(*args, **kwargs)
    mode = dispatches.pop()
    try: return mode.__torch_dispatch__(op, (), args, kwargs)
    finally: dispatches.append(mode)


def heard(call, op: Operation, composite: bool, args: tuple, kwargs: dict):
    "Tell the function modes of a call, then the dispatch modes of its operation."
    if functions:
        mode = functions.pop()
        try: return mode.__torch_function__(call, (), args, kwargs)
        finally: functions.append(mode)
    if composite and not State.inference: return op.body(*args, **kwargs)
    return below(op, args, kwargs)


def by_our_names(name: str, taken: dict, first: str, kwargs: dict) -> dict:
    "Keyword arguments under the names of the stand-in; one that it lacks is refused."
    named = {}
    for key, value in kwargs.items():
        if key not in taken:
            if key in DEVICES and value in (None, False): continue
            key = first if key == "input" else ALSO.get(key, key)
        if key not in taken: raise absent(f"{name}({key}=…)")
        named[key] = value
    return named


def operation(name: str = "", view: bool = False, composite: bool = False, like=None):
    """Make a function an operation, which modes listen to.

    A composite one is heard as its parts, unless autograd is off for good (inference).
    `like` is a function whose parameters it takes, if it does not name its own.
    """
    def wrap(body):
        op = Operation(name or body.__name__.strip("_"), body, view)
        taken = inspect.signature(like or body).parameters
        first = next(iter(taken), "")

        def call(*args, **kwargs):
            if kwargs: kwargs = by_our_names(op.word, taken, first, kwargs)
            if functions or dispatches: return heard(call, op, composite, args, kwargs)
            return body(*args, **kwargs)
        call.__name__, call.__doc__, call.op = op.word, body.__doc__, op
        return call
    return wrap
