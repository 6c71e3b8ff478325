"""Training with forward noise, and what `evaluate` shows, on several replicas as on one."""

import contextlib

import dp_accounting
import keras
import numpy as np
import pytest
import slow

import tfdp
from tfdp.data import poisson_batches, shuffled_epochs
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise

N, K = 39, 4  # no number of replicas divides N
HEAD = 2  # place of the head's kernel among the weights


def network(sigma, width=K, initializer="glorot_uniform"):
    inputs = keras.Input((3,))
    h = keras.layers.Dense(width, kernel_initializer=initializer, trainable=False)(inputs)
    z = DPForwardNoise(1.0, sigma)(h)
    head = keras.layers.Dense(2, kernel_initializer=initializer, kernel_regularizer="l2")
    return keras.Model(inputs, head(z))


def compiled(replicas, count, base, optimizer=None, **kwargs):
    with replicas.strategy(count).scope() if count else contextlib.nullcontext():
        keras.utils.set_random_seed(0)
        model = tfdp.make_private(base())
        optimizer = keras.optimizers.SGD(1.0) if optimizer is None else optimizer()
    # Outside of the scope, where the step counter is not one for each replica.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, **kwargs)
    return model


def data(n=N):
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, 3)).astype("float32"), generator.integers(0, 2, n)


@pytest.mark.thorough
@pytest.mark.parametrize("several, padding", slow.cases([(2, 43), (4, 11)], slow=[(4, 11)]))
def test_losses_and_updates_are_those_of_one_replica(replicas, several, padding):
    # Rows of padding stand at the end: the last replicas have fewer examples, or none.
    found = []
    for count in (None, several):
        eager = count is None  # where a trace takes longer than four steps
        model = compiled(replicas, count, lambda: network(0.0), run_eagerly=eager)
        arrays = [np.concatenate([a, a[:1].repeat(padding, 0)]) for a in data()]
        weight = np.repeat([1.0, 0.0], [N, padding]).astype("float32")
        batches = poisson_batches((*arrays, weight), N + padding, steps_per_epoch=2)  # q = 1
        changes, history = replicas.train(model, batches, epochs=2)
        found.append([*changes, history["loss"]])
    assert np.any(found[0][HEAD])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.thorough
def test_noise_differs_between_replicas_and_steps_and_a_step_is_charged_once(replicas):
    # Representations, and so logits, are zero: a step moves the head by Σ_i z_i·(±1/2)/n, which
    # has variance σ²/(4n) if the noise of all n examples is independent, and twice that if both
    # replicas draw the same. 3% is more than 6 standard errors.
    sigma, width, n = 2.0, 20_000, 40
    model = compiled(
        replicas, 2, lambda: network(sigma, width, "zeros"), lambda: keras.optimizers.SGD(1e-3)
    )
    arrays = (np.zeros((n, 3), "float32"), np.zeros(n, int))
    batches = shuffled_epochs(arrays, n)
    first, second = (c[HEAD] for c in replicas.changes_of_steps(model, batches, epochs=2))
    for change in (first, second):
        assert change[:, 0].std() == pytest.approx(1e-3 * sigma / np.sqrt(4 * n), rel=0.03)
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 6 / np.sqrt(width)
    (entry,) = model.ledger.entries
    assert entry.count == 2 and entry.event == dp_accounting.GaussianDpEvent(sigma)
    alone = tfdp.accounting.Ledger()
    alone.add("forward noise", dp_accounting.GaussianDpEvent(sigma), 2)
    epsilon = alone.epsilon(1e-3)
    assert model.privacy_statement(1e-3).epsilon == pytest.approx(epsilon)


def test_data_given_whole_to_each_replica_and_xla_are_refused(replicas):
    model = compiled(replicas, 2, lambda: network(2.0))
    with pytest.raises(PrivacyError, match="Each of 2 replicas received the same batch"):
        model.train_on_batch(*data())
    with pytest.raises(PrivacyError, match="made by tfdp.data"):
        model.fit(*data(), verbose=0)
    with pytest.raises(PrivacyError, match="jit_compile"):
        compiled(replicas, 2, lambda: network(2.0), jit_compile=True)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_batches_from_shares_of_the_records_are_charged_as_poisson_batches(replicas):
    model = compiled(replicas, 2, lambda: network(2.0))
    batches = tfdp.distribution.poisson_batches(model.distribute_strategy, data(), 10)
    model.fit(batches, verbose=0)
    (entry,) = model.ledger.entries
    assert entry.event == tfdp.accounting.events.visible_sampling.VisiblySampledGaussianDpEvent(
        10 / N, 2.0
    )
    assert entry.count == 4


@pytest.mark.thorough
@pytest.mark.parametrize("private, count", [(True, None), (True, 2), (False, None), (False, 2)])
def test_evaluate_shows_the_mean_over_all_examples(replicas, private, count):
    # Two batches of 19 and a last one of 1: of two replicas one has no row of it.
    optimizer = (
        lambda: tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(), noise_multiplier=1.0, num_examples=N, expected_batch_size=10
        )
    ) if private else None  # fmt: skip
    x, y = data()
    model = compiled(replicas, count, lambda: network(0.0), optimizer, run_eagerly=count is None)
    logits = np.asarray(model(x), "float64")
    likelihood = logits[np.arange(N), y] - np.log(np.exp(logits).sum(1))
    penalty = float(np.sum(np.square(model.trainable_variables[0].numpy())) * 0.01)
    exact = penalty - likelihood.mean()
    assert model.evaluate(x, y, batch_size=19, verbose=0) == pytest.approx(exact, rel=1e-5)
