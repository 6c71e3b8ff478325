"""Padding stays padding, whatever a `map` writes as sample weights.

A record that was not drawn has weight 0 in a batch. A `map` that makes weights of its own would
bring such rows to life. So presence does not travel in what the `map` returns: the samplers give
out datasets whose `map` notes which rows were padding before, and makes their weights 0 after.
"""

import functools
import inspect

import tensorflow as tf

_GUARDED = "_tfdp_keeps_padding"
# What hands on every batch; what it returns must guard its padding, too.
_HANDED_ON = ("apply", "prefetch", "take", "with_options")


def guard_padding(dataset):
    """Lets nothing that is done to the dataset by `map` turn padding into records.

    Args:
        dataset: `tf.data.Dataset` of (x, y, sample_weight).

    Returns:
        The same dataset; its `map`, `prefetch`, `take`, `with_options` and `apply` return guarded
        datasets, too.
    """
    methods = {name: getattr(dataset, name) for name in ("map", *_HANDED_ON)}

    def mapped(map_func, *args, **kwargs):
        return guard_padding(methods["map"](_keeping_padding(map_func), *args, **kwargs))

    def handed_on(name, *args, **kwargs):
        result = methods[name](*args, **kwargs)
        return guard_padding(result) if isinstance(result, tf.data.Dataset) else result

    dataset.map = functools.wraps(methods["map"])(mapped)
    for name in _HANDED_ON:
        wrapped = functools.partial(handed_on, name)
        setattr(dataset, name, functools.wraps(methods[name])(wrapped))
    setattr(dataset, _GUARDED, True)
    return dataset


def keeps_padding(dataset):
    """Whether everything that was done to a dataset since it was sampled was guarded."""
    return hasattr(dataset, _GUARDED)


def _accepts(function, count):
    """Whether a function can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # of what has no signature
        return True
    return True


def _with_rows(tensor, rows):
    """A tensor whose static number of rows was lost; that it has them is checked as it is made."""
    if rows is None or not isinstance(tensor, tf.Tensor) or not tensor.shape.rank:
        return tensor
    return tf.ensure_shape(tensor, [rows, *tensor.shape[1:]]) if tensor.shape[0] is None else tensor


def _keeping_padding(map_func):
    """A function of a batch that gives what `map_func` gives, and weight 0 to what had it."""

    takes_weights = _accepts(map_func, 3) or not _accepts(map_func, 2)

    def keep(*batch):
        given = map_func(*batch) if takes_weights else map_func(*batch[:2])
        if len(batch) == 3 and isinstance(given, tuple) and len(given) == 2:
            # Weights of ones, for a function that left out those that it was given.
            kept = tf.ones_like(batch[2]) if takes_weights else batch[2]
            given = (*given, kept)
        if len(batch) != 3 or not isinstance(given, tuple) or len(given) != 3:
            return given  # without weights: refused by `fit`
        x, y, weights = tf.nest.map_structure(lambda t: _with_rows(t, batch[2].shape[0]), given)
        rows = tf.reshape(batch[2], [tf.shape(batch[2])[0], -1])
        example_mask = tf.reduce_any(tf.not_equal(rows, 0), axis=1)

        def masked(weight):
            weight = tf.convert_to_tensor(weight)
            if not weight.shape.rank or weight.shape[0] != batch[2].shape[0]:
                return weight  # of other rows: refused by `fit`
            shape = [-1] + [1] * (weight.shape.rank - 1)
            return tf.where(tf.reshape(example_mask, shape), weight, tf.zeros([], weight.dtype))

        return x, y, tf.nest.map_structure(lambda w: w if w is None else masked(w), weights)

    return keep
