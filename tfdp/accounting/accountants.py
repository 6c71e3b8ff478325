"""epsilon of an event: the only place that runs an accountant."""

import functools
import json
import math

import dp_accounting
import numpy as np
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

from tfdp import _validate
from tfdp._compat.dp_accounting import PldAccountant, RdpAccountant
from tfdp.accounting.events.adjacency import ADJACENCIES, interpretations
from tfdp.accounting.events.composition import leaves
from tfdp.accounting.events.random_allocation import RandomAllocationGaussianDpEvent
from tfdp.accounting.events.registry import event_from_dict, event_to_dict
from tfdp.accounting.losses.gaussian_losses import gaussian_losses
from tfdp.accounting.losses.loss_masses import with_arrays
from tfdp.accounting.losses.mixture_losses import mixture_loss_scale, mixture_losses, mixture_renyi

ACCOUNTANTS = ("pld", "rdp")
_LARGEST_LOSS = 100.0
_LOSS_IN_MEMORY = 1e3  # of larger losses PLD would take several GB and more
_LARGEST_ROUNDING = 1e-2  # of δ, beyond which PLD is not the better choice
# An epsilon of 10^17; of much less noise its square underflows.
_NO_NOISE = 1e-9
_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def epsilon(
    event: dp_accounting.DpEvent,
    delta: float,
    accountant: str = "pld",
    adjacency: str = "add_or_remove_one",
) -> float:
    """The epsilon at which an event is (epsilon, delta)-differentially private.

    Formal guarantees: an upper bound, by privacy loss distributions or Rényi divergences. Under
    the Poisson-sampled Gaussian "pld" is the tighter.

    Args:
        event: a `dp_accounting.DpEvent`, composed as needed.
        delta: a probability in (0, 1).
        accountant: "pld" or "rdp".
        adjacency: "add_or_remove_one", "replace_one" or "zero_out"; see
            `tfdp.accounting.events.adjacency.interpretations` for what each does.

    Returns:
        A float of at least 0; infinite if the event is not private.

    Raises:
        ValueError: if an argument is unknown or out of range, or if the accountant has no rule
            for the event under the adjacency.

    Example:

    >>> round(epsilon(dp_accounting.GaussianDpEvent(1.41), 1 / (2 * 67349)), 1)
    3.0
    """
    delta = _validate.open_unit("delta", delta)
    return _epsilon_cached(key_of(event, accountant, adjacency), delta)


@functools.lru_cache(maxsize=4096)
def _epsilon_cached(key, delta):
    """ε of what `key_of` gives; a step of a run is asked for again and again."""
    with np.errstate(over="ignore"):  # dp_accounting divides by masses that underflow
        found = float(compose_accountant(*key).get_epsilon(delta))
    # A comparison with NaN is false: `max` would make it 0, the best of all guarantees.
    return math.inf if math.isnan(found) else max(0.0, found)


def best_accountant(event, adjacency="add_or_remove_one", delta=None):
    """ "pld" where it has a rule for the whole event, "rdp" otherwise.

    Gaussians of so little noise that ε is in the hundreds go to "rdp", too: PLD keeps the whole
    distribution of the loss, in memory. So does a δ so small that PLD's rounding would matter.
    (Of random allocation "rdp" gives an ε without amplification.)
    """
    if _lacks_noise(event) or _loss_scale(event, 1) > _LARGEST_LOSS:
        return "rdp"
    if delta is not None and _rounding(_number_of_events(event)) > _LARGEST_ROUNDING * delta:
        return "rdp"
    return "rdp" if _accountant_for(event, "pld", adjacency) is None else "pld"


def is_beyond_memory(event, accountant):
    """Whether the accountant would keep more losses of an event than memory holds."""
    return (
        accountant == "pld"
        and not _lacks_noise(event)
        and (_loss_scale(event, 1) > _LOSS_IN_MEMORY)
    )


def has_rule(event, adjacency):
    """Whether an ε of the event can be computed under an adjacency, by any accountant."""
    return _lacks_noise(event) or any(_accountant_for(event, a, adjacency) for a in ACCOUNTANTS)


