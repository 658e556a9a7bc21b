"""Caches: one law for all of them, over kinds of attention, positions, padding and published
families; and what decodes, drafts and serves with them."""
import copy
import itertools
import json
import math
import random
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from bench.checkpoint_families import CASES, IDS, REAL, loud, ours_of
from bench.deepseek_names import latent_state
from tfmlib.attention import attention, causal_mask
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import SamplingConfig, generate
from tfmlib.flash_attention_gpu import flash_attention_fn
from tfmlib.heads import MultiHeadAttention
from tfmlib.kv_cache import (
    CachedAttention,
    CachedCausalLM,
    KVCache,
    ModelCache,
    RollingCache,
    generate_cached,
    speculative,
    visible_mask,
)
from tfmlib.kv_cache.batching import (
    PrefixPool,
    PrefixScheduler,
    Request,
    Scheduler,
    continuous,
    static,
)
from tfmlib.kv_cache.figures import PagedCacheView
from tfmlib.kv_cache.latent import AbsorbedLatentAttention
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
    draw,
    generate_speculative,
    next_probabilities,
)

ASSETS = Path(str(files("tfmlib"))) / "assets"
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


@pytest.mark.parametrize("name", sweep(CASES, *list(CASES)[::4]))
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


MADE = {"latent": louder(build(LATENT)),
        "latent, absorbed": louder(build(replace(LATENT, attention="latent, absorbed")))}
MADE |= {(a, p): model_of(a, p) for a, p in itertools.product(ATTENTIONS, POSITIONS)}


@settings(max_examples=often(150), deadline=None)
@given(kind=st.sampled_from([*MADE]), memory=st.sampled_from(["own", "contiguous", "paged"]),
       n_sinks=st.integers(0, 4), seed=st.integers(0, 999), T=st.integers(1, 20), data=st.data())
def test_any_chunks_through_any_cache_give_the_same_logits(kind, memory, n_sinks, seed, T, data):
    """With kept first tokens, for which there is no whole model, one chunk in a contiguous cache
    takes its place."""
    model, g, B, pool = MADE[kind], torch.Generator().manual_seed(seed), 3, BlockPool(40, 3)
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


@pytest.mark.parametrize("window, n_sinks", [(6, 2), (1, 0), (4, 3)])
def test_no_two_tokens_of_a_chunk_are_written_to_one_slot(window, n_sinks):
    "Which of them would stay is not defined on a GPU."
    slots = RollingCache(window, n_sinks).slots(torch.arange(30)[None])[0]
    kept = slots[slots < n_sinks + window]
    assert sorted(kept.tolist()) == [*range(n_sinks + window)]


def test_a_ring_buffer_does_not_grow():
    cached = CachedCausalLM(build(replace(SMALL, attention="adapted", options=dict(window=5))))
    cache, sizes = cached.new_cache(), []
    for _ in range(12):
        cached(torch.randint(61, (1, 4)), cache)
        sizes.append(cache.nbytes)
    assert len(set(sizes)) == 1 and isinstance(cache.layers[0], RollingCache)
    with pytest.raises(ValueError, match="ring buffer"): cache.drop(1)


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


@pytest.mark.parametrize("sampling",
                         [None, SamplingConfig(.9, top_k=20),
                          SamplingConfig(repetition_penalty=1.5)])
def test_generation_is_that_of_chapter_ten(sampling):
    model, ids = (louder(build(SMALL)),
                  torch.randint(61, (3, 7), generator=torch.Generator().manual_seed(1)))
    real = torch.arange(7) >= torch.tensor([[0], [3], [6]])
    for mask, eos in ((None, None), (real, None), (real, [5, 9])):
        given_ = dict(sampling=sampling, seed=4, padding_mask=mask, eos=eos)
        assert torch.equal(generate_cached(CachedCausalLM(model), ids, 20, **given_),
                           generate(model, ids, 20, **given_))


