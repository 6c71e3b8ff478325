"""Ways to break the library, each by a function that is called before anything else.

`broken_trainers.py` shows what notices them.
"""

import functools


def no_noise():
    import tensorflow as tf

    from tfdp.noise import NoiseSource

    NoiseSource.release = lambda self, tensors, *a, **k: [tf.identity(t) for t in tensors]


def half_of_the_noise():
    from tfdp.noise.grid import Grid

    true = Grid.__init__

    def init(self, stddev, *args, **kwargs):
        true(self, 0.5 * stddev, *args, **kwargs)

    Grid.__init__ = init


def noise_reused():
    import tensorflow as tf

    from tfdp.noise import NoiseSource

    def stands_still(self, size):
        words = (self._key.read_value(), self._counter.read_value())
        return tuple(tf.bitcast(w, tf.uint64) for w in words)

    NoiseSource._advance = stands_still


def no_clipping():
    import tensorflow as tf

    from tfdp.clipping.sums import factors

    factors._flat = lambda squared_norm, bound: tf.ones_like(squared_norm)


def clipped_to_twice_the_norm():
    from tfdp.clipping.sums import factors

    true = factors._flat
    factors._flat = lambda squared_norm, bound: true(squared_norm, 2 * bound)


def clipped_by_each_layer_alone():
    from tfdp.clipping import engine
    from tfdp.clipping.sums import factors

    true = factors.clip_factors

    def alone(squared_norms, example_mask, clip_norm, clipping):
        found = [true([n], example_mask, clip_norm, clipping) for n in squared_norms]
        return [f for (f,), _ in found], found[0][1]

    engine.clip_factors = alone


def tied_tables_clipped_by_branch():
    from tfdp.clipping.sums import forms

    def squared_norm(self):
        parts = (self.rows.squared_norm(), self.outer.squared_norm())
        return tuple(a + b for a, b in zip(*parts, strict=True))

    forms.Tied.squared_norm = squared_norm


def padding_counted():
    import tensorflow as tf

    from tfdp.selection import contribution_map

    true = contribution_map.activations
    contribution_map.activations = lambda rows, example_mask, norm: true(
        rows, tf.ones_like(example_mask), norm
    )


def not_a_number_let_through():
    from tfdp.clipping.sums import gradients

    gradients.only_finite = lambda finite, given: [part for one in given for part in one.parts]


def shuffled_called_poisson():
    from tfdp.accounting.charges.sampling_rules import RULES

    RULES["shuffled"] = RULES["poisson"]


def steps_not_charged():
    from tfdp.optimizers.charging import Charging

    Charging.charge_step = lambda self: None


def releases_not_charged():
    from tfdp.accounting.charges import participant
    from tfdp.training import charged_model

    participant.releases_of = lambda participants: []
    charged_model.participant.releases_of = participant.releases_of


def cut_batches_not_charged():
    from tfdp.accounting.charges.sampling import Sampling

    Sampling.overflow_probability = property(lambda self: 0.0)


def selection_on_raw_counts():
    import tensorflow as tf

    from tfdp.selection import contribution_map

    contribution_map.draws.standard_normal = lambda source, count: tf.zeros(
        tf.reshape(count, [1]), tf.float64
    )


def noise_of_the_map_forgotten():
    from tfdp.selection.contribution_map import ContributionMap

    true = ContributionMap.survivors
    ContributionMap.survivors = lambda self, threshold, noise_multiplier, source: true(
        self, threshold, 1e-9, source
    )


def untouched_rows_never_survive():
    import tensorflow as tf

    from tfdp.noise import draws

    draws.each_with_probability = lambda source, probability, bound: tf.zeros([0], tf.int64)


def noised_only_where_touched():
    import tensorflow as tf

    from tfdp.optimizers import logical_step

    true = logical_step.release_rows

    def release_rows(sums, grid, source):
        noisy = true(sums, grid, source)
        return [
            tf.where(tf.reduce_any(s != 0, axis=1, keepdims=True), n, s)
            for s, n in zip(sums, noisy, strict=True)
        ]

    logical_step.release_rows = release_rows


def mixtures_without_clipping():
    import numpy as np

    from tfdp.data.releases import representations

    representations._clipped = lambda h, clip_norm: h.astype(np.float64)


def forward_noise_without_clipping():
    from tfdp.layers import dp_forward_noise

    dp_forward_noise.clip_examples = lambda inputs, clip_norm, mask: inputs


def top_k_without_noise():
    from tfdp.selection import top_k

    top_k._noisy = lambda counts, *others: counts


def seeds_by_default():
    from tfdp.noise import NoiseSource

    true = NoiseSource.__init__
    NoiseSource.__init__ = lambda self, seed=None: true(self, 0 if seed is None else seed)


