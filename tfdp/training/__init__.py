"""Private training: the model, what is checked before a run, the step, and its charge."""

import keras  # noqa: F401 (first: what waits for it imports the modules below)

from tfdp._compat import saved_model, undated
from tfdp.training import initial_values, keras_files

keras_files.install()
initial_values.install()
saved_model.install()
undated.install()
