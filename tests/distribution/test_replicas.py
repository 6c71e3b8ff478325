"""One, two and four replicas are the same program: the same numbers, the same noise, one ledger.

Bounds on measured standard deviations are 1% at 2e5 draws or more: more than 6 standard errors.
"""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp.data import poisson_batches, shuffled_epochs
from tfdp.errors import PrivacyError
from tfdp.optimizers import DPOptimizer, LazyAdam, RowAdagrad, RowSGD
from tfdp.selection import FEST, AdaFEST, ExponentialSelection

N, V, D = 64, 40, 4
SIZE = 30  # so that of 40 rows the second replica, and the third of four, get examples too
ROWS = {
    "RowSGD": lambda: RowSGD(1.0),
    "RowAdagrad": lambda: RowAdagrad(0.1, weight_decay=0.1),
    "LazyAdam": lambda: LazyAdam(0.1),
}


def dense():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2"),
            keras.layers.Dense(2),
        ]
    )


def dense_data(n=N):
    generator = np.random.default_rng(0)
    return (
        generator.normal(size=(n, 3)).astype("float32"),
        generator.normal(size=(n, 2)).astype("float32"),
    )


def linear():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def one_table():
    ids = keras.Input((3,), dtype="int64")
    one = tfdp.layers.SparseEmbedding(V, D, name="one")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(one)))


def sparse(rows=V, width=D):
    ids = keras.Input((3,), dtype="int64")
    one = tfdp.layers.SparseEmbedding(rows, width, name="one")(ids)
    two = tfdp.layers.SparseEmbedding(rows, width, combiner="mean", mask_zero=True, name="two")(ids)
    x = keras.layers.Concatenate()([keras.layers.Flatten()(one), two])
    return keras.Model(ids, keras.layers.Dense(1)(x))


def sparse_data(n=N, rows=V):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, rows, (n, 3)) % generator.integers(1, rows, (n, 3))
    return ids, generator.normal(size=(n, 1)).astype("float32")


def batches(data, size=SIZE, capacity=39, **kwargs):
    """Poisson batches whose rows no number of replicas divides."""
    return poisson_batches(data, size, max_batch_size=capacity, seed=3, **kwargs)


def whole_batches(**kwargs):
    """The same batch of all records every time, of a number that no number of replicas divides."""
    return poisson_batches(sparse_data(WHOLE), WHOLE, **kwargs)


def eagerly(count):
    """Without replicas a trace takes longer than a few steps."""
    return {"run_eagerly": count is None}


WHOLE = N - 1
OF_WHOLE = {"noise_multiplier": 0.0, "num_examples": WHOLE, "expected_batch_size": WHOLE}
SETTINGS = {"noise_multiplier": 0.0, "num_examples": N, "expected_batch_size": SIZE}


def train_dense(replicas, count, compile_kwargs=None, validate=False, **kwargs):
    """(changes, history, ledger) of a dense model on `count` replicas, in four steps."""
    model = replicas.model(
        count, dense, inner=lambda: keras.optimizers.AdamW(0.1, clipnorm=0.2),
        compile_kwargs={"metrics": ["mae"], **(compile_kwargs or {})}, validate=validate,
        **kwargs, **SETTINGS,
    )  # fmt: skip
    changes, history = replicas.train(model, batches(dense_data()), epochs=2)
    assert model.optimizer.steps_taken == 4
    assert model.examined or not validate
    return changes, history, model.ledger


@pytest.fixture(scope="module")
def on_one_replica(replicas):
    return train_dense(replicas, 1, {"run_eagerly": True})  # sooner than a trace


