"""Whatever is made of the numbers of a release brings its charge, and what the records cost."""

import copy
import dataclasses
import pickle

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.data.releases.base import ChargedRelease

X = np.array([[1, 2, 3], [3, 4, 1], [2, 2, 4], [4, 1, 2]])
Y = np.array([[2, 3, 4], [4, 1, 2], [2, 4, 1], [1, 2, 3]])
RELEASES = {
    "frequencies": lambda train: tfdp.data.private_frequency(train, 1.0, num_items=4),
    "transitions": lambda train: tfdp.data.private_transitions(
        train, noise_multiplier=1.0, num_items=4, threshold=0.0
    ),
    "clicks": lambda train: tfdp.data.private_click_statistics(
        ({"a": train[0][:, 0]}, train[1][:, 0] % 2), {"a": 5}, noise_multiplier=1.0
    ),
    "top k": lambda train: tfdp.selection.private_top_k({"a": train[0]}, {"a": 5}, 2, 1.0),
}


def arrays(release):
    for field in dataclasses.fields(release):
        value = getattr(release, field.name)
        if field.name != "details":
            yield from value.values() if isinstance(value, dict) else [value]


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", RELEASES)
def test_every_array_of_a_release_carries_its_charge(name):
    release = RELEASES[name]((X, Y))
    found = [a for a in arrays(release) if isinstance(a, np.ndarray)]
    if name == "clicks":
        assert Origin.of(release.rate * 2).releases == (release.entry,)
    found = [a for a in found if a.ndim]
    assert len(found) == {"frequencies": 1, "transitions": 3, "clicks": 3, "top k": 1}[name]
    for array in found:
        assert Origin.of(array[:1] * 2).releases == (release.entry,)
        batches = tfdp.data.poisson_batches((array, np.zeros(len(array))), 1)
        assert release.entry in tfdp.data.provenance.dataset_tags.releases_of(batches)


def entry(label):
    return LedgerEntry(label, dp_accounting.GaussianDpEvent(1.0), 1, {"release": label})


A, B = Origin((entry("a"),), ("a is public",)), Origin((entry("b"),), ("b is public",))


def pair(make=np.ones):
    return OriginArray.of(make(4), A), OriginArray.of(make(4), B)


def into(first, second):
    np.multiply(np.ones(4), second, out=first)
    return first


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a + b,
        lambda a, b: np.ones(4) - (a * 2) / b,
        lambda a, b: np.stack([a, b]),
        lambda a, b: np.stack(arrays=[a, b]),
        lambda a, b: np.concatenate([a[:2], np.zeros(2), b]),
        lambda a, b: np.where(a > 0, b, 0.0),
        lambda a, b: np.matmul(a[None], b[:, None]),
        lambda a, b: np.append(a, b)[:4],
        lambda a, b: np.einsum("i,j->ij", a, b),
        lambda a, b: np.linalg.eigh(a[:, None] * b)[1],
        lambda a, b: np.split(np.hstack([a, b]), 2)[0],
        lambda a, b: np.add(1.0, b, where=a > 0),
        lambda a, b: np.outer(a, b).astype(np.float32).T.copy().reshape(-1)[3:],
        into,
        lambda a, b: pickle.loads(pickle.dumps(a + b)),
        lambda a, b: copy.deepcopy({"x": [a + b]})["x"][0],
        lambda a, b: np.add.reduce(np.stack([a, b]), axis=0),
        lambda a, b: (a + b).sum(axis=0, keepdims=True),
    ],
)
@pytest.mark.filterwarnings("ignore:'where' used without 'out'")
def test_what_numpy_makes_of_two_arrays_costs_both(make):
    made = make(*pair())
    assert isinstance(made, np.ndarray)
    found = Origin.of(made)
    assert {e.label for e in found.releases} == {"a", "b"}
    assert set(found.assumptions) == {"a is public", "b is public"}


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_out_of_a_pickle_carries_its_charge(name):
    release = RELEASES[name]((X, Y))
    for read in (pickle.loads(pickle.dumps(release)), copy.deepcopy(release)):
        assert read.privacy_releases == [release.entry]
        for array in arrays(read):
            if isinstance(array, np.ndarray):
                assert Origin.of(array).releases == (release.entry,)


def test_rows_that_are_chosen_by_the_numbers_of_a_release_cost_it(tmp_path):
    origin = Origin(assumptions=("the catalogue is public",))
    release = tfdp.data.private_frequency((OriginArray.of(X, origin), Y), 1.0, num_items=4)
    public = "the frequencies given to FEST are public"
    for given in (release.probabilities, {"items": release.probabilities}):
        fest = tfdp.selection.FEST(2, frequencies=given)
        config = keras.saving.serialize_keras_object(fest)
        for one in (fest, keras.saving.deserialize_keras_object(config)):
            assert one.privacy_releases == [release.entry]
            assert set(one.privacy_assumptions) == {public, "the catalogue is public"}
            assert len(one.privacy_assumptions) == 2
    items = tfdp.data.FrequentItems(release.probabilities, 2)
    assert Origin.of(items.encode(X)).releases == (release.entry,)
    fest = tfdp.selection.FEST(2, epsilon=1.0)
    ids = {"items": OriginArray.of(X, release.carried)}
    chosen = [fest.adapt(ids, {"items": 5}).entry for _ in range(2)]
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(fest))
    for one in (fest, again):
        assert one.privacy_releases == [release.entry, *chosen]
        assert one.privacy_assumptions == ["the catalogue is public"]