def _rounding(count):
    """Bounds the error in δ of `count` compositions by fast Fourier transforms.

    A power of the transform, all of whose values are at most 1, has a relative error of at most
    `count` roundings. Measured on Gaussians, whose composition is known exactly: 2e-17 · count.
    """
    return (count + 16) * 2.0**-52


def _number_of_events(event):
    # Gaussians are composed in closed form.
    gaussian = dp_accounting.GaussianDpEvent
    return sum(1 if isinstance(leaf, gaussian) else count for leaf, count in leaves(event))


def _lacks_noise(event):
    """Whether a mechanism in the event has a noise multiplier of 0, or as good as 0."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return any(_lacks_noise(e) for e in event.events)
    if hasattr(event, "event"):
        return _lacks_noise(event.event)
    if isinstance(event, MixtureOfGaussiansDpEvent):
        return event.standard_deviation < _NO_NOISE
    return getattr(event, "noise_multiplier", 1.0) < _NO_NOISE


def _loss_scale(event, count):
    """About the largest privacy loss of the Gaussians in an event."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return max((_loss_scale(e, count) for e in event.events), default=0.0)
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return _loss_scale(event.event, count * event.count)
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        one = _loss_scale(event.event, 1)
        # The mean of many small losses; their distribution is narrow, and takes less memory. It is
        # at most that of the Gaussian, as often as a record is drawn.
        q = event.sampling_probability
        mean = count * q * min(one, q * math.expm1(min(2 * one, 50.0)) / 2)
        return max(one, 0.1 * mean)
    if isinstance(event, RandomAllocationGaussianDpEvent) and event.noise_multiplier > 0:
        one = 0.5 / event.noise_multiplier**2
        mean = count * min(one, math.expm1(min(2 * one, 50.0)) / (2 * event.num_steps))
        return max(one, 0.1 * mean)
    if isinstance(event, MixtureOfGaussiansDpEvent) and event.standard_deviation > 0:
        return mixture_loss_scale(event, count)
    if not isinstance(event, dp_accounting.GaussianDpEvent) or event.noise_multiplier == 0:
        return 0.0
    return 0.5 * count / event.noise_multiplier**2


def key_of(event, accountant, adjacency):
    """(event as JSON, accountant, adjacency): all that an ε depends on, beside δ.

    Raises:
        ValueError: as for `epsilon`.
    """
    _validate.one_of("accountant", accountant, ACCOUNTANTS)
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    if not isinstance(event, dp_accounting.DpEvent):
        raise ValueError(
            f"Argument `event` must be a dp_accounting.DpEvent. Received: event={event!r}"
        )
    if _lacks_noise(event):
        event = dp_accounting.NonPrivateDpEvent()
    # Composed events hold lists and are not hashable; their JSON is.
    return json.dumps(event_to_dict(event)), accountant, adjacency


@functools.lru_cache(maxsize=32)
def compose_accountant(encoded_event, accountant, adjacency):
    """An accountant that has composed what `key_of` gives; cached: do not compose it further."""
    event = event_from_dict(json.loads(encoded_event))
    found = _accountant_for(event, accountant, adjacency)
    if found is None:
        raise ValueError(_unsupported_message(event, accountant, adjacency))
    if is_beyond_memory(event, accountant):
        raise ValueError(
            "The PLD accountant keeps the whole distribution of the privacy loss, and the losses "
            f"of this event, up to about {_loss_scale(event, 1):.2g}, would not fit into memory. "
            f'Use accountant="rdp", or more noise. Received: event={event!r}'
        )
    fresh, candidate = found
    with np.errstate(over="ignore"):
        return fresh.compose(candidate)


def _accountant_for(event, accountant, adjacency):
    """(A fresh accountant, the event as it takes it), or None where it has no rule for it."""
    kind = _PldAccountant if accountant == "pld" else _RenyiAccountant
    for candidate, relation in interpretations(event, accountant, adjacency):
        fresh = kind(adjacency, relation)
        if fresh.supports(candidate):
            return fresh, candidate
    return None


def _unsupported_message(event, accountant, adjacency):
    other = "rdp" if accountant == "pld" else "pld"
    if _accountant_for(event, other, adjacency) is not None:
        advice = f'Use accountant="{other}", which has one.'
    else:
        advice = f'accountant="{other}" has none either. Use another adjacency or mechanism.'
    return (
        f"The {accountant.upper()} accountant has no rule for this event under adjacency "
        f'"{adjacency}". {advice} Received: event={event!r}'
    )


