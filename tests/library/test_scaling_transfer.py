"""The maximal-update parametrisation of decoders, its record, and published laws that are
computed again."""
import json

import pytest
import torch

from bench import scaling_width
from bench.__main__ import RECORDS
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.decoders import gpt2
from tfmlib.scaling_laws import (
    best_bits,
    effective_fraction,
    fine_grained_best,
    fine_grained_loss,
    fit_mixture,
    head_width,
    mup_factors,
    mup_groups,
    mup_init,
)
from tfmlib.workbench import parse_record

READS = ("chapters/depth/14_scaling_laws_transfer",)


def decoder(width: int = 32, heads: int = 2, **how):
    return build(ModelConfig("decoder", 40, width, 2, heads, 16, **MODERN | how))


def test_at_the_base_width_nothing_changes():
    model, plain = decoder(), decoder()
    assert all(torch.equal(a, b)
               for a, b in zip(mup_init(model, 32).parameters(), plain.parameters()))
    assert ({(group["lr"], group["weight_decay"]) for group in mup_groups(model, 32, 0.01, 0.2)}
            == {(0.01, 0.2), (0.01, 0.)})


@pytest.mark.parametrize("model, expected", [
    (decoder(), {"embedding.weight": (2., 1.), "stack.norm.weight": (.25, .25),
                 "stack.blocks.0.attention.norm.weight": (1., 1.),
                 "stack.blocks.1.attention.inner.q_proj.weight": (1., .25)}),
    (decoder(tie_embeddings=False), {"embedding.weight": (2., 1.), "stack.norm.weight": (1., 1.),
                                     "lm_head.weight": (.5, .25),
                                     "stack.blocks.1.feed_forward.inner.down.weight": (1., .25)}),
    (gpt2(40, 32, 1, 2, 16),
     {"stack.norm.bias": (.25, .25), "stack.blocks.0.attention.inner.q_proj.bias": (1., 1.),
      "stack.blocks.0.feed_forward.inner.up.weight": (1., .25)}),
], ids=["tied", "untied", "GPT-2"])
def test_each_kind_of_parameter_has_its_factors(model, expected):
    factors = mup_factors(model, 8)
    assert {name: factors[name] for name in expected} == expected
    assert all(rate == 1. for name, (_, rate) in factors.items()
               if name.startswith(("embedding", "positional")))


def test_wider_heads_get_smaller_queries():
    model = decoder(heads=1)
    assert (head_width(model) == 32
            and mup_factors(model, 16, head=8)["stack.blocks.0.attention.inner.q_proj.weight"]
            == (.5, .25))
    changed = {name for name, factors in mup_factors(model, 16, head=8).items() if factors
               != mup_factors(model, 16)[name]}
    assert changed == {f"stack.blocks.{i}.attention.inner.q_proj.weight" for i in range(2)}


def test_every_parameter_is_in_one_group_and_decays_as_much_at_every_width():
    model = decoder()
    groups = mup_groups(model, 8, 0.01, 0.1)
    assert (sorted(id(p) for group in groups for p in group["params"])
            == sorted(map(id, model.parameters())))
    assert all(group["lr"] * group["weight_decay"] == pytest.approx(0.001) for group in groups
               if group["params"][0].ndim > 1)
    assert all(group["weight_decay"] == 0 for group in groups if group["params"][0].ndim == 1)


@pytest.mark.parametrize("base", [0, -8, 1.5, "8"])
def test_a_base_that_is_no_width_is_refused(base):
    with pytest.raises(ValueError, match="base"): mup_factors(decoder(), base)


def test_the_record_of_widths_is_made_once_for_the_base(monkeypatch, tmp_path):
    for name, value in {"BASE": 8, "HEAD": 4, "LENGTH": 8, "STEPS": 4, "WARM": 1, "HELD": 4,
                        "WIDTHS": (8, 16), "RATES": (0.004, 0.008, 0.016), "SEEDS": 2}.items():
        monkeypatch.setattr(scaling_width, name, value)
    monkeypatch.setattr(scaling_width.RUNS, "path", tmp_path / "scaling_width.jsonl")
    monkeypatch.setattr(scaling_width, "climbed",
                        lambda loss, rates: [loss(rate) for rate in rates])
    scaling_width.text.cache_clear()
    rows = list(scaling_width.measure(0))
    scaling_width.text.cache_clear()
    # of the base width only once
    assert len(scaling_width.RUNS.found()) == 3 * 3 * 2
    best = {(row["way"], row["C"]): row["rate"]["each"] for row in rows if row["what"]
            == "best rate"}
    assert (len(best) == 4 and best["standard", 8] == best["maximal update", 8]
            and all(len(each) == 2 for each in best.values()))
    facts = json.loads((RECORDS / "attention_cost.json").read_text()) | {"name": "scaling_width"}
    assert len(parse_record(json.dumps(facts | {"rows": rows})).rows) == len(rows)


# --- published laws -------------------------------------------------------------------------------

def test_few_bits_are_worth_nothing_and_many_everything():
    assert float(effective_fraction(1)) == 0. and float(effective_fraction(64)) == pytest.approx(1)
    assert (best_bits(gammas=(3., 3., 3.), offsets=(0., 0., 0.))
            == pytest.approx(3 * 1.9038, abs=2e-3))


def test_the_best_size_has_the_least_loss():
    loss, used, D = fine_grained_best(1e20, 8)
    for factor in (0.8, 1.25):
        w = 64 * (factor * used / (12 * 64**2)) ** (1 / 3)
        tokens = 1e20 / ((72 * w**2 + 14 * w * 64 * 8) * w / 64)
        assert float(fine_grained_loss(516 * w**2 * w / 64, tokens, 8)) > loss
    assert D == pytest.approx(1e20 / (6 * used), rel=0.2)


@pytest.mark.parametrize("c, k, t", [(1., 0.5, -2.), (3., 0.04, 2.6)])
def test_a_mixture_law_is_found_again(c, k, t):
    share = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    assert fit_mixture(share, c + k * (t * share).exp()) == pytest.approx((c, k, t))


@pytest.mark.parametrize("share, loss", [([0.1, 0.9], [1., 2.]), ([0.1, 0.5, 0.9], [1., 2.])])
def test_a_mixture_needs_as_many_losses_as_shares(share, loss):
    with pytest.raises(ValueError, match="loss"): fit_mixture(share, loss)
