"""Batches whose order tells when a record can come again: runs that would change the order."""

import tensorflow as tf

from tfdp._compat.tensorflow import ancestors, may_reorder
from tfdp.errors import PrivacyError


def refuse_more_passes(sampling, epochs, steps_per_epoch):
    """Refuses a `fit` that would go through such batches more often than they were made for.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        epochs: how many this `fit` has.
        steps_per_epoch: as given to `fit`; None for one pass in each epoch.

    Raises:
        PrivacyError: if there are more passes than the stream was made for.
    """
    if sampling is None or not sampling.rule.keeps_order:
        return
    passes, of_pass = sampling.passes or 1, sampling.steps_per_epoch
    if of_pass is None or epochs * (steps_per_epoch or of_pass) > passes * of_pass:
        raise PrivacyError(
            f"These batches are made for passes={passes} in one `fit`. In more passes, a record "
            "could take part more often than it is charged for. Give the sampler the number of "
            f"`passes`, or `fit` fewer epochs. Received: {sampling.kind} batches, epochs={epochs}, "
            f"steps_per_epoch={steps_per_epoch}, for {of_pass} steps a pass"
        )


def refuse_other_order(sampling, data):
    """Refuses batches of which a record or person may be in several, in another order.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        data: what `fit` was given.

    Raises:
        PrivacyError: if a record could come again sooner than a pass later, or another one of its
            person sooner than `min_separation`.
    """
    if sampling is None or not sampling.rule.keeps_order or sampling.participations[0] == 1:
        return
    keeps = isinstance(data, tf.data.Dataset) and data.options().deterministic is not False
    if not keeps or any(map(may_reorder, ancestors(data))):
        raise PrivacyError(
            "These batches may come in another order in each pass. A record or person could then "
            "come again sooner than the charge assumes. Remove `deterministic=False` after the "
            "sampler and give `fit` the tf.data.Dataset itself. For `stream_batches`, you can "
            "instead set passes=1 and leave out `max_participations`. Received: "
            f"{sampling.kind} batches, passes={sampling.passes}, "
            f"max_participations={sampling.max_participations}, x={data}"
        )


def refuse_left_out(sampling):
    """Called where a batch was not trained on: refuses a next one if this moves steps closer.

    Args:
        sampling: the `Sampling` of the run.

    Raises:
        PrivacyError: if a record or person may be in several batches.
    """
    if sampling is None or not sampling.rule.keeps_order:
        return
    if sampling.participations[0] > 1 or (sampling.bands or 1) > 1:
        raise PrivacyError(
            "A batch was left out. A record or person could then come again after fewer steps than "
            "the charge assumes. Pass each batch of `training_batches` to `train_on_batch`. For "
            "`stream_batches`, you can instead set passes=1 and leave out `max_participations`. "
            f"Received: {sampling.kind} batches, participations {sampling.participations[0]}, "
            f"{sampling.participations[1]} or more steps apart"
        )
