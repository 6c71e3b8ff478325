"""Single records train, each clipped by itself; the unit of privacy is a person, and stated so."""

import dp_accounting
import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import EAGER, eager_model
from scipy import stats

import tfdp
from tfdp.accounting import LedgerEntry, Sampling
from tfdp.accounting.charges.mechanisms import PrivateTraining, mechanism_from_dict
from tfdp.accounting.charges.sampling import PERSON
from tfdp.errors import BudgetError, PrivacyError


def records(sizes, features=3, seed=0):
    """(x, y), ids: persons 0, 1, … with so many records."""
    generator = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(ids), features)).astype(np.float32)
    return (x, generator.integers(0, 2, len(ids)).astype(np.int32)), ids


def drawn(data, ids, k, size, **kwargs):
    return tfdp.data.poisson_batches(
        data, size, privacy_ids=ids, max_records_per_unit=k, sampling_unit="record", **kwargs
    )


def compiled(batches, base=None, **kwargs):
    sampling = tfdp.data.sampling_of(batches)
    settings = {
        "num_examples": sampling.num_examples, "num_records": sampling.num_records,
        "expected_batch_size": sampling.expected_batch_size,
        "max_records_per_unit": sampling.max_records_per_unit,
    }  # fmt: skip
    return eager_model(base, **settings | kwargs)


def moved(model, batches):
    before = model.get_weights()
    model.fit(batches, verbose=0)
    return [a - b for a, b in zip(before, model.get_weights(), strict=True)]


def by_hand(k, q, sigma, steps, delta):
    """ε by dp_accounting alone."""
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        sigma, list(range(k + 1)), list(stats.binom.pmf(np.arange(k + 1), k, q))
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=5e-3)
    return accountant.compose(event, steps).get_epsilon(delta)


@pytest.mark.parametrize("how", [{}, {"microbatch_size": 5}], ids=["whole", "parts"])
def test_each_record_is_clipped_by_itself(small, how):
    data, ids = records([1, 3, 2, 4, 1])
    batches = drawn(data, ids, 4, 11, steps_per_epoch=1)  # q = 1: all of them
    base = small.base()
    rows = [
        [g.numpy() for g in gradients_of(base, data[0][i : i + 1], data[1][i : i + 1])]
        for i in range(11)
    ]
    parts = [np.stack(p).astype(np.float64) for p in zip(*rows, strict=True)]
    norms = np.sqrt(sum(np.square(g).reshape(11, -1).sum(1) for g in parts))
    clip_norm = float(np.median(norms))
    factors = np.minimum(1, clip_norm / norms)
    assert (factors < 1).any() and (factors == 1).any()
    model = compiled(
        batches,
        base,
        noise_multiplier=0.0,
        clip_norm=clip_norm,
        **how,
    )
    for change, g in zip(moved(model, batches), parts, strict=True):
        np.testing.assert_allclose(change, np.tensordot(factors, g, 1) / 11, atol=1e-6)


def gradients_of(base, x, y):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        value = loss(y, base(x))
    return tape.gradient(value, base.trainable_variables)


SIZES = [([1, 3],), ([1, 2],), ([1, 1000],)]


@pytest.mark.thorough
@pytest.mark.parametrize(("sizes",), slow.cases(SIZES, slow=SIZES[:1]))
def test_a_person_moves_the_sum_by_k_clip_norms_at_most(small, sizes):
    """All records of the second person drawn, against none of them; all of them alike."""
    k, clip_norm, sums = 3, 0.1, []
    for here in (sizes, sizes[:1]):
        ids = np.repeat(np.arange(len(here)), here)
        x = np.full((len(ids), 3), 5.0, np.float32)
        base = small.base()
        base.set_weights([np.zeros_like(w) for w in base.get_weights()])
        kept = sum(min(k, size) for size in here)
        batches = drawn((x, np.zeros(len(ids), np.int32)), ids, k, kept, steps_per_epoch=1)
        model = compiled(batches, base, noise_multiplier=0.0, clip_norm=clip_norm)
        sums.append([kept * change for change in moved(model, batches)])
    difference = np.sqrt(
        sum(np.sum(np.square(a - b, dtype=float)) for a, b in zip(*sums, strict=True))
    )
    expected = min(k, sizes[1]) * clip_norm
    assert expected * (1 - 1e-4) < difference <= expected * (1 + 1e-4)