def charges_dropped_by_arithmetic():
    from tfdp.data.provenance import origins

    origins._carrying = lambda made, origin: made


def charges_of_scores_dropped():
    import importlib

    tune = importlib.import_module("tfdp.tuning.tune")  # not the function of that name

    class Origin(tune.Origin):
        of = classmethod(lambda cls, data: cls())

    tune.Origin = Origin


def details_override_accounting():
    from tfdp.accounting.charges import ledger
    from tfdp.training import charged_model

    for module in (ledger, charged_model):
        module.described = lambda details, num_examples=None: details


def draws_declared_anew():
    from tfdp.data.provenance import dataset_tags

    dataset_tags.refuse_drawn = lambda name, dataset, way_out: None


def two_models_in_one_run():
    from tfdp.training import claims

    claims.refuse_busy_optimizer = lambda model, optimizer: None


def files_numbered_by_the_process():
    from tfdp._compat import saved_model

    saved_model.renumber = lambda meta_graph: None


def runs_named_one_after_another():
    from tfdp.tuning.alike_runs import AlikeRuns

    AlikeRuns.begin = lambda self: None


def chains_not_charged_again():
    from tfdp.accounting.charges.history import ChargeHistory

    true = ChargeHistory.start

    def start(self, mechanism, name=None):
        chains = [n for n, (m, _) in self._root()._runs.items()
                  if getattr(m, "correlation", None) is not None]  # fmt: skip
        return chains[-1] if chains else true(self, mechanism, name)

    ChargeHistory.start = start


def steps_of_a_chain_draw_alike():
    import tensorflow as tf

    from tfdp.noise import ChainSource

    true = ChainSource._next

    def stands_still(self):
        _, coefficients = true(self)
        return tf.constant(3, tf.int64), coefficients

    ChainSource._next = stands_still


def sensitivity_of_independent_noise():
    from tfdp.accounting import correlated_noise

    correlated_noise.Correlation.sensitivity = property(lambda self: 1.0)


def participations_not_counted():
    from tfdp.accounting import Sampling

    Sampling.participations = property(lambda self: (1, 1))


def separation_forgotten():
    from tfdp.data.samplers import stream
    from tfdp.data.sampling import separated

    true = separated.separated

    def next_step(ids, batch_size, max_participations, min_separation):
        return true(ids, batch_size, max_participations, 1)

    stream.separated = next_step


def records_of_a_stream_twice():
    from tfdp.data.sampling import kept_order

    kept_order.refuse_more_passes = lambda sampling, epochs, steps_per_epoch: None


def records_of_a_stream_in_all_steps():
    import itertools

    from tfdp.data.samplers import stream

    true = stream.dataset_of_rows

    def first_batch_again(records, sampling, one_pass):
        return true(
            records, sampling,
            lambda: itertools.repeat(next(iter(one_pass())), sampling.steps_per_epoch),
        )  # fmt: skip

    stream.dataset_of_rows = first_batch_again


def keys_of_chains_saved():
    from tfdp.optimizers import DPOptimizer, saved_state

    true, save = DPOptimizer.variables.fget, saved_state.save

    def hidden(self):
        return [] if self.noise_chain is None else self.noise_chain.variables

    DPOptimizer.variables = property(lambda self: true(self) + hidden(self))
    DPOptimizer.save_own_variables = lambda self, store: save(
        store, self._variables + hidden(self), self.charging
    )


def turns_shared_by_tables():
    import tensorflow as tf

    from tfdp.noise import chain_source

    true = chain_source._compiled_rows

    def one_table(bands, dtype):
        run = true(bands, dtype)

        def first_table(values, public, rows, turns, table, *arguments):
            first = tf.constant(1 << 48, table.dtype)
            return run(values, public, rows, turns, first, *arguments)

        return first_table

    chain_source._compiled_rows = functools.cache(one_table)


def sensitivity_of_one_band():
    from tfdp.accounting import banded_noise

    banded_noise.BandedCorrelation.sensitivity = property(lambda self: 1.0)


def bands_of_sampler_and_noise_differ():
    from tfdp.accounting.banded_noise import BandedCorrelation
    from tfdp.optimizers import BandedMatrix

    BandedMatrix.check_batches = lambda self, sampling: None
    BandedCorrelation.check = lambda self, sampling, mechanism: None


def parts_drawn_anew_in_each_round():
    from tfdp.data.samplers import cyclic_poisson

    class Anew(list):
        """Parts that are drawn again as soon as the first one is asked for."""

        def __init__(self, arguments):
            super().__init__(true(*arguments))
            self._arguments = arguments

        def __getitem__(self, place):
            if place == 0:
                self[:] = true(*self._arguments)
            return super().__getitem__(place)

    true = cyclic_poisson._parts
    cyclic_poisson._parts = lambda *arguments: Anew(arguments)
