"""The one place that charges training steps, and decides what noise they have."""

import os

import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp.runtime.replicas import of_first_replica

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
        self._record.attach(self)
        self._run = None
        self._settings_of_run = None
        self._sampling = None
        self._calibrations = {}
        self._host_stddev = None
        with tf.init_scope():
            self._ran = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_of_run")
            self._limit = tf.Variable(0, dtype=tf.int64, trainable=False, name="step_limit")
            self._stddev = tf.Variable(
                float("nan"), dtype=tf.float64, trainable=False, name="noise_stddev"
            )

    @property
    def variables(self):
        """Steps of this run, how many it may have, and σ·C of its steps."""
        return [self._ran, self._limit, self._stddev]

    @property
    def record(self):
        """The `tfdp.accounting.Record` that is charged."""
        return self._record

    def flush(self):
        """Writes the steps of the current run into the record."""
        if self._run is None:
            return
        with tf.init_scope():
            # Inside a plain tf.Graph (tf.saved_model.save) nothing can be read, and nothing ran.
            if tf.executing_eagerly():
                self._record.count(self._run, self._ran.numpy())

    @property
    def steps(self):
        """Steps charged so far, under any settings."""
        return self._record.steps

    @property
    def sampling(self):
        """How the batches of the last `fit` were drawn; None if any step's batch is of unknown
        origin."""
        if any(settings["sampling"] is None for settings, _ in self._record.runs):
            return None
        return self._sampling

    @property
    def noise_multiplier(self):
        """σ: as given, as the budget's earlier steps had it, or calibrated to what is left."""
        if self.requested_noise_multiplier is not None:
            return float(self.requested_noise_multiplier)
        mine = self._runs_of_this_budget()
        if mine:
            return mine[-1][0]["noise_multiplier"]
        ledger = self._record.ledger()
        key = ledger.to_json()
        if key not in self._calibrations:
            optimizer = self._optimizer
            self._calibrations[key] = accounting.calibrate_noise_multiplier(
                optimizer.budget,
                optimizer.sampling_probability,
                optimizer.steps,
                adjacency=ledger.adjacency,
                other_events=[ledger.event()] if len(ledger) else [],
                extra_delta=_TRUNCATION_SHARE * optimizer.budget.delta,
                accountant=None,
                mechanism=self._mechanism,
            )
        return self._calibrations[key]

    @property
    def remaining(self):
        """Steps that the budget still allows, or None without a budget."""
        if self._optimizer.budget is None:
            return None
        return self._optimizer.steps - sum(steps for _, steps in self._runs_of_this_budget())

    def share(self, record):
        """Makes the record and this optimizer's own one."""
        record.unite(self._record)

    def epsilon_after(self, steps, delta):
        """ε at δ if `steps` more steps are run as they are now."""
        further = [(self._settings(self._sampling), steps)] if steps else []
        ledger = self._record.ledger(further)
        return ledger.epsilon(delta) if len(ledger) else 0.0

    def begin(self, sampling, strategy=None):
        """Called eagerly before steps whose batches are drawn as `sampling` says (None: unknown).

        Args:
            sampling: a `Sampling`, or None.
            strategy: a `tf.distribute.Strategy` of several workers, all of which make this call:
                their steps are one run, which costs once whoever's copy of it is loaded.

        Raises:
            BudgetError: if the budget is spent, or the steps that are left would exceed it.
        """
        self.flush()
        self._ran.assign(0)
        self._limit.assign(0)  # what is refused below leaves no step that nobody would charge
        self._run = None
        if sampling is not None:
            self._sampling = sampling
        self._settings_of_run = settings = self._settings(sampling)
        self._refresh_limit(strict=sampling is not None)
        name = None
        if strategy is not None:
            name = of_first_replica(np.frombuffer(os.urandom(8), np.int64), strategy)
        self._run = self._record.start(settings, None if name is None else name.tobytes().hex())
        stddev = settings["noise_multiplier"] * self._optimizer.clip_norm
        for variable in (self._stddev, self._host_stddev):
            if variable is not None:
                variable.assign(stddev)

    def _refresh_limit(self, strict):
        """Sets how many steps this run may have; `strict` refuses what would break the budget."""
        remaining = self.remaining
        if remaining is None:
            self._limit.assign(_NO_LIMIT)
            return
        if strict:
            self._check_budget(self._optimizer.budget, remaining)
        self._limit.assign(int(self._ran.numpy()) + max(remaining, 0))

    def active(self):
        """Scalar bool tensor: whether the budget allows another step."""
        return self._ran < self._limit

    def noise_stddev(self):
        """σ·C of the steps of this run, a float64 tensor."""
        return self._stddev.read_value()

    def host_noise_stddev(self):
        """σ·C for input pipelines, which run on the host: a variable that follows the run's.

        Called outside of a strategy's scope, which would put the variable onto the devices.
        """
        if self._host_stddev is None:
            with tf.init_scope(), tf.device("/device:CPU:0"):
                value = self._stddev.numpy()
                self._host_stddev = tf.Variable(value, dtype=tf.float64, trainable=False)
        return self._host_stddev

    def charge_step(self):
        """Charges one step, in the graph of the step itself.

        Returns:
            The standard deviation of its noise, a float64 tensor.
        """
        self._ran.assign_add(tf.cast(self.active(), tf.int64))
        return self._stddev.read_value()

    def to_bytes(self):
        """The record as a uint8 array."""
        return np.frombuffer(self._record.to_json().encode(), np.uint8)

    def merge_bytes(self, data):
        """Adds the charges that `to_bytes` gave."""
        self._record.merge_json(bytes(np.asarray(data, np.uint8)).decode())
        if self._run is not None:
            # Loaded in the middle of a fit (BackupAndRestore): what was loaded counts, too.
            with tf.init_scope():
                known = self._settings_of_run["sampling"] is not None
                self._refresh_limit(strict=known and (self.remaining or 0) > 0)

    def _runs_of_this_budget(self):
        mine = {k: v for k, v in self._settings_without_noise().items() if k != "sampling"}
        return [
            (settings, steps)
            for settings, steps in self._record.runs
            if all(settings.get(k) == v for k, v in mine.items())
        ]

    def _check_budget(self, budget, remaining):
        if remaining <= 0:
            raise accounting.BudgetError(
                f"The budget (epsilon={budget.epsilon}, delta={budget.delta}) is spent: all "
                f"{self._optimizer.steps} steps have run. Compile the model with a larger budget "
                "to train on; what was spent stays charged."
            )
        epsilon = self._record.ledger([(self._settings_of_run, remaining)]).epsilon(budget.delta)
        if epsilon > budget.epsilon * (1 + 1e-9):
            raise accounting.BudgetError(
                f"The {remaining} steps left would end at epsilon={epsilon:.6g}, beyond the "
                f"budget's {budget.epsilon} at delta={budget.delta}: more was charged to these "
                "weights than when the noise was calibrated, or `max_batch_size` cuts off batches "
                "too often. Compile again with a new DPOptimizer, which calibrates to what is "
                "left, or raise `max_batch_size` of `poisson_batches` (num_examples never cuts)."
            )

    def _settings(self, sampling):
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
            "mechanism": self._mechanism,
            "selection": optimizer.selection.describe() if optimizer.selection else None,
        }

    @property
    def _mechanism(self):
        selection = self._optimizer.selection
        return "gaussian" if selection is None else selection.step_mechanism


class RecordState(tf.train.experimental.PythonState):
    """Carries a record through tf.train.Checkpoint."""

    def __init__(self, charging):
        self._charging = charging

    def serialize(self):
        return bytes(self._charging.to_bytes())

    def deserialize(self, string_value):
        self._charging.merge_bytes(np.frombuffer(string_value, np.uint8))
