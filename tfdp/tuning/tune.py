"""The best of a random number of runs, and what that costs."""

import dataclasses
import math
import secrets
from collections.abc import Callable
from typing import Any

from tfdp.accounting import LedgerEntry
from tfdp.accounting.charges.history import runs_begun
from tfdp.accounting.charges.ledger import Ledger
from tfdp.accounting.charges.sampling import PERSON
from tfdp.accounting.events.composition import compose
from tfdp.data.provenance.origins import Origin
from tfdp.errors import PrivacyError
from tfdp.tuning.alike_runs import AlikeRuns
from tfdp.tuning.hyper_parameters import HyperParameters
from tfdp.tuning.number_of_runs import NumberOfRuns
from tfdp.tuning.private_mean import PrivateMean, means_released

_DRAWN_SETTINGS = (
    "each run took its settings from `hp` alone, or all runs had the same settings, and nothing "
    "else was carried from run to run"
)
_ALL_RUNS = (
    "the other runs need no further assumptions than the best one, and none of them drew its noise "
    "from a fixed seed"
)
_PUBLIC_SCORE = "the scores by which settings were chosen were computed from public data alone"
_OWN_SCORE = "each score that the PrivateMean averaged was computed from its own record alone"
_SECRET = (
    "the number of settings that were tried, and all results but the best: do not publish them, "
    "the other models, or files that were saved during the tuning run"
)


@dataclasses.dataclass(frozen=True, eq=False)
class TuningResult:
    """The part of a tuning run that may be released.

    Attributes:
        model: the trained model with the highest score; its statement carries the tuning run.
        setting: dict of its hyper-parameters.
        score: its score.
        entry: the `LedgerEntry` of the tuning run, charged to the model.
    """

    model: Any = dataclasses.field(repr=False)
    setting: dict
    score: float
    entry: LedgerEntry


def tune(
    train: Callable, score: Callable, number_of_runs: NumberOfRuns | float = 8.0
) -> TuningResult:
    """Trains with settings drawn at random, a random number of times, and keeps the best.

    Formal guarantees: with K runs of equal cost, K drawn from `NumberOfRuns` and every setting from
    one distribution, the best (setting, score, model) is as private as dp_accounting's
    `RepeatAndSelectDpEvent` states. Runs of different costs are refused. The drawn settings do not
    depend on the data, so the stated cost holds given the common cost of the runs.

    The cost of a run is read from its model, which must contain all training that began in the run.
    Earlier charges (a release that the runs share, a private encoder) must be the same for all
    runs, and are charged once in addition. Every run uses the layer names of the first one, and
    takes the seeds of Python, NumPy, Keras and TensorFlow from the operating system. Files of the
    best run therefore reveal neither which one it was, nor how many there were. tfdp does not check
    that a run takes its settings from `hp` alone, and nothing else from earlier runs; the statement
    lists this as an assumption. It lists what the best run assumes, and as an assumption that the
    others need nothing else.

    Args:
        train: function from a `HyperParameters` to a model that it built and trained. All settings
            must cost the same: the same noise multiplier, or budget, batch size and steps. Settings
            that differ between runs must come from the `HyperParameters`.
        score: function from a model to a number; higher is better (for an error e, return 1 - e). A
            `PrivateMean` is a release, and its cost is added to the cost of each run. Any other
            function is assumed to use public data only; the statement says so. A function that
            calls a `PrivateMean` is refused. Releases behind the number are charged, too.
        number_of_runs: a `NumberOfRuns`, or its mean.

    Returns:
        A `TuningResult`.

    Raises:
        PrivacyError: if runs cost different amounts or share trained layers, or a model is not
            private.
        ValueError: if an argument is out of range.

    Example: eight learning rates, ten runs on average.

        def train(hp):
            model = tfdp.make_private(build())
            model.compile(tfdp.optimizers.DPOptimizer(
                keras.optimizers.Adam(hp.Choice("learning_rate", rates)), noise_multiplier=2.0,
                num_examples=n, expected_batch_size=512), loss=loss)
            model.fit(tfdp.data.poisson_batches((x, y), expected_batch_size=512), epochs=10)
            return model

        best = tfdp.tuning.tune(train, score, number_of_runs=10)
        print(best.model.privacy_statement())
    """
    if not isinstance(number_of_runs, NumberOfRuns):
        number_of_runs = NumberOfRuns(number_of_runs)
    for name, function in (("train", train), ("score", score)):
        if not callable(function):
            raise ValueError(f"Argument `{name}` must be a function. Received: {function!r}")
    cost = best = None
    earlier = {}
    with AlikeRuns() as runs:
        for _ in range(number_of_runs.draw()):
            runs.begin()
            run = _run(train, score, earlier)
            earlier |= run.steps
            if cost is not None and run.cost != cost:
                raise PrivacyError(
                    "Argument `train` must cost the same with every setting: the same noise "
                    "multiplier or budget, batch size, steps and period, and the same charges "
                    "from before the tuning run (releases, encoders). Received: settings that cost "
                    f"{cost} and {run.cost}"
                )
            cost = run.cost
            if best is None or run.score > best.score:
                best = run
                runs.keep()
    entry = _entry(best, score, number_of_runs)
    best.model.charge_history.charge(entry)
    return TuningResult(best.model, best.setting, best.score, entry)


