"""One test for each fault that was found in other libraries of differential privacy."""

import math

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.clipping import explain
from tfdp.errors import PrivacyError


def step_norms(small, base, x, y, loss=None, clip_norm=0.1, epochs=1, **kwargs):
    """Norms of full-batch updates at σ = 0 and SGD(1), times B̄: those of the clipped sums."""
    n = len(tf.nest.flatten(x)[0])
    model = small.model(base, loss, noise_multiplier=0.0, clip_norm=clip_norm, num_examples=n,
                        expected_batch_size=n, **kwargs)  # fmt: skip
    model.validate_independence = False  # which has tests of its own
    norms, weights = [], [model.get_weights()]

    def after(epoch, logs):
        moved = [b - a for b, a in zip(weights[-1], model.get_weights(), strict=True)]
        norms.append(n * math.sqrt(sum(np.sum(np.square(m, dtype=np.float64)) for m in moved)))
        weights.append(model.get_weights())

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=after)]
    model.fit(x, y, batch_size=n, epochs=epochs, callbacks=callbacks, verbose=0)
    return norms


def one_step_norm(small, base, x, y, loss=None, clip_norm=0.1, **kwargs):
    """The norm of one update; run eagerly, since tracing takes longer than one step."""
    eager = {"run_eagerly": True}
    (norm,) = step_norms(small, base, x, y, loss, clip_norm, compile_kwargs=eager, **kwargs)
    return norm


def test_fault_01_norms_see_the_dropout_of_the_step(small):
    # With another mask for the norms, the clipped norm reached 5C.
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1, 8)).astype(np.float32)
    base = keras.Sequential([keras.Input((8,)), layers.Dense(16), layers.Dropout(0.8),
                             layers.Dense(2)])  # fmt: skip
    eager = {"run_eagerly": True}
    for norm in step_norms(small, base, x, np.array([[9.0, 9.0]]), "mse", epochs=5,
                           compile_kwargs=eager):  # fmt: skip
        assert norm == pytest.approx(0.1, rel=1e-4)


def test_fault_02_one_example_is_one_example(small):
    # A squeeze turned the T tokens of a batch of one into T examples.
    base = keras.Sequential([keras.Input((7,), dtype="int32"), layers.Embedding(9, 3),
                             layers.GlobalAveragePooling1D(), layers.Dense(2)])  # fmt: skip
    x = np.arange(7, dtype=np.int32)[None]
    norm = one_step_norm(small, base, x, np.array([0]), clip_norm=1e-3)
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_fault_06_noise_once_for_all_microbatches(small):
    x = np.zeros((32, 50), np.float32)
    model = small.model(small.base(50, 200), lambda y, p: 0.0 * tf.reduce_sum(p, -1),
                        microbatch_size=4, num_examples=32, expected_batch_size=32,
                        compile_kwargs={"run_eagerly": True})  # fmt: skip
    model.validate_independence = False
    before = model.get_weights()[0]
    model.fit(x, np.zeros(32), batch_size=32, verbose=0)
    # 10,000 coordinates; 6 standard errors: a false alarm in 5e8 runs.
    assert np.std(model.get_weights()[0] - before) == pytest.approx(1 / 32, rel=6 / 141)
    with pytest.raises(ValueError, match="microbatch_size"):
        small.optimizer(keras.optimizers.SGD(gradient_accumulation_steps=4))


