"""A smaller vocabulary loses nothing but what distinguishes the rare items."""

import dp_accounting
import numpy as np
import pytest

from tfdp.accounting import LedgerEntry
from tfdp.data import FrequencyRelease, FrequentItems
from tfdp.data.provenance.origins import Origin, OriginArray

FREQUENCY = np.array([1.0, 0.1, 0.5, 0.2, 0.05])


def test_frequent_items_keep_their_own_row_and_the_others_share_one():
    items = FrequentItems(FREQUENCY, 2)
    np.testing.assert_array_equal(items.encode(np.array([0, 1, 2, 3, 4])), [0, 3, 1, 2, 3])
    x, y = items.encode((np.array([[2, 4]]), np.array([[4, 3]])))
    np.testing.assert_array_equal(x, [[1, 3]])
    np.testing.assert_array_equal(y, [[3, 2]])


def test_decoded_scores_are_the_log_probabilities_of_the_full_vocabulary():
    items = FrequentItems(FREQUENCY, 2)
    logits = np.log(np.array([[1e-9, 0.5, 0.2, 0.3]]))
    decoded = np.exp(items.decode(logits))
    np.testing.assert_allclose(decoded, [[0.0, 0.3 * 2 / 3, 0.5, 0.2, 0.3 / 3]], rtol=1e-9)


def test_frequencies_of_the_small_vocabulary_stay_a_charged_release():
    release = FrequencyRelease(
        probabilities=FREQUENCY.astype(np.float32), event=dp_accounting.GaussianDpEvent(1.0),
        label="frequencies", num_examples=10, event_count=1, details={},
    )  # fmt: skip
    small = FrequentItems(release, 2).release
    assert small.event is release.event
    np.testing.assert_allclose(small.probabilities, [1.0, 0.5, 0.2, 0.15], rtol=1e-6)
    several = FrequentItems(np.array([1.0, 0.9, 0.8, 0.7]), 1).release
    np.testing.assert_array_equal(several, [1.0, 0.9, 1.0])  # not 0.8 + 0.7


def test_what_is_encoded_costs_what_its_items_were_chosen_by_and_what_it_was_made_with():
    event = dp_accounting.GaussianDpEvent(1.0)
    chosen, made = (LedgerEntry(name, event, 1, {"n": name}) for name in ("chosen", "made"))
    frequency = OriginArray.of(FREQUENCY, Origin((chosen,), ("the catalogue is public",)))
    items = FrequentItems(frequency, 2)
    assert Origin.of(items.release) == Origin.of(frequency)
    ids = OriginArray.of(np.array([[2, 4]]), Origin((made,), ("the records are public",)))
    for encoded in (items.encode(ids), items.encode((ids, ids))):
        found = Origin.of(encoded)
        assert found.releases == (made, chosen)
        assert found.assumptions == (
            "the records are public",
            "the item frequencies by which FrequentItems chose are public",
        )
    scores = OriginArray.of(np.zeros((1, 4)), Origin((made,)))
    assert Origin.of(items.decode(scores)).releases == (made, chosen)


@pytest.mark.parametrize("k", [0, 5])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match="`k`"):
        FrequentItems(FREQUENCY, k)
