"""Keeps the log that TensorFlow writes at its start from the terminal."""

import contextlib
import os
import re
import sys
import tempfile

_OF_TENSORFLOW = re.compile(
    rb"WARNING: All log messages before absl|[IWE]\d{4} |\d{4}-\d\d-\d\d .*: [IWE] "
)


@contextlib.contextmanager
def started_quietly():
    """Imports TensorFlow and starts its devices without its lines about GPUs that are not there.

    What else is written to standard error comes after them, as it is. A level that the user chose
    (`TF_CPP_MIN_LOG_LEVEL`) is left alone, and so is the log.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_logical_devices()
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            log.seek(0)
            others = [line for line in log if not _OF_TENSORFLOW.match(line)]
            sys.stderr.write(b"".join(others).decode(errors="replace"))
