"""Callbacks that show the privacy of a run while it trains."""

from __future__ import annotations

import math
import os

import keras
import tensorflow as tf

from tfdp.accounting.budget import check_delta
from tfdp.accounting.reports import curves
from tfdp.accounting.rounding import round_up_to
from tfdp.clipping.sums.surviving_rows import table_name
from tfdp.optimizers import DPOptimizer

__all__ = ["PrivacyCurve", "PrivacyMeter"]

_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)
_DECIMALS = 4  # as many as Keras' progress bar shows; it would round down


def charging_and_delta(model, delta, name):
    """What charges a model's steps, and the δ at which its ε is shown.

    Args:
        model: the model, while `fit` goes on.
        delta: the user's δ, or None.
        name: of the callback, for errors.

    Raises:
        ValueError: for a model whose training is not private, or a δ above 1/n.
    """
    charging = getattr(model, "charging", None)
    mechanism = getattr(charging, "mechanism", None)
    num_examples = getattr(mechanism, "num_examples", None)
    ledger = None if charging is None else charging.history.ledger()
    if num_examples is None and (ledger is None or ledger.num_examples is None):
        raise ValueError(
            f"{name} needs a model with a privacy cost: compile it with a "
            "tfdp.optimizers.DPOptimizer, give it DPForwardNoise layers, or train it on released "
            f"data. Received: optimizer={getattr(model, 'optimizer', None)}"
        )
    largest = max(n for n in (num_examples, ledger.num_examples) if n is not None)
    if delta is None:
        delta = getattr(model.optimizer, "default_delta", 0.1 / largest)
    check_delta(delta, largest)
    return charging, delta


class PrivacyMeter(keras.callbacks.Callback):
    """Shows ε in the progress bar and the logs (so in TensorBoard, too), and stops at a limit.

    ε is that of the ledger, including everything charged before training, rounded up to four
    decimals. It is computed for some steps ahead (for an epoch if its length is known). During an
    epoch the progress bar therefore shows the ε at its end, and never less than was spent.

    Args:
        delta: δ at which ε is shown; defaults to the optimizer's, or 1/(10·n).
        max_epsilon: training stops before a step would take ε beyond this.

    Raises:
        ValueError: at the start of training, for a model whose training is not private, if δ is
            above 1/n, or if `max_epsilon` is already spent.
    """

    #: `fit` calls it before the callbacks that read the logs, wherever it stands in the list.
    writes_logs = True

    def __init__(self, delta: float | None = None, max_epsilon: float | None = None):
        super().__init__()
        if max_epsilon is not None and not 0 < max_epsilon < math.inf:
            raise ValueError(
                "Argument `max_epsilon` must be positive and finite. "
                f"Received: max_epsilon={max_epsilon}"
            )
        self.delta = delta
        self.max_epsilon = max_epsilon

    def on_train_begin(self, logs=None):
        self._charging, self._delta = charging_and_delta(self.model, self.delta, "PrivacyMeter")
        self._first = self._charging.steps_of_run
        self._done = self._known_until = 0
        self._allowed = None
        if self.max_epsilon is not None:
            if isinstance(self.model.optimizer, DPOptimizer):
                # In the step itself, and again whenever a backup brings more charges.
                self._charging.limit_epsilon(self.max_epsilon, self._delta)
            self._allowed = self._charging.steps_within(self.max_epsilon, self._delta)
            if self._allowed < self.model.steps_per_execution:
                raise ValueError(
                    "Argument `max_epsilon` is already spent: the next step would raise ε to "
                    f"{self._charging.epsilon_after(1, self._delta):.4g}. Raise `max_epsilon`. "
                    f"Received: max_epsilon={self.max_epsilon}"
                )

    def _steps(self):
        return self._charging.steps_of_run - self._first

    def on_epoch_begin(self, epoch, logs=None):
        self._done = self._known_until = self._steps()
        if self._allowed is not None:  # a backup may have brought more charges
            within = self._charging.steps_within(self.max_epsilon, self._delta)
            self._allowed = min(self._allowed, self._done + within)
        self._look_ahead((self.params or {}).get("steps") or 1)

    def on_train_batch_end(self, batch, logs=None):
        self._done += self.model.steps_per_execution
        if self._done > self._known_until:
            self._look_ahead(self._done)  # twice as many steps as there were
        if logs is not None:
            logs["epsilon"] = self._epsilon
        if self._is_last():
            self._done = self._steps()  # the last execution of an epoch may have had fewer
            self.model.stop_training |= self._is_last()

    def _is_last(self):
        more = self.model.steps_per_execution
        return self._allowed is not None and self._done + more > self._allowed

    def on_epoch_end(self, epoch, logs=None):
        self._epsilon = self._epsilon_after(0)
        self._known_until = self._done
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def _look_ahead(self, steps):
        """Shows ε as it will be after `steps` more steps, until there are more."""
        self._epsilon = self._epsilon_after(steps)
        self._known_until = self._done + steps

    def _epsilon_after(self, steps):
        return round_up_to(self._charging.epsilon_after(steps, self._delta), _DECIMALS)


