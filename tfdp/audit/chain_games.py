"""Noise that is correlated over steps, attacked by who sees what every step releases.

The games are like those of `tfdp.audit.games`. Every row of a table is a trial of its own. Half of
the rows have no record and are not scored: their covariance over steps is that of the noise,
whatever the library states, and a noise that repeats itself leaves directions without any.
"""

from __future__ import annotations

import os
import tempfile
import zipfile

import dp_accounting
import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.accounting.correlated_noise import Correlation, inverse
from tfdp.audit.one_run import one_run
from tfdp.noise import ChainSource, sum_rounding

# Noise is taken back slowly, so that the sensitivity is far above 1.
_M = (1.0, -0.9)
_STEPS = 8
_SINGULAR = 1e-9  # of the mean variance: what a direction without noise counts as having


class Updates(keras.callbacks.Callback):
    """By how much a step moved each trained variable, for every step of all of its fits."""

    def __init__(self):
        super().__init__()
        self.of_variables = []

    def on_train_begin(self, logs=None):
        self._before = self._values()

    def on_train_batch_end(self, batch, logs=None):
        now = self._values()
        self.of_variables.append([b - n for b, n in zip(self._before, now, strict=True)])
        self._before = now

    @property
    def seen(self):
        """Those of the first variable."""
        return [one[0] for one in self.of_variables]

    def _values(self):
        return [v.numpy().astype(np.float64) for v in self.model.trainable_variables]


def _model(rows, batch, noise_correlation, sigma):
    """A table of one number a row, whose gradient is 10·y, clipped to 1; updates are sums."""
    table = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")
    inputs, flat = keras.Input((1,), dtype="int32"), keras.layers.Flatten()
    model = tfdp.make_private(keras.Sequential([inputs, table, flat]))
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(float(batch)), noise_multiplier=sigma, clip_norm=1.0,
        noise_correlation=noise_correlation,
    )  # fmt: skip
    model.compile(optimizer, loss=_pull)
    return model


def _pull(y_true, y_pred):
    return 10.0 * tf.reduce_sum(y_true * y_pred, axis=-1)


def _claim(model, delta):
    """The ε of all that is in a model's ledger.

    There are as many records as trials: the ledger would ask for a smaller δ.
    """
    events = [
        dp_accounting.SelfComposedDpEvent(one.event, one.count) for one in model.ledger.entries
    ]
    return tfdp.accounting.epsilon(dp_accounting.ComposedDpEvent(events), delta)


def _precision(noise):
    """The inverse of the covariance of (steps, n) noise."""
    covariance = np.cov(noise)
    floor = _SINGULAR * np.trace(covariance) / len(covariance)
    return np.linalg.inv(covariance + floor * np.eye(len(covariance)))


def _ratios(released, noise, shifts):
    """(shifts, n) log likelihood ratios of releases that are shifted or not.

    Args:
        released: (steps, n) what all steps released of each trial.
        noise: (steps, n) the same of rows that nobody scores.
        shifts: (shifts, steps) by what a record moves them.
    """
    weights = np.atleast_2d(shifts) @ _precision(noise)
    return weights @ released - 0.5 * np.sum(weights * shifts, axis=1)[:, np.newaxis]


def _one_pass(present, trials, chains=1, sigma=1.0, steps=_STEPS, others=()):
    """(model, updates) of records that a stream has in the first step alone, each with its row."""
    rows = 2 * trials
    model = _model(rows, rows, tfdp.optimizers.BandedInverse(2, _M), sigma)
    ids = np.resize(np.arange(rows, dtype=np.int32), steps * rows)[:, np.newaxis]
    y = np.zeros((steps * rows, 1), np.float32)
    y[:trials] = float(present)
    batches, updates = tfdp.data.stream_batches((ids, y), rows), Updates()
    for _ in range(chains):
        model.fit(batches, verbose=0, callbacks=[updates, *others])
    return model, np.array(updates.seen)[:, :, 0]


