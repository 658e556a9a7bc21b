"""Caches: one law for all of them, over kinds of attention, positions, padding and published
families; and what decodes, drafts and serves with them."""
import functools
import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from in_node import in_node
from torch import nn

from bench.checkpoint_families import CASES, IDS, REAL, loud, ours_of
from tfmlib.attention import causal_mask
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import SamplingConfig, generate, simple_generate
from tfmlib.flash_attention_gpu import flash_attention_fn
from tfmlib.kv_cache import (
    CachedAttention,
    CachedCausalLM,
    KVCache,
    ModelCache,
    RollingCache,
    SimpleKVCache,
    generate_cached,
    speculative,
    visible_mask,
)
from tfmlib.kv_cache.batching import PrefixPool, PrefixScheduler, Request, Scheduler
from tfmlib.kv_cache.figures import PagedCacheView
from tfmlib.kv_cache.mixed import ChunkedScheduler
from tfmlib.kv_cache.paged import (
    BlockPool,
    BlockTable,
    OutOfBlocks,
    PagedCache,
    paged_cache,
)
from tfmlib.kv_cache.quantized import QuantizedCache, dequantize, quantize
from tfmlib.kv_cache.speculative import (
    ModelDraft,
    NGramDraft,
    PrefixReader,
    accept_draft,
    generate_speculative,
    next_probabilities,
)
from tfmlib.positions import PositionalAttention

SMALL = ModelConfig("decoder", 61, 24, 2, 4, 64, n_kv_heads=2, d_ff=28, **MODERN)
LATENT = ModelConfig("decoder", 61, 24, 2, 4, 64, head_dim=10, d_ff=28,
                     **MODERN | dict(positions="partial rotary", attention="latent", norm_eps=1e-6,
                                     tie_embeddings=False),
                     options=dict(rotary_dim=4, interleaved=True, kv_rank=8, query_rank=12,
                                  value_dim=7))


pytestmark = pytest.mark.usefixtures("one_thread")


def louder(model: nn.Module, seed: int = 0) -> nn.Module:
    "The model in 64 bits, with weights so large that every part shows in the logits."
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        p.data = (1 + .1 * noise if "norm" in name and p.ndim == 1 else .4 * noise).to(p)
    return model.double().eval()


@torch.no_grad()
def in_chunks(model: CachedCausalLM, ids, cuts, real=None, cache=None):
    "The logits, when the tokens are read in chunks of these lengths."
    cache, found, start = model.new_cache() if cache is None else cache, [], 0
    for n in cuts:
        stop = start + n
        found.append(model(ids[:, start:stop], cache, None if real is None
                           else real[:, start:stop]))
        start = stop
    assert start == ids.shape[1]
    return torch.cat(found, 1)


def apart(a, b, real=None) -> float:
    "The largest difference where there are tokens, relative to the size of `b`."
    gap = (a - b).abs()
    return float(((gap if real is None else gap[real]).max() / b.abs().max()).detach())


# --- the law --------------------------------------------------------------------------------------

# frequencies that depend on the length so far: the first chunk from which they stay
BREAKS = {"llama, dynamic": 33, "llama, LongRoPE": 13, "phi3, LongRoPE": 13}


@pytest.mark.parametrize("name", sweep(CASES, *list(CASES)[::12], "llama, LongRoPE"))
def test_every_family_reads_in_chunks_what_it_reads_at_once(name):
    ours = ours_of(loud(*CASES[name])).double()
    cached = CachedCausalLM(ours)
    for real in (None, REAL[:, :33]):
        with torch.no_grad(): whole = ours(IDS[:, :33], real)
        for cuts in ([33], [20, 1, 1, 11], [7, 1, 12, 1, 12]):
            gap = apart(in_chunks(cached, IDS[:, :33], cuts, real), whole, real)
            if cuts[0] >= BREAKS.get(name, 0): assert gap < 1e-10, (cuts, gap)
            else: assert gap > 1e-3


ATTENTIONS = {
    "multi-head": dict(n_kv_heads=4), "grouped": {}, "multi-query": dict(n_kv_heads=1),
    "window": dict(attention="adapted", options=dict(window=3)),
    "learned sinks": dict(attention="adapted", options=dict(sinks=True)),
    "window and learned sinks": dict(attention="adapted", options=dict(window=5, sinks=True)),
    "softcap": dict(attention="adapted", options=dict(softcap=2.)),
    "local and global": dict(attention="adapted", options=dict(window=4, local="10")),
    "norms of queries and keys": dict(attention="adapted", options=dict(qk_norm="head"))}
POSITIONS = {name: dict(positions=name) for name in ("none", "sinusoidal", "learned", "relative",
        "alibi", "rotary")} | {
    rule: dict(positions="rotary", rope_scaling=dict(rule=rule, factor=4., **more))
            for rule, more in {
        "linear": {}, "ntk": {}, "llama3": dict(original_max_len=16),
                "yarn": dict(original_max_len=16)}.items()} | {
                    "partial rotary": dict(positions="partial rotary")}


def model_of(attention: str, positions: str) -> nn.Module:
    fields = {**MODERN, **POSITIONS[positions], **ATTENTIONS[attention]}
    options = {**fields.pop("options", {}),
               **({"rotary_dim": 2} if positions == "partial rotary" else {})}
    return louder(build(replace(SMALL, **fields, options=options)))


KINDS = ["latent", "latent, absorbed", *itertools.product(ATTENTIONS, POSITIONS)]


@functools.cache
def made(kind) -> nn.Module:
    if isinstance(kind, str): return louder(build(replace(LATENT, attention=kind)))
    return model_of(*kind)


@settings(max_examples=often(150), deadline=None)
@given(kind=st.sampled_from(KINDS), memory=st.sampled_from(["own", "contiguous", "paged"]),
       n_sinks=st.integers(0, 4), seed=st.integers(0, 999), T=st.integers(1, 20), data=st.data())
