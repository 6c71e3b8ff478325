"""Batches of persons: who is drawn, with which records, and where they stand in a batch.

Distribution tests fail for no reason with a probability of at most 1e-6 each.
"""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.data.provenance.padding_guard import keeps_padding
from tfdp.data.sampling.persons import Persons

FALSE_ALARM = 1e-6
#: Whose each record is: persons of 1, 2, 3 and 6 records, in no order.
IDS = np.array([7, 3, 3, 9, 9, 9, 5, 5, 5, 5, 5, 5])[np.random.default_rng(1).permutation(12)]
RECORDS = np.arange(12)


def batches(k=3, size=3, capacity=4, ids=IDS, **kwargs):
    x = (RECORDS[:, np.newaxis] + 1).astype(np.float32)
    return tfdp.data.poisson_batches(
        (x, ids.astype(np.int32)), size, capacity, privacy_ids=ids, max_records_per_unit=k, **kwargs
    )


@pytest.mark.thorough
def test_a_batch_has_k_rows_for_each_person_and_no_other_row():
    data = batches(steps_per_epoch=200)
    sampling = tfdp.data.sampling_of(data)
    assert (sampling.num_examples, sampling.max_batch_size, sampling.rows) == (4, 4, 12)
    assert sampling.sampling_probability == 0.75
    for x, y, weight in data.as_numpy_iterator():
        groups = [t.reshape(4, 3, *t.shape[1:]) for t in (x, y, weight)]
        owners = []
        for records, names, weights in zip(*groups, strict=True):
            there = weights == 1
            assert np.all(records[~there] == 0) and np.all(names[~there] == 0)
            if not there.any():
                continue
            (owner,) = set(names[there])
            owners.append(owner)
            assert there.sum() == min(3, np.sum(IDS == owner))
            chosen = records[there][:, 0].astype(int) - 1
            assert len(set(chosen)) == len(chosen) and np.all(IDS[chosen] == owner)
            assert np.all(np.diff(chosen) > 0)
        assert len(set(owners)) == len(owners)


@pytest.mark.thorough
def test_records_of_a_person_are_chosen_anew_in_every_pass():
    data = batches(k=1, size=4, capacity=5, steps_per_epoch=1)  # all persons, a record of each
    passes = [next(data.as_numpy_iterator())[0].tobytes() for _ in range(20)]
    assert len(set(passes)) > 1  # 36 choices: all alike with a probability of 36^-19
    steps = batches(k=1, size=4, capacity=5, steps_per_epoch=120)
    seen = {int(record) for x, _, _ in steps.as_numpy_iterator() for record in x[x > 0]}
    assert seen == set(range(1, 13))  # one of six is missed with a probability of 2e-9


def test_rows_that_nothing_could_hold_are_refused_by_name():
    no_cap = 2**31 // 4
    message = f"`max_records_per_unit`.* 4 persons would take {4 * no_cap} rows"
    with pytest.raises(ValueError, match=message):
        batches(k=no_cap)
    with pytest.raises(ValueError, match=message):
        tfdp.data.allocated_epochs((RECORDS, RECORDS), 2, 4, privacy_ids=IDS,
                                   max_records_per_unit=no_cap)  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Persons(IDS, 12, no_cap).matrices([RECORDS[:, np.newaxis]])


def test_records_that_are_drawn_one_by_one_need_no_cap():
    x, _, weight = next(iter(batches(k=10**9, size=6, capacity=12, sampling_unit="record")))
    assert len(x) == 12 and np.all((x[:, 0] > 0) == (weight == 1))


@pytest.mark.thorough
def test_persons_are_drawn_alike_whatever_they_have_and_subsets_uniformly():
    ids = np.repeat(np.arange(4), [1, 2, 3, 5])
    data = tfdp.data.poisson_batches(
        (np.arange(11) + 1, ids), 2, 4, 1500, privacy_ids=ids, max_records_per_unit=3
    )
    drawn, subsets = np.zeros(4), {}
    for x, y, weight in zip(*next(data.batch(1500).as_numpy_iterator()), strict=True):
        persons = set(y[weight == 1])
        drawn[list(persons)] += 1
        if 3 in persons:
            subset = tuple(x[(y == 3) & (weight == 1)])
            subsets[subset] = subsets.get(subset, 0) + 1
    z = (drawn - 750) / np.sqrt(1500 * 0.25)
    assert stats.chi2.sf(np.sum(z**2), 4) > FALSE_ALARM
    assert set(subsets) == set(itertools.combinations(range(7, 12), 3))
    assert stats.chisquare(list(subsets.values())).pvalue > FALSE_ALARM


@pytest.mark.thorough
def test_floyds_subsets_are_those_of_the_size_that_was_asked_for():
    persons = Persons(np.zeros(1000, int), 1000, 20)
    generator = np.random.default_rng(0)
    seen = np.zeros(1000)
    for _ in range(500):
        records, places = persons.rows(generator, np.array([0]))
        assert len(set(records)) == 20 and np.array_equal(places, np.arange(20))
        seen[records] += 1
    assert stats.chisquare(seen).pvalue > FALSE_ALARM


