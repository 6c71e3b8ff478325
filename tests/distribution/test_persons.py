"""Persons stay whole when a batch is divided among replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.distribution import checks

K = 3


def build():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.thorough
def test_persons_are_whole_on_1_and_2_replicas(replicas):
    generator = np.random.default_rng(0)
    ids = np.repeat(np.arange(7), [1, 2, 3, 3, 1, 3, 2])
    x = generator.normal(size=(len(ids), 3)).astype("float32")
    y = 5 * generator.normal(size=(len(ids), 2)).astype("float32")
    found = []
    for count in (None, 2):
        # Seven persons of three rows: rows alone could be divided, 11 and 10, and persons not.
        batches = tfdp.data.poisson_batches(
            (x, y), 7, steps_per_epoch=1, privacy_ids=ids, max_records_per_unit=K, seed=1
        )
        model = replicas.model(
            count, build, noise_multiplier=0.0, num_examples=7, expected_batch_size=7,
            max_records_per_unit=K, clip_norm=2.0, compile_kwargs={"run_eagerly": count is None},
        )  # fmt: skip
        found.append(replicas.train(model, batches)[0])
    assert any(np.abs(change).max() > 1e-2 for change in found[0])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_padding_for_replicas_comes_in_whole_persons():
    rows = tf.data.Dataset.from_tensors((tf.ones([21, 2]), tf.ones([21]), tf.ones([21])))
    (batch,) = checks.padded(rows, 2, K)
    assert [t.shape[0] for t in batch] == [24] * 3 and float(tf.reduce_sum(batch[2])) == 21
