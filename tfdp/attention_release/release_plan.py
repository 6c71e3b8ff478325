"""Everything about a release that is decided before it sees an input."""

import dataclasses
import math

import dp_accounting
import numpy as np

from tfdp._validate import is_integer, is_number
from tfdp.accounting import PrivacyBudget
from tfdp.accounting.events.wishart import WishartDpEvent
from tfdp.accounting.losses.analytic_gaussian import gaussian_noise_multiplier
from tfdp.accounting.wishart_calibration import largest_num_samples, largest_relative_sensitivity
from tfdp.attention_release.refusal import useless_message
from tfdp.attention_release.sensitivity import frobenius_sensitivity, largest_row_norm
from tfdp.attention_release.utility import gaussian_noise_error, gaussian_sampling_error
from tfdp.errors import BudgetError

MECHANISMS = ("auto", "gaussian_noise", "gaussian_sampling")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is released, and under which budget; all of it public.

    Args:
        budget: a `PrivacyBudget` for one call, shared by the heads.
        unit: "sequence", "token" or "feature".
        max_norm: alpha.
        neighbor_distance: beta, or `None`.
        symmetric: whether the logits are X X' (queries only) or Q K'.
        length: n.
        width: d, of one head.
        heads: matrices released about one input in one call.
    """

    budget: PrivacyBudget
    unit: str
    max_norm: float
    neighbor_distance: float | None
    symmetric: bool
    length: int
    width: int
    heads: int

    def form(self, mechanism):
        """The matrix that a mechanism perturbs; see `frobenius_sensitivity`."""
        if self.symmetric:
            return "gram"
        return "stacked" if mechanism == "gaussian_sampling" else "product"

    def sensitivity(self, mechanism):
        """Delta_F of that matrix."""
        return frobenius_sensitivity(
            self.unit, self.form(mechanism), self.length, self.max_norm, self.neighbor_distance
        )

    @property
    def row_norm(self):
        """Largest norm of a row after clipping."""
        return largest_row_norm(self.unit, self.max_norm, self.width)

    @property
    def logit_range(self):
        """Exact logits lie within plus or minus this."""
        return self.row_norm**2 / math.sqrt(self.width)


@dataclasses.dataclass(frozen=True)
class NoisePlan:
    """The Gaussian mechanism: noise of standard deviation noise_multiplier * sensitivity."""

    setting: Setting
    noise_multiplier: float

    mechanism = "gaussian_noise"

    @property
    def sensitivity(self):
        """Delta_F."""
        return self.setting.sensitivity(self.mechanism)

    @property
    def event(self):
        """One call, all heads."""
        return _per_call(dp_accounting.GaussianDpEvent(self.noise_multiplier), self.setting.heads)

    def error(self, failure_probability=0.01):
        """A `LogitError`."""
        return gaussian_noise_error(
            self.setting.form(self.mechanism),
            self.setting.length,
            self.setting.width,
            self.noise_multiplier * self.sensitivity,
            failure_probability,
        )


@dataclasses.dataclass(frozen=True)
class SamplingPlan:
    """The paper's mechanism: the sample covariance of num_samples draws from N(0, Sigma)."""

    setting: Setting
    ridge: float
    num_samples: int

    mechanism = "gaussian_sampling"

    @property
    def sensitivity(self):
        """Delta_F."""
        return self.setting.sensitivity(self.mechanism)

    @property
    def relative_sensitivity(self):
        """M = Delta_F / ridge."""
        return self.sensitivity / self.ridge

    @property
    def event(self):
        """One call, all heads."""
        return _per_call(
            WishartDpEvent(self.num_samples, self.relative_sensitivity), self.setting.heads
        )

    def error(self, failure_probability=0.01):
        """A `LogitError`."""
        return gaussian_sampling_error(
            self.setting.form(self.mechanism),
            self.setting.length,
            self.setting.width,
            self.setting.row_norm,
            self.ridge,
            self.num_samples,
            failure_probability,
        )


def plan_noise(setting):
    """The Gaussian mechanism with the least noise that the budget allows."""
    return NoisePlan(setting, gaussian_noise_multiplier(setting.budget, setting.heads))


