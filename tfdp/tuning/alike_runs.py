"""Runs of which none shows its place among the others."""

from tfdp._compat.process_state import (
    RandomState,
    count_names_from,
    name_counts,
    seed_from_entropy,
)


class AlikeRuns:
    """Context in which every run finds the process as every other does.

    Names of layers and seeds of initial values go on from run to run in Keras and TensorFlow, and
    into the files of the model that is published: they would tell which run it was. Here every run
    counts names from where the first one did, and takes seeds from the operating system. At the
    end random numbers go on as if there had been no run, and names as after the one that is kept:
    neither tells how many there were.
    """

    def __enter__(self):
        self._random = RandomState()
        self._before = self._after = name_counts()
        return self

    def __exit__(self, *error):
        count_names_from(self._after)
        self._random.restore()

    def begin(self):
        """Called before each run."""
        count_names_from(self._before)
        seed_from_entropy()

    def keep(self):
        """Called after the run whose model is the best so far."""
        self._after = name_counts()
