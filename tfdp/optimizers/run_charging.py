"""Steps that are charged while they run: a counter in the graph of the step, and its history."""

import json

import numpy as np
import tensorflow as tf


class StepCounter:
    """Counts the steps of one run after another into a history.

    The counter lives in the graph of the step, so that no compiled step is ever free. It is known
    to this process only and invisible to checkpoints; what is saved is the history. The history
    holds the counter, and nothing else holds the history's steps: whoever took them may be gone.

    Args:
        history: a `tfdp.accounting.charges.history.ChargeHistory`.
    """

    def __init__(self, history):
        self._history = history
        self.run = None
        with tf.init_scope():
            self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_of_run")
        history.attach(self)

    def begin(self, mechanism, name=None):
        """Called eagerly before steps that cost what `mechanism` says."""
        self.end()
        self.run = self._history.start(mechanism, name)

    def end(self):
        """Called eagerly after the last step of a run."""
        self.flush()
        self.run = None
        self.steps.assign(0)

    def count(self, steps=1):
        """Counts steps, in the graph of the step itself."""
        self.steps.assign_add(tf.cast(steps, tf.int64))  # CHARGES

    def flush(self):
        """Writes the steps of the current run into the history."""
        if self.run is None:
            return
        with tf.init_scope():
            # Inside a plain tf.Graph (tf.saved_model.save) nothing can be read, and nothing ran.
            if tf.executing_eagerly():
                self._history.count(self.run, self.steps.numpy())


class RunCharging:
    """Charges runs of steps, and looks ahead.

    Attributes:
        history: the `ChargeHistory` of the weights that are trained.
        mechanism: what the steps of the current run cost, one of `tfdp.accounting`'s mechanisms.
        weights: a `WeightOrigin`, whose `states()` are stored with
            the history, or None.
    """

    def __init__(self, history, weights=None):
        self.history = history
        self.weights = weights
        self.mechanism = None
        self._counter = StepCounter(history)

    def begin(self, mechanism):
        """Called eagerly before steps that cost what `mechanism` says.

        Raises:
            PrivacyError: if they have no ε together with what was charged before.
        """
        self.history.refuse_without_rule(mechanism)
        self.mechanism = mechanism
        self._counter.begin(mechanism)

    @property
    def steps_of_run(self):
        """How many steps the run that goes on has charged."""
        return int(self._counter.steps.numpy())

    def charge_step(self):
        """Charges one step, in the graph of the step itself; not on each replica."""
        self._counter.count()

    def ledger_after(self, steps):
        """The ledger as it will be when the current run has `steps` more steps."""
        if not steps:
            return self.history.ledger()
        return self.history.ledger((self._counter.run or "ahead", self.mechanism, steps))

    def epsilon_after(self, steps, delta):
        """ε at δ if `steps` more steps are run as they are now; 0 for an empty ledger."""
        ledger = self.ledger_after(steps)
        return ledger.epsilon(delta) if len(ledger) else 0.0

    def steps_within(self, max_epsilon, delta):
        """The largest number of further steps that keeps ε within a limit, by bisection."""
        if self.epsilon_after(1, delta) > max_epsilon:
            return 0
        low, high = 1, 2
        while high < _NO_END and self.epsilon_after(high, delta) <= max_epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            within = self.epsilon_after(middle, delta) <= max_epsilon
            low, high = (middle, high) if within else (low, middle)
        return low

    def to_bytes(self):
        """The history, and which weights it accounts for, as a uint8 array."""
        states = self.weights.states() if self.weights is not None else []
        text = json.dumps({"history": self.history.to_json(), "states": states})
        return np.frombuffer(text.encode(), np.uint8)

    def merge_bytes(self, data):
        """Adds what `to_bytes` gave."""
        stored = json.loads(bytes(np.asarray(data, np.uint8)).decode())
        self.history.merge_json(stored["history"])
        if self.weights is not None:
            self.weights.restore(stored["states"])


_NO_END = 1 << 40


class HistoryState(tf.train.experimental.PythonState):
    """Carries a history through tf.train.Checkpoint.

    Args:
        charging: a `RunCharging`.
    """

    def __init__(self, charging):
        self._charging = charging

    def serialize(self):
        return bytes(self._charging.to_bytes())

    def deserialize(self, string_value):
        self._charging.merge_bytes(np.frombuffer(string_value, np.uint8))
