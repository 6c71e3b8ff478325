"""Cyclic Poisson sampling: parts of the records that are sampled in turn."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.accounting.banded_noise import steps_of_pass
from tfdp.data.samplers.poisson import draw_poisson
from tfdp.data.sampling.arguments import capacity_of, check_expected_batch_size, explained
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.periods import Period, claimed
from tfdp.data.sampling.persons import units_of
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.outside_memory import records_of


@explained
def cyclic_poisson_batches(
    data: Any,
    expected_batch_size: float,
    bands: int,
    *,
    passes: int = 1,
    max_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    seed: int | None = None,
    parse: Callable | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> tf.data.Dataset:
    """Batches that are sampled from b parts of the records in turn, for noise of b bands.

    Each record is in one of b parts, drawn once for each of them by the operating system's entropy.
    Step t samples part t modulo b: each of its records independently with probability b·q. The
    expected batch size is that of Poisson batches, and a record that was sampled cannot be sampled
    again before b steps have passed. So the noise of b steps may be correlated, by
    `tfdp.optimizers.BandedMatrix`, and is amplified all the same (Choquette-Choo et al. 2023, arXiv
    2306.08153).

    ```python
    batches = tfdp.data.cyclic_poisson_batches((x, y), 512, bands=8, passes=10)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), budget=tfdp.PrivacyBudget(epsilon=8, delta=1e-6),
        noise_correlation=tfdp.optimizers.BandedMatrix(bands=8))
    model.compile(optimizer, loss=...)
    model.fit(batches, epochs=10)
    ```

    With `privacy_ids` the unit of privacy is a person, as for `poisson_batches`: persons are parted
    and sampled, and a sampled person takes part with at most k records, chosen anew each time.

    Formal guarantees: whose part a record or person is in depends on no other one. Within a `fit`,
    the steps in which it may be sampled are b or more apart, and it is sampled independently in
    each. A step differs from this by at most `Sampling.overflow_probability`/b in total variation,
    where a draw is larger than `max_batch_size`. No file holds the parts.

    Args:
        data, parse, privacy_ids, max_records_per_unit, period: as for `poisson_batches`.
        expected_batch_size: mean number of records B of a batch, at most n/b; q = B/n.
        bands: b, that of the `BandedMatrix`.
        passes: how often a `fit` may go through all batches, at most: its `epochs`.
        max_batch_size: as for `poisson_batches`.
        steps_per_epoch: batches in one pass, a multiple of b unless there is one pass. Default:
            n/B, rounded to a multiple of b.
        seed: integer for tests only; parts and draws are then predictable, and the statement says
            so.

    Returns:
        `tf.data.Dataset` of `(x, y, sample_weight)`, with a known cardinality, tagged for
        `sampling_of`.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person is also in another period.
    """
    records = records_of(data, parse, privacy_ids)
    persons, n = units_of(records, privacy_ids, max_records_per_unit)
    source = GeneratorSource(seed)
    check_expected_batch_size(expected_batch_size, n)
    bands, passes = count("bands", bands), count("passes", passes)
    steps_per_epoch = _steps_of_pass(steps_per_epoch, n, expected_batch_size, bands, passes)
    sampling = Sampling(
        kind="cyclic_poisson",
        num_examples=n,
        expected_batch_size=expected_batch_size,
        # Over all ways to part the records, a draw has the size of a Poisson draw of all of them.
        max_batch_size=capacity_of(max_batch_size, expected_batch_size, n, n + 1),
        seeded=source.seeded,
        steps_per_epoch=steps_per_epoch,
        passes=passes,
        max_records_per_unit=max_records_per_unit,
        bands=bands,
    )
    # Nobody is entered by a call that is refused.
    sampling = dataclasses.replace(sampling, period=claimed(period, privacy_ids))
    parts = _parts(source.fresh(), n, bands)
    probability, capacity = sampling.part_probability, sampling.max_batch_size

    def draw_epoch():
        generator = source.fresh()
        for step in range(steps_per_epoch):
            part = parts[step % bands]
            drawn = draw_poisson(generator, len(part), probability, capacity)
            yield part[drawn].astype(np.int64)

    return dataset_of_batches(records, sampling, draw_epoch, persons, source)


def _parts(generator, number, bands):
    """List of b index arrays: each index in one of them, independently and uniformly."""
    part = generator.integers(bands, size=number, dtype=np.int32)
    order = np.argsort(part, kind="stable").astype(np.int32 if number < 2**31 else np.int64)
    return np.split(order, np.cumsum(np.bincount(part, minlength=bands))[:-1])


def _steps_of_pass(steps_per_epoch, num_examples, expected_batch_size, bands, passes):
    if steps_per_epoch is None:
        return steps_of_pass(num_examples, expected_batch_size, bands)
    if count("steps_per_epoch", steps_per_epoch) % bands and passes > 1:
        raise ValueError(
            "Argument `steps_per_epoch` must be a multiple of `bands` if there are several passes: "
            "each of them begins with the first part of the records. Received: "
            f"steps_per_epoch={steps_per_epoch}, bands={bands}, passes={passes}"
        )
    return steps_per_epoch
