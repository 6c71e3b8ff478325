"""A private model behaves as a Keras user expects, and refuses what would make ε untrue."""

import collections
import math

import dp_accounting
import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps

import tfdp
from tfdp.errors import BudgetError, PrivacyError
from tfdp.noise import sum_rounding
from tfdp.optimizers import budget_checks
from tfdp.training import dp_model
from tfdp.training import step as private_step
from tfdp.training.checks import preflight


def steps_of(model):
    return model.optimizer.steps_taken


@pytest.mark.thorough
def test_private_optimizer_in_a_plain_model_raises_at_the_first_step(small):
    model = small.base()
    model.compile(small.optimizer(), loss=small.loss)
    x, y = small.data()
    with pytest.raises(PrivacyError, match="not clipped per example"):
        model.fit(x, y, batch_size=10, verbose=0)


def test_private_optimizer_refuses_plain_gradients_of_custom_loops(small):
    model = small.model()
    variables = model.trainable_variables
    gradients = [tf.zeros(v.shape) for v in variables]
    for call in (model.optimizer.apply, model.optimizer.apply_gradients):
        with pytest.raises(PrivacyError, match="make_private"):
            arguments = (gradients, variables)
            call(*arguments) if call == model.optimizer.apply else call(zip(*arguments))  # noqa: B905


@pytest.mark.thorough
def test_loss_scaling_around_the_private_optimizer_fails_closed(small):
    model = tfdp.make_private(small.base())
    model.compile(keras.optimizers.LossScaleOptimizer(small.optimizer()), loss=small.loss)
    with pytest.raises(PrivacyError):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_history_has_loss_and_metrics_without_padding(small):
    x, y = small.data()
    model = small.model(
        compile_kwargs={"metrics": ["accuracy"], **EAGER,
                        "weighted_metrics": ["sparse_top_k_categorical_accuracy"]},
        inner=keras.optimizers.SGD(0.0), noise_multiplier=0.0, num_examples=small.n,
        expected_batch_size=small.n,
    )  # fmt: skip
    padded = tf.data.Dataset.from_tensors(
        (np.pad(x, [[0, 60], [0, 0]]), np.pad(y, [0, 60]), np.pad(np.ones(small.n), [0, 60]))
    )
    tfdp.data.declare_sampling(padded, "poisson", small.n, small.n)
    history = model.fit(padded, verbose=0).history
    logits = model.predict(x, verbose=0)
    loss = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    assert history["loss"][0] == pytest.approx(float(np.mean(loss)), rel=1e-5)
    assert history["accuracy"][0] == pytest.approx(np.mean(logits.argmax(1) == y), rel=1e-5)
    evaluated = model.evaluate(x, y, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(history["loss"][0], rel=1e-5)
    assert evaluated["accuracy"] == pytest.approx(history["accuracy"][0], rel=1e-5)


@pytest.mark.thorough
def test_evaluate_and_predict_charge_and_change_nothing(small):
    model = small.model(compile_kwargs={"metrics": ["accuracy"], **EAGER})
    fit_steps(model)
    before, ledger = model.get_weights(), model.ledger
    x, y = small.data()
    model.evaluate(x, y, verbose=0)
    model.evaluate(small.poisson(), verbose=0)
    model.predict(x, verbose=0)
    model(x)
    assert model.ledger == ledger
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_validation_data_is_not_charged(small):
    model = eager_model()
    x, y = small.data()
    history = fit_steps(model, 2, epochs=2, validation_data=(x, y)).history
    assert len(history["val_loss"]) == 2 and steps_of(model) == 4


@pytest.mark.thorough
def test_validation_split_shrinks_the_training_data(small):
    x, y = small.data()
    with pytest.raises(PrivacyError, match="num_examples"):
        small.model().fit(x, y, batch_size=10, validation_split=0.25, verbose=0)
    model = eager_model(num_examples=30)
    model.fit(x, y, batch_size=10, validation_split=0.25, verbose=0)
    assert steps_of(model) == 3


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("batch, is_assumed", [(30, True), (10, False)])
def test_where_a_validation_split_parts_full_batches_is_listed_as_assumed(small, batch, is_assumed):
    """A record less moves it; but a record that is blanked out, of shuffled batches, does not."""
    model = eager_model(num_examples=30, expected_batch_size=batch)
    model.fit(*small.data(), batch_size=batch, validation_split=0.25, verbose=0)
    assert ("validation_split" in str(model.privacy_statement())) == is_assumed


def test_empty_draws_are_noised_and_charged(small):
    # Fault 15: at B̄ = 0.5 most draws are empty.
    model = small.model(expected_batch_size=0.5, noise_multiplier=1.0)
    weights = [model.get_weights()[0].copy()]
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(model.get_weights()[0].copy())
    )
    history = model.fit(small.poisson(batch=0.5, steps_per_epoch=12), verbose=0, callbacks=[watch])
    assert steps_of(model) == 12
    assert np.isfinite(history.history["loss"][0])
    assert np.all(np.abs(np.diff(weights, axis=0)).max(axis=(1, 2)) > 1e-3)


