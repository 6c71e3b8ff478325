"""What is zero before training does not hide from the check what it will let through."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import PrivacyError
from tfdp.training import compared_runs, independence, opened_gates
from tfdp.training.preflight import check_examples_do_not_mix

N = 40
X, Y = np.random.default_rng(0).normal(size=(2, N, 4)).astype(np.float32)


def model_of(*stack, loss="mse"):
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), *stack])
    model = tfdp.make_private(base)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=N
    )
    model.compile(optimizer, loss=loss)
    return model


class Gated(keras.layers.Layer):
    """x + gate · f(x), where the gate is zero at first."""

    def __init__(self, function, shape=(), trainable=True, raw=False):
        super().__init__()
        self.function, self.shape, self.is_trained, self.raw = function, shape, trainable, raw

    def build(self, shape):
        if self.raw:
            self.gate = tf.Variable(tf.zeros(self.shape), trainable=False)
        else:
            self.gate = self.add_weight(
                shape=self.shape, initializer="zeros", trainable=self.is_trained
            )

    def call(self, x):
        return x + self.gate * self.function(x)


def centered(x):
    """As batch normalization whose scale begins at zero."""
    mean, spread = (f(x, axis=0, keepdims=True) for f in (keras.ops.mean, keras.ops.std))
    return (x - mean) / (spread + 1e-3)


@pytest.mark.parametrize(
    "gate", [{}, {"shape": (4,)}, {"trainable": False}, {"raw": True}], ids=str
)
def test_a_branch_that_mixes_behind_a_gate_is_refused(gate):
    assert not check_examples_do_not_mix(model_of(Gated(tf.sin, **gate)), X, Y).assumptions
    model = model_of(Gated(centered, **gate))
    with pytest.raises(PrivacyError, match="mixes the examples.*zero held other"):
        check_examples_do_not_mix(model, X, Y)
    gate = model.layers[0].layers[-1].gate
    assert not np.any(gate)


def test_a_kernel_of_zeros_hides_nothing_behind_it():
    zeros = keras.layers.Dense(4, kernel_initializer="zeros")
    mixing = keras.layers.Lambda(lambda x: x - tf.reduce_mean(x, axis=0))
    with pytest.raises(PrivacyError, match="mixes the examples"):
        check_examples_do_not_mix(model_of(zeros, mixing, keras.layers.Dense(4)), X, Y)


def test_a_term_of_the_batch_that_a_callback_may_raise_is_refused():
    weight = tf.Variable(0.0, trainable=False)

    def loss_of(term):
        return lambda y, p: tf.reduce_mean(tf.square(y - p), -1) + weight * term(p)

    own = model_of(loss=loss_of(lambda p: tf.reduce_mean(p, -1)))
    assert not check_examples_do_not_mix(own, X, Y).assumptions
    with pytest.raises(PrivacyError, match="loss.*mixes the examples"):
        check_examples_do_not_mix(model_of(loss=loss_of(tf.reduce_mean)), X, Y)
    assert weight.numpy() == 0.0


class OnlyAtZero(Gated):
    """Mixes as long as its variable is zero."""

    def call(self, x):
        return tf.cond(self.gate > 0.0, lambda: x, lambda: x - tf.reduce_mean(x, 0))


class Undefined(Gated):
    """Not a number where its variable is not zero, which would be equal to itself."""

    def call(self, x):
        nothing = tf.math.log(-tf.stop_gradient(self.gate))
        mixed = x - tf.reduce_mean(x, 0) + self.gate * x
        return tf.where(tf.stop_gradient(self.gate) > 0.0, nothing, mixed)


def test_what_mixes_while_a_variable_is_zero_is_refused_too():
    for layer in (OnlyAtZero(None, trainable=False), OnlyAtZero(None, raw=True), Undefined(None)):
        with pytest.raises(PrivacyError, match="mixes the examples"):
            check_examples_do_not_mix(model_of(layer), X, Y)


class Guarded(Gated):
    def call(self, x):
        tf.debugging.assert_less(self.gate, 0.1)
        return super().call(x)


def test_what_fails_with_other_values_is_assumed():
    (sentence,) = check_examples_do_not_mix(model_of(Guarded(tf.sin)), X, Y).assumptions
    assert "this was not checked" in sentence


@pytest.mark.parametrize("blocks", [2, 4])
def test_opened_gates_do_not_drown_what_others_see(blocks):
    # By a relative tolerance, if each block let more through than it gets.
    x = inputs = keras.Input((64,))
    for _ in range(blocks):
        branch = keras.layers.Dense(256, activation="relu")(x)
        x = keras.layers.Add()([x, keras.layers.Dense(64, kernel_initializer="zeros")(branch)])
    base = keras.Model(inputs, keras.layers.Dense(1)(x))
    data = np.random.default_rng(0).normal(size=(N, 65)).astype(np.float32)

    def loss(y, p):
        neighbour = tf.roll(tf.tanh(tf.reduce_mean(y, -1)), 1, 0)
        return tf.reduce_mean(tf.square(y - p), -1) + neighbour * tf.tanh(0.1 * p[:, 0])

    model = tfdp.make_private(base)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=N
    )
    model.compile(optimizer, loss=loss)
    with pytest.raises(PrivacyError, match="mixes the examples"):
        check_examples_do_not_mix(model, data[:, :64], data[:, 64:])


def test_what_cannot_be_repeated_behind_a_gate_is_assumed():
    noisy = Gated(lambda x: tf.random.normal(tf.shape(x)), trainable=False)
    (sentence,) = check_examples_do_not_mix(model_of(noisy), X, Y).assumptions
    assert "random numbers of their own" in sentence


def test_metrics_that_are_zero_are_no_gates(monkeypatch):
    runs = []
    monkeypatch.setattr(
        independence, "compare", lambda *args: runs.append(1) or compared_runs.compare(*args)
    )
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(4, use_bias=False, name=name)(inputs) for name in "ab"}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=N
    )
    model.compile(optimizer, loss={"a": "mse", "b": "mse"}, metrics={"a": ["mae"], "b": []})
    check_examples_do_not_mix(model, X, {"a": Y, "b": Y})
    assert len(runs) == 2  # and not one more, with other totals and counts


def test_variables_are_zero_again_whatever_happens():
    variables = [tf.Variable(tf.zeros((3, 2))), tf.Variable(tf.zeros((), tf.bfloat16))]
    found = opened_gates.closed([*variables, tf.Variable(1.0), tf.Variable(0), variables[0]])
    assert [id(v) for v in found] == [id(v) for v in variables]
    with pytest.raises(KeyError), opened_gates.opened(found):
        assert all(np.all(v.numpy() != 0) for v in variables)
        raise KeyError
    assert not any(np.any(v.numpy()) for v in variables)


def test_a_variable_with_one_value_is_not_zero():
    for place in (0, 999, 1000, 4999):
        values = np.zeros((1000, 5), np.float32)
        values.flat[place] = 1e-30
        assert not opened_gates.closed([tf.Variable(values)])


def test_large_tables_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(opened_gates, "_LARGEST", 5)
    assert not opened_gates.closed([tf.Variable(tf.zeros((3, 2)))])
