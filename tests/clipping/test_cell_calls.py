"""Recurrent cells called by themselves: exact, and of the rule only where it covers them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.rules.recurrent import CellRule

B, T, P, U = 3, 3, 3, 4


class Decoder(keras.Model):
    """Calls cells step by step: the next input comes from the last output."""

    def __init__(self, *cells, lists=True):
        super().__init__()
        self.cells, self.lists = list(cells), lists
        self.start, self.back, self.out = layers.Dense(U), layers.Dense(P), layers.Dense(1)

    def call(self, x, training=None):
        start = self.start(x[:, 0])
        states = [[start] * len(cell.get_initial_state(1)) for cell in self.cells]
        states = states if self.lists else [one for (one,) in states]
        step, outputs = x[:, 0], []
        for t in range(T):
            for i, cell in enumerate(self.cells):
                step, states[i] = cell(step, states[i])
            outputs.append(step)
            step = self.back(step) + x[:, t]
        last = tf.nest.flatten(states)
        return self.out(tf.concat([*outputs, *last], -1))


CASES = {
    "lstm": lambda: Decoder(layers.LSTMCell(U)),
    "gru": lambda: Decoder(layers.GRUCell(U), lists=False),
    "gru, reset before": lambda: Decoder(layers.GRUCell(U, reset_after=False, use_bias=False)),
    "two cells": lambda: Decoder(layers.SimpleRNNCell(U), layers.LSTMCell(U, use_bias=False)),
}


def losses(outputs):
    return tf.reduce_sum(tf.square(outputs - 5.0), 1)


def normal(*shape):
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def rules(model, x):
    plan = make_clipping_plan(model, x)
    return {type(c.rule) for c in plan.calls.values() if c.layer in model.cells}, plan


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("case", CASES)
def test_decoders_are_exact(brute_force, case):
    check = brute_force(CASES[case], normal(B, T, P), losses)
    assert rules(check.model, check.x)[0] == {CellRule}
    check.check()


class OwnCell(layers.LSTMCell):
    def call(self, inputs, states, training=False):
        output, states = super().call(inputs, states, training)
        return 2.0 * output, states


@pytest.mark.thorough
def test_a_cell_of_ones_own_is_left_to_the_fallback():
    model = Decoder(OwnCell(U))
    accepted, plan = rules(model, tf.zeros((B, T, P)))
    assert CellRule not in accepted
    assert None in {planned.rule for planned in plan.calls.values()}


X, STATE = tf.zeros((B, P)), tf.zeros((B, U))
ACCEPTS = {
    "plain": (True, {}, STATE),
    "dropout, whose mask Keras keeps": (False, {"dropout": 0.4}, STATE),
    "dropout of states": (False, {"recurrent_dropout": 0.4}, STATE),
    "a state of other rows": (False, {}, STATE[:1]),
    "another dtype": (False, {"dtype": "float64"}, STATE),
}


@pytest.mark.parametrize("case", ACCEPTS)
def test_only_what_is_covered_is_accepted(case):
    accepted, options, state = ACCEPTS[case]
    cell = layers.GRUCell(U, **options)
    cell.build((B, P))
    assert CellRule().accepts(cell, (X, [state]), {}) == accepted
