"""Recurrent cells against PyTorch's, gradients through time against autograd, the scan against a
loop, and what is refused."""
import math

import numpy as np
import pytest
import torch
from attending import draw
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tfmlib.practice.recurrence import _COUNTED
from tfmlib.recurrence import (
    DiagonalGRUCell,
    GradientFlow,
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    RNNCell,
    SimpleRNN,
    backprop_through_time,
    first_symbol,
    gradient_norms,
    joined_step,
    matrix_scan,
    newton_states,
    rnn_from_torch,
    rnn_jacobians,
    scan,
    unroll,
)
from tfmlib.workbench import ASSETS

PAIRS = [(nn.RNN, RNNCell), (nn.LSTM, LSTMCell), (nn.GRU, GRUCell)]
CELLS = [RNNCell, LSTMCell, GRUCell]
small = st.integers(1, 5)
seeds = st.integers(0, 2**31)


# --- cells and layers -----------------------------------------------------------------------------

@pytest.mark.parametrize("theirs, ours", PAIRS)
def test_a_cell_starts_as_pytorchs_does(theirs, ours):
    torch.manual_seed(3)
    cell, other = ours(200, 100), theirs(200, 100)
    for mine, right in zip(cell.parameters(), other.parameters(), strict=True):
        assert (mine.detach().abs().max() <= 0.1
                and abs(float((mine.std() - right.std()).detach())) < 0.005)


@settings(max_examples=often(60), deadline=None)
@given(seeds, st.sampled_from(PAIRS), small, st.integers(1, 9), small, small, st.integers(1, 3),
       st.booleans())
