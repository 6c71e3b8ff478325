"""Disjoint periods cost what the costliest of them costs, and no less."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.accounting import Ledger, LedgerEntry, Sampling
from tfdp.accounting.charges.mechanisms import PrivateTraining, mechanism_from_dict
from tfdp.errors import PrivacyError

DELTA = 1e-3


def entries(period, sigma=1.0, steps=5, n=100, k=3):
    sampling = Sampling("poisson", n, 10, max_records_per_unit=k, period=period)
    return PrivateTraining(sigma, 1.0, sampling, n, "one person with all of its records").entries(
        steps, "run"
    )


def release(sigma=2.0, **details):
    event = entries(None)[0].event.event
    return LedgerEntry(
        "a release",
        type(event)(sigma),
        1,
        {"unit": "one person with all of its records", **details},
    )


def epsilon(found):
    """ε, without the last digits, which the order of a composition changes."""
    return round(Ledger(found).epsilon(DELTA, "rdp"), 9)


@pytest.mark.thorough
def test_of_disjoint_periods_the_costliest_counts():
    one, two, three = entries(("r", "1")), entries(("r", "2"), 0.8), entries(("r", "3"), 1.5)
    alone = epsilon(two)
    assert epsilon([*one, *two, *three]) == alone
    assert epsilon([*one, *one, *three]) == epsilon([*one, *one])
    # What is of no period saw everybody.
    everybody = epsilon([*one, *two, release(), *three])
    assert everybody == epsilon([*two, release()]) > alone
    none = entries(None, 0.8)
    assert epsilon([*one, *none]) == epsilon([*none, *entries(None)])


@pytest.mark.thorough
def test_periods_of_two_registries_are_not_disjoint():
    both = Ledger([*entries(("r", "1")), *entries(("s", "1"), 0.9), *entries(("s", "2"), 1.2)])
    sum_of_worst = Ledger([*entries(None), *entries(None, 0.9)])
    assert epsilon(both.entries) == epsilon(sum_of_worst.entries)
    assert len(both.parallel("add_or_remove_one")) == 2


@pytest.mark.thorough
def test_replacing_a_person_may_change_two_periods():
    ledger = Ledger([*entries(("r", "1"), 4.0), *entries(("r", "2"), 3.0)])
    added = Ledger([*entries(None, 4.0), *entries(None, 3.0)])
    replaced = ledger.epsilon(DELTA, adjacency="replace_one")
    assert replaced == pytest.approx(added.epsilon(DELTA, adjacency="replace_one"), rel=1e-9)
    statement = tfdp.accounting.privacy_statement(ledger, delta=DELTA, adjacency="replace_one")
    assert statement.epsilon == replaced and not any("disjoint" in r for r in statement.remarks)


@pytest.mark.thorough
def test_truncated_batches_of_other_periods_take_nothing_of_delta():
    def cut(period):
        return LedgerEntry("a", entries(None)[0].event, 20, {
            "unit": "one person with all of its records", "overflow_probability": 1e-7,
            "sampling": Sampling("poisson", 100, 10, 30, max_records_per_unit=3,
                                 period=period).to_dict()})  # fmt: skip

    one, two = cut(("r", "1")), cut(("r", "2"))
    assert epsilon([one, two]) == epsilon([one])


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("more", [{"overflow_probability": 1e-7}, {"count": 40}])
def test_of_periods_with_equal_mechanisms_the_costlier_one_counts(more):
    def of(period, count=20, overflow_probability=0.0):
        return LedgerEntry("a", entries(None)[0].event, count, {
            "unit": "one person with all of its records",
            "overflow_probability": overflow_probability,
            "sampling": Sampling("poisson", 100, 10, 30, max_records_per_unit=3,
                                 period=period).to_dict()})  # fmt: skip

    cheap, costly = of(("r", "1")), of(("r", "2"), **more)
    assert epsilon([costly]) > epsilon([cheap])
    assert epsilon([cheap, costly]) == epsilon([costly, cheap]) == epsilon([costly])


def test_a_period_is_for_persons_and_survives_json():
    mechanism = PrivateTraining(
        1.0, 1.0, Sampling("poisson", 9, 3, max_records_per_unit=1, period=("r", "1")), 9,
        "one person with all of its records",
    )  # fmt: skip
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism
    ledger = Ledger(mechanism.entries(3, "run"))
    assert Ledger.from_json(ledger.to_json()).periods == (("r", "1"),)
    with pytest.raises(ValueError, match="persons"):
        Sampling("poisson", 9, 3, period=("r", "1"))
    for wrong in ("r", ("r",), ("r", 1), ("", "1")):
        with pytest.raises(ValueError, match="DisjointPeriods"):
            Sampling("poisson", 9, 3, max_records_per_unit=1, period=wrong)


def week(number, persons=50):
    generator = np.random.default_rng(number)
    ids = np.repeat(np.arange(persons) + 1000 * number, 2)
    x = generator.normal(size=(len(ids), 3)).astype(np.float32)
    return (x, generator.integers(0, 2, len(ids)).astype(np.int32)), ids


def drawn(data, ids, period, k=2):
    return tfdp.data.poisson_batches(
        data, 10, None, 2, privacy_ids=ids, max_records_per_unit=k, period=period
    )


def compiled(model, small, period, **kwargs):
    settings = {"num_examples": 50, "expected_batch_size": 10, "max_records_per_unit": 2}
    model.compile(small.optimizer(period=period, **settings | kwargs), loss=small.loss,
                  run_eagerly=True)  # fmt: skip
    return model


def test_each_period_may_have_a_release_of_its_own(small):
    """And another number of persons; of one period, both must speak of the same."""
    periods = tfdp.data.DisjointPeriods()
    inner = keras.Sequential(
        [
            keras.Input((1,), dtype="int32"),
            tfdp.layers.SparseEmbedding(20, 2, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model, alone = tfdp.make_private(inner), []
    fest = tfdp.selection.FEST(k=5, epsilon=1.0)
    sparse = {"selection": fest, "embedding_optimizer": tfdp.optimizers.RowSGD(0.1)}
    for number, persons in ((0, 40), (1, 50)):
        (x, y), ids = week(number, persons)
        rows, period = np.int32(np.abs(x[:, :1]) * 5), periods.period(str(number))
        by = {"privacy_ids": ids, "max_records_per_unit": 2, "period": period}
        fest.adapt({"table": rows}, {"table": 20}, **by)
        compiled(model, small, period, num_examples=persons, noise_multiplier=2.0, **sparse)
        model.fit(drawn((rows, y), ids, period), verbose=0)
        alone.append(epsilon(e for e in model.ledger.entries if e.period == tuple(period.key)))
    assert len(model.ledger.periods) == 2
    assert epsilon(model.ledger.entries) == max(alone) > 1.0
    fest.adapt({"table": rows[:80]}, {"table": 20}, **by | {"privacy_ids": ids[:80]})
    with pytest.raises(PrivacyError, match="is about num_examples=40"):
        compiled(model, small, period, noise_multiplier=2.0, **sparse)


def test_four_disjoint_periods_of_epsilon_1_are_stated_as_epsilon_1(small, tmp_path):
    budget = {"budget": tfdp.PrivacyBudget(1.0, DELTA), "steps": 2}
    path = tmp_path / "periods.npz"
    sigmas = []
    model = tfdp.make_private(small.base())
    for number in range(4):
        period = tfdp.data.DisjointPeriods(path).period(f"week {number}")
        compiled(model, small, period, **budget)
        model.fit(drawn(*week(number), period), epochs=1, verbose=0)
        sigmas.append(model.optimizer.noise_multiplier)
        assert 0.98 < model.optimizer.epsilon() <= 1.0
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    assert model.optimizer.steps_taken == 8 and len(set(sigmas)) == 1
    statement = model.privacy_statement()
    assert statement.epsilon <= 1.0 and statement.budget.epsilon == 1.0
    text = " ".join(str(statement).split())
    assert "that of the costliest of the 4 disjoint periods" in text
    assert "private training, period 'week 3': 2 x" in text
    # Without the periods the ledger would have added them up.
    added = Ledger(
        LedgerEntry(e.label, e.event, e.count, {"unit": "one person with all of its records"})
        for e in model.ledger.entries
    )  # fmt: skip
    assert added.epsilon(DELTA) > 1.7
    # The same period again is charged on top, and this budget is spent.
    with pytest.raises(tfdp.BudgetError):
        model.fit(drawn(*week(3), period), verbose=0)


@pytest.mark.thorough
def test_an_overlap_is_refused_before_anything_is_trained(small):
    periods = tfdp.data.DisjointPeriods()
    data, ids = week(1)
    drawn(data, ids, periods.period("a"))
    with pytest.raises(PrivacyError, match="in another period"):
        drawn(data, np.where(ids == ids[0], ids, ids + 1000), periods.period("b"))


def test_batches_and_optimizer_must_be_of_the_same_period(small):
    periods = tfdp.data.DisjointPeriods()
    data, ids = week(1)
    mine, other = periods.period("a"), periods.period("b")
    for asked, given in ((other, mine), (None, mine), (mine, None)):
        model = compiled(tfdp.make_private(small.base()), small, asked, noise_multiplier=1.0)
        with pytest.raises(PrivacyError, match="period"):
            model.fit(drawn(data, ids, given), verbose=0)
    again = type(model.optimizer).from_config(model.optimizer.get_config())
    assert again.period == mine.key
    with pytest.raises(ValueError, match="max_records_per_unit"):
        small.optimizer(period=mine)
    with pytest.raises(ValueError, match="DisjointPeriods"):
        small.optimizer(period="a", max_records_per_unit=2)


def test_steps_of_no_period_are_paid_in_every_period(small):
    periods = tfdp.data.DisjointPeriods()
    model = compiled(tfdp.make_private(small.base()), small, None, noise_multiplier=4.0)
    model.fit(drawn(*week(0), None), verbose=0)
    sigmas = []
    for name in ("a", "b"):
        period = periods.period(name)
        budget = tfdp.PrivacyBudget(1.0, DELTA)
        compiled(model, small, period, budget=budget, steps=2)
        model.fit(drawn(*week(1 + len(sigmas)), period), verbose=0)
        sigmas.append(model.optimizer.noise_multiplier)
    assert sigmas[0] == sigmas[1] and 0.98 < model.privacy_statement().epsilon <= 1.0
    alone = compiled(tfdp.make_private(small.base()), small, period, budget=budget, steps=2)
    assert alone.optimizer.noise_multiplier < sigmas[0]