def test_fault_08_a_layer_without_a_rule_changes_no_setting(small):
    # A whole configuration was ignored because one layer had no fast norm.
    class Own(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return x * self.w

    base = keras.Sequential([keras.Input((3,)), layers.Dense(4), Own(), layers.Dense(2)])
    table = explain(base)
    assert table.count("DenseRule") == 2 and table.count("exact fallback") == 1
    x, y = small.data(1)
    for clipping in ("flat", "normalized", "automatic"):
        norm = one_step_norm(small, base, x, y, clip_norm=1e-4, clipping=clipping)
        assert norm == pytest.approx(1e-4, rel=0.02)
    for argument in ("selection", "embedding_optimizer"):
        try:
            small.optimizer(**{argument: object()})
        except ValueError as error:
            assert argument in str(error)  # noqa: PT017


@pytest.mark.parametrize("calls", slow.cases([2, 5], slow=[2]))
def test_fault_11_repeated_calls_add_up_before_the_norm(small, calls):
    inputs = keras.Input((3,))
    shared, x = layers.Dense(3, use_bias=False), inputs
    for _ in range(calls):
        x = shared(x)
    base = keras.Model(inputs, x)
    norm = one_step_norm(small, base, np.ones((1, 3), np.float32), np.full((1, 3), 9.0), "mse",
                         clip_norm=1e-3)  # fmt: skip
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("clipping", slow.cases(["flat", "normalized"], slow=["normalized"]))
def test_fault_12_tied_tables_are_clipped_by_the_norm_of_both_branches(small, clipping):
    inputs = keras.Input((4,), dtype="int32")
    table = layers.ReversibleEmbedding(6, 3)
    base = keras.Model(inputs, table(table(inputs), reverse=True))
    x, y = np.array([[1, 2, 2, 5]], np.int32), np.array([[2, 2, 5, 0]])
    norm = one_step_norm(small, base, x, y, clip_norm=1e-3, clipping=clipping)
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_fault_13_positions_shared_by_the_batch_are_clipped_per_example(small, shape):
    class Positions(keras.Model):
        def __init__(self):
            super().__init__()
            self.positions = layers.Embedding(4, 3)

        def call(self, x):
            return x + self.positions(tf.reshape(tf.range(4), shape))

    base = Positions()
    x, y = np.zeros((6, 4, 3), np.float32), np.full((6, 4, 3), 9.0, np.float32)
    base(x)
    # Six equal gradients: clipped one by one their sum has norm 6C; clipped together, C.
    assert one_step_norm(small, base, x, y, "mse", clip_norm=1e-3) == pytest.approx(6e-3, rel=1e-3)


def fitted_statement(small, data):
    model = small.model(noise_multiplier=2.0, compile_kwargs={"run_eagerly": True})
    model.validate_independence = False
    model.fit(data, verbose=0)
    return model.privacy_statement()


def test_fault_14_amplification_only_for_poisson_batches(small):
    shuffled, poisson = (
        fitted_statement(small, data)
        for data in (tfdp.data.shuffled_epochs(small.data(), 10), small.poisson())
    )
    assert shuffled.epsilon != poisson.epsilon
    assert shuffled.assumed_epsilon == pytest.approx(poisson.epsilon)
    assert "shuffled" in str(shuffled)


def test_fault_15_empty_draws_and_the_divisor(small):
    x, y = small.data()
    empty = tf.data.Dataset.from_tensors((x, y, np.zeros(small.n, np.float32)))
    tfdp.data.declare_sampling(empty, "poisson", small.n, 10)
    eager = {"compile_kwargs": {"run_eagerly": True}}  # a trace takes longer than one step
    model = small.model(noise_multiplier=1e-3, **eager)
    before = model.get_weights()[0]
    model.fit(empty, verbose=0)
    moved = np.abs(model.get_weights()[0] - before)
    assert 0 < moved.max() < 1e-3 / 10 * 9
    assert model.optimizer.steps_taken == 1
    # Twice the drawn examples, twice the update: nothing divides by their number.
    norms = []
    for count in (5, 10):
        weight = (np.arange(small.n) < count).astype(np.float32)
        data = tf.data.Dataset.from_tensors((np.ones_like(x), np.zeros_like(y), weight))
        tfdp.data.declare_sampling(data, "poisson", small.n, 10)
        base = small.base()
        base.set_weights([np.zeros((3, 2)), np.zeros(2)])
        small.model(base, noise_multiplier=0.0, clip_norm=0.1, **eager).fit(data, verbose=0)
        norms.append(np.linalg.norm(base.get_weights()[0]))
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-4)


@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[True]))
def test_fault_16_dropout_changes_from_step_to_step(small, jit_compile):
    base = keras.Sequential([keras.Input((64,)), layers.Dropout(0.5), layers.Dense(2)])
    # By small steps: an example that is fitted has no gradient any more.
    model = small.model(base, inner=keras.optimizers.SGD(1e-3), num_examples=1,
                        compile_kwargs={"jit_compile": jit_compile}, expected_batch_size=1,
                        noise_multiplier=0.0, clip_norm=1e6)  # fmt: skip
    x, y = np.ones((1, 64), np.float32), np.zeros(1, np.int32)
    masks = []
    for _ in range(3):
        before = model.get_weights()[0]
        model.fit(x, y, batch_size=1, verbose=0)
        masks.append(np.abs(model.get_weights()[0] - before)[:, 0] > 0)
    # Two masks of 64 are equal with probability 5e-20.
    assert len({mask.tobytes() for mask in masks}) == 3


def test_fault_16_batch_normalization_is_refused(small):
    base = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(), layers.Dense(2)])
    with pytest.raises(PrivacyError, match="BatchNormalization"):
        tfdp.make_private(base)
    base.layers[0].trainable = False
    model = small.model(base)
    base.layers[0].trainable = True
    with pytest.raises(PrivacyError, match="BatchNormalization"):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.parametrize(
    "steps_per_execution, microbatch_size",
    slow.cases([(1, None), (2, None), (1, 4), (2, 4)], slow=[(2, None), (1, 4)]),
)
def test_fault_17_a_step_is_a_step_everywhere_and_a_budget_is_met(
    small, microbatch_size, steps_per_execution
):
    # Fault 14: a budget is met, not approached.
    model = small.model(
        compile_kwargs={"steps_per_execution": steps_per_execution},
        microbatch_size=microbatch_size, budget=tfdp.PrivacyBudget(1.0, 0.01), steps=6,
    )  # fmt: skip
    model.fit(small.poisson(), epochs=9, verbose=0)
    assert model.optimizer.steps_taken == 6
    statement = model.privacy_statement()
    assert statement.steps == 6 and 0.99 < statement.epsilon <= 1.0
    assert sum(e.count for e in model.ledger.entries) == 6
    assert model.optimizer.steps_left == 0


def test_fault_18_noise_and_sum_have_the_same_scale(small):
    # At σ = 1 the noise of one coordinate is as large as the largest contribution, before and
    # after the division.
    x, y = np.zeros((1000, 50), np.float32), np.zeros(1000, np.int32)
    model = small.model(small.base(50, 200), lambda y, p: 0.0 * tf.reduce_sum(p, -1),
                        clip_norm=3.0, num_examples=1000, expected_batch_size=250,
                        compile_kwargs={"run_eagerly": True})  # fmt: skip
    model.validate_independence = False
    before = model.get_weights()[0]
    model.fit(small.poisson((x, y), 250, steps_per_epoch=1), verbose=0)
    assert np.std(model.get_weights()[0] - before) == pytest.approx(3.0 / 250, rel=6 / 141)
