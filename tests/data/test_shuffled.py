"""Shuffled epochs: each record once, whatever the batch size."""

import numpy as np
import pytest

import tfdp

INDEX = np.arange(1, 24, dtype=np.int32)  # 23 records; padding is 0


@pytest.mark.parametrize("batch_size", [1, 5, 22, 23])
def test_every_record_appears_exactly_once_in_every_epoch(batch_size):
    batches = tfdp.data.shuffled_epochs((INDEX, INDEX), batch_size)
    for _ in range(2):
        drawn = []
        for x, _, weight in batches.as_numpy_iterator():
            assert x.shape == (batch_size,)
            np.testing.assert_array_equal(weight, (x > 0).astype(np.float32))
            drawn.extend(x[x > 0])
        np.testing.assert_array_equal(np.sort(drawn), INDEX)
    assert batches.cardinality() == -(-23 // batch_size)


@pytest.mark.parametrize("seed", [None, 5])
def test_the_order_changes_from_epoch_to_epoch(seed):
    batches = tfdp.data.shuffled_epochs((INDEX, INDEX), 23, seed=seed)
    orders = {next(batches.as_numpy_iterator())[0].tobytes() for _ in range(4)}
    assert len(orders) == 4


def test_the_batches_say_that_they_are_not_poisson_samples():
    sampling = tfdp.data.sampling_of(tfdp.data.shuffled_epochs((INDEX, INDEX), 5))
    assert sampling.kind == "shuffled"
    assert sampling.steps_per_epoch == 5
    assert sampling.seeded is False
    seeded = tfdp.data.shuffled_epochs((INDEX, INDEX), 5, seed=5)
    assert tfdp.data.sampling_of(seeded).seeded is True


@pytest.mark.parametrize("batch_size", [0, 24, 2.5])
def test_impossible_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match="Argument `batch_size` must be"):
        tfdp.data.shuffled_epochs((INDEX, INDEX), batch_size)
