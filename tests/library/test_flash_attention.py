"""Attention in tiles: the machine that counts, the merge, the tiles, and the operation in
PyTorch, against references that share no code with them."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tfmlib.attention import attention, attention_backward, causal_mask
from tfmlib.flash_attention import (
    MemoryHierarchy,
    Tiles,
    TileTraffic,
    attention_with_lse,
    blocks,
    blockwise_attention,
    combine,
    flash_backward,
    flash_forward,
    merge_states,
    output_and_lse,
    softmax_state,
    split_kv_attention,
    standard_attention,
    standard_traffic,
    tiled_attention,
    tiled_backward,
    tiled_traffic,
)
from tfmlib.heads import MultiHeadAttention, grouped_query_attention

sizes = st.integers(1, 12)


def drawn(T, S, D, W, seed=0, scale=1.):
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(x) for name, x in (("q", scale * rng.standard_normal((T, D))),
            ("k", rng.standard_normal((S, D))), ("v", rng.standard_normal((S, W))))}


def heads(*shapes, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


# --- the merge ------------------------------------------------------------------------------------

scores = st.floats(-900, 900) | st.just(-math.inf)
rows = st.lists(scores, min_size=1, max_size=12)


def seen_of(z, first=0):
    "What is seen of a row of scores whose values are their places and the squares of these."
    z = torch.tensor(z, dtype=torch.float64)[None]
    at = first + torch.arange(z.numel(), dtype=torch.float64)
    return softmax_state(z, torch.stack([at, at**2], 1))


@settings(deadline=None)
@given(rows, st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_order_of_pieces_gives_the_softmax(z, chance, size):
    parts = [seen_of(z[j], j.start) for j in blocks(0, len(z), size)]
    # merge two, anywhere, until one is left
    while len(parts) > 1:
        a, b = (parts.pop(chance.randrange(len(parts))) for _ in range(2))
        parts.append(merge_states(a, b))
    out, lse = output_and_lse(parts[0])
    wanted = torch.tensor(z, dtype=torch.float64)
    shares = wanted.softmax(0).nan_to_num(0).numpy()
    at = np.arange(len(z))
    np.testing.assert_allclose(out[0], [shares @ at, shares @ at**2], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(lse[0], float(wanted.logsumexp(0)), rtol=1e-12,
                               atol=1e-15)  # a logarithm near 0 has the error of its sum, near 1


# --- the machine ----------------------------------------------------------------------------------

def test_the_machine_counts_bytes_and_refuses_what_does_not_fit():
    memory = MemoryHierarchy(40, x=torch.arange(12).double().view(6, 2), narrow=torch.zeros(6))
    with memory.step():
        x = memory.load("x", slice(1, 3))
        memory.store("narrow", x.sum(1).float(), slice(1, 3))
        with memory.step(): memory.allocate(torch.zeros(1).double())
        assert memory.held == 32
    assert (memory.read, memory.written, memory.held, memory.peak) == (32, 8, 0, 40)
    refuses("capacity: 48 bytes", memory.load, "x", slice(0, 3))
    # what is refused leaves no trace
    assert (memory.read, memory.held, memory.peak) == (32, 0, 40)


def test_what_is_written_counts_as_it_lies_there():
    memory = MemoryHierarchy(40, narrow=torch.zeros(6))
    memory.store("narrow", torch.ones(2).double(), slice(0, 2))
    assert memory.written == 8


def test_what_is_loaded_is_a_copy():
    memory = MemoryHierarchy(1000, x=torch.zeros(2, 2))
    memory.load("x", slice(0, 1))[:] = 5
    assert memory.slow["x"].max() == 0


@settings(deadline=None, max_examples=40)
@given(sizes, sizes, st.integers(1, 4), st.integers(1, 4), sizes, sizes, st.booleans())
def test_both_algorithms_are_attention_and_move_what_the_formulas_say(T, S, D, W, rows,
        cols, causal):
    given_ = drawn(T, S, D, W, T * S)
    mask = causal_mask(T, S) if causal else None
    wanted = attention(*(x.clone() for x in given_.values()), mask)[0].numpy()
    flash = MemoryHierarchy(10**6, **given_)
    tiled_attention(flash, rows, cols, causal)
    np.testing.assert_allclose(flash.slow["out"], wanted, rtol=0, atol=1e-12)
    assert flash.read + flash.written == 8 * tiled_traffic(T, S, D, W, rows, causal)
    if causal: return
    three = MemoryHierarchy(10**6, **given_)
    standard_attention(three, rows, cols)
    np.testing.assert_allclose(three.slow["out"], wanted, rtol=0, atol=1e-12)
    assert three.read + three.written == 8 * standard_traffic(T, S, D, W, rows)


@pytest.mark.parametrize("r, c, D, W", [(4, 4, 2, 2), (3, 5, 4, 1), (8, 1, 3, 3)])
def test_tiles_need_the_room_that_the_formula_says(r, c, D, W):
    room = 8 * (r * D + 2 * r * (W + 2) + c * (D + W) + r * c)
    tiled_attention(MemoryHierarchy(room, **drawn(24, 20, D, W)), r, c)
    refuses("capacity", tiled_attention, MemoryHierarchy(room - 8, **drawn(24, 20, D, W)), r, c)


@settings(deadline=None, max_examples=40)
@given(sizes, sizes, sizes, sizes, st.booleans())
def test_the_way_back_in_tiles(T, S, rows, cols, causal):
    memory = MemoryHierarchy(10**6, **drawn(T, S, 3, 2, T + S),
                             dout=torch.from_numpy(
                                 np.random.default_rng(T).standard_normal((T, 2))))
    tiled_attention(memory, rows, cols, causal)
    tiled_backward(memory, rows, cols, causal)
    q, k, v, dout = (memory.slow[name] for name in ("q", "k", "v", "dout"))
    for name, wanted in zip(("dq", "dk", "dv"),
                            attention_backward(q, k, v, causal_mask(T, S) if causal
                                               else None, dout)):
        np.testing.assert_allclose(memory.slow[name], wanted.numpy(), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(sizes, sizes, sizes, sizes, st.booleans())
def test_the_way_back_moves_no_matrix_and_skips_what_is_hidden(T, S, rows, cols, causal):
    D, W = 3, 2
    memory = MemoryHierarchy(10**6, **drawn(T, S, D, W), dout=torch.ones(T, W).double(),
                             out=torch.ones(T, W).double(), lse=torch.zeros(T).double())
    tiled_backward(memory, rows, cols, causal)
    seen = causal_mask(T, S) if causal else torch.ones(T, S, dtype=torch.bool)
    pairs = [i.stop - i.start for j in blocks(0, S, cols) for i in blocks(0, T, rows)
             if seen[i, j].any()]
    assert (memory.read + memory.written == 8
            * (T * (2 * W + 1) + 2 * S * (D + W) + sum(pairs) * (3 * D + W + 2)))


# --- the loops of the page ------------------------------------------------------------------------

@settings(deadline=None, max_examples=40)
@given(sizes, sizes, st.integers(1, 4), st.integers(1, 4), sizes, sizes, st.booleans())
def test_the_loops_are_attention_and_its_gradients(T, S, D, W, rows, cols, causal):
    q, k, v = (x.requires_grad_() for x in drawn(T, S, D, W, T + S).values())
    mask = causal_mask(T, S) if causal else None
    wanted, dout = (attention(q, k, v, mask)[0],
                    torch.from_numpy(np.random.default_rng(T).standard_normal((T, W))))
    gradients = torch.autograd.grad(wanted, (q, k, v), dout)
    with torch.no_grad():
        out, lse = flash_forward(q, k, v, (rows, cols), causal)
        ours = flash_backward(q, k, v, out, lse, dout, (rows, cols), causal)
    for a, b in zip((out, *ours), (wanted.detach(), *gradients)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    scores = (q @ k.T / math.sqrt(D)).detach()
    if causal: scores = scores.masked_fill(~mask, -math.inf)
    torch.testing.assert_close(lse, scores.logsumexp(1), rtol=0, atol=1e-12)


# --- PyTorch --------------------------------------------------------------------------------------

def far(T, S): return torch.arange(S) - torch.arange(T)[:, None] - (S - T)


def mask_of(T, S, causal, window):
    "The mask written out, from the definition."
    seen = torch.ones(T, S, dtype=torch.bool)
    if causal: seen &= far(T, S) <= 0
    if window: seen &= far(T, S).abs() < window
    return seen


def same_both_ways(ours, theirs, tensors, tol):
    results = []
    for function in (ours, theirs):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = function(*leaves)
        results.append([out,
                        *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel(),
                                dtype=out.dtype).view(out.shape), allow_unused=True)])
    for a, b in zip(*results): torch.testing.assert_close(a, b, rtol=0, atol=tol)


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (8, 1)]), st.booleans(),
       st.none() | st.integers(1, 6), st.booleans(), sizes, sizes, st.integers(0, 99))
def test_blockwise_is_attend_both_ways(T, S, HG, causal, window, masked, rows, cols, seed):
    (H, G), mask = HG, mask_of(T, S, causal, window)
    tensors = heads((2, H, T, 3), (2, G, S, 3), (2, G, S, 2), seed=seed)
    told = {"causal": causal, "window": window, "rows": rows, "cols": cols}
    extra = (torch.rand(2, 1, T, S, generator=torch.Generator().manual_seed(seed)) > 0.4
             if masked else None)
    if masked: mask = mask & extra
    same_both_ways(lambda *t: blockwise_attention(*t, extra, **told)[0],
                   lambda *t: grouped_query_attention(*t, mask)[0], tensors, 1e-12)


@pytest.mark.parametrize("shape", [(2, 1, 1, 12), (1, 4, 7, 1), (7, 12), (1, 12), (2, 4, 7, 12)])
def test_masks_broadcast(shape):
    q, k, v = heads((2, 4, 7, 3), (2, 2, 12, 3), (2, 2, 12, 3))
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    torch.testing.assert_close(blockwise_attention(q, k, v, mask, rows=3, cols=5)[0],
                               grouped_query_attention(q, k, v, mask)[0], rtol=0, atol=1e-12)


def test_gradcheck_of_both_outputs():
    tensors = [t.requires_grad_() for t in heads((1, 4, 5, 3), (1, 2, 7, 3), (1, 2, 7, 2))]
    assert torch.autograd.gradcheck(lambda *t: attention_with_lse(*t, causal=True, window=4, rows=2,
            cols=3), tensors)


def test_second_derivatives_are_refused():
    q, k, v = (t.requires_grad_() for t in heads((1, 1, 2, 3), (1, 1, 2, 3), (1, 1, 2, 3)))
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        torch.autograd.grad(blockwise_attention(q, k, v)[0].sum(), q, create_graph=True)


def test_log_sum_exp():
    q, k, v = heads((2, 3, 6, 4), (2, 3, 9, 4), (2, 3, 9, 4))
    torch.testing.assert_close(attention_with_lse(q, k, v, rows=4, cols=2)[1],
                               (q @ k.mT / 2).logsumexp(-1), rtol=0, atol=1e-12)


def test_rows_that_see_nothing_give_zeros_and_no_gradient():
    q, k, v = (t.requires_grad_() for t in heads((1, 2, 6, 3), (1, 2, 4, 3), (1, 2, 4, 3)))
    out, lse = attention_with_lse(q, k, v, causal=True, rows=4, cols=3)
    assert out[:, :, :2].abs().max() == 0 and bool((lse[:, :, :2] == -math.inf).all())
    out.sum().backward()
    assert (q.grad[:, :, :2].abs().max() == 0
            and all(bool(t.grad.isfinite().all()) for t in (q, k, v)))
    nothing = blockwise_attention(q, k, v, torch.zeros(6, 4, dtype=torch.bool), rows=4, cols=3)[0]
    assert nothing.abs().max() == 0


@pytest.mark.parametrize("T, S", [(0, 4), (4, 0), (0, 0)])
def test_nothing_asked_or_nothing_to_see(T, S):
    out, lse = attention_with_lse(*heads((1, 2, T, 3), (1, 2, S, 3), (1, 2, S, 5)))
    assert out.shape == (1, 2, T, 5) and not out.any() and bool((lse == -math.inf).all())


@pytest.mark.parametrize("scale", [1, 100, 1e4])
def test_large_scores(scale):
    q, k, v = heads((1, 2, 33, 8), (1, 2, 40, 8), (1, 2, 40, 8))
    same_both_ways(lambda *t: blockwise_attention(*t, causal=True, rows=16, cols=7)[0],
                   lambda *t: attention(*t, causal_mask(33, 40))[0], (scale * q, k, v),
                   1e-9 * scale)


@pytest.mark.parametrize("dtype, tol",
                         [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_types_stay_and_sums_are_wide(dtype, tol):
    exact = heads((1, 4, 50, 8), (1, 2, 70, 8), (1, 2, 70, 8))
    tensors = [t.to(dtype).requires_grad_() for t in exact]
    out, lse = attention_with_lse(*tensors, rows=16, cols=16)
    assert out.dtype == dtype and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(),
                               grouped_query_attention(*(t.double() for t in tensors))[0],
                               rtol=0, atol=tol)
    out.sum().backward()
    assert [t.grad.dtype for t in tensors] == [dtype] * 3
    # a sum of 70,000 does not fit float16
    long = torch.zeros(1, 1, 70_000, 1, dtype=dtype)
    assert float(blockwise_attention(torch.zeros(1, 1, 1, 1, dtype=dtype), long, long + 1)[0]) == 1
    v = torch.ones(1, 1, 1, 1, dtype=dtype, requires_grad=True)
    blockwise_attention(torch.zeros(1, 1, 512, 1, dtype=dtype), v.detach(), v,
                        rows=1)[0].sum().backward()
    # added up in bfloat16 it would stop at 256
    assert float(v.grad) == 512


def test_autocast_does_not_reach_inside():
    tensors = heads((1, 2, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16): inside = blockwise_attention(*tensors)[0]
    torch.testing.assert_close(inside, blockwise_attention(*tensors)[0], rtol=0, atol=0)


def test_tiles_outside_the_band_are_not_computed():
    tiles = Tiles(64, 64, True, 8, None, 8, 8)
    computed = [(i, j) for i in blocks(0, 64, 8) for j in tiles.keys(i)]
    assert sum((i.stop - i.start) * (j.stop - j.start) for i, j in computed) == 8 * 8 + 7 * 8 * 15
    # queries that stand before the first key
    assert not list(Tiles(6, 4, True, None, None, 2, 2).keys(slice(0, 2)))


def test_a_part_of_heads():
    layer, x = (MultiHeadAttention(24, 6, n_kv_heads=2).double(),
                torch.randn(2, 15, 24, dtype=torch.float64))
    wanted = layer(x, mask=causal_mask(15, 15))[0]
    layer.attention_fn = blockwise_attention
    found, none = layer(x, causal=True, rows=4, cols=4)
    assert none is None
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x, x[:, :9], mask=torch.ones(2, 1, 1, 9, dtype=torch.bool))[0],
                               MultiHeadAttention.forward(layer, x, x[:, :9])[0])


@pytest.mark.parametrize("name, change", [
    ("q", {"q": torch.zeros(2, 5, 3)}),
    ("k", {"k": torch.zeros(1, 2, 5, 4), "v": torch.zeros(1, 2, 5, 3)}),
    ("k", {"k": torch.zeros(1, 2, 5, 3).half()}),
    ("k", {"k": torch.zeros(1, 3, 5, 3), "v": torch.zeros(1, 3, 5, 3)}),
    ("v", {"v": torch.zeros(1, 2, 6, 3)}), ("k", {"k": torch.zeros(2, 2, 5, 3)}),
    ("mask", {"mask": torch.zeros(5, 5)}), ("mask", {"mask": torch.ones(5, 4, dtype=torch.bool)}),
    ("mask", {"mask": torch.ones(5, dtype=torch.bool)}),
    ("window", {"window": 0}), ("window", {"window": 2.}), ("rows", {"rows": 0}),
    ("cols", {"cols": 1.5})])
def test_what_does_not_fit_is_refused_by_name(name, change):
    fine = {"q": torch.zeros(1, 4, 5, 3), "k": torch.zeros(1, 2, 5, 3),
            "v": torch.zeros(1, 2, 5, 3)}
    refuses(f"^{name}:", blockwise_attention, **fine | change)


# --- pieces of the keys ---------------------------------------------------------------------------

@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_split_keys(T, S, pieces, masked):
    q, k, v = heads((2, 4, T, 3), (2, 2, S, 3), (2, 2, S, 3), seed=S)
    mask = (torch.rand(2, 1, T, S, generator=torch.Generator().manual_seed(S)) > 0.5
            if masked else None)
    same_both_ways(lambda *t: split_kv_attention(*t, mask, n_splits=pieces)[0],
                   lambda *t: grouped_query_attention(*t, mask)[0], (q, k, v), 1e-12)


@pytest.mark.parametrize("shape", [(2, 1, 3, 1), (3, 1), (1, 10), (2, 4, 3, 10)])
def test_split_keys_cuts_a_mask_only_where_it_is_long(shape):
    q, k, v = heads((2, 4, 3, 5), (2, 2, 10, 5), (2, 2, 10, 5))
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)) > 0.4
    torch.testing.assert_close(split_kv_attention(q, k, v, mask, n_splits=4)[0],
                               grouped_query_attention(q, k, v, mask)[0], rtol=0, atol=1e-12)
    refuses("^n_splits:", split_kv_attention, q, k, v, n_splits=0)
    refuses("^mask:", split_kv_attention, q, k, v, mask[..., :1].expand(*mask.shape[:-1], 7))


def test_combine_weighs_the_pieces_by_what_they_saw():
    out = combine([torch.full((1, 1), 1.), torch.full((1, 1), 5.)],
                  [torch.tensor([math.log(3.)]), torch.tensor([0.])])
    torch.testing.assert_close(out, torch.tensor([[2.]]))


@pytest.mark.parametrize("outs, lses", [((), ()), ((2, 3), (2, 2)), ((2,), (1,)), ((2, 2), (2,))])
def test_combine_refuses_what_does_not_belong_together(outs, lses):
    refuses("^lses:", combine, [torch.zeros(n, 3) for n in outs], [torch.zeros(n) for n in lses])


def test_combine_of_nothing_is_nothing():
    nothing = torch.full((2,), -math.inf)
    assert not combine([torch.zeros(2, 3)] * 3, [nothing] * 3).any()
    torch.testing.assert_close(combine([torch.zeros(2, 3), torch.ones(2, 3)],
                                       [nothing, torch.zeros(2)]), torch.ones(2, 3))


# --- the figure -----------------------------------------------------------------------------------

@pytest.mark.parametrize("rows, cols, causal",
                         [(4, 4, False), (2, 2, False), (3, 2, True), (6, 6, True), (1, 4, False),
                          (2, 6, True)])
def test_the_figure_counts_as_the_machine(rows, cols, causal):
    shown = TileTraffic(alt="tiles of a matrix of scores",
                        scores=np.arange(36.).reshape(6, 6).tolist(), width=2, rows=rows, cols=cols,
                        causal=causal)
    memory = MemoryHierarchy(10**6, **drawn(6, 6, 2, 2))
    tiled_attention(memory, rows, cols, causal)
    moved = shown.moved(len(shown.steps()))
    # 2 bytes for a number, not 8
    assert (4 * moved["read"], 4 * moved["written"]) == (memory.read, memory.written)
    assert shown.moved(0) == {"read": 0, "written": 0} and "<svg" in shown.picture()
