"""What an update adds is N(0, (σC/B̄)²), once a step, whatever the step is made of."""

import time
import types

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from scipy import stats

from tfdp.data import stream_batches
from tfdp.noise import ChainSource, Grid, NoiseSource, sum_rounding
from tfdp.optimizers import BandedInverse, logical_step

N, FEATURES = 24, 100


def zero_loss(y_true, y_pred):
    return 0.0 * tf.reduce_sum(y_pred, axis=-1)


def updates(small, epochs=1, base=None, compile_kwargs=None, **kwargs):
    """All coordinates of `epochs` updates of SGD(1) under zero gradients."""
    base = small.base(FEATURES, 100) if base is None else base
    settings = {"num_examples": N, "expected_batch_size": N, "clip_norm": 0.5,
                "noise_multiplier": 1.5, **kwargs}  # fmt: skip
    model = small.model(base, zero_loss, compile_kwargs, **settings)
    x, y = small.data(N, FEATURES)
    before = np.concatenate([np.ravel(w) for w in model.get_weights()])
    found = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now = np.concatenate([np.ravel(w) for w in model.get_weights()])
            found.append(now)

    model.fit(x, y, batch_size=N, epochs=epochs, verbose=0, callbacks=[Watch()])
    weights = np.stack([before, *found])
    return np.diff(-weights, axis=0), model


def check(values, stddev):
    # 10,100 coordinates or more; each comparison fails by chance with probability below 1e-8.
    z = np.ravel(values) / stddev
    n = len(z)
    assert abs(z.mean()) < 6 / np.sqrt(n)
    assert abs(z.std() - 1) < 6 / np.sqrt(2 * n)
    assert stats.kstest(z, "norm").pvalue > 1e-8


# The steps of one batch, and of several micro-batches, are those of the test below, too.
@pytest.mark.parametrize("microbatch_size", slow.cases([None, 24, 8, 3, 5], slow=[None, 24, 8, 3]))
def test_mean_and_deviation_at_any_number_of_microbatches(small, microbatch_size):
    # Fault 6: accumulating must not add noise in every micro-step (1, 3, 8 and 5 micro-batches).
    values, model = updates(small, microbatch_size=microbatch_size)
    check(values, 1.5 * 0.5 / N)
    assert model.optimizer.steps_taken == 1


PLAIN, XLA, EAGER = {"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}


@pytest.mark.parametrize(
    ("compile_kwargs", "microbatch_size"),
    slow.cases(
        [(how, size) for how in (PLAIN, XLA, EAGER) for size in (None, 8)],
        slow=[(XLA, None), (EAGER, None)],
    ),
)
def test_steps_are_independent(small, compile_kwargs, microbatch_size):
    values, model = updates(
        small, epochs=3, compile_kwargs=compile_kwargs, microbatch_size=microbatch_size
    )
    check(values, 1.5 * 0.5 / N)
    correlation = np.corrcoef(values)[np.triu_indices(3, 1)]
    assert np.all(np.abs(correlation) < 6 / np.sqrt(values.shape[1]))
    assert model.optimizer.steps_taken == 3


def test_divisor_is_the_expected_batch_size(small):
    # Faults 15 and 18: σC is the deviation on the *sum*; the divisor is B̄, drawn sizes vary.
    x, y = small.data(200, FEATURES)
    base = small.base(FEATURES, 100)
    model = small.model(base, zero_loss, EAGER, num_examples=200, expected_batch_size=3.0,
                        noise_multiplier=2.0, clip_norm=0.25)  # fmt: skip
    before = np.concatenate([np.ravel(w) for w in model.get_weights()])
    model.fit(small.poisson((x, y), 3, steps_per_epoch=1), verbose=0)
    after = np.concatenate([np.ravel(w) for w in model.get_weights()])
    check(before - after, 2.0 * 0.25 / 3)


def test_variables_larger_than_one_chunk_of_noise(small, monkeypatch):
    monkeypatch.setattr("tfdp.noise.training_source._LARGEST_DRAW", 1000)
    values, _ = updates(small)
    check(values, 1.5 * 0.5 / N)
    assert len(np.unique(np.abs(values.astype(np.float64)))) > 0.99 * values.size


def test_unused_and_frozen_variables_get_no_noise(small):
    base = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(100),
                             keras.layers.Dense(50)])  # fmt: skip
    base.layers[0].trainable = False
    values, _ = updates(small, base=base, compile_kwargs=EAGER)
    assert np.all(values[0, :10_100] == 0)
    # A draw below half of the last place of a float32 weight leaves it: one in 5 million does.
    assert np.sum(values[0, 10_100:] == 0) < 3