def _refuse_score_of_records(charged, score):
    """A person with many records would move a mean over records by all of them."""
    if isinstance(score, PrivateMean) and score.is_about_persons != (charged.unit == PERSON):
        raise PrivacyError(
            "Argument `score` must have the same unit as the training runs: a PrivateMean with "
            "`privacy_ids` if a person is the unit, and without if a record is. Received: a "
            f"PrivateMean of {'persons' if score.is_about_persons else 'records'} for training "
            f"runs whose unit is {charged.unit or 'a record'}"
        )


@dataclasses.dataclass(frozen=True)
class _Run:
    """One trained model; `cost` is what two runs must agree on."""

    model: Any
    setting: dict
    score: float
    charged: Ledger
    steps: dict
    cost: tuple
    assumptions: tuple


def _run(train, score, earlier):
    hyper_parameters = HyperParameters()
    with runs_begun() as begun, means_released() as means:
        model = train(hyper_parameters)
    if means:
        raise PrivacyError(
            "Argument `train` may use private records only for training, but it called a "
            "PrivateMean, whose cost would not be charged. Pass the PrivateMean as `score`."
        )
    history = getattr(model, "charge_history", None)
    if history is None:
        raise PrivacyError(
            "Argument `train` must return the model that it trained, a tfdp.make_private model or "
            f"one of tfdp.models. Received: {model!r}"
        )
    model.refresh_history()
    if history.steps_of(earlier):
        # One history could not tell the best model, which is paid for, from the others.
        raise PrivacyError(
            "Argument `train` must build a new model in every call, but two runs share layers "
            "with a history of charges. Load such layers from their file inside `train`."
        )
    steps = history.steps_of(begun)
    elsewhere = [n for n, of in begun.items() if n not in steps and of.steps_of([n])]
    if not steps or elsewhere:
        raise PrivacyError(
            "Argument `train` must train the model that it returns, itself and in this process, "
            "and no other model, because tfdp could not charge the others. Received: a model "
            f"with {len(steps)} training runs of its own, and {len(elsewhere)} of other models"
        )
    charged = Ledger()
    for name in steps:
        charged.merge(history.ledger_of(name))
    _refuse_score_of_records(charged, score)
    before = model.weight_origin.values()
    with means_released() as means, runs_begun() as later:
        given = score(model)
    if model.weight_origin.values() != before:
        raise PrivacyError(
            "Argument `score` must not change the model's weights: values that it writes are not "
            "charged. Change them in `train`, or on a copy of the model."
        )
    if later or history.steps_of(begun) != steps:
        raise PrivacyError(
            "Argument `score` must not train, because its training could not be charged as a "
            "part of the run. Train in `train`."
        )
    if [mean for mean, _ in means] != ([score] if isinstance(score, PrivateMean) else []):
        raise PrivacyError(
            "Argument `score` must be the PrivateMean itself if it uses private records: the "
            "cost of a PrivateMean that a function calls would not be charged. To minimise an "
            "error, let the PrivateMean's `values` return the bound minus the error."
        )
    origin = Origin.of(given)
    of_means = [entry for _, entry in means]  # `_entry` charges them, once for all runs
    for entry in origin.releases:
        if entry not in of_means:
            history.charge(entry)
    unnamed = [entry.label for entry in history.releases if "release" not in entry.details]
    if unnamed:
        raise PrivacyError(
            "Arguments `train` and `score` must use releases with unique names in their detail "
            '"release": without one, tfdp cannot tell a release made in every run from one that '
            f"all runs share. Received: releases {unnamed}"
        )
    releases = {entry.details["release"] for entry in history.releases}
    beside = (history.steps_beside(steps), releases, origin.assumptions)
    of_score = score.event if isinstance(score, PrivateMean) else None
    cost = (tuple(_without_run(entry) for entry in charged.entries), beside, of_score)
    # A score that is no number must not win, nor hide the others.
    value = -math.inf if math.isnan(float(given)) else float(given)
    setting = dict(hyper_parameters.values)
    return _Run(model, setting, value, charged, steps, cost, origin.assumptions)


def _without_run(entry):
    """What an entry says of its cost, comparable between runs."""
    cost = entry.event, entry.count, entry.overflow_probability, entry.adjacency
    return *cost, entry.period, entry.details.get("unit")


def _entry(run, score, number_of_runs):
    entries = run.charged.entries
    events = [(entry.event, entry.count) for entry in entries]
    details = {
        "kind": "tuning",
        "mean_runs": float(number_of_runs.mean),
        "shape": float(number_of_runs.shape),
        "covers": run.steps,
        "one_run": [entry.to_dict() for entry in entries],
        "release": secrets.token_hex(8),
        # A `train` that goes through a grid by itself looks like one that repeats one setting. And
        # to name what another run assumed would tell that there was one.
        "assumptions": [_DRAWN_SETTINGS, _ALL_RUNS, *run.assumptions],
        "not_covered": [_SECRET],
    }
    if isinstance(score, PrivateMean):
        events.append((score.event, 1))
        details["assumptions"].append(_OWN_SCORE)
    else:
        details["assumptions"].append(_PUBLIC_SCORE)
    if run.charged.num_examples is not None:
        details["num_examples"] = run.charged.num_examples
    units = {entry.details["unit"] for entry in entries if "unit" in entry.details}
    if len(units) == 1:
        (details["unit"],) = units
    if run.charged.adjacency != "add_or_remove_one":
        details["adjacency"] = run.charged.adjacency
    # A batch that is cut off in any of the runs: at most so often, on average.
    overflow = number_of_runs.mean * math.fsum(e.count * e.overflow_probability for e in entries)
    if overflow:
        details["overflow_probability"] = min(overflow, 1.0)
    event = number_of_runs.event(compose(events))
    return LedgerEntry("best of a random number of training runs", event, 1, details)
