"""JAX-Privacy: `clipped_grad` in a compiled step of optax, and `keras_api` on Keras' JAX backend.

Both run the Keras models that tfdp runs.
"""

import importlib.metadata
import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import jax_privacy
import keras
import keras_models
import optax
import protocol
import sizes
from jax_privacy import keras_api


def loss_of(model, fixed):
    """Mean cross-entropy as a function of the weights and a batch."""

    def loss(weights, batch):
        inputs, labels = batch
        logits, _ = model.stateless_call(weights, fixed, inputs, training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


class Trainer:
    """A step that is one compiled function."""

    def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
        model = keras_models.build(name)
        loss = loss_of(model, [v.value for v in model.non_trainable_variables])
        rate = sizes.RATES[optimizer]
        update = {"adam": optax.adam, "sgd": optax.sgd}[optimizer](rate)
        if method == "plain":
            gradient = jax.grad(loss)
        else:
            gradient = jax_privacy.clipped_grad(
                loss, l2_clip_norm=clip_norm, normalize_by=batch_size
            )
            noise = jax_privacy.noise_addition.gaussian_privatizer(
                stddev=noise_multiplier * clip_norm / batch_size
            )
            update = optax.chain(noise, update)

        def step(weights, state, batch):
            changes, state = update.update(gradient(weights, batch), state, weights)
            return optax.apply_updates(weights, changes), state

        self.compiled = jax.jit(step, donate_argnums=(0, 1))
        self.weights = [jnp.array(v.value) for v in model.trainable_variables]
        self.state = update.init(self.weights)

    def feed(self, inputs, labels):
        inputs = [jnp.asarray(x) for x in inputs]
        self.batch = (inputs if len(inputs) > 1 else inputs[0], jnp.asarray(labels))

    def step(self):
        self.weights, self.state = self.compiled(self.weights, self.state, self.batch)
        jax.block_until_ready(self.weights)

    def get(self):
        return [jax.device_get(v).copy() for v in self.weights]

    def set(self, values):
        self.weights = [jnp.array(v) for v in values]


class KerasTrainer:
    """A step of `train_on_batch`."""

    def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
        model = keras_models.build(name)
        if method == "Keras":
            config = keras_api.DPKerasConfig(
                epsilon=10.0,
                delta=1e-6,
                clipping_norm=clip_norm,
                batch_size=batch_size,
                gradient_accumulation_steps=1,
                train_steps=1000,
                train_size=sizes.NUM_EXAMPLES,
                noise_multiplier=sizes.NOISE_MULTIPLIER,
                rescale_to_unit_norm=False,
            )
            # It computes ε when it is made, and refuses no noise, which checks of clipping need.
            object.__setattr__(config, "noise_multiplier", noise_multiplier)
            model = keras_api.make_private(model, config)
        kind = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[optimizer]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(kind(sizes.RATES[optimizer]), loss=loss)
        self.model = model

    def feed(self, inputs, labels):
        inputs = [jnp.asarray(x) for x in inputs]
        self.batch = (inputs if len(inputs) > 1 else inputs[0], jnp.asarray(labels))

    def step(self):
        self.model.train_on_batch(*self.batch)
        jax.block_until_ready([v.value for v in self.model.trainable_variables])

    def get(self):
        return [jax.device_get(v.value).copy() for v in self.model.trainable_variables]

    def set(self, values):
        for variable, value in zip(self.model.trainable_variables, values, strict=True):
            variable.assign(value)


def make(name, method, *args):
    return (KerasTrainer if "Keras" in method else Trainer)(name, method, *args)


if __name__ == "__main__":
    protocol.serve(
        make,
        {
            "jax-privacy": importlib.metadata.version("jax-privacy"),
            "jax": jax.__version__,
            "keras": keras.__version__,
        },
    )