@pytest.mark.thorough
def test_noise_is_the_same_whether_or_not_the_draw_is_empty(small):
    x, y = small.data()
    moved = []
    for weight in (0.0, 1.0):
        base = small.base()
        base.set_weights([np.zeros((3, 2), np.float32), np.zeros(2, np.float32)])
        model = eager_model(base, seed=3, clip_norm=1e-3)
        batch = tf.data.Dataset.from_tensors((x, y, np.full(small.n, weight, np.float32)))
        tfdp.data.declare_sampling(batch, "poisson", small.n, 10)
        model.fit(batch, verbose=0)
        moved.append(base.get_weights()[0])
    # 40 examples of norm 1e-3 over B̄ = 10 move the weights by at most 4e-3.
    assert 0 < np.linalg.norm(moved[0] - moved[1]) <= 4e-3
    assert np.linalg.norm(moved[0]) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_budget_stops_training_exactly_at_its_steps(small, steps_per_execution):
    how = EAGER if steps_per_execution == 1 else {"steps_per_execution": steps_per_execution}
    model = small.model(None, None, how, budget=tfdp.PrivacyBudget(0.5, 0.01), steps=7)
    history = model.fit(small.poisson(), epochs=50, verbose=0)
    assert len(history.epoch) <= 3
    assert steps_of(model) == 7
    assert model.optimizer.steps_left == 0
    assert model.optimizer.epsilon() <= 0.5
    assert model.privacy_statement().epsilon <= 0.5
    with pytest.raises(BudgetError, match="spent"):
        model.fit(small.poisson(), verbose=0)
    assert steps_of(model) == 7


def test_steps_beyond_the_budget_use_no_example(small):
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, 0.01), steps=2)
    x, y = np.ones((small.n, 3), np.float32), np.zeros(small.n, np.int32)
    fit_steps(model, 2)
    # A loop that goes on: 40 equal examples over B̄ = 10 would move the weights by 4·C.
    for _ in range(3):
        weights = model.get_weights()
        model.train_step((tf.constant(x), tf.constant(y)))
        moved = [b - a for a, b in zip(weights, model.get_weights(), strict=True)]
        assert 0 < np.sqrt(sum(np.sum(m**2) for m in moved)) < 1.5
    assert steps_of(model) == 2


@pytest.mark.thorough
def test_budget_after_the_charges_of_a_release(small):
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4)
    alone = model.optimizer.noise_multiplier
    release = tfdp.accounting.LedgerEntry("a release", dp_accounting.GaussianDpEvent(5.0))
    base = small.base()
    base.layers[0].privacy_releases = [release]
    model = eager_model(base, budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4)
    assert model.optimizer.noise_multiplier > alone
    fit_steps(model, 2, epochs=9)
    assert 0.99 < model.privacy_statement().epsilon <= 1.0
    assert [e.label for e in model.ledger.entries] == ["a release", "private training"]


