"""Mechanisms attacked directly: one record, as bad as it may be, is in or not; who can tell?

A game gives independent scores of runs with the record and without it, higher where it seems to be
in, and the ε that the library states for one run. The record is the worst that clipping lets
through; nothing else is in the data, or what cannot be told from it.
"""

import dp_accounting
import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.accounting import Ledger
from tfdp.audit import chain_games
from tfdp.audit.chain_games import Updates

_N = 4


def _step_epsilon(model, delta):
    """What one step of the model's training is stated to cost."""
    ((mechanism, _),) = model.charge_history.private_runs
    return Ledger(mechanism.entries(1, "one step")).epsilon(delta)


def _linear(present, trials, delta, batch):
    """Steps (σ = 1) of one weight, whose gradient is the input: 10, clipped to 1, or 0."""
    model = tfdp.make_private(
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    )
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(float(batch)), noise_multiplier=1.0, num_examples=_N,
        expected_batch_size=batch, clip_norm=1.0,
    )  # fmt: skip
    model.compile(optimizer, loss=lambda y, p: tf.reduce_sum(p, axis=-1))
    x = np.zeros((_N, 1), np.float32)
    x[0] = 10.0 if present else 0.0
    data = tfdp.data.poisson_batches((x, x), batch, steps_per_epoch=trials)
    updates = Updates()
    model.fit(data, verbose=0, callbacks=[updates])
    return np.array(updates.seen).reshape(-1), _step_epsilon(model, delta)


def full_batch_step(present, trials, delta):
    """A step that uses every record, σ = 1."""
    return _linear(present, trials, delta, _N)


def poisson_step(present, trials, delta):
    """A step on a Poisson sample, q = 1/4, σ = 1."""
    return _linear(present, trials, delta, 1)


def adafest_step(present, trials, delta):
    """A step that selects rows: the record is the only one that touches its row."""
    table = tfdp.layers.SparseEmbedding(8, 1, combiner="sum", embeddings_initializer="zeros")
    model = tfdp.make_private(keras.Sequential([keras.Input((1,), dtype="int64"), table]))
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=1.0, num_examples=_N,
        expected_batch_size=_N, clip_norm=1.0,
        selection=tfdp.selection.AdaFEST(threshold=1.0, noise_ratio=1.0, contribution_norm=1.0),
        embedding_optimizer=tfdp.optimizers.RowSGD(float(_N)),
    )  # fmt: skip
    model.compile(optimizer, loss=lambda y, p: 10.0 * y[:, 0] * tf.reduce_sum(p, axis=-1))
    x = np.array([[1], [2], [2], [2]])
    y = np.array([[1.0], [0.0], [0.0], [0.0]], np.float32)
    if not present:
        # Without it: the row is touched by nobody, and the place holds what nobody can see.
        x, y = np.array([[2], [2], [2], [2]]), np.zeros((_N, 1), np.float32)
    data = tfdp.data.poisson_batches((x, y), _N, steps_per_epoch=trials)
    updates = Updates()
    model.fit(data, verbose=0, callbacks=[updates])
    moved = np.array(updates.seen)[:, 1].reshape(-1)
    # A row that did not survive did not move at all.
    return np.where(moved == 0, -1.0, moved + 1.0), _step_epsilon(model, delta)


def forward_noise(present, trials, delta):
    """One noisy copy of a representation, σ = 1; blanked out or not."""
    layer = tfdp.layers.DPForwardNoise(1.0, 1.0)
    rows = np.zeros((trials, 1), np.float32)
    rows[:] = 10.0 if present else 0.0
    event = dp_accounting.GaussianDpEvent(1.0)
    return layer(rows, training=True).numpy()[:, 0], tfdp.accounting.epsilon(event, delta)


def frequencies(present, trials, delta):
    """Item frequencies of ten records, of which four or five have all of the items."""
    x, y = np.zeros((2, 10, 4), int)
    having = 5 if present else 4  # in the middle of the range that frequencies are cut to
    x[:having], y[:having] = [1, 2, 3, 4], [2, 3, 4, 5]
    releases = [
        tfdp.data.private_frequency((x, y), epsilon=1.0, delta=1e-3, num_items=5)
        for _ in range(trials)
    ]
    scores = [release.probabilities[1:].sum() for release in releases]
    return np.array(scores), Ledger([releases[0].entry]).epsilon(delta)


