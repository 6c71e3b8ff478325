"""Several steps as one program of XLA.

With `steps_per_execution` Keras calls a compiled step once for each batch, and what lies between
two calls takes as long as many a small step. Here small batches are stacked, and one program makes
a step of each of them, in their order: the same steps, with the same noise and the same charges.
XLA for CPUs makes what is in such a loop on one thread, so that models whose step is long, by
convolutions or by noise for millions of parameters, are slower by it. Both ways are tried, and the
faster one is kept.
"""

import statistics
import time

import numpy as np
import tensorflow as tf

from tfdp.distribution.multi_worker import as_results
from tfdp.optimizers import DPOptimizer
from tfdp.training.checks import own_steps

# A program gets so many batches at once, of so many bytes in all, at most.
_MOST, _BYTES = 32, 1 << 26
# Each way is timed in so many executions, after one that compiles it; not where a step takes so
# many seconds that what lies between two of them does not count.
_TRIALS, _LONG = 9, 0.01


def function_of_executions(model, function):
    """What makes the steps of one execution: `function`, which Keras made, or what is faster."""
    if not _are_possible(model):
        return function
    steps, ways = model.steps_per_execution, {}
    program = _Program(model, steps)

    def run(iterator):
        if _at_once(iterator, steps) == 1:
            return function(iterator)
        kind = tuple(tf.nest.flatten(iterator.element_spec))
        if kind not in ways:
            # Now, as Keras traces its own now: the checks of a run look at the model as it is
            # before the first step, and a callback may change it.
            program.trace(iterator)
            ways[kind] = _faster_of(function, program.run, steps)
        return ways[kind](iterator)

    return run


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
    at_once = _at_once(x, model.steps_per_execution) if _are_possible(model) else 1
    return x.prefetch(at_once) if at_once > 1 else x


def _faster_of(one, other, steps):
    """A function that calls one of two: the faster one, as soon as both were timed."""
    seconds, chosen = {one: [], other: []}, []

    def timed(function, *args):
        start = time.perf_counter()
        results = function(*args)
        tf.nest.map_structure(np.asarray, results)  # waits for the device
        seconds[function].append(time.perf_counter() - start)
        return results

    def median(function):
        return statistics.median(seconds[function][1:])

    def run(*args):
        if chosen:
            return chosen[0](*args)
        for function in (one, other):
            if len(seconds[function]) <= _TRIALS:
                return timed(function, *args)
            if median(function) > _LONG * steps:
                break
        chosen.append(min((f for f in seconds if len(seconds[f]) > _TRIALS), key=median))
        return chosen[0](*args)

    return run


class _Program:
    """Makes the steps of one execution from an iterator, and gives their results."""

    def __init__(self, model, steps):
        self._model, self._steps = model, steps
        self._several = tf.function(self._steps_of, jit_compile=True, autograph=False)
        self._execution = tf.function(self._execute, autograph=False)

    def trace(self, iterator):
        self._execution.get_concrete_function(*self._arguments(iterator))

    def run(self, iterator):
        count, results = self._execution(*self._arguments(iterator))
        if count == 0:
            raise StopIteration
        return results

    def _arguments(self, iterator):
        at_once = _at_once(iterator, self._steps)
        return iterator, at_once, self._steps // at_once

    def _execute(self, iterator, at_once, turns):
        count = self._next(iterator, at_once)
        tf.while_loop(
            lambda turn, last: (last == at_once) & (turn < turns),
            lambda turn, _: (turn + 1, self._next(iterator, at_once)),
            (1, count),
            parallel_iterations=1,
        )
        return count, results_of_steps(self._model)

    def _next(self, iterator, at_once):
        """How many batches there were, of `at_once`, and a step of each."""
        found = [iterator.get_next_as_optional() for _ in range(at_once)]
        count = tf.add_n([tf.cast(one.has_value(), tf.int32) for one in found])
        empty = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), iterator.element_spec)
        batches = [tf.cond(one.has_value(), one.get_value, lambda: empty) for one in found]
        self._several(tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches), count)
        return count

    def _steps_of(self, batches, count):
        def one(number):
            self._model.train_step(tf.nest.map_structure(lambda t: t[number], batches))
            return number + 1

        return tf.while_loop(lambda number: number < count, one, [0], parallel_iterations=1)


def _at_once(batches, steps):
    """How many of some batches one program gets: a divisor of the number of steps, 1 for none."""
    if not isinstance(batches, tf.data.Dataset | tf.data.Iterator):
        return 1
    specs = tf.nest.flatten(batches.element_spec)
    if not all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in specs):
        return 1
    size = sum(s.shape.num_elements() * s.dtype.size for s in specs)
    most = min(_MOST, _BYTES // max(size, 1))
    return max(n for n in range(1, steps + 1) if steps % n == 0 and n <= max(most, 1))
