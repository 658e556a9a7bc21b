"""Packed sequences against float64, each by itself, and wrong kernels that must be rejected.
Runs in the process of `flash_cases.py`."""
import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from conftest import sweep
from flash_cases import both_ways, definition
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmlib.flash_attention_gpu import varlen as kernels

CASES = {  # queries of each sequence, keys of each, query heads, key heads, causal
    "one": ((40,), (40,), 2, 2, True),
    "some empty": ((5, 0, 20, 0), (9, 3, 20, 0), 4, 2, True),
    "no keys": ((7, 3), (0, 5), 2, 1, False),
    "longer than a tile": ((40, 64), (70, 31), 1, 1, True),
    "all see all": ((33, 1, 5), (40, 20, 3), 2, 1, False),
    "many": (tuple(range(9)), tuple(range(8, -1, -1)), 1, 1, True),
}


def ends(lengths) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def drawn(case, width: int = 16, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
    "Queries, keys and values, cut from a sea of nan."
    (queries, keys, H, G, _), g = case, torch.Generator().manual_seed(seed)
    def inside(n, heads):
        room = torch.full((n + 80, heads + 1, width + 16), math.nan)
        room[40:-40, :-1, :width] = torch.randn(n, heads, width, generator=g)
        return room.to(dtype)[40:-40, :-1, :width]
    return [inside(sum(lengths), heads) for lengths, heads in ((queries, H), (keys, G), (keys, G))]


def by_sequence(q, k, v, at, causal, scale):
    "Output and log-sum-exp of each sequence by itself, with the matrix, put behind one another."
    cut = [[x[first:last].transpose(0, 1)[None] for first, last in zip(ends, ends[1:])]
           for x, ends in zip((q, k, v), (at[0].tolist(), *2 * [at[1].tolist()]))]
    out, lse = zip(*(definition(*each, causal, None, scale) for each in zip(*cut)))
    return torch.cat(out, 2)[0].transpose(0, 1), torch.cat(lse, 2)[0]


def furthest(module, case, width: int = 16, dtype=torch.float32, seed: int = 0,
             scale: float | None = None) -> float:
    "The largest distance of outputs and gradients from float64, in units of what is allowed."
    queries, keys, _, _, causal = case
    at, tensors = (ends(queries), ends(keys)), drawn(case, width, dtype, seed)
    g = torch.Generator().manual_seed(seed)
    dout = torch.randn(tensors[0].shape, generator=g).to(dtype)
    dlse = torch.randn(tensors[0].shape[1::-1], generator=g)
    ours = both_ways(lambda *t: module.flash_attention_varlen(*t, *at, max(queries), causal,
                                                              scale), tensors, dout, dlse)
    exact = both_ways(lambda *t: by_sequence(*t, at, causal, scale),
                      [t.double() for t in tensors], dout.double(), dlse.double())
    off, allowed = [0.], {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    for a, b in zip(ours, exact):
        if a.numel():
            off.append(float((a.double() - b).abs().max()) / max(1., float(b.abs().max())))
    return max(math.inf if math.isnan(x) else x for x in off) / allowed


@pytest.mark.parametrize("name", sweep(CASES, "some empty", "no keys", "longer than a tile"))
def test_packed_sequences(name):
    assert furthest(kernels, CASES[name]) < 1


def test_other_widths_types_and_scales():
    assert furthest(kernels, CASES["one"], 128, torch.float16, scale=.3) < 1


@settings(deadline=None, max_examples=8, derandomize=True)
@given(st.data())
def test_packed_sequences_drawn(data):
    "Any lengths, groups and masks."
    G, group, B = (data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2])),
                   data.draw(st.integers(1, 3)))
    queries, keys = (tuple(data.draw(st.lists(st.integers(0, 40), min_size=B, max_size=B)))
                     for _ in range(2))
    assert (furthest(kernels, (queries, keys, G * group, G, data.draw(st.booleans())),
                     seed=data.draw(st.integers(0, 9))) < 1)


