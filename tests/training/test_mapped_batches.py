"""What a `map` after sampling does with the rows of a batch."""

import itertools

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import eager_model, fit_steps

import tfdp
from tfdp.errors import PrivacyError
from tfdp.training.checks.mapped_batches import _ASSUMED, _VALUES, notes_of_maps

B = 6
X = np.random.default_rng(0).normal(size=(40, 4, 4, 3)).astype("float32")


def batches():
    return tfdp.data.poisson_batches((X, np.zeros((40, 1), "float32")), 2, max_batch_size=B)


def of_x(function):
    return lambda x, y, w: (function(x), y, w)


def numbered(x, y, w):
    places = tf.broadcast_to(tf.range(B, dtype=tf.float32)[:, None], [B, 3])
    return {"x": x, "place": places}, y, w


def mixed_up(x, y, w):
    share = tf.random.uniform([B, 1, 1, 1])
    return share * x + (1 - share) * x[::-1], y, w


MIXING = {
    "the batch's mean": of_x(lambda x: x - tf.reduce_mean(x, 0)),
    "the batch's largest": of_x(lambda x: x / tf.reduce_max(tf.abs(x))),
    "other rows": mixed_up,
    "shuffled rows": of_x(tf.random.shuffle),
    "moved labels": lambda x, y, w: (x, tf.roll(y, 1, 0), w),
    "weights by the batch": lambda x, y, w: (x, y, w / tf.reduce_sum(w)),
    "a number of the batch": lambda x, y, w: (
        (x, tf.repeat(tf.math.count_nonzero(w, keepdims=True), B)), y, w),
    "places": numbered,
    "numbers of places": of_x(lambda x: x + tf.random.stateless_normal([B, 1, 1, 1], [1, 2])),
    "one draw for two": of_x(lambda x: (lambda d: x * d + d[:1])(tf.random.normal([B, 1, 1, 1]))),
}  # fmt: skip

flipped = keras.layers.RandomFlip(seed=3)
APART = {
    "scaled": of_x(lambda x: x / 255.0),
    "its own mean": of_x(lambda x: x - tf.reduce_mean(x, [1, 2, 3], keepdims=True)),
    "flipped": of_x(tf.image.random_flip_left_right),
    "brighter": of_x(lambda x: tf.image.random_brightness(x, 0.1)),
    "by Keras": of_x(lambda x: flipped(x, training=True)),
    "own noise": of_x(lambda x: x + tf.random.normal(tf.shape(x))),
    "own noise beside ones": lambda x, y, w: (
        {"x": x + tf.random.normal(tf.shape(x)), "one": tf.ones([B, 1])},
        y,
        w,
    ),
    "own noise as a feature": lambda x, y, w: ({"x": x, "z": tf.random.normal([B, 2])}, y, w),
    "one at a time": of_x(lambda x: tf.map_fn(tf.image.per_image_standardization, x)),
    "one-hot labels": lambda x, y, w: (x, tf.one_hot(tf.cast(y[:, 0], tf.int32), 3), w),
    "weights": lambda x, y, w: (x, y, w * 2.0),
    "ones": lambda x, y, w: ({"x": x, "one": tf.ones_like(y)}, y, w),
    "a filter": lambda x, y, w: (x, y, w * tf.cast(x[:, 0, 0, 0] > 0, tf.float32)),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_map_that_mixes_rows_is_refused(name):
    data = batches().map(MIXING[name])
    for one in (data, data.prefetch(1).map(lambda x, y, w: (x, y, w))):
        with pytest.raises(PrivacyError, match="A `map` after sampling"):
            notes_of_maps(one)
    assert notes_of_maps(data, validate=False).assumptions == (_ASSUMED,)


@pytest.mark.thorough
@pytest.mark.parametrize("name", APART)
def test_a_map_that_treats_each_row_separately_is_proved(name):
    data = batches().map(APART[name], num_parallel_calls=2).prefetch(1)
    assert not notes_of_maps(data).assumptions


kept = tf.Variable(tf.zeros([4, 4, 3]))
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
waiting = tf.queue.FIFOQueue(2, [tf.float32], [[4, 4, 3]])
calls = tf.Variable(0.0)


def less_a_running_mean(x):
    kept.assign(0.9 * kept + 0.1 * tf.reduce_mean(x, 0))
    return x - kept


def less_one_of_the_batch_before(x):
    before = tf.identity(kept)
    kept.assign(x[0])
    return x - before


def less_a_table(x):
    key = tf.constant([1], tf.int64)
    table.insert(key, tf.reduce_mean(x)[None])
    return x - tf.reshape(table.lookup(key), [])


def less_what_waits(x):
    waiting.enqueue(x[0])
    return x - waiting.dequeue()


def over_the_number_of_calls(x):
    calls.assign_add(1.0)
    return x / calls


def over_the_number_of_large_batches(x):
    tf.cond(tf.reduce_max(x) > 2.0, lambda: calls.assign_add(1.0), lambda: tf.identity(calls))
    return x / calls


KEEPING = {
    "a running mean": less_a_running_mean,
    "in a function": tf.function(less_a_running_mean),
    "one record": less_one_of_the_batch_before,
    "a table": less_a_table,
    "a queue": less_what_waits,
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_map_that_keeps_something_of_the_batch_is_refused(name):
    data = batches().map(of_x(KEEPING[name]))
    for one in (data, data.map(lambda x, y, w: (x, y, w))):
        with pytest.raises(PrivacyError, match="A `map` after sampling stores"):
            notes_of_maps(one)
    assert _ASSUMED in notes_of_maps(data, validate=False).assumptions


def test_a_map_may_count_its_calls():
    assert not notes_of_maps(batches().map(of_x(over_the_number_of_calls))).assumptions
    of_some = batches().map(of_x(over_the_number_of_large_batches))
    assert notes_of_maps(of_some).assumptions == (_ASSUMED,)


def test_a_map_that_uses_another_dataset_is_refused():
    others = tf.data.Dataset.from_tensor_slices(X)
    following = iter(others.repeat())
    first = others.take(1).get_single_element
    for function in (lambda x: x - next(following), lambda x: x - first()):
        data = batches().map(of_x(function))
        for validate in (True, False):
            with pytest.raises(PrivacyError, match="A `map` after sampling uses another dataset"):
                notes_of_maps(data.prefetch(1), validate)


def test_arrays_that_a_map_computes_with_are_listed_as_assumed():
    mean = X.mean(axis=(0, 1, 2))

    def less_the_mean(x, y, w):
        return x - mean, y, w

    notes = notes_of_maps(batches().map(less_the_mean).prefetch(1))
    assert notes.assumptions == (
        "the array of shape (3,) in the code of `less_the_mean` (test_mapped_batches.py) is no "
        "function of the records",
    )


def test_a_map_of_which_nothing_is_known_is_assumed_to_treat_each_row_separately():
    def by_python(x):
        return tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), x.shape)

    def kept_by_python(x):
        tf.numpy_function(lambda x: None, [x], [])
        return x

    assert not notes_of_maps(batches()).assumptions
    # The last one has no rule, and was searched.
    for function in (by_python, kept_by_python, tf.math.bessel_i1e):
        assert notes_of_maps(batches().map(of_x(function))).assumptions == (_ASSUMED,)


