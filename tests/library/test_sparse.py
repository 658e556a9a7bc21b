"""Sparse attention: patterns against loops, reach against paths and gradients, lists of blocks
against masks, selection against a slow one, and other libraries."""
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from attending import attended
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from in_node import in_node
from torch import nn

from tfmlib.attention import attention, causal_mask
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import generate
from tfmlib.heads import grouped_query_attention
from tfmlib.sparse import (
    block_ends,
    causal,
    dilated_window,
    every,
    facts_in_noise,
    global_tokens,
    intersection,
    layers_needed,
    masked_sparse_attention,
    pattern_mask,
    random_blocks,
    reach,
    same_block,
    sink_tokens,
    sliding_window,
    sparse_attention,
    union,
    visited_tiles,
)
from tfmlib.sparse.blocks import (
    BlockList,
    block_list,
    block_sparse_attention,
    block_table,
    list_blocks,
    n_computed,
)
from tfmlib.sparse.figures import PatternView
from tfmlib.sparse.longformer import LongformerAttention
from tfmlib.sparse.native import BlockCompression, NativeSparseAttention, select_blocks

READS = ("chapters/practice/19_",)
ROOT = Path(__file__).resolve().parents[2]
LOOPS = {                                               # pattern -> what a loop over pairs says
    "causal": (causal, lambda i, j: j <= i),
    "window": (sliding_window(3), lambda i, j: -3 < i - j < 3),
    "dilated": (dilated_window(3, 2), lambda i, j: j - i in (-4, -2, 0, 2, 4)),
    "no gaps": (dilated_window(3, 1), lambda i, j: -3 < i - j < 3),
    "every": (every(4), lambda i, j: (i - j) % 4 == 0),
    "same block": (same_block(5), lambda i, j: i // 5 == j // 5),
    "block ends": (block_ends(4), lambda i, j: j in (3, 7, 11, 15, 19)),
    "sinks": (sink_tokens(2), lambda i, j: j in (0, 1)),
    "global": (global_tokens(2), lambda i, j: min(i, j) < 2),
    "strided": (intersection(causal, union(sliding_window(4), every(4))), lambda i, j: 0 <= i - j
                < 4 or (i >= j and (i - j) % 4 == 0)),
    "fixed": (intersection(causal, union(same_block(4), block_ends(4))), lambda i, j: j <= i
              and (i // 4 == j // 4 or j % 4 == 3)),
}
BIGBIRD = union(sliding_window(2), global_tokens(1), random_blocks(40, 2, 2, seed=3))
RULES = {name: rule for name, (rule, _) in LOOPS.items()} | {"BigBird": BIGBIRD}


@pytest.mark.parametrize("name", LOOPS)
def test_patterns_are_those_of_a_loop(name):
    rule, loop = LOOPS[name]
    wanted = torch.tensor([[bool(loop(i, j)) for j in range(19)] for i in range(19)])
    assert torch.equal(pattern_mask(rule, 19, 19), wanted)
    # queries are the last positions
    assert torch.equal(pattern_mask(rule, 5, 19), wanted[-5:])


def test_random_blocks_are_blocks():
    mask = pattern_mask(random_blocks(6, 2, 4, seed=1), 24, 24)
    table = mask.unflatten(0, (6, 4)).unflatten(2, (6, 4))
    assert torch.equal(table.any(1).any(-1), table.all(1).all(-1)) and (mask.sum(1) == 8).all()
    assert torch.equal(mask, pattern_mask(random_blocks(6, 2, 4, seed=1), 24, 24))
    assert not torch.equal(mask, pattern_mask(random_blocks(6, 2, 4, seed=2), 24, 24))


@pytest.mark.parametrize("added", [False, True])
def test_masked_attention_adds_to_a_mask(added):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 9, 4) for _ in range(3))
    padding = (torch.arange(9) < torch.tensor([[9], [6]]))[:, None, None]
    mask = torch.zeros(2, 1, 9, 9).masked_fill(~padding, -torch.inf) if added else padding
    found, weights = attended(masked_sparse_attention, q, k, v, mask, pattern=sliding_window(3))
    wanted, _ = grouped_query_attention(q, k, v, pattern_mask(sliding_window(3), 9, 9) & padding)
    torch.testing.assert_close(found, wanted)
    assert not weights[1, :, :, 6:].any()


@settings(max_examples=often(30), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2, 3, 8]), st.floats(.02, .7),
       st.integers(0, 10**6))
