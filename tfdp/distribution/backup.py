"""Resuming training that was interrupted, of one process or of several workers."""

from tfdp._compat.backups import WholeBackups
from tfdp.runtime.replicas import is_first_worker


class BackupAndRestore(WholeBackups):
    """`keras.callbacks.BackupAndRestore` that a crash in the middle of a write does not spoil.

    A backup is written beside the one before, and takes its place when it is complete. It has
    weights, slots and ledger; steps after it are run again, with fresh noise and fresh batches.

    Of several workers the first one writes, and all read. When a worker is lost, the others
    cannot go on: all are started again, and resume from the same backup.

    Args:
        backup_dir: a folder that all workers can read.
        kwargs: of `keras.callbacks.BackupAndRestore`.
    """

    def on_epoch_end(self, epoch, logs=None):
        if is_first_worker(self.model.distribute_strategy):
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if is_first_worker(self.model.distribute_strategy):
            super().on_train_batch_end(batch, logs)

    def on_train_end(self, logs=None):
        if is_first_worker(self.model.distribute_strategy):
            super().on_train_end(logs)