@pytest.mark.thorough
@pytest.mark.parametrize("several", slow.cases([2, 4], slow=[4]))
def test_dense_updates_and_losses_are_those_of_one_replica(replicas, on_one_replica, several):
    expected, history_of_one, ledger_of_one = on_one_replica
    changes, history, ledger = train_dense(replicas, several, validate=True)
    for a, b in zip(changes, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name, values in history.items():
        np.testing.assert_allclose(values, history_of_one[name], rtol=1e-6)
    assert ledger == ledger_of_one


@pytest.mark.thorough
@pytest.mark.parametrize("rows", slow.cases(ROWS, slow=[r for r in ROWS if r != "RowSGD"]))
def test_sparse_updates_are_equal_without_and_on_2_and_4_replicas(replicas, rows):
    found = []
    for count in (None, 4) if rows == "LazyAdam" else (None, 2):
        model = replicas.model(
            count, sparse, selection=AdaFEST(4.0), rows=ROWS[rows],
            inner=lambda: keras.optimizers.Adam(0.1), compile_kwargs=eagerly(count), **OF_WHOLE,
        )  # fmt: skip
        changes, _ = replicas.train(model, whole_batches(steps_per_epoch=2))
        found.append(changes)
    survivors = [np.flatnonzero(np.any(c, axis=1)) for c in found[0][:2]]
    assert all(0 < len(s) < V // 2 for s in survivors)
    for changes in found[1:]:
        for a, b in zip(changes, found[0], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("several", slow.cases([1, 2], slow=[1]))
def test_a_strategy_gives_what_no_strategy_gives(replicas, several):
    # Of one replica, too: on_one_replica.
    def declared():
        x, y = dense_data()
        fixed = tf.data.Dataset.from_tensor_slices((x, y)).batch(N)
        return tfdp.data.declare_sampling(fixed, "poisson", N, SIZE)

    found = [
        replicas.train(
            replicas.model(count, linear, compile_kwargs=eagerly(count), **SETTINGS), declared()
        )[0]
        for count in (None, several)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("count", slow.cases([1, 2, 4], slow=[1, 4]))
def test_fault_05_noise_is_added_once_and_every_replica_agrees(replicas, count):
    # Contracts: fault 5 of other libraries. No example takes part: what moves is noise alone.
    sigma, clip_norm, size = 2.0, 3.0, SIZE
    model = replicas.model(
        count,
        lambda: keras.Sequential([keras.Input((500,)), keras.layers.Dense(500)]),
        noise_multiplier=sigma, clip_norm=clip_norm, num_examples=N, expected_batch_size=size,
    )  # fmt: skip
    data = (np.zeros((N, 500), "float32"), np.zeros((N, 500), "float32"), np.zeros(N, "float32"))
    (kernel, bias), (later, _) = replicas.changes_of_steps(model, batches(data, steps_per_epoch=2))
    exact = sigma * clip_norm / size
    assert kernel.std() == pytest.approx(exact, rel=0.01)
    assert bias.std() == pytest.approx(exact, rel=0.2)
    assert abs(np.corrcoef(kernel.ravel(), later.ravel())[0, 1]) < 0.01
    assert replicas.in_agreement(model.trainable_variables)


@pytest.mark.thorough
def test_noise_and_charge_are_once_where_only_the_inner_optimizers_are_replicated(replicas):
    # The noise key and the step counter of this DPOptimizer exist once, not on each replica.
    with replicas.strategy(2).scope():
        keras.utils.set_random_seed(0)
        model = tfdp.make_private(one_table())
        inner, rows = keras.optimizers.SGD(1.0), RowSGD(1.0)
    optimizer = DPOptimizer(
        inner, selection=AdaFEST(1.0), embedding_optimizer=rows,
        **{**SETTINGS, "noise_multiplier": 2.0, "expected_batch_size": N},
    )  # fmt: skip
    with model.distribute_strategy.scope():
        model.compile(optimizer, loss="mse")
    model.fit(shuffled_epochs(sparse_data(), N), verbose=0)
    assert optimizer.steps_taken == 1
    assert replicas.in_agreement(model.trainable_variables)
    assert "shuffled" in str(model.privacy_statement())


@pytest.mark.thorough
@pytest.mark.parametrize("count", slow.cases([1, 2, 4], slow=[1, 4]))
@pytest.mark.filterwarnings("ignore:AdaFEST's threshold of")
def test_surviving_rows_are_noised_once_and_every_replica_agrees(replicas, count):
    sigma, ratio, rows, threshold = 2.0, 0.5, 30_000, 2.5
    selection = AdaFEST(threshold, noise_ratio=ratio)
    model = replicas.model(
        count, lambda: sparse(rows, 64), selection=selection, rows=ROWS["RowSGD"],
        **{**SETTINGS, "noise_multiplier": sigma},
    )  # fmt: skip
    data = (*sparse_data(), np.zeros(N, "float32"))
    (one, two, *_), _ = replicas.train(model, batches(data, steps_per_epoch=1))
    sigma_1, sigma_2 = (
        selection.contribution_noise_multiplier(sigma), selection.gradient_noise_multiplier(sigma)
    )  # fmt: skip
    expected = rows * 0.5 * tf.math.erfc(threshold / sigma_1 / np.sqrt(2)).numpy()
    for change in (one, two):
        survivors = np.any(change, axis=1)
        assert abs(survivors.sum() - expected) < 6 * np.sqrt(expected)
        assert change[survivors].std() == pytest.approx(sigma_2 / SIZE, rel=0.01)
        assert survivors.sum() * 64 > 2e5
    assert replicas.in_agreement(model.trainable_variables + model.optimizer.variables)


@pytest.mark.thorough
def test_microbatches_and_steps_per_execution_work_on_replicas(replicas, on_one_replica):
    settings = {"microbatch_size": 5, "compile_kwargs": {"steps_per_execution": 2}}
    changes, _, _ = train_dense(replicas, 2, **settings)
    for a, b in zip(changes, on_one_replica[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.thorough
def test_the_budget_ends_after_as_many_steps_as_on_one_replica(replicas):
    # Of a model that is built by its data, on all replicas.
    model = replicas.model(
        2, lambda: keras.Sequential([keras.layers.Dense(2)]), num_examples=N,
        budget=tfdp.PrivacyBudget(8.0, 1e-3), steps=3, expected_batch_size=SIZE,
    )  # fmt: skip
    assert not model.built
    model.fit(poisson_batches(dense_data(), SIZE), epochs=9, verbose=0)
    assert model.optimizer.steps_taken == 3
    assert model.ledger.epsilon(1e-3) <= 8.0
    assert len(model.weights[0].value.values) == 2 and replicas.in_agreement(model.weights)


@pytest.mark.thorough
def test_a_batch_given_whole_to_each_replica_is_refused(replicas):
    model = replicas.model(2, dense, **SETTINGS)
    x, y = dense_data()
    with pytest.raises(PrivacyError, match="Each of 2 replicas received the same batch"):
        model.train_on_batch(x, y)
    with pytest.raises(PrivacyError, match="made by tfdp.data"):
        model.fit(x, y, batch_size=SIZE, verbose=0)


def test_an_optimizer_made_outside_the_scope_is_refused(replicas):
    optimizer = DPOptimizer(keras.optimizers.Adam(), **SETTINGS)
    with replicas.strategy(2).scope():
        model = tfdp.make_private(dense())
    with pytest.raises(PrivacyError, match="strategy.scope"):
        model.compile(optimizer, loss="mse")


@pytest.mark.thorough
def test_xla_over_several_replicas_is_refused(replicas):
    with pytest.raises(PrivacyError, match="jit_compile"):
        replicas.model(2, dense, compile_kwargs={"jit_compile": True}, **SETTINGS)


def test_a_keras_that_sums_gradients_in_another_way_is_refused(replicas, monkeypatch):
    from tfdp.runtime import replicas as module

    monkeypatch.setattr(module, "_SUMMING", "_sum_of_a_later_version")
    model = replicas.model(2, linear, **SETTINGS)
    with pytest.raises(PrivacyError, match="in a way that tfdp does not know"):
        model.fit(batches(dense_data()), verbose=0)


@pytest.mark.thorough
def test_rows_chosen_by_gradients_are_chosen_from_all_of_them(replicas):
    # With hardly any noise the three rows with the largest sums of norms win: they must be those
    # of the whole batch, and equal without replicas and on two.
    found = []
    for count in (None, 2):
        model = replicas.model(
            count, one_table, selection=ExponentialSelection(3, 1.0), rows=ROWS["RowSGD"],
            compile_kwargs=eagerly(count), **{**OF_WHOLE, "noise_multiplier": 1e-6},
        )  # fmt: skip
        changes, _ = replicas.train(model, whole_batches(steps_per_epoch=1))
        found.append(np.flatnonzero(np.any(changes[0], axis=1)))
        assert len(found[-1]) == 3
    np.testing.assert_array_equal(*found)


@pytest.mark.thorough
def test_fest_trains_on_replicas(replicas):
    model = replicas.model(
        2, one_table, selection=FEST(3, frequencies={"one": np.eye(V)[1]}),
        rows=ROWS["RowAdagrad"], **SETTINGS,
    )  # fmt: skip
    (one, *_), _ = replicas.train(model, batches(sparse_data(), steps_per_epoch=1))
    assert set(np.flatnonzero(np.any(one, axis=1))) <= {0, 1, 2}
