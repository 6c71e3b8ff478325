"""What people report of private training elsewhere, written as they would write it here."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from keras import layers, ops

from tfdp.clipping import per_example_gradient_norms
from tfdp.errors import PrivacyError

N = 40
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)


def norms_alone(model, x, loss_of):
    """Norms of the gradients of single examples, by a tape."""
    found = []
    for i in range(len(x[0])):
        one = [a[i : i + 1] for a in x]
        with tf.GradientTape() as tape:
            loss = loss_of(model(one))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        found.append(np.sqrt(sum(np.sum(np.square(g)) for g in gradients)))
    return found


@pytest.mark.thorough
def test_triplets_through_one_encoder_are_clipped_as_one_example():
    encoder = keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])
    inputs = [keras.Input((3,)) for _ in range(3)]
    model = keras.Model(inputs, layers.Concatenate()([encoder(x) for x in inputs]))

    def loss(_, outputs):
        anchor, same, other = ops.split(outputs, 3, axis=-1)
        near, far = (ops.sum((anchor - one) ** 2, -1) for one in (same, other))
        return ops.maximum(near - far + 5.0, 0.0)

    x = [X[:4], X[4:8], X[8:12]]
    norms = per_example_gradient_norms(model, x, np.zeros(4), loss)
    np.testing.assert_allclose(norms, norms_alone(model, x, lambda z: loss(None, z)), rtol=1e-4)


class Encoder(keras.Model):
    """A variational autoencoder that returns its divergence as an output."""

    def __init__(self):
        super().__init__()
        self.mean, self.log_var, self.decoder = layers.Dense(2), layers.Dense(2), layers.Dense(3)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        mean, log_var = self.mean(x), self.log_var(x)
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        kl = -0.5 * ops.sum(1 + log_var - mean**2 - ops.exp(log_var), -1, keepdims=True)
        return {"x": self.decoder(mean + ops.exp(0.5 * log_var) * noise), "kl": kl}


@pytest.mark.thorough
def test_a_variational_autoencoder_trains_with_its_divergence_as_an_output():
    losses = {"x": "mse", "kl": lambda _, kl: kl[:, 0]}
    model = eager_model(Encoder(), losses)
    targets = {"x": X[:10], "kl": np.zeros((10, 1), np.float32)}
    logs = model.train_on_batch(X[:10], targets, return_dict=True)
    assert logs["loss"] == pytest.approx(logs["x_loss"] + logs["kl_loss"], rel=1e-5)


@pytest.mark.thorough
def test_a_generator_learns_from_a_private_discriminator(small):
    generator = keras.Sequential([keras.Input((2,)), layers.Dense(3)])
    network = keras.Sequential([keras.Input((3,)), layers.Dense(1)])

    class Discriminator(keras.Model):
        def __init__(self):
            super().__init__()
            self.network, self.generator = network, generator
            generator.trainable = False  # its steps are taken outside, and read weights alone
            self.seeds = keras.random.SeedGenerator()

        def call(self, x):
            fake = generator(keras.random.normal((ops.shape(x)[0], 2), seed=self.seeds))
            return {"real": network(x), "fake": network(fake)}

    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model = eager_model(Discriminator(), {"real": loss, "fake": loss})
    targets = {"real": np.ones((N, 1)), "fake": np.zeros((N, 1))}
    optimizer, before = keras.optimizers.SGD(0.1), generator.get_weights()[0]
    for batch in model.training_batches(small.poisson((X, targets), steps_per_epoch=1)):
        model.train_on_batch(*batch)
        weights = [v.value for v in generator.weights]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            fooled = loss(tf.ones((8, 1)), network(generator(tf.random.normal((8, 2)))))
        optimizer.apply(tape.gradient(fooled, weights), generator.weights)
    assert np.any(generator.get_weights()[0] != before)
    assert model.optimizer.steps_taken == 1 and np.isfinite(model.privacy_statement(1e-3).epsilon)


@pytest.mark.thorough
def test_losses_that_padding_makes_infinite_are_shown_as_those_of_the_examples(small):
    base = keras.Sequential(
        [keras.Input((3,), dtype="int32"), layers.Embedding(9, 2, mask_zero=True),
         layers.GlobalAveragePooling1D(), layers.Dense(2)]
    )  # fmt: skip
    model = eager_model(base)  # padding is masked at every position: 0 / 0
    ids = np.random.default_rng(1).integers(1, 9, (N, 3))
    logs = model.fit(small.poisson((ids, ids[:, 0] % 2), steps_per_epoch=2), verbose=0).history
    assert np.isfinite(logs["loss"]).all()


def endless():
    while True:
        yield X[:10], X[:10, 0]


@pytest.mark.parametrize("x", [endless(), keras.utils.PyDataset()], ids=["generator", "PyDataset"])
def test_batches_of_unknown_origin_name_the_way_out(small, x):
    with pytest.raises(PrivacyError, match="Instead of a generator or a PyDataset.*`parse`"):
        small.model().fit(x, steps_per_epoch=2, verbose=0)
