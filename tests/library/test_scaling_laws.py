"""Fits of scaling laws, against data whose constants are known, against another optimiser, and
where they must fail."""
import math
from pathlib import Path

import pytest
import torch
from conftest import sweep
from in_node import in_node

from tfmlib.scaling_laws import (
    KAPLAN,
    PF_DAY,
    PUBLISHED_LAWS,
    Muon,
    all_parameters,
    at_compute,
    best_exponent,
    blocks_frontier,
    bootstrap,
    compute_optimal,
    effective_tokens,
    envelope,
    exact_match,
    fit_power_law,
    fit_three_points,
    flops_for,
    frontier_point,
    huber,
    interval,
    isoflop_minima,
    law_numbers,
    lifetime_optimal,
    log_slope,
    loss_table,
    newton_schulz,
    power_law,
    predictive_samples,
    simple_fit,
    size_exponents,
)
from tfmlib.scaling_laws.figures import ScalingFrontier
from tfmlib.workbench import Checkpoint, parameter_groups, seeded, train

READS = ("chapters/practice/14_",)
TRUTH = power_law(2.4, (60., 0.4), (150., 0.35))
SIZES, BUDGETS = (torch.tensor([1.2e4, 4.9e4, 1.1e5, 2e5, 4.4e5, 7.9e5, 1.8e6, 3.1e6]).double(),
                  2.5e5 * 2 ** torch.arange(6).double())
RUNS = torch.cartesian_prod(SIZES, BUDGETS)


def noisy(law, x, size: float, seed: int):
    return law(x) * (size * torch.randn(len(x), generator=seeded(seed), dtype=torch.float64)).exp()


def objective(law, x, loss, delta=1e-3) -> float:
    return float(huber(law(x).log() - loss.log(), delta).sum())


# --- the fit --------------------------------------------------------------------------------------

GIVEN = {"N and D": (RUNS, TRUTH), "N": (SIZES, power_law(1., (50., 0.5))),
         "D": (BUDGETS, power_law(3., (2e4, 0.9)))}


@pytest.mark.parametrize("of", sweep(GIVEN, "N"))
def test_runs_without_noise_give_the_constants_back(of):
    x, truth = GIVEN[of]
    found = fit_power_law(x, truth(x.view(len(x), -1))).constants()
    torch.testing.assert_close(found, truth.constants(), rtol=1e-2, atol=0)


@pytest.mark.whole
def test_a_new_run_lies_in_its_prediction_interval_as_often_as_it_should():
    "At a size that no run has: the interval of the law alone is too narrow for a run."
    at, held, law_alone = torch.tensor([[6e6, 1.6e7]]).double(), 0, 0
    for seed in range(20):
        loss, new = noisy(TRUTH, RUNS, 0.004, seed), float(noisy(TRUTH, at, 0.004, 100 + seed))
        law, laws = fit_power_law(RUNS, loss), bootstrap(RUNS, loss, samples=60, seed=seed)
        low, high = interval(predictive_samples(law, laws, RUNS, loss, at)[:, 0])
        held += low <= new <= high
        low, high = interval(laws(at)[:, 0])
        law_alone += low <= new <= high
    assert held >= 16 and held > law_alone


def test_the_simple_fit_finds_a_law_whose_exponents_are_on_its_grid():
    truth = power_law(2.4, (60., 0.4), (150., 0.35))
    torch.testing.assert_close(simple_fit(RUNS, truth(RUNS)).constants(), truth.constants(),
                               rtol=1e-6, atol=0)


