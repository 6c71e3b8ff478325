"""Brute force: one gradient for each example, in float64, from the forward pass of the batch."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping import engine
from tfdp.clipping.engine import backward, clipped_sums, squared_norms
from tfdp.clipping.losses import PerExampleLoss, example_mask_of
from tfdp.clipping.sums.factors import clip_factors
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.clipping.sums.units import of_units
from tfdp.optimizers import DPOptimizer
from tfdp.runtime.xla import compiling
from tfdp.training.checks.independence import examine_on_paper
from tfdp.training.make_private import PrivateModel


@contextlib.contextmanager
def same_dropout(jit_compile):
    """Dropout takes the masks that the private step draws: in float32, and by XLA if it does."""
    original = tf.nn.experimental.stateless_dropout

    @tf.function(jit_compile=jit_compile, autograph=False)
    def mask_of(x, rate, seed, noise_shape):
        low = x if x.dtype == tf.bfloat16 else tf.cast(x, tf.float32)
        return original(tf.ones_like(low), rate, seed, noise_shape=noise_shape)

    def dropout(x, rate, seed, noise_shape=None):
        return x * tf.cast(mask_of(x, rate, seed, noise_shape), x.dtype)

    tf.nn.experimental.stateless_dropout = dropout
    try:
        yield
    finally:
        tf.nn.experimental.stateless_dropout = original


def as_tensors(structure, float64=False):
    def convert(t):
        t = tf.convert_to_tensor(t)
        return tf.cast(t, tf.float64) if float64 and t.dtype.is_floating else t

    return tf.nest.map_structure(convert, structure)


def build_on(model, x):
    """Makes the variables of a model, by a call on `x` where it does not have them yet."""
    if not model.built:
        model(x)


def random_states(model):
    """Pairs of each random generator's state and its value."""
    states = [v for v in model.variables if v.name == "seed_generator_state"]
    return [(v, keras.ops.convert_to_numpy(v)) for v in states]


def put_back(states):
    for state, value in states:
        state.assign(value)


