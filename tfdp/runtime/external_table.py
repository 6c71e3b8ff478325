"""Tables that no variable of this process holds, behind one protocol."""

import tensorflow as tf


class ExternalTable:
    """Stands among the trained variables of a model for a table that lives elsewhere.

    A private step reads its rows, clips their gradients and noises their sums as those of any
    sparse table, and then hands them to `holder`, which has the table and updates it.

    Attributes:
        name: of the table; `path` is the same.
        shape: (V, d).
        holder: what trains it, or None before training. `holder.update(updates)` takes noisy sums
            of rows, `holder.arrays(name)` gives what is saved.
    """

    trainable = True
    regularizer = constraint = None
    dtype = "float32"

    def __init__(self, name, shape):
        self.name = self.path = name
        self.shape = tuple(shape)
        self.holder = None


class VectorTable(ExternalTable):
    """The vectors that a tower makes of public features, as the rows of a table.

    A private step clips gradients at the vectors and noises their sums; `pull_back` goes on from
    there to the weights of the tower, which reads no example any more (MATH.md section 14).

    Attributes:
        takes_all: whether every step noises all rows; else those alone that all examples share.

    Args:
        name, shape: as for `ExternalTable`.
        vectors_of: function of int64 ids (R,) to vectors (R, d).
        tower: the layer whose weights are trained.
        takes_all: see above.
    """

    def __init__(self, name, shape, vectors_of, tower, takes_all):
        super().__init__(name, shape)
        self._vectors_of, self._tower = vectors_of, tower
        self.takes_all = takes_all

    @property
    def weights(self):
        """The trainable variables of the tower."""
        return self._tower.trainable_variables

    def pull_back(self, rows, gradients):
        """The gradients of Σ_r ⟨vector of rows[r], gradients[r]⟩ by the weights of the tower.

        Args:
            rows: (R,) int64; what is no row of the table does not count.
            gradients: (R, d), noised.

        Returns:
            List of (variable, tensor or tf.IndexedSlices).
        """
        is_row = rows < self.shape[0]
        gradients = tf.where(is_row[:, tf.newaxis], gradients, 0.0)
        with tf.GradientTape() as tape:
            vectors = self._vectors_of(tf.where(is_row, rows, 0))
        found = tape.gradient(
            vectors, [v.value for v in self.weights], tf.cast(gradients, vectors.dtype)
        )
        pairs = zip(self.weights, found, strict=True)
        return [(variable, g) for variable, g in pairs if g is not None]


def vector_tables(variables):
    """Dict of place among trained variables to the `VectorTable` there."""
    return {i: v for i, v in enumerate(variables) if isinstance(v, VectorTable)}


def is_external(variable):
    """Whether what stands among trained variables is an `ExternalTable`."""
    return isinstance(variable, ExternalTable)


def handles_of(variable):
    """The resource handles of a Keras variable, one for each replica; none of an external table."""
    if is_external(variable):
        return []
    value = variable.value
    return [part.handle for part in getattr(value, "values", (value,)) if hasattr(part, "handle")]


def external_tables(layers):
    """The external tables of layers, which have them as attribute `external_table`."""
    found = [getattr(layer, "external_table", None) for layer in layers]
    return [table for table in found if table is not None]
