import gzip

import numpy as np
import pytest
import tensorflow as tf

from tfdp.data import (
    CRITEO_VOCABULARY_SIZES,
    load_criteo,
    poisson_batches,
    sampling_of,
    synthetic_clicks,
)


def line(label=0, integers=(), values=()):
    fields = [label, *integers, *[""] * (13 - len(integers)), *values, *[""] * (26 - len(values))]
    return "\t".join(map(str, fields)) + "\n"


def written(path, *lines):
    path.write_text("".join(lines))
    return path


def test_the_papers_table_has_26_features_and_its_sizes():
    assert len(CRITEO_VOCABULARY_SIZES) == 26
    assert sum(CRITEO_VOCABULARY_SIZES) == 338_782
    assert CRITEO_VOCABULARY_SIZES[2] == max(CRITEO_VOCABULARY_SIZES) == 82_741


def test_a_file_becomes_labels_integers_and_ids(tmp_path):
    path = written(
        tmp_path / "clicks.tsv",
        line(1, (5, -2, 0, 0.25), ("a", "b")),
        line(0, ("", 7), ("a", "")),
        line(0, (1, 1), ("c", "x")),
    )
    vocabulary = [["c", "a"], ["b"], *[[]] * 24]
    data = load_criteo(path, vocabulary=vocabulary, test_fraction=1 / 3)
    x, y = data.train
    np.testing.assert_array_equal(y, [[1], [0]])
    np.testing.assert_array_equal(x["integers"][:, :4], [[5, -2, 0, 0.25], [0, 7, 0, 0]])
    np.testing.assert_array_equal(x["C1"], [2, 2])
    np.testing.assert_array_equal(x["C2"], [1, 0])
    np.testing.assert_array_equal(data.test[0]["C1"], [1])
    np.testing.assert_array_equal(data.test[0]["C2"], [0])  # not in the vocabulary
    assert data.vocabulary_sizes["C1"] == 3 and data.num_examples == 2
    assert data.privacy_assumptions == ("the vocabulary of the categorical features is public",)
    assert x["integers"].dtype == np.float32 and x["C1"].dtype == np.int64


def test_hashing_looks_at_the_value_alone(tmp_path):
    rows = [line(0, (), (v, v)) for v in ("a", "b", "a", "c")]
    data = load_criteo(written(tmp_path / "a", *rows), hash_buckets=1000, test_fraction=0)
    more = load_criteo(written(tmp_path / "b", *rows[::-1], line(0, (), ("z", "y"))),
                       hash_buckets=1000, test_fraction=0)  # fmt: skip
    ids, others = data.train[0]["C1"], more.train[0]["C1"]
    np.testing.assert_array_equal(ids, others[:4][::-1])
    assert ids[0] == ids[2] != ids[1]
    # The same in every process, machine and version: a stored model depends on it.
    expected = tf.strings.to_hash_bucket_fast("a", 1000).numpy()
    assert ids[0] == expected == 939
    assert data.vocabulary_sizes == {f"C{i}": 1000 for i in range(1, 27)}
    assert data.privacy_assumptions == ()


def test_the_first_rows_of_a_compressed_file_can_be_read(tmp_path):
    path = tmp_path / "clicks.gz"
    path.write_bytes(gzip.compress(b"".join(line(i % 2).encode() for i in range(10))))
    data = load_criteo(path, hash_buckets=CRITEO_VOCABULARY_SIZES, num_rows=4, test_fraction=0.5)
    np.testing.assert_array_equal(data.train[1][:, 0], [0, 1])
    np.testing.assert_array_equal(data.test[1][:, 0], [0, 1])


def test_sizes_are_never_read_from_the_data(tmp_path):
    path = written(tmp_path / "a", line())
    for arguments in ({}, {"hash_buckets": 3, "vocabulary": [[]] * 26}):
        with pytest.raises(ValueError, match="Exactly one"):
            load_criteo(path, **arguments)
    for arguments in ({"hash_buckets": 0}, {"hash_buckets": [3] * 25}, {"vocabulary": ["a"]}):
        with pytest.raises(ValueError, match="Received"):
            load_criteo(path, **arguments)
    with pytest.raises(ValueError, match="test_fraction=1"):
        load_criteo(path, hash_buckets=3, test_fraction=1)


@pytest.mark.parametrize(
    "content, message",
    [("", "empty"), ("1\t2\n", "line 1 with 2 fields"), (line(2), "labels"),
     (line(1, ("x",)), "count 1"), (line(1, ("nan",)), "count 1 fields are finite")],
)  # fmt: skip
def test_malformed_files_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load_criteo(written(tmp_path / "a", content), hash_buckets=3)


@pytest.mark.thorough
def test_real_clicks(shared_data):
    path = shared_data / "criteo" / "dac_first80k_decoded.tsv.gz"
    data = load_criteo(path, hash_buckets=CRITEO_VOCABULARY_SIZES, num_rows=5000)
    x, y = data.train
    assert y.shape == (4500, 1) and 0.15 < y.mean() < 0.3
    for name, size in data.vocabulary_sizes.items():
        assert 0 <= x[name].min() and x[name].max() < size
    np.testing.assert_array_equal(x["integers"][0], [1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, 0, 2])


def test_synthetic_clicks_have_the_papers_shape_and_something_to_learn():
    data = synthetic_clicks(20_000, seed=1)
    x, y = data.train
    assert tuple(data.vocabulary_sizes.values()) == CRITEO_VOCABULARY_SIZES
    assert y.shape == (18_000, 1) and 0.2 < y.mean() < 0.35
    for name, size in data.vocabulary_sizes.items():
        assert 0 <= x[name].min() and x[name].max() < size
    counts = np.sort(np.bincount(x["C3"], minlength=82_741))[::-1]
    assert counts[0] > 500 and (counts == 0).sum() > 70_000  # a long tail
    # Click rates by value, learned on train, rank the test better than chance.
    score = np.zeros(len(data.test[1]))
    for name, size in data.vocabulary_sizes.items():
        shown = np.bincount(x[name], minlength=size)
        clicked = np.bincount(x[name], weights=y[:, 0], minlength=size)
        rate = (clicked + 20 * y.mean()) / (shown + 20)
        score += np.log(rate / (1 - rate))[data.test[0][name]]
    label = data.test[1][:, 0] == 1
    auc = np.mean(score[label][:, None] > score[~label][None, :])
    assert 0.65 < auc < 0.95


def test_synthetic_clicks_repeat_with_their_seed_alone():
    a, b, c = (synthetic_clicks(100, (5, 7), seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.train[0]["C2"], b.train[0]["C2"])
    assert np.any(a.train[0]["C2"] != c.train[0]["C2"])
    for arguments in ((0,), (10, ()), (10, (0,))):
        with pytest.raises(ValueError, match="Received"):
            synthetic_clicks(*arguments)


def test_clicks_can_be_drawn_in_poisson_batches():
    data = synthetic_clicks(200, (5, 7))
    batches = poisson_batches(data.train, expected_batch_size=20)
    assert sampling_of(batches).num_examples == data.num_examples == 180
    x, y, weight = next(iter(batches))
    assert set(x) == {"integers", "C1", "C2"} and x["C1"].shape == weight.shape
