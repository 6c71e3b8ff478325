"""The one place that charges training steps, and decides what noise they have."""

import numpy as np
import tensorflow as tf

from tfdp import accounting

_NO_LIMIT = np.iinfo(np.int64).max
# The share of δ that calibration keeps back for truncated Poisson batches.
_TRUNCATION_SHARE = 1e-3


class Charging:
    """Counts the steps of a DPOptimizer into a record, and stops them at its budget.

    The variables here are known to this process only and invisible to checkpoints; what is saved
    is the record.

    Args:
        optimizer: the DPOptimizer, for its settings.
        noise_multiplier: σ if the user chose it, None if the budget does.
    """

    def __init__(self, optimizer, noise_multiplier):
        self.requested_noise_multiplier = noise_multiplier
        self._optimizer = optimizer
        self._record = accounting.Record()
        self._run = None
        self._sampling = None
        self._calibrations = {}
        with tf.init_scope():
            self._ran = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_of_run")
            self._limit = tf.Variable(0, dtype=tf.int64, trainable=False, name="step_limit")
            self._stddev = tf.Variable(
                float("nan"), dtype=tf.float64, trainable=False, name="noise_stddev"
            )

    @property
    def record(self):
        """The `tfdp.accounting.Record`, up to date."""
        if self._run is not None:
            self._record.count(self._run, self._ran.numpy())
        return self._record

    @property
    def steps(self):
        """Steps charged so far, under any settings."""
        return self.record.steps

    @property
    def sampling(self):
        """How the batches of the last `fit` were drawn, or None."""
        return self._sampling

    @property
    def noise_multiplier(self):
        """σ: as given, as the budget's earlier steps had it, or calibrated to what is left."""
        if self.requested_noise_multiplier is not None:
            return float(self.requested_noise_multiplier)
        mine = self._runs_of_this_budget()
        if mine:
            return mine[-1][0]["noise_multiplier"]
        ledger = self.record.ledger()
        key = ledger.to_json()
        if key not in self._calibrations:
            optimizer = self._optimizer
            self._calibrations[key] = accounting.calibrate_noise_multiplier(
                optimizer.budget,
                optimizer.sampling_probability,
                optimizer.steps,
                other_events=[ledger.event()] if len(ledger) else [],
                extra_delta=_TRUNCATION_SHARE * optimizer.budget.delta,
            )
        return self._calibrations[key]

    @property
    def remaining(self):
        """Steps that the budget still allows, or None without a budget."""
        if self._optimizer.budget is None:
            return None
        return self._optimizer.steps - sum(steps for _, steps in self._runs_of_this_budget())

    def share(self, record):
        """Charges to `record` from now on, together with what this optimizer had charged."""
        if record is not self._record:
            record.merge(self.record)
            self._record = record

    def epsilon_after(self, steps, delta):
        """ε at δ if `steps` more steps are run as they are now."""
        further = [(self._settings(), steps)] if steps else []
        ledger = self.record.ledger(further)
        return ledger.epsilon(delta) if len(ledger) else 0.0

    def begin(self, sampling):
        """Called eagerly before steps whose batches are drawn as `sampling` says (None: unknown).

        Raises:
            BudgetError: if the budget is spent, or the steps that are left would exceed it.
        """
        remaining = self.remaining
        budget = self._optimizer.budget
        if sampling is not None:
            self._sampling = sampling
            self._check_budget(budget, remaining, sampling)
        settings = self._settings(sampling)
        self._run = self.record.start(settings)
        self._ran.assign(0)
        self._limit.assign(_NO_LIMIT if remaining is None else max(remaining, 0))
        self._stddev.assign(settings["noise_multiplier"] * self._optimizer.clip_norm)

    def active(self):
        """Scalar bool tensor: whether the budget allows another step."""
        return self._ran < self._limit

    def charge_step(self):
        """Charges one step, in the graph of the step itself.

        Returns:
            The standard deviation of its noise, a float64 tensor.
        """
        self._ran.assign_add(tf.cast(self.active(), tf.int64))
        return self._stddev.read_value()

    def to_bytes(self):
        """The record as a uint8 array."""
        return np.frombuffer(self.record.to_json().encode(), np.uint8)

    def merge_bytes(self, data):
        """Adds the charges that `to_bytes` gave."""
        self.record.merge_json(bytes(np.asarray(data, np.uint8)).decode())

    def _runs_of_this_budget(self):
        mine = {k: v for k, v in self._settings_without_noise().items() if k != "sampling"}
        return [
            (settings, steps)
            for settings, steps in self.record.runs
            if all(settings.get(k) == v for k, v in mine.items())
        ]

    def _check_budget(self, budget, remaining, sampling):
        if budget is None:
            return
        if remaining <= 0:
            raise accounting.BudgetError(
                f"The budget (epsilon={budget.epsilon}, delta={budget.delta}) is spent: all "
                f"{self._optimizer.steps} steps have run. Compile the model with a larger budget "
                "to train on; what was spent stays charged."
            )
        ledger = self.record.ledger([(self._settings(sampling), remaining)])
        epsilon = ledger.epsilon(budget.delta)
        if epsilon > budget.epsilon * (1 + 1e-9):
            raise accounting.BudgetError(
                f"The {remaining} steps left would end at epsilon={epsilon:.6g}, beyond the "
                f"budget's {budget.epsilon} at delta={budget.delta}: more was charged to these "
                "weights than when the noise was calibrated, or `max_batch_size` "
                f"({sampling.max_batch_size}) cuts off batches too often. Compile again with a "
                "new DPOptimizer, which calibrates to what is left, or leave `max_batch_size` out."
            )

    def _settings(self, sampling="last"):
        sampling = self._sampling if sampling == "last" else sampling
        return {
            **self._settings_without_noise(),
            "noise_multiplier": self.noise_multiplier,
            "sampling": sampling.to_dict() if sampling else None,
        }

    def _settings_without_noise(self):
        optimizer = self._optimizer
        budget = optimizer.budget
        return {
            "sampling_probability": optimizer.sampling_probability,
            "clip_norm": optimizer.clip_norm,
            "clipping": optimizer.clipping,
            "seeded_noise": optimizer.seed is not None,
            "budget": [budget.epsilon, budget.delta, optimizer.steps] if budget else None,
        }


class RecordState(tf.train.experimental.PythonState):
    """Carries a record through tf.train.Checkpoint."""

    def __init__(self, charging):
        self._charging = charging

    def serialize(self):
        return bytes(self._charging.to_bytes())

    def deserialize(self, string_value):
        self._charging.merge_bytes(np.frombuffer(string_value, np.uint8))
