"""What cannot work is said before training, from public settings alone."""

import re
import warnings

import keras
import numpy as np
import pytest
from scipy import stats

import tfdp
from tfdp.optimizers.from_data import steps_of
from tfdp.selection import FEST, AdaFEST
from tfdp.training.checks.advice import SelectionWatch, step_sizes

SIZES = {"a": 900_000, "b": 100_000}


def advice(inner, steps=100, **kwargs):
    settings = {"noise_multiplier": 1.0, "num_examples": 1000, "expected_batch_size": 100}
    return step_sizes(tfdp.optimizers.DPOptimizer(inner, **{**settings, **kwargs}), steps)


def test_settings_that_work_are_not_warned_of():
    for inner in (keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.1, momentum=0.9),
                  keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-3),
                  keras.optimizers.Lion(1e3)):  # fmt: skip
        assert advice(inner) == []
    warm_up = keras.optimizers.schedules.PolynomialDecay(1e-9, 10, 1e-3)
    assert advice(keras.optimizers.Adam(warm_up)) == []


@pytest.mark.parametrize(
    ("inner", "settings", "message"),
    [
        (lambda: keras.optimizers.SGD(100.0), {}, "noise.*lower learning rate or `clip_norm`"),
        (lambda: keras.optimizers.SGD(1.0), {"clip_norm": 1e3}, "every weight by about 1e\\+02"),
        (lambda: keras.optimizers.SGD(10.0, momentum=0.9), {}, "every weight by about 10 "),
        (lambda: keras.optimizers.Adam(0.5), {}, "noise alone will move every weight by about 5 "),
        (lambda: keras.optimizers.SGD(1e-5), {}, "by 0.001 at most.*higher learning rate"),
        (lambda: keras.optimizers.SGD(0.1), {"clip_norm": 1e-4}, "clip_norm 0.0001"),
        (lambda: keras.optimizers.Adam(1e-6), {}, "0.0001 at most"),
        (lambda: keras.optimizers.Adam(1e-3), {"clip_norm": 1e-6}, "below `epsilon`.*`clip_norm`"),
    ],
)  # fmt: skip
def test_rates_and_norms_that_cannot_work_are_named(inner, settings, message):
    (found,) = advice(inner(), **settings)
    assert re.search(message, found), found


@pytest.mark.thorough
def test_noise_moves_weights_as_far_as_is_said(small):
    """The walk of SGD is measured; Adam's is of the order that is said."""
    for inner, low, high in ((keras.optimizers.SGD(400.0), 0.8, 1.2),
                             (keras.optimizers.Adam(1.0), 0.3, 2.0)):  # fmt: skip
        base = tfdp.make_private(small.base(200, 8), validate=False)
        model = small.model(base, inner=inner, noise_multiplier=2.0, seed=0,
                            compile_kwargs={"jit_compile": False})  # fmt: skip
        before = model.get_weights()[0]
        x, y = small.data(features=200, classes=8)
        with pytest.warns(UserWarning, match="noise alone will move every weight") as caught:
            model.fit(small.poisson((0 * x, y)), epochs=5, verbose=0)
        said = next(str(w.message) for w in caught if "noise alone" in str(w.message))
        said = float(said.split("about ")[1].split(" ")[0])
        moved = np.std(model.get_weights()[0] - before)
        assert low * said < moved < high * said


def test_explain_says_what_survives_by_noise_alone():
    selection = AdaFEST(30.0, noise_ratio=1.0, contribution_norm=5.0)
    found = selection.explain(SIZES, noise_multiplier=1.0, expected_batch_size=1000)
    stddev = 5.0 * 2**0.5
    assert found.noise_stddev == pytest.approx(stddev)
    assert found.rows_by_noise == pytest.approx(1e6 * stats.norm.sf(30 / stddev), rel=1e-6)
    assert found.threshold_in_stddevs == pytest.approx(30 / stddev)
    assert found.examples_needed == 30 and found.warnings == ()
    assert "11 of 1,000,000 expected" in str(found)
    assert AdaFEST(1.0, contribution_norm=0.5).explain(SIZES, 1.0).examples_needed == (
        pytest.approx(2 * 2**0.5)
    )
    within = FEST(5, frequencies={"a": np.ones(10), "b": np.ones(10)})
    assert AdaFEST(1.0, within=within).explain({"a": 10, "b": 10}, 1.0).num_rows == 10
    assert AdaFEST(1.0).explain(SIZES, 0.0).rows_by_noise == 0


