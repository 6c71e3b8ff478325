"""No pair of neighbours moves the released matrix by more than the stated sensitivity."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.attention_release.clipping import clip_norms
from tfdp.attention_release.sensitivity import FORMS, UNITS, frobenius_sensitivity

ALPHA = 1.3
DISTANCES = (0.1, 0.5, 0.9, 1.0, 1.5, 2.0)  # times ALPHA


def transposed(z):
    return np.swapaxes(z, -1, -2)


def matrix(z, form):
    """Of one input (rows, width), or of each in a batch (..., rows, width)."""
    if form == "product":
        n = z.shape[-2] // 2
        return z[..., :n, :] @ transposed(z[..., n:, :])
    return z @ transposed(z)


def norms(matrices):
    return np.linalg.norm(matrices, axis=(-2, -1))


def gradient(z, change, form):
    """Of the squared Frobenius norm of the change, in z."""
    if form == "product":
        n = z.shape[-2] // 2
        halves = change @ z[..., n:, :], transposed(change) @ z[..., :n, :]
        return np.concatenate(halves, axis=-2)
    return 2 * change @ z


def clip(z, unit):
    return clip_norms(tf.constant(z), ALPHA, axis=-2 if unit == "feature" else -1).numpy()


def project(unit, form, pairs, betas):
    """The nearest neighbours, near enough: both clipped, apart by one unit and at most beta.

    Args:
        pairs: (2, ..., rows, width).
        betas: (...).
    """
    first, second = clip(pairs, unit)
    if unit == "sequence":
        return first, second
    n = first.shape[-2] if form == "gram" else first.shape[-2] // 2
    rows = [0] if form == "gram" else [0, n]
    changed = np.copy(first)
    where = [(..., r, slice(None)) for r in rows] if unit == "token" else [(..., slice(None), 0)]
    for index in where:
        step = second[index] - first[index]
        length = np.maximum(np.linalg.norm(step, axis=-1), 1e-30)
        changed[index] = first[index] + step * np.minimum(1.0, betas / length)[..., None]
    return first, changed


def rows_of(form, length):
    return length if form == "gram" else 2 * length


def bounds_of(unit, form, length, distances):
    known = [None if unit == "sequence" else d * ALPHA for d in distances]
    return np.array([frobenius_sensitivity(unit, form, length, ALPHA, beta) for beta in known])


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", UNITS)
def test_random_neighbours_stay_within_the_sensitivity(unit, form):
    rng = np.random.default_rng(3)
    distances = np.repeat(DISTANCES, 4)
    for length, width in itertools.product((1, 2, 3, 16, 64), (1, 2, 5)):
        bounds = bounds_of(unit, form, length, distances)
        shape = (len(distances), rows_of(form, length))
        scales = 10.0 ** rng.uniform(-1, 3, (len(distances), 1, 1))
        pairs = rng.normal(size=(2, *shape, width)) * scales
        # rows along one direction are the dangerous ones
        along = rng.random((len(distances), 1, 1)) < 0.5
        aligned = rng.normal(size=(2, *shape, 1)) * 100 + pairs * 0.01
        first, second = project(unit, form, np.where(along, aligned, pairs), distances * ALPHA)
        assert np.all(norms(matrix(first, form) - matrix(second, form)) <= bounds)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", UNITS)
def test_adversarial_neighbours_come_near_the_sensitivity_and_stay_within(unit, form):
    rng = np.random.default_rng(4)
    # Starts with the smaller spread are near one direction.
    distances, spreads = np.repeat([0.5, 2.0], 3), np.tile([1.0, 1e-2, 1e-2], 2)
    for length in (1, 2, 5, 64):
        bounds, best = bounds_of(unit, form, length, distances), np.zeros(len(distances))
        start = rng.normal(size=(2, len(distances), rows_of(form, length), 3))
        start *= spreads[:, None, None]
        towards = np.abs(rng.normal(size=start.shape[:-1]) * 5)
        start[..., 0] += towards * np.array([1.0, -1.0])[:, None, None]
        pairs = project(unit, form, start, distances * ALPHA)
        for step in np.geomspace(1.0, 0.01, 25):
            change = matrix(pairs[0], form) - matrix(pairs[1], form)
            found = norms(change)
            assert np.all(found <= bounds)
            best = np.maximum(best, found / bounds)
            ascent = np.stack(
                [gradient(z, s * change, form) for z, s in zip(pairs, (1, -1), strict=True)]
            )
            largest = np.abs(ascent).max(axis=(0, 2, 3))[:, None, None]
            moved = np.stack(pairs) + step * ascent / np.maximum(largest, 1e-30)
            pairs = project(unit, form, moved, distances * ALPHA)
        if length >= 5:
            of_each_distance = best.reshape(2, 3).max(axis=1)
            assert np.all(of_each_distance > (0.6 if form == "product" else 0.85))


@pytest.mark.parametrize("length", [2, 64])
@pytest.mark.parametrize("form", FORMS)
def test_explicit_pair_reaches_the_sequence_bound(form, length):
    first = np.full([rows_of(form, length), 1], ALPHA)
    second = first.copy()
    if form == "product":
        second[:length] *= -1
    else:
        second[::2] *= -1  # two sign patterns that are orthogonal
    moved = np.linalg.norm(matrix(first, form) - matrix(second, form))
    assert moved == pytest.approx(frobenius_sensitivity("sequence", form, length, ALPHA), rel=1e-9)


@pytest.mark.thorough_after(6)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("length", [32, 64])
@pytest.mark.parametrize("form", FORMS)
def test_explicit_pair_comes_within_5_percent_of_the_token_bound(form, length, distance):
    first = np.full([rows_of(form, length), 1], ALPHA)
    second = first.copy()
    second[[0] if form == "gram" else [0, length]] -= distance * ALPHA
    moved = np.linalg.norm(matrix(first, form) - matrix(second, form))
    bound = frobenius_sensitivity("token", form, length, ALPHA, distance * ALPHA)
    assert 0.95 * bound <= moved <= bound * (1 + 1e-12)
    if form == "gram":
        assert moved == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("distance", DISTANCES)
def test_explicit_columns_reach_the_feature_bound(distance):
    beta = distance * ALPHA
    collinear = np.array([[ALPHA, 0.0], [ALPHA - beta, 0.0]])
    angle = 2 * math.asin(min(distance, math.sqrt(2)) / 2)
    turned = ALPHA * np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    moved = max(np.linalg.norm(np.outer(x, x) - np.outer(y, y)) for x, y in (collinear, turned))
    bound = frobenius_sensitivity("feature", "gram", 2, ALPHA, beta)
    assert moved == pytest.approx(bound, rel=1e-9)
    assert bound <= 2 * ALPHA * beta  # the paper's


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", ["token", "feature"])
def test_no_distance_means_any_replacement(unit, form):
    any_replacement = frobenius_sensitivity(unit, form, 7, ALPHA)
    assert any_replacement == frobenius_sensitivity(unit, form, 7, ALPHA, 2 * ALPHA)
    assert any_replacement == frobenius_sensitivity(unit, form, 7, ALPHA, 50 * ALPHA)
    smaller = [frobenius_sensitivity(unit, form, 7, ALPHA, d * ALPHA) for d in DISTANCES]
    assert smaller == sorted(smaller) and smaller[-1] == any_replacement


def test_a_mixing_layer_breaks_the_token_bound_and_the_sequence_bound_holds():
    length = 17
    tokens = np.zeros([1, length, 1])
    tokens[0, 1::2], tokens[0, 2::2] = 1.0, -1.0
    neighbour = tokens.copy()
    neighbour[0, 0] = 2.0  # one token is replaced

    mixing = keras.layers.MultiHeadAttention(1, 1, use_bias=False, dtype="float64")
    mixing(tokens, tokens)
    one = np.ones([1, 1, 1])
    mixing.set_weights([0 * one, one, one, length * one])  # attends to all tokens alike

    def release_input(x):
        return clip_norms(100 * (x + mixing(x, x))[0], ALPHA, axis=-1).numpy()

    first, second = release_input(tokens), release_input(neighbour)
    moved = np.linalg.norm(first @ first.T - second @ second.T)
    token = frobenius_sensitivity("token", "gram", length, ALPHA)
    sequence = frobenius_sensitivity("sequence", "gram", length, ALPHA)
    assert 1.1 * token < moved <= sequence


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("word", "gram", 4, 1.0), "unit"),
        (("token", "cube", 4, 1.0), "form"),
        (("token", "gram", 0, 1.0), "length"),
        (("token", "gram", 4, -1.0), "max_norm"),
        (("token", "gram", 4, float("nan")), "max_norm"),
        (("token", "gram", 4, 1.0, 0.0), "neighbor_distance"),
        (("sequence", "gram", 4, 1.0, 0.5), "neighbor_distance"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        frobenius_sensitivity(*arguments)


def test_clipping_bounds_every_vector_and_zeroes_what_is_not_finite():
    x = np.array(
        [[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [1e300, -1e300], [1e-300, 0.0], [1e-200, 1e-200]]
    )
    clipped = clip_norms(tf.constant(x), 1.0, axis=-1).numpy()
    np.testing.assert_allclose(clipped[0], [0.6, 0.8], rtol=1e-11)
    np.testing.assert_allclose(clipped[[1, 2, 4, 5]], x[[1, 2, 4, 5]], rtol=1e-15)
    np.testing.assert_allclose(clipped[3], [0.5**0.5, -(0.5**0.5)], rtol=1e-11)
    assert np.all(np.linalg.norm(clipped, axis=-1) <= 1.0)
    bad = np.array([[np.nan, 1.0], [1.0, np.inf], [-np.inf, np.nan]])
    np.testing.assert_array_equal(clip_norms(tf.constant(bad), 1.0, axis=-1).numpy(), 0 * x[:3])
    columns = clip_norms(tf.constant(x[:2]), 1.0, axis=-2).numpy()
    assert np.all(np.linalg.norm(columns, axis=0) <= 1.0)


def test_clipping_moves_no_two_vectors_apart():
    x, y = np.random.default_rng(0).normal(size=(2, 2000, 3)) * 2
    before = np.linalg.norm(x - y, axis=-1)
    after = np.linalg.norm(clip(x, "token") - clip(y, "token"), axis=-1)
    assert np.all(after <= before * (1 + 1e-11))
