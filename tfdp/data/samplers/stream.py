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
from tfdp.data.sampling.batches import dataset_of_rows
from tfdp.data.sampling.periods import claimed
from tfdp.data.sampling.persons import checked_ids
from tfdp.data.sampling.separated import separated
from tfdp.data.sources.outside_memory import records_of
from tfdp.errors import PrivacyError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.sampling.periods import Period


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
    """Refuses a stream in which a record or person may come again, in another order.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        data: what `fit` was given.

    Raises:
        PrivacyError: if a record could come again sooner than a pass later, or another one of its
            person sooner than `min_separation`.
    """
    if sampling is None or not sampling.rule.keeps_order or sampling.participations[0] == 1:
        return
    keeps = isinstance(data, tf.data.Dataset) and data.options().deterministic is not False
    if not keeps or any(map(may_reorder, ancestors(data))):
        raise PrivacyError(
            "These batches of `tfdp.data.stream_batches` may come in another order in each pass. "
            "A record or person could then come again sooner than the charge assumes. Remove "
            "`deterministic=False` after `stream_batches` and give `fit` the tf.data.Dataset "
            "itself, or take passes=1 and no `max_participations`. Received: "
            f"passes={sampling.passes}, max_participations={sampling.max_participations}, x={data}"
        )


def refuse_left_out(sampling):
    """Called where a batch was not trained on: refuses a next one if this moves steps closer.

    Args:
        sampling: the `Sampling` of the run.

    Raises:
        PrivacyError: if a record or person of the stream may come again.
    """
    if sampling is not None and sampling.rule.keeps_order and sampling.participations[0] > 1:
        raise PrivacyError(
            "A batch of this stream was left out. A record or person would then come again after "
            "fewer steps than the charge assumes. Pass each batch of `training_batches` to "
            "`train_on_batch`, or give `stream_batches` passes=1 and no `max_participations`. "
            f"Received: participations {sampling.participations[0]}, "
            f"{sampling.participations[1]} or more steps apart"
        )
