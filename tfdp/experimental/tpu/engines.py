"""TensorFlow's three TPU embeddings behind one interface: look up, and apply gradients.

Each table is two features. "activations" has one id for each activation, combined in the model,
whose gradient is needed for each of them; the embedding itself gets zeros there. "survivors" has
the rows of the step, and their noisy sums as gradient: added up by the embedding, sums and noise
would not share a grid. The embedding adds both features up by row, over all replicas, so that each
row is updated once; a row whose sum is zero keeps its value and slots bit for bit.
"""

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import shards_of_tables
from tfdp.clipping.sums.surviving_rows import place_among
from tfdp.experimental.tpu.optimizers import tpu_optimizer
from tfdp.optimizers.rows.row_optimizer import DistinctRows
from tfdp.selection import NO_ROW

FEATURES = ("activations", "survivors")


class Engine:
    """One embedding of `tf.tpu.experimental.embedding`, with its tables.

    Args:
        tables: list of `TPUResidentTable`.
        row_optimizer: the `RowOptimizer` whose rule the embedding follows.
        shapes: dict of table name to dict of feature name to the shape of its ids on one replica,
            (b, T, 1): one id for each activation, in the last axis.
        is_compiled: whether XLA compiles the step.

    Attributes:
        name: of the TensorFlow class.
        reads_rows: whether single rows can be read outside of a training step.
    """

    reads_rows = False

    def __init__(self, tables, row_optimizer, shapes, is_compiled):
        self.tables = {table.name: table for table in tables}
        self.row_optimizer = row_optimizer
        self.shapes = shapes
        self.is_compiled = is_compiled
        optimizer = self.tpu_optimizer()
        config = tf.tpu.experimental.embedding
        made = {
            table.name: config.TableConfig(
                *table.shape,
                initializer=self._initializer(table),
                optimizer=optimizer,
                name=table.name,
            )
            for table in tables
        }
        self.features = {
            name: {
                feature: config.FeatureConfig(
                    table, output_shape=shapes[name][feature][:-1], name=f"{name}_{feature}"
                )
                for feature in FEATURES
            }
            for name, table in made.items()
        }
        self.embedding = self.make(optimizer)
        self.name = type(self.embedding).__name__

    def tpu_optimizer(self):
        """The rule, as TensorFlow's embeddings know it."""
        return tpu_optimizer(self.row_optimizer)

    def make(self, optimizer):
        """The TensorFlow object, its tables built."""
        raise NotImplementedError

    def look_up(self, features):
        """Reads the rows of a batch; called on each replica.

        Args:
            features: dict of table name to dict of feature name to (b, T, 1) rows that exist.

        Returns:
            (The same with (b, T, d) rows; what `apply` needs.)
        """
        raise NotImplementedError

    def apply(self, gradients, state, survivors):
        """Updates every row that was looked up once, with the sum of its gradients.

        Args:
            gradients: as the rows that `look_up` gave.
            state: as `look_up` gave it.
            survivors: dict of table name to (capacity,) distinct rows, the only ones with a
                gradient, filled up with `NO_ROW`; the same on all replicas.
        """
        raise NotImplementedError

    def arrays(self, name):
        """Dict of "0" to the table (V, d), and of slot names to slots, as numpy arrays."""
        raise NotImplementedError

    def assign(self, name, arrays):
        """Sets what `arrays` gave, where tables can be set.

        Raises:
            RuntimeError: where they cannot.
        """
        raise RuntimeError(
            f"Table {name!r} is in the TPU's embedding engine, which takes values when it is made. "
            "Load the weights before the first `fit`."
        )

    def shard_rows(self, shard, shape):
        """The rows of a table of this (padded) shape that one shard of it holds."""
        return np.arange(shard.offset[0], shard.offset[0] + shard.shape[0])

    def _initializer(self, table):
        """As TensorFlow calls it: for the whole table, or for one shard after another."""

        def values(shape, dtype=tf.float32, shard_info=None):
            rows = np.arange(shape[0])
            if shard_info is not None:
                rows = self.shard_rows(shard_info, shape)
            if "0" not in table.loaded:
                initializer = _for_shard(table.initializer, int(rows[0]))
                return initializer((len(rows), *shape[1:]), dtype)
            padded = np.zeros(shape, "float32")
            padded[tuple(slice(size) for size in table.shape)] = table.loaded["0"]
            return tf.cast(padded[rows], dtype)

        return values

    def _shaped(self, rows):
        return {
            name: {
                feature: tf.reshape(rows[name][feature], (*self.shapes[name][feature][:-1], width))
                for feature in FEATURES
            }
            for name, width in ((n, t.shape[1]) for n, t in self.tables.items())
        }


