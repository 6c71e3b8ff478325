"""What is no random-access source of records, though it looks like one."""

from collections.abc import Mapping

_ENDLESS = 2**62  # what grain says is the length of a dataset that repeats for ever


def refuse_other_sources(name, source):
    """Refuses sources whose item `i` is not record i, or whose records come several times.

    Args:
        name: of the argument.
        source: an object with `__len__`, and `__getitem__` or `__getitems__`.

    Raises:
        ValueError: for a table of columns, one that is read by labels, one of batches, or a
            repeated dataset.
    """
    if any(cls.__name__ == "PyDataset" for cls in type(source).__mro__):
        raise ValueError(
            f"Argument `{name}` must return record i as item i, but an item of a PyDataset is a "
            "batch, which would count as one record. Pass an object that is no PyDataset, whose "
            f"`__getitem__` returns one record. Received: {name} of type {type(source).__name__}"
        )
    labelled = isinstance(source, Mapping) or hasattr(source, "iloc")  # pandas
    columns = type(source).__module__.startswith("pyarrow") and hasattr(source, "num_columns")
    if labelled or columns:
        raise ValueError(
            f"Argument `{name}` must return record i as item i, but items of a "
            f"{type(source).__name__} are named by labels or columns: tfdp could attribute a "
            "record to another person. Pass arrays of its columns as a tuple (x, y), without "
            f"`parse`, or a column as `column.to_numpy()`. Received: {name} of type "
            f"{type(source).__name__}"
        )
    pending = [source]
    while pending:
        made = pending.pop()
        if "Repeat" in type(made).__name__ or len(made) >= _ENDLESS:
            raise ValueError(
                f"Argument `{name}` must return each record once. Remove `repeat`: copies of a "
                "record would count as several records, and ε would hold for one copy only. "
                f"Received: {name} of type {type(source).__name__}, made by a "
                f"{type(made).__name__}"
            )
        pending += getattr(made, "parents", ())  # of grain's datasets
