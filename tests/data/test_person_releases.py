"""Frequencies, top-k and transitions of persons: what one gives is bounded, whatever it has.

Noise is small against counts of hundreds: an assertion fails by chance below 1e-9.
"""

import numpy as np
import pytest

import tfdp
from tfdp.data.releases.transition_counts import Histories, transition_sums
from tfdp.errors import PrivacyError
from tfdp.noise import NoiseSource
from tfdp.selection import FEST
from tfdp.selection.top_k import private_top_k

IDS = np.repeat(np.arange(200), 3)
#: Each person: item 1 in all three records, item 2 in one, item 3 in none.
X = np.tile([[1, 0], [1, 2], [0, 1]], (200, 1))
Y = np.concatenate([X[:, 1:], np.ones((600, 1), int)], axis=1)
PERSONS = {"privacy_ids": IDS, "max_records_per_unit": 3}


@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_frequencies_are_those_of_persons(mechanism):
    of = {"gaussian": np.sqrt, "laplace": lambda count: count}[mechanism]
    release = tfdp.data.private_frequency((X, Y), 50.0, None, mechanism, 3, **PERSONS)
    np.testing.assert_allclose(release.probabilities, [1, 1, 1, 1 / 200], atol=0.1)
    assert (
        release.num_examples == 200
        and release.entry.details["unit"] == "one person with all of its records"
    )
    assert release.details["sensitivity"] == pytest.approx(of(9))
    one = tfdp.data.private_frequency(
        (X, Y), 50.0, None, mechanism, 3, privacy_ids=IDS, max_records_per_unit=1
    )
    # One of three records at random: item 2 is in a third of them.
    np.testing.assert_allclose(one.probabilities, [1, 1, 1 / 3, 1 / 200], atol=0.15)
    assert one.details["sensitivity"] == pytest.approx(of(3))


def test_top_k_counts_each_value_of_a_person_once():
    features = {"a": X, "b": np.repeat(np.arange(3), 200)}
    sizes = {"a": 5, "b": 4}
    release = private_top_k(
        features, sizes, 2, 100.0, padding_id=0, source=NoiseSource(1), **PERSONS
    )
    assert (
        release.num_examples == 200
        and release.details["unit"] == "one person with all of its records"
    )
    assert release.details["max_values"] == 3 * 2 + 3 * 1
    np.testing.assert_array_equal(release.rows["a"], [1, 2])
    with pytest.raises(ValueError, match="one example for each of the `privacy_ids`"):
        private_top_k({"a": X, "b": X[:10]}, {"a": 5, "b": 5}, 1, 1.0, **PERSONS)
    fest = FEST(k=2, epsilon=100.0)
    fest.adapt({"a": X}, {"a": 5}, padding_id=0, **PERSONS)
    assert fest.privacy_releases[0].details["unit"] == "one person with all of its records"


def test_values_of_persons_do_not_count_as_those_of_absent_records():
    # Nobody has value 0; persons with one record have room for two more.
    release = private_top_k(
        {"a": np.full(200, 3)}, {"a": 5}, 1, 100.0, source=NoiseSource(1),
        privacy_ids=np.arange(200), max_records_per_unit=3,
    )  # fmt: skip
    np.testing.assert_array_equal(release.rows["a"], [3])


def test_transitions_stay_within_the_records_of_a_person():
    rows = np.array([[1, 2, 0, 3, 4, 5], [0, 1, 2, 2, 3, 0]])
    whole = dict(zip(*transition_sums(Histories(rows, 5), 3, 0.0, False)[:2], strict=True))
    parts = dict(zip(*transition_sums(Histories(rows, 5, 2), 3, 0.0, False)[:2], strict=True))
    pair = lambda a, b: (a - 1) * 5 + b - 1  # noqa: E731
    assert pair(2, 3) in parts and pair(1, 4) in whole and pair(1, 4) not in parts
    # Of the first: 1→2, 3→4, 3→5, 4→5; of the second: 1→2, 2→3.
    assert set(parts) == {pair(1, 2), pair(3, 4), pair(3, 5), pair(4, 5), pair(2, 3)}
    assert parts[pair(3, 5)] == pytest.approx(0.5, abs=1e-6)
    assert parts[pair(2, 3)] == pytest.approx(0.5**0.5, abs=1e-6)


def test_a_person_of_many_sequences_gives_norm_1_to_the_transitions():
    release = tfdp.data.private_transitions(
        (X, Y), noise_multiplier=1e-3, num_items=3, rounds=1, **PERSONS
    )
    norm = np.sqrt(np.sum(np.square(release.values, dtype=np.float64)))
    assert norm == pytest.approx(200, rel=1e-2) and release.num_examples == 200
    assert release.details["unit"] == "one person with all of its records"
    model = tfdp.models.TransitionRecommender(tfdp.layers.TransitionOdds(release))
    statement = model.privacy_statement(delta=1e-3)
    assert statement.unit == "one person with all of its records" and statement.num_examples == 200


@pytest.mark.thorough
def test_items_of_different_sequences_of_a_person_do_not_follow_each_other():
    x, y = np.array([[1], [3]]), np.array([[2], [4]])
    release = tfdp.data.private_transitions(
        (x, y), noise_multiplier=1e-6, num_items=4, rounds=1, privacy_ids=[7, 7],
        max_records_per_unit=2,
    )  # fmt: skip
    clear = release.values > 1e-3  # the noise is of 1e-6
    assert release.indices[clear].tolist() == [[1, 2], [3, 4]]
    np.testing.assert_allclose(release.values[clear], 0.5**0.5, atol=1e-4)


def test_transitions_of_persons_know_their_period():
    periods = tfdp.data.DisjointPeriods()
    release = tfdp.data.private_transitions(
        (X, Y), noise_multiplier=1.0, num_items=3, period=periods.period("one"), **PERSONS
    )
    assert release.details["period"] == [periods.name, "one"]
    with pytest.raises(PrivacyError, match="200 of 200 persons"):
        periods.claim("two", IDS)


@pytest.mark.thorough
def test_a_release_about_persons_goes_with_batches_of_persons_alone():
    frequency = tfdp.data.private_frequency((X, Y), 1.0, num_items=3, **PERSONS)
    model = tfdp.models.DPFormer(3, 2, item_frequency=frequency, dim=4, num_blocks=1)

    def compile_for(**kwargs):
        model.compile(
            tfdp.optimizers.DPOptimizer(
                "sgd", noise_multiplier=1.0, num_examples=200, expected_batch_size=20, **kwargs
            )
        )

    with pytest.raises(PrivacyError, match="unit"):
        compile_for()
    compile_for(max_records_per_unit=3)
    assert model.privacy_statement().unit == "one person with all of its records"