class V0(Engine):
    """`TPUEmbeddingV0`: hardware without embedding support. Tables are variables on each replica.

    It has no `apply_gradients`. The gradients go through its look-up to the tables, as TensorFlow
    documents it, and the row optimizer makes the update. For one replica: tables that each
    replica has a copy of are ordinary ones.
    """

    reads_rows = True

    def tpu_optimizer(self):
        self.slots = {name: {} for name in self.tables}
        return tpu_optimizer(self.row_optimizer, self._make_slots)

    def make(self, optimizer):
        embedding = tf.tpu.experimental.embedding.TPUEmbeddingV0(self.features, optimizer)
        embedding.build()
        self.variables = {t.name: v for t, v in embedding.embedding_tables.items()}
        return embedding

    def look_up(self, features):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables.values())
            rows = self.embedding(features)
        return self._shaped(rows), (tape, rows)

    def apply(self, gradients, state, survivors):
        tape, rows = state
        handed = tf.nest.map_structure(lambda g, r: tf.reshape(g, tf.shape(r)), gradients, rows)
        found = tape.gradient(rows, self.variables, output_gradients=handed)
        for name, gradient in found.items():
            sums, rows = _sum_by_row(gradient, survivors[name]), survivors[name]
            if not self.is_compiled:  # XLA leaves writes to rows beyond a table out
                sums, rows = (tf.boolean_mask(t, survivors[name] < NO_ROW) for t in (sums, rows))
            self.row_optimizer.update_with_slots(
                DistinctRows(sums, rows), self.variables[name],
                list(self.slots[name].values()), self.row_optimizer.learning_rate,
            )  # fmt: skip

    def arrays(self, name):
        slots = {slot: v.numpy() for slot, v in self.slots[name].items()}
        return {"0": self.variables[name].numpy(), **slots}

    def assign(self, name, arrays):
        self.variables[name].assign(arrays["0"])
        for slot, variable in self.slots[name].items():
            if slot in arrays:
                variable.assign(arrays[slot])

    def _make_slots(self, table, names, initializers):
        loaded = self.tables[table.name.split(":")[0]].loaded
        made = {
            name: tf.Variable(
                loaded.get(name, initializer(table.shape, dtype=table.dtype)),
                trainable=False,
                name=name,
            )
            for name, initializer in zip(names, initializers, strict=True)
        }
        self.slots[table.name.split(":")[0]] = made
        return dict(made)  # TensorFlow adds the table to it


class V1(Engine):
    """`TPUEmbedding`: the embedding engine of TPU v2 to v4. It updates its tables itself."""

    def make(self, optimizer):
        # No pipelining: it would apply gradients to rows of the step before.
        embedding = tf.tpu.experimental.embedding.TPUEmbedding(self.features, optimizer)
        embedding.build()
        return embedding

    def look_up(self, features):
        # The engine insists on inputs of the step as they are, ids of shape (b, T, 1).
        self.embedding.enqueue(features, training=True)
        return self._shaped(self.embedding.dequeue()), None

    def apply(self, gradients, state, survivors):
        self.embedding.apply_gradients(gradients)

    def arrays(self, name):
        shards = shards_of_tables(self.embedding)[name]
        values = np.concatenate([s.numpy() for s in shards])
        return {"0": values[: self.tables[name].shape[0]]}


