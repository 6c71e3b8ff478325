"""Whatever Keras takes as x, y and weights, every sampler draws, pads and trains on."""

import itertools

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp.data.provenance.padding_guard import example_mask_of

N, B = 24, 8
X = np.arange(1.0, N + 1, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
Y = X[:, :1]
W = np.linspace(1, 2, N)

X_KINDS = {
    "array": X, "tuple": (X, X), "list": [X, X], "dict": {"b": X, "a": X},
    "nested": {"a": (X, X), "b": {"c": X}},
}  # fmt: skip
Y_KINDS = {
    "array": Y, "tuple": (Y, Y), "list": [Y, Y], "dict": {"v": Y, "u": Y},
    "nested": {"u": Y, "v": {"w": Y}},
}  # fmt: skip
WEIGHTS = {
    "none": lambda y: (),
    "one": lambda y: (W,),
    "each": lambda y: (keras.tree.map_structure(lambda _: W, y),),
}
IDS = np.arange(N) % 12


def poisson(data):
    return tfdp.data.poisson_batches(data, B)


def of_source(data, **kwargs):
    class Source:
        def __len__(self):
            return N

        def __getitem__(self, i):
            return i

    def parse(i):
        return tuple(keras.tree.map_structure(lambda a: a[i], part) for part in data)

    return tfdp.data.poisson_batches(Source(), B, parse=parse)


def of_batched_source(data):
    rows = tfdp.data.batched(
        lambda i: tuple(keras.tree.map_structure(lambda a: a[np.array(i)], part) for part in data)
    )

    class Source:
        def __len__(self):
            return N

        def __getitem__(self, i):
            return i

    return tfdp.data.poisson_batches(Source(), B, parse=rows)


def of_dataset(data):
    data = keras.tree.lists_to_tuples(data)  # which tf.data would read as tensors
    return poisson(tf.data.Dataset.from_tensor_slices(data))


def of_persons(data):
    return tfdp.data.poisson_batches(data, B / 2, privacy_ids=IDS, max_records_per_unit=2)


def shuffled(data):
    return tfdp.data.shuffled_epochs(data, 7)


def allocated(data):
    return tfdp.data.allocated_epochs(data, B)


def microbatches(data):
    return tfdp.data.microbatches(data, B, 2)


SAMPLERS = (poisson, of_source, of_batched_source, of_dataset, of_persons, shuffled, allocated,
            microbatches)  # fmt: skip


STRUCTURES = list(itertools.product(SAMPLERS, Y_KINDS, WEIGHTS))
# One sampler takes every structure here, with weights of its own; one array of weights and no
# weights are the same for every structure. The others take the deepest, and by turns the plainest
# and what tf.data reads as a tensor.
OF_POISSON = {*itertools.product(Y_KINDS, ["each"]), *itertools.product(["array"], WEIGHTS),
              ("list", "one"), ("dict", "none")}  # fmt: skip
PLAIN = [("array", "none"), ("list", "one")]
EVERY_DAY = {
    sampler: OF_POISSON if sampler is poisson else {("nested", "each"), PLAIN[i % 2]}
    for i, sampler in enumerate(SAMPLERS)
}
SLOW = [case for case in STRUCTURES if case[1:] not in EVERY_DAY[case[0]]]


@pytest.mark.thorough
@pytest.mark.parametrize("sampler, y, weights", slow.cases(STRUCTURES, slow=SLOW))
def test_batches_have_the_structure_of_the_data_and_padding_has_no_weight(sampler, y, weights):
    x = list(X_KINDS.values())[list(Y_KINDS).index(y)]
    given = WEIGHTS[weights](Y_KINDS[y])
    data = (x, Y_KINDS[y], *given)
    batches = sampler(data)
    wanted = keras.tree.lists_to_tuples((*data, W)[:3])
    tf.nest.assert_same_structure(wanted, batches.element_spec)
    batches = batches.map(lambda x, y, w: (x, y, w))
    for batch in batches.take(1):
        mask = example_mask_of(batch[2], tf.shape(tf.nest.flatten(batch[0])[0])[0]).numpy()
        for t in tf.nest.flatten(batch):
            assert not np.any(t.numpy()[~mask])
        for t in tf.nest.flatten(batch[:2]):
            assert np.all(t.numpy()[mask] > 0)
        rows = tf.nest.flatten(batch[0])[0].numpy()[mask, 0].astype(int) - 1
        for t in tf.nest.flatten(batch[2]):
            np.testing.assert_allclose(t.numpy()[mask], W[rows] if given else 1.0)


@pytest.mark.thorough
def test_workers_draw_what_each_output_weighs():
    data = (X, {"u": Y, "v": Y}, {"u": W, "v": W})
    batches = tfdp.distribution.poisson_batches(tf.distribute.MirroredStrategy(["CPU:0"]), data, B)
    batch = next(iter(batches))
    tf.nest.assert_same_structure(data, batch)


def two_outputs():
    x = keras.Input((3,))
    a, b = (keras.layers.Dense(1, name=name, kernel_initializer="ones") for name in "uv")
    return keras.Model(x, {"u": a(x), "v": b(x)})


@pytest.mark.thorough
@pytest.mark.parametrize("microbatch_size", [None, 4])
def test_weights_of_each_output_weigh_its_loss(microbatch_size):
    model = tfdp.make_private(two_outputs(), validate=False)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.0), noise_multiplier=1.0, microbatch_size=microbatch_size
    )
    model.compile(optimizer, loss={"u": "mse", "v": "mae"}, run_eagerly=True)

    def loss(weights):  # whose step moves nothing
        data = (X, {"u": Y, "v": Y}, *weights)
        batches = tfdp.data.poisson_batches(data, B, seed=1, steps_per_epoch=1)
        with pytest.warns(UserWarning, match="will learn nothing"):
            return model.fit(batches, verbose=0).history["loss"][0]

    ones, zeros = np.ones(N), np.zeros(N)
    both = loss([])
    of_u, of_v = (loss([{"u": w, "v": ones - w}]) for w in (ones, zeros))
    assert of_u != pytest.approx(of_v)
    np.testing.assert_allclose(
        [both, 3 * of_u + of_v], [of_u + of_v, loss([{"u": 3 * ones, "v": ones}])], rtol=1e-6
    )


def test_a_record_is_absent_only_if_every_output_weighs_it_nothing():
    mask = example_mask_of({"u": tf.constant([0.0, 0, 1]), "v": tf.constant([[0.0], [2], [0]])}, 3)
    assert mask.numpy().tolist() == [False, True, True]
