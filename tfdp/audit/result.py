"""What an audit found."""

import dataclasses
import math

from tfdp.accounting.reports.figures import new_figure


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """A claimed ε and the lower bound that an attack proved.

    Attributes:
        name: what was attacked.
        claim: the claimed ε.
        bound: the lower bound. If it exceeds the claim, the claim is false (or the attack was
            lucky, with probability 1 - confidence).
        delta: δ of both.
        confidence: of the bound.
        trials: runs, or canaries.
    """

    name: str
    claim: float
    bound: float
    delta: float
    confidence: float
    trials: int

    @property
    def holds(self):
        """Whether the claim stands."""
        return self.bound <= self.claim

    def to_dict(self):
        """The fields, and `holds`, as a JSON-able dict."""
        fields = dataclasses.asdict(self)
        if math.isinf(self.claim):
            fields["claim"] = "infinity"
        return {**fields, "holds": self.holds}


def table(results):
    """The results as lines of text."""
    width = max((len(r.name) for r in results), default=0)
    lines = [f"{'mechanism':{width}}  claimed  shown at least  of claim    delta  trials"]
    for r in results:
        share = r.bound / r.claim if 0 < r.claim < math.inf else 0.0
        line = f"{r.name:{width}}  {r.claim:7.3f}  {r.bound:14.3f}  {share:8.0%}  {r.delta:7.1g}"
        lines.append(f"{line}  {r.trials:6d}" + ("" if r.holds else "  CLAIM REFUTED"))
    return "\n".join(lines)


def plot(results, path):
    """Bars of bounds under the claims; needs matplotlib."""
    figure = new_figure(8, 0.5 + 0.42 * len(results))
    axes = figure.subplots()
    places = range(len(results))
    axes.barh(places, [r.bound for r in results], color="#4c78a8", label="shown by attack")
    axes.plot([r.claim for r in results], places, "|", color="#d62728", markersize=16,
              markeredgewidth=2.5, label="claimed")  # fmt: skip
    axes.set_yticks(places, [f"{r.name}, δ = {r.delta:g}" for r in results])
    axes.invert_yaxis()
    axes.set_xlim(0)
    axes.set_xlabel(f"ε; bounds at confidence {results[0].confidence:g}")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