def test_skipping_tiles_changes_nothing(rows, cols, size, share, seed):
    """Outputs and gradients, with queries that see nothing and rows of tiles that are empty; T
    and S may differ."""
    g = torch.Generator().manual_seed(seed)
    T, S = rows * size, cols * size
    mask = torch.rand(T, S, generator=g) < share
    wanted = [[bool(mask[a * size:(a + 1) * size, b * size:(b + 1) * size].any())
               for b in range(cols)] for a in range(rows)]
    assert visited_tiles(mask, size).tolist() == wanted
    qkv = [torch.randn(2, n, 4, generator=g, dtype=torch.float64).requires_grad_()
           for n in (T, S, S)]
    ours, full = sparse_attention(*qkv, mask, size), attention(*qkv, mask)[0]
    torch.testing.assert_close(ours, full)
    for a, b in zip(*(torch.autograd.grad(out.sin().sum(), qkv, allow_unused=True)
                      for out in (ours, full)), strict=True):
        torch.testing.assert_close(a if a is not None else torch.zeros_like(b), b)


# --- reach ----------------------------------------------------------------------------------------

def paths(mask, n_layers):
    "Inputs of each output, followed back one layer at a time."
    sets = [{i} for i in range(len(mask))]
    for _ in range(n_layers):
        sets = [set().union(sets[i], *(sets[j] for j in mask[i].nonzero()[:, 0].tolist()))
                for i in range(len(mask))]
    return torch.tensor([[j in s for j in range(len(mask))] for s in sets])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.floats(.05, .6), st.integers(1, 5), st.integers(0, 10**6))
def test_reach_follows_paths(T, share, n_layers, seed):
    mask = torch.rand(T, T, generator=torch.Generator().manual_seed(seed)) < share
    found, needed = reach([mask] * n_layers), layers_needed(mask)
    for n in range(n_layers):
        assert torch.equal(found[n], paths(mask, n + 1))
        assert torch.equal((needed >= 0) & (needed <= n + 1), found[n])
    assert torch.equal(needed < 0, ~paths(mask, T))


def test_layers_of_different_masks_in_order():
    near, far = (pattern_mask(intersection(causal, sliding_window(2)), 8, 8),
                 pattern_mask(intersection(causal, every(4)), 8, 8))
    first, both = reach([near, far])
    assert torch.equal(first, paths(near, 1))
    own = torch.eye(8, dtype=torch.bool)
    assert torch.equal(both, (((far | own).float() @ (near | own).float()) > 0))


@pytest.mark.parametrize("name", sweep(RULES, "strided", "global", "BigBird"))
def test_gradients_reach_what_the_formula_says(name):
    torch.manual_seed(0)
    config = ModelConfig("decoder", 9, 16, 2, 2, 19, d_ff=16, **MODERN)
    stack = build(config, partial(masked_sparse_attention, pattern=RULES[name])).double().stack
    x = torch.randn(1, 19, 16, dtype=torch.float64, requires_grad=True)
    # no causal mask: the pattern alone
    out = stack(x)[0].sum(-1)[0]
    found = (torch.stack([torch.autograd.grad(o, x, retain_graph=True)[0][0]
                          for o in out]).abs().sum(-1) > 0)
    assert torch.equal(found, reach([pattern_mask(RULES[name], 19, 19)] * 2)[-1])


@pytest.mark.parametrize("F", [1, 3, 10])
def test_facts_in_noise(F):
    ids, values, far = facts_in_noise(500, 20, F, seed=5)
    assert ids.shape == (500, 20) and values.shape == far.shape == (500, F)
    told, questions = ids[:, :20 - F], ids[:, 20 - F:]
    assert ((told < 8 * F).sum(1) == F).all() and (told <= 8 * F).all()
    asked = questions - 8 * F - 1
    # each key once: no two facts have the same
    assert (asked.sort(-1).values == torch.arange(F)).all()
    assert torch.equal(told.gather(1, torch.arange(20 - F, 20) - far), 8 * asked + values)
    assert (torch.equal(ids, facts_in_noise(500, 20, F, seed=5)[0])
            and not torch.equal(ids, facts_in_noise(500, 20, F, seed=6)[0]))


