"""Chapter 19: selection by an indexer and by the means of blocks, and the benchmark that
compares them."""
import math
from itertools import product

import pytest
import torch

from bench import sparse_selection as bench
from tfmlib.attention import causal_mask
from tfmlib.heads import MultiHeadAttention, grouped_query_attention
from tfmlib.practice.sparse import _indexed, _pays
from tfmlib.sparse import (
    IndexedAttention,
    LightningIndexer,
    choose_blocks,
    index_loss,
    index_scores,
    keep_top,
    moba_attention,
)
from tfmlib.workbench import seeded


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed, *shape), dtype=torch.float64)


def test_the_scores_select_what_the_exercise_selects():
    # with few heads, scores of zero would be tied
    q, k, w = drawn(1, 12, 5, 4), drawn(1, 5, 4), drawn(1, 12, 5)
    scores = index_scores(q, k, w)
    for t in range(5):
        kept = keep_top(scores, 2,
                        causal_mask(5, 5).expand_as(scores))[0, t].nonzero()[:, 0].tolist()
        assert kept == _indexed(q[0, :, t].tolist(), k[0, :t + 1].tolist(), w[0, :, t].tolist(), 2)


@pytest.mark.parametrize("n", [1, 4, 9, 20])
def test_as_many_are_kept_as_are_allowed(n):
    scores, past = torch.zeros(2, 9, 9), causal_mask(9, 9).expand(2, 9, 9)          # all tied
    kept = keep_top(scores, n, past)
    assert not (kept & ~past).any() and torch.equal(kept.sum(-1), past.sum(-1).clamp(max=n))


def test_the_loss_is_zero_for_the_weights_themselves_and_counts_only_what_is_seen():
    seen = causal_mask(6, 6).expand(2, 6, 6)
    weights = drawn(2, 3, 6, 6).masked_fill(~seen[:, None], -math.inf).softmax(-1)
    target = weights.mean(1)
    assert abs(float(index_loss(target.clamp(min=1e-300).log(), weights, seen))) < 1e-12
    few = keep_top(drawn(2, 6, 6, seed=1), 2, seen)
    among = target * few / (target * few).sum(-1, keepdim=True)
    scores = drawn(2, 6, 6, seed=2)
    by_hand = sum(among[b, t, s]
                  * (among[b, t, s]
                     / scores[b, t][few[b, t]].softmax(0)[int(few[b, t, :s].sum())]).log()
                  for b, t, s in product(range(2), range(6), range(6)) if few[b, t, s]) / 12
    assert abs(float(index_loss(scores, weights, few) - by_hand)) < 1e-12


def test_a_layer_with_an_indexer_refuses_other_masks_and_bad_shapes():
    layer = IndexedAttention(MultiHeadAttention(8, 2), LightningIndexer(8, 2, 4), 2)
    with pytest.raises(ValueError, match="mask"):
        layer(torch.randn(1, 5, 8), mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="k: "):
        index_scores(drawn(1, 2, 5, 4), drawn(1, 2, 5, 4), drawn(1, 2, 5))
    with pytest.raises(ValueError, match="weights: "):
        index_scores(drawn(1, 2, 5, 4), drawn(1, 5, 4), drawn(1, 5, 2))
    with pytest.raises(ValueError, match="n: "): keep_top(drawn(3, 3), 0, causal_mask(3, 3))


@pytest.mark.parametrize("T", [1, 7, 12])
def test_blocks_are_past_or_the_querys_own_and_do_not_see_later_keys(T):
    q, k, v = (drawn(2, heads, T, 4, seed=n) for n, heads in enumerate((4, 2, 2)))
    chosen = choose_blocks(q, k, 3, 2)
    own = torch.arange(T) // 3
    assert (chosen[..., torch.arange(T), own].all()
            and torch.equal(chosen.sum(-1), (own + 1).clamp(max=2).expand(2, 4, T)))
    every = moba_attention(q, k, v, block_size=3, n_selected=4)[0]
    assert torch.allclose(every, grouped_query_attention(q, k, v, causal_mask(T, T))[0])
    changed = k.clone()
    changed[:, :, -1] += 9
    assert torch.equal(choose_blocks(q, changed, 3, 2)[:, :, :-1], chosen[:, :, :-1])


def test_from_which_length_the_indexer_of_deepseek_pays():
    dense, index, absorbed, k = 128 * (192 + 128), 64 * 128 + 64, 128 * (576 + 512), 2048
    def saved(n):
        return ((dense - index) * n * (n + 1) // 2 - absorbed
                * sum(min(i, k) for i in range(1, n + 1)))
    n = _pays(dense, index, absorbed, k)
    assert saved(n) > 0 >= saved(n - 1)


# --- the benchmark --------------------------------------------------------------------------------

@pytest.fixture
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "BUILT", tmp_path)
    monkeypatch.setattr(bench, "TESTED", 20)
    return {"base": [.01, 42], "seed": 0}


def test_each_method_attends_to_at_most_so_many_keys(short):
    bench.run({"what": "dense", "rate": .01, "steps": 42, "seed": 0})
    for method in bench.AT_ONCE:
        found = bench.run({"what": "at once", "method": method} | short)
        assert found["keys"] <= bench.KEYS and 0 < found["covered"] < 1
    kept = bench.covered(bench.given("dense", short), "best keys", 1)["covered"]
    assert kept >= bench.run({"what": "warm-up", "rate": .02, "steps": 0} | short)["covered"]


def test_the_warm_up_changes_the_indexer_alone(short):
    before, after = (bench.warmed(short | {"rate": .02, "steps": steps}).state_dict()
                     for steps in (0, 10))
    moved = {name.split("inner.")[1].split(".")[0] for name in before
             if not torch.equal(before[name], after[name])}
    assert moved == {"indexer"}
