"""Private representations that are drawn once, kept, and may be used for anything."""

import math
import os
import secrets

import dp_accounting
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp import accounting
from tfdp._validate import count, is_number, one_of, open_unit, plain, positive
from tfdp.accounting.budget import PrivacyBudget
from tfdp.accounting.charges.mechanisms import LABELS_NOT_COVERED
from tfdp.accounting.charges.notes import Notes
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.forward_noise import FORWARD_ADJACENCIES
from tfdp.data.provenance.origins import Origin
from tfdp.data.releases.representation_release import Release, free_path
from tfdp.data.samplers.poisson import draw_poisson
from tfdp.data.sampling.arguments import check_expected_batch_size
from tfdp.data.sampling.randomness import GeneratorSource
from tfdp.noise import Grid, NoiseSource

_CHUNK = 4096  # rows that receive noise at once
_ENCODER = "the encoder of the released representations learned nothing from these examples"
_OF_ONE = Notes(
    assumptions=("each of the released representations was computed from one example alone",)
)


def release_once(
    representations: ArrayLike,
    labels: ArrayLike,
    clip_norm: float,
    noise_multiplier: float | None = None,
    budget: PrivacyBudget | None = None,
    adjacency: str = "zero_out",
    path: str | os.PathLike | None = None,
) -> Release:
    """Draws every record's noisy representation once, for any number of training epochs.

    This is the cheapest way to train on forward noise with a fixed encoder: fresh noise in every
    epoch would cost one more copy of every record each time.

    Formal guarantees: row i is clip(h_i) + N(0, (noise_multiplier·clip_norm)² I). The features of a
    record are (ε, δ)-private as under one Gaussian mechanism: of `noise_multiplier` if they are
    blanked out, and of half of it if they are replaced. The labels are *not* private, and are
    passed on.

    Args:
        representations: float array (n, k), row i from record i only, by an encoder that was
            not trained on these records.
        labels: array (n,) or (n, ...).
        clip_norm: C.
        noise_multiplier: σ/C. Exactly one of `noise_multiplier` and `budget` must be given.
        budget: `tfdp.PrivacyBudget`, all of which is spent on the release.
        adjacency: "zero_out" or "replace_one".
        path: file to save to at once, so that the draw is never lost; must not exist.

    Returns:
        A `Release`.

    Raises:
        ValueError: if an argument is out of range, the arrays do not match, or `path` exists.

    Source: MATH.md section 5.
    """
    return released_once(
        representations, labels, clip_norm, noise_multiplier, budget, adjacency, path, _OF_ONE
    )


def released_once(
    representations, labels, clip_norm, noise_multiplier, budget, adjacency, path, notes
):
    """`release_once`, where it is known what `Notes` say of the representations."""
    h, targets, origin = _check_representations(representations, labels)
    path = None if path is None else free_path(path)
    noise_multiplier, delta = _amount(
        noise_multiplier,
        budget,
        lambda: accounting.calibrate_forward_noise(budget, 1, adjacency),
    )
    one_of("adjacency", adjacency, FORWARD_ADJACENCIES)
    details = _details(
        "release_once", len(h), clip_norm, noise_multiplier, delta, notes,
        adjacency=adjacency, not_covered=[LABELS_NOT_COVERED],
    )  # fmt: skip
    noisy = _with_noise(_clipped(h, clip_norm), noise_multiplier, clip_norm)
    release = Release(
        features=noisy,
        targets=targets,
        event=dp_accounting.GaussianDpEvent(noise_multiplier),
        label="released representations",
        event_count=1,
        num_examples=len(h),
        details=details,
        origin=origin,
    )
    if path is not None:
        release.save(path)
    return release


