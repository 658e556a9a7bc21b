"""The kernel in Gluon on a model of the machine: its functions as they stand, three roles in any
order, copies and products that end late.

Gluon has no interpreter. Here its names stand for NumPy and for a model of what a GPU does
meanwhile: mbarriers with phases, copies that are on their way, products that are waited for. Only
numbers, hangs and hazards are modelled, no layouts and no time. Runs in the process of
`flash_cases.py`, which `test_flash_kernels.py` starts.
"""
import ast
import itertools
import math
import random
import threading
from collections import namedtuple
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
from conftest import sweep

from tfmlib.flash_attention_gpu import gluon as flash_gluon
from tfmlib.flash_attention_gpu import gluon_backward, kernels
from tfmlib.workbench import need

SOURCE = Path(flash_gluon.__file__).read_text()
# it builds on the forward pass
BACKWARD = SOURCE + "\n" + Path(gluon_backward.__file__).read_text()


# who goes first, if he can: two consumers, the producer, the copies
ORDERS = list(itertools.permutations(range(4)))


class Fault(Exception):
    "Something that must not happen on a GPU."


def sure(right: bool, says: str) -> None:
    if not right: raise Fault(says)


# --- the model ------------------------------------------------------------------------------------

class Array(np.ndarray):
    "A tensor in registers; its layout is nobody's business here."
    type = SimpleNamespace(layout=None)
    def to(self, dtype): return self


def array(x) -> Array: return np.asarray(x).view(Array)


class Barrier:
    "An mbarrier: a phase ends when all arrivals and all bytes have come."
    count = arrivals = ended = bytes = 0
    def init(self, count): self.count = self.arrivals = count

    def come(self, arrivals: int = 0, bytes: int = 0) -> None:
        self.arrivals, self.bytes = self.arrivals - arrivals, self.bytes + bytes
        sure(self.arrivals >= 0 and self.bytes >= 0, "more came than was expected")
        if self.arrivals == self.bytes == 0: self.ended, self.arrivals = self.ended + 1, self.count

    def past(self, parity: int) -> bool: return self.ended % 2 != parity


class Slot:
    "A tile of shared memory."
    def __init__(self, shape, size=2):
        self.data, self.filling, self.readers, self.unfenced, self.nbytes = (
            np.full(shape, np.nan), True, [], set(), size * math.prod(shape))


class View:
    "A tile as somebody looks at it."
    def __init__(self, slot, seen=lambda x: x): self.slot, self.seen, self.dtype = slot, seen, None
    def reshape(self, shape):
        return View(self.slot, lambda x: self.seen(x).reshape([int(n) for n in shape]))
    def permute(self, order): return View(self.slot, lambda x: self.seen(x).transpose(order))
    def slice(self, start, length, dim):
        part = (slice(None),) * dim + (slice(start, start + length),)
        return View(self.slot, lambda x: self.seen(x)[part])
    def read(self): return self.seen(self.slot.data)

    def load(self, layout):
        sure(not self.slot.filling, "read before it is full")
        return array(self.read().copy())

    def store(self, value) -> None:
        sure(not self.slot.readers, "written to while a product reads it")
        self.seen(self.slot.data)[...] = value
        self.slot.filling = False
        self.slot.unfenced.add(threading.current_thread())


class Tiles(list):
    "Shared memory: tiles, or barriers."
    dtype = None
    def index(self, i): return self[int(i)]


class Product:
    "A product on its way; it reads shared memory until it is waited for."
    def __init__(self, a, b, acc):
        self.sides, self.acc, self.slots, self.result, self.type = ((a, b), acc,
                [x.slot for x in (a, b) if isinstance(x, View)], None, Array.type)
        for slot in self.slots:
            sure(not slot.filling, "read before it is full")
            sure(not slot.unfenced, "multiplied without a fence")
            slot.readers.append(self)

    def end(self) -> None:
        a, b = (x.read() if isinstance(x, View) else x for x in self.sides)
        self.result = array(a @ b + self.acc)
        for slot in self.slots: slot.readers.remove(self)


