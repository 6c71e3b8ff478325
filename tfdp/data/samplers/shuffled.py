"""Shuffled batches: each record exactly once an epoch, for guarantees without amplification."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.periods import Period, claimed
from tfdp.data.sampling.persons import units_of
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.outside_memory import records_of


def shuffled_epochs(
    data: Any, batch_size: int, seed: int | None = None, *, parse: Callable | None = None,
    privacy_ids: ArrayLike | None = None, max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> tf.data.Dataset:  # fmt: skip
    """Batches that contain each record exactly once in every epoch, in a new order each time.

    This is not Poisson sampling, so amplification by sampling does not apply. Forward-noise
    mechanisms need these batches, because a record's cost is the number of its copies (MATH.md
    section 5). The last batch of an epoch is filled with rows of zeros of weight 0.

    Args:
        data: as for `poisson_batches`.
        batch_size: rows of every batch, at most the number of records; with `privacy_ids`,
            persons.
        seed: integer for tests only; different epochs still have different orders.
        parse, period: as for `poisson_batches`.
        privacy_ids, max_records_per_unit: as for `poisson_batches`: each *person* once in an epoch,
            with at most `max_records_per_unit` of their records.

    Returns:
        `tf.data.Dataset` of one epoch, `(x, y, sample_weight)`, with a known cardinality, tagged
        for `sampling_of`. Every pass over it is a new epoch: `fit(batches, epochs=E)` shows each
        record E times.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person is also in another period.
    """
    records = records_of(data, parse, privacy_ids)
    persons, n = units_of(records, privacy_ids, max_records_per_unit)
    count("batch_size", batch_size)
    if batch_size > n:
        raise ValueError(
            f"Argument `batch_size` must be at most the number of records ({n}). "
            f"Received: batch_size={batch_size}"
        )
    source = GeneratorSource(seed)
    key = claimed(period, privacy_ids)  # nobody is entered by a call that is refused
    sampling = Sampling(
        kind="shuffled",
        num_examples=n,
        expected_batch_size=batch_size,
        max_batch_size=batch_size,
        seeded=source.seeded,
        steps_per_epoch=math.ceil(n / batch_size),
        max_records_per_unit=max_records_per_unit,
        period=key,
    )

    def draw_epoch():
        order = source.fresh().permutation(n)
        for start in range(0, n, batch_size):
            yield order[start : start + batch_size]

    return dataset_of_batches(records, sampling, draw_epoch, persons, source)
