"""Poisson sampling by several workers, each from its own share of the records."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.accounting import Sampling
from tfdp.accounting.losses.truncation import smallest_capacity
from tfdp.data.provenance.dataset_tags import tag
from tfdp.data.samplers.poisson import draw_poisson
from tfdp.data.sampling.arguments import check_capacity, check_expected_batch_size, steps_of_epoch
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.in_memory import Records


def batches_of_worker(records, sampling, index, source):
    """What one worker draws, step after step without an end.

    Args:
        records: all `Records`.
        sampling: the `Sampling` of all workers together.
        index: which of `sampling.workers` this is.
        source: a `GeneratorSource` of its own.
    """
    share = np.arange(index, sampling.num_examples, sampling.workers)
    capacity = sampling.max_batch_size // sampling.workers

    def draw():
        generator = source.fresh()
        while True:
            drawn = draw_poisson(generator, len(share), sampling.sampling_probability, capacity)
            yield records.batch(share[drawn], capacity)

    dataset = tf.data.Dataset.from_generator(draw, output_signature=records.signature(capacity))
    return dataset.prefetch(2)


def poisson_batches(
    strategy: tf.distribute.Strategy,
    data: Any,
    expected_batch_size: float,
    max_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """`tfdp.data.poisson_batches` for a strategy of several workers.

    Record i belongs to worker i mod W. Each worker draws its own records independently with
    probability q, from its own entropy. Together this is the Poisson sample of all records, in
    which none can take part twice, and no worker needs another's draws. (If every worker drew its
    own batch and trained on a part of it, a record could take part twice.)

    Example:

    ```python
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = ...  # made private and compiled
    model.fit(tfdp.distribution.poisson_batches(strategy, (x, y), 1024), epochs=10)
    ```

    Formal guarantees: one step differs from ideal Poisson sampling with q = B/n by at most
    `tfdp.data.sampling_of(batches).overflow_probability` in total variation, the sum over the
    workers (MATH.md section 7).

    Args:
        strategy: the `tf.distribute.Strategy` of the model.
        data: all n records, the same on every worker, as for `tfdp.data.poisson_batches`.
        expected_batch_size: mean number of records B of a batch, over all workers.
        max_batch_size: rows of a batch, over all workers; rounded up to a multiple of the number
            of replicas. Default: such that no worker's draw is cut with probability above 1e-20.
        steps_per_epoch: batches in one epoch of `fit`. Default: n/B, rounded, at least 1.
        seed: integer for tests only.

    Returns:
        A `tf.distribute.DistributedDataset` of `(x, y, sample_weight)` without an end, tagged for
        `tfdp.data.sampling_of`; `fit` takes `steps_per_epoch` from the tag.

    Raises:
        ValueError: an argument is out of its range, or there are fewer records than workers.
    """
    records = Records(data)
    n, replicas = records.num_examples, strategy.num_replicas_in_sync
    workers = replicas // len(strategy.extended.worker_devices)
    check_expected_batch_size(expected_batch_size, n)
    if n < workers:
        raise ValueError(
            f"Argument `data` must hold a record for each worker. Received: {n} records for "
            f"{workers} workers"
        )
    largest_share = -(-(n + 1) // workers)  # of a neighbour, with a record more
    if max_batch_size is None:
        max_batch_size = workers * smallest_capacity(largest_share, expected_batch_size / n)
    check_capacity(max_batch_size, expected_batch_size)
    steps_per_epoch = steps_of_epoch(steps_per_epoch, n, expected_batch_size)
    rows_of_replica = -(-max_batch_size // replicas)
    sampling = Sampling(
        kind="poisson",
        num_examples=n,
        expected_batch_size=expected_batch_size,
        max_batch_size=rows_of_replica * replicas,
        seeded=seed is not None,
        steps_per_epoch=steps_per_epoch,
        workers=workers,
    )

    def of_worker(context):
        index = context.input_pipeline_id
        if context.num_input_pipelines != workers:
            raise ValueError(
                f"Argument `strategy` must have one input pipeline for each worker. Received: "
                f"{context.num_input_pipelines} pipelines for {workers} workers"
            )
        source = GeneratorSource(None if seed is None else seed * workers + index)
        # One element for each replica of this worker.
        return batches_of_worker(records, sampling, index, source).rebatch(
            rows_of_replica, drop_remainder=True
        )

    dataset = strategy.distribute_datasets_from_function(of_worker)
    return tag(dataset, sampling, records.origin)