def test_rows_that_have_ended_repeat_the_first_ending():
    model, ids = (louder(build(SMALL)),
                  torch.randint(61, (3, 7), generator=torch.Generator().manual_seed(1)))
    cached, plain = CachedCausalLM(model), generate(model, ids, 20)
    for eos in (int(plain[0, 9]), [int(plain[1, 12]), int(plain[0, 9])]):
        found = generate_cached(cached, ids, 20, eos=eos)
        assert (torch.equal(found, generate(model, ids, 20, eos=eos))
                and not torch.equal(found, plain))


# --- against another library ----------------------------------------------------------------------

@pytest.mark.parametrize("name", ["llama", "llama, YaRN", "mistral", "qwen3", "gemma", "gemma2",
                                  "gemma3_text", "gpt2", "falcon 7B", "phi3", "cohere"])
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


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("query_rank", [12, None])
def test_latent_attention_is_that_of_transformers(kind, query_rank):
    sizes = dict(vocab_size=61, hidden_size=24, intermediate_size=28, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=4,
                 max_position_embeddings=64, head_dim=4,
                 q_lora_rank=query_rank, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=6,
                 v_head_dim=7, rms_norm_eps=1e-6, first_k_dense_replace=2)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    g = torch.Generator().manual_seed(0)
    for name, p in theirs.named_parameters():
        p.data = ((1 + .2 * torch.randn(p.shape, generator=g)) if "norm" in name else .3
                  * torch.randn(p.shape, generator=g))
    for form in ("latent", "latent, absorbed"):
        ours = build(replace(LATENT, attention=form, options=LATENT.options
                             | dict(query_rank=query_rank))).eval()
        ours.load_state_dict(latent_state(theirs))
        ids = IDS[:, :30]
        with torch.no_grad():
            whole, first = theirs(ids).logits, theirs(ids[:, :20], use_cache=True)
            later = theirs(ids[:, 20:], past_key_values=first.past_key_values).logits
            assert (ours(ids) - whole).abs().max() < 1e-4 and whole.std() > 1
        assert (in_chunks(CachedCausalLM(ours), ids, [20, 1, 9])[:, 20:] - later).abs().max() < 1e-4


# --- latent attention -----------------------------------------------------------------------------

def test_absorbed_and_naive_are_the_same_function():
    naive = MADE["latent"]
    absorbed = build(replace(LATENT, attention="latent, absorbed")).double().eval()
    absorbed.load_state_dict(naive.state_dict())
    ids = torch.randint(61, (2, 15))
    with torch.no_grad(): assert apart(absorbed(ids), naive(ids)) < 1e-10
    assert isinstance(absorbed.stack.blocks[0].attention.inner, AbsorbedLatentAttention)
    cache = CachedCausalLM(absorbed).new_cache()
    CachedCausalLM(absorbed)(ids, cache)
    assert cache.layers[0].k.shape == (2, 1, 64, 8) and cache.layers[0].v.shape == (2, 1, 64, 4)


