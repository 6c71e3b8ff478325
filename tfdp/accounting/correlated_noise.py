"""Noise that later steps partly cancel: its coefficients, its sensitivity, and what remains.

Step t of T releases y_t = x_t + σ·C·s·Σ_i m_i·z_{t−i}, where x_t is the clipped sum and z_t is
standard normal. With M the lower-triangular Toeplitz matrix of first column m (m_0 = 1) and
C₀ = M⁻¹, all y together are one Gaussian mechanism of noise multiplier σ, if s bounds how far one
record, with a share of norm 1 in each step that it takes part in, moves C₀x (Denisov et al. 2022,
arXiv 2202.08312; MATH.md section 13). Only numbers; nothing here is private.
"""

import dataclasses
import functools
import math

import numpy as np

from tfdp import _validate

# So many columns of a longer chain stand for all of them where the learning rate changes.
_COLUMNS = 256
#: What coefficients may add up to: more would not fit into the exact sums on the grid.
LARGEST_SUM = 16.0
# Of so many participations of a record the bound of each is computed, of more that of earlier ones.
_LENGTHS = 64
# What a Fourier transform of 10⁸ numbers is off by, at most, relative to the sum of squares.
_ROUNDING = 1e-13


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


@dataclasses.dataclass(frozen=True)
class Correlation:
    """The noise of one chain of steps. All fields are public.

    Args:
        coefficients: m, of which m[0] = 1; as many as there are bands.
        steps: T, the most steps of the chain.
        participations: k, the most steps of the chain that one record takes part in.
        min_separation: g, the fewest steps from one participation of a record to the next.

    Attributes:
        sensitivity: s, which follows from the fields; the noise is σ·C·s·Σ_i m_i·z_{t−i}.

    Raises:
        ValueError: for a field out of range, or coefficients whose s is not finite.
    """

    coefficients: tuple
    steps: int
    participations: int = 1
    min_separation: int = 1

    def __post_init__(self):
        for name in ("steps", "participations", "min_separation"):
            object.__setattr__(self, name, _validate.count(name, getattr(self, name)))
        m = tuple(float(one) for one in self.coefficients)
        object.__setattr__(self, "coefficients", m)
        if not m or m[0] != 1.0 or not math.fsum(map(abs, m)) <= LARGEST_SUM:
            raise ValueError(
                "Argument `coefficients` must begin with 1, and their absolute values must add up "
                f"to at most {LARGEST_SUM:g}. Received: coefficients={self.coefficients}"
            )
        if not math.isfinite(self.sensitivity):
            raise ValueError(
                f"The noise of {self.steps} steps would be infinite with these coefficients: their "
                "inverse grows from step to step. Take smaller ones, or leave them out. Received: "
                f"coefficients={self.coefficients}"
            )

    #: Whether all steps of a chain cost as much as its first one.
    is_one_event = True

    @property
    def bands(self):
        """b, how many draws make the noise of a step."""
        return len(self.coefficients)

    @property
    def sensitivity(self):
        return sensitivity(self.coefficients, self.steps, self.participations, self.min_separation)

    @property
    def carried(self):
        """‖C₀‖₁·√T: what roundings of at most 1 in every step move C₀x by, at most."""
        return float(np.abs(inverse(self.coefficients, self.steps)).sum()) * self.steps**0.5

    def noise_in_weights(self, workload=PREFIX_SUMS):
        """As the function `noise_in_weights`, times s."""
        return self.sensitivity * noise_in_weights(self.coefficients, self.steps, workload)

    def check(self, sampling, mechanism):
        """Refuses a chain in which a record could take part more often than it is charged for.

        Args:
            sampling: the `Sampling` of its steps, or None.
            mechanism: what a step is, as for `training_event`.

        Raises:
            ValueError: if the batches do not state when a record comes again, or it comes too
                often.
        """
        steps = None if sampling is None else sampling.chain_steps
        covered = steps is not None and steps <= self.steps and sampling.bands is None
        if covered:
            most, apart = sampling.participations
            covered = most <= self.participations
            covered = covered and (most == 1 or apart >= self.min_separation)
        if not covered or mechanism != "gaussian":
            raise ValueError(
                "Correlated noise needs Gaussian steps on batches of `tfdp.data.stream_batches`, "
                "with no more steps and participations than its sensitivity was computed for. "
                "Received: "
                f"correlation={self}, sampling={sampling}, mechanism={mechanism!r}"
            )


