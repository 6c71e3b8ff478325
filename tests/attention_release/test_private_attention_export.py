"""Noise of the exported layer is fresh in every process, at every call, under concurrency."""

import concurrent.futures
import json
import pathlib

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

from tfdp.accounting import PrivacyBudget
from tfdp.layers import PrivateAttention
from tfdp.noise import ServingNoiseSource

SERVER = """
import json, sys
import tensorflow as tf
tf.random.set_seed(0)
loaded = [tf.saved_model.load(sys.argv[1]) for _ in range(2)]
x = tf.ones([1, 8, 16])
compiled = tf.function(lambda x: loaded[0].serve(x), jit_compile=True, autograph=False)
calls = [loaded[0].serve(x), loaded[0].serve(x), loaded[1].serve(x), compiled(x), compiled(x)]
print("RESULT" + json.dumps([c.numpy()[0, 3, :3].tolist() for c in calls]))
"""


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([8, 16])
    # A seed would make this process repeat itself; the exported model must not.
    layer = PrivateAttention(PrivacyBudget(2.0, 1e-5), 1.0, "feature", seed=11, name="release")
    return keras.Model(inputs, layer(inputs))


def serve_in_new_processes(path, number):
    running = [processes.Running(SERVER, path) for _ in range(number)]
    outputs = [process.finish().checked().stdout for process in running]
    return [json.loads(text.split("RESULT")[1]) for text in outputs]


@pytest.mark.thorough
def test_exported_model_draws_different_noise_in_each_process_and_at_each_call(model, tmp_path):
    model.export(tmp_path / "served", verbose=False)
    calls = serve_in_new_processes(tmp_path / "served", number=2)
    drawn = np.array(calls).reshape(-1, 3)
    assert len(drawn) == 10 and len({tuple(row) for row in drawn}) == 10
    statement = model.get_layer("release").privacy_statement()
    assert sorted(statement.epsilon_by_calls) == [1, 10, 100, 1000]


def test_nothing_that_is_saved_holds_the_state_of_the_noise(model, tmp_path):
    model.export(tmp_path / "served", verbose=False)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    model.save(tmp_path / "model.keras")
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    state = tf.raw_ops.ReadVariableOp(
        resource=model.get_layer("release")._noise.resource_handle, dtype=tf.int64
    ).numpy()
    words = [word.tobytes() for word in state]
    files = [p for p in pathlib.Path(tmp_path).rglob("*") if p.is_file()]
    assert len(files) > 5
    for file in files:
        assert not any(word in file.read_bytes() for word in words), file
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    serve = loaded.signatures["serving_default"]
    x = tf.ones([1, 8, 16])
    first, second = (next(iter(serve(x).values())).numpy() for _ in range(2))
    assert np.any(first != second)


def test_sources_ignore_global_seeds_and_differ_from_each_other():
    draws = []
    for _ in range(3):
        keras.utils.set_random_seed(5)
        draws += ServingNoiseSource().bits([8]).numpy().tolist()
    assert len(set(draws)) == 24


def test_seed_fixes_a_source_for_tests_only():
    first, second, other = (ServingNoiseSource(seed=s).bits([4]).numpy() for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not set(first) & set(other)
    with pytest.raises(ValueError, match="`seed`"):
        ServingNoiseSource(seed=1.5)


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [False, True])
def test_concurrent_calls_never_share_bits(jit_compile):
    source = ServingNoiseSource()
    draw = tf.function(lambda: source.bits([50]), jit_compile=jit_compile, autograph=False)
    draw()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        draws = list(pool.map(lambda _: draw().numpy(), range(400)))
    assert len(set(np.concatenate(draws))) == 400 * 50


def test_bits_are_uniform():
    bits = ServingNoiseSource(seed=0).bits([20_000]).numpy()
    ones = ((bits[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(0)
    assert np.abs(ones - 0.5).max() < 6 * 0.5 / np.sqrt(len(bits))
