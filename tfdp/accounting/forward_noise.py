"""What noise on representations costs (MATH.md section 5): true accounting, and the paper's."""

import dataclasses
import math

import dp_accounting
import numpy as np
from scipy import optimize, stats

from tfdp import _validate
from tfdp.accounting.accountants import epsilon
from tfdp.accounting.budget import PrivacyBudget
from tfdp.accounting.calibration import calibrate_noise_multiplier
from tfdp.accounting.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from tfdp.accounting.gdp import _log_delta, gdp_clt_epsilon
from tfdp.accounting.statement_text import round_up
from tfdp.accounting.visible_sampling import VisiblySampledGaussianDpEvent

FORWARD_ADJACENCIES = ("zero_out", "replace_one")


def calibrate_forward_noise(budget, copies=1, adjacency="zero_out", other_events=()):
    """The smallest noise multiplier at which noisy copies of a record meet a budget.

    Formal guarantees: `copies` releases of a vector clipped to C, each with its own
    N(0, (noise_multiplier·C)² I), together with `other_events`, are (ε, δ)-private if the
    record's features are blanked out ("zero_out", sensitivity C) or replaced by any others
    ("replace_one", sensitivity 2C). Labels are not part of it.

    Args:
        budget: a `PrivacyBudget`.
        copies: E, how often each record's vector is released: 1 for a release that is drawn once
            and kept, the number of epochs for fresh noise in every epoch.
        adjacency: "zero_out" or "replace_one".
        other_events: DpEvents that the same budget has to pay for.

    Returns:
        σ/C; for `DPForwardNoise(clip_norm, noise_multiplier)`.

    Raises:
        BudgetError: if no noise meets the budget beside the other events.
        ValueError: if an argument is out of range.

    Example:

    >>> round(calibrate_forward_noise(PrivacyBudget(3, 1 / (2 * 67349))), 2)
    1.41
    """
    _validate.one_of("adjacency", adjacency, FORWARD_ADJACENCIES)
    if not isinstance(budget, PrivacyBudget):
        raise ValueError(
            f"Argument `budget` must be a tfdp.PrivacyBudget. Received: budget={budget!r}"
        )
    if other_events:
        return calibrate_noise_multiplier(
            budget, 1.0, copies, adjacency=adjacency, other_events=other_events
        )
    factor = 2.0 if adjacency == "replace_one" else 1.0
    # A little more than exact, so that the accountants' rounding stays inside the budget.
    return gaussian_noise_multiplier(budget, copies) * factor * (1 + 1e-4)


