"""The charges of releases travel with whatever is made of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data.provenance.dataset_tags import releases_of
from tfdp.data.provenance.origins import Origin

N, WIDTH = 40, 3
X = np.random.default_rng(0).normal(size=(N, WIDTH)).astype(np.float32)
Y = np.arange(N) % 2


@pytest.fixture(scope="module")
def release():
    return tfdp.data.release_once(X, Y, 1.0, 2.0)


@pytest.fixture(scope="module")
def other():
    return tfdp.data.release_once(X, Y, 1.0, 2.0)


def charged(made):
    return {entry.details["release"] for entry in Origin.of(made).releases}


def names(*releases):
    return {entry.details["release"] for one in releases for entry in one.privacy_releases}


def multiplied(a, b):
    a *= b
    return a


def written(write):
    def write_into_a_copy(a, b):
        a = a.copy()
        write(a, b)
        return a

    return write_into_a_copy


WAYS = {
    "in place": multiplied,
    "out": lambda a, b: np.multiply(a, b, out=np.zeros_like(X)),
    "two outputs": lambda a, b: np.modf(a + b, np.zeros_like(X), np.zeros_like(X))[1],
    "dot": lambda a, b: a.dot(b.T),
    "assignment": written(lambda a, b: a.__setitem__(slice(5), b[:5])),
    "copyto": written(np.copyto),
    "put": written(lambda a, b: np.put(a, [0, 1], b)),
    "putmask": written(lambda a, b: np.putmask(a, np.ones(a.shape, bool), b)),
    "put along an axis": written(
        lambda a, b: np.put_along_axis(a, np.zeros((1, WIDTH), int), b[:1], 0)
    ),
    "diagonal": written(lambda a, b: np.fill_diagonal(a, b[0])),
    "assigned list": written(lambda a, b: a.__setitem__(0, [b[0, 0], 1, 2])),
    "at": written(lambda a, b: np.add.at(a, [0, 0], b[:2])),
    "where": lambda a, b: a.sum(where=b > 0),
    "taken": lambda a, b: a.take(b.argsort()),
}


@pytest.mark.parametrize("way", WAYS)
def test_arithmetic_on_releases_carries_both(release, other, way):
    made = WAYS[way](release.features.copy(), other.features)
    assert charged(made) == names(release, other)


@pytest.mark.parametrize("way", ["in place", "out", "two outputs", "dot"])
def test_arithmetic_of_plain_arrays_with_a_release_carries_it(release, way):
    assert charged(WAYS[way](X.copy(), release.features)) == names(release)
    np.testing.assert_allclose(
        np.asarray(WAYS["in place"](X.copy(), release.features)), X * np.asarray(release.features)
    )


SCALARS = {
    "an item": lambda p: p[3],
    "of a loop": lambda p: sum(p),
    "max": lambda p: p.max(),
    "mean": lambda p: p.mean(),
    "std": lambda p: p.std(),
    "argmax": lambda p: p.argmax(),
    "product": lambda p: p @ p,
    "dot": lambda p: np.dot(p, p),
    "norm": lambda p: np.linalg.norm(p),
    "median": lambda p: np.median(p),
    "take": lambda p: p.take(2),
    "taken by": lambda p: np.arange(9).view(type(p)).take(p.argsort())[0],
    "argmin": lambda p: p.argmin(),
    "choose": lambda p: p.argmax().choose(np.arange(9.0)),
    "searchsorted": lambda p: p.searchsorted(0.5),
    "trace": lambda p: np.outer(p, p).trace(),
    "singular": lambda p: np.linalg.svd(np.outer(p, p)).S[0],
    "parted at": lambda p: np.split(np.arange(9.0), p.argsort()[:1])[0],
    "arithmetic": lambda p: 2.0 * abs(p[0]) + 1,
    "round": lambda p: round(p[0], 1),
    "chosen by": lambda p: np.arange(9).view(type(p))[p.argsort()][0],
    "chosen by a pair": lambda p: np.eye(9).view(type(p))[p.argsort(), 0][0],
    "found": lambda p: p.nonzero()[0],
    "vectorize": lambda p: np.vectorize(lambda one: one + 1)(p)[0],
    "fitted": lambda p: np.full_like(p, 3.0) + p[0],
}


@pytest.mark.parametrize("way", SCALARS)
def test_single_numbers_of_a_release_carry_it(release, way):
    made = SCALARS[way](release.features[:, 0][:9].copy())
    assert charged(made) == names(release)
    assert charged([made * 2]) == charged({"a": (1, made)}) == names(release)


def test_an_origin_is_put_beside_that_of_an_array(release, other):
    made = Origin.of(other.features).on(release.features)
    assert charged(made) == names(release, other)
    assert type(Origin().on(X)) is np.ndarray


def test_single_numbers_are_used_as_numbers(release):
    number, place = release.features[0, 0], release.features[0].argmax()
    assert float(number) == number.item() and f"{number:.3f}" == f"{float(number):.3f}"
    assert list(range(WIDTH))[place] == place and {int(place): "a"}[place] == "a"
    with pytest.raises(ValueError, match="must be"):  # a setting is a number, without a charge
        tfdp.data.release_once(X, Y, 1.0, number)


MASKED = np.ma.masked_array(X, X > 0)


@pytest.mark.parametrize(
    "mask",
    [
        lambda p: np.ma.masked_array(p, p > 0),
        lambda p: MASKED * p,
        lambda p: p + MASKED,
        lambda p: np.ma.log(p),
        lambda p: np.ma.multiply(X, p),
        lambda p: np.ma.concatenate([p, MASKED]),
    ],
)
def test_what_carries_a_charge_cannot_be_masked(release, mask):
    with pytest.raises(ValueError, match="cannot be masked"):
        mask(release.features)


@pytest.mark.thorough
def test_pairs_that_are_made_anew_carry_what_their_arrays_do():
    data = tfdp.data.leave_one_out_split([[1, 2, 3, 1, 2]] * 9, 4, num_items=3)
    frequency = tfdp.data.private_frequency(data.train, epsilon=0.5)
    encoded = tfdp.data.FrequentItems(frequency, 2).encode(data.train)
    made = {
        "mapped": tf.nest.map_structure(lambda a: a[:5], encoded),
        "replaced": encoded._replace(x=encoded.x + 0),
        "again": type(encoded)(encoded.x, encoded.y, encoded.num_items),
    }
    for way, pair in made.items():
        assert charged(pair) == names(frequency), way
        assert len(releases_of(tfdp.data.poisson_batches(pair, 4))) == 1, way


def test_assumptions_stay_with_pairs_that_are_made_anew():
    data = tfdp.data.leave_one_out_split([[1, 2, 3]] * 9, 4)
    assert Origin.of(data.test).assumptions == Origin.of(data.train).assumptions
    again = tf.nest.map_structure(lambda a: a[::-1], data.train)
    assert Origin.of(again).assumptions == Origin.of(data.train).assumptions != ()


@pytest.mark.thorough
def test_datasets_of_a_release_carry_it_when_they_are_sampled(release):
    records = release.batches(8).unbatch()
    assert len(releases_of(tfdp.data.poisson_batches(records, 10))) == 1
    declared = tfdp.data.declare_sampling(release.batches(8), "shuffled", N, 8)
    assert releases_of(declared) == tuple(release.privacy_releases)


@pytest.mark.thorough
def test_parsed_records_of_a_release_carry_it(release):
    rows = [(release.features[i], Y[i]) for i in range(N)]
    assert len(releases_of(tfdp.data.poisson_batches(rows, 10, parse=lambda row: row))) == 1
    chosen = list(range(N))
    batched = tfdp.data.batched(lambda few: (release.features[few], Y[few]))
    assert len(releases_of(tfdp.data.poisson_batches(chosen, 10, parse=batched))) == 1
    assert not releases_of(tfdp.data.poisson_batches(chosen, 10, parse=lambda i: (X[i], Y[i])))


@pytest.mark.thorough
@pytest.mark.parametrize("private", [True, False])
def test_weights_of_a_release_are_charged(small, release, private):
    model = tfdp.make_private(small.base(), validate=False)
    optimizer = small.optimizer() if private else keras.optimizers.SGD(0.1)
    model.compile(optimizer, small.loss, run_eagerly=True)
    weights = np.abs(release.features[:, 0])
    model.fit(X, Y, batch_size=10, sample_weight=weights, verbose=0)
    assert names(release) <= {e.details.get("release") for e in model.ledger.entries}


def test_sources_with_an_origin_of_another_kind_are_no_releases():
    class Named(list):
        origin = "a database"

    batches = tfdp.data.poisson_batches(Named(range(N)), 10, parse=lambda i: (X[i], Y[i]))
    assert releases_of(batches) == ()


def test_what_is_only_read_beside_a_release_does_not_carry_it(release, other, tmp_path):
    a, b = release.features.copy(), other.features.copy()
    np.savez(tmp_path / "both.npz", a, b)
    np.copyto(np.zeros_like(X), a)
    np.copyto(dst=a, src=b)
    assert charged(b) == names(other) and charged(a) == names(release, other)
    np.place(b, np.ones(b.shape, bool), release.features[0])
    assert charged(b) == names(release, other)


def test_other_kinds_of_arrays_stay_what_they_are(release, tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    mapped += release.features
    assert isinstance(mapped, np.memmap)
    objects = np.empty(2, object).view(type(release.features))
    objects[0] = {1: 2, "a": 3}
    assert charged(objects) == set()