def test_a_threshold_that_lets_thousands_or_nothing_through_is_named():
    (found,) = AdaFEST(5.0, noise_ratio=1.0).explain(SIZES, 2.0, 1000).warnings
    assert "about 38,550 of 1,000,000 rows" in found
    raised = float(found.split("to about ")[1].split(" ")[0])
    again = AdaFEST(raised, noise_ratio=1.0).explain(SIZES, 2.0, 1000)
    assert again.warnings == () and 0.9 < again.rows_by_noise < 1.1
    (found,) = AdaFEST(500.0, noise_ratio=1.0).explain(SIZES, 1.0, 100).warnings
    assert "No row can survive" in found and "100 expected examples" in found


def sparse(threshold, rows=50_000):
    inputs = keras.Input((1,), dtype="int64")
    rows = tfdp.layers.SparseEmbedding(rows, 2)(inputs)
    return tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(rows[:, 0])), validate=False)


@pytest.mark.parametrize(
    ("threshold", "message"),
    [(1.0, "rows will survive by noise"), (1e4, "No row can survive"), (30.0, None)],
)  # fmt: skip
def test_fit_warns_of_the_threshold_and_of_tables_that_are_not_trained(threshold, message):
    model = sparse(threshold)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(0.1), noise_multiplier=1.0,
            selection=AdaFEST(threshold, noise_ratio=1.0),
            embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
        ),
        loss="mse", run_eagerly=True,
    )  # fmt: skip
    x, y = np.ones((40, 1), np.int64), np.ones((40, 1), np.float32)
    batches = tfdp.data.poisson_batches((x, y), 36, steps_per_epoch=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(batches, verbose=0)
    texts = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    if message is None:
        assert not [t for t in texts if "surviv" in t]
    else:
        assert any(message in t for t in texts)
    assert any("survived the selection in epoch 1" in t for t in texts) == (threshold == 1e4)


def test_an_epoch_with_survivors_is_not_warned_of():
    watch = SelectionWatch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.on_epoch_end(0, {"gradient_size": 1e-3})
        watch.on_epoch_end(0, {})
    with pytest.warns(UserWarning, match="in epoch 3"):
        watch.on_epoch_end(2, {"gradient_size": 0.0})


def test_steps_are_known_or_not(small):
    sampling = tfdp.data.sampling_of(small.poisson())
    assert steps_of(sampling, 3) == 12 and steps_of(sampling, 3, 2) == 6
    assert steps_of(sampling, None) is None


@pytest.mark.thorough
def test_a_fit_of_no_epochs_is_not_warned_of(small):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The model will learn nothing")
        small.model(inner=keras.optimizers.Adam(0.01)).fit(small.poisson(), epochs=0, verbose=0)


class Head(keras.layers.Layer):
    """Logits from another layer's table."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))


def with_tables(rows, width, count=2, tied=False):
    inputs = keras.Input((count,), dtype="int32")
    tables = [keras.layers.Embedding(rows, width, name=f"table_{i}") for i in range(count)]
    x = keras.layers.Concatenate()([table(inputs[:, i]) for i, table in enumerate(tables)])
    x = keras.layers.Dense(width)(x)
    base = keras.Model(inputs, Head(tables[0])(x) if tied else x)
    model = tfdp.make_private(base, validate=tied)
    optimizer = tfdp.optimizers.DPOptimizer(keras.optimizers.SGD(0.1), noise_multiplier=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, run_eagerly=True)
    return model


def advised(model):
    """What a first fit says about tables."""
    x, y = np.ones((40, model.inputs[0].shape[1]), np.int32), np.ones((40,), np.int32)
    batches = tfdp.data.poisson_batches((x, y), 36, steps_per_epoch=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(batches, verbose=0)
    return [str(w.message) for w in caught if "SparseEmbedding" in str(w.message)]


def test_fit_says_where_sparse_tables_are_the_answer():
    (found,) = advised(with_tables(40_000, 16, count=5))
    assert "'table_0' (40,000 x 16)" in found and "and 2 more" in found
    # What it says to write is accepted.
    made = re.search(r"tfdp\.layers\.SparseEmbedding\([^)]*\)", found).group()
    arguments = re.search(r"DPOptimizer (selection=.*\)) and (embedding_optimizer=.*?\))", found)
    assert eval(made).input_dim == 40_000
    eval(f"dict({', '.join(arguments.groups())})", {"tfdp": tfdp})


@pytest.mark.thorough
@pytest.mark.parametrize("which", [{"rows": 200}, {"rows": 40_000, "count": 1, "tied": True}])
def test_small_tables_and_those_with_a_dense_gradient_are_not_advised_against(which):
    assert advised(with_tables(width=32, **which)) == []
