"""Private training for Keras models: the train step, and the statement of what it did."""

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.accounting.charges import participant
from tfdp.clipping import penalties
from tfdp.clipping.losses import MeanExampleLoss, PerExampleLoss, of_all_replicas, share_of_mean
from tfdp.clipping.plan import refusals
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.recording import ensure_built, trained_variables
from tfdp.clipping.rules.embed_reduce import register_keras_rs
from tfdp.distribution import checks, host_selection, self_check
from tfdp.distribution.multi_worker import MultiWorkerFit, as_results
from tfdp.experimental.tpu import resident_models
from tfdp.optimizers import DPOptimizer
from tfdp.optimizers.run_charging import HistoryState
from tfdp.runtime import replicas
from tfdp.runtime.strategies import compiled_by_xla
from tfdp.runtime.xla import compiling
from tfdp.training import claims, run, step
from tfdp.training.building import build_ahead
from tfdp.training.charged_model import ChargedModel
from tfdp.training.checks import own_steps, preflight
from tfdp.training.checks.clear_errors import explained
from tfdp.training.executions import function_of_executions, prepared, results_of_steps
from tfdp.training.plain_training import count_step, mechanism_outside_fit
from tfdp.training.present_rows import MetricsOfPresentRows, accept_no_weights
from tfdp.training.row_selection import (
    SelectionMetrics,
    allow_compilation,
    preselect_rows,
    refuse_unchecked_rows,
)
from tfdp.training.weights import other_reads


