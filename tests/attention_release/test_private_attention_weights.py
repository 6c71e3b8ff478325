"""Normalisation neither overflows nor leaks past a mask, and errors stay within their bounds."""

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from tfdp.accounting import PrivacyBudget
from tfdp.attention_release.mechanisms import noisy_gram, noisy_product, sampled_covariance
from tfdp.attention_release.release_plan import Setting, plan_noise, plan_sampling
from tfdp.attention_release.weights import ACTIVATIONS, attention_weights, combined_mask
from tfdp.noise import ServingNoiseSource

LOGITS = np.array(
    [
        [0.0, 1.0, -2.0, 0.5],
        [1e4, -1e4, 0.0, 1e4 - 1],
        [-1e4, -1e4, -1e4 + 1, -9999.5],
        [1e-9, 2e-9, -3e-9, 0.0],
    ]
)
MASK = np.array(
    [
        [True, True, False, True],
        [False, True, True, False],
        [False] * 4,
        [False, False, True, False],
    ]
)


def exact_weights(logits, activation, mask):
    mpmath.mp.dps = 60
    function = {"exp": mpmath.exp, "cosh": mpmath.cosh}[activation]
    rows = []
    for row, allowed in zip(logits, mask, strict=True):
        values = [
            function(mpmath.mpf(x)) if ok else mpmath.mpf(0)
            for x, ok in zip(row, allowed, strict=True)
        ]
        total = sum(values)
        rows.append([float(v / total) if total else 0.0 for v in values])
    return np.array(rows)


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_weights_are_exact_at_logits_of_any_size(activation, mask):
    weights = attention_weights(tf.constant(LOGITS), activation, mask).numpy()
    allowed = np.ones_like(MASK) if mask is None else mask
    np.testing.assert_allclose(
        weights, exact_weights(LOGITS, activation, allowed), rtol=1e-10, atol=1e-300
    )
    assert np.all(weights[~allowed] == 0)
    np.testing.assert_allclose(weights.sum(1), allowed.any(1).astype(float), rtol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_row_and_no_rows(activation):
    assert attention_weights(tf.constant([[-1e4]], tf.float64), activation).numpy() == 1.0
    assert attention_weights(tf.zeros([0, 3, 3], tf.float64), activation).shape == (0, 3, 3)
    empty = attention_weights(tf.zeros([1, 1], tf.float64), activation, tf.constant([[False]]))
    assert empty.numpy() == 0.0


def test_a_causal_mask_and_one_of_the_caller_both_hold():
    both = combined_mask(MASK, causal=True, multi_head=False, length=4).numpy()
    np.testing.assert_array_equal(both, MASK & np.tril(np.ones([4, 4], bool)))
    assert both.sum() < min(MASK.sum(), 10)


def plans():
    for unit, epsilon, symmetric in (("feature", 2.0, True), ("token", 80.0, False)):
        setting = Setting(PrivacyBudget(epsilon, 1e-5), unit, 1.5, None, symmetric, 12, 16, 1)
        yield plan_noise(setting)
        yield plan_sampling(setting)


@pytest.mark.thorough_after(5)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("plan", list(plans()), ids=lambda p: f"{p.mechanism}-{p.setting.unit}")
def test_errors_stay_within_what_was_said_before_the_release(plan, activation):
    """400 matrices of worst-case rows; the 99% bounds fail in at most 4 expected, 16 never."""
    setting, draws = plan.setting, 400
    n, d = setting.length, setting.width
    rng = np.random.default_rng(0)
    x = np.full([n, d], setting.row_norm / np.sqrt(d)) * rng.choice([-1, 1], [n, 1])
    source = ServingNoiseSource(seed=1)
    batch = tf.tile(tf.constant(x)[None], [draws, 1, 1])
    if plan.mechanism == "gaussian_sampling":
        z = batch if setting.symmetric else tf.concat([batch, batch], 1)
        z = sampled_covariance(z, plan.ridge, plan.num_samples, source)
        matrix = z - plan.ridge * tf.eye(n, dtype=z.dtype) if setting.symmetric else z[:, :n, n:]
    else:
        stddev = plan.noise_multiplier * plan.sensitivity
        matrix = (
            noisy_gram(batch, 1.0, stddev, source)
            if setting.symmetric
            else noisy_product(batch, batch, 1.0, stddev, source)
        )
    logits, exact = matrix / np.sqrt(d), tf.constant(x @ x.T / np.sqrt(d))
    assert np.abs(exact).max() <= setting.logit_range * (1 + 1e-12)

    stated = plan.error(failure_probability=0.01)
    error = (logits - exact).numpy()
    off = error[:, ~np.eye(n, dtype=bool)]
    observed = off.std()
    assert 0.8 * stated.std < observed < 1.03 * stated.std
    assert (np.abs(error).max((1, 2)) > stated.bound).sum() < 16
    assert np.abs(error).max() > 0.5 * stated.bound  # and the bound is no giveaway

    private = attention_weights(logits, activation).numpy()
    plain = attention_weights(exact, activation).numpy()
    held = np.abs(error).max((1, 2)) <= stated.bound
    ratio = np.exp(np.abs(np.log(private) - np.log(plain))[held])
    assert ratio.max() <= stated.weight_factor * (1 + 1e-9)
    total_variation = np.abs(private - plain).sum(2)[held] / 2
    assert total_variation.max() <= stated.total_variation * (1 + 1e-9)