def test_seed_repeats_the_noise_and_the_statement_says_so(small):
    one, model = updates(small, base=small.base(FEATURES), compile_kwargs=EAGER, seed=5)
    two, _ = updates(small, base=small.base(FEATURES), seed=5)
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert "seed 5" in str(model.privacy_statement())


def test_without_a_seed_no_noise_repeats_whatever_the_seed_of_keras(small):
    found = []
    for compile_kwargs in (None, EAGER):
        keras.utils.set_random_seed(3)
        values, model = updates(small, base=small.base(FEATURES), compile_kwargs=compile_kwargs)
        assert "seed" not in str(model.privacy_statement())
        found.append(values)
    assert np.median(np.abs(found[0] - found[1])) > 1e-3


def test_zero_noise_multiplier_adds_nothing(small):
    values, model = updates(small, compile_kwargs=EAGER, noise_multiplier=0.0)
    assert np.all(values == 0)
    assert model.privacy_statement().epsilon == float("inf")


def test_the_grid_of_a_step_is_that_of_all_variables_and_of_the_rounding_of_its_sums(
    small, monkeypatch
):
    asked = []

    def watched(*args):
        asked.append((float(args[0]), *args[1:]))
        return Grid(*args)

    monkeypatch.setattr(logical_step, "Grid", watched)
    updates(small, base=small.base(FEATURES), compile_kwargs=EAGER)
    assert asked == [(1.5 * 0.5, 0.5, 2 * FEATURES + 2, sum_rounding(N))]


def test_the_grid_of_a_chain_is_so_too(small, monkeypatch):
    asked, grid = [], ChainSource.grid

    def watched(self, stddev, *others):
        asked.append((float(stddev), *others))
        return grid(self, stddev, *others)

    monkeypatch.setattr(ChainSource, "grid", watched)
    model = small.model(
        small.base(FEATURES), zero_loss, EAGER, num_examples=N,
        expected_batch_size=N // 2, clip_norm=0.5, noise_multiplier=1.5,
        noise_correlation=BandedInverse(4),
    )  # fmt: skip
    model.fit(stream_batches(small.data(N, FEATURES), N // 2), verbose=0)
    assert asked == [(1.5 * 0.5, 0.5, 2 * FEATURES + 2, sum_rounding(N // 2))] * 2


def test_a_step_whose_batch_does_not_come_is_not_charged():
    """Where the data end inside of an execution of several steps."""
    steps = tf.Variable(0)

    def charge():
        steps.assign_add(1)
        return tf.constant(1.0, tf.float64)

    optimizer = types.SimpleNamespace(
        charging=types.SimpleNamespace(charge_step=charge), selection=None, clip_norm=1.0,
        expected_batch_size=4, noise_source=NoiseSource(), noise_chain=None,
    )  # fmt: skip

    def late():
        time.sleep(0.3)  # long enough for a charge that waits for nothing
        raise ValueError("the data have ended")

    @tf.function(autograph=False)
    def step():
        sums = tf.ensure_shape(tf.py_function(late, [], tf.float32), [3])
        return logical_step.charged_and_noised(optimizer, [sums], [], 3)

    with pytest.raises(tf.errors.InvalidArgumentError, match="the data have ended"):
        step()
    assert steps.numpy() == 0
