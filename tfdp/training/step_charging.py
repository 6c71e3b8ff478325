"""Charges of training steps that no DPOptimizer takes: forward noise, released data, or nothing."""

import tensorflow as tf

#: Steps that nothing protects; what a step is until it is known to be something else.
NO_PRIVACY = {"kind": "no privacy"}


class StepCharging:
    """Counts the steps of a plain Keras optimizer into a record.

    The counter lives in the graph of the step, so that no compiled step is ever free, whatever
    its batches turn out to be. It is known to this process only; what is saved is the record.

    Args:
        record: the `tfdp.accounting.Record` of the weights that are trained.
    """

    def __init__(self, record):
        self._record = record
        self._run = None
        with tf.init_scope():
            self._ran = tf.Variable(0, dtype=tf.int64, trainable=False, name="plain_steps_of_run")
        record.attach(self)
        self.begin(NO_PRIVACY)

    def begin(self, settings):
        """Called eagerly before steps that are to be charged as `settings` say.

        Args:
            settings: JSON-able dict with a "kind" that `tfdp.accounting.Record` knows.
        """
        self.flush()
        self._ran.assign(0)
        self._run = self._record.start(settings)

    def count_step(self):
        """Counts one step, in the graph of the step itself; not on each replica."""
        self._ran.assign_add(1)

    def flush(self):
        """Writes the steps of the current run into the record."""
        if self._run is None:
            return
        with tf.init_scope():
            if tf.executing_eagerly():
                self._record.count(self._run, self._ran.numpy())


class RecordState(tf.train.experimental.PythonState):
    """Carries the record of a model without a DPOptimizer through tf.train.Checkpoint."""

    def __init__(self, record):
        self._record = record

    def serialize(self):
        return self._record.to_json().encode()

    def deserialize(self, string_value):
        self._record.merge_json(bytes(string_value).decode())