@pytest.mark.thorough
def test_statement_meter_and_budget_speak_of_persons(small):
    data, ids = records([5] * 100 + [1] * 200)
    batches = drawn(data, ids, 3, 60, steps_per_epoch=2)
    budget = tfdp.PrivacyBudget(2.0, 2e-3)  # above 1/n of 500 records
    model = eager_model(num_examples=None, expected_batch_size=None, budget=budget)
    meter = tfdp.callbacks.PrivacyMeter()
    history = model.fit(batches, epochs=2, verbose=0, callbacks=[meter]).history
    optimizer, statement = model.optimizer, model.privacy_statement()
    assert (optimizer.num_examples, optimizer.num_records) == (300, 500)
    assert optimizer.max_records_per_unit == 3 and optimizer.sampling_probability == 60 / 500
    steps = 4
    assert statement.unit == PERSON and (statement.num_examples, statement.steps) == (300, steps)
    assert (
        1.99 < statement.epsilon <= 2.0 and abs(history["epsilon"][-1] - statement.epsilon) < 1e-3
    )
    assert optimizer.epsilon() == statement.epsilon == model.ledger.epsilon(2e-3)
    expected = by_hand(3, 60 / 500, optimizer.noise_multiplier, steps, 2e-3)
    assert statement.epsilon == pytest.approx(expected, rel=1e-4)
    (entry,) = model.ledger.entries
    assert entry.event == dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        optimizer.noise_multiplier, (0.0, 1.0, 2.0, 3.0), entry.event.sampling_probs
    )
    text = " ".join(str(statement).split())
    assert f"Unit of privacy: {PERSON}, of 300." in text
    assert "each record separately with probability 0.12 in each of 4 steps" in text
    assert "60 of 500 records expected" in text
    assert "At most 3 records of each person take part" in text
    assert "0.36 on average, at most 3" in text
    assert "the number of records to sample from, 500, is public" in text
    assert "records. Larger draws are cut" in text
    with pytest.raises(BudgetError, match="spent"):
        model.fit(batches, verbose=0)


@pytest.mark.thorough
def test_delta_is_compared_with_the_number_of_persons(small):
    data, ids = records([4] * 40)
    with pytest.raises(ValueError, match="num_examples=40"):
        model = small.model(
            num_examples=None, expected_batch_size=None, budget=tfdp.PrivacyBudget(2.0, 0.03)
        )
        model.fit(drawn(data, ids, 4, 20), verbose=0)
    batches = drawn(data, ids, 4, 20, steps_per_epoch=1)
    model = compiled(batches, noise_multiplier=4.0)
    assert model.optimizer.default_delta == 0.1 / 40
    model.fit(batches, verbose=0)
    assert model.privacy_statement(0.02).epsilon < np.inf  # 1/n of the records would be 1/160
    with pytest.raises(ValueError, match="num_examples=40"):
        model.privacy_statement(0.03)


def test_one_record_for_each_person_costs_what_records_cost(small):
    data, ids = records([1] * 100)
    batches = drawn(data, ids, 1, 20, steps_per_epoch=1)
    model = compiled(batches, noise_multiplier=3.0)
    records_alone = small.model(num_examples=100, expected_batch_size=20, noise_multiplier=3.0)
    assert model.optimizer.epsilon_after(10, 1e-3) == records_alone.optimizer.epsilon_after(
        10, 1e-3
    )
    model.fit(batches, verbose=0)
    assert model.privacy_statement().unit == PERSON


@pytest.mark.thorough
def test_data_and_optimizer_must_draw_the_same(small):
    data, ids = records([3] * 40)
    ours = drawn(data, ids, 3, 20)
    of_persons = tfdp.data.poisson_batches(data, 20, privacy_ids=ids, max_records_per_unit=3)
    of_records = tfdp.data.poisson_batches(data, 20)
    of_fewer, of_others = drawn(data, ids, 2, 20), drawn(*records([3] * 39 + [2]), 3, 20)
    for right, wrong in (
        (ours, (of_persons, of_records, of_fewer, of_others)),
        (of_persons, (ours,)),
        (of_records, (ours,)),
    ):
        model = compiled(right)
        for batches in wrong:
            with pytest.raises(PrivacyError, match="The data have"):
                model.fit(batches, verbose=0)
        assert model.optimizer.steps_taken == 0
    model = compiled(ours)
    declared = tf.data.Dataset.from_tensor_slices(data).batch(20)
    tfdp.data.declare_sampling(declared, "poisson", 40, 20)
    shuffled = tfdp.data.shuffled_epochs(data, 20, privacy_ids=ids, max_records_per_unit=3)
    allocated = tfdp.data.allocated_epochs(data, 20, privacy_ids=ids, max_records_per_unit=3)
    for wrong in (declared, shuffled, allocated):
        with pytest.raises(PrivacyError, match="The data have"):
            model.fit(wrong, verbose=0)
    with pytest.raises(PrivacyError, match="The data have"):
        model.fit(*data, batch_size=20, verbose=0)
    assert model.optimizer.steps_taken == 0


