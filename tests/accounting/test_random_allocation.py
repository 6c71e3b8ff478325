"""Random allocation: ε is an upper bound, in both directions, and a tight one."""

import math

import dp_accounting
import numpy as np
import pytest
import slow
from scipy import integrate, special, stats

from tfdp._compat.dp_accounting import parts_of, pmfs_of
from tfdp.accounting import Ledger, PrivacyBudget, Sampling, calibrate_random_allocation, epsilon
from tfdp.accounting.charges.mechanisms import ForwardNoise, PrivateTraining
from tfdp.accounting.events.composition import compose
from tfdp.accounting.events.random_allocation import RandomAllocationGaussianDpEvent as Allocation
from tfdp.accounting.losses import allocation_losses as numerics
from tfdp.accounting.losses.gaussian_losses import gaussian_losses

_INTERVAL = 1e-4
_NO_TAIL = 12.0  # standard deviations


def losses(sigma, steps):
    return numerics.allocation_losses(sigma, steps, _INTERVAL)


def deltas(pld, epsilons):
    """δ by removing and by adding, at several ε."""
    remove, add = pld._pmf_remove, pld._pmf_add
    return tuple(np.array([p.get_delta_for_epsilon(e) for e in epsilons]) for p in (remove, add))


def of_two_steps(sigma, epsilons):
    """The exact δ of T = 2: for each second outcome, the first has a closed form."""
    s = 1 / sigma

    def of(eps, remove):
        def given(z2):
            x2 = math.exp(s * z2 - s * s / 2)
            level = math.exp(eps) if remove else math.exp(-eps)
            c = 2 * level - x2  # X₁ where A is the level
            z = -np.inf if c <= 0 else (math.log(c) + s * s / 2) / s
            up_q, up_p = special.ndtr(-z), special.ndtr(s - z)
            low_q, low_p = special.ndtr(z), special.ndtr(z - s)
            if remove:
                inner = (up_p + x2 * up_q) / 2 - math.exp(eps) * up_q
            else:
                inner = low_q - math.exp(eps) * (low_p + x2 * low_q) / 2
            return inner * math.exp(-z2 * z2 / 2) / math.sqrt(2 * math.pi)

        edges = np.linspace(-_NO_TAIL, _NO_TAIL + s, 60)
        parts = [
            integrate.quad(given, a, b, epsabs=1e-15, epsrel=1e-9)[0]
            for a, b in zip(edges[:-1], edges[1:], strict=True)
        ]
        return math.fsum(parts)

    return tuple(np.array([of(e, remove) for e in epsilons]) for remove in (True, False))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_two_steps_are_never_below_the_exact_divergence_and_close_to_it(sigma):
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    for stated, exact in zip(
        deltas(losses(sigma, 2), epsilons), of_two_steps(sigma, epsilons), strict=True
    ):
        assert (stated >= exact - 1e-13).all()  # the error of the quadrature
        visible = exact > 1e-9
        np.testing.assert_allclose(stated[visible], exact[visible], rtol=2e-3)


def by_linear_grid(sigma, steps, epsilons, points=1 << 19, largest=60.0):
    """An independent computation: X_t to the nearest point of a linear grid, added by FFT."""
    width = largest / points
    edges = (np.arange(points + 1) - 0.5) * width
    mean, scale = -0.5 / sigma**2, 1 / sigma
    with np.errstate(divide="ignore"):
        cdf = special.ndtr((np.log(np.maximum(edges, 0)) - mean) / scale)
    transform = np.fft.rfft(np.diff(cdf))
    mass = np.maximum(np.fft.irfft(transform**steps, points), 0)
    a = np.arange(points) * width / steps
    remove = [float(mass @ np.maximum(a - math.exp(e), 0)) for e in epsilons]
    add = [float(mass @ np.maximum(1 - math.exp(e) * a, 0)) for e in epsilons]
    return np.array(remove), np.array(add)


@pytest.mark.parametrize(
    ("sigma", "steps"),
    slow.cases(
        [(1.0, 3), (1.0, 4), (1.5, 10), (2.0, 7), (2.0, 17), (3.0, 4), (4.0, 25), (5.0, 12)],
        slow=[(1.5, 10), (2.0, 7), (3.0, 4), (4.0, 25), (5.0, 12)],
    ),
)
def test_both_directions_at_eight_settings_against_an_independent_convolution(sigma, steps):
    epsilons = np.array([0.02, 0.1, 0.3])
    other = by_linear_grid(sigma, steps, epsilons)
    for stated, found in zip(deltas(losses(sigma, steps), epsilons), other, strict=True):
        visible = found > 1e-6
        np.testing.assert_allclose(stated[visible], found[visible], rtol=5e-3)
        assert (stated >= found * (1 - 1e-4) - 1e-9).all()


