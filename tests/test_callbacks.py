"""PrivacyMeter shows what the ledger says, and stops before a limit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp


def private_model(**kwargs):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    arguments = {"noise_multiplier": 1.0, "num_examples": 100, "expected_batch_size": 20}
    arguments.update(kwargs)
    model.compile(tfdp.optimizers.DPOptimizer("sgd", **arguments), loss="mse")
    return model


def batches():
    x = np.zeros((100, 3), np.float32)
    return tfdp.data.poisson_batches((x, x[:, :2]), 20)


@pytest.mark.thorough
def test_epsilon_in_the_logs_is_the_ledgers_and_the_progress_bar_never_shows_less():
    model, shown = private_model(), []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            shown.append((logs["epsilon"], model.ledger.epsilon(1e-3)))

    meter = tfdp.callbacks.PrivacyMeter(delta=1e-3)
    history = model.fit(batches(), epochs=2, verbose=0, callbacks=[meter, Watch()]).history
    assert len(shown) == 10
    assert all(bar >= spent for bar, spent in shown)
    spent = model.ledger.epsilon(1e-3)
    assert spent <= history["epsilon"][1] < spent + 1e-4
    assert 0 < history["epsilon"][0] < history["epsilon"][1]


def test_stops_before_the_limit_and_not_a_step_earlier():
    model = private_model()
    limit = model.optimizer.epsilon_after(7, 1e-3) * (1 + 1e-9)
    meter = tfdp.callbacks.PrivacyMeter(delta=1e-3, max_epsilon=limit)
    # The ε of the bar depends on how batches are drawn only through σ and q, known before.
    model.fit(batches(), epochs=10, verbose=0, callbacks=[meter])
    assert model.optimizer.steps_taken == 7
    assert model.ledger.epsilon(1e-3) <= limit


def test_no_other_callback_takes_training_beyond_the_limit():
    class GoOn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = False

    model = private_model()
    limit = model.optimizer.epsilon_after(3, 1e-3) * (1 + 1e-9)
    meter = tfdp.callbacks.PrivacyMeter(delta=1e-3, max_epsilon=limit)
    model.fit(batches(), epochs=2, verbose=0, callbacks=[meter, GoOn()])
    assert model.optimizer.steps_taken == 3


def test_a_limit_that_is_spent_is_refused():
    model = private_model()
    charging = model.optimizer.charging
    charging.begin(tfdp.data.sampling_of(batches()))
    charging.charge_step()
    charging.begin(None)
    with pytest.raises(ValueError, match="max_epsilon"):
        model.fit(batches(), verbose=0, callbacks=[tfdp.callbacks.PrivacyMeter(max_epsilon=0.01)])


def test_needs_a_private_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="DPOptimizer"):
        model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0,
                  callbacks=[tfdp.callbacks.PrivacyMeter()])  # fmt: skip


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan")])
def test_a_limit_must_be_positive_and_finite(limit):
    with pytest.raises(ValueError, match="`max_epsilon` must be positive and finite"):
        tfdp.callbacks.PrivacyMeter(max_epsilon=limit)


@pytest.mark.thorough
def test_looking_far_ahead_ends():
    """The distribution of losses of 2^40 steps would fill the memory."""
    assert private_model().optimizer.epsilon_after(1 << 40, 1e-3) > 1e6


def sparse_model(selection):
    ids = keras.Input((1,), dtype="int64")
    rows = tfdp.layers.SparseEmbedding(50, 4)(ids)
    model = tfdp.make_private(keras.Model(ids, keras.layers.Dense(2)(rows[:, 0])))
    optimizer = tfdp.optimizers.DPOptimizer(
        "sgd", noise_multiplier=1.0, selection=selection,
        embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
    )  # fmt: skip
    model.compile(optimizer, loss="mse", metrics=["mae"], run_eagerly=True)
    data = np.zeros((100, 1), np.int64), np.zeros((100, 2), np.float32)
    return model, tfdp.data.poisson_batches(data, 20)


def test_a_curve_holds_the_ledgers_epsilon_and_what_is_private_and_nothing_else(tmp_path):
    fest = tfdp.selection.FEST(10, frequencies=np.arange(50.0))
    model, data = sparse_model(fest)
    curve = tfdp.callbacks.PrivacyCurve(delta=1e-3, log_dir=tmp_path)
    model.fit(data, epochs=2, verbose=0, callbacks=[curve])
    assert [p["step"] for p in curve.points] == [0, 5, 10]
    assert curve.points[0]["epsilon"] == 0
    spent = model.ledger.epsilon(1e-3)
    assert spent <= curve.points[2]["epsilon"] < spent + 1e-4
    assert [p.get("survivors") for p in curve.points] == [None, 10, 10]
    # No loss, no metric, and not the size of a batch.
    names = {"step", "epsilon", "noise_multiplier", "gradient_size", "survivors"}
    assert {name for p in curve.points for name in p} == names
    found = {}
    for file in tmp_path.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.setdefault(value.tag, []).append(
                    (event.step, float(tf.make_ndarray(value.tensor)))
                )
    assert set(found) == {f"privacy/{name}" for name in names - {"step"}}
    assert found["privacy/gradient_size"] == [(5, 40.0), (10, 40.0)]
    steps, values = zip(*found["privacy/epsilon"], strict=True)
    assert steps == (0, 5, 10)
    np.testing.assert_allclose(values, [p["epsilon"] for p in curve.points], rtol=1e-6)


def test_a_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    curve, model = tfdp.callbacks.PrivacyCurve(), private_model()
    with pytest.raises(ValueError, match="has recorded no steps"):
        curve.plot(tmp_path / "a.png")
    model.fit(batches(), verbose=0, callbacks=[curve])
    model.fit(batches(), verbose=0, callbacks=[curve])
    assert [p["step"] for p in curve.points] == [0, 5, 5, 10]
    curve.plot(tmp_path / "a.png")
    curve.points = [{**p, "gradient_size": 40.0, "survivors": 10.0} for p in curve.points]
    curve.plot(tmp_path / "b.png")
    for name in "ab":
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