def normalization():
    layer = keras.layers.Normalization()
    layer.adapt(X)
    return layer


def look_up():
    layer = keras.layers.IntegerLookup(vocabulary=[1, 2, 3])
    return lambda x: tf.cast(layer(tf.cast(x, tf.int64)), tf.float32)


def of_array(value):
    return lambda x: x - value


def in_a_branch():
    means = X.mean((0, 1, 2))
    return lambda x: tf.cond(tf.size(x) > 0, lambda: x - means, lambda: x)


COMPUTE_WITH = {
    "an adapted layer": normalization,
    "a table": look_up,
    "an array": lambda: of_array(X.mean((0, 1, 2))),
    "a large array": lambda: of_array(X.mean(0)),
    "a variable": lambda: of_array(tf.Variable(X.mean((0, 1, 2)))),
    "an array in a branch": in_a_branch,
}


OF = list(itertools.product(COMPUTE_WITH, (False, True)))
# Of persons, each kind of what is named otherwise there is found in one place.
OTHERS = [(name, persons) for name, persons in OF if persons
          and name not in ("an array", "a variable")]  # fmt: skip


@pytest.mark.parametrize("name, persons", slow.cases(OF, slow=OTHERS))
def test_values_that_a_map_computes_with_are_listed_as_assumed(name, persons):
    """Means of the records went into every weight, and no statement named them."""
    ids = {"privacy_ids": np.arange(40) // 2, "max_records_per_unit": 2} if persons else {}
    data = tfdp.data.poisson_batches((X, np.zeros((40, 1), "float32")), 2, **ids)
    for validate in (True, False):
        notes = notes_of_maps(data.map(of_x(COMPUTE_WITH[name]())), validate)
        (listed,) = [s for s in notes.assumptions if "no function of the records" in s]
        assert (listed == _VALUES) == (persons or not name.endswith("array"))
    assert _VALUES not in notes_of_maps(data.map(of_x(of_array(0.5)))).assumptions


@pytest.mark.thorough
def test_weights_that_were_charged_are_not_assumed_to_be_public(small):
    """They are refused, or a part of the model; and a release that a layer holds is charged."""
    encoder = small.base()
    model = eager_model(encoder)
    mapped = small.poisson().map(lambda x, y, w: (encoder(x), y, w))
    assert _VALUES in notes_of_maps(mapped).assumptions
    fit_steps(model)
    assert _VALUES not in notes_of_maps(mapped).assumptions


@pytest.mark.thorough
def test_what_a_map_does_for_each_person_is_not_looked_at():
    data = tfdp.data.poisson_batches(
        (X, np.zeros((40, 1), "float32")), 2, privacy_ids=np.arange(40) // 2,
        max_records_per_unit=2,
    )  # fmt: skip
    mean = data.map(of_x(lambda x: x - tf.reduce_mean(x, 0)))
    assert notes_of_maps(mean).assumptions == (_ASSUMED,)


@pytest.mark.parametrize("forward_noise", [False, True])
def test_fit_refuses_a_map_that_mixes_rows(small, forward_noise):
    base = small.base()
    if forward_noise:
        base = keras.Sequential(
            [
                keras.Input((3,)),
                tfdp.layers.DPForwardNoise(noise_multiplier=1.0, clip_norm=1.0),
                *base.layers,
            ]
        )
    model = small.model(base) if not forward_noise else tfdp.make_private(base)
    if forward_noise:
        model.compile("sgd", small.loss)
    mapped = small.poisson().map(lambda x, y, w: (x - tf.reduce_mean(x, 0), y, w))
    with pytest.raises(PrivacyError, match="A `map` after sampling mixes"):
        model.fit(mapped, verbose=0)
    assert not model.ledger.entries
