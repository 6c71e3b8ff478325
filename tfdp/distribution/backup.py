"""Resuming training that was interrupted, of one process or of several workers."""

from tfdp._compat.backups import WholeBackups
from tfdp.runtime.replicas import is_first_worker


class BackupAndRestore(WholeBackups):
    """`keras.callbacks.BackupAndRestore` whose backup survives a crash during a write.

    A backup is written beside the previous one and replaces it when it is complete. It contains
    weights, slots and ledger. Steps after it are run again, with fresh noise and fresh batches.

    With several workers, the first one writes and all read. If a worker is lost, the others cannot
    continue: restart all of them, and they resume from the same backup.

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
