"""The paper's micro-batches: independent draws, charged truthfully."""

import numpy as np
import pytest

import tfdp
from tfdp.accounting.losses.truncation import overflow_probability

N = 50


def test_a_record_joins_each_of_m_draws_independently():
    x = np.arange(N, dtype=np.float32)
    data = tfdp.data.microbatches((x, x), 10, 4, steps_per_epoch=2000)
    counts = np.zeros((2000, N), int)
    rows, _, weights = next(data.batch(2000).as_numpy_iterator())
    step, place = np.nonzero(weights > 0)
    np.add.at(counts, (step, rows[step, place].astype(int)), 1)
    # Binomial(4, 0.05) copies of a record in a batch; 1e5 of them: 6 standard errors.
    p = 0.05
    expected = [(1 - p) ** 4, 4 * p * (1 - p) ** 3, 6 * p**2 * (1 - p) ** 2]
    for copies, share in enumerate(expected):
        error = 6 * (share * (1 - share) / counts.size) ** 0.5
        assert abs((counts == copies).mean() - share) < error
    sampling = tfdp.data.sampling_of(data)
    assert sampling.draw_probability == pytest.approx(p) and sampling.microbatches == 4
    exact = overflow_probability(4 * (N + 1), p, sampling.max_batch_size)
    assert sampling.overflow_probability == exact < 1e-19


def test_a_draw_that_is_too_large_keeps_a_uniform_subset_and_a_seed_is_known():
    x = np.arange(N, dtype=np.float32)
    data = tfdp.data.microbatches((x, x), 10, 4, max_batch_size=10, steps_per_epoch=1000, seed=1)
    rows, _, weights = next(data.batch(1000).as_numpy_iterator())
    sizes = (weights > 0).sum(axis=1)
    assert rows.shape == (1000, 10) and (sizes == 10).mean() > 0.4
    counts = np.bincount(rows[weights > 0].astype(int), minlength=N)
    # About 180 of each; variances are below those of a Poisson number: 6 deviations.
    assert np.abs(counts - counts.mean()).max() < 6 * counts.mean() ** 0.5
    assert tfdp.data.sampling_of(data).seeded


@pytest.mark.parametrize("change", [{"microbatches": 0}, {"expected_batch_size": 100},
                                    {"max_batch_size": 3}])  # fmt: skip
def test_arguments_out_of_range_are_named(change):
    arguments = {"expected_batch_size": 10, "microbatches": 2, **change}
    with pytest.raises(ValueError, match=f"`{next(iter(change))}`"):
        tfdp.data.microbatches((np.zeros(N), np.zeros(N)), **arguments)
