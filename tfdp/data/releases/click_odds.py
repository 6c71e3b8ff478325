"""Log odds of a click by value of a feature, from noisy sums: post-processing, at no cost."""

import numpy as np

_LEAST_RATE, _MOST_RATE = 0.01, 0.95
_LEAST_SPREAD = 1e-5


def shrunken_log_odds(shows, balances, stddev, num_records=None):
    """What each value of each feature adds to the log odds of a click.

    With c the noisy shows of a value and r its noisy clicks less rate·c, the deviation r/c of its
    rate from the mean has variance

        v = rate·(1 − rate)/c + s²·(1 + (2·rate − 1)²)/(4·c²)

    of chance and noise. Over the values of one feature that have more shows than two standard
    deviations of the noise, the true deviations have variance t² = mean of (r/c)² − v, weighted by
    precision; each is shrunk to t²/(t² + v) of itself (empirical Bayes). Other values add 0.

    Args:
        shows, balances: dicts of feature name to float64 (V,): numbers of records, and of clicks
            less those without, each with Gaussian noise.
        stddev: s of the noise of each sum.
        num_records: number of records, public; None if it is not, and is then estimated.

    Returns:
        Dict of feature name to float32 (V,), and the estimated rate.
    """
    rate = _rate(shows, balances, num_records)
    mean, offset = 2.0 * rate - 1.0, np.log(rate / (1.0 - rate))
    found = {}
    for name, noisy in shows.items():
        c = np.maximum(noisy, 1.0)
        known = noisy > max(2.0 * stddev, 1.0)
        deviation = (balances[name] - mean * noisy) / (2.0 * c)
        chance = rate * (1.0 - rate) / c + stddev**2 * (1.0 + mean**2) / (4.0 * c**2)
        weights = np.where(known, (chance + 0.002) ** -2, 0.0)
        spread = np.sum(weights * (deviation**2 - chance)) / max(weights.sum(), 1e-300)
        spread = max(spread, _LEAST_SPREAD)
        shrunk = np.where(known, deviation * spread / (spread + chance), 0.0)
        p = np.clip(rate + shrunk, min(_LEAST_RATE, rate), max(_MOST_RATE, rate))
        found[name] = (np.log(p / (1.0 - p)) - offset).astype(np.float32)
    return found, rate


def _rate(shows, balances, num_records):
    """Share of clicks: each feature's sums tell it, those of few values with the least noise."""
    sizes = {name: len(values) for name, values in shows.items()}
    few = [name for name, size in sizes.items() if size <= 2 * min(sizes.values())]
    balance = np.mean([balances[name].sum() for name in few])
    if num_records is None:
        num_records = np.mean([shows[name].sum() for name in few])
    rate = 0.5 + 0.5 * balance / max(num_records, 1.0)
    return float(np.clip(rate, 1e-4, 1.0 - 1e-4))