class Copy:
    "A copy between a tensor and a tile; what lies beyond the tensor is zeros, and stays as it is."
    def __init__(self, tensor, at, slot, barrier=None, adds=False):
        self.tensor, self.at, self.slot, self.barrier, self.adds = (tensor, [int(n) for n in at],
                                                                    slot, barrier, adds)

    def end(self) -> None:
        box = tuple(slice(n, n + m) for n, m in zip(self.at, self.slot.data.shape))
        sure(min(self.at) >= 0, "begins before the tensor")
        inside = self.tensor[box]
        part = tuple(slice(0, n) for n in inside.shape)
        if self.barrier is None:
            new = torch.from_numpy(self.slot.data[part])
            inside[...] = inside + new if self.adds else new
            self.slot.readers.remove(self)
        else:
            self.slot.data[...], self.slot.filling = 0, False
            self.slot.data[part] = inside.numpy()
            self.barrier.come(bytes=-self.slot.nbytes)


class Machine:
    "One program: its roles, one at a time, in an order that is drawn, and what is on its way."
    def __init__(self, seed: int):
        self.draw, self.order = random.Random(seed), ORDERS[seed] if seed < 24 else None
        # how seldom a copy ends while somebody can go on
        self.late = self.draw.choice((.5, .8, .95))
        self.copies, self.roles, self.issued, self.here, self.over = ([], [], [],
                threading.Semaphore(0), False)

    def specialize(self, functions, *_) -> None:
        for i, (function, told) in enumerate(functions):
            role = SimpleNamespace(number=i, go=threading.Semaphore(0), ready=lambda: True,
                                   over=False, products=[], fault=None, copies=[])
            role.thread = threading.Thread(target=self.work, args=(role, function, told),
                                           daemon=True)
            role.thread.role = role
            self.roles.append(role)
        for role in self.roles: role.thread.start()
        try:
            while any(not role.over for role in self.roles): self.turn()
        finally: self.end()
        sure(not self.copies, "a copy is on its way when the program ends")
        if self.turns:
            sure(self.issued == [0, 1] * (len(self.issued) // 2), "the consumers do not take turns")

    def turn(self) -> None:
        "Let somebody who can go on, or end a copy."
        able = [role for role in self.roles if not role.over and role.ready()]
        sure(able or self.copies, "everybody waits")
        if self.order:
            chosen = min(able + self.copies, key=lambda one: self.order[getattr(one, "number", 3)])
        else:
            chosen = self.draw.choice(able if able and (not self.copies or self.draw.random()
                    < self.late) else self.copies)
        if isinstance(chosen, Copy):
            self.copies.remove(chosen)
            return chosen.end()
        chosen.go.release()
        self.here.acquire()
        if chosen.fault: raise chosen.fault

    def end(self) -> None:
        "Let roles that still wait end."
        self.over = True
        for role in self.roles: role.go.release(); role.thread.join()

    def work(self, role, function, told) -> None:
        role.go.acquire()
        try:
            sure(not self.over, "over")
            function(*told)
            sure(not role.products, "a product is on its way when its warps end")
        except Exception as fault: role.fault = fault
        role.over = True
        self.here.release()

    @property
    def role(self): return threading.current_thread().role

    def pause(self, ready=lambda: True) -> None:
        "Let others go first, until `ready`."
        role, role.ready = self.role, ready
        self.here.release()
        role.go.acquire()
        sure(not self.over, "over")

    # what the kernel calls

    def wait(self, barrier, parity): self.pause(lambda: barrier.past(int(parity)))
    def arrive(self, barrier, count): self.pause(); barrier.come(count)
    def expect(self, barrier, bytes): self.pause(); barrier.come(1, bytes)

    def fetch(self, descriptor, at, barrier, view) -> None:
        self.pause()
        sure(not view.slot.readers, "filled while a product reads it")
        view.slot.data[...], view.slot.filling = np.nan, True
        self.copies.append(Copy(descriptor.tensor, at, view.slot, barrier))

    def put(self, descriptor, at, view, adds=False) -> None:
        sure(not view.slot.unfenced, "stored without a fence")
        self.copies.append(copy := Copy(descriptor.tensor, at, view.slot, adds=adds))
        view.slot.readers.append(copy)
        self.role.copies.append(copy)

    def add(self, descriptor, at, view) -> None: self.put(descriptor, at, view, adds=True)

    def fence(self) -> None:
        who = threading.current_thread()
        for slot in self.slots: slot.unfenced.discard(who)

    def stored(self, pending):
        role = self.role
        self.pause(lambda: not any(copy in self.copies for copy in role.copies))

    def multiply(self, a, b, acc, use_acc=True, is_async=False):
        self.pause()
        if not use_acc: self.issued.append(self.role.number)
        self.role.products.append(made := Product(a, b, acc if use_acc else 0))
        return made

    def finished(self, pending, deps):
        self.pause()
        while len(self.role.products) > pending: self.role.products.pop(0).end()
        sure(all(product.result is not None for product in deps),
             "read before its product has ended")
        return deps[0].result if len(deps) == 1 else tuple(product.result for product in deps)

    def allocate(self, dtype, shape, layout):
        if len(shape) == 2: return Tiles(Barrier() for _ in range(shape[0]))
        made = Tiles(View(Slot(shape[1:], 4 if dtype == "float32" else 2)) for _ in range(shape[0]))
        self.slots = [*getattr(self, "slots", []), *(view.slot for view in made)]
        return made


Pointer = namedtuple("Pointer", "data at")
Pointer.__add__ = lambda self, more: Pointer(self.data, self.at + more)


def store(pointer, value, mask):
    pointer.data[np.asarray(pointer.at)[mask]] = torch.from_numpy(np.asarray(value[mask],
            np.float32))


class Kernel:
    "What is launched: each program of the grid on a machine of its own."
    def __init__(self, fn): self.fn = fn
    def __call__(self, *told): return self.fn(*told)
    def __getitem__(self, grid): return lambda *given, **told: self.launch(grid, given, told)

    def launch(self, grid, given, told) -> None:
        space, given = (self.fn.__globals__,
                        [Pointer(x.view(-1), 0) if isinstance(x, torch.Tensor) else x
                         for x in given])
        for program, where in enumerate(itertools.product(*map(range, grid))):
            machine, gl = (Machine(space["SEED"] + 100 * program * (space["SEED"] >= 24)),
                           space["gl"])
            gl.program_id, gl.num_programs = (
                lambda axis, w=where: array(w[axis])), lambda axis: grid[axis]
            gl.allocate_shared_memory, gl.warp_specialize = machine.allocate, machine.specialize
            space["mbarrier"].__dict__.update(init=Barrier.init, wait=machine.wait,
                                              arrive=machine.arrive, expect=machine.expect,
                                              MBarrierLayout=lambda: None)
            space["tma"].__dict__.update(async_copy_global_to_shared=machine.fetch,
                                         async_copy_shared_to_global=machine.put,
                                         store_wait=machine.stored)
            space.update(warpgroup_mma=machine.multiply, warpgroup_mma_wait=machine.finished,
                         fence_async_shared=machine.fence)
            space["add_to_global"] = machine.add
            machine.slots, machine.turns = [], self.fn.__name__ == "forward_gluon"
            with np.errstate(invalid="ignore", divide="ignore"):
                self.fn(*given,
                        **{key: value for key, value in told.items()
                           if key not in ("num_warps", "maxnreg")})


class Descriptor:
    "A tensor and the tile that is moved; the layout is not looked at."
    @staticmethod
    def from_tensor(x, shape, layout):
        size = SimpleNamespace(nbytes=(4 if x.dtype == torch.float32 else 2) * math.prod(shape))
        return SimpleNamespace(tensor=x, block_type=size, dtype=None, layout=None)


class Layout:
    "How a tile lies in shared memory: not modelled."
    def __init__(self, *_): pass
    @staticmethod
    def get_default_for(*_): return None


@cache
def code(source: str):
    "The module without what it imports."
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return compile(tree, "flash_gluon.py", "exec")


def module(source: str, seed: int) -> dict:
    "The module's functions in the model's language."
    nothing = lambda *_: None                                   # noqa: E731
    numbers = {name: (lambda function: lambda *a: array(function(*a)))(getattr(np, name))
               for name in ("where", "maximum", "minimum", "expand_dims", "max", "sum",
                            "exp2", "log2")}
    gl = SimpleNamespace(**numbers, constexpr=None, float32="float32", int64=None, float16=None,
                         bfloat16=None, static_range=range, cdiv=triton.cdiv,
                         convert_layout=lambda x, layout: x,
                         zeros=lambda shape, *_: array(np.zeros(shape)),
                         full=lambda shape, value, *_: array(np.full(shape, value)),
                         arange=lambda a, b, layout: array(np.arange(a, b)),
                         NVMMADistributedLayout=nothing, DotOperandLayout=nothing,
                         SliceLayout=nothing,
                         NVMMASharedLayout=Layout, store=store)
    space = {"gl": gl, "gluon": SimpleNamespace(jit=Kernel), "mbarrier": SimpleNamespace(),
             "tma": SimpleNamespace(), "hopper": SimpleNamespace(TensorDescriptor=Descriptor),
             "builtin": lambda function: function, "math": math, "LN2": math.log(2),
             "LOG2E": 1 / math.log(2), "torch": torch,
             "Tensor": torch.Tensor,
             "triton": triton, "Config": kernels.Config, "LAUNCHERS": {}, "need": need,
             "SEED": seed}
    exec(code(source), space)
    return space


# --- right ----------------------------------------------------------------------------------------

def furthest(source: str, seed: int, T: int, S: int, causal: bool, cols: int, stages: int,
             heads: tuple = (1, 1, 1), D: int = 64) -> float:
    """The largest distance from float64, in units of what float16 allows; a Fault if the
    schedule is wrong."""
    (B, H, G), g = heads, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, h, n, D, generator=g).half() for h, n in ((H, T), (G, S), (G, S)))
    out, lse = torch.full_like(q, math.nan), torch.full((B, H, T), math.nan)
    config = kernels.Config("forward", "gluon", 128, 16, None, 128, cols, 4, stages)
    module(source, seed)["start_gluon"](config, [4 * q, k, v, lse, out],
                                        kernels.band(T, S, causal, None), D ** -.5)
    scores = 4 * q.double() @ k.double().repeat_interleave(H // G, 1).mT * D ** -.5
    if causal:
        scores = scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -math.inf)
    right = (scores.softmax(-1).nan_to_num(0) @ v.double().repeat_interleave(H // G, 1),
             scores.logsumexp(-1))
    # −∞ is −∞
    off = [(a.double() - b).abs().where(a.double() != b, torch.zeros(())).max() / bar
           for a, b, bar in zip((out, lse), right, (2e-3, 1e-5))]
    return max(math.inf if math.isnan(x) else x for x in map(float, off))


@pytest.mark.parametrize("stages", sweep([1, 2, 3], 1, 3))
@pytest.mark.parametrize("n", sweep(range(1, 10), 1, 4, 9))
def test_no_order_hangs_or_spoils_anything(n, stages):
    """One to nine tiles of keys: each role first, each last, copies at once or late, and orders
    that are drawn."""
    for seed in (0, 5, 9, 14, 20, 23, 24, 25):
        assert furthest(SOURCE, seed, 128, 16 * n, False, 16, stages) < 1


@pytest.mark.parametrize("T, S, cols, heads", sweep([
    (128, 128, 128, (1, 1, 1)), (256, 256, 128, (1, 1, 1)), (130, 130, 32, (2, 2, 1)),
    (257, 257, 128, (1, 1, 1)), (70, 300, 128, (1, 2, 2)), (300, 70, 64, (1, 1, 1)),
    (129, 256, 128, (1, 4, 2)),
    (200, 333, 128, (1, 1, 1)), (1, 50, 16, (1, 1, 1)), (40, 1, 128, (1, 1, 1))],
    (130, 130, 32, (2, 2, 1)), (70, 300, 128, (1, 2, 2)), (300, 70, 64, (1, 1, 1)),
    (40, 1, 128, (1, 1, 1))))
@pytest.mark.parametrize("causal", [False, True])
def test_any_length(T, S, cols, heads, causal):
    """Lengths that no tile divides, more keys than queries and fewer, heads that share keys:
    rows that see nothing give zeros and −∞."""
    assert furthest(SOURCE, 24, T, S, causal, cols, 2, heads) < 1


def test_what_the_kernel_does_not_take_is_named():
    q = torch.ones(1, 1, 8, 64, dtype=torch.float16)
    for x, window, says in ((q, 5, "window: 5; expected None: the kernel in Gluon has no window"),
                            (q[..., :32], None,
                             "q: torch.float16, width 32; expected 16 bits and width 64 or 128"),
                            (q.float(), None, "q: torch.float32, width 64; expected 16 bits")):
        with pytest.raises(ValueError, match=says):
            flash_gluon.start_gluon(kernels.CONFIGS[0], [x, x, x, x, x],
                                    kernels.band(8, 8, True, window), 1.)


# --- wrong ----------------------------------------------------------------------------------------

K_EMPTY, V_EMPTY = ("    mbarrier.arrive(k_empty.index(slot), count=1)\n",
                    "    mbarrier.arrive(v_empty.index(before), count=1)\n")
WRONG = {  # what is wrong: (a line of the module, what stands there instead, what is noticed)
    "keys given back before they are read": ("    scores = warpgroup_mma_wait(1, deps=(scores,))\n"
                                             + K_EMPTY,
                                             K_EMPTY + "    scores = warpgroup_mma_wait(1, "
                                                       "deps=(scores,))\n",
                                             "while a product reads"),
    "values given back before they are read": ("    acc = warpgroup_mma_wait(0, deps=(acc,))\n"
                                               + V_EMPTY,
                                               V_EMPTY
                                               + "    acc = warpgroup_mma_wait(0, deps=(acc,))\n",
                                               "while a product reads"),
    "keys never given back": (
        K_EMPTY
        + "    e, row_max, row_sum, correction = online_softmax(\n        scores, i, (n - 1 - step)", "    e, row_max, row_sum, correction = online_softmax(\n        scores, i, (n - 1 - step)", "everybody waits"),  # noqa: E501
    "values never given back": (V_EMPTY, "", "everybody waits"),
    "one consumer empties a slot of keys": ("mbarrier.init(k_empty.index(i), count=2)",
                                            "mbarrier.init(k_empty.index(i), count=1)", ""),
    "one consumer empties a slot of values": ("mbarrier.init(v_empty.index(i), count=2)",
                                              "mbarrier.init(v_empty.index(i), count=1)", ""),
    "the producer waits for what is to come": ("mbarrier.wait(empty.index(slot), phase ^ 1)",
                                               "mbarrier.wait(empty.index(slot), phase)",
                                               "everybody waits"),
    "the producer does not wait": (
        "    mbarrier.wait(empty.index(slot), phase ^ 1)           # a new barrier counts as past "
        "phase 1\n", "", ""),
    "queries are not awaited": ("    mbarrier.wait(q_full.index(0), 0)\n", "",
                                "read before it is full"),
    "half of the queries are awaited": ("2 * Q.block_type.nbytes", "Q.block_type.nbytes",
                                        "more came than was expected"),
    "the first keys are not awaited": ("    mbarrier.wait(k_full.index(0), 0)\n", "",
                                       "read before it is full"),
    "keys are not awaited": ("    mbarrier.wait(k_full.index(slot), phase)\n", "", ""),
    "values are not awaited": ("    mbarrier.wait(v_full.index(before), phase_before)\n", "", ""),
    "the last values are not awaited": (
        "    mbarrier.wait(v_full.index(slot), ((n - 1) // STAGES) & 1)\n", "", ""),
    "always the first phase": ("(step // STAGES) & 1\n    before", "0\n    before", ""),
    "a phase behind": ("((step - 1) // STAGES) & 1", "(step // STAGES) & 1", ""),
    "no turns": ("    mbarrier.wait(turn.index(HALF), (step & 1) ^ (1 - HALF))\n", "",
                 "do not take turns"),
    "both begin": ("    mbarrier.wait(turn.index(HALF), 1 - HALF)\n", "", "do not take turns"),
    "nobody begins": ("    mbarrier.wait(turn.index(HALF), 1 - HALF)\n",
                      "    mbarrier.wait(turn.index(HALF), 0)\n", "everybody waits"),
    "one's own turn": (
        "    acc = warpgroup_mma(weights, v, acc, is_async=True)\n    mbarrier.arrive(turn.index(1 "
        "- HALF), count=1)\n", "    acc = warpgroup_mma(weights, v, acc, is_async=True)\n    "
                               "mbarrier.arrive(turn.index(HALF), count=1)\n", ""),
    "scores are used too early": ("warpgroup_mma_wait(1, deps=(scores,))",
                                  "warpgroup_mma_wait(2, deps=(scores,))",
                                  "before its product has ended"),
    "the output is used too early": (
        "acc = warpgroup_mma_wait(0, deps=(acc,))\n    mbarrier.arrive(v_empty",
        "acc = warpgroup_mma_wait(1, deps=(acc,))\n    mbarrier.arrive(v_empty",
        "before its product has ended"),
    "stored without a fence": ("    fence_async_shared()\n    tma.async_copy_shared_to_global",
                               "    tma.async_copy_shared_to_global", "without a fence"),
    "the end is not awaited": ("    tma.store_wait(0)\n", "", "when the program ends"),
    "the first tile first": ("X, [b, g, (n - 1 - step) * COLS, 0]",
                             "X, [b, g, step * COLS, 0]", "numbers"),
    "no correction": ("return weights, acc * gl.expand_dims(correction, 1), row_max",
                      "return weights, acc, row_max", "numbers"),
    "the first step twice": ("first = gl.maximum(hidden, 1)", "first = hidden", ""),
    "a tile with hidden keys too few": ("n - seen_by_all // COLS, h",
                                        "n - seen_by_all // COLS - 1, h", "numbers"),
    "a mask for the first tile only": ("hidden = 1 + (cols < 128 or (S - T) % cols > 0) if",
                                       "hidden = 1 if", "numbers"),
    "aligned at the first key": ("<= gl.expand_dims(i + S - T, 1)",
                                 "<= gl.expand_dims(i, 1)", "numbers"),
    "the neighbour's log-sum-exp": ("(b.to(gl.int64) * gl.num_programs(1) + h) * T",
                                    "h * T", "numbers"),
    "the key head of another group": ("n - seen_by_all // COLS, h // group",
                                      "n - seen_by_all // COLS, h % group", "numbers"),
}
# lengths, mask, columns, stages, heads
CASES = [(128, 96, False, 16, 1), (193, 213, True, 32, 2, (2, 4, 2)), (129, 128, True, 128, 2)]


@pytest.mark.parametrize("wrong", sweep(WRONG, *list(WRONG)[::8]))
def test_a_wrong_schedule_is_noticed(wrong):
    """By a hang, by a hazard, or by wrong numbers, and by what the list says; some orders may be
    lucky."""
    old, new, says = WRONG[wrong]
    assert SOURCE.count(old) >= 1, f"not in the module: {old}"
    noticed = set()
    for seed, case in itertools.product((0, 5, 9, 14, 23, *range(24, 34)), CASES):
        try:
            noticed |= {"numbers"} if furthest(SOURCE.replace(old, new), seed, *case) > 5 else set()
        except Fault as fault: noticed.add(str(fault))
        if any(says in text for text in noticed): return
    pytest.fail(f"expected {says or 'a fault'}, noticed {noticed or 'nothing'}")


# --- the way back ---------------------------------------------------------------------------------

def furthest_back(source: str, seed: int, T: int, S: int, causal: bool, stages: int = 2,
                  heads: tuple = (1, 1, 1), D: int = 64, times: float = 1) -> float:
    """The same for the gradients of queries, keys and values, and tiles of 64 queries. Whatever
    is not written, or lies beside a tensor, is NaN."""
    (B, H, G), g = heads, torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(B, h, n, D, generator=g).half()
                     for h, n in ((H, T), (G, S), (G, S), (H, T)))
    q, scale = times * q, D ** -.5
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].repeat_interleave(H // G, 1).mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -math.inf)
    out = scores.softmax(-1).nan_to_num(0) @ leaves[2].repeat_interleave(H // G, 1)
    # rows that see nothing have no gradient, and autograd would make NaN of them
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0).softmax(-1) * ~blind
    out = weights @ leaves[2].repeat_interleave(H // G, 1)
    right = torch.autograd.grad(out, leaves, dout.double())
    lse, delta = scores.logsumexp(-1).float(), (out * dout).sum(-1).float()
    room = torch.full((3, B, H, max(S, T) + 130, D), math.nan)
    dk, dv, dq = room[0, :, :, :S], room[1, :, :, :S], room[2, :, :, :T]
    dq.zero_()
    config = kernels.Config("sweep", "gluon", 128, 16, None, 64, 128, 4, stages)
    short = [room[n].half()[:, :, :S] for n in (0, 1)]
    module(source, seed)["start_sweep"](
        config, [q, k, v, dout, lse.detach(), delta.detach(), *short, dq],
        kernels.band(T, S, causal, None), scale)
    dk, dv = (x.double().unflatten(1, (G, -1)).sum(2) for x in short)
    off = [(a.double() - b).abs().max() / b.abs().max().clamp(min=1e-3) / 3e-3
           for a, b in zip((dq, dk, dv), right)]
    if not room[2, :, :, T:].isnan().all(): return math.inf         # beyond the last query
    return max(math.inf if math.isnan(x) else x for x in map(float, off))


@pytest.mark.parametrize("stages", sweep([1, 2, 3], 1, 2))
@pytest.mark.parametrize("n", sweep(range(1, 7), 1, 5))
def test_no_order_hangs_or_spoils_the_way_back(n, stages):
    for seed in (0, 5, 9, 14, 20, 23, 24, 25):
        assert furthest_back(BACKWARD, seed, 64 * n, 128, False, stages) < 1


@pytest.mark.parametrize("T, S, heads, D", sweep([
    (256, 256, (1, 1, 1), 64), (130, 130, (2, 2, 1), 64), (70, 300, (1, 2, 2), 64),
    (300, 70, (1, 1, 1), 64), (129, 256, (1, 4, 2), 128), (200, 333, (1, 1, 1), 128),
    (1, 50, (1, 1, 1), 64), (40, 1, (1, 1, 1), 64)],
    (130, 130, (2, 2, 1), 64), (300, 70, (1, 1, 1), 64), (129, 256, (1, 4, 2), 128)))
@pytest.mark.parametrize("causal", [False, True])
def test_the_way_back_of_any_length(T, S, heads, D, causal):
    assert furthest_back(BACKWARD, 24, T, S, causal, 2, heads, D) < 1


DS_FULL = "    mbarrier.wait(ds_full.index(HALF), (step // 2) & 1)\n"
FENCE = "    fence_async_shared()\n    mbarrier.arrive(ds_full.index(turn), count=1)\n"
WRONG_BACK = {
    "keys are not awaited": ("    mbarrier.wait(kept.index(0), 0)\n", "", "before it is full"),
    "queries are not awaited": ("    mbarrier.wait(full.index(slot), phase)\n", "", ""),
    "always the first phase": ("mbarrier.wait(full.index(slot), phase)",
                               "mbarrier.wait(full.index(slot), 0)", ""),
    "the producer does not wait": ("        mbarrier.wait(empty.index(slot), phase ^ 1)\n", "",
                                   ""),
    "the producer waits for what is to come": ("mbarrier.wait(empty.index(slot), phase ^ 1)\n"
                                               "        mbarrier.expect(full",
                                               "mbarrier.wait(empty.index(slot), phase)\n"
                                               "        mbarrier.expect(full", "everybody waits"),
    "queries never given back": ("    mbarrier.arrive(empty.index(slot), count=1)\n"
                                 "    if turn", "    if turn", "everybody waits"),
    "queries given back before they are read": (
        "    dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))\n"
        "    mbarrier.arrive(empty.index(slot), count=1)\n",
        "    mbarrier.arrive(empty.index(slot), count=1)\n"
        "    dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))\n", "while a product reads"),
    "one consumer empties a slot": ("mbarrier.init(empty.index(i), count=2)            # both",
                                    "mbarrier.init(empty.index(i), count=1)            # both", ""),
    "half of dS is awaited": ("mbarrier.init(ds_full.index(i), count=2)",
                              "mbarrier.init(ds_full.index(i), count=1)", ""),
    "dS is not awaited": (DS_FULL, "", ""),
    "dS a phase behind": (DS_FULL, DS_FULL.replace("& 1)", "& 1 ^ 1)"), ""),
    "always the same consumer": ("    if turn == HALF: add_dq", "    if HALF == 0: add_dq", ""),
    "one buffer for both turns": ("ds_tiles.index(turn).slice", "ds_tiles.index(0).slice", ""),
    "dS without a fence": (FENCE, FENCE.split("\n", 1)[1], "without a fence"),
    "the sum is overwritten before it is read": (
        "        tma.store_wait(0)                                 # the sum before has been "
        "read\n", "", "while a product reads"),
    "added without a fence": ("        fence_async_shared()\n        add_to_global",
                              "        add_to_global", "without a fence"),
    "scores are used too early": ("    scores = warpgroup_mma_wait(1, deps=(scores,))\n"
                                  "    weights = gl.exp2",
                                  "    scores = warpgroup_mma_wait(2, deps=(scores,))\n"
                                  "    weights = gl.exp2", "before its product has ended"),
    "no mask": ("        if step < hidden: ", "        if step < 0: ", "numbers"),
    "a mask for a tile too few": ("ROWS), n) - begin", "ROWS), n) - begin - 1", "numbers"),
    "aligned at the first key": ("i = row + S - T + gl", "i = row + gl", "numbers"),
    "a tile of queries too few": ("begin = gl.maximum(col + T - S, 0) // ROWS",
                                  "begin = gl.maximum(col + T - S + 63, 0) // ROWS", "numbers"),
    "the key head of another group": ("h, h // group, col, begin", "h, h % group, col, begin",
                                      "numbers"),
    "dV written where dK belongs": ("room.store((dk * scale)", "room.store((dv * scale)",
                                    "numbers"),
}
CASES_BACK = [(320, 128, False), (193, 213, True, 2, (1, 4, 2)), (321, 256, True, 1)]


@pytest.mark.parametrize("wrong", sweep(WRONG_BACK, *list(WRONG_BACK)[::6]))
def test_a_wrong_way_back_is_noticed(wrong):
    old, new, says = WRONG_BACK[wrong]
    assert BACKWARD.count(old) == 1, f"not once in the modules: {old}"
    noticed = set()
    for seed, case in itertools.product((0, 5, 9, 14, 23, *range(24, 34)), CASES_BACK):
        try:
            far = furthest_back(BACKWARD.replace(old, new), seed, *case)
            noticed |= {"numbers"} if far > 5 else set()
        except Fault as fault: noticed.add(str(fault))
        if any(says in text for text in noticed): return
    pytest.fail(f"expected {says or 'a fault'}, noticed {noticed or 'nothing'}")
