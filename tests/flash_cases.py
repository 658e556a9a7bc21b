"""Attention kernels against float64 on shapes that are hard for tiles, and wrong kernels that these
shapes reject.

Runs in a process of its own, with TRITON_INTERPRET=1 set before anything imports Triton:
`test_flash_kernels.py` starts it.
"""
import importlib.util
import itertools
import math
import os
import re
import sys
import warnings
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from conftest import sweep
from hypothesis import given, settings
from hypothesis import strategies as st

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_flash_kernels.py"

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from bench.gpu.interpreter import with_reductions, without_repeats  # noqa: E402
from tfmlib.flash_attention_gpu import kernels  # noqa: E402
from tfmlib.flash_attention_gpu.tiles import load_rows, store_rows  # noqa: E402
from tfmlib.flash_attention_gpu.tuning import tune  # noqa: E402

without_repeats()
with_reductions()

torch.set_num_threads(1)
# room that nobody has written to is nan: what a kernel leaves out shows
torch.use_deterministic_algorithms(True, warn_only=True)
SOURCE = Path(kernels.__file__)
Shape = namedtuple("Shape", "B H G T S D causal window", defaults=(False, None))
SHAPES = {
    "tiles fit": Shape(1, 2, 2, 64, 64, 32),
    "no tile divides": Shape(1, 1, 1, 70, 45, 16),
    "no tile divides, causal": Shape(2, 2, 2, 50, 50, 16, True),
    "one query": Shape(2, 2, 1, 1, 77, 16, True),
    "one key": Shape(1, 1, 1, 40, 1, 16),
    "few queries, causal": Shape(1, 2, 2, 17, 77, 16, True),
    "nothing seen": Shape(1, 1, 1, 77, 17, 16, True),
    "eight to one": Shape(1, 8, 1, 20, 40, 16, True),
    "two by two": Shape(1, 4, 2, 33, 33, 16, True),
    "window of 1": Shape(1, 1, 1, 70, 70, 16, True, 1),
    "window": Shape(1, 1, 1, 130, 130, 16, True, 50),
    "window beyond": Shape(1, 1, 1, 40, 40, 16, True, 500),
    "window of a few": Shape(1, 1, 1, 30, 130, 16, True, 40),
    "both sides": Shape(1, 1, 1, 130, 130, 16, False, 20),
    "both sides, few keys": Shape(1, 1, 1, 80, 40, 16, False, 9),
    "width 64": Shape(1, 1, 1, 33, 40, 64, True),
    "width 128": Shape(1, 1, 1, 40, 33, 128),
    "width 256": Shape(1, 1, 1, 33, 33, 256, True),
    "scores by a hundred": Shape(1, 2, 1, 40, 70, 32, True),
    "scores by a hundred, all seen": Shape(1, 1, 1, 20, 130, 16),
    "scores far below zero": Shape(1, 1, 1, 40, 45, 16),
}
WAYS = ("pointers", "descriptors", "specialised")


def drawn(name: str, dtype=torch.float32) -> list[torch.Tensor]:
    "Queries, keys, values and the gradients at both outputs."
    B, H, G, T, S, D, *_ = SHAPES[name]
    g = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(*shape, generator=g) for shape in ((B, H, T, D), (B, G, S, D),
            (B, G, S, D), (B, H, T, D)))
    if name.startswith("scores by a hundred"): q = 100 * q
    if name == "scores far below zero": q, k = 40 * (1 + q.abs()), -(1 + k.abs())
    return [x.to(dtype) for x in (q, k, v, dout)] + [torch.randn(B, H, T, generator=g)]


def definition(q, k, v, causal, window, scale=None):
    "Output and log-sum-exp with the matrix, in the type that comes in."
    groups, (T, S) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    scores = (q @ k.repeat_interleave(groups, 1).mT
              * (q.shape[-1] ** -0.5 if scale is None else scale))
    away = torch.arange(S, device=q.device) - torch.arange(T, device=q.device)[:, None] - (S - T)
    seen = torch.ones_like(away, dtype=torch.bool)
    if causal: seen &= away <= 0
    if window: seen &= away.abs() < window
    scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1).nan_to_num(0) @ v.repeat_interleave(groups, 1), scores.logsumexp(-1)


def both_ways(function, tensors, dout, dlse) -> list[torch.Tensor]:
    "Outputs and gradients; the log-sum-exp where it is finite."
    leaves = [x.clone().requires_grad_() for x in tensors]
    out, lse = function(*leaves)
    finite = lse.isfinite()
    grads = torch.autograd.grad((out * dout).sum() + (lse * dlse)[finite].sum(), leaves)
    return [out.detach(), torch.where(finite, lse.detach(), 0), finite.double(), *grads]


def config(kernel: str, way: str) -> object:
    return kernels.Config(kernel, "descriptors" if (kernel, way) == ("dq", "specialised") else way,
                          256, 16, None, 32, 32, 4, 1)


