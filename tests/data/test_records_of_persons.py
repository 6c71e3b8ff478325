"""Single records of persons: which may be drawn, how probably, and independently of each other.

Distribution tests fail for no reason with a probability of at most 1e-6 each.
"""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.accounting.losses.truncation import overflow_probability
from tfdp.data.sampling.persons import Persons

FALSE_ALARM = 1e-6
#: Persons of 1, 2, 3 and 6 records, in no order.
IDS = np.array([7, 3, 3, 9, 9, 9, 5, 5, 5, 5, 5, 5])[np.random.default_rng(1).permutation(12)]
NUMBERS = np.arange(12) + 1


def batches(k=3, size=4, capacity=None, **kwargs):
    return tfdp.data.poisson_batches(
        (NUMBERS[:, np.newaxis], IDS), size, capacity, privacy_ids=IDS, max_records_per_unit=k,
        sampling_unit="record", **kwargs,
    )  # fmt: skip


def draws(data, epochs=1):
    """(steps, 12) bool: which records each batch held."""
    held = []
    many = [one for _ in range(epochs) for one in data.batch(500).as_numpy_iterator()]
    for x, y, weight in (batch for one in many for batch in zip(*one, strict=True)):
        chosen = x[weight == 1][:, 0]
        assert len(set(chosen)) == len(chosen) and np.all(IDS[chosen - 1] == y[weight == 1])
        assert np.all(x[weight == 0] == 0)
        held.append(np.isin(NUMBERS, chosen))
    return np.array(held)


def test_what_the_data_say_of_themselves():
    sampling = tfdp.data.sampling_of(batches())
    assert (sampling.num_examples, sampling.num_records, sampling.max_records_per_unit) == (4, 9, 3)
    assert sampling.sampling_probability == 4 / 9 and sampling.draws_per_unit == 3
    assert sampling.rows_per_unit is None and sampling.rows == sampling.max_batch_size <= 12
    assert sampling.steps_per_epoch == 2


@pytest.mark.thorough
def test_of_each_person_at_most_k_records_are_ever_drawn_and_the_same_in_all_epochs():
    seen = draws(batches(size=9, steps_per_epoch=2), epochs=3).any(axis=0)
    for person, count in zip(*np.unique(IDS, return_counts=True), strict=True):
        assert seen[person == IDS].sum() == min(3, count)


@pytest.mark.thorough
def test_the_records_that_are_kept_are_a_uniform_subset():
    persons = Persons(IDS, 12, 3)
    kept = np.zeros(12)
    for i in range(1500):
        kept[persons.kept(np.random.default_rng(i))] += 1
    assert np.all(kept[IDS != 5] == 1500)
    assert kept.sum() == 1500 * 9
    z = (kept[IDS == 5] - 750) / np.sqrt(1500 / 4)
    # Six counts that add up, each with the variance of a draw of 3 of 6.
    assert stats.chi2.sf(np.sum(z**2) * 5 / 6, 5) > FALSE_ALARM
    calls = [tuple(draws(batches(size=9, steps_per_epoch=1)).any(axis=0)) for _ in range(8)]
    assert len(set(calls)) > 1  # each call chooses anew; all alike with a chance of 20^-7


@pytest.mark.thorough
def test_a_seed_chooses_the_same_records_and_draws():
    first, second = (draws(batches(seed=5, steps_per_epoch=20)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert tfdp.data.sampling_of(batches(seed=5)).seeded


@pytest.mark.thorough
def test_every_record_is_drawn_with_probability_q_and_of_a_person_a_binomial_number():
    steps, q = 2000, 4 / 9
    held = draws(batches(steps_per_epoch=steps))
    often = held.sum(axis=0)
    may_be = often > 0
    assert may_be.sum() == 9
    z = (often[may_be] - steps * q) / np.sqrt(steps * q * (1 - q))
    assert stats.chi2.sf(np.sum(z**2), 9) > FALSE_ALARM
    for person, k in ((3, 2), (9, 3), (5, 3)):
        found = np.bincount(held[:, person == IDS].sum(axis=1), minlength=k + 1)
        expected = steps * stats.binom.pmf(np.arange(k + 1), k, q)
        assert len(found) == k + 1 and stats.chisquare(found, expected).pvalue > FALSE_ALARM
    # Whole batches, too: records of different persons come independently.
    sizes = np.bincount(held.sum(axis=1), minlength=10)
    assert stats.chisquare(sizes, steps * stats.binom.pmf(np.arange(10), 9, q)).pvalue > FALSE_ALARM


def test_a_public_number_of_records_fixes_the_probability():
    data = batches(num_records=12, steps_per_epoch=1500)
    sampling = tfdp.data.sampling_of(data)
    assert sampling.num_records == 12 and sampling.sampling_probability == 1 / 3
    drawn = draws(data).sum()
    assert abs(drawn - 4500) < 5 * np.sqrt(13500 * 2 / 9)
    with pytest.raises(ValueError, match="must be at least 9, the number of records"):
        batches(num_records=8)
    with pytest.raises(ValueError, match="at most num_examples"):
        batches(num_records=13)


@pytest.mark.thorough
def test_a_batch_that_is_cut_off_counts_the_records_of_a_person_more():
    n, k, q = 3000, 4, 0.1
    ids = np.repeat(np.arange(n // 3), 3)
    data = tfdp.data.poisson_batches(
        (np.zeros(n), ids), 300, 350, privacy_ids=ids, max_records_per_unit=k,
        sampling_unit="record",
    )  # fmt: skip
    sampling = tfdp.data.sampling_of(data)
    assert sampling.overflow_probability == overflow_probability(n + k, q, 350)
    assert sampling.overflow_probability > overflow_probability(n, q, 350)
    by_default = tfdp.data.sampling_of(batches(k=2, size=7))
    assert by_default.overflow_probability <= 1e-20 and by_default.max_batch_size == 9
    capped = draws(batches(size=6, capacity=6, steps_per_epoch=400)).sum(axis=1)
    assert capped.max() == 6 and np.mean(capped == 6) > 0.3


@pytest.mark.thorough
def test_a_map_sees_rows_as_it_does_of_records():
    data = batches(capacity=11).map(lambda x, y, w: (x * 2, y, w))
    assert tfdp.data.sampling_of(data).num_records == 9
    assert data.element_spec[0].shape[0] == tfdp.data.sampling_of(data).rows
    assert np.all(next(data.as_numpy_iterator())[0] % 2 == 0)
    assert tfdp.data.sampling_of(batches().unbatch().batch(3)) is None
    assert tf.data.Dataset.cardinality(data) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling_unit": "records"}, "sampling_unit"),
        ({"sampling_unit": None}, "sampling_unit"),
        ({"privacy_ids": None, "max_records_per_unit": None}, "needs `privacy_ids`"),
        ({"sampling_unit": "person", "num_records": 9}, "num_records"),
        ({"num_records": 0}, "num_records"),
        ({"num_records": 9.5}, "num_records"),
        ({"expected_batch_size": 10}, "at most the number of examples \\(9\\)"),
        ({"max_batch_size": 3}, "max_batch_size"),
    ],
)
def test_arguments_are_checked(arguments, message):
    given = {
        "expected_batch_size": 4, "privacy_ids": IDS, "max_records_per_unit": 3,
        "sampling_unit": "record", **arguments,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        tfdp.data.poisson_batches((NUMBERS, IDS), **given)
