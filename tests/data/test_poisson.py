"""Poisson batches: distributions are tested with a false-alarm rate of 1e-6 each."""

import numpy as np
import processes
import pytest
import tensorflow as tf
from numbered_records import FALSE_ALARM, draws, numbered
from scipy import stats

import tfdp
from tfdp.data.samplers.poisson import draw_poisson
from tfdp.data.sampling import batches as sampled_batches


@pytest.fixture(scope="module")
def drawn():
    batches = tfdp.data.poisson_batches(numbered(200), 20, steps_per_epoch=1000)
    return np.concatenate([draws(batches), draws(batches)])


def test_no_record_is_drawn_twice_in_a_step(drawn):
    assert drawn.max() == 1


def test_each_record_takes_part_with_the_sampling_probability(drawn):
    steps, n = drawn.shape
    q = 0.1
    statistic = ((drawn.sum(0) - steps * q) ** 2).sum() / (steps * q * (1 - q))
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, n) < 1 - FALSE_ALARM / 2


def test_batch_sizes_are_binomial(drawn):
    steps, n = drawn.shape
    edges = np.array([-1, 13, 15, 17, 19, 21, 23, 25, n])
    expected = np.diff(stats.binom.cdf(edges, n, 0.1)) * steps
    observed = np.histogram(drawn.sum(1), edges + 0.5)[0]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_records_take_part_independently_of_each_other(drawn):
    steps, n = drawn.shape
    q = 0.1
    pairs = drawn[:, 0::2] & drawn[:, 1::2]
    together = pairs.sum(0)
    mean, variance = steps * q**2, steps * q**2 * (1 - q**2)
    statistic = ((together - mean) ** 2).sum() / variance
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, n // 2) < 1 - FALSE_ALARM / 2


def test_steps_and_epochs_are_independent(drawn):
    steps, n = drawn.shape
    for lag in (1, 7, steps // 2):  # the last compares the same step of two epochs
        both = int((drawn[:-lag] & drawn[lag:]).sum())
        trials = (steps - lag) * n
        assert stats.binomtest(both, trials, 0.01).pvalue > FALSE_ALARM


def test_the_fast_draw_has_the_distribution_of_independent_coins():
    rng = np.random.default_rng(0)
    n, q, repeats = 5, 0.3, 20_000
    code = [
        int((1 << draw_poisson(rng, n, q, n)).sum()) for _ in range(repeats)
    ]  # one of 32 subsets
    sizes = np.array([bin(subset).count("1") for subset in range(2**n)])
    expected = repeats * q**sizes * (1 - q) ** (n - sizes)
    observed = np.bincount(code, minlength=2**n)
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_an_overflowing_draw_keeps_a_uniform_subset():
    rng = np.random.default_rng(0)
    n, capacity, repeats = 6, 2, 20_000
    counts = np.zeros(n)
    for _ in range(repeats):
        chosen = draw_poisson(rng, n, 0.9, capacity)
        assert len(set(chosen.tolist())) == len(chosen) <= capacity
        counts[chosen] += 1
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "sampler",
    [
        lambda **given: tfdp.data.poisson_batches(numbered(10), 10, **given),
        lambda **given: tfdp.data.allocated_epochs(numbered(10), 1, **given),
        lambda **given: tfdp.data.cyclic_poisson_batches(numbered(10), 10, 1, **given),
    ],
)
@pytest.mark.parametrize("given", [{}, {"max_batch_size": 10}, {"max_batch_size": 99}])
def test_batches_that_hold_all_have_room_for_one_record_more(sampler, given):
    sampling = tfdp.data.sampling_of(sampler(**given))
    assert sampling.max_batch_size == 11 and sampling.overflow_probability == 0


def test_overflow_is_cut_at_the_capacity_and_reported():
    batches = tfdp.data.poisson_batches(numbered(10), 5, max_batch_size=5, steps_per_epoch=200)
    sizes = draws(batches).sum(1)
    assert sizes.max() == 5
    sampling = tfdp.data.sampling_of(batches)
    np.testing.assert_allclose(sampling.overflow_probability, stats.binom.sf(5, 11, 0.5))
    full = stats.binom.sf(4, 10, 0.5)
    assert stats.binomtest(int((sizes == 5).sum()), 200, full).pvalue > FALSE_ALARM


def test_the_default_capacity_makes_overflow_negligible():
    sampling = tfdp.data.sampling_of(tfdp.data.poisson_batches(numbered(6040), 512))
    assert sampling.max_batch_size < 6040
    assert sampling.overflow_probability <= 1e-20
    larger = tfdp.data.poisson_batches(numbered(10), 5, max_batch_size=99)
    assert tfdp.data.sampling_of(larger).max_batch_size == 11


def test_empty_draws_are_emitted_as_batches_of_padding():
    batches = tfdp.data.poisson_batches(numbered(10), 0.1, steps_per_epoch=100)
    sizes = draws(batches).sum(1)
    assert len(sizes) == 100
    assert (sizes == 0).sum() > 50  # each is empty with probability 0.904


