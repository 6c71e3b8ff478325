"""DPModel: `fit`, a run, a step. They call the packages above."""

import keras  # noqa: F401 (first: what waits for it imports the modules below)
