"""The layer: what is clipped, what is added, when, and how fresh it is."""

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

from tfdp.layers import DPForwardNoise
from tfdp.layers.dp_forward_noise import clip_examples
from tfdp.noise.grid import CLIPPED


@pytest.mark.parametrize("shape", [(64, 7), (64, 5, 3)])
@pytest.mark.parametrize("scale", [1e-30, 0.01, 1.0, 1e4, 1e37])
def test_no_example_exceeds_the_clip_norm_and_short_ones_stay(shape, scale):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32) * np.float32(scale)
    clipped = clip_examples(tf.constant(x), 0.37).numpy().astype(np.float64)
    norms = np.sqrt((clipped.reshape(64, -1) ** 2).sum(axis=1))
    # What float32 adds is what the noise is raised for.
    assert norms.max() <= 0.37 * (1 + min(1e-6, CLIPPED))
    before = np.sqrt((x.reshape(64, -1).astype(np.float64) ** 2).sum(axis=1))
    expected = x * np.minimum(1, 0.37 / before).reshape(-1, *[1] * (len(shape) - 1))
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_an_array_is_clipped_jointly_and_not_by_position():
    # Ten positions of norm 1 each: clipped one by one they would have norm sqrt(10) together.
    clipped = clip_examples(tf.eye(10)[tf.newaxis], 1.0)
    np.testing.assert_allclose(tf.norm(clipped), 1.0, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_become_zeros_of_one_example_alone(value):
    x = np.ones((2, 3), np.float32)
    x[0, 1] = value
    np.testing.assert_allclose(clip_examples(tf.constant(x), 9.0), [[0] * 3, [1] * 3], rtol=1e-6)


def test_masked_positions_count_as_zeros_and_no_mask_is_handed_on():
    layer = DPForwardNoise(1.0, 0.0)
    x = tf.constant([[[0.6], [5.0]], [[0.3], [0.4]]])
    mask = tf.constant([[True, False], [True, True]])
    noisy = layer(x, training=True, mask=mask)
    np.testing.assert_allclose(noisy, [[[0.6], [0.0]], [[0.3], [0.4]]], rtol=1e-6)
    masked = keras.layers.Masking()(x)
    for training in (True, False):
        assert getattr(layer(masked, training=training), "_keras_mask", None) is None


@pytest.mark.thorough
@pytest.mark.parametrize("compiled", [False, True])
def test_the_standard_deviation_is_sigma_on_every_coordinate(compiled):
    # 1e5 draws of each of 3 coordinates: the deviation of a standard deviation is 0.22%, so that
    # 1% is 4.5 of them: a false alarm in fewer than 1 of 40,000 runs of all six.
    layer = DPForwardNoise(clip_norm=0.5, noise_multiplier=3.0)
    call = tf.function(lambda x: layer(x, training=True), jit_compile=compiled)
    noise = call(tf.zeros([100_000, 3])).numpy()
    np.testing.assert_allclose(noise.std(axis=0), 1.5, rtol=0.01)
    assert np.abs(noise.mean(axis=0)).max() < 5 * 1.5 / 1e5**0.5
    again = call(tf.zeros([100_000, 3])).numpy()
    # Differs between steps, examples and coordinates. On the grid of 2^-22 two values are equal by
    # chance with a probability of 4.5e-8: 0.014 of 300,000 pairs, 2,000 times among 300,000 values.
    assert np.count_nonzero(noise == again) < 10
    assert len(np.unique(noise)) > 297_000


def test_axes_of_unknown_size_get_the_same_noise():
    layer = DPForwardNoise(1.0, 2.0)
    call = tf.function(
        lambda x: layer(x, training=True), input_signature=[tf.TensorSpec([None, 50])]
    )
    noise = call(tf.zeros([4000, 50])).numpy()
    np.testing.assert_allclose(noise.std(), 2.0, rtol=0.01)  # 6 standard errors
    assert not np.any(noise == call(tf.zeros([4000, 50])))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("shape, coordinates", [([None, 5, 3], 15), ([None, None, 3], 2**40)])
def test_the_grid_is_for_all_coordinates_of_an_example(monkeypatch, shape, coordinates):
    """For more than there can be, where their number is not known: 2^-20 of C by their root."""
    layer, steps = DPForwardNoise(1.0, 2.0), []
    release = layer._noise.release

    def seen(values, grid):
        steps.append(tf.get_static_value(grid.public[1]))
        return release(values, grid)

    monkeypatch.setattr(layer._noise, "release", seen)
    tf.function(lambda x: layer(x, training=True)).get_concrete_function(tf.TensorSpec(shape))
    # The largest power of two that is no more.
    assert steps == [2.0 ** np.floor(np.log2(2.0**-20 / coordinates**0.5))]


def test_inference_neither_clips_nor_adds_noise():
    layer = DPForwardNoise(1.0, 5.0)
    x = tf.random.normal([8, 4]) * 100
    np.testing.assert_array_equal(layer(x), x)
    np.testing.assert_array_equal(layer(x, training=False), x)


def test_stop_gives_exactly_no_gradient_and_propagate_that_of_the_clipping():
    x = tf.constant([[3.0, 4.0], [0.3, 0.4]])
    weights = tf.constant([[1.0, 2.0], [3.0, 5.0]])
    for gradient in ("stop", "propagate"):
        layer = DPForwardNoise(1.0, 2.0, gradient=gradient)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(layer(x, training=True) * weights)
        found = tape.gradient(value, x)
        if gradient == "stop":
            assert found is None
            continue
        unit = np.array([0.6, 0.8])
        projected = (np.array([1.0, 2.0]) - unit * (unit @ [1.0, 2.0])) / 5
        np.testing.assert_allclose(found, [projected, [3.0, 5.0]], atol=1e-6)


@pytest.mark.thorough
def test_the_gradient_at_zero_is_finite():
    x = tf.zeros([2, 3])
    layer = DPForwardNoise(1.0, 1.0, gradient="propagate")
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(layer(x, training=True))
    np.testing.assert_array_equal(tape.gradient(value, x), np.ones((2, 3)))


@pytest.mark.thorough
def test_processes_replicas_and_global_seeds_share_no_noise():
    code = (
        "import keras, tensorflow as tf; from tfdp.layers import DPForwardNoise\n"
        "keras.utils.set_random_seed(1)\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] "
        "* 2)\n"
        "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
        "for inside in (True, False):\n"
        "    with strategy.scope() if inside else tf.device(None):\n"
        "        layer = DPForwardNoise(1.0, 1.0)\n"
        "    step = tf.function(lambda: layer(tf.zeros([2, 3]), training=True))\n"
        "    for _ in range(2):\n"
        "        values = strategy.run(step)\n"
        "        print(*[v for part in values.values for v in part.numpy().ravel()])\n"
    )
    keras.utils.set_random_seed(1)
    here = DPForwardNoise(1.0, 1.0)(tf.zeros([2, 6]), training=True).numpy().ravel()
    seen = [*processes.run(code).split(), *map(str, here)]
    # 2 layers, 2 steps, 2 replicas, 2 examples, 3 coordinates; and this process
    assert len(seen) == len(set(seen)) == 48 + 12


def test_nothing_of_the_noise_is_saved_and_configurations_round_trip(tmp_path):
    layer = DPForwardNoise(0.5, 3.0, gradient="propagate", adjacency="replace_one")
    assert DPForwardNoise.from_config(layer.get_config()).get_config() == layer.get_config()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), layer])
    x = np.ones((2, 3), np.float32) * 50
    model.export(str(tmp_path / "m"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), rtol=1e-6)
    operations = {op.type for op in loaded.serve.concrete_functions[0].graph.get_operations()}
    assert not any("Random" in o or "Rng" in o for o in operations)


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier"),
        ({"gradient": "through"}, "gradient"),
        ({"adjacency": "add_or_remove_one"}, "adjacency"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        DPForwardNoise(**{"clip_norm": 1.0, "noise_multiplier": 1.0, **arguments})


@pytest.mark.parametrize(
    "name, value",
    [
        ("clip_norm", 9.0),
        ("noise_multiplier", 0.1),
        ("gradient", "propagate"),
        ("adjacency", "replace_one"),
        ("seed", 1),
    ],
)
def test_what_was_charged_cannot_change(name, value):
    layer = DPForwardNoise(1.0, 1.0)
    before = getattr(layer, name)
    with pytest.raises(AttributeError, match=name):
        setattr(layer, name, value)
    assert getattr(layer, name) == before


def test_one_representation_for_each_example_is_needed():
    layer = DPForwardNoise(1.0, 1.0)
    with pytest.raises(ValueError, match="one representation"):
        layer(tf.zeros([3]), training=True)