# --- lists of blocks ------------------------------------------------------------------------------

def drawn(B, H, G, T, S, D, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(B, n, length, D, generator=g,
                        dtype=torch.float64).to(dtype).requires_grad_()
            for n, length in ((H, T), (G, S), (G, S))]


def with_gradients(attend, inputs):
    out = attend(*inputs)[0]
    return [out, *torch.autograd.grad(out.sin().sum(), inputs)]


@settings(max_examples=often(60), deadline=None)
@given(st.sampled_from(sorted(RULES)), st.integers(1, 30), st.integers(0, 30), st.integers(1, 17),
       st.integers(1, 17), st.sampled_from([(1, 1), (4, 2), (3, 1)]), st.booleans())
def test_blocks_equal_masks(name, T, more, rows, cols, heads, padded):
    S, (H, G) = T + more, heads
    inputs = drawn(2, H, G, T, S, 4, seed=T)
    mask = ((torch.arange(S) < torch.tensor([[S], [max(1, S // 2)]]))[:, None, None]
            if padded else None)
    listed = block_list(RULES[name], T, S, rows, cols)
    found = with_gradients(partial(block_sparse_attention, mask=mask, pattern=RULES[name],
                                   listed=listed), inputs)
    wanted = with_gradients(partial(masked_sparse_attention, mask=mask,
                                    pattern=RULES[name]), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", RULES)
def test_skipped_blocks_are_not_read(name):
    "What is in a skipped block of keys cannot matter, not even if it is no number."
    q, k, v = (t.detach() for t in drawn(1, 2, 2, 40, 40, 4))
    listed = block_list(RULES[name], 40, 40, 8, 8)
    wanted = block_sparse_attention(q, k, v, pattern=RULES[name], listed=listed)[0]
    for i, row in enumerate(block_table(listed)):
        bad = k.clone()
        for j in (row == 0).nonzero()[0]: bad[:, :, 8 * j:8 * j + 8] = torch.nan
        assert torch.equal(block_sparse_attention(q, bad, v, pattern=RULES[name],
                                                  listed=listed)[0][:, :, 8 * i:8 * i + 8],
                           wanted[:, :, 8 * i:8 * i + 8])


def test_full_blocks_do_not_ask_the_pattern():
    asked = []
    def rule(i, j): asked.append(1); return same_block(8)(i, j)
    listed = block_list(rule, 32, 32, 8, 8)
    assert not any(listed.partial) and listed.full == ((0,), (1,), (2,), (3,))
    asked.clear()
    block_sparse_attention(*drawn(1, 1, 1, 32, 32, 4), pattern=rule, listed=listed)
    assert not asked


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("T", "S", "rows", "cols"),
                         [(37, 37, 8, 4), (10, 37, 4, 8), (0, 5, 4, 4), (64, 64, 16, 16)])
def test_lists_name_each_visible_block_once(name, T, S, rows, cols):
    listed, mask = block_list(RULES[name], T, S, rows, cols), pattern_mask(RULES[name], T, S)
    table = block_table(listed)
    for i in range(-(-T // rows)):
        assert not set(listed.partial[i]) & set(listed.full[i])
        for j in range(-(-S // cols)):
            tile = mask[rows * i:rows * i + rows, cols * j:cols * j + cols]
            assert table[i, j] == (2 if tile.all() else 1 if tile.any() else 0)
    area = sum(mask[i:i + rows, j:j + cols].numel() for i in range(0, T, rows)
               for j in range(0, S, cols) if mask[i:i + rows, j:j + cols].any())
    assert n_computed(listed) == area
    if T: assert list_blocks(mask.split(rows), T, S, rows, cols) == listed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_blocks_in_other_types(dtype):
    q, k, v = (t.detach() for t in drawn(1, 2, 1, 50, 50, 8, dtype))
    found = block_sparse_attention(q, k, v, pattern=BIGBIRD)[0]
    wanted = masked_sparse_attention(q.double(), k.double(), v.double(), pattern=BIGBIRD)[0]
    assert (found.dtype == dtype and (found.double() - wanted).abs().max()
            < (1e-5 if dtype == torch.float32 else .02))


@pytest.mark.parametrize("name", sweep(RULES, "causal"))
def test_flex_attention(name):
    "Its lists, and its result without compilation."
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    made = flex.create_block_mask(lambda b, h, i, j: RULES[name](i, j), None, None, 64, 64, "cpu",
                                  BLOCK_SIZE=16)
    ours = block_list(RULES[name], 64, 64, 16, 16)
    for counts, indices, lists in ((made.kv_num_blocks, made.kv_indices, ours.partial),
                                   (made.full_kv_num_blocks, made.full_kv_indices, ours.full)):
        assert ([tuple(sorted(indices[0, 0, n, :c].tolist()))
                 for n, c in enumerate(counts[0, 0].tolist())] == [*lists])
    q, k, v = (t.detach().float() for t in drawn(1, 2, 2, 64, 64, 16))
    torch.testing.assert_close(flex.flex_attention(q, k, v, block_mask=made),
                               block_sparse_attention(q, k, v, pattern=RULES[name], listed=ours)[0],
                               rtol=1e-4, atol=1e-5)


def test_a_decoder_with_blocks():
    config = ModelConfig("decoder", 11, 16, 2, 2, 40, n_kv_heads=1, d_ff=16, **MODERN)
    rule, ids = (intersection(causal, union(sliding_window(4), sink_tokens(1))),
                 torch.randint(11, (2, 40), generator=torch.Generator().manual_seed(0)))
    tiled, masked = (build(config, partial(fn, pattern=rule))
                     for fn in (block_sparse_attention, masked_sparse_attention))
    real = torch.arange(40) >= torch.tensor([[0], [7]])
    torch.testing.assert_close(tiled(ids, real)[real], masked(ids, real)[real],
                               rtol=1e-4, atol=1e-5)
    assert torch.equal(generate(tiled, ids[:, :5], 12), generate(masked, ids[:, :5], 12))


# --- selection by content -------------------------------------------------------------------------

def slow_native(part, q, k, v):
    "One query after another."
    (B, H, T, D), G, size = q.shape, k.shape[1], part.block_size
    kc, vc, out = part.compress_k(k), part.compress_v(v), torch.zeros_like(q)
    def soft(query, keys, values):
        return ((query @ keys.T / D**.5).softmax(-1) @ values if len(keys)
                else torch.zeros(values.shape[-1], dtype=q.dtype))
    for b in range(B):
        for t in range(T):
            done = t // size
            for g in range(G):
                group = range(g * H // G, (g + 1) * H // G)
                rank = (sum((q[b, h, t] @ kc[b, g, :done].T / D**.5).softmax(-1) for h in group)
                        if done else torch.zeros(0))
                chosen = {0, t // size}
                for n in rank.argsort(descending=True).tolist():
                    if len(chosen) < part.n_selected: chosen.add(n)
                tokens = [s for s in range(t + 1) if s // size in chosen]
                for h in group:
                    branches = (soft(q[b, h, t], kc[b, g, :done], vc[b, g, :done]),
                                soft(q[b, h, t], k[b, g, tokens], v[b, g, tokens]),
                                soft(q[b, h, t], k[b, g, max(0, t + 1 - part.window):t + 1],
                                     v[b, g, max(0, t + 1 - part.window):t + 1]))
                    out[b, h, t] = sum(gate * one
                                       for gate, one in zip(
                                           part.gates(q[b, h, t]).sigmoid(), branches))
    return out


def native(D=4, *sizes, seed=0):
    torch.manual_seed(seed)
    part = NativeSparseAttention(D, *sizes).double()
    for p in part.parameters(): nn.init.normal_(p, std=.4)
    return part


@pytest.mark.parametrize(("T", "sizes"), [(23, (4, 3, 5)), (1, (4, 2, 3)), (8, (4, 9, 3)),
                                          (30, (3, 4, 1)), (17, (1, 3, 2))])
@pytest.mark.parametrize(("H", "G"), [(4, 2), (2, 2), (3, 1)])
@torch.no_grad()
def test_native_sparse_attention_is_the_slow_one(T, sizes, H, G):
    part, inputs = native(4, *sizes), drawn(2, H, G, T, T, 4)
    torch.testing.assert_close(part(*inputs, causal_mask(T, T))[0], slow_native(part, *inputs))


@pytest.mark.parametrize("fast", sweep([True, False], True))
def test_native_gradients(fast):
    "Of all inputs and parameters, by finite differences; at these inputs no selection changes."
    part, inputs = native(4, 3, 3, 4), drawn(1, 2, 1, 11, 11, 4)
    names = [name for name, _ in part.named_parameters()]
    parameters = [p for _, p in part.named_parameters()]
    def call(*given_):
        return torch.func.functional_call(part, dict(zip(names, given_[3:])), given_[:3])[0]
    assert torch.autograd.gradcheck(call, (*inputs, *parameters), fast_mode=fast)
    for p in torch.autograd.grad(part(*inputs)[0].sin().sum(), [*inputs, *parameters]):
        assert (p != 0).any()


def test_the_largest_weights_are_selected():
    weights = torch.zeros(1, 1, 16, 4)
    weights[..., 2], weights[..., 1] = .6, .3
    chosen = select_blocks(weights, 4, 3)
    assert (chosen[0, 0, 15].tolist() == [True, False, True, True] and chosen[0, 0, 11].tolist()
            == [True, True, True, False])


def test_blocks_of_the_future_are_not_selected():
    "Not even if all weights are 0, so that every block ranks alike."
    chosen = select_blocks(torch.zeros(1, 1, 24, 6), 4, 3)
    assert (chosen.sum(-1) == torch.tensor([min(3, t // 4 + 1) for t in range(24)])).all()


def test_compression_starts_as_the_mean():
    x = torch.randn(2, 3, 11, 4)
    torch.testing.assert_close(BlockCompression(4, 5)(x), x[:, :, :10].unflatten(2, (2, 5)).mean(3))


# --- other libraries ------------------------------------------------------------------------------

@pytest.mark.parametrize(("n", "width", "lengths", "where"), sweep(
    [(27, 6, (27, 21), (0, 9)), (8, 4, (8, 8), (0, 7)), (31, 10, (31, 30), (0, 0)),
     (13, 4, (5, 13), (0, 4))], (13, 4, (5, 13), (0, 4))))
def test_longformer(n, width, lengths, where):
    pytest.importorskip("transformers")
    from transformers import LongformerConfig, LongformerModel
    torch.manual_seed(n)
    theirs = LongformerModel(LongformerConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1,
                                              num_attention_heads=3, intermediate_size=8,
                                              attention_window=[width],
                                              max_position_embeddings=64,
                                              attention_probs_dropout_prob=0.,
                                              hidden_dropout_prob=0.)).eval()
    layer, kept = theirs.encoder.layer[0].attention.self, {}
    for p in layer.parameters(): nn.init.normal_(p, std=.4)
    layer.register_forward_hook(lambda module, args, kwargs, out: kept.update(
        x=(args or [kwargs.get("hidden_states")])[0], out=out[0]), with_kwargs=True)
    real = torch.arange(n) < torch.tensor(lengths)[:, None]
    is_global = torch.zeros(2, n, dtype=torch.bool)
    is_global[:, where[0]] = is_global[1, where[1]] = True
    with torch.no_grad():
        theirs(torch.randint(3, 50, (2, n)), real.long(), global_attention_mask=is_global.long())
    ours = LongformerAttention(24, 3, width // 2 + 1)
    for mine, word in ((ours, ""), (ours.global_attention, "_global")):
        for part, name in ((mine.q_proj, "query"), (mine.k_proj, "key"), (mine.v_proj, "value")):
            part.load_state_dict(getattr(layer, name + word).state_dict())
    with torch.no_grad(): ours.o_proj.weight.copy_(torch.eye(24)); ours.o_proj.bias.zero_()
    more = kept["x"].shape[1] - n
    padded = [nn.functional.pad(m, (0, more)) for m in (is_global, real)]
    with torch.no_grad(): found = ours(kept["x"], *padded)
    assert kept["out"].std() > .2
    torch.testing.assert_close(found[padded[1]], kept["out"][padded[1]], rtol=1e-4, atol=1e-5)


# --- what is refused ------------------------------------------------------------------------------

QKV = [torch.zeros(1, 2, 6, 4)] * 3


@pytest.mark.parametrize(("call", "named"), [
    (lambda: sliding_window(0), "window"), (lambda: dilated_window(3, 0), "dilation"),
    (lambda: every(-1), "stride"), (lambda: same_block(0), "size"),
    (lambda: block_ends(2.5), "size"), (lambda: sink_tokens(0), "n:"),
    (lambda: global_tokens(0), "n:"), (lambda: union(), "patterns"),
    (lambda: intersection(), "patterns"),
    (lambda: random_blocks(4, 5, 2), "n_random"), (lambda: pattern_mask(causal, 5, 4), "T"),
    (lambda: reach([]), "masks"), (lambda: reach([torch.ones(2, 2)]), "masks"),
    (lambda: layers_needed(torch.ones(2, 3, dtype=torch.bool)), "masks"),
    (lambda: reach([torch.ones(2, 2, dtype=torch.bool), torch.ones(3, 3, dtype=torch.bool)]),
     "masks"),
    (lambda: facts_in_noise(2, 5, 3), "n_facts"), (lambda: facts_in_noise(2, 5, 0), "n_facts"),
    (lambda: facts_in_noise(0, 5), "batch"), (lambda: facts_in_noise(2, 2.5), "n:"),
    (lambda: block_list(causal, 4, 4, 0, 4), "rows"), (lambda: block_list(causal, 5, 4), "T"),
    (lambda: block_sparse_attention(*QKV, pattern=causal,
                                    listed=block_list(causal, 5, 5)), "listed"),
    (lambda: block_sparse_attention(*QKV, torch.zeros(6, 6), pattern=causal), "mask"),
    (lambda: block_sparse_attention(*QKV, torch.ones(5, 6, dtype=torch.bool),
                                    pattern=causal), "mask"),
    (lambda: block_sparse_attention(QKV[0], QKV[1][:, :, :5], QKV[2], pattern=causal), "v"),
    (lambda: NativeSparseAttention(4, 0), "block_size"),
    (lambda: NativeSparseAttention(4, 4, 1), "n_selected"),
    (lambda: NativeSparseAttention(4, window=0), "window"),
    (lambda: NativeSparseAttention(4)(*QKV, torch.ones(6, 6, dtype=torch.bool)), "mask"),
    (lambda: NativeSparseAttention(4)(QKV[0][:, :, :3], *QKV[1:]), "k"),
    (lambda: LongformerAttention(8, 2, 0), "window"),
    *[(lambda mask=mask: visited_tiles(mask, 4), "mask: ") for mask in (
        torch.ones(6, 8, dtype=torch.bool), torch.ones(8, 8),
        torch.ones(2, 8, 8, dtype=torch.bool))],
    (lambda: pattern_mask(lambda i, j: i - j, 4, 4), "pattern"),
    (lambda: masked_sparse_attention(*QKV, pattern=lambda i, j: i - j), "pattern"),
    (lambda: block_list(lambda i, j: i - j, 4, 4), "pattern"),
    (lambda: block_sparse_attention(*QKV, pattern=lambda i, j: i - j), "pattern"),
    (lambda: masked_sparse_attention(*QKV, torch.ones(5, 6, dtype=torch.bool), pattern=causal),
     "mask"),
    (lambda: masked_sparse_attention(*QKV, torch.ones(6, 6, dtype=torch.int64),
                                     pattern=causal), "mask"),
    (lambda: select_blocks(torch.zeros(1, 1, 8, 6), 4, 2), "weights"),
    (lambda: select_blocks(torch.zeros(1, 1, 8, 2), 0, 2), "block_size"),
    (lambda: NativeSparseAttention(5)(*QKV), "x"),
    (lambda: LongformerAttention(8, 2, 3)(torch.zeros(1, 5, 8), torch.zeros(1, 5),
                                          torch.ones(1, 5, dtype=torch.bool)), "is_global"),
    (lambda: LongformerAttention(8, 2, 3)(torch.zeros(1, 5, 8), torch.zeros(1, 5, dtype=torch.bool),
                                          torch.ones(1, 4, dtype=torch.bool)), "padding_mask"),
])
def test_what_is_refused_is_named(call, named):
    with pytest.raises(ValueError, match=rf"^{named}"): call()


def test_a_list_is_a_value():
    assert (block_list(causal, 9, 9, 4, 4) == BlockList(9, 9, 4, 4, ((0,), (1,), ()),
            ((), (0,), (0, 1, 2))))


# --- what the practice page states ----------------------------------------------------------------

def test_the_depths_of_the_practice_page():
    from tfmlib.practice.sparse import _DEPTH
    near, around = sliding_window(4), union(sliding_window(2), global_tokens(1))
    rules = {"window": intersection(causal, near), "window and sink": intersection(causal,
            union(near, sink_tokens(1))),
             "last of block": intersection(causal, union(same_block(4), block_ends(4))),
             "first of block": intersection(causal, union(same_block(4), lambda i, j: j % 4 == 0)),
             "strided": intersection(causal, union(near, every(4))),
             "dilated": intersection(causal, dilated_window(4, 4)), "encoder": around,
             "decoder": intersection(causal, around)}
    def counted(masks):
        """How many inputs position 15 depends on after each layer, until 1 is among them or
        nothing is added."""
        seen = [layer[15] for layer in reach(masks)]
        last = next((n for n, row in enumerate(seen) if row[1]), None)
        counts = [int(row.sum()) for row in seen][:None if last is None else last + 1]
        return (counts if last is not None
                else [n for i, n in enumerate(counts) if n not in counts[:i]])
    three, full = (pattern_mask(intersection(causal, rule), 16, 16)
                   for rule in (sliding_window(3), causal))
    depths = {name: counted([pattern_mask(rule, 16, 16)] * 16) for name, rule in rules.items()}
    depths |= {"five and one": counted([three] * 5 + [full]),
               "one and five": counted([full] + [three] * 5)}
    assert depths == _DEPTH


def test_the_faults_of_the_practice_page():
    from tfmlib.practice.sparse import _FAULTS
    def layer(*rules): return pattern_mask(intersection(causal, union(*rules)), 64, 64)
    near, sinks = sliding_window(8), sink_tokens(4)
    right, everything = layer(near, sinks), layer(causal)
    stacks = {"wide": [layer(sliding_window(9), sinks)] * 3, "full": [right, everything, right],
              "no sinks": [layer(near)] * 3, "blocks": [layer(same_block(8), sinks)] * 3,
              "dilated": [layer(dilated_window(8, 2), sinks)] * 3, "idle": [right] * 2,
              "late": [layer(near, lambda i, j: (j >= 4) & (j < 8))] * 3,
              "chunk": [layer(near, lambda i, j: (i // 32 == j // 32) & (j % 32 < 4))] * 3,
              "last": [right, right, layer(near)]}
    page = json.loads((ROOT / "chapters/practice/19_sparse.ipynb").read_text(encoding="utf-8"))
    statement = next("".join(cell["source"]) for cell in page["cells"] if cell["id"] == "fault")
    for run, fault in _FAULTS.items():
        said = re.search(rf"^\| {run} \| (.*) \|$", statement,
                         re.M)[1].replace(", 2, 4, … 42, and", " to 42,")
        spans = [[*map(int, span.split(" to "))] for span in said.split(", ")]
        step = 2 if fault == "dilated" else 1
        shown = {d for n, (a, b) in enumerate(spans)
                 for d in range(a, b + 1, step if n == 0 else 1)}
        assert (shown
                == {63 - j for j in reach(stacks[fault])[-1][63].nonzero().flatten().tolist()}), run


# --- the figure -----------------------------------------------------------------------------------

def test_the_figure_counts_layers_as_the_library_does(tmp_path):
    g = torch.Generator().manual_seed(0)
    masks = [torch.rand(8, 8, generator=g).lt(.3).tril() for _ in range(20)]
    said = in_node(tmp_path, "sparse_pattern.js",
                   "given.map(pairs => [script.layers(pairs), script.depth(pairs)])",
                   [m.int().tolist() for m in masks])
    for mask, (needed, depth) in zip(masks, said, strict=True):
        wanted = layers_needed(mask)
        assert needed == wanted.tolist()
        below = wanted[torch.ones(8, 8).tril() > 0]
        assert depth == (-1 if (below < 0).any() else int(below.max()))


def test_the_picture_shows_pairs_and_layers():
    pairs = pattern_mask(intersection(causal, sliding_window(2)), 4, 4).int().tolist()
    picture = PatternView("a window of two", pairs=pairs, token=3, presets={}).picture()
    assert picture.count("<rect") == 10 and all(f">{n}</text>" in picture for n in range(4))
