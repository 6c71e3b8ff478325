"""What each kind of sampling costs, and its sentence in a statement: one record for each kind."""

import dataclasses

from tfdp import _validate


@dataclasses.dataclass(frozen=True)
class SamplingRule:
    """What is true of all batches of one kind. No field has a default: a new kind states them all.

    Args:
        charged_by: "step", "pass" or "round" (as many steps as there are parts of the records): a
            pass or a round costs as a whole as soon as it was begun.
        event: what is counted: "poisson" (a step, amplified by sampling), "cyclic" (a round, in
            which each record has one chance to be sampled), "allocation" (a pass, amplified as a
            whole) or "gaussian" (one Gaussian, without amplification). The functions are in
            `sampled_events`.
        adjacency: the adjacency under which this event is the cost.
        keeps_order: whether every pass has the same order, of the records or of the parts that they
            are sampled from. It is then known after how many steps a record can come again, and
            noise may be correlated over steps.
        sizes_vary: whether sizes of batches are random, so that a capacity cuts some of them.
        repeats_records: whether one batch may hold a record several times.
        is_declared: whether the user vouches for the kind, and tfdp did not draw the batches.
        saves_as_poisson: whether a reader is told what Poisson samples of the same size would save.
        words: the sentence in a statement, with the fields that `drawn_in_words` fills in.

    Raises:
        ValueError: for a value that nothing knows how to charge.
    """

    charged_by: str
    event: str
    adjacency: str
    keeps_order: bool
    sizes_vary: bool
    repeats_records: bool
    is_declared: bool
    saves_as_poisson: bool
    words: str

    def __post_init__(self):
        _validate.one_of("charged_by", self.charged_by, ("step", "pass", "round"))
        if self.saves_as_poisson and (self.charged_by, self.event) != ("pass", "gaussian"):
            raise ValueError(
                "Argument `saves_as_poisson` compares passes that are charged as Gaussians with "
                'Poisson samples. Set it only with charged_by="pass" and event="gaussian". '
                f"Received: charged_by={self.charged_by!r}, event={self.event!r}"
            )


_POISSON = SamplingRule(
    charged_by="step", event="poisson", adjacency="add_or_remove_one", keeps_order=False,
    sizes_vary=True, repeats_records=False, is_declared=False, saves_as_poisson=False,
    words="Poisson sampled, each {one} with probability {probability}{in_each}{with_most} "
    "({size} of {number} expected).",
)  # fmt: skip
# Who is in a batch may be seen: a record that is blanked out keeps its place.
_SHUFFLED = SamplingRule(
    charged_by="pass", event="gaussian", adjacency="zero_out", keeps_order=False,
    sizes_vary=False, repeats_records=False, is_declared=False, saves_as_poisson=True,
    words="shuffled, {size} of {number}{in_each}{with_most}; not Poisson sampled.",
)  # fmt: skip
_ALLOCATED = SamplingRule(
    charged_by="pass", event="allocation", adjacency="add_or_remove_one", keeps_order=False,
    sizes_vary=True, repeats_records=False, is_declared=False, saves_as_poisson=False,
    words="random allocation, each {one} in one of the {steps_of_pass} steps of an "
    "epoch{with_most} ({size} of {number} expected in a step){among}.",
)  # fmt: skip
_STREAM = SamplingRule(
    charged_by="pass", event="gaussian", adjacency="zero_out", keeps_order=True,
    sizes_vary=False, repeats_records=False, is_declared=False, saves_as_poisson=False,
    words="a stream in its order, {size} of {number}{in_each}{with_most}; {passes}.",
)  # fmt: skip
_CYCLIC = SamplingRule(
    charged_by="round", event="cyclic", adjacency="add_or_remove_one", keeps_order=True,
    sizes_vary=True, repeats_records=False, is_declared=False, saves_as_poisson=False,
    words="cyclic Poisson sampled: each {one} is in one of {bands} parts, drawn at random. Steps "
    "sample the parts in turn, each {one} of a part with probability {part_probability}{with_most} "
    "({size} of {number} expected in a step){among}.",
)  # fmt: skip
_FULL_BATCH = SamplingRule(
    charged_by="step", event="gaussian", adjacency="add_or_remove_one", keeps_order=False,
    sizes_vary=False, repeats_records=False, is_declared=False, saves_as_poisson=False,
    words="every record in every {one_of_steps}.",
)  # fmt: skip

#: By the `kind` of a `Sampling`, which histories store.
RULES = {
    "poisson": _POISSON,
    "declared_poisson": dataclasses.replace(_POISSON, is_declared=True),
    "microbatches": dataclasses.replace(_POISSON, repeats_records=True),
    "shuffled": _SHUFFLED,
    "declared_shuffled": dataclasses.replace(_SHUFFLED, is_declared=True),
    "allocated": _ALLOCATED,
    "stream": _STREAM,
    "cyclic_poisson": _CYCLIC,
    "full_batch": _FULL_BATCH,
}
