"""What a tensor of a traced step may hold of the examples of its batch.

`PUBLIC`: nothing. `Rows`: each example has a part of one axis. `One`: all of it is of one example,
as in the body of a loop over examples. `Joined`: several examples, or an unknown share of them.
"""

import dataclasses

import tensorflow as tf


class _Public:
    def __repr__(self):
        return "PUBLIC"


PUBLIC = _Public()


@dataclasses.dataclass(frozen=True)
class Rows:
    """Place i of an axis holds of example (i // inner) mod B alone.

    The axes of a list of tensors are those of the tensors stacked.
    """

    axis: int
    inner: int = 1


@dataclasses.dataclass(frozen=True)
class One:
    """All of the tensor is of the example that an index tensor names."""

    index: tuple  # (number of a `Body`, name) of the index


@dataclasses.dataclass(frozen=True)
class Joined:
    """The tensor holds of several examples, or it is not known of which.

    Attributes:
        op: the operation that joined them.
        what: what it did, for messages.
        known: False if the operation has no rule and no search could tell.
        met: the operation that brought the tensor back to single examples; None if none did.
    """

    op: tf.Operation
    what: str
    known: bool = True
    met: tf.Operation | None = None


#: Operations that leave the order of numbers as it is.
RESHAPES = ("Reshape", "Squeeze", "ExpandDims", "EnsureShape")
TAKES = "selects or reorders examples"
#: What a public tensor does that differs from place to place.
PLACES = "makes the examples depend on their positions in the batch"


def is_of_examples(value):
    """Whether a value is `Rows` or `One`."""
    return isinstance(value, (Rows, One))


def met_by(value, op):
    """A `Joined` value after it met what belongs to single examples."""
    return value if value.met is not None else dataclasses.replace(value, met=op)


def axis_after_reshape(before, after, rows, batch_size):
    """The `Rows` of a tensor that was reshaped, or None if examples no longer have one axis.

    The order of the numbers stays: the one at place n belongs to example (n // stride) mod B before
    and after.

    Args:
        before, after: lists of sizes; at most one of each is None.
        rows: the `Rows` before.
        batch_size: B.
    """
    before, after = list(before), list(after)
    if before.count(None) > 1 or after.count(None) > 1:
        return None
    before = [_UNKNOWN if size is None else size for size in before]
    if None in after:
        rest = _product(size for size in after if size is not None)
        if rest == 0 or _product(before) % rest:
            return None
        after[after.index(None)] = _product(before) // rest
    if _product(before) != _product(after) or not _product(before):
        return None
    stride = rows.inner * _product(before[rows.axis + 1 :])
    for axis, size in enumerate(after):
        step = _product(after[axis + 1 :])
        if step <= stride < step * size:
            fits = stride % step == 0 and size % (stride // step * batch_size) == 0
            return Rows(axis, stride // step) if fits else None
    return None


# Stands for a size that depends on the data: a prime that nobody chooses.
_UNKNOWN = 1_000_003


def _product(sizes):
    total = 1
    for size in sizes:
        total *= size
    return total
