"""Optimizers that update the rows they are given and no others."""

import keras
import tensorflow as tf

from tfdp._compat.keras import is_decayed, variable_index
from tfdp.runtime import xla

# Rows of one scatter under XLA. To write more of them at once, XLA for TPUs copies a table of up to
# some million rows into a layout of eight times its size, and back.
XLA_ROWS = 2048


class DistinctRows(tf.IndexedSlices):
    """Rows that are known to be distinct, so that there is nothing to sum.

    Indices beyond the variable are places without a row, which only XLA can compile: it leaves
    writes to them out.
    """


class RowOptimizer(keras.optimizers.Optimizer):
    """Base of the row optimizers: gathers rows of variable and slots, updates, scatters them back.

    A `tf.IndexedSlices` gradient changes its rows and their slots only; a row without a gradient
    keeps its value and its state, and nothing as large as the variable is read or made. Repeated
    indices are summed first. A dense gradient updates all rows, by the same formulas.

    Subclasses list their slots in `slots` and implement `row_update`.

    Args:
        learning_rate: float or `keras.optimizers.schedules.LearningRateSchedule`.
        weight_decay: decoupled weight decay, applied lazily: to a row when it is updated. `None`
            for none. With all rows given it is Keras' own.
        name: name of the optimizer.

    Raises:
        ValueError: for an option that would update every row: `use_ema`, momentum, clipping of the
            whole gradient or its accumulation. They are not arguments here.
    """

    def __init__(self, learning_rate, weight_decay=None, name=None, **kwargs):
        # What `get_config` of the base class stores, at the values that do nothing.
        active = {k: v for k, v in kwargs.items() if v and k != "ema_momentum"}
        if active:
            raise ValueError(
                f"A {type(self).__name__} updates only the given rows and has no arguments that "
                f"act on whole tables. Leave them out. Received: {active}"
            )
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name)

    def slots(self, variable):
        """Initial values and shapes of the state of a variable.

        Returns:
            List of (name, shape, initial value); the first axis of each shape is the variable's.
        """
        return []

    def row_update(self, gradient, slots, learning_rate):
        """The rule, for some rows or for all.

        Args:
            gradient: (R, ...) summed gradients of R rows.
            slots: their slots, each (R, ...), in the order of `slots`.
            learning_rate: scalar of the same dtype.

        Returns:
            (what to subtract from the rows, list of the new slots).
        """
        raise NotImplementedError

    def build(self, variables):
        if self.built:
            if self._built_for != [id(variable) for variable in variables]:
                raise ValueError(
                    f"Argument `embedding_optimizer` ({type(self).__name__}) already trains the "
                    "tables of another model, to which its slots belong. Give each model its "
                    f"own: `tfdp.optimizers.{type(self).__name__}(...)`."
                )
            return
        super().build(variables)
        self._built_for = [id(variable) for variable in variables]
        self._slots = [
            [
                self.add_variable(
                    shape=shape,
                    initializer=keras.initializers.Constant(value),
                    dtype=variable.dtype,
                    name=f"{variable.name}_{name}",
                )
                for name, shape, value in self.slots(variable)
            ]
            for variable in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        slots = [s.value for s in self._slots[variable_index(self, variable)]]
        self.update_with_slots(gradient, variable, slots, learning_rate)

    def update_with_slots(self, gradient, variable, slots, learning_rate):
        """The update of one variable, whoever holds its slots.

        Args:
            gradient: tf.IndexedSlices, or dense.
            variable: a Keras or TensorFlow variable.
            slots: TensorFlow variables, in the order of `slots`.
            learning_rate: scalar.
        """
        learning_rate = tf.cast(learning_rate, variable.dtype)
        decay = self.weight_decay is not None and is_decayed(self, variable)
        if isinstance(gradient, tf.IndexedSlices):
            rows, summed = sum_repeated(gradient)
            # Larger integers than the variable has rows would not fit every index type.
            rows = tf.minimum(rows, tf.cast(variable.shape[0], rows.dtype))
            gather = lambda v: tf.gather(v, rows)  # noqa: E731
            subtract = lambda v, x: scatter("scatter_sub", v, x, rows)  # noqa: E731
            write = lambda v, x: scatter("scatter_update", v, x, rows)  # noqa: E731
        else:
            summed = gradient
            gather, subtract, write = tf.convert_to_tensor, _subtract, _write
        summed = tf.cast(summed, variable.dtype)
        change, updated = self.row_update(summed, [gather(s) for s in slots], learning_rate)
        if decay:
            change += gather(variable) * tf.cast(self.weight_decay, variable.dtype) * learning_rate
        for slot, value in zip(slots, updated, strict=True):
            write(slot, value)
        subtract(variable, change)

    def _apply_weight_decay(self, variables):
        """Nothing here: `update_step` decays the rows it is given."""


def sum_repeated(gradient):
    """Distinct indices of tf.IndexedSlices, and the sums of their values."""
    if isinstance(gradient, DistinctRows):
        return gradient.indices, gradient.values
    rows, place = tf.unique(gradient.indices)
    return rows, tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))


def scatter(method, variable, values, rows):
    """Calls a scatter method of a variable, for XLA in parts of `XLA_ROWS` rows.

    Args:
        method: "scatter_sub" or "scatter_update".
        variable: (V, ...).
        values: (R, ...).
        rows: (R,) distinct indices; under XLA, those beyond the variable are not written.
    """
    if not xla.is_compiling() or rows.shape[0] is None or rows.shape[0] <= XLA_ROWS:
        getattr(variable, method)(tf.IndexedSlices(values, rows))
        return
    parts = -(-rows.shape[0] // XLA_ROWS)
    missing = parts * XLA_ROWS - rows.shape[0]
    rows = tf.pad(rows, [[0, missing]], constant_values=variable.shape[0])
    values = tf.pad(values, [[0, missing]] + [[0, 0]] * (len(values.shape) - 1))
    rows = tf.reshape(rows, [parts, XLA_ROWS])
    values = tf.reshape(values, [parts, XLA_ROWS, *values.shape[1:]])

    def part(i):
        getattr(variable, method)(tf.IndexedSlices(values[i], rows[i]))
        return i + 1

    tf.while_loop(lambda i: i < parts, part, [tf.constant(0)], parallel_iterations=1)


def _subtract(variable, value):
    variable.assign_sub(value)


def _write(variable, value):
    variable.assign(value)
