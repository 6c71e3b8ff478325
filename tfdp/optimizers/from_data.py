"""What a DPOptimizer was not told, taken from the data of the first `fit`."""

from tfdp._validate import is_number
from tfdp.accounting.budget import check_delta
from tfdp.errors import PrivacyError
from tfdp.optimizers import arguments

_OF_BATCHES = ("num_examples", "expected_batch_size")
# The unit of privacy comes from the data, too, where their number does.
_OF_UNITS = ("max_records_per_unit", "num_records", "period")
_DATA = (*_OF_BATCHES, *_OF_UNITS)


def steps_of(sampling, epochs, steps_per_epoch=None):
    """Steps of all epochs of a `fit`, or None where nobody knows.

    Args:
        sampling: the `Sampling` of its batches.
        epochs: those before its `initial_epoch` included; None if unknown.
        steps_per_epoch: as given to `fit`; without it, that of the batches.
    """
    steps = steps_per_epoch or sampling.steps_per_epoch
    return int(steps * epochs) if is_number(steps) and is_number(epochs) else None


class FromData:
    """Which settings of an optimizer come from the data, and whether they are known yet.

    Each is taken once and fixed then, as those that were given; only `steps` may be taken again
    as long as no step has run, since a `fit` may be refused before its first one.

    Args:
        optimizer: the `DPOptimizer`, with None for what it was not told.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        names = [name for name in _OF_BATCHES if getattr(optimizer, name) is None]
        names += _OF_UNITS if optimizer.num_examples is None else ()
        self._names = [name for name in names if getattr(optimizer, name) is None]
        self.takes_steps = optimizer.budget is not None and optimizer.steps is None

    @property
    def names(self):
        """Those of n, B, k and the period that are still to come from the data."""
        return tuple(self._names)

    @property
    def is_complete(self):
        """Whether everything is known that noise and ε depend on."""
        optimizer = self._optimizer
        known = all(getattr(optimizer, name) is not None for name in _OF_BATCHES)
        return known and (optimizer.budget is None or optimizer.steps is not None)

    def require(self):
        """Refuses what cannot be said before the data are known.

        Raises:
            PrivacyError: if they are not.
        """
        if not self.is_complete:
            missing = [
                name for name in (*_OF_BATCHES, "steps") if getattr(self._optimizer, name) is None
            ]
            if self._optimizer.budget is None:
                missing.remove("steps")
            raise PrivacyError(
                f"This DPOptimizer was made without {', '.join(missing)} and reads them from the "
                "data and the epochs of the first `fit`. Until then it has neither noise nor ε. "
                "Call `fit` on batches from tfdp.data, or give the DPOptimizer these arguments."
            )

    def take(self, sampling, epochs, steps_per_epoch=None):
        """Takes what is missing.

        Args:
            sampling: the `Sampling` of the batches of this `fit`.
            epochs, steps_per_epoch: as for `steps_of`.

        Raises:
            ValueError: for a δ above 1/n, or what `arguments` refuses.
            PrivacyError: if the number of steps is missing and not known.
        """
        optimizer = self._optimizer
        taken = {name: getattr(sampling, name) for name in self._names}
        for name in taken.keys() & set(_OF_BATCHES):
            taken[name] = arguments.plain_number(taken[name])  # numpy's are lost in JSON
        if self.takes_steps and optimizer.charging.remaining in (None, optimizer.steps):
            taken["steps"] = steps_of(sampling, epochs, steps_per_epoch)
            if taken["steps"] is None:
                raise PrivacyError(
                    "tfdp does not know how many steps will run on these batches, and the noise "
                    "of a budget depends on it. Give the DPOptimizer `steps=`, the total over "
                    "all passes, or give `fit` a `steps_per_epoch`."
                )
        data = {name: taken.get(name, getattr(optimizer, name)) for name in _DATA}
        arguments.check_data(**data)
        arguments.check_clipping(
            optimizer.clip_norm, optimizer.microbatch_size,
            data["max_records_per_unit"], data["num_records"],
        )  # fmt: skip
        if optimizer.budget is not None:
            check_delta(optimizer.budget.delta, data["num_examples"])
        vars(optimizer).update(taken)  # past the guard of what is fixed
        self._names = []
