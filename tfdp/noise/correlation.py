"""Noise that later steps partly take back: its coefficients, its sensitivity, what it leaves.

Step t of T releases y_t = x_t + σ·C·s·Σ_i m_i·z_{t−i}, where x_t is the clipped sum and z_t is
standard normal. With M the lower-triangular Toeplitz matrix of first column m (m_0 = 1) and
C₀ = M⁻¹, all y together are post-processing of C₀x + σ·C·s·z: one Gaussian mechanism of noise
multiplier σ, if s bounds how far one record, with a share of norm 1 in each step that it takes part
in, moves C₀x (Denisov et al. 2022, arXiv 2202.08312). Only numpy; nothing here is private.
"""

import dataclasses
import functools

import numpy as np
from scipy import optimize, signal

#: Above so many steps coefficients are chosen as for a constant learning rate.
_LONGEST_SCHEDULE = 8192


@dataclasses.dataclass(frozen=True)
class Workload:
    """How noise in the gradients becomes noise in the weights.

    Args:
        momentum: of the optimizer.
        learning_rates: (T,) tuple of the learning rate of each step, up to a factor; None for a
            constant one.
    """

    momentum: float = 0.0
    learning_rates: tuple | None = None


PREFIX_SUMS = Workload()


def inverse(m, steps):
    """(steps,) first column of C₀ = M⁻¹."""
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    with np.errstate(all="ignore"):
        return signal.lfilter([1.0], np.asarray(m, float), impulse)


def sensitivity(m, steps, participations=1, min_separation=1):
    """s: how far one record can move C₀x, in units of the clip norm.

    Formal guarantees: an upper bound over all patterns of at most `participations` steps, each
    `min_separation` or more after the one before, of a chain of up to `steps` steps. It is exact
    for one participation, and where the first column of C₀ has no negative and no growing entries
    (Kalinin and Lampert 2024, arXiv 2405.13763).

    Args:
        m: coefficients, m[0] = 1.
        steps: T, of the longest chain.
        participations: k, the most steps that one record takes part in.
        min_separation: g, the fewest steps from one participation to the next.
    """
    c = inverse(m, steps)
    if not np.all(np.isfinite(c)):
        return np.inf
    k = min(participations, 1 + (steps - 1) // min_separation)
    if k == 1:
        return float(np.linalg.norm(c))
    if np.all(c >= 0) and np.all(np.diff(c) <= 0):
        total = np.zeros(steps)
        for j in range(k):
            total[j * min_separation :] += c[: steps - j * min_separation]
        return float(np.linalg.norm(total))
    # |C₀ᵀC₀|: at distance d the largest of |Σ_t c_t·c_{t+d}|, over all lengths that are left.
    overlap = np.array([np.abs(np.cumsum(c[: steps - d] * c[d:])).max() for d in range(steps)])
    largest = np.maximum.accumulate(overlap[::-1])[::-1]  # at distance d or more
    pairs = sum((k - j) * largest[j * min_separation] for j in range(1, k))
    return float(np.sqrt(k * overlap[0] + 2.0 * pairs))


def noise_in_weights(m, steps, workload=PREFIX_SUMS):
    """Root mean square, over the steps, of the noise in a weight; of z of standard deviation 1."""
    m = np.asarray(m, float)
    if workload.momentum:
        h = signal.lfilter(m, [1.0, -workload.momentum], np.eye(1, steps)[0])
    else:
        h = np.zeros(steps)
        h[: min(len(m), steps)] = m[:steps]
    rates = workload.learning_rates
    if rates is None or steps > _LONGEST_SCHEDULE:
        return float(np.sqrt(np.mean(np.cumsum(np.cumsum(h) ** 2))))
    rates, total = np.resize(np.asarray(rates, float), steps), 0.0
    for j in range(steps):  # draw j, in the weights after each later step
        total += np.sum(np.cumsum(rates[j:] * h[: steps - j]) ** 2)
    return float(np.sqrt(total / steps) / np.sqrt(np.mean(rates**2)))


def square_root(bands):
    """(bands,) coefficients of the inverse of the square root of prefix sums, cut off (BISR).

    m_k = m_{k−1}·(2k − 3)/(2k) (arXiv 2505.12128).
    """
    k = np.arange(1, bands)
    return np.cumprod(np.concatenate([[1.0], (2 * k - 3) / (2 * k)]))


@functools.lru_cache(maxsize=64)
def optimized(bands, steps, workload=PREFIX_SUMS, participations=1, min_separation=1):
    """(bands,) tuple of coefficients that leave little noise in the weights, at the same ε.

    Args:
        bands: b, the number of draws that make the noise of a step.
        steps, participations, min_separation: as for `sensitivity`.
        workload: a `Workload`.
    """
    if steps < 2 or bands < 2:
        return (1.0,) + (0.0,) * (bands - 1)

    def cost(rest):
        m = np.concatenate([[1.0], rest])
        with np.errstate(all="ignore"):
            left = sensitivity(m, steps, participations, min_separation)
            left *= noise_in_weights(m, steps, workload)
        return np.log(left) if np.isfinite(left) else 50.0

    best = min(
        (optimize.minimize(cost, start, method="L-BFGS-B") for start in _starts(bands)),
        key=lambda found: found.fun,
    )
    return (1.0, *map(float, best.x))


def _starts(bands):
    """Cut off, square roots leave a remainder; the rest of their sum on the last band takes it."""
    root = square_root(bands)[1:]
    yield root
    full = root.copy()
    full[-1] -= 0.9 * (1.0 + root.sum())
    yield full
