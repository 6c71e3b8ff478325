"""Whether what forward noise is added to is a representation of one example alone."""

import numpy as np
import tensorflow as tf

from tfdp.clipping.plan.refusals import WAY_OUT
from tfdp.clipping.recording import Recorder, call_model
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise

_TOLERANCE = 1e-4


def validate_noise_inputs(model, x):
    """Replaces all examples but one by others, and watches what that one's noise meets.

    Each example in turn: a sum along the batch, say, leaves the first one alone.

    Args:
        model: a model that holds `DPForwardNoise` layers.
        x: a batch of its inputs.

    Raises:
        PrivacyError: if an example's representation depends on the others.
    """
    count = tf.nest.flatten(x)[0].shape[0]
    if count < 2:
        return
    first = _noise_inputs(model, x)
    for place in range(count):
        # This example stays; every other one becomes a copy of the last, then of the first.
        for fill in (count - 1, 0):
            chosen = tf.constant([place if i == place else fill for i in range(count)])
            others = [tf.gather(t, chosen) for t in tf.nest.flatten(x)]
            _compare(first, _noise_inputs(model, tf.nest.pack_sequence_as(x, others)), place)


def _noise_inputs(model, x):
    recorder = Recorder(model)
    with recorder.recording():
        call_model(model, x)
    return [
        call.args[0] for call in recorder.root.subtree() if isinstance(call.layer, DPForwardNoise)
    ]


def _compare(inputs, others, place):
    if len(inputs) != len(others):
        raise PrivacyError(
            "The number of calls of the model's DPForwardNoise layers depends on the examples: "
            f"{len(inputs)} for some, {len(others)} for others. Call them outside `tf.cond` and "
            "loops, so that every example costs the same."
        )
    for a, b in zip(inputs, others, strict=True):
        a, b = (np.asarray(tf.cast(t[place], tf.float32)) for t in (a, b))
        scale = max(np.max(np.abs(a), initial=0.0), 1e-6)
        if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            raise PrivacyError(
                "The input of forward noise mixes the examples of a batch: the input for an "
                f"example changed by {np.nanmax(np.abs(a - b)):.3g} when only other examples were "
                f"replaced. {WAY_OUT}"
            )
