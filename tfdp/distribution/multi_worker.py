"""What `keras.Model.fit` lacks under MultiWorkerMirroredStrategy, and nothing else."""

import tensorflow as tf

from tfdp.distribution.host_selection import unpack
from tfdp.runtime.replicas import is_multi_worker


class MultiWorkerFit:
    """Mixin before `ModelHooks`: `fit` and `evaluate` work with several workers.

    Keras 3 averages a batch over all workers to build a model from it, and the results of a step
    along their first axis; neither works with several workers.
    """

    def batch_to_build_from(self, batches):
        local = self.distribute_strategy.experimental_local_results
        for _, _, iterator in batches:
            x, *rest = tf.nest.map_structure(lambda v: local(v)[0], next(iterator))
            return (unpack(x)[0], *rest)

    def test_step(self, data):
        return as_results(super().test_step(data), self.distribute_strategy)


def as_results(values, strategy):
    """Scalar results of a step, as `keras.Model` can average them over the replicas."""
    if not is_multi_worker(strategy):
        return values
    return tf.nest.map_structure(lambda v: tf.reshape(v, [1]), values)
