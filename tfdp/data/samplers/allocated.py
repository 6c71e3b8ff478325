"""Random allocation ("balls in bins"): each record in exactly one step of every epoch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.data.sampling.arguments import capacity_of
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.periods import Period, claimed
from tfdp.data.sampling.persons import units_of
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.outside_memory import records_of


def draw_allocation(generator, num_examples, num_steps, capacity):
    """Indices of the records of each step of one epoch.

    Of a step that got more than `capacity` records a uniformly random subset of that size is kept;
    `Sampling.overflow_probability` charges for it.

    Args:
        generator: `numpy.random.Generator`.
        num_examples: number of records n.
        num_steps: T; each record falls into each step with probability 1/T, independently.
        capacity: largest number of indices of a step.

    Yields:
        T int64 arrays, each of between 0 and `capacity` indices; together all records once.
    """
    steps = generator.integers(num_steps, size=num_examples)
    order = np.argsort(steps, kind="stable")
    ends = np.cumsum(np.bincount(steps, minlength=num_steps))
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        chosen = order[start:end]
        if len(chosen) > capacity:
            chosen = generator.choice(chosen, capacity, replace=False, shuffle=False)
        yield chosen


def allocated_epochs(
    data: Any,
    steps_per_epoch: int,
    max_batch_size: int | None = None,
    seed: int | None = None,
    *,
    parse: Callable | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> tf.data.Dataset:
    """Batches in which every record takes part exactly once in an epoch, in a random step.

    Each record is assigned to one of the T steps of an epoch, uniformly, independently of the other
    records, and anew in every epoch. In contrast to `poisson_batches`, no record is missed in an
    epoch and none comes twice. In contrast to `shuffled_epochs`, privacy is amplified: at equal
    noise, ε is usually somewhat below that of Poisson samples with q = 1/T. As with Poisson
    sampling, batches differ in size and are padded to one static shape. Which record is in which
    step stays secret.

    Example:

    ```python
    batches = tfdp.data.allocated_epochs((x, y), steps_per_epoch=100)
    optimizer = tfdp.optimizers.DPOptimizer(
        "adam", num_examples=len(x), expected_batch_size=len(x) / 100, ...)
    model.fit(batches, epochs=10)
    ```

    An epoch is charged as a whole when it begins. If it ends early (`take`, an interrupted `fit`, a
    budget that is not a whole number of epochs), it costs as much as a full one, and a `fit` that
    continues begins another epoch.

    Formal guarantees: E epochs of Gaussian steps have the guarantee of
    `RandomAllocationGaussianDpEvent`, composed E times. An epoch that is cut at `max_batch_size`
    differs from it by at most `sampling_of(batches).overflow_probability` in total variation
    (MATH.md section 10).

    Args:
        data: as for `poisson_batches`.
        steps_per_epoch: T; a step has n/T records on average.
        max_batch_size: rows of every batch, at least n/T and at most n + 1. Default: the smallest
            number that a step exceeds with probability at most 1e-20, even with one more record.
        seed: integer for tests only. Epochs still differ, but the draws are predictable, and the
            privacy statement says so.
        parse, period: as for `poisson_batches`.
        privacy_ids, max_records_per_unit: as for `poisson_batches`: each *person* is in one step of
            an epoch, with at most `max_records_per_unit` of their records.

    Returns:
        `tf.data.Dataset` of one epoch, `(x, y, sample_weight)`, with a known cardinality, tagged
        for `sampling_of`. Every pass over it draws a new epoch.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person is also in another period.

    Source: Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD"; Feldman and Shenfeld 2025,
    "Privacy amplification by random allocation".
    """
    records = records_of(data, parse, privacy_ids)
    persons, n = units_of(records, privacy_ids, max_records_per_unit)
    count("steps_per_epoch", steps_per_epoch)
    max_batch_size = capacity_of(max_batch_size, n / steps_per_epoch, n, n + 1)
    source = GeneratorSource(seed)
    key = claimed(period, privacy_ids)  # nobody is entered by a call that is refused
    sampling = Sampling(
        kind="allocated",
        num_examples=n,
        expected_batch_size=n / steps_per_epoch,
        max_batch_size=max_batch_size,
        seeded=source.seeded,
        steps_per_epoch=steps_per_epoch,
        max_records_per_unit=max_records_per_unit,
        period=key,
    )

    def draw_epoch():
        return draw_allocation(source.fresh(), n, steps_per_epoch, sampling.max_batch_size)

    return dataset_of_batches(records, sampling, draw_epoch, persons, source)
