"""Why three claims about noise in the forward pass fail: one demonstration each.

    python examples/forward_noise_claims.py

The demonstrations of docs/forward_noise.md; they take a few seconds.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.accounting.literature import paper_forward_noise_claim
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon


def attack(noise_multiplier, probability, draws, delta, trials=40_000, confidence=0.99):
    """A lower bound of ε from a distinguishing attack on visible draws of one record.

    In half of the trials the record's representation is e_1, in the other half it is blanked out.
    It is drawn Binomial(draws, probability) times, which the attacker sees, and each time
    `DPForwardNoise` releases a noisy copy. The attacker takes the likelihood ratio of all copies,
    chooses a threshold on half of the trials, and counts its errors on the others.

    Returns:
        ε that the mechanism's (ε, delta) must exceed, with the given confidence (Clopper-Pearson,
        split over both error rates).
    """
    generator = np.random.default_rng()
    layer = tfdp.layers.DPForwardNoise(1.0, noise_multiplier)
    ratios = {}
    for present in (1.0, 0.0):
        copies = generator.binomial(draws, probability, trials)
        vectors = np.zeros((copies.sum(), 2), np.float32)
        vectors[:, 0] = 10 * present  # clipped to norm 1
        noisy = layer(vectors, training=True).numpy()
        owner = np.repeat(np.arange(trials), copies)
        projected = np.bincount(owner, noisy[:, 0], trials)
        ratios[present] = (projected - copies / 2) / noise_multiplier**2
    half = trials // 2
    candidates = np.quantile(ratios[0.0][:half], 1 - np.geomspace(1e-3, 0.5, 40))

    def bound(threshold, part):
        hits, false = ((ratios[present][part] > threshold).sum() for present in (1.0, 0.0))
        tail = (1 - confidence) / 2
        lowest = stats.beta.ppf(tail, hits, half - hits + 1) if hits else 0.0
        highest = stats.beta.ppf(1 - tail, false + 1, half - false) if false < half else 1.0
        return np.log(max(lowest - delta, 1e-12) / highest)

    chosen = max(candidates, key=lambda t: bound(t, slice(None, half)))
    return max(0.0, float(bound(chosen, slice(half, None))))


def sampling_does_not_amplify():
    settings = {
        "noise_multiplier": 0.399, "num_examples": 67_349, "expected_batch_size": 32,
        "microbatches": 32, "epochs": 3, "delta": 1 / (2 * 67_349),
    }  # fmt: skip
    claim = paper_forward_noise_claim(**settings)
    found = attack(0.399, claim.sampling_probability, claim.draws, claim.delta)
    print(claim)
    print(f"An attacker who sees the noisy vectors: epsilon is at least {found:.2f}\n")
    return claim, found


def encoders_gradients_are_raw():
    """The noise is so large that nothing of x is left; the encoder learns x all the same."""
    x = np.zeros((64, 8), np.float32)
    x[:, 3] = 1.0  # what all records have in common, and nobody else knows
    inputs = keras.Input((8,))
    encoder = keras.layers.Dense(4, use_bias=False, name="encoder")
    noise = tfdp.layers.DPForwardNoise(1.0, 100.0, gradient="propagate")
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(noise(encoder(inputs)))))
    model.compile(keras.optimizers.SGD(1e-3), loss="mse")
    before = encoder.get_weights()[0]
    model.fit(tfdp.data.shuffled_epochs((x, np.zeros(64, np.float32)), 64), verbose=0)
    moved = np.abs(encoder.get_weights()[0] - before).sum(axis=1)
    print("How far each row of the encoder's kernel moved, under noise of 100 times the signal:")
    print(" ", np.round(moved, 4), "\n  Input 3, and only it, is written into the weights.")
    print(model.privacy_statement(1e-3), "\n")
    return moved


def replacing_moves_by_twice_the_norm():
    h = tf.constant([[5.0, 0.0]])
    clip = tfdp.layers.dp_forward_noise.clip_examples
    blanked = float(tf.norm(clip(h, 1.0) - clip(0 * h, 1.0)))
    replaced = float(tf.norm(clip(h, 1.0) - clip(-h, 1.0)))
    delta = 1e-5
    print(f"Blanking a record out moves its clipped vector by {blanked:g}, replacing it by "
          f"{replaced:g}.")  # fmt: skip
    print(f"Noise of 2 x clip_norm: epsilon = {gaussian_epsilon(2.0, delta):.2f} and "
          f"{gaussian_epsilon(1.0, delta):.2f}.")  # fmt: skip
    return blanked, replaced


if __name__ == "__main__":
    sampling_does_not_amplify()
    encoders_gradients_are_raw()
    replacing_moves_by_twice_the_norm()
