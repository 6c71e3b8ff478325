"""Clip factors: the one place that decides how much of an example's gradient is released."""

import math

import tensorflow as tf

CLIPPING = ("flat", "automatic", "normalized", "per_layer")
_GAMMA = 0.01  # AUTO-S (Bu et al. 2022)
_LARGEST = 1e30  # of a factor: a smaller one is always allowed


def clip_factors(squared_norms, example_mask, clip_norm, clipping, shares=None):
    """The factor c_i by which each example's gradient is multiplied (MATH.md section 1).

    | squared norm | flat | automatic | normalized |
    |---|---|---|---|
    | 0 | 1 | C/γ | 0 |
    | not finite | 0 | 0 | 0 |
    | example absent | 0 | 0 | 0 |

    Formal guarantees: c_i·‖g_i‖ ≤ C for every example whose squared norm was not
    underestimated; for "per_layer" the squares of the groups' bounds C·√share add up to C².

    Args:
        squared_norms: list of (B,) float64 tensors, one for each group of variables; never
            smaller than the true squared norms.
        example_mask: (B,) bool, false for padding.
        clip_norm: C.
        clipping: "flat", "automatic", "normalized" (one factor from all groups together) or
            "per_layer" (one factor for each group).
        shares: of C², one for each group, from `shares_of_layers`; None: equal ones.

    Returns:
        (list of (B,) float32 factors, one for each group; (B,) bool, whether an example's
        gradient is finite).
    """
    total = tf.add_n(squared_norms)
    # Compared in float32: what overflows there is not finite for anyone downstream.
    finite = tf.math.is_finite(tf.cast(total, tf.float32))
    used = finite & example_mask
    if clipping == "per_layer":
        shares = shares or [1 / len(squared_norms)] * len(squared_norms)
        bounds = [clip_norm * share**0.5 for share in shares]
        factors = [_flat(n, bound) for n, bound in zip(squared_norms, bounds, strict=True)]
    else:
        one = {"flat": _flat, "automatic": _automatic, "normalized": _normalized}[clipping]
        factors = [one(total, clip_norm)] * len(squared_norms)
    # Of a gradient of zeros it would be infinite in float32, and what it multiplies NaN. Times a
    # scale of the optimizer it stays finite, too.
    factors = [tf.minimum(f, _LARGEST) for f in factors]
    factors = [tf.where(used, tf.cast(f, tf.float32), 0.0) for f in factors]
    return factors, finite


def shares_of_layers(names, given):
    """The share of C² of each layer, in the order of `names`; together at most 1.

    Args:
        names: of the layers that are trained.
        given: {name: share} of some layers; the others have equal parts of what is left. Or None.

    Raises:
        ValueError: if `given` names a layer that is not trained, or two, or leaves nothing.
    """
    given = given or {}
    for name in given:
        if names.count(name) != 1:
            raise ValueError(
                "Argument `layer_shares` must name trained layers with unique names. Received: "
                f"{name!r}, the name of {names.count(name)} of the layers {names}"
            )
    others = len(names) - len(given)
    left = 1 - math.fsum(given.values())
    # What an optimizer has checked may have been edited since.
    if not (left > 0 or (left == 0 and not others)) or not all(s > 0 for s in given.values()):
        rest = [name for name in names if name not in given]
        raise ValueError(
            "Argument `layer_shares` must have positive values that add up to at most 1 and "
            f"leave a share for the layers that it does not name: {rest}. Received: "
            f"layer_shares={given}"
        )
    return [given[name] if name in given else left / others for name in names]


def _flat(squared_norm, bound):
    # CLIPS: no unit's contribution is longer than `bound`.
    return tf.minimum(tf.cast(1.0, squared_norm.dtype), bound / tf.sqrt(squared_norm))


def _automatic(squared_norm, bound):
    return bound / (tf.sqrt(squared_norm) + _GAMMA)


def _normalized(squared_norm, bound):
    return tf.where(squared_norm > 0, bound / tf.sqrt(squared_norm), 0.0)
