"""A person whose records are drawn one by one: δ and ε against brute force in float64."""

import fractions
import functools
import json
import math

import dp_accounting
import numpy as np
import pytest
import slow
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import privacy_loss_distribution
from scipy import special, stats

import tfdp
from tfdp._compat.dp_accounting import parts_of, pmfs_of
from tfdp.accounting import calibrate_noise_multiplier, epsilon
from tfdp.accounting.accountants import best_accountant
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.events.registry import event_from_dict, event_to_dict
from tfdp.accounting.losses.mixture_losses import (
    binomial_weights,
    mixture_losses,
    mixture_renyi,
    records_of_unit_event,
)

INTERVAL = 1e-3
#: (k, q, σ)
SETTINGS = [(1, 0.2, 0.8), (2, 0.3, 1.0), (5, 0.05, 0.7), (20, 0.01, 1.5), (50, 0.4, 12.0)]
MORE = [SETTINGS[1], SETTINGS[3]]  # few of what others have more and less of
EPSILONS = np.array([-1.0, -0.1, 0.0, 0.05, 0.3, 1.0, 2.5, 6.0])


def everyday(settings):
    return slow.cases([(one,) for one in settings], slow=[(one,) for one in MORE])


class Exact:
    """Without the person t ~ N(0, 1), with it t ~ Σ_j w_j N(s_j, 1); nothing here asks tfdp."""

    def __init__(self, k, q, sigma):
        self.shifts = np.arange(k + 1) / sigma
        self.weights = stats.binom.pmf(np.arange(k + 1), k, q)

    def densities(self, t):
        """Without the person, and with it."""
        with_person = sum(
            w * _density(t - s) for w, s in zip(self.weights, self.shifts, strict=True)
        )
        return _density(t), with_person

    def loss(self, t):
        exponents = np.multiply.outer(t, self.shifts) - self.shifts**2 / 2
        return special.logsumexp(exponents, b=self.weights, axis=-1)

    def delta(self, epsilon, direction):
        """max over events S of P[S] - e^epsilon P'[S]: S is a half line; for numbers and arrays."""
        epsilon = np.asarray(epsilon, float)
        wanted = epsilon if direction == "remove" else -epsilon
        low, high = np.full(epsilon.shape, -40.0), np.full(epsilon.shape, 400.0)
        for _ in range(64):
            middle = (low + high) / 2
            below = self.loss(middle) < wanted
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        left, all_left = special.ndtr(high), special.ndtr(np.subtract.outer(high, self.shifts))
        right, all_right = special.ndtr(-high), special.ndtr(np.subtract.outer(-high, -self.shifts))
        if direction == "remove":
            return all_right @ self.weights - np.exp(epsilon) * right
        return left - np.exp(epsilon) * (all_left @ self.weights)

    def delta_of_two(self, epsilon, direction):
        """δ of two steps: of the second one, over the outcomes of the first."""
        t = np.linspace(-12, 12 + self.shifts[-1], 4000)
        without, with_person = self.densities(t)
        upper = with_person if direction == "remove" else without
        losses = self.loss(t) if direction == "remove" else -self.loss(t)
        return np.sum(upper * self.delta(epsilon - losses, direction)) * (t[1] - t[0])


def _density(t):
    return np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)


def brute_force(exact, epsilon, direction):
    """∫ max(p - e^epsilon p', 0), the hockey-stick divergence as it is defined."""
    t = np.linspace(-15, 15 + exact.shifts[-1], 40_001)
    without, with_person = exact.densities(t)
    p, other = (with_person, without) if direction == "remove" else (without, with_person)
    return np.sum(np.maximum(p - math.exp(epsilon) * other, 0)) * (t[1] - t[0])


@functools.cache
def losses_of(k, q, sigma, interval=INTERVAL, steps=1):
    losses = mixture_losses(records_of_unit_event(sigma, q, k), interval)
    return losses if steps == 1 else losses.self_compose(steps)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("setting",), everyday(SETTINGS))