def test_any_chunks_through_any_cache_give_the_same_logits(kind, memory, n_sinks, seed, T, data):
    """With kept first tokens, for which there is no whole model, one chunk in a contiguous cache
    takes its place."""
    model, g, B, pool = made(kind), torch.Generator().manual_seed(seed), 3, BlockPool(40, 3)
    ids = torch.randint(61, (B, T), generator=g)
    padding = torch.tensor(data.draw(st.lists(st.integers(0, T - 1), min_size=B, max_size=B)))
    real = torch.arange(T) >= padding[:, None]
    cuts = sorted(data.draw(st.sets(st.integers(1, T - 1)))) if T > 1 else []
    # latent attention has no window
    if isinstance(kind, str): n_sinks = 0
    cached = CachedCausalLM(model, 4 if n_sinks else None, n_sinks)
    def contiguous(): return ModelCache(KVCache(64) for _ in range(2))
    caches = {"own": cached.new_cache, "contiguous": contiguous,
              "paged": lambda: paged_cache(cached, pool, [BlockTable(pool) for _ in range(B)])}
    with torch.no_grad(): whole = cached(ids, contiguous(), real) if n_sinks else model(ids, real)
    found = in_chunks(cached, ids, [b - a for a, b in zip([0, *cuts], [*cuts, T])], real,
                      caches[memory]())
    assert apart(found, whole, real) < 1e-10
    if n_sinks and memory == "own":
        assert all(type(layer) is RollingCache for layer in cached.new_cache().layers)


def test_kernels_without_masks_decode():
    """One query of a full row has no mask: what chapter 18 gives such a query to, its kernel for
    few queries over many keys."""
    masks = []
    def watched(q, k, v, mask=None):
        masks.append(mask)
        return flash_attention_fn(q, k, v, mask)
    ids, model = torch.randint(61, (2, 14)), build(SMALL, watched)
    real = torch.ones(2, 14, dtype=torch.bool)
    for padded in (0, 3):
        real[1, :padded], cached = False, CachedCausalLM(model)
        with torch.no_grad(): whole = build(SMALL)(ids, real)
        masks.clear()
        assert apart(in_chunks(cached, ids, [11, 1, 1, 1], real), whole, real) < 1e-5
        assert [mask is None for mask in masks] == [False] * 2 + [padded == 0] * 6


def test_the_parameters_are_shared_and_the_model_is_left_as_it_was():
    model = build(SMALL)
    cached, before = CachedCausalLM(model), {name: id(p) for name, p in model.named_parameters()}
    assert {id(p) for p in cached.parameters()} == set(before.values())
    assert not isinstance(model.stack.blocks[0].attention.inner.attention_fn, CachedAttention)
    ids = torch.randint(61, (2, 9))
    assert (model(ids).shape == (2, 9, 61)
            and {name: id(p) for name, p in model.named_parameters()} == before)
    again = CachedCausalLM(cached.model)
    assert apart(in_chunks(again, ids, [4, 5]), model(ids).detach()) < 1e-5


@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_a_ring_buffer_with_first_tokens_is_dense_attention_under_its_mask(cut):
    T, window, n_sinks = 30, 6, 2
    model = louder(build(SMALL))
    layer, x = model.stack.blocks[0].attention.inner, torch.randn(2, T, 24, dtype=torch.float64)
    positions = torch.arange(T)
    near = positions[:, None] - positions < window
    mask = causal_mask(T, T) & (near | (positions < n_sinks))
    assert torch.equal(visible_mask(positions[None], positions[None], window, n_sinks)[0, 0], mask)
    wanted, _ = layer(x, mask=mask)
    cached = CachedCausalLM(model, window=window, n_sinks=n_sinks)
    mine, cache, found = (cached.model.stack.blocks[0].attention.inner,
                          RollingCache(window, n_sinks), [])
    for start in range(0, T, cut):
        at = positions[start:start + cut].expand(2, -1)
        found.append(mine(x[:, start:start + cut], positions=at, length=start + at.shape[1],
                          cache=cache)[0])
    assert apart(torch.cat(found, 1), wanted) < 1e-10
    assert (sorted(cache.positions[0].tolist()) == [-1, 0, 1, *range(T - window, T)]
            and cache.nbytes == 2 * 2 * 2 * 9 * 6 * 8)


def test_a_cache_that_grows_returns_what_one_with_reserved_memory_does():
    grows, reserved = SimpleKVCache(), KVCache(9)
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        new = (torch.randn(2, 3, stop - start, 4), torch.randn(2, 3, stop - start, 6),
               torch.arange(start, stop).expand(2, -1))
        assert all(map(torch.equal, grows.update(*new), reserved.update(*new)))


@pytest.mark.parametrize("window, n_sinks", [(6, 2), (1, 0), (4, 3)])
def test_no_two_tokens_of_a_chunk_are_written_to_one_slot(window, n_sinks):
    "Which of them would stay is not defined on a GPU."
    slots = RollingCache(window, n_sinks).slots(torch.arange(30)[None])[0]
    kept = slots[slots < n_sinks + window]
    assert sorted(kept.tolist()) == [*range(n_sinks + window)]


def test_what_is_dropped_is_forgotten():
    model = louder(build(SMALL))
    cached, ids = CachedCausalLM(model), torch.randint(61, (2, 12))
    pool = BlockPool(20, 3)
    for cache in (cached.new_cache(),
                  paged_cache(cached, pool, [BlockTable(pool) for _ in range(2)]),
                  ModelCache(KVCache(64) for _ in range(2))):
        with torch.no_grad():
            cached(torch.cat([ids[:, :5], ids[:, :4]], 1), cache)
            cache.drop(4)
            assert apart(cached(ids[:, 5:], cache), model(ids)[:, 5:]) < 1e-10
    assert sum(n > 0 for n in pool.uses) == 8


