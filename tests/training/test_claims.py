"""An optimizer is in the run of one model at a time, and charges the steps of that run alone."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model, fit_steps

import tfdp
from tfdp.errors import PrivacyError

EAGER = {"run_eagerly": True}


class Pair:
    """Two models that share their layers and their optimizer."""

    def __init__(self, small, **settings):
        base, self.optimizer = small.base(), small.optimizer(**settings)
        self.first, self.second = (
            tfdp.make_private(keras.Model(base.inputs, base.outputs), validate=False)
            for _ in range(2)
        )
        for model in (self.second, self.first):
            model.compile(self.optimizer, small.loss, **EAGER)
        self.shuffled = tfdp.data.shuffled_epochs(small.data(), 10)
        self.poisson = small.poisson(steps_per_epoch=1)

    def fit_first(self, act):
        """Fits the first model on shuffled batches, and acts once in a callback."""
        acts = iter([act])
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: next(acts, lambda: None)()
        )
        self.first.fit(self.shuffled, verbose=0, callbacks=[callback])


@pytest.fixture
def pair(small):
    return Pair(small)


ACTS = {
    "training_batches": lambda pair: next(pair.second.training_batches(pair.poisson)),
    "fit": lambda pair: pair.second.fit(pair.poisson, verbose=0),
    "train_on_batch": lambda pair: pair.second.train_on_batch(*next(iter(pair.poisson))),
    "train_step": lambda pair: pair.second.train_step(next(iter(pair.poisson))),
    "compile": lambda pair: pair.second.compile(pair.optimizer, "mse", **EAGER),
}


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("act", ACTS)
def test_an_optimizer_in_a_run_serves_no_other_model(pair, act):
    seen = []

    def refused():
        with pytest.raises(PrivacyError, match=f"{pair.second.name}.*a run of model"):
            ACTS[act](pair)
        seen.append(act)

    pair.fit_first(refused)
    assert seen == [act]
    ((mechanism, steps),) = pair.first.charge_history.private_runs
    assert (mechanism.sampling.kind, steps) == ("shuffled", 4)
    pair.second.fit(pair.poisson, verbose=0)  # afterwards it is free
    kinds = [mechanism.sampling.kind for mechanism, _ in pair.first.charge_history.private_runs]
    assert kinds == ["shuffled", "poisson"]


@pytest.mark.thorough
def test_batches_that_are_not_used_up_hold_the_optimizer_until_they_are_closed(pair):
    batches = pair.first.training_batches(pair.poisson)
    next(batches)
    with pytest.raises(PrivacyError, match="close its `training_batches`"):
        pair.second.fit(pair.shuffled, verbose=0)
    batches.close()
    pair.second.fit(pair.shuffled, verbose=0)


@pytest.mark.thorough
def test_a_model_with_a_new_optimizer_gives_the_old_one_back(pair, small):
    steps = pair.first.training_batches(pair.poisson)
    next(steps)
    pair.first.compile(small.optimizer(), small.loss, **EAGER)
    pair.first.fit(pair.poisson, verbose=0)
    pair.second.fit(pair.poisson, verbose=0)
    assert pair.optimizer.steps_taken > 0


@pytest.mark.thorough
def test_a_step_that_was_traced_before_sees_no_example_in_another_models_run(small):
    pair = Pair(small, noise_multiplier=0.0)
    step = tf.function(pair.second.train_step, autograph=False)  # converts for minutes
    batch = next(iter(pair.poisson))

    def moved():
        before = pair.second.get_weights()
        step(batch)
        after = pair.second.get_weights()
        return not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))

    assert moved()
    seen = []
    pair.fit_first(lambda: seen.append(moved()))
    assert seen == [False] and moved()


def in_another_thread(function):
    """What a function raises there; None for nothing."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).exception()


@pytest.mark.parametrize("how", ["fit", "loop"])
def test_weights_are_not_written_while_another_thread_trains_them(small, tmp_path, how):
    """A file counted 19 steps, and held the weights of 20 or more."""
    model = eager_model()
    written = {
        "model": lambda: model.save(tmp_path / "m.keras"),
        "weights": lambda: model.save_weights(tmp_path / "m.weights.h5"),
        "plain": lambda: model.model.save(tmp_path / "plain.keras"),
        "checkpoint": lambda: tf.train.Checkpoint(model=model).write(str(tmp_path / "c")),
        "tree": lambda: model.get_state_tree("numpy_array"),
        "export": lambda: tfdp.serving.export(model, tmp_path / "exported"),
    }
    refused = {}

    def try_all(batch=None, logs=None):
        for name, write in written.items():
            refused[name] = isinstance(in_another_thread(write), PrivacyError)
        written["model"]()  # in this thread no step runs meanwhile

    if how == "fit":
        save = keras.callbacks.LambdaCallback(on_train_batch_end=try_all)
        fit_steps(model, callbacks=[save])
    else:
        for batch in model.training_batches(small.poisson(steps_per_epoch=1)):
            model.train_on_batch(*batch)
            try_all()
    assert refused == dict.fromkeys(written, True)
    assert not any(map(in_another_thread, written.values()))
    assert keras.models.load_model(tmp_path / "m.keras").optimizer.steps_taken == 1
