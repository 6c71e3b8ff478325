"""The error of a release before it is made, from public quantities only (MATH.md section 6)."""

import dataclasses
import math

from scipy import optimize, stats


@dataclasses.dataclass(frozen=True)
class LogitError:
    """Error of the released logits, for the worst input that the clipping admits.

    Args:
        std: standard deviation of one off-diagonal logit; the root of its expected squared error.
            Exact for Gaussian noise, an upper bound over inputs for Gaussian sampling.
        bound: with probability at least 1 - failure_probability, every logit of one matrix is
            within this distance of the exact one.
        failure_probability: gamma.
    """

    std: float
    bound: float
    failure_probability: float

    @property
    def weight_factor(self):
        """Every attention weight is within this factor of the exact one, or its inverse.

        Moving each logit by at most t multiplies f by e^(+-t) and the row sum likewise; for cosh
        as for exp, because |d ln cosh(x) / dx| <= 1.
        """
        return math.exp(min(2 * self.bound, 700.0))

    @property
    def total_variation(self):
        """Half the l1 distance between a released row and the exact one, at most.

        The odds of a set of positions change by at most e^(2t), hence its weight by tanh(t/2).
        """
        return math.tanh(self.bound / 2)


def gaussian_noise_error(form, length, width, noise_stddev, failure_probability=0.01):
    """Error of the Gaussian mechanism.

    Args:
        form: "gram" (symmetric noise) or "product" (independent entries).
        length: n.
        width: d; logits are divided by its root.
        noise_stddev: noise_multiplier * Delta_F.
        failure_probability: gamma in (0, 1).

    Returns:
        A `LogitError`; its bound is the union bound over the entries of the matrix.
    """
    scale = noise_stddev / math.sqrt(width)
    if form == "product":
        groups = [(scale, length**2)]
    else:
        groups = [(scale / math.sqrt(2), length * (length - 1) // 2), (scale, length)]

    def excess(t):
        tail = sum(count * 2 * stats.norm.sf(t / std) for std, count in groups)
        return tail - failure_probability

    bound = optimize.brentq(excess, 0.0, 40 * scale, rtol=1e-12, xtol=1e-300)
    return LogitError(groups[0][0], bound, failure_probability)


def gaussian_sampling_error(
    form, length, width, row_norm, ridge, num_samples, failure_probability=0.01
):
    """Error of the Gaussian sampling mechanism.

    An entry of the sample covariance has variance (Sigma_ij^2 + Sigma_ii Sigma_jj) / k, where
    |Sigma_ij| <= R^2 off the diagonal and Sigma_ii <= R^2 + ridge. Its error is at most
    sqrt(Sigma_ii Sigma_jj) * tau, the smaller tau of

    - a union bound: for unit variances with correlation r, the entry is
      (1+r)/2 * A/k - (1-r)/2 * B/k with A, B chi-square of k degrees of freedom, n^2 such
      variables in all;
    - (1+s)^2 - 1 with s = sqrt(rows/k) + sqrt(2 ln(2/gamma)/k), from the extreme singular values
      of a Gaussian matrix.

    Args:
        form: "gram" or "stacked".
        length: n; "stacked" releases 2n rows and reads off the n x n block Q K'.
        width: d; logits are divided by its root.
        row_norm: R, the largest norm of a row.
        ridge: eta.
        num_samples: k.
        failure_probability: gamma in (0, 1).

    Returns:
        A `LogitError`.
    """
    variance = row_norm**2 + ridge
    std = math.sqrt((row_norm**4 + variance**2) / num_samples)
    chi_square = stats.chi2(num_samples)
    rows = 2 * length if form == "stacked" else length
    share = failure_probability / (2 * rows**2)
    union = max(chi_square.isf(share) / num_samples - 1, 1 - chi_square.ppf(share) / num_samples)
    spread = math.sqrt(rows / num_samples) + math.sqrt(
        2 * math.log(2 / failure_probability) / num_samples
    )
    tau = min(float(union), (1 + spread) ** 2 - 1)
    root = math.sqrt(width)
    return LogitError(std / root, tau * variance / root, failure_probability)