class Watched(PrivateModel):
    """A private model that has a loss for outputs of any kind."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        outputs = [tf.cast(t, tf.float32) for t in tf.nest.flatten(y_pred)]
        squares = [tf.square(tf.reshape(t, [tf.shape(t)[0], -1]) - 1.0) for t in outputs]
        return tf.add_n([tf.reduce_mean(t, axis=1) for t in squares])

    def assert_independent(self, x):
        """Examples that brute force finds to be independent must not be refused by `fit`."""
        size = len(tf.nest.flatten(x)[0])
        if size > 1 and keras.config.floatx() == "float32":
            assert examine_on_paper(self, x, tf.zeros([size]), None) == ()


class BruteForce:
    """Per-example gradients of a model, by one ordinary backward pass for each example.

    Args:
        build: function that makes the model; called once for float32 and once for float64.
        x: inputs of the batch.
        losses: function (outputs) -> (B,) losses, each from its own example.
        float64: whether the layers can run in float64; the norms are float64 in any case.
    """

    def __init__(self, build, x, losses, float64=True):
        self.x = as_tensors(x)
        self.losses = losses
        self.model = build()
        build_on(self.model, self.x)
        # A scale at which every variable matters, biases and gains included.
        generator = np.random.default_rng(0)
        for variable in self.model.trainable_variables:
            noise = 0.3 * generator.normal(size=variable.shape)
            variable.assign(keras.ops.convert_to_numpy(variable) + noise)
        self.double = self.model
        if float64:
            policy = keras.config.dtype_policy()
            keras.config.set_dtype_policy("float64")
            try:
                self.double = build()
            finally:
                keras.config.set_dtype_policy(policy)
            build_on(self.double, as_tensors(x, True))
        self.float64 = float64
        self.steps, self.seen, self._private = {}, [], None
        self.outputs, self.states_after = None, []

    @property
    def private_model(self):
        """The model as `make_private` wraps it, with its plan."""
        if self._private is None or self._private.model is not self.model:
            self._private = Watched(self.model)
            self._private.compile(
                DPOptimizer("sgd", noise_multiplier=1.0, num_examples=100, expected_batch_size=10)
            )
        return self._private

    @property
    def plan(self):
        """The plan of the model that `make_private` wraps, made once."""
        return self.private_model.clipping_plan(self.x)

    def gradients(self, jit_compile=False):
        """For each trainable variable a float64 array (B, ...), zero where it is not used."""
        if self.double is not self.model:
            for own, other in zip(self.double.variables, self.model.variables, strict=True):
                own.assign(keras.ops.convert_to_numpy(other))
        variables = self.double.trainable_variables
        states = random_states(self.double)
        with same_dropout(jit_compile), tf.GradientTape(persistent=True) as tape:
            outputs = self.double(as_tensors(self.x, self.float64), training=True)
            losses = tf.unstack(self.losses(outputs))
        put_back(states)
        rows = []
        for loss in losses:
            grads = tape.gradient(loss, [v.value for v in variables], unconnected_gradients="zero")
            rows.append([np.asarray(tf.convert_to_tensor(g), np.float64) for g in grads])
        return [np.stack(parts) for parts in zip(*rows, strict=True)]

    def private(self, clip_norm, *clippings, example_mask=None, graph=False, jit_compile=False):
        """Squared norms and, for each kind of clipping, (clipped sums, factors).

        Eagerly unless told otherwise: a trace takes longer than a step of a small model. The states
        of random generators are put back; `states_after` has what the step made of them, and
        `outputs` what an eager step computed.
        """
        size = tf.nest.flatten(self.x)[0].shape[0]
        example_mask = (
            example_mask_of(None, size) if example_mask is None else tf.constant(example_mask)
        )
        states = random_states(self.model)
        settings = (clip_norm, clippings, graph, jit_compile)
        key = (self.losses, *settings)
        if key not in self.steps:  # traced once: inputs and the model's state are no part of it
            self.steps[key] = self._step(*settings)
        norms, found = self.steps[key](self.x, example_mask)
        self.states_after = [value for _, value in random_states(self.model)]
        put_back(states)
        return norms.numpy(), tf.nest.map_structure(lambda t: t.numpy(), found)

    def _step(self, clip_norm, clippings, graph, jit_compile):
        model = self.private_model
        plan = model.clipping_plan(self.x)

        def step(x, example_mask):
            with compiling(jit_compile):
                return run(x, example_mask)

        def run(x, example_mask):
            with self.watched(graph or jit_compile):
                result = backward(model, plan, x, self.losses, example_mask)
            self.outputs = None if graph or jit_compile else result.outputs
            norms, bounds, _ = squared_norms(result)
            raised = [tf.maximum(n, 0.0) + b for n, b in zip(norms, bounds, strict=True)]
            found = []
            for clipping in clippings:
                sums = clipped_sums(model, result, clip_norm, clipping)
                sums = [
                    tf.zeros(v.shape) if s is None else tf.convert_to_tensor(s)
                    for v, s in zip(model.trainable_variables, sums, strict=True)
                ]
                found.append((sums, clip_factors(raised, example_mask, clip_norm, clipping)[0]))
            return tf.add_n(norms), found

        if graph or jit_compile:
            return tf.function(step, autograph=False, jit_compile=jit_compile)
        return step

    @contextlib.contextmanager
    def watched(self, traced):
        """Keeps what examples contribute to each variable, of an eager step."""
        seen, original = [], engine.variable_gradient

        def variable_gradient(variable, contributions):
            seen.append((variable, contributions))
            return original(variable, contributions)

        engine.variable_gradient = variable_gradient
        try:
            yield
        finally:
            engine.variable_gradient = original
            self.seen = [] if traced else seen

    def check(self, clippings=("flat",), tolerance=1e-5, **kwargs):
        """Norms and clipped sums against brute force; returns the true norms."""
        self.private_model.assert_independent(self.x)
        gradients = self.gradients(kwargs.get("jit_compile", False))
        true = np.sqrt(sum(np.square(g).reshape(len(g), -1).sum(1) for g in gradients))
        clip_norm = float(np.median(true))  # some examples are clipped, some are not
        norms, found = self.private(clip_norm, *clippings, **kwargs)
        np.testing.assert_allclose(np.sqrt(norms), true, rtol=tolerance, atol=1e-12)
        # Compiled dropout draws otherwise than an eager step.
        if len(true) > 1 and not kwargs.get("jit_compile"):
            self.check_persons(gradients, tolerance)
        for clipping, (sums, _) in zip(clippings, found, strict=True):
            factor = {
                "flat": np.minimum(1.0, clip_norm / np.maximum(true, 1e-30)),
                "automatic": clip_norm / (true + 0.01),
                "normalized": np.where(true > 0, clip_norm / np.maximum(true, 1e-30), 0.0),
            }[clipping]
            wanted = [np.tensordot(factor, g, 1) for g in gradients]
            errors = [np.linalg.norm(s - w) for s, w in zip(sums, wanted, strict=True)]
            norms_of = [np.linalg.norm(w) for w in wanted]
            total = np.linalg.norm(norms_of)
            assert np.linalg.norm(errors) <= tolerance * total
            # A small variable must not hide behind the others.
            for variable, error, norm in zip(
                self.model.trainable_variables, errors, norms_of, strict=True
            ):
                assert error <= 10 * tolerance * max(norm, 0.001 * total), variable.path
        return true

    def check_persons(self, gradients, tolerance):
        """The same for persons of several examples each, the last of which is padding.

        Args:
            gradients: from `gradients`, of an eager step.
            tolerance: as for `check`.
        """
        size = len(gradients[0])
        k = 2 if size % 2 == 0 else size
        present = np.arange(size) != size - 1
        owned = [g * present.reshape(-1, *[1] * (g.ndim - 1)) for g in gradients]
        sums = [g.reshape(size // k, k, *g.shape[1:]).sum(1) for g in owned]
        true = np.sqrt(sum(np.square(s).reshape(len(s), -1).sum(1) for s in sums))
        factors = np.minimum(1.0, 0.9 * np.mean(true) / np.maximum(true, 1e-30))
        if not self.seen:
            self.private(1.0)
        plan = self.plan
        if any(call.scores for call in plan.calls.values()):  # no list of contributions holds them
            self.check_step_of_persons(plan, present, k, true, factors, sums, tolerance)
            return
        norms, finite, errors = [], tf.fill([size // k], True), []
        places = {id(v): i for i, v in enumerate(self.model.trainable_variables)}
        for variable, contributions in self.seen:
            units = [of_units(c, tf.constant(present), k) for c in contributions]
            gradient = variable_gradient(variable, units)
            norms.append(gradient.squared_norm()[0].numpy())
            found = gradient.clipped_sum(tf.constant(factors, tf.float32), finite)
            wanted = np.tensordot(factors, sums[places[id(variable)]], 1)
            errors.append(np.linalg.norm(tf.convert_to_tensor(found) - wanted))
        np.testing.assert_allclose(np.sqrt(np.sum(norms, 0)), true, rtol=tolerance, atol=1e-12)
        total = np.linalg.norm([np.linalg.norm(np.tensordot(factors, s, 1)) for s in sums])
        assert np.linalg.norm(errors) <= tolerance * total

    def check_step_of_persons(self, plan, present, k, true, factors, sums, tolerance):
        """As `check_persons`, by a step of its own."""
        states = random_states(self.model)
        result = backward(
            self.private_model, plan, self.x, self.losses, tf.constant(present), rows_per_unit=k
        )
        put_back(states)
        norms, _, _ = squared_norms(result)
        np.testing.assert_allclose(np.sqrt(tf.add_n(norms)), true, rtol=tolerance, atol=1e-12)
        finite, factors = tf.fill([len(true)], True), tf.constant(factors, tf.float32)
        errors = [
            tf.convert_to_tensor(g.clipped_sum(factors, finite)) - np.tensordot(factors, sums[i], 1)
            for i, g, _ in result.gradients
        ]
        wanted = [np.tensordot(factors, s, 1) for s in sums]
        total = np.linalg.norm([np.linalg.norm(w) for w in wanted])
        assert np.linalg.norm([np.linalg.norm(e) for e in errors]) <= tolerance * total


@pytest.fixture(scope="session")
def brute_force():
    return BruteForce


@pytest.fixture(scope="session")
def mean_loss():
    """Makes the losses of a target: `mean_loss(name, y)(outputs)` has shape (B,)."""

    def make(loss, y, sample_weight=None):
        def losses(outputs):
            double = tf.nest.flatten(outputs)[0].dtype == tf.float64
            return PerExampleLoss(loss)(as_tensors(y, double), outputs, sample_weight)

        return losses

    return make
