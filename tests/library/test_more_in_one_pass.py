"""Drafts from hidden states against the model's own probabilities; trees, chunks and separate
workers against one request at a time, and against the schedulers' counts."""
import itertools
import math
from collections import Counter

import pytest
import torch
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import SamplingConfig, generate
from tfmlib.kv_cache import CachedCausalLM
from tfmlib.kv_cache.ahead import (
    CausalLMWithStates,
    EagleDraft,
    MedusaDraft,
    MedusaHeads,
    NextState,
    eagle_loss,
    medusa_loss,
    multi_token_loss,
    tree_mask,
)
from tfmlib.kv_cache.batching import Request, Scheduler
from tfmlib.kv_cache.mixed import (
    Arrival,
    ChunkedScheduler,
    latencies,
    poisson_arrivals,
    prompts_first,
    prompts_in_chunks,
    serve_apart,
    serve_arrivals,
)
from tfmlib.kv_cache.paged import BlockPool
from tfmlib.kv_cache.speculative import generate_speculative

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ModelConfig("decoder", 61, 24, 2, 4, 64, n_kv_heads=2, d_ff=28, **MODERN)
TINY = ModelConfig("decoder", 4, 8, 1, 2, 16, d_ff=8, **MODERN)


def louder(module: nn.Module, seed: int = 0) -> nn.Module:
    "Weights so large that every part shows."
    g = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.data = (.5 * torch.randn(p.shape, generator=g)).to(p) if p.ndim > 1 else p.data
    return module.eval()


def drafts(kind: str, model, sampling=None):
    target = CausalLMWithStates(model)
    config = SMALL if model.d_model == 24 else TINY
    if kind == "Medusa":
        return target, MedusaDraft(target, louder(MedusaHeads(model, 3), 1), sampling)
    return target, EagleDraft(target, louder(NextState(config, kind == "module"), 1), sampling)


@pytest.mark.parametrize("kind", ["Medusa", "EAGLE", "module"])
@pytest.mark.parametrize("K", sweep([1, 3, 5], 3))
def test_greedy_text_is_the_models_own(kind, K):
    model = louder(build(SMALL))
    target, draft = drafts(kind, model)
    for ids in (torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[2]])):
        found = generate_speculative(target, draft, ids, 20, K)
        assert torch.equal(found.ids, generate(model, ids, 20))
        # before the first pass there are no states
        assert (found.drafted[0] == 0 and max(found.drafted)
                == (min(K, 3) if kind == "Medusa" else K))


# the page enumerates all texts
@pytest.mark.parametrize("kind", sweep(["Medusa", "EAGLE", "module"]))
def test_counts_are_the_models_probabilities(kind):
    model, sampling, ids = louder(build(TINY)), SamplingConfig(.8), torch.tensor([[1, 2, 1]])
    target, draft = drafts(kind, model, sampling)
    counts, n = Counter(), 300
    for seed in range(n):
        counts[tuple(generate_speculative(target, draft, ids, 3, 2, sampling,
                                          seed).ids[0, 4:].tolist())] += 1
    wanted = Counter()
    with torch.no_grad():
        for a, b, c in itertools.product(range(4), repeat=3):
            p = (model(torch.tensor([[1, 2, 1, a, b, c]])) / .8).softmax(-1)[0]
            wanted[b, c] += float(p[2, a] * p[3, b] * p[4, c])
    assert (sum((counts[key] - n * p) ** 2 / (n * p) for key, p in wanted.items()) < 15 + 4
            * math.sqrt(30))


def test_states_are_those_of_a_full_pass_after_any_drops():
    model = louder(build(SMALL)).double()
    target = CausalLMWithStates(model)
    cache, text = target.new_cache(), []
    for new, drop in (([1, 2, 3, 4], 0), ([5, 6], 2), ([7, 8, 9], 4), ([1], 1), ([2, 2], 0)):
        text += new
        with torch.no_grad(): target(torch.tensor([new]), cache)
        cache.drop(drop)
        text = text[:len(text) - drop]
        assert torch.allclose(target.states_of(text),
                              model.hidden_states(torch.tensor([text]))[0][0])
    assert target.states_of([9, *text[1:]]) is None and target.states_of([]) is None
    with pytest.raises(ValueError, match="ids"):
        target(torch.zeros(2, 3, dtype=torch.long), target.new_cache())
    with pytest.raises(ValueError, match="target"): MedusaDraft(CachedCausalLM(model), None)


