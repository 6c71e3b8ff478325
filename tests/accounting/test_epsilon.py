"""epsilon is dp_accounting's, under adjacencies that are what they say."""

import inspect
import math

import dp_accounting
import pytest
import slow
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from tfdp.accounting import Ledger, LedgerEntry, accountants, epsilon
from tfdp.accounting.events.adjacency import double_sensitivity
from tfdp.accounting.events.composition import compose, training_event

_Q, _SIGMA, _STEPS, _DELTA = 0.05, 1.2, 200, 1e-5
_TRAINING = compose([(training_event(_SIGMA, _Q), _STEPS)])


def _by_hand(accountant, event, delta=_DELTA):
    return accountant.compose(event).get_epsilon(delta)


@pytest.mark.parametrize(
    ("name", "accountant"),
    [("pld", dp_accounting.pld.PLDAccountant), ("rdp", dp_accounting.rdp.RdpAccountant)],
)
def test_epsilon_equals_dp_accounting_called_by_hand(name, accountant):
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(_Q, dp_accounting.GaussianDpEvent(_SIGMA)), _STEPS
    )
    expected = _by_hand(accountant(), event)
    found = epsilon(_TRAINING, _DELTA, name)
    # PLD's convolutions round: a bound of the error is on the safe side here, and not there.
    assert expected <= found <= expected * (1 + 1e-8)


def test_pld_is_the_default_and_not_above_rdp():
    assert epsilon(_TRAINING, _DELTA) == epsilon(_TRAINING, _DELTA, "pld")
    assert epsilon(_TRAINING, _DELTA, "pld") < epsilon(_TRAINING, _DELTA, "rdp")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_zero_out_of_a_sampled_sum_costs_what_removal_costs(accountant):
    removal = epsilon(_TRAINING, _DELTA, accountant, "add_or_remove_one")
    zeroed = epsilon(_TRAINING, _DELTA, accountant, "zero_out")
    assert zeroed == pytest.approx(removal, rel=1e-9)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
def test_replacing_a_record_costs_at_least_removing_it_and_at_most_doubled_sensitivity(
    accountant, q
):
    steps = 30
    event = compose([(training_event(5.0, q), steps)])
    doubled = compose([(training_event(2.5, q), steps)])
    replaced = epsilon(event, _DELTA, accountant, "replace_one")
    assert epsilon(event, _DELTA, accountant) < replaced
    assert replaced <= epsilon(doubled, _DELTA, accountant) * (1 + 1e-9)


def test_replacing_in_an_unsampled_gaussian_has_sensitivity_two():
    # Both accountants of dp_accounting 0.4, and RDP in all versions, take replace-one as one.
    exact = epsilon(dp_accounting.GaussianDpEvent(1.0), _DELTA)
    for accountant in ("pld", "rdp"):
        replaced = epsilon(dp_accounting.GaussianDpEvent(2.0), _DELTA, accountant, "replace_one")
        assert replaced >= exact * (1 - 1e-6)


def test_replacing_in_a_laplace_release_doubles_epsilon():
    replaced = epsilon(dp_accounting.LaplaceDpEvent(2.0), 1e-12, "pld", "replace_one")
    assert replaced == pytest.approx(1.0, rel=1e-3)


@pytest.mark.thorough_after(2)
@pytest.mark.skipif(
    "neighboring_relation"
    not in inspect.signature(privacy_loss_distribution.from_gaussian_mechanism).parameters,
    reason="this dp_accounting has no exact replace-one rule to compare with",
)
@pytest.mark.parametrize(
    "steps, q", slow.cases([(1, 0.01), (1, 0.6), (50, 0.01), (50, 0.6)], slow=[(1, 0.6)])
)
@pytest.mark.parametrize("sigma", [2.0, 10.0])
def test_doubled_sensitivity_dominates_the_exact_replace_one_rule(q, sigma, steps):
    event = compose([(training_event(sigma, q), steps)])
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    by_hand = dp_accounting.pld.PLDAccountant(relation).compose(event)
    for delta in (1e-2, 1e-6):
        exact = by_hand.get_epsilon(delta)
        assert exact <= epsilon(double_sensitivity(event), delta) + 1e-3
        found = epsilon(event, delta, adjacency="replace_one")
        assert exact <= found <= exact * (1 + 1e-7)  # above by the bound of PLD's rounding


@pytest.mark.parametrize("sigma, steps, delta", [(2.0, 1, 1e-5), (10.0, 3, 1e-3)])
def test_gaussians_without_sampling_cost_the_exact_epsilon_under_replace_one(sigma, steps, delta):
    event = compose([(training_event(sigma, 1.0), steps)])
    found = epsilon(event, delta, adjacency="replace_one")
    mu = 2 * steps**0.5 / sigma  # the distance of neighbouring sums, in standard deviations
    low, high = (
        stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)
        for e in (found, found * (1 - 1e-7))
    )
    assert low <= delta <= high