def test_one_step_is_never_below_the_exact_divergence_and_hardly_above(setting, direction):
    exact = Exact(*setting)
    deltas = exact.delta(EPSILONS, direction)
    np.testing.assert_allclose(
        deltas[2:6], [brute_force(exact, e, direction) for e in EPSILONS[2:6]], atol=2e-8
    )
    pmf = pmfs_of(losses_of(*setting))[0 if direction == "remove" else 1]
    found = np.array([pmf.get_delta_for_epsilon(e) for e in EPSILONS])
    # These losses are on the grid, where connecting the dots is exact.
    np.testing.assert_allclose(found, deltas, rtol=1e-9, atol=3e-15)
    between = EPSILONS + 0.37 * INTERVAL
    deltas = exact.delta(between, direction)
    found = np.array([pmf.get_delta_for_epsilon(e) for e in between])
    assert np.all(found >= deltas * (1 - 1e-9) - 3e-15)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("setting",), everyday(SETTINGS[1:4]))
def test_two_steps_are_never_below_the_exact_divergence_and_hardly_above(setting, direction):
    exact = Exact(*setting)
    pmf = pmfs_of(losses_of(*setting, 1e-4, 2))[0 if direction == "remove" else 1]
    for e in (0.1, 0.8, 2.0):
        delta = exact.delta_of_two(e, direction)
        assert delta * (1 - 1e-7) - 1e-14 <= pmf.get_delta_for_epsilon(e) <= delta * 1.001 + 3e-15


@pytest.mark.parametrize("setting", [(3, 0.1, 1.0), (8, 0.02, 2.0)])
def test_epsilon_is_that_of_both_directions(setting):
    k, q, sigma = setting
    exact = Exact(*setting)
    for delta in (1e-3, 1e-7):
        stated = epsilon(records_of_unit_event(sigma, q, k), delta)
        worst = max(exact.delta(stated, d) for d in ("remove", "add"))
        assert worst <= delta * (1 + 1e-9)
        worst = max(exact.delta(stated * (1 - 1e-3), d) for d in ("remove", "add"))
        assert worst > delta


@pytest.mark.parametrize("steps", [1, 200])
def test_compositions_are_those_of_dp_accounting(steps):
    for k, q, sigma in ((2, 0.3, 1.5), (12, 0.02, 3.0)):
        event = records_of_unit_event(sigma, q, k)
        theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            sigma, event.sensitivities, event.sampling_probs, value_discretization_interval=0.02
        )
        ours = mixture_losses(event, 0.02)
        for delta in (1e-2, 1e-6):
            found, expected = (
                one.self_compose(steps).get_epsilon_for_delta(delta) for one in (ours, theirs)
            )
            assert found == pytest.approx(expected, rel=1e-4)


def test_one_record_is_the_ordinary_poisson_sampled_gaussian():
    gaussian = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(0.9))
    assert training_event(0.9, 0.05, records=1) == gaussian
    as_mixture = records_of_unit_event(0.9, 0.05, 1)
    for steps in (1, 100):
        events = [dp_accounting.SelfComposedDpEvent(e, steps) for e in (gaussian, as_mixture)]
        ordinary, mixture = (epsilon(e, 1e-5) for e in events)
        assert mixture == pytest.approx(ordinary, rel=1e-8)


def test_records_that_are_always_drawn_are_one_gaussian_of_k_times_the_sensitivity():
    assert training_event(6.0, 1, records=3) == dp_accounting.GaussianDpEvent(2.0)
    # The same from the other side: nearly always.
    nearly = training_event(6.0, 1 - 1e-12, records=3)
    assert epsilon(nearly, 1e-5) == pytest.approx(epsilon(training_event(2.0, 1), 1e-5), rel=1e-4)
    assert isinstance(training_event(0.0, 0.1, records=3), dp_accounting.NonPrivateDpEvent)


@pytest.mark.parametrize(("k", "q"), [(1, 0.3), (4, 0.1), (50, 1e-7), (400, 0.9)])
def test_weights_are_the_binomial_ones_to_the_last_digit(k, q):
    exact = fractions.Fraction(q)
    expected = [float(math.comb(k, j) * exact**j * (1 - exact) ** (k - j)) for j in range(k + 1)]
    assert binomial_weights(k, q) == tuple(expected)
    event = records_of_unit_event(2.0, q, k)
    assert event.sensitivities == tuple(range(k + 1)) and event.sampling_probs == tuple(expected)


def test_a_person_with_fewer_records_costs_less_in_both_directions():
    """So that k may be a bound: what a person with 3 records can cost is below that of 5."""
    few, many = Exact(3, 0.1, 1.1), Exact(5, 0.1, 1.1)
    for direction in ("remove", "add"):
        for e in (-0.5, 0.0, 0.2, 1.0, 3.0):
            assert few.delta(e, direction) <= many.delta(e, direction) + 1e-15


