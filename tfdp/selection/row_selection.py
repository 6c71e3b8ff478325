"""What a rule that chooses rows tells the optimizer, the ledger and the statement."""

from tfdp.accounting.charges.participant import PrivacyParticipant
from tfdp.fixed_settings import FixedSettings


class RowSelection(FixedSettings, PrivacyParticipant):
    """Base of the rules that choose which rows of sparse tables a private step may update.

    A subclass defines `describe` and `select`. The step's noise multiplier σ must pay for
    everything that it reads of a batch; it leaves `gradient_noise_multiplier(σ)` for the noise on
    the gradients.

    Attributes:
        step_mechanism: selection and noise together, as for `training_event` in
            `accounting/events/composition.py`: "gaussian" if they cost exactly one Gaussian of
            noise multiplier σ, "concentrated" if they only have its Rényi curve.
        capacity: the largest number of rows that a step may update, or None for no limit.
        is_static: whether the number of rows that a step updates is known beforehand, or has a
            capacity, so that XLA can compile the step.
        reads_batch: whether the rows depend on the batch of the step at all.
        reads_gradients: whether it reads the norms of the rows' gradients, not only ids.
        version: changes whenever rows that were chosen before training are chosen again.
    """

    step_mechanism = "gaussian"
    capacity = None
    is_static = False
    reads_batch = True
    reads_gradients = False
    version = 0

    def describe(self):
        """Public parameters for the ledger, as a JSON-able dict."""
        raise NotImplementedError

    def gradient_noise_multiplier(self, noise_multiplier):
        """σ₂, by which the gradients are noised, from the step's total σ."""
        return noise_multiplier

    def check(self, tables):
        """Refuses tables that cannot be selected from.

        Args:
            tables: dict of table name to number of rows.

        Raises:
            ValueError: if rows of one of them cannot be chosen.
        """

    def select(self, tables, example_mask, noise_multiplier, source):
        """The rows that one step may update.

        Args:
            tables: list of `TableActivity`.
            example_mask: (B,) bool, false for the padding of a batch.
            noise_multiplier: the step's total σ, float or scalar tensor.
            source: a `tfdp.noise.NoiseSource`.

        Returns:
            One sorted int64 tensor of ids for each table.
        """
        raise NotImplementedError

    def select_padded(self, tables, example_mask, noise_multiplier, source):
        """As `select`, in tensors of a fixed size, if there is a `capacity`.

        Returns:
            (One tensor of sorted ids for each table, filled up with the largest int64; scalar
            int64, the number of survivors beyond the capacity.)
        """
        raise NotImplementedError
