"""Validators shared by the functions of `tfdp.data`."""

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
