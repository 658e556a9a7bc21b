"""Fits of scaling laws, against data whose constants are known, against another optimiser, and where they must fail."""
import math

import pytest
import torch

from tfmlib.scaling_laws import (
    KAPLAN,
    PF_DAY,
    PUBLISHED_LAWS,
    at_compute,
    best_exponent,
    bootstrap,
    compute_optimal,
    effective_tokens,
    envelope,
    fit_power_law,
    huber,
    interval,
    isoflop_minima,
    lifetime_optimal,
    log_slope,
    loss_table,
    power_law,
    size_exponents,
)
from tfmlib.training import seeded

TRUTH = power_law(2.4, (60., 0.4), (150., 0.35))
SIZES, BUDGETS = torch.tensor([1.2e4, 4.9e4, 1.1e5, 2e5, 4.4e5, 7.9e5, 1.8e6, 3.1e6]).double(), 2.5e5 * 2 ** torch.arange(6).double()
RUNS = torch.cartesian_prod(SIZES, BUDGETS)


def noisy(law, x, size: float, seed: int):
    return law(x) * (size * torch.randn(len(x), generator=seeded(seed), dtype=torch.float64)).exp()


def objective(law, x, loss, delta=1e-3) -> float: return float(huber(law(x).log() - loss.log(), delta).sum())


# --- the fit ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("x, truth", [(RUNS, TRUTH), (SIZES, power_law(1., (50., 0.5))), (BUDGETS, power_law(3., (2e4, 0.9)))], ids=["N and D", "N", "D"])
def test_runs_without_noise_give_the_constants_back(x, truth):
    torch.testing.assert_close(fit_power_law(x, truth(x.view(len(x), -1))).constants(), truth.constants(), rtol=1e-2, atol=0)


def test_the_constants_lie_in_the_intervals_of_the_bootstrap_nearly_as_often_as_they_say():
    held = torch.zeros(5)
    for seed in range(8):
        many = bootstrap(RUNS, noisy(TRUTH, RUNS, 0.004, seed), samples=60, seed=seed).constants()
        for i, truth in enumerate(TRUTH.constants().tolist()):
            low, high = interval(many[:, i])
            assert low < high
            held[i] += low <= truth <= high
    assert (held >= 4).all() and held.sum() >= 28                         # of 8 each, 40 in all; 90 % asked


