"""What is counted of a training on sampled batches: the events that a `SamplingRule` names."""

import dp_accounting

from tfdp.accounting.events.composition import training_event
from tfdp.accounting.events.random_allocation import allocation_event


def _poisson(noise_multiplier, sampling, mechanism):
    q = sampling.sampling_probability
    return training_event(noise_multiplier, q, mechanism, sampling.draws_per_unit)


def _cyclic(noise_multiplier, sampling, mechanism):
    return training_event(noise_multiplier, sampling.part_probability, mechanism)


def _gaussian(noise_multiplier, sampling, mechanism):
    return training_event(noise_multiplier, 1.0, mechanism)


def _allocation(noise_multiplier, sampling, mechanism):
    if mechanism != "gaussian":
        raise ValueError(
            "Random allocation can be accounted for only if each step is Gaussian: with a "
            "DPOptimizer and selection=None, FEST or AdaFEST. For this selection use "
            f"`tfdp.data.poisson_batches`. Received: mechanism={mechanism!r}"
        )
    return allocation_event(noise_multiplier, sampling.allocation_steps)


EVENTS = {
    "poisson": _poisson, "cyclic": _cyclic, "gaussian": _gaussian, "allocation": _allocation,
}  # fmt: skip


def sampled_event(noise_multiplier, sampling, mechanism="gaussian"):
    """One step, round or pass of private training, as the batches' rule says.

    Args:
        noise_multiplier: σ, over the clip norm.
        sampling: a `Sampling`; None if nobody knows how the batches were drawn.
        mechanism: what a step is, as for `training_event`.

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        ValueError: if such steps on such batches cannot be accounted for.
    """
    if sampling is None:
        return dp_accounting.NonPrivateDpEvent()
    if sampling.rule.repeats_records:
        raise ValueError(
            "Private training cannot use batches that contain a record twice. "
            "Use `tfdp.data.poisson_batches`."
        )
    return EVENTS[sampling.rule.event](noise_multiplier, sampling, mechanism)
