"""The numeric check for what mixes examples and has no name (MATH.md section 2)."""

import keras
import numpy as np
import tensorflow as tf

from tfdp.clipping.recording import Recorder, call_model, input_structure
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise

_TOLERANCE = 1e-4


def validate_model(model):
    """Replaces all examples but the first by others, and watches the first one's outputs.

    What the first example's outputs do not depend on, its loss and gradient do not depend on.

    Args:
        model: a built model with defined inputs.

    Raises:
        PrivacyError: if the outputs change.
    """
    generator = np.random.default_rng()

    def draw(spec):
        shape = (4, *(8 if d is None else d for d in spec.shape[1:]))
        if keras.backend.standardize_dtype(spec.dtype).startswith("float"):
            return generator.normal(size=shape).astype(spec.dtype)
        return generator.integers(0, 2, shape).astype(spec.dtype)

    batches = [tf.nest.map_structure(draw, input_structure(model)) for _ in range(2)]
    mixed = tf.nest.map_structure(
        lambda a, b: tf.convert_to_tensor(np.concatenate([a[:1], b[1:]])), *batches
    )
    first = tf.nest.map_structure(tf.convert_to_tensor, batches[0])
    _compare(_outputs(model, first), _outputs(model, mixed), f"Model {model.name!r}")


def validate_batch(model, x, y, sample_weight):
    """The same for the outputs and the losses, on a batch of the user's own data."""

    def with_others_replaced(structure):
        return tf.nest.map_structure(
            lambda t: t if t is None else tf.concat([t[:1], tf.roll(t, 1, 0)[1:]], 0), structure
        )

    if tf.nest.flatten(x)[0].shape[0] < 3:
        return
    other_x, other_y, other_weight = map(with_others_replaced, (x, y, sample_weight))
    outputs, other_outputs = _outputs(model, x), _outputs(model, other_x)
    _compare(outputs, other_outputs, f"Model {model.name!r}")
    losses = model.compute_loss(x, y, outputs, sample_weight, training=True)
    others = model.compute_loss(other_x, other_y, other_outputs, other_weight, training=True)
    _compare(losses, others, f"The loss of model {model.name!r}")


def validate_noise_inputs(model, x):
    """The same for what `DPForwardNoise` layers clip: a representation of one example alone.

    Args:
        model: a model that holds such layers.
        x: a batch of its inputs.

    Raises:
        PrivacyError: if the first example's representation depends on the others.
    """
    count = tf.nest.flatten(x)[0].shape[0]
    if count < 2:
        return
    # The first example stays; every other one becomes a copy of the last.
    chosen = tf.constant([0] + [count - 1] * (count - 1))
    other = tf.nest.map_structure(lambda t: tf.gather(t, chosen), x)
    same = tf.nest.map_structure(lambda t: tf.gather(t, tf.zeros_like(chosen)), x)
    first = _noise_inputs(model, x)
    for changed in (other, same):
        _compare(first, _noise_inputs(model, changed), "What forward noise is added to")


def _noise_inputs(model, x):
    recorder = Recorder(model)
    with recorder.recording():
        call_model(model, x)
    return [
        call.args[0] for call in recorder.root.subtree() if isinstance(call.layer, DPForwardNoise)
    ]


def _outputs(model, x):
    # Random layers start from the same state both times, and leave no trace.
    with keras.StatelessScope([]):
        return call_model(model, x)


def _compare(outputs, others, what):
    for a, b in zip(tf.nest.flatten(outputs), tf.nest.flatten(others), strict=True):
        a, b = (np.asarray(tf.cast(t[0], tf.float32)) for t in (a, b))
        scale = max(np.max(np.abs(a), initial=0.0), 1e-6)
        if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            raise PrivacyError(
                f"{what} mixes the examples of a batch: the first example's result changed by "
                f"{np.nanmax(np.abs(a - b)):.3g} when only the others were replaced. Its gradient "
                "cannot be clipped by itself. Look for statistics over the batch axis, in-batch "
                "negatives, or reshapes that move examples into each other."
            )
