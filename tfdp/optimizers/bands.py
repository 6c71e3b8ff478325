"""The two kinds of noise that is correlated over steps, as users set them."""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np

from tfdp import _validate
from tfdp._compat.keras import schedule_of
from tfdp.accounting import banded_noise, correlated_noise
from tfdp.errors import PrivacyError
from tfdp.noise import BandedSource, ChainSource


class _Bands:
    """Base: the settings of both kinds, and what noise in the weights is to be small for."""

    def __init__(
        self, bands: int, coefficients: tuple | None = None, momentum: float | None = None,
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
            self._chain(self.coefficients, 1)  # refuses what cannot be
        if momentum is not None and not (_validate.is_number(momentum) and 0 <= momentum < 1):
            raise ValueError(
                f"Argument `momentum` must lie in [0, 1), or be None. Received: momentum={momentum}"
            )
        self.momentum = None if momentum is None else float(momentum)

    def source(self, seed):
        """The noise source of a DPOptimizer, with its `seed`."""
        raise NotImplementedError

    def planned(self, sampling, steps):
        """How batches will be drawn if nobody says otherwise.

        Args:
            sampling: the `Sampling` of Poisson batches that the DPOptimizer's arguments describe.
            steps: how many there will be, or None if that is not known.
        """
        raise NotImplementedError

    def check_batches(self, sampling):
        """Refuses batches on which this noise cannot be accounted for.

        Args:
            sampling: their `Sampling`.

        Raises:
            PrivacyError: if it cannot.
        """
        raise NotImplementedError

    def correlation(self, optimizer, sampling):
        """The correlation of a chain, a value of `tfdp.accounting`.

        Args:
            optimizer: the wrapped Keras optimizer.
            sampling: the `Sampling` of all of its steps.
        """
        raise NotImplementedError

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
        return type(other) is type(self) and self.get_config() == other.get_config()

    __hash__ = None


@keras.saving.register_keras_serializable(package="tfdp")
class BandedInverse(_Bands):
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

    _chain = staticmethod(correlated_noise.Correlation)

    def __init__(
        self, bands: int = 4, coefficients: tuple | None = None, momentum: float | None = None,
        learning_rates: tuple | None = None,
    ):  # fmt: skip
        super().__init__(bands, coefficients, momentum, learning_rates)

    def source(self, seed):
        return ChainSource(self.bands, seed)

    def planned(self, sampling, steps):
        steps = math.ceil(sampling.num_examples / sampling.expected_batch_size)
        return dataclasses.replace(sampling, kind="stream", steps_per_epoch=steps)

    def check_batches(self, sampling):
        if sampling.chain_steps is None or sampling.bands is not None:
            raise PrivacyError(
                "The cost of correlated noise depends on how many steps pass before a record "
                "comes again, and these batches do not state it. Make them with "
                "`tfdp.data.stream_batches`, or leave `noise_correlation` of the DPOptimizer out. "
                "For noise that is both correlated and amplified by sampling, use "
                "`tfdp.optimizers.BandedMatrix` and `tfdp.data.cyclic_poisson_batches`. "
                f"Received: {sampling.kind} batches"
            )

    def correlation(self, optimizer, sampling):
        steps, pattern = sampling.chain_steps, sampling.participations
        m = self.coefficients
        if m is None:
            workload = self._workload(optimizer, steps)
            m = correlated_noise.optimized(self.bands, steps, workload, *pattern)
        return self._chain(m, steps, *pattern)


@keras.saving.register_keras_serializable(package="tfdp")
class BandedMatrix(_Bands):
    """Correlated noise that sampling amplifies: it depends on the noise of the b − 1 steps before.

    Step t releases x_t + σ·C·s·w_t, w_t = z_t − Σ_{0<i<b} c_i·w_{t−i}, s = ‖c‖. Use it for several
    passes over batches of `tfdp.data.cyclic_poisson_batches` with the same `bands`. Each b steps
    then cost one Gaussian of noise multiplier σ, sampled with probability b·q. One band is DP-SGD
    on Poisson batches. More bands cancel more noise and amplify less; `tfdp plan --ways` compares
    them.

    The noise of b − 1 steps stays in memory, 4 bytes for each weight and step. No file holds it.

    Args:
        bands: b.
        coefficients: (b,) c, the first column of the strategy matrix, divided by its first entry.
            `None`: the coefficients that leave the least noise in the weights.
        momentum, learning_rates: as for `BandedInverse`.

    Raises:
        ValueError: for an argument out of range.

    Source: Choquette-Choo et al. 2023, arXiv 2306.08153; MATH.md section 13.
    """

    _chain = staticmethod(banded_noise.BandedCorrelation)

    def source(self, seed):
        return BandedSource(self.bands, seed)

    def planned(self, sampling, steps):
        if steps is None:
            steps = math.ceil(sampling.num_examples / sampling.expected_batch_size)
        return dataclasses.replace(
            sampling, kind="cyclic_poisson", bands=self.bands, steps_per_epoch=steps, passes=1
        )

    def check_batches(self, sampling):
        if sampling.chain_steps is None or sampling.bands != self.bands:
            raise PrivacyError(
                "tfdp can account for the noise of a `BandedMatrix` only if no record can be "
                f"sampled twice within {self.bands} consecutive steps (`bands`). Make the batches "
                f"with `tfdp.data.cyclic_poisson_batches(..., bands={self.bands})`, or leave out "
                "`noise_correlation` of the DPOptimizer. For a stream in its order, use "
                f"`tfdp.optimizers.BandedInverse`. Received: {sampling.kind} batches, "
                f"bands={sampling.bands}"
            )
        if sampling.passes != 1 and sampling.steps_per_epoch % self.bands:
            raise PrivacyError(
                "Each pass begins with the first part of the records. If the number of steps of a "
                "pass is not a multiple of `bands`, a record could be sampled again too soon. "
                "`take` a multiple of `bands` steps, or make the batches with passes=1. "
                f"Received: {sampling.steps_per_epoch} steps a pass, bands={self.bands}"
            )

    def correlation(self, optimizer, sampling):
        c, steps = self.coefficients, sampling.chain_steps
        if c is None:
            workload = self._workload(optimizer, steps)
            c = banded_noise.optimized_strategy(self.bands, steps, workload)
        return self._chain(c, steps)


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