def visible_sampling_epsilon(noise_multiplier, sampling_probability, draws, delta):
    """ε of `draws` visible Bernoulli draws of one noisy vector, in closed form.

    δ(ε) = Σ_k P[Binomial(draws, q) = k] δ_Gaussian(ε; √k/σ). Cross-checks the accountants' value
    of `VisiblySampledGaussianDpEvent`.

    Args:
        noise_multiplier: σ/C.
        sampling_probability: q.
        draws: a count.
        delta: a probability in (0, 1).
    """
    _validate.positive("noise_multiplier", noise_multiplier)
    q = _validate.probability("sampling_probability", sampling_probability)
    draws = _validate.count("draws", draws)
    target = _validate.open_unit("delta", delta)
    # Beyond these the probability is below 1e-18, far under any delta in use; the upper tail is
    # counted as if it published the record.
    low, high = (int(stats.binom.ppf(p, draws, q)) for p in (1e-18, 1 - 1e-16))
    high = min(draws, high + 10 + high // 2)
    counts = np.arange(low, high + 1)
    weights = stats.binom.pmf(counts, draws, q)
    tail = stats.binom.sf(high, draws, q)

    def excess(eps):
        deltas = [
            math.exp(_log_delta(eps, math.sqrt(k) / noise_multiplier)) if k else 0.0 for k in counts
        ]
        return float(weights @ np.array(deltas)) + tail - target

    if excess(0.0) <= 0:
        return 0.0
    mu = math.sqrt(high) / noise_multiplier
    upper = mu * mu / 2 + mu * math.sqrt(-2 * math.log(target)) + 1.0
    return float(optimize.brentq(excess, 0.0, upper, xtol=1e-10))


@dataclasses.dataclass(frozen=True)
class PaperForwardNoiseClaim:
    """What "DP-FP" (Du and Mi) claims of a run, and what is true of it. NOT A GUARANTEE.

    Args:
        noise_multiplier: σ/C.
        delta: the δ of every ε here.
        claimed_epsilon: the paper's ε: equation 11 with equation 3.
        claimed_epsilon_pld: ε of the amplified composition that the paper assumes, without the
            central limit.
        true_epsilon: ε if every record is drawn exactly `epochs` times (zero-out).
        true_epsilon_poisson: ε with the paper's own Bernoulli micro-batches (zero-out), where a
            record may be drawn more often.
        sampling_probability: p, of a record in a micro-batch.
        draws: T·M, micro-batches in all.
    """

    noise_multiplier: float
    delta: float
    claimed_epsilon: float
    claimed_epsilon_pld: float
    true_epsilon: float
    true_epsilon_poisson: float
    sampling_probability: float
    draws: int

    is_guarantee = False

    def to_dict(self):
        """The fields, with "is_guarantee": False."""
        return {"is_guarantee": False, **dataclasses.asdict(self)}

    def __str__(self):
        return (
            "NOT A GUARANTEE: the paper's accounting of DP forward propagation\n"
            f"  the paper's formula (central limit): epsilon = {self.claimed_epsilon:.4g}\n"
            f"  the amplification it assumes, by PLD:  epsilon = {self.claimed_epsilon_pld:.4g}\n"
            f"TRUE of the same run, delta = {self.delta:.4g} (labels are not covered):\n"
            f"  every record drawn as often as the epochs say: epsilon = "
            f"{round_up(self.true_epsilon)}\n"
            f"  Bernoulli micro-batches, as the paper draws them: epsilon = "
            f"{round_up(self.true_epsilon_poisson)}\n"
            "A micro-batch publishes one noisy vector for each drawn record, so everybody sees "
            "who was drawn, and sampling amplifies nothing."
        )


def paper_forward_noise_claim(
    noise_multiplier, num_examples, expected_batch_size, microbatches, epochs, delta
):
    """The paper's ε of a run of DP-FP, marked as not a guarantee, beside the true one.

    The paper's: μ_tot = p √(T M (e^{(C/σ)²} - 1)), p = B/(M n), T = epochs·n/B steps, and
    δ(ε; μ_tot). Its Poisson amplification needs a *sum* over the micro-batch, which DP-FP does
    not publish.

    Args:
        noise_multiplier: σ/C.
        num_examples: n.
        expected_batch_size: B, records of a step.
        microbatches: M, independent draws of a step.
        epochs: passes over the data; T = epochs·n/B is rounded.
        delta: a probability in (0, 1).

    Returns:
        A `PaperForwardNoiseClaim`.

    Raises:
        ValueError: if an argument is out of range.

    Source: "DP-FP: Differentially Private Forward Propagation for Large Models", equations 3
        and 11; MATH.md section 5, point 1.
    """
    p, draws = _paper_draws(num_examples, expected_batch_size, microbatches, epochs)
    sampled = dp_accounting.PoissonSampledDpEvent(
        p, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    visible = VisiblySampledGaussianDpEvent(p, noise_multiplier)
    return PaperForwardNoiseClaim(
        noise_multiplier=float(noise_multiplier),
        delta=delta,
        claimed_epsilon=gdp_clt_epsilon(noise_multiplier, p, draws, delta),
        claimed_epsilon_pld=epsilon(dp_accounting.SelfComposedDpEvent(sampled, draws), delta),
        true_epsilon=gaussian_epsilon(noise_multiplier, delta, max(1, math.ceil(epochs))),
        true_epsilon_poisson=epsilon(
            dp_accounting.SelfComposedDpEvent(visible, draws), delta, adjacency="zero_out"
        ),
        sampling_probability=p,
        draws=draws,
    )


def paper_forward_noise_multiplier(
    claimed_epsilon, num_examples, expected_batch_size, microbatches, epochs, delta
):
    """The σ/C that the paper would use for an ε that it claims. NOT A GUARANTEE.

    Args:
        claimed_epsilon: the ε of the paper's formula, positive.
        num_examples, expected_batch_size, microbatches, epochs, delta: as for
            `paper_forward_noise_claim`.

    Source: the paper's algorithm 1, lines 1 and 2.
    """
    _validate.positive("claimed_epsilon", claimed_epsilon)
    p, draws = _paper_draws(num_examples, expected_batch_size, microbatches, epochs)

    def excess(log_sigma):
        found = gdp_clt_epsilon(math.exp(log_sigma), p, draws, delta)
        return min(found, 1e6) - claimed_epsilon

    low, high = math.log(0.05), math.log(1e4)
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13))


def _paper_draws(num_examples, expected_batch_size, microbatches, epochs):
    n = _validate.count("num_examples", num_examples)
    batch = _validate.positive("expected_batch_size", expected_batch_size)
    m = _validate.count("microbatches", microbatches)
    steps = max(1, round(_validate.positive("epochs", epochs) * n / batch))
    return _validate.probability("sampling_probability", batch / (m * n)), steps * m
