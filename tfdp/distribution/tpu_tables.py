"""Tables that TensorFlow's TPU embeddings hold: what a private step hands to them.

Groundwork: the steps run on `TPUEmbeddingV0`, and no layer or `fit` leads here yet.
"""

import tensorflow as tf

from tfdp.clipping import PrivacyError, Rows, SurvivorSums, clipped_sums, restrict
from tfdp.clipping.engine import Backward
from tfdp.clipping.gradients import RowGradients
from tfdp.clipping.surviving_rows import UnsummedSurvivingRows
from tfdp.distribution.tpu_optimizers import tpu_optimizer
from tfdp.selection import NO_ROW

_ENGINE = "TPUEmbeddingV0"


def embedding_class(feature):
    """The class of `tf.tpu.experimental.embedding` for a kind of hardware.

    Args:
        feature: `strategy.extended.tpu_hardware_feature.embedding_feature`.

    Raises:
        NotImplementedError: for hardware whose class this version does not train with.
    """
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    if feature == kinds.UNSUPPORTED:
        return tf.tpu.experimental.embedding.TPUEmbeddingV0
    name = {kinds.V1: "TPUEmbedding", kinds.V2: "TPUEmbeddingV2"}.get(feature, "unknown to tfdp")
    raise NotImplementedError(
        "Tables in TPU embeddings train with `TPUEmbeddingV0` only: the other classes run on "
        "TPUs alone, and their private steps have not been tried. Use SparseEmbedding's ordinary "
        f"tables. Received: embedding_feature={feature} ({name})"
    )