@pytest.mark.parametrize("sampling", sweep([None, SamplingConfig(.9, top_k=20),
                                            SamplingConfig(repetition_penalty=1.5)], None))
def test_generation_is_that_of_chapter_ten(sampling):
    model, ids = (louder(build(SMALL)),
                  torch.randint(61, (3, 7), generator=torch.Generator().manual_seed(1)))
    real = torch.arange(7) >= torch.tensor([[0], [3], [6]])
    cached, ends = CachedCausalLM(model), generate(model, ids, 20, sampling, seed=4)
    for mask, eos in ((None, int(ends[0, 9])), (real, None),
                      (real, [int(ends[1, 12]), int(ends[0, 9])])):
        given_ = dict(sampling=sampling, seed=4, padding_mask=mask, eos=eos)
        assert torch.equal(generate_cached(cached, ids, 20, **given_),
                           generate(model, ids, 20, **given_))


def test_memory_is_reserved_for_what_is_asked(monkeypatch):
    "Not for the longest text that the model accepts: of 16 GB for a row of some models."
    cached, made = CachedCausalLM(build(SMALL)), []
    own = cached.new_cache
    monkeypatch.setattr(cached, "new_cache", lambda *asked: made.append(own(*asked)) or made[-1])
    ids = torch.zeros(2, 3, dtype=torch.long)
    generate_cached(cached, ids, 4)
    assert [layer.max_len for layer in made[0].layers] == [7] * cached.n_layers
    assert {layer.max_len for layer in own().layers} == {cached.max_len}
    assert {layer.max_len for layer in own(10**6).layers} == {cached.max_len}


# --- against another library ----------------------------------------------------------------------

@pytest.mark.parametrize("name", sweep(
    ["llama", "llama, YaRN", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2",
     "falcon 7B", "phi3", "cohere"], "llama, YaRN", "mistral", "gemma3_text"))
def test_decoding_is_that_of_transformers(name):
    theirs = loud(*CASES[name])
    ours, ids = CachedCausalLM(ours_of(theirs)), IDS[:, :30]
    with torch.no_grad():
        first = theirs(ids[:, :17], use_cache=True)
        steps, past = [first.logits], first.past_key_values
        for t in range(17, 30):
            out = theirs(ids[:, t:t + 1], past_key_values=past, use_cache=True)
            steps.append(out.logits)
            past = out.past_key_values
    wanted = torch.cat(steps, 1)
    assert ((in_chunks(ours, ids, [17] + [1] * 13) - wanted).abs().max() < 1e-5
            * max(10, wanted.abs().max()))


# --- latent attention -----------------------------------------------------------------------------

def test_latent_attention_trains_alike():
    "And are the same function."
    naive, x = build(LATENT).double(), torch.randint(61, (2, 9))
    absorbed = build(replace(LATENT, attention="latent, absorbed")).double()
    absorbed.load_state_dict(naive.state_dict())
    assert apart(absorbed(x), naive(x)) < 1e-10
    for model in (naive, absorbed): model(x).logsumexp(-1).sum().backward()
    a, b = ([p.grad for p in model.parameters()] for model in (naive, absorbed))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# --- blocks ---------------------------------------------------------------------------------------

@settings(max_examples=often(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["new", "write", "fork", "end", "drop"]),
                          st.integers(0, 9), st.integers(1, 7)), max_size=40))
