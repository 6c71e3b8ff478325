"""DPModel: `fit`, a run, a step. What they call is in the rooms above."""

import keras  # noqa: F401 (first: what waits for it imports the modules below)