def test_no_law_near_the_simple_fit_has_smaller_relative_errors():
    """Its scales and its floor are the best for its exponents, and no neighbour on the grid is
    better."""
    loss = noisy(TRUTH, RUNS, 0.004, 3)
    found = simple_fit(RUNS, loss)
    def off(law): return float((law(RUNS) / loss - 1).square().sum())
    for i, step in enumerate((1.001, 0.999) * 3):
        floor, scales = found.floor.clone(), found.scales.clone()
        if i // 2 == 0: floor = floor * step
        else: scales[i // 2 - 1] *= step
        assert off(type(found)(floor, scales, found.exponents)) > off(found)
    assert off(found) < 1.02 * off(fit_power_law(RUNS, loss, delta=10.))


@pytest.mark.whole
def test_the_simple_fit_predicts_a_larger_run_as_the_robust_one_does():
    at = torch.tensor([[6e6, 1.6e7]]).double()
    for seed in range(3):
        loss = noisy(TRUTH, RUNS, 0.004, seed)
        assert (float(simple_fit(RUNS, loss)(at))
                == pytest.approx(float(fit_power_law(RUNS, loss)(at)), rel=0.01))


def test_the_figure_takes_a_law_as_its_numbers():
    assert (law_numbers(power_law(2., (math.e, 0.5), (1., 0.25)))
            == pytest.approx([2, 1, 0, 0.5, 0.25]))


def by_lbfgs(start: list[float], logs, loss) -> float:
    "The least objective that PyTorch's L-BFGS finds from a start: log A, log B, α, β, log E."
    p = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([p], max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-14,
                                  history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        terms = torch.stack([p[0] - p[2] * logs[:, 0], p[1] - p[3] * logs[:, 1],
                             p[4].expand(len(loss))])
        value = huber(terms.logsumexp(0) - loss.log(), 1e-3).sum()
        value.backward()
        return value
    optimiser.step(closure)
    return float(closure().detach())


def test_no_other_optimiser_finds_a_lower_loss():
    "L-BFGS with PyTorch's line search, on the same objective, from the fit and from afar."
    loss = noisy(TRUTH, RUNS, 0.004, 3)
    found, logs = fit_power_law(RUNS, loss), RUNS.log()
    for start in ([*found.scales.log().tolist(), *found.exponents.tolist(), math.log(found.floor)],
                  [5., 5., 0.3, 0.3, 0.5], [2., 9., 0.2, 0.6, 0.]):
        assert objective(found, RUNS, loss) <= by_lbfgs(start, logs, loss) * (1 + 1e-6)


@pytest.mark.whole
def test_one_run_that_went_wrong_decides_nothing():
    loss = noisy(TRUTH, RUNS, 0.002, 4)
    spoilt = loss.clone()
    spoilt[20] *= 1.3
    robust, squares = (fit_power_law(RUNS, spoilt, delta=d).exponents
                       - fit_power_law(RUNS, loss, delta=d).exponents for d in (1e-3, 10.))
    assert robust.abs().max() < squares.abs().max() / 3


@pytest.mark.whole
def test_a_wrong_floor_bends_the_exponents():
    loss = TRUTH(RUNS)
    low, right, high = (fit_power_law(RUNS, loss, floor=floor).exponents
                        for floor in (1.8, 2.4, 2.8))
    assert (low < right).all() and (right < high).all()
    torch.testing.assert_close(right, TRUTH.exponents, rtol=1e-3, atol=0)


def test_a_law_without_a_floor_is_fitted_as_one():
    "Kaplan's form: with a floor of 0, one power of N."
    law = fit_power_law(SIZES, 7. * SIZES**-0.2, floor=0.)
    torch.testing.assert_close(law.constants(), torch.tensor([0., 7., 0.2]).double(),
                               rtol=1e-4, atol=1e-6)
    assert (float(fit_power_law(SIZES, power_law(1., (7., 0.3))(SIZES[:, None]),
                                floor=0.).exponents) < 0.3)


@pytest.mark.whole
def test_a_known_fit_gives_the_bootstrap_the_same_laws():
    loss = noisy(TRUTH, RUNS, 0.004, 8)
    alone, given = (bootstrap(RUNS, loss, samples=5),
                    bootstrap(RUNS, loss, samples=5, law=fit_power_law(RUNS, loss)))
    assert torch.equal(alone.constants(), given.constants())


@pytest.mark.whole
def test_the_order_of_runs_and_their_units_do_not_matter():
    loss = noisy(TRUTH, RUNS, 0.004, 6)
    law, order = fit_power_law(RUNS, loss), torch.randperm(len(RUNS), generator=seeded(1))
    torch.testing.assert_close(fit_power_law(RUNS[order], loss[order]).constants(), law.constants(),
                               rtol=1e-4, atol=0)
    millions = fit_power_law(RUNS / 1e6, loss)
    torch.testing.assert_close(millions(RUNS / 1e6), law(RUNS), rtol=1e-5, atol=0)


# --- what follows from a law ----------------------------------------------------------------------

@pytest.mark.parametrize("law", [TRUTH, *PUBLISHED_LAWS.values()])
@pytest.mark.parametrize("C", [1e13, 5.76e23])
def test_no_other_size_is_better_at_this_cost(law, C):
    N, D = compute_optimal(law, C)
    assert float(6 * N * D) == pytest.approx(C)
    sizes = N * torch.logspace(-2, 2, 2001).double()
    losses = law(torch.stack([sizes, C / 6 / sizes], 1))
    assert float(sizes[losses.argmin()] / N) == pytest.approx(1, rel=0.01)


def test_the_published_laws_recommend_what_their_authors_say():
    """Hoffmann et al.: by the third approach 40 billion parameters at Gopher's budget, N ∝
    C^0.46; Besiroglu et al.: 0.513 and about 20 tokens a parameter."""
    N, D = compute_optimal(PUBLISHED_LAWS["Hoffmann 2022"], 5.76e23)
    assert 35e9 < float(N) < 45e9 and float(D) > 2e12
    assert float(best_exponent(PUBLISHED_LAWS["Hoffmann 2022"])) == pytest.approx(0.4565, abs=1e-3)
    assert float(best_exponent(PUBLISHED_LAWS["Besiroglu 2024"])) == pytest.approx(0.5126, abs=1e-4)
    N, D = compute_optimal(PUBLISHED_LAWS["Besiroglu 2024"], 5.76e23)
    assert 15 < float(D / N) < 35


def test_kaplan_in_one_unit():
    "1.3 billion parameters at one PF-day; ten times the compute, 5.4 times the model."
    factor, exponent = KAPLAN["best N"]
    assert PF_DAY == 8.64e19 and factor * 10**exponent == pytest.approx(5.37 * factor, rel=1e-3)
    assert (KAPLAN["N"][0] / 1.5e9)**KAPLAN["N"][1] == pytest.approx(2.30, abs=0.01)


def test_serving_makes_the_best_model_smaller():
    law = PUBLISHED_LAWS["Besiroglu 2024"]
    found = [lifetime_optimal(law, 2.1, served) for served in (0., 1e12, 1e14)]
    assert found[0][0] > found[1][0] > found[2][0] and found[0][1] < found[1][1] < found[2][1]
    N, D = found[0]
    assert ((N,
             D) == pytest.approx([float(part) for part in compute_optimal(law, 6 * N * D)],
                                 rel=0.01))
    for N, D in found: assert float(law(torch.tensor([[N, D]]))) == pytest.approx(2.1, abs=1e-6)


# --- without a law --------------------------------------------------------------------------------

def test_both_other_ways_find_the_best_size():
    sizes = 10 ** torch.linspace(3.5, 7, 29).double()
    x = torch.cartesian_prod(sizes, 10 ** torch.linspace(4.5, 8.5, 33).double())
    wanted = 10 ** torch.linspace(11, 13.5, 9).double()
    s, table = loss_table(x[:, 0], 6 * x[:, 0] * x[:, 1], TRUTH(x), wanted)
    best, a = compute_optimal(TRUTH, wanted)[0], float(best_exponent(TRUTH))
    assert (envelope(s, table).log() - best.log()).abs().max() < 0.25
    assert log_slope(wanted, envelope(s, table))[0] == pytest.approx(a, abs=0.04)
    assert log_slope(wanted, isoflop_minima(s, table))[0] == pytest.approx(a, abs=0.06)


def test_parts_of_the_runs_say_how_far_the_exponent_may_be_trusted():
    "Two seeds of each run: they are averaged where both are drawn."
    sizes = 10 ** torch.linspace(3.5, 7, 15).double()
    x = torch.cartesian_prod(sizes, 10 ** torch.linspace(4.5, 8.5, 17).double()).repeat(2, 1)
    wanted, flops = 10 ** torch.linspace(11, 13.5, 9).double(), 6 * x[:, 0] * x[:, 1]
    quiet, loud = (size_exponents(x[:, 0], flops, noisy(TRUTH, x, noise, 7), wanted, isoflop_minima,
                                  samples=30) for noise in (1e-3, 1e-2))
    low, high = interval(quiet)
    assert low - 0.05 < float(best_exponent(TRUTH)) < high + 0.05 and quiet.std() < loud.std()
    _, table = loss_table(torch.tensor([1., 1., 1.]), torch.tensor([1., 1., 100.]),
                          torch.tensor([3., 5., 1.]), torch.tensor([1., 10.]))
    torch.testing.assert_close(table, torch.tensor([[4., 2.]]))


def test_nothing_is_said_outside_of_the_runs():
    C, loss = torch.tensor([1., 10., 100.]).double(), torch.tensor([4., 2., 1.]).double()
    torch.testing.assert_close(at_compute(C, loss,
                                          torch.tensor([0.5, 1., 10**0.5, 100., 101.]).double()),
                               torch.tensor([math.nan, 4., 8**0.5, 1., math.nan]).double(),
                               equal_nan=True)
    falling = torch.tensor([[3., 3.], [2., 2.5], [1., 2.7]]).double()
    assert envelope(torch.tensor([1., 2., 3.]), falling).isnan().tolist() == [True, False]
    # a size that has no run at this cost is no neighbour
    nan = torch.nan
    gaps = torch.tensor([[nan, 3., 2.], [2., 2., 1.], [3., nan, 2.]]).double()
    assert torch.equal(envelope(torch.tensor([1., 2., 3.]), gaps).nan_to_num(-1.),
                       torch.tensor([-1., -1., 2.]).double())
    assert isoflop_minima(torch.tensor([1., 10., 100.]), falling).isnan()[0]


# --- repeated data --------------------------------------------------------------------------------

def test_repeated_tokens_are_worth_less_and_less():
    worth = effective_tokens(100., torch.tensor([1., 2., 4., 16., 1e9]))
    assert (worth[0] == 100 and (worth.diff() > 0).all() and float(worth[-1])
            == pytest.approx(1638.8, abs=0.1))
    assert float(worth[2]) == pytest.approx(100 * (1 + 15.387756 * (1 - math.exp(-3 / 15.387756))))


# --- three points, and the frontier ---------------------------------------------------------------

@pytest.mark.parametrize("E, A, alpha, start, ratio",
                         [(2., 30., 0.25, 1e4, 16.), (0., 7., 0.076, 1e3, 2.),
                          (1.8, 500., 0.9, 3e6, 10.)])
def test_three_losses_give_the_law(E, A, alpha, start, ratio):
    x = start * ratio ** torch.arange(3).double()
    assert (fit_three_points(x, E + A * x**-alpha) == pytest.approx((E, A, alpha),
            rel=1e-6, abs=1e-9))


def test_a_line_needs_two_points():
    x = torch.tensor([1., 10., 100.])
    assert log_slope(x, 3 * x**-0.5) == pytest.approx((-0.5, 3.), rel=1e-5)
    assert log_slope(x, torch.tensor([2., math.nan, 200.])) == pytest.approx((1., 2.), rel=1e-5)


@pytest.mark.parametrize("law", [TRUTH, *PUBLISHED_LAWS.values()])
def test_the_cost_of_a_loss_is_the_least(law):
    "Where the frontier reaches a loss, against bisection; its exponent, against the slope."
    costs = 10 ** torch.linspace(16, 24, 5).double()
    losses = law(torch.stack(compute_optimal(law, costs), 1))
    torch.testing.assert_close(flops_for(law, losses), costs, rtol=1e-9, atol=0)
    alpha, beta = law.exponents
    assert (log_slope(costs, losses - law.floor)[0]
            == pytest.approx(float(-alpha * beta / (alpha + beta)), rel=1e-9))


def test_a_point_of_the_frontier():
    law = PUBLISHED_LAWS["Besiroglu 2024"]
    a = float(best_exponent(law))
    right, far = frontier_point(law, 1e24, a), frontier_point(law, 1e24, 0.73)
    assert (right["wasted"] == pytest.approx(0, abs=1e-9) and right["chosen N"]
            == pytest.approx(right["best N"]))
    assert (far["chosen N"] == pytest.approx(float(compute_optimal(law, 1e21)[0]) * 1000**0.73)
            and 6 * far["chosen N"] * far["chosen D"] == pytest.approx(1e24))
    N, D = compute_optimal(law, 1e24 * (1 - far["wasted"]))
    assert (float(law(torch.stack([N, D])[None])) == pytest.approx(far["chosen loss"])
            and far["chosen loss"] > far["best loss"])
    assert frontier_point(law, 1e21, 0.3)["wasted"] == pytest.approx(0, abs=1e-9)


def test_the_ends_of_the_grid_are_no_optima():
    found = blocks_frontier(TRUTH, torch.tensor([1e5, 1e20, 1e45]).double())
    assert found.isnan().tolist() == [True, False, True]


# --- bad input -----------------------------------------------------------------------------------

def at_frontier(law=TRUTH, flops=1e24, exponent=0.5, **more):
    return frontier_point(law, flops, exponent, **more)


def muon(**how): Muon(parameter_groups(torch.nn.Sequential(torch.nn.Linear(2, 2))), 0.01, **how)


LOSS, THREE, ONE = TRUTH(RUNS), torch.tensor([1., 2., 4.]), power_law(1., (2., 0.5))
MANY = type(TRUTH)(*(t.expand(3, *t.shape) for t in (TRUTH.floor, TRUTH.scales, TRUTH.exponents)))
REFUSED = [
    # runs, and fits of them
    *[(named, lambda x=x, loss=loss: simple_fit(x, loss)) for named, x, loss in (
        ("loss", RUNS, torch.ones(3)), ("x", RUNS[:4], torch.ones(4)),
        ("x", RUNS[:, :1], torch.ones(len(RUNS))), ("x", -RUNS, torch.ones(len(RUNS))),
        ("loss", RUNS, RUNS.prod(1) ** .3))],                  # it grows with size and data
    *[(named, lambda x=x, loss=loss: fit_power_law(x, loss)) for named, x, loss in (
        ("loss", RUNS, LOSS[:-1]), ("x", -RUNS, LOSS), ("loss", RUNS, 0 * LOSS),
        ("x", RUNS[:4], LOSS[:4]), ("loss", RUNS, LOSS * math.nan),
        ("x", torch.ones(6), torch.arange(2., 8.)))],
    *[(named, lambda how={named: value}: fit_power_law(RUNS, LOSS, **how)) for named, value in (
        ("floor", 99.), ("floor", -1.), ("delta", 0.), ("steps", 0))],
    *[(named, lambda how={named: value}: bootstrap(RUNS, LOSS, **how)) for named, value in (
        ("samples", 0), ("steps", 0), ("law", MANY))],
    *[(named, lambda x=x, loss=loss: fit_three_points(torch.tensor(x), torch.tensor(loss)))
      for named, x, loss in (
        ("loss", [1., 2., 4.], [5., 4.]), ("x", [1., 2., 5.], [5., 4., 3.5]),
        ("x", [4., 2., 1.], [5., 4., 3.5]), ("x", [0., 0., 0.], [5., 4., 3.5]),
        ("loss", [1., 2., 4.], [5., 4., 3.]), ("loss", [1., 2., 4.], [3., 4., 5.]),
        ("loss", [1., 2., 4.], [5., 4., math.nan]))],
    ("values", lambda: interval(torch.ones(3, 2))),
    ("values", lambda: interval(torch.tensor([1., math.nan]))),
    ("level", lambda: interval(torch.ones(3).double(), 1.)),
    ("law", lambda: predictive_samples(MANY, MANY, RUNS, LOSS, RUNS)),
    ("laws", lambda: predictive_samples(TRUTH, TRUTH, RUNS, LOSS, RUNS)),
    ("x", lambda: predictive_samples(TRUTH, MANY, RUNS[:5], LOSS[:5], RUNS)),
    # what follows from a law
    ("x", lambda: TRUTH(torch.ones(3))), ("x", lambda: TRUTH(torch.tensor([[0., 1.]]))),
    ("law", lambda: compute_optimal(ONE, 1e20)), ("flops", lambda: compute_optimal(TRUTH, -1.)),
    ("law", lambda: compute_optimal(power_law(2., (40., 0.4), (90., 0.)), 1e20)),
    ("flops", lambda: compute_optimal(MANY, torch.ones(2).double())),
    ("cost", lambda: compute_optimal(TRUTH, 1e20, -6.)),
    ("law", lambda: lifetime_optimal(ONE, 2., 0.)),
    ("loss", lambda: lifetime_optimal(TRUTH, 2.4, 0.)),
    ("served", lambda: lifetime_optimal(TRUTH, 2.5, math.inf)),
    ("costs", lambda: lifetime_optimal(TRUTH, 2.5, 0., (-6., 2.))),
    ("loss", lambda: flops_for(TRUTH, 2.4)),
    ("exponent", lambda: at_frontier(exponent=0.)), ("exponent", lambda: at_frontier(exponent=1.)),
    ("flops", lambda: at_frontier(flops=0.)), ("start", lambda: at_frontier(start=0.)),
    ("law", lambda: at_frontier(law=ONE)),
    # without a law
    ("y", lambda: log_slope(THREE, THREE[:2])), ("x, y", lambda: log_slope(THREE - 1, THREE)),
    ("x, y", lambda: log_slope(THREE, -THREE)), ("x", lambda: log_slope(torch.ones(3), THREE)),
    ("y", lambda: log_slope(THREE, torch.tensor([1., math.nan, math.nan]))),
    ("loss", lambda: loss_table(THREE, THREE, THREE[:2], THREE)),
    # what is counted, repeated or scored
    ("blocks", lambda: all_parameters(0.)), ("vocab", lambda: all_parameters(1e6, vocab=-1.)),
    ("ratio", lambda: all_parameters(1e6, ratio=0.)),
    ("flops", lambda: blocks_frontier(TRUTH, torch.tensor([-1.]).double())),
    ("law", lambda: blocks_frontier(MANY, THREE)),
    ("unique", lambda: effective_tokens(-5., 4)), ("epochs", lambda: effective_tokens(1., 0.5)),
    ("loss", lambda: exact_match(-0.1, 3)), ("loss", lambda: exact_match(math.nan, 3)),
    ("tokens", lambda: exact_match(1., 0)), ("tokens", lambda: exact_match(1., 2.5)),
    # Muon
    ("G", lambda: newton_schulz(torch.zeros(3))), ("matrices", lambda: muon(matrices={"0.bias"})),
    ("matrices", lambda: muon(matrices={"9.weight"})),
    ("momentum", lambda: muon(matrices=set(), momentum=1.0)),
]


@pytest.mark.parametrize("named, call", REFUSED)
def test_what_has_no_answer_is_refused_by_name(named, call):
    with pytest.raises(ValueError, match=f"^{named}: "): call()


# --- what is counted ------------------------------------------------------------------------------

def test_embeddings_bend_the_frontier_of_small_models():
    """By a derivation of its own: at the optimum, the derivatives of both terms along 6 · blocks
    · D = C cancel."""
    law = PUBLISHED_LAWS["Besiroglu 2024"]
    costs = 10 ** torch.linspace(14, 24, 6).double()
    best = blocks_frontier(law, costs)
    (A, B), (alpha, beta) = law.scales, law.exponents
    total, D = all_parameters(best), costs / 6 / best
    # d total / d blocks
    rise = 1 + 32_000 * (39.2 / 12)**(1 / 3) / 3 * best**(-2 / 3)
    torch.testing.assert_close(alpha * A * total**-alpha * best * rise / total, beta * B * D**-beta,
                               rtol=0.01, atol=0)
    assert (float(all_parameters(12 * 64**3 / 39.2))
            == pytest.approx(12 * 64**3 / 39.2 + 32_000 * 64))
    without = blocks_frontier(law, costs, vocab=0.)
    torch.testing.assert_close(without, compute_optimal(law, costs)[0], rtol=0.01, atol=0)


# --- a score that jumps ---------------------------------------------------------------------------

def test_exact_match_is_the_product_of_the_tokens():
    p = torch.tensor([0.5, 0.9, 0.99]).double()
    torch.testing.assert_close(exact_match(-p.log(), 12), p**12)
    N = 10 ** torch.linspace(4, 9, 51).double()
    # ten times the tokens: a hundred times the size
    torch.testing.assert_close(exact_match(30 / N**0.5, 4), exact_match(30 / (100 * N)**0.5, 40))


# --- the figure -----------------------------------------------------------------------------------

SCRIPT = "scaling_frontier.js"


def in_figure(law) -> list[float]:
    return [float(law.floor), *law.scales.log().tolist(), *law.exponents.tolist()]


def test_the_script_computes_the_same(tmp_path):
    calls = [(law, C, a) for law in (TRUTH, *PUBLISHED_LAWS.values())
             for C in (1e18, 1e21, 3e24, 1e27) for a in (0.3, 0.5, 0.73)]
    found = in_node(tmp_path, SCRIPT, "given.map(call => script.point(...call))",
                    [(in_figure(law), C, a) for law, C, a in calls])
    assert len(found) == len(calls) == 48
    for call, numbers in zip(calls, found):
        assert numbers == pytest.approx(frontier_point(*call), rel=1e-9, abs=1e-9)


def test_the_band_has_nine_tenths(tmp_path):
    laws = [power_law(1.8, (480. * (1 + i / 100), 0.35), (2000., 0.36)) for i in range(41)]
    low, high = in_node(tmp_path, SCRIPT, "script.interval(given, 1e24)", [*map(in_figure, laws)])
    sizes = sorted(float(compute_optimal(law, 1e24)[0]) for law in laws)
    assert (low, high) == pytest.approx((sizes[2], sizes[38]))
    amounts = {7.22e10: "72.2 billion", 999.6e9: "1 trillion", 12.: "12", 1.33e12: "1.33 trillion",
               3e20: "300 · 10¹⁸"}
    assert in_node(tmp_path, SCRIPT, "given.map(script.amount)", [*amounts]) == [*amounts.values()]


def test_the_still_picture_has_the_numbers():
    law = PUBLISHED_LAWS["Besiroglu 2024"]
    shown = ScalingFrontier("the best size", names=["a"], laws=[in_figure(law)], samples=[[]],
                            chosen=0, exponent=73).picture()
    wanted = frontier_point(law, 1e24, 0.73)
    assert (f"{wanted['best N'] / 1e9:.3g} billion" in shown
            and f"{100 * wanted['wasted']:.1f} %" in shown)
    assert shown.count("<circle") == 2 and ">10²⁷<" in shown and ">100 %<" in shown


def test_the_numbers_of_the_diagnosis_of_practice_14_follow_from_the_law_and_one_mistake():
    page = (Path(__file__).resolve().parents[2]
            / "chapters/practice/14_scaling_laws.ipynb").read_text(encoding="utf-8")
    law = PUBLISHED_LAWS["Besiroglu 2024"]
    def said(*parts): return all(part in page for part in parts)
    E, A, alpha = 1.8172, 482.01, 0.3478
    # A: sizes without embeddings
    costs = 10 ** torch.linspace(10, 26, 161).double()
    best = blocks_frontier(law, costs)
    slopes = [log_slope(costs[inside], best[inside])[0]
              for inside in ((best > low) & (best < 100 * low) for low in (1e6, 1e10))]
    assert [round(slope, 2) for slope in slopes] == [0.81, 0.51] and said("C^{0.81}", "C^{0.51}")
    # B: a straight line
    N = 10. ** torch.arange(7, 11).double()
    slope, factor = log_slope(N[:3], (E + A / N**alpha)[:3])
    off = 100 * ((E + A / N**alpha) / (factor * N**slope) - 1)
    assert ([round(x, 1) for x in off.tolist()] == [2.3, -4.4, 2.3, 19.5]
            and said("2.3 % above, 4.4 % below and 2.3 % above", "19.5 % above"))
    # C: a factor of two
    sizes = torch.tensor([1e8, 1.3e8, 1.6e8, 2e8]).double().repeat_interleave(6)
    loss = ((E + A / sizes**alpha)
            * (0.003 * torch.randn(24, generator=seeded(0, 77)).double()).exp())
    fit, many = fit_power_law(sizes, loss), bootstrap(sizes, loss, samples=300)
    assert float((fit(sizes[:, None]) / loss - 1).abs().max()) < 0.009 and said("within 0.9 %")
    assert (interval(many.floor) == pytest.approx((0.75, 2.15), abs=0.02)
            and interval(many.exponents[:, 0]) == pytest.approx((0.13, 0.64), abs=0.02))
    # F: ten billion tokens, repeated
    for n in (1e8, 1e9, 1e10):
        once, repeated = (law(torch.tensor([[n, float(D)] for D in tokens]).double())
                          for tokens in ((4e10, 1.6e11, 6.4e11),
                                         effective_tokens(1e10, torch.tensor([4, 16, 64]))))
        assert ((100 * (repeated / once - 1)).tolist()
                == [pytest.approx(x, abs=room) for x, room in ((0.3, 0.06), (1.2, 0.25),
                        (3, 0.65))])


# --- Muon -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 7), (7, 2)])
def test_newton_schulz_keeps_singular_vectors(shape):
    X = torch.randn(shape, generator=seeded(*shape), dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(X, full_matrices=False)
    inner = U.T @ newton_schulz(1e3 * X) @ Vh.T
    assert (torch.allclose(inner, inner.diagonal().diag(), atol=1e-12) and 0.68
            < inner.diagonal().min() <= inner.diagonal().max() < 1.21)
    assert torch.allclose(newton_schulz(X, 60, (1.5, -0.5, 0)), U @ Vh, atol=1e-12)


def test_newton_schulz_of_nothing_is_nothing():
    assert torch.equal(newton_schulz(torch.zeros(2, 3)), torch.zeros(2, 3))


def with_muon(model, **how):
    groups = parameter_groups(model, 0.1)
    return Muon(groups, 0.01,
                matrices={name for name, p in model.named_parameters() if p.ndim == 2}, **how)


def test_muon_resumes_bit_for_bit_and_keeps_one_tensor_for_a_matrix(tmp_path):
    def small(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(),
                                       torch.nn.Linear(4, 2))
    def batch(step):
        return (torch.randn(5, 3, generator=seeded(0, step)),
                torch.randn(5, 2, generator=seeded(1, step)))
    def squared(model, x, y): return (model(x) - y).square().mean()
    whole, cut, on = small(0), small(0), small(1)
    train(whole, squared, batch, 12, with_muon(whole))
    train(cut, squared, batch, 7, with_muon(cut), Checkpoint(tmp_path / "c", every=7))
    train(on, squared, batch, 12, with_muon(on), Checkpoint(tmp_path / "c", every=7))
    assert all(torch.equal(a, b)
               for a, b in zip(whole.state_dict().values(), on.state_dict().values()))
    state = with_muon(small(0)).state()
    assert "mean.0.weight" in state and "square.0.weight" not in state and "square.0.bias" in state
