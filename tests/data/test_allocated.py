"""Allocated epochs: each record once, in a random step. False alarms: 1e-6 for each test."""

import keras
import numpy as np
import pytest
from numbered_records import FALSE_ALARM, numbered
from scipy import stats

import tfdp
from tfdp.data.samplers.allocated import draw_allocation
from tfdp.errors import BudgetError, PrivacyError


def steps_of(batches):
    """(n,) the step of each record in one pass; every record must come exactly once."""
    n = tfdp.data.sampling_of(batches).num_examples
    found = np.full(n, -1)
    for step, (x, y, weight) in enumerate(batches.as_numpy_iterator()):
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(weight, (x > 0).astype(np.float32))
        records = x[x > 0] - 1
        assert (found[records] == -1).all()
        assert len(np.unique(records)) == len(records)
        found[records] = step
    assert (found >= 0).all()
    return found


def test_every_record_comes_exactly_once_in_every_epoch_and_elsewhere_in_the_next():
    batches = tfdp.data.allocated_epochs(numbered(203), 7)
    assert batches.cardinality() == 7
    first, second = steps_of(batches), steps_of(batches)
    # Of 203 records 29 are expected in the same step again.
    assert stats.binomtest(int((first == second).sum()), 203, 1 / 7).pvalue > FALSE_ALARM


@pytest.fixture(scope="module")
def allocations():
    """(4000, 30) steps of 30 records in 4000 epochs of 5 steps."""
    rng = np.random.default_rng()
    found = np.empty((4000, 30), int)
    for row in found:
        for step, chosen in enumerate(draw_allocation(rng, 30, 5, 30)):
            row[chosen] = step
    return found


def test_each_record_falls_into_each_step_with_the_same_probability(allocations):
    counts = np.stack([(allocations == step).sum(0) for step in range(5)])  # (5, 30)
    expected = len(allocations) / 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, 4 * 30) < 1 - FALSE_ALARM / 2


def test_records_fall_independently_of_each_other(allocations):
    pairs = allocations[:, :15] * 5 + allocations[:, 15:]  # 15 pairs, of 25 outcomes each
    counts = np.stack([(pairs == outcome).sum(0) for outcome in range(25)])
    expected = len(allocations) / 25
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, 24 * 15) < 1 - FALSE_ALARM / 2


def test_sizes_of_steps_are_those_of_independent_records(allocations):
    sizes = (allocations == 2).sum(1)
    edges = np.array([-1, 2, 3, 4, 5, 6, 7, 8, 10, 30])
    expected = np.diff(stats.binom.cdf(edges, 30, 0.2)) * len(sizes)
    observed = np.histogram(sizes, edges + 0.5)[0]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_a_step_that_is_too_full_keeps_a_uniform_subset_and_is_charged():
    rng, counts = np.random.default_rng(), np.zeros(6)
    for _ in range(5_000):
        for chosen in draw_allocation(rng, 6, 2, 3):
            assert len(set(chosen.tolist())) == len(chosen) <= 3
            counts[chosen] += 1
    assert counts.sum() < 6 * 5_000
    # Less than binomial: at most one of a record in an epoch; so the test is on the safe side.
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    batches = tfdp.data.allocated_epochs(numbered(10), 2, max_batch_size=6)
    sampling = tfdp.data.sampling_of(batches)
    np.testing.assert_allclose(sampling.overflow_probability, 2 * stats.binom.sf(6, 11, 0.5))
    assert all(x.shape == (6,) for x, _, _ in batches.as_numpy_iterator())


def test_the_default_capacity_cuts_nothing_and_seeds_are_marked():
    sampling = tfdp.data.sampling_of(tfdp.data.allocated_epochs(numbered(6040), 12))
    assert sampling.kind == "allocated"
    assert sampling.max_batch_size < 6040
    assert sampling.overflow_probability <= 12e-20
    assert sampling.steps_per_epoch == sampling.allocation_steps == 12
    assert not sampling.seeded
    seeded = [tfdp.data.allocated_epochs(numbered(40), 4, seed=1) for _ in range(2)]
    assert tfdp.data.sampling_of(seeded[0]).seeded
    epochs = [steps_of(seeded[0]), steps_of(seeded[0])]
    assert (epochs[0] != epochs[1]).any()
    np.testing.assert_array_equal(steps_of(seeded[1]), epochs[0])


