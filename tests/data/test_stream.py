"""Batches of a stream: in order, each record once a pass, and how often is said."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.data.provenance.dataset_tags import assumptions_of, releases_of
from tfdp.data.provenance.origins import Origin
from tfdp.data.provenance.released_datasets import tag_release
from tfdp.data.sampling.separated import separated
from tfdp.errors import PrivacyError


def records(n=23):
    return np.arange(n, dtype=np.float32)[:, None], np.arange(n, dtype=np.int32)


def seen(batches):
    """Targets of the records, in order; padding left out."""
    found = [(y.numpy(), w.numpy()) for _, y, w in batches]
    assert {len(y) for y, _ in found} == {5}
    return [y[w > 0].tolist() for y, w in found]


def test_records_come_in_their_order_each_once_a_pass():
    batches = tfdp.data.stream_batches(records(), 5)
    expected = [list(range(k, min(k + 5, 23))) for k in range(0, 23, 5)]
    assert seen(batches) == expected == seen(batches)
    sampling = tfdp.data.sampling_of(batches)
    assert (sampling.kind, sampling.num_examples, sampling.steps_per_epoch) == ("stream", 23, 5)
    assert sampling.expected_batch_size == 5 and sampling.chain_steps == 5
    assert not sampling.seeded
    assert sampling.overflow_probability == 0.0


def test_files_are_read_in_their_order(tmp_path):
    rows = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(23, 2))
    rows[:] = np.arange(46).reshape(23, 2)
    rows.flush()
    parse = tfdp.data.batched(lambda found: (np.stack(found), np.stack(found)[:, 0] // 2))
    batches = tfdp.data.stream_batches(rows, 5, parse=parse)
    assert [y for batch in seen(batches) for y in batch] == list(range(23))


def test_a_chain_has_the_steps_of_all_passes_of_what_is_left_of_it():
    batches = tfdp.data.stream_batches(records(), 5, passes=3)
    assert tfdp.data.sampling_of(batches).chain_steps == 15
    shorter = batches.take(2)
    assert tfdp.data.sampling_of(shorter).chain_steps == 6
    assert seen(shorter) == [list(range(5)), list(range(5, 10))]


def test_two_passes_cost_two_appearances_without_correlation():
    sampling = tfdp.data.sampling_of(tfdp.data.stream_batches(records(), 5, passes=2))
    assert [sampling.appearances(steps) for steps in (1, 5, 6, 10)] == [1, 1, 2, 2]


@pytest.mark.parametrize("change", [{"batch_size": 24}, {"batch_size": 0}, {"passes": 0}])
def test_wrong_arguments_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        tfdp.data.stream_batches(records(), **{"batch_size": 5, **change})


@pytest.mark.parametrize("after", ["repeat", "cache", "shuffle"])
def test_what_changes_the_order_or_repeats_it_is_no_stream_any_more(after):
    batches = tfdp.data.stream_batches(records(), 5)
    changed = batches.shuffle(5) if after == "shuffle" else getattr(batches, after)()
    assert tfdp.data.sampling_of(changed) is None


def test_a_stream_without_a_known_end_is_read_once_as_it_comes():
    read = []

    def source():
        for k in range(40):
            read.append(k)
            yield np.full(2, k, np.float32), np.int32(k)

    spec = tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    dataset = tf.data.Dataset.from_generator(source, output_signature=spec)
    batches = tfdp.data.stream_batches(dataset, 5, num_examples=23)
    assert not read
    sampling = tfdp.data.sampling_of(batches)
    assert (sampling.num_examples, sampling.chain_steps) == (23, 5)
    # Records beyond the bound are left out, and the last batch is padded.
    assert seen(batches) == [list(range(k, min(k + 5, 23))) for k in range(0, 23, 5)]
    shorter = tfdp.data.stream_batches(dataset.take(7), 5, num_examples=23)
    assert seen(shorter) == [[0, 1, 2, 3, 4], [5, 6]]
    assert tfdp.data.sampling_of(shorter).chain_steps == 5


def test_a_stream_that_is_read_once_keeps_its_weights_and_says_what_its_records_cost():
    entry = LedgerEntry("words", dp_accounting.GaussianDpEvent(1.0), 1, {})
    weights = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0, 1.0], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((*records(7), weights))
    dataset = tag_release(dataset, Origin((entry,), ("the words are public",)))
    batches = tfdp.data.stream_batches(dataset, 5, num_examples=9)
    found = [w.numpy().tolist() for _, _, w in batches]
    assert found == [[1.0, 2.0, 0.0, 0.5, 1.0], [3.0, 1.0, 0.0, 0.0, 0.0]]
    mapped = batches.map(lambda x, y, w: (x, y, tf.ones_like(w)))
    assert [w.numpy().tolist() for _, _, w in mapped] == [[1, 1, 0, 1, 1], [1, 1, 0, 0, 0]]
    assert releases_of(batches) == (entry,)
    said = " ".join(assumptions_of(batches))
    for one in ("the words are public", "is one record", "the bound of 9 records"):
        assert one in said


@pytest.mark.parametrize("change", [{"passes": 2}, {"privacy_ids": np.arange(23)}, {"parse": len}])
def test_what_a_stream_that_is_read_once_cannot_say_is_refused(change):
    dataset = tf.data.Dataset.from_tensor_slices(records())
    with pytest.raises(ValueError, match="read once"):
        tfdp.data.stream_batches(dataset, 5, num_examples=23, **change)
    with pytest.raises(ValueError, match="read once"):
        tfdp.data.stream_batches(records(), 5, num_examples=23)
    with pytest.raises(ValueError, match="repeat"):
        tfdp.data.stream_batches(dataset.repeat(2), 5, num_examples=46)


# Persons of several records --------------------------------------------------------------------


def greedy(ids, size, most, apart):
    """Record after record, as the docstring says it."""
    steps, taken = {}, []
    for place, one in enumerate(ids):
        own, step = steps.setdefault(one, []), place // size
        takes = len(own) < most and (not own or step - own[-1] >= apart)
        taken.append(takes)
        if takes:
            own.append(step)
    return taken, steps


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(-3, 3), min_size=1, max_size=40), size=st.integers(1, 5),
    most=st.integers(1, 4), apart=st.integers(1, 6),
)  # fmt: skip
def test_nobody_comes_too_often_or_too_soon_and_all_others_come(ids, size, most, apart):
    expected, steps = greedy(ids, size, most, apart)
    assert separated(np.array(ids), size, most, apart).tolist() == expected
    for own in steps.values():
        assert len(own) <= most and all(np.diff(own) >= apart)


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, 4), min_size=5, max_size=40), person=st.integers(0, 4))
def test_records_of_others_stay_where_they_are_without_a_person(ids, person):
    ids = np.array(ids)
    blanked = np.where(ids == person, 9, ids)  # someone else's place, of weight 0
    with_person, without = (separated(of, 2, 2, 2) for of in (ids, blanked))
    assert np.array_equal(with_person[ids != person], without[ids != person])


PERSONS = np.array([7, 7, 1, 2, 3, 7, 1, 2, 4, 7, 7, 1, 2, 3, 5])


def of_persons(**change):
    arguments = {"privacy_ids": PERSONS, "max_participations": 2, "min_separation": 2, **change}
    return tfdp.data.stream_batches(records(15), 5, **arguments)


def test_rows_of_weight_zero_stand_for_records_that_come_too_soon():
    found = [(y.numpy(), w.numpy()) for _, y, w in of_persons()]
    # In steps of five: 7 at 0 (1 is in the same step), 9 is one step later, and 10 is two.
    assert [np.flatnonzero(w).tolist() for _, w in found] == [[0, 2, 3, 4], [3], [0, 1, 2, 3, 4]]
    assert [y[w > 0].tolist() for y, w in found] == [[0, 2, 3, 4], [8], [10, 11, 12, 13, 14]]


@pytest.mark.parametrize("most, apart", [(1, 1), (2, 3), (3, 1), (9, 2)])
def test_nobody_is_in_more_or_closer_steps_than_were_declared(most, apart):
    ids = np.random.default_rng(0).integers(0, 6, 60)  # each in most of the steps
    batches = tfdp.data.stream_batches(
        records(60), 5, privacy_ids=ids, max_participations=most, min_separation=apart
    )
    taken = [ids[y.numpy().astype(int)][w.numpy() > 0] for _, y, w in batches]
    counts = []
    for person in range(6):
        steps = [t for t, persons in enumerate(taken) for one in persons if one == person]
        assert np.all(np.diff(steps) >= apart)
        counts.append(len(steps))
    assert max(counts) == min(most, 6)  # 12 steps, every other one


def test_what_a_stream_of_persons_says_of_itself():
    sampling = tfdp.data.sampling_of(of_persons())
    assert (sampling.num_examples, sampling.steps_per_epoch, sampling.max_records_per_unit) == (
        6, 3, 1
    )  # fmt: skip
    assert sampling.participations == (2, 2) and sampling.chain_steps == 3
    assert [sampling.appearances(steps) for steps in (1, 2, 3)] == [1, 2, 2]
    assert tfdp.accounting.Sampling.from_dict(sampling.to_dict()) == sampling
    passes = tfdp.data.sampling_of(tfdp.data.stream_batches(records(), 5, passes=3))
    assert passes.participations == (3, 5)


@pytest.mark.parametrize("change", [
    {"privacy_ids": None}, {"min_separation": None}, {"max_participations": None},
    {"min_separation": 0}, {"max_participations": 0}, {"passes": 2},
])  # fmt: skip
def test_bounds_that_are_not_both_there_or_do_not_hold_are_refused(change):
    with pytest.raises(ValueError, match="max_participations|min_separation"):
        of_persons(**change)
    with pytest.raises(ValueError, match="for persons and need `privacy_ids`"):
        of_persons(privacy_ids=None)


def test_a_batch_is_not_larger_than_the_number_of_persons():
    with pytest.raises(ValueError, match=r"or of persons \(6\). Received: batch_size=7"):
        tfdp.data.stream_batches(
            records(15), 7, privacy_ids=PERSONS, max_participations=2, min_separation=2
        )


def test_persons_of_several_records_need_bounds():
    with pytest.raises(PrivacyError, match="min_separation"):
        of_persons(max_participations=None, min_separation=None)
