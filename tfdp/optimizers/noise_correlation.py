"""How a DPOptimizer's noise is correlated over steps: what users choose, what follows from it."""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from tfdp import _validate
from tfdp._compat.keras import schedule_of
from tfdp.accounting import correlated_noise
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import is_external


@keras.saving.register_keras_serializable(package="tfdp")
class BandedInverse:
    """Correlated noise: a step adds a fresh draw and cancels a part of the b − 1 draws before it.

    Step t releases x_t + σ·C·s·Σ_{i<b} m_i·z_{t−i}. The noise of a step consists of b draws.
    Earlier draws are drawn again, so they take no memory. Use it for one pass over a stream, or for
    a few passes in the same order.

    Args:
        bands: b.
        coefficients: (b,) m, m[0] = 1. `None`: the coefficients that leave the least noise in the
            weights, given the number of steps and the next two arguments.
        momentum: of the wrapped optimizer. `None`: its own setting (`SGD`), else 0.
        learning_rates: (T,) learning rate of each step, up to a factor. `None`: those of the
            wrapped optimizer's schedule, or else a constant one.

    Raises:
        ValueError: for an argument out of range.

    Source: Denisov et al. 2022, arXiv 2202.08312; Kalinin and Lampert 2025, arXiv 2505.12128
    (banded inverse); MATH.md section 13.
    """

    def __init__(
        self, bands: int = 4, coefficients: tuple | None = None, momentum: float | None = None,
        learning_rates: tuple | None = None,
    ):  # fmt: skip
        self.bands = _validate.count("bands", bands)
        self.coefficients = _numbers("coefficients", coefficients)
        self.learning_rates = _numbers("learning_rates", learning_rates)
        if self.coefficients is not None:
            if len(self.coefficients) != self.bands:
                raise ValueError(
                    "Argument `coefficients` must have one number for each of `bands`. Received: "
                    f"coefficients={coefficients}, bands={bands}"
                )
            correlated_noise.Correlation(self.coefficients, 1)  # refuses what cannot be
        if momentum is not None and not (_validate.is_number(momentum) and 0 <= momentum < 1):
            raise ValueError(
                f"Argument `momentum` must lie in [0, 1), or be None. Received: momentum={momentum}"
            )
        self.momentum = None if momentum is None else float(momentum)

    def correlation(self, optimizer, sampling):
        """The `Correlation` of a chain.

        Args:
            optimizer: the wrapped Keras optimizer.
            sampling: the `Sampling` of all of its steps, a stream.
        """
        steps, pattern = sampling.chain_steps, sampling.participations
        m = self.coefficients
        if m is None:
            workload = self._workload(optimizer, steps)
            m = correlated_noise.optimized(self.bands, steps, workload, *pattern)
        return correlated_noise.Correlation(m, steps, *pattern)

    def _workload(self, optimizer, steps):
        momentum, rates = self.momentum, self.learning_rates
        if momentum is None:
            momentum = float(getattr(optimizer, "momentum", 0.0) or 0.0)
        schedule = schedule_of(optimizer)
        if rates is None and isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            rates = _numbers("learning_rates", [float(schedule(t)) for t in range(steps)])
        return correlated_noise.Workload(momentum, rates)

    def get_config(self):
        return {
            "bands": self.bands, "coefficients": _list(self.coefficients),
            "momentum": self.momentum, "learning_rates": _list(self.learning_rates),
        }  # fmt: skip

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __eq__(self, other):
        return isinstance(other, BandedInverse) and self.get_config() == other.get_config()

    __hash__ = None


def checked_correlation(noise_correlation, selection):
    """The `BandedInverse`, or None, that an argument of `DPOptimizer` stands for.

    Raises:
        ValueError: for another value, or beside a selection of rows.
    """
    if noise_correlation is None:
        return None
    if noise_correlation == "auto":
        noise_correlation = BandedInverse()
    if not isinstance(noise_correlation, BandedInverse):
        raise ValueError(
            'Argument `noise_correlation` must be None, "auto" or a '
            f"`tfdp.optimizers.BandedInverse`. Received: noise_correlation={noise_correlation!r}"
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
            "which counts how often each row was selected. Vectors of items cannot be trained. "
            "Train on one device, or leave out `noise_correlation` or `selection` of the "
            'DPOptimizer, or `noise_at="vectors"` of the negatives.'
        )
    return tables


def correlation_of(optimizer, sampling):
    """The `Correlation` of the steps of a `DPOptimizer` on such batches; None without one.

    Raises:
        PrivacyError: for batches in which a record may come at any time.
    """
    if optimizer.noise_correlation is None or sampling is None:
        return None
    if sampling.chain_steps is None:
        raise PrivacyError(
            "The cost of correlated noise depends on how many steps pass before a record comes "
            "again, and these batches do not state it. Make them with `tfdp.data.stream_batches`, "
            "or leave `noise_correlation` of the DPOptimizer out. Noise that is both correlated "
            "and amplified by sampling (banded matrices, cyclic Poisson samples) is not in tfdp. "
            f"Received: {sampling.kind} batches"
        )
    if optimizer.selection is not None and sampling.participations[0] > 1:
        raise PrivacyError(
            "Each step releases a new selection of rows. With noise that is correlated over steps, "
            "tfdp can account for only one pass with one record of each person. Give "
            "`stream_batches` passes=1 and no `max_participations`, or leave `noise_correlation` "
            "or `selection` of the DPOptimizer out. Received: "
            f"passes={sampling.passes}, max_participations={sampling.max_participations}"
        )
    return optimizer.noise_correlation.correlation(optimizer.inner_optimizer, sampling)


def planned(noise_correlation, poisson):
    """How batches will be drawn if nobody says otherwise: Poisson, or one pass of a stream.

    Args:
        noise_correlation: of a `DPOptimizer`.
        poisson: the `Sampling` that its arguments describe.
    """
    if noise_correlation is None:
        return poisson
    steps = math.ceil(poisson.num_examples / poisson.expected_batch_size)
    return dataclasses.replace(poisson, kind="stream", steps_per_epoch=steps)


def _numbers(name, values):
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise ValueError(
            f"Argument `{name}` must be a sequence of finite numbers, or None. Received: "
            f"{name}={values!r}"
        )
    return tuple(map(float, array))


def _list(values):
    return None if values is None else list(values)