def test_losses_look_at_the_right_tokens():
    """A head that knows the answer has no loss; each loss reaches what learns, and no state sees
    what comes after it."""
    model, ids = louder(build(TINY)).double(), torch.tensor([[0, 3, 1, 2, 2, 0, 1]])
    states = model.hidden_states(ids)[0].detach()

    class Knows(nn.Module):
        def forward(self, x):
            return torch.stack([1e3 * torch.nn.functional.one_hot(ids.roll(-1 - k, 1), 4).double()
                                for k in (1, 2)], 2)
    assert float(medusa_loss(Knows(), states, ids)) == 0
    heads, module = MedusaHeads(model, 2).double(), NextState(TINY, normed=True).double()
    torch.testing.assert_close(heads(states)[:, :, 1], model.logits(states))
    for loss, learns in ((medusa_loss(heads, states, ids), heads),
                         (eagle_loss(module, model, states, ids), module),
                         (multi_token_loss(model, [module], ids), module)):
        grads = torch.autograd.grad(loss, [*learns.parameters()], allow_unused=True)
        assert all(g is not None and g.isfinite().all() for g in grads)
    embedded = model.embed(ids[:, 1:]).detach().requires_grad_(True)
    module(states[:, :-1], embedded)[0, 3].sum().backward()
    assert embedded.grad[0, 3].any() and not embedded.grad[0, 4:].any()
    torch.testing.assert_close(multi_token_loss(model, [module], ids, 0.),
                               multi_token_loss(model, [], ids))


def test_candidates_see_their_ancestors():
    assert (tree_mask([-1, 0, 1, 0]).tolist()
            == [[True, False, False, False], [True, True, False, False], [True, True, True, False],
                [True, False, False, True]])
    for parents in ([0], [-1, 2, 1], [-2]):
        with pytest.raises(ValueError, match="parents"): tree_mask(parents)


# --- prompts beside answers -----------------------------------------------------------------------

def requests_of(seed: int, n: int = 14) -> list[Request]:
    g = torch.Generator().manual_seed(seed)
    def between(low, high): return int(torch.randint(low, high + 1, (1,), generator=g))
    return [Request(torch.randint(61, (between(1, 30),), generator=g).tolist(), between(1, 15),
                    between(0, 30), seed=i,
                    sampling=SamplingConfig(1.5) if i % 3 == 0 else None) for i in range(n)]


@pytest.mark.parametrize("budget", sweep([4, 7, 30], 7))
def test_chunks_change_no_answer_and_keep_their_budget(budget):
    model, sizes = CachedCausalLM(louder(build(SMALL))), []
    whole, chunked = requests_of(5), requests_of(5)
    Scheduler(model, BlockPool(100, 4), 4).run(whole)
    scheduler = ChunkedScheduler(model, BlockPool(60, 4), 4, budget)
    read = scheduler.read
    def watched(requests, texts):
        sizes.append(sum(map(len, texts)))
        return read(requests, texts)
    scheduler.read = watched
    scheduler.run(chunked)
    assert [r.new for r in chunked] == [r.new for r in whole] and max(sizes) == budget
    assert sum(sizes) == sum(len(r.prompt) + len(r.new) - 1 for r in chunked)
    assert scheduler.reserved == 0 and not any(scheduler.pool.uses)
    with pytest.raises(ValueError, match="budget"): ChunkedScheduler(model, BlockPool(9, 4), 4, 3)


@settings(max_examples=often(30), deadline=None)
@given(seed=st.integers(0, 10**6), slots=st.integers(1, 5),
       extra=st.one_of(st.none(), st.integers(0, 20)))
def test_the_simulation_counts_what_the_schedulers_count(seed, slots, extra):
    requests, rule = (requests_of(seed, 7), prompts_first if extra is None
                      else prompts_in_chunks(slots + extra))
    model, pool = CachedCausalLM(build(TINY.sized(61, 8, 1, 2, 64))), BlockPool(200, 4)
    scheduler = (Scheduler(model, pool, slots) if extra is None
                 else ChunkedScheduler(model, pool, slots, slots + extra))
    scheduler.run(requests)
    made = [Arrival(r.arrival, len(r.prompt), r.max_new_tokens) for r in requests]
    sizes = serve_arrivals(made, rule, lambda n: 1., slots)
    assert [a.times for a in made] == [r.steps for r in requests]
    assert sum(sizes) == sum(a.prompt + a.new - 1 for a in made)


def test_two_workers_by_hand():
    made = [Arrival(0., 4, 3), Arrival(1., 6, 2), Arrival(2., 1, 1)]
    read, written = serve_apart(made, lambda n: float(n), lambda n: .5 * n)
    assert read == [4, 6, 1] and sum(written) == 3
    # read at 4, moved by 6; read at 10, moved by 13
    assert [r.times for r in made] == [[4., 7., 8.], [10., 14.], [11.]]
    assert latencies(made) == ([4., 9., 9.], [3., 1., 4.])


def test_arrivals_are_random_and_come_again():
    made = poisson_arrivals(4_000, 10., 3, {5: .8, 40: .2}, 20)
    assert made == poisson_arrivals(4_000, 10., 3, {5: .8, 40: .2}, 20) and made[0].times == []
    assert (made[-1].at == pytest.approx(400, rel=.07) and sum(r.prompt == 40 for r in made)
            == pytest.approx(800, rel=.15))
    assert (sum(r.new for r in made) / 4_000 == pytest.approx(20, rel=.07)
            and min(r.new for r in made) == 1)