def test_records_that_do_not_point_the_same_way_cost_less():
    """Two records whose contributions stand at an angle, in the plane: their sum is shorter."""
    q, sigma = 0.3, 1.2
    aligned = Exact(2, q, sigma)
    t = np.linspace(-10, 12, 1101)
    x, y = np.meshgrid(t, t, indexing="ij")
    area = (t[1] - t[0]) ** 2
    without = _density(x) * _density(y)
    for angle in (0.5, np.pi / 2, np.pi):
        a = np.array([1.0, 0.0]) / sigma
        b = np.array([np.cos(angle), np.sin(angle)]) / sigma
        weights = {(0, 0): (1 - q) ** 2, (1, 0): q * (1 - q), (0, 1): q * (1 - q), (1, 1): q * q}
        with_person = np.zeros_like(x)
        for (i, j), weight in weights.items():
            shift = i * a + j * b
            with_person += weight * _density(x - shift[0]) * _density(y - shift[1])
        for e in (0.0, 0.3, 1.0):
            removed = np.sum(np.maximum(with_person - math.exp(e) * without, 0)) * area
            added = np.sum(np.maximum(without - math.exp(e) * with_person, 0)) * area
            assert removed <= aligned.delta(e, "remove") + 1e-6
            assert added <= aligned.delta(e, "add") + 1e-6


def test_the_cost_lies_between_that_of_one_record_and_of_a_group():
    sigma, q, steps, delta = 2.0, 0.02, 100, 1e-6
    cost = [
        epsilon(
            dp_accounting.SelfComposedDpEvent(training_event(sigma, q, records=k), steps), delta
        )
        for k in (1, 2, 5, 20)
    ]
    assert np.all(np.diff(cost) > 0)
    # A person that is drawn as a whole, with its k records clipped one by one: drawn less often
    # than one of its records is, and never with less than all of them.
    group = training_event(sigma / 5, 1 - (1 - q) ** 5)
    assert cost[2] < epsilon(dp_accounting.SelfComposedDpEvent(group, steps), delta)


def test_renyi_divergences_are_bounded_in_both_directions():
    event, exact = records_of_unit_event(1.3, 0.2, 4), Exact(4, 0.2, 1.3)
    t = np.linspace(-40, 60, 200_001)
    without, with_person = (np.maximum(d, 1e-300) for d in exact.densities(t))
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    bounds = mixture_renyi(event, orders)
    for a, bound in zip(orders, bounds, strict=True):
        for p, other in ((with_person, without), (without, with_person)):
            moment = np.sum(np.exp(a * np.log(p) + (1 - a) * np.log(other))) * (t[1] - t[0])
            assert math.log(moment) / (a - 1) <= bound
    composed = dp_accounting.SelfComposedDpEvent(event, 10)
    assert epsilon(composed, 1e-5, "pld") < epsilon(composed, 1e-5, "rdp") < math.inf


def test_so_little_noise_that_losses_take_too_much_memory_goes_to_rdp():
    little = dp_accounting.SelfComposedDpEvent(training_event(0.05, 0.01, records=5), 100)
    assert (
        best_accountant(little) == "rdp"
        and best_accountant(training_event(1, 0.01, records=5)) == "pld"
    )
    assert 100 < epsilon(little, 1e-5, "rdp") < math.inf
    many = dp_accounting.SelfComposedDpEvent(training_event(1.0, 0.5, records=5), 10**5)
    assert best_accountant(many) == "rdp"


def test_the_best_of_several_runs_has_an_epsilon():
    trained = dp_accounting.SelfComposedDpEvent(training_event(8.0, 0.01, records=3), 20)
    best = dp_accounting.dp_event.RepeatAndSelectDpEvent(trained, 10.0, 1.0)
    assert best_accountant(best) == "rdp"
    assert epsilon(trained, 1e-5, "rdp") < epsilon(best, 1e-5, "rdp") < math.inf


def test_adjacencies():
    event = dp_accounting.SelfComposedDpEvent(training_event(2.0, 0.1, records=3), 20)
    assert epsilon(event, 1e-5, adjacency="zero_out") == epsilon(event, 1e-5)
    for accountant in ("pld", "rdp"):
        with pytest.raises(ValueError, match="no rule"):
            epsilon(event, 1e-5, accountant, "replace_one")