@pytest.mark.parametrize("name", RELEASES)
def test_what_the_records_were_made_with_is_charged_and_said_too(name):
    before = tfdp.data.private_frequency((X, Y), 1.0, num_items=4)
    origin = Origin((before.entry,), ("the catalogue is public",))
    release = RELEASES[name]((OriginArray.of(X, origin), Y))
    assert release.privacy_releases == [before.entry, release.entry]
    assert release.privacy_assumptions == ["the catalogue is public"]


def model_with(frequencies):
    return tfdp.models.DPFormer(4, 3, dim=4, num_blocks=1, item_frequency=frequencies)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("as_array", [False, True])
def test_a_model_is_charged_for_a_release_and_for_its_numbers_alone(as_array, tmp_path):
    origin = Origin(assumptions=("the catalogue is public",))
    release = tfdp.data.private_frequency((OriginArray.of(X, origin), Y), 1.0, num_items=4)
    model = model_with(release.probabilities if as_array else release)
    public = "the item frequencies given to the model are public"
    said = ["the catalogue is public", public] if as_array else ["the catalogue is public"]
    model(X[:1])
    layer = model.embedding_error
    config = keras.saving.serialize_keras_object(layer)
    for one in (layer, keras.saving.deserialize_keras_object(config)):
        assert list(one.privacy_releases) == [release.entry]
        assert one.privacy_assumptions == said


def test_a_smaller_vocabulary_carries_all_that_its_choice_was_made_with():
    origin = Origin(assumptions=("the catalogue is public",))
    release = tfdp.data.private_frequency((OriginArray.of(X, origin), Y), 1.0, num_items=4)
    items = tfdp.data.FrequentItems(release, 2)
    for made in (items.encode(X), items.encode((X, Y))):
        assert Origin.of(made) == Origin((release.entry,), origin.assumptions)
    assert items.release.privacy_releases == [release.entry]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WordCounts(ChargedRelease):
    """A release as somebody else would write it."""

    count: np.ndarray


def word_counts(num_examples=4, details=(), **fields):
    return WordCounts(
        count=np.array([7.0, 2.0]), event=dp_accounting.GaussianDpEvent(1.0), label="words",
        num_examples=num_examples, details={"release": "a", **dict(details)}, **fields,
    )  # fmt: skip


def test_a_field_of_a_release_does_not_change_how_often_it_is_charged():
    release = word_counts(event_count=3)
    assert release.entry.count == 3 and release.entry.num_examples == 4
    assert Origin.of(release.count).releases == (release.entry,)
    with pytest.raises(TypeError, match="event_count"):
        word_counts()


@pytest.mark.parametrize("seed", [0, 3])
def test_a_fixed_seed_is_said_wherever_the_numbers_go(seed):
    release = word_counts(event_count=1, details={"seed": seed})
    for said in (release.privacy_assumptions, Origin.of(release.count).assumptions):
        assert len(said) == 1 and f"fixed seed {seed}" in said[0]
    assert not word_counts(event_count=1, details={"seed": None}).privacy_assumptions


def test_a_private_number_of_examples_is_in_no_statement():
    ledger = tfdp.accounting.Ledger([word_counts(None, event_count=1).entry])
    statement = tfdp.accounting.privacy_statement(ledger, delta=1e-3)
    assert statement.num_examples is None
    assert "Unit of privacy: one example.\n" in str(statement)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.cache(),
        lambda d: d.shuffle(2),
        lambda d: d.unbatch().batch(10),
        lambda d: d.concatenate(d.take(1)),
        lambda d: tf.data.Dataset.zip(d, d.take(9)).map(lambda a, b: a),
    ],
)
def test_what_is_made_of_batches_costs_what_their_records_cost(made):
    entry = LedgerEntry("counts", dp_accounting.GaussianDpEvent(2.0), 1, {})
    x = OriginArray.of(np.zeros(40, np.float32), Origin((entry,), ("it is public",)))
    again = made(tfdp.data.poisson_batches((x, x), 10))
    assert tfdp.data.sampling_of(again) is None
    assert tfdp.data.provenance.dataset_tags.releases_of(again.prefetch(1)) == (entry,)
    assert "it is public" in tfdp.data.provenance.dataset_tags.assumptions_of(again)
