"""What a `map` writes cannot make records of padding."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data import poisson_batches, shuffled_epochs
from tfdp.data.provenance.padding_guard import map_batches
from tfdp.errors import PrivacyError

N = 50
DATA = (np.arange(N), np.ones(N, np.float32))


def ones(x, y, w):
    return x, y, tf.ones_like(w)


def by_python(x, y, w):
    if tf.reduce_sum(w) > 0:  # tf.data makes a branch of it
        w = w + 5.0
    return x + 1, y, w


MAPS = {
    "map": lambda d: d.map(ones),
    "maps": lambda d: d.map(lambda x, y, w: (x, y, w * 2.0)).map(ones, num_parallel_calls=2),
    "prefetched": lambda d: d.prefetch(1).map(ones).take(3),
    "options": lambda d: d.with_options(tf.data.Options()).take(3).map(ones).prefetch(1),
    "applied": lambda d: d.apply(lambda e: e.map(ones)),
    "asserted": lambda d: d.apply(tf.data.experimental.assert_cardinality(len(d))).map(ones),
    "several": lambda d: d.map(lambda x, y, w: (x, y, {"a": tf.ones_like(w), "b": 0 * w + 2})),
    "python": lambda d: d.map(by_python),
}  # fmt: skip


@pytest.mark.thorough_after(5)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("sampler", [poisson_batches, shuffled_epochs])
def test_padding_keeps_weight_zero_whatever_a_map_writes(name, sampler):
    dataset = sampler((np.arange(1, N + 1), DATA[1]), 7)
    capacity = dataset.element_spec[2].shape[0]
    for x, _, weights in MAPS[name](dataset):
        records = x.numpy() > (1 if name == "python" else 0)
        for weight in tf.nest.flatten(weights):
            assert np.array_equal(weight.numpy() != 0, records) and len(weight) == capacity


BEFORE = {
    "map": lambda d: d.map(lambda *batch: batch),
    "prefetch": lambda d: d.prefetch(1),
    "apply": lambda d: d.apply(lambda e: e.take(9)),
    "map_batches": lambda d: map_batches(d, lambda *batch: batch),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_map_keeps_to_the_rows_of_each_person_whatever_was_before(name):
    ids = np.repeat(np.arange(4), 2)
    persons = poisson_batches(
        (ids.astype(np.float32), ids), 4, 4, 1, privacy_ids=ids, max_records_per_unit=2
    )  # everybody
    summed = BEFORE[name](persons).map(lambda x, y, w: (0 * x + tf.reduce_sum(x), y, w))
    ((x, y, _),) = summed.as_numpy_iterator()
    np.testing.assert_array_equal(x, 2 * y)  # of one person, not of the batch


GIVEN = np.where(np.arange(N) % 2, 3.0, -2.0).astype(np.float32)


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x, y: (x, y), GIVEN),
        (lambda x, y, w: (x, y), np.ones(N)),
        (lambda x, y, w: (x, y, tf.ones_like(w)), np.ones(N)),
        (lambda x, y, w: (x, y, w * 2.0), GIVEN * 2),
    ],
    ids=["of two", "left out", "ones", "doubled"],
)
def test_records_have_the_weights_that_a_map_gives_them(function, expected):
    dataset = poisson_batches((np.arange(N), DATA[1], GIVEN), N, N, 1)  # all records
    ((x, _, weights),) = dataset.map(function).as_numpy_iterator()
    np.testing.assert_array_equal(weights[:N], expected[x[:N]])
    assert not np.any(weights[N:])  # room for a record more


ROUNDABOUT = {
    "four parts": lambda d: d.map(lambda x, y, w: (x, y, w, w)).map(
        lambda x, y, w, v: (x, y, tf.ones_like(w))
    ),
    "a dict": lambda d: d.map(lambda x, y, w: {"x": x, "y": y, "w": w}).map(
        lambda b: (b["x"], b["y"], tf.ones_like(b["w"]))
    ),
    "one part": lambda d: d.map(lambda x, y, w: x).map(
        lambda x: (x, tf.zeros_like(x[:, 0], tf.int32), tf.ones_like(x[:, 0]))
    ),
    "fewer rows": lambda d: d.map(lambda x, y, w: (x, y, w[1:])).map(
        lambda x, y, w: (x, y, tf.ones_like(x[:, 0]))
    ),
    "no weights": lambda d: d.map(lambda x, y, w: (x, y, {"w": w, "none": None})).map(
        lambda x, y, w: (x, y, tf.ones_like(x[:, 0]))
    ),
}


@pytest.mark.parametrize("way", ROUNDABOUT.values(), ids=ROUNDABOUT)
def test_padding_does_not_come_to_life_by_what_has_no_weights(small, way):
    with pytest.raises(PrivacyError, match="may have turned padding into records"):
        small.model().fit(way(small.poisson()), verbose=0)


def test_a_map_past_the_methods_of_the_dataset_is_refused(small):
    model = small.model()
    past = tf.data.Dataset.map(small.poisson(), ones)
    with pytest.raises(PrivacyError, match="padding into records"):
        model.fit(past, verbose=0)
    assert model.optimizer.charging.steps == 0
    with pytest.raises(PrivacyError, match="number of rows"):
        model.fit(small.poisson().map(lambda x, y, w: (x, y, tf.ones([3]))), verbose=0)


@pytest.mark.thorough
def test_rows_without_records_change_nothing_whatever_a_map_writes(small):
    # No example is ever drawn: a step without noise must not move.
    x, y = small.data()
    none = small.poisson((x, y, np.zeros(small.n, "float32")))
    model = small.model(noise_multiplier=0.0)
    before = [w.copy() for w in model.model.get_weights()]
    model.fit(none.map(lambda x, y, w: (x + 1.0, y, tf.ones_like(w))), verbose=0)
    for a, b in zip(before, model.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