def test_latent_attention_trains_alike():
    naive, x = build(LATENT).double(), torch.randint(61, (2, 9))
    absorbed = build(replace(LATENT, attention="latent, absorbed")).double()
    absorbed.load_state_dict(naive.state_dict())
    for model in (naive, absorbed): model(x).logsumexp(-1).sum().backward()
    for a, b in zip(naive.parameters(), absorbed.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("fields, said", [
    (dict(positions="rotary", options=dict(kv_rank=8)), "positions"),
    (dict(options=LATENT.options | dict(rotary_dim=10)), "rotary_dim"),
    (dict(options=LATENT.options | dict(kv_rank=0)), "kv_rank"), (dict(head_dim=None), "head_dim"),
    (dict(options=LATENT.options | dict(query_rank=-1)), "query_rank")])
def test_latent_sizes_that_do_not_fit_are_refused(fields, said):
    with pytest.raises(ValueError, match=said): build(replace(LATENT, **fields))


# --- blocks ---------------------------------------------------------------------------------------

def test_blocks_are_shared_copied_and_freed():
    pool = BlockPool(8, 4)
    a = BlockTable(pool)
    a.reserve(10)
    b, c = a.fork(), a.fork()
    assert (a.blocks, pool.uses[:3], len(pool.free)) == ([0, 1, 2], [3, 3, 3], 5)
    for table in (a, b, c): table.reserve(11)
    assert ([a.blocks, b.blocks, c.blocks] == [[0, 1, 3], [0, 1, 4], [0, 1, 2]] and pool.uses[:5]
            == [3, 3, 1, 1, 1])
    for table in (b, a): table.release()
    assert pool.uses == [1, 1, 1, 0, 0, 0, 0, 0] and c.length == 11
    c.drop(4)
    assert c.blocks == [0, 1] and c.length == 7
    c.release()
    assert sorted(pool.free) == [*range(8)]
    with pytest.raises(ValueError, match="block"): pool.release(0)
    with pytest.raises(OutOfBlocks, match="all 8 blocks are in use"): BlockTable(pool).reserve(33)


@settings(max_examples=60, deadline=None)
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


def test_a_forked_sequence_goes_its_own_way():
    model, ids = louder(build(SMALL)), torch.randint(61, (2, 15))
    ids[1, :10] = ids[0, :10]
    cached, pool = CachedCausalLM(model), BlockPool(12, 4)
    first = BlockTable(pool)
    with torch.no_grad():
        cached(ids[:1, :10], paged_cache(cached, pool, [first]))
        tables = [first, first.fork()]
        found = torch.cat([cached(ids[:, t:t + 1], paged_cache(cached, pool, tables))
                           for t in range(10, 15)], 1)
        assert apart(found, model(ids)[:, 10:]) < 1e-10
    assert (first.blocks[:2] == tables[1].blocks[:2] and not {*first.blocks[2:]}
            & {*tables[1].blocks[2:]})


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
    with pytest.raises(ValueError, match="bits"): QuantizedCache(8, 2)
    with pytest.raises(ValueError, match="bits"): quantize(torch.zeros(2), 3)
    with pytest.raises(ValueError, match="^x: width 3"): quantize(torch.zeros(2, 3), 4)
    with pytest.raises(ValueError, match="even width"):
        QuantizedCache(8, 4).update(torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 1, 4),
                                    torch.zeros(1, 1, dtype=torch.long))


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


def test_counts_are_those_of_all_texts_enumerated():
    "Three tokens after a start, from tables in which each token depends on the one before it."
    g = torch.Generator().manual_seed(0)
    p, q = (torch.rand(4, 4, generator=g).softmax(-1) ** power for power in (3, 1))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    counts = Counter()
    for _ in range(6_000):
        text = [0]
        while len(text) < 4:
            drafted = [*text]
            for _ in range(2): drafted.append(draw(q[drafted[-1]], g))
            new = drafted[len(text):]
            text += accept_draft(new, q[drafted[len(text) - 1:-1]], p[drafted[len(text) - 1:]], g)
        counts[tuple(text[1:4])] += 1
    wanted = {t: float(p[0, t[0]] * p[t[0], t[1]] * p[t[1], t[2]])
              for t in itertools.product(range(4), repeat=3)}
    assert chi_square(counts, wanted) < 63 + 4 * math.sqrt(2 * 63)
    biased = {t: float(q[0, t[0]] * q[t[0], t[1]] * q[t[1], t[2]]) for t in wanted}
    # the test could have failed
    assert chi_square(counts, biased) > 500


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


@pytest.mark.parametrize("change, said", [
    (dict(drafted=[3]), "drafted"), (dict(q=torch.tensor([[0., .4, .6]])), "q"), (dict(q=Q), "q"),
    (dict(p=P[:1]), "p"), (dict(drafted=[0, 1]), "p"),
    (dict(p=3 * P), "p"), (dict(p=P - .5), "p"), (dict(q=torch.tensor([[2., 3., 4.]])), "q"),
    (dict(q=torch.tensor([[1.2, .2, -.4]])), "q")])
