"""Building events: one private training step, and compositions in their smallest form."""

import dp_accounting

from tfdp import _validate
from tfdp.accounting.events.concentrated import PoissonSampledConcentratedDpEvent
from tfdp.accounting.losses.mixture_losses import records_of_unit_event

MECHANISMS = ("gaussian", "concentrated")


def training_event(noise_multiplier, sampling_probability, mechanism="gaussian", records=1):
    """One step of private training on a Poisson sample (MATH.md section 1).

    Args:
        noise_multiplier: sigma, the standard deviation of the noise on the *sum* of clipped
            gradients over the clip norm. 0 means no noise: the event is then not private.
        sampling_probability: q in (0, 1]; 1 means that every step uses every record.
        mechanism: "gaussian" for a Gaussian sum; "concentrated" for any other step that has the
            Rényi curve of that Gaussian before sampling.
        records: k, the most records of one unit of privacy, each of which is drawn by itself with
            probability q and moves the sum by the clip norm at most (MATH.md section 11).

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        ValueError: if an argument is out of range.
    """
    sigma = _validate.noise_multiplier(noise_multiplier)
    q = _validate.probability("sampling_probability", sampling_probability)
    _validate.one_of("mechanism", mechanism, MECHANISMS)
    if _validate.count("records", records) > 1 and mechanism != "gaussian":
        raise ValueError(
            "Separately sampled records of one person can be accounted for only if each step is "
            "Gaussian: with a DPOptimizer and selection=None, FEST or AdaFEST. For this "
            'selection sample persons (`sampling_unit="person"`). Received: '
            f"mechanism={mechanism!r}, records={records}"
        )
    if sigma == 0:
        return dp_accounting.NonPrivateDpEvent()
    if mechanism == "concentrated":
        return PoissonSampledConcentratedDpEvent(q, sigma)
    if records > 1 and q < 1:
        return records_of_unit_event(sigma, q, records)
    gaussian = dp_accounting.GaussianDpEvent(sigma / records)
    return gaussian if q == 1 else dp_accounting.PoissonSampledDpEvent(q, gaussian)


def compose(counted_events):
    """Composes (event, count) pairs; equal events become one self-composition.

    Accountants compose a self-composition in one go, so that this form is also the fast one.

    Args:
        counted_events: iterable of (DpEvent, count) with counts of at least 1.

    Returns:
        A `dp_accounting.DpEvent`: a NoOp, a single event, a self-composition or a composition.
    """
    merged = []
    for event, count in counted_events:
        for leaf, leaf_count in leaves(event, count):
            for i, (known, known_count) in enumerate(merged):
                if known == leaf:
                    merged[i] = (known, known_count + leaf_count)
                    break
            else:
                merged.append((leaf, leaf_count))
    events = [
        leaf if count == 1 else dp_accounting.SelfComposedDpEvent(leaf, count)
        for leaf, count in merged
    ]
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def leaves(event, count=1):
    """(event, count) pairs of what an event is composed of, none of them a composition."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from leaves(event.event, count * event.count)
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, count)
    else:
        yield event, count