def plan_sampling(setting, ridge=None, num_samples=None):
    """The paper's mechanism with the most samples and the smallest ridge that the budget allows.

    A larger ridge admits more samples, k growing as its square, and the error falls towards a
    limit that no ridge passes. With neither given, the ridge is the smallest whose error is
    within 5% of that limit.

    Args:
        setting: a `Setting`.
        ridge: eta, or `None` for the smallest.
        num_samples: k, or `None` for the largest.

    Raises:
        BudgetError: if the budget does not cover what was asked for; it says what must change.
        ValueError: if the ridge does not exceed the sensitivity.
    """
    budget, heads = setting.budget, setting.heads
    sensitivity = setting.sensitivity("gaussian_sampling")
    if ridge is None and num_samples is None:
        ridge = _smallest_good_ridge(setting, sensitivity)
    elif ridge is None:
        ridge = sensitivity / largest_relative_sensitivity(num_samples, budget, heads)
    if ridge <= sensitivity:
        raise ValueError(
            f"Argument `ridge` must exceed the sensitivity {sensitivity:.6g} "
            f"({setting.length} rows, max_norm={setting.max_norm}, unit={setting.unit!r}): raise "
            f"it, or lower the length or max_norm. Received: ridge={ridge}"
        )
    most = largest_num_samples(sensitivity / ridge, budget, heads)
    if num_samples is None:
        num_samples = most
    elif num_samples > most:
        needed = sensitivity / largest_relative_sensitivity(num_samples, budget, heads)
        raise BudgetError(
            f"Argument `num_samples` must be at most {most} for ridge={ridge:.6g}, or `ridge` at "
            f"least {needed:.6g}, to meet epsilon={budget.epsilon:.6g}, delta={budget.delta:.3g} "
            f"over {heads} head(s). Received: num_samples={num_samples}, ridge={ridge}"
        )
    return SamplingPlan(setting, float(ridge), num_samples)


def plan_release(setting, mechanism="auto", ridge=None, num_samples=None):
    """Chooses and calibrates a mechanism, and refuses a release that cannot be useful.

    Args:
        setting: a `Setting`.
        mechanism: "gaussian_noise", "gaussian_sampling", or "auto" for the smaller `error().std`.
        ridge: for "gaussian_sampling" only.
        num_samples: for "gaussian_sampling" only.

    Returns:
        A `NoisePlan` or a `SamplingPlan`.

    Raises:
        BudgetError: as for `plan_sampling`.
        ValueError: if the error would exceed every logit; it says how large, and what must change.
    """
    if mechanism == "gaussian_sampling":
        plan = plan_sampling(setting, ridge, num_samples)
    else:
        plan = plan_noise(setting)
        if mechanism == "auto":
            plan = _better(plan, setting)
    if setting.length > 1 and plan.error().std > setting.logit_range:
        raise ValueError(useless_message(plan))
    return plan


def check_mechanism(mechanism, ridge, num_samples):
    """Validates the choice of a mechanism.

    Raises:
        ValueError: if an argument is unknown, out of range, or of the other mechanism.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(
            f"Argument `mechanism` must be one of {MECHANISMS}. Received: mechanism={mechanism!r}"
        )
    for name, value, kind in (
        ("ridge", ridge, is_number),
        ("num_samples", num_samples, is_integer),
    ):
        if value is None:
            continue
        if not kind(value) or not 0 < value < 1e15:
            raise ValueError(f"Argument `{name}` must be positive. Received: {name}={value!r}")
        if mechanism != "gaussian_sampling":
            raise ValueError(
                f'Argument `{name}` must be None unless mechanism="gaussian_sampling". Received: '
                f"{name}={value}, mechanism={mechanism!r}"
            )


def _better(noise, setting):
    try:
        sampling = plan_sampling(setting)
    except BudgetError:
        return noise
    return sampling if sampling.error().std < noise.error().std else noise


def _per_call(event, heads):
    return event if heads == 1 else dp_accounting.SelfComposedDpEvent(event, heads)


def _smallest_good_ridge(setting, sensitivity):
    budget, heads = setting.budget, setting.heads
    largest = largest_relative_sensitivity(1, budget, heads)
    candidates = []
    for relative_sensitivity in np.geomspace(largest, largest * 1e-6, 120):
        ridge = sensitivity / relative_sensitivity
        most = largest_num_samples(relative_sensitivity, budget, heads)
        variance = setting.row_norm**2 + ridge
        candidates.append((ridge, math.sqrt((setting.row_norm**4 + variance**2) / most)))
    limit = min(error for _, error in candidates)
    return min(ridge for ridge, error in candidates if error <= 1.05 * limit)