def test_drafts_that_do_not_fit_are_refused(change, said):
    given_ = dict(drafted=[0], q=Q[None], p=P, g=torch.Generator()) | change
    with pytest.raises(ValueError, match=f"^{said}: "): accept_draft(**given_)


# --- serving --------------------------------------------------------------------------------------

def requests_of(seed: int, n: int = 20) -> list[Request]:
    g = torch.Generator().manual_seed(seed)
    def between(low, high): return int(torch.randint(low, high + 1, (1,), generator=g))
    return [Request(torch.randint(61, (between(1, 9),), generator=g).tolist(), between(1, 25),
                    between(0, 40)) for _ in range(n)]


@pytest.mark.parametrize("policy", sweep([static, continuous], continuous))
@pytest.mark.parametrize("blocks", sweep([100, 14], 14))
def test_every_request_gets_the_answer_that_it_would_get_alone(policy, blocks):
    model = louder(build(SMALL))
    served = Scheduler(CachedCausalLM(model), BlockPool(blocks, 4), 5, policy)
    requests = requests_of(3)
    served.run(requests)
    for r in requests:
        assert (generate(model, torch.tensor([r.prompt]),
                         r.max_new_tokens)[0, len(r.prompt):].tolist() == r.new)
        assert r.steps == sorted(r.steps) and r.steps[0] > r.arrival and len(r.times) == len(r.new)
    assert served.reserved == 0 and not any(served.pool.uses) and max(served.batch_sizes) <= 5


def test_continuous_batches_take_fewer_passes():
    cached = CachedCausalLM(louder(build(SMALL)))
    for seed in range(3):
        passes, waits = {}, {}
        for policy in (static, continuous):
            served, requests = Scheduler(cached, BlockPool(100, 4), 5, policy), requests_of(seed)
            served.run(requests)
            passes[policy], waits[policy] = (served.step_count,
                                             sum(r.steps[0] - r.arrival for r in requests))
        assert passes[continuous] < passes[static] and waits[continuous] < .6 * waits[static]


def test_requests_that_can_never_run_are_refused():
    cached = CachedCausalLM(build(SMALL))
    for wrong, said in ((Request([], 3), "prompt"), (Request([1], 64), "max_new_tokens"),
                        (Request([1], 0), "max_new_tokens"), (Request([1], 3, new=[5]), "requests"),
                        (Request([1] * 9, 30), "max_new_tokens")):
        with pytest.raises(ValueError, match=said):
            Scheduler(cached, BlockPool(8, 4), 2).run([Request([1, 2], 3), wrong])
    with pytest.raises(ValueError, match="max_batch"): Scheduler(cached, BlockPool(8, 4), 0)
    with pytest.raises(ValueError, match="^requests: one of them twice"):
        Scheduler(cached, BlockPool(8, 4), 2).run([Request([1], 3)] * 2)


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
    with pytest.raises(ValueError, match="^pool: BlockPool; expected a PrefixPool"):
        PrefixScheduler(cached, BlockPool(8, 4), 2)
    for change, said in ((dict(eos=61), "eos"), (dict(eos=[]), "eos"),
                         (dict(sampling=.7), "sampling: 0.7")):
        with pytest.raises(ValueError, match=f"^{said}"):
            Scheduler(cached, BlockPool(8, 4), 2).stream([Request([1], 2, **change)])


# --- bad input ------------------------------------------------------------------------------------

def parts(B=2, G=2, T=3, D=4):
    return torch.zeros(B, G, T, D), torch.zeros(B, G, T, D), torch.arange(T).expand(B, -1)


@pytest.mark.parametrize("cache", [lambda: KVCache(8), lambda: RollingCache(4),
                                   lambda: QuantizedCache(8, 8),
                                   lambda: PagedCache(pool := BlockPool(9, 2), 0,
                                           [BlockTable(pool), BlockTable(pool)])])