def test_every_batch_has_the_same_static_shape_and_the_pass_a_known_length():
    x = {"a": np.ones((50, 3), np.float32)}
    batches = tfdp.data.poisson_batches((x, np.ones((50, 2), np.int64)), 7, max_batch_size=20)
    inputs, targets, weights = batches.element_spec
    assert inputs["a"].shape == (20, 3)
    assert targets.shape == (20, 2)
    assert weights.shape == (20,)
    assert batches.cardinality() == 7 == len(list(batches))  # 50 / 7, rounded


@pytest.mark.parametrize(("batch", "steps"), [(100, 1), (67, 1), (66, 2), (40, 3), (3, 33)])
def test_a_default_epoch_has_n_over_b_steps_rounded(batch, steps):
    assert tfdp.data.poisson_batches(numbered(100), batch).cardinality() == steps


def test_drawing_everything_draws_everything():
    batches = tfdp.data.poisson_batches(numbered(8), 8, steps_per_epoch=3)
    np.testing.assert_array_equal(draws(batches), np.ones((3, 8)))


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_user_weights_are_kept_for_drawn_records_and_padding_weighs_nothing(shape):
    x, y = numbered(40)
    weight = np.random.default_rng(0).uniform(0.5, 2, shape).astype(np.float32)
    batches = tfdp.data.poisson_batches((x, y, weight), 10, steps_per_epoch=5)
    for inputs, _, weights in batches.as_numpy_iterator():
        drawn = inputs > 0
        np.testing.assert_array_equal(weights[drawn], weight[inputs[drawn] - 1])
        assert not weights[~drawn].any()


@pytest.mark.parametrize("seed", [None, 0])
def test_no_epoch_repeats_another(seed):
    batches = tfdp.data.poisson_batches(numbered(200), 50, seed=seed)
    epochs = [draws(batches).tobytes() for _ in range(4)]
    assert len(set(epochs)) == 4
    assert tfdp.data.sampling_of(batches).seeded is (seed is not None)


def test_a_seed_repeats_the_whole_run_for_tests():
    first, second = (tfdp.data.poisson_batches(numbered(200), 50, seed=3) for _ in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(draws(first), draws(second))


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("steps", [1, 15, 16, 33])
@pytest.mark.parametrize("persons", [False, True])
def test_batches_that_are_made_together_are_those_that_are_made_one_by_one(
    monkeypatch, steps, persons
):
    x, y = numbered(200)
    ids = {"privacy_ids": x // 3, "max_records_per_unit": 2} if persons else {}

    def two_passes(x):
        sampled = tfdp.data.poisson_batches((x, y), 20, None, steps, seed=3, **ids)
        assert sampled.cardinality() == steps
        passes = [[tuple(map(np.array, batch)) for batch in sampled] for _ in range(2)]
        assert [len(found) for found in passes] == [steps, steps]
        return passes[0] + passes[1]

    together = two_passes(x)
    words = two_passes(np.char.mod("%d", x).astype(object))  # of no known size: one by one
    monkeypatch.setattr(sampled_batches, "_AT_ONCE", 1)
    for batch, worded, alone in zip(together, words, two_passes(x), strict=True):
        for one, other in zip(batch, alone, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(worded[2], alone[2])
        assert [int(word or 0) for word in worded[0]] == alone[0].tolist()


def test_no_more_is_made_ahead_than_fits():
    wide = tf.TensorSpec((3, 1 << 16), tf.float32), tf.TensorSpec((3,), tf.float32)
    assert sampled_batches._batches_of_bytes(wide) == (1 << 22) // (12 * (1 << 16) + 12) == 5
    strings = *wide, tf.TensorSpec((3,), tf.string)
    assert sampled_batches._batches_of_bytes(strings) == 0


def test_processes_draw_differently_even_after_the_same_global_seeds():
    program = (
        "import keras, numpy as np, tfdp; keras.utils.set_random_seed(0); np.random.seed(0);"
        "d = tfdp.data.poisson_batches((np.arange(500), np.arange(500)), 100);"
        "print(sorted(next(d.as_numpy_iterator())[0].tolist()))"
    )
    running = [processes.Running(program) for _ in range(2)]
    outputs = [process.finish().checked().stdout for process in running]
    assert outputs[0] != outputs[1]


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_fit_draws_anew_in_every_epoch():
    import keras

    seen = []

    class Watch(keras.layers.Layer):
        def call(self, x):
            seen.append(np.sort(np.asarray(x)[:, 0]).tobytes())
            return x

    model = keras.Sequential([Watch(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.arange(1, 101, dtype=np.float32)[:, None]
    model.fit(tfdp.data.poisson_batches((x, x), 50), epochs=4, verbose=0)
    assert len(set(seen[-8:])) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"expected_batch_size": 11}, "expected_batch_size"),
        ({"expected_batch_size": float("nan")}, "expected_batch_size"),
        ({"max_batch_size": 3}, "max_batch_size"),
        ({"max_batch_size": 7.5}, "max_batch_size"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"seed": 1.5}, "seed"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=f"Argument `{message}` must"):
        tfdp.data.poisson_batches(numbered(10), **{"expected_batch_size": 5, **arguments})
