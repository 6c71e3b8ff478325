"""Random allocation ("balls in bins"): each record in one step of an epoch (MATH.md section 10)."""

import attr
import dp_accounting
import numpy as np

from tfdp import _validate
from tfdp.accounting.events.registry import register_event
from tfdp.accounting.losses.allocation_losses import allocation_losses
from tfdp.accounting.losses.gaussian_losses import gaussian_losses
from tfdp.accounting.rounding import round_down


@register_event
@attr.s(frozen=True, auto_attribs=True)
class RandomAllocationGaussianDpEvent(dp_accounting.DpEvent):
    """One epoch of T Gaussian sums, of which every record joins exactly one.

    Which one is uniform, independent of the other records and of other epochs, and secret.

    Formal guarantees: an upper bound by "pld", for adding and for removing a record, adaptive
    steps included (MATH.md section 10). An epoch that ends early costs no more. "rdp" is the curve
    of one Gaussian, without amplification: true, and far from tight. Under replace_one nothing is
    known, and the accountants refuse it.

    Args:
        num_steps: T, the steps of an epoch.
        noise_multiplier: σ, the noise's standard deviation over the clip norm.
    """

    num_steps: int = attr.ib(converter=lambda value: _validate.count("num_steps", value))
    noise_multiplier: float = attr.ib(converter=lambda value: _validate.noise_multiplier(value))

    adjacencies = ("add_or_remove_one", "zero_out")

    def in_words(self):
        """The event in a statement."""
        return (
            f"epochs of {self.num_steps} steps of Gaussian noise of multiplier "
            f"{round_down(self.noise_multiplier)}, each record in one random step of an epoch"
        )

    def rdp(self, orders):
        """Rényi curve, a/(2σ²) at order a: given its step, a record is in one Gaussian."""
        return np.asarray(orders, float) / (2 * self.noise_multiplier**2)

    def pld(self, value_discretization_interval):
        """The privacy loss distribution, rounded up."""
        if self.num_steps == 1:
            return gaussian_losses(self.noise_multiplier, 1, value_discretization_interval)
        return allocation_losses(
            self.noise_multiplier, self.num_steps, value_discretization_interval
        )


def allocation_event(noise_multiplier, num_steps):
    """One epoch of private training on allocated records; as `training_event` is one step.

    Args:
        noise_multiplier: σ; 0 means no noise: the event is then not private.
        num_steps: T.
    """
    if _validate.noise_multiplier(noise_multiplier) == 0:
        return dp_accounting.NonPrivateDpEvent()
    return RandomAllocationGaussianDpEvent(num_steps, noise_multiplier)
