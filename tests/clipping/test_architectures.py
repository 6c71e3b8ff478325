"""Norms, clipped sums and an update of every architecture are those of float64 brute force."""

import contextlib

import architectures_hub  # noqa: F401
import keras
import numpy as np
import pytest
import tensorflow as tf
from architectures import TABLE

import tfdp
from tfdp.clipping.engine import backward, clipped_sums, squared_norms
from tfdp.clipping.losses import example_mask_of

#: The worst relative deviations seen, by architecture: `pytest -m evidence -s` prints them.
WORST = {}


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy(), keras.config.floatx()
    keras.config.set_dtype_policy(name)
    keras.config.set_floatx(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before[0])
        keras.config.set_floatx(before[1])


def tensors(structure, double=False):
    def convert(t):
        t = tf.convert_to_tensor(t)
        return tf.cast(t, tf.float64) if double and t.dtype.is_floating else t

    return tf.nest.map_structure(convert, structure)


def losses_of_architecture(architecture):
    """What `compile` takes, made anew: Keras' losses compute in the dtype they were made under."""
    return architecture.loss() if callable(architecture.loss) else architecture.loss


def reference(architecture, x, y, weights):
    """For each trainable variable its float64 gradients (B, ...), one example after another."""
    with policy("float64"):
        model, losses = architecture.build(), losses_of_architecture(architecture)
        x, y = tensors(x, True), tensors(y, True)
        model(tf.nest.map_structure(lambda t: t[:1], x))
    for variable, value in zip(model.variables, weights, strict=True):
        variable.assign(value)
    rows = []
    for i in range(tf.nest.flatten(x)[0].shape[0]):
        one, target = (tf.nest.map_structure(lambda t, i=i: t[i : i + 1], s) for s in (x, y))
        with tf.GradientTape() as tape:
            outputs = model(one, training=True)
            if isinstance(losses, dict):
                loss = sum(keras.losses.get(f)(target[k], outputs[k]) for k, f in losses.items())
            else:
                # Keras' loss of one example is the mean over its positions.
                loss = tf.reduce_mean(keras.losses.get(losses)(target, outputs))
        variables = [v.value for v in model.trainable_variables]
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        rows.append([tf.convert_to_tensor(g).numpy().astype(np.float64) for g in found])
    return [np.stack(parts) for parts in zip(*rows, strict=True)]


def norm(parts):
    return np.sqrt(sum(np.sum(np.square(p, dtype=np.float64)) for p in parts))


def deviations(architecture):
    """Relative deviations of norms, the norm of a person's sum, clipped sums, and one update."""
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(3)
    x, y = architecture.data()
    losses = losses_of_architecture(architecture)
    base = architecture.build()
    base(tensors(x))
    for variable in base.trainable_variables:  # a scale at which biases and gains matter
        noise = architecture.scale * generator.normal(size=variable.shape)
        variable.assign(keras.ops.convert_to_numpy(variable) + noise)
    weights = [v.numpy() for v in base.variables]
    gradients = reference(architecture, x, y, weights)
    count = len(gradients[0])
    true = np.sqrt(sum(np.square(g).reshape(count, -1).sum(1) for g in gradients))
    clip_norm = float(np.median(true))  # some examples are clipped, some are not
    sums = [np.tensordot(np.minimum(1, clip_norm / true), g, 1) for g in gradients]

    model = tfdp.make_private(base, validate=False)
    rate = (
        1e3 * norm([v.numpy() for v in base.trainable_variables]) / norm(sums)
    )  # an update much larger than the weights
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(rate), noise_multiplier=0.0, num_examples=count,
        expected_batch_size=count, clip_norm=clip_norm,
    )  # fmt: skip
    # A trace takes longer than a step of a small model.
    model.compile(optimizer, loss=losses, run_eagerly=architecture.small)
    data, mask = tensors(x), example_mask_of(None, count)

    def losses_of(outputs):
        return model.compute_loss(data, tensors(y), outputs, None, training=True)

    result = backward(model, model.clipping_plan(data), data, losses_of, mask)
    norms = np.sqrt(np.maximum(sum(n.numpy() for n in squared_norms(result)[0]), 0))
    found = clipped_sums(model, result, clip_norm, "flat")
    found = [
        np.zeros(s.shape) if f is None else tf.convert_to_tensor(f).numpy()
        for f, s in zip(found, sums, strict=True)
    ]
    person = backward(
        model, model.clipping_plan(data), data, losses_of, tf.range(count) < count - 1, count
    )
    of_person = np.sqrt(max(sum(float(n[0]) for n in squared_norms(person)[0]), 0))
    owned = norm([g[:-1].sum(0) for g in gradients])
    before = [v.numpy().astype(np.float64) for v in base.trainable_variables]
    model.train_on_batch(x, y)
    moved = [(b - v.numpy()) * count / rate for b, v in zip(before, base.trainable_variables,
                                                            strict=True)]  # fmt: skip
    for name, values in (("sums", found), ("update", moved)):
        for variable, f, s in zip(base.trainable_variables, values, sums, strict=True):
            # A small variable must not hide behind the others.
            error = np.linalg.norm(f - s)
            allowed = 10 * architecture.tolerance * max(norm([s]), 1e-3 * norm(sums))
            assert error <= allowed, (name, variable.path, error, norm([s]), norm(sums))
    return {
        "norms": float(np.max(np.abs(norms - true) / true)),
        "person": abs(of_person - owned) / owned,
        "sums": norm([f - s for f, s in zip(found, sums, strict=True)]) / norm(sums),
        "update": norm([m - s for m, s in zip(moved, sums, strict=True)]) / norm(sums),
    }


def check(name):
    architecture = TABLE[name]
    found = WORST[name] = deviations(architecture)
    print(f"{name:28}" + "".join(f"{k:>8} {v:.1e}" for k, v in found.items()))
    assert max(found.values()) <= architecture.tolerance, found


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, a in TABLE.items() if a.small])
def test_small_architectures_are_exact(name):
    check(name)


@pytest.mark.evidence
@pytest.mark.parametrize("name", [name for name, a in TABLE.items() if not a.small])
def test_architectures_are_exact(name):
    check(name)