class TPUTables:
    """Sparse tables in a TPU embedding, trained privately by a `DPOptimizer`.

    Every table is two features. "activations" has one id for each activation, combined in the
    model: the gradient of a combined bag could not spare the one id that did not survive. Its
    gradient is the clipped gradient of the activation, zero for ids that did not survive.
    "survivors" has the rows of the step, as many as the selection's capacity, and the noise as
    their gradient. The embedding sums both by row, so that each row is updated once.

    Formal guarantees: those of `DPOptimizer` with this selection, for the tables; a step charges
    its optimizer once. Rows that do not survive keep their values and slots bit for bit, though
    they are read.

    Args:
        optimizer: a `DPOptimizer` with a `selection` that chooses from ids and has a `capacity`,
            and an `embedding_optimizer` that `tpu_optimizer` accepts. Its `charging.begin` must
            have been called before a step.
        layers: list of `SparseEmbedding`, for name, size and initializer of each table.
        embedding_type: from `embedding_class`.

    Attributes:
        embedding: the TPU embedding.

    Raises:
        ValueError: for other arguments.
        NotImplementedError: for more than one replica.
    """

    def __init__(self, optimizer, layers, embedding_type):
        selection = optimizer.selection
        if getattr(selection, "capacity", None) is None or selection.reads_gradients:
            raise ValueError(
                "Argument `optimizer` must have a `selection` that chooses from ids, with a "
                f"capacity: AdaFEST(..., capacity=...). Received: selection={selection}"
            )
        if embedding_type.__name__ != _ENGINE:
            raise ValueError(
                f"Argument `embedding_type` must be {_ENGINE}, from `embedding_class`. "
                f"Received: embedding_type={embedding_type.__name__}"
            )
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise NotImplementedError(
                "Each replica of a TPU embedding would hand over the noise, which then counted "
                "several times. Train tables in TPU embeddings with one replica. Received: "
                f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas"
            )
        selection.check({layer.name: layer.input_dim for layer in layers})
        self.optimizer = optimizer
        self._slots = {}
        updates = tpu_optimizer(optimizer.embedding_optimizer, self._make_slots)
        config = tf.tpu.experimental.embedding
        tables = {
            layer.name: config.TableConfig(
                layer.input_dim,
                layer.output_dim,
                initializer=layer.embeddings_initializer,
                optimizer=updates,
                name=layer.name,
            )
            for layer in layers
        }
        if len(tables) < len(layers):
            raise ValueError(
                "Argument `layers` must have distinct names. "
                f"Received: layers={[layer.name for layer in layers]}"
            )
        self.embedding = embedding_type(
            {
                name: {
                    "activations": config.FeatureConfig(table, name=f"{name}_activations"),
                    "survivors": config.FeatureConfig(table, name=f"{name}_survivors"),
                }
                for name, table in tables.items()
            },
            updates,
        )
        self.embedding.build()
        self._tables = {t.name: v for t, v in self.embedding.embedding_tables.items()}
        for name, table in self._tables.items():
            table.sparse_table = name

    @property
    def trainable_variables(self):
        """The tables, in the order of their names."""
        return [self._tables[name] for name in sorted(self._tables)]

    def slots(self, name):
        """Dict of slot name to the variable of a table's slot."""
        return self._slots.get(name, {})

    def step(self, ids, losses_of, present):
        """One private step: look-ups, selection, clipping, charge, noise, update.

        Args:
            ids: dict of table name to (B, T) integers; negative ones are padding.
            losses_of: function of the activations, a dict of table name to (B, T, d) with zeros
                for padding, that gives (B,) losses, each from its own example's activations.
            present: (B,) bool, false for the padding of a batch.

        Returns:
            Dict of table name to (capacity,) int64, the rows that were updated, then `NO_ROW`.

        Raises:
            ValueError: if a table has no ids, or ids of another shape.
            PrivacyError: if there is not one loss for each example.
        """
        ids = self._checked(ids, present)
        optimizer = self.optimizer
        # Once the budget is spent every example is absent: what remains is noise alone.
        present &= optimizer.charging.active()
        names, variables = sorted(self._tables), self.trainable_variables
        survivors = self._select(ids, present)
        with tf.GradientTape(watch_accessed_variables=False) as look_up:
            look_up.watch(variables)
            read = self.embedding(
                {
                    name: {
                        "activations": tf.maximum(ids[name], 0),
                        "survivors": _readable(survivors[i]),
                    }
                    for i, name in enumerate(names)
                }
            )
        losses, gradients = _backward(read, ids, losses_of, present)
        rows = {
            i: RowGradients(variables[i], [Rows(ids[name], gradients[name])])
            for i, name in enumerate(names)
        }
        result = Backward(None, losses, present, [(i, g, i) for i, g in rows.items()])
        result = restrict(result, survivors, UnsummedSurvivingRows)
        clipped = clipped_sums(self, result, optimizer.clip_norm, optimizer.clipping)
        stddev = optimizer.charging.charge_step()
        noise = optimizer.noise_of_rows(
            [SurvivorSums(c.rows, tf.zeros([c.rows.shape[0], c.values.shape[2]])) for c in clipped],
            stddev,
        )
        divisor = tf.constant(optimizer.expected_batch_size, tf.float32)
        handed = {
            name: {
                "activations": clipped[i].values / divisor,
                # The places that no survivor takes name row 0, which gets nothing by them.
                "survivors": tf.where(_is_row(survivors[i])[:, tf.newaxis], noise[i] / divisor, 0),
            }
            for i, name in enumerate(names)
        }
        self._update(look_up, read, handed)
        return {name: survivors[i] for i, name in enumerate(names)}

    def _update(self, look_up, read, gradients):
        """`apply_gradients`, which `TPUEmbeddingV0` does not have: its tables train as variables.

        As in a TPU embedding, every row that was looked up is updated, once, with the sum of its
        gradients, which is zero for those that did not survive.
        """
        rule = self.optimizer.embedding_optimizer
        found = look_up.gradient(read, self._tables, output_gradients=gradients)
        for name, gradient in found.items():
            slots = list(self.slots(name).values())
            rule.update_with_slots(gradient, self._tables[name], slots, rule.learning_rate)
        rule.iterations.assign_add(1)

    def _select(self, ids, present):
        """Dict of place among the tables to (capacity,) survivors; chosen from ids alone."""
        activated = {i: Rows(ids[name], None) for i, name in enumerate(sorted(self._tables))}
        survivors, _ = self.optimizer.select_rows_of(
            activated, self.trainable_variables, present, static=True
        )
        return survivors

    def _checked(self, ids, present):
        if sorted(ids) != sorted(self._tables):
            raise ValueError(
                f"Argument `ids` must have the ids of each table, {sorted(self._tables)}. "
                f"Received: {sorted(ids)}"
            )
        checked = {}
        for name, value in ids.items():
            value = tf.convert_to_tensor(value)
            if value.shape.rank != 2 or not value.dtype.is_integer:
                raise ValueError(
                    "Argument `ids` must hold integers of shape (batch, activations). Received: "
                    f"{name!r} of shape {value.shape}, dtype {value.dtype.name}"
                )
            value.shape[:1].assert_is_compatible_with(present.shape)
            value = tf.cast(value, tf.int64)
            # A TPU can raise nothing: an id outside the table is padding.
            inside = (value >= 0) & (value < self._tables[name].shape[0])
            checked[name] = tf.where(inside, value, -1)
        return checked

    def _make_slots(self, table, names, initializers):
        made = {
            name: tf.Variable(
                initializer(table.shape, dtype=table.dtype), trainable=False, name=name
            )
            for name, initializer in zip(names, initializers, strict=True)
        }
        self._slots[table.name.split(":")[0]] = made
        return dict(made)  # TensorFlow adds the table to it


def _backward(read, ids, losses_of, present):
    """(B,) losses, and the gradients of their sum at the activations."""
    activations = {
        name: tf.where(ids[name][..., tf.newaxis] >= 0, values["activations"], 0.0)
        for name, values in read.items()
    }
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(activations)
        losses = losses_of(activations)
        if losses.shape != present.shape:
            raise PrivacyError(
                "Argument `losses_of` must give one loss for each example, of shape (batch,). "
                f"Received: shape {losses.shape} for examples of shape {present.shape}"
            )
        total = tf.reduce_sum(tf.where(present, losses, tf.zeros_like(losses)))
    return losses, tape.gradient(
        total, activations, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )


def _is_row(rows):
    return rows < NO_ROW


def _readable(rows):
    return tf.where(_is_row(rows), rows, 0)
