"""A TPU-resident table: it lives in a TPU embedding, where others have a Keras variable."""

import contextlib
import threading

import numpy as np
import tensorflow as tf

from tfdp.clipping.recording import note_read
from tfdp.clipping.sums.surviving_rows import mark_sparse_table
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import ExternalTable
from tfdp.runtime.strategies import traces_once
from tfdp.runtime.threads import holding

_ACTIVE = threading.local()


def embedding_feature():
    """The kind of embedding hardware here, as `tf.tpu.experimental.HardwareFeature` names it.

    Returns:
        None where there is no TPU.
    """
    strategy = tf.distribute.get_strategy()
    if not traces_once(strategy):
        return None
    return strategy.extended.tpu_hardware_feature.embedding_feature


def has_engine():
    """Whether a table that is made here goes into a TPU embedding."""
    feature = embedding_feature()
    if feature == tf.tpu.experimental.HardwareFeature.EmbeddingFeature.UNSUPPORTED:
        # Each replica would have a copy of the table, which is what an ordinary variable is.
        return tf.distribute.get_strategy().num_replicas_in_sync == 1
    return feature is not None


class TPUResidentTable(ExternalTable):
    """Stands among the trained variables for a table that is no variable of this process.

    Its rows are looked up before the forward pass, all tables at once, and the layer takes them
    from there. What trains it is its holder, which is given clipped gradients and noise.

    Args:
        name: of the layer.
        shape: (V, d).
        initializer: function of shape and dtype.

    Attributes:
        holder: the `tfdp.experimental.tpu.tables.TPUTables` it is in, None before training.
        loaded: dict of array name to values read from a file, from which the holder starts.
    """

    def __init__(self, name, shape, initializer):
        super().__init__(name, shape)
        mark_sparse_table(self, name)
        self.initializer = initializer
        self.loaded = {}

    def to_arrays(self):
        """What is saved: dict of "0" to the table, and of slot names to slots where known.

        Raises:
            RuntimeError: for a table that was never trained, which exists nowhere yet.
        """
        if self.holder is not None:
            return self.holder.arrays(self.name)
        if not self.loaded:
            raise RuntimeError(
                f"Table {self.name!r} is made in the TPU embedding when training begins, and "
                "cannot be saved before."
            )
        return dict(self.loaded)

    def load(self, arrays):
        """Takes what `to_arrays` gave.

        Raises:
            ValueError: for a table of another shape.
        """
        values = arrays.get("0")
        if values is None or tuple(values.shape) != self.shape:
            found = None if values is None else tuple(values.shape)
            raise ValueError(
                f"Table {self.name!r} has shape {self.shape}. Received: values of shape {found}"
            )
        arrays = {name: np.asarray(a, "float32") for name, a in arrays.items()}
        if self.holder is not None:
            self.holder.assign(self.name, arrays)
        self.loaded = arrays

    def read(self, ids):
        """(*ids.shape, d) rows; zeros where an id is negative.

        Args:
            ids: (B, ...) int64, of static shape but for the batch.

        Raises:
            PrivacyError: if these are not the ids that were looked up for this batch.
            RuntimeError: if nothing was looked up and the hardware reads no single rows; in a
                graph, when it is run.
        """
        note_read(self)
        found = getattr(_ACTIVE, "look_ups", None) or {}
        if self.name in found:
            rows = found[self.name].take(ids)
        elif self.holder is not None and self.holder.reads_rows:
            rows = tf.gather(self.holder.variable(self.name), tf.maximum(ids, 0))
        else:
            rows = self._rows_of_nowhere(ids)
        rows = tf.where(ids[..., tf.newaxis] >= 0, rows, 0.0)
        return tf.ensure_shape(rows, (*ids.shape, self.shape[1]))

    def _rows_of_nowhere(self, ids):
        """For graphs that are traced for their shapes alone; whoever runs one is told."""
        message = (
            f"Table {self.name!r} is in a TPU embedding, which looks up rows in training only. "
            "Save the model, and load it where there is no TPU to evaluate, export or serve it."
        )
        if tf.executing_eagerly():
            raise RuntimeError(message)
        told = []
        if not traces_once(tf.distribute.get_strategy()):  # a TPU can raise nothing: it shows NaN
            told = [tf.debugging.Assert(tf.constant(False), [message])]
        with tf.control_dependencies(told):
            return tf.fill(tf.concat([tf.shape(ids), self.shape[1:]], 0), _NAN)


class LookUps:
    """The rows of one table that one batch reads, in the order of the layer's calls.

    Args:
        name: of the table.
        ids: (B, T) int64; any row where nothing is read.
        rows: (B, T, d).
    """

    def __init__(self, name, ids, rows):
        self.name = name
        self.ids = ids
        self.rows = rows
        self.taken = 0

    def take(self, ids):
        """(*ids.shape, d): the next of the rows; NaN where they are those of another id."""
        if not ids.shape.is_fully_defined():
            raise PrivacyError(
                f"Table {self.name!r} is in a TPU embedding and needs ids of a fixed shape. Pad "
                f"them to a length that does not come from the data. Received: shape {ids.shape}"
            )
        flat = tf.reshape(ids, [ids.shape[0], -1])
        start, self.taken = self.taken, self.taken + flat.shape[1]
        if self.taken > self.ids.shape[1]:
            self._refuse(f"at least {self.taken}")
        own = self.ids[:, start : self.taken]
        # No gradient of a wrong row may reach this table: NaN drops the example, and is seen.
        right = (own == flat) | (flat < 0)
        rows = tf.where(right[..., tf.newaxis], self.rows[:, start : self.taken], _NAN)
        return tf.reshape(rows, (*ids.shape, rows.shape[2]))

    def finish(self):
        """Refuses rows that no call has taken."""
        if self.taken != self.ids.shape[1]:
            self._refuse(f"{self.taken}")

    def _refuse(self, number):
        raise PrivacyError(
            f"The model looks up {number} ids of each example in table {self.name!r}, where "
            f"`select_on_host` was told of {self.ids.shape[1]}. Its argument `ids` must give all "
            "ids of a table, in the order in which the model calls its layer."
        )


_NAN = float("nan")


@contextlib.contextmanager
def looked_up(look_ups):
    """While open, these tables read what was looked up.

    Args:
        look_ups: list of `LookUps`.
    """
    with holding(_ACTIVE, "look_ups", {found.name: found for found in look_ups}):
        yield
        for found in look_ups:
            found.finish()


def nothing_looked_up():
    """While open, tables read as they do outside of a step: for a trace beside the step's own."""
    return holding(_ACTIVE, "look_ups", None)
