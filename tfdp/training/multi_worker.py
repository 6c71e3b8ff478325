"""What `keras.Model.fit` lacks under MultiWorkerMirroredStrategy, and nothing else."""

import tensorflow as tf

from tfdp.distribution.host_selection import unpack
from tfdp.runtime.replicas import is_multi_worker


class MultiWorkerFit:
    """Mixin before `keras.Model`: `fit` and `evaluate` work with several workers.

    Keras 3 averages a batch over all workers to build a model from it, and the results of a step
    along their first axis; neither works with several workers.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras has no public hook: this is the one place that overrides a private method of it.
        strategy = self.distribute_strategy
        if iterator is not None and self._distribute_strategy is not None:
            for _, _, batches in iterator:
                x, *rest = tf.nest.map_structure(
                    lambda v: strategy.experimental_local_results(v)[0], next(batches)
                )
                data_batch = (unpack(x)[0], *rest)
                break
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)

    def test_step(self, data):
        return as_results(super().test_step(data), self.distribute_strategy)


def as_results(values, strategy):
    """Scalar results of a step, as `keras.Model` can average them over the replicas."""
    if not is_multi_worker(strategy):
        return values
    return tf.nest.map_structure(lambda v: tf.reshape(v, [1]), values)
