"""What counts as data: nestings of arrays, and the padded batches cut from them."""

import collections

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import tfdp
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.data.sources.in_memory import Records

N = 12
Point = collections.namedtuple("Point", ["a", "b"])


def array_of_indices(draw_shape, dtype):
    index = np.arange(1, N + 1).reshape((N,) + (1,) * len(draw_shape))
    return np.broadcast_to(index, (N, *draw_shape)).astype(dtype)


arrays = st.builds(
    array_of_indices,
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
    st.sampled_from(["int32", "int64", "float32", "float64", "U4", "S4"]),
)
nestings = st.recursive(
    arrays,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["p", "q", "r"]), inner, min_size=1),
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
    ),
    max_leaves=4,
)


@pytest.mark.thorough
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(x=nestings, y=nestings)
def test_any_nesting_of_arrays_keeps_its_records_together(x, y):
    batches = tfdp.data.poisson_batches((x, y), 6, steps_per_epoch=1, seed=1)
    inputs, targets, weights = next(batches.as_numpy_iterator())
    drawn = weights > 0
    leaves = tf.nest.flatten((inputs, targets))
    assert len(leaves) == len(tf.nest.flatten((x, y)))
    index = [leaf.reshape(len(leaf), -1)[drawn][:, 0].astype(np.int64) for leaf in leaves]
    for leaf, source in zip(leaves, tf.nest.flatten((x, y)), strict=True):
        assert leaf.shape[1:] == source.shape[1:]
        expected = source.astype(np.int64)[index[0] - 1]
        np.testing.assert_array_equal(leaf[drawn].astype(np.int64), expected)
        padding = leaf[~drawn]
        assert not (padding != (b"" if leaf.dtype == object else 0)).any()


def test_containers_keep_their_types_and_lists_become_tuples():
    array = np.ones((N, 1), np.float32)
    x = {"a": [array, array], "b": Point(array, array)}
    batches = tfdp.data.poisson_batches((x, array), 6)
    inputs = batches.element_spec[0]
    assert isinstance(inputs["a"], tuple)
    assert isinstance(inputs["b"], Point)


def test_tensors_and_byte_strings_are_records_too():
    text = np.array([f"text {i}".encode() for i in range(N)], object)
    batches = tfdp.data.poisson_batches((text, tf.range(N)), 6, steps_per_epoch=1)
    for inputs, targets, weights in batches.as_numpy_iterator():
        for value, target, weight in zip(inputs, targets, weights, strict=True):
            assert value == (f"text {target}".encode() if weight else b"")


def test_padding_is_never_a_copy_of_a_record():
    x = np.full((N, 2), 7.0, np.float32)
    inputs, _, weights = Records((x, x)).batch(np.array([3]), 5)
    np.testing.assert_array_equal(inputs, [[7, 7]] + [[0, 0]] * 4)
    np.testing.assert_array_equal(weights, [1, 0, 0, 0, 0])


def test_records_carry_where_any_of_their_arrays_comes_from():
    origin = Origin((), ("the words are public",))
    plain, made = np.ones(N), OriginArray.of(np.ones(N), origin)
    for data in ((made, plain), ({"a": [plain, made]}, plain), (plain, made), (plain, plain, made)):
        assert Records(data).origin == origin
    assert Records((plain, plain)).origin == Origin()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones(N), "tuple"),
        ([np.ones(N), np.ones(N)], "tuple"),
        ((np.ones(N),), "tuple"),
        ((np.ones(N),) * 4, "tuple"),
        ((np.ones(N), np.ones(N + 1)), "leading dimensions"),
        ((np.ones((0, 2)), np.ones(0)), "non-zero number of records"),
        ((np.ones(N), None), "without axes"),
        (([1, 2, 3], np.ones(3)), "without axes"),
        ((np.ones(N), np.ones(N), np.ones((N, 2, 2))), "sample weights"),
        ((np.ones(N), np.ones(N), np.ones(N - 1)), "sample weights"),
        ((tf.ragged.constant([[1], [2, 3]]), np.ones(2)), "dense"),
        (
            (np.ones(N), np.ones(N), np.ma.masked_array(np.ones(N), np.arange(N) < 2)),
            "must not be masked",
        ),
        ((np.array([1, 2], object), np.ones(2)), "holds a int at record 0.*by `astype`"),
        ((np.array(["a", None], object), np.ones(2)), "no value at record 1"),
        ((np.array(["2020-01-01"], "datetime64[D]"), np.ones(1)), "dtype"),
    ],
)
def test_other_data_is_refused_with_the_reason(data, message):
    with pytest.raises(ValueError, match=message):
        tfdp.data.poisson_batches(data, 1)