def test_a_pool_holds_what_its_tables_say(steps):
    pool, tables, texts, layer = BlockPool(400, 3), [], [], "store"
    k = torch.zeros(1, 1, 1, 1)
    store, _ = pool.store(layer, k, k)
    for n, (step, which, size) in enumerate(steps):
        if step == "new": tables.append(BlockTable(pool)); texts.append([])
        if not tables: continue
        i = which % len(tables)
        if step == "write":
            start = tables[i].length
            tables[i].reserve(start + size)
            for j in range(size):
                store[tables[i].blocks[(start + j) // 3], (start + j) % 3] = 100 * n + j
            texts[i] = texts[i] + [100 * n + j for j in range(size)]
        if step == "fork": tables.append(tables[i].fork()); texts.append([*texts[i]])
        if step == "end": tables.pop(i).release(); texts.pop(i)
        if step == "drop":
            less = min(size, tables[i].length)
            tables[i].drop(less)
            texts[i] = texts[i][:len(texts[i]) - less]
    for table, text in zip(tables, texts):
        assert [int(store[table.blocks[j // 3], j % 3]) for j in range(table.length)] == text
        assert len(table.blocks) == math.ceil(table.length / 3)
    counted = Counter(b for table in tables for b in table.blocks)
    assert (pool.uses == [counted[b] for b in range(400)] and sorted(pool.free)
            == [b for b in range(400) if not counted[b]])


def test_a_pool_that_is_full_says_so():
    with pytest.raises(OutOfBlocks, match="all 8 blocks are in use"):
        BlockTable(BlockPool(8, 4)).reserve(33)


# --- fewer bits -----------------------------------------------------------------------------------

@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_sixteen_bits_are_half_a_step_away_at_most(bits, dtype):
    x = torch.cat([torch.randn(2000, 24, generator=torch.Generator().manual_seed(0)),
                   torch.tensor([[6e4, -6e4] * 12])]).to(dtype)
    codes, scales = quantize(x, bits)
    assert bool(((dequantize(codes, scales, bits) - x.float()).abs() <= .501
                 * scales[..., :1]).all())


@pytest.mark.parametrize("bits", [8, 4])
@given(seed=st.integers(0, 99), size=st.sampled_from([1e-3, 1., 100.]))
@settings(max_examples=20, deadline=None)
def test_codes_are_half_a_step_away_at_most(bits, seed, size):
    x = size * torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(seed))
    codes, scales = quantize(x, bits)
    assert codes.dtype == torch.uint8 and codes.shape == (3, 5, 8 * bits // 8)
    assert bool(((dequantize(codes, scales, bits) - x).abs() <= .5001 * scales[..., :1]).all())
    torch.testing.assert_close(scales[..., 0] * (2**bits - 1), x.amax(-1) - x.amin(-1))


def test_a_constant_row_stays_as_it_is():
    x = torch.full((1, 1, 2, 4), 3.)
    assert torch.equal(dequantize(*quantize(x, 4), 4), x)


def test_few_bits_keep_the_law_and_cost_little_accuracy():
    model, ids = louder(build(SMALL)), torch.randint(61, (2, 20))
    cached, gaps = CachedCausalLM(model), []
    for bits in (8, 4):
        def made(bits=bits): return ModelCache(QuantizedCache(64, bits) for _ in range(2))
        at_once = in_chunks(cached, ids, [20], cache=made())
        # what is read back is what was stored
        assert apart(in_chunks(cached, ids, [9, 1, 10], cache=made()), at_once) < 1e-10
        cache = made()
        in_chunks(cached, torch.cat([ids[:, :5], ids[:, :4]], 1), [9], cache=cache)
        cache.drop(4)
        assert apart(in_chunks(cached, ids[:, 5:], [15], cache=cache), at_once[:, 5:]) < 1e-10
        with torch.no_grad(): gaps.append(float((at_once - model(ids)).std() / model(ids).std()))
    assert 0 < gaps[0] < .02 < gaps[1] < .5


# --- speculative decoding -------------------------------------------------------------------------

P, Q, GRID = torch.tensor([[.5, .3, .2], [.1, .6, .3]]), torch.tensor([.2, .2, .6]), 60


def test_the_rule_is_exact_over_a_grid_of_all_random_numbers(monkeypatch):
    """Every number between 0 and 1 that may be drawn, on a grid so fine that each probability is
    a whole number of its cells."""
    numbers = [(i + .5) / GRID for i in range(GRID)]
    counts = Counter()
    for token, weight in enumerate((Q * 10).round().int().tolist()):
        for u, w in itertools.product(numbers, numbers):
            drawn = iter([u, w])
            monkeypatch.setattr(speculative.torch, "rand", lambda *_, **__: torch.tensor([next(drawn)], dtype=torch.float64))  # noqa: B023, E501
            counts[accept_draft([token], Q[None].double(), P.double(), None)[0]] += weight
    monkeypatch.undo()
    assert [counts[t] / (10 * GRID**2) for t in range(3)] == pytest.approx(P[0].tolist(), abs=1e-6)


def test_rounding_leaves_something_to_draw(monkeypatch):
    "A draft that is rejected because p is smaller by a rounding error, and nowhere larger."
    q, drawn = torch.tensor([[.5, .5]]), iter([1 - 1e-9, .7])
    p = torch.cat([q - torch.tensor([[3e-8, 0]]), q])
    monkeypatch.setattr(speculative.torch, "rand",
                        lambda *_, **__: torch.tensor([next(drawn)], dtype=torch.float64))
    assert accept_draft([0], q, p, None) == [1]


def chi_square(counts: Counter, wanted: dict) -> float:
    "The sum of squared differences, each divided by what was expected."
    n = sum(counts.values())
    assert {*counts} <= {*wanted}
    return sum((counts[key] - n * p) ** 2 / (n * p) for key, p in wanted.items() if p > 0)


TINY = ModelConfig("decoder", 4, 8, 1, 2, 16, d_ff=8, **MODERN)


@pytest.mark.parametrize("drafts", sweep(["model", "bigram"], "bigram"))
def test_counts_of_a_model_are_its_probabilities(drafts):
    plain, other = (louder(build(TINY, seed=s), s).float() for s in (0, 1))
    target, small = CachedCausalLM(plain), CachedCausalLM(other)
    ids, counts = torch.tensor([[1, 2, 1, 2]]), Counter()
    sampling = SamplingConfig(.8)
    for seed in range(400):
        draft = ModelDraft(small, sampling) if drafts == "model" else NGramDraft(4, 1)
        counts[tuple(generate_speculative(target, draft, ids, 2, 2, sampling,
                                          seed).ids[0, 4:].tolist())] += 1
    wanted = {}
    with torch.no_grad():
        for a, b in itertools.product(range(4), repeat=2):
            p = (plain(torch.tensor([[1, 2, 1, 2, a]])) / .8).softmax(-1)[0]
            wanted[a, b] = float(p[3, a] * p[4, b])
    assert chi_square(counts, wanted) < 15 + 4 * math.sqrt(30)


@pytest.mark.parametrize("K", sweep([1, 3, 8], 3))
def test_greedy_drafts_change_nothing(K):
    model, other = (CachedCausalLM(louder(build(SMALL), s)) for s in (0, 1))
    ids = torch.randint(61, (1, 6), generator=torch.Generator().manual_seed(2))
    wanted = generate(louder(build(SMALL)), ids, 25)
    for draft in (ModelDraft(other), ModelDraft(model), NGramDraft(61), NGramDraft(61, 1)):
        found = generate_speculative(model, draft, ids, 25, K)
        assert torch.equal(found.ids, wanted) and sum(found.accepted) + len(found.accepted) == 25
        assert all(a <= d <= K for a, d in zip(found.accepted, found.drafted))
    assert (len(generate_speculative(model, ModelDraft(model), ids, 25, K).drafted)
            == math.ceil(25 / (K + 1)))


def test_penalties_see_the_text_before_each_token():
    model, ids = (CachedCausalLM(louder(build(SMALL))),
                  torch.randint(61, (1, 6), generator=torch.Generator().manual_seed(2)))
    greedy = SamplingConfig(top_k=1, repetition_penalty=3.)
    wanted = generate_cached(model, ids, 20, greedy)
    assert (torch.equal(generate_speculative(model, ModelDraft(model), ids, 20, 4, greedy).ids,
                        wanted) and len(wanted[0, 6:].unique()) > 10)
    logits = torch.randn(2, 61)
    rows = next_probabilities(logits, [3, 4, 5], SamplingConfig(repetition_penalty=2.))
    for n, row in enumerate(rows):
        torch.testing.assert_close(row, SamplingConfig(repetition_penalty=2.)(logits[n:n + 1],
                torch.tensor([[3, 4, 5][:2 + n]])).softmax(-1)[0])


def test_a_reader_reads_only_what_is_new():
    reader = PrefixReader(CachedCausalLM(louder(build(SMALL))))
    text = torch.randint(61, (20,)).tolist()
    for new, rows in ((text[:10], 10), (text[:11], 1), (text[:11], 1),
                      ([*text[:7], 60 - text[7], 5], 2)):
        logits = reader.logits(new)
        assert (len(logits) == rows
                and apart(logits,
                          in_chunks(reader.model, torch.tensor([new]), [len(new)])[0, -rows:])
                < 1e-10)
    assert reader.count == 4 and reader.cache.lengths.tolist() == [9]


def test_bigrams_are_found_where_they_were_last():
    def proposed(text, n=2, k=3): return NGramDraft(9, n).propose(text, k, None)[0]
    assert (proposed([1, 2, 3, 1, 2, 4, 5, 1, 2]) == [4, 5, 1] and proposed([1, 2, 3]) == []
            and proposed([7, 7, 7]) == [7])
    assert proposed([1, 2, 3, 4, 1], 1) == [2, 3, 4] and proposed([5], 2) == []
    assert NGramDraft(9).propose([1, 2, 3], 3, None)[1].shape == (0, 9)


def test_shorter_n_grams_are_tried_if_the_longer_ones_are_new():
    def proposed(text, *sizes): return NGramDraft(9, *sizes).propose(text, 2, None)[0]
    assert proposed([1, 2, 3, 4, 2], 2) == [] and proposed([1, 2, 3, 4, 2], 2, 1) == [3, 4]
    assert proposed([1, 2, 5, 3, 2, 6, 1, 2], 2, 1) == [5, 3]       # the longer one comes first
    with pytest.raises(ValueError, match="^least: 3; expected at most n = 2"): NGramDraft(9, 2, 3)


@pytest.mark.parametrize("draft", ["itself", "smaller", "n-grams"])
def test_drafts_are_taken_back_where_layers_have_windows(draft):
    model = limited()
    cached, ids = CachedCausalLM(model), torch.tensor([[3, 9, 27, 20, 60, 58, 3, 9]])
    drafts = {"itself": lambda: ModelDraft(cached), "n-grams": lambda: NGramDraft(61, 2, 1),
              "smaller": lambda: ModelDraft(CachedCausalLM(louder(build(SMALL), 1)))}[draft]
    found, wanted = generate_speculative(cached, drafts(), ids, 40), generate(model, ids, 40)
    assert torch.equal(found.ids, wanted)
    assert draft == "itself" or sum(found.accepted) < sum(found.drafted), "some were rejected"
    for end in wanted[0, [12, 25, 40]].tolist():     # a text ends where it ends without drafts
        found = generate_speculative(cached, drafts(), ids, 40, eos=[end, 0])
        assert torch.equal(found.ids, generate(model, ids, 40, eos=[end, 0]))
        assert sum(found.accepted) + len(found.accepted) >= found.ids.shape[1] - 8


def test_a_function_s_own_window_and_first_tokens_are_those_of_its_cache():
    model, ids = limited(), torch.randint(61, (2, 30), generator=torch.Generator().manual_seed(3))
    cached = CachedCausalLM(model)
    assert apart(in_chunks(cached, ids, [7, 1, 1, 9, 12]), model(ids)) < 1e-10
    assert [(c.window, c.n_sinks) for c in cached.new_cache().layers] == [(5, 2)] * 2
    again = CachedCausalLM(cached.model)                     # it has the caches' functions now
    assert apart(in_chunks(again, ids, [20, 10]), model(ids)) < 1e-10
    asked = CachedCausalLM(model, window=9)                  # what is asked counts
    assert [(c.window, c.n_sinks) for c in asked.new_cache().layers] == [(9, 0)] * 2


def test_padding_is_no_repetition():
    model, asked = louder(build(SMALL)), SamplingConfig(top_k=1, repetition_penalty=5.)
    cached, prompt = CachedCausalLM(model), [5, 6, 7]
    alone = generate(model, torch.tensor([prompt]), 12, asked)[0, 3:]
    pad = int(generate(model, torch.tensor([prompt]), 1)[0, 3])   # what it would say first
    ids, real = torch.tensor([[pad] * 2 + prompt]), torch.tensor([[False] * 2 + [True] * 3])
    for found in (generate(model, ids, 12, asked, padding_mask=real),
                  generate_cached(cached, ids, 12, asked, padding_mask=real)):
        assert torch.equal(found[0, 5:], alone) and torch.equal(found[0, :5], ids[0])


# --- serving --------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", [Scheduler, functools.partial(ChunkedScheduler, budget=4)])
def test_what_stops_a_scheduler_frees_its_blocks(kind, monkeypatch):
    "A bad request, an error in a pass, a reader who stops: the next requests are served."
    cached, pool = CachedCausalLM(louder(build(SMALL))), BlockPool(6, 4)
    server = kind(cached, pool, 2)

    def two(): return [Request([1, 2], 9), Request([4, 5, 6], 9)]
    def served():
        (first, second) = asked = two()
        server.run(asked)
        return first.new, second.new
    wanted = served()
    with pytest.raises(ValueError, match="^prompt: from 3 to 99"):
        server.run([*two(), Request([3, 99], 2)])
    assert served() == wanted
    stopped = server.stream(two())
    for _ in range(5): next(stopped)
    stopped.close()
    assert len(pool.free) == 6 and served() == wanted
    whole, passes = type(cached).next_logits, []

    def breaks(*given):
        passes.append(given)
        if len(passes) == 3: raise KeyboardInterrupt
        return whole(cached, *given[1:])
    monkeypatch.setattr(type(cached), "next_logits", breaks)
    with pytest.raises(KeyboardInterrupt): server.run(two())
    assert len(pool.free) == 6 and server.reserved == 0 and served() == wanted



def test_a_pool_that_is_just_large_enough_serves():
    "The last token is never read, so it needs no room."
    request, served = (Request([1, 2], 7),
                       Scheduler(CachedCausalLM(build(SMALL)), BlockPool(2, 4), 2))
    served.run([request])
    assert len(request.new) == 7 and served.reserved == 0


def mixed_requests(seed: int) -> list[Request]:
    "Prompts with beginnings in common, greedy and sampled, with and without end tokens."
    r = random.Random(seed)
    def some(n): return [r.randrange(61) for _ in range(n)]
    def one_of(*values): return r.choice(values)
    begins, sampled = ([some(r.randrange(1, 30)) for _ in range(3)],
                       SamplingConfig(top_k=5, temperature=1.5, repetition_penalty=1.2))
    return [Request(one_of(*begins)[:r.randrange(1, 30)] + some(r.randrange(1, 6)),
                    r.randrange(1, 12), r.randrange(20), one_of(None, sampled), r.randrange(9),
                    one_of(None, 3, [4, 9, 20]))
            for _ in range(12)]


@pytest.mark.parametrize("seed", sweep(range(20), 3))
def test_streams_with_their_own_sampling_ends_and_shared_beginnings(seed):
    """Whatever the pool forgets and whoever else is served, a request has the text that it would
    have alone."""
    cached, requests, pool = (CachedCausalLM(louder(build(SMALL))), mixed_requests(seed),
                              PrefixPool((16, 20, 60)[seed % 3], 3 + seed % 3))
    served, come = PrefixScheduler(cached, pool, 1 + seed % 5), {}
    for request, token in served.stream(requests): come.setdefault(id(request), []).append(token)
    for r in requests:
        alone = generate_cached(cached, torch.tensor([r.prompt]), r.max_new_tokens, r.sampling,
                                r.seed, eos=r.eos)[0, len(r.prompt):].tolist()
        ends = [r.eos] if isinstance(r.eos, int) else r.eos or []
        assert (r.new == come[id(r)] == alone[:len(r.new)]
                and (len(r.new) == r.max_new_tokens or r.new[-1] in ends)
                and not {*r.new[:-1]} & {*ends})
    assert (served.reserved == 0 and pool.n_reused > 0
            and [pool.uses[b] for b in pool.kept.values()] == [1] * sum(n > 0 for n in pool.uses))


def test_kept_blocks_are_found_by_all_that_stands_before_them():
    "Equal tokens after other tokens have other keys; the last token of a prompt is always read."
    cached, pool = CachedCausalLM(louder(build(SMALL))), PrefixPool(40, 4)
    def reused(prompt):
        before = pool.n_reused
        PrefixScheduler(cached, pool, 2).run([Request(prompt, 2)])
        return pool.n_reused - before
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    assert ([reused(p) for p in (a + b, a + b, a + b + [9], b + b, a + b + a, [0] + a + b)]
            == [0, 4, 8, 0, 8, 0])


# --- bad input ------------------------------------------------------------------------------------

class Limited(nn.Module):
    "A reader's own attention function: a window, and first tokens that stay visible."
    def __init__(self, attention_fn, window=5, n_sinks=2):
        super().__init__()
        self.attention_fn, self.window, self.n_sinks = attention_fn, window, n_sinks

    def forward(self, q, k, v, mask, **more):
        at = torch.arange(k.shape[-2])
        if self.window is not None:
            mask = mask & ((at[:, None] - at < self.window) | (at < self.n_sinks))
        return self.attention_fn(q, k, v, mask, **more)


def limited(inside: bool = True):
    "A decoder with that function, within the rotation or around it."
    model = louder(build(SMALL))
    for block in model.stack.blocks:
        fn = block.attention.inner.attention_fn
        block.attention.inner.attention_fn = PositionalAttention(
            fn.encoding, Limited(fn.attention_fn)) if inside else Limited(fn)
    return model


PLAIN, ZEROS = build(SMALL), torch.zeros(2, 5, dtype=torch.long)
CACHED = CachedCausalLM(PLAIN)


def latent(**change): return build(replace(LATENT, options=LATENT.options | change))
def cached_model(**change): return CachedCausalLM(build(replace(SMALL, **change)))
def served(*requests): return Scheduler(CACHED, BlockPool(8, 4), 2).stream(requests)
def continued(n_new=1, ids=ZEROS, **how): generate_cached(CACHED, ids, n_new, **how)


def accepted(drafted=(0,), q=Q[None], p=P):
    return accept_draft([*drafted], q, p, torch.Generator())


def after(ids, *more, cache=None):
    "A cache after these tokens."
    cache = CACHED.new_cache() if cache is None else cache
    for part in (ids, *more): CACHED(part, cache)
    return cache


REFUSED = [
    # latent attention
    ("positions", lambda: build(replace(LATENT, positions="rotary", options=dict(kv_rank=8)))),
    ("rotary_dim", lambda: latent(rotary_dim=10)), ("kv_rank", lambda: latent(kv_rank=0)),
    ("head_dim", lambda: build(replace(LATENT, head_dim=None))),
    ("query_rank", lambda: latent(query_rank=-1)),
    # caches
    ("block", lambda: BlockPool(8, 4).release(0)), ("bits", lambda: QuantizedCache(8, 2)),
    ("bits", lambda: quantize(torch.zeros(2), 3)),
    ("^x: width 3", lambda: quantize(torch.zeros(2, 3), 4)),
    ("even width", lambda: QuantizedCache(8, 4).update(*parts(D=3))),
    ("max_len", lambda: KVCache(0)), ("window", lambda: RollingCache(0)),
    ("n_sinks", lambda: RollingCache(3, -1)),
    ("^k: 6 tokens; expected at most max_len, 5", lambda: twice(KVCache(5))),
    ("^k: 1 rows", lambda: twice(KVCache(5), B=1, T=1)),
    ("^n: 4", lambda: after(ZEROS[:, :3]).drop(4)),
    ("ring buffer", lambda: cached_model(
        attention="adapted", options=dict(window=5)).new_cache().drop(1)),
    # models
    ("^model: Encoder; expected a decoder", lambda: cached_model(kind="encoder")),
    ("^model: Transformer; expected a decoder", lambda: cached_model(kind="encoder-decoder")),
    ("^model: Bert; expected a decoder", lambda: cached_model(kind="bert", positions="learned")),
    ("^model: with a layer Mamba; expected attention in each layer .*CachedHybridLM",
     lambda: cached_model(attention="hybrid",
                          options={"mixers": ("attention", "mamba")}).new_cache()),
    ("n_sinks", lambda: CachedCausalLM(PLAIN, n_sinks=3)),
    ("^window: 0", lambda: CachedCausalLM(PLAIN, window=0)),
    ("window", lambda: CachedCausalLM(build(LATENT), window=3)),
    ("cache", lambda: CACHED(ZEROS, ModelCache([KVCache(8)]))),
    ("padding_mask", lambda: CACHED(ZEROS, CACHED.new_cache(), torch.ones(2, 5))),
    ("^ids: 1 rows; expected 2", lambda: after(ZEROS, ZEROS[:1, :1])),
    ("^ids: 3 rows; expected 2", lambda: after(ZEROS, torch.zeros(3, 1, dtype=torch.long))),
    # what continues a text
    *[("^(model|target): CausalLM; expected a CachedCausalLM of it", call) for call in (
        lambda: generate_cached(PLAIN, ZEROS, 2), lambda: Scheduler(PLAIN, BlockPool(2, 4), 2),
        lambda: PrefixReader(PLAIN),
        lambda: generate_speculative(PLAIN, NGramDraft(61), ZEROS[:1], 2))],
    ("max_new_tokens", lambda: continued(-1)), ("max_new_tokens", lambda: continued(60)),
    ("ids", lambda: continued(ids=ZEROS[0])), ("eos", lambda: continued(eos=61)),
    ("eos", lambda: continued(eos=[])),
    ("padding_mask", lambda: continued(padding_mask=torch.tensor([[True] * 4 + [False]] * 2))),
    ("^ids: 2 rows", lambda: generate_speculative(CACHED, NGramDraft(61), ZEROS, 3)),
    *[("^drafted: ", lambda: accepted([3])), ("^p: ", lambda: accepted([0, 1])),
      ("^p: ", lambda: accepted(p=P[:1])), ("^p: ", lambda: accepted(p=3 * P)),
      ("^p: ", lambda: accepted(p=P - .5)), ("^q: ", lambda: accepted(q=Q))],
    *[("^q: ", lambda q=q: accepted(q=torch.tensor([q])))
      for q in ([0., .4, .6], [2., 3., 4.], [1.2, .2, -.4])],
    # serving
    ("max_batch", lambda: Scheduler(CACHED, BlockPool(8, 4), 0)),
    ("^requests: one of them twice", lambda: served(*[Request([1], 3)] * 2)),
    ("^pool: BlockPool; expected a PrefixPool",
     lambda: PrefixScheduler(CACHED, BlockPool(8, 4), 2)),
    *[(said, lambda wrong=wrong: served(Request([1, 2], 3), wrong)) for said, wrong in (
        ("prompt", Request([], 3)), ("max_new_tokens", Request([1], 64)),
        ("max_new_tokens", Request([1], 0)), ("requests", Request([1], 3, new=[5])),
        ("max_new_tokens", Request([1] * 9, 30)), ("^eos", Request([1], 2, eos=61)),
        ("^eos", Request([1], 2, eos=[])), ("^sampling: 0.7", Request([1], 2, sampling=.7)),
        ("^prompt: from 1 to 61", Request([1, 61], 3)),
        (r"^prompt: got \(1, 2\)", Request((1, 2), 3)),
        ("^prompt: got tensor", Request(torch.tensor([1, 2]), 3)),
        (r"^prompt: \[1, 0.5\]", Request([1, .5], 3)))],
    ("^pool: got None", lambda: Scheduler(CACHED, None, 4)),
    ("^admit: no request", lambda: Scheduler(CACHED, BlockPool(8, 4), 2,
                                             lambda running, most: 0).run([Request([1], 2)])),
    ("^sampling: got 0.7", lambda: generate_cached(CACHED, ZEROS, 2, .7)),
    ("^draft: CachedCausalLM", lambda: generate_speculative(CACHED, CACHED, ZEROS[:1], 2)),
    ("^attention_fn: a Limited around", lambda: CachedCausalLM(limited(inside=False))),
]


@pytest.mark.parametrize("said, call", REFUSED)
def test_what_does_not_fit_is_refused_by_name(said, call):
    with pytest.raises(ValueError, match=said): call()


def test_a_text_that_is_too_long_leaves_the_cache_as_it_was():
    cache = after(torch.zeros(1, 60, dtype=torch.long))
    with pytest.raises(ValueError, match="positions"): after(ZEROS[:1], cache=cache)
    assert cache.lengths.tolist() == [60]


def twice(cache, **how):
    "Three tokens, and then again as many, or fewer rows of them."
    cache.update(*parts())
    cache.update(*parts(**how))


def parts(B=2, G=2, T=3, D=4):
    return torch.zeros(B, G, T, D), torch.zeros(B, G, T, D), torch.arange(T).expand(B, -1)


CACHES = [lambda: KVCache(8), lambda: RollingCache(4), lambda: QuantizedCache(8, 8),
          lambda: PagedCache(pool := BlockPool(9, 2), 0, [BlockTable(pool), BlockTable(pool)])]


@pytest.mark.parametrize("cache", CACHES)
def test_what_is_no_key_is_refused_by_every_cache(cache):
    k, v, positions = parts()
    for change, said in (((k[0], v, positions), "k"), ((k, v[:, :1], positions), "v"),
                         ((k, v, positions[:, :2]), "positions"),
                         ((k, v, positions.float()), "positions")):
        with pytest.raises(ValueError, match=f"^{said}: "): cache().update(*change)


@pytest.mark.parametrize("cache", CACHES)
def test_later_keys_are_like_the_first_ones(cache):
    "Nothing is broadcast over heads, features or rows, and nothing is rounded to another dtype."
    k, v, positions = parts()
    for change, said in (((k[:, :1], v[:, :1]), "k"), ((k[..., :1], v), "k"),
                         ((k, v[..., :1]), "v"), ((k[..., :2], v), "k"), ((k[:1], v[:1]), "k"),
                         ((k.double(), v), "k"), ((k, v.half()), "v")):
        made = cache()
        made.update(k, v, positions)
        # it stores whole numbers, whatever the dtype
        if isinstance(made, QuantizedCache) and k.dtype != change[said == "v"].dtype: continue
        with pytest.raises(ValueError, match=f"^{said}: "):
            made.update(*change, positions[:len(change[0])] + 3)


def test_no_padding_is_dropped():
    "Rows would lose different numbers of tokens, and positions would be given twice."
    model, ids = CachedCausalLM(build(SMALL)), torch.zeros(2, 6, dtype=torch.long)
    real = torch.arange(6) >= torch.tensor([[0], [4]])
    for layer in (lambda: KVCache(64), lambda: QuantizedCache(64, 8)):
        cache = ModelCache([layer(), layer()])
        model(ids, cache, real)
        with pytest.raises(ValueError, match="^n: 3, some of them padding"): cache.drop(3)
        assert (cache.lengths.tolist() == [6, 2] and cache.layers[0].update(*parts(2, 2, 1, 6)[:2],
                torch.zeros(2, 1, dtype=torch.long))[0].shape[2] == 7)
        cache = ModelCache([layer(), layer()])
        model(ids, cache, real)
        cache.drop(2)
        assert cache.lengths.tolist() == [4, 0]


@pytest.mark.parametrize("sampling", [None, SamplingConfig(top_k=3)])
def test_weights_that_are_nan_are_never_taken_for_a_text(sampling):
    "Greedy decoding chose token 0 for ever."
    model, ids = build(SMALL), IDS[:1, :5] % 61
    with torch.no_grad(): model.stack.blocks[0].feed_forward.inner.up.weight[0, 0] = math.nan
    cached = CachedCausalLM(model)
    ways = [lambda: generate(model, ids, 3, sampling),
            lambda: generate_cached(cached, ids, 3, sampling),
            lambda: generate_speculative(cached, NGramDraft(61), ids, 3, sampling=sampling)]
    ways.append(lambda: simple_generate(model, ids, 3, sampling))
    if sampling is None:
        ways.append(lambda: Scheduler(cached, BlockPool(9, 4), 2).run([Request([1, 2], 3)]))
    for way in ways:
        with pytest.raises(ValueError, match="^(logits|p): .*; expected "): way()


@pytest.mark.parametrize("dtype, room", [(torch.bfloat16, .1), (torch.float16, .02)])
def test_sixteen_bits(dtype, room):
    model, ids = (louder(build(SMALL)),
                  torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(0)))
    with torch.no_grad(): wanted = model(ids)
    cached, pool = CachedCausalLM(build(SMALL).to(dtype)), BlockPool(20, 4)
    cached.load_state_dict({name: p.to(dtype)
                            for name, p in CachedCausalLM(model).state_dict().items()})
    for cache in (cached.new_cache(),
                  paged_cache(cached, pool, [BlockTable(pool) for _ in range(2)]),
                  ModelCache(QuantizedCache(64, 8) for _ in range(2))):
        found = in_chunks(cached, ids, [12, 1, 7], cache=cache)
        assert found.dtype == dtype and (found.double() - wanted).std() < room * wanted.std()


# --- the figure -----------------------------------------------------------------------------------

FILLS = """given.map(([state, i, end]) => {
    const made = script.reserve(state, i, end);
    return made && { tables: made.tables, lengths: made.lengths };
})"""


def test_the_figure_fills_blocks_as_the_pool_does(tmp_path):
    g, cases, wanted = torch.Generator().manual_seed(0), [], []
    def pick(n): return int(torch.randint(n, (1,), generator=g))
    for _ in range(40):
        pool, tables = BlockPool(9, 3), []
        for _ in range(1 + pick(3)):
            tables.append(BlockTable(pool)); tables[-1].reserve(1 + pick(5))
        if pick(2): tables.append(tables[pick(len(tables))].fork())
        i, state = (pick(len(tables)),
                    {"n_blocks": 9, "block_size": 3, "tables": [[*t.blocks] for t in tables],
                     "lengths": [t.length for t in tables]})
        end = tables[i].length + 1 + pick(4)
        cases.append([state, i, end])
        try: tables[i].reserve(end)
        except OutOfBlocks: wanted.append(None); continue
        wanted.append({"tables": [t.blocks for t in tables], "lengths": [t.length for t in tables]})
    found = in_node(tmp_path, "paged_blocks.js", FILLS, cases)
    assert found == wanted and any(w and w["tables"] for w in found)


def test_the_still_picture_shows_tables():
    made = PagedCacheView("a pool of eight blocks", tables=[[0, 1], [0, 2]], lengths=[6, 5])
    assert ">A: 6<" in made.picture() and made.picture().count("<rect") == 8
