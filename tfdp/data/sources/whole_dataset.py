"""Records of a tf.data.Dataset, read into memory: a Poisson batch may need any of them."""

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import ancestors, inputs_of, may_reorder
from tfdp.data.provenance.dataset_tags import origin_of, refuse_drawn
from tfdp.data.provenance.origins import Origin
from tfdp.data.sources.in_memory import Records

ITS_OWN = (
    "each element of the tf.data.Dataset is one record, and shares no content with other records"
)
_IN_ORDER = "the tf.data.Dataset gives its records in the order of `privacy_ids`"
_BATCHES = (
    "BatchDataset",
    "ParallelBatchDataset",
    "PaddedBatchDataset",
    "WindowDataset",
    "GroupByWindowDataset",
)

# Datasets whose elements come in an order that chance, or another dataset, decides.
_RANDOM = ("Shuffle", "DirectedInterleave", "RandomDataset")


def records_of_dataset(dataset, in_order=False):
    """The elements of a finite dataset of (x, y) or (x, y, sample_weight), as `Records`.

    Args:
        dataset: `tf.data.Dataset` of single records, all of the same shapes, without a batch axis.
        in_order: whether it matters at which place a record comes.

    Raises:
        ValueError: for batches, a dataset that repeats or has no end, or shapes that vary; or one
            in a random order, if that matters.
    """
    spec = check_records(dataset)
    if in_order:
        _refuse_random_order(dataset)
    leaves = tf.nest.flatten(spec)
    columns = [[] for _ in leaves]
    for element in dataset.as_numpy_iterator():
        for column, value in zip(columns, tf.nest.flatten(element), strict=True):
            column.append(value)
    if not columns[0]:
        raise ValueError("Argument `data` must hold at least one record. Received: none")
    # Byte strings stay objects: numpy's own would lose trailing zeros.
    arrays = [
        np.array(column, object if s.dtype == tf.string else s.dtype.as_numpy_dtype)
        for column, s in zip(columns, leaves, strict=True)
    ]
    records = Records(tf.nest.pack_sequence_as(spec, arrays))
    order = (_IN_ORDER,) if in_order else ()
    made_by = Origin(assumptions=(ITS_OWN, *order))
    records.origin = Origin.all_of([origin_of(dataset), made_by])
    return records


def check_records(dataset):
    """The spec of a dataset of single records, (x, y) or (x, y, sample_weight).

    Raises:
        ValueError: for batches, a dataset that repeats, has no end or was drawn before, or shapes
            that vary.
    """
    refuse_drawn("data", dataset, "Give the records themselves, or these batches to `fit`.")
    _refuse_batches_and_repetitions(dataset)
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise ValueError(
            "Argument `data` must be a dataset of (x, y) or (x, y, sample_weight). A model without "
            f"targets still needs a `y`: `map` to (x, 0). Received: elements of spec {spec}"
        )
    leaves = tf.nest.flatten(spec)
    if not all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in leaves):
        raise ValueError(
            "Argument `data` must be a dataset of single records of one known shape. Call "
            "`unbatch()` on batches, and pad to a length that does not come from the data. "
            f"Received: elements of spec {spec}"
        )
    return spec


def _refuse_batches_and_repetitions(dataset):
    endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    pending, unbatched = [(dataset, False)], False
    while pending:
        made, unbatched = pending.pop()
        name = type(made).__name__.lstrip("_")
        if endless or name == "RepeatDataset":
            raise ValueError(
                "Argument `data` must be a dataset that returns each record once. Remove "
                "`repeat`: copies of a record would count as several records, and ε would hold "
                f"for one copy only. Received: {dataset}"
            )
        if name in _BATCHES and not unbatched:
            raise ValueError(
                "Argument `data` must be a dataset of single records: a batch would count as one "
                f"record. Remove `batch`, or call `unbatch()`. Received: {dataset}"
            )
        unbatched = (unbatched or name == "UnbatchDataset") and name not in _BATCHES
        pending += [(one, unbatched) for one in inputs_of(made)]


def _refuse_random_order(dataset):
    """Else an id would name another person than the one whose record it is."""
    free = dataset.options().deterministic is False
    for made in ancestors(dataset):
        name = type(made).__name__
        if free or may_reorder(made) or any(kind in name for kind in _RANDOM):
            raise ValueError(
                "Argument `data` must return its records in the order of `privacy_ids`; "
                "otherwise they would be taken for other persons' records. Remove `shuffle`, "
                "`choose_from_datasets`, `sample_from_datasets` and `deterministic=False`; the "
                f"sampler draws at random anyway. Received: {dataset}, made by a {name}"
            )
