"""Embedding tables of which a batch reads a few rows, and nothing ever reads them all."""

import dataclasses

import keras
import tensorflow as tf

from tfdp._validate import count, one_of
from tfdp.clipping import Rule, register_rule
from tfdp.clipping.rules import combiners
from tfdp.clipping.sums.surviving_rows import mark_sparse_table
from tfdp.experimental.tpu import resident_table
from tfdp.runtime.strategies import traces_once

COMBINERS = (None, "sum", "mean", "sqrtn")
PLACEMENTS = (None, "tpu")
_DENSE = ("embeddings_regularizer", "embeddings_constraint", "activity_regularizer")


@keras.saving.register_keras_serializable(package="tfdp")
class SparseEmbedding(keras.layers.Layer):
    """Looks up rows of a table, and combines those of a multi-valued feature.

    Use it for tables that are too large for dense noise: a `DPOptimizer` with `selection=` selects
    rows of the table. Features that share a table call one layer several times.

    Args:
        input_dim: number of rows V; ids are integers in [0, V).
        output_dim: width d of a row.
        combiner: how to combine the values of one example, the last axis of the ids. `None` keeps
            them apart. With w the weights (1 if none are given), "sum" gives Σ w·E, "mean" Σ w·E /
            Σ w, and "sqrtn" Σ w·E / √(Σ w²). An example without values gets zeros.
        mask_zero: whether id 0 is padding: it looks up zeros, trains no row, and is not part of a
            mean. Without a combiner it is masked for later layers.
        embeddings_initializer: initializer of the table.
        placement: "tpu" puts the table into TensorFlow's TPU embedding if the layer is built under
            a `TPUStrategy`: `TPUEmbedding`, `TPUEmbeddingV0` or `TPUEmbeddingV2`, by hardware. The
            model then trains on batches of `tfdp.distribution.select_on_host`. Elsewhere, to
            evaluate or to serve, the table is an ordinary one, as with `None`.

    Call arguments:
        ids: integers of any width, (B,), (B, T) or with more axes; or with a combiner a
            tf.RaggedTensor of shape (B, None).
        weights: optional, one for each id, ragged where the ids are.

    Returns:
        (*ids.shape, d), or without the ids' last axis if there is a combiner. (B,) ids are
        single-valued: (B, d) in any case.

    Raises:
        ValueError: for arguments out of range, and for regularizers and constraints, whose updates
            would change all V rows.
        tf.errors.InvalidArgumentError: at the step, for an id outside [0, V). XLA and accelerators
        cannot raise errors: there such an id is treated as padding.

    Example:

    ```python
    words = keras.Input((None,), dtype="int64")
    x = tfdp.layers.SparseEmbedding(1_000_000, 16, combiner="mean", mask_zero=True)(words)
    ```
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        combiner: str | None = None,
        mask_zero: bool = False,
        embeddings_initializer: str | keras.Initializer = "uniform",
        placement: str | None = None,
        **kwargs,
    ):
        one_of("combiner", combiner, COMBINERS)
        one_of("placement", placement, PLACEMENTS)
        for name in _DENSE:
            if kwargs.pop(name, None) is not None:
                raise ValueError(
                    f"Argument `{name}` would update all {input_dim} rows at every step. Leave it "
                    "out; the row optimizers have a lazy `weight_decay` instead. Received a "
                    f"value for {name}"
                )
        super().__init__(**kwargs)
        self.input_dim = count("input_dim", input_dim)
        self.output_dim = count("output_dim", output_dim)
        self.combiner = combiner
        self.mask_zero = mask_zero
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.placement = placement
        self.external_table = None
        self.supports_masking = True
        # The number of rows that a step touches is not known when it is compiled.
        self.supports_jit = False

    def build(self, ids_shape, weights_shape=None):
        if self.placement == "tpu" and resident_table.has_engine():
            self.embeddings = self.external_table = resident_table.TPUResidentTable(
                self.name, (self.input_dim, self.output_dim), self.embeddings_initializer
            )
            return
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            # An autocast would copy the table; the rows are cast instead.
            autocast=False,
        )
        mark_sparse_table(self.embeddings, self.name)

    def call(self, ids, weights=None):
        self._check(ids)
        ids, weights = self.dense(ids, weights)
        coefficients = self.coefficients(ids, weights)
        values = tf.cast(self._look_up(ids), self.compute_dtype)
        values *= tf.cast(coefficients, self.compute_dtype)[..., tf.newaxis]
        return tf.reduce_sum(values, axis=-2) if self.combines(ids) else values

    def combines(self, ids):
        """Whether the last axis of these ids is summed over."""
        return self.combiner is not None and len(ids.shape) > 1

    def is_value(self, ids):
        """Whether each id names a row, rather than padding."""
        inside = (ids >= 0) & (ids < self.input_dim)
        return inside & (ids != 0) if self.mask_zero else inside

    def coefficients(self, ids, weights=None):
        """float32 factor of each looked-up row in the output; 0 for padding.

        Args:
            ids: integers.
            weights: None or a tensor of the same shape.
        """
        w = tf.cast(self.is_value(ids), tf.float32)
        if weights is not None:
            # Selected, not multiplied: a weight of NaN at a padded place must not count.
            w = tf.where(self.is_value(ids), tf.cast(weights, tf.float32), 0.0)
        return combiners.coefficients(w, self.combiner if self.combines(ids) else None)

    def _look_up(self, ids):
        if self.external_table is not None:
            return self.external_table.read(self.rows_read(ids))
        return tf.gather(self.embeddings.value, tf.maximum(self.rows_read(ids), 0))

    def rows_read(self, ids):
        """int64 ids, with −1 for padding."""
        return tf.where(self.is_value(ids), tf.cast(ids, tf.int64), tf.constant(-1, tf.int64))

    def dense(self, ids, weights=None):
        """(int64 ids, weights) as dense tensors; what a ragged row lacks is padding."""
        if isinstance(ids, tf.RaggedTensor):
            ids = tf.cast(ids, tf.int64).to_tensor(-1)
            if isinstance(weights, tf.RaggedTensor):
                weights = weights.to_tensor(0.0)
        return tf.cast(ids, tf.int64), weights

    def _check(self, ids):
        ragged = isinstance(ids, tf.RaggedTensor)
        if isinstance(ids, tf.SparseTensor) or (
            ragged and (self.combiner is None or ids.shape.rank != 2)
        ):
            raise ValueError(
                f"Layer {self.name!r} takes dense ids, or, with a combiner, ragged ids of shape "
                "(B, None). Pad them to a length that does not come from the data, "
                "`ragged.to_tensor(0, shape=(None, length))`, and set `mask_zero=True`. "
                f"Received: ids of type {type(ids).__name__}, shape {ids.shape}, "
                f"combiner={self.combiner!r}"
            )
        ids = ids.flat_values if ragged else tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise ValueError(
                f"Layer {self.name!r} takes integer ids. Give its input a dtype, for example "
                f"keras.Input(..., dtype='int64'). Received: ids of dtype {ids.dtype.name}"
            )
        if traces_once(tf.distribute.get_strategy()):
            return  # a TPU has no strings, and can raise nothing
        ids = tf.cast(ids, tf.int64)
        # The operation itself: `tf.debugging.Assert` puts it into a branch of a conditional, and
        # this check would take four times as long to trace.
        tf.raw_ops.Assert(
            condition=tf.reduce_all((ids >= 0) & (ids < self.input_dim)),
            data=[
                f"Layer {self.name!r}: ids must lie in [0, {self.input_dim}). Received: from",
                tf.reduce_min(ids),
                "to",
                tf.reduce_max(ids),
            ],
        )

    def compute_mask(self, ids, previous_mask=None):
        if not self.mask_zero or self.combines(ids):
            return None
        return keras.ops.not_equal(ids, 0)

    def compute_output_shape(self, ids_shape, weights_shape=None):
        kept = ids_shape[:-1] if self.combiner is not None and len(ids_shape) > 1 else ids_shape
        return (*kept, self.output_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "placement": self.placement,
        }

    @property
    def privacy_assumptions(self):
        """Sentences for the statement about what tfdp does not do itself."""
        holder = None if self.external_table is None else self.external_table.holder
        return () if holder is None else (holder.assertion(self.name),)

    def save_own_variables(self, store):
        if self.external_table is None:
            super().save_own_variables(store)
            return
        for name, values in self.external_table.to_arrays().items():
            store[name] = values

    def load_own_variables(self, store):
        arrays = {name: store[name] for name in store.keys()}
        if self.external_table is not None:
            self.external_table.load(arrays)
            return
        # Of a table that was in a TPU embedding, the slots have been saved beside it.
        super().load_own_variables({"0": arrays["0"]} if "0" in arrays else arrays)


@register_rule(SparseEmbedding)
class SparseEmbeddingRule(Rule):
    """g_i has coefficient·s in the row of each of example i's ids, and no row for padding."""

    def accepts(self, layer, args, kwargs):
        return bool(args) and isinstance(args[0], (tf.Tensor, tf.RaggedTensor))

    def variables(self, layer, args, kwargs):
        return [layer.embeddings]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        ids, weights = layer.dense(args[0], args[1] if len(args) > 1 else kwargs.get("weights"))
        factors = layer.coefficients(ids, weights)
        return [(layer.embeddings, combiners.weighted_rows(layer.rows_read(ids), factors, s))]

    def takes_positions(self, layer, args, kwargs):
        # A combiner would take the calls for the values of one.
        return layer.combiner is None and isinstance(args[0], tf.Tensor)

    def accepts_shared(self, layer, args, kwargs):
        is_one = len(args[0].shape) == 1 or (len(args[0].shape) == 2 and layer.combiner is not None)
        return is_one and isinstance(args[0], tf.Tensor) and layer.external_table is None

    def takes_gates(self, layer, args, kwargs):
        # With weights, or several values, rows of equal ids differ.
        return len(args) == 1 and not kwargs and len(args[0].shape) == 1

    def shared_contributions(self, layer, args, kwargs, gradient):
        ids, weights = layer.dense(args[0], args[1] if len(args) > 1 else kwargs.get("weights"))
        rows = layer.rows_read(ids)
        if len(ids.shape) == 2 or weights is not None:
            factors = layer.coefficients(ids, weights)  # (N,), or (N, values)
            left = gradient.left
            if len(ids.shape) == 2:
                left = left[..., tf.newaxis]
            left = tf.reshape(left * factors, [-1, left.shape[1], ids.shape.num_elements()])
            gradient, rows = dataclasses.replace(gradient, left=left), tf.reshape(rows, [-1])
        return [(layer.embeddings, gradient.at_rows(rows))]
