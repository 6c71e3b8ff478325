"""Clip factors: the one place that decides how much of an example's gradient is released."""

import tensorflow as tf

CLIPPING = ("flat", "automatic", "normalized", "per_layer")
_GAMMA = 0.01  # AUTO-S (Bu et al. 2022)


def clip_factors(squared_norms, example_mask, clip_norm, clipping):
    """The factor c_i by which each example's gradient is multiplied (MATH.md section 1).

    | squared norm | flat | automatic | normalized |
    |---|---|---|---|
    | 0 | 1 | C/γ | 0 |
    | not finite | 0 | 0 | 0 |
    | example absent | 0 | 0 | 0 |

    Formal guarantees: c_i·‖g_i‖ ≤ C for every example whose squared norm was not
    underestimated; for "per_layer" the groups' bounds C/√K add up to C.

    Args:
        squared_norms: list of (B,) float64 tensors, one for each group of variables; never
            smaller than the true squared norms.
        example_mask: (B,) bool, false for padding.
        clip_norm: C.
        clipping: "flat", "automatic", "normalized" (one factor from all groups together) or
            "per_layer" (one factor for each group).

    Returns:
        (list of (B,) float32 factors, one for each group; (B,) bool, whether an example's
        gradient is finite).
    """
    total = tf.add_n(squared_norms)
    # Compared in float32: what overflows there is not finite for anyone downstream.
    finite = tf.math.is_finite(tf.cast(total, tf.float32))
    used = finite & example_mask
    if clipping == "per_layer":
        bound = clip_norm / len(squared_norms) ** 0.5
        factors = [_flat(n, bound) for n in squared_norms]
    else:
        one = {"flat": _flat, "automatic": _automatic, "normalized": _normalized}[clipping]
        factors = [one(total, clip_norm)] * len(squared_norms)
    factors = [tf.where(used, tf.cast(f, tf.float32), 0.0) for f in factors]
    return factors, finite


def _flat(squared_norm, bound):
    return tf.minimum(tf.cast(1.0, squared_norm.dtype), bound / tf.sqrt(squared_norm))


def _automatic(squared_norm, bound):
    return bound / (tf.sqrt(squared_norm) + _GAMMA)


def _normalized(squared_norm, bound):
    return tf.where(squared_norm > 0, bound / tf.sqrt(squared_norm), 0.0)
