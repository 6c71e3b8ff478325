"""What layers, models and selections tell the accounts, and are told by them."""


class PrivacyParticipant:
    """Mixin of a layer, a model or a selection that takes part in the accounts of its model.

    Whatever has attributes of these names takes part; the mixin says which there are.

    Attributes:
        privacy_releases: `LedgerEntry` objects of the releases that it was made from; each is
            charged to the model that holds it. Each has a random name as its detail "release":
            entries that are equal in everything are one release, and cost once.
        privacy_assumptions: sentences for the statement about what was taken to be public.
    """

    privacy_releases = ()
    privacy_assumptions = ()

    def bind_privacy(self, *, noise_multiplier, clip_norm, expected_batch_size, num_examples):
        """Called when a model that holds it is compiled with a `DPOptimizer`, and at each `fit`.

        Args:
            noise_multiplier, clip_norm, expected_batch_size, num_examples: the optimizer's.
        """


def releases_of(participants):
    """The ledger entries of all of them, in order."""
    return [entry for one in participants for entry in getattr(one, "privacy_releases", ())]


def assumptions_of(participants):
    """The sentences of all of them, each once."""
    found = [s for one in participants for s in getattr(one, "privacy_assumptions", ())]
    return tuple(dict.fromkeys(found))


def bind(participants, **settings):
    """Tells all of them how they are trained; see `PrivacyParticipant.bind_privacy`."""
    for one in participants:
        if hasattr(one, "bind_privacy"):
            one.bind_privacy(**settings)
