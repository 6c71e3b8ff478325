"""Batches of a stream in its own order, each record once a pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import ancestors, may_reorder
from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.data.samplers.read_once import batches_read_once
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.periods import claimed
from tfdp.data.sampling.persons import checked_ids
from tfdp.data.sources.outside_memory import records_of
from tfdp.errors import PrivacyError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.sampling.periods import Period


def stream_batches(
    data: Any, batch_size: int, *, parse: Callable | None = None, passes: int = 1,
    privacy_ids: ArrayLike | None = None, period: Period | None = None,
    num_examples: int | None = None,
) -> tf.data.Dataset:  # fmt: skip
    """Batches of the records in the order in which they are given, each record once a pass.

    Nothing is drawn, and privacy is not amplified. Noise that later steps partly cancel makes up
    for it: `DPOptimizer(..., noise_correlation="auto")`. It needs to know when a record can come
    again, and this order determines it. The last batch is filled with rows of zeros of weight 0.

    ```python
    batches = tfdp.data.stream_batches((x, y), batch_size=512)
    model.fit(batches, epochs=1)
    ```

    Formal guarantees: a record is in at most `passes` steps of one `fit`, each as many steps after
    the one before as a pass has.

    Args:
        data: as for `poisson_batches`.
        batch_size: rows of every batch, at most the number of records.
        parse: as for `poisson_batches`.
        passes: how often a `fit` may go through the records, at most: its `epochs`. All of them
            are charged when it begins.
        privacy_ids: (n,) distinct integers or strings: whose record each one is, where a person
            has one record. None where each record is a unit of privacy by itself.
        period: a `tfdp.data.Period`, with `privacy_ids`: whoever is in it is in no other one, so
            that a stream which goes on with new records costs nobody more.
        num_examples: for a `tf.data.Dataset` of records that is read once, as it comes, and whose
            end is not known: a public bound of their number, from which the steps of the chain
            follow. Later records are left out. None reads a dataset into memory first.

    Returns:
        `tf.data.Dataset` of one pass, `(x, y, sample_weight)`, with a known cardinality, tagged for
        `sampling_of`.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person has several records, or is in another period, too.
    """
    if num_examples is not None:
        _check_read_once(data, parse, passes, privacy_ids, num_examples)
        return batches_read_once(data, _sampling(num_examples, batch_size))
    records = records_of(data, parse, privacy_ids)
    n = records.num_examples
    if privacy_ids is not None:
        _refuse_several_records(checked_ids(privacy_ids, n))
    of_units = {"max_records_per_unit": None if privacy_ids is None else 1}
    sampling = _sampling(n, batch_size, count("passes", passes), **of_units)
    # Nobody is entered by a call that is refused.
    sampling = dataclasses.replace(sampling, period=claimed(period, privacy_ids))

    def one_pass():
        for start in range(0, n, batch_size):
            yield np.arange(start, min(start + batch_size, n))

    return dataset_of_batches(records, sampling, one_pass)


def _sampling(num_examples, batch_size, passes=1, **of_units):
    count("num_examples", num_examples)
    if count("batch_size", batch_size) > num_examples:
        raise ValueError(
            f"Argument `batch_size` must be at most the number of records ({num_examples}). "
            f"Received: batch_size={batch_size}"
        )
    return Sampling(
        kind="stream",
        num_examples=num_examples,
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
            "its own order: without `parse` and `privacy_ids`, and with passes=1. Of all other "
            "data tfdp knows the number of records. Leave it out. Received: "
            f"num_examples={num_examples}, data of type {type(data).__name__}, passes={passes}"
        )


def _refuse_several_records(ids):
    several = len(ids) - len(np.unique(ids))
    if several:
        raise PrivacyError(
            "Argument `privacy_ids` names some persons more than once. Such a person would take "
            "part in several steps of a pass, but is charged for one. Keep one record of each, or "
            f"draw by person with `tfdp.data.poisson_batches`. Received: {several} of {len(ids)} "
            "records of persons who have an earlier one"
        )


def refuse_more_passes(sampling, epochs, steps_per_epoch):
    """Refuses a `fit` that would go through a stream more often than it is charged for.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        epochs: how many this `fit` has.
        steps_per_epoch: as given to `fit`; None for one pass in each epoch.

    Raises:
        PrivacyError: if there are more passes than the stream was made for.
    """
    if sampling is None or not sampling.rule.keeps_order:
        return
    passes, of_pass = sampling.passes or 1, sampling.steps_per_epoch
    if of_pass is None or epochs * (steps_per_epoch or of_pass) > passes * of_pass:
        raise PrivacyError(
            f"These batches of `tfdp.data.stream_batches` are made for {passes} passes in one "
            "`fit`. In more passes, each record would take part more often than it is charged for. "
            "Give `stream_batches` the number of `passes`, or `fit` fewer epochs. Received: "
            f"epochs={epochs}, steps_per_epoch={steps_per_epoch}, for {of_pass} steps a pass"
        )


def refuse_other_order(sampling, data):
    """Refuses several passes over a stream whose batches may come in another order in each.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        data: what `fit` was given.

    Raises:
        PrivacyError: if a record could come again sooner than a pass later.
    """
    if sampling is None or not sampling.rule.keeps_order or (sampling.passes or 1) == 1:
        return
    keeps = isinstance(data, tf.data.Dataset) and data.options().deterministic is not False
    if not keeps or any(map(may_reorder, ancestors(data))):
        raise PrivacyError(
            "These batches of `tfdp.data.stream_batches` may come in another order in each pass. "
            "A record could then come again sooner than the charge assumes. Remove "
            "`deterministic=False` after `stream_batches` and give `fit` the tf.data.Dataset "
            f"itself, or take passes=1. Received: passes={sampling.passes}, x={data}"
        )