@pytest.mark.parametrize(("sigma", "steps"), [(0.6, 30), (1.0, 40)])
def test_divergences_are_not_below_what_simulation_finds(sigma, steps):
    # A false alarm in 1e-6 of runs: one-sided bounds of 4 binomial frequencies.
    draws, rng = 40_000, np.random.default_rng(0)
    z = rng.normal(size=(draws, steps)) / sigma - 0.5 / sigma**2
    add = special.logsumexp(z, axis=1) - math.log(steps)  # ln A under Q
    z[:, 0] += sigma**-2
    remove = special.logsumexp(z, axis=1) - math.log(steps)  # ln A under P
    for eps in (0.1, 0.4):
        at_p, at_q = (remove > eps).sum(), (add > eps).sum()
        assert min(at_p, at_q) > 0
        lower = stats.beta.ppf(2.5e-7, at_p, draws - at_p + 1)
        upper = stats.beta.isf(2.5e-7, at_q + 1, draws - at_q)
        stated, _ = deltas(losses(sigma, steps), [eps])
        assert stated[0] >= lower - math.exp(eps) * upper
        # The same event, under the other direction's roles.
        p_low, q_low = (remove < -eps).sum(), (add < -eps).sum()
        assert min(p_low, q_low) > 0
        lower = stats.beta.ppf(2.5e-7, q_low, draws - q_low + 1)
        upper = stats.beta.isf(2.5e-7, p_low + 1, draws - p_low)
        _, stated = deltas(losses(sigma, steps), [eps])
        assert stated[0] >= lower - math.exp(eps) * upper


@pytest.mark.parametrize(("sigma", "steps"), [(0.3, 2), (1.0, 7), (0.5, 64), (2.0, 1000)])
def test_roundings_keep_probability_and_mean_and_only_spread(sigma, steps):
    total, spacing = numerics._sum_of(steps, sigma)
    a = np.exp((total.low + np.arange(len(total.mass))) * spacing) / steps
    assert total.count == steps
    assert total.mass.min() >= 0
    assert total.mass.sum() + total.zero == pytest.approx(1, abs=1e-11)
    assert total.mass @ a + total.lost / steps == pytest.approx(1, abs=1e-11)
    assert 0 <= total.zero < 1e-16
    assert 0 <= total.lost / steps < 1e-16
    variance = total.mass @ (a - 1) ** 2
    exact = math.expm1(sigma**-2) / steps
    assert exact * (1 - 1e-9) <= variance <= exact * 1.01


def test_a_spread_of_one_pair_is_exact():
    one = numerics._Sum(1, 5, np.array([1.0]), 0.0, 0.0)
    other = numerics._Sum(1, -30, np.array([0.25, 0.5]), 0.25, 0.0)
    total = numerics._added(one, other, 0.1)
    points = np.exp((total.low + np.arange(len(total.mass))) * 0.1)
    expected = math.exp(0.5) + 0.25 * math.exp(-3.0) + 0.5 * math.exp(-2.9)
    assert total.mass.sum() == pytest.approx(1, abs=1e-14)
    assert total.mass @ points == pytest.approx(expected, rel=1e-14)
    np.testing.assert_array_equal(np.flatnonzero(total.mass) + total.low, [5, 6])


def test_one_step_is_a_gaussian():
    for delta in (1e-3, 1e-6):
        one = epsilon(Allocation(1, 1.3), delta)
        assert one == pytest.approx(epsilon(dp_accounting.GaussianDpEvent(1.3), delta), rel=1e-9)
        # And the general computation agrees with it.
        assert losses(1.3, 1).get_epsilon_for_delta(delta) == pytest.approx(one, rel=1e-4)
        assert losses(1.3, 1).get_epsilon_for_delta(delta) >= one - 1e-9


@pytest.mark.thorough
def test_more_noise_more_steps_and_fewer_epochs_cost_less():
    def cost(sigma, steps, epochs):
        return epsilon(compose([(Allocation(steps, sigma), epochs)]), 1e-6)

    assert cost(1.0, 20, 3) < cost(0.9, 20, 3)
    assert cost(1.0, 21, 3) < cost(1.0, 20, 3)
    assert cost(1.0, 20, 2) < cost(1.0, 20, 3)
    assert (
        cost(1.0, 40, 3)
        < cost(1.0, 20, 3)
        < epsilon(compose([(dp_accounting.GaussianDpEvent(1.0), 3)]), 1e-6)
    )


