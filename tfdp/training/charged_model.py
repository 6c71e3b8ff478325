"""A model whose weights hold the history of what was charged for them."""

import secrets

import tensorflow as tf

from tfdp import _validate, accounting
from tfdp._compat.keras import ModelHooks, all_layers
from tfdp.accounting.charges import participant
from tfdp.accounting.charges.described import described
from tfdp.accounting.charges.sampling import PERSON
from tfdp.clipping.recording import trained_variables
from tfdp.data.provenance.dataset_tags import origin_of
from tfdp.data.provenance.variable_values import give_history
from tfdp.experimental.tpu import resident_models
from tfdp.optimizers import DPOptimizer
from tfdp.optimizers.run_charging import RunCharging
from tfdp.training.checks import preflight
from tfdp.training.plain_training import mechanism_outside_fit
from tfdp.training.statements import statement_of
from tfdp.training.weights import held_constants, state_trees
from tfdp.training.weights.keras_files import HISTORY as _HISTORY
from tfdp.training.weights.weights_origin import WeightOrigin


class ChargedModel(ModelHooks):
    """What `DPModel` knows of its charges, whatever it is compiled with.

    The history belongs to the weights: it is held by every variable that was trained, saved with
    them, and shared by all models that have some of them.
    """

    # What was charged is stated beside a SavedModel, and its history is no part of the weights.
    not_exported = ("history_state",)

    @property
    def charge_history(self):
        """The `ChargeHistory` of these weights, whatever they are compiled with."""
        return vars(self).setdefault("_charge_history", accounting.charges.history.ChargeHistory())

    @property
    def weight_origin(self):
        """The `WeightOrigin` of the weights."""
        if "_weight_origin" not in vars(self):
            vars(self)["_weight_origin"] = WeightOrigin(self)
        return vars(self)["_weight_origin"]

    @property
    def plain_charging(self):
        """Charges the steps that no DPOptimizer takes."""
        if "_plain_charging" not in vars(self):
            charging = RunCharging(self.charge_history, self.weight_origin)
            charging.begin(mechanism_outside_fit(self))
            vars(self)["_plain_charging"] = charging
        return vars(self)["_plain_charging"]

    @property
    def charging(self):
        """What charges the steps of this model as it is compiled; for callbacks."""
        private = isinstance(getattr(self, "optimizer", None), DPOptimizer)
        return self.optimizer.charging if private else self.plain_charging

    @property
    def ledger(self):
        """Every mechanism that touched the training data, as a `tfdp.accounting.Ledger`."""
        self.refresh_history()
        return self.charge_history.ledger().closed()

    def charge(self, label, event, count=1, *, num_examples=None, unit="record", **details):
        """Charges what else was learned from the training data and went into these weights.

        For numbers that a mechanism of your own released: a threshold, a learning rate, counts.
        Every call costs, whether or not it equals another one.

        ```python
        model.charge("my own counts", dp_accounting.GaussianDpEvent(2.0))
        ```

        Args:
            label: its name in the statement.
            event: `dp_accounting.DpEvent`, under add-or-remove-one adjacency.
            count: how many such events there were.
            num_examples: number of records, or persons, that it saw; public.
            unit: "record" or "person", whose presence the event protects: a person with all of its
                records, or one record.
            details: what describes it: plain values, which accounting does not read.

        Raises:
            ValueError: for another unit, or a detail of a name that accounting reads.
        """
        _validate.one_of("unit", unit, ("record", "person"))
        details = {
            "kind": "release",
            "release": secrets.token_hex(8),
            **described(details, num_examples),
            **({"unit": PERSON} if unit == "person" else {}),
        }
        self.join_histories()
        self.charge_history.charge(accounting.LedgerEntry(label, event, count, details))

    def charge_releases(self, origin=()):
        """Charges what was released before training; once, however often it is called.

        Args:
            origin: `LedgerEntry` list of the releases that the training data were made with.

        Raises:
            PrivacyError: for a release about other records than those that are trained on.
        """
        optimizer = getattr(self, "optimizer", None)
        entries = [*self._held_releases(), *origin]
        if isinstance(optimizer, DPOptimizer) and optimizer.from_data.is_complete:
            preflight.refuse_other_data(
                entries, optimizer.num_examples, optimizer.charging.unit, optimizer.period
            )
        for entry in entries:
            self.charge_history.charge(entry)

    def join_histories(self):
        """The history belongs to the weights: whatever else holds some of them shares it."""
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, DPOptimizer):  # set without `compile`, perhaps
            optimizer.charging.share(self.charge_history, self.privacy_unit, self.refresh_history)
        for one in [*self.variables, *all_layers(self), *resident_models.tables_of(self)]:
            if _HISTORY in vars(one):
                self.charge_history.join(vars(one)[_HISTORY])
        # Variables that are frozen now carry no trace of this model's data.
        trained = trained_variables(self)
        ids = {id(variable) for variable in trained}
        # Layers that have some: they may replace them (`quantize`).
        layers = [layer for layer in all_layers(self) if ids & {id(v) for v in layer.weights}]
        for one in [*trained, *layers]:
            give_history(one, self.charge_history)

    def refresh_history(self):
        """Brings the history up to date, before it is read: its files hold what the model holds.

        A layer may have joined that was made from a release, or a selection may have chosen rows,
        without a `compile` or a `fit` since.
        """
        self.join_histories()
        for entry in self._held_releases():
            self.charge_history.charge(entry)

    def _held_releases(self):
        """Those that the model was built from, and those of its optimizer."""
        held = participant.releases_of([getattr(self, "optimizer", None)])
        return [*self.privacy_charges(), *held]

    def privacy_charges(self):
        """`LedgerEntry` list of the private releases that the model itself was built from."""
        of_layers = participant.releases_of(all_layers(self))
        return [*of_layers, *held_constants.origin_held(self).releases]

    def privacy_statement(self, delta=None, accountant=None):
        """What was guaranteed to each record of the training data, and what was not.

        Args:
            delta: δ; defaults to the budget's, or 1/(10·n).
            accountant: "pld", "rdp", or None: PLD, or RDP where PLD has no rule.

        Returns:
            A `tfdp.accounting.Statement`: print it, or use `.epsilon`, `.to_dict()`,
            `.to_json()`.

        Raises:
            ValueError: for a model trained with neither a DPOptimizer, nor `DPForwardNoise`, nor
                released data; or a δ > 1/n.
        """
        return statement_of(self, delta, accountant)

    def predict(self, x, *args, **kwargs):
        """As `keras.Model.predict`; arrays that carry the charges of what they were made of."""
        return _made_of(x, super().predict(x, *args, **kwargs))

    def predict_on_batch(self, x):
        """As `keras.Model.predict_on_batch`, and as `predict`."""
        return _made_of(x, super().predict_on_batch(x))

    def load_weights(self, *args, **kwargs):
        """As `keras.Model.load_weights`; values without charges are noted, also during a run."""
        with self.weight_origin.loading():
            return super().load_weights(*args, **kwargs)

    def get_state_tree(self, value_format="backend_tensor"):
        """As `keras.Model.get_state_tree`, with charges, and without metrics: they are raw data."""
        tree = super().get_state_tree(value_format)
        return state_trees.with_charges(tree, self.charging.to_bytes(), value_format)

    def set_state_tree(self, state_tree):
        """As `keras.Model.set_state_tree`; values without charges are noted."""
        state_tree, charges = state_trees.without_charges(state_tree)
        with self.weight_origin.loading():
            if charges is not None:
                self.charging.merge_bytes(charges)
            super().set_state_tree(state_tree)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store[_HISTORY] = self.charging.to_bytes()

    def load_own_variables(self, store):
        if _HISTORY in store:
            self.charging.merge_bytes(store[_HISTORY][()])
        super().load_own_variables({k: store[k] for k in store.keys() if k != _HISTORY})


def _made_of(x, made):
    """Arrays that were made of data, in any nesting, with the `Origin` of the data."""
    origin = origin_of(x)
    return tf.nest.map_structure(origin.on, made) if origin else made
