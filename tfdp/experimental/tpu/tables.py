"""The tables of a model that a TPU embedding of TensorFlow holds, in a private step.

A step looks all of them up before the forward pass and hands them, after it, the noisy gradients of
the surviving rows. What the embedding does with these is in `engines.py`.
"""

import threading

import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.experimental.tpu.engines import engine_for
from tfdp.experimental.tpu.resident_table import LookUps, looked_up
from tfdp.runtime import replicas
from tfdp.selection import NO_ROW


class TPUTables:
    """Holds tables in a TPU embedding, and trains them with what a `DPOptimizer` gives.

    Formal guarantees: those of `DPOptimizer` with its selection. Rows that do not survive keep
    their values and slots, though they are looked up: their gradient is zero, and `tpu_optimizer`
    accepts no rule that moves such a row. Each row's noise is handed over by one replica.

    Args:
        tables: list of `TPUResidentTable`.
        row_optimizer: a `RowOptimizer` that `tpu_optimizer` accepts.
        feature: from `tfdp.experimental.tpu.resident_table.embedding_feature`.
        shapes: as for `Engine`, of one replica.
        is_compiled: whether XLA compiles the step.

    Attributes:
        reads_rows: whether rows can be read outside of a training step.

    Raises:
        ValueError: for an optimizer that a TPU embedding does not have, or whose rule would show
            which rows were looked up; for tables of the same name.
    """

    def __init__(self, tables, row_optimizer, feature, shapes, is_compiled):
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ValueError(f"Give the SparseEmbedding layers distinct names. Received: {names}")
        self.row_optimizer = row_optimizer
        self.shapes = shapes
        self._engine = engine_for(feature)(tables, row_optimizer, shapes, is_compiled)
        self.reads_rows = self._engine.reads_rows
        self._step = threading.local()  # replicas of one process are threads of it
        for table in tables:
            table.holder = self

    def variable(self, name):
        """The variable of a table, where `reads_rows`."""
        return self._engine.variables[name]

    def assertion(self, name):
        """What the statement says of a table."""
        return (
            f"the rows of table {name!r} are updated by TensorFlow's {self._engine.name}, each "
            "once in a step, by its noisy gradient"
        )

    def arrays(self, name):
        """As `TPUResidentTable.to_arrays`."""
        return self._engine.arrays(name)

    def assign(self, name, arrays):
        """Sets a table to what `arrays` gave."""
        self._engine.assign(name, arrays)

    def looked_up(self, features):
        """Context in which the model's layers read these rows.

        Args:
            features: `SelectedInputs.look_ups`, this replica's part.
        """
        rows, state = self._engine.look_up(features)
        ids = {
            name: {feature: values[..., 0] for feature, values in features[name].items()}
            for name in self.shapes
        }
        self._step.state = (ids, state)
        return looked_up(
            [
                LookUps(name, ids[name]["activations"], rows[name]["activations"])
                for name in self.shapes
            ]
        )

    def update(self, gradients):
        """Hands over the gradients of the step whose rows were looked up.

        Args:
            gradients: dict of table name to (rows, noisy gradients): (S,) surviving rows filled up
                with `NO_ROW`; (S, d), the same on all replicas.

        Raises:
            PrivacyError: if nothing was looked up, or a table has no gradient.
        """
        ids, state = getattr(self._step, "state", None) or (None, None)
        if ids is None or set(gradients) != set(self.shapes):
            raise PrivacyError(
                "Every table in a TPU embedding is updated in every step, after it was looked up. "
                f"Received: gradients of {sorted(gradients)} for tables {sorted(self.shapes)}"
            )
        self._step.state = None
        # A row that another survivor was looked up for gets no gradient: nor does any row then.
        wrong = [
            self._survivors_differ(name, rows, ids[name]["survivors"])
            for name, (rows, _) in gradients.items()
        ]
        agree = tf.equal(replicas.all_reduce_sum([tf.add_n(wrong)])[0], 0.0)
        handed = {
            name: {
                "activations": tf.zeros((*ids[name]["activations"].shape, values.shape[1])),
                "survivors": self._share(
                    name, tf.where(agree & (rows < NO_ROW)[:, tf.newaxis], values, 0.0), 0
                ),
            }
            for name, (rows, values) in gradients.items()
        }
        survivors = {name: rows for name, (rows, _) in gradients.items()}
        self._engine.apply(handed, state, survivors)

    def _survivors_differ(self, name, rows, looked_up):
        """float32: how many survivors of the step this replica did not look up in their places."""
        own = self._share(name, rows[:, tf.newaxis], NO_ROW)[..., 0]
        lost = rows[self._places(name) :] < NO_ROW
        differ = (own < NO_ROW) & (own != looked_up)
        return tf.cast(tf.math.count_nonzero(differ) + tf.math.count_nonzero(lost), tf.float32)

    def _share(self, name, values, filling):
        """This replica's part, (b, k, ...), of what belongs to the survivors, (S, ...).

        The places that no survivor takes name other rows, which get nothing by them.
        """
        context = tf.distribute.get_replica_context()
        count, places = context.num_replicas_in_sync, self._places(name)
        values = values[:places]
        values = tf.pad(values, [[0, places - values.shape[0]], [0, 0]], constant_values=filling)
        own = tf.reshape(values, [count, places // count, values.shape[1]])
        own = own[0] if count == 1 else tf.gather(own, context.replica_id_in_sync_group)
        return tf.reshape(own, (*self.shapes[name]["survivors"][:-1], values.shape[1]))

    def _places(self, name):
        """How many survivors of a table are looked up, over all replicas."""
        replica = tf.TensorShape(self.shapes[name]["survivors"]).num_elements()
        return replica * tf.distribute.get_strategy().num_replicas_in_sync
