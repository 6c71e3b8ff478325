"""Steps of one execution are those that Keras would take one by one, in one program of XLA."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import BudgetError
from tfdp.training import executions

STEPS = 10


def batches(small, steps=STEPS, capacity=16, length_is_known=True, other_from=None):
    """The same Poisson batches at each pass, of ids and features; others from `other_from` on."""
    generator = np.random.default_rng(0)
    present = generator.random((steps, capacity)) < 10 / capacity
    x = {
        "ids": generator.integers(0, 50, (steps, capacity, 3)),
        "features": generator.normal(size=(steps, capacity, 4)).astype("float32"),
    }
    x["features"][steps if other_from is None else other_from :] *= -3.0
    y = generator.integers(0, 2, (steps, capacity))
    data = tf.data.Dataset.from_tensor_slices((x, y, present.astype("float32")))
    data = data if length_is_known else data.filter(lambda *_: True)
    return tfdp.data.declare_sampling(data, "poisson", small.n, 10)


def network(rows_are_selected):
    ids, dense = keras.Input((3,), dtype="int64", name="ids"), keras.Input((4,), name="features")
    rows = ids / 50  # XLA takes 5 s to compile a selection of rows
    if rows_are_selected:
        rows = tfdp.layers.SparseEmbedding(50, 4, combiner="mean", name="table")(ids)
    hidden = keras.layers.Dropout(0.5, seed=3)(keras.layers.Concatenate()([rows, dense]))
    return keras.Model([ids, dense], keras.layers.Dense(2)(hidden))


def trained(small, at_once, epochs=1, length=STEPS, rows_are_selected=False, **settings):
    keras.utils.set_random_seed(1)
    if rows_are_selected:
        settings["selection"] = tfdp.selection.AdaFEST(1.0, capacity=20)
        settings["embedding_optimizer"] = tfdp.optimizers.RowSGD(0.5)
    model = small.model(
        network(rows_are_selected), None,
        {"jit_compile": True, "steps_per_execution": at_once, "metrics": ["accuracy"]},
        seed=5, inner=keras.optimizers.Adam(0.01), **settings,
    )  # fmt: skip
    history = model.fit(batches(small, length), epochs=epochs, verbose=0).history
    return model, history


def test_an_execution_uses_no_example_after_the_last_step_of_the_budget(small):
    settings = {"steps_per_execution": 4, "run_eagerly": True}  # a trace takes longer

    def weights(other_from):
        keras.utils.set_random_seed(1)
        budget = tfdp.PrivacyBudget(50.0, 1e-3)
        model = small.model(network(False), None, settings, seed=5, budget=budget, steps=3)
        model.fit(batches(small, 4, other_from=other_from), verbose=0)
        assert model.optimizer.steps_taken == 3
        return np.concatenate([w.ravel() for w in model.get_weights()])

    expected = weights(None)
    np.testing.assert_array_equal(weights(3), expected)
    assert not np.array_equal(weights(2), expected)


@pytest.fixture(scope="module")
def one_by_one(small):
    return functools.cache(lambda rows=False: trained(small, 1, rows_are_selected=rows))


@pytest.fixture
def calls(monkeypatch):
    """Takes programs wherever there can be one; how many executions they made."""
    found = []

    def the_program(one, other, steps):
        def run(iterator):
            found.append(1)
            return other(iterator)

        return run

    monkeypatch.setattr(executions, "_faster_of", the_program)
    return found


# XLA takes ten seconds to compile five selections of rows.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "at_once, rows", [(2, True), (16, False), pytest.param(5, True, marks=pytest.mark.evidence)]
)
def test_steps_are_those_of_keras_whatever_an_execution_holds(
    small, one_by_one, at_once, rows, calls
):
    expected, shown = one_by_one(rows)
    model, history = trained(small, at_once, rows_are_selected=rows)
    assert len(calls) == -(-STEPS // at_once)
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert model.optimizer.steps_taken == int(model.optimizer.iterations) == STEPS
    assert model.privacy_statement().epsilon == expected.privacy_statement().epsilon
    assert history.keys() == shown.keys()
    for name in shown:
        np.testing.assert_allclose(history[name], shown[name], rtol=1e-5)


@pytest.mark.thorough
def test_parts_of_an_execution_follow_one_another_until_the_data_end(
    small, one_by_one, calls, monkeypatch
):
    monkeypatch.setattr(executions, "_MOST", 2)
    model, _ = trained(small, 6)  # 2 and 2 and 2, then 2 and 2 and none
    for a, b in zip(model.get_weights(), one_by_one()[0].get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert model.optimizer.steps_taken == STEPS and len(calls) == 2
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(batches(small, length_is_known=False), steps_per_epoch=30, verbose=0)
    assert model.optimizer.steps_taken == 2 * STEPS and len(calls) > 2


@pytest.mark.thorough
def test_several_epochs_with_noise_of_their_own_until_a_budget_ends(small, calls):
    budget = {"budget": tfdp.PrivacyBudget(0.5, 0.01), "steps": 23}
    model, history = trained(small, 4, epochs=3, length=4, **budget)
    assert model.optimizer.steps_taken == 12 and len(history["loss"]) == len(calls) == 3
    # The same batches and the same start: only the noise can differ between two steps.
    before = model.get_weights()
    model.fit(batches(small, 4), verbose=0)
    first = [b - a for a, b in zip(before, model.get_weights(), strict=True)]
    model.set_weights(before)
    model.fit(batches(small, 4), verbose=0)
    second = [b - a for a, b in zip(before, model.get_weights(), strict=True)]
    assert not np.allclose(first[-1], second[-1])
    model.fit(batches(small, 4), verbose=0)  # three steps are left, within the execution
    assert model.optimizer.steps_taken == 23 and model.optimizer.epsilon() <= 0.5
    with pytest.raises(BudgetError, match="spent"):
        model.fit(batches(small), verbose=0)


class Own(tfdp.models.DPModel):
    """Has a step of its own."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def call(self, x):
        return self.base(x)

    def train_step(self, data):
        return {**super().train_step(data), "mine": 1.0}


