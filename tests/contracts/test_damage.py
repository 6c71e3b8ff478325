"""Damaged files, and values that no model expects: a clear error, or training as accounted."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import PrivacyError
from tfdp.noise import NoiseSource

N = 40


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, 5)).astype(np.float32)
    return x, generator.normal(size=(N, 3)).astype(np.float32)


def model(learning_rate=0.1):
    base = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)]
    )
    made = tfdp.make_private(base)
    made.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(learning_rate),
            noise_multiplier=1.0, num_examples=N, expected_batch_size=10,
        ),
        loss="mse", jit_compile=False,
    )  # fmt: skip
    return made


def fit(made, x, y, weights=None):
    arrays = (x, y) if weights is None else (x, y, weights)
    made.fit(tfdp.data.poisson_batches(arrays, 10), epochs=1, verbose=0)


@pytest.fixture(scope="module")
def trained():
    made = model()
    fit(made, *data())
    return made


VALUES = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, 0.0]


@pytest.mark.filterwarnings("ignore:There are values that are not a number")
def test_no_value_of_a_record_shows_in_the_weights(trained):
    """One record that made them NaN would be seen at every epsilon. Its losses are not covered."""
    expected = trained.optimizer.epsilon(1e-3)
    made = model()
    start = made.get_weights()
    for where in range(3):
        arrays = [*data(), np.ones(N, np.float32)]
        # Each value in records of its own; what overflows, overflows in them alone.
        for i, value in enumerate(VALUES):
            arrays[where][i::10] = value
        made.set_weights(start)
        made.fit(tfdp.data.poisson_batches(tuple(arrays), 10), epochs=1, verbose=0)
        for before, after in zip(start, made.get_weights(), strict=True):
            assert np.isfinite(after).all()
            # 4 steps of at most (36 records + 7 sigma) / 10 each.
            assert np.linalg.norm(after - before) < 4 * 0.1 * (36 + 7 * 6) / 10
    assert made.optimizer.steps_taken == 12 and made.optimizer.epsilon(1e-3) > expected


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Embedding", "SparseEmbedding"])
def test_ids_out_of_range_are_refused_or_harmless(name):
    layer = getattr(keras.layers if name == "Embedding" else tfdp.layers, name)(10, 3)
    base = keras.Sequential(
        [keras.Input((4,), dtype="int32"), layer, keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    made = tfdp.make_private(base)
    made.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0, num_examples=N, expected_batch_size=10,
        ),
        loss="mse", run_eagerly=True,
    )  # fmt: skip
    ids = np.full((N, 4), 3, np.int32)
    for out in (10, 2**31 - 1):
        ids[:, 0] = out
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, 10\)"):
            fit(made, ids, data()[1])
    assert made.optimizer.steps_taken == 0


@pytest.mark.thorough
def test_a_file_that_is_cut_or_altered_does_not_load(trained, tmp_path):
    trained.save(tmp_path / "whole.keras")
    raw = (tmp_path / "whole.keras").read_bytes()
    generator = np.random.default_rng(1)
    damaged = [raw[:cut] for cut in (0, 10, len(raw) // 2, len(raw) - 20)]
    for place in generator.integers(100, len(raw) - 2000, 12):
        altered = bytearray(raw)
        altered[place] ^= 1 << generator.integers(8)
        damaged.append(bytes(altered))
    for content in damaged:
        (tmp_path / "damaged.keras").write_bytes(content)
        try:
            loaded = keras.models.load_model(tmp_path / "damaged.keras")
        except Exception:
            continue
        # A bit that no check sum covers, in a name or a date.
        assert loaded.ledger == trained.ledger


@pytest.mark.thorough
def test_a_file_without_its_charges_is_no_private_model(trained, tmp_path):
    """Whoever strips the charges from a file gets weights of unknown origin, not free ones."""
    trained.save_weights(tmp_path / "m.weights.h5")
    import h5py

    with h5py.File(tmp_path / "m.weights.h5", "r+") as file:
        names = []
        file.visit(names.append)
        for name in [n for n in names if "charge" in n or "histor" in n]:
            if name in file:
                del file[name]
    fresh = model()
    try:
        fresh.load_weights(tmp_path / "m.weights.h5")
    except Exception:
        return
    statement = fresh.privacy_statement(1e-3)
    assert statement.epsilon >= trained.privacy_statement(1e-3).epsilon or statement.assumptions


@pytest.mark.thorough
def test_threads_that_fit_one_model_are_all_charged():
    made, errors = model(), []

    def run():
        try:
            fit(made, *data())
        except PrivacyError as error:
            errors.append(error)

    fit(made, *data())
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    charged = sum(run[1] for run in made.charge_history.runs)
    assert charged == made.optimizer.steps_taken
    assert charged >= int(
        made.optimizer.inner_optimizer.iterations
        if hasattr(made.optimizer, "inner_optimizer")
        else made.optimizer.iterations
    )
    assert charged == 4 + 4 * (3 - len(errors))
    assert len(np.unique(made.get_weights()[0])) == 20 and np.isfinite(made.evaluate(*data()))


def test_a_second_fit_of_a_model_that_trains_is_refused_and_leaves_the_first_alone():
    """Its steps would be charged as those of the second; and both could draw the same noise."""
    made, errors = model(), []

    def again(*_, **__):
        for begin in (lambda: fit(made, *data()),
                      lambda: next(made.training_batches(
                          tfdp.data.poisson_batches(data(), 10)))):  # fmt: skip
            with pytest.raises(PrivacyError, match="still running"):
                begin()
            errors.append(1)

    def in_a_thread(*_, **__):
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=again, on_train_batch_begin=in_a_thread)
    ]
    made.fit(tfdp.data.poisson_batches(data(), 10), epochs=1, verbose=0, callbacks=callbacks)
    assert len(errors) == 16 and [run[1] for run in made.charge_history.runs] == [4]
    fit(made, *data())
    assert made.optimizer.steps_taken == 8 and np.isfinite(made.optimizer.epsilon(1e-3))


def test_threads_that_share_a_source_of_noise_draw_different_noise():
    source, drawn = NoiseSource(), []
    source.normal((4,), 1.0)

    def run():
        for _ in range(50):
            drawn.append(source.normal((4,), 1.0).numpy())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Of 600 float32 normals 0.05 pairs are equal by chance; without a lock half of them were.
    assert len(np.unique(np.concatenate(drawn))) > 595
