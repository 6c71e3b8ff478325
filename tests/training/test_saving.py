"""However a model is saved and restored, its ledger stays exact."""

import os
import pathlib
import platform
import subprocess
import sys

import dp_accounting
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps

import tfdp
from tfdp.errors import BudgetError, PrivacyError


def charges(model):
    """Steps by noise multiplier."""
    found = {}
    for entry in model.ledger.entries:
        sigma = entry.event.event.noise_multiplier
        found[sigma] = found.get(sigma, 0) + entry.count
    return found


def trained(small, **kwargs):
    """A model after two steps."""
    model = eager_model(**kwargs)
    fit_steps(model, 2)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("persons", [False, True])
def test_weights_from_a_file_state_their_epsilon_before_data_are_known(small, tmp_path, persons):
    def fresh(**amount):
        model = tfdp.make_private(small.base(), validate=False)
        optimizer = tfdp.optimizers.DPOptimizer("sgd", **(amount or {"noise_multiplier": 1.0}))
        model.compile(optimizer, loss=small.loss, **EAGER)
        return model

    by_person = {"privacy_ids": np.arange(small.n) // 2, "max_records_per_unit": 2}
    model, restored = fresh(), fresh()
    with pytest.raises(PrivacyError, match="without num_examples"):
        restored.privacy_statement()
    model.fit(small.poisson(**(by_person if persons else {})), verbose=0)
    model.save_weights(tmp_path / "of.weights.h5")
    restored.load_weights(tmp_path / "of.weights.h5")
    assert str(restored.privacy_statement()) == str(model.privacy_statement())
    assert restored.optimizer.epsilon() == model.optimizer.epsilon()
    tfdp.serving.export(restored, tmp_path / "exported")
    budgeted = fresh(budget=tfdp.PrivacyBudget(50.0, 0.01))
    budgeted.load_weights(tmp_path / "of.weights.h5")
    assert budgeted.privacy_statement().epsilon == model.privacy_statement(0.01).epsilon


class Stored:
    """A model after two steps with σ = 1, and the files that it was saved to."""

    def __init__(self, small, folder):
        self.model = trained(small)
        self.keras, self.weights = folder / "m.keras", folder / "m.weights.h5"
        self.model.save(self.keras)
        self.model.save_weights(self.weights)
        self.checkpoint = tf.train.Checkpoint(model=self.model).save(str(folder / "c"))


@pytest.fixture(scope="module")
def stored(small, tmp_path_factory):
    return Stored(small, tmp_path_factory.mktemp("stored"))


class Crash(keras.callbacks.Callback):
    """A run that dies after two epochs."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise RuntimeError("crash")


@pytest.mark.thorough
def test_keras_file_goes_on_with_the_same_ledger(small, tmp_path):
    model = eager_model(inner=keras.optimizers.Adam(0.1))
    fit_steps(model, 2)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert isinstance(other.optimizer, tfdp.optimizers.DPOptimizer)
    assert other.ledger == model.ledger
    assert int(other.optimizer.iterations) == 2
    assert other.privacy_statement().epsilon == model.privacy_statement().epsilon
    for a, b in zip(model.optimizer.inner_optimizer.variables,
                    other.optimizer.inner_optimizer.variables, strict=True):  # fmt: skip
        assert keras.ops.all(a == b)
    fit_steps(other)
    assert charges(other) == {1.0: 3}


def test_configuration_round_trip(small):
    optimizer = small.optimizer(
        keras.optimizers.Adam(0.1), budget=tfdp.PrivacyBudget(2.0, 0.01), steps=5, clip_norm=0.3,
        clipping="normalized", microbatch_size=4, per_example_reduction="sum", seed=4,
    )  # fmt: skip
    config = optimizer.get_config()
    other = type(optimizer).from_config(config)
    assert other.get_config() == config
    assert other.noise_multiplier == optimizer.noise_multiplier


@pytest.mark.thorough
@pytest.mark.parametrize("compile_first", [True, False])
def test_weights_file_carries_the_ledger(small, stored, compile_first):
    other = tfdp.make_private(small.base())
    if compile_first:
        other = eager_model()
        other.optimizer.build(other.trainable_variables)
    other.load_weights(stored.weights)
    other.compile(small.optimizer(), loss=small.loss, **EAGER)
    assert charges(other) == {1.0: 2}
    fit_steps(other)
    assert charges(other) == {1.0: 3}


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("compile_first", [True, False])
def test_checkpoint_carries_the_ledger(small, stored, compile_first):
    other = eager_model() if compile_first else tfdp.make_private(small.base())
    tf.train.Checkpoint(model=other).restore(stored.checkpoint)
    if not compile_first:
        other.compile(small.optimizer(), loss=small.loss, **EAGER)
    fit_steps(other)
    assert charges(other) == {1.0: 3}


def test_a_state_tree_carries_the_ledger_and_no_metrics(small, stored):
    """Orbax checkpoints hold one; where they hold weights alone, the first two parts of it."""
    tree = stored.model.get_state_tree("numpy_array")
    assert not tree["metrics_variables"]
    weights_alone = {
        name: tree[name] for name in ("trainable_variables", "non_trainable_variables")
    }
    for given in (tree, weights_alone):
        other = eager_model()
        other.set_state_tree(given)
        assert charges(other) == {1.0: 2}
        assert not other.weight_origin.elsewhere()
        fit_steps(other)
        assert charges(other) == {1.0: 3}
    assert charges(stored.model) == {1.0: 2}


def test_the_variables_of_an_optimizer_carry_the_charges_by_themselves(small, stored):
    held, other = {}, eager_model()
    stored.model.optimizer.save_own_variables(held)
    other.optimizer.build(other.trainable_variables)
    other.optimizer.load_own_variables(held)
    assert charges(other) == {1.0: 2}
    # Of another number of variables nothing is loaded but what was charged.
    third = eager_model()
    third.optimizer.build(third.trainable_variables)
    with pytest.raises(ValueError, match="variables of an optimizer"):
        third.optimizer.load_own_variables({**held, "99": np.zeros(1)})
    assert charges(third) == {1.0: 2}


@pytest.mark.thorough
def test_keras_file_loaded_without_its_optimizer(small, stored):
    other = keras.models.load_model(stored.keras, compile=False)
    other.compile(small.optimizer(noise_multiplier=3.0), loss=small.loss, **EAGER)
    fit_steps(other)
    assert charges(other) == {1.0: 2, 3.0: 1}


@pytest.mark.thorough
def test_other_settings_do_not_relabel_restored_steps(small, tmp_path):
    model = trained(small, noise_multiplier=0.5)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    other = eager_model(noise_multiplier=5.0)
    tf.train.Checkpoint(model=other).restore(path)
    fit_steps(other)
    assert charges(other) == {0.5: 2, 5.0: 1}


# Crashes with a budget, and runs that go on (of weights' origin), stand for it every day.
@pytest.mark.evidence
def test_backup_and_restore(small, tmp_path):
    model = eager_model()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(RuntimeError, match="crash"):
        fit_steps(model, epochs=4, callbacks=[backup, Crash()])
    other = eager_model()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    fit_steps(other, epochs=4, callbacks=[backup])
    assert charges(other) == {1.0: 4}


@pytest.mark.thorough
def test_loading_older_weights_charges_the_undone_steps(small, tmp_path):
    model = small.model()  # its trace is from before the weights are loaded
    fit_steps(model, 2)
    model.save_weights(tmp_path / "old.weights.h5")
    fit_steps(model)
    model.load_weights(tmp_path / "old.weights.h5")
    assert charges(model) == {1.0: 3}
    fit_steps(model)
    model.load_weights(tmp_path / "old.weights.h5")
    assert charges(model) == {1.0: 4}
    # Copies of one history cost once.
    model.load_weights(tmp_path / "old.weights.h5")
    assert charges(model) == {1.0: 4}


@pytest.mark.thorough
def test_two_histories_cost_twice(small, stored):
    two = trained(small)
    two.load_weights(stored.weights)
    assert charges(two) == {1.0: 4}


@pytest.mark.thorough
def test_changing_the_noise_gives_two_entries(small):
    model = trained(small)
    model.compile(small.optimizer(noise_multiplier=2.0), loss=small.loss, **EAGER)
    fit_steps(model)
    assert charges(model) == {1.0: 2, 2.0: 1}
    assert len(model.ledger) == 2


@pytest.mark.thorough
def test_recompiling_and_wrapping_again_keep_the_ledger(small):
    base = small.base()
    model = trained(small, base=base)
    model.compile(small.optimizer(), loss=small.loss)
    assert charges(model) == {1.0: 2}
    again = tfdp.make_private(base)
    again.compile(small.optimizer(), loss=small.loss, **EAGER)
    fit_steps(again)
    assert charges(again) == {1.0: 3}


@pytest.mark.thorough
def test_recompiling_with_the_same_optimizer_charges_once(small):
    model = trained(small)
    model.compile(model.optimizer, loss=small.loss, **EAGER)
    fit_steps(model)
    assert charges(model) == {1.0: 3}


@pytest.mark.thorough
def test_a_loaded_run_with_other_noise_that_leaves_too_little_is_refused(small, tmp_path):
    # The run that is loaded, of the same budget, has another σ.
    settings = {"budget": tfdp.PrivacyBudget(8.0, 0.01), "steps": 6}
    release = tfdp.accounting.LedgerEntry("a release", dp_accounting.GaussianDpEvent(0.8))
    one = small.base()
    one.layers[0].privacy_releases = [release]
    one = eager_model(one, **settings)
    fit_steps(one)
    one.save_weights(tmp_path / "one.weights.h5")
    two = eager_model(**settings)
    fit_steps(two)
    assert two.optimizer.noise_multiplier < 0.95 * one.optimizer.noise_multiplier
    two.load_weights(tmp_path / "one.weights.h5")
    before = two.get_weights()
    # The release took what the steps that are left would cost.
    with pytest.raises(BudgetError, match="steps would end at epsilon"):
        fit_steps(two, 4)
    for a, b in zip(two.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_training_with_a_plain_optimizer_is_never_forgotten(small, tmp_path, how):
    model = tfdp.make_private(small.base())
    model.compile("sgd", loss=small.loss, **EAGER)
    x, y = small.data()
    if how == "fit":
        model.fit(x, y, verbose=0)
    else:
        model.train_on_batch(x, y)
    model.save(tmp_path / "m.keras")
    for candidate in (model, keras.models.load_model(tmp_path / "m.keras")):
        candidate.compile(small.optimizer(), loss=small.loss, **EAGER)
        assert candidate.privacy_statement().epsilon == float("inf")


@pytest.mark.thorough
def test_plain_training_between_private_fits(small):
    model = trained(small)
    private = model.optimizer
    model.compile(private.inner_optimizer, loss=small.loss, **EAGER)
    # What the weights have cost does not depend on what the model is compiled with.
    assert model.privacy_statement().epsilon == private.epsilon()
    x, y = small.data()
    model.fit(x, y, verbose=0)
    assert model.privacy_statement().epsilon == private.epsilon() == float("inf")
    model.compile(private, loss=small.loss)
    assert model.privacy_statement().epsilon == float("inf")


@pytest.mark.thorough
def test_a_private_model_inside_another_brings_its_ledger(small):
    inner = trained(small, noise_multiplier=0.5)
    outer = tfdp.make_private(keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(2)]))
    outer.compile(small.optimizer(), loss=small.loss, **EAGER)
    fit_steps(outer)
    assert charges(outer) == {0.5: 2, 1.0: 1}


@pytest.mark.thorough
def test_history_of_a_restored_budget_counts(small, tmp_path):
    settings = {"budget": tfdp.PrivacyBudget(0.5, 0.01), "steps": 5}
    model = eager_model(**settings)
    fit_steps(model, 2)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.optimizer.steps_left == 3
    fit_steps(other, epochs=50)
    assert other.optimizer.steps_taken == 5
    assert 0.49 < other.optimizer.epsilon() <= 0.5


@pytest.mark.thorough
def test_backup_does_not_enlarge_the_budget(small, tmp_path):
    settings = {"budget": tfdp.PrivacyBudget(0.5, 0.01), "steps": 5}
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(RuntimeError, match="crash"):
        fit_steps(eager_model(**settings), epochs=9, callbacks=[backup, Crash()])
    other = eager_model(**settings)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    fit_steps(other, epochs=50, callbacks=[backup])
    assert other.optimizer.steps_taken == 5
    assert other.optimizer.epsilon() <= 0.5


@pytest.mark.thorough
def test_inner_models_that_train_on_are_charged_outside(small):
    inner = eager_model(noise_multiplier=0.5)
    fit_steps(inner)
    outer = tfdp.make_private(keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(2)]))
    outer.compile(small.optimizer(), loss=small.loss)
    assert charges(outer) == {0.5: 1}
    fit_steps(inner, 2)
    assert charges(outer) == {0.5: 3}


def test_layers_shared_with_another_private_model_bring_their_charges(small):
    body = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"),
                             keras.layers.Dense(2)])  # fmt: skip
    one = trained(small, base=body, noise_multiplier=0.5)
    features = keras.Model(body.inputs, body.layers[0].output)
    two = eager_model(keras.Sequential([features, keras.layers.Dense(2)]))
    fit_steps(two)
    assert charges(two) == {0.5: 2, 1.0: 1}
    assert charges(one)[0.5] == 2


@pytest.mark.thorough
def test_files_load_after_importing_only_the_package(stored):
    script = (
        "import sys, keras, tfdp; m = keras.models.load_model(sys.argv[1]); "
        "print(m.optimizer.steps_taken)"
    )
    assert processes.run(script, stored.keras).split()[-1] == "2"


def test_saved_model_of_a_compiled_model(stored, tmp_path):
    tf.saved_model.save(stored.model, str(tmp_path / "saved"))
    assert charges(stored.model) == {1.0: 2}


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("double_checkpoint", [False, True])
def test_a_backup_that_is_interrupted_leaves_the_one_before(
    small, tmp_path, monkeypatch, double_checkpoint
):
    def backup():
        return tfdp.distribution.BackupAndRestore(
            tmp_path, delete_checkpoint=False, double_checkpoint=double_checkpoint
        )

    model = eager_model()
    fit_steps(model, callbacks=[backup()])
    assert {"latest.weights.h5", "training_metadata.json"} <= {f.name for f in tmp_path.iterdir()}

    def killed(self, filepath, **kwargs):
        pathlib.Path(filepath).write_bytes(b"the first half of")
        raise KeyboardInterrupt

    for _ in range(2):  # the second finds what the first left
        with monkeypatch.context() as patched:
            patched.setattr(keras.Model, "save_weights", killed)
            patched.setattr(type(model), "save_weights", killed)
            with pytest.raises(KeyboardInterrupt):
                fit_steps(eager_model(), epochs=2, callbacks=[backup()])
        assert not [f.name for f in tmp_path.iterdir() if f.name.startswith("part.")]
    resumed = eager_model()
    fit_steps(resumed, epochs=2, callbacks=[backup()])
    # The epoch of the backup and one more; those of the killed processes are in no weights.
    assert resumed.optimizer.steps_taken == 2 * model.optimizer.steps_taken == 2
    assert resumed.ledger.epsilon(1e-3) > model.ledger.epsilon(1e-3)


@pytest.mark.thorough
def test_two_trainings_that_write_into_one_folder_leave_one_whole_backup(
    small, tmp_path, monkeypatch
):
    """While the first one writes, the second one begins and ends a backup."""

    def backup():
        return tfdp.distribution.BackupAndRestore(tmp_path, delete_checkpoint=False)

    first, second = eager_model(), eager_model()
    fit_steps(first)
    fit_steps(second, 3)
    callbacks = [backup(), backup()]
    for callback, model in zip(callbacks, (first, second), strict=True):
        callback.set_model(model)
    save = type(first).save_weights

    def slowly(self, filepath, **kwargs):
        save(self, filepath, **kwargs)
        if self is first:
            callbacks[1].on_epoch_end(2)

    monkeypatch.setattr(type(first), "save_weights", slowly)
    callbacks[0].on_epoch_end(0)
    monkeypatch.undo()
    assert {f.name for f in tmp_path.iterdir()} == {"latest.weights.h5", "training_metadata.json"}
    resumed = eager_model()
    fit_steps(resumed, callbacks=[backup()])
    # The first one's, which was the last to be put into its place; nothing of it is run again.
    assert resumed.optimizer.steps_taken == first.optimizer.steps_taken == 1
    for a, b in zip(resumed.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_killed_processes_left_of_a_backup_is_removed(small, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f"part.{host}.{pid}.1.latest.weights.h5" for host, pid in (
        (platform.node(), dead.pid), (platform.node(), os.getpid()), ("another", dead.pid),
    )]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(b"the first half of")
    backup = tfdp.distribution.BackupAndRestore(tmp_path, delete_checkpoint=False)
    fit_steps(eager_model(), callbacks=[backup])
    left = {f.name for f in tmp_path.iterdir() if f.name.startswith("part.")}
    assert left == set(names[1:])