def of_unknown_shapes(small):
    unknown = [tf.TensorSpec((None, *s.shape[1:]), s.dtype) for s in small.poisson().element_spec]
    data = tf.data.Dataset.from_generator(
        lambda: iter(small.poisson(steps_per_epoch=4)), output_signature=tuple(unknown)
    )
    return tfdp.data.declare_sampling(data, "poisson", small.n, 10)


@pytest.fixture(params=["large batches", "unknown shapes", "own step"])
def others(request, small, monkeypatch):
    """A model and data of whose steps no program is made, and what its step shows besides."""
    kwargs = {"jit_compile": True, "steps_per_execution": 2}
    if request.param == "large batches":
        monkeypatch.setattr(executions, "_BYTES", 1)
    data = small.poisson(steps_per_epoch=4)
    data = of_unknown_shapes(small) if request.param == "unknown shapes" else data
    if request.param != "own step":
        return small.model(compile_kwargs=kwargs), data, set()
    model = Own(small.base())
    model.compile(small.optimizer(), loss=small.loss, **kwargs)
    return model, data, {"mine"}


def test_keras_takes_the_steps_of_others(others, calls):
    model, data, _ = others
    function = executions.function_of_executions(model, lambda iterator: "by Keras")
    assert function(iter(data)) == "by Keras" and not calls


@pytest.mark.evidence
def test_a_fit_of_others_is_that_of_keras(others, calls):
    model, data, besides = others
    history = model.fit(data, verbose=0).history
    assert model.optimizer.steps_taken == 4
    assert history.keys() - {"loss"} == besides and not calls


