"""The optimizer that makes a Keras optimizer private."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdp import _validate
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.charges.sampling import checked_period
from tfdp.clipping.losses import REDUCTIONS
from tfdp.data.sampling.periods import Period
from tfdp.errors import PrivacyError
from tfdp.fixed_settings import FixedSettings
from tfdp.noise import NoiseSource
from tfdp.optimizers import arguments, from_data, logical_step, saved_state
from tfdp.optimizers.bands import BandedInverse, BandedMatrix
from tfdp.optimizers.charging import Charging
from tfdp.optimizers.gradient_scales import bounds_of, checked_scales
from tfdp.optimizers.noise_correlation import chained_tables, checked_correlation
from tfdp.optimizers.rows.row_optimizer import RowOptimizer
from tfdp.optimizers.run_charging import HistoryState
from tfdp.optimizers.sparse_training import SparseTraining
from tfdp.runtime.external_table import is_external, vector_tables
from tfdp.selection.row_selection import RowSelection

# Arguments that are kept, and saved, as they are.
_PLAIN = (
    "num_examples", "expected_batch_size", "steps", "clip_norm", "clipping", "layer_shares",
    "gradient_scales", "microbatch_size", "max_records_per_unit", "num_records",
    "per_example_reduction", "seed",
)  # fmt: skip


@keras.saving.register_keras_serializable(package="tfdp")
class DPOptimizer(FixedSettings, keras.optimizers.Optimizer):
    """Differentially private training with any Keras optimizer.

    Each logical step passes to the wrapped optimizer (MATH.md section 1)

        G = ( Σ_i c_i·g_i + N(0, (noise_multiplier·clip_norm)²·I) ) / expected_batch_size

    where g_i is the gradient of example i's own loss. The clipping happens in the model
    (`tfdp.make_private`, `tfdp.models.DPModel`); in any other model this optimizer raises at the
    first step. Weight regularizers are added after the noise; weight decay, momentum, schedules
    and everything else of the wrapped optimizer only see the noisy G.

    Formal guarantees: with batches from `tfdp.data.poisson_batches`, `steps` steps are (ε,
    δ)-differentially private for adding or removing one example, with ε from the ledger.

    Args:
        optimizer: a `keras.optimizers.Optimizer`.
        budget: `tfdp.PrivacyBudget`; the noise multiplier is calibrated so that `steps` steps,
            together with everything else charged to the model, meet it. After `steps` steps,
            training uses no more examples.
        noise_multiplier: standard deviation of the noise as a multiple of `clip_norm`. Exactly
            one of `budget` and `noise_multiplier` must be given.
        num_examples: n, the number of training records (or of persons, if they are the unit);
            public. `None`: as in the batches of the first `fit`, which then also determine
            `max_records_per_unit`, `num_records` and `period`.
        expected_batch_size: B̄, the divisor, which is n (or `num_records`) times the sampling
            probability. `None`: as in the batches of the first `fit`.
        steps: total number of steps. `None`, with a budget: all epochs of the first `fit`, after
            which the budget is spent.
        clip_norm: C, the largest l2 norm of one example's contribution.
        clipping: "flat", "automatic", "normalized" or "per_layer".
        layer_shares: with "per_layer", {name of a layer: its share of C²}; the other layers share
            the rest equally. `None`: equal shares.
        gradient_scales: {end of the path of a variable, as "dense/kernel": s}, public numbers from
            1e-6 to 1e6: the gradient of each example is multiplied by s before it is clipped, and
            the noisy sum is divided by s, which leaves noise of σ·C/s. `None`: 1 for all. The
            advice of `fit` and `tfdp.clipping.per_example_gradient_norms` ignore scales.
        selection: `tfdp.selection.AdaFEST` or `FEST`: selects the rows of the model's
            `tfdp.layers.SparseEmbedding` tables that a step trains and noises; other rows do not
            change. `None` noises every row of every table, at the cost of dense gradients.
        embedding_optimizer: `RowSGD`, `RowAdagrad` or `LazyAdam` for those tables; needed with
            `selection`. `optimizer` then trains everything else.
        noise_correlation: None for independent noise. "auto" or a `BandedInverse`, on batches of
            `tfdp.data.stream_batches`, or a `BandedMatrix`, on batches of
            `tfdp.data.cyclic_poisson_batches`: later steps cancel a part of the earlier noise.
        microbatch_size: number of examples processed at once inside a step; bounds memory and
            changes nothing else. `None` processes the whole batch at once. With `AdaFEST` it needs
            rows that come with the batches, from `tfdp.distribution.select_on_host`.
        max_records_per_unit: k, with batches of persons (`privacy_ids=` of the samplers): g_i is
            the sum over at most k records of person i, and all counts are of persons. `None`: each
            record is a unit of privacy.
        num_records: N, with batches of single records of persons (`sampling_unit="record"`): g_i is
            the gradient of one record, of which a person has at most k; public.
            `expected_batch_size` and `microbatch_size` then count records, and `num_examples` still
            counts persons.
        period: the `tfdp.data.Period` of the batches. Steps cost persons of other periods nothing.
        per_example_reduction: "mean" or "sum" over the positions of one example.
        seed: integer that fixes the noise, for tests only; the statement lists it.

    Raises:
        ValueError: for arguments that are missing, contradictory or out of range.

    Example:

    ```python
    model = tfdp.make_private(keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-3), budget=tfdp.PrivacyBudget(epsilon=3, delta=1e-5)
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(tfdp.data.poisson_batches((x, y), expected_batch_size=100), epochs=3)
    print(model.privacy_statement())
    ```
    """

    fixed = (
        *_PLAIN, "inner_optimizer", "budget", "selection", "embedding_optimizer",
        "noise_correlation", "period",
    )  # fmt: skip

    @arguments.explained
    def __init__(
        self, optimizer: str | dict | keras.Optimizer, *, budget: PrivacyBudget | None = None,
        noise_multiplier: float | None = None, num_examples: int | None = None,
        expected_batch_size: float | None = None, steps: int | None = None, clip_norm: float = 1.0,
        clipping: str = "flat", layer_shares: dict[str, float] | None = None,
        gradient_scales: dict[str, float] | None = None,
        selection: RowSelection | None = None, embedding_optimizer: RowOptimizer | None = None,
        noise_correlation: str | BandedInverse | BandedMatrix | None = None,
        microbatch_size: int | None = None, max_records_per_unit: int | None = None,
        num_records: int | None = None, period: Period | None = None,
        per_example_reduction: str = "mean", seed: int | None = None, name: str | None = None,
    ):  # fmt: skip
        super().__init__(learning_rate=0.0, name=name or "dp_optimizer")
        optimizer = keras.optimizers.get(optimizer)
        arguments.check_optimizer(optimizer)
        arguments.check_amount(budget, noise_multiplier, steps)
        arguments.check_data(
            num_examples, expected_batch_size, max_records_per_unit, num_records, period
        )
        arguments.check_clipping(clip_norm, microbatch_size, max_records_per_unit, num_records)
        self.layer_shares = arguments.checked_layer_shares(clipping, layer_shares)
        self.gradient_scales = checked_scales(gradient_scales)
        _validate.one_of("per_example_reduction", per_example_reduction, REDUCTIONS)
        self._sparse = None
        if selection is not None or embedding_optimizer is not None:
            self._sparse = SparseTraining(selection, embedding_optimizer, microbatch_size)
        if budget is not None and num_examples is not None:
            check_delta(budget.delta, num_examples)
        self.inner_optimizer = optimizer
        self.budget = budget
        self.num_examples = None if num_examples is None else int(num_examples)
        self.expected_batch_size = arguments.plain_number(expected_batch_size)
        self.steps = None if steps is None else int(steps)
        self.clip_norm = float(clip_norm)
        self.clipping = clipping
        self.selection = selection
        self.embedding_optimizer = embedding_optimizer
        self.noise_correlation = checked_correlation(noise_correlation, selection)
        self.microbatch_size = microbatch_size
        self.max_records_per_unit = max_records_per_unit
        self.num_records = None if num_records is None else int(num_records)
        self.period = None if period is None else checked_period(period)
        self.per_example_reduction = per_example_reduction
        self.seed = seed
        self.from_data = from_data.FromData(self)
        self._noise, self._chain = NoiseSource(seed), None
        if self.noise_correlation is not None:
            self._chain = self.noise_correlation.source(seed)
        self._charging = Charging(self, noise_multiplier)
        # tf.train.Checkpoint keeps Python state of this kind.
        self.history_state = HistoryState(self._charging)

    @property
    def sampling_probability(self):
        """q = expected_batch_size / num_examples; of single records, / num_records."""
        self.from_data.require()
        return self._charging.poisson().sampling_probability

    @property
    def rows_per_unit(self):
        """The number of consecutive rows of one person, clipped together; None for one."""
        return self.max_records_per_unit if self.num_records is None else None

    @property
    def noise_multiplier(self):
        """σ: the noise's standard deviation is σ·clip_norm."""
        self.from_data.require()
        return self._charging.noise_multiplier

    @property
    def ledger(self):
        """Everything charged so far, as a `tfdp.accounting.Ledger`."""
        self._charging.refresh()
        return self._charging.history.ledger().closed()

    @property
    def charging(self):
        """The `Charging`: what a step costs, and how many there may be."""
        return self._charging

    @property
    def steps_taken(self):
        """Steps of private training charged to the model's weights so far."""
        return self._charging.steps

    @property
    def steps_left(self):
        """Steps that the budget still allows; None without a budget."""
        return self._charging.remaining

    def epsilon(self, delta=None, accountant=None):
        """ε spent so far, at `delta` (default: the budget's, or 1/(10·n)).

        The accountant is "pld", "rdp", or None: PLD, or RDP where PLD has no rule.
        """
        return self.ledger.epsilon(self.default_delta if delta is None else delta, accountant)

    def epsilon_after(self, steps, delta=None):
        """ε if `steps` more steps are run: as in this `fit`, or else on Poisson batches."""
        delta = self.default_delta if delta is None else delta
        return self._charging.epsilon_after(steps, delta)

    @property
    def default_delta(self):
        """Default δ: the budget's, or 1/(10·n) of the largest data set used for training."""
        if self.budget:
            return self.budget.delta
        n = max(self.num_examples or 0, self.ledger.num_examples or 0)
        if not n:
            self.from_data.require()
        return 0.1 / n

    def build(self, variables):
        """Creates the wrapped optimizer's variables and the step counter."""
        if self.built:
            return
        dense = own = [v for v in variables if not is_external(v)]
        tables = []
        if self._sparse is not None:
            tables, dense = self._sparse.split(variables)
            dense = [v for v in dense if not is_external(v)]
            self.embedding_optimizer.build([t for t in tables if not is_external(t)])
        if self._chain is not None:
            chained_tables(list(vector_tables(variables).values()))  # refuses any
            self._chain.build(chained_tables(tables))
        self.inner_optimizer.build(dense)
        super().build(own)

    @property
    def variables(self):
        rows = [] if self._sparse is None else self.embedding_optimizer.variables
        return self._variables + self.inner_optimizer.variables + rows

    @property
    def noise_source(self):
        """The `NoiseSource` of this optimizer's noise, except for the noise of a chain."""
        return self._noise

    @property
    def noise_chain(self):
        """The `CorrelatedSource` of noise that is correlated over steps, or None."""
        return self._chain

    @property
    def hidden_variables(self):
        """Variables that a step reads and no checkpoint stores: noise key, counters, limit, σ·C."""
        chain = [] if self._chain is None else self._chain.variables
        return [*self._noise.variables, *chain, *self._charging.variables]

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    def refresh_entropy(self, strategy=None):
        """Takes new noise keys from the operating system; as `NoiseSource.rekey`."""
        self._noise.rekey(strategy)

    @property
    def privacy_releases(self):
        """`LedgerEntry` list of what the selection released before training."""
        return [] if self.selection is None else list(self.selection.privacy_releases)

    def select_rows(self, activated, variables, example_mask, static=False):
        """Selects the rows of sparse tables that this step may update; charged with the step.

        Args:
            activated: dict from the position among the variables to the `RowGradients` of its
                table.
            variables: the trainable variables.
            example_mask: (B,) bool, false for padding.
            static: whether XLA compiles the step, so that rows need a fixed size.

        Returns:
            As `SparseTraining.select`.
        """
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        sigma = self._charging.noise_stddev() / self.clip_norm
        bounds = bounds_of(variables, self.gradient_scales, self.clip_norm)
        return self._sparse.select(
            activated, variables, example_mask, sigma, bounds, self._noise, static
        )

    def apply(self, grads, trainable_variables=None):
        raise PrivacyError(
            "A DPOptimizer received gradients that are not clipped per example, so the training "
            "run would not be private. Call `fit` of `private = tfdp.make_private(model)`, or call "
            "`private.train_on_batch` on the batches that `private.training_batches(…)` yields."
        )

    def apply_clipped_sums(self, sums, variables, regularization):
        """One logical step: adds noise once, divides, charges, and calls the wrapped optimizer.

        Args:
            sums: for each variable the sum of clipped gradients, over all micro-batches of this
                replica: a tensor, tf.IndexedSlices, `SurvivorSums` of selected rows, or None for a
                variable that the model does not use.
            variables: the variables, as `tfdp.clipping.recording.trained_variables`.
            regularization: for each variable the gradient of its regularizer, or None.

        Returns:
            Scalar float32: |S|·d, the number of table entries that received noise.
        """
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        return logical_step.run(self, sums, variables, regularization)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def save_own_variables(self, store):
        saved_state.save(store, self._variables, self._charging)

    def load_own_variables(self, store):
        saved_state.load(store, self._variables, self._charging)

    def get_config(self):
        return saved_state.config_of(self, _PLAIN)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**saved_state.arguments_of(config, custom_objects))
