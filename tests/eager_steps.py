"""Small private models whose steps run eagerly.

For tests of what is charged, kept and said, where a step is only what is charged: to trace one
takes longer than to run several, and so does the search for examples that mix. Tests of steps, of
what a trace may keep, and of what is checked before a run, use `small` alone.
"""

from small_models import Small

import tfdp

EAGER = {"run_eagerly": True}


def eager_model(base=None, loss=None, **kwargs):
    """`small.model`, run eagerly and without the search for examples that mix."""
    base = tfdp.make_private(Small.base() if base is None else base, validate=False)
    return Small.model(base, loss, EAGER, **kwargs)


def fit_steps(model, steps=1, **kwargs):
    """`fit` on so many Poisson batches in an epoch, of 10 of the 40 examples each."""
    return model.fit(Small.poisson(steps_per_epoch=steps), **{"verbose": 0, **kwargs})
