"""Records that are their own numbers, and which of them the batches of a sampler hold."""

import numpy as np

import tfdp

FALSE_ALARM = 1e-6


def numbered(n):
    """Records that are their own index plus one, so that padding (0) is recognisable."""
    index = np.arange(1, n + 1)
    return index.astype(np.int32), index.astype(np.float32)


def draws(batches):
    """(steps, n) matrix of which record took part in which step of one pass."""
    n = tfdp.data.sampling_of(batches).num_examples
    rows = []
    for x, y, weight in batches.batch(500).as_numpy_iterator():
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(weight, (x > 0).astype(np.float32))
        rows += [np.bincount(drawn, minlength=n + 1)[1:] for drawn in x]
    return np.stack(rows)
