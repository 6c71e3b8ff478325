"""What a run of training steps costs: from its settings and length to ledger entries."""

import dp_accounting

from tfdp.accounting.composition import training_event
from tfdp.accounting.ledger import LedgerEntry
from tfdp.accounting.sampling import Sampling
from tfdp.accounting.visible_sampling import VisiblySampledGaussianDpEvent

ENCODER_ASSERTED = (
    "the layers below the forward noise learned nothing from these examples before, other than "
    "what is listed here"
)
LABELS_UNCOVERED = (
    "the labels and sample weights of the training examples: forward noise protects features only"
)


def is_private_training(settings):
    """Whether a run's steps are those of a DPOptimizer."""
    return settings.get("kind", "training") == "training"


def entries_of_run(settings, steps, name):
    """The ledger entries of a run.

    Args:
        settings: the run's settings, by whose "kind" it is charged: "training" (a DPOptimizer's
            steps; the default), "forward noise", "released data" (charged when it was released)
            or "no privacy".
        steps: number of steps, at least 1.
        name: the run's name.

    Returns:
        A list of `LedgerEntry`.

    Raises:
        ValueError: for a kind that this version does not know.
    """
    kind = settings.get("kind", "training")
    if kind not in _KINDS:
        raise ValueError(
            f"The record holds steps of a kind that this version cannot account for. "
            f"Received: kind={kind!r}"
        )
    return _KINDS[kind](settings, steps, name)


def _training(settings, steps, name):
    details = {"kind": "training", **{k: v for k, v in settings.items() if v is not None}}
    details.pop("sampling_probability")
    mechanism = details.pop("mechanism", "gaussian")
    if settings["sampling"] is not None:
        sampling = Sampling.from_dict(settings["sampling"])
        details["overflow_probability"] = sampling.overflow_probability
        if not sampling.is_poisson:
            # Every pass shuffles anew: one that was cut short still counts as begun.
            details["pass"] = name
    return [
        LedgerEntry(
            "private training",
            training_event(
                settings["noise_multiplier"], settings["sampling_probability"], mechanism
            ),
            steps,
            details,
        )
    ]


def _forward_noise(settings, steps, name):
    """Noisy copies of each record: the epochs begun, or visible draws (MATH.md section 5)."""
    details = {**settings, "uncovered": [LABELS_UNCOVERED], "asserted": [ENCODER_ASSERTED]}
    sigma = settings["noise_multiplier"]
    if settings["sampling"] is None:
        details["unstated"] = [
            "It is not known how often a record was in the batches of steps with forward noise: "
            "each time is one more noisy copy. Train with `fit` on `tfdp.data.shuffled_epochs`."
        ]
    if settings["unprotected"]:
        details["unstated"] = details.get("unstated", []) + [
            "Variables were trained on raw data, which did not pass through forward noise; they "
            "are listed below. No epsilon holds for the whole model."
        ]
        details["uncovered"] += [
            f"variable {path}: trained on raw data, without protection"
            for path in settings["unprotected"]
        ]
    details["uncovered"] += settings["bypasses"]
    if "unstated" in details or sigma == 0:
        event, count = dp_accounting.NonPrivateDpEvent(), 1
    else:
        sampling = Sampling.from_dict(settings["sampling"])
        details["overflow_probability"] = sampling.overflow_probability
        q = sampling.draw_probability
        if sampling.is_poisson and q < 1:
            event = VisiblySampledGaussianDpEvent(q, sigma)
            count = steps * sampling.microbatches
        else:
            event, count = dp_accounting.GaussianDpEvent(sigma), sampling.appearances(steps)
    if settings["seeded"]:
        details["remarks"] = [
            "A fixed seed drew the forward noise: whoever knows it can remove the noise. This run "
            "is a test, not a private one."
        ]
    return [LedgerEntry("forward noise", event, count, details)]


def _released_data(settings, steps, name):
    return []


def _no_privacy(settings, steps, name):
    return [not_private()]


def not_private():
    """The charge for training with a plain optimizer."""
    return LedgerEntry("training without privacy", dp_accounting.NonPrivateDpEvent())


_KINDS = {
    "training": _training,
    "forward noise": _forward_noise,
    "released data": _released_data,
    "no privacy": _no_privacy,
}