def test_outputs_and_gradients_equal_pytorchs(seed, pair, B, T, inputs, width, layers, both):
    torch.manual_seed(seed)
    theirs = pair[0](inputs, width, layers, bidirectional=both, batch_first=True,
                     dtype=torch.float64)
    ours, x, weight = (rnn_from_torch(theirs), draw(seed, B, T, inputs),
                       draw(seed + 1, B, T, width * (1 + both)))
    found = []
    for run, model in ((lambda y: theirs(y)[0], theirs), (ours, ours)):
        y = x.clone().requires_grad_()
        out = run(y)
        found.append([out, *torch.autograd.grad((out * weight).sum(), [y, *model.parameters()])])
    assert len(found[0]) == len(found[1]) == 2 + 4 * layers * (1 + both)
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_the_last_state_goes_on_where_the_sequence_stopped(cell):
    part, x = cell(3, 4).double(), draw(0, 2, 9, 3)
    whole, last = unroll(part, x)
    first, state = unroll(part, x[:, :4])
    rest, end = unroll(part, x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(last, end, rtol=0, atol=1e-12)
    torch.testing.assert_close(last[0], whole[:, -1])


def test_rebuilt_copies():
    theirs = nn.GRU(3, 4, batch_first=True)
    ours = rnn_from_torch(theirs)
    with torch.no_grad(): theirs.weight_ih_l0.zero_()
    assert all(float(p.detach().abs().sum()) > 0 for p in ours.parameters())


# --- the network of the chapter -------------------------------------------------------------------

@settings(max_examples=30, deadline=None)
@given(seeds, small, st.integers(1, 9), small, small)
def test_the_simple_network_is_pytorchs(seed, B, T, inputs, width):
    torch.manual_seed(seed)
    theirs, ours = (nn.RNN(inputs, width, batch_first=True, dtype=torch.float64),
                    SimpleRNN(inputs, width).double())
    ours.load_state_dict({"W.weight": theirs.weight_ih_l0, "U.weight": theirs.weight_hh_l0,
                          "W.bias": theirs.bias_ih_l0 + theirs.bias_hh_l0})
    x, first = draw(seed, B, T, inputs), draw(seed + 1, B, width)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(ours(x, first), theirs(x, first[None])[0], rtol=0, atol=1e-12)


# --- gradients through time -----------------------------------------------------------------------

@settings(max_examples=often(60), deadline=None)
@given(seeds, st.integers(1, 9), small, st.sampled_from([0.3, 1.0, 3.0]))
def test_gradients_through_time_equal_autograd(seed, T, C, scale):
    torch.manual_seed(seed)
    cell = RNNCell(2, C).double()
    with torch.no_grad(): cell.weight_hh *= scale
    x, state, states = draw(seed, 1, T, 2), cell.initial_state(torch.zeros(1, 2).double()), []
    for t in range(T):
        state = (cell(x[:, t], state)[0],)
        state[0].retain_grad()
        states.append(state[0])
    g = draw(seed + 1, C)
    (states[-1][0] @ g).backward()
    h = torch.cat(states).detach()
    mine = backprop_through_time(rnn_jacobians(cell.weight_hh.detach(), h), g)
    assert mine.shape == (T, C)
    torch.testing.assert_close(mine, torch.cat([s.grad for s in states]), rtol=0, atol=1e-10)


def test_gradient_norms_are_those_of_the_product_of_jacobians():
    torch.manual_seed(0)
    cell, x = RNNCell(3, 4).double(), draw(0, 1, 7, 3)
    norms = gradient_norms(RecurrentLayer(cell), x, torch.Generator().manual_seed(5))[0]
    direction = nn.functional.normalize(torch.randn(1, 4,
                                                    generator=torch.Generator().manual_seed(5),
                                                    dtype=torch.float64), dim=-1)[0]
    h = unroll(cell, x)[0][0].detach()
    at_states = backprop_through_time(rnn_jacobians(cell.weight_hh.detach(), h), direction)
    at_inputs = (at_states * (1 - h**2)) @ cell.weight_ih.detach()
    torch.testing.assert_close(norms, at_inputs.norm(dim=-1).flip(0), rtol=0, atol=1e-12)
    assert not x.requires_grad


# --- scan -----------------------------------------------------------------------------------------

def loop(a, b):
    h, out = torch.zeros_like(b[..., 0]), []
    for t in range(a.shape[-1]):
        h = a[..., t] * h + b[..., t]
        out.append(h)
    return torch.stack(out, -1)


@settings(max_examples=often(100), deadline=None)
@given(seeds, st.lists(st.integers(1, 3), max_size=2), st.integers(2, 40),
       st.sampled_from([0.5, 1.0]), st.booleans())
def test_scan_equals_the_loop(seed, lead, T, scale, with_zeros):
    a, b = scale * draw(seed, *lead, T), draw(seed + 1, *lead, T)
    if with_zeros: a = a * (draw(seed + 2, *lead, T) > 0)
    found = []
    for run in (scan, loop):
        leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        out = run(*leaves)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_scan_takes_a_logarithmic_number_of_rounds(monkeypatch):
    rounds = []
    pad = torch.nn.functional.pad
    monkeypatch.setattr("tfmlib.recurrence.core.F.pad", lambda *args, **kw: rounds.append(1)
                        or pad(*args, **kw))
    for T in (1, 2, 3, 4, 5, 1000, 1024, 1025):
        rounds.clear()
        scan(torch.rand(T), torch.rand(T))
        assert len(rounds) == 2 * math.ceil(math.log2(T)), T


def test_scan_leaves_its_arguments_alone_and_passes_gradcheck():
    a, b = draw(0, 2, 5), draw(1, 2, 5)
    kept = a.clone(), b.clone()
    scan(a, b)
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    assert torch.autograd.gradcheck(scan, (a.requires_grad_(), b.requires_grad_()))
    assert scan(torch.zeros(3, 0), torch.zeros(3, 0)).shape == (3, 0)
    assert torch.equal(scan(a[:, :1], b[:, :1]), b[:, :1])


# --- nonlinear recurrences in parallel ------------------------------------------------------------

@pytest.mark.parametrize("T", (1, 2, 3, 7, 16, 33))
@pytest.mark.parametrize("lead", ((), (2,), (2, 3)))
def test_matrix_scan_equals_the_loop(T, lead):
    A, b = draw(0, *lead, T, 3, 3), draw(1, *lead, T, 3)
    h, states = torch.zeros_like(b[..., 0, :]), []
    for t in range(T): states.append(h := (A[..., t, :, :] @ h[..., None])[..., 0] + b[..., t, :])
    torch.testing.assert_close(matrix_scan(A, b), torch.stack(states, -2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", (RNNCell, GRUCell, LSTMCell, DiagonalGRUCell))
@pytest.mark.parametrize("T", (1, 2, 50))
def test_newtons_states_and_gradients_are_the_loops(kind, T):
    torch.manual_seed(0)
    cell, x = kind(3, 4).double(), draw(1, 2, T, 3).requires_grad_()
    h0, weights = draw(2, 2, 4 * kind.n_states).requires_grad_(), draw(3, 2, T, 4 * kind.n_states)
    found, rounds = newton_states(joined_step(cell), x, h0, kind is DiagonalGRUCell)
    state, wanted = h0.chunk(kind.n_states, -1), []
    for t in range(T):
        state = cell.step(x[:, t], *state)
        wanted.append(torch.cat(state, -1))
    wanted = torch.stack(wanted, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    assert 0 < rounds <= min(T, 8)
    leaves = [x, h0, *cell.parameters()]
    for mine, right in zip(*(torch.autograd.grad((y * weights).sum(), leaves)
                             for y in (found, wanted)), strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-9)


def test_each_round_makes_one_more_state_exact_whatever_the_dynamics():
    "A chaotic network, with products of Jacobians beyond the largest number."
    W, x = 30 * draw(0, 3, 3), draw(1, 1, 400, 3)
    def step(x, h): return torch.sin(x + h @ W.T)
    h, states = torch.zeros(1, 3).double(), []
    for t in range(20): states.append(h := step(x[:, t], h))
    found, rounds = newton_states(step, x, torch.zeros(1, 3).double(), rounds=3)
    assert rounds == 3 and bool(found.isfinite().all())
    torch.testing.assert_close(found[:, :4], torch.stack(states, 1)[:, :4], rtol=0, atol=1e-9)


def test_a_linear_recurrence_takes_one_round_and_32_bits_end():
    x = draw(0, 1, 60, 2)
    assert newton_states(lambda x, h: 1.05 * h + x, x, x.new_zeros(1, 2), True)[1] == 1
    torch.manual_seed(0)
    cell = GRUCell(2, 4)
    found, rounds = newton_states(joined_step(cell), x.float(), torch.zeros(1, 4))
    torch.testing.assert_close(found, unroll(cell, x.float())[0], rtol=0, atol=1e-5)
    assert rounds < 8 and found.dtype == torch.float32
    with torch.no_grad():
        assert not newton_states(joined_step(cell), x.float(), torch.zeros(1, 4))[0].requires_grad


def test_the_rounds_of_the_practice_page_are_counted_again():
    "Its exercise asks which of six recurrences takes one, few or many."
    x = draw(1, 1, 200, 1)
    once = torch.zeros_like(x)
    once[:, 0] = 1
    steps = {"A": (lambda x, h: (0.5 * h + x).tanh(), x),
             "B": (lambda x, h: (3 * h + x).sin(), 0.5 * once), "C": (lambda x, h: 1.05 * h + x, x),
             "D": (lambda x, h: 0.98 * h + 0.02 * (0.5 * h + x).tanh(), x),
             "E": (lambda x, h: (3 * h + x).sin(), x), "F": (lambda x, h: (4 * h + x).tanh(), once)}
    rounds = {name: newton_states(step, inputs, torch.zeros(1, 1).double(), True, 1e-9)[1]
              for name, (step, inputs) in steps.items()}
    assert rounds["C"] == _COUNTED["C"] == 1
    for name in "ADF":
        assert 2 <= min(rounds[name], _COUNTED[name]) <= max(rounds[name],
                _COUNTED[name]) <= 25, (name, rounds[name])
    for name in "BE": assert min(rounds[name], _COUNTED[name]) >= 100, (name, rounds[name])


# --- what is refused ------------------------------------------------------------------------------

def asked(cell, x, state):
    "A cell of width 4 gets something; `state` may be made from its own."
    part = cell(3, 4)
    part(x, state(part.initial_state(torch.zeros(2, 3))))


def solved(x=(2, 5, 3), h0=(2, 4), cell=GRUCell, diagonal=False, dtype=torch.float64, **how):
    "Newton's states of inputs and a first state of these shapes."
    step = joined_step(cell(3, 4).double())
    newton_states(step, draw(0, *x), draw(1, *h0).to(dtype), diagonal, **how)


zeros, RIGHT = torch.zeros, torch.zeros(2, 3)
REFUSED = [
    *[(f"^{name}: ", lambda cell=cell, x=x, state=state: asked(cell, x, state))
      for cell in CELLS for name, x, state in (
        ("x", zeros(2, 5), lambda own: own), ("x", zeros(2, 1, 3), lambda own: own),
        ("state", RIGHT, lambda own: own[0]), ("state", RIGHT, lambda own: own + own),
        ("state", RIGHT, lambda own: (zeros(1, 4),) * len(own)),
        ("state", RIGHT, lambda own: (zeros(2, 3),) * len(own)),
        ("state", RIGHT, lambda own: ()), ("state", RIGHT, lambda own: None))],
    *[("^x: ", lambda cell=cell, x=x: unroll(cell(3, 4), x)) for cell in CELLS for x in (
        RIGHT, zeros(2, 0, 3), zeros(2, 5, 3, dtype=torch.int64), zeros(2, 5, 4))],
    *[(None, lambda cell=cell, sizes=sizes: cell(*sizes)) for cell in CELLS
      for sizes in ((0, 4), (3, 0), (-1, 2), (2.5, 4))],
    *[("^theirs: ", lambda theirs=theirs: rnn_from_torch(theirs)) for theirs in (
        nn.RNN(3, 4), nn.RNN(3, 4, batch_first=True, nonlinearity="relu"),
        nn.LSTM(3, 4, batch_first=True, proj_size=2), nn.Linear(3, 4),
        nn.GRU(3, 4, batch_first=True, bias=False),
        nn.GRU(3, 4, 2, batch_first=True, dropout=0.1))],
    *[("^h, weight_hh: ", lambda U=U, h=h: rnn_jacobians(U, h)) for U, h in (
        (torch.eye(3), zeros(4, 2)), (zeros(2, 3), zeros(4, 2)), (torch.eye(2), zeros(4, 2, 2)),
        (torch.eye(2), zeros(0, 2)))],
    *[("^jacobians, g: ", lambda J=J, g=g: backprop_through_time(J, g)) for J, g in (
        (zeros(4, 2, 3), zeros(2)), (zeros(2, 2), zeros(2)), (zeros(4, 2, 2), zeros(1, 2)),
        (zeros(4, 2, 2), zeros(3)))],
    *[("^a, b: ", lambda a=a, b=b: scan(a, b)) for a, b in (
        (zeros(4), zeros(5)), (zeros(1, 4), zeros(2, 4)), (zeros(()), zeros(())),
        (zeros(4).long(), zeros(4).long()), (zeros(4), zeros(4).double()))],
    *[("^A, b: ", lambda A=A, b=b: matrix_scan(zeros(A), zeros(b))) for A, b in (
        ((5, 2, 2), (4, 2)), ((5, 2, 3), (5, 2)), ((2, 2), (2,)), ((2,), ()))],
    ("^diagonal: ", lambda: solved(diagonal=True)),
    *[("^x, h0: ", lambda x=x, h0=h0: solved(x, h0)) for x, h0 in (
        ((5, 3), (2, 4)), ((2, 0, 3), (2, 4)), ((2, 5, 3), (1, 4)), ((2, 5, 3), (4,)))],
    ("^h0: ", lambda: solved(dtype=torch.int64)), ("^rounds: ", lambda: solved(rounds=-1)),
    (None, lambda: first_symbol(0, 5, torch.Generator())),
    (None, lambda: first_symbol(5, 0, torch.Generator())),
]


@pytest.mark.parametrize("said, call", REFUSED)
def test_what_does_not_fit_is_refused_by_name(said, call):
    with pytest.raises(ValueError, match=said): call()


# --- the task and the figure ----------------------------------------------------------------------

def test_the_first_symbol_is_told_from_the_others():
    x, first = first_symbol(50, 7, torch.Generator().manual_seed(0))
    assert x.shape == (50, 8, 16) and bool((x.sum(-1) == 1).all())
    symbols = x.argmax(-1)
    assert (torch.equal(symbols[:, 0], first) and bool((first < 8).all())
            and bool((symbols[:, 1:] >= 8).all()))
    assert len(first.unique()) == 8 and len(symbols[:, 1:].unique()) == 8


@pytest.mark.parametrize("eigenvalue, coupling, gate, squash",
                         [(0.9, 5., 0., False), (1.2, 0., 0., True), (0.5, 0., 0.91, False),
                          (1.3, 3., 0.2, True), (0., 0., 0., False)])
def test_the_figure_draws_what_autograd_finds(eigenvalue, coupling, gate, squash):
    figure = GradientFlow(alt="growth of a gradient", eigenvalue=eigenvalue, coupling=coupling,
                          gate=gate, squash=squash, steps=12)
    U = torch.tensor([[eigenvalue, coupling], [0., eigenvalue]], dtype=torch.float64)
    x = [0.5 * torch.tensor([math.sin(0.3 * t), math.cos(0.5 * t)], dtype=torch.float64)
         for t in range(12)]

    def run(h, since):
        for t in range(since, 12):
            z = U @ h + x[t]
            h = gate * h + (1 - gate) * (z.tanh() if squash else z)
        return h
    h, wanted = torch.zeros(2, dtype=torch.float64), []
    for t in range(12):
        wanted.append(
            float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(lambda s, t=t: run(s,
                    t), h), 2)))
        z = U @ h + x[t]
        h = gate * h + (1 - gate) * (z.tanh() if squash else z)
    np.testing.assert_allclose(figure.growth(), [1., *wanted[::-1]], atol=1e-12)
    assert "<svg" in figure.picture() and (ASSETS / "gradient_journey.js").is_file()
    assert "After 12 steps" in figure.told() and f"λ {eigenvalue:.2f}" in figure.told()


@pytest.mark.parametrize("weight, gate, squash",
                         [(1.2, 0., False), (1.2, 0., True), (0.5, 0.91, False), (2., 0.3, True)])
def test_the_figure_with_one_feature_is_a_product_of_numbers(weight, gate, squash):
    figure = GradientFlow(alt="growth of a gradient", features=1, eigenvalue=weight, coupling=5.,
                          gate=gate, squash=squash, steps=30)
    h, factors = 0., []
    for t in range(30):
        z = weight * h + 0.5 * math.sin(0.3 * t)
        new, slope = (math.tanh(z), 1 - math.tanh(z) ** 2) if squash else (z, 1.)
        h = gate * h + (1 - gate) * new
        factors.append(gate + (1 - gate) * slope * weight)
    np.testing.assert_allclose(figure.growth(), np.cumprod([1., *factors[::-1]]), rtol=1e-9)
