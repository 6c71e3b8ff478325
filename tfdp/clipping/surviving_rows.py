"""Per-example gradients of sparse tables, restricted to the rows that a step may touch."""

import copy
import dataclasses

import tensorflow as tf

from tfdp.clipping.gradients import Gradient, RowGradients, scale
from tfdp.clipping.recording import trained_variables
from tfdp.errors import PrivacyError

_BEYOND = tf.int64.max


@dataclasses.dataclass
class SurvivorSums:
    """Clipped sums of the surviving rows of one table; only these rows are to be noised.

    Attributes:
        rows: (S,) int64, sorted.
        values: (S, d) float32; zero for a row that no example touched.
    """

    rows: tf.Tensor
    values: tf.Tensor


def mark_sparse_table(variable, name):
    """Makes a variable known as a table of which a private step may touch single rows."""
    variable.sparse_table = name


def table_name(variable):
    """The name of the sparse table that a variable is, or None for any other variable."""
    return getattr(variable, "sparse_table", None)


def activated_rows(model, result):
    """The rows that each example activates in each sparse table, and their gradients.

    Args:
        model: the Keras model.
        result: a `Backward`.

    Returns:
        Dict of the table's place among the trained variables to `RowGradients`, whose `ids`
        (B, T) are −1 for padding.

    Raises:
        PrivacyError: if a table is used in another way than by looking up rows, so that more
            rows have a gradient than the ids say.
    """
    found, variables = {}, trained_variables(model)
    for i, gradient, _ in result.gradients:
        name = table_name(variables[i])
        if name is None:
            continue
        if not isinstance(gradient, RowGradients):
            raise PrivacyError(
                f"Table {name!r} is used in another way than by its layer's own look-up (in a "
                "subclass with a `call` of its own, inside a layer without a rule, or read as a "
                "whole), so that the rows of its gradient are not known from ids. Call the "
                "SparseEmbedding (or the keras_rs layer) directly in the model, or leave "
                "`selection` out."
            )
        found[i] = gradient
    return found


def restrict(result, survivors):
    """Sets the gradients of all other rows to zero; clipping comes after this.

    Args:
        result: a `Backward`.
        survivors: dict of place among the trained variables to sorted int64 rows.

    Returns:
        A `Backward` whose `clipped_sums` are `SurvivorSums` for these variables.
    """
    gradients = [
        (i, SurvivingRows(g, survivors[i]) if i in survivors else g, group)
        for i, g, group in result.gradients
    ]
    return dataclasses.replace(result, gradients=gradients)


def place_among(survivors, ids):
    """Where each id stands among the survivors, −1 for those that did not survive.

    Args:
        survivors: (S,) sorted int64 rows.
        ids: integers of any shape; negative ones are no rows.
    """
    ids = tf.cast(ids, tf.int64)
    # The sentinel keeps an empty set of survivors an ordinary case.
    sorted_rows = tf.concat([survivors, [_BEYOND]], 0)
    place = tf.reshape(tf.searchsorted(sorted_rows, tf.reshape(ids, [-1])), tf.shape(ids))
    return tf.where(tf.gather(sorted_rows, place) == ids, place, -1)


class SurvivingRows(Gradient):
    """Look-ups as `RowGradients`, without the rows that did not survive."""

    def __init__(self, gradient, survivors):
        self.variable = gradient.variable
        self.survivors = survivors
        self.place = place_among(survivors, gradient.ids)
        values = tf.where(self.place[:, :, tf.newaxis] >= 0, gradient.values, 0.0)
        self.masked = copy.copy(gradient)
        self.masked.values = tf.ensure_shape(values, gradient.values.shape)

    def squared_norm(self):
        return self.masked.squared_norm()

    @property
    def parts(self):
        return self.masked.parts

    def sum_of(self, parts, factors):
        values = scale(parts[0], factors)
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, values.shape[2]]),
            tf.reshape(self.place, [-1]),
            tf.size(self.survivors),
        )
        return SurvivorSums(self.survivors, sums)
