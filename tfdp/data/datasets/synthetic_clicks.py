"""Synthetic click logs: long-tailed features, and labels that depend on them."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfdp._validate import count
from tfdp.data.datasets.clicks import CRITEO_VOCABULARY_SIZES, NUM_INTEGERS, click_data

if TYPE_CHECKING:
    from tfdp.data.datasets.clicks import ClickData

_ZIPF_EXPONENT = 1.1
_CLICK_LOGIT = -1.25  # about 0.25 of all impressions, as in Criteo's data
_EFFECT_OF_ROWS = 1.2
_EFFECT_OF_INTEGERS = 0.5


def synthetic_clicks(
    num_examples: int = 50_000,
    vocabulary_sizes: Sequence[int] = CRITEO_VOCABULARY_SIZES,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> ClickData:
    """Generates impressions in the form of `load_criteo`. Nothing here is real data.

    Each categorical feature follows a Zipf law over its vocabulary, in an order unrelated to the
    ids. Each of its values shifts the log-odds of a click by a normal effect. Knowing frequent
    values therefore helps to predict clicks, and knowing rare ones helps little. The integers are
    log-normal counts, which shift the log-odds, too.

    Args:
        num_examples: number of impressions.
        vocabulary_sizes: V of each categorical feature; default: the 26 of the paper.
        test_fraction: share of the rows that are held out, the last ones.
        seed: non-negative integer; the same seed makes the same data. It protects nothing.

    Returns:
        A `tfdp.data.ClickData`.

    Raises:
        ValueError: if an argument is out of range.
    """
    count("num_examples", num_examples)
    sizes = list(vocabulary_sizes)
    if not sizes or not all(isinstance(v, numbers.Integral) and v >= 1 for v in sizes):
        raise ValueError(
            "Argument `vocabulary_sizes` must hold positive integers. "
            f"Received: vocabulary_sizes={vocabulary_sizes}"
        )
    rng = np.random.default_rng(seed)
    logit = np.full(num_examples, _CLICK_LOGIT)
    ids = []
    for size in sizes:
        weights = 1.0 / (1.0 + np.arange(size)) ** _ZIPF_EXPONENT
        cumulative = np.cumsum(weights)
        rank = np.searchsorted(cumulative, rng.uniform(0.0, cumulative[-1], num_examples))
        rank = np.minimum(rank, size - 1)
        effect = rng.normal(size=size) * _EFFECT_OF_ROWS / len(sizes) ** 0.5
        # What the most frequent values add on average, the intercept must not drift by.
        effect -= np.average(effect, weights=weights)
        logit += effect[rank]
        ids.append(rng.permutation(size)[rank])
    integers = np.floor(rng.lognormal(1.0, 1.5, (num_examples, NUM_INTEGERS)))
    direction = rng.normal(size=NUM_INTEGERS) * _EFFECT_OF_INTEGERS / NUM_INTEGERS**0.5
    logs = np.log1p(integers)
    logit += (logs - logs.mean(0)) @ direction
    labels = rng.random(num_examples) < 1.0 / (1.0 + np.exp(-logit))
    return click_data(labels, integers, ids, sizes, test_fraction)
