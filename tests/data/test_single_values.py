"""Every value of a table is read by itself: one odd record changes no other."""

import datetime
import decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.data.datasets import single_values

LARGE = 2**53 + 1  # the first whole number that float64 does not have
ODD = ["a", "", " 7 ", "7.5", 7.5, 7.0, float(LARGE), "nan", None, True, -1, 2**63, "007", b"5"]
FORMS = {
    "list": list,
    "objects": lambda values: np.array([*values, None], object)[:-1],
    "array": np.array,
}


def read_or_refused(read):
    try:
        return read()
    except (ValueError, OverflowError):  # an error is no result
        return None


@settings(max_examples=150, deadline=None)
@given(
    usual=st.sampled_from([
        lambda i: i + 1, lambda i: str(i + 1), lambda i: LARGE + i, lambda i: str(LARGE + i),
        lambda i: f"name {i}", lambda i: i + 0.5,
    ]),
    odd=st.sampled_from(ODD),
    form=st.sampled_from(["list", "objects"]),
)  # fmt: skip
def test_one_odd_value_changes_how_no_other_is_read(usual, odd, form):
    values = [usual(i) for i in range(6)]
    whole, others = (
        single_values.as_array(FORMS[form](column)) for column in ([odd, *values], values)
    )
    for read in (single_values.as_text, single_values.as_integers):
        with_it, without = (read_or_refused(lambda c=c, r=read: r(c)) for c in (whole, others))
        if with_it is not None:
            np.testing.assert_array_equal(with_it[1:], without)
    with_it, without = (
        read_or_refused(lambda c=c: single_values.ranks(c)) for c in (whole, others)
    )
    if with_it is not None:
        np.testing.assert_array_equal(np.argsort(with_it[1:]), np.argsort(without))
    keys = [read_or_refused(lambda c=c: single_values.times(c)) for c in (whole, others)]
    if keys[0] is not None:
        places = np.lexsort(keys[0])
        np.testing.assert_array_equal(places[places > 0] - 1, np.lexsort(keys[1]))


@pytest.mark.parametrize("odd", ["1", "1.0", "x", "1e3", "2024-05-31"])
def test_one_odd_user_or_time_changes_the_order_of_no_other(tmp_path, odd):
    """Times in nanoseconds need more bits than a float has; users keep their places in a stream."""
    first, rows = 1_700_000_000_000_000_000, []
    for user in (10, 9, 2):
        for place, item in enumerate((3, 1, 2)):
            rows.append((user, item, first + [2, 0, 1][place]))

    def histories(*more):
        path = tmp_path / "a.csv"
        lines = [f"{u},{i},{t}" for u, i, t in [*rows, *more]]
        path.write_text("\n".join(["user,item,time", *lines]))
        data = tfdp.data.load_sequences(path, 3, 3, user="user", item="item", timestamp="time")
        return data.train.y.tolist()

    plain = histories()
    assert plain == [[0, 0, 2]] * 3
    for more in ((odd, 3, first), (11, 3, odd)):
        found = read_or_refused(lambda more=more: histories(more, (more[0], 2, first)))
        assert found is None or [row for row in found if row == [0, 0, 2]] == plain


def test_users_stand_in_the_order_of_their_ids_however_they_are_written():
    expected = [2, 1, 0, 4, 3]
    for column in (["10", "9", "2", "b", "a"], [10, 9, 2, "b", "a"]):
        found = single_values.ranks(single_values.as_array(column))
        assert found.tolist() == expected
    assert single_values.ranks(np.array([10, 9, 2])).tolist() == expected[:3]


def test_integers_beside_missing_ones_keep_all_their_digits(tmp_path):
    pyarrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    from pyarrow import parquet

    table = pyarrow.table({"ad": [LARGE, LARGE - 1, None], "clicked": [1, 0, 1]})
    parquet.write_table(table, tmp_path / "a.parquet")
    as_text = [str(LARGE), str(LARGE - 1), "none"]
    frames = [tmp_path / "a.parquet", table]
    frames.append(pandas.DataFrame({"ad": pandas.array([LARGE, LARGE - 1, None], "Int64"),
                                    "clicked": [1, 0, 1]}))  # fmt: skip
    for frame in frames:
        data = tfdp.data.load_clicks(frame, "clicked", {"ad": as_text}, test_fraction=0)
        assert data.train[0]["ad"].tolist() == [1, 2, 0]
    rounded = {"ad": np.array([float(LARGE)]), "clicked": [1]}
    with pytest.raises(ValueError, match=r"below 2\*\*53.*Int64"):
        tfdp.data.load_clicks(rounded, "clicked", {"ad": 10}, test_fraction=0)


def test_dates_are_ordered_to_the_nanosecond_and_beyond_its_last_year():
    for column in (
        np.array(["3000-01-01", "2024-01-01T00:00:00.000000002", "2024-01-01T00:00:00.000000001Z"]),
        np.array([datetime.date(3000, 1, 1), datetime.datetime(2024, 1, 2), "2024-01-01"], object),
        np.array(["3000-01-01", "2024-01-02", "2024-01-01"], "datetime64[s]"),
    ):
        assert np.lexsort(single_values.times(column)).tolist() == [2, 1, 0]
    for column in (["2024-01-01", "5"], ["2024-01-01", ""], [1, None], [1, float("nan")], ["x"]):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            single_values.times(single_values.as_array(column))


def test_numbers_of_several_kinds_keep_their_values():
    mixed = single_values.as_array([7.5, LARGE])
    assert single_values.as_text(mixed).tolist() == ["7.5", str(LARGE)]
    assert single_values.as_integers(np.array([2**63], np.uint64)) is None
    assert single_values.as_text(single_values.as_array([np.float32(7)])).tolist() == ["7"]
    for times in (
        np.array(["1.5", "1.25", "1"]), np.array([1.5, 1.25, 1]), np.float32([1.5, 1.25, 1]),
        [1.5, decimal.Decimal("1.25"), 1], [np.int64(LARGE), float(LARGE - 1), np.float32(1.25)],
    ):  # fmt: skip
        keys = single_values.times(single_values.as_array(times))
        assert np.lexsort(keys).tolist() == [2, 1, 0]
