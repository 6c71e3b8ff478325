"""The only source of noise: draws, the grid, entries above a threshold. Charges nothing.

A sampler is part of a privacy guarantee (MATH.md section 1). This one

- has true tails (`gaussian.py`);
- adds noise on a grid, so that no bit of what is released excludes a record (`grid.py`);
- is keyed by the operating system's entropy, never by the global seed of Keras or TensorFlow;
- keeps its key and counter in variables that no checkpoint, `.keras` file or SavedModel can hold.

It runs under eager execution, `tf.function` and XLA alike, from stateless operations only.
`NoiseSource` draws in training, `PipelineNoiseSource` in input pipelines (`training_source.py`);
`ChainSource` and `BandedSource` in training whose noise is correlated over steps
(`chain_source.py`, `banded_source.py`);
`ServingNoiseSource` in layers at inference and `ReplicaNoiseSource` in layers in training
(`layer_sources.py`). What is released with noise in it is a `release` of one of them, or
`entries_above`: those entries of a release that exceed a threshold (`above.py`).
"""

from tfdp.noise.above import entries_above, probability_above
from tfdp.noise.banded_source import BandedSource
from tfdp.noise.chain_source import ChainSource
from tfdp.noise.gaussian import (
    normal_of_tail,
    philox_bits,
    standard_normal_from_bits,
)
from tfdp.noise.grid import Grid, grid_of_counts, laplace_of_tail, sum_rounding
from tfdp.noise.layer_sources import ReplicaNoiseSource, ServingNoiseSource
from tfdp.noise.training_source import NoiseSource, PipelineNoiseSource

__all__ = [
    "BandedSource",
    "ChainSource",
    "Grid",
    "NoiseSource",
    "PipelineNoiseSource",
    "ReplicaNoiseSource",
    "ServingNoiseSource",
    "entries_above",
    "grid_of_counts",
    "laplace_of_tail",
    "normal_of_tail",
    "philox_bits",
    "probability_above",
    "standard_normal_from_bits",
    "sum_rounding",
]


def __dir__():
    return sorted(__all__)
