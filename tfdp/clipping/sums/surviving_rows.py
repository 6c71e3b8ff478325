"""Per-example gradients of sparse tables, restricted to the rows that a step may update."""

import copy
import dataclasses

import tensorflow as tf

from tfdp.clipping.recording import trained_variables
from tfdp.clipping.sums.contributions import Rows
from tfdp.clipping.sums.forms import Gradient, RowGradients, scale
from tfdp.clipping.sums.products import POSITIVE, UNDERFLOW, sum_of_squares
from tfdp.clipping.sums.shared_rows import SharedRowGradients
from tfdp.errors import PrivacyError
from tfdp.runtime import ordering
from tfdp.runtime.wide_sums import sums_of_segments
from tfdp.runtime.xla import is_compiling

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
    """Makes a variable known as a table of which a private step may update single rows."""
    variable.sparse_table = name


def table_name(variable):
    """The name of the sparse table that a variable is, or None for any other variable."""
    return getattr(variable, "sparse_table", None)


def activated_rows(model, result):
    """The rows that each example activates in each sparse table, and their gradients.

    Args:
        result: a `Backward`.

    Returns:
        Dict of the table's place among the trained variables to `RowGradients`, whose `ids`
        (B, T) are −1 for padding. Rows that all examples share are public, and not among them.

    Raises:
        PrivacyError: if a table is used in another way than by looking up rows, so that more
            rows have a gradient than the ids say.
    """
    found, variables = {}, trained_variables(model)
    for i, gradient, _ in result.gradients:
        name = table_name(variables[i])
        if name is None:
            continue
        if isinstance(gradient, SharedRowGradients):
            gradient = gradient.rows or _no_rows(variables[i], result.unit_mask)
        if not isinstance(gradient, RowGradients):
            raise PrivacyError(
                f"Table {name!r} is used in another way than by its layer's own look-up: in a "
                "subclass with its own `call`, inside a layer without a rule, read as a whole, or "
                "for shared negatives below a second activation. tfdp then cannot tell from ids "
                "which rows have a gradient. Call the SparseEmbedding (or the keras_rs layer) "
                "directly in the model, or remove `selection`. In a tower of shared negatives, "
                "the SparseEmbedding may be followed by linear layers only, or directly by one "
                "dense layer with an activation."
            )
        found[i] = gradient
    return found


def _no_rows(variable, unit_mask):
    """The `RowGradients` of a table in which no example looks up rows of its own."""
    ids = tf.where(unit_mask, -1, -1)[:, tf.newaxis]
    values = tf.zeros([tf.size(unit_mask), 1, variable.shape[1]])
    return RowGradients(variable, [Rows(ids, values)])


def shared_tables(result):
    """The tables of which all examples share some rows."""
    gradients = [gradient for _, gradient, _ in result.gradients]
    return [g.variable for g in gradients if isinstance(g, SharedRowGradients)]


def restrict(result, survivors):
    """Sets the gradients of all other rows to zero; clipping comes after this.

    Rows that all examples share are public, and are trained, and noised, with those that survive.

    Args:
        result: a `Backward`.
        survivors: dict of place among the trained variables to sorted int64 rows.

    Returns:
        A `Backward` whose `clipped_sums` are `SurvivorSums` for these variables.
    """
    gradients = [
        (i, _surviving(g, survivors[i]) if i in survivors else g, group)
        for i, g, group in result.gradients
    ]
    return dataclasses.replace(result, gradients=gradients)


def _with_public(survivors, ids):
    """Rows that survive and rows that are public, sorted, each once.

    Args:
        survivors: (S,) sorted int64 rows; under XLA, and where there is a capacity, `NO_ROW` last.
        ids: (N,) int64 rows, negative ones are no rows.
    """
    ids = tf.where(ids >= 0, ids, _BEYOND)
    rows = ordering.sort(tf.concat([survivors, ids], 0))
    again = tf.concat([[False], rows[1:] == rows[:-1]], 0)
    rows = ordering.sort(tf.where(again, _BEYOND, rows))
    return rows if is_compiling() else tf.boolean_mask(rows, rows < _BEYOND)


def place_among(survivors, ids):
    """Where each id stands among the survivors, −1 for those that did not survive.

    Args:
        survivors: (S,) sorted int64 rows.
        ids: integers of any shape; negative ones are no rows.
    """
    place, survived = _search(survivors, ids)
    return tf.where(survived, place, -1)