def test_data_of_unknown_length_end_the_epoch(small, calls):
    five = small.poisson(steps_per_epoch=5)
    data = tf.data.Dataset.from_generator(lambda: iter(five), output_signature=five.element_spec)
    data = tfdp.data.declare_sampling(data, "poisson", small.n, 10)
    model = small.model(compile_kwargs={"jit_compile": True, "steps_per_execution": 5})

    class TooMany(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert batch < 5

    model.fit(data, verbose=0, callbacks=[TooMany()])
    assert model.optimizer.steps_taken == 5 and len(calls) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("most, wanted", [(32, 10), (9, 5), (4, 2), (1, 1), (0, 1)])
def test_parts_of_an_execution_are_equally_long(small, most, wanted, monkeypatch):
    monkeypatch.setattr(executions, "_MOST", most)
    assert executions._at_once(small.poisson(), 10) == wanted


@pytest.mark.parametrize("jit_compile, steps", [(True, 1), (False, 2)])
def test_nothing_is_compiled_that_nobody_asked_for(small, jit_compile, steps):
    kwargs = {"jit_compile": jit_compile, "steps_per_execution": steps}
    function = object()
    assert executions.function_of_executions(small.model(None, None, kwargs), function) is function


class MixesLater(keras.layers.Layer):
    mix = False

    def call(self, x):
        self.traced = [*getattr(self, "traced", []), self.mix]
        return x + tf.roll(x, 1, 0) if self.mix else x


class Mix(keras.callbacks.Callback):
    """Changes the model once it was checked."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def on_train_batch_end(self, batch, logs=None):
        self.layer.mix = True


@pytest.mark.thorough
def test_nothing_is_traced_after_the_first_step(small, monkeypatch):
    layer = MixesLater()
    base = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(2)])
    model = small.model(base, None, {"jit_compile": True, "steps_per_execution": 2})
    monkeypatch.setattr(executions, "_TRIALS", 1)  # both ways in 4 executions,
    monkeypatch.setattr(executions, "_LONG", 1e9)  # however long a step takes
    model.fit(small.poisson(steps_per_epoch=10), verbose=0, callbacks=[Mix(layer)])
    assert model.optimizer.steps_taken == 10 and layer.traced and not any(layer.traced)


class Clock:
    """Time that passes only where a test says so."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize("faster", ["one", "other"])
def test_both_ways_are_tried_and_the_faster_one_is_kept(faster, monkeypatch):
    monkeypatch.setattr(executions, "_TRIALS", 3)
    clock, called = Clock(), []
    monkeypatch.setattr(executions, "time", clock)

    def way(name):
        def run(iterator):
            # One that compiles first, and one that meets a pause.
            clock.now += {0: 9.0, 2: 5.0}.get(called.count(name), 0.01 + (name != faster) * 0.002)
            called.append(name)
            return {"loss": len(called)}

        return run

    run = executions._faster_of(way("one"), way("other"), 5)
    assert [run(None)["loss"] for _ in range(20)] == list(range(1, 21))
    assert called == ["one"] * 4 + ["other"] * 4 + [faster] * 12


def test_nothing_is_compiled_twice_where_steps_are_long(small, monkeypatch):
    clock, called = Clock(), []
    monkeypatch.setattr(executions, "time", clock)

    def one(iterator):
        clock.now += 0.06
        called.append(1)
        return {}

    run = executions._faster_of(one, None, 5)
    for _ in range(30):
        run(None)
    assert len(called) == 30


def test_an_execution_without_data_is_not_timed(small):
    def ended(iterator):
        raise StopIteration

    run = executions._faster_of(ended, lambda _: {}, 5)
    for _ in range(9):
        with pytest.raises(StopIteration):
            run(None)


@pytest.mark.thorough
def test_both_ways_make_the_steps_of_one_run(small, one_by_one, monkeypatch):
    monkeypatch.setattr(executions, "_TRIALS", 1)
    model, _ = trained(small, 2)  # 5 executions: 2 by Keras, 2 in one program
    assert model.optimizer.steps_taken == STEPS
    for a, b in zip(model.get_weights(), one_by_one()[0].get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