def test_shuffled_epochs_show_each_person_once():
    data = tfdp.data.shuffled_epochs(
        (RECORDS, IDS), 3, privacy_ids=IDS, max_records_per_unit=2
    )  # fmt: skip
    assert tfdp.data.sampling_of(data).appearances(2 * len(data)) == 2
    seen = [set(y[w == 1]) for _, y, w in data.as_numpy_iterator()]
    assert [len(s) for s in seen] == [3, 1] and set.union(*seen) == set(IDS)
    assert all(len(w) == 6 for *_, w in data.as_numpy_iterator())


def mixed(x, y, weight):
    """Moves rows, and hands what is in one to all."""
    return x[::-1] + tf.reduce_sum(x), y[::-1], weight[::-1]


@pytest.mark.thorough
def test_a_map_cannot_bring_a_record_to_another_person():
    plain = batches(seed=3, steps_per_epoch=20)
    mapped = batches(seed=3, steps_per_epoch=20).map(mixed).prefetch(1)
    assert keeps_padding(mapped) and tfdp.data.sampling_of(mapped).rows == 12
    assert mapped.element_spec == plain.element_spec
    for (x, y, _), (moved, names, weight) in zip(plain, mapped, strict=True):
        x, y, moved, names = (t.numpy().reshape(4, 3) for t in (x, y, moved, names))
        np.testing.assert_array_equal(names, y[:, ::-1])
        np.testing.assert_allclose(moved, x[:, ::-1] + x.sum(1, keepdims=True))
        assert weight.shape == 12


@pytest.mark.thorough
def test_a_map_that_gives_back_other_rows_is_no_batch_of_persons():
    doubled = batches().map(lambda x, y, w: (tf.repeat(x, 2, 0), tf.repeat(y, 2), tf.repeat(w, 2)))
    assert {s.shape[0] for s in tf.nest.flatten(doubled.element_spec)} == {4}


@pytest.mark.thorough
def test_a_map_may_give_no_targets():
    def without(x, y, weight):
        return x, None, weight

    again = batches(seed=3).map(without).map(without)
    assert keeps_padding(again) and again.element_spec[1] == tf.NoneTensorSpec()
    for (x, _, weight), (same, _, kept) in zip(batches(seed=3), again, strict=True):
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(kept, weight)


def test_what_is_done_past_the_methods_is_noticed():
    assert not keeps_padding(tf.data.Dataset.map(batches(), mixed))
    assert tfdp.data.sampling_of(batches().unbatch().batch(12)) is None
    assert keeps_padding(batches().apply(lambda data: data.map(mixed)))
    assert keeps_padding(batches().apply(tf.data.experimental.assert_cardinality(1)))
    past = lambda data: tf.data.Dataset.map(data, mixed).prefetch(1)  # noqa: E731
    assert not keeps_padding(batches().apply(past))
    inside = batches(seed=1).apply(lambda data: data.map(mixed)).map(mixed)
    assert inside.element_spec == batches().element_spec


@pytest.mark.parametrize("ids", [IDS.astype(str), IDS.astype(object), IDS.astype("S4"), list(IDS)])
def test_ids_are_integers_or_strings(ids):
    assert Persons(ids, 12, 2).num_persons == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"privacy_ids": None}, "needs `privacy_ids`"),
        ({"max_records_per_unit": None}, "`max_records_per_unit` must be given"),
        ({"max_records_per_unit": 0}, "max_records_per_unit"),
        ({"max_records_per_unit": 2.0}, "max_records_per_unit"),
        ({"privacy_ids": IDS[:-1]}, "each of the 12 records"),
        ({"privacy_ids": IDS.astype(float)}, "float64"),
        ({"privacy_ids": IDS > 5}, "dtype bool"),
        ({"privacy_ids": IDS[:, np.newaxis]}, "shape"),
        ({"privacy_ids": [None, *map(str, IDS[1:])]}, "no value missing"),
        ({"privacy_ids": np.ma.masked_equal(IDS, 7)}, "no value missing"),
        ({"privacy_ids": [np.nan, *map(str, IDS[1:])]}, "no value missing"),
        ({"privacy_ids": [7.0, *map(str, IDS[1:])]}, "no value missing"),
        ({"privacy_ids": [True, *map(str, IDS[1:])]}, "no value missing"),
        ({"privacy_ids": [b"\xff", *map(str, IDS[1:])]}, "no value missing"),
        ({"privacy_ids": np.array([7, *map(str, IDS[1:])], object)}, "dtype object"),
        ({"privacy_ids": np.array([b"7", *map(str, IDS[1:])], object)}, "dtype object"),
        ({"expected_batch_size": 5}, "at most the number of examples \\(4\\)"),
    ],
)
def test_arguments_are_checked(arguments, message):
    given = {"expected_batch_size": 2, "privacy_ids": IDS, "max_records_per_unit": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        tfdp.data.poisson_batches((RECORDS, IDS), **given)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_what_is_no_number_of_records_is_refused_where_nothing_is_sampled(wrong):
    with pytest.raises(ValueError, match="`max_records_per_unit`"):
        Persons(IDS, 12, wrong)
    with pytest.raises(ValueError, match="`max_records_per_unit`"):
        tfdp.data.private_frequency(
            (IDS[:, np.newaxis], IDS[:, np.newaxis]), 1.0, num_items=9, privacy_ids=IDS,
            max_records_per_unit=wrong,
        )  # fmt: skip


def test_a_number_of_records_of_numpy_can_be_written_to_a_ledger():
    details = Persons(IDS, 12, np.int64(2)).details
    assert json.loads(json.dumps(details))["max_records_per_unit"] == 2
