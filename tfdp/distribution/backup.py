"""Resuming the training of several workers."""

import keras

from tfdp.runtime.replicas import is_first_worker


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore` for several workers: the first one writes, all read.

    When a worker is lost, the others cannot go on: all are started again, and resume from the
    same backup, with the same weights, slots and ledger. Steps after the backup are run again,
    with fresh noise and fresh batches.

    Args:
        backup_dir: a folder that all workers can read.
        kwargs: of `keras.callbacks.BackupAndRestore`. `double_checkpoint=True` survives the loss
            of the first worker while it writes.
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
