"""What several workers draw from their shares of the records is one Poisson sample."""

import itertools
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.accounting import Sampling
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.data.sources.in_memory import Records
from tfdp.distribution import checks
from tfdp.distribution.poisson import batches_of_worker
from tfdp.errors import PrivacyError

N, EXPECTED, WORKERS, STEPS = 50, 20, 3, 2000
DATA = (np.arange(1, N + 1), np.zeros(N, "float32"))


def draws():
    """(STEPS, N) counts: how often each step holds each record."""
    sampling = Sampling("poisson", N, EXPECTED, 51, workers=WORKERS)
    counts = np.zeros((STEPS, N + 1), int)
    for index in range(WORKERS):
        # The draws that the dataset is made of, without the dataset.
        with mock.patch.object(tf.data.Dataset, "from_generator") as made:
            batches_of_worker(Records(DATA), sampling, index, GeneratorSource(index))
        (drawn,) = made.call_args.args
        for step, (x, _, weight) in enumerate(itertools.islice(drawn(), STEPS)):
            assert len(x) == 17 and np.all((x > 0) == (weight > 0))
            np.add.at(counts[step], x[weight > 0], 1)
    return counts[:, 1:]


def test_the_draws_of_the_workers_together_are_poisson():
    # False-alarm rate 1e-6 each.
    counts, q = draws(), EXPECTED / N
    assert counts.max() == 1  # a record that took part twice would move the sum by 2C
    sums = counts.sum(0)
    z = (sums - STEPS * q) / np.sqrt(STEPS * q * (1 - q))
    assert stats.chi2.sf(np.sum(z**2), N) > 1e-6
    sizes = np.bincount(counts.sum(1), minlength=N + 1)
    edges = np.arange(13, 28)
    law = stats.binom(N, q)
    expected = np.diff(np.concatenate([[0], law.cdf(edges), [1]])) * STEPS
    observed = np.histogram(counts.sum(1), np.concatenate([[-1], edges + 0.5, [N]]))[0]
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    assert sizes.sum() == STEPS
    # Records of different workers join independently.
    pairs = np.mean(counts[:, 0] * counts[:, 1]), np.mean(counts[:, 0] * counts[:, 2])
    bound = stats.norm.isf(5e-7) * np.sqrt(q**2 * (1 - q**2) / STEPS)
    assert max(abs(p - q**2) for p in pairs) < bound


def test_overflow_is_counted_for_every_worker():
    one = Sampling("poisson", 1000, 100.0, 130)
    four = Sampling("poisson", 1000, 100.0, 160, workers=4)
    assert one.overflow_probability == pytest.approx(stats.binom.sf(130, 1001, 0.1))
    assert four.overflow_probability == pytest.approx(4 * stats.binom.sf(40, 251, 0.1))
    assert Sampling.from_dict(four.to_dict()) == four


def test_batches_for_several_replicas_have_the_shape_of_each(replicas):
    strategy = replicas.strategy(2)
    batches = tfdp.distribution.poisson_batches(strategy, DATA, EXPECTED, seed=1)
    sampling = tfdp.data.sampling_of(batches)
    assert sampling.max_batch_size % 2 == 0 and sampling.overflow_probability < 1e-19
    assert sampling.steps_per_epoch == 3 and sampling.seeded
    x, _, weight = next(iter(batches))
    assert {v.shape[0] for v in x.values} == {sampling.max_batch_size // 2}
    x, weight = (np.concatenate(v.values) for v in (x, weight))
    assert len(set(x[weight > 0])) == np.sum(weight > 0) > 0


def three_workers(pipelines=WORKERS):
    """A stand-in for a strategy of three workers, which keeps the dataset of each."""

    def distribute(function):
        contexts = [
            types.SimpleNamespace(input_pipeline_id=i, num_input_pipelines=pipelines)
            for i in range(WORKERS)
        ]
        return types.SimpleNamespace(datasets=[function(c) for c in contexts])

    return types.SimpleNamespace(
        num_replicas_in_sync=WORKERS, extended=types.SimpleNamespace(worker_devices=["CPU:0"]),
        distribute_datasets_from_function=distribute,
    )  # fmt: skip


def records_of(datasets):
    """The records that each worker draws in its first step."""
    first = [next(iter(d)) for d in datasets]
    return [x.numpy()[weight.numpy() > 0] - 1 for x, _, weight in first]


@pytest.mark.thorough
def test_each_worker_draws_from_its_own_share_by_its_own_entropy():
    batches = tfdp.distribution.poisson_batches(three_workers(), DATA, EXPECTED, seed=1)
    found = records_of(batches.datasets)
    places = [records // WORKERS for records in found]
    for index, records in enumerate(found):
        assert len(records) and np.all(records % WORKERS == index)
    assert not np.array_equal(places[0], places[1]) and not np.array_equal(places[1], places[2])
    batches = tfdp.distribution.poisson_batches(three_workers(), DATA, EXPECTED)
    again = tfdp.distribution.poisson_batches(three_workers(), DATA, EXPECTED)
    pairs = zip(records_of(batches.datasets), records_of(again.datasets), strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs)  # alike with probability below 1e-9


def test_the_capacity_of_every_worker_holds_its_draws():
    data = (np.arange(3000), np.zeros(3000))
    batches = tfdp.distribution.poisson_batches(three_workers(), data, 300)
    sampling = vars(batches)["_tfdp_sampling"]  # `sampling_of` knows datasets only
    assert sampling.workers == WORKERS and sampling.overflow_probability < 1e-19
    with pytest.raises(ValueError, match="one input pipeline for each worker"):
        tfdp.distribution.poisson_batches(three_workers(1), DATA, EXPECTED)


def test_draws_that_each_worker_makes_anew_are_refused():
    resolver = types.SimpleNamespace(
        cluster_spec=lambda: tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    )
    workers = types.SimpleNamespace(num_replicas_in_sync=2, cluster_resolver=resolver)
    for make in (tfdp.data.poisson_batches, tfdp.data.shuffled_epochs):
        batches = make(DATA, EXPECTED)
        with pytest.raises(PrivacyError, match="could take part twice"):
            checks.check_data(workers, batches, tfdp.data.sampling_of(batches))


def test_rows_are_added_to_a_batch_only_if_weights_can_mark_them():
    records = tf.data.Dataset.from_tensor_slices((np.ones(9), np.ones(9), np.ones(9)))
    unmarked = records.map(lambda x, y, w: (x, y)).batch(9, drop_remainder=True)
    assert checks.padded(unmarked, 2).element_spec[0].shape == [9]
    ((x, _, weight),) = checks.padded(records.batch(9, drop_remainder=True), 2)
    assert x.shape == [10] and weight[9] == 0


def test_ragged_batches_are_refused_on_several_replicas(replicas):
    ids = tf.ragged.constant([[1], [2, 3]])
    ragged = tf.data.Dataset.from_tensors((ids, tf.zeros(2), tf.ones(2)))
    ragged = tfdp.data.declare_sampling(ragged, "poisson", 10, 2)
    with pytest.raises(PrivacyError, match="Ragged"):
        checks.check_data(replicas.strategy(2), ragged, tfdp.data.sampling_of(ragged))