def transitions(present, trials, delta):
    """Transitions of users who have one pair each, or none, and share no item with each other.

    What is released of one user's items has noise of its own: every user is a trial.
    """
    users = 400
    first = 1 + 2 * np.arange(users)
    x, y = np.zeros((2, users, 1), int)
    if present:
        x[:, 0], y[:, 0] = first, first + 1
    scores, release = [], None
    for _ in range(-(-trials // users)):
        release = tfdp.data.private_transitions(
            (x, y), noise_multiplier=1.0, num_items=2 * users, window=1, threshold=0.5, rounds=1
        )
        counts = np.zeros((2 * users + 1,) * 2)
        counts[tuple(release.indices.T)] = release.values
        popular = release.popularity[first] + release.popularity[first + 1]
        # The likelihood ratio: a pair counts 1 and has 90% of the precision, two items count
        # 0.7 each and share 10%.
        scores.append(0.9 * counts[first, first + 1] + 0.07 * popular)
    return np.concatenate(scores)[:trials], Ledger([release.entry]).epsilon(delta)


def click_statistics(present, trials, delta):
    """Clicks on values that one record each has, or none: every value is a trial."""
    values = 400
    ids = np.arange(values + 1) if present else np.array([values])  # one record is there anyhow
    scores, release = [], None
    for _ in range(-(-trials // values)):
        release = tfdp.data.private_click_statistics(
            ({"feature": ids}, np.ones(len(ids))), {"feature": values + 1}, noise_multiplier=1.0
        )
        # A click counts 1 in the shows and 1 in the balance, which have noise of the same size.
        scores.append(2.0 * release.clicks["feature"][:values])
    return np.concatenate(scores)[:trials], Ledger([release.entry]).epsilon(delta)


def top_k(present, trials, delta):
    """The most frequent of two values; one record decides between them."""
    ids = {"feature": np.array([0, 1, 1, 0] if present else [0, 1, 1])}
    releases = [
        tfdp.selection.private_top_k(ids, {"feature": 2}, 1, epsilon=1.0) for _ in range(trials)
    ]
    scores = [float(release.rows["feature"][0] == 0) for release in releases]
    entry = tfdp.accounting.LedgerEntry("top-k", releases[0].event)
    return np.array(scores), Ledger([entry]).epsilon(delta)


def attention(present, trials, delta):
    """Published attention weights; one column of the input is one thing or another."""
    layer = tfdp.layers.PrivateAttention(tfdp.PrivacyBudget(2.0, delta), 1.0, "feature")
    length, width = 16, 64
    even = np.full(length, length**-0.5)
    signs = even * np.resize([1.0, -1.0], length)
    rows = np.zeros((1, length, width), np.float32)
    rows[0, :, 0] = even if present else signs
    weights = layer(np.repeat(rows, trials, axis=0)).numpy().astype(np.float64)
    logits = np.log(np.maximum(weights, 1e-30))
    direction = np.outer(even, even) - np.outer(signs, signs)
    return (logits * direction).sum((1, 2)), layer.privacy_statement().epsilon_by_calls[1]


#: name -> function (present, trials, delta) -> (scores, claimed ε of one run)
GAMES = {
    "step, full batch": full_batch_step,
    "step, Poisson sampled": poisson_step,
    "step with AdaFEST": adafest_step,
    "chain of correlated noise": chain_games.chain,
    "chain of one pass": chain_games.chain_of_one_pass,
    "several chains": chain_games.several_chains,
    "chain and its files": chain_games.chain_and_its_files,
    "chains of rows": chain_games.chains_of_rows,
    "banded matrix": chain_games.banded_matrix,
    "forward noise": forward_noise,
    "item frequencies": frequencies,
    "transitions": transitions,
    "click statistics": click_statistics,
    "top-k (FEST)": top_k,
    "attention release": attention,
}
