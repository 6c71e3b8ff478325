"""The subcommands of `tfdp`, one in each module. They compute nothing themselves.

Each has a function `add` that adds its parser and sets `run` to a function of the parsed arguments,
which returns the exit status. Modules import what they need when they run: `--help` loads neither
TensorFlow nor Keras.
"""
