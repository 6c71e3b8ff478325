"""The rule of recurrent layers: exact for every option, and taken only where it is."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

from tfdp.clipping.engine import backward, squared_norms
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.rules.dense import DenseRule
from tfdp.clipping.rules.recurrent import RecurrentRule

B, T, P, U = 3, 3, 3, 4
BOTH = {"dropout": 0.4, "recurrent_dropout": 0.4}
LSTM, GRU, SIMPLE = layers.LSTM, layers.GRU, layers.SimpleRNN


def normal(*shape, seed=2):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Reads(keras.Model):
    """Calls a recurrent layer, perhaps with a mask or initial states; uses all its outputs."""

    def __init__(self, layer, masked=False, states=(), training=None):
        super().__init__()
        self.in_training = training
        self.recurrent, self.masked = layer, masked
        self.before = layers.Dense(P)
        self.starts = [layers.Dense(units) for units in states]
        self.out = layers.Dense(1)

    def call(self, x, training=None):
        kwargs = {"training": training if self.in_training is None else self.in_training}
        if self.masked:
            kwargs["mask"] = tf.reduce_mean(x, list(range(2, len(x.shape)))) > 0
        if self.starts:
            kwargs["initial_state"] = [start(x[:, 0]) for start in self.starts]
        outputs = tf.nest.flatten(self.recurrent(self.before(x), **kwargs))
        return self.out(tf.concat([layers.Flatten()(t) for t in outputs], -1))


def losses(outputs):
    return tf.reduce_sum(tf.square(outputs - 5.0), 1)


def of(layer, *args, masked=False, states=(), **kwargs):
    return lambda: Reads(layer(*args, **kwargs), masked, states)


def cells(*made, **kwargs):
    return lambda: Reads(layers.RNN([make() for make in made], return_state=True), **kwargs)


SEQUENCES = {"return_sequences": True, "return_state": True}
BACK = {**SEQUENCES, "go_backwards": True, "masked": True}
CASES = {
    "lstm, all options": of(LSTM, U, states=[U, U], **BACK, **BOTH),
    "gru, all options": of(GRU, U, states=[U], **BACK, **BOTH),
    "gru, reset before, plain": of(GRU, U, reset_after=False, use_bias=False, unroll=True),
    "simple": of(SIMPLE, U, masked=True, states=[U], **BOTH),
    "simple, plain": of(SIMPLE, U, activation="relu", use_bias=False),
    "lstm, zero outputs": of(LSTM, U, zero_output_for_mask=True, masked=True, states=[U, U]),
    "lstm, dropout": of(LSTM, U, dropout=0.4, return_state=True),
    "lstm, first implementation": of(LSTM, U, implementation=1, use_bias=False, unroll=True),
    "lstm, own functions": of(
        LSTM, U, activation=lambda x: tf.sin(x), recurrent_activation="hard_sigmoid"
    ),
    "lstm, gates that share": of(LSTM, U, activation="softmax", masked=True),
    "gru, no bias": of(GRU, U, use_bias=False, dropout=0.4),
    "gru, reset before": of(GRU, U, reset_after=False, masked=True, states=[U], **BOTH),
    "not in training": lambda: Reads(SIMPLE(U, **BOTH), training=False),
    "both ways": lambda: Reads(layers.Bidirectional(SIMPLE(U, **SEQUENCES)), masked=True),
    "one cell": lambda: Reads(layers.RNN(layers.GRUCell(U), return_state=True), states=[U]),
    "gru, not in training": lambda: Reads(GRU(U, **BOTH), training=False),
    "gru, both ways": lambda: Reads(layers.Bidirectional(GRU(U, **SEQUENCES)), masked=True),
    "one lstm cell": lambda: Reads(layers.RNN(layers.LSTMCell(U), return_state=True),
                                   states=[U, U]),
    "cells": cells(lambda: layers.LSTMCell(U, **BOTH), lambda: layers.GRUCell(2, **BOTH),
                   lambda: layers.SimpleRNNCell(3, **BOTH), masked=True),
}  # fmt: skip


def generators(model):
    return [v for v in model.variables if v.name == "seed_generator_state"]


CONVOLUTIONAL = {
    "rows": (of(layers.ConvLSTM1D, 2, 2, masked=True, **BOTH, **SEQUENCES), (4, 2)),
    "images": (of(layers.ConvLSTM2D, 2, (3, 2), strides=2, padding="same", go_backwards=True),
               (5, 4, 2)),
    "volumes": (of(layers.ConvLSTM3D, 2, 2, use_bias=False, dropout=0.4), (3, 3, 3, 2)),
}  # fmt: skip


# Of each kind of layer the case of most options stays here; the first three in `make test`.
SLOW = ["lstm, zero outputs", "lstm, dropout", "lstm, own functions", "gru, no bias",
        "gru, reset before", "simple, plain", "cells", "lstm, first implementation",
        "gru, not in training", "gru, both ways", "one lstm cell"]  # fmt: skip


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("name", slow.cases(CASES, slow=SLOW))
def test_recurrent_layers_compute_what_they_did_and_are_exact(brute_force, name):
    assert_same_and_exact(brute_force(CASES[name], normal(B, T, P), losses))


@pytest.mark.parametrize("name", slow.cases(CONVOLUTIONAL, slow=["rows", "volumes"]))
def test_convolutional_lstms_compute_what_they_did_and_are_exact(brute_force, name):
    build, shape = CONVOLUTIONAL[name]
    assert_same_and_exact(brute_force(build, normal(B, 3, *shape), losses))


def assert_same_and_exact(check):
    rules = {type(planned.rule) for planned in check.plan.calls.values()}
    assert rules == {RecurrentRule, DenseRule}
    states = generators(check.model)
    before = [state.numpy() for state in states]
    wanted, after = check.model(check.x, training=True), [state.numpy() for state in states]
    for state, value in zip(states, before, strict=True):
        state.assign(value)
    check.check()
    np.testing.assert_allclose(check.outputs, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(check.states_after, after)


def test_steps_at_both_ends_are_masked():
    mask = normal(B, T, P).mean(2) > 0
    assert not mask[:, 0].all() and not mask[:, -1].all() and mask.any(1).all()
    assert np.any(mask != mask[:, ::-1])  # backwards it is another one


class OwnCell(layers.LSTMCell):
    def call(self, inputs, states, training=False):
        output, states = super().call(inputs, states, training)
        return 2.0 * output, states


def with_weight():
    layer = layers.Dense(1)
    layer.build((None, 1))
    return lambda x: x * layer.kernel[0, 0]


def with_another_call():
    layer = LSTM(U)
    original = layer.cell.call
    object.__setattr__(
        layer.cell, "call", lambda x, states, **kwargs: original(2.0 * x, states, **kwargs)
    )
    return layer


OTHERS = {
    "another call of the cell": with_another_call,
    "cell of one's own": lambda: layers.RNN(OwnCell(U)),
    "activation with a weight": lambda: LSTM(U, activation=layers.PReLU()),
    "activation that reads a weight": lambda: LSTM(U, activation=with_weight()),
    "cells in another dtype": lambda: layers.RNN(
        layers.LSTMCell(U, dtype="bfloat16", recurrent_initializer="zeros")
    ),
}


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("name", OTHERS)
def test_what_the_rule_does_not_cover_is_left_to_the_fallback(name):
    model = Reads(OTHERS[name]())
    rules = {
        type(planned.rule): planned.layer
        for planned in make_clipping_plan(model, tf.zeros((B, T, P))).calls.values()
    }
    assert RecurrentRule not in rules and type(None) in rules


def drops_states_later():
    layer = LSTM(U)
    layer.cell.recurrent_dropout = 0.5  # of which Keras draws masks that it does not use
    return layer


X, STATE, ONES = tf.zeros((B, T, P)), tf.zeros((B, U)), tf.ones((B, T))
ACCEPTS = {
    "plain": (True, LSTM, {}),
    "given states": (True, LSTM, {"initial_state": [STATE, STATE], "mask": ONES}),
    "given state": (True, GRU, {"initial_state": STATE}),
    "too few states": (False, LSTM, {"initial_state": [STATE]}),
    "states of other rows": (False, GRU, {"initial_state": tf.zeros((1, U))}),
    "a mask of other rows": (False, GRU, {"mask": ONES[:1]}),
    "a list of masks": (False, GRU, {"mask": [ONES]}),
    "training as a tensor": (False, GRU, {"training": tf.constant(True)}),
    "another dtype": (False, lambda units: GRU(units, dtype="float64"), {}),
    "one state for both cells": (
        False,
        lambda units: layers.RNN([layers.GRUCell(units)] * 2),
        {"initial_state": STATE},
    ),
    "states from before": (False, lambda units: GRU(units, stateful=True), {}),
    "cuDNN alone": (False, lambda units: GRU(units, use_cudnn=True), {}),
    "masks that are not used": (False, lambda _: drops_states_later(), {}),
    "channels first": (
        False,
        lambda units: layers.ConvLSTM1D(units, 1, data_format="channels_first"),
        {},
    ),
}


@pytest.mark.parametrize("name", ACCEPTS)
def test_only_what_is_covered_is_accepted(name):
    accepted, make, kwargs = ACCEPTS[name]
    layer, x = make(U), X
    if isinstance(layer, layers.ConvLSTM1D):
        x = tf.zeros((B, T, P, 2))
    layer.build(x.shape)
    assert RecurrentRule().accepts(layer, (x,), kwargs) == accepted


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    slow.cases(
        ["simple, plain", "gru, no bias", "lstm, all options", "cells"],
        slow=["gru, no bias", "lstm, all options", "cells"],
    ),
)
def test_recurrent_layers_are_exact_in_a_graph(brute_force, name):
    brute_force(CASES[name], normal(B, T, P), losses).check(graph=True)


class Twice(keras.Model):
    def __init__(self):
        super().__init__()
        self.recurrent, self.out = GRU(P, return_sequences=True, dropout=0.4), layers.Dense(1)

    def call(self, x, training=None):
        for _ in range(2):
            x = self.recurrent(x, training=training)
        return self.out(layers.Flatten()(x))


@pytest.mark.thorough
def test_a_layer_that_is_called_twice_is_exact(brute_force):
    brute_force(Twice, normal(B, T, P), losses).check()


class Derivative(keras.Model):
    def __init__(self):
        super().__init__()
        self.recurrent = LSTM(U)

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.reduce_sum(self.recurrent(x))
        return tf.reduce_sum(tape.gradient(outputs, x), [1, 2])[:, None]


@pytest.mark.thorough
def test_derivatives_of_a_recurrent_layer_are_left_to_the_model_around():
    model = Derivative()
    model(X)
    (planned,) = make_clipping_plan(model, X).calls.values()
    assert planned.rule is None and planned.layer is model


@pytest.mark.evidence
def test_recurrent_layers_are_exact_under_xla(brute_force):
    brute_force(CASES["lstm, zero outputs"], normal(B, T, P), losses).check(jit_compile=True)


def test_unknown_lengths_are_exact(brute_force):
    def build():
        x = keras.Input((None, P), dtype=keras.config.dtype_policy().compute_dtype)
        return keras.Model(x, layers.Dense(1)(GRU(U)(x)))

    check = brute_force(build, normal(B, T, P), losses)
    plan = make_clipping_plan(check.model, tf.TensorSpec([None, None, P], tf.float32))
    rules = {type(planned.rule) for planned in plan.calls.values()}
    assert rules == {RecurrentRule, DenseRule}

    @tf.function(input_signature=[tf.TensorSpec([B, None, P])], autograph=False)
    def step(x):
        result = backward(check.model, plan, x, losses, example_mask_of(None, B))
        return squared_norms(result)[0]

    true = sum(np.square(g).reshape(B, -1).sum(1) for g in check.gradients())
    np.testing.assert_allclose(tf.add_n(step(check.x)), true, rtol=1e-5)
