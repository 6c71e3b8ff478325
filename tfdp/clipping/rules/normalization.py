"""Normalisations whose statistics belong to one example: gain and shift are small, form them."""

import keras

from tfdp.clipping.recording import paused
from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.contributions import PerExampleGradients, reduce_to_shape


@register_rule(
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.RMSNormalization,
)
class NormalizationRule(Rule):
    def variables(self, layer, args, kwargs):
        return [v for v in _gain_and_shift(layer) if v is not None]

    def takes_positions(self, layer, args, kwargs):
        is_group = isinstance(layer, keras.layers.GroupNormalization)
        return not is_group and layer.axis in (-1, [-1], (-1,))

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        gain, shift = _gain_and_shift(layer)
        pairs = []
        if gain is not None:
            # The same call with gain 1 and shift 0 gives the normalised input.
            neutral = [(gain, keras.ops.ones(gain.shape, gain.dtype))]
            if shift is not None:
                neutral.append((shift, keras.ops.zeros(shift.shape, shift.dtype)))
            with paused(), keras.StatelessScope(neutral):
                normalized = layer(*args, **kwargs)
            product = _trailing(layer, keras.ops.cast(s, "float32")
                                * keras.ops.cast(normalized, "float32"))  # fmt: skip
            pairs.append((gain, PerExampleGradients(reduce_to_shape(product, gain.shape))))
        if shift is not None:
            pairs.append(
                (shift, PerExampleGradients(reduce_to_shape(_trailing(layer, s), shift.shape)))
            )
        return pairs


def _gain_and_shift(layer):
    # RMSNormalization calls its gain `scale`; in the others that is a flag.
    found = [getattr(layer, name, None) for name in ("gamma", "scale", "beta")]
    gamma, scale, shift = (v if isinstance(v, keras.Variable) else None for v in found)
    return (scale if gamma is None else gamma), shift


def _trailing(layer, x):
    """Moves the normalised axes last, where the gain's shape is aligned."""
    if isinstance(layer, keras.layers.RMSNormalization):  # its gain meets the last axes as they are
        return x
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    axes = sorted(a % len(x.shape) for a in axes)
    rest = [a for a in range(len(x.shape)) if a not in axes]
    return keras.ops.transpose(x, rest + axes)
