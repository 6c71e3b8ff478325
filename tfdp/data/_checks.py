"""Validators shared by the functions of `tfdp.data`."""

import math
import numbers


def check_positive_integer(name, value):
    """Raises unless `value` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(
            f"Argument `{name}` must be an integer of at least 1. Received: {name}={value!r}"
        )


def check_expected_batch_size(value, num_examples):
    """Raises unless `value` is a number in (0, num_examples]."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value <= num_examples:
        raise ValueError(
            "Argument `expected_batch_size` must be a positive number, at most the number of "
            f"examples ({num_examples}): it divided by that number is the probability of drawing "
            f"a record. Received: expected_batch_size={value!r}"
        )


def check_capacity(max_batch_size, expected_batch_size):
    """The number of rows of every batch, checked."""
    check_positive_integer("max_batch_size", max_batch_size)
    if max_batch_size < expected_batch_size:
        raise ValueError(
            "Argument `max_batch_size` must be at least `expected_batch_size` "
            f"({expected_batch_size}), or about every second draw would be cut; leave it out for "
            f"a size that draws do not exceed. Received: max_batch_size={max_batch_size}"
        )


def steps_of_epoch(steps_per_epoch, num_examples, expected_batch_size):
    """Batches in one pass: as given, checked, or n/B rounded and at least 1."""
    if steps_per_epoch is None:
        return max(1, math.floor(num_examples / expected_batch_size + 0.5))
    check_positive_integer("steps_per_epoch", steps_per_epoch)
    return steps_per_epoch
