"""What a DPOptimizer has run: the one place that charges training steps to the ledger.

The number of steps is a variable of the optimizer, so that every way of saving a model keeps it;
which noise and which batches those steps had is kept beside it, so that a model restored into a
program with other settings is still charged for what was really run.
"""

import json

import numpy as np
import tensorflow as tf

from tfdp import accounting

_NO_LIMIT = np.iinfo(np.int64).max
# The share of δ kept back for truncated Poisson batches; what truncates more is refused.
_TRUNCATION_SHARE = 1e-3


class TrainingRecord:
    """Steps, releases and the noise they had.

    Args:
        optimizer: the DPOptimizer, for its public settings.
        noise_multiplier: σ if the user chose it, None if the budget does.
    """

    def __init__(self, optimizer, noise_multiplier):
        self.requested_noise_multiplier = noise_multiplier
        self._optimizer = optimizer
        self._closed = accounting.Ledger()
        self._calibrated = None
        self._sampling = None
        self._saved_segment = None
        self._expected = 0
        self._executed = 0
        self._steps = None
        # Known to this process only; deliberately invisible to checkpoints.
        with tf.init_scope():
            self._ran = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_in_process")
            self._limit = tf.Variable(
                optimizer.steps if optimizer.budget else _NO_LIMIT,
                dtype=tf.int64, trainable=False, name="step_limit",
            )  # fmt: skip

    def build(self, optimizer):
        """Creates the step counter among the optimizer's own variables."""
        self._steps = optimizer.add_variable(
            shape=(), dtype="int64", initializer="zeros", name="private_steps"
        )
        # tf.train.Checkpoint keeps Python state of this kind; `.keras` files keep `to_bytes`.
        optimizer.ledger_state = _LedgerState(self)

    @property
    def noise_multiplier(self):
        """σ; calibrated, on first use, to what the other charges leave of the budget."""
        if self.requested_noise_multiplier is not None:
            return float(self.requested_noise_multiplier)
        if self._calibrated is None:
            optimizer = self._optimizer
            self._calibrated = accounting.calibrate_noise_multiplier(
                optimizer.budget,
                optimizer.sampling_probability,
                optimizer.steps,
                other_events=[e.event for e in self._closed.entries for _ in range(e.count)],
                extra_delta=_TRUNCATION_SHARE * optimizer.budget.delta,
            )
        return self._calibrated

    @property
    def steps(self):
        """Steps charged so far, over all settings."""
        self.sync()
        return self._current() + sum(e.count for e in self._closed.entries if e.is_training)

    @property
    def sampling(self):
        """How the batches of the last `fit` were drawn, or None."""
        return self._sampling

    @property
    def remaining(self):
        """Steps that the budget still allows, or None without a budget."""
        return self._optimizer.steps - self.steps if self._optimizer.budget else None

    def ledger(self):
        """Everything charged so far."""
        self.sync()
        ledger = self._closed.copy()
        if self._current():
            ledger.merge(accounting.Ledger([_entry(self._segment(), self._current())]))
        return ledger

    def epsilon_after(self, steps, delta):
        """ε at δ if `steps` more steps are run as they are now."""
        ledger = self.ledger()
        if steps:
            ledger.merge(accounting.Ledger([_entry(self._settings(), steps)]))
        return ledger.epsilon(delta) if len(ledger) else 0.0

    def charge(self, entries):
        """Charges releases that went into the model; one already charged is not charged twice."""
        for entry in entries:
            if entry not in self._closed.entries:
                self._closed.merge(accounting.Ledger([entry]))
                if not self._current():
                    self._calibrated = None

    def absorb(self, ledger):
        """Charges what an earlier optimizer of the same model had run."""
        self.charge(ledger.entries)

    def begin(self, sampling):
        """Called eagerly before steps whose batches are drawn as `sampling` says.

        Raises:
            BudgetError: if the budget is spent, or cutting off Poisson batches would break it.
        """
        self.sync()
        before = self._segment()
        self._sampling = sampling
        if self._current() and before != self._segment():
            self._close(before, self._current())
            self._steps.assign(0)
            self._expected = 0
        self._saved_segment = None
        self._check_truncation(sampling)
        budget = self._optimizer.budget
        if budget is None:
            return
        spent = self.steps - self._current()
        self._limit.assign(self._optimizer.steps - spent)
        if self.remaining <= 0:
            raise accounting.BudgetError(
                f"The budget (epsilon={budget.epsilon}, delta={budget.delta}) is spent: all "
                f"{self._optimizer.steps} steps have run. Training on would exceed it. Compile "
                "the model with a larger budget; what was spent stays charged."
            )

    def active(self):
        """Scalar bool tensor: whether the budget allows another step."""
        if self._steps is None:
            return tf.constant(True)
        return tf.convert_to_tensor(self._steps.value) < self._limit

    def charge_step(self):
        """Charges one step, in the graph of the step itself."""
        one = tf.cast(self.active(), tf.int64)
        self._steps.assign_add(one)
        self._ran.assign_add(one)

    def sync(self):
        """Charges steps that were run in this process and then undone by loading older weights."""
        if self._steps is None:
            return
        ran = int(self._ran.numpy())
        self._ran.assign(0)
        self._executed += ran
        self._expected += ran
        undone = min(self._expected - self._current(), self._executed)
        if undone > 0:
            self._close({**self._settings(), "undone": True}, undone)
            self._executed -= undone
        self._expected = self._current()

    def to_bytes(self):
        """uint8 array holding everything but the step counter."""
        self.sync()
        state = {"closed": self._closed.to_json(), "segment": self._segment()}
        return np.frombuffer(json.dumps(state).encode(), np.uint8)

    def from_bytes(self, data):
        """Restores `to_bytes`, keeping charges that only this process knows of."""
        self.sync()
        state = json.loads(bytes(np.asarray(data, np.uint8)).decode())
        closed = accounting.Ledger.from_json(state["closed"])
        for entry in self._closed.entries:
            if entry not in closed.entries:
                closed.merge(accounting.Ledger([entry]))
        self._closed = closed
        self._saved_segment = state["segment"]
        mine = self._settings(calibrated=False)
        if all(self._saved_segment.get(k) == v for k, v in mine.items()):
            self._calibrated = self._saved_segment["noise_multiplier"]

    def _current(self):
        return 0 if self._steps is None else int(self._steps.numpy())

    def _segment(self):
        """What the counted steps had; for restored steps, what was saved with them."""
        return self._settings() if self._saved_segment is None else self._saved_segment

    def _settings(self, calibrated=True):
        optimizer = self._optimizer
        settings = {
            "sampling_probability": optimizer.sampling_probability,
            "clip_norm": optimizer.clip_norm,
            "clipping": optimizer.clipping,
            "seeded_noise": optimizer.seed is not None,
            "budget": [optimizer.budget.epsilon, optimizer.budget.delta, optimizer.steps]
            if optimizer.budget
            else None,
        }
        if calibrated:
            settings["noise_multiplier"] = self.noise_multiplier
            settings["sampling"] = self._sampling.to_dict() if self._sampling else None
        return settings

    def _close(self, segment, steps):
        self._closed.merge(accounting.Ledger([_entry(segment, steps)]))

    def _check_truncation(self, sampling):
        optimizer = self._optimizer
        if sampling is None or not sampling.overflow_probability or optimizer.steps is None:
            return
        budget = optimizer.budget or accounting.PrivacyBudget(10.0, optimizer.default_delta)
        cost = accounting.truncation_delta(
            budget.epsilon, optimizer.steps, sampling.overflow_probability
        )
        if optimizer.budget and cost > _TRUNCATION_SHARE * budget.delta:
            raise accounting.BudgetError(
                "Argument `max_batch_size` cuts off Poisson batches so often that it costs "
                f"{cost:.3g} of δ = {budget.delta:.3g}. Leave it out of `poisson_batches`, or "
                f"raise it. Received: max_batch_size={sampling.max_batch_size}"
            )


class _LedgerState(tf.train.experimental.PythonState):
    """Carries the record through tf.train.Checkpoint."""

    def __init__(self, record):
        self._record = record

    def serialize(self):
        return bytes(self._record.to_bytes())

    def deserialize(self, string_value):
        self._record.from_bytes(np.frombuffer(string_value, np.uint8))


def _entry(segment, steps):
    """The ledger's entry for `steps` steps under the same settings."""
    details = {"kind": "training", **{k: v for k, v in segment.items() if v is not None}}
    details.pop("sampling_probability")
    if segment["sampling"] is not None:
        sampling = accounting.Sampling.from_dict(segment["sampling"])
        details["overflow_probability"] = sampling.overflow_probability
    return accounting.LedgerEntry(
        "private training",
        accounting.training_event(segment["noise_multiplier"], segment["sampling_probability"]),
        steps,
        details,
    )
