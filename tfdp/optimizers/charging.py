"""The one place that charges steps of a DPOptimizer, and decides what noise they have."""

import dataclasses
import itertools
import os

import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp.accounting.charges.notes import Notes
from tfdp.accounting.charges.sampling import PERSON
from tfdp.optimizers import budget_checks, calibrating
from tfdp.optimizers.noise_correlation import correlation_of
from tfdp.optimizers.run_charging import RunCharging
from tfdp.runtime.replicas import of_first_replica

_NO_LIMIT = np.iinfo(np.int64).max
_tokens = itertools.count(1)


def _token_of(model):
    """A number that no other model of this process has."""
    if "_tfdp_token" not in vars(model):
        vars(model)["_tfdp_token"] = next(_tokens)
    return vars(model)["_tfdp_token"]


class Charging(RunCharging):
    """Counts the steps of a DPOptimizer into a history, and stops them at its budget.

    `mechanism` binds what a step is (clip norm, noise, sampling, adjacency, unit), and everything
    that speaks of ε reads it. The variables here are known to this process only and invisible to
    checkpoints; what is saved is the history.

    Args:
        optimizer: the DPOptimizer, for its settings.
        noise_multiplier: σ if the user chose it, None if the budget does.
    """

    def __init__(self, optimizer, noise_multiplier):
        super().__init__(accounting.charges.history.ChargeHistory())
        self.requested_noise_multiplier = noise_multiplier
        self._optimizer = optimizer
        self._unit = "one example"
        self._cap = None
        self._beside = 0
        self.refresh = lambda: None
        self._calibrations = {}
        self._host_stddev = None
        self.run = None
        nothing_yet = float("nan")
        with tf.init_scope():
            self._limit = tf.Variable(0, dtype=tf.int64, trainable=False, name="step_limit")
            self._owner = tf.Variable(0, dtype=tf.int64, trainable=False, name="owner_of_run")
            self._stddev = tf.Variable(nothing_yet, False, dtype=tf.float64, name="noise_stddev")

    @property
    def variables(self):
        """Steps of this run, how many it may have, whose it is, and σ·C of its steps."""
        return [self._counter.steps, self._limit, self._owner, self._stddev]

    def share(self, history, unit, refresh):
        """Makes the history of the weights and this optimizer's own one.

        Args:
            history: the `ChargeHistory` of the weights.
            unit: what one record is.
            refresh: function to call before the history is read: variables made since then may
                have another.
        """
        history.join(self.history)
        self._unit = unit
        self.refresh = refresh

    @property
    def unit(self):
        """What one record of the accounts is: one person, or what the model says."""
        return self._unit if self._optimizer.max_records_per_unit is None else PERSON

    @property
    def steps(self):
        """Steps of DPOptimizers charged so far, under any settings."""
        return sum(steps for _, steps in self.history.private_runs)

    @property
    def remaining(self):
        """Steps that the budget still allows, or None without a budget."""
        if self._optimizer.budget is None or self._optimizer.steps is None:
            return None
        return self._optimizer.steps - sum(steps for _, steps in self._runs_of_this_budget())

    @property
    def allowed(self):
        """Steps that this run may still take: within the budget and below `limit_epsilon`."""
        return int(self._limit.numpy()) - int(self._counter.steps.numpy())

    @property
    def noise_multiplier(self):
        """σ: as given, of this or the last run of the budget, or calibrated for `planned`."""
        if self.requested_noise_multiplier is not None:
            return float(self.requested_noise_multiplier)
        runs = [m for m, _ in self._runs_of_this_budget()]
        runs += [] if self.mechanism is None else [self.mechanism]
        return runs[-1].noise_multiplier if runs else self._noise_multiplier_for(self.planned())

    def begin(self, sampling, strategy=None, notes=None):
        """Called eagerly before steps whose batches are drawn as `sampling` says (None: unknown).

        Without a known sampling no step of a budget may run, and any other step costs ε = infinity.

        Args:
            sampling: a `Sampling`, or None.
            strategy: a `tf.distribute.Strategy` of several workers, all of which make this call:
                their steps are one run, which costs once whoever's copy of it is loaded.
            notes: the `tfdp.accounting.charges.mechanisms.Notes` of the run.

        Raises:
            BudgetError: if the budget is spent, or the steps that are left would exceed it.
            PrivacyError: if these weights were trained with persons and without, or in a way that
                has no ε together with these steps.
        """
        self._stop()  # what is refused below leaves no step that nobody would charge
        budget, chain = self._optimizer.budget, self._optimizer.noise_chain
        if not self._optimizer.from_data.is_complete:
            return
        if budget is None or sampling is not None:
            if sampling is not None:
                budget_checks.refuse_other_units(self.history, self.unit)
                self.history.refuse_without_rule(self._setting(sampling, 1.0))
            if budget is not None:
                budget_checks.refuse_spent(budget, self.remaining, self._optimizer.steps)
            self.mechanism = self._mechanism_of(sampling, notes)
            self._refresh_limit(strict=True)
            name = None
            if strategy is not None:
                name = of_first_replica(np.frombuffer(os.urandom(8), np.int64), strategy)
            self._counter.begin(self.mechanism, None if name is None else name.tobytes().hex())
            self._beside = self.history.charges_beside(self._counter.run)
            if self.mechanism.correlation is not None:
                chain.begin(self.mechanism.correlation, strategy)
            if budget is not None and sampling.rule.saves_as_poisson:
                calibrating.warn_of_shuffling(budget, self.mechanism, self.poisson())
        sigma = self.noise_multiplier if self.mechanism is None else self.mechanism.noise_multiplier
        for variable in (self._stddev, self._host_stddev):
            if variable is not None:
                variable.assign(sigma * self._optimizer.clip_norm)

    def end(self):
        """Called eagerly after a run, or what was left of it: nobody knows what batches follow.

        Under a budget none may, so that there is no σ to calibrate.
        """
        if self._optimizer.budget is None:
            self.begin(None)
        else:
            self._stop()

    def _stop(self):
        self._counter.end()
        self._limit.assign(0)
        self._cap = self.mechanism = None
        if self._optimizer.noise_chain is not None:
            self._optimizer.noise_chain.end()

    def note(self, notes, in_place_of):
        """Called eagerly where a step is traced: gives the run other notes."""
        if self._counter.run is not None:
            notes = (self.mechanism.notes - in_place_of) | notes
            self.mechanism = dataclasses.replace(self.mechanism, notes=notes)
            self.history.replace(self._counter.run, self.mechanism)

    def look_again(self):
        """Called eagerly between steps: whether other charges have come to these weights.

        A layer that was trained before may join in while the model is built, and another model
        that shares layers may train in a callback.

        Raises:
            BudgetError: if the steps that are left would exceed the budget now.
        """
        if self._counter.run is None:
            return
        beside = self.history.charges_beside(self._counter.run)
        if beside > self._beside:
            self._beside = beside
            self._refresh_limit(strict=(self.remaining or 0) > 0)

    def limit_epsilon(self, max_epsilon, delta):
        """Lets this run take no step that would end above an ε; until the run ends.

        Returns:
            How many steps it may take.
        """
        self._cap = (max_epsilon, delta)
        self._refresh_limit(strict=False)
        return self.allowed

    def enter(self, run):
        """Called eagerly where a `tfdp.training.claims.Run` begins, and with None where it ends."""
        self.run = run
        self._owner.assign(0 if run is None else _token_of(run.model))

    def active(self, model):
        """Scalar bool tensor: whether a step of a model may see its examples.

        The budget must allow it, and no run of another model go on: a step that was traced before
        would be charged as one of that run.
        """
        owner = self._owner.read_value()
        return self._is_allowed() & ((owner == 0) | (owner == _token_of(model)))

    def _is_allowed(self):
        # Read first: TensorFlow's numpy behaviour compares no variables.
        return self._counter.steps.read_value() < self._limit.read_value()

    def noise_stddev(self):
        """σ·C of the steps of this run, a float64 tensor."""
        return self._stddev.read_value()

    def host_noise_stddev(self):
        """σ·C for input pipelines on the host, a variable; called outside of a strategy's scope."""
        if self._host_stddev is None:
            with tf.init_scope(), tf.device("/device:CPU:0"):
                value = self._stddev.numpy()
                self._host_stddev = tf.Variable(value, dtype=tf.float64, trainable=False)
        return self._host_stddev

    def charge_step(self):
        """Charges one step, in the graph of the step itself.

        Returns:
            The standard deviation of its noise, a float64 tensor.
        """
        self._counter.count(self._is_allowed())
        return self._stddev.read_value()

    def ledger_after(self, steps):
        if self.mechanism is not None and self.mechanism.sampling is not None:
            return super().ledger_after(steps)
        further = self._mechanism_of(self.planned(), None)
        return self.history.ledger(("ahead", further, steps))

    def merge_bytes(self, data):
        super().merge_bytes(data)
        if self.mechanism is not None:
            # Loaded in the middle of a fit (BackupAndRestore): what was loaded counts, too.
            with tf.init_scope():
                self._refresh_limit(strict=(self.remaining or 0) > 0)

    def _mechanism_of(self, sampling, notes):
        """The `PrivateTraining` of steps on such batches."""
        if self.requested_noise_multiplier is not None:
            sigma = float(self.requested_noise_multiplier)
        else:
            sigma = self._noise_multiplier_for(sampling)
        return self._setting(sampling, sigma, notes)

    def _setting(self, sampling, noise_multiplier, notes=None):
        optimizer = self._optimizer
        budget, selection = optimizer.budget, optimizer.selection
        return accounting.charges.mechanisms.PrivateTraining(
            noise_multiplier=noise_multiplier,
            clip_norm=optimizer.clip_norm,
            sampling=sampling,
            num_examples=optimizer.num_examples,
            unit=self.unit,
            mechanism="gaussian" if selection is None else selection.step_mechanism,
            clipping=optimizer.clipping,
            selection=selection.describe() if selection else None,
            correlation=correlation_of(optimizer, sampling),
            budget=(budget.epsilon, budget.delta, optimizer.steps) if budget else None,
            notes=Notes() if notes is None else notes,
        )

    def poisson(self):
        """Poisson sampling as the optimizer's arguments describe it, a `Sampling`."""
        optimizer = self._optimizer
        return accounting.Sampling(
            "poisson", optimizer.num_examples, optimizer.expected_batch_size,
            max_records_per_unit=optimizer.max_records_per_unit, period=optimizer.period,
            num_records=optimizer.num_records,
        )  # fmt: skip

    def planned(self):
        """How batches will be drawn if nobody says otherwise: Poisson, or as the noise needs."""
        noise_correlation, poisson = self._optimizer.noise_correlation, self.poisson()
        if noise_correlation is None:
            return poisson
        return noise_correlation.planned(poisson, self._optimizer.steps)

    def _noise_multiplier_for(self, sampling):
        """σ of the budget's runs on such batches, or calibrated to what is left."""
        setting = self._setting(sampling, 1.0)
        for mechanism, _ in reversed(self._runs_of_this_budget()):
            alike = (
                (mechanism.charged_by, mechanism.draws_per_unit, mechanism.event())
                == (setting.charged_by, setting.draws_per_unit,
                    setting.event(mechanism.noise_multiplier))
            )  # fmt: skip
            if alike:
                return mechanism.noise_multiplier
        ledger = self.history.ledger()
        ledger = ledger.beside(
            self._optimizer.period,
            accounting.events.adjacency.strongest([ledger.adjacency, setting.adjacency]),
        )
        key = (ledger.to_json(), self.remaining, sampling)
        if key not in self._calibrations:
            planned = self._optimizer.budget, setting, self.remaining
            sigma = calibrating.noise_multiplier(*planned, ledger)
            calibrating.warn_of_spent_budget(*planned, sigma, ledger)
            self._calibrations[key] = sigma
        return self._calibrations[key]

    def _refresh_limit(self, strict):
        """Sets how many steps this run may have; `strict` refuses what would break the budget."""
        limits, ran = [_NO_LIMIT], int(self._counter.steps.numpy())
        remaining = self.remaining
        if remaining is not None:
            if strict:
                budget = self._optimizer.budget
                budget_checks.refuse_spent(budget, remaining, self._optimizer.steps)
                budget_checks.refuse_beyond(budget, remaining, self.ledger_after(remaining))
            limits.append(ran + max(remaining, 0))
        if self.mechanism is not None and self.mechanism.correlation is not None:
            limits.append(self.mechanism.correlation.steps)
        if self._cap is not None:
            limits.append(ran + self.steps_within(*self._cap))
        self._limit.assign(min(limits))

    def _runs_of_this_budget(self):
        """(mechanism, steps) of earlier runs that spent the same budget under the same setting."""
        mine = self._setting(None, 1.0)
        return [
            (mechanism, steps)
            for mechanism, steps in self.history.private_runs
            if mechanism.budget is not None
            and mechanism.same_setting(mine)
            and getattr(mechanism.sampling, "period", None) == self._optimizer.period
        ]
