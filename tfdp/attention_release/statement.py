"""What a user of released attention is told: guarantee, assertions, what is not covered."""

import dataclasses
import json
import textwrap

import dp_accounting

from tfdp.accounting.charges.ledger_entry import ABOUT_INPUT
from tfdp.accounting.release_series import release_epsilon
from tfdp.accounting.reports.statement_text import describe
from tfdp.accounting.rounding import round_down, round_up

CALLS = (1, 10, 100, 1000)

_UNITS = {
    "sequence": "the whole input sequence: any change of any or all of its rows",
    "token": "one token of the input sequence, replaced by {distance}",
    "feature": "one feature (column) of the input sequence, replaced by {distance}",
}
_ASSUMPTIONS = {
    "sequence": (),
    "token": (
        "each row of the query (and key) is a function of one token of the input only; it is not "
        "after any attention, recurrence, convolution, pooling or normalization across positions",
    ),
    "feature": (
        "each column of the query (and key) is a function of one feature of the input only; it is "
        "not after any layer that mixes features, a projection included",
    ),
}


@dataclasses.dataclass(frozen=True)
class ReleaseStatement:
    """The privacy of an attention layer's calls; `str()` is for people, `to_json()` for programs.

    Args:
        epsilon: of one call, over all heads, at `delta`.
        delta: the delta of every epsilon here.
        unit: what is protected.
        epsilon_by_calls: number of calls about one input -> epsilon of all of them together.
        mechanism: one line on the mechanism and its parameters.
        assumptions: what the user vouched for.
        not_covered: what the guarantee does not cover.
        remarks: anything else a reader must know.
    """

    epsilon: float
    delta: float
    unit: str
    epsilon_by_calls: dict
    mechanism: str
    assumptions: tuple
    not_covered: tuple
    remarks: tuple

    def to_dict(self):
        """All fields as a dict of plain values."""
        fields = {"kind": ABOUT_INPUT, **dataclasses.asdict(self)}
        fields["epsilon_by_calls"] = {str(c): e for c, e in self.epsilon_by_calls.items()}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

    def to_json(self):
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self):
        lines = [
            "Privacy of released attention",
            "=============================",
            f"epsilon = {round_up(self.epsilon)} per call, delta = {round_up(self.delta)}",
            f"Unit of privacy: {self.unit}.",
            f"Mechanism: {self.mechanism}.",
            "All calls about one input together:",
        ]
        lines += [
            f"  - {calls:,} call{'s' if calls > 1 else ''}: epsilon = {round_up(spent)}"
            for calls, spent in self.epsilon_by_calls.items()
        ]
        for title, items in (
            ("Assumed, not checked:", self.assumptions),
            ("Not covered by this guarantee:", self.not_covered),
            ("Remarks:", self.remarks),
        ):
            if items:
                lines.append(title)
                lines += [f"  - {item}" for item in items]
        return "\n".join(
            textwrap.fill(line, 96, subsequent_indent="    " if line.startswith("  -") else "  ")
            for line in lines
        )


def release_statement(release_plan, seed, assumptions=()):
    """The `ReleaseStatement` of a `NoisePlan` or `SamplingPlan`.

    Args:
        release_plan: what every call does.
        seed: the seed that a test fixed, or `None`.
        assumptions: what else the user vouched for.
    """
    setting = release_plan.setting
    delta = setting.budget.delta
    by_calls = {
        calls: release_epsilon(dp_accounting.SelfComposedDpEvent(release_plan.event, calls), delta)
        for calls in CALLS
    }
    said = what_is_said(setting, seed, assumptions)
    remarks = (
        "These calls are about the inputs of inference; their ledger is separate from the one of "
        "training.",
        "Nothing counts the calls of an exported model: the server must limit the calls about "
        "one input.",
        *said.pop("remarks"),
    )
    return ReleaseStatement(
        epsilon=by_calls[1],
        delta=delta,
        epsilon_by_calls=by_calls,
        mechanism=_mechanism(release_plan),
        remarks=remarks,
        **said,
    )


def what_is_said(setting, seed, assumptions=()):
    """What a statement says of any number of calls, beside their cost; a dict.

    Args:
        setting: the `Setting` of the release.
        seed, assumptions: as for `release_statement`.
    """
    distance = setting.neighbor_distance
    unit = _UNITS[setting.unit].format(
        distance="any other"
        if distance is None
        else f"one at distance {distance:g} or less (after embedding and clipping)"
    )
    assumptions = (
        *_ASSUMPTIONS[setting.unit],
        "the length, the width and the mask of the input are public",
        *assumptions,
    )
    remarks = ()
    if seed is not None:
        remarks = (
            f"NOT PRIVATE while seed={seed} fixes the noise in this process: for tests only.",
        )
    return {
        "unit": unit,
        "assumptions": assumptions,
        "not_covered": (
            "anything else computed from the input; in particular, attention times values is "
            "private only if the values are public or private as well",
            "the data that the weights of the model were trained on",
        ),
        "remarks": remarks,
    }


def _mechanism(release_plan):
    setting = release_plan.setting
    heads = f", {setting.heads} heads" if setting.heads > 1 else ""
    event = release_plan.event if setting.heads == 1 else release_plan.event.event
    if release_plan.mechanism == "gaussian_noise":
        what = describe(event)
    else:
        what = (
            f"sample covariance of {release_plan.num_samples} draws, "
            f"ridge {round_down(release_plan.ridge)}, "
            f"sensitivity over ridge {round_up(release_plan.relative_sensitivity)}"
        )
    return (
        f"{release_plan.mechanism}: {what}; sensitivity {round_up(release_plan.sensitivity, 6)} "
        f"for {setting.length} rows of norm at most {setting.row_norm:g}{heads}"
    )
