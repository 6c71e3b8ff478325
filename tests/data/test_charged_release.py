"""Whatever is made of the numbers of a release brings its charge, and what the records cost."""

import dataclasses

import keras
import numpy as np
import pytest

import tfdp
from tfdp.data.provenance import Origin, OriginArray

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
}


def arrays(release):
    for field in dataclasses.fields(release):
        value = getattr(release, field.name)
        if field.name != "details":
            yield from value.values() if isinstance(value, dict) else [value]


@pytest.mark.parametrize("name", RELEASES)
def test_every_array_of_a_release_carries_its_charge(name):
    release = RELEASES[name]((X, Y))
    found = [a for a in arrays(release) if isinstance(a, np.ndarray)]
    assert len(found) == {"frequencies": 1, "transitions": 3, "clicks": 3}[name]
    for array in found:
        assert Origin.of(array[:1] * 2).releases == (release.entry,)
        batches = tfdp.data.poisson_batches((array, np.zeros(len(array))), 1)
        assert release.entry in tfdp.data.provenance.releases_of(batches)


@pytest.mark.parametrize("name", RELEASES)
def test_what_the_records_were_made_with_is_charged_and_said_too(name):
    before = tfdp.data.private_frequency((X, Y), 1.0, num_items=4)
    origin = Origin((before.entry,), ("the catalogue is public",))
    release = RELEASES[name]((OriginArray.of(X, origin), Y))
    assert release.privacy_releases == [before.entry, release.entry]
    assert release.privacy_assumptions == ["the catalogue is public"]


def model_with(frequencies):
    return tfdp.models.DPFormer(4, 3, dim=4, num_blocks=1, item_frequency=frequencies)


@pytest.mark.parametrize("as_array", [False, True])
def test_a_model_is_charged_for_a_release_and_for_its_numbers_alone(as_array, tmp_path):
    origin = Origin(assumptions=("the catalogue is public",))
    release = tfdp.data.private_frequency((OriginArray.of(X, origin), Y), 1.0, num_items=4)
    model = model_with(release.probabilities if as_array else release)
    public = "the item frequencies given to the model are public"
    said = public if as_array else "the catalogue is public"
    model(X[:1])
    layer = model.embedding_error
    config = keras.saving.serialize_keras_object(layer)
    for one in (layer, keras.saving.deserialize_keras_object(config)):
        assert list(one.privacy_releases) == [release.entry]
        assert one.privacy_assumptions == [said]


def test_a_smaller_vocabulary_carries_all_that_its_choice_was_made_with():
    origin = Origin(assumptions=("the catalogue is public",))
    release = tfdp.data.private_frequency((OriginArray.of(X, origin), Y), 1.0, num_items=4)
    items = tfdp.data.FrequentItems(release, 2)
    for made in (items.encode(X), items.encode((X, Y))):
        assert Origin.of(made) == Origin((release.entry,), origin.assumptions)
    assert items.release.privacy_releases == [release.entry]
