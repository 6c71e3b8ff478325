"""The only source of Gaussian noise in the library.

A sampler is part of a privacy guarantee (MATH.md section 1). This one

- has true tails (`gaussian.py`);
- is keyed by the operating system's entropy, never by the global seed of Keras or TensorFlow;
- keeps its key and counter in variables that no checkpoint, `.keras` file or SavedModel can hold.

It runs under eager execution, `tf.function` and XLA alike, from stateless operations only.
`NoiseSource` draws in training, `PipelineNoiseSource` in input pipelines (`source.py`);
`ServingNoiseSource` in layers at inference and `ReplicaNoiseSource` in layers in training
(`serving.py`).
"""

from tfdp.noise.gaussian import (
    normal_of_tail,
    philox_bits,
    standard_normal_from_bits,
)
from tfdp.noise.layer_sources import ReplicaNoiseSource, ServingNoiseSource
from tfdp.noise.training_source import NoiseSource, PipelineNoiseSource

__all__ = [
    "NoiseSource",
    "PipelineNoiseSource",
    "ReplicaNoiseSource",
    "ServingNoiseSource",
    "normal_of_tail",
    "philox_bits",
    "standard_normal_from_bits",
]
