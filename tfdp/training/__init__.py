"""Private training: the model, what is checked before a run, the step, and its charge."""