@pytest.mark.thorough
def test_no_step_runs_after_a_fit_that_was_refused(small):
    base = small.base()
    model = eager_model(base, budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4)
    charging = model.optimizer.charging
    fit_steps(model, 2)
    base.layers[0].privacy_releases = [
        tfdp.accounting.LedgerEntry("a release", dp_accounting.GaussianDpEvent(0.9))
    ]
    with pytest.raises(BudgetError, match="charged again after"):
        model.fit(small.poisson(), verbose=0)
    x, y = small.data()
    with pytest.raises(PrivacyError, match="training_batches"):
        model.train_on_batch(x[:10], y[:10])
    assert steps_of(model) == 2 and not bool(charging.active(model))
    with pytest.raises(BudgetError):
        charging.begin(preflight.sampling_of_fit(model.optimizer, small.poisson(), None, {}))
    assert not bool(charging.active(model))


def test_a_run_that_is_refused_ends_the_one_before(small, monkeypatch):
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4)
    charging = model.optimizer.charging
    sampling = preflight.sampling_of_fit(model.optimizer, small.poisson(), None, {})
    charging.begin(sampling)
    assert bool(charging.active(model))

    def refused(*_):
        raise BudgetError("for whatever reason")

    monkeypatch.setattr(budget_checks, "refuse_spent", refused)
    with pytest.raises(BudgetError, match="whatever"):
        charging.begin(sampling)
    assert not bool(charging.active(model))


@pytest.mark.thorough
def test_charges_that_are_loaded_between_runs_allow_no_step(small, tmp_path):
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4)
    fit_steps(model, 2)
    model.save_weights(tmp_path / "m.weights.h5")
    model.load_weights(tmp_path / "m.weights.h5")
    assert model.optimizer.charging.allowed == 0 and model.optimizer.steps_left == 2
    assert not bool(model.optimizer.charging.active(model))


def test_input_pipelines_on_the_host_know_the_noise_of_the_run(small):
    # Rows that are selected there take part in the Gaussian of a step.
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=4, clip_norm=0.5)
    charging = model.optimizer.charging
    known = charging.host_noise_stddev()
    planned, batches = known.numpy(), tfdp.data.allocated_epochs(small.data(), 4)
    charging.begin(preflight.sampling_of_fit(model.optimizer, batches, None, {}))
    assert known.numpy() == charging.noise_stddev().numpy() != planned
    assert known.numpy() == pytest.approx(0.5 * model.optimizer.noise_multiplier)


@pytest.mark.thorough
def test_a_larger_budget_trains_on_and_counts_what_was_spent(small):
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, 0.01), steps=2)
    fit_steps(model, 2)
    larger = small.optimizer(budget=tfdp.PrivacyBudget(1.0, 0.01), steps=2)
    model.compile(larger, loss=small.loss, **EAGER)
    fit_steps(model, 2, epochs=9)
    assert steps_of(model) == 4
    assert 0.98 < model.privacy_statement().epsilon <= 1.0


@pytest.mark.thorough
def test_privacy_meter_shows_epsilon_and_stops(small):
    model = small.model(noise_multiplier=4.0)
    meter = tfdp.callbacks.PrivacyMeter(max_epsilon=0.51)  # of 14 steps: not at the end of an epoch
    history = model.fit(small.poisson(), epochs=20, verbose=0, callbacks=[meter]).history
    assert history["epsilon"] == sorted(history["epsilon"])
    spent = model.optimizer.epsilon()
    assert spent <= history["epsilon"][-1] <= spent + 1e-4 and spent <= 0.51
    assert model.optimizer.epsilon_after(1, model.optimizer.default_delta) > 0.51


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 41}, "num_examples"),
        ({"expected_batch_size": 9}, "expected_batch_size"),
        ({"expected_batch_size": 10.001}, "expected_batch_size"),
    ],
)
def test_data_must_match_the_optimizer(small, change, message):
    # Fault 14: n and q of the data are compared with the optimizer's.
    model = small.model(**change)
    x, y = small.data()
    for data in ((small.poisson(),), (x, y), (tfdp.data.shuffled_epochs((x, y), 10),)):
        with pytest.raises(PrivacyError, match=message):
            model.fit(*data, **({"batch_size": 10} if len(data) == 2 else {}), verbose=0)
    assert steps_of(model) == 0