def inverse(m, steps):
    """(steps,) first column of C₀ = M⁻¹."""
    return filtered(np.eye(1, steps)[0], [1.0], m)


def filtered(x, numerator, denominator):
    """What a filter makes of x, as `scipy.signal.lfilter`."""
    from scipy import signal  # takes 0.3 s to load

    with np.errstate(all="ignore"):
        return signal.lfilter(np.asarray(numerator, float), np.asarray(denominator, float), x)


@functools.lru_cache(maxsize=256)
def _sensitivity(m, steps, participations, min_separation):
    with np.errstate(all="ignore"):  # what is not finite is infinite below
        c = np.abs(inverse(m, steps))
        whole = float(c @ c)
    if not math.isfinite(whole):
        return math.inf
    k = min(participations, 1 + (steps - 1) // min_separation)
    # Participation j is in step j·g or later, and one l > j at a distance of at least (l − j)·g
    # after it: of its column of |C₀| T − j·g entries are left to meet later ones.
    stride = -(-k // _LENGTHS)
    square = 0.0
    for first in range(0, k, stride):
        overlap = _overlaps(c[: steps - first * min_separation])
        later = np.maximum.accumulate(overlap[::-1])[::-1][::min_separation]
        for j in range(first, min(first + stride, k)):
            square += overlap[0] + 2.0 * later[1 : k - j].sum()
    return float(np.sqrt(square))


def _overlaps(c):
    """(T,) Σ_t c_t·c_{t+d} for each distance d, of a c that is not negative; never too small."""
    size = 1 << (2 * len(c) - 1).bit_length()
    found = np.fft.irfft(np.abs(np.fft.rfft(c, size)) ** 2, size)[: len(c)]
    found += _ROUNDING * float(c @ c)
    found[0] = c @ c
    return found


def sensitivity(m, steps, participations=1, min_separation=1):
    """s: how far one record can move C₀x, in units of the clip norm.

    Formal guarantees: an upper bound over all patterns of at most `participations` steps, each
    `min_separation` or more after the one before, of a chain of up to `steps` steps. It is exact
    for one participation, and where the first column c of C₀ has no negative entries and
    Σ_t c_t·c_{t+d} does not grow with the distance d: where c does not grow, for one (Kalinin and
    Lampert 2024, arXiv 2405.13763).

    Args:
        m: coefficients, m[0] = 1.
        steps: T, of the longest chain.
        participations: k, the most steps that one record takes part in.
        min_separation: g, the fewest steps from one participation to the next.
    """
    return _sensitivity(tuple(map(float, m)), steps, participations, min_separation)


def noise_in_weights(m, steps, workload=PREFIX_SUMS):
    """Root mean square, over the steps, of the noise in a weight; of z of standard deviation 1.

    Of chains that are longer than 256 steps under a learning rate that changes, an estimate.
    """
    m = np.asarray(m, float)[:steps]
    if workload.momentum:
        h = filtered(np.eye(1, steps)[0], m, [1.0, -workload.momentum])
    else:
        h = np.concatenate([m, np.zeros(steps - len(m))])
    if workload.learning_rates is None:
        return float(np.sqrt(np.mean(np.cumsum(np.cumsum(h) ** 2))))
    rates = np.resize(np.asarray(workload.learning_rates, float), steps)
    columns = np.unique(np.linspace(0, steps - 1, min(steps, _COLUMNS)).astype(int))
    # Draw j, in the weights after each later step.
    squares = [np.sum(np.cumsum(rates[j:] * h[: steps - j]) ** 2) for j in columns]
    return float(np.sqrt(np.mean(squares)) / np.sqrt(np.mean(rates**2)))


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
    from scipy import optimize

    if steps < 2 or bands < 2:
        return (1.0,) + (0.0,) * (bands - 1)

    def cost(rest):
        m = np.concatenate([[1.0], rest])
        with np.errstate(all="ignore"):
            left = _sensitivity.__wrapped__(tuple(m), steps, participations, min_separation)
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
