"""Batches of a stream: in order, each record once a pass, and how often is said."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp


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


@pytest.mark.parametrize("change", [{"passes": 2}, {"privacy_ids": np.arange(23)}, {"parse": len}])
def test_what_a_stream_that_is_read_once_cannot_say_is_refused(change):
    dataset = tf.data.Dataset.from_tensor_slices(records())
    with pytest.raises(ValueError, match="read once"):
        tfdp.data.stream_batches(dataset, 5, num_examples=23, **change)
    with pytest.raises(ValueError, match="read once"):
        tfdp.data.stream_batches(records(), 5, num_examples=23)
    with pytest.raises(ValueError, match="repeat"):
        tfdp.data.stream_batches(dataset.repeat(2), 5, num_examples=46)