def unknown_datasets(small):
    x, y = small.data()
    plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    yield plain, "does not state how"
    yield small.poisson().cache(), "does not state how"
    yield small.poisson().repeat(2), "does not state how"
    yield small.poisson().shuffle(4), "does not state how"
    yield small.poisson().unbatch().batch(10), "does not state how"
    yield small.poisson().map(lambda x, y, w: {"x": x, "y": y}), "sample weight"
    repeated = small.poisson().map(
        lambda x, y, w: (tf.repeat(x, 2, 0), tf.repeat(y, 2, 0), tf.repeat(w, 2, 0))
    )
    yield repeated, "rows"
    yield ((x, y) for _ in range(3)), "does not know"


@pytest.mark.thorough
def test_unknown_datasets_are_refused(small):
    model = small.model()
    for data, message in unknown_datasets(small):
        with pytest.raises(PrivacyError, match=message):
            model.fit(data, verbose=0)
    assert steps_of(model) == 0


def test_targets_that_are_missing_are_asked_for(small):
    model = small.model()
    with pytest.raises(ValueError, match="Argument `y` of `fit` must be given"):
        model.fit(small.data()[0], verbose=0)
    assert len(model.ledger) == 0


@pytest.mark.thorough
def test_harmless_maps_are_allowed(small):
    model = eager_model()
    data = small.poisson().map(lambda x, y, w: (2 * x, y, w)).prefetch(1).take(2)
    model.fit(data, verbose=0)
    assert steps_of(model) == 2 and math.isfinite(model.privacy_statement().epsilon)


BOTH = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.thorough
@pytest.mark.parametrize("built, fitted", slow.cases(BOTH, slow=[BOTH[0], BOTH[-1]]))
def test_a_step_is_planned_and_traced_once(small, built, fitted, monkeypatch):
    # Variables made in a trace would make TensorFlow trace the step again.
    calls = collections.Counter()

    def counted(module, name):
        original = getattr(module, name)

        def call(*args):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, call)

    counted(dp_model, "make_clipping_plan")
    counted(private_step, "sums_of_batch")
    base = small.base() if built else keras.Sequential([keras.layers.Dense(2)])
    metrics = {"metrics": ["accuracy"]}
    model = small.model(base, inner=keras.optimizers.Adam(), compile_kwargs=metrics)
    model.fit(small.poisson(), verbose=0) if fitted else model.train_on_batch(*small.data())
    assert calls == {"make_clipping_plan": 1, "sums_of_batch": 1}


def test_planning_a_model_that_it_builds_is_not_done_again(small):
    model = small.model(keras.Sequential([keras.layers.Dense(2)]))
    x = tf.constant(small.data()[0])
    assert model.clipping_plan(x) is model.clipping_plan(x)


@pytest.mark.thorough
def test_positional_arguments_of_fit(small):
    x, y = small.data()
    model = eager_model()
    model.fit(x, y, 10, 1, 0)
    assert steps_of(model) == 4


@pytest.mark.thorough
def test_summary_and_layers_of_the_wrapped_model(small):
    base = small.base()
    model = small.model(base)
    assert model.get_layer(base.layers[0].name) is base.layers[0]
    assert model.model is base and tfdp.make_private(base) is model
    assert tfdp.make_private(model) is model
    x, _ = small.data()
    np.testing.assert_array_equal(model.predict(x, verbose=0), base.predict(x, verbose=0))


