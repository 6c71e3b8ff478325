"""TensorFlow: what has no public way."""

import contextlib

from tensorflow.python import pywrap_tfe


def inputs_of(dataset):
    """The datasets that a dataset was made from."""
    return dataset._inputs()


def shards_of_tables(embedding):
    """Dict of the names of a TPU embedding's tables to their parts, fetched from the TPU."""
    # Written to the hosts as for a checkpoint.
    embedding._retrieve_variables()
    return {name: held["parameters"].variables for name, held in embedding._variables.items()}


@contextlib.contextmanager
def tapes_record():
    """Lets gradient tapes record inside of `tf.init_scope`, which stops those of the thread."""
    stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    if stopped:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()
