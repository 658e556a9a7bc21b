"""Chapter 21's measurements: models of equal size, a bias that settles, limits that drop, runs
that are kept, and the baselines of what experts depend on."""
import pytest
import torch

from bench import expert_facts, expert_text, size
from tfmlib.checkpoints import build
from tfmlib.mixture_of_experts.balancing import BiasedRouting
from tfmlib.mixture_of_experts.models import total_and_active

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("models", "dense", "several"), [
    (expert_facts.KINDS, "dense", [k for k in expert_facts.KINDS if "experts" in k]),
    (expert_text.MODELS, "dense", [k for k in expert_text.MODELS if " of " in k])])
def test_experts_use_as_much_as_the_dense_model_and_hold_as_much_as_the_wide_one(models,
        dense, several):
    made = {name: build(config) for name, config in models.items()}
    for name in several:
        routers = sum(p.numel() for n, p in made[name].named_parameters() if ".router." in n)
        assert total_and_active(models[name])[1] - routers == size(made[dense]), name
        assert size(made[name]) - routers == size(made["wide"]), name


def biases(model) -> list:
    return [m.bias.clone() for m in model.modules() if isinstance(m, BiasedRouting)]


def test_only_the_case_of_the_bias_moves_it_and_its_steps_end_at_zero(monkeypatch):
    monkeypatch.setattr(expert_text, "WARM", 1)
    still, moved = (biases(expert_text.trained(case, .004, 0, 4))
                    for case in ("2 of 16, sigmoid", "2 of 16, bias"))
    assert len(moved) == 2 and all((b == 0).all() for b in still)
    # four steps, each smaller than the one before
    most = expert_text.BIAS * (1 + .75 + .5 + .25)
    assert all(0 < b.abs().max() <= most * (1 + 1e-5) for b in moved)


@torch.no_grad()
def test_penalties_and_limits_do_what_a_case_says():
    model, (words, _) = build(expert_text.MODELS["1 of 8"], seed=0), expert_text.corpus(0, 4)
    plain, balanced, both = (float(expert_text.loss_of(model, words, 0., weights))
                             for weights in ((0., 0.), (1., 0.), (1., 1.)))
    # the balancing loss of an even load is 1
    assert plain + .9 < balanced < both
    expert_text.limit(model, 1.)
    limited = float(expert_text.loss_of(model, words, 0., (1., 0.)))
    unlimited = float(expert_text.loss_of(model, words, 0., (0., 0.)))
    # loads are those before dropping
    assert limited - unlimited == pytest.approx(balanced - plain, abs=.02)
    expert_text.limit(model, None)
    assert float(expert_text.loss_of(model, words, 0., (0., 0.))) == pytest.approx(plain, rel=1e-6)


def test_what_a_run_of_text_gives(monkeypatch):
    monkeypatch.setattr(expert_text, "WARM", 1)
    corpus = expert_text.corpus
    monkeypatch.setattr(expert_text, "corpus", lambda part, n: corpus(part, min(n, 60)))
    found = expert_text.judged("1 of 8, capacity 1",
                               expert_text.trained("1 of 8, capacity 1", .004, 0, 3), 2)
    # 1.1 nats is the entropy if the topic is known
    assert 0 < found["dropped"] < 1 and found["loss"] > 1.1 and found["busiest, layer 1"] >= 1
    for layer in (1, 2):
        tells = {name: found[f"tells, {name}, layer {layer}"]
                 for name in ("word", "word, shuffled", "topic", "position", "position, shuffled")}
        assert (all(0 <= share <= 1 for share in tells.values()) and tells["word"] > 2
                * tells["word, shuffled"])
