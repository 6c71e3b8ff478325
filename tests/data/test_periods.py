"""Nobody is in two periods of one registry, whoever asks."""

import numpy as np
import pytest

import tfdp
from tfdp.data import DisjointPeriods
from tfdp.errors import PrivacyError

X = np.arange(6.0)


def batches(period, ids, **kwargs):
    given = {"privacy_ids": ids, "max_records_per_unit": 2, "period": period, **kwargs}
    return tfdp.data.poisson_batches((X, X), 2, **given)


def test_batches_know_their_period_and_enter_their_persons(tmp_path):
    periods = DisjointPeriods(tmp_path / "periods.npz")
    first = batches(periods.period("one"), [1, 1, 2, 2, 3, 3])
    assert tfdp.data.sampling_of(first.prefetch(1)).period == (periods.name, "one")
    batches(periods.period("one"), [3, 3, 4, 4, 5, 5])  # the same period may have more
    with pytest.raises(PrivacyError, match="2 of 3 persons"):
        batches(periods.period("two"), [4, 4, 5, 5, 6, 6])
    # Of what was refused nothing was entered.
    batches(periods.period("three"), [6, 6, 7, 7, 8, 8])
    with pytest.raises(PrivacyError, match="1 of 2 persons"):
        tfdp.data.shuffled_epochs(
            (X[:2], X[:2]), 1, privacy_ids=[8, 9], max_records_per_unit=1,
            period=periods.period("two"),
        )  # fmt: skip


@pytest.mark.parametrize("again", [["7", "x"], [b"7", b"x"], np.array([7, 9]), np.array([7], "O")])
def test_an_id_is_the_same_as_number_and_string(again):
    periods = DisjointPeriods()
    periods.claim("one", np.array([7, 8]))
    with pytest.raises(PrivacyError):
        periods.claim("two", again)


def test_a_registry_is_one_in_all_processes(tmp_path):
    path = tmp_path / "periods.npz"
    one, other = DisjointPeriods(path), DisjointPeriods(str(path))
    one.claim("first", ["a", "b"])
    assert other.name == one.name and one.period("first").key == other.period("first").key
    with pytest.raises(PrivacyError):
        other.claim("second", ["b"])
    other.claim("second", ["c"])
    with pytest.raises(PrivacyError):
        one.claim("first", ["c"])
    assert DisjointPeriods().name != DisjointPeriods().name
    path.unlink()
    DisjointPeriods(path)
    with pytest.raises(PrivacyError, match="another registry"):
        one.claim("third", ["d"])
    path.write_text("something else")
    with pytest.raises(ValueError, match="path"):
        DisjointPeriods(path)


def test_ids_are_not_written_down(tmp_path):
    path = tmp_path / "periods.npz"
    DisjointPeriods(path).claim("first", ["somebody with a name"])
    assert b"somebody" not in path.read_bytes()


def test_a_period_needs_a_registry_and_ids():
    assert tfdp.data.sampling_of(batches(None, [1, 1, 2, 2, 3, 3])).period is None
    with pytest.raises(ValueError, match="DisjointPeriods"):
        batches("one", [1, 1, 2, 2, 3, 3])
    with pytest.raises(ValueError, match="needs `privacy_ids`"):
        batches(DisjointPeriods().period("one"), None, max_records_per_unit=None)
    for wrong in ("", None, 7):
        with pytest.raises(ValueError, match="name"):
            DisjointPeriods().period(wrong)
