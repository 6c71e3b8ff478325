"""What a reader must know of a run beside its cost."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Notes:
    """What a reader must know of a run beside its cost; kept with the run.

    Args:
        not_covered: what the guarantee does not cover.
        assumptions: what the user vouched for.
        remarks: anything else.
    """

    not_covered: tuple = ()
    assumptions: tuple = ()
    remarks: tuple = ()

    def __or__(self, other):
        """The notes of both, each once, in order."""
        return Notes(
            *(
                tuple(dict.fromkeys((*getattr(self, f.name), *getattr(other, f.name))))
                for f in dataclasses.fields(self)
            )
        )

    def __sub__(self, other):
        """These notes without those of another."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)]
        return Notes(*(tuple(n for n in own if n not in others) for own, others in pairs))

    @classmethod
    def from_details(cls, details):
        """The notes among the details of a ledger entry."""
        return cls(**{f.name: tuple(details.get(f.name, ())) for f in dataclasses.fields(cls)})


def doubts(sampling):
    """What is assumed, and remarked, of the way batches were drawn."""
    assumptions, remarks = (), ()
    if sampling is not None and sampling.num_records is not None:
        assumptions = (
            f"the number of records to sample from, {sampling.num_records}, is public: this "
            "number, the sampling probability of a record and the number of steps are the same "
            "whether or not a person takes part",
        )
    if sampling is not None and sampling.rule.is_declared:
        kind = sampling.kind.removeprefix("declared_")
        assumptions = (f"batches were drawn as declared ({kind}); tfdp did not draw them",)
    if sampling is not None and sampling.seeded:
        remarks = (
            "The batches were drawn from a fixed seed. For anybody who knows the seed, the "
            "amplification by sampling does not hold. Seeds are for tests.",
        )
    return Notes(assumptions=assumptions, remarks=remarks)
