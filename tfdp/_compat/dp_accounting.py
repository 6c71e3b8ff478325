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
        self._pld = self._pld.compose(losses)
