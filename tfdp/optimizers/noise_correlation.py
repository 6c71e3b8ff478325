"""How a DPOptimizer's noise is correlated over steps: what users choose, what follows from it."""

from __future__ import annotations

import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.optimizers.bands import BandedInverse, BandedMatrix
from tfdp.runtime.external_table import is_external


def checked_correlation(noise_correlation, selection):
    """The `BandedInverse`, `BandedMatrix` or None that an argument of `DPOptimizer` stands for.

    Raises:
        ValueError: for another value, or beside a selection of rows.
    """
    if noise_correlation is None:
        return None
    if noise_correlation == "auto":
        noise_correlation = BandedInverse()
    if not isinstance(noise_correlation, BandedInverse | BandedMatrix):
        raise ValueError(
            'Argument `noise_correlation` must be None, "auto", a `tfdp.optimizers.BandedInverse` '
            "or a `tfdp.optimizers.BandedMatrix`. Received: noise_correlation="
            f"{noise_correlation!r}"
        )
    if selection is not None and isinstance(noise_correlation, BandedMatrix):
        raise ValueError(
            "Noise of a `BandedMatrix` is kept for every weight, and a `selection` adds noise to "
            "chosen rows only. Leave out `selection`, or `noise_correlation`. Received: "
            f"noise_correlation={noise_correlation!r}, selection={selection}"
        )
    if selection is not None and getattr(selection, "step_mechanism", None) != "gaussian":
        raise ValueError(
            "Argument `noise_correlation` can be accounted for only if each step is Gaussian: "
            "selection must be None, FEST or AdaFEST. Leave one of the two arguments out. "
            f"Received: noise_correlation={noise_correlation!r}, selection={selection}"
        )
    return noise_correlation


def chained_tables(tables):
    """Tables whose rows have chains of their own, as given.

    Raises:
        PrivacyError: on several replicas, or for tables that other devices hold.
    """
    alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
    if (tables and not alone) or any(is_external(table) for table in tables):
        raise PrivacyError(
            "With `noise_correlation`, rows of sparse tables can be trained on one device only, "
            "because this device counts how often each row was selected. "
            '`noise_at="vectors"` does not work with `noise_correlation` either. '
            "Train on one device, or leave out `noise_correlation` or `selection` of the "
            'DPOptimizer, or `noise_at="vectors"` of the negatives.'
        )
    return tables


def correlation_of(optimizer, sampling):
    """The `Correlation` of the steps of a `DPOptimizer` on such batches; None without one.

    Raises:
        PrivacyError: for batches on which this noise cannot be accounted for.
    """
    if optimizer.noise_correlation is None or sampling is None:
        return None
    optimizer.noise_correlation.check_batches(sampling)
    if optimizer.selection is not None and sampling.participations[0] > 1:
        raise PrivacyError(
            "Each step releases a new selection of rows. With noise that is correlated over steps, "
            "tfdp can account for only one pass with one record of each person. Give "
            "`stream_batches` passes=1 and no `max_participations`, or leave `noise_correlation` "
            "or `selection` of the DPOptimizer out. Received: "
            f"passes={sampling.passes}, max_participations={sampling.max_participations}"
        )
    return optimizer.noise_correlation.correlation(optimizer.inner_optimizer, sampling)