def test_epochs_compose_as_the_two_pairs_do():
    # T = 1: E Gaussians are one of σ/√E, so that composition is checked against a closed form.
    composed = losses(2.0, 1).self_compose(4)
    exact = gaussian_losses(1.0, 1, _INTERVAL).get_epsilon_for_delta(1e-5)
    assert exact - 1e-9 <= composed.get_epsilon_for_delta(1e-5) <= exact * 1.001


def test_where_nothing_is_proven_it_is_refused():
    with pytest.raises(ValueError, match="no rule for this event under adjacency"):
        epsilon(Allocation(10, 1.0), 1e-6, adjacency="replace_one")
    with pytest.raises(ValueError, match="no rule for this event under adjacency"):
        epsilon(Allocation(10, 1.0), 1e-6, accountant="rdp", adjacency="replace_one")
    sampling = Sampling("allocated", 100, 10)
    with pytest.raises(
        ValueError, match="Random allocation can be accounted for only if each step is"
    ):
        PrivateTraining(1.0, 1.0, sampling, 100, mechanism="concentrated")


def test_rdp_knows_no_amplification_and_is_above_pld():
    event = compose([(Allocation(10, 2.0), 3)])
    gaussian = compose([(dp_accounting.GaussianDpEvent(2.0), 3)])
    assert epsilon(event, 1e-6, "rdp") == pytest.approx(epsilon(gaussian, 1e-6, "rdp"))
    assert epsilon(event, 1e-6, "pld") < epsilon(event, 1e-6, "rdp")


def test_next_to_no_noise_is_left_to_rdp():
    event = Allocation(10, 0.03)
    with pytest.raises(ValueError, match='Use accountant="rdp", or more noise'):
        epsilon(event, 1e-6, "pld")
    ledger = Ledger()
    ledger.add("training", event)
    assert 1 / (2 * 0.03**2) < ledger.epsilon(1e-6) < math.inf
    assert epsilon(Allocation(10, 0.1), 1e-6, "pld") < epsilon(Allocation(10, 0.1), 1e-6, "rdp")


def test_without_noise_nothing_is_private():
    assert math.isinf(epsilon(Allocation(10, 0.0), 1e-6))


def test_a_budget_is_met_and_used_up():
    sigma = calibrate_random_allocation(PrivacyBudget(1.5, 1e-5), 10, 4)
    reached = epsilon(compose([(Allocation(10, sigma), 4)]), 1e-5)
    assert 0.999 * 1.5 <= reached <= 1.5


def test_an_epoch_that_was_begun_costs_a_whole_one():
    sampling = Sampling("allocated", 100, 10, max_batch_size=20, steps_per_epoch=10)
    mechanism = PrivateTraining(1.0, 1.0, sampling, 100)
    for steps, epochs in ((1, 1), (10, 1), (11, 2), (25, 3)):
        (entry,) = mechanism.entries(steps, "run")
        assert (entry.event, entry.count) == (Allocation(10, 1.0), epochs)
        assert entry.adjacency is None
        assert entry.details["steps"] == steps
    # A part of it that comes again and again is an epoch each time.
    short = PrivateTraining(1.0, 1.0, Sampling("allocated", 100, 10, steps_per_epoch=2), 100)
    (entry,) = short.entries(4, "run")
    assert (entry.event, entry.count) == (Allocation(10, 1.0), 2)
    # Steps beyond what a tuning paid for are epochs of their own.
    assert mechanism.unpaid(12, 10) == 12


def test_overflow_is_charged_for_all_steps_of_an_epoch():
    sampling = Sampling("allocated", 100, 10, max_batch_size=18, steps_per_epoch=10)
    of_one = stats.binom.sf(18, 101, 0.1)  # of the larger neighbour
    assert sampling.overflow_probability == pytest.approx(10 * of_one)
    short = Sampling("allocated", 100, 10, max_batch_size=18, steps_per_epoch=2)
    assert short.overflow_probability == sampling.overflow_probability


def test_a_share_that_is_no_whole_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="records are allocated to a whole number of steps"):
        Sampling("allocated", 100, 30)
    with pytest.raises(ValueError, match="an epoch has no more steps"):
        Sampling("allocated", 100, 10, steps_per_epoch=11)


def test_forward_noise_gains_nothing_from_allocation():
    sampling = Sampling("allocated", 100, 10, steps_per_epoch=10)
    (entry,) = ForwardNoise(2.0, "zero_out", sampling, 100).entries(15, "run")
    assert (entry.event, entry.count) == (dp_accounting.GaussianDpEvent(2.0), 2)


