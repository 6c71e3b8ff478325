"""Which data sets count as neighbours, and what that does to an event."""

import attr
import dp_accounting
from dp_accounting import dp_event

ADJACENCIES = ("add_or_remove_one", "replace_one", "zero_out")
#: Those under which the number of records, and who is in a batch, may be seen.
FEATURES = ("zero_out", "replace_one")

_Relation = dp_accounting.NeighboringRelation


def strongest(adjacencies):
    """The adjacency that a composition of mechanisms holds under.

    Replace-one (sensitivity doubled) implies zero-out; both go beyond add-or-remove-one, in that
    they allow which records there are to be seen.

    Args:
        adjacencies: an iterable of adjacencies; None stands for add_or_remove_one.
    """
    order = ("add_or_remove_one", "zero_out", "replace_one")
    return max((a or order[0] for a in adjacencies), key=order.index, default=order[0])


def interpretations(event, accountant, adjacency):
    """The (event, relation) pairs to offer dp_accounting, best first.

    dp_accounting's noise multipliers are relative to the *norm bound* of one record's
    contribution. Hence

    - add_or_remove_one: the event as it stands.
    - zero_out (one record is replaced by one that contributes nothing): the two outcomes of a
      clipped sum, Poisson-sampled or not, are those of removing the record, so the
      add-or-remove-one analysis holds wherever dp_accounting has no zero-out rule.
    - replace_one: one contribution of norm at most C turns into another: sensitivity 2C. PLD has
      an exact rule for Gaussians, Poisson-sampled or not. Everything else is analysed with its
      sensitivity doubled under add-or-remove-one, which dominates: by joint convexity (Balle,
      Barthe and Gaboardi 2018, theorem 2) the two mixtures (1-q) M(0) + q M(x) and
      (1-q) M(0) + q M(x') are at most as far apart as (1-q) M(0) + q M(2C) and M(0);
      compositions agree numerically with the exact rule.
      The RDP accountant takes a replace-one relation and silently keeps the sensitivity at C: it
      is never asked for it with an undoubled event.

    Args:
        event: a DpEvent.
        accountant: "pld" or "rdp".
        adjacency: one of `ADJACENCIES`.

    Returns:
        A list of (DpEvent, NeighboringRelation).
    """
    if adjacency == "add_or_remove_one":
        return [(event, _Relation.ADD_OR_REMOVE_ONE)]
    if adjacency == "zero_out":
        return [(event, _Relation.REPLACE_SPECIAL), (event, _Relation.ADD_OR_REMOVE_ONE)]
    pairs = []
    if accountant == "pld" and _has_replace_one_rule(event):
        pairs.append((event, _Relation.REPLACE_ONE))
    doubled = double_sensitivity(event)
    if accountant == "rdp" and doubled is not None:
        pairs.append((doubled, _Relation.REPLACE_ONE))
    if doubled is not None:
        pairs.append((doubled, _Relation.ADD_OR_REMOVE_ONE))
    return pairs


def double_sensitivity(event):
    """The event with one record's largest contribution twice as large.

    Events that define `doubled()` say it themselves. Events that state their own replace-one
    guarantee (randomized response, other classes with their own Rényi curve) stay as they are.
    zCDP grows as for groups of two (Bun and Steinke 2016, proposition 1.9).

    Returns:
        A DpEvent, or `None` where no such event is known.
    """
    if hasattr(event, "doubled"):
        return event.doubled()
    if isinstance(event, _UNCHANGED) or hasattr(event, "rdp"):
        return event
    if isinstance(event, (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)):
        return attr.evolve(event, noise_multiplier=event.noise_multiplier / 2)
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent):
        return attr.evolve(event, sensitivity=2 * event.sensitivity)
    if isinstance(event, dp_event.ZCDpEvent):
        return attr.evolve(event, rho=4 * event.rho, xi=3 * event.xi)
    if isinstance(event, dp_event.ComposedDpEvent):
        parts = [double_sensitivity(part) for part in event.events]
        return None if None in parts else dp_event.ComposedDpEvent(parts)
    if isinstance(event, _WRAPPERS):
        inner = double_sensitivity(event.event)
        return None if inner is None else attr.evolve(event, event=inner)
    return None


_UNCHANGED = (dp_event.NoOpDpEvent, dp_event.NonPrivateDpEvent, dp_event.RandomizedResponseDpEvent)
_WRAPPERS = (
    dp_event.SelfComposedDpEvent,
    dp_event.PoissonSampledDpEvent,
    dp_event.SampledWithoutReplacementDpEvent,
    dp_event.RepeatAndSelectDpEvent,
)


def _has_replace_one_rule(event):
    if isinstance(event, dp_event.ComposedDpEvent):
        return all(_has_replace_one_rule(part) for part in event.events)
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _has_replace_one_rule(event.event)
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        return isinstance(event.event, dp_event.GaussianDpEvent)
    known = (*_UNCHANGED, dp_event.GaussianDpEvent, dp_event.TruncatedSubsampledGaussianDpEvent)
    return isinstance(event, known)
