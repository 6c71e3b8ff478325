# %% [markdown]
# # A layer of your own
#
# Exact without a rule, faster with one.
#
#     python examples/own_layer.py

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp


# %%
class LowRank(keras.layers.Layer):
    """x·U·V: a dense layer of rank r without bias.

    Call arguments:
        x: (batch, positions, p).

    Returns:
        (batch, positions, units).
    """

    def __init__(self, units, rank, **kwargs):
        super().__init__(**kwargs)
        self.units, self.rank = units, rank

    def build(self, shape):
        self.down = self.add_weight(shape=(shape[-1], self.rank), name="down")
        self.up = self.add_weight(shape=(self.rank, self.units), name="up")

    def call(self, x):
        return (x @ self.down) @ self.up


model = keras.Sequential([
    keras.Input((12, 16)), LowRank(32, 4, name="low_rank"), keras.layers.ReLU(),
    keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2),
])  # fmt: skip

# %% [markdown]
# Without a rule the layer is run once more for each example: exact, and slow.

# %%
rng = np.random.default_rng(0)
x = rng.normal(size=(1_000, 12, 16)).astype("float32")
y = (x[:, :, 0].mean(1) > 0).astype("int64")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
print(tfdp.clipping.explain(model))
without = tfdp.clipping.per_example_gradient_norms(model, x[:64], y[:64], loss)


# %% [markdown]
# A rule says how each weight's gradient is made of what flows in and what flows back.


# %%
class LowRankRule(tfdp.clipping.Rule):
    """Two matrices, each with a gradient that is a sum of outer products over positions."""

    def variables(self, layer, args, kwargs):
        return [layer.down, layer.up]

    def contributions(self, layer, args, kwargs, gradients):
        (s,), x = gradients, args[0]
        hidden = x @ layer.down
        of_hidden = s @ tf.transpose(tf.convert_to_tensor(layer.up))
        return [
            (layer.down, tfdp.clipping.OuterProduct(x, of_hidden)),
            (layer.up, tfdp.clipping.OuterProduct(hidden, s)),
        ]


tfdp.clipping.register_rule(LowRank)(LowRankRule)
print(f"With a rule:\n{tfdp.clipping.explain(model)}")
with_rule = tfdp.clipping.per_example_gradient_norms(model, x[:64], y[:64], loss)
print(f"\nThe norms differ by {np.abs(with_rule / without - 1).max():.1e} at most.")

# %% [markdown]
# At the first `fit` the rule is compared with the fallback, before anything is charged.

# %%
private = tfdp.make_private(model)
private.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2), budget=tfdp.PrivacyBudget(3, 1e-4), clipping="normalized"
    ),
    loss=loss,
    metrics=["accuracy"],
)
private.fit(tfdp.data.poisson_batches((x, y), expected_batch_size=200), epochs=5, verbose=2)
print(private.privacy_statement())
