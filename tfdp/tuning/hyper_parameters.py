"""Settings drawn at random, in the words of KerasTuner."""

import math
import secrets

from tfdp import _validate
from tfdp._validate import is_integer, is_number

_DRAWS = 2**53


class HyperParameters:
    """One setting. Each value is drawn when it is first read, independently of all data.

    It has the methods of KerasTuner's `HyperParameters`, so functions written for KerasTuner work
    here, too. Draws are uniform (`sampling="log"`: uniform in the logarithm), from the operating
    system's entropy.

    Attributes:
        values: dict of the values drawn so far, by name.
    """

    def __init__(self):
        self.values = {}
        self._random = secrets.SystemRandom()

    def Choice(self, name, values):  # noqa: N802 (KerasTuner's names)
        """One of `values`, a sequence that is not empty."""
        values = list(values)
        if not values:
            raise ValueError(f"Argument `values` must hold at least one. Received: {values!r}")
        return self._once(name, lambda: self._random.choice(values))

    def Boolean(self, name):  # noqa: N802
        """False or True."""
        return self.Choice(name, [False, True])

    def Int(self, name, min_value, max_value, step=1):  # noqa: N802
        """min_value, min_value + step, … up to max_value."""
        for argument, value in (("min_value", min_value), ("max_value", max_value)):
            if not is_integer(value):
                raise ValueError(f"Argument `{argument}` must be an integer. Received: {value!r}")
        step = _validate.count("step", step)
        return self.Choice(name, range(min_value, max_value + 1, step))

    def Float(self, name, min_value, max_value, sampling="linear"):  # noqa: N802
        """Between min_value and max_value; `sampling` is "linear" or "log"."""
        _validate.one_of("sampling", sampling, ("linear", "log"))
        if not (is_number(min_value) and is_number(max_value) and min_value <= max_value):
            raise ValueError(
                "Arguments `min_value` and `max_value` must be numbers in that order. "
                f"Received: min_value={min_value!r}, max_value={max_value!r}"
            )
        if sampling == "log":
            _validate.positive("min_value", min_value)
            low, high = math.log(min_value), math.log(max_value)
        else:
            low, high = min_value, max_value

        def draw():
            value = low + (high - low) * (self._random.randrange(_DRAWS) / (_DRAWS - 1))
            return math.exp(value) if sampling == "log" else value

        return self._once(name, draw)

    def Fixed(self, name, value):  # noqa: N802
        """`value` itself."""
        return self._once(name, lambda: value)

    def get(self, name):
        """The value drawn under a name; KeyError if there is none."""
        return self.values[name]

    def _once(self, name, draw):
        if name not in self.values:
            self.values[name] = draw()
        return self.values[name]