def test_no_noise_is_not_private():
    assert isinstance(training_event(0.0, 0.1), dp_accounting.NonPrivateDpEvent)
    for accountant in ("pld", "rdp"):
        assert epsilon(training_event(0.0, 0.1), _DELTA, accountant) == math.inf


def test_a_full_batch_is_not_sampled():
    assert training_event(2.0, 1.0) == dp_accounting.GaussianDpEvent(2.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"accountant": "gdp"}, "`accountant` must be one of"),
        ({"adjacency": "add_remove"}, "`adjacency` must be one of"),
        ({"delta": 0.0}, "`delta` must be"),
        ({"delta": 1.0}, "`delta` must be"),
        ({"event": "training"}, "`event` must be a dp_accounting.DpEvent"),
    ],
)
def test_unknown_arguments_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        epsilon(**{"event": _TRAINING, "delta": _DELTA, **arguments})


def test_an_event_without_a_pld_rule_names_rdp():
    pair = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0)] * 2)
    event = dp_accounting.PoissonSampledDpEvent(0.1, pair)
    with pytest.raises(ValueError, match='Use accountant="rdp"'):
        epsilon(event, _DELTA)
    assert 0 < epsilon(event, _DELTA, "rdp") < math.inf


@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one", "zero_out"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_an_event_without_any_rule_is_refused(accountant, adjacency):
    event = dp_accounting.ComposedDpEvent([dp_accounting.UnsupportedDpEvent()])
    with pytest.raises(ValueError, match="has none either"):
        epsilon(event, _DELTA, accountant, adjacency)


def test_composing_merges_equal_events_and_drops_nothing():
    step = training_event(1.1, 0.1)
    release = dp_accounting.LaplaceDpEvent(1.0)
    nested = dp_accounting.ComposedDpEvent([step, dp_accounting.SelfComposedDpEvent(release, 3)])
    composed = compose([(step, 2), (nested, 2), (release, 1)])
    assert composed == dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(step, 4), dp_accounting.SelfComposedDpEvent(release, 7)]
    )


def test_hardly_any_noise_is_accounted_without_the_memory_that_pld_would_take():
    for event in (
        dp_accounting.GaussianDpEvent(1e-6),
        dp_accounting.SelfComposedDpEvent(training_event(1e-3, 0.01), 1000),
    ):
        ledger = Ledger([LedgerEntry("training", event)])
        assert 1e5 < ledger.epsilon(1e-5) < float("inf")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("sampled", [False, True])
def test_hardly_any_noise_is_no_noise(accountant, sampled):
    # Squares of it underflow: a quotient of zeros is NaN, and the larger of NaN and 0 would be 0.
    for noise in (5e-324, 1e-300, 1e-160, 1e-100, 1e-20):
        event = dp_accounting.GaussianDpEvent(noise)
        if sampled:
            event = dp_accounting.PoissonSampledDpEvent(0.01, event)
            mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
                noise, [0.0, 1.0], [0.99, 0.01]
            )
            assert epsilon(mixture, 1e-6, accountant) == math.inf
        steps = dp_accounting.SelfComposedDpEvent(event, 3)
        assert epsilon(steps, 1e-6, accountant) == math.inf
        assert epsilon(steps, 1e-6, accountants.best_accountant(steps, delta=1e-6)) == math.inf


def test_an_epsilon_whose_divergences_are_lost_in_rounding_is_not_zero():
    sigma, q, delta = 7300.0, 3.4e-8, 3e-20
    event = training_event(sigma, q)
    # Below 0, as dp_accounting computes them. One set of outcomes alone moves by more than delta.
    assert _by_hand(dp_accounting.rdp.RdpAccountant(), event, delta) == 0.0
    assert q * (1 - 2 * stats.norm.sf(0.5 / sigma)) > 10 * delta
    assert epsilon(event, delta, "rdp") > 0
    assert Ledger([LedgerEntry("training", event)]).epsilon(delta) > 0
    assert epsilon(dp_accounting.NoOpDpEvent(), delta, "rdp") == 0


def test_an_epsilon_that_is_no_number_is_infinite(monkeypatch):
    class Lost:
        def get_epsilon(self, delta):
            return math.nan

    monkeypatch.setattr(accountants, "compose_accountant", lambda *_: Lost())
    assert epsilon(dp_accounting.GaussianDpEvent(1.2345678), 1e-6) == math.inf
