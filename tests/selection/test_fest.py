import json

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import NoiseSource
from tfdp.selection import FEST, TableActivity


def test_public_frequencies_choose_the_most_frequent_rows_and_are_named_as_public():
    fest = FEST(2, frequencies={"a": [0.1, 5.0, 0.2, 7.0]})
    np.testing.assert_array_equal(fest.rows("a", 4), [1, 3])
    assert fest.privacy_releases == [] and len(fest.privacy_assumptions) == 1


def test_the_rows_of_a_step_do_not_depend_on_the_batch():
    fest = FEST({"a": 1, "b": 2}, frequencies={"a": [1, 2], "b": [3, 1, 2]})
    for ids in ([[0]], [[1]]):
        tables = [TableActivity(n, s, tf.constant(ids)) for n, s in (("a", 2), ("b", 3))]
        rows = fest.select(tables, tf.constant([True]), 1.0, NoiseSource(0))
        assert [r.numpy().tolist() for r in rows] == [[1], [0, 2]]
    assert fest.gradient_noise_multiplier(1.7) == 1.7


def test_a_private_choice_is_charged_once_for_every_time_it_is_made():
    fest = FEST(3, epsilon=0.5)
    with pytest.raises(ValueError, match="Call `adapt` first"):
        fest.check({"a": 100})
    ids = np.repeat(np.arange(100), np.where(np.arange(100) < 3, 5000, 1))
    for period in (1, 2):
        fest.adapt({"a": ids}, {"a": 100})
        np.testing.assert_array_equal(fest.rows("a", 100), [0, 1, 2])
        assert len(fest.privacy_releases) == period
    assert fest.privacy_releases[0] != fest.privacy_releases[1]
    assert fest.privacy_assumptions == []


@pytest.mark.parametrize("mechanism, max_values", [("laplace", 1), ("gumbel", 2)])
def test_a_private_choice_is_the_private_top_k_of_the_given_settings(mechanism, max_values):
    # 0 is padding and the commonest of all; 3 is the larger id of its example.
    ids = np.array([[0, 0, 0]] * 50_000 + [[2, 3, 0]] * 20_000 + [[1, -1, 0]] * 10_000)
    fest = FEST({"a": 2, "b": 1}, epsilon=0.8, mechanism=mechanism)
    release = fest.adapt(
        {"a": ids, "b": ids[:, 0]}, {"a": 5, "b": 4}, max_values=max_values, padding_id=0
    )
    np.testing.assert_array_equal(fest.rows("a", 5), [1, 2] if max_values == 1 else [2, 3])
    np.testing.assert_array_equal(fest.rows("b", 4), [2])
    (charge,) = fest.privacy_releases
    assert charge.event == release.event and charge.count == 1
    if mechanism == "laplace":
        assert charge.event == dp_accounting.LaplaceDpEvent(1 / 0.8)
    else:
        assert charge.event == dp_accounting.SelfComposedDpEvent(
            dp_accounting.LaplaceDpEvent(3 / 0.8), 3
        )


def test_another_choice_is_another_version():
    # Graphs that were traced with the rows of one are not run with those of the next.
    fest = FEST(1, epsilon=1.0)
    versions = [fest.version]
    for _ in range(2):
        fest.adapt({"a": np.arange(4)}, {"a": 4})
        versions.append(fest.version)
    assert len(set(versions)) == 3


def test_rows_of_each_table_stand_behind_all_rows_of_the_tables_before():
    frequencies = {"a": [0, 1], "b": [1, 0, 2], "c": [0, 3]}
    fest = FEST({"a": 1, "b": 2, "c": 1}, frequencies=frequencies)
    tables = [TableActivity(n, len(f), tf.constant([[0]])) for n, f in frequencies.items()]
    np.testing.assert_array_equal(fest.joint_rows(tables), [1, 2 + 0, 2 + 2, 2 + 3 + 1])


def test_public_frequencies_cannot_be_adapted_to_private_data():
    with pytest.raises(ValueError, match="private data"):
        FEST(1, frequencies=[1.0]).adapt({"a": [0]}, {"a": 1})


def test_a_table_without_chosen_rows_or_of_another_size_is_refused():
    fest = FEST(1, frequencies={"a": [0, 0, 1]})
    with pytest.raises(ValueError, match="no rows of table 'b'"):
        fest.check({"a": 3, "b": 3})
    with pytest.raises(ValueError, match="has only 2 rows"):
        fest.check({"a": 2})
    tables = [TableActivity(n, 3, tf.constant([[0]])) for n in "ab"]
    with pytest.raises(ValueError, match="dict of table name"):
        FEST(1, frequencies=[0, 0, 1]).select(tables, tf.constant([True]), 1.0, NoiseSource(0))


@pytest.mark.parametrize(
    "arguments",
    [{"k": 1}, {"k": 1, "frequencies": [1], "epsilon": 1}, {"k": 0, "epsilon": 1},
     {"k": 1, "epsilon": -1}, {"k": 1, "epsilon": 1, "mechanism": "gauss"},
     {"k": 1, "frequencies": [[1.0]]}],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="Received"):
        FEST(**arguments)


def test_rows_and_charges_survive_serialisation():
    private = FEST(2, epsilon=1.0, mechanism="gumbel")
    private.adapt({"a": np.arange(10)}, {"a": 10})
    for fest in (private, FEST(1, frequencies=[1.0, 2.0])):
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(fest)))
        again = keras.saving.deserialize_keras_object(config)
        assert again.get_config() == fest.get_config()
        np.testing.assert_array_equal(again.rows("a", 10), fest.rows("a", 10))
        assert again.privacy_releases == fest.privacy_releases
        assert again.privacy_assumptions == fest.privacy_assumptions