def test_what_is_no_key_is_refused_by_every_cache(cache):
    k, v, positions = parts()
    for change, said in (((k[0], v, positions), "k"), ((k, v[:, :1], positions), "v"),
                         ((k, v, positions[:, :2]), "positions"),
                         ((k, v, positions.float()), "positions")):
        with pytest.raises(ValueError, match=f"^{said}: "): cache().update(*change)


@pytest.mark.parametrize("cache", [lambda: KVCache(8), lambda: RollingCache(4),
                                   lambda: QuantizedCache(8, 8),
                                   lambda: PagedCache(pool := BlockPool(9, 2), 0,
                                           [BlockTable(pool), BlockTable(pool)])])
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
    for made in (lambda: KVCache(64), lambda: QuantizedCache(64, 8)):
        cache = ModelCache([made(), made()])
        model(ids, cache, real)
        with pytest.raises(ValueError, match="^n: 3, some of them padding"): cache.drop(3)
        assert (cache.lengths.tolist() == [6, 2] and cache.layers[0].update(*parts(2, 2, 1, 6)[:2],
                torch.zeros(2, 1, dtype=torch.long))[0].shape[2] == 7)
        cache = ModelCache([made(), made()])
        model(ids, cache, real)
        cache.drop(2)
        assert cache.lengths.tolist() == [4, 0]


def test_a_full_cache_says_so():
    cache, (k, v, positions) = KVCache(5), parts()
    cache.update(k, v, positions)
    with pytest.raises(ValueError, match="^k: 6 tokens; expected at most max_len, 5"):
        cache.update(k, v, positions)
    with pytest.raises(ValueError, match="^k: 1 rows"):
        cache.update(k[:1, :, :1], v[:1, :, :1], positions[:1, :1])
    with pytest.raises(ValueError, match="^n: 4"): cache.drop(4)
    with pytest.raises(ValueError, match="max_len"): KVCache(0)
    with pytest.raises(ValueError, match="window"): RollingCache(0)
    with pytest.raises(ValueError, match="n_sinks"): RollingCache(3, -1)


PLAIN = build(SMALL)
WITHOUT = {"generate_cached": lambda: generate_cached(PLAIN, IDS[:, :3] % 61, 2),
           "Scheduler": lambda: Scheduler(PLAIN, BlockPool(2, 4), 2),
           "PrefixReader": lambda: PrefixReader(PLAIN),
           "target": lambda: generate_speculative(PLAIN, NGramDraft(61), IDS[:1, :3] % 61, 2)}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_a_cache_is_refused(name):
    with pytest.raises(ValueError,
                       match="^(model|target): CausalLM; expected a CachedCausalLM of it"):
        WITHOUT[name]()


def test_models_that_a_cache_does_not_fit_are_refused():
    config = SMALL
    for kind in ("encoder", "encoder-decoder", "bert"):
        parts = dict(positions="learned") if kind == "bert" else {}
        with pytest.raises(ValueError,
                           match="^model: (Encoder|Transformer|Bert); expected a decoder"):
            CachedCausalLM(build(replace(config, kind=kind, **parts)))
    hybrid = CachedCausalLM(
        build(replace(config, attention="hybrid", options={"mixers": ("attention", "mamba")})))
    with pytest.raises(ValueError, match="^model: with a layer Mamba; expected attention in each "
                                         "layer .*CachedHybridLM"):
        hybrid.new_cache()


@pytest.mark.parametrize("sampling", [None, SamplingConfig(top_k=3)])
def test_weights_that_are_nan_are_never_taken_for_a_text(sampling):
    "Greedy decoding chose token 0 for ever."
    model, ids = build(SMALL), IDS[:1, :5] % 61
    with torch.no_grad(): model.stack.blocks[0].feed_forward.inner.up.weight[0, 0] = math.nan
    cached = CachedCausalLM(model)
    ways = [lambda: generate(model, ids, 3, sampling),
            lambda: generate_cached(cached, ids, 3, sampling),
            lambda: generate_speculative(cached, NGramDraft(61), ids, 3, sampling=sampling)]
    if sampling is None:
        ways.append(lambda: Scheduler(cached, BlockPool(9, 4), 2).run([Request([1, 2], 3)]))
    for way in ways:
        with pytest.raises(ValueError, match="^(logits|p): .*; expected "): way()


