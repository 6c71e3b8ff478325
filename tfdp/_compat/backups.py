"""Keras' backups, whole at any moment."""

import contextlib
import os
import platform
import secrets

import keras
import tensorflow as tf

_PART = "part"  # of a backup that is being written


class WholeBackups(keras.callbacks.BackupAndRestore):
    """Writes a backup beside the one before, and puts it into its place when it is complete.

    Keras writes over the one before: of processes killed at random in training that saves after
    every step, a quarter could not be resumed.
    """

    def _save_model(self):
        names = ("_weights_path", "_training_metadata_path")
        whole = [getattr(self, name) for name in names]
        if self.double_checkpoint:
            for path in whole:
                if tf.io.gfile.exists(path):
                    tf.io.gfile.copy(path, f"{path}.bkp", overwrite=True)
        # Another process may write into the same folder: each has names of its own.
        own = f"{_PART}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}"
        parts = [os.path.join(os.path.dirname(p), f"{own}.{os.path.basename(p)}") for p in whole]
        _remove_parts_of_killed_processes(os.path.dirname(whole[0]))
        try:
            for name, part in zip(names, parts, strict=True):
                setattr(self, name, part)
            super()._save_model()
        except BaseException:
            for part in parts:
                _remove(part)
            raise
        finally:
            for name, path in zip(names, whole, strict=True):
                setattr(self, name, path)
        # Weights first: steps that the numbers do not know are run again, and charged again.
        for part, path in zip(parts, whole, strict=True):
            tf.io.gfile.rename(part, path, overwrite=True)


def _remove_parts_of_killed_processes(folder):
    """Removes what processes of this machine that are no more left unfinished in a folder."""
    if os.name != "posix" or not tf.io.gfile.exists(folder):
        return
    begin = f"{_PART}.{platform.node()}."
    for name in tf.io.gfile.listdir(folder):
        pid = name.removeprefix(begin).split(".")[0]
        if name.startswith(begin) and pid.isdigit() and not _runs(int(pid)):
            _remove(os.path.join(folder, name))


def _remove(path):
    with contextlib.suppress(tf.errors.NotFoundError):  # never made, or another one was faster
        tf.io.gfile.remove(path)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