def test_nothing_beyond_is_written():
    """What lies behind the last token of output and log-sum-exp, by a kernel that is launched on
    views."""
    q, k, v = (x.transpose(0, 1)[None] for x in drawn(CASES["one"]))
    whole, line, at = torch.full((60, 2, 16), 7.), torch.full((60,), 7.), ends((40,))
    config = kernels.SMALL["forward"]
    kernels.varlen_kernel[2, 1, 1](q[:, :1], k[:, :1], v[:, :1], line, whole.transpose(0, 1)[None],
                                   at, at, q.stride(), k.stride(), v.stride(), (1920, 16, 32, 1),
                                   40, 1, 0, .25,
                                   ROWS=config.rows, COLS=config.cols, D=16, PRECISION="ieee")
    assert (bool((whole[40:] == 7).all() and (whole[:, 1] == 7).all() and (line[40:] == 7).all())
            and not bool((whole[:40, 0] == 7).any()))


def test_no_sequences_at_all():
    none, at = torch.ones(0, 2, 16), torch.zeros(1, dtype=torch.int32)
    out, lse = kernels.flash_attention_varlen(none, none, none, at, at, 0)
    assert out.shape == none.shape and lse.shape == (2, 0)
    out, lse = kernels.flash_attention_varlen(torch.ones(3, 2, 16), none, none, ends((3,)),
                                              ends((0,)), 3)
    assert not out.any() and bool((lse == -math.inf).all())


x, four = torch.ones(4, 2, 16), ends((1, 3))


def told(**other):
    given = ({"q": x, "k": x, "v": x, "cu_seqlens_q": four, "cu_seqlens_k": four,
              "max_seqlen_q": 3} | other)
    return lambda: kernels.flash_attention_varlen(**given)


@pytest.mark.parametrize("call, says", [
    (told(q=x[None]), r"q: \(1, 4, 2, 16\); expected three dimensions"),
    (told(v=x[:, 0]), r"v: \(4, 16\); expected three dimensions"),
    (told(k=x[..., :8]), r"k: \(1, 2, 4, 8\); expected the batch and the width of q"),
    (told(k=torch.ones(4, 3, 16), v=torch.ones(4, 3, 16)),
     "k: 3 heads; expected a divisor of the 2 heads of q"),
    (told(q=x.bfloat16(), k=x.bfloat16(), v=x.bfloat16()),
     "q: bfloat16; expected float16 or float32"),
    (told(cu_seqlens_q=four[None]), r"cu_seqlens_q: \(1, 3\); expected one dimension"),
    (told(cu_seqlens_q=four[:0]), r"cu_seqlens_q: \(0,\); expected one dimension"),
    (told(cu_seqlens_q=four.long()),
     "cu_seqlens_q: torch.int64 on cpu; expected int32 on cpu, contiguous"),
    (told(cu_seqlens_k=four.float()), "cu_seqlens_k: torch.float32 on cpu; expected int32 on cpu"),
    (told(cu_seqlens_k=four + 1), "cu_seqlens_k: begins at 1; expected to begin at 0"),
    (told(cu_seqlens_k=torch.tensor([0, 5, 4], dtype=torch.int32)),
     "cu_seqlens_k: decreases; expected offsets that never decrease"),
    (told(cu_seqlens_q=ends((1, 2))),
     "cu_seqlens_q: ends at 3; expected to end at the number of tokens, 4"),
    (told(cu_seqlens_k=ends((1, 1, 2))),
     "cu_seqlens_k: 4 offsets; expected as many as cu_seqlens_q, 3"),
    (told(max_seqlen_q=2),
     "max_seqlen_q: 2; expected a whole number of at least 3, the longest sequence"),
    (told(max_seqlen_q=3.), "max_seqlen_q: 3.0; expected a whole number"),
    (told(scale=-1), "scale: -1; expected a positive number"),
])
def test_packed_sequences_refuse(call, says):
    with pytest.raises(ValueError, match=says): call()


