"""The tag that says how batches were drawn survives only what keeps it true."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp

DATA = (np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32))


@pytest.fixture
def batches():
    return tfdp.data.poisson_batches(DATA, 10)


def test_batches_know_how_they_were_drawn(batches):
    sampling = tfdp.data.sampling_of(batches)
    assert sampling.kind == "poisson"
    assert sampling.num_examples == 40
    assert sampling.expected_batch_size == 10
    assert sampling.steps_per_epoch == 4
    assert sampling.max_batch_size == batches.element_spec[2].shape[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "transform",
    [
        lambda d: d.map(lambda x, y, w: (x, y, w)),
        lambda d: d.map(lambda x, y, w: (x, y, w), num_parallel_calls=2, deterministic=False),
        lambda d: d.prefetch(tf.data.AUTOTUNE),
        lambda d: d.with_options(tf.data.Options()),
        lambda d: d.take(-1),
        lambda d: d.apply(tf.data.experimental.assert_cardinality(4)),
        lambda d: d.map(lambda x, y, w: (x, y)).take(4).prefetch(1),
    ],
)
def test_transformations_of_whole_batches_keep_the_tag(batches, transform):
    assert tfdp.data.sampling_of(transform(batches)) == tfdp.data.sampling_of(batches)


def test_shorter_epochs_bring_shuffled_records_back_sooner():
    batches = tfdp.data.shuffled_epochs(DATA, 10)
    assert tfdp.data.sampling_of(batches).appearances(8) == 2
    assert tfdp.data.sampling_of(batches.take(1).prefetch(1)).appearances(8) == 8
    declared = tf.data.Dataset.from_tensor_slices(DATA).shuffle(40).batch(10)
    tfdp.data.declare_sampling(declared, "shuffled", 40, 10)
    assert tfdp.data.sampling_of(declared).appearances(8) == 2
    assert tfdp.data.sampling_of(declared.take(2)).appearances(8) == 4


def test_after_take_a_pass_of_unknown_length_may_be_of_any():
    batches = tfdp.data.shuffled_epochs(DATA, 10)
    unknown = tf.data.experimental.assert_cardinality(tf.data.UNKNOWN_CARDINALITY)
    assert tfdp.data.sampling_of(batches.apply(unknown)).appearances(8) == 2
    for shorter in (batches.take(1).apply(unknown), batches.apply(unknown).take(1)):
        assert tfdp.data.sampling_of(shorter.prefetch(1)).appearances(8) == 8


LOSING = [
    lambda d: d.cache(),
    lambda d: d.repeat(2),
    lambda d: d.shuffle(4),
    lambda d: d.filter(lambda x, y, w: tf.reduce_sum(w) > 0),
    lambda d: d.batch(2),
    lambda d: d.unbatch(),
    lambda d: d.rebatch(5),
    lambda d: tf.data.Dataset.zip(d, d),
    lambda d: d.concatenate(d),
    lambda d: d.shard(2, 0),
    lambda d: d.skip(0),
    lambda d: d.cache().map(lambda x, y, w: (x, y, w)).prefetch(1),
    lambda d: tf.data.Dataset.choose_from_datasets([d, d], tf.data.Dataset.range(2)),
    lambda d: d.window(2).flat_map(lambda x, y, w: tf.data.Dataset.zip((x, y, w))),
]
COUNTER = tf.data.Dataset.range(2)
TWO = tf.Variable(2)


def read_in_a_function(dataset):
    iterator = iter(dataset)
    return COUNTER.map(lambda i: next(iterator))


# Ways past the datasets that a dataset says it was made from.
HIDING = [
    lambda d: COUNTER.interleave(lambda i: d),
    lambda d: COUNTER.flat_map(lambda i: d.skip(1)),
    lambda d: read_in_a_function(d).prefetch(1),
    lambda d: tf.data.Dataset.from_tensors(d).flat_map(lambda inner: inner),
    lambda d: tf.data.experimental.from_variant(tf.data.experimental.to_variant(d), d.element_spec),
]


@pytest.mark.thorough_after(6)
@pytest.mark.parametrize("transform", LOSING)
def test_transformations_that_replay_or_regroup_draws_lose_the_tag(batches, transform):
    assert tfdp.data.sampling_of(transform(batches)) is None


def test_what_is_not_a_tagged_dataset_has_no_known_sampling():
    assert tfdp.data.sampling_of(tf.data.Dataset.range(3).batch(2)) is None
    assert tfdp.data.sampling_of(np.ones(3)) is None
    assert tfdp.data.sampling_of(None) is None


@pytest.mark.parametrize("kind", ["poisson", "shuffled"])
def test_a_declared_sampling_is_marked_as_declared(kind):
    dataset = tf.data.Dataset.from_tensor_slices(DATA).batch(10)
    declared = tfdp.data.declare_sampling(dataset, kind, num_examples=40, expected_batch_size=10)
    sampling = tfdp.data.sampling_of(declared.prefetch(1))
    assert sampling.kind == f"declared_{kind}"
    assert sampling.sampling_probability == 0.25


@pytest.mark.thorough_after(17)
@pytest.mark.parametrize("transform", [lambda d: d, lambda d: d.take(2), *LOSING, *HIDING])
def test_what_tfdp_drew_cannot_be_declared_otherwise(batches, transform):
    for kind in ("poisson", "shuffled"):
        with pytest.raises(ValueError, match="Declare only data that tfdp did not draw"):
            tfdp.data.declare_sampling(transform(batches), kind, 40, 10)
    with pytest.raises(ValueError, match="Argument `data` (is made from|uses another|holds)"):
        tfdp.data.poisson_batches(transform(batches), 10)
    assert tfdp.data.sampling_of(batches).kind == "poisson"


def test_what_was_declared_stays_as_it_was_declared():
    declared = tf.data.Dataset.from_tensor_slices(DATA).batch(10)
    tfdp.data.declare_sampling(declared, "shuffled", 40, 10)
    with pytest.raises(ValueError, match="made of declared_shuffled batches"):
        tfdp.data.declare_sampling(declared.cache(), "poisson", 40, 10)


@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.enumerate().map(lambda i, record: record),
        lambda d: tf.data.Dataset.choose_from_datasets([d, d.skip(1)], COUNTER.repeat()),
        lambda d: COUNTER.interleave(lambda i: tf.data.Dataset.from_tensor_slices(DATA)),
        lambda d: d.map(lambda x, y: (x * TWO, y)),
    ],
)
def test_datasets_of_ones_own_are_declared_however_they_are_made(made):
    records = tf.data.Dataset.from_tensor_slices(DATA)
    declared = tfdp.data.declare_sampling(made(records).batch(10), "poisson", 40, 10)
    assert tfdp.data.sampling_of(declared).kind == "declared_poisson"


@pytest.mark.parametrize("longer", [lambda d: d.concatenate(d.take(1)), lambda d: d.repeat()])
def test_a_pass_that_is_longer_than_its_records_cannot_be_declared(longer):
    dataset = tf.data.Dataset.from_tensor_slices(DATA).batch(10)
    with pytest.raises(ValueError, match="each record once, in one pass"):
        tfdp.data.declare_sampling(longer(dataset), "shuffled", 40, 10)
    assert tfdp.data.sampling_of(tfdp.data.declare_sampling(dataset, "shuffled", 40, 10))


def test_unknown_kinds_and_objects_are_refused(batches):
    with pytest.raises(ValueError, match="Argument `kind` must be"):
        tfdp.data.declare_sampling(batches, "declared_poisson", 40, 10)
    with pytest.raises(ValueError, match="Argument `dataset` must be"):
        tfdp.data.declare_sampling(np.ones(3), "poisson", 40, 10)