def test_prompts_that_do_not_fit_are_refused():
    model, ids = CachedCausalLM(build(SMALL)), torch.zeros(2, 5, dtype=torch.long)
    for given_, said in ((dict(max_new_tokens=-1), "max_new_tokens"),
                         (dict(max_new_tokens=60), "max_new_tokens"),
                         (dict(max_new_tokens=1, ids=ids[0]), "ids"),
                         (dict(max_new_tokens=1,
                               padding_mask=torch.tensor([[True] * 4 + [False]] * 2)),
                          "padding_mask"), (dict(max_new_tokens=1, eos=61), "eos"),
                         (dict(max_new_tokens=1, eos=[]), "eos")):
        with pytest.raises(ValueError, match=said):
            generate_cached(**dict(model=model, ids=ids) | given_)
    with pytest.raises(ValueError, match="cache"): model(ids, ModelCache([KVCache(8)]))
    with pytest.raises(ValueError, match="padding_mask"):
        model(ids, model.new_cache(), torch.ones(2, 5))
    with pytest.raises(ValueError, match="n_sinks"): CachedCausalLM(build(SMALL), n_sinks=3)
    with pytest.raises(ValueError, match="window"): CachedCausalLM(build(LATENT), window=3)
    with pytest.raises(ValueError, match="^window: 0"): CachedCausalLM(build(SMALL), window=0)
    for rows in (1, 3):
        cache = model.new_cache()
        model(ids, cache)
        with pytest.raises(ValueError, match=f"^ids: {rows} rows; expected 2"):
            model(torch.zeros(rows, 1, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="^ids: 2 rows"):
        generate_speculative(model, NGramDraft(61), ids, 3)
    cache = model.new_cache()
    model(torch.zeros(1, 60, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="positions"): model(ids[:1], cache)
    assert cache.lengths.tolist() == [60]


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


def test_cached_attention_alone():
    "One layer, without a model: MultiHeadAttention takes a cache as a keyword argument."
    layer, x = MultiHeadAttention(12, 3), torch.randn(2, 7, 12)
    wanted = copy.deepcopy(layer)(x, mask=causal_mask(7, 7))[0]
    layer.attention_fn, cache = CachedAttention(attention), KVCache(9)
    found = [layer(x[:, t:t + 1], positions=torch.full((2, 1), t), length=t + 1, cache=cache)[0]
             for t in range(7)]
    torch.testing.assert_close(torch.cat(found, 1), wanted)


# --- the figure -----------------------------------------------------------------------------------

def in_node(tmp_path, program: str, given_: list):
    if shutil.which("node") is None: pytest.skip("needs node")
    (tmp_path / "blocks.mjs").write_text((ASSETS / "paged_blocks.js").read_text())
    (tmp_path / "run.mjs").write_text(
        'import * as script from "./blocks.mjs"; import fs from "fs"; const given = '
        f'JSON.parse(fs.readFileSync(0)); console.log(JSON.stringify({program}));')
    return json.loads(subprocess.run(["node", str(tmp_path / "run.mjs")], input=json.dumps(given_),
                                     capture_output=True, text=True, check=True).stdout)


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
    found = in_node(tmp_path, "given.map(([state, i, end]) => { const made = script.reserve(state, "
                              "i, end); return made && { tables: made.tables, lengths: "
                              "made.lengths }; })", cases)
    assert found == wanted and any(w and w["tables"] for w in wanted)


def test_the_still_picture_shows_tables():
    made = PagedCacheView("a pool of eight blocks", tables=[[0, 1], [0, 2]], lengths=[6, 5])
    assert ">A: 6<" in made.picture() and made.picture().count("<rect") == 8