def release_mixtures(
    representations: ArrayLike,
    labels: ArrayLike,
    num_classes: int,
    clip_norm: float,
    expected_size: float,
    num_mixtures: int,
    noise_multiplier: float | None = None,
    budget: PrivacyBudget | None = None,
    label_share: float = 0.3,
    path: str | os.PathLike | None = None,
) -> Release:
    """Releases noisy *sums* over Poisson micro-batches, of representations and of labels.

    One vector for each record shows who was drawn, but a sum does not: sampling amplifies, and the
    labels are covered as well. A micro-batch without records is released like any other.

    Formal guarantees: mixture t is (Σ_i clip(h_i) + N(0, s_h² I), Σ_i onehot(y_i) + N(0, s_y² I))
    over records drawn independently with probability q = expected_size/n. With
    s_h = σC/√(1 - label_share) and s_y = σ/√label_share, adding or removing one record, features
    and label, moves it by at most 1/σ in units of the noise: `num_mixtures` Poisson-sampled
    Gaussians of noise multiplier σ, by privacy loss distributions.

    Args:
        representations, labels: as for `release_once`; labels are integers below `num_classes`.
        num_classes: number of classes; public.
        clip_norm: C.
        expected_size: mean number of records of a mixture.
        num_mixtures: T.
        noise_multiplier: σ. Exactly one of `noise_multiplier` and `budget` must be given.
        budget: `tfdp.PrivacyBudget`, all of which is spent on the release.
        label_share: the share of the squared sensitivity for the labels, in (0, 1).
        path: file to save to at once; must not exist.

    Returns:
        A `Release` with features (T, k) and targets (T, num_classes); `tfdp.models.release_head`
        turns it into a linear classifier.

    Raises:
        ValueError: if an argument is out of range, the arrays do not match, or `path` exists.
    """
    h, classes, origin = _check_representations(representations, labels)
    path = None if path is None else free_path(path)
    n, k = h.shape
    check_expected_batch_size(expected_size, n)
    num_mixtures = count("num_mixtures", num_mixtures)
    count("num_classes", num_classes)
    if classes.ndim != 1 or not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(
            "Argument `labels` must be an integer array (n,). "
            f"Received: {classes.dtype} of shape {classes.shape}"
        )
    if classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(
            f"Argument `labels` must lie between 0 and num_classes-1 = {num_classes - 1}."
        )
    open_unit("label_share", label_share)
    q = expected_size / n
    sigma, delta = _amount(
        noise_multiplier,
        budget,
        lambda: accounting.calibrate_noise_multiplier(budget, q, num_mixtures),
    )
    scale = clip_norm / math.sqrt(1 - label_share), 1 / math.sqrt(label_share)
    details = _details(
        "release_mixtures", n, clip_norm, sigma, delta, _OF_ONE,
        expected_size=expected_size, num_mixtures=num_mixtures, label_share=label_share,
        feature_stddev=sigma * scale[0], label_stddev=sigma * scale[1],
    )  # fmt: skip
    rows = np.concatenate([_clipped(h, clip_norm), np.eye(num_classes)[classes]], axis=1)
    generator = GeneratorSource().fresh()
    sums = np.zeros((num_mixtures, k + num_classes))
    for t in range(num_mixtures):
        sums[t] = rows[draw_poisson(generator, n, q, n)].sum(axis=0)
    # In units of each part's scale one record has norm at most 1: one Gaussian for both.
    units = np.concatenate([np.full(k, scale[0]), np.full(num_classes, scale[1])])
    noisy = _with_noise(sums / units, sigma, 1.0) * units.astype(np.float32)
    release = Release(
        features=noisy[:, :k],
        targets=noisy[:, k:],
        event=training_event(sigma, q),
        label="released mixtures",
        event_count=num_mixtures,
        num_examples=n,
        details=details,
        origin=origin,
    )
    if path is not None:
        release.save(path)
    return release


def _details(mechanism, n, clip_norm, noise_multiplier, delta, notes, **more):
    numbers = {k: plain(v) if is_number(v) else v for k, v in more.items()}
    return {
        "kind": "release",
        "release": secrets.token_hex(8),
        "mechanism": mechanism,
        "num_examples": n,
        "clip_norm": plain(clip_norm),
        "noise_multiplier": plain(noise_multiplier),
        "delta": delta,
        "assumptions": [_ENCODER, *notes.assumptions],
        "remarks": list(notes.remarks),
        **numbers,
    }


def _amount(noise_multiplier, budget, calibrate):
    if (budget is None) == (noise_multiplier is None):
        raise ValueError(
            "Exactly one of the arguments `budget` and `noise_multiplier` must be given. "
            f"Received: budget={budget}, noise_multiplier={noise_multiplier}"
        )
    if budget is not None:
        return calibrate(), budget.delta
    return positive("noise_multiplier", noise_multiplier), None


def _check_representations(representations, labels):
    h = np.asarray(representations)
    if h.ndim != 2 or not np.issubdtype(h.dtype, np.floating) or len(h) != len(labels):
        raise ValueError(
            "Arguments `representations` and `labels` must be a float array (n, k) and an array "
            f"of n labels. Received: {h.dtype} of shape {h.shape}, and {len(labels)} labels"
        )
    return h, _plain_labels(labels), Origin.of((representations, labels))


def _plain_labels(labels):
    """Labels as an array that a file can hold: columns of tables are arrays of objects."""
    array = np.asarray(labels)
    if array.dtype != object:
        return array
    kinds = {type(label) for label in array.flat}
    if len(kinds) > 1 or not kinds <= {int, float, bool, str, bytes}:
        raise ValueError(
            "Argument `labels` must hold numbers, or strings, of one kind. Received: objects of "
            f"{sorted(kind.__name__ for kind in kinds)}"
        )
    return np.array(array.tolist())


def _clipped(h, clip_norm):
    """float64 rows of norm at most C; a row that is not finite becomes zero."""
    clip_norm = positive("clip_norm", clip_norm)
    h = h.astype(np.float64)
    h = np.where(np.isfinite(h).all(axis=1, keepdims=True), h, 0.0)
    norms = np.linalg.norm(h, axis=1, keepdims=True)
    return h * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))


def _with_noise(values, noise_multiplier, clip_norm):
    """float32 rows with noise, each a release of its own."""
    source = NoiseSource()
    grid = Grid(noise_multiplier * clip_norm, clip_norm, values.shape[1])
    noisy = np.empty(values.shape, np.float32)
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        (noisy[start : start + len(part)],) = source.release([tf.constant(part)], grid)
    return noisy