def test_arguments_of_the_optimizer(small):
    with pytest.raises(ValueError, match="needs `max_records_per_unit`"):
        small.optimizer(num_records=100)
    with pytest.raises(ValueError, match="\\(0, num_records\\]"):
        small.optimizer(num_records=100, max_records_per_unit=3, expected_batch_size=101)
    with pytest.raises(ValueError, match="num_records"):
        small.optimizer(num_records=0.5, max_records_per_unit=3)
    # Micro-batches may divide a person: each record is clipped by itself.
    optimizer = small.optimizer(num_records=100, max_records_per_unit=3, microbatch_size=4)
    assert optimizer.rows_per_unit is None and optimizer.sampling_probability == 0.1
    with pytest.raises(AttributeError, match="cannot be changed"):
        optimizer.num_records = 200


def test_it_survives_saving(small, tmp_path):
    data, ids = records([3] * 40)
    batches = drawn(data, ids, 3, 20, steps_per_epoch=1)
    model = compiled(batches, noise_multiplier=4.0)
    model.fit(batches, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.num_records == 120 and loaded.ledger == model.ledger
    assert str(loaded.privacy_statement()) == str(model.privacy_statement())
    before = model.privacy_statement().epsilon
    loaded.fit(batches, verbose=0)
    assert loaded.optimizer.steps_taken == 2 * model.optimizer.steps_taken
    assert loaded.privacy_statement().epsilon > before
    statement = tfdp.accounting.Statement.from_dict(loaded.privacy_statement().to_dict())
    assert statement.sampling.num_records == 120


@pytest.mark.thorough
def test_trainings_about_the_same_persons_add_up_however_they_draw(small):
    data, ids = records([3] * 40)
    batches = drawn(data, ids, 3, 20, steps_per_epoch=1)
    model = compiled(batches, noise_multiplier=4.0)
    model.fit(batches, verbose=0)
    alone = model.privacy_statement(1e-3).epsilon
    persons = tfdp.data.poisson_batches(data, 10, None, 1, privacy_ids=ids, max_records_per_unit=3)
    model.compile(small.optimizer(max_records_per_unit=3, noise_multiplier=4.0),
                  loss=small.loss, **EAGER)  # fmt: skip
    model.fit(persons, verbose=0)
    assert len(model.ledger) == 2 and alone < model.privacy_statement(1e-3).epsilon < np.inf
    model.compile(small.optimizer(num_examples=120), loss=small.loss)
    with pytest.raises(PrivacyError, match="unit of privacy"):
        model.fit(tfdp.data.poisson_batches(data, 10), verbose=0)


@pytest.mark.thorough
def test_a_budget_is_calibrated_anew_where_another_way_of_drawing_spent_of_it(small):
    """Noise that was enough for whole persons is not what single records need."""
    data, ids = records([3] * 40)
    budget = {"budget": tfdp.PrivacyBudget(0.5, 1e-3), "steps": 2, "max_records_per_unit": 3}
    persons = tfdp.data.poisson_batches(
        data, 10, None, 1, privacy_ids=ids, max_records_per_unit=3
    )  # fmt: skip
    model = eager_model(**budget)
    model.fit(persons, verbose=0)
    first = model.optimizer.noise_multiplier
    model.compile(small.optimizer(num_records=120, **budget), loss=small.loss, **EAGER)
    model.fit(drawn(data, ids, 3, 10, steps_per_epoch=1), verbose=0)
    assert model.optimizer.noise_multiplier != first
    assert model.optimizer.steps_taken == 2 and model.privacy_statement().epsilon <= 0.5


@pytest.mark.thorough
def test_a_release_must_be_about_as_many_persons(small):
    data, ids = records([3] * 40)
    batches = drawn(data, ids, 3, 20)
    base = small.base()
    event = dp_accounting.GaussianDpEvent(5.0)
    for details in ({}, {"unit": PERSON, "num_examples": 120}):
        base.layers[0].privacy_releases = [LedgerEntry("a", event, 1, details)]
        with pytest.raises(PrivacyError, match="is about"):
            compiled(batches, base)
    base.layers[0].privacy_releases = [
        LedgerEntry("a", event, 1, {"unit": PERSON, "num_examples": 40})
    ]
    assert compiled(batches, base).privacy_statement().unit == PERSON


@pytest.mark.thorough
def test_forward_noise_is_not_given_records_of_persons(small):
    data, ids = records([2] * 40)
    inputs = keras.Input((3,))
    noisy = tfdp.layers.DPForwardNoise(1.0, 1.0)(inputs)
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(noisy)))
    model.compile("sgd", small.loss)
    with pytest.raises(PrivacyError, match="privacy_ids"):
        model.fit(drawn(data, ids, 2, 10), verbose=0)


def table_model(rows=30):
    ids = keras.Input((2,), dtype="int64")
    h = tfdp.layers.SparseEmbedding(rows, 3, combiner="sum", name="t")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(h))


