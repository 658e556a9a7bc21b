"""Hooks that read and change a model's states, probes, and ablations of heads, against
computations that use none of them."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tfmlib.heads import MultiHeadAttention
from tfmlib.inside import ablated, captured, class_subspace, fit_probe, logit_lens, replaced


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.fixture
def heads():
    torch.manual_seed(1)
    return MultiHeadAttention(12, 3).double(), torch.randn(4, 5, 12, dtype=torch.float64)


def test_the_lens_is_the_norm_and_the_unembedding():
    state, U = torch.randn(2, 3, 4), torch.randn(4, 7)
    torch.testing.assert_close(logit_lens(state, lambda x: 2 * x, lambda x: x @ U), 2 * state @ U)


def test_outputs_and_inputs_are_captured_in_the_order_of_the_calls(net):
    x, y = torch.randn(2, 5, 3, dtype=torch.float64).unbind()
    with captured(net[0], net[1]) as kept, captured(net[2], inputs=True) as given: net(x), net(y)
    assert len(kept) == 4 and len(given) == 2
    for i, t in enumerate((x, y)):
        torch.testing.assert_close(kept[2 * i], net[0](t))
        torch.testing.assert_close(kept[2 * i + 1], net[0](t).tanh())
        torch.testing.assert_close(given[i], net[0](t).tanh())
    net(x)
    # closed: nothing more is recorded
    assert len(kept) == 4


def test_an_output_is_replaced_while_open_and_gradients_flow_through_the_change(net):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    before = net(x)
    with replaced(net[1], lambda h: h.clone().index_fill(-1, torch.tensor([0]), 0)):
        changed = net(x)
    by_hand = net[0](x).tanh()[:, 1:] @ net[2].weight[:, 1:].T + net[2].bias
    torch.testing.assert_close(changed, by_hand)
    assert changed.sum().requires_grad and torch.equal(net(x), before)


def test_of_a_tuple_the_first_part_is_captured_and_replaced(heads):
    layer, x = heads
    with captured(layer) as kept: out, weights = layer(x)
    assert kept[0] is out
    with replaced(layer, torch.zeros_like): zero, same = layer(x)
    assert not zero.any() and (same is None) == (weights is None)


def test_hooks_are_taken_off_when_something_fails(net, heads):
    layer, x = heads
    for opened in (captured(net[0]), replaced(net[0], lambda h: h), ablated(layer, [0])):
        with pytest.raises(RuntimeError, match="stop"), opened: raise RuntimeError("stop")
    assert not any(m._forward_hooks or m._forward_pre_hooks
                   for m in (*net.modules(), *layer.modules()))


@pytest.mark.parametrize("ridge", [0.01, 0.1, 3.0])
def test_a_probe_is_ridge_regression_on_one_hot_labels(ridge):
    g = torch.Generator().manual_seed(2)
    labels = torch.arange(40) % 4
    states = (torch.randn(4, 6, generator=g, dtype=torch.float64)[labels]
              + torch.randn(40, 6, generator=g, dtype=torch.float64) + 50)
    new = torch.randn(200, 6, generator=g, dtype=torch.float64) * 2 + 50
    spread = states.var(0, unbiased=False).mean().item()
    penalised = torch.cat([states - states.mean(0), (ridge * spread * len(states)) ** 0.5
                           * torch.eye(6, dtype=torch.float64)])
    hot = F.one_hot(labels, 4).double()
    solved = torch.linalg.lstsq(penalised,
                                torch.cat([hot - hot.mean(0),
                                           torch.zeros(6, 4, dtype=torch.float64)])).solution
    assert torch.equal(fit_probe(states, labels, 4, ridge)(new),
                       ((new - states.mean(0)) @ solved + hot.mean(0)).argmax(-1))


def test_means_of_classes_differ_in_their_subspace_only():
    g = torch.Generator().manual_seed(3)
    labels = torch.arange(60) % 5
    states = (torch.randn(5, 8, generator=g, dtype=torch.float64)[labels] * 3
              + torch.randn(60, 8, generator=g, dtype=torch.float64))
    basis = class_subspace(states, labels)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64))
    rest = states - states @ basis @ basis.T
    means = torch.stack([rest[labels == c].mean(0) for c in range(5)])
    assert (means - means.mean(0)).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_heads_are_ablated_as_by_hand(heads, kind):
    layer, x = heads
    with captured(layer.o_proj, inputs=True) as kept: layer(x)
    z = kept[0].detach().clone()
    for head in (0, 2):
        part = z[..., 4 * head:4 * head + 4]
        part[:] = {"zero": torch.zeros_like(part),
                   "mean": part.reshape(-1, 4).mean(0).expand_as(part).clone(),
                   "resample": part[[3, 0, 1, 2]]}[kind]
    with ablated(layer, [0, 2], kind): found = layer(x)[0]
    torch.testing.assert_close(found, layer.o_proj(z))
    torch.testing.assert_close(layer(x)[0], layer.o_proj(kept[0]))           # closed: as before


@pytest.mark.parametrize("given, message", [
    (dict(heads=[0], kind="median"), "kind: 'median'; expected 'zero' or 'mean' or 'resample'"),
    (dict(heads=[3]), "heads: "), (dict(heads=[-1]), "heads: ")])
def test_what_cannot_be_ablated_is_refused(heads, given, message):
    with pytest.raises(ValueError, match=message), ablated(heads[0], **given): pass


def test_a_single_sequence_has_no_other_to_take_an_output_from(heads):
    layer, x = heads
    with pytest.raises(ValueError, match="two sequences"), ablated(layer, [0], "resample"):
        layer(x[:1])


@pytest.mark.parametrize("states, labels, ridge, name",
                         [((4, 3), 3, 0.1, "labels"), ((4,), 4, 0.1, "labels"),
                          ((0, 3), 0, 0.1, "labels"), ((4, 3), 4, 0.0, "ridge")])
def test_a_probe_refuses_what_does_not_fit(states, labels, ridge, name):
    with pytest.raises(ValueError, match=f"{name}: "):
        fit_probe(torch.ones(states), torch.zeros(labels, dtype=torch.long), 2, ridge)
