"""What it costs to cut a Poisson batch off at a fixed number of examples (MATH.md section 7)."""

import math

import scipy

from tfdp import _validate

_LARGEST_TAIL = 1e-20  # of a capacity that is chosen: P[Binomial(n, q) > max_batch_size]


def overflow_probability(num_examples, sampling_probability, max_batch_size):
    """P[Binomial(n, q) > max_batch_size]: a Poisson batch does not fit.

    Args:
        num_examples: n, the size of the larger of two neighbouring data sets.
        sampling_probability: q in (0, 1].
        max_batch_size: capacity of a batch in examples; `None` truncates nothing.

    Returns:
        A probability; exactly 0 where every batch fits.
    """
    num_examples = _validate.count("num_examples", num_examples)
    sampling_probability = _validate.probability("sampling_probability", sampling_probability)
    if max_batch_size is None or max_batch_size >= num_examples:
        return 0.0
    return float(scipy.stats.binom.sf(max_batch_size, num_examples, sampling_probability))


def smallest_capacity(num_examples, sampling_probability):
    """The smallest `max_batch_size` that overflows with a probability of at most 1e-20.

    Args:
        num_examples: n.
        sampling_probability: q in (0, 1].

    Returns:
        An int between 1 and n.

    Raises:
        ValueError: if an argument is out of range.
    """
    num_examples = _validate.count("num_examples", num_examples)
    low, high = 0, num_examples  # `high` always fits, `low` never does
    while high - low > 1:
        middle = (low + high) // 2
        if overflow_probability(num_examples, sampling_probability, middle) <= _LARGEST_TAIL:
            high = middle
        else:
            low = middle
    return high


def truncation_delta(epsilon, steps, overflow_probability):
    """The delta to add for truncated Poisson batches: (1 + e^epsilon) T P.

    Each step differs from untruncated Poisson sampling by at most P in total variation, on either
    of two neighbouring data sets; T steps by at most T P.

    Args:
        epsilon: the epsilon of the final statement.
        steps: T, the number of steps, at least 0.
        overflow_probability: P, per step, in [0, 1].

    Returns:
        A float; infinite if e^epsilon overflows and T P > 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not epsilon >= 0:
        raise ValueError(f"Argument `epsilon` must be at least 0. Received: epsilon={epsilon!r}")
    if not steps >= 0:
        raise ValueError(f"Argument `steps` must be at least 0. Received: steps={steps!r}")
    if not 0 <= overflow_probability <= 1:
        raise ValueError(
            "Argument `overflow_probability` must be a probability. "
            f"Received: overflow_probability={overflow_probability!r}"
        )
    total = steps * overflow_probability
    if total == 0:
        return 0.0
    return total * (1.0 + math.exp(epsilon)) if epsilon < 700 else math.inf