class V2(Engine):
    """`TPUEmbeddingV2`: the SparseCore of TPU v5p and later. It updates its tables itself."""

    def make(self, optimizer):
        embedding = tf.tpu.experimental.embedding
        per_chip = _sparse_cores()
        for name, features in self.shapes.items():
            for feature, shape in features.items():
                if np.prod(shape) % per_chip:
                    # TensorFlow would leave the last of the gradients out.
                    raise ValueError(
                        f"Table {name!r} has {np.prod(shape)} {feature} on each replica, which "
                        f"{per_chip} SparseCores cannot share evenly. Use a `max_batch_size` that "
                        f"is a multiple of {per_chip} times the number of replicas."
                    )
        most = {name: _count(shapes) // per_chip for name, shapes in self.shapes.items()}
        made = embedding.TPUEmbeddingV2(
            self.features,
            optimizer,
            sparse_core_embedding_config=embedding.SparseCoreEmbeddingConfig(
                disable_table_stacking=True,
                # Ids stay: a survivor whose noise is dropped would be trained without noise. So
                # there is room for the worst case, all ids in one part of the table.
                allow_id_dropping=False,
                max_ids_per_table=most,
                max_unique_ids_per_table=most,
            ),
        )
        made.build()
        return made

    def look_up(self, features):
        rows, preserved = self.embedding(features)
        return self._shaped(rows), preserved

    def apply(self, gradients, state, survivors):
        self.embedding.apply_gradients(gradients, preserved_outputs=state)

    def arrays(self, name):
        num_rows, width = self.tables[name].shape
        found = self.embedding.embedding_tables[name]
        shards = [part for v in found.values for part in np.split(v.numpy(), _sparse_cores())]
        return {"0": np.stack(shards, 1).reshape(-1, shards[0].shape[1])[:num_rows, :width]}

    def shard_rows(self, shard, shape):
        # A device's shard is that of one SparseCore after another; row r is on core r % cores.
        per_chip, (length, _) = _sparse_cores(), shard.shape
        cores = shape[0] // length * per_chip
        first = shard.offset[0] // length * per_chip
        return np.concatenate([np.arange(first + i, shape[0], cores) for i in range(per_chip)])


def engine_for(feature):
    """The `Engine` class for a kind of hardware.

    Args:
        feature: from `tfdp.experimental.tpu.resident_table.embedding_feature`.

    Raises:
        NotImplementedError: for a kind that TensorFlow did not have when this was written.
    """
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    known = {kinds.UNSUPPORTED: V0, kinds.V1: V1, kinds.V2: V2}
    if feature not in known:
        raise NotImplementedError(
            "This TPU has an embedding engine that tfdp does not know. Leave `placement` out. "
            f"Received: embedding_feature={feature}"
        )
    return known[feature]


def _for_shard(initializer, first_row):
    """An initializer that does not repeat the values of another shard."""
    config = initializer.get_config()
    if first_row == 0 or "seed" not in config:
        return initializer
    if isinstance(config["seed"], int):
        config["seed"] += first_row
    return type(initializer).from_config(config)  # without a seed it takes a new one


def _count(shapes):
    """Number of ids of a table that one replica looks up."""
    return int(sum(np.prod(shape) for shape in shapes.values()))


def _sparse_cores():
    return tf.distribute.get_strategy().extended.tpu_hardware_feature.num_embedding_devices_per_chip


def _sum_by_row(gradient, survivors):
    """(capacity, d) sums of the gradients of the surviving rows; all others are zero anyway."""
    place = place_among(survivors, gradient.indices)
    values = tf.convert_to_tensor(gradient.values)
    values = tf.reshape(values, [-1, values.shape[-1]])
    return tf.math.unsorted_segment_sum(values, tf.reshape(place, [-1]), survivors.shape[0])
