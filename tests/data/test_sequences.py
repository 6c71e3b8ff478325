"""Leave-one-out splits and the files they are made from."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data.provenance.dataset_tags import assumptions_of


def test_the_last_item_is_held_out_and_the_newest_stand_on_the_right():
    data = tfdp.data.leave_one_out_split([[5, 6], [1, 2, 3, 4, 5, 6], [7], [1, 2, 3, 4]], 3)
    np.testing.assert_array_equal(data.train[0], [[0, 0, 0], [2, 3, 4], [0, 0, 0], [0, 1, 2]])
    np.testing.assert_array_equal(data.train[1], [[0, 0, 0], [3, 4, 5], [0, 0, 0], [0, 2, 3]])
    np.testing.assert_array_equal(data.test[0], [[0, 0, 5], [3, 4, 5], [0, 0, 0], [1, 2, 3]])
    np.testing.assert_array_equal(data.test[1], [[0, 0, 6], [0, 0, 6], [0, 0, 0], [0, 0, 4]])
    assert (data.num_users, data.num_items, data.max_length) == (4, 7, 3)
    assert all(array.dtype == np.int32 for array in (*data.train, *data.test))


def test_the_held_out_item_never_reaches_the_training_records():
    rng = np.random.default_rng(0)
    sequences = [
        np.append(rng.integers(1, 50, size=length), 50 + user)
        for user, length in enumerate(rng.integers(0, 20, size=40))
    ]
    data = tfdp.data.leave_one_out_split(sequences, 8, num_items=100)
    assert max(part.max() for part in data.train) < 50
    assert data.test[0].max() < 50


def test_the_pair_unpacks_feeds_batches_and_pickles_with_its_vocabulary():
    data = tfdp.data.leave_one_out_split([[1, 2, 3]] * 6, 4, num_items=9)
    x, y = data.train
    assert x.shape == y.shape == (6, 4)
    assert data.train.num_items == data.test.num_items == 9
    assert pickle.loads(pickle.dumps(data.train)).num_items == 9
    slices = tf.data.Dataset.from_tensor_slices(data.train)
    np.testing.assert_array_equal(next(slices.as_numpy_iterator())[1], [0, 0, 0, 2])
    assert tf.nest.map_structure(np.shape, data.train) == ((6, 4), (6, 4))
    assert tfdp.data.poisson_batches(data.train, 2).element_spec[0].shape[1:] == (4,)


def test_nothing_public_holds_counts_or_prints_records():
    data = tfdp.data.leave_one_out_split([[1, 2, 3]], 2)
    assert not any("count" in name for name in dir(data))
    assert repr(data) == "SequenceData(num_items=3, num_users=1, max_length=2)"


@pytest.mark.parametrize(
    ("sequences", "arguments", "message"),
    [
        ([], {}, "sequences"),
        ([[]], {}, "sequences"),
        ([[1, 0]], {}, "sequences"),
        ([[1, 5]], {"num_items": 4}, "sequences"),
        ([[1, 2**31]], {}, "sequences"),
        ([[1, 2]], {"max_length": 0}, "max_length"),
        ([[1, 2]], {"num_items": 0}, "num_items"),
    ],
)
def test_wrong_sequences_are_refused(sequences, arguments, message):
    with pytest.raises(ValueError, match=f"Argument `{message}` must"):
        tfdp.data.leave_one_out_split(sequences, **{"max_length": 3, **arguments})


def test_users_may_be_interleaved_and_ids_are_kept(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("9 4\n2 7\n9 1\r\n\n2\t8\n  9 7 \n2 3")
    data = tfdp.data.load_sequences(path, max_length=2)
    np.testing.assert_array_equal(data.train[0], [[0, 7], [0, 4]])
    np.testing.assert_array_equal(data.test[1], [[0, 3], [0, 7]])
    assert (data.num_users, data.num_items) == (2, 8)


def test_time_order_within_a_user_survives_any_interleaving(tmp_path):
    rng = np.random.default_rng(0)
    users = rng.permutation(np.repeat(np.arange(1, 41), 25))
    items = np.zeros_like(users)
    for user in range(1, 41):
        items[users == user] = np.arange(1, 26)
    path = tmp_path / "pairs.txt"
    np.savetxt(path, np.stack([users, items], axis=1), fmt="%d")
    data = tfdp.data.load_sequences(path, max_length=23)
    np.testing.assert_array_equal(data.train[1], np.tile(np.arange(2, 25), (40, 1)))
    np.testing.assert_array_equal(data.test[1][:, -1], np.full(40, 25))


def test_the_vocabulary_can_be_declared_instead_of_read(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("1 1\n1 2\n")
    assert tfdp.data.load_sequences(path, num_items=10).train.num_items == 10
    with pytest.raises(ValueError, match="num_items=1"):
        tfdp.data.load_sequences(path, num_items=1)


@pytest.mark.parametrize(
    "line",
    ["1", "1 2 3", "1 x", "1,2", "1 0", "0 1", "-1 2", "1.0 2", "# 1 2", "1 99999999999999999999"],
)
def test_a_malformed_line_is_named_by_number_and_content(tmp_path, line):
    path = tmp_path / "pairs.txt"
    path.write_text(f"1 1\n\n1 2\n{line}\n1 3\n")
    with pytest.raises(ValueError, match="line 4: ") as raised:
        tfdp.data.load_sequences(path)
    assert repr(line) in str(raised.value)


@pytest.mark.parametrize("second", ["1 2 4", "2 2 4"])
def test_a_file_of_three_columns_is_malformed_from_its_first_line(tmp_path, second):
    path = tmp_path / "pairs.txt"
    path.write_text(f"1 1 5\n{second}\n")
    with pytest.raises(ValueError, match="line 1: '1 1 5'"):
        tfdp.data.load_sequences(path)


def test_a_file_may_have_one_line_for_each_user(tmp_path):
    path = tmp_path / "users.txt"
    path.write_text("7 3 1 2\n\n2 5 4\n9 6\n")
    data = tfdp.data.load_sequences(path, max_length=3)
    np.testing.assert_array_equal(data.train[1], [[0, 0, 0], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(data.held_out[1], [4, 2, 0])  # one item: nothing to hold out
    for changed in ("7 3 1 2\n2 5 x\n9 6\n", "7 3 1 2\n2 5 4\n7 6\n", "1 3 4\n2\n"):
        path.write_text(changed)
        with pytest.raises(ValueError, match="line [12]: .*"):
            tfdp.data.load_sequences(path)


def test_bytes_that_are_not_text_are_a_malformed_line(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"1 1\n\xff\xfe 2\n")
    with pytest.raises(ValueError, match="line 2: "):
        tfdp.data.load_sequences(path)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "pairs.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match="which is empty"):
        tfdp.data.load_sequences(path)


def test_a_missing_file_is_reported_as_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        tfdp.data.load_sequences(tmp_path / "none.txt")


@pytest.mark.thorough
def test_movielens_loads_whole(shared_data):
    path = shared_data / "ml-1m" / "ml-1m.txt"
    if not path.exists():
        pytest.skip("ml-1m/ml-1m.txt is absent from the shared data")
    data = tfdp.data.load_sequences(path, max_length=2276)
    assert (data.num_users, data.num_items) == (6040, 3416)
    # Every action but the first of each user is a label, of training or of test.
    labels = np.count_nonzero(data.train[1]) + np.count_nonzero(data.test[1])
    assert labels + 6040 == 999_611
    assert np.count_nonzero(data.test[1]) == 6040


@pytest.mark.thorough
def test_what_was_taken_to_be_public_is_known_of_the_arrays_by_themselves():
    data = tfdp.data.leave_one_out_split([[1, 2, 3], [2, 3, 1, 4]], 3)
    x, y = data.train
    for part in (data.train, (x, y), (x[:1], y[:1])):
        (assumed,) = assumptions_of(tfdp.data.poisson_batches(part, 1))
        assert "the largest id in the data" in assumed
    given = tfdp.data.leave_one_out_split([[1, 2, 3]], 3, num_items=4).train
    assert assumptions_of(tfdp.data.poisson_batches((given.x, given.y), 1)) == ()