def test_persons_fall_into_one_step_with_their_records():
    ids = np.repeat(np.arange(20), 3)
    batches = tfdp.data.allocated_epochs(
        numbered(60), 4, privacy_ids=ids, max_records_per_unit=2, max_batch_size=20
    )
    assert tfdp.data.sampling_of(batches).num_examples == 20
    seen = [set(ids[x[x > 0] - 1]) for x, _, _ in batches.as_numpy_iterator()]
    assert sorted(person for one in seen for person in one) == list(range(20))


@pytest.mark.parametrize("steps", [0, 2.5, None])
def test_impossible_numbers_of_steps_are_refused(steps):
    with pytest.raises(ValueError, match="Argument `steps_per_epoch` must be"):
        tfdp.data.allocated_epochs(numbered(10), steps)
    with pytest.raises(ValueError, match="Argument `max_batch_size` must be"):
        tfdp.data.allocated_epochs(numbered(10), 2, max_batch_size=4)


def stated(model):
    statement = model.privacy_statement(delta=0.01)
    assert model.optimizer.epsilon(0.01) == statement.epsilon
    return statement


def test_optimizer_meter_budget_and_statement_state_one_epsilon(small):
    batches = tfdp.data.allocated_epochs(small.data(), 4)
    model = small.model(noise_multiplier=2.0)
    meter = tfdp.callbacks.PrivacyMeter(delta=0.01)
    logs = model.fit(batches, epochs=2, verbose=0, callbacks=[meter]).history["epsilon"]
    statement = stated(model)
    event = tfdp.accounting.events.random_allocation.RandomAllocationGaussianDpEvent(4, 2.0)
    alone = [tfdp.accounting.epsilon(compose_epochs(event, e), 0.01) for e in (1, 2)]
    assert statement.epsilon == pytest.approx(alone[-1], rel=1e-6)
    np.testing.assert_allclose(logs, alone, atol=1e-4)
    assert (statement.steps, statement.adjacency) == (8, "add_or_remove_one")
    assert statement.assumed_epsilon is None
    assert "each record in one of the 4 steps of an epoch" in str(statement).replace("\n  ", " ")
    # Saved and loaded, the history states the same.
    again = tfdp.accounting.Ledger.from_json(model.optimizer.ledger.to_json())
    assert again.epsilon(0.01) == statement.epsilon


def compose_epochs(event, epochs):
    return tfdp.accounting.events.composition.compose([(event, epochs)])


@pytest.mark.thorough
def test_an_epoch_that_ends_early_costs_a_whole_one(small):
    batches = tfdp.data.allocated_epochs(small.data(), 4)
    event = tfdp.accounting.events.random_allocation.RandomAllocationGaussianDpEvent(4, 2.0)
    whole = tfdp.accounting.epsilon(event, 0.01)
    model = small.model(noise_multiplier=2.0)
    model.fit(batches.take(1), epochs=1, verbose=0)
    assert stated(model).epsilon == pytest.approx(whole)
    model.fit(batches, epochs=1, steps_per_epoch=3, verbose=0)  # goes on: another epoch
    two = stated(model)
    assert two.steps == 4
    assert two.epsilon > 1.2 * whole
    model = small.model(noise_multiplier=2.0)
    taken = model.training_batches(batches)
    model.train_on_batch(*next(taken))
    taken.close()
    assert stated(model).epsilon == pytest.approx(whole)


@pytest.mark.thorough
def test_a_budget_is_met_and_a_second_fit_in_its_middle_is_refused(small):
    batches = tfdp.data.allocated_epochs(small.data(), 4)
    model = small.model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=12)
    model.fit(batches, epochs=10, verbose=0)
    statement = model.privacy_statement()
    assert statement.steps == 12
    assert 0.99 < statement.epsilon <= 1.0

    class StopInTheMiddle(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    model = small.model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=12)
    model.fit(batches, epochs=1, verbose=0, callbacks=[StopInTheMiddle()])
    assert model.optimizer.steps_taken == 2
    # The 10 steps that are left begin 3 epochs more: one more than the noise was made for.
    with pytest.raises(BudgetError, match="begins a new pass"):
        model.fit(batches, epochs=3, verbose=0)
    assert model.privacy_statement().epsilon <= 1.0


def test_another_number_of_steps_than_the_optimizer_s_is_refused(small):
    batches = tfdp.data.allocated_epochs(small.data(), 5)
    with pytest.raises(tfdp.errors.PrivacyError, match="expected_batch_size=8"):
        small.model().fit(batches, verbose=0)


