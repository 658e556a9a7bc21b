"""Attention with a sink and attention with a gate, against their definitions; and the benchmark
of heads that have nothing to fetch."""
import math

import pytest
import torch
from refusing import refuses

from bench import sinks_real, sinks_small
from tfmlib.attention import GatedAttention, SinkAttention, causal_mask, softmax_with_sink
from tfmlib.decoders import llama
from tfmlib.heads import MultiHeadAttention, attention_weights, grouped_query_attention
from tfmlib.workbench import seeded


def drawn(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1, 1e4])
@pytest.mark.parametrize("sink", [-1e4, -3., 0., 5., 1e4])
def test_a_sink_is_one_more_column(scale, sink):
    s, c = (scale * drawn(2, 3, 4, 6),
            torch.tensor([[[sink]], [[1.]], [[sink]]], dtype=torch.float64))
    bias = drawn(4, 6, seed=1)
    for mask, scores in ((None, s),
                         (causal_mask(4, 6), s.masked_fill(~causal_mask(4, 6), -math.inf)),
                         (bias, s + bias)):
        wanted = torch.cat([scores, c.expand(2, 3, 4, 1)], -1).softmax(-1)[..., :-1]
        assert torch.allclose(softmax_with_sink(s, c, mask), wanted, atol=1e-12)


def test_a_row_that_sees_nothing_gives_zeros_and_finite_gradients():
    s, c = drawn(3, 4).requires_grad_(), torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    w = softmax_with_sink(s, c, torch.tensor([[True], [False], [True]]).expand(3, 4))
    w.square().sum().backward()
    assert (torch.equal(w[1], torch.zeros(4, dtype=torch.float64)) and s.grad.isfinite().all()
            and c.grad.isfinite().all())
    refuses("mask", softmax_with_sink, s, c, torch.ones(3, 5, dtype=torch.bool))


def test_heads_that_share_keys_have_sinks_of_their_own():
    fn, q, k, v = (SinkAttention(4).double(), drawn(2, 4, 5, 6), drawn(2, 2, 7, 6, seed=1),
                   drawn(2, 2, 7, 3, seed=2))
    fn.sinks.data = drawn(4, seed=3)
    out, w = fn(q, k, v, causal_mask(5, 7))
    for h in range(4):
        one = SinkAttention(1).double()
        one.sinks.data = fn.sinks.data[h:h + 1]
        wanted, shown = one(q[:, h:h + 1], k[:, h // 2:h // 2 + 1], v[:, h // 2:h // 2 + 1],
                            causal_mask(5, 7))
        assert torch.allclose(out[:, h:h + 1], wanted) and torch.allclose(w[:, h:h + 1], shown)
    fn.sinks.data.fill_(-1e3)
    assert torch.allclose(fn(q, k, v)[0], grouped_query_attention(q, k, v)[0])
    assert [p.requires_grad for p in SinkAttention(2, learned=False).parameters()] == [False]
    refuses("q: 4 heads", SinkAttention(3), q, k, v)


@pytest.mark.parametrize("per_head", [True, False])
def test_a_gate_scales_heads_before_they_are_merged(per_head):
    layer, x, memory = (GatedAttention(8, 4, 2, head_dim=3, memory_dim=5, bias=True,
                                       per_head=per_head).double(), drawn(2, 6, 8),
                        drawn(2, 7, 5, seed=1))
    out, shown = layer(x, memory)
    plain = MultiHeadAttention(8, 4, 2, head_dim=3, memory_dim=5, bias=True).double()
    plain.load_state_dict({name: p for name, p in layer.state_dict().items()
                           if not name.startswith("gate")})
    # (B, T, H · D)
    heads = layer.attention_fn(layer.project_q(x), *layer.project_kv(memory))[0].transpose(1,
            2).flatten(2)
    gate = (x @ layer.gate_proj.weight.T).sigmoid()
    wanted = layer.o_proj(heads * (gate.repeat_interleave(3, -1) if per_head else gate))
    assert (shown is None and torch.allclose(out, wanted)
            and not torch.allclose(out, plain(x, memory)[0]))
    with attention_weights(): assert layer(x, memory)[1].shape == (2, 4, 6, 7)
    assert layer.gate_proj.weight.numel() == 8 * (4 if per_head else 12)


# --- the benchmarks -------------------------------------------------------------------------------

def test_after_a_trigger_the_symbol_before_it_comes_again():
    ids, n = sinks_small.rows(64, 5), sinks_small.TRIGGERS
    asks = ids[:, 1:-1] < n
    assert ((ids[:, 0] == sinks_small.SYMBOLS).all() and (ids[:, 1:] < sinks_small.SYMBOLS).all()
            and not (asks[:, 1:] & asks[:, :-1]).any())
    assert (torch.equal(ids[:, 2:][asks], ids[:, :-2][asks]) and 0.05
            < float(asks.double().mean()) < 0.15)
    table = sinks_small.chain()
    assert torch.allclose(table.sum(-1), torch.ones(len(table))) and not table[:n, :n].any()


def test_what_is_hidden_is_hidden_from_the_queries_that_count():
    "The queries before see it; the model is as it was afterwards."
    model, ids = (llama(200, 36, 2, 9, 300, 3, 48).eval(),
                  torch.randint(17, 200, (2, sinks_real.T + 1), generator=seeded(0)))
    weights, intact = sinks_real.read(model, ids)
    for at in (0, 16):
        with sinks_real.changed(model, sinks_real.hidden(at)):
            gone, _ = sinks_real.read(model, ids)
            early = model(ids[:, :sinks_real.FROM])
        assert (torch.equal(early, model(ids[:, :sinks_real.FROM])) and bool((gone == 0).all())
                == (at == 0))
        with sinks_real.changed(model, sinks_real.without_value(at)):
            kept, lost = sinks_real.read(model, ids)
        assert torch.allclose(kept[:, 0], weights[:, 0]) and lost != intact
    assert sinks_real.read(model, ids)[1] == intact