def furthest(module, name: str, way: str, dtype=torch.float32, sweep: bool = False) -> float:
    """The largest distance of any result from float64, in units of what is allowed; sweep: with
    the backward pass that adds to dQ in any order."""
    module.SMALL.update({kernel: config(kernel, way) for kernel in module.SMALL})
    *tensors, dout, dlse = drawn(name, dtype)
    causal, window = SHAPES[name].causal, SHAPES[name].window
    ours = both_ways(lambda *t: module.flash(*t, causal, window, None, not sweep), tensors, dout,
                     dlse)
    exact = both_ways(lambda *t: definition(*t, causal, window), [t.double() for t in tensors],
                      dout.double(), dlse.double())
    allowed = ({torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
               * (100 if name.startswith("scores") else 1))
    off = [float((a.double() - b).abs().max()) / max(1., float(b.abs().max()))
           for a, b in zip(ours, exact)]
    return max(math.inf if math.isnan(x) else x for x in off) / allowed


# --- right ----------------------------------------------------------------------------------------

OFTEN = {(name, "pointers") for name in [*SHAPES][::3]} | {
    (name, "pointers") for name in ("eight to one", "both sides")} | {
    ("no tile divides, causal", way) for way in WAYS}


@pytest.mark.parametrize("name, way", sweep(itertools.product(SHAPES, WAYS), *OFTEN))
def test_float32(name, way):
    assert furthest(kernels, name, way) < 1


@pytest.mark.parametrize("name, way", sweep(
    itertools.product(SHAPES, ("pointers", "descriptors")),
    *itertools.product(("no tile divides, causal", "scores far below zero", "eight to one",
                        "both sides"), ("pointers", "descriptors"))))
def test_one_sweep(name, way):
    assert furthest(kernels, name, way, sweep=True) < 1


@pytest.mark.parametrize("name", sweep(
    ["tiles fit", "no tile divides, causal", "nothing seen", "eight to one", "both sides",
     "width 128", "scores far below zero"], "nothing seen"))
def test_float16(name):
    assert furthest(kernels, name, "pointers", torch.float16) < 1


@pytest.mark.parametrize("rows, cols", sweep([(16, 64), (64, 16)], (16, 64)))
def test_tiles_need_not_be_square(rows, cols):
    q, k, v, dout, _ = drawn("window")
    own = [kernels.Config(kernel, "pointers", 256, 32, None, rows, cols, 4, 1)
           for kernel in ("forward", "dkdv", "dq")]
    out, lse = kernels.forward(q, k, v, causal=True, window=50, config=own[0])
    grads = kernels.backward((q, k, v, out, lse), dout, causal=True, window=50,
                             configs=tuple(own[1:]))
    exact = both_ways(lambda *t: definition(*t, True, 50), [q.double(), k.double(), v.double()],
                      dout.double(), torch.zeros_like(lse).double())
    for ours, theirs in zip((out, lse, *grads), exact[:2] + exact[3:]):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("way", sweep(("pointers", "descriptors"), "descriptors"))
def test_any_layout(way):
    """Heads beside one another, numbers apart, rows from the middle of something: the numbers
    are the same."""
    kernels.SMALL.update({kernel: config(kernel, way) for kernel in kernels.SMALL})
    *tensors, _, _ = drawn("eight to one")
    plain, _ = kernels.flash(*tensors, True)
    beside = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    apart = [t.mT.contiguous().mT for t in tensors]
    within = [torch.nn.functional.pad(t, (3, 2))[..., 3:-2] for t in tensors]
    mixed = [beside[0], tensors[1], within[2]]
    for t in (beside, apart, within, mixed): assert torch.equal(kernels.flash(*t, True)[0], plain)


@pytest.mark.parametrize("way", ("pointers", "descriptors"))
def test_nothing_beyond_is_read(way):
    "Rows beyond the last that are nan do not show."
    kernels.SMALL.update({kernel: config(kernel, way) for kernel in kernels.SMALL})
    *tensors, dout, dlse = drawn("no tile divides")
    padded = [torch.cat([t, torch.full_like(t[:, :, :30], math.nan)], 2)[:, :, :t.shape[2]]
              for t in (*tensors, dout)]
    for a, b in zip(both_ways(lambda *t: Raw.apply(*t), padded[:3], padded[3], dlse),
                    both_ways(lambda *t: kernels.flash(*t), tensors, dout, dlse)):
        assert torch.equal(a, b)


def written_beyond(module, way: str) -> list[str]:
    """Which results are followed by something that a kernel wrote. (Behind a head that is not
    the last, the next head's program would write over it.)"""
    q, k, v, dout, _ = drawn("no tile divides")
    whole = {name: torch.full((x.numel() + 2000,), 7.)
             for name, x in (("out", q), ("lse", q[..., 0]), ("delta", q[..., 0]), ("dk", k),
                             ("dv", v), ("dq", q))}
    like = {"out": q, "lse": q[..., 0], "delta": q[..., 0], "dk": k, "dv": v, "dq": q}
    out, lse, delta, dk, dv, dq = (x[:-2000].view(like[name].shape) for name, x in whole.items())
    limits = module.band(q.shape[2], k.shape[2], False, None)
    module.start(config("forward", way), [q, k, v, lse, out], limits, .25)
    module.delta_kernel[2, 1, 1](out, dout, delta, out.stride(), dout.stride(), q.shape[2],
                                 ROWS=64, D=16)
    module.start(config("dkdv", way), [q, k, v, dout, lse, delta, dk, dv], limits, .25)
    module.start(config("dq", way), [q, k, v, dout, lse, delta, dq], limits, .25)
    return [name for name, x in whole.items() if not bool((x[-2000:] == 7).all())]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_beyond_is_written(way):
    assert written_beyond(kernels, way) == []


class Raw(kernels.Flash):
    "The same function on leaves that are views of longer tensors."
    @staticmethod
    def forward(ctx, q, k, v): return kernels.Flash.forward(ctx, q, k, v, False, None, None)
    @staticmethod
    def backward(ctx, dout, dlse): return kernels.Flash.backward(ctx, dout, dlse)[:3]


# None: the root of the width that was given
@pytest.mark.parametrize("scale", [.3, None])
def test_other_widths(scale):
    "Widths between those of the kernels, and values of another width than the keys."
    g = torch.Generator().manual_seed(1)
    q, k, v, dout = (torch.randn(1, 2, n, w, generator=g)
                     for n, w in ((9, 5), (12, 5), (12, 20), (9, 20)))
    dlse = torch.zeros(1, 2, 9)
    ours = both_ways(lambda *t: kernels.flash(*t, True, scale=scale), [q, k, v], dout, dlse)
    exact = both_ways(lambda *t: definition(*t, True, None, scale), [t.double() for t in (q, k, v)],
                      dout.double(), dlse.double())
    for a, b in zip(ours, exact): torch.testing.assert_close(a.double(), b, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("T, S", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(T, S):
    q, k = torch.ones(1, 2, T, 16, requires_grad=True), torch.ones(1, 1, S, 16, requires_grad=True)
    out, lse = kernels.flash(q, k, k)
    out.sum().backward()
    assert (out.shape == q.shape and not out.any() and bool((lse == -math.inf).all())
            and not q.grad.any() and k.grad.shape == k.shape)


def test_unused_outputs():
    "Only the log-sum-exp is differentiated; only the output is."
    leaves = [x.requires_grad_() for x in drawn("two by two")[:3]]
    for pick in (0, 1):
        ours = torch.autograd.grad(kernels.flash(*leaves, True)[pick].sum(), leaves,
                                   allow_unused=True)
        theirs = torch.autograd.grad(definition(*(x.double() for x in leaves), True,
                                                None)[pick].sum(), leaves, allow_unused=True)
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b.to(a.dtype),
                                       atol=5e-6, rtol=5e-6)


def test_no_second_gradients():
    q = torch.ones(1, 1, 4, 16, requires_grad=True)
    [dq] = torch.autograd.grad(kernels.flash(q, q, q)[0].sum(), q, create_graph=False)
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        torch.autograd.grad(kernels.flash(q, q, q)[0].sum(), q, create_graph=True)


def test_many_keys_and_few():
    "Scores of 70,000 equal keys sum beyond float16, and come to 1."
    many = torch.ones(1, 1, 70_000, 16, dtype=torch.float16)
    wide = kernels.Config("forward", "pointers", 256, 16, None, 16, 4096, 4, 1)
    out, lse = kernels.forward(0 * many[:, :, :1], many, many, config=wide)
    assert out.eq(1).all() and abs(float(lse) - math.log(70_000)) < 1e-4


ones = torch.ones(1, 2, 4, 16)


@pytest.mark.parametrize("call, says", [
    (lambda: kernels.forward(ones[0], ones, ones), r"q: \(2, 4, 16\); expected four dimensions"),
    (lambda: kernels.forward(ones, ones[:, :, :, :8], ones),
     r"k: .*expected the batch and the width of q, one of \(16, 32, 64, 128, 256\)"),
    (lambda: kernels.forward(ones[..., :12], ones[..., :12], ones[..., :12]),
     r"q: \(1, 2, 4, 12\); expected the batch and the width"),
    (lambda: kernels.forward(ones, ones, ones.half()),
     r"v: torch.float16; expected float16, bfloat16 or float32, the same"),
    (lambda: kernels.forward(*3 * [ones.double()]),
     r"q: torch.float64; expected float16, bfloat16 or float32"),
    (lambda: kernels.forward(*3 * [ones.bfloat16()]),
     r"q: bfloat16; expected float16 or float32: Triton's interpreter misreads bfloat16"),
    (lambda: kernels.forward(ones, ones, ones[:, :, :3]),
     r"v: \(1, 2, 3, 16\); expected the shape of k"),
    (lambda: kernels.forward(ones, torch.ones(1, 3, 4, 16), torch.ones(1, 3, 4, 16)),
     r"k: 3 heads; expected a divisor of the 2 heads of q"),
    (lambda: kernels.forward(ones, ones, ones, window=0),
     r"window: 0; expected a whole number of at least 1"),
    (lambda: kernels.forward(ones, ones, ones, window=2.), r"window: 2.0; expected a whole number"),
    (lambda: kernels.forward(ones, ones, ones, scale=-1), r"scale: -1; expected a positive number"),
    (lambda: kernels.forward(ones, ones, ones, config=config("dq", "pointers")),
     r"config: .*expected a configuration of forward"),
    (lambda: kernels.backward((ones, ones, ones, ones, ones[..., 0]), ones[:, :1]),
     r"dout: .*expected shape and type of the output"),
    (lambda: kernels.flash(*3 * [torch.ones(1, 1, 2, 300)]), r"q: width 300; expected 1 to 256"),
    (lambda: kernels.flash(ones, ones, torch.ones(1, 2, 4, 300)),
     r"v: width 300; expected 1 to 256"),
    (lambda: kernels.flash(*3 * [ones[..., :0]]), r"q: width 0; expected 1 to 256"),
    (lambda: kernels.flash(ones, ones, ones[..., :0]), r"v: width 0; expected 1 to 256"),
    (lambda: kernels.flash(ones, ones[..., :8], ones), r"k: width 8; expected the width of q, 16"),
    (lambda: kernels.flash(ones, ones, ones, scale=math.inf),
     r"scale: inf; expected a positive number"),
    (lambda: kernels.flash(ones, ones, ones, scale=math.nan),
     r"scale: nan; expected a positive number"),
    (lambda: kernels.forward(*3 * [ones[..., :0]]),
     r"q: \(1, 2, 4, 0\); expected the batch and the width of q, one of"),
    (lambda: kernels.forward(ones, ones, ones[..., :0]),
     r"v: \(1, 2, 4, 0\); expected the batch and the width of q, one of"),
    (lambda: kernels.forward(ones, ones, ones, scale=math.inf),
     r"scale: inf; expected a positive number"),
    (lambda: kernels.forward(ones, ones, ones, scale=math.nan),
     r"scale: nan; expected a positive number"),
])
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says): call()


def test_a_record_is_remembered(monkeypatch):
    """The configuration that won on this kind of GPU, a specialised one too; not one that the
    table no longer has, nor on another GPU."""
    def row(kernel, chosen, causal, D=128, **told):
        c = next(c for c in kernels.CONFIGS if c.kernel == kernel and c.width >= D
                 and all(getattr(c, key) == value for key, value in told.items()))
        return ({"case": "configuration", "chosen": chosen, "causal": str(causal), "D": D}
                | {key: getattr(c, key)
                   for key in ("kernel", "way", "rows", "cols", "warps", "stages")})
    rows = [row("forward", "yes", False, way="specialised"), row("forward", "no", True),
            row("dq", "yes", True) | {"rows": 77}, {"case": "sweep"}]
    monkeypatch.setattr(kernels, "load_record",
                        lambda name: namedtuple("Record", "device rows")("that GPU", rows))
    kernels.remembered.cache_clear()
    [(key, best)] = kernels.remembered("that GPU").items()
    assert (key == ("forward", 128, 16, False) and best.way == "specialised" and best.width == 128
            and best in kernels.CONFIGS)
    assert kernels.remembered("another GPU") == {}
    kernels.remembered.cache_clear()


@pytest.mark.parametrize("spoilt", [None, 0, 1])
def test_tuning_prefers_nothing_that_is_wrong(monkeypatch, spoilt):
    """A forward kernel that spoils the log-sum-exps or the output is not taken, however fast it
    is; the others are timed on right ones."""
    q, k, v, *_ = drawn("eight to one")
    fast, slow = (config("forward", way) for way in ("specialised", "pointers"))
    found = {"forward": [fast, slow], "dkdv": [config("dkdv", "pointers")],
             "dq": [config("dq", "pointers")]}
    monkeypatch.setattr(kernels, "PREFERRED", {})
    whole, seen = kernels.fitting, []
    monkeypatch.setattr(kernels, "fitting", lambda kernel, q, causal, ways=None: found[kernel]
                        if ways else whole(kernel, q, causal))
    def trial(c, inputs, others, limits, scale):
        seen.append([x.isfinite().all() for x in others[:2]] if c.kernel == "forward"
                    else [others[0].isfinite().all()])
        if c == fast and spoilt is not None: others[spoilt].fill_(math.nan)
        return [1. if c == fast else 2.]
    monkeypatch.setattr(kernels, "trial", trial)
    tried = tune(q, k, v, causal=True, ways=("specialised", "pointers"))
    assert ((fast in tried) == (spoilt is None) and {slow, *found["dkdv"], *found["dq"]}
            <= tried.keys() and all(all(one) for one in seen))
    assert (kernels.PREFERRED["forward", q.shape[-1], slow.bits, True]
            == (slow if spoilt is not None else fast))


def test_without_gluon_the_next_configuration_is_taken(monkeypatch):
    """Where a record prefers Gluon and Triton is too old for it, it is said once and the next
    row runs; a window does not ask."""
    q, k, v, *_ = drawn("eight to one")
    gluon = next(c for c in kernels.CONFIGS if c.way == "gluon")
    monkeypatch.setattr(kernels, "fitting", lambda *_: [gluon, kernels.SMALL["forward"]])
    monkeypatch.setitem(sys.modules, "tfmlib.flash_attention_gpu.gluon", None)
    with pytest.warns(UserWarning,
                      match="the kernel in Gluon is left out: .*flash_attention_gpu.gluon"):
        out, _ = kernels.forward(q, k, v, causal=True)
    torch.testing.assert_close(out.double(), definition(q.double(), k.double(), v.double(), True,
            None)[0], atol=2e-6, rtol=2e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error"); kernels.forward(q, k, v, causal=True, window=3)
    with pytest.raises(ImportError): kernels.forward(q, k, v, config=gluon)


# --- decoding -------------------------------------------------------------------------------------

# size: of a page
Few = namedtuple("Few", "H G T lengths causal window size shares", defaults=(True, None, None, 2))
DECODES = {
    "one query": Few(2, 2, 1, (70,), shares=3),
    "grouped": Few(6, 2, 3, (50, 50)),
    "many rows": Few(8, 1, 16, (40,)),
    "lengths": Few(2, 1, 2, (70, 5, 33), shares=3),
    "pages": Few(4, 2, 3, (23, 40), size=8),
    "pages of five": Few(2, 2, 2, (23, 40, 1), size=5, shares=3),
    "pages, more than a tile": Few(2, 2, 2, (70, 40), size=8, shares=1),
    "window": Few(2, 1, 4, (84, 64), window=20, shares=3),
    "both sides": Few(2, 2, 5, (60, 30), False, 7),
    "all see all": Few(4, 1, 4, (60, 35), False),
    "fewer keys than queries": Few(2, 2, 8, (3, 20)),
    "no keys": Few(2, 2, 1, (0, 9), size=4),
    "more shares than tiles": Few(2, 2, 2, (20,), shares=7),
}


def cached(case, width: int = 16, dtype=torch.float32, seed: int = 0) -> tuple:
    "Queries, a cache whose unused rows are nan, its lengths and its block table."
    g, B = torch.Generator().manual_seed(seed), len(case.lengths)
    room, size = max(1, *case.lengths), case.size
    pages = -(-room // size) if size else 1
    shape = (B * pages + 2, case.G, size, width) if size else (B, case.G, room, width)
    q, pool = torch.randn(B, case.H, case.T, width, generator=g), torch.full((2, *shape), math.nan)
    table = torch.randperm(B * pages + 2, generator=g)[:B * pages].view(B, pages) if size else None
    for b, n in enumerate(case.lengths):
        for j in range(n):
            at = (table[b, j // size], slice(None), j % size) if size else (b, slice(None), j)
            pool[:, *at] = torch.randn(2, case.G, width, generator=g)
    return q.to(dtype), *pool.to(dtype), torch.tensor(case.lengths), table


def by_sequence(q, k, v, lengths, table, causal, window, scale=None) -> tuple:
    "Attention with the matrix, one sequence after another, in float64."
    found = []
    for b, n in enumerate(lengths.tolist()):
        keys, values = (x[b, :, :n] if table is None else x[table[b]].transpose(0, 1).flatten(1,
                2)[:, :n] for x in (k, v))
        found.append(definition(*(x[None].double() for x in (q[b], keys, values)), causal,
                                window, scale))
    return tuple(map(torch.cat, zip(*found)))


def decoded_off(module, case, width: int = 16, dtype=torch.float32, seed: int = 0) -> float:
    "The largest distance from float64, in units of what is allowed."
    q, k, v, lengths, table = cached(case, width, dtype, seed)
    room = k.shape[2] * (1 if table is None else table.shape[1])
    ours = module.decode(q, k, v, module.band(case.T, room, case.causal, case.window), width ** -.5,
                         (lengths, table), shares=case.shares)
    exact = by_sequence(q, k, v, lengths, table, case.causal, case.window)
    allowed = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    # −∞ is −∞
    off = [(a.double() - b).abs().where(a.double() != b, torch.zeros(())).max()
           for a, b in zip(ours, exact)]
    return max(math.inf if math.isnan(x) else x for x in map(float, off)) / allowed


@pytest.mark.parametrize("name", sweep(DECODES, *list(DECODES)[::2]))
def test_decoding(name):
    assert decoded_off(kernels, DECODES[name]) < 1


@pytest.mark.parametrize("name, width", sweep(
    [("grouped", 32), ("many rows", 64), ("pages", 128), ("no keys", 16), ("window", 256)],
    ("many rows", 64)))
def test_decoding_in_float16(name, width):
    assert decoded_off(kernels, DECODES[name], width, torch.float16) < 1


@pytest.mark.whole
@settings(deadline=None, max_examples=50 if os.environ.get("TFM_WHOLE") else 3, derandomize=True)
@given(st.data())
def test_decoding_drawn(data):
    "Any lengths, groups, pages, shares and windows."
    G, group, B = (data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2, 3, 8])),
                   data.draw(st.integers(1, 3)))
    lengths = tuple(data.draw(st.lists(st.integers(0, 60), min_size=B, max_size=B)))
    case = Few(G * group, G, data.draw(st.integers(1, 16)), lengths, data.draw(st.booleans()),
               data.draw(st.sampled_from([None, None, 1, 9, 40])),
               data.draw(st.sampled_from([None, 1, 3, 16])), data.draw(st.integers(1, 5)))
    assert decoded_off(kernels, case, seed=data.draw(st.integers(0, 9))) < 1


def test_decoding_is_the_forward_pass():
    "Where every sequence is whole, both functions say the same, and neither changes the cache."
    q, k, v, *_ = drawn("few queries, causal")
    before = [x.clone() for x in (q, k, v)]
    for a, b in zip(kernels.flash_decode(q[:, :, -5:], k, v, True),
                    kernels.flash(q[:, :, -5:], k, v, True)):
        torch.testing.assert_close(a, b)
    for layout in (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
                   lambda x: x.mT.contiguous().mT):
        again = kernels.flash_decode(layout(q[:, :, -5:]), layout(k), layout(v), True)
        torch.testing.assert_close(again[0], kernels.flash(q[:, :, -5:], k, v, True)[0])
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v)))