def sparse(selection, batches):
    sampling = tfdp.data.sampling_of(batches)
    model = tfdp.make_private(table_model())
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=3.0, num_examples=sampling.num_examples,
            num_records=sampling.num_records, expected_batch_size=sampling.expected_batch_size,
            max_records_per_unit=sampling.max_records_per_unit, selection=selection,
            embedding_optimizer=tfdp.optimizers.RowSGD(1.0),
        ),
        loss="mse", run_eagerly=True,
    )  # fmt: skip
    return model


@pytest.mark.thorough
def test_selections_of_rows_are_accounted_for_where_a_step_is_gaussian(monkeypatch):
    x = np.random.default_rng(0).integers(0, 30, (60, 2))
    ids = np.repeat(np.arange(20), 3)
    batches = drawn((x, np.zeros((60, 1), np.float32)), ids, 3, 20, steps_per_epoch=2)
    seen = []
    select = tfdp.selection.AdaFEST.select

    def watched(self, tables, example_mask, *rest):
        seen.append((tables[0].ids.shape[0], int(example_mask.shape[0])))
        return select(self, tables, example_mask, *rest)

    monkeypatch.setattr(tfdp.selection.AdaFEST, "select", watched)
    model = sparse(tfdp.selection.AdaFEST(0.1), batches)
    model.fit(batches, verbose=0)
    rows = tfdp.data.sampling_of(batches).rows
    assert seen[-1] == (rows, rows)  # what marks the map, and is bounded in it, is a record
    found = model.privacy_statement(1e-2).epsilon
    assert found == pytest.approx(by_hand(3, 1 / 3, 3.0, 2, 1e-2), rel=1e-4)
    model = sparse(tfdp.selection.ExponentialSelection(num_rows=5), batches)
    with pytest.raises(ValueError, match='sampling_unit="person"'):
        model.fit(batches, verbose=0)


@pytest.mark.thorough
def test_rows_that_are_chosen_on_the_host_are_those_of_records():
    x = np.random.default_rng(0).integers(1, 30, (60, 2))
    batches = drawn((x, np.zeros((60, 1), np.float32)), np.repeat(np.arange(20), 3), 3, 20, seed=1)
    rows = tfdp.data.sampling_of(batches).rows
    assert rows % 3  # whose rows stand together would be no persons
    model = sparse(tfdp.selection.AdaFEST(0.1, capacity=30), batches)
    (first,) = tfdp.distribution.select_on_host(batches, model).take(1)
    assert first[1].shape[0] == rows


def test_the_mechanism_goes_through_json_and_refuses_what_is_not_gaussian():
    sampling = Sampling("poisson", 40, 20, max_records_per_unit=3, num_records=120)
    mechanism = PrivateTraining(1.5, 1.0, sampling, 40, PERSON)
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism
    with pytest.raises(ValueError, match='sampling_unit="person"'):
        PrivateTraining(1.5, 1.0, sampling, 40, PERSON, mechanism="concentrated")
    with pytest.raises(ValueError, match="contradict"):
        PrivateTraining(1.5, 1.0, sampling, 40)


@pytest.mark.thorough
def test_disjoint_periods_cost_the_largest(small, tmp_path):
    periods = tfdp.data.DisjointPeriods(tmp_path / "periods.npz")
    data, ids = records([3] * 40)
    one, epsilons = None, []
    for i, name in enumerate(("a", "b")):
        week = periods.period(name)
        batches = drawn(data, ids + 1000 * i, 3, 20, period=week, steps_per_epoch=1)
        if one is None:
            one = compiled(batches, period=week, noise_multiplier=4.0)
        else:
            sampling = tfdp.data.sampling_of(batches)
            one.compile(
                small.optimizer(
                    num_examples=40, num_records=sampling.num_records, expected_batch_size=20,
                    max_records_per_unit=3, period=week, noise_multiplier=4.0,
                ), loss=small.loss, **EAGER,
            )  # fmt: skip
        one.fit(batches, verbose=0)
        epsilons.append(one.privacy_statement(1e-3).epsilon)
    assert epsilons[0] == epsilons[1]


@pytest.mark.thorough
def test_trainings_are_tuned_with_a_cost():
    """The best of several runs is accounted for by Rényi divergences, by their bound."""
    sampling = Sampling("poisson", 40, 4, max_records_per_unit=3, num_records=120)
    mechanism = PrivateTraining(4.0, 1.0, sampling, 40, PERSON)
    ledger = tfdp.accounting.Ledger(mechanism.entries(10, "a"))
    best = dp_accounting.dp_event.RepeatAndSelectDpEvent(ledger.event(), 4.0, 1.0)
    tuned = tfdp.accounting.Ledger([LedgerEntry("tuning", best, 1, {"unit": PERSON})])
    assert ledger.epsilon(1e-3) < tuned.epsilon(1e-3) < np.inf