def by_lbfgs(start: list[float], logs, loss) -> float:
    "The least objective that PyTorch's L-BFGS finds from a start: log A, log B, α, β, log E."
    p = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([p], max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-14, history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        terms = torch.stack([p[0] - p[2] * logs[:, 0], p[1] - p[3] * logs[:, 1], p[4].expand(len(loss))])
        value = huber(terms.logsumexp(0) - loss.log(), 1e-3).sum()
        value.backward()
        return value
    optimiser.step(closure)
    return float(closure().detach())


def test_no_other_optimiser_finds_a_lower_loss():
    "L-BFGS with PyTorch's line search, on the same objective, from the fit and from afar."
    loss = noisy(TRUTH, RUNS, 0.004, 3)
    found, logs = fit_power_law(RUNS, loss), RUNS.log()
    for start in ([*found.scales.log().tolist(), *found.exponents.tolist(), math.log(found.floor)], [5., 5., 0.3, 0.3, 0.5], [2., 9., 0.2, 0.6, 0.]):
        assert objective(found, RUNS, loss) <= by_lbfgs(start, logs, loss) * (1 + 1e-6)


def test_one_run_that_went_wrong_decides_nothing():
    loss = noisy(TRUTH, RUNS, 0.002, 4)
    spoilt = loss.clone()
    spoilt[20] *= 1.3
    robust, squares = (fit_power_law(RUNS, spoilt, delta=d).exponents - fit_power_law(RUNS, loss, delta=d).exponents for d in (1e-3, 10.))
    assert robust.abs().max() < squares.abs().max() / 3


def test_few_short_runs_fit_well_and_know_no_floor():
    "Five sizes that end far above the floor: the residual is as small as the noise, and the interval of E is wide."
    few = torch.cartesian_prod(SIZES[:3], BUDGETS[:3])
    loss = noisy(TRUTH, few, 0.004, 5)
    law, many = fit_power_law(few, loss), bootstrap(few, loss, seed=5)
    low, high = interval(many.floor)
    assert float((law(few).log() - loss.log()).abs().median()) < 0.004 and high - low > 0.5
    assert float((fit_power_law(few, loss, floor=2.4).exponents - TRUTH.exponents).abs().max()) < 0.05


def test_a_wrong_floor_bends_the_exponents():
    loss = TRUTH(RUNS)
    low, right, high = (fit_power_law(RUNS, loss, floor=floor).exponents for floor in (1.8, 2.4, 2.8))
    assert (low < right).all() and (right < high).all()
    torch.testing.assert_close(right, TRUTH.exponents, rtol=1e-3, atol=0)


def test_a_law_without_a_floor_is_fitted_as_one():
    "Kaplan's form: with a floor of 0, one power of N."
    law = fit_power_law(SIZES, 7. * SIZES**-0.2, floor=0.)
    torch.testing.assert_close(law.constants(), torch.tensor([0., 7., 0.2]).double(), rtol=1e-4, atol=1e-6)
    assert float(fit_power_law(SIZES, power_law(1., (7., 0.3))(SIZES[:, None]), floor=0.).exponents) < 0.3


def test_the_order_of_runs_and_their_units_do_not_matter():
    loss = noisy(TRUTH, RUNS, 0.004, 6)
    law, order = fit_power_law(RUNS, loss), torch.randperm(len(RUNS), generator=seeded(1))
    torch.testing.assert_close(fit_power_law(RUNS[order], loss[order]).constants(), law.constants(), rtol=1e-4, atol=0)
    millions = fit_power_law(RUNS / 1e6, loss)
    torch.testing.assert_close(millions(RUNS / 1e6), law(RUNS), rtol=1e-5, atol=0)


@pytest.mark.parametrize("x, loss, floor, named", [
    (RUNS, TRUTH(RUNS)[:-1], None, "loss"), (-RUNS, TRUTH(RUNS), None, "x"), (RUNS, 0 * TRUTH(RUNS), None, "loss"), (RUNS[:4], TRUTH(RUNS[:4]), None, "x"),
    (RUNS, TRUTH(RUNS), 99., "floor"), (RUNS, TRUTH(RUNS), -1., "floor"), (RUNS, TRUTH(RUNS) * math.nan, None, "loss")])
def test_bad_runs_are_refused(x, loss, floor, named):
    with pytest.raises(ValueError, match=f"^{named}: "): fit_power_law(x, loss, floor)


# --- what follows from a law ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("law", [TRUTH, *PUBLISHED_LAWS.values()])
@pytest.mark.parametrize("C", [1e13, 5.76e23])
def test_no_other_size_is_better_at_this_cost(law, C):
    N, D = compute_optimal(law, C)
    assert float(6 * N * D) == pytest.approx(C)
    sizes = N * torch.logspace(-2, 2, 2001).double()
    losses = law(torch.stack([sizes, C / 6 / sizes], 1))
    assert float(sizes[losses.argmin()] / N) == pytest.approx(1, rel=0.01)


def test_the_published_laws_recommend_what_their_authors_say():
    "Hoffmann et al.: by the third approach 40 billion parameters at Gopher's budget, N ∝ C^0.46; Besiroglu et al.: 0.513 and about 20 tokens a parameter."
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
    assert (N, D) == pytest.approx([float(part) for part in compute_optimal(law, 6 * N * D)], rel=0.01)
    for N, D in found: assert float(law(torch.tensor([[N, D]]))) == pytest.approx(2.1, abs=1e-6)
    with pytest.raises(ValueError, match="^loss: "): lifetime_optimal(law, 1.8, 0.)


# --- without a law ----------------------------------------------------------------------------------------------------

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
    quiet, loud = (size_exponents(x[:, 0], flops, noisy(TRUTH, x, noise, 7), wanted, isoflop_minima, samples=30) for noise in (1e-3, 1e-2))
    low, high = interval(quiet)
    assert low - 0.05 < float(best_exponent(TRUTH)) < high + 0.05 and quiet.std() < loud.std()
    _, table = loss_table(torch.tensor([1., 1., 1.]), torch.tensor([1., 1., 100.]), torch.tensor([3., 5., 1.]), torch.tensor([1., 10.]))
    torch.testing.assert_close(table, torch.tensor([[4., 2.]]))


def test_nothing_is_said_outside_of_the_runs():
    C, loss = torch.tensor([1., 10., 100.]).double(), torch.tensor([4., 2., 1.]).double()
    torch.testing.assert_close(at_compute(C, loss, torch.tensor([0.5, 1., 10**0.5, 100., 101.]).double()), torch.tensor([math.nan, 4., 8**0.5, 1., math.nan]).double(), equal_nan=True)
    falling = torch.tensor([[3., 3.], [2., 2.5], [1., 2.7]]).double()
    assert envelope(torch.tensor([1., 2., 3.]), falling).isnan().tolist() == [True, False]
    assert isoflop_minima(torch.tensor([1., 10., 100.]), falling).isnan()[0]


# --- repeated data ----------------------------------------------------------------------------------------------------

def test_repeated_tokens_are_worth_less_and_less():
    worth = effective_tokens(100., torch.tensor([1., 2., 4., 16., 1e9]))
    assert worth[0] == 100 and (worth.diff() > 0).all() and float(worth[-1]) == pytest.approx(1638.8, abs=0.1)
    assert float(worth[2]) == pytest.approx(100 * (1 + 15.387756 * (1 - math.exp(-3 / 15.387756))))
    with pytest.raises(ValueError, match="^epochs: "): effective_tokens(1., 0.5)
