"""Tables that no variable of this process holds, behind one protocol."""


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

    def read(self, ids):
        """(*ids.shape, d) rows of the table; zeros where an id is negative."""
        raise NotImplementedError

    def to_arrays(self):
        """What is saved: dict of array name to array."""
        raise NotImplementedError

    def load(self, arrays):
        """Takes what `to_arrays` gave."""
        raise NotImplementedError


def is_external(variable):
    """Whether what stands among trained variables is an `ExternalTable`."""
    return isinstance(variable, ExternalTable)


def external_tables(layers):
    """The external tables of layers, which have them as attribute `external_table`."""
    found = [getattr(layer, "external_table", None) for layer in layers]
    return [table for table in found if table is not None]