def chain(present, trials, delta):
    """A chain of correlated noise, σ = 1, all steps of which are seen; a person is in each of them.

    A person touches its row in all eight steps, or nobody does. The sensitivity is above that of
    one step. The attack trusts the coefficients.
    """
    model = _model(trials, trials, tfdp.optimizers.BandedInverse(2, _M), 1.0)
    persons = np.resize(np.arange(trials, dtype=np.int32), _STEPS * trials)
    y = np.full((_STEPS * trials, 1), float(present), np.float32)
    batches = tfdp.data.stream_batches(
        (persons[:, np.newaxis], y), trials, privacy_ids=persons, max_participations=_STEPS,
        min_separation=1,
    )  # fmt: skip
    updates = Updates()
    model.fit(batches, verbose=0, callbacks=[updates])
    released = np.array(updates.seen)[:, :, 0]
    for t in range(1, _STEPS):  # C₀y: each step without what it took back
        released[t] -= _M[1] * released[t - 1]
    # The person moves C₀y by the sum of all columns of C₀: the likelihood ratio.
    return np.cumsum(inverse(_M, _STEPS)) @ released, _claim(model, delta)


def chain_of_one_pass(present, trials, delta):
    """A chain of which each record is in one step, σ = 1."""
    model, released = _one_pass(present, trials)
    shift = np.eye(1, _STEPS)
    (scores,) = _ratios(released[:, :trials], released[:, trials:], shift)
    return scores, _claim(model, delta)


def several_chains(present, trials, delta):
    """Eight chains over the same records, one after another, σ = 2."""
    chains, steps = 8, 2
    model, released = _one_pass(present, trials, chains, 2.0, steps)
    shift = np.tile(np.eye(1, steps), chains)
    (scores,) = _ratios(released[:, :trials], released[:, trials:], shift)
    return scores, _claim(model, delta)


class _Save(keras.callbacks.Callback):
    """Saves the model after each step, and keeps the whole numbers that the last file has."""

    def on_train_batch_end(self, batch, logs=None):
        import h5py

        self.numbers = []
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            self.model.save(path)
            with zipfile.ZipFile(path) as archive:
                archive.extract("model.weights.h5", folder)
            with h5py.File(os.path.join(folder, "model.weights.h5")) as file:
                file.visititems(lambda _, one: self._keep(one))

    def _keep(self, one):
        if hasattr(one, "dtype") and one.dtype == np.int64 and one.shape in ((1,), (2,)):
            self.numbers.append(one[()])


def chain_and_its_files(present, trials, delta):
    """A chain whose model is saved while it lasts: what is in a file may be the key of its noise.

    The attack draws the noise again with all that a file has of the shape of a key and a counter,
    and takes it off where most of the release goes with it.
    """
    saved = _Save()
    model, released = _one_pass(present, trials, others=(saved,))
    rows, correlation = 2 * trials, Correlation(_M, _STEPS)
    keys, counters = ([n for n in saved.numbers if n.shape == (k,)] for k in (1, 2))
    least = released
    for key, counter in ((k, c) for k in keys for c in counters):
        source = ChainSource(2, seed=0)
        source.begin(correlation)
        for variable, value in zip(source.variables, (key, counter), strict=False):
            variable.assign(value)
        grid = source.grid(1.0, 1.0, rows, sum_rounding(rows))
        noise = [source.release([tf.zeros([rows, 1])], grid)[0][:, 0] for _ in range(_STEPS)]
        left = released - np.array(noise, np.float64)
        least = min(least, left, key=np.std)
    shift = np.eye(1, _STEPS)
    (scores,) = _ratios(least[:, :trials], least[:, trials:], shift)
    return scores, _claim(model, delta)


