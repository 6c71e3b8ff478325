"""Padding stays padding, whatever a `map` writes as sample weights.

A record that was not drawn has weight 0 in a batch. A `map` that makes weights of its own would
bring such rows to life. So presence does not travel in what the `map` returns: the samplers give
out datasets whose `map` notes which rows were padding before, and makes their weights 0 after.

In a batch of persons the place of a row says whose it is. A `map` is applied to the rows of one
person at a time: whatever it does, no row comes to stand with another person's.
"""

import functools
import inspect

import tensorflow as tf

from tfdp._compat.tensorflow import inputs_of

_GUARDED = "_tfdp_keeps_padding"
_ROWS = "_tfdp_rows_per_unit"
_OWN = "_tfdp_function"
# What hands on every batch; what it returns must guard its padding, too.
_HANDED_ON = ("apply", "prefetch", "take", "with_options")


def example_mask_of(sample_weight, batch_size):
    """(B,) bool: False for padding, which is what has the weight 0 everywhere.

    Args:
        sample_weight: weights (B, ...), a nesting of some, one of each output, or None.
        batch_size: B.
    """
    weighted = [
        tf.reduce_any(tf.reshape(tf.not_equal(w, 0), [batch_size, -1]), axis=1)
        for w in tf.nest.flatten(sample_weight)
        if w is not None
    ]
    if not weighted:
        return tf.ones([batch_size], tf.bool)
    return tf.reduce_any(tf.stack(weighted), axis=0)


def guard_padding(dataset, rows_per_unit=None):
    """Lets nothing that is done to the dataset by `map` turn padding into records.

    Args:
        dataset: `tf.data.Dataset` of (x, y, sample_weight).
        rows_per_unit: how many rows after each other are one person's, in a batch of persons.

    Returns:
        The same dataset; its `map`, `prefetch`, `take`, `with_options` and `apply` return guarded
        datasets, too.
    """
    methods = {name: getattr(dataset, name) for name in ("map", *_HANDED_ON)}

    def mapped(map_func, *args, **kwargs):
        if (getattr(map_func, "__module__", None) or "").startswith("tensorflow."):
            return methods["map"](map_func, *args, **kwargs)  # a step of `unbatch`, for one
        keep = _keeping_padding(map_func)
        keep = keep if rows_per_unit is None else _by_person(keep, rows_per_unit)
        result = methods["map"](keep, *args, **kwargs)
        if not _has_weights_of(result.element_spec, dataset.element_spec):
            return result  # nobody could say any more what is padding: refused by `fit`
        return guard_padding(result, rows_per_unit)

    def handed_on(name, *args, **kwargs):
        result = methods[name](*args, **kwargs)
        if not isinstance(result, tf.data.Dataset) or keeps_padding(result):
            return result
        if name == "apply" and _was_mapped(result, dataset):
            return result  # by another `map` than this one's: not guarded, and refused by `fit`
        return guard_padding(result, rows_per_unit)

    dataset.map = functools.wraps(methods["map"])(mapped)
    for name in _HANDED_ON:
        wrapped = functools.partial(handed_on, name)
        setattr(dataset, name, functools.wraps(methods[name])(wrapped))
    setattr(dataset, _GUARDED, True)
    setattr(dataset, _ROWS, rows_per_unit)
    return dataset


def _has_weights_of(spec, before):
    """Whether elements are (x, y, weights), each of the weights with the rows that were before."""
    if not isinstance(spec, tuple) or len(spec) != 3:
        return False
    rows = tf.nest.flatten(before[2])[0].shape[0]
    return all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[0] == rows
        for leaf in tf.nest.flatten(spec[2])
    )


def _was_mapped(dataset, since):
    """Whether a dataset was made from another one by more than handing on its batches."""
    while dataset is not since:
        inputs = inputs_of(dataset)
        if "Map" in type(dataset).__name__ or len(inputs) != 1:
            return True
        (dataset,) = inputs
    return False


def map_batches(dataset, function, **kwargs):
    """`map` of whole batches, for functions of tfdp, which leave every row in its place.

    Args:
        dataset: a `tf.data.Dataset`, guarded or not; the result is as it is.
        function: of (x, y, sample_weight).
        kwargs: of `tf.data.Dataset.map`.
    """
    guarded = keeps_padding(dataset)
    function = _keeping_padding(function) if guarded else function
    mapped = type(dataset).map(dataset, function, num_parallel_calls=1, **kwargs)
    setattr(mapped, _OWN, True)
    return guard_padding(mapped, getattr(dataset, _ROWS)) if guarded else mapped


def is_mapped_by_tfdp(dataset):
    """Whether a dataset was made by `map_batches`."""
    return hasattr(dataset, _OWN)


def holds_persons(dataset):
    """Whether the rows of a guarded dataset's batches are those of persons."""
    return getattr(dataset, _ROWS, None) is not None


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


def _by_person(function, k):
    """A function of a batch that applies `function` to the k rows of each person by themselves."""

    def apply(*batch):
        persons = tf.nest.map_structure(_as_persons, batch)
        count = tf.nest.flatten(persons)[0].shape[0]
        each = tf.data.Dataset.from_tensor_slices(persons)
        each = each.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        together = each.batch(count, drop_remainder=True).get_single_element()
        return tf.nest.map_structure(_as_rows, together)

    def _as_persons(t):
        return None if t is None else tf.reshape(t, [t.shape[0] // k, k, *t.shape[1:]])

    def _as_rows(t):
        if t is None or not t.shape.rank or t.shape.rank < 2 or t.shape[1] != k:
            return t  # None: no targets; or of other rows: refused by `fit`
        return tf.reshape(t, [t.shape[0] * k, *t.shape[2:]])

    return apply


def _keeping_padding(map_func):
    """A function of a batch that gives what `map_func` gives, and weight 0 to what had it."""

    takes_weights = _accepts(map_func, 3) or not _accepts(map_func, 2)

    def keep(*batch):
        given = map_func(*batch) if takes_weights else map_func(*batch[:2])
        if len(batch) == 3 and isinstance(given, tuple) and len(given) == 2:
            # Weights of ones, for a function that left out those that it was given.
            ones = tf.nest.map_structure(tf.ones_like, batch[2])
            given = (*given, ones if takes_weights else batch[2])
        if len(batch) != 3 or not isinstance(given, tuple) or len(given) != 3:
            return given  # without weights: not guarded any more
        first = tf.nest.flatten(batch[2])[0]
        rows = first.shape[0]
        x, y, weights = tf.nest.map_structure(lambda t: _with_rows(t, rows), given)
        example_mask = example_mask_of(batch[2], tf.shape(first)[0])

        def masked(weight):
            weight = tf.convert_to_tensor(weight)
            if not weight.shape.rank or weight.shape[0] != rows:
                return weight  # of other rows: not guarded any more
            shape = [-1] + [1] * (weight.shape.rank - 1)
            return tf.where(tf.reshape(example_mask, shape), weight, tf.zeros([], weight.dtype))

        return x, y, tf.nest.map_structure(lambda w: w if w is None else masked(w), weights)

    return keep
