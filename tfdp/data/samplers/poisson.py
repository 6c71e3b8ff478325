"""Poisson sampling that is really Poisson: what the accountant assumes is what is drawn."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp import _validate
from tfdp.accounting import Sampling
from tfdp.data.sampling.arguments import (
    capacity_of,
    check_expected_batch_size,
    explained,
    steps_of_epoch,
)
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.periods import Period, claimed
from tfdp.data.sampling.persons import units_of
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.outside_memory import records_of


def draw_poisson(generator, num_examples, sampling_probability, capacity):
    """Indices of one Poisson draw: every record independently with the same probability.

    Drawn as Binomial(n, q) many distinct records, uniformly, which is the same distribution and
    takes time in the size of the batch rather than in n. Of a draw larger than `capacity` a
    uniformly random subset of that size is kept; `Sampling.overflow_probability` charges for it.

    Args:
        generator: `numpy.random.Generator`.
        num_examples: number of records n.
        sampling_probability: probability q of each record.
        capacity: largest number of indices returned.

    Returns:
        int64 array of between 0 and `capacity` distinct indices, in no particular order.
    """
    drawn = min(generator.binomial(num_examples, sampling_probability), capacity)
    return generator.choice(num_examples, drawn, replace=False, shuffle=False)


@explained
def poisson_batches(
    data: Any,
    expected_batch_size: float,
    max_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    seed: int | None = None,
    *,
    parse: Callable | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
    sampling_unit: str = "person",
    num_records: int | None = None,
) -> tf.data.Dataset:
    """Batches in which every record takes part independently with probability q.

    This is the sampling that amplification assumes. Shuffled batches of a fixed size
    (`shuffled_epochs`) do not meet this assumption. Every batch has the same static shape: first
    the drawn records, then rows of zeros with sample weight 0. A batch may be empty: it is noised
    and charged like any other. The size of a draw is private; only the padded shape is visible.

    Each pass over the dataset (each epoch of `fit`) draws again, from a generator keyed by the
    operating system. No draw is repeated in another epoch, after a resume or in another process.

    Example:

    ```python
    data = tfdp.data.synthetic_sequences()
    batches = tfdp.data.poisson_batches(data.train, expected_batch_size=256)
    model.fit(batches, epochs=10)
    ```

    With `privacy_ids` the unit of privacy is a person. Persons are sampled, each independently with
    probability q, and a sampled person takes part with at most k records, chosen uniformly and anew
    each time. n, B and `max_batch_size` then count persons. A batch has k rows for each of
    `max_batch_size` persons; rows that a person does not need are padding. A person's gradient is
    the sum over their records. Give the `DPOptimizer` the number of persons as `num_examples=`, and
    the same `max_records_per_unit`.

    ```python
    batches = tfdp.data.poisson_batches(
        (x, y), expected_batch_size=256, privacy_ids=user_ids, max_records_per_unit=10)
    persons = tfdp.data.sampling_of(batches).num_examples
    ```

    With `sampling_unit="record"` as well, single records are sampled and clipped, each separately,
    and the unit of privacy is still a person: the accounting covers the joint effect of a person's
    records (MATH.md section 11). If a person has more than k records, k of them are chosen
    uniformly, once, here; the others are never used. B and `max_batch_size` then count records, and
    q = B/N for N records. Give the `DPOptimizer` the number of persons as `num_examples=`, the same
    `max_records_per_unit`, and N as `num_records=` (or let it read all of them from the batches).

    ```python
    batches = tfdp.data.poisson_batches(
        (x, y), expected_batch_size=1024, privacy_ids=user_ids, max_records_per_unit=4,
        sampling_unit="record")
    records = tfdp.data.sampling_of(batches).num_records
    ```

    With `parse`, `data` is a source that need not fit in memory: np.memmap, array_record and grain
    sources, Hugging Face datasets, or any object with a length whose records can be read by number.
    Only sampled records are read, while the previous step runs.

    ```python
    rows = np.memmap("clicks.bin", np.float32, "r").reshape(-1, 40)
    batches = tfdp.data.poisson_batches(rows, 1024, parse=lambda row: (row[:39], row[39]))
    ```

    Formal guarantees: one step differs from ideal Poisson sampling with q = B/n by at most
    `sampling_of(batches).overflow_probability` in total variation (MATH.md section 7).

    Args:
        data: tuple `(x, y)` or `(x, y, sample_weight)` of arrays, or structures (dict, tuple, list)
            of arrays, with the same leading axis of length n. Your own weights may have shape
            `(n,)` or `(n, T)`, or be a structure of these, one for each output. Or a finite
            `tf.data.Dataset` of single records, which is read into memory once. Or, with `parse`, a
            random-access source: an object with `__len__`, and `__getitem__` or `__getitems__`.
        expected_batch_size: mean number of records B of a batch; q = B/n.
        max_batch_size: rows of every batch, at least `expected_batch_size` and at most n + 1
            (exactly n + 1 if B = n, so that one more record fits). Default: the smallest number
            that a draw exceeds with probability at most 1e-20, even with one more record.
        steps_per_epoch: batches in one pass. Default: n/B, rounded, at least 1.
        seed: integer for tests only. Epochs still differ, but the draws are predictable, and the
            privacy statement says so.
        parse: function of one record of a source that returns `(x, y)` or `(x, y, sample_weight)`:
            arrays of the same shapes and dtypes for each record, without a batch axis. If the
            source consists of such tuples, pass a lambda that returns its argument. Or a
            `tfdp.data.batched` function of a list of records, which is faster.
        privacy_ids: array (number of records,) of integers or strings: the person of each record. A
            `tf.data.Dataset` must return its records in this order: not shuffled.
        max_records_per_unit: k, the largest number of records of a person in a step.
        period: a `Period` of `DisjointPeriods`, which checks that none of these persons is in
            another period.
        sampling_unit: "person" or "record": what is sampled, if `privacy_ids` are given.
        num_records: N, for `sampling_unit="record"`: a public upper bound on the number of records
            kept, at most n·k. Default: the number kept, which is then assumed to be public.

    Returns:
        `tf.data.Dataset` of `(x, y, sample_weight)`, with a known cardinality, tagged for
        `sampling_of`. A `map` after it is applied to the k rows of each person separately.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.
        PrivacyError: a person is also in another period.
    """
    records = records_of(data, parse, privacy_ids)
    persons, n = units_of(records, privacy_ids, max_records_per_unit)
    source = GeneratorSource(seed)
    kept = _records_to_draw(sampling_unit, persons, num_records, source)
    if kept is None:  # records or persons, all of them
        drawn_from, largest = n, n + 1  # of a neighbour, with a unit more
    else:
        drawn_from = len(kept) if num_records is None else num_records
        largest = drawn_from + max_records_per_unit
    check_expected_batch_size(expected_batch_size, drawn_from)
    max_batch_size = capacity_of(max_batch_size, expected_batch_size, drawn_from, largest)
    steps_per_epoch = steps_of_epoch(steps_per_epoch, drawn_from, expected_batch_size)
    key = claimed(period, privacy_ids)  # nobody is entered by a call that is refused
    sampling = Sampling(
        kind="poisson",
        num_examples=n,
        expected_batch_size=expected_batch_size,
        max_batch_size=max_batch_size,
        seeded=source.seeded,
        steps_per_epoch=steps_per_epoch,
        max_records_per_unit=max_records_per_unit,
        period=key,
        num_records=None if kept is None else drawn_from,
    )
    q, capacity = sampling.sampling_probability, sampling.max_batch_size

    def draw_epoch():
        generator = source.fresh()
        for _ in range(steps_per_epoch):
            if kept is None:
                yield draw_poisson(generator, n, q, capacity)
            else:
                yield kept[draw_poisson(generator, len(kept), q, capacity)]

    drawn = persons if kept is None else None
    return dataset_of_batches(records, sampling, draw_epoch, drawn, source)


def _records_to_draw(sampling_unit, persons, num_records, source):
    """The records of persons that are drawn one by one, (N,) indices; None for what is not so.

    Raises:
        ValueError: for another unit, or arguments that contradict it.
    """
    _validate.one_of("sampling_unit", sampling_unit, ("person", "record"))
    if sampling_unit == "person":
        if num_records is not None:
            raise ValueError(
                'Argument `num_records` needs `sampling_unit="record"`. Received: '
                f"num_records={num_records!r}, sampling_unit={sampling_unit!r}"
            )
        return None
    if persons is None:
        raise ValueError(
            'Argument `sampling_unit="record"` is for records of persons and needs `privacy_ids` '
            "and `max_records_per_unit`. If each record is a unit of privacy, leave it out. "
            "Received: privacy_ids=None"
        )
    kept = persons.kept(source.fresh())
    if num_records is not None and _validate.count("num_records", num_records) < len(kept):
        raise ValueError(
            f"Argument `num_records` must be at least {len(kept)}, the number of records that can "
            f"be sampled (at most {persons.max_records_per_unit} of each person). Received: "
            f"num_records={num_records}"
        )
    return kept
