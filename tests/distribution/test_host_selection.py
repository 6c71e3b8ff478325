"""Rows that are chosen in the input pipeline are those that the step would have chosen."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.data import poisson_batches
from tfdp.distribution import select_on_host
from tfdp.distribution.checks import padded
from tfdp.distribution.host_selection import check_selected
from tfdp.errors import PrivacyError
from tfdp.noise import PipelineNoiseSource
from tfdp.optimizers import RowSGD
from tfdp.selection import NO_ROW, AdaFEST
from tfdp.training.checks.mapped_batches import _IDS_ASSUMED, notes_of_maps

N, V, D, CAPACITY = 31, 60, 2, 60  # no two replicas divide N


def build():
    ids = keras.Input((3,), dtype="int64")
    one = tfdp.layers.SparseEmbedding(V, D, name="one")(ids)
    two = tfdp.layers.SparseEmbedding(V, D, combiner="sum", mask_zero=True, name="two")(ids)
    x = keras.layers.Concatenate()([keras.layers.Flatten()(one), two])
    return keras.Model(ids, keras.layers.Dense(1)(x))


def ids_of(x):
    return {"one": x, "two": tf.where(x > 0, x, -1)}


def data():
    generator = np.random.default_rng(0)
    ids = generator.integers(0, V, (N, 3)) % generator.integers(1, V, (N, 3))
    return ids, generator.normal(size=(N, 1)).astype("float32")


def compiled(replicas, count, sigma=0.0, threshold=1.0, capacity=CAPACITY, **kwargs):
    return replicas.model(
        count, build, selection=AdaFEST(threshold, capacity=capacity), rows=lambda: RowSGD(1.0),
        noise_multiplier=sigma, num_examples=N, expected_batch_size=N, **kwargs,
    )  # fmt: skip


def batches(steps):
    return poisson_batches(data(), N, steps_per_epoch=steps)  # q = 1: the same batch every time


@pytest.fixture(scope="module")
def in_step(replicas):
    """(changes, history) of two steps that choose their rows by themselves."""
    eager = {"run_eagerly": True}  # a trace takes longer than two steps
    return replicas.train(compiled(replicas, None, compile_kwargs=eager), batches(2))


@pytest.fixture(scope="module")
def trained(replicas):
    """Function (replicas, ...) -> (model, changes, history), with rows chosen ahead."""

    def train(count, jit_compile, validate=False):
        compile_kwargs = {"jit_compile": jit_compile}
        model = compiled(replicas, count, compile_kwargs=compile_kwargs, validate=validate)
        return model, *replicas.train(model, select_on_host(batches(2), model, ids_of))

    return functools.cache(train)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count, jit_compile", [pytest.param(None, True, marks=pytest.mark.thorough), (2, "auto")]
)
def test_without_noise_the_numbers_are_those_of_the_step(trained, in_step, count, jit_compile):
    expected, shown = in_step
    model, found, history = trained(count, jit_compile)
    survivors = np.any(expected[0], axis=1)
    assert 0 < survivors.sum() < CAPACITY
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert model.optimizer.steps_taken == 2 and history["capacity_reached"] == [0.0]
    # What is shown is of all replicas, of which the last one has fewer examples.
    for name, value in shown.items():
        np.testing.assert_allclose(history[name], value, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("count, jit_compile", [(None, True), (2, "auto")])
def test_batches_with_rows_are_validated(trained, count, jit_compile):
    model, _, _ = trained(count, jit_compile, validate=True)
    assert model.examined


def drawn_rows(batch):
    """Joint rows of a batch."""
    found = batch.survivors.ravel()
    assert found.min() >= 0
    return found[found < NO_ROW]


@pytest.mark.thorough
@pytest.mark.parametrize("capacity", [2 * V, 5])
def test_rows_and_their_number_are_those_of_the_examples_that_are_present(replicas, capacity):
    # The noise is that of σ and not of σ·clip_norm, which would be 250 times the margin.
    model = compiled(replicas, None, 1e-5, 1.1, capacity, clip_norm=1e5)
    x, y = data()
    x = np.where(x == 0, 1, x)  # row 0 of the first table must not survive
    weight = np.where(np.arange(N) < 20, 1.0, 0.0).astype("float32")
    expected = np.zeros(2 * V)
    for ids in x[:20]:
        rows = np.unique(np.concatenate([ids, ids + V]))
        expected[rows] += min(1.0, 1 / np.sqrt(len(rows)))
    assert np.abs(expected - 1.1).min() > 0.02
    survivors = np.flatnonzero(expected >= 1.1)
    assert 5 < len(survivors) < len(np.unique(x)) < V
    chosen = select_on_host(poisson_batches((x, y, weight), N), model, ids_of)
    for divided in (chosen, padded(chosen, 4)):  # 31 rows; 32 of them for four replicas
        ((batch, _, weights),) = divided.take(1).as_numpy_iterator()
        rows = drawn_rows(batch)
        assert not weights[N:].any() and len(weights) % (4 if divided is not chosen else 1) == 0
        assert len(rows) == min(capacity, len(survivors))
        assert set(rows) <= set(survivors)


def test_draws_at_the_same_time_share_no_bit():
    # Iterators of one dataset run side by side, abandoned ones included.
    source = PipelineNoiseSource()
    draws = tf.data.Dataset.range(3000).map(lambda _: source.bits((2,)), num_parallel_calls=8)
    assert len({tuple(d) for d in draws.as_numpy_iterator()}) == 3000


def survivors_of(chosen, steps):
    """(steps, ...) rows of an epoch."""
    return next(iter(chosen.map(lambda x, y, weight: x.survivors).batch(steps))).numpy()


@pytest.mark.thorough
def test_rows_survive_as_often_as_in_the_step_and_every_pipeline_draws_its_own(replicas):
    # False-alarm rate 1e-6 each.
    steps = 800
    model = compiled(replicas, None, sigma=0.4, threshold=2.0)
    chosen = select_on_host(batches(steps), model, ids_of)
    epochs = [survivors_of(chosen, steps) for _ in range(2)]
    assert not np.array_equal(*epochs)  # fresh in every epoch
    other = survivors_of(select_on_host(batches(100), model, ids_of), 100)
    assert not np.array_equal(epochs[0][:100], other)
    on_host, drawn = np.zeros(2 * V), np.concatenate(epochs)
    assert drawn.shape[0] == 2 * steps
    np.add.at(on_host, drawn[(drawn >= 0) & (drawn < NO_ROW)], 1)

    x, _ = data()

    def one_step(_):
        optimizer = model.optimizer
        tables = [
            tfdp.selection.TableActivity(name, V, ids)
            for name, ids in ids_of(tf.constant(x)).items()
        ]
        return tuple(
            optimizer.selection.select_padded(
                tables, tf.ones([N], tf.bool), optimizer.charging.noise_stddev(), optimizer._noise
            )
        )

    @tf.function(autograph=False)
    def every_step():
        like = (tf.int64, tf.int64)
        return tf.map_fn(one_step, tf.range(steps), like, parallel_iterations=1)

    found = np.zeros(2 * V)
    for start, rows in zip((0, V), every_step(), strict=True):
        np.add.at(found, start + rows.numpy()[rows.numpy() < NO_ROW], 1)
    p = (on_host + found) / (3 * steps)
    z = (on_host / 2 - found) / np.sqrt(1.5 * steps * np.maximum(p * (1 - p), 1e-9))
    z = z[p > 0]
    assert len(z) > V and stats.chi2.sf(np.sum(z**2), len(z)) > 1e-6


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:No row of any sparse table survived")
def test_no_row_of_a_step_beyond_the_budget_survives(replicas):
    with pytest.MonkeyPatch.context() as patch:
        eager = {"run_eagerly": True}  # a trace takes longer than its one step
        model = compiled(replicas, None, sigma=1e-3, compile_kwargs=eager)
        patch.setattr(model.optimizer.charging, "active", lambda model: tf.constant(False))
        (one, two, *_), _ = replicas.train(model, select_on_host(batches(1), model, ids_of))
    assert not one.any() and not two.any()


@pytest.mark.thorough
def test_what_is_shown_is_of_all_four_replicas(replicas):
    shown = []
    for count in (None, 4):  # the last replica has fewer examples
        _, history = replicas.train(compiled(replicas, count), batches(1))
        shown.append(history)
    for name, value in shown[0].items():
        np.testing.assert_allclose(shown[1][name], value, rtol=1e-6)


@pytest.mark.thorough
def test_rows_chosen_for_another_optimizer_are_refused(replicas):
    model, other = compiled(replicas, None), compiled(replicas, None)
    with pytest.raises(PrivacyError, match="selected with another optimizer"):
        model.fit(select_on_host(batches(1), other, ids_of), verbose=0)


def test_rows_that_nobody_knows_who_chose_are_refused(replicas):
    eager = {"run_eagerly": True}  # a trace takes longer than its one step
    model = compiled(replicas, None, compile_kwargs=eager)
    chosen = select_on_host(batches(1), model, ids_of)
    x, y, weight = next(iter(chosen))
    with pytest.raises(PrivacyError, match="outside `fit`"):
        tf.function(model.train_step, autograph=False)((x, y, weight))
    model.fit(chosen, verbose=0)
    with pytest.raises(PrivacyError, match="outside `fit`"):
        model.train_on_batch(x, y, weight)
    resolver = types.SimpleNamespace(
        cluster_spec=lambda: tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    )
    workers = types.SimpleNamespace(num_replicas_in_sync=2, cluster_resolver=resolver)
    with pytest.raises(PrivacyError, match="its own noise"):
        check_selected(chosen, types.SimpleNamespace(distribute_strategy=workers))


def test_ids_that_other_examples_change_are_refused(replicas):
    eager = {"run_eagerly": True}  # a trace takes longer than its one step
    model = compiled(replicas, None, validate=True, compile_kwargs=eager)

    def most(x):
        return {**ids_of(x), "one": tf.where(x == tf.reduce_max(x), x, -1)}

    mixed, proved = (select_on_host(batches(1), model, ids) for ids in (most, ids_of))
    with pytest.raises(PrivacyError, match="The function `ids` of `select_on_host` mixes"):
        model.fit(mixed, verbose=0)
    assert not notes_of_maps(proved.prefetch(1)).assumptions
    assert not model.examined
    model.fit(proved, verbose=0)
    assert model.examined

    def by_python(x):
        found = tf.numpy_function(lambda x: x, [x], tf.int64)
        return ids_of(tf.ensure_shape(found, x.shape))

    for data, validate in (
        (select_on_host(batches(1), model, by_python), True),
        (mixed, False),
    ):
        assert _IDS_ASSUMED in notes_of_maps(data, validate).assumptions


def test_missing_ids_and_selections_without_capacity_are_refused(replicas):
    model = compiled(replicas, None)
    with pytest.raises(ValueError, match="each trainable SparseEmbedding"):
        select_on_host(batches(1), model, lambda x: {"one": x})
    plain = replicas.model(
        None, build, selection=AdaFEST(1.0), rows=lambda: RowSGD(1.0), noise_multiplier=1.0,
        num_examples=N, expected_batch_size=N,
    )  # fmt: skip
    with pytest.raises(ValueError, match="capacity"):
        select_on_host(batches(1), plain, ids_of)