@pytest.mark.thorough
def test_subclassed_model_built_by_its_first_batch(small):
    class Net(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    model = Net()
    model.compile(small.optimizer(), loss=small.loss, **EAGER)
    model.fit(small.poisson(), verbose=0)
    assert steps_of(model) == 4


@pytest.mark.parametrize("wrong", ["model", keras.layers.Dense(2)])
def test_only_models_can_be_made_private(wrong):
    with pytest.raises(ValueError, match="keras.Model"):
        tfdp.make_private(wrong)


def test_models_with_a_step_of_their_own_are_refused(small):
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    with pytest.raises(ValueError, match="train_step.*a loss for each output"):
        tfdp.make_private(Own())


@pytest.mark.parametrize("name", ["compute_loss", "compile"])
def test_models_whose_methods_would_not_be_called_are_refused(name):
    """A model that distills, say: its `compile` takes a loss, which its `compute_loss` adds."""
    own = type("Own", (keras.Model,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ValueError, match=f"own `{name}`.*Subclass `tfdp.models.DPModel`"):
        tfdp.make_private(own())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": None}, "Exactly one"),
        ({"budget": tfdp.PrivacyBudget(1, 0.01), "noise_multiplier": 1.0}, "Exactly one"),
        ({"budget": 3.0, "steps": 3}, "PrivacyBudget"),
        ({"budget": tfdp.PrivacyBudget(1, 0.5), "steps": 3}, "delta"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"num_examples": 0}, "num_examples"),
        ({"expected_batch_size": 41}, "expected_batch_size"),
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clipping": "none"}, "clipping"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"microbatch_size": 2.5}, "microbatch_size"),
        ({"per_example_reduction": "none"}, "per_example_reduction"),
        ({"steps": 1.5}, "steps"),
        ({"seed": 1.5}, "seed"),
        ({"inner": keras.optimizers.SGD(gradient_accumulation_steps=2)}, "accumulates"),
        ({"inner": keras.optimizers.SGD(loss_scale_factor=8.0)}, "scales the loss"),
        ({"inner": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())}, "scales the"),
    ],
)
def test_arguments_are_checked(small, arguments, message):
    with pytest.raises(ValueError, match=message):
        small.optimizer(**arguments)


def test_a_private_optimizer_cannot_wrap_another(small):
    with pytest.raises(ValueError, match="already"):
        small.optimizer(small.optimizer())


@pytest.mark.thorough
def test_settings_cannot_change_after_they_were_charged(small):
    model = eager_model()
    fit_steps(model)
    ledger = model.ledger
    for name, value in (("num_examples", 4000), ("clip_norm", 9.0), ("expected_batch_size", 1),
                        ("seed", 3), ("steps", 9)):  # fmt: skip
        with pytest.raises(AttributeError, match=name):
            setattr(model.optimizer, name, value)
    with pytest.raises(AttributeError):
        model.optimizer.noise_multiplier = 9.0
    assert model.ledger == ledger


@pytest.mark.thorough
def test_micro_batches_add_up_to_what_one_example_moves_by_its_norm(small):
    """With it the sum so far stays above a power of two, below which float32 is twice as fine."""
    size, half, together = 16_384, 8192, 16
    gradients = np.full((size, 1), -0.99 * 2.0**-11 / together, np.float32)
    gradients[1:half], gradients[half] = 1.0, 0.5
    gradients[half + 1 : half + together] = 0.0
    base = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model = small.model(
        tfdp.make_private(base, validate=False), lambda y, output: y * output, noise_multiplier=0.0,
        clip_norm=1.01, microbatch_size=together, num_examples=size, expected_batch_size=size,
    )  # fmt: skip
    x = tf.ones([size, 1])
    model.clipping_plan(x)

    @tf.function(autograph=False)
    def run(y):
        return private_step.sums_of_microbatches(model, x, y, None)[0][0, 0]

    sums = []
    for own in (0.0, 1.0):
        gradients[0] = own
        sums.append(float(run(tf.constant(gradients))))
    assert sums[1] - sums[0] == pytest.approx(1.0, abs=sum_rounding(size))


@pytest.mark.thorough
def test_mixed_bfloat16_trains(small):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = eager_model(noise_multiplier=0.0, clip_norm=0.1, num_examples=small.n,
                            expected_batch_size=small.n)  # fmt: skip
        x, y = small.data()
        before = model.get_weights()
        model.fit(x, y, batch_size=small.n, verbose=0)
        assert all(w.dtype == np.float32 for w in model.get_weights())
        moved = [b - a for a, b in zip(before, model.get_weights(), strict=True)]
        assert 0 < np.sqrt(sum(np.sum(m**2) for m in moved)) <= 0.1 * (1 + 1e-6)
    finally:
        keras.config.set_dtype_policy(policy)


def test_a_subclass_built_from_symbolic_inputs_is_refused_before_keras_changes_its_bases():
    class Mine(tfdp.models.DPModel):
        pass

    x = keras.Input((2,))
    with pytest.raises(ValueError, match="make_private"):
        Mine(x, keras.layers.Dense(1)(x))
    with pytest.raises(ValueError, match="make_private"):
        Mine(inputs=x, outputs=keras.layers.Dense(1)(x))
    assert not issubclass(tfdp.models.DPModel, type(keras.Model(x, x)))
