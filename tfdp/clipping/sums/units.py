"""Several rows of a batch that are one unit of privacy: what they contribute, added up.

Each unit has the same number k of consecutive rows; rows that it does not need are padding. What
follows here is one sum before any norm is taken, as the positions of one example are, or the calls
of a shared layer (MATH.md section 11).
"""

import dataclasses

import tensorflow as tf

from tfdp.clipping.sums.contributions import (
    PerExampleGradients,
    Rows,
)
from tfdp.errors import PrivacyError


def unit_mask(example_mask, rows_per_unit):
    """(U,) bool: whether any of a unit's rows is there.

    Args:
        example_mask: (B,) bool.
        rows_per_unit: k, or None where each row is a unit.

    Raises:
        PrivacyError: if B is no multiple of k. Where B is known in a step only, the step fails.
    """
    if rows_per_unit is None:
        return example_mask
    size = example_mask.shape[0]
    if size is not None and size % rows_per_unit:
        raise PrivacyError(
            f"A batch of persons must have a multiple of {rows_per_unit} rows, because each "
            "person has that many (`max_records_per_unit`); otherwise tfdp cannot tell whose row "
            f"is whose. Received: {size} rows. Pass `fit` the dataset of "
            "`tfdp.data.poisson_batches(..., privacy_ids=...)` itself."
        )
    if size is None:
        rest = tf.shape(example_mask)[0] % rows_per_unit
        wrong = "The rows of a batch are no multiple of `max_records_per_unit`."
        with tf.control_dependencies([tf.debugging.assert_equal(rest, 0, message=wrong)]):
            example_mask = tf.identity(example_mask)
    return tf.reduce_any(tf.reshape(example_mask, [-1, rows_per_unit]), axis=1)


def of_units(contribution, example_mask, rows_per_unit, marks_padding=False):
    """What units contribute to a variable, from what their rows do.

    Formal guarantees: row u of the result depends on rows u·k … u·k + k − 1 alone, and is the sum
    of the gradients of those that are there; what padding computed, NaN included, is left out.

    Args:
        contribution: one of B rows, of any kind.
        example_mask: (B,) bool.
        rows_per_unit: k, or None where each row is a unit: the contribution itself.
        marks_padding: whether the ids of rows that are not there become −1.

    Returns:
        A contribution of the same kind, of B/k units.
    """
    if rows_per_unit in (None, 1):
        return contribution
    k = rows_per_unit

    def present(t):
        shaped = tf.reshape(example_mask, [-1] + [1] * (len(t.shape) - 1))
        return tf.where(shaped, t, tf.zeros([], t.dtype))

    if isinstance(contribution, PerExampleGradients):
        values = present(contribution.values)
        units = tf.reshape(values, [_known(values.shape[0], k), k, *values.shape[1:]])
        return PerExampleGradients(tf.reduce_sum(units, axis=1))
    if isinstance(contribution, Rows):
        # No row of a table is touched by padding; ids that only look up may not be negative.
        if marks_padding:
            ids = ids_of_units(contribution.ids, example_mask, k)
        else:
            ids = _together(contribution.ids, k)
        return Rows(ids, _together(present(contribution.values), k))
    left = _together(present(contribution.left), k)
    right = _together(present(contribution.right), k)
    return dataclasses.replace(contribution, left=left, right=right)


def ids_of_units(ids, example_mask, rows_per_unit):
    """The ids that units look up, (U, k·T), −1 for those of padding, from (B, T)."""
    if rows_per_unit is None:
        return ids
    ids = tf.where(example_mask[:, tf.newaxis], ids, tf.constant(-1, ids.dtype))
    return _together(ids, rows_per_unit)


def _together(t, k):
    """(U·k, T, ...) to (U, k·T, ...)."""
    units, positions = _known(t.shape[0], k), t.shape[1]
    if positions is None:
        positions = tf.shape(t)[1]
        units = tf.shape(t)[0] // k if units == -1 else units
    return tf.reshape(t, [units, k * positions, *t.shape[2:]])


def _known(size, k):
    return -1 if size is None else size // k
