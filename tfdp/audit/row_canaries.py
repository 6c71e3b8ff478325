"""Canaries in a sparse table: records with a row of their own, trained by an ordinary `fit`."""

import keras
import numpy as np
import tensorflow as tf
from scipy import special, stats

import tfdp
from tfdp.audit.one_run import one_run

_POPULAR = 50  # rows that the other records share
_WIDTH = 4
_STEPS = 4
_Q = 0.5  # probability that a record is drawn for a step
_ADAFEST_NOISE, _FEST_NOISE = 2.0, 3.0  # noise multipliers of the steps
_FEST_EPSILON = 1.0
_SHARE = 4  # FEST chooses one in so many of the canaries' rows


def rows_under_adafest(canaries, delta, confidence):
    """Canaries that try to have their row chosen by AdaFEST, and moved by their gradient.

    Formal guarantees: those of `one_run`. Both halves of a step are attacked: whether the row moved
    at all (it survived the noisy map of some step), and how far along the canary's gradient
    (the noise on the survivors). The claim is the ledger's, selection included. Source: MATH.md
    section 3; the score is the likelihood ratio of a row under AdaFEST as it is documented.

    Args:
        canaries: their number. A canary that is out leaves a record of padding, which touches no
            row and has no gradient.
        delta: δ of the claim.
        confidence: of the bound.

    Returns:
        An `AuditResult`.
    """
    selection = tfdp.selection.AdaFEST(threshold=0.5, noise_ratio=2.0)
    map_noise = selection.contribution_noise_multiplier(_ADAFEST_NOISE)

    def law(q):
        """(times it was drawn and chosen, times it was chosen) -> probability."""
        by_noise = stats.norm.sf(selection.threshold / map_noise)
        with_canary = stats.norm.sf((selection.threshold - 1.0) / map_noise)
        step = {(1, 1): q * with_canary, (0, 1): (1 - q) * by_noise}
        step[0, 0] = 1.0 - sum(step.values())
        found = {(0, 0): 1.0}
        for _ in range(_STEPS):
            before, found = found, {}
            for (drawn, chosen), p in before.items():
                for (more_drawn, more_chosen), p_step in step.items():
                    key = (drawn + more_drawn, chosen + more_chosen)
                    found[key] = found.get(key, 0.0) + p * p_step
        return found

    return one_run(
        lambda included: _train(included, lambda *_: selection, _ADAFEST_NOISE),
        lambda model: _scores(
            model, canaries, law(_Q), law(0.0), selection.gradient_noise_multiplier(_ADAFEST_NOISE)
        ),
        canaries, delta, _only_in(canaries), confidence, "canary rows, AdaFEST",
    )  # fmt: skip


def rows_under_fest(canaries, delta, confidence):
    """Canaries that try to bring their row among those that FEST chooses, and move it.

    Formal guarantees: as for `rows_under_adafest`; attacked are the private choice of the k most
    frequent rows (a row moves if and only if it was chosen) and the noise on the chosen rows. The
    claim is the ledger's: of the choice and of the steps together.

    Args:
        canaries, delta, confidence: as for `rows_under_adafest`.

    Returns:
        An `AuditResult`.
    """

    def adapted(ids, num_rows):
        k = _POPULAR + max(canaries // _SHARE, 1)
        selection = tfdp.selection.FEST(k, epsilon=_FEST_EPSILON)
        selection.adapt({"table": ids}, {"table": num_rows}, padding_id=0)
        return selection

    def law(q, chosen):
        drawn = np.arange(_STEPS + 1)
        found = chosen * stats.binom.pmf(drawn, _STEPS, q)
        return {(0, 0): 1.0 - chosen} | {
            (int(d), _STEPS): p for d, p in zip(drawn, found, strict=True)
        }

    chosen_in, chosen_out = _chosen_by_fest(_FEST_EPSILON)
    with_canary, without = law(_Q, chosen_in), law(0.0, chosen_out)
    return one_run(
        lambda included: _train(included, adapted, _FEST_NOISE),
        lambda model: _scores(model, canaries, with_canary, without, _FEST_NOISE),
        canaries, delta, _only_in(canaries), confidence, "canary rows, FEST",
    )  # fmt: skip


def _chosen_by_fest(epsilon):
    """How probably FEST chooses a row of a canary that is in, and of one that is out.

    One in `_SHARE` rows is chosen, and so far out in the tail of the Laplace noise the two differ
    by e^ε.
    """
    out = 2.0 / _SHARE / (1.0 + np.exp(epsilon))
    return out * np.exp(epsilon), out


def _only_in(canaries):
    """Guesses of "in" alone: a row that did not move says little, however it was trained."""
    return max(canaries // 10, 1), 0


def _train(included, selection_of, noise_multiplier):
    """A table trained by `fit` on Poisson batches of canaries and of as many other records.

    Args:
        included: (m,) bool.
        selection_of: function of all ids (2m,) and the number of rows; gives the selection.
        noise_multiplier: σ.
    """
    canaries = len(included)
    n, num_rows = 2 * canaries, 1 + _POPULAR + canaries
    own = 1 + _POPULAR + np.arange(canaries)
    ids = np.concatenate([np.where(included, own, 0), 1 + np.arange(canaries) % _POPULAR])
    # The gradient of a record, in its row: the worst is all that clipping lets through.
    pulls = np.zeros((n, _WIDTH), np.float32)
    pulls[:canaries, 0] = 10.0 * included
    pulls[canaries:, 1] = 10.0
    table = tfdp.layers.SparseEmbedding(
        num_rows, _WIDTH, combiner="sum", mask_zero=True, embeddings_initializer="zeros",
        name="table",
    )  # fmt: skip
    model = tfdp.make_private(keras.Sequential([keras.Input((1,), dtype="int64"), table]))
    batch = _Q * n
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=noise_multiplier, num_examples=n,
        expected_batch_size=batch, clip_norm=1.0, selection=selection_of(ids, num_rows),
        embedding_optimizer=tfdp.optimizers.RowSGD(batch),
    )  # fmt: skip
    model.compile(optimizer, loss=lambda y, p: -tf.reduce_sum(y * p, axis=-1))
    data = tfdp.data.poisson_batches((ids[:, np.newaxis], pulls), batch, steps_per_epoch=_STEPS)
    model.fit(data, verbose=0)
    return model


def _scores(model, canaries, with_canary, without, stddev):
    """(m,) log of the likelihood ratio of each canary's trained row.

    Args:
        model: trained.
        canaries: m.
        with_canary, without: dicts of (times drawn and chosen, times chosen) to probability.
        stddev: of the noise that a step adds to each number of a chosen row.
    """
    rows = model.trainable_variables[0].numpy().astype(np.float64)[-canaries:]
    return _log_likelihood(rows, with_canary, stddev) - _log_likelihood(rows, without, stddev)


def _log_likelihood(rows, law, stddev):
    unmoved = (rows == 0).all(axis=1)
    terms = []
    for (drawn, chosen), probability in law.items():
        if probability <= 0:
            continue
        density = np.zeros(len(rows))
        if chosen:
            moved = rows.copy()
            moved[:, 0] -= drawn
            density = stats.norm.logpdf(moved, scale=stddev * np.sqrt(chosen)).sum(axis=1)
        possible = unmoved == (chosen == 0)
        terms.append(np.where(possible, np.log(probability) + density, -np.inf))
    return special.logsumexp(terms, axis=0)