def test_packed_sequences_have_no_second_gradients_and_need_not_use_both_outputs():
    leaf = x.clone().requires_grad_()
    out, lse = told(q=leaf)()
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)
    out, lse = told(q=leaf)()
    # all keys are alike: the log-sum-exp moves with q, the output does not
    [by_lse] = torch.autograd.grad(lse.sum(), leaf)
    torch.testing.assert_close(by_lse, torch.full_like(x, 16 ** -.5))


# That a program returns when its sequence has ended is not in the list: without it, it would work
# and write nothing.
DKDV, DQ = "varlen_dkdv_kernel(Q", "varlen_dq_kernel(Q"
WRONG = {  # what is wrong: (where, a piece of code, what stands there instead, who notices)
    "the first sequence's rows": ("packed_head(", "first.to(tl.int64) * strides[2]",
                                  "0 * strides[2]", "some empty"),
    "keys at the queries' offsets": ("varlen_kernel(Q", "packed_head(K, sk, h // group, first_k",
                                     "packed_head(K, sk, h // group, first_q", "some empty"),
    "a sequence that does not end": ("packed_sequence(", "tl.load(CU_K + b + 1) - first_k",
                                     "tl.load(CU_K + tl.num_programs(2)) - first_k",
                                     "all see all"),
    "aligned at the first key": ("varlen_kernel(Q", "i + S - T, whole, end", "i, whole, end",
                                 "longer than a tile"),
    "the query head's keys": ("varlen_kernel(Q", "packed_head(V, sv, h // group",
                              "packed_head(V, sv, h", "some empty"),
    "one line of log-sum-exps": ("varlen_kernel(Q", "LSE += h.to(tl.int64) * total + first_q",
                                 "LSE += first_q", "one"),
    "a mask for one tile too few": ("varlen_kernel(Q", "last - 1, S, band, COLS)",
                                    "last - 1, S, band, COLS)\n    whole = end",
                                    "longer than a tile"),
    "backward, the query head's values": (DKDV, "packed_head(V, sv, h // group",
                                          "packed_head(V, sv, h", "some empty"),
    "backward, gradients of another sequence": (DKDV, "packed_head(DV, sdv, h, first_k",
                                                "packed_head(DV, sdv, h, first_q", "some empty"),
    "backward, roles not exchanged": (DKDV, "Band(ahead, None)", "Band(None, ahead)",
                                      "longer than a tile"),
    "backward, aligned at the first query": (DKDV, "first, last = start + T - S",
                                             "first, last = start", "some empty"),
    "backward, the first queries' statistics": (DKDV, "h.to(tl.int64) * total + first_q",
                                                "h.to(tl.int64) * total", "some empty"),
    "backward, scaled twice": (DKDV, "dk * scale, COLS", "dk * scale * scale, COLS", "one"),
    "backward, the first head's statistics": (DQ, "h.to(tl.int64) * total + first_q", "first_q",
                                              "some empty"),
    "backward, keys behind the last": (DQ, "whole, end, band, unit, COLS, True",
                                       "whole, end, band, unit, COLS, False", "all see all"),
    "backward, not scaled": (DQ, "dq * scale, ROWS", "dq, ROWS", "one"),
    "backward, no log-sum-exp's gradient": ("PackedFlash(", "None if dlse is None else dlse[None]",
                                            "None", "one"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_packing_is_rejected(wrong, tmp_path):
    where, old, new, name = WRONG[wrong]
    text = Path(kernels.__file__).read_text().replace("from ..", "from tfmlib.").replace("from .",
            "from tfmlib.flash_attention_gpu.")
    at = text.index(where)
    assert old in text[at:], f"not in the module: {old}"
    changed = text[:at] + text[at:].replace(old, new, 1)
    (tmp_path / "changed_varlen.py").write_text(changed)
    spec = importlib.util.spec_from_file_location("changed_varlen", tmp_path / "changed_varlen.py")
    module = sys.modules["changed_varlen"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert furthest(module, CASES[name]) > 5
