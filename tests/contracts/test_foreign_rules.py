"""Rules that users bring are compared with the exact fallback before they train anything."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.clipping import OuterProduct, PerExampleGradients, Rule, register_rule
from tfdp.clipping.rules.registry import _RULES


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros", name="shift")

    def call(self, x):
        return x * self.scale + self.shift


class Right(Rule):
    def variables(self, layer, args, kwargs):
        return [layer.scale, layer.shift]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        return self.given(layer, s * args[0], s)

    def given(self, layer, scale, shift):
        return [
            (layer.scale, PerExampleGradients(scale)),
            (layer.shift, PerExampleGradients(shift)),
        ]


class AddsTheMean(Right):
    def given(self, layer, scale, shift):
        return super().given(layer, scale + tf.reduce_mean(scale, axis=0), shift)


class TooSmall(Right):
    def given(self, layer, scale, shift):
        return super().given(layer, 0.9 * scale, shift)


class ForgetsOne(Right):
    def given(self, layer, scale, shift):
        return super().given(layer, scale, shift)[:1]


class SumsTooMuch(Right):
    def given(self, layer, scale, shift):
        return super().given(layer, tf.reduce_sum(scale, axis=1), shift)


class WithoutPositions(Right):
    def given(self, layer, scale, shift):
        return [(layer.scale, OuterProduct(scale, shift)), *super().given(layer, scale, shift)[1:]]


class FlatFactors(Right):
    def given(self, layer, scale, shift):
        layout = tfdp.clipping.sums.contributions.Layout((), (0,))
        ones = tf.ones((tf.shape(scale)[0], 1))
        return [(layer.scale, OuterProduct(ones, scale, layout)),
                *super().given(layer, scale, shift)[1:]]  # fmt: skip


class NoList(Right):
    def given(self, layer, scale, shift):
        return PerExampleGradients(scale)


class Tensors(Right):
    def given(self, layer, scale, shift):
        return [(layer.scale, scale), (layer.shift, shift)]


@pytest.fixture
def train(small):
    def run(rule, **kwargs):
        register_rule(Scale)(rule)
        base = keras.Sequential([keras.Input((3,)), Scale(), keras.layers.Dense(2)])
        model = small.model(base, compile_kwargs={"run_eagerly": True})
        for name, value in kwargs.items():
            setattr(model, name, value)
        model.fit(small.poisson(steps_per_epoch=1), verbose=0)
        return model

    yield run
    _RULES.pop(Scale, None)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:There are values that are not a number")
def test_examples_that_are_not_finite_are_no_fault_of_the_rule(small):
    register_rule(Scale)(Right)
    try:
        base = keras.Sequential([keras.Input((3,)), Scale(), keras.layers.Dense(2)])
        model = small.model(base, compile_kwargs={"run_eagerly": True})
        x, y = small.data()
        x[::2] = np.nan
        model.fit(small.poisson((x, y)), verbose=0)
        assert np.isfinite(model.get_weights()[0]).all()
    finally:
        _RULES.pop(Scale, None)


def test_a_wrong_rule_before_a_kernel_of_zeros_is_refused(small):
    # Whose gradients are all zero until training has moved the kernel.
    register_rule(Scale)(TooSmall)
    try:
        zeros = keras.layers.Dense(2, kernel_initializer="zeros")
        base = keras.Sequential([keras.Input((3,)), Scale(), zeros])
        model = small.model(base, compile_kwargs={"run_eagerly": True})
        with pytest.raises(tfdp.PrivacyError, match="differs from the exact one by 0.1"):
            model.fit(small.poisson(), verbose=0)
        assert not np.any(zeros.kernel)
    finally:
        _RULES.pop(Scale, None)


def assumed(model, rule):
    return f"rule {rule.__name__} returns the gradient" in " ".join(
        str(model.privacy_statement()).split()
    )


@pytest.mark.thorough
def test_a_right_rule_trains_and_the_statement_assumes_nothing_of_it(train):
    assert not assumed(train(Right), Right)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [AddsTheMean, TooSmall])
def test_a_rule_that_gives_other_gradients_is_refused(train, rule):
    with pytest.raises(tfdp.PrivacyError, match=rf"scale.*\n?.*{rule.__name__}"):
        train(rule)


@pytest.mark.thorough
def test_without_the_check_the_statement_says_that_the_rule_is_trusted(train):
    assert assumed(train(AddsTheMean, validate_independence=False), AddsTheMean)


@pytest.mark.thorough_after(5)
@pytest.mark.parametrize(
    "rule, message",
    [
        (ForgetsOne, "lists.*shift.*no contribution"),
        (SumsTooMuch, r"`values` of shape \(batch, 3\)"),
        (WithoutPositions, "which is not a matrix"),
        (FlatFactors, r"`left` of shape \(batch, positions, 1\). Without positions use 1."),
        (NoList, "list of pairs"),
        (Tensors, "list of pairs"),
    ],
)
def test_results_of_another_form_are_refused_by_rule_and_layer(train, rule, message):
    with pytest.raises(
        tfdp.PrivacyError, match=rf"Rule {rule.__name__} of layer 'scale.*{message}"
    ):
        train(rule, validate_independence=False)


def test_random_layers_elsewhere_do_not_disturb_the_comparison(small):
    register_rule(Scale)(Right)
    try:
        base = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dropout(0.5), Scale(), keras.layers.Dense(2)]
        )
        model = small.model(base)
        states = [v for v in base.variables if v.name == "seed_generator_state"]
        before = [np.array(v) for v in states]
        model.clipping_plan(tf.zeros((2, 3)))
        from tfdp.training.checks import preflight

        x, y = small.data()
        notes = preflight.check_rules(model, tf.constant(x), tf.constant(y))
        assert not [a for a in notes.assumptions if "Right" in a]
        for a, b in zip(before, states, strict=True):
            np.testing.assert_array_equal(a, b)
    finally:
        _RULES.pop(Scale, None)
