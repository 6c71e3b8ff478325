"""Per-layer clipping: each layer's bound is C·√share, and together they are at most C."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.clipping.sums.factors import shares_of_layers

N, C = 6, 0.01
SHARES = {"middle": 0.64}


def made(shares, **kwargs):
    """Three layers, and examples that are all alike and have large gradients."""
    keras.utils.set_random_seed(0)
    model = tfdp.make_private(
        keras.Sequential(
            [keras.Input((3,))]
            + [keras.layers.Dense(4, name=name) for name in ("first", "middle", "last")]
        )
    )
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=0.0, num_examples=N, expected_batch_size=N,
        clip_norm=C, clipping="per_layer", layer_shares=shares, **kwargs,
    )  # fmt: skip
    model.compile(optimizer, loss="mse", run_eagerly=True)
    return model


def moved(model):
    """{layer: l2 norm of what one step of all examples moves}."""
    before = [w.numpy() for w in model.trainable_variables]
    data = np.ones((N, 3), "float32"), np.full((N, 4), 9.0, "float32")
    model.fit(tfdp.data.poisson_batches(data, N, steps_per_epoch=1), verbose=0)
    squares = {}
    for old, new in zip(before, model.trainable_variables, strict=True):
        layer = new.path.split("/")[-2]
        squares[layer] = squares.get(layer, 0.0) + np.sum(np.square(new.numpy() - old))
    return {layer: value**0.5 for layer, value in squares.items()}


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize(
    "shares, expected",
    [(SHARES, (0.18, 0.64, 0.18)), (None, (1 / 3,) * 3),
     ({"last": 0.5, "first": 0.25, "middle": 0.1}, (0.25, 0.1, 0.5))],
)  # fmt: skip
def test_every_layer_is_clipped_to_its_share(shares, expected, microbatch_size):
    found = moved(made(shares, microbatch_size=microbatch_size))
    wanted = [C * share**0.5 for share in expected]
    np.testing.assert_allclose([found["first"], found["middle"], found["last"]], wanted, rtol=1e-5)
    assert sum(v**2 for v in found.values()) <= (C * (1 + 1e-6)) ** 2


def test_shares_come_back_from_a_file(tmp_path):
    model = made({"middle": np.float32(0.64)})
    moved(model)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.optimizer.layer_shares == {"middle": pytest.approx(0.64)}
    with pytest.raises(AttributeError, match="`layer_shares`"):
        again.optimizer.layer_shares = None


def test_layers_that_do_not_train_have_no_share():
    model = made(SHARES)
    model.get_layer("first").trainable = False
    model.compile(model.optimizer, loss="mse", run_eagerly=True)
    assert moved(model) == pytest.approx({"middle": 0.8 * C, "last": 0.6 * C}, rel=1e-5)


@pytest.mark.parametrize(
    "shares, received",
    [({"second": 0.5}, "'second'"), ({"middle": 1.0}, r"a share for the layers .*first.*last"),
     ({"first": 0.5, "middle": 0.5}, "a share for the layers")],
)  # fmt: skip
def test_shares_that_do_not_fit_the_model_are_refused(shares, received):
    with pytest.raises(ValueError, match=received):
        moved(made(shares))


@pytest.mark.parametrize("shares", [{"a": 0.7, "b": 0.4}, {"a": 1.5, "b": 0.1}])
def test_shares_that_add_up_to_more_are_refused_wherever_they_come_from(shares):
    with pytest.raises(ValueError, match="at most 1"):
        made(shares)
    with pytest.raises(ValueError, match="at most 1"):
        shares_of_layers(["a", "b"], shares)


@pytest.mark.parametrize("edited", [1.5, -0.5, float("nan")])
def test_shares_that_were_edited_are_refused_before_anything_moves(edited):
    model = made(SHARES)
    model.optimizer.layer_shares["middle"] = edited
    before = model.get_weights()
    with pytest.raises(ValueError, match="positive values"):
        moved(model)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_layers_of_one_name_cannot_be_told_apart():
    with pytest.raises(ValueError, match="2 of the layers"):
        shares_of_layers(["a", "b", "a"], {"a": 0.5})


@pytest.mark.parametrize(
    "shares, message",
    [({"a": 0.0}, r"layer_shares\['a'\]"), ({"a": -0.5}, r"layer_shares\['a'\]"),
     ({"a": float("nan")}, r"layer_shares\['a'\]"), ([0.5, 0.5], "must be a dict"),
     ({0: 0.5}, "must be a dict")],
)  # fmt: skip
def test_shares_out_of_range_are_refused(shares, message):
    with pytest.raises(ValueError, match=message):
        made(shares)


def test_shares_are_for_per_layer_clipping():
    with pytest.raises(ValueError, match="per_layer"):
        tfdp.optimizers.DPOptimizer("sgd", noise_multiplier=1.0, layer_shares=SHARES)