def test_mixtures_that_are_no_mixture_are_refused_or_not_private():
    assert epsilon(MixtureOfGaussiansDpEvent(0.0, (0.0, 1.0), (0.5, 0.5)), 1e-5) == math.inf
    assert epsilon(MixtureOfGaussiansDpEvent(1.0, (0.0,), (1.0,)), 1e-5) == 0
    for sensitivities, weights in (((0.0, 1.0), (0.5, 0.4)), ((-1.0, 1.0), (0.5, 0.5))):
        with pytest.raises(ValueError, match="mixture of Gaussians"):
            epsilon(MixtureOfGaussiansDpEvent(1.0, sensitivities, weights), 1e-5)
    with pytest.raises(ValueError, match='sampling_unit="person"'):
        training_event(1.0, 0.1, "concentrated", 2)
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match="records"):
            training_event(1.0, 0.1, records=wrong)


@pytest.mark.thorough
def test_sensitivities_in_any_order_and_without_a_zero():
    one = MixtureOfGaussiansDpEvent(1.5, (2.0, 0.5, 1.0), (0.2, 0.5, 0.3))
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.5, sorted(one.sensitivities), (0.5, 0.3, 0.2), value_discretization_interval=1e-2
    )
    ours = mixture_losses(one, 1e-2)
    for e in (-3.0, 0.0, 0.5, 2.0):
        found, expected = (losses.get_delta_for_epsilon(e) for losses in (ours, theirs))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-14)


def test_a_sensitivity_that_has_no_probability_changes_nothing_and_warns_of_nothing():
    with_zero = MixtureOfGaussiansDpEvent(1.5, (0.0, 1.0, 2.0, 9.0), (0.5, 0.0, 0.5, 0.0))
    without = MixtureOfGaussiansDpEvent(1.5, (0.0, 2.0), (0.5, 0.5))
    with np.errstate(all="raise", under="ignore"):
        found, expected = (pmfs_of(mixture_losses(e, 0.1)) for e in (with_zero, without))
    for one, other in zip(found, expected, strict=True):
        for part, same in zip(parts_of(one), parts_of(other), strict=True):
            np.testing.assert_array_equal(part, same)


def test_a_sensitivity_so_rare_that_it_is_left_out_counts_as_an_infinite_loss():
    rare = 1.9e-22  # below e^-50
    weights = (0.5, 0.5, 1e-10, 1e-20, rare)
    event = MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0, 2.0, 3.0, 100.0), weights)
    *_, infinity = parts_of(pmfs_of(mixture_losses(event, 0.1))[0])
    without = MixtureOfGaussiansDpEvent(1.0, event.sensitivities[:-1], weights[:-1])
    *_, otherwise = parts_of(pmfs_of(mixture_losses(without, 0.1))[0])
    assert infinity == pytest.approx(otherwise + rare, rel=1e-9, abs=0)
    assert 0 < otherwise < rare


@pytest.mark.parametrize("rare", [5e-17, 1e-19])
def test_a_sensitivity_that_sums_do_not_see_beside_others_counts(rare):
    event = MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0, 100.0), (0.5, 0.5, rare))
    losses = mixture_losses(event, 0.1)
    # A unit that moves the sum by 100 is seen with certainty.
    assert losses.get_delta_for_epsilon(30.0) >= 0.999 * rare


def test_the_event_goes_through_json():
    event = training_event(1.7, 0.03, records=7)
    again = event_from_dict(json.loads(json.dumps(event_to_dict(event))))
    assert again == event and isinstance(again, MixtureOfGaussiansDpEvent)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(("k", "q", "steps"), [(2, 0.01, 1000), (10, 0.02, 300), (50, 0.05, 2000)])
def test_a_calibration_spends_the_budget_and_no_more(k, q, steps):
    budget = tfdp.PrivacyBudget(4.0, 1e-5)
    sigma = calibrate_noise_multiplier(budget, q, steps, max_records_per_unit=k)
    event = dp_accounting.SelfComposedDpEvent(training_event(sigma, q, records=k), steps)
    assert 4.0 * (1 - 1e-3) <= epsilon(event, 1e-5) <= 4.0
    assert sigma > calibrate_noise_multiplier(budget, q, steps)
