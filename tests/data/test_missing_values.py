"""Missing values are named where they are: strings are refused, numbers warned of."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model

import tfdp

Y = np.zeros(6, np.float32)


@pytest.mark.parametrize(
    "gap, said", [(np.nan, "has no value"), (None, "has no value"), (3, "holds a int")]
)
def test_a_missing_string_is_refused_by_column_and_record(gap, said):
    cities = np.array([["a", "b"], ["c", gap]] * 3, object)
    data = {"z": Y, "city": cities}
    with pytest.raises(ValueError, match=rf"x\['city'\] {said} at record 1.*fillna"):
        tfdp.data.poisson_batches((data, Y), 2)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_warned_of_by_column_once(place):
    parts = [np.ones((6, 2)), np.ones(6), np.ones(6)]
    parts[place][3] = np.nan
    x, y, weights = parts
    name = [r"x\['b'\]", "y", "sample_weight"][place]
    with pytest.warns(UserWarning, match=f"NaN.*{name}.*learns nothing"):
        tfdp.data.poisson_batches(({"a": Y, "b": x}, y, weights), 2)


@pytest.mark.thorough
def test_fit_warns_of_nan_in_arrays():
    x = np.ones((40, 3), np.float32)
    x[5] = np.nan
    with pytest.warns(UserWarning, match=r"NaN.*\['x'\]"):
        eager_model().fit(x, np.zeros(40), batch_size=10, verbose=0)


def test_numbers_strings_and_ragged_arrays_without_gaps_bring_no_warning():
    data = {"i": np.arange(6), "s": np.array(list("abcdef"), object), "f": Y + np.inf}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.data.poisson_batches((data, Y), 2)
        tfdp.data.sources.missing_values.warn_of_nan((tf.ragged.constant([[1.0], []]), None))


def with_a_gap(n=6):
    x = np.ones((n, 2), np.float32)
    x[3, 1] = np.nan
    return x


@pytest.mark.thorough
@pytest.mark.parametrize("together", [False, True])
def test_nan_of_a_source_is_warned_of_when_it_is_read_and_once(together):
    def parse(record):
        rows = np.asarray(record)
        return {"a": rows[..., 0], "b": rows[..., 1]}, rows[..., 0]

    parse = tfdp.data.batched(parse) if together else parse
    batches = tfdp.data.poisson_batches(with_a_gap(), 6, parse=parse, steps_per_epoch=3)
    with pytest.warns(UserWarning, match=r"NaN.*x\['b'\]"):
        first = list(batches)
    assert sum(np.isnan(x["b"]).sum() for x, _, _ in first) > 0  # the records are what they were
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(batches)


def test_nan_of_a_mapped_file_is_warned_of_when_it_is_read(tmp_path):
    np.save(tmp_path / "x.npy", with_a_gap())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = tfdp.data.poisson_batches((mapped, Y), 6)
    with pytest.warns(UserWarning, match=r"NaN.*\['x'\].*learns nothing"):
        list(batches)
