"""Tables of a company's own: clicks with categorical features, and texts with labels."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp._validate import count
from tfdp.data.datasets.clicks import ClickData, held_out_by_place
from tfdp.data.datasets.columns import read_columns
from tfdp.data.datasets.single_values import as_integers, as_text
from tfdp.data.provenance.origins import Origin

# Of the hash that splits texts; public. Texts that are chosen to be hashed alike are chosen by it.
_SPLIT_KEY, _PARTS = [0x7466_6470, 0x7465_7874], 2**53


def load_clicks(
    data: str | os.PathLike | Any,
    label: str | int,
    categories: dict[str | int, int | Sequence],
    counts: Sequence[str | int] = (),
    *,
    delimiter: str | None = None,
    test_fraction: float = 0.1,
) -> ClickData:
    """Loads a table of impressions and clicks.

    ```python
    data = tfdp.data.load_clicks(
        "impressions.csv", label="clicked",
        categories={"ad": 100_000, "site": 10_000, "device": ["phone", "desktop"]},
        counts=["price", "visits"])
    model = tfdp.models.PrivateCTR(
        data.vocabulary_sizes, num_integers=2, privacy_assumptions=data.privacy_assumptions)
    ```

    One row is one record. The mapping from values to ids must not depend on private data: values
    are hashed into buckets, or their ids are positions in a public list.

    Args:
        data: path of a file, a DataFrame or a dict of columns, as for `load_sequences`, in
            chronological order.
        label: the column of 0 and 1.
        categories: dict of column to the number of hash buckets, or to the list of its values.
            Passing a list declares it public: ids are positions in it, from 1; 0 is for other
            values.
        counts: columns of numbers; missing values become 0.
        delimiter: as for `load_sequences`.
        test_fraction: share of the rows that are held out, in [0, 1); they are the last ones. The
            statement lists as assumed that it is public which rows these are. To split at a public
            time, load each part with 0.

    Returns:
        A `tfdp.data.ClickData`; "integers" are the counts (n, number of counts), if there are any.

    Raises:
        ValueError: a column is missing or has wrong values; the message shows no values.
    """
    if not isinstance(categories, dict) or not categories:
        raise ValueError(
            "Argument `categories` must be a dict from column to a number of hash buckets or to "
            f"the public list of its values. Received: categories={categories!r}"
        )
    _check_fraction(test_fraction)
    (clicked, *columns), origin = read_columns(data, [label, *categories, *counts], delimiter)
    origin = Origin.all_of([origin, Origin.of(categories), held_out_by_place(test_fraction)])
    clicked = as_integers(clicked)
    if clicked is None or not np.isin(clicked, (0, 1)).all():
        raise ValueError(
            f"Column {label!r} must hold 0 or 1 in every row. Convert its labels, and remove rows "
            "without one. Received: other values, which this message does not show because they "
            "are private"
        )
    x, sizes, lists = {}, {}, []
    for (name, known), column in zip(categories.items(), columns, strict=False):
        x[str(name)], sizes[str(name)] = _ids(str(name), known, as_text(column))
        if not isinstance(known, int | np.integer):
            lists.append(str(name))
    if counts:
        values = [_numbers(c, n) for c, n in zip(columns[len(categories) :], counts, strict=True)]
        x["integers"] = np.stack(values, axis=1)
    y = origin.on(clicked.astype(np.float32)[:, np.newaxis])
    x = {name: origin.on(values) for name, values in x.items()}
    kept = len(y) - round(test_fraction * len(y))
    assumed = (f"the lists of values of {', '.join(lists)} are public",) if lists else ()
    return ClickData(
        train=({k: v[:kept] for k, v in x.items()}, y[:kept]),
        test=({k: v[kept:] for k, v in x.items()}, y[kept:]),
        vocabulary_sizes=sizes,
        privacy_assumptions=assumed,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TextData:
    """Texts and their classes. One text is one record.

    Attributes:
        train: pair (texts (n,) of str objects, labels (n,) int32).
        test: the same, held out.
        classes: names of the labels 0, 1, …. Public.
    """

    train: tuple = dataclasses.field(repr=False)
    test: tuple = dataclasses.field(repr=False)
    classes: tuple

    @property
    def num_examples(self) -> int:
        """Number of training texts n, public."""
        return len(self.train[1])


def load_texts(
    data: str | os.PathLike | Any,
    text: str | int,
    label: str | int,
    classes: Sequence,
    *,
    delimiter: str | None = None,
    test_fraction: float = 0.1,
) -> TextData:
    """Loads a table of texts and labels.

    ```python
    data = tfdp.data.load_texts(
        "reviews.csv", text="review", label="vote", classes=["down", "up"])
    model.fit(*data.train)
    model.evaluate(*data.test)
    ```

    Args:
        data: path of a file, a DataFrame or a dict of columns, as for `load_sequences`.
        text, label: the columns.
        classes: names of the labels; public.
        delimiter: as for `load_sequences`.
        test_fraction: probability that a row is held out, in [0, 1). A keyed hash of its text alone
            decides. The result is the same every time, equal texts are on the same side, and adding
            or removing a row moves no other row.

    Returns:
        A `TextData`.

    Raises:
        ValueError: a column is missing, or a label is not among the classes; the message shows no
            labels of the data.
    """
    _check_fraction(test_fraction)
    columns, origin = read_columns(data, [text, label], delimiter)
    origin = Origin.all_of([origin, Origin.of(classes)])
    classes = tuple(map(str, classes))
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise ValueError(
            f"Argument `classes` must name two classes or more, each once. Received: {classes}"
        )
    texts, names = map(as_text, columns)
    places = {name: i for i, name in enumerate(classes)}
    labels = np.array([places.get(name, -1) for name in names], np.int32)
    if (labels < 0).any():
        raise ValueError(
            f"Argument `classes` must name every label of column {label!r}. Received: {classes}, "
            f"which lacks the labels of {np.count_nonzero(labels < 0)} rows"
        )
    texts = texts.astype(object)
    # By no order or number of rows: without one of them, others would change sides.
    hashed = tf.strings.to_hash_bucket_strong(texts, _PARTS, key=_SPLIT_KEY).numpy()
    held_out = hashed < test_fraction * _PARTS
    texts, labels = origin.on(texts), origin.on(labels)
    return TextData(
        train=(texts[~held_out], labels[~held_out]),
        test=(texts[held_out], labels[held_out]),
        classes=classes,
    )


def _check_fraction(test_fraction):
    if not 0 <= test_fraction < 1:
        raise ValueError(
            f"Argument `test_fraction` must lie in [0, 1). Received: test_fraction={test_fraction}"
        )


def _ids(name, known, values):
    """(ids (n,) int64, size of the vocabulary)."""
    if isinstance(known, int | np.integer) and not isinstance(known, bool):
        buckets = count(f"categories[{name!r}]", known)
        distinct, places = np.unique(values, return_inverse=True)
        hashed = tf.strings.to_hash_bucket_fast(distinct.astype(object), buckets).numpy()
        return hashed[places.reshape(-1)], buckets
    if isinstance(known, (str, bytes)) or not hasattr(known, "__len__") or not len(known):
        raise ValueError(
            f"Argument `categories` must give a number of hash buckets or a list of values. "
            f"Received, for {name!r}: {known!r}"
        )
    places = {str(value): i + 1 for i, value in enumerate(known)}
    return np.array([places.get(value, 0) for value in values], np.int64), len(known) + 1


def _numbers(column, name):
    """(n,) float32; 0 for what is missing."""
    try:
        values = [0.0 if v == "" else float(v) for v in as_text(column)]
    except ValueError:
        values = [np.nan]
    if not np.isfinite(values).all():
        raise ValueError(
            f"Column {name!r} must hold a finite number or an empty field in every row. Convert "
            "other values, or give the column to `categories`. Received: other values, which this "
            "message does not show because they are private"
        )
    return np.array(values, np.float32)
