"""A tf.data.Dataset of records becomes Poisson batches; one of batches or of copies does not."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data.provenance.dataset_tags import assumptions_of

X = {"a": np.arange(12, dtype=np.float32).reshape(6, 2), "b": np.array([b"x\0", b"y"] * 3, object)}
Y = np.arange(6)
RANDOM = tf.data.Dataset.random().map(lambda number: number % 2)


def records():
    return tf.data.Dataset.from_tensor_slices((X, Y))


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [tfdp.data.poisson_batches, tfdp.data.shuffled_epochs])
def test_its_records_are_those_of_the_arrays(sampler):
    for dataset in (records(), records().batch(4).unbatch(), records().shuffle(6).prefetch(1)):
        batches = sampler(dataset, 6)
        (x, y, weight), *_ = batches
        assert tfdp.data.sampling_of(batches).num_examples == 6
        order = np.flatnonzero(weight)  # room for one record more is padding
        order = order[np.argsort(y.numpy()[order])]
        np.testing.assert_array_equal(y.numpy()[order], Y)
        for name in X:
            np.testing.assert_array_equal(x[name].numpy()[order], X[name])
        assert set(weight.numpy().tolist()) <= {0.0, 1.0}
    (assumed,) = assumptions_of(batches)
    assert "each element of the tf.data.Dataset is one record" in assumed


def test_weights_and_persons_come_along():
    weighted = records().map(lambda x, y: (x, y, 2.0))
    batches = tfdp.data.poisson_batches(
        weighted, 2, privacy_ids=[0, 0, 1, 1, 2, 2], max_records_per_unit=1
    )
    assert tfdp.data.sampling_of(batches).num_examples == 3
    for _, _, weight in batches:
        assert set(weight.numpy()) <= {0.0, 2.0}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda d: d.repeat(2), "once. Remove `repeat`"),
        (lambda d: d.repeat(), "once. Remove `repeat`"),
        (lambda d: d.repeat(2).map(lambda x, y: (x, y)).take(7), "Remove `repeat`"),
        (lambda d: d.batch(2, drop_remainder=True), "single records.*`unbatch"),
        (lambda d: d.batch(2, True).batch(3, True).unbatch(), "single records"),
        (lambda d: d.padded_batch(2).prefetch(1), "single records"),
        (lambda d: d.take(0), "at least one record"),
        (lambda d: d.map(lambda x, y: y), r"\(x, y\)"),
        (lambda d: d.map(lambda x, y: (tf.fill([y], 1), y)), "known shape"),
        (lambda d: tfdp.data.poisson_batches((X, Y), 2).unbatch(), "drew already"),
    ],
)
def test_what_is_no_dataset_of_records_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        tfdp.data.poisson_batches(made(records()), 2)


def _freely(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.shuffle(6).prefetch(1),
        lambda d: d.shuffle(6, seed=0).map(lambda x, y: (x, y)),
        lambda d: d.map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False),
        lambda d: tf.data.Dataset.choose_from_datasets([d.take(3), d.skip(3)], RANDOM, False),
        _freely,
    ],
)
@pytest.mark.parametrize(
    "sampler", [tfdp.data.poisson_batches, tfdp.data.shuffled_epochs, tfdp.data.allocated_epochs]
)
def test_ids_of_persons_go_with_records_whose_order_is_known(made, sampler):
    ids = {"privacy_ids": [0, 0, 1, 1, 2, 2], "max_records_per_unit": 2}
    with pytest.raises(ValueError, match="in the order of `privacy_ids`.*Remove `shuffle`"):
        sampler(made(records()), 1, **ids)
    assumed = assumptions_of(sampler(records().map(lambda x, y: (x, y)).cache(), 1, **ids))
    assert any("in the order of `privacy_ids`" in sentence for sentence in assumed)
    sampler(made(records()), 1)
