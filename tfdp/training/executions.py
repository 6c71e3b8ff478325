"""Several steps as one program of XLA.

With `steps_per_execution` Keras calls a compiled step once for each batch, and what lies between
two calls takes as long as many a small step. Here small batches are stacked, and one program makes
a step of each of them, in their order: the same steps, with the same noise and the same charges.
"""

import tensorflow as tf

from tfdp.optimizers import DPOptimizer
from tfdp.training import own_steps
from tfdp.training.multi_worker import as_results

# A program gets so many batches at once, of so many bytes in all, at most.
_MOST, _BYTES = 32, 1 << 26


def function_of_executions(model, function):
    """What makes the steps of one execution: `function`, which Keras made, or one program."""
    return _in_one_program(model, function) if _are_possible(model) else function


def results_of_steps(model):
    """Dict of what private steps show, over those of the epoch so far."""
    results = model.get_metrics_result() | model.selection_metrics.results()
    return as_results(results, model.distribute_strategy)


def _are_possible(model):
    return (
        isinstance(model.optimizer, DPOptimizer)
        and model.jit_compile
        and not model.run_eagerly
        and model.steps_per_execution > 1
        and not own_steps.has_own_step(model)
        and not tf.distribute.has_strategy()
        and type(model.distribute_strategy) is type(tf.distribute.get_strategy())
    )


def prepared(model, x):
    """The data of a `fit`: the batches of an execution are made while the one before it runs.

    Args:
        model: a compiled `DPModel`.
        x: as for `fit`.
    """
    if not isinstance(x, tf.data.Dataset) or not _are_possible(model):
        return x
    count = _at_once(x.element_spec, model.steps_per_execution)
    return x.prefetch(count) if count > 1 else x


def _in_one_program(model, function):
    """As `function`, which stays for batches that are large or whose shapes are not known."""

    def steps(batches, count):
        def one(number):
            model.train_step(tf.nest.map_structure(lambda t: t[number], batches))
            return number + 1

        return tf.while_loop(lambda number: number < count, one, [0], parallel_iterations=1)

    program = tf.function(steps, jit_compile=True, autograph=False)

    def several(iterator, at_once):
        """How many batches there were, of `at_once`, and a step of each."""
        found = [iterator.get_next_as_optional() for _ in range(at_once)]
        count = tf.add_n([tf.cast(one.has_value(), tf.int32) for one in found])
        empty = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), iterator.element_spec)
        batches = [tf.cond(one.has_value(), one.get_value, lambda: empty) for one in found]
        program(tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches), count)
        return count

    @tf.function(autograph=False)
    def execution(iterator, at_once, turns):
        count = several(iterator, at_once)
        tf.while_loop(
            lambda turn, last: (last == at_once) & (turn < turns),
            lambda turn, _: (turn + 1, several(iterator, at_once)),
            (1, count),
            parallel_iterations=1,
        )
        return count, results_of_steps(model)

    def run(iterator):
        steps_per_execution = model.steps_per_execution
        is_iterator = isinstance(iterator, tf.data.Iterator)
        at_once = _at_once(iterator.element_spec, steps_per_execution) if is_iterator else 1
        if at_once == 1:
            return function(iterator)
        count, results = execution(iterator, at_once, steps_per_execution // at_once)
        if count == 0:
            raise StopIteration
        return results

    return run


def _at_once(spec, steps):
    """How many batches of a `spec` one program gets: a divisor of the number of steps."""
    specs = tf.nest.flatten(spec)
    if not all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in specs):
        return 1
    size = sum(s.shape.num_elements() * s.dtype.size for s in specs)
    most = min(_MOST, _BYTES // max(size, 1))
    return max(n for n in range(1, steps + 1) if steps % n == 0 and n <= max(most, 1))