def chains_of_rows(present, trials, delta):
    """Rows of two tables, each with a chain of its own, σ = 1; a record moves its row of one."""
    rows, steps = 2 * trials, 4
    ids = [keras.Input((1,), dtype="int64", name=name) for name in ("one", "other")]
    tables = [
        tfdp.layers.SparseEmbedding(
            rows, 1, combiner="sum", embeddings_initializer="zeros", name=f"table_{i.name}"
        )
        for i in ids
    ]
    found = [table(i) for table, i in zip(tables, ids, strict=True)]
    model = tfdp.make_private(keras.Model(ids, keras.layers.Concatenate()(found)))
    every_row = {table.name: np.ones(rows) for table in tables}
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=1.0, clip_norm=1.0,
        noise_correlation=tfdp.optimizers.BandedInverse(2, _M),
        selection=tfdp.selection.FEST(2 * rows, frequencies=every_row),
        embedding_optimizer=tfdp.optimizers.RowSGD(float(rows)),
    )  # fmt: skip
    model.compile(optimizer, loss=_pull)
    own = np.resize(np.arange(rows), steps * rows)[:, np.newaxis]
    y = np.zeros((steps * rows, 2), np.float32)
    y[:trials, 0] = float(present)
    updates = Updates()
    model.fit(
        tfdp.data.stream_batches(({"one": own, "other": own}, y), rows), verbose=0,
        callbacks=[updates],
    )  # fmt: skip
    released = np.array(updates.of_variables)[..., 0]  # (steps, tables, rows)
    released = np.concatenate([released[:, 0], released[:, 1]])
    shift = np.eye(1, 2 * steps)
    (scores,) = _ratios(released[:, :trials], released[:, trials:], shift)
    return scores, _claim(model, delta)


def banded_matrix(present, trials, delta):
    """Two rounds of cyclic Poisson batches under a banded matrix, σ = 1; every step is seen.

    A record is sampled with probability 1/2 in the two steps of its part, and nobody knows which
    part that is. The sensitivity is √8.
    """
    bands, chance, rows = 8, 0.5, 2 * trials
    batch, steps = rows * chance / bands, 2 * bands
    model = _model(rows, batch, tfdp.optimizers.BandedMatrix(bands, (1.0,) * bands), 1.0)
    ids = np.arange(rows, dtype=np.int32)[:, np.newaxis]
    y = np.zeros((rows, 1), np.float32)
    y[:trials] = float(present)
    updates = Updates()
    batches = tfdp.data.cyclic_poisson_batches((ids, y), batch, bands, steps_per_epoch=steps)
    model.fit(batches, verbose=0, callbacks=[updates])
    released = np.array(updates.seen)[:, :, 0]
    ratios = _ratios(released[:, :trials], released[:, trials:], np.eye(steps))
    # Chances of one record move disjoint parts of C₀y, so that their ratios multiply.
    sampled = np.logaddexp(np.log1p(-chance), np.log(chance) + ratios)
    of_parts = sampled.reshape(2, bands, trials).sum(0)
    return np.logaddexp.reduce(of_parts) - np.log(bands), _claim(model, delta)


class _Released:
    """A model, and what each step of its training released."""

    def __init__(self, model, updates):
        self.released = np.array(updates.seen)[:, :, 0]
        self.privacy_statement = model.privacy_statement


def canaries_in_a_stream(canaries, delta, confidence):
    """Canaries that a stream has in one step each, under correlated noise of which all is seen.

    Formal guarantees: those of `tfdp.audit.one_run`. The score is the likelihood ratio of a
    Gaussian whose covariance over steps is that of rows of the same table without a record.

    Args:
        canaries: their number. A canary that is out leaves a record without a gradient.
        delta: δ of the claim.
        confidence: of the bound.

    Returns:
        An `AuditResult`.
    """
    batch = -(-canaries // _STEPS)

    def train(included):
        model = _model(2 * canaries, batch, tfdp.optimizers.BandedInverse(2, _M), 2.0)
        ids = np.arange(canaries, dtype=np.int32)[:, np.newaxis]
        updates, y = Updates(), included.astype(np.float32)[:, np.newaxis]
        model.fit(tfdp.data.stream_batches((ids, y), batch), verbose=0, callbacks=[updates])
        return _Released(model, updates)

    def score(model):
        released, noise = model.released[:, :canaries], model.released[:, canaries:]
        ratios = _ratios(released, noise, np.eye(len(released)))
        # The first columns are of the first steps.
        return ratios[np.arange(canaries) // batch, np.arange(canaries)]

    return one_run(train, score, canaries, delta, None, confidence, "canaries in a stream")
