"""A person, with all of its records, is what is clipped, counted and stated."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import Ledger, LedgerEntry, Sampling
from tfdp.accounting.charges.mechanisms import PrivateTraining
from tfdp.data.provenance.dataset_tags import tag
from tfdp.errors import PrivacyError
from tfdp.noise import NoiseSource
from tfdp.selection.contribution_map import ContributionMap

RATE = 1.0


def records(sizes, features=3, seed=0):
    """(x, y), ids: persons 0, 1, … with so many records."""
    generator = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(ids), features)).astype(np.float32)
    return (x, generator.integers(0, 2, len(ids)).astype(np.int32)), ids


def everybody(data, ids, k, **kwargs):
    """Batches that hold every person."""
    n = len(np.unique(ids))
    return tfdp.data.poisson_batches(
        data, n, n, 1, privacy_ids=ids, max_records_per_unit=k, **kwargs
    )


def compiled(small, n, k, *, base=None, **kwargs):
    settings = {"noise_multiplier": 0.0, "num_examples": n, "expected_batch_size": n}
    eager = {"run_eagerly": True} | kwargs.pop("compile_kwargs", {})
    base = tfdp.make_private(small.base() if base is None else base, validate=False)
    return small.model(base, compile_kwargs=eager, max_records_per_unit=k, **settings | kwargs)


def moved(model, batches, **kwargs):
    before = model.get_weights()
    model.fit(batches, verbose=0, **kwargs)
    return [a - b for a, b in zip(before, model.get_weights(), strict=True)]


def gradients_of_records(base, x, y):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows = []
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            value = loss(y[i : i + 1], base(x[i : i + 1]))
        rows.append([g.numpy() for g in tape.gradient(value, base.trainable_variables)])
    return [np.stack(parts).astype(np.float64) for parts in zip(*rows, strict=True)]


XLA = {"compile_kwargs": {"run_eagerly": False, "jit_compile": True}}


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{}, {"microbatch_size": 12}, XLA], ids=["whole", "parts", "xla"])
def test_a_step_sums_the_records_of_a_person_and_clips_the_sum(small, how):
    data, ids = records([1, 3, 2, 4, 1])
    base = small.base()
    gradients = gradients_of_records(base, *data)
    persons = [np.stack([g[ids == p].sum(0) for p in range(5)]) for g in gradients]
    norms = np.sqrt(sum(np.square(g).reshape(5, -1).sum(1) for g in persons))
    clip_norm = float(np.median(norms))
    factors = np.minimum(1, clip_norm / norms)
    assert (factors < 1).any() and (factors == 1).any()
    model = compiled(small, 5, 4, base=base, clip_norm=clip_norm, **how)
    found = moved(model, everybody(data, ids, 4))
    for change, g in zip(found, persons, strict=True):
        np.testing.assert_allclose(change, np.tensordot(factors, g, 1) / 5, atol=1e-6)


@pytest.mark.thorough
def test_a_person_with_1000_records_moves_the_weights_no_more_than_one_with_one(small):
    norms = []
    for size in (1, 1000):
        x = np.full((size, 3), 5.0, np.float32)
        ids = np.zeros(size, int)
        base = small.base()
        base.set_weights([np.zeros_like(w) for w in base.get_weights()])
        model = compiled(small, 1, size, base=base, clip_norm=0.1)
        change = moved(model, everybody((x, np.zeros(size, np.int32)), ids, size))
        norms.append(np.sqrt(sum(np.sum(np.square(c, dtype=np.float64)) for c in change)))
    assert max(norms) <= 0.1 * (1 + 1e-5) and min(norms) > 0.09


@pytest.mark.thorough
def test_padding_that_computes_nan_does_not_silence_a_person(small):
    base = keras.Sequential(
        [keras.Input((3,)), keras.layers.Lambda(lambda x: x / tf.norm(x, axis=1, keepdims=True)),
         keras.layers.Dense(2)]
    )  # fmt: skip
    data, ids = records([1, 2])
    gradients = gradients_of_records(base, *data)
    model = compiled(small, 2, 3, base=base, clip_norm=1e3)
    found = moved(model, everybody(data, ids, 3))
    for change, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(change, g.sum(0) / 2, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:There are values that are not a number")
def test_one_record_without_finite_gradient_silences_its_person_alone(small):
    data, ids = records([3, 2])
    base = small.base()
    gradients = gradients_of_records(base, *data)
    data[0][0] = np.nan
    model = compiled(small, 2, 3, base=base, clip_norm=1e3)
    found = moved(model, everybody(data, ids, 3))
    for change, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(change, g[ids == 1].sum(0) / 2, atol=1e-6)


def test_metrics_and_loss_are_those_of_the_records_that_are_there(small):
    data, ids = records([1, 3, 2])
    base = small.base()
    model = compiled(
        small, 3, 3, base=base, compile_kwargs={"metrics": ["accuracy"]},
        inner=keras.optimizers.SGD(0.0),
    )  # fmt: skip
    history = model.fit(everybody(data, ids, 3), verbose=0).history
    logits = base(data[0]).numpy()
    losses = keras.losses.sparse_categorical_crossentropy(data[1], logits, from_logits=True)
    assert history["loss"][0] == pytest.approx(np.mean(losses), rel=1e-5)
    assert history["accuracy"][0] == pytest.approx(np.mean(logits.argmax(1) == data[1]), rel=1e-5)


@pytest.mark.thorough
def test_statement_meter_and_budget_speak_of_persons(small):
    data, ids = records([2] * 300)
    batches = tfdp.data.poisson_batches(data, 60, privacy_ids=ids, max_records_per_unit=2)
    budget = tfdp.PrivacyBudget(2.0, 1e-3)
    model = small.model(
        num_examples=300, expected_batch_size=60, max_records_per_unit=2, budget=budget, steps=10,
    )  # fmt: skip
    meter = tfdp.callbacks.PrivacyMeter()
    history = model.fit(batches, epochs=2, verbose=0, callbacks=[meter]).history
    statement = model.privacy_statement()
    assert statement.unit == "one person with all of its records" and statement.num_examples == 300
    assert 1.9 < statement.epsilon <= 2.0 and abs(history["epsilon"][-1] - statement.epsilon) < 1e-3
    text = " ".join(str(statement).split())
    assert "Unit of privacy: one person with all of its records, of 300." in text
    assert "each person with probability 0.2 in each of 10 steps, with at most 2 of its" in text
    assert "60 of 300 persons expected" in text and "persons. Larger draws" in text
    # The same steps on as many records, as if each were a person, cost the same.
    alone = small.model(
        num_examples=300, expected_batch_size=60, noise_multiplier=model.optimizer.noise_multiplier
    )
    assert alone.optimizer.epsilon_after(10, 1e-3) == pytest.approx(statement.epsilon, rel=1e-6)


@pytest.mark.parametrize("asked", [None, 2])
def test_data_and_optimizer_must_have_the_same_unit(small, asked):
    data, ids = records([2] * 40)
    drawn = {None: {}, 3: {"privacy_ids": ids, "max_records_per_unit": 3}}[3 if asked else None]
    other = {"privacy_ids": ids, "max_records_per_unit": 3}
    model = compiled(small, 40 if asked else 80, asked, expected_batch_size=10)
    wrong = other if asked is None else drawn
    with pytest.raises(PrivacyError, match="max_records_per_unit"):
        model.fit(tfdp.data.poisson_batches(data, 10, **wrong), verbose=0)
    if asked:
        with pytest.raises(PrivacyError, match="max_records_per_unit"):
            model.fit(*data, batch_size=10, verbose=0)
        declared = tf.data.Dataset.from_tensor_slices(data).batch(10)
        tfdp.data.declare_sampling(declared, "poisson", 40, 10)
        with pytest.raises(PrivacyError, match="max_records_per_unit"):
            model.fit(declared, verbose=0)
    assert model.optimizer.steps_taken == 0


def test_batches_whose_structure_is_gone_are_refused(small):
    data, ids = records([2] * 40)
    batches = everybody(data, ids, 2)
    model = compiled(small, 40, 2)
    sampling = tfdp.data.sampling_of(batches)
    for broken in (
        batches.unbatch().batch(80),
        batches.rebatch(40),
        tf.data.Dataset.map(batches, lambda *batch: batch),
        tag(batches.rebatch(40), sampling),
        batches.map(lambda x, y, w: (x[:1], y[:1], w[:1])),
    ):
        with pytest.raises(PrivacyError):
            model.fit(broken, verbose=0)
    for x, y, weight in model.training_batches(batches):
        with pytest.raises(PrivacyError):
            model.train_on_batch(x[:79], y[:79], weight[:79])
    with pytest.raises(PrivacyError, match="multiple"):
        model.train_step((data[0][:79], data[1][:79]))
    assert model.optimizer.steps_taken == 0


def test_microbatches_hold_whole_persons(small):
    with pytest.raises(ValueError, match="multiple of `max_records_per_unit`"):
        small.optimizer(max_records_per_unit=4, microbatch_size=6)
    for wrong in (0, 2.0, True, "3"):
        with pytest.raises(ValueError, match="max_records_per_unit"):
            small.optimizer(max_records_per_unit=wrong)


@pytest.mark.thorough
def test_the_unit_survives_saving(small, tmp_path):
    optimizer = small.optimizer(max_records_per_unit=3)
    again = tfdp.optimizers.DPOptimizer.from_config(optimizer.get_config())
    assert again.max_records_per_unit == 3
    with pytest.raises(AttributeError, match="cannot be changed"):
        again.max_records_per_unit = 2
    data, ids = records([2] * 40)
    model = compiled(small, 40, 3, noise_multiplier=1.0)
    model.fit(everybody(data, ids, 3), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (
        loaded.privacy_statement().unit == "one person with all of its records"
        and loaded.ledger == model.ledger
    )


def test_weights_train_for_persons_or_for_records_and_never_for_both(small):
    data, ids = records([2] * 40)
    model = compiled(small, 40, 2, noise_multiplier=1.0)
    model.fit(everybody(data, ids, 2), verbose=0)
    model.compile(small.optimizer(num_examples=80), loss=small.loss)
    assert model.privacy_statement().unit == "one person with all of its records"
    with pytest.raises(PrivacyError, match="unit of privacy"):
        model.fit(tfdp.data.poisson_batches(data, 10), verbose=0)
    assert np.isfinite(model.privacy_statement().epsilon)


def sampled(unit, k=None):
    sampling = Sampling("poisson", 100, 10, max_records_per_unit=k)
    return PrivateTraining(1.0, 1.0, sampling, 100, unit).entries(5, "a")


def test_no_epsilon_is_stated_for_a_mixture_of_units():
    persons, examples = sampled("one person with all of its records", 3), sampled("one example")
    assert np.isfinite(Ledger(persons).epsilon(1e-3))
    both = Ledger([*persons, *examples])
    assert both.epsilon(1e-3) == np.inf
    statement = tfdp.accounting.privacy_statement(both, delta=1e-3)
    assert statement.epsilon == np.inf and "neither" in statement.unstated[0]
    of_persons = tfdp.accounting.privacy_statement(Ledger(persons), delta=1e-3, unit="one example")
    assert of_persons.unit == "one person with all of its records"
    for unit, k in (("one person with all of its records", None), ("one example", 3)):
        with pytest.raises(ValueError, match="contradict"):
            sampled(unit, k)


def test_a_release_about_records_does_not_serve_persons(small):
    base = small.base()
    event = tfdp.accounting.LedgerEntry("a", sampled("one example")[0].event, 1, {})
    base.layers[0].privacy_releases = [event]
    with pytest.raises(PrivacyError, match="unit='one person with all of its records'"):
        compiled(small, 40, 2, base=base)
    details = {"unit": "one person with all of its records", "num_examples": 40}
    base.layers[0].privacy_releases = [LedgerEntry("a", event.event, 1, details)]
    assert (
        compiled(small, 40, 2, base=base).privacy_statement().unit
        == "one person with all of its records"
    )


def test_forward_noise_is_not_given_persons(small):
    data, ids = records([2] * 40)
    inputs = keras.Input((3,))
    noisy = tfdp.layers.DPForwardNoise(1.0, 1.0)(inputs)
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(noisy)))
    model.compile("sgd", small.loss)
    with pytest.raises(PrivacyError, match="privacy_ids"):
        model.fit(everybody(data, ids, 2), verbose=0)


def table_model(rows=30):
    ids = keras.Input((2,), dtype="int64")
    h = tfdp.layers.SparseEmbedding(rows, 3, combiner="sum", name="t")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(h))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("on_host", [False, True])
def test_the_contribution_map_is_that_of_persons(monkeypatch, on_host):
    # Person 0: rows 1, 2, 3 by three records; person 1: row 1. Row 0 is a row, and not padding.
    x = np.array([[1, 2], [1, 1], [3, 2], [1, 1]], np.int64)
    ids = np.array([0, 0, 0, 1])
    batches = everybody((x, np.zeros((4, 1), np.float32)), ids, 4)
    selection = tfdp.selection.AdaFEST(0.1, contribution_norm=1.0, capacity=20 if on_host else None)
    model = tfdp.make_private(table_model())
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=1e-3, num_examples=2,
            expected_batch_size=2, max_records_per_unit=4, selection=selection,
            embedding_optimizer=tfdp.optimizers.RowSGD(1.0),
        ),
        loss="mse", run_eagerly=True,
    )  # fmt: skip
    seen = []

    def watched(name, masks):
        original = getattr(tfdp.selection.AdaFEST, name)

        def select(self, tables, example_mask, noise_multiplier, source):
            (table,) = tables
            rows = table.rows if hasattr(table, "rows") else table.ids
            seen.append((rows, example_mask))
            return original(self, tables, example_mask, noise_multiplier, source)

        monkeypatch.setattr(tfdp.selection.AdaFEST, name, select)

    watched("select", seen)
    watched("select_padded", seen)
    if on_host:
        batches = tfdp.distribution.select_on_host(batches, model)
        (first,) = batches.take(1)
        rows = np.unique(first[0].survivors)[:-1]
        assert {1, 2, 3} <= set(rows) and 0 not in rows
        return
    model.fit(batches, verbose=0)
    rows, mask = seen[-1]
    assert rows.shape == (3, 8) and mask.shape == (3,)  # with room for one person more
    of_persons = rows.numpy()[mask.numpy()]
    owner = int(np.argmax([len(set(r) - {-1}) for r in of_persons]))
    assert set(of_persons[owner]) == {1, 2, 3, -1} and set(of_persons[1 - owner]) == {1, -1}
    found, noisy = ContributionMap(rows, mask, 30, 1.0)._survivors(1e-9, 0.0, NoiseSource())
    np.testing.assert_array_equal(found, [1, 2, 3])
    np.testing.assert_allclose(noisy(), [1 + 3**-0.5, 3**-0.5, 3**-0.5])
