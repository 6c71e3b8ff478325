"""Private training: the model, what is checked before a run, the step, and its charge."""

from tfdp.training import keras_files

keras_files.install()