class PrivacyCurve(keras.callbacks.Callback):
    """Records ε, and the size of a row selection, over the steps, and plots them.

    It records no raw data: ε and σ are public, and the surviving rows are a private output. It does
    not record the size of a drawn batch, which reveals who took part; amplification by sampling
    assumes that nobody knows this. Losses and metrics, which are computed on raw data, are left to
    Keras.

    ```python
    curve = tfdp.callbacks.PrivacyCurve(log_dir="logs")
    model.fit(batches, epochs=10, callbacks=[curve])
    curve.plot("privacy.png")
    ```

    Args:
        delta: δ at which ε is computed; defaults to the optimizer's, or 1/(10·n).
        log_dir: folder for TensorBoard, in which the scalars "privacy/epsilon",
            "privacy/noise_multiplier" and "privacy/gradient_size" appear; None writes none.

    Attributes:
        points: list of dicts, one at the start of each `fit` and one after each epoch. Keys: "step"
            (over all fits with this callback), "epsilon" (rounded up) and "noise_multiplier". With
            a selection also "gradient_size" (table entries noised in a step, mean of the epoch)
            and, if all tables have the same width, "survivors" (rows).

    Raises:
        ValueError: at the start of training, as `PrivacyMeter`.
    """

    def __init__(self, delta: float | None = None, log_dir: str | os.PathLike | None = None):
        super().__init__()
        self.delta = delta
        self.log_dir = log_dir
        self.points: list[dict] = []
        self._step = 0

    def on_train_begin(self, logs=None):
        self._charging, self._delta = charging_and_delta(self.model, self.delta, "PrivacyCurve")
        self._writer = None
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(os.fspath(self.log_dir))
        self._keep({})

    def on_train_batch_end(self, batch, logs=None):
        self._step += self.model.steps_per_execution

    def on_epoch_end(self, epoch, logs=None):
        self._keep(logs or {})

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()

    def plot(self, path: str | os.PathLike):
        """Draws the points into an image file; needs matplotlib.

        Raises:
            ValueError: if nothing was trained, or matplotlib is missing.
        """
        if not self.points:
            raise ValueError(
                "PrivacyCurve has recorded no steps. Pass it to `fit` as a callback first."
            )
        curves.plot(self.points, self._delta, path)

    def _keep(self, logs):
        epsilon = round_up_to(self._charging.epsilon_after(0, self._delta), _DECIMALS)
        point = {"step": self._step, "epsilon": epsilon}
        sigma = getattr(self._charging.mechanism, "noise_multiplier", None)
        if sigma is not None:
            point["noise_multiplier"] = float(sigma)
        if "gradient_size" in logs:
            point["gradient_size"] = float(logs["gradient_size"])
            widths = {v.shape[1] for v in self.model.trainable_variables if table_name(v)}
            if len(widths) == 1:
                point["survivors"] = point["gradient_size"] / widths.pop()
        self.points.append(point)
        if self._writer is not None:
            with self._writer.as_default():
                for name, value in point.items():
                    if name != "step" and math.isfinite(value):
                        # Not tf.summary.scalar, which needs the package tensorboard.
                        tf.summary.write(
                            f"privacy/{name}", tf.constant(value, tf.float32), step=self._step,
                            metadata=_SCALAR,
                        )  # fmt: skip


def __dir__():
    return sorted(__all__)