def _search(survivors, ids):
    """The first place of the survivors that is not before each id; whether it is that id's."""
    ids = tf.cast(ids, tf.int64)
    # The sentinel keeps an empty set of survivors an ordinary case.
    sorted_rows = tf.concat([survivors, [_BEYOND]], 0)
    place = ordering.search(sorted_rows, tf.reshape(ids, [-1]))
    place = tf.reshape(place, tf.shape(ids))
    return place, tf.gather(sorted_rows, place) == ids


def _surviving(gradient, survivors):
    """The `Gradient` of look-ups that is left of a `RowGradients`, or a `SharedRowGradients`."""
    if isinstance(gradient, SharedRowGradients):
        has_all = getattr(gradient.variable, "takes_all", False)
        rows = survivors if has_all else _with_public(survivors, gradient.ids)
        return _SharedAndKept(gradient, rows)
    # XLA compiles for a number of look-ups that is known, and fuses the choice with what follows.
    return (_MaskedRows if is_compiling() else _KeptRows)(gradient, survivors)


class _MaskedRows(Gradient):
    """Look-ups as `RowGradients`, of which those of rows that did not survive do not count."""

    def __init__(self, gradient, survivors):
        self.variable = gradient.variable
        self.survivors = survivors
        self.place = place_among(survivors, gradient.ids)
        self.parts = (gradient.values,)

    def squared_norm(self):
        (values,) = self.parts
        width = values.shape[2]
        of_rows = sum_of_squares(tf.reshape(values, [-1, width]))
        of_rows = tf.reshape(of_rows, tf.shape(self.place))
        norm = tf.reduce_sum(tf.where(self.place >= 0, of_rows, 0.0), axis=1)
        # The length is not known where sequences of several lengths come.
        lost = tf.cast(tf.shape(self.place)[1] * width, tf.float64) * UNDERFLOW
        return norm, norm * POSITIVE + lost

    def sum_of(self, parts, factors):
        values = scale(parts[0], factors)
        flat = tf.reshape(values, [-1, values.shape[2]])
        # Places of -1 are left out.
        return _sums_of_rows(flat, tf.reshape(self.place, [-1]), self.survivors)


class _SharedAndKept(Gradient):
    """Look-ups that all examples share, and the examples' own of the rows of a step."""

    def __init__(self, gradient, step_rows):
        self.variable = gradient.variable
        self._step_rows = step_rows
        rows = gradient.rows
        if rows is not None:
            rows = copy.copy(rows)
            kept = place_among(step_rows, rows.ids) >= 0
            rows.values = tf.where(kept[..., tf.newaxis], rows.values, 0.0)
        self._gradient = gradient.beside(rows)
        self.parts = self._gradient.parts

    def squared_norm(self):
        return self._gradient.squared_norm()

    def sum_of(self, parts, factors):
        total = self._gradient.sum_of(parts, factors)
        place = place_among(self._step_rows, total.indices)
        return _sums_of_rows(total.values, place, self._step_rows)


class _KeptRows(Gradient):
    """Only the look-ups of rows that survived: mostly few of all (K, in the shapes below)."""

    def __init__(self, gradient, survivors):
        self.variable = gradient.variable
        self.survivors = survivors
        self.num_examples = tf.shape(gradient.ids)[0]
        length = gradient.ids.shape[1]  # None for ragged ids
        self.length = tf.shape(gradient.ids, tf.int64)[1] if length is None else length
        place, survived = _search(survivors, tf.reshape(gradient.ids, [-1]))
        kept = tf.reshape(tf.where(survived), [-1])
        self.place = tf.gather(place, kept)
        self.examples = kept if length == 1 else kept // self.length
        width = gradient.values.shape[2]
        self.parts = (tf.gather(tf.reshape(gradient.values, [-1, width]), kept),)

    def squared_norm(self):
        (values,) = self.parts
        norm = tf.math.unsorted_segment_sum(
            sum_of_squares(values), self.examples, self.num_examples
        )
        lost = tf.cast(self.length * values.shape[1], tf.float64) * UNDERFLOW
        return norm, norm * POSITIVE + lost

    def sum_of(self, parts, factors):
        values = scale(parts[0], self.of_parts(factors))
        return _sums_of_rows(values, self.place, self.survivors)


def _sums_of_rows(values, place, survivors):
    sums = sums_of_segments(values, place, tf.size(survivors))
    return SurvivorSums(survivors, sums)
