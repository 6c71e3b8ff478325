"""A trial that the library does not have: per-layer clipping with other shares than equal ones."""

import contextlib
import unittest.mock

import tensorflow as tf

from tfdp.clipping import engine
from tfdp.clipping.factors import clip_factors


@contextlib.contextmanager
def table_share(share, clipping):
    """Steps that are traced inside clip each layer by itself; the squared bounds add up to C².

    Args:
        share: of C², for the first layer, which is the table; the other layers have equal parts of
            the rest. None: nothing changes.
        clipping: by which rule each layer is clipped.
    """

    def shared(squared_norms, example_mask, clip_norm, _):
        others = len(squared_norms) - 1
        shares = [share, *[(1 - share) / others] * others]
        found = [
            clip_factors([norm], example_mask, clip_norm * part**0.5, clipping)
            for norm, part in zip(squared_norms, shares, strict=True)
        ]
        finite = tf.reduce_all([of_layer for _, of_layer in found], axis=0)
        return [tf.where(finite, factors[0], 0.0) for factors, _ in found], finite

    if share is None:
        yield
        return
    with unittest.mock.patch.object(engine, "clip_factors", shared):
        yield
