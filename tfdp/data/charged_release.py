"""What whoever uses a private release charges and says."""

from tfdp.accounting import LedgerEntry


class ChargedRelease:
    """Mixin of releases that have `event`, `label`, `num_examples`, `details` and `origin`."""

    @property
    def entry(self):
        """The `LedgerEntry` of the release."""
        return LedgerEntry(
            self.label, self.event, 1, {**self.details, "num_examples": self.num_examples}
        )

    @property
    def privacy_releases(self):
        """`LedgerEntry` list: the release, and those that its records were made with."""
        return [*self.origin.releases, self.entry]

    @property
    def privacy_assumptions(self):
        """Sentences about what was taken to be public in the making of the records."""
        found = list(self.origin.assumptions)
        if self.details.get("seed") is not None:
            found.append(
                f"nobody knows the fixed seed {self.details['seed']} that the noise of the release "
                "was drawn from: this release is a test, not a private one"
            )
        return found
