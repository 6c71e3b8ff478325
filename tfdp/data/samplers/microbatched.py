"""Batches of several independent Poisson samples, as "DP-FP" draws them; for comparison."""

import numpy as np
import tensorflow as tf

from tfdp._validate import count
from tfdp.accounting import Sampling
from tfdp.data.samplers.poisson import draw_poisson
from tfdp.data.sampling.arguments import (
    capacity_of,
    check_expected_batch_size,
    steps_of_epoch,
)
from tfdp.data.sampling.batches import dataset_of_batches
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.in_memory import Records


def microbatches(
    data: tuple,
    expected_batch_size: float,
    microbatches: int,
    max_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Batches made of M independent Poisson samples, of B/M records each in expectation.

    The paper on DP forward propagation samples in this way; use it to reproduce the paper's tables.
    A record may be in several micro-batches of one batch. Under forward noise this amplifies
    nothing, because the draw is visible (MATH.md section 5). A model trained on these batches is
    charged the true cost; `tfdp.accounting.literature.paper_forward_noise_claim` shows it beside
    the paper's number. A `DPOptimizer` refuses these batches.

    Args:
        data: as for `poisson_batches`.
        expected_batch_size: B, mean number of rows of a batch.
        microbatches: M; each record joins each micro-batch with probability p = B/(M·n).
        max_batch_size: rows of every batch. Default: the smallest number that a draw exceeds with
            probability at most 1e-20.
        steps_per_epoch: batches in one pass. Default: n/B, rounded, at least 1.
        seed: integer for tests only.

    Returns:
        `tf.data.Dataset` of `(x, y, sample_weight)`, tagged for `sampling_of`; rows of weight 0
        are padding.

    Raises:
        ValueError: an argument is out of its range, or `data` is not a tuple of matching arrays.

    Source: the paper's section 3.2 and algorithm 1.
    """
    records = Records(data)
    n = records.num_examples
    check_expected_batch_size(expected_batch_size, n)
    count("microbatches", microbatches)
    p = expected_batch_size / (microbatches * n)
    max_batch_size = capacity_of(
        max_batch_size, expected_batch_size, n * microbatches, (n + 1) * microbatches
    )
    steps_per_epoch = steps_of_epoch(steps_per_epoch, n, expected_batch_size)
    source = GeneratorSource(seed)
    sampling = Sampling(
        kind="microbatches",
        num_examples=n,
        expected_batch_size=expected_batch_size,
        max_batch_size=max_batch_size,
        seeded=source.seeded,
        steps_per_epoch=steps_per_epoch,
        microbatches=microbatches,
    )

    def draw_epoch():
        generator = source.fresh()
        for _ in range(steps_per_epoch):
            drawn = [draw_poisson(generator, n, p, n) for _ in range(microbatches)]
            rows = np.concatenate(drawn)
            if len(rows) > max_batch_size:
                rows = generator.choice(rows, max_batch_size, replace=False)
            yield rows

    return dataset_of_batches(records, sampling, draw_epoch)