def test_no_keys_at_all():
    q, k, table = (torch.ones(2, 2, 1, 16), torch.ones(3, 1, 4, 16),
                   torch.zeros(2, 0, dtype=torch.int32))
    for out, lse in (kernels.flash_decode(q, k[:2, :, :0], k[:2, :, :0]),
                     kernels.flash_decode(q, k, k, block_table=table)):
        assert not out.any() and bool((lse == -math.inf).all())


def test_keys_are_shared_out():
    cpu = torch.device("cpu")
    assert ([kernels.shared_out(*told, cpu) for told in ((100, 1), (600, 1), (10**6, 1),
            (10**6, 16), (10**6, 17))] == [1, 2, 16, 1, 1])


one, pool, long = torch.ones(2, 2, 1, 16), torch.ones(5, 1, 4, 16), torch.ones(2, 1, 9, 16)


@pytest.mark.parametrize("call, says", [
    (lambda: kernels.flash_decode(one.expand(2, 2, 17, 16), long, long),
     "q: 17 queries; expected 1 to 16"),
    (lambda: kernels.flash_decode(one[:, :, :0], long, long), "q: 0 queries; expected 1 to 16"),
    (lambda: kernels.flash_decode(one, pool, pool),
     r"k: \(5, 1, 4, 16\); expected the batch and the width of q"),
    (lambda: kernels.flash_decode(one.clone().requires_grad_(), long, long),
     "q, k, v: with a gradient to compute; expected none: `flash` has a backward pass"),
    (lambda: kernels.flash_decode(one, long, long, scale=math.nan),
     "scale: nan; expected a positive number"),
    (lambda: kernels.flash_decode(one, long, long, True, 0),
     "window: 0; expected a whole number of at least 1"),
    (lambda: kernels.flash_decode(one, long, long, lengths=torch.tensor([3])),
     r"lengths: \(1,\); expected 1 dimension, the first 2, as q"),
    (lambda: kernels.flash_decode(one, long, long, lengths=torch.tensor([3, 10])),
     "lengths: 3 to 10; expected 0 to 9"),
    (lambda: kernels.flash_decode(one, long, long, lengths=torch.tensor([3., 1.])),
     "lengths: torch.float32 on cpu; expected int32 or int64 on cpu"),
    (lambda: kernels.flash_decode(one, pool, pool, block_table=torch.tensor([[1, 2]])),
     r"block_table: \(1, 2\); expected 2 dimensions, the first 2, as q"),
    (lambda: kernels.flash_decode(one, pool, pool, block_table=torch.tensor([1, 2])),
     r"block_table: \(2,\); expected 2 dimensions"),
    (lambda: kernels.flash_decode(one, pool, pool, block_table=torch.tensor([[1, 2], [3, 5]])),
     "block_table: 1 to 5; expected 0 to 4"),
    (lambda: kernels.flash_decode(one, pool, pool, block_table=torch.tensor([[1, 2], [3, -1]])),
     "block_table: -1 to 3; expected 0 to 4"),
    (lambda: kernels.flash_decode(one, pool, pool, lengths=torch.tensor([8, 9]),
                                  block_table=torch.tensor([[1, 2], [3, 4]])),
     "lengths: 8 to 9; expected 0 to 8"),
])
def test_decoding_refuses(call, says):
    with pytest.raises(ValueError, match=says): call()


