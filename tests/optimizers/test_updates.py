"""Without noise, an update is what the wrapped Keras optimizer makes of the clipped mean."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

from tfdp.training.checks import preflight

LABELS = 2


def by_hand(base, x, y, clip_norm, expected_batch_size, weights=None):
    """Σ_i min(1, C/‖g_i‖)·g_i / B̄ of the trained variables of `network()`, in float64."""
    first, second = base.layers
    w, b, v, c = (np.asarray(value, np.float64) for value in base.get_weights())
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    x = np.asarray(x, np.float64)
    hidden = np.tanh(x @ w + b)
    logits = hidden @ v + c
    p = np.exp(logits - logits.max(1, keepdims=True))
    at_logits = weights[:, None] * (p / p.sum(1, keepdims=True) - np.eye(LABELS)[y])
    at_hidden = at_logits @ v.T * (1 - hidden**2)
    grads = []
    for layer, inputs, outputs in ((first, x, at_hidden), (second, hidden, at_logits)):
        if layer.trainable:
            grads += [inputs[:, :, None] * outputs[:, None, :], outputs]
    norms = np.sqrt(sum(np.square(g).reshape(len(x), -1).sum(1) for g in grads))
    factors = np.minimum(1.0, clip_norm / np.maximum(norms, 1e-30))
    return [np.tensordot(factors, g, 1) / expected_batch_size for g in grads]


def network(**kwargs):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh", **kwargs),
                             keras.layers.Dense(LABELS, **kwargs)])  # fmt: skip


def one_step(
    small, inner=None, base=None, epochs=1, compile_kwargs=None, fit_kwargs=None, **kwargs
):
    """Weights before and after full-batch steps at σ = 0; eagerly unless told otherwise."""
    compile_kwargs = {"run_eagerly": True} if compile_kwargs is None else compile_kwargs
    base = network() if base is None else base
    settings = {"num_examples": small.n, "expected_batch_size": small.n, "noise_multiplier": 0.0,
                "clip_norm": 0.2, **kwargs}  # fmt: skip
    model = small.model(base, None, compile_kwargs, inner=inner, **settings)
    x, y = small.data()
    before = [w.copy() for w in base.get_weights()]
    model.fit(x, y, batch_size=small.n, epochs=epochs, verbose=0, **(fit_kwargs or {}))
    return before, base.get_weights(), model


def assert_step(before, after, wanted, rtol=1e-4):
    for b, a, w in zip(before, after, wanted, strict=True):
        np.testing.assert_allclose(b - a, w, rtol=rtol, atol=2e-7)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    ("compile_kwargs", "microbatch_size"),
    slow.cases(
        [({}, None), ({}, 40), ({}, 1), ({"jit_compile": True}, 13), ({"jit_compile": False}, None),
         ({"jit_compile": False}, 13), ({"run_eagerly": True}, None), ({"run_eagerly": True}, 13)],
        slow=[({}, 40), ({"jit_compile": False}, None), ({"jit_compile": False}, 13),
              ({"run_eagerly": True}, None)],
    ),
)  # fmt: skip
def test_update_is_the_clipped_mean(small, compile_kwargs, microbatch_size):
    base = network()
    x, y = small.data()
    wanted = by_hand(base, x, y, 0.2, small.n)
    before, after, model = one_step(
        small, base=base, compile_kwargs=compile_kwargs, microbatch_size=microbatch_size
    )
    assert_step(before, after, wanted)
    assert model.optimizer.steps_taken == int(model.optimizer.iterations) == 1


@pytest.mark.thorough
def test_microbatches_equal_the_whole_batch(small):
    x, y = small.data()
    results = []
    for size in (None, 20, 15):
        keras.utils.set_random_seed(2)
        _, after, model = one_step(small, microbatch_size=size, epochs=2)
        assert model.optimizer.steps_taken == 2
        results.append(np.concatenate([np.ravel(w) for w in after]))
    for other in results[1:]:
        np.testing.assert_allclose(results[0], other, rtol=0, atol=1e-6)


def test_divisor_is_public_whatever_was_drawn(small):
    # Fault 15: seven of the forty rows are present; the sum is divided by 10.
    base = network()
    x, y = small.data()
    weights = np.zeros(small.n, np.float32)
    weights[:7] = [1, 1, 2, 0.5, 1, 1, 3]
    wanted = by_hand(base, x, y, 0.2, 10, weights)
    dataset = tf.data.Dataset.from_tensors((x, y, weights))
    import tfdp

    tfdp.data.declare_sampling(dataset, "poisson", small.n, 10)
    model = small.model(base, noise_multiplier=0.0, clip_norm=0.2,
                        compile_kwargs={"run_eagerly": True})  # fmt: skip
    before = [w.copy() for w in base.get_weights()]
    model.fit(dataset, verbose=0)
    assert_step(before, base.get_weights(), wanted)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "name",
    slow.cases(
        ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Adafactor"],
        slow=["AdamW", "Adagrad", "RMSprop"],
    ),
)
def test_any_keras_optimizer_sees_the_private_gradient(small, name):
    if not hasattr(keras.optimizers, name):
        pytest.skip("not in this version of Keras")
    make = getattr(keras.optimizers, name)
    keras.utils.set_random_seed(1)
    base, twin = network(), network()
    twin.set_weights(base.get_weights())
    x, y = small.data()
    before, after, model = one_step(small, make(learning_rate=0.05), base, epochs=2)
    plain = make(learning_rate=0.05)
    for _ in range(2):
        grads = by_hand(twin, x, y, 0.2, small.n)
        plain.apply([tf.constant(g, tf.float32) for g in grads], twin.trainable_variables)
    for a, b, start in zip(after, twin.get_weights(), before, strict=True):
        # Signs of nearly zero gradients (Lion) may differ by rounding.
        assert np.mean(np.abs(a - b) <= 1e-4 * np.abs(b - start).max() + 1e-6) > 0.9
    assert int(model.optimizer.iterations) == 2


def test_the_learning_rate_can_be_set(small):
    model = small.model(network(), inner=keras.optimizers.SGD(0.5), noise_multiplier=0.0,
                        compile_kwargs={"run_eagerly": True})  # fmt: skip
    assert float(model.optimizer.learning_rate) == 0.5
    rates = []
    model.fit(
        small.poisson(steps_per_epoch=1), epochs=3, verbose=0,
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (epoch + 1)),
                   keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(
                       float(model.optimizer.inner_optimizer.learning_rate)))],
    )  # fmt: skip
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3], rtol=1e-6)


def test_schedule_stops_the_movement(small):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    base, seen = network(), []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append([w.copy() for w in base.get_weights()])
    )
    before, after, _ = one_step(
        small, keras.optimizers.SGD(schedule), base, epochs=2, fit_kwargs={"callbacks": [watch]}
    )
    assert np.any(seen[0][0] != before[0])
    for a, b in zip(seen[0], after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_weight_decay_acts_after_the_noise(small):
    base = network()
    x, y = small.data()
    wanted = by_hand(base, x, y, 0.2, small.n)
    weights = base.get_weights()
    inner = keras.optimizers.SGD(1.0, weight_decay=0.01)
    before, after, _ = one_step(small, inner, base)
    assert_step(before, after, [g + 0.01 * w for g, w in zip(wanted, weights, strict=True)])


def test_constraints_are_kept(small):
    base = network(kernel_constraint=keras.constraints.MaxNorm(0.1))
    _, after, _ = one_step(small, base=base)
    assert np.all(np.linalg.norm(after[0], axis=0) <= 0.1 + 1e-6)


def test_exponential_moving_average_of_the_wrapped_optimizer(small):
    inner = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.0)
    base = network()
    x, y = small.data()
    wanted = by_hand(base, x, y, 0.2, small.n)
    before, after, _ = one_step(small, inner, base)
    assert_step(before, after, wanted)


def test_frozen_layers_stay_and_release_their_share(small):
    base = network()
    base.layers[0].trainable = False
    x, y = small.data()
    wanted = by_hand(base, x, y, 0.2, small.n)
    before, after, _ = one_step(small, base=base)
    np.testing.assert_array_equal(before[0], after[0])
    assert_step(before[2:], after[2:], wanted)


def test_sample_and_class_weights(small):
    base = network()
    x, y = small.data()
    sample = np.linspace(0, 2, small.n).astype(np.float32)
    wanted = by_hand(base, x, y, 0.2, small.n, sample)
    start = base.get_weights()
    before, after, _ = one_step(small, base=base, fit_kwargs={"sample_weight": sample})
    assert_step(before, after, wanted)
    base.set_weights(start)
    wanted = by_hand(base, x, y, 0.2, small.n, np.where(y == 1, 3.0, 0.5))
    before, after, _ = one_step(small, base=base, fit_kwargs={"class_weight": {0: 0.5, 1: 3.0}})
    assert_step(before, after, wanted)


@pytest.mark.thorough
def test_class_weights_with_poisson_batches(small):
    # A weight of zero makes the whole class absent.
    base = network()
    start = base.get_weights()
    model = small.model(base, noise_multiplier=0.0, num_examples=small.n,
                        expected_batch_size=small.n,
                        compile_kwargs={"run_eagerly": True})  # fmt: skip
    x, y = small.data()
    batches = small.poisson((x, y), small.n)
    wanted = by_hand(base, x, y, 1.0, small.n, np.where(y == 1, 2.0, 0.0))
    model.fit(batches, verbose=0, class_weight={0: 0.0, 1: 2.0})
    assert_step(start, base.get_weights(), wanted)


def test_class_weights_are_those_of_the_labels_themselves():
    data = tf.data.Dataset.from_tensors((tf.zeros([4, 1]), tf.constant([0, 1, 2**32, 2**32 + 1])))
    weighed = preflight.apply_class_weight(data, {"class_weight": {0: 0.5, 1: 3.0}})
    np.testing.assert_array_equal(next(iter(weighed))[2], [0.5, 3.0, 1.0, 1.0])


def test_per_example_reduction(small):
    # The mean over an example's own positions, or their sum; never a count over the batch.
    x = np.random.default_rng(0).normal(size=(small.n, 4, 3)).astype(np.float32)
    y = np.ones((small.n, 4), np.int32)
    moved = {}
    for reduction in ("mean", "sum"):
        base = keras.Sequential([keras.Input((4, 3)), keras.layers.Dense(2, use_bias=False)])
        base.set_weights([np.zeros((3, 2), np.float32)])
        model = small.model(base, noise_multiplier=0.0, clip_norm=1e6, num_examples=small.n,
                            expected_batch_size=small.n, per_example_reduction=reduction,
                            compile_kwargs={"run_eagerly": True})  # fmt: skip
        model.fit(x, y, batch_size=small.n, verbose=0)
        moved[reduction] = base.get_weights()[0]
    np.testing.assert_allclose(moved["sum"], 4 * moved["mean"], rtol=1e-5)


@pytest.mark.parametrize("clipping", ["flat", "automatic", "normalized", "per_layer"])
def test_clipping_kinds_reach_the_step(small, clipping):
    before, after, _ = one_step(small, clipping=clipping, clip_norm=0.01)
    moved = np.sqrt(sum(np.sum((b - a) ** 2) for b, a in zip(before, after, strict=True)))
    assert 0 < moved <= 0.01 * (1 + 1e-6)


@pytest.mark.thorough
def test_steps_per_execution(small):
    model = small.model(network(), None, {"steps_per_execution": 2}, noise_multiplier=0.0)
    model.fit(small.poisson(steps_per_epoch=6), epochs=2, verbose=0)
    assert model.optimizer.steps_taken == int(model.optimizer.iterations) == 12


@pytest.mark.thorough
def test_several_outputs_with_loss_weights(small):
    inputs = keras.Input((3,))
    one = keras.layers.Dense(1, name="one", use_bias=False)(inputs)
    two = keras.layers.Dense(1, name="two", use_bias=False)(inputs)
    base = keras.Model(inputs, {"one": one, "two": two})
    model = small.model(
        base, {"one": "mse", "two": "mse"},
        {"loss_weights": {"one": 1.0, "two": 0.5}, "metrics": {"one": ["mae"], "two": []}},
        noise_multiplier=0.0, num_examples=small.n, expected_batch_size=small.n, clip_norm=1e6,
    )  # fmt: skip
    x, _ = small.data()
    targets = {"one": x[:, :1] * 2, "two": x[:, 1:2] - 1}
    weights = [w.copy() for w in base.get_weights()]
    history = model.fit(x, targets, batch_size=small.n, verbose=0).history
    assert {"one_mae", "loss"} <= set(history)
    for i, (name, factor) in enumerate([("one", 1.0), ("two", 0.5)]):
        residual = x @ weights[i] - targets[name]
        wanted = factor * 2 * x.T @ residual / small.n
        np.testing.assert_allclose(weights[i] - base.get_weights()[i], wanted, rtol=1e-4, atol=1e-6)


def test_learns_something(small):
    # A separable problem, enough data and little noise: the whole path works.
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 3)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
    model = small.model(inner=keras.optimizers.Adam(0.05), compile_kwargs={"metrics": ["accuracy"]},
                        num_examples=2000, expected_batch_size=200)  # fmt: skip
    history = model.fit(small.poisson((x, y), 200), epochs=4, verbose=0).history
    assert history["accuracy"][-1] > 0.9


def test_regularizers_are_added_after_the_clipping(small):
    base = network(
        kernel_regularizer=keras.regularizers.L2(0.3),
        bias_regularizer=keras.regularizers.L1(0.01),
        bias_initializer="ones",
    )
    x, y = small.data()
    wanted = by_hand(base, x, y, 0.2, small.n)
    weights = base.get_weights()
    for i in range(4):
        wanted[i] += 0.6 * weights[i] if weights[i].ndim == 2 else 0.01 * np.sign(weights[i])
    before, after, _ = one_step(small, base=base)
    assert_step(before, after, wanted)
