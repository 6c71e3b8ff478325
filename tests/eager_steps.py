"""Small private models whose steps run eagerly.

For tests of what is charged, kept and said, where a step is only what is charged: to trace one
takes longer than to run several. Tests of steps, and of what a trace may keep, use `small` alone.
"""

from small_models import Small

EAGER = {"run_eagerly": True}


def eager_model(base=None, loss=None, **kwargs):
    """`small.model`, run eagerly."""
    return Small.model(base, loss, EAGER, **kwargs)


def fit_steps(model, steps=1, **kwargs):
    """`fit` on so many Poisson batches in an epoch; each of the 40 examples with probability 1/4."""
    return model.fit(Small.poisson(steps_per_epoch=steps), **{"verbose": 0, **kwargs})
