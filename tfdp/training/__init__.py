"""Private training: the model, what is checked before a run, the step, and its charge."""

import keras  # noqa: F401 (first: what waits for it imports the modules below)