def test_repeated_and_cached_epochs_have_no_known_sampling(small):
    batches = tfdp.data.allocated_epochs(small.data(), 4)
    for other in (batches.repeat(2), batches.cache(), batches.skip(1), batches.shuffle(4)):
        assert tfdp.data.sampling_of(other) is None


def sparse_model(selection):
    ids = keras.Input((2,), dtype="int64")
    outputs = keras.layers.Dense(1)(tfdp.layers.SparseEmbedding(30, 3, combiner="sum")(ids))
    model = tfdp.make_private(keras.Model(ids, outputs))
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), selection=selection, num_examples=40, expected_batch_size=10,
        noise_multiplier=2.0, embedding_optimizer=tfdp.optimizers.RowSGD(1.0),
    )  # fmt: skip
    model.compile(optimizer, loss="mse", run_eagerly=True)
    return model


def test_adafest_s_steps_are_one_gaussian_and_exponential_selection_is_refused():
    ids = np.random.default_rng(0).integers(1, 30, (40, 2))
    batches = tfdp.data.allocated_epochs((ids, np.ones((40, 1), np.float32)), 4)
    model = sparse_model(tfdp.selection.AdaFEST(1.0))
    model.fit(batches, epochs=1, verbose=0)
    (entry,) = model.optimizer.ledger.entries
    allocation = tfdp.accounting.events.random_allocation.RandomAllocationGaussianDpEvent(4, 2.0)
    assert (entry.event, entry.count) == (allocation, 1)
    model = sparse_model(tfdp.selection.ExponentialSelection(2))
    with pytest.raises(ValueError, match="For this selection use `tfdp.data.poisson_batch"):
        model.fit(batches, epochs=1, verbose=0)
    assert model.optimizer.steps_taken == 0


def test_short_keras_epochs_go_on_in_the_same_pass(small, monkeypatch):
    # What is charged, ⌈steps / T⌉ epochs, is true if Keras begins no pass before one has ended.
    read = []

    def counted(*args):
        read.append(0)
        for chosen in draw_allocation(*args):
            read[-1] += 1
            yield chosen

    monkeypatch.setattr("tfdp.data.samplers.allocated.draw_allocation", counted)
    batches = tfdp.data.allocated_epochs(small.data(), 20)
    model = small.model(noise_multiplier=2.0, expected_batch_size=2)
    model.fit(batches, epochs=4, steps_per_epoch=5, verbose=0)
    assert model.optimizer.steps_taken == 20
    assert len(read) <= 2 and read[-1] == 20, read  # the check before training reads some batches
    (entry,) = model.optimizer.ledger.entries
    assert entry.count == 1


class _ShortEpochs(keras.callbacks.Callback):
    """A common way to see fewer batches of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = False


@pytest.mark.parametrize("sampler", ["allocated", "shuffled"])
def test_passes_that_a_callback_cuts_short_are_charged_as_passes(small, sampler):
    batches = {
        "allocated": lambda: tfdp.data.allocated_epochs(small.data(), 4),
        "shuffled": lambda: tfdp.data.shuffled_epochs(small.data(), 10),
    }[sampler]()
    model = small.model(compile_kwargs={"jit_compile": False})
    with pytest.raises(PrivacyError, match="stop_training.*take"):
        model.fit(batches, epochs=3, verbose=0, callbacks=[_ShortEpochs()])
    assert model.optimizer.steps_taken == model.ledger.entries[0].count == 1


@pytest.mark.thorough
def test_epochs_of_poisson_batches_may_be_cut_short(small):
    model = small.model(compile_kwargs={"jit_compile": False})
    model.fit(small.poisson(), epochs=3, verbose=0, callbacks=[_ShortEpochs()])
    assert model.optimizer.steps_taken == 3


def test_epochs_know_their_period_and_enter_their_persons():
    periods, given = tfdp.data.DisjointPeriods(), {"max_records_per_unit": 1}
    batches = tfdp.data.allocated_epochs(
        numbered(4), 2, privacy_ids=[1, 2, 3, 4], period=periods.period("one"), **given
    )
    assert tfdp.data.sampling_of(batches).period == (periods.name, "one")
    with pytest.raises(PrivacyError, match="1 of 2 persons"):
        tfdp.data.allocated_epochs(
            numbered(2), 1, privacy_ids=[4, 5], period=periods.period("two"), **given
        )