class _RenyiAccountant(RdpAccountant):
    """dp_accounting's, plus events that bring their own Rényi curve (`register_event`)."""

    def __init__(self, adjacency, relation):
        super().__init__(neighboring_relation=relation)
        self._adjacency = adjacency

    def get_epsilon(self, target_delta):
        """As dp_accounting's, without the orders of which rounding has left nothing.

        dp_accounting takes a divergence of 0 or less for an epsilon of 0. What touched the data
        has a divergence above 0 at every order.
        """
        curve = np.asarray(self.curve)
        if not np.any(curve):
            return 0.0
        curve = np.where(curve > 0, curve, math.inf)
        return dp_accounting.rdp.compute_epsilon(self.orders, curve, target_delta)[0]

    def take(self, event, count, do_compose):
        if _is_mixture(event) and self.neighboring_relation != _REPLACE_ONE:
            if do_compose:
                self.add(count * mixture_renyi(event, self.orders))
            return True, None
        if not hasattr(event, "rdp"):
            return False, None
        if self._adjacency not in event.adjacencies:
            why = f"Its Rényi curve holds under {event.adjacencies} only."
            return True, self.refusal(event, why)
        if do_compose:
            self.add(count * np.asarray(event.rdp(self.orders)))
        return True, None


class _PldAccountant(PldAccountant):
    """dp_accounting's, plus events that bring their own privacy loss distribution.

    Gaussians and mixtures of them are composed here, too, for speed.
    """

    def __init__(self, adjacency, relation):
        super().__init__(relation)
        self._adjacency = adjacency
        self._composed = 0

    def get_epsilon(self, target_delta):
        """As dp_accounting's, with the rounding errors of its convolutions on the safe side."""
        left = target_delta - _rounding(self._composed)
        return super().get_epsilon(left) if left > 0 else math.inf

    def take(self, event, count, do_compose):
        known = self._gaussian(event) if do_compose else None
        if known is not None:
            self._compose_gaussian(*known, count)
            return True, None
        if do_compose and self.neighboring_relation != _REPLACE_ONE and _is_mixture(event):
            self._composed += count
            self.add(mixture_losses(event, self.interval).self_compose(count))
            return True, None
        if not hasattr(event, "pld"):
            if do_compose:
                self._composed += count
            return False, None
        if self._adjacency not in event.adjacencies:
            why = f"Its privacy losses hold under {event.adjacencies} only."
            return True, self.refusal(event, why)
        if do_compose:
            self._composed += count
            self.add(with_arrays(event.pld(self.interval)).self_compose(count))
        return True, None

    def _gaussian(self, event):
        """(noise multiplier, sampling probability) of a Gaussian whose losses tfdp knows, or None.

        A record that is replaced moves a sum twice as far. Of samples dp_accounting has a rule.
        """
        known = _sampled_gaussian(event)
        if known is None or self.neighboring_relation != _REPLACE_ONE:
            return known
        sigma, q = known
        return (sigma / 2, 1) if q == 1 else None

    def _compose_gaussian(self, sigma, q, count):
        if q == 1:  # T Gaussians are one
            sigma, count = sigma / math.sqrt(count), 1
        self._composed += count
        losses = _step_losses(sigma, q, self.interval)
        self.add(losses if count == 1 else losses.self_compose(count))


# Of one step; how many steps a budget allows is found by composing the same one again and again.
_step_losses = functools.lru_cache(maxsize=4)(gaussian_losses)


def _sampled_gaussian(event):
    """(noise multiplier, sampling probability) of a Gaussian with noise; None for the rest."""
    q = 1
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        event, q = event.event, event.sampling_probability
    if isinstance(event, dp_accounting.GaussianDpEvent) and event.noise_multiplier > 0 and q > 0:
        return event.noise_multiplier, q
    return None


def _is_mixture(event):
    """Whether an event is a mixture of Gaussians that is private, and not private for free."""
    mixture = isinstance(event, MixtureOfGaussiansDpEvent) and event.standard_deviation > 0
    return mixture and max(event.sensitivities) > 0
