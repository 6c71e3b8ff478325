"""A step with a selection in micro-batches is the step in one piece.

Bounds on measured standard deviations are 2% at 1e5 draws or more: more than 6 standard errors.
"""

import keras
import numpy as np
import pytest
import slow

import tfdp
from tfdp.data import poisson_batches
from tfdp.distribution import select_on_host
from tfdp.errors import PrivacyError
from tfdp.optimizers import RowAdagrad, RowSGD
from tfdp.selection import FEST, AdaFEST, ExponentialSelection

N, V, D, SIZE = 30, 60, 2, 4


def build(rows=V, width=D, initializer="uniform"):
    ids = keras.Input((3,), dtype="int64")
    options = {"embeddings_initializer": initializer}
    one = tfdp.layers.SparseEmbedding(rows, width, name="one", **options)(ids)
    two = tfdp.layers.SparseEmbedding(rows, width, combiner="sum", name="two", **options)(ids)
    x = keras.layers.Concatenate()([keras.layers.Flatten()(one), two])
    return keras.Model(ids, keras.layers.Dense(1)(x))


def data(rows=V):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, rows, (N, 3)) % generator.integers(1, 12, (N, 3))
    return ids, 3 * generator.normal(size=(N, 1)).astype("float32")


def compiled(replicas, count=None, *, selection, rows=lambda: RowSGD(1.0), **kwargs):
    settings = {"noise_multiplier": 0.0, "clip_norm": 0.5, "num_examples": N,
                "expected_batch_size": N, **kwargs}  # fmt: skip
    return replicas.model(
        count, settings.pop("build", build), selection=selection, rows=rows, **settings
    )


def batches(arrays, steps=2):
    return poisson_batches(arrays, N, steps_per_epoch=steps)  # q = 1: the same batch every time


def trained(replicas, model, arrays, steps=2):
    """How the weights changed, with rows chosen on the host."""
    chosen = select_on_host(batches(arrays, steps), model, lambda x: {"one": x, "two": x})
    return replicas.train(model, chosen)[0]


# No micro-batch of four examples reaches this threshold alone: rows are chosen from all.
OF_ALL = {
    "selection": AdaFEST(2 * SIZE, contribution_norm=2.0, capacity=20),
    "rows": lambda: RowAdagrad(0.1),
}


@pytest.fixture(scope="module")
def one_piece(replicas):
    eager = {"run_eagerly": True}  # a trace takes longer than two steps
    return trained(replicas, compiled(replicas, compile_kwargs=eager, **OF_ALL), data())


OF_SUMS = [(None, "auto"), (None, True), (2, "auto")]


@pytest.mark.thorough
@pytest.mark.parametrize("count, jit_compile", slow.cases(OF_SUMS, slow=OF_SUMS[1:]))
def test_sums_and_survivors_are_those_of_one_piece(replicas, one_piece, count, jit_compile):
    assert all(0 < np.any(table, axis=1).sum() < 12 for table in one_piece[:2])
    compile_kwargs = {"jit_compile": jit_compile}
    model = compiled(replicas, count, microbatch_size=SIZE, compile_kwargs=compile_kwargs, **OF_ALL)
    for found, exact in zip(trained(replicas, model, data()), one_piece, strict=True):
        np.testing.assert_allclose(found, exact, atol=2e-6)
        np.testing.assert_array_equal(np.any(found, axis=-1), np.any(exact, axis=-1))
    assert model.optimizer.steps_taken == 2


@pytest.mark.thorough
@pytest.mark.parametrize("count", slow.cases([None, 2], slow=[2]))
@pytest.mark.filterwarnings("ignore:AdaFEST's threshold of")
def test_survivors_are_noised_once_and_the_step_is_charged_once(replicas, count):
    # Tables of zeros and targets of zero: all gradients vanish, what moves is noise alone.
    rows, width, sigma, ratio, threshold = 20_000, 64, 2.0, 0.5, 2.5
    selection = AdaFEST(threshold, ratio, capacity=10_000)
    model = compiled(
        replicas, count, selection=selection, build=lambda: build(rows, width, "zeros"),
        clip_norm=3.0, noise_multiplier=sigma, microbatch_size=SIZE,
    )  # fmt: skip
    ids, y = data(rows)
    one, two, *_ = trained(replicas, model, (ids, 0 * y), steps=1)
    sigma_2 = selection.gradient_noise_multiplier(sigma)
    for change in (one, two):
        survivors = np.any(change, axis=1)
        assert 1e5 < survivors.sum() * width < rows * width / 2
        assert change[survivors].std() == pytest.approx(3.0 * sigma_2 / N, rel=0.02)
    (entry,) = model.ledger.entries
    assert entry.count == 1
    assert entry.event == tfdp.accounting.events.composition.training_event(sigma, 1.0)


def test_rows_of_fest_are_the_same_for_every_micro_batch(replicas):
    fest = FEST(3, frequencies={"one": np.eye(V)[1], "two": np.eye(V)[2]})
    found = [
        replicas.train(compiled(replicas, selection=fest, microbatch_size=size,
                                compile_kwargs={"run_eagerly": True}), batches(data(), 1))[0]
        for size in (None, 4 * SIZE)  # two of them, of which the last is not full
    ]  # fmt: skip
    assert np.any(found[0][0]) and np.any(found[0][1])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_rows_that_only_the_whole_batch_can_choose_are_refused(replicas):
    model = compiled(replicas, selection=AdaFEST(1.0, capacity=9), microbatch_size=SIZE)
    with pytest.raises(PrivacyError, match="select_on_host"):
        model.fit(batches(data()), verbose=0)
    with pytest.raises(PrivacyError, match="select_on_host"):
        model.train_on_batch(*data())
    with pytest.raises(ValueError, match="select_on_host"):
        compiled(replicas, selection=AdaFEST(1.0), microbatch_size=SIZE)
    with pytest.raises(ValueError, match="reads the gradients of the whole batch"):
        compiled(replicas, selection=ExponentialSelection(3), microbatch_size=SIZE)
