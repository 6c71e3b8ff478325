"""dp_accounting: accountants that take further events, by hooks with public names."""

import dp_accounting


class _TakesOthers:
    def take(self, event, count, do_compose):
        """Composes an event of one's own.

        Args:
            event: a `DpEvent`.
            count: how often it is composed.
            do_compose: whether to compose it, or only to say whether that could be done.

        Returns:
            Whether it was taken, and what stands against it: None, or `refusal(event, why)`. What
            was not taken is left to dp_accounting.
        """
        return False, None

    def refusal(self, event, why):
        return self.CompositionErrorDetails(invalid_event=event, error_message=why)

    def _maybe_compose(self, event, count, do_compose):
        taken, refusal = self.take(event, count, do_compose)
        return refusal if taken else super()._maybe_compose(event, count, do_compose)


class RdpAccountant(_TakesOthers, dp_accounting.rdp.RdpAccountant):
    """Rényi differential privacy."""

    @property
    def orders(self):
        return self._orders

    @property
    def curve(self):
        """Rényi divergences of what was composed, at `orders`."""
        return self._rdp

    def add(self, curve):
        """Composes what has the Rényi divergences `curve` at `orders`."""
        self._rdp = self._rdp + curve


class PldAccountant(_TakesOthers, dp_accounting.pld.PLDAccountant):
    """Privacy loss distributions."""

    @property
    def interval(self):
        """Distance of the values to which privacy losses are rounded."""
        return self._value_discretization_interval

    def add(self, losses):
        """Composes what has this `PrivacyLossDistribution`, made at `interval`."""
        nothing_yet = parts_of(pmfs_of(self._pld)[0]) == (self.interval, 0, [1], 0)
        self._pld = losses if nothing_yet else losses.compose(self._pld)


def parts_of(pmf):
    """(interval, lowest loss over it, masses, mass of infinity) of a `PLDPmf`."""
    dense = pmf.to_dense_pmf()
    return dense._discretization, dense._lower_loss, dense._probs, dense._infinity_mass


def pmfs_of(losses):
    """The `PLDPmf`s of a `PrivacyLossDistribution`: one where it is symmetric, or two."""
    return (losses._pmf_remove,) if losses._symmetric else (losses._pmf_remove, losses._pmf_add)