@keras.saving.register_keras_serializable(package="tfdp")
class DPModel(MultiWorkerFit, MetricsOfPresentRows, ChargedModel):
    """A `keras.Model` whose training is differentially private under a `DPOptimizer`.

    Subclass it as you would subclass `keras.Model`; for an existing model use
    `tfdp.make_private(model)`. It differs from Keras only where each example must be clipped
    separately:

    - A loss is the mean (or sum) over an example's *own* valid positions; the displayed loss is
      the mean of these over the examples that are present.
    - An example with sample weight 0 is absent, like the padding of a Poisson batch: losses and
      metrics are those of the other examples.
    - tfdp refuses layers and losses that mix examples.

    With any other optimizer the model trains on the same loss. Only data that pass through
    `tfdp.layers.DPForwardNoise` layers, or come from a release, are then private; if nothing is,
    the ledger says so.
    """

    #: What one record is, for the statement.
    privacy_unit = "one example"
    #: Whether it is proved of each step that the examples of a batch do not change each other's
    #: gradients, or what forward noise clips. Set it to False in a subclass, or on a model, to
    #: leave the proof out: the statement then lists that as assumed.
    validate_independence = True

    def __init__(self, *args, **kwargs):
        if args or "inputs" in kwargs or "outputs" in kwargs:
            # Keras would change the base class of every DPModel in the process.
            raise ValueError(
                f"{type(self).__name__} cannot be built from symbolic inputs and outputs. Build a "
                "keras.Model(inputs, outputs) and wrap it with tfdp.make_private(model), or "
                f"define `call`. Received: positional arguments {args}, keywords {sorted(kwargs)}"
            )
        super().__init__(**kwargs)

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        run_eagerly=False,
        steps_per_execution=1,
        jit_compile="auto",
        auto_scale_loss=True,
    ):
        """As `keras.Model.compile`.

        Raises:
            PrivacyError: for a layer that mixes examples, the `mixed_float16` policy, or a layer
                that trains past any optimizer.
            BudgetError: if the budget cannot be met.
        """
        # Past Keras's tracking, which would take the metrics for the model's own.
        vars(self)["_compile_arguments"] = {
            "optimizer": optimizer, "loss": loss, "loss_weights": loss_weights,
            "metrics": metrics, "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly, "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile, "auto_scale_loss": auto_scale_loss,
        }  # fmt: skip
        own_steps.charge_own_step(self)
        optimizer = keras.optimizers.get(optimizer)
        private = isinstance(optimizer, DPOptimizer)
        checks.refuse_compilation(self.distribute_strategy, jit_compile)
        refusals.refuse_layers_beyond_reach(self)
        accept_no_weights(metrics, weighted_metrics)
        if private:
            claims.refuse_busy_optimizer(self, optimizer)
            refusals.refuse_named_layers(self)
            refusals.refuse_named_losses(loss)
            preflight.refuse_by_layers(self, optimizer)
            checks.check_strategy(self.distribute_strategy, optimizer)
            register_keras_rs(self)
            allow_compilation(self, optimizer, jit_compile)
        if loss is not None:
            reduction = optimizer.per_example_reduction if private else "mean"
            per_example = PerExampleLoss if private else MeanExampleLoss
            loss = tf.nest.map_structure(
                lambda one: None if one is None else per_example(one, reduction), loss
            )
        super().compile(
            optimizer=optimizer, loss=loss, loss_weights=loss_weights, metrics=metrics,
            weighted_metrics=weighted_metrics, run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution, jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )  # fmt: skip
        own_steps.note_compilation(self)
        self._plans = {}
        self.examined, self.examined_eagerly = {}, set()
        self.devices_checked = False
        vars(self)["selection_metrics"] = SelectionMetrics(optimizer)
        self.join_histories()
        self.charge_releases()
        if private:
            optimizer.charging.weights = self.weight_origin
            optimizer.charging.begin(None, self.distribute_strategy)
            optimizer.refresh_entropy(self.distribute_strategy)
            if optimizer.from_data.is_complete:
                self.bind_layers()
        else:
            self.plain_charging.begin(mechanism_outside_fit(self))
        # tf.train.Checkpoint keeps Python state of this kind. The model has one whatever it is
        # compiled with: a checkpoint may be restored into a model that is compiled otherwise.
        self.history_state = HistoryState(self.charging)

    def bind_layers(self):
        """Passes the noise level to layers that correct for it."""
        optimizer = self.optimizer
        participant.bind(
            all_layers(self),
            noise_multiplier=optimizer.noise_multiplier,
            clip_norm=optimizer.clip_norm,
            expected_batch_size=optimizer.expected_batch_size,
            num_examples=optimizer.num_examples,
        )

    def serving_endpoint(self, k):
        """The exported endpoint: a `tfdp.models.endpoint.Endpoint`, or None for that of Keras.

        Args:
            k: number of items that a recommender returns, None for its default; others ignore it.
        """
        return None

    def fit(
        self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs
    ):  # fmt: skip
        """As `keras.Model.fit`, after checking that the data are drawn as the optimizer assumes.

        Raises:
            PrivacyError: if n, the sampling probability or the kind of sampling differ from the
                optimizer's, or are unknown.
            BudgetError: if the budget is spent.
        """
        run.refuse_uncompiled(self)
        kwargs.update(batch_size=batch_size, epochs=epochs, verbose=verbose)
        if isinstance(x, tf.data.Dataset):
            kwargs["shuffle"] = False  # the dataset does it; Keras would warn
        claims.claim(self)
        try:
            with explained(self):
                x, callbacks = run.begin(self, x, y, callbacks, kwargs)
                return super().fit(prepared(self, x), y, callbacks=callbacks, **kwargs)
        finally:
            run.end(self)

    def training_batches(self, batches):
        """Batches for `train_on_batch`, charged according to their sampling, as in `fit`.

        ```python
        for x, y, sample_weight in model.training_batches(batches):
            model.train_on_batch(x, y, sample_weight)
        ```

        Args:
            batches: a dataset of `tfdp.data`, or one of `tfdp.data.declare_sampling`. Each of its
                batches may be used for training once.

        Yields:
            The batches of one pass.

        Raises:
            PrivacyError, BudgetError: as for `fit`.
        """
        return run.single_batches(self, batches)

    def train_on_batch(self, x, y=None, sample_weight=None, *args, **kwargs):
        """As `keras.Model.train_on_batch`, on batches of `training_batches`.

        Any other batch has an unknown origin: with a budget it is refused, and without one it costs
        ε = infinity.

        Raises:
            PrivacyError: for a batch of unknown origin with a budget, or the second step on one.
        """
        run.refuse_uncompiled(self)
        own_steps.charge_own_step(self)
        # Here too: the step may have been traced by `fit`, where rows are checked.
        refuse_unchecked_rows(self, host_selection.unpack(x)[1])
        run.refuse_unknown_batch(self, x, y, sample_weight)
        try:
            with explained(self), claims.trained_batch(self):
                if isinstance(self.optimizer, DPOptimizer):
                    preflight.check_rules(self, x, y, sample_weight)
                build_ahead(self, x, y)
                self.weight_origin.begin()
                return super().train_on_batch(x, y, sample_weight, *args, **kwargs)
        finally:
            self.join_histories()  # the step may have built the model

    def train_step(self, data):
        own_steps.reached(self, data)
        if not isinstance(self.optimizer, DPOptimizer):
            resident_models.refuse_training_otherwise(self)
            run.refuse_other_variables(self)
            count_step(self, data)
            self.join_histories()
            with other_reads.noted(self, listed=True):
                return as_results(super().train_step(data), self.distribute_strategy)
        claims.refuse_busy_optimizer(self, self.optimizer)
        with compiling(compiled_by_xla(self)), other_reads.noted(self):
            return self._private_step(data)

    def _private_step(self, data):
        self.optimizer.from_data.require()
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        x, chosen = host_selection.unpack(x)
        self.clipping_plan(x)  # builds the model, if this is its first batch
        self.join_histories()
        with tf.init_scope():
            self.optimizer.charging.look_again()  # a layer may have brought charges along
        self_check.refuse_unchecked(self)
        replicas.refuse_shared_examples(tf.nest.flatten(x)[0])
        self.charge_releases()
        survivors = preselect_rows(self, chosen)
        with resident_models.looked_up(self, chosen):
            if self.optimizer.microbatch_size is None:
                sums = step.sums_of_batch(self, x, y, sample_weight, survivors)
            else:
                sums = step.sums_of_microbatches(self, x, y, sample_weight, survivors)
        variables = trained_variables(self)
        regularization = step.regularization(variables)
        size = self.optimizer.apply_clipped_sums(sums, variables, regularization)
        self.selection_metrics.count_size(size)
        return results_of_steps(self)

    def make_train_function(self, force=False):
        """As Keras'.

        Raises:
            PrivacyError: for steps assigned to the model; if a TPU does not pass the self-check.
        """
        own_steps.charge_own_step(self)
        if isinstance(self.optimizer, DPOptimizer):
            self_check.check_once(self)
        before = self.train_function
        super().make_train_function(force)
        if self.train_function is not before:
            self.train_function = function_of_executions(self, self.train_function)
        return own_steps.known_function(self, self.train_function)

    def test_step(self, data):
        resident_models.refuse_reading(self)
        return super().test_step(data)

    def predict_step(self, data):
        resident_models.refuse_reading(self)
        return super().predict_step(data)

    def gather_results(self, logs, gather):
        # Keras gathers metrics from all replicas only where it knows every name that is logged.
        own = {k: v for k, v in logs.items() if k in self.selection_metrics.results()}
        known = {k: v for k, v in logs.items() if k not in own}
        return {**gather(known), **own}

    def reset_metrics(self):
        super().reset_metrics()
        if "selection_metrics" in vars(self):
            self.selection_metrics.reset()

    @property
    def losses(self):
        return [] if penalties.are_apart() else super().losses

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Losses of shape (B,) in training under a `DPOptimizer`, else their mean.

        Weight penalties are included. Under a `DPOptimizer` they are only displayed, because their
        gradients depend on no example and are added after the noise. On several replicas, a mean is
        this replica's share.
        """
        of_weights = self.losses
        with penalties.apart():  # Keras would stack them with the (B,) losses
            losses = super().compute_loss(x, y, y_pred, sample_weight, training)
        penalty = tf.add_n(of_weights) if of_weights else 0.0
        if isinstance(self.optimizer, DPOptimizer):
            if training:
                return losses + penalty
            losses = share_of_mean(losses, sample_weight)
        count = self.distribute_strategy.num_replicas_in_sync
        if not training and count > 1:
            # Keras weighs what replicas show by how many rows each of them has.
            rows = tf.cast(preflight.batch_size_of(x), losses.dtype)
            losses *= tf.math.divide_no_nan(of_all_replicas(rows), count * rows)
        return losses + penalty / count

    def clipping_plan(self, x):
        """The plan for inputs of this structure; made when a step is traced."""
        ensure_built(self, x)
        key = (
            tuple((t.dtype, tuple(t.shape[1:])) for t in tf.nest.flatten(x)),
            tuple(id(v) for v in trained_variables(self)),
        )
        if key not in self._plans:
            with tf.init_scope():
                self._plans[key] = plan = make_clipping_plan(self, x)
            refusals.warn_of_plan(plan)
        return self._plans[key]

    def get_compile_config(self):
        if not self.compiled:
            return {}
        return {
            k: keras.saving.serialize_keras_object(v) for k, v in self._compile_arguments.items()
        }

    def compile_from_config(self, config):
        self.compile(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})
        if self.built and isinstance(self.optimizer, keras.optimizers.Optimizer):
            self.optimizer.build(trained_variables(self))
