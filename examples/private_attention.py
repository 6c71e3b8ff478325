"""Releases DPFormer's attention for one user's history, and draws it beside the exact one.

    python examples/private_attention.py

In the first layer a row is a function of its own item and position, so one item of the history
("token") can be protected. A deeper layer has mixed the items: only the whole history ("sequence")
is a true unit there. The data and the model are generated here; nothing is private but the
history. The training data is not protected: use a `DPOptimizer` where it must be.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.layers import PrivateAttention

DELTA = 1e-5


class AttentionInputs(keras.layers.Layer):
    """Item ids (B, T) to the queries and keys (B, T, heads, d_k) of one block of a DPFormer.

    Two changes of the numbers, both public functions of the weights, change no attention weight
    and let a smaller norm do: the mean key is subtracted from every key, and queries and keys are
    scaled to the same largest norm over all items. `max_norm` is half of that: clipping to it
    makes the attention flatter, and the noise four times smaller.
    """

    def __init__(self, model, block, **kwargs):
        super().__init__(**kwargs)
        self.model, self.block = model, block
        items = np.arange(1, model.num_items + 1)[:, None]
        query, key = self._project(tf.constant(np.tile(items, [1, model.max_length])))
        self.mean_key = tf.reduce_mean(key, axis=[0, 1])
        norms = [tf.reduce_max(tf.norm(z, axis=-1)) for z in (query, key - self.mean_key)]
        self.scale = tf.sqrt(norms[1] / norms[0])
        self.max_norm = 0.5 * float(tf.sqrt(norms[0] * norms[1]))

    def _project(self, ids):
        x = self.model.positions(self.model.embedding(ids))
        everything = tf.constant(np.tril(np.ones([ids.shape[1]] * 2, bool)))
        for block in self.model.blocks[: self.block]:
            x, _ = block(x, attention_mask=everything)
        attention = self.model.blocks[self.block].attention
        x = self.model.blocks[self.block].attention_norm(x)
        return attention.query_dense(x), attention.key_dense(x)

    def call(self, ids):
        query, key = self._project(ids)
        return query * self.scale, (key - self.mean_key) / self.scale

    def compute_output_spec(self, ids):
        dense = self.model.blocks[self.block].attention.query_dense
        shape = (*ids.shape, *dense.kernel.shape[1:])
        return keras.KerasTensor(shape), keras.KerasTensor(shape)


def train(max_length, epochs):
    """A DPFormer on generated sequences, and the history of one user without padding."""
    data = tfdp.data.synthetic_sequences(num_users=4000, num_items=60, max_length=max_length)
    model = tfdp.models.DPFormer(num_items=data.num_items, max_length=max_length, dim=16)
    model.compile(keras.optimizers.Adam(5e-3))
    batches = tfdp.data.poisson_batches(
        data.train, expected_batch_size=256, steps_per_epoch=data.num_users // 256
    )
    model.fit(batches, epochs=epochs, verbose=0)
    full = np.all(data.test.x > 0, axis=1)
    return model, data.test.x[full][:1]


def private_model(inputs, epsilon, **arguments):
    """ids -> privately released attention of one block, as a Keras model that can be exported."""
    ids = keras.Input([inputs.model.max_length], dtype="int32")
    query, key = inputs(ids)
    budget = tfdp.PrivacyBudget(epsilon, DELTA)
    release = PrivateAttention(budget, inputs.max_norm, name="release", **arguments)
    return keras.Model(ids, release(query, key, use_causal_mask=True))


def exact_attention(inputs, history):
    query, key = inputs(history)
    logits = tf.einsum("bthd,bshd->bhts", query, key) / query.shape[-1] ** 0.5
    causal = np.tril(np.ones(logits.shape[-2:], bool))
    return tf.nn.softmax(tf.where(causal, logits, -np.inf)).numpy()


def cost_table(layers):
    """What each unit costs in each block, before anything is released."""
    print(f"{'block':6}{'unit':34}{'epsilon':>8}  logits are off by (largest logit)")
    for inputs, unit, distance in layers:
        for epsilon in (8.0, 100.0, 1000.0):
            what = unit if distance is None else f"{unit}, moved by {distance:.2g} at most"
            line = f"{inputs.block:<6}{what:34}{epsilon:8g}  "
            try:
                model = private_model(inputs, epsilon, unit=unit, neighbor_distance=distance)
            except ValueError as refusal:
                print(line + "refused: " + str(refusal).split("mechanism=")[1].split(", so")[0])
                continue
            plan = model.get_layer("release").plan
            print(line + f"{plan.error().std:.3g} ({plan.setting.logit_range:.3g})")


def draw(panels, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 7.4), layout="constrained")
    for axis in axes.ravel():
        axis.axis("off")
    for (row, column), title, weights in panels:
        axis = axes[row, column]
        axis.axis("on")
        image = axis.imshow(weights[0, 0], vmin=0, vmax=1, cmap="viridis")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("attended position")
        axis.set_ylabel("position")
    figure.colorbar(image, ax=axes, shrink=0.6, label="attention weight")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="private_attention.png")
    parser.add_argument("--export", help="folder for a SavedModel of the first layer's release")
    parser.add_argument("--epochs", type=int, default=15)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)
    model, history = train(max_length=8, epochs=arguments.epochs)
    first, deeper = AttentionInputs(model, 0), AttentionInputs(model, 1)
    near = 0.1 * first.max_norm
    cost_table(
        [(first, "token", near), (first, "token", None), (first, "sequence", None)]
        + [(deeper, "sequence", None)]
    )

    near_token = private_model(first, 8.0, unit="token", neighbor_distance=near)
    any_token = private_model(first, 1000.0, unit="token")
    sequence = private_model(deeper, 1000.0, unit="sequence")
    print("\nFirst layer:\n")
    near_token.get_layer("release").explain()
    print(f"\n{near_token.get_layer('release').privacy_statement()}")
    print(f"\nDeeper layer:\n\n{sequence.get_layer('release').privacy_statement()}")
    panels = [
        ((0, 0), "first layer, exact (not private)", exact_attention(first, history)),
        ((0, 1), "one token, moved by 0.1 α or less\nε = 8", near_token(history).numpy()),
        ((0, 2), "one token, any replacement\nε = 1000", any_token(history).numpy()),
        ((1, 0), "second layer, exact (not private)", exact_attention(deeper, history)),
        ((1, 1), "the whole sequence\nε = 1000", sequence(history).numpy()),
    ]
    draw(panels, arguments.output)
    print(f"\nDrawn: {arguments.output}")
    if arguments.export:
        near_token.export(arguments.export, verbose=False)
        statement = near_token.get_layer("release").privacy_statement()
        with open(os.path.join(arguments.export, "privacy_statement.json"), "w") as file:
            file.write(statement.to_json())
        served = tf.saved_model.load(arguments.export)
        calls = [served.serve(tf.constant(history))[0, 0, 3, :4].numpy() for _ in range(2)]
        print(f"Two calls of the exported model, each with its own noise: {calls}")


if __name__ == "__main__":
    main()
