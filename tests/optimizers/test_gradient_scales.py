"""Gradients scaled before clipping: what is clipped, noised, divided again, refused and said."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.errors import PrivacyError
from tfdp.optimizers.gradient_scales import scales_of

N, C = 6, 0.3
SCALES = {"table/embeddings": 0.25, "shared/kernel": 3.0, "last/bias": 0.01}
XLA = {"jit_compile": True}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def base():
    """A look-up with repeated ids, a layer that is called twice, and a head."""
    ids = keras.Input((4,), dtype="int32")
    shared = keras.layers.Dense(5, activation="tanh", name="shared")
    x = keras.layers.Embedding(7, 5, name="table")(ids)
    x = keras.ops.sum(shared(shared(x)), axis=1)
    return keras.Model(ids, keras.layers.Dense(3, name="last")(x))


def data(n=N):
    generator = np.random.default_rng(0)
    return (
        generator.integers(0, 7, (n, 4)).astype(np.int32),
        generator.integers(0, 3, n).astype(np.int32),
    )


def made(scales=SCALES, inner=None, model=None, loss=LOSS, compile_kwargs=None, **kwargs):
    keras.utils.set_random_seed(0)
    model = tfdp.make_private(base() if model is None else model, validate=False)
    settings = {"noise_multiplier": 0.0, "clip_norm": C, **kwargs}
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0) if inner is None else inner, gradient_scales=scales, **settings
    )
    model.compile(optimizer, loss=loss, **(compile_kwargs or {"run_eagerly": True}))
    return model


def moved(model, records=None, steps=1):
    """What steps on all records move, times their number: minus the sum, at a rate of 1."""
    records = data() if records is None else records
    before = [w.numpy().astype(np.float64) for w in model.trainable_variables]
    n = len(records[0])
    batches = tfdp.data.poisson_batches(records, n, steps_per_epoch=steps)
    model.fit(batches, verbose=0)
    pairs = zip(before, model.trainable_variables, strict=True)
    return [n * (old - new.numpy()) for old, new in pairs]


def of_variables(model, scales=SCALES):
    ends = ["/".join(v.path.split("/")[-2:]) for v in model.trainable_variables]
    return [scales.get(end, 1.0) for end in ends]


def by_hand(model, clipping):
    """The sum of c_i·g_i, c_i from the norm of the scaled gradient, in float64."""
    variables = model.trainable_variables
    scales, total = of_variables(model), [np.zeros(v.shape) for v in variables]
    layers = [v.path.split("/")[-2] for v in variables]
    for x, y in zip(*data(), strict=True):
        with tf.GradientTape() as tape:
            loss = LOSS(y[None], model(x[None]))
        found = [np.float64(tf.convert_to_tensor(g))
                 for g in tape.gradient(loss, [v.value for v in variables])]  # fmt: skip
        squares = [np.sum((s * g) ** 2) for s, g in zip(scales, found, strict=True)]
        for k, gradient in enumerate(found):
            group = [layer == layers[k] or clipping != "per_layer" for layer in layers]
            norm = np.sqrt(np.sum(np.array(squares)[group]))
            bound = C / np.sqrt(3) if clipping == "per_layer" else C
            factor = {"normalized": C / norm, "automatic": C / (norm + 0.01)}
            total[k] += gradient * factor.get(clipping, min(1.0, bound / norm))
    return total


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "clipping, compile_kwargs, microbatch_size",
    slow.cases(
        [("flat", None, 2), ("normalized", None, None), ("automatic", None, 4),
         ("per_layer", None, None), ("flat", XLA, 2)],
        slow=[("flat", XLA, 2)],
    ),
)  # fmt: skip
def test_a_step_sums_gradients_clipped_by_their_scaled_norms(
    clipping, compile_kwargs, microbatch_size
):
    model = made(clipping=clipping, compile_kwargs=compile_kwargs, microbatch_size=microbatch_size)
    expected = by_hand(model, clipping)
    for found, wanted in zip(moved(model), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-6)


def test_the_scaled_gradient_of_one_record_is_at_most_as_long_as_the_clip_norm():
    found = []

    class Keep(keras.optimizers.SGD):
        def apply(self, gradients, variables):
            found.extend(g.numpy().astype(np.float64) for g in gradients)
            super().apply(gradients, variables)

    for scale in (1e-6, 1e6):
        model = made({"table/embeddings": scale, "last/kernel": 0.7}, inner=Keep(1.0))
        found.clear()
        moved(model, tuple(part[:1] for part in data()))
        scales = of_variables(model, model.optimizer.gradient_scales)
        norm = np.sqrt(sum(np.sum((s * g) ** 2) for s, g in zip(scales, found, strict=True)))
        assert 0.999 * C < norm < C * (1 + 1e-6)


def zero_loss(y_true, y_pred):
    return 0.0 * tf.reduce_sum(y_pred, axis=-1)


def wide():
    """Two tables of 20,000 numbers and a kernel of as many."""
    ids = keras.Input((2,), dtype="int64")
    x = tfdp.layers.SparseEmbedding(1000, 20, name="sparse")(ids)
    y = keras.layers.Embedding(1000, 20, name="table")(ids)
    x = keras.ops.sum(x + y, axis=1)
    return keras.Model(ids, keras.layers.Dense(1000, name="last")(x))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("how", ["independent", "rows", "chain"])
def test_noise_of_a_variable_is_divided_by_its_scale(how):
    # Standard deviations of 10,000 draws or more: within 4%, more than 5 standard errors.
    scales = {"sparse/embeddings": 8.0, "table/embeddings": 0.5, "last/kernel": 2.0}
    kwargs, split = {}, 1.0
    if how == "rows":
        split = 2**0.5  # of a selection that takes half of 1/σ²
        selection = tfdp.selection.AdaFEST(1e-9, 1.0)
        rows = tfdp.optimizers.RowSGD(1.0)
        kwargs = {"selection": selection, "embedding_optimizer": rows}
    if how == "chain":
        kwargs = {"noise_correlation": tfdp.optimizers.BandedInverse(2, (1.0, -0.5))}
    model = made(scales, model=wide(), loss=zero_loss, noise_multiplier=1.5, **kwargs)
    records = np.zeros((N, 2), np.int64), np.zeros((N, 1000), np.float32)
    before = [w.numpy() for w in model.trainable_variables]
    if how == "chain":
        model.fit(tfdp.data.stream_batches(records, N), verbose=0)
    else:
        model.fit(tfdp.data.poisson_batches(records, N, steps_per_epoch=1), verbose=0)
    for k, scale in enumerate(of_variables(model, scales)[:3]):
        found = (before[k] - model.trainable_variables[k].numpy()).ravel()
        found = found[found != 0]  # half of the rows survive
        assert len(found) > 9000
        assert np.std(found) * scale * N == pytest.approx(1.5 * C * split, rel=0.04)


@pytest.mark.thorough
def test_a_selection_by_gradients_sees_them_as_they_are_clipped(monkeypatch):
    seen, select = [], tfdp.selection.ExponentialSelection.select

    def watched(self, tables, *args):
        seen.append(max(float(np.max(table.relative_norms())) for table in tables))
        return select(self, tables, *args)

    monkeypatch.setattr(tfdp.selection.ExponentialSelection, "select", watched)
    for scale in (1.0, 5.0):
        keras.utils.set_random_seed(1)
        model = made(
            {"sparse/embeddings": scale}, model=wide(), loss="mse", noise_multiplier=1.0,
            selection=tfdp.selection.ExponentialSelection(2, 1.0),
            embedding_optimizer=tfdp.optimizers.RowSGD(0.0),
        )  # fmt: skip
        records = np.zeros((N, 2), np.int64), np.ones((N, 1000), np.float32)
        model.fit(tfdp.data.poisson_batches(records, N, steps_per_epoch=1), verbose=0)
    assert seen[1] == pytest.approx(5.0 * seen[0], rel=1e-4)


@pytest.mark.thorough
def test_scales_cost_nothing_and_the_statement_lists_them(tmp_path):
    plain, scaled = made(None, noise_multiplier=1.0), made(noise_multiplier=1.0)
    for model in (plain, scaled):
        moved(model)
    assert scaled.ledger.epsilon(1e-5) == plain.ledger.epsilon(1e-5)
    assert "shared/kernel by 3" in str(scaled.privacy_statement(1e-5))
    assert "before clipping" not in str(plain.privacy_statement(1e-5))
    scaled.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert dict(again.optimizer.gradient_scales) == dict(scaled.optimizer.gradient_scales)
    with pytest.raises(AttributeError, match="`gradient_scales`"):
        again.optimizer.gradient_scales = None


@pytest.mark.parametrize(
    "scales, received",
    [([2.0], "a dict"), ({"last/bias": 0.0}, "positive"), ({"last/bias": float("nan")}, "positive"),
     ({"last/bias": 1e7}, "1e-6, 1e6"), ({"last/bias": 1e-7}, "1e-6, 1e6"),
     ({"last/bias": True}, "positive"),
     ({"bias": 2.0}, "the end of 2 of the paths"), ({"ast/bias": 2.0}, "the end of 0 of the paths"),
     ({"last": 2.0}, "the end of 0 of the paths")],
)  # fmt: skip
def test_scales_that_are_no_numbers_of_one_variable_are_refused(scales, received):
    with pytest.raises(ValueError, match=received):
        moved(made(scales))


def test_scales_made_with_a_release_are_refused():
    released = OriginArray.of(np.float32(2.0), Origin(assumptions=("a release",)))
    with pytest.raises(ValueError, match="public"):
        made({"last/bias": released})


def test_layers_that_correct_for_the_noise_refuse_scales():
    model = tfdp.models.DPFormer(20, 4, item_frequency=np.full(21, 0.1), dim=4, num_blocks=1)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=1.0, num_examples=N, expected_batch_size=N,
        gradient_scales={"items/embeddings": 2.0},
    )  # fmt: skip
    with pytest.raises(PrivacyError, match="`gradient_scales`"):
        model.compile(optimizer)


def test_a_popularity_prior_allows_scales():
    model = tfdp.models.SequenceBaseline(
        20, 4, cell="gru", dim=4, popularity_prior=np.full(21, 0.1), num_blocks=None
    )
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=1.0, num_examples=N, expected_batch_size=N,
            gradient_scales={"items/embeddings": 2.0},
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scale", "clip_norm"),
    slow.cases([(1e-3, 1.0), (1.0, 100.0), (1e-6, 1.0)], slow=[(1e-3, 1.0)]),
)
def test_a_record_without_a_gradient_does_not_show_in_normalized_clipping(scale, clip_norm):
    network = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1, use_bias=False)])
    x, y = np.ones((4, 20), np.float32), np.ones((4, 1), np.float32)
    x[0], y[0] = 0.0, 0.0
    model = made(
        {"kernel": scale}, model=network, loss="mse", clipping="normalized", clip_norm=clip_norm
    )
    assert np.isfinite(moved(model, (x, y))[0]).all()


def test_the_ends_of_the_range_are_saved_and_loaded():
    optimizer = tfdp.optimizers.DPOptimizer(
        "sgd", noise_multiplier=1.0, gradient_scales={"a": 1e-6, "b": 1e6}
    )
    again = tfdp.optimizers.DPOptimizer.from_config(optimizer.get_config())
    assert again.gradient_scales == {"a": 1e-6, "b": 1e6}


def test_two_names_of_one_variable_are_refused():
    only = keras.layers.Dense(1, use_bias=False, name="only")
    network = keras.Sequential([keras.Input((2,)), only])
    model = made({"kernel": 2.0, "only/kernel": 3.0}, model=network, loss="mse")
    with pytest.raises(ValueError, match="each variable once.*'kernel' and 'only/kernel'"):
        moved(model, (np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)))


def test_a_scale_is_the_number_that_gradients_are_multiplied_by():
    """Of float32, so that the norm is that of what is summed."""
    (scale,) = scales_of([keras.Variable(np.zeros(3), name="kernel")], {"kernel": 0.1})
    assert scale == float(np.float32(0.1)) != 0.1


def test_a_scale_that_is_edited_later_is_checked_too():
    model = made()
    model.optimizer.gradient_scales["last/bias"] = 7e30
    with pytest.raises(ValueError, match="must lie in"):
        moved(model)