@pytest.mark.thorough
def test_allocation_costs_less_than_poisson_samples_at_equal_noise():
    for sigma, steps, epochs in ((0.7, 20, 1), (1.0, 50, 5), (3.0, 10, 20)):
        allocated = epsilon(compose([(Allocation(steps, sigma), epochs)]), 1e-6)
        event = dp_accounting.PoissonSampledDpEvent(1 / steps, dp_accounting.GaussianDpEvent(sigma))
        sampled = epsilon(compose([(event, steps * epochs)]), 1e-6)
        assert 0.5 * sampled < allocated < sampled


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_coarse_roundings_and_tails_cost_and_never_save(sigma, monkeypatch):
    # Roundings so large that each direction would show; all of them must go up.
    monkeypatch.setattr(numerics, "_POINTS", 32)
    monkeypatch.setattr(numerics, "_DEVIATIONS", 2.0)
    monkeypatch.setattr(numerics, "_TAIL", 0.02)
    epsilons = np.array([-0.5, 0.0, 0.3, 1.0, 3.0])
    coarse = deltas(numerics.allocation_losses.__wrapped__(sigma, 2, 0.05), epsilons)
    for stated, exact in zip(coarse, of_two_steps(sigma, epsilons), strict=True):
        assert (stated >= exact).all()
        assert (stated <= 1.01).all()


def test_what_a_tail_had_of_the_mean_is_moved_to_infinity(monkeypatch):
    monkeypatch.setattr(numerics, "_DEVIATIONS", 2.0)
    one = numerics._single(1.0, 0.05)
    points = np.exp((one.low + np.arange(len(one.mass))) * 0.05)
    assert one.mass.sum() + one.zero == pytest.approx(1, abs=1e-14)
    assert 1 <= one.mass @ points + one.lost < 1.2
    monkeypatch.setattr(numerics, "_TAIL", 0.1)
    whole = numerics._Sum(2, 0, np.array([0.06, 0.5, 0.2, 0.147, 0.003]), 0.09, 0.0)
    cut = numerics._trimmed(whole, 1.0)
    assert (cut.low, len(cut.mass)) == (1, 3)
    np.testing.assert_allclose(cut.mass, [0.5, 0.2, 0.15])
    assert cut.zero == pytest.approx(0.15)
    assert cut.lost == pytest.approx(0.06 + 0.003 * math.exp(4))


def test_sums_lose_what_both_of_their_parts_lost():
    """A part of the mean that is at infinity stays there, whatever is added."""
    a = numerics._Sum(1, 3, np.array([0.25, 0.5]), 0.25, 0.125)
    b = numerics._Sum(2, -4, np.array([0.5, 0.25, 0.125]), 0.125, 0.0625)

    def mean(x):
        return x.mass @ np.exp((x.low + np.arange(len(x.mass))) * 0.1) + x.lost

    for total, parts in ((numerics._added(a, b, 0.1), (a, b)), (numerics._twice(a, 0.1), (a, a))):
        assert total.lost == sum(part.lost for part in parts)
        assert total.mass.sum() + total.zero == pytest.approx(1, rel=1e-15)
        assert mean(total) == pytest.approx(sum(map(mean, parts)), rel=1e-14)


def test_losses_of_a_known_sum_are_rounded_up_in_both_directions(monkeypatch):
    # One point of mass 1/2, 1/4 at 0, and 1/8 of the mean lost, as if of T = 1,000 steps.
    steps, spacing = 1000, 0.01
    known = numerics._Sum(steps, 700, np.array([0.5]), 0.25, 0.125)
    monkeypatch.setattr(numerics, "_sum_of", lambda *_: (known, spacing))
    pld = numerics.allocation_losses.__wrapped__(1.0, steps, _INTERVAL)
    (_, _, remove, remove_lost), (_, low_of_add, add, add_lost) = map(parts_of, pmfs_of(pld))
    # Relative errors of additions double with each of them; those of A are below 1e-12.
    more = 1 + 4 * steps * (2 * 4096 + 64) * 2.0**-53
    a = math.exp(7.0) / steps
    assert remove_lost == pytest.approx(0.125 / steps * more, rel=1e-14)
    assert add_lost == pytest.approx(0.25 * more, rel=1e-14)
    assert math.fsum(add) == pytest.approx(0.5 * more, rel=1e-14)
    # E[A] of the point, from P and from Q: a little above and a little below.
    assert math.fsum(remove) == pytest.approx(0.5 * a * more * (1 + 1e-12), rel=1e-13)
    of_add = add * np.exp(-(low_of_add + np.arange(len(add))) * _INTERVAL)
    assert math.fsum(of_add) == pytest.approx(0.5 * a * more * (1 - 1e-12), rel=1e-13)
