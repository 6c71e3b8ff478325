"""Batches of a stream in its own order, each record once a pass."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.data.samplers.read_once import batches_read_once
from tfdp.data.sampling.batches import dataset_of_rows
from tfdp.data.sampling.periods import Period, claimed
from tfdp.data.sampling.persons import checked_ids
from tfdp.data.sampling.separated import separated
from tfdp.data.sources.outside_memory import records_of
from tfdp.errors import PrivacyError


def stream_batches(
    data: Any, batch_size: int, *, parse: Callable | None = None, passes: int = 1,
    privacy_ids: ArrayLike | None = None, max_participations: int | None = None,
    min_separation: int | None = None, period: Period | None = None,
    num_examples: int | None = None,
) -> tf.data.Dataset:  # fmt: skip
    """Batches of the records in the order in which they are given, each record once a pass.

    Nothing is sampled, so privacy is not amplified. Noise that later steps partly cancel makes up
    for this: `DPOptimizer(..., noise_correlation="auto")`. Such noise depends on when a record can
    come again, and this order determines it. The last batch is filled with rows of zeros of weight
    0.

    ```python
    batches = tfdp.data.stream_batches((x, y), batch_size=512)
    model.fit(batches, epochs=1)
    ```

    Persons who have several records take part in several steps. The noise grows with the number of
    these steps, and with their closeness. `max_participations` and `min_separation` bound both. The
    model trains on the first records of each person that keep within the bounds; rows of weight 0
    replace the others. The number of replaced records is private.

    ```python
    batches = tfdp.data.stream_batches(
        (x, y), batch_size=512, privacy_ids=user_ids, max_participations=4, min_separation=50)
    ```

    Formal guarantees: a record is in at most `passes` steps of one `fit`, and these steps are one
    pass apart. A person is in at most `max_participations` steps, which are at least
    `min_separation` apart, whatever the records of others are.

    Args:
        data: as for `poisson_batches`.
        batch_size: rows of every batch, at most the number of records.
        parse: as for `poisson_batches`.
        passes: the largest number of passes (`epochs`) over the records in one `fit`. All of them
            are charged when it begins.
        privacy_ids: (n,) integers or strings: the person of each record, distinct unless the next
            two arguments are given. None if each record is a unit of privacy by itself.
        max_participations: the largest number of records of one person to train on, in one pass.
        min_separation: the smallest number of steps from one of them to the next; a larger one
            needs less noise.
        period: a `tfdp.data.Period`, with `privacy_ids`. Its persons are in no other period, so
            later records of other persons cost them nothing more.
        num_examples: for a `tf.data.Dataset` of records of unknown length that is read once, as the
            records arrive: a public bound on their number, which determines the steps of the chain.
            Records beyond the bound are left out. With None, a dataset is first read into memory.

    Returns:
        `tf.data.Dataset` of one pass, `(x, y, sample_weight)`, with a known cardinality, tagged for
        `sampling_of`.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person has several records without bounds, or is also in another period.
    """
    bounds = (max_participations, min_separation)
    if bounds != (None, None):
        max_participations, min_separation = bounds = _checked_bounds(privacy_ids, *bounds)
    if num_examples is not None:
        _check_read_once(data, parse, passes, privacy_ids, num_examples)
        return batches_read_once(data, _sampling(num_examples, batch_size))
    records = records_of(data, parse, privacy_ids)
    n, units, of_units, taken = records.num_examples, None, {}, None
    if bounds != (None, None):
        of_units = {"max_participations": max_participations, "min_separation": min_separation}
    if privacy_ids is not None:
        ids = checked_ids(privacy_ids, n)
        of_units["max_records_per_unit"], units = 1, len(np.unique(ids))
        if bounds == (None, None):
            _refuse_several_records(ids)
        else:
            taken = separated(ids, count("batch_size", batch_size), *bounds)
    sampling = _sampling(n, batch_size, count("passes", passes), units, **of_units)
    # Nobody is entered by a call that is refused.
    sampling = dataclasses.replace(sampling, period=claimed(period, privacy_ids))

    def one_pass():
        for start in range(0, n, batch_size):
            chosen = np.arange(start, min(start + batch_size, n))
            places = np.arange(len(chosen)) if taken is None else np.flatnonzero(taken[chosen])
            yield chosen[places], places

    return dataset_of_rows(records, sampling, one_pass)


def _sampling(num_examples, batch_size, passes=1, units=None, **of_units):
    count("num_examples", num_examples)
    units = units or num_examples
    if count("batch_size", batch_size) > units:
        raise ValueError(
            "Argument `batch_size` must be at most the number of records, or of persons "
            f"({units}). Received: batch_size={batch_size}"
        )
    return Sampling(
        kind="stream",
        num_examples=units,
        expected_batch_size=batch_size,
        max_batch_size=batch_size,
        steps_per_epoch=math.ceil(num_examples / batch_size),
        passes=passes,
        **of_units,
    )


def _check_read_once(data, parse, passes, privacy_ids, num_examples):
    alone = parse is None and privacy_ids is None and passes == 1
    if not (alone and isinstance(data, tf.data.Dataset)):
        raise ValueError(
            "Argument `num_examples` is for a `tf.data.Dataset` of records that is read once, in "
            "its own order: without `parse` and `privacy_ids`, and with passes=1. For all other "
            "data, tfdp knows the number of records: leave the argument out. Received: "
            f"num_examples={num_examples}, data of type {type(data).__name__}, passes={passes}"
        )


def _checked_bounds(privacy_ids, max_participations, min_separation):
    if privacy_ids is None:
        raise ValueError(
            "Arguments `max_participations` and `min_separation` are for persons and need "
            f"`privacy_ids`. Received: max_participations={max_participations}, "
            f"min_separation={min_separation}, privacy_ids=None"
        )
    return (
        count("max_participations", max_participations), count("min_separation", min_separation)
    )  # fmt: skip


def _refuse_several_records(ids):
    several = len(ids) - len(np.unique(ids))
    if several:
        raise PrivacyError(
            "Argument `privacy_ids` names some persons more than once. Such a person would take "
            "part in several steps of a pass, but is charged for one. Bound the number and "
            "distance of these steps with `max_participations` and `min_separation`, keep one "
            "record of each person, or draw by person with `tfdp.data.poisson_batches`. Received: "
            f"{len(ids)} records, {several} of them from persons with an earlier record"
        )