# --- wrong ----------------------------------------------------------------------------------------

# Two changes are not in the list, because they change nothing: queries beyond the last with a
# log-sum-exp of 0 (their rows of Q and dO
# are zeros, and so is what their weights are multiplied with), and a last query beyond the last
# (more is compared, nothing else is seen).
# what is wrong: (a line of the module, what stands there instead, the shape that notices, the way)
WRONG = {
    "the mixture does not fade": ("v, acc * rescale[:, None], input", "v, acc, input",
                                  "no tile divides, causal"),
    "the sum does not fade": ("row_sum = row_sum * rescale + tl.sum(e, 1)",
                              "row_sum = row_sum + tl.sum(e, 1)",
                              "no tile divides, causal"),
    "−∞ is subtracted from −∞": ('base = tl.where(new_max == float("-inf"), 0., new_max)',
                                 "base = new_max",
                                 "nothing seen"),
    "a key further ahead": ("else: return j <= i + band.ahead",
                            "else: return j <= i + band.ahead + 1",
                            "no tile divides, causal"),
    "not oneself": ("else: return j <= i + band.ahead", "else: return j < i + band.ahead",
                    "no tile divides, causal"),
    "the window one shorter": (
        "tl.cast(j - i + band.back, tl.uint32, bitcast=True) <= tl.cast(band.back + band.ahead",
        "tl.cast(j - i + band.back - 1, tl.uint32, bitcast=True) "
        "<= tl.cast(band.back + band.ahead - 1",
        "window of 1"),
    "the window one longer": (
        "tl.cast(j - i + band.back, tl.uint32, bitcast=True) <= tl.cast(band.back + band.ahead",
        "tl.cast(j - i + band.back + 1, tl.uint32, bitcast=True) "
        "<= tl.cast(band.back + band.ahead + 1", "window"),
    "only behind": ("<= tl.cast(band.back + band.ahead, tl.uint32)",
                    "<= tl.cast(band.back, tl.uint32)",
                    "both sides"),
    "aligned at the top left": (
        "at, unit = i + S - T, scale * LOG2E", "at, unit = i, scale * LOG2E",
        "few queries, causal"),
    "powers of two without log₂ e": (
        "at, unit = i + S - T, scale * LOG2E", "at, unit = i + S - T, scale", "tiles fit"),
    "the neighbour's keys": ("tl.program_id(1) // group, tl.program_id(0) * ROWS",
                             "tl.program_id(1) % (tl.num_programs(1) // group), tl.program_id(0) * ROWS", "two by two"),  # noqa: E501
    "keys that are not there": ("is None: return j < S", "is None: return j < S + 64",
                                "no tile divides",
                                "descriptors"),
    "keys that are not there, by addresses": ("else: return (j < S) & in_band",
                                              "else: return in_band",
                                              "no tile divides"),
    "hidden keys in a whole tile": (
        "b = tl.maximum(tl.minimum(N, first + band.ahead + 1), 0) // SIZE * SIZE",
        "b = tl.cdiv(tl.maximum(tl.minimum(N, first + band.ahead + 1), 0), SIZE) * SIZE",
        "tiles fit, causal"),
    "a tile too few ahead": ("end = tl.maximum(tl.minimum(N, last + band.ahead + 1), 0)",
                             "end = tl.maximum(tl.minimum(N, last + band.ahead), 0)", "two by two"),
    "a tile too few behind": ("begin = tl.maximum(first - band.back, 0) // SIZE * SIZE",
                              "begin = tl.cdiv(tl.maximum(first - band.back, 0), SIZE) * SIZE",
                              "window"),
    "the window's edge in a whole tile": (
        "tl.minimum(tl.cdiv(tl.maximum(last - band.back, 0), SIZE)",
        "tl.minimum(tl.maximum(last - band.back, 0) // SIZE", "window", "descriptors"),
    "the maximum for the log-sum-exp": ("(row_max + tl.math.log2(row_sum)) * LN2", "row_max * LN2",
                                        "tiles fit"),
    "a logarithm to base 2": ("(row_max + tl.math.log2(row_sum)) * LN2",
                              "row_max + tl.math.log2(row_sum)",
                              "tiles fit"),
    "one line for all texts": (
        "(tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * T",
        "tl.program_id(1) * T", "no tile divides, causal"),
    "one text for all": ("x += tl.program_id(2).to(tl.int64) * strides[0] + h", "x += h",
                         "no tile divides, causal"),
    "no delta for the keys": ("dz = w * (dw - tl.load(DELTA + i, mask=i < Q.N, other=0.)[None, :])",
                              "dz = w * dw", "tiles fit"),
    "no delta for the queries": ("input_precision=PRECISION) - delta[:, None])",
                                 "input_precision=PRECISION))", "tiles fit"),
    "delta of the output alone": ("out.to(tl.float32) * dout.to(tl.float32)",
                                  "out.to(tl.float32) * out.to(tl.float32)", "tiles fit"),
    "the keys' gradient without the root": ("store_tile(DK, start, dk * scale,",
                                            "store_tile(DK, start, dk,", "tiles fit"),
    "the queries' gradient without the root": ("store_tile(DQ, start, dq * scale,",
                                               "store_tile(DQ, start, dq,", "tiles fit"),
    "the way back aligned otherwise": (
        "stats, first, begin, end, band, scale * LOG2E",
        "stats, start, begin, end, band, scale * LOG2E", "few queries, causal"),
    "queries from elsewhere": ("loop_bounds(first, last, tl.cdiv(T, ROWS)",
                               "loop_bounds(start + S - T, last, tl.cdiv(T, ROWS)",
                               "few queries, causal"),
    "roles not exchanged": ("Band(ahead if AHEAD else None, back if BACK else None)",
                            "Band(back if BACK else None, ahead if AHEAD else None)",
                            "no tile divides, causal"),
    "one head of a group": (".unflatten(1, (G, H // G)).sum(2, dtype=torch.float32)",
                            ".unflatten(1, (G, H // G))[:, :, 0]", "eight to one"),
    "the log-sum-exp's gradient added": ("delta - dlse", "delta + dlse", "tiles fit"),
    "the tail of the keys by zeros alone": (
        "dq = accumulate_dq(dq, queries, keys, at, b, end, band, unit, COLS, True, PRECISION)",
        "dq = accumulate_dq(dq, queries, keys, at, b, end, band, unit, COLS, False, PRECISION)",
        "scores far below zero", "descriptors"),
    "the maximum of one loop": ("new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)",
                                "new_max = tl.max(scores, 1) * scale",
                                "scores by a hundred, all seen"),
}
SHAPES["tiles fit, causal"] = Shape(1, 1, 1, 64, 64, 16, True)


