"""What a Gaussian release costs: its noise multiplier, from an ε or as given."""

import dp_accounting

from tfdp import _validate, accounting
from tfdp.accounting.accountants import best_accountant
from tfdp.accounting.losses.analytic_gaussian import gaussian_noise_multiplier


def gaussian_cost(epsilon, delta, noise_multiplier, num_examples):
    """σ of one Gaussian mechanism, and the details that say what was asked for.

    Args:
        epsilon, delta: the guarantee; δ defaults to 1/(10·n). None with a `noise_multiplier`.
        noise_multiplier: σ in units of the sensitivity, or None.
        num_examples: n, public.

    Returns:
        float, and a dict with "epsilon" and "delta" if they were asked for.

    Raises:
        ValueError: if not exactly one of ε and σ is given, or one is out of its range.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "Exactly one of the arguments `epsilon` and `noise_multiplier` must be given. "
            f"Received: epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r}"
        )
    if epsilon is None:
        if delta is not None:
            raise ValueError(
                "Argument `delta` must be None with `noise_multiplier`: you can then state any δ "
                f"afterwards. Received: delta={delta!r}"
            )
        return _validate.positive("noise_multiplier", noise_multiplier), {}
    epsilon = _validate.positive("epsilon", epsilon)
    delta = _validate.open_unit("delta", 1 / (10 * num_examples) if delta is None else delta)
    sigma = gaussian_noise_multiplier(accounting.PrivacyBudget(epsilon, delta))
    # The ledger's accountant rounds up: what a statement says must not exceed what was asked for.
    while _stated(sigma, delta) > epsilon:
        sigma *= 1.0 + 2.0**-13
    return sigma, {"epsilon": epsilon, "delta": delta}


def _stated(sigma, delta):
    event = dp_accounting.GaussianDpEvent(sigma)
    return accounting.epsilon(event, delta, best_accountant(event, delta=delta))
