"""What papers claim of their mechanisms, to reproduce their tables. tfdp states none of it."""

import dataclasses
import math

import dp_accounting

from tfdp import _validate
from tfdp.accounting.accountants import epsilon
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.accounting.events.wishart import WishartDpEvent
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.losses.gdp import gdp_clt_epsilon, gdp_clt_noise_multiplier
from tfdp.accounting.rounding import round_up


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
            f"TRUE of the same run, delta = {round_up(self.delta)} (labels are not covered):\n"
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
    return gdp_clt_noise_multiplier(claimed_epsilon, p, draws, delta)


def _paper_draws(num_examples, expected_batch_size, microbatches, epochs):
    n = _validate.count("num_examples", num_examples)
    batch = _validate.positive("expected_batch_size", expected_batch_size)
    m = _validate.count("microbatches", microbatches)
    steps = max(1, round(_validate.positive("epochs", epochs) * n / batch))
    return _validate.probability("sampling_probability", batch / (m * n)), steps * m


def paper_sampling_epsilon(num_samples, relative_sensitivity, delta):
    """epsilon by the paper's rule M <= min(eps / sqrt(8 k ln(1/delta)), eps / (8 ln(1/delta))).

    Formal guarantees: one release is (epsilon, delta)-differentially private. `WishartDpEvent`
    gives a smaller epsilon wherever this rule applies, and composes.

    Args:
        num_samples: k, a count.
        relative_sensitivity: M in (0, 1).
        delta: a probability in (0, 1).

    Raises:
        ValueError: if M >= 1, or if epsilon would be 1 or more, for which the rule is not proven.

    Source: "Differentially Private Attention Computation", theorem C.7; MATH.md section 6.

    Example:

    >>> round(paper_sampling_epsilon(5000, 0.001, 1e-5), 2)
    0.68
    """
    event = WishartDpEvent(num_samples, relative_sensitivity)
    log_term = 8 * math.log(1 / _validate.open_unit("delta", delta))
    per_sample = math.sqrt(event.num_samples * log_term)
    value = event.relative_sensitivity * max(per_sample, log_term)
    if value >= 1:
        if event.relative_sensitivity * log_term >= 1:
            change = f"Raise the ridge to more than {log_term:.4g} times the sensitivity"
        else:
            most = math.ceil(1 / (event.relative_sensitivity**2 * log_term)) - 1
            change = (
                f"Lower num_samples to {most} at most, or raise the ridge to more than "
                f"{per_sample:.4g} times the sensitivity"
            )
        raise ValueError(
            f"The paper's rule holds for epsilon below 1 only, and gives {value:.4g} here: "
            f"{change}. Received: num_samples={event.num_samples}, "
            f"relative_sensitivity={event.relative_sensitivity}, delta={delta}"
        )
    return value