def changed(old: str, new: str, folder: Path):
    "The module with one place changed; where its lines break does not matter."
    text, found = re.subn(r"\s*".join(map(re.escape, re.findall(r"\w+|\S", old))), lambda _: new,
                          SOURCE.read_text(), count=1)
    assert found, f"not in the module: {old}"
    path = folder / "changed_kernels.py"
    path.write_text(text.replace("from ..", "from tfmlib.").replace("from .",
            "from tfmlib.flash_attention_gpu."))
    spec = importlib.util.spec_from_file_location("changed_kernels", path)
    module = sys.modules["changed_kernels"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("T, S, causal, tile", [(50, 70, False, (32, 16)), (50, 50, True, (32, 16)),
                                                (50, 50, True, (16, 64)), (17, 77, True, (64, 32)),
                                                (1, 77, True, (16, 16)), (64, 64, True, (16, 32))])
def test_the_kernels_of_the_path(T, S, causal, tile):
    "One head, against chapter 17's loops in float64; what is behind the results stays as it was."
    from tfmlib.flash_attention import flash_backward, flash_forward
    from tfmlib.flash_attention_gpu.tiles import triton_dkdv, triton_forward
    g = torch.Generator().manual_seed(T + S)
    q, k, v, dout = (torch.randn(n, 16, generator=g) for n in (T, S, S, T))
    exact = [x.double() for x in (q, k, v)]
    want_out, want_lse = flash_forward(*exact, (7, 9), causal)
    _, *want = flash_backward(*exact, want_out, want_lse, dout.double(), (7, 9), causal)
    out, lse = triton_forward(q, k, v, tile, causal)
    ours = triton_dkdv(q, k, v, out, lse, dout, tile, causal)
    for a, b in zip((out, lse, *ours), (want_out, want_lse, *want)):
        torch.testing.assert_close(a.double(), b, atol=3e-6, rtol=1e-5)
    half, _ = triton_forward(q.half(), k.half(), v.half(), tile, causal)
    torch.testing.assert_close(half.double(), want_out, atol=5e-3, rtol=5e-3)


@triton.jit
def copied(X, OUT, N, D: tl.constexpr, ROWS: tl.constexpr):
    "Each row plus one, through the helpers of the path."
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    store_rows(OUT, i, N, load_rows(X, i, N, D) + 1, D)


def test_rows_beyond_the_last_are_neither_read_nor_written():
    x, out = torch.arange(32.).view(8, 4), torch.full((8, 4), -1.)
    copied[2,](x, out, 6, D=4, ROWS=4)
    torch.testing.assert_close(out, torch.cat([x[:6] + 1, torch.full((2, 4), -1.)]))


@pytest.mark.parametrize("wrong", sweep(WRONG, *list(WRONG)[::8]))
def test_wrong_kernels_are_rejected(wrong, tmp_path):
    "Each is rejected by its shape, by numbers and not by an error; the right one is not."
    old, new, name, *way = WRONG[wrong]
    way = way[0] if way else "pointers"
    assert furthest(changed(old, new, tmp_path), name, way) > 5


BEYOND = {  # a mask that lets one row too many be written: the results that show it
    "a row too many": ("value.to(x.dtype.element_ty), mask=(start + tl.arange(0, SIZE) < head.N)",
                       "value.to(x.dtype.element_ty), mask=(start + tl.arange(0, SIZE) <= head.N)",
                       ["out", "dk", "dv", "dq"]),
    "a log-sum-exp too many": ("* LN2, mask=i < OUT.N)", "* LN2, mask=i <= OUT.N)", ["lse"]),
    "a delta too many": ("dout.to(tl.float32), 1), mask=i < T)",
                         "dout.to(tl.float32), 1), mask=i <= T)", ["delta"]),
}


@pytest.mark.parametrize("wrong", BEYOND)
def test_writing_beyond_is_noticed(wrong, tmp_path):
    """No number within would show it: programs run one after another here, and the next head's
    writes over it."""
    old, new, shown = BEYOND[wrong]
    assert written_beyond(changed(old, new, tmp_path), "pointers") == shown


def test_the_strides_of_the_values_are_their_own(tmp_path):
    "Keys and values that lie alike would not show it."
    wrong = changed("select_head(V, sv, g, S,", "select_head(V, sk, g, S,", tmp_path)
    q, k, v, *_ = drawn("eight to one")
    v = torch.nn.functional.pad(v, (3, 2))[..., 3:-2]
    assert not torch.equal(wrong.forward(q, k, v)[0], kernels.forward(q, k, v)[0])


# what is wrong: (a line of the module, what stands there instead, the case that notices)
WRONG_DECODING = {
    "the parts' plain mean": (
        "weight = tl.math.exp2(lse - tl.where(top == float(\"-inf\"), 0., top))",
        "weight = tl.where(lse > float(\"-inf\"), 1., 0.)", "one query"),
    "parts that are not divided": ("acc / row_sum[:, None], mask=real)", "acc, mask=real)",
                                   "one query"),
    "natural powers of parts": ("weight = tl.math.exp2(lse", "weight = tl.exp(lse", "one query"),
    "a sum without its weights": ("out = tl.sum(part * weight[:, None], 0) / total",
                                  "out = tl.sum(part, 0) / total", "more shares than tiles"),
    "a log-sum-exp to base 2": ("tl.store(LSE + here, (top + tl.math.log2(total)) * LN2)",
                                "tl.store(LSE + here, top + tl.math.log2(total))", "one query"),
    "the last share forgotten": (
        "part = tl.cdiv(tl.cdiv(end - begin, COLS), tl.num_programs(0)) * COLS",
        "part = tl.cdiv(end - begin, COLS) // tl.num_programs(0) * COLS", "lengths"),
    "shares that overlap": ("last = tl.minimum(end, first + part)",
                            "last = tl.minimum(end, first + part + COLS)", "one query"),
    "every sequence as long as the longest": (
        "else: n = tl.minimum(tl.load(LENGTHS + b).to(tl.int32), S)", "else: n = S", "lengths"),
    "the first sequence's length": ("tl.load(LENGTHS + b)", "tl.load(LENGTHS)", "lengths"),
    "aligned at the longest": ("is_visible((n - T + t)[:, None]", "is_visible((S - T + t)[:, None]",
                               "fewer keys than queries"),
    "new queries at one position": ("is_visible((n - T + t)[:, None]",
                                    "is_visible((n - 1 + 0 * t)[:, None]", "grouped"),
    "heads of another group": ("h, t, d = g * group + r // T",
                               "h, t, d = g + r // T * (tl.num_programs(1) // tiles)", "grouped"),
    "the first key head": ("K, V = K + g.to(tl.int64) * sk[1]", "K, V = K + 0 * sk[1]", "pages"),
    "the first sequence's pages": ("else: TABLE += b.to(tl.int64) * row",
                                   "else: TABLE += 0 * row", "pages"),
    "pages in the order of their numbers": (
        "else: return tl.load(table + j // size, mask=j < n, other=0)",
        "else: return j // size", "pages"),
    "always a page's first rows": ("(j % size).to(tl.int64) * strides[2]", "0 * strides[2]",
                                   "pages of five"),
    "a page too early": ("else: return tl.load(table + j // size,",
                         "else: return tl.load(table + tl.maximum(j - 1, 0) // size,",
                         "pages of five"),
    "the pages of the tile before": ("page = load_pages(TABLE, j + COLS, n, size)",
                                     "page = load_pages(TABLE, j, n, size)",
                                     "pages, more than a tile"),
    "one tile of rows": ("r = tile * ROWS + tl.arange(0, ROWS)", "r = tl.arange(0, ROWS)",
                         "many rows"),
    "values beyond the last": ("v = tl.load(v, mask=inside, other=0.)",
                               "v = tl.load(v)", "lengths"),
    "a window that begins at the last query": (
        "loop_bounds(n - T, n - 1, n, band, COLS)\n    part",
        "loop_bounds(n - 1, n - 1, n, band, COLS)\n    part", "window"),
}


@pytest.mark.parametrize("wrong", sweep(WRONG_DECODING, *list(WRONG_DECODING)[::8]))
def test_wrong_decoding_is_rejected(wrong, tmp_path):
    old, new, name = WRONG_DECODING[wrong]
    assert decoded_off(changed(old, new, tmp_path), DECODES[name]) > 5


def test_packing_may_have_any_order(tmp_path):
    "Rows of a tile by query instead of by head are as right."
    same = changed("h, t, d = g * group + r // T, r % T,",
                   "h, t, d = g * group + r % group, r // group,", tmp_path)
    assert decoded_off(same, DECODES["grouped"]) < 1
