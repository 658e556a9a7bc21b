"""Adapters, distillation, preferences and rewards: the formulas, and that the recorded
comparison is fair."""
import math

import pytest
import torch
from refusing import refuses
from torch import nn

import bench.adapting as adapting
from bench.instructions import COPY, DIGITS, REVERSE, SORT, answered, questions
from tfmlib.decoders import (
    LowRank,
    add_adapters,
    answer_log_probabilities,
    distillation_loss,
    gpt2,
    group_advantages,
    llama,
    merge_adapters,
    policy_loss,
    preference_loss,
)
from tfmlib.workbench import parameter_groups, seeded

IDS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("made", [lambda: llama(11, 16, 2, 4, 8, 2), lambda: gpt2(11, 16, 2, 4, 8)])
def test_adapters_change_nothing_at_first_and_leave_nothing_behind(made):
    model = made()
    names, before = list(model.state_dict()), model(IDS)
    add_adapters(model, 2)
    assert torch.equal(model(IDS), before)
    trained = {name for group in parameter_groups(model) for name in group.parameters}
    assert trained and all(name.endswith((".A", ".B")) for name in trained)
    for name, p in model.named_parameters():
        if name in trained: nn.init.normal_(p, std=.3, generator=seeded(len(name)))
    adapted = model(IDS)
    assert not torch.allclose(adapted, before, atol=.01)
    assert torch.allclose(merge_adapters(model)(IDS), adapted, atol=1e-5)
    assert list(model.state_dict()) == names and all(p.requires_grad for p in model.parameters())


def test_two_adapters_do_not_begin_alike():
    model = add_adapters(llama(11, 16, 2, 4, 8), 2)
    first, second = (m.A for m in (model.stack.blocks[0].attention.inner.q_proj,
                                   model.stack.blocks[1].attention.inner.q_proj))
    assert not torch.equal(first, second)


def test_an_adapter_keeps_bias_and_number_type():
    layer = LowRank(nn.Linear(4, 3).double(), 2)
    assert (layer.A.dtype == layer.B.dtype == torch.float64
            and (layer.in_features, layer.out_features) == (4, 3))
    assert torch.equal(layer(torch.zeros(1, 4).double())[0], layer.linear.bias)


@pytest.mark.parametrize("wrong, name", [
    (lambda: LowRank(nn.Linear(2, 2), 0), "rank"), (lambda: add_adapters(nn.ReLU(), 1), "layers"),
    (lambda: merge_adapters(nn.Linear(2, 2)), "model"),
    (lambda: distillation_loss(torch.ones(2), torch.ones(3)), "teacher_logits"),
    (lambda: distillation_loss(torch.ones(2), torch.ones(2), 0.), "temperature"),
    (lambda: preference_loss(*[torch.ones(n) for n in (2, 2, 2, 3)]), "log-probabilities"),
    (lambda: preference_loss(*[torch.ones(2)] * 4, beta=0.), "beta"),
    (lambda: group_advantages(torch.ones(3, 1)), "rewards"),
    (lambda: policy_loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), "shapes")])
def test_what_does_not_fit_is_refused_by_name(wrong, name):
    refuses(f"^{name}:", wrong)


def test_the_teacher_gets_no_gradient_and_equal_logits_no_loss():
    z, t = torch.randn(2, 3, 5, generator=seeded(1)).unbind(0)
    z, t = z.requires_grad_(), t.requires_grad_()
    distillation_loss(z, t, 2.).sum().backward()
    assert t.grad is None and z.grad.abs().sum() > 0
    assert distillation_loss(t, t + 3, 2.).abs().max() < 1e-6


def test_only_the_answers_count():
    model, mask = llama(11, 16, 1, 4, 8), torch.arange(7).expand(3, 7) > 3
    found = answer_log_probabilities(model, IDS, mask)
    logs = model(IDS[:, :-1]).log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]
    assert torch.allclose(found, logs * mask[:, 1:], atol=1e-6) and (found[:, :3] == 0).all()


def test_the_loss_of_a_pair_is_that_of_the_formula():
    logs = torch.tensor([[-1., -2.], [-3., -1.], [-2., -2.], [-1., -4.]])
    gains = (logs[0] - logs[2]) - (logs[1] - logs[3])
    wanted = [math.log1p(math.exp(-.3 * g)) for g in gains.tolist()]
    assert torch.allclose(preference_loss(*logs, .3), torch.tensor(wanted))


def test_a_group_of_equals_teaches_nothing_and_signs_are_as_they_should():
    found = group_advantages(torch.tensor([[1., 1., 1.], [0., 1., 0.]]))
    assert (found[0] == 0).all() and found[1, 1] > 0 > found[1, 0] and found[1].sum().abs() < 1e-5


def test_the_old_probabilities_get_no_gradient():
    now, old = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    policy_loss(now, old, torch.tensor([1., -2.])).sum().backward()
    assert old.grad is None and torch.equal(now.grad, torch.tensor([[-1.] * 3, [2.] * 3]))


# --- the recorded comparison ----------------------------------------------------------------------

def test_a_check_accepts_right_answers_only():
    tokens = answered(questions(50, seeded(3)))[0]
    assert adapting.checked(tokens).all()
    changed = tokens.clone()
    changed[:, DIGITS + 3] = (changed[:, DIGITS + 3] + 1) % 10
    assert not adapting.checked(changed).any()


def test_sort_gets_another_meaning_and_nothing_else_does():
    tokens = answered(questions(100, seeded(4)))[0]
    changed = adapting.descending(tokens)
    sorts = tokens[:, 0] == SORT
    assert torch.equal(changed[~sorts], tokens[~sorts])
    given = changed[sorts][:, DIGITS + 2:-1]
    assert ((given.diff(dim=1) <= 0).all() and torch.equal(given.sort(1).values,
            tokens[sorts][:, 1:DIGITS + 1].sort(1).values))


def test_what_validates_does_not_test_and_neither_is_learned():
    validated, tested = (adapting.held(0, purpose) for purpose in (2, 3))
    assert not torch.equal(validated, tested) and len(validated) == len(tested) == adapting.TESTED
    learned = {tuple(row) for row in questions(2_000, seeded(0, 1, 0)).tolist()}
    assert not learned & {tuple(row[:DIGITS + 1])
                          for row in [*validated.tolist(), *tested.tolist()]}
    assert set(adapting.held(0, 3, (COPY, REVERSE))[:, 0].tolist()) == {COPY, REVERSE}
