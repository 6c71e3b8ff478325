"""The table's share of C² in per-layer clipping; normalized, which the library does not have."""

import contextlib
import unittest.mock

import tensorflow as tf

from tfdp.clipping import engine
from tfdp.clipping.sums.factors import clip_factors


def clipping_of(settings):
    """Arguments of a `DPOptimizer`."""
    share, clipping = settings.get("table_share"), settings["clipping"]
    if share is None:
        return {"clipping": clipping}
    return {"clipping": "per_layer", "layer_shares": {"items": share}}


@contextlib.contextmanager
def normalized_by_layer(settings):
    """Steps that are traced inside normalize each layer by itself, if `settings` ask for it."""

    def normalized(squared_norms, example_mask, clip_norm, _, shares):
        found = [
            clip_factors([norm], example_mask, clip_norm * share**0.5, "normalized")
            for norm, share in zip(squared_norms, shares, strict=True)
        ]
        finite = tf.reduce_all([of_layer for _, of_layer in found], axis=0)
        return [tf.where(finite, factors[0], 0.0) for factors, _ in found], finite

    if settings.get("table_share") is None or settings["clipping"] != "normalized":
        yield
        return
    with unittest.mock.patch.object(engine, "clip_factors", normalized):
        yield
