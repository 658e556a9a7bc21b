"""Packed sequences against float64, each by itself, and wrong kernels that must be rejected.
Runs in the process of `flash_cases.py`."""
import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from conftest import sweep
from flash_cases import definition
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


def furthest(module, case, width: int = 16, dtype=torch.float32, seed: int = 0,
             scale: float | None = None) -> float:
    "The largest distance from float64, in units of what is allowed."
    queries, keys, H, G, causal = case
    q, k, v = drawn(case, width, dtype, seed)
    at = ends(queries), ends(keys)
    out, lse = module.flash_attention_varlen(q, k, v, *at, max(queries), causal, scale)
    off, allowed = [0.], {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    for b in range(len(queries)):
        mine, theirs = slice(*at[0][b:b + 2].tolist()), slice(*at[1][b:b + 2].tolist())
        right = definition(*(x[rows].double().transpose(0, 1)[None]
                             for x, rows in ((q, mine), (k, theirs), (v, theirs))), causal,
                           None, scale)
        for ours, exact in ((out[mine].transpose(0, 1), right[0][0]), (lse[:, mine], right[1][0])):
            if ours.numel():
                off.append(float((ours.double() - exact).abs().where(ours.double() != exact,
                        torch.zeros(())).max()))
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
    (told(q=x.clone().requires_grad_()), "q, k, v: with a gradient to compute; expected none"),
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


# That a program returns when its sequence has ended is not in the list: without it, it would work
# and write nothing.
WRONG = {  # what is wrong: (a line of the module, what stands there instead, the case that notices)
    "the first sequence's queries": ("Q += first_q.to(tl.int64) * sq[2]", "Q += 0 * sq[2]",
                                     "some empty"),
    "the first sequence's values": ("V += first_k.to(tl.int64) * sv[2]", "V += 0 * sv[2]",
                                    "some empty"),
    "keys at the queries' offsets": ("K += first_k.to(tl.int64) * sk[2]",
                                     "K += first_q.to(tl.int64) * sk[2]", "some empty"),
    "a sequence that does not end": ("tl.load(CU_K + b + 1) - first_k",
                                     "tl.load(CU_K + tl.num_programs(2)) - first_k", "all see all"),
    "aligned at the first key": ("i + S - T, whole, end", "i, whole, end", "longer than a tile"),
    "the query head's keys": ("g.to(tl.int64) * sk[1]", "h.to(tl.int64) * sk[1]", "some empty"),
    "one line of log-sum-exps": ("LSE += h.to(tl.int64) * total + first_q",
                                 "LSE += first_q", "one"),
    "a mask for one tile too few": ("last - 1, S, band, COLS)",
                                    "last - 1, S, band, COLS)\n    whole = end",
                                    "longer than a tile"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_packing_is_rejected(wrong, tmp_path):
    old, new, name = WRONG[wrong]
    text = Path(kernels.__file__).read_text().replace("from ..", "from tfmlib.").replace("from .",
            "from tfmlib.flash_attention_gpu.")
    assert text.count(old) >= 1, f"not in the module: {old}"
    (tmp_path / "changed_varlen.py").write_text(text.replace(old, new, 1))
    spec = importlib.util.spec_from_file_location("changed_varlen", tmp_path / "changed_varlen.py")
    module = sys.modules["changed_varlen"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert furthest(module, CASES[name]) > 5
