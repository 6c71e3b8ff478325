"""The rows of several tables as one range of integers, since they share one contribution norm."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp.runtime import ordering


@dataclasses.dataclass(frozen=True)
class TableActivity:
    """One sparse table in one step.

    Attributes:
        name: of the layer that holds the table.
        num_rows: V, public.
        ids: (B, T) integers, the rows that each example activates; negative entries are padding.
        relative_norms: function that returns (B, T) float64, the norm of each of these rows in the
            example's gradient divided by the clip norm. If an example repeats an id, all positions
            but the first are 0. None if rows are selected by ids alone.
    """

    name: str
    num_rows: int
    ids: tf.Tensor
    relative_norms: Callable[[], tf.Tensor] | None = None


def offsets(tables):
    """First row of each table in the common range, then the total."""
    starts = [0]
    for table in tables:
        starts.append(starts[-1] + table.num_rows)
    return starts


def joint_rows(tables):
    """(B, ΣT) int64: the activated rows of all tables in the common range."""
    parts = []
    for table, start in zip(tables, offsets(tables)[:-1], strict=True):
        ids = tf.cast(table.ids, tf.int64)
        # Padding stays negative. A `tf.where` with one number for all takes ten times as long.
        parts.append(ids + start * tf.cast(ids >= 0, tf.int64) if start else ids)
    return tf.concat(parts, axis=1)


def are_distinct(tables):
    """Whether `joint_rows` cannot have a row twice for one example, whatever the ids are.

    Tables have ranges of their own, so that this is so if each is looked up once.
    """
    return all(table.ids.shape[1] == 1 for table in tables)


def split_padded_rows(rows, tables):
    """As `split_rows`, of a fixed size: `NO_ROW` (the largest int64) fills each table's tensor.

    No table's tensor is longer than the table.
    """
    size = rows.shape[0]
    starts = offsets(tables)
    bounds = tf.unstack(ordering.search(rows, tf.constant(starts, tf.int64)))
    # A slice never ends past the last row then.
    rows = tf.concat([rows, tf.fill([size], tf.int64.max)], 0)
    split = []
    for table, start, low, high in zip(tables, starts[:-1], bounds[:-1], bounds[1:], strict=True):
        own = ordering.part(rows, low, min(size, table.num_rows))
        there = tf.range(own.shape[0], dtype=tf.int64) < high - low
        split.append(tf.where(there, own - start, tf.int64.max))
    return split


def split_rows(rows, tables):
    """Sorted rows of the common range, as one sorted int64 tensor of ids for each table."""
    if len(tables) == 1:
        return [rows]
    starts = offsets(tables)
    bounds = tf.unstack(tf.searchsorted(rows, tf.constant(starts, tf.int64)))
    return [
        rows[low:high] - start
        for low, high, start in zip(bounds[:-1], bounds[1:], starts[:-1], strict=True)
    ]
