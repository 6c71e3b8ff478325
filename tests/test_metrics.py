"""Ranking metrics against a plain numpy ranking of all items."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

METRICS = [tfdp.metrics.NDCG, tfdp.metrics.HitRate]


def brute_force(metric, y_true, y_pred, k, ignore_class=0, weight=None):
    """Mean gain, by listing every rank that a random order of ties can give the target."""
    total = count = 0.0
    weight = np.ones(y_true.shape) if weight is None else weight
    weight = np.broadcast_to(weight.reshape(weight.shape + (1,) * (y_true.ndim - weight.ndim)),
                             y_true.shape)  # fmt: skip
    for position in np.ndindex(y_true.shape):
        target = y_true[position]
        if target == ignore_class:
            continue
        scores = y_pred[position]
        others = [j for j in range(len(scores)) if j not in (target, ignore_class)]
        better = sum(scores[j] > scores[target] for j in others)
        tied = sum(scores[j] == scores[target] for j in others)
        ranks = range(better, better + tied + 1)
        gain = [(r < k) * (1 / np.log2(r + 2) if metric is METRICS[0] else 1) for r in ranks]
        total += weight[position] * np.mean(gain)
        count += weight[position]
    return total / count


def example(shape=(6, 5), num_items=40, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, num_items, size=shape)
    y_true.flat[:3] = 0
    # Rounded to a grid, so that ties occur.
    y_pred = np.round(rng.normal(size=(*shape, num_items)) * 4) / 4
    return y_true, y_pred.astype(dtype)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", [(30,), (6, 5)])
@pytest.mark.parametrize("ignore_class", [0, None, -1, 7])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_equals_the_brute_force_ranking(metric, shape, ignore_class, k):
    y_true, y_pred = example(shape)
    result = metric(k=k, ignore_class=ignore_class)(y_true, y_pred)
    expected = brute_force(metric, y_true, y_pred, k, ignore_class)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("weight_shape", [(6,), (6, 5)])
def test_sample_weights_weigh_positions(metric, weight_shape):
    y_true, y_pred = example()
    weight = np.random.default_rng(1).uniform(size=weight_shape)
    weight[2] = 0
    result = metric(k=5)(y_true, y_pred, sample_weight=weight)
    expected = brute_force(metric, y_true, y_pred, 5, weight=weight)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("metric", METRICS)
def test_streaming_equals_one_shot(metric):
    y_true, y_pred = example((32, 5))
    streaming, one_shot = metric(), metric()
    for start in range(0, 32, 8):
        streaming.update_state(y_true[start : start + 8], y_pred[start : start + 8])
    one_shot.update_state(y_true, y_pred)
    np.testing.assert_allclose(streaming.result(), one_shot.result(), rtol=1e-6)
    streaming.reset_state()
    assert float(streaming.result()) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_works_in_compiled_functions(metric, jit_compile):
    y_true, y_pred = example()
    compiled = metric()

    @tf.function(jit_compile=jit_compile)
    def update(labels, scores):
        compiled.update_state(labels, scores)

    update(tf.constant(y_true), tf.constant(y_pred))
    expected = brute_force(metric, y_true, y_pred, 10)
    np.testing.assert_allclose(compiled.result(), expected, rtol=1e-5)


def test_a_constant_model_scores_like_a_random_order():
    y_true = np.arange(1, 101)
    y_pred = np.zeros((100, 101), np.float32)
    assert float(tfdp.metrics.HitRate(k=10)(y_true, y_pred)) == pytest.approx(0.1)
    ndcg = (1 / np.log2(np.arange(10) + 2)).sum() / 100
    assert float(tfdp.metrics.NDCG(k=10)(y_true, y_pred)) == pytest.approx(ndcg)


def test_a_perfect_model_scores_one():
    y_true = np.array([[3, 0], [1, 2]])
    y_pred = np.eye(5, dtype=np.float32)[y_true]
    for metric in METRICS:
        assert float(metric(k=1)(y_true, y_pred)) == 1


@pytest.mark.parametrize("metric", METRICS)
def test_scores_that_are_not_numbers_rank_their_target_last(metric):
    y_pred = np.full((3, 50), np.nan, np.float32)
    assert float(metric()(np.array([1, 2, 3]), y_pred)) == 0
    y_pred = np.zeros((1, 50), np.float32)
    y_pred[0, 20:] = np.nan
    y_pred[0, 1] = 1
    assert float(metric()(np.array([1]), y_pred)) == 0


def test_the_padding_item_is_no_candidate():
    y_pred = np.array([[9.0, 1.0, 0.0]], np.float32)
    assert float(tfdp.metrics.HitRate(k=1)(np.array([1]), y_pred)) == 1
    assert float(tfdp.metrics.HitRate(k=1, ignore_class=None)(np.array([1]), y_pred)) == 0


def test_rows_of_padding_do_not_count():
    y_true, y_pred = example()
    padded_true = np.concatenate([y_true, np.zeros_like(y_true)])
    padded_pred = np.concatenate([y_pred, np.zeros_like(y_pred)])
    for metric in METRICS:
        np.testing.assert_allclose(
            metric()(padded_true, padded_pred), metric()(y_true, y_pred), rtol=1e-6
        )


def test_bfloat16_scores_and_column_labels_are_accepted():
    y_true, y_pred = example((30,))
    rounded = tf.cast(y_pred, tf.bfloat16)
    expected = brute_force(METRICS[0], y_true, tf.cast(rounded, tf.float32).numpy(), 10)
    result = tfdp.metrics.NDCG()(y_true[:, None], rounded)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_targets_beyond_32_bits_are_no_others():
    y_true, y_pred = example((30,))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tfdp.metrics.NDCG()(y_true.astype(np.int64) + 2**32, y_pred)


@pytest.mark.parametrize("metric", METRICS)
def test_round_trips_through_its_config(metric):
    original = metric(k=7, ignore_class=None, name="mine")
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
    assert type(copy) is metric
    assert (copy.k, copy.ignore_class, copy.name) == (7, None, "mine")


@pytest.mark.thorough
def test_a_compiled_model_evaluates_sequences_with_it():
    data = tfdp.data.synthetic_sequences(64, 30, max_length=6, min_length=3)
    model = keras.Sequential([keras.layers.Embedding(31, 8), keras.layers.Dense(31)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("sgd", loss, metrics=[tfdp.metrics.NDCG(), tfdp.metrics.HitRate(k=5)])
    logs = model.evaluate(*data.test, batch_size=16, verbose=0, return_dict=True)
    scores = model.predict(data.test[0], verbose=0)
    np.testing.assert_allclose(
        logs["ndcg_10"], brute_force(METRICS[0], data.test[1], scores, 10), rtol=1e-4
    )
    np.testing.assert_allclose(
        logs["hit_rate_5"], brute_force(METRICS[1], data.test[1], scores, 5), rtol=1e-4
    )


@pytest.mark.parametrize("k", [0, 1.5, True])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match="Argument `k` must be"):
        tfdp.metrics.NDCG(k=k)


def test_targets_that_do_not_match_the_scores_are_refused():
    with pytest.raises(ValueError, match="one target for each vector"):
        tfdp.metrics.NDCG()(np.ones((4, 3), np.int32), np.ones((4, 9), np.float32))
