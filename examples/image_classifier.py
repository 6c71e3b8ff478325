# %% [markdown]
# # A private classifier of images
#
# A small convolutional network, group normalisation, DP-SGD.
#
#     python examples/image_classifier.py                      on generated images
#     python examples/image_classifier.py --data images.npz
#
# The file holds the arrays x (n, height, width, 3) and y (n,).

# %%
import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import tfdp

parser = argparse.ArgumentParser(description="A private classifier of images.")
parser.add_argument("--data")
parser.add_argument("--epsilon", type=float, default=3.0)
parser.add_argument("--epochs", type=int, default=8)
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %% [markdown]
# ## The data


# %%
def generated(count=2_000, size=16, seed=0):
    """Images of a bright bar, upright or lying."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    x = rng.normal(scale=0.3, size=(count, size, size, 3))
    places = rng.integers(0, size, count)
    for image, kind, place in zip(x, y, places, strict=True):
        if kind:
            image[:, place] += 1.0
        else:
            image[place] += 1.0
    return x.astype("float32"), y


if args.data is None:
    x, y = generated()
else:
    with np.load(args.data) as file:
        x, y = file["x"].astype("float32"), file["y"]
kept = len(x) - len(x) // 5


# %% [markdown]
# ## The network, as one would write it without privacy
#
# Batch normalisation mixes the images of a batch: no gradient belongs to one of them.
# `replace_batch_norm` puts group normalisation in its place.


# %%
def network(shape, classes):
    return keras.Sequential([
        keras.Input(shape),
        keras.layers.Conv2D(16, 3, padding="same"), keras.layers.BatchNormalization(),
        keras.layers.ReLU(), keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(16, 3, padding="same"), keras.layers.BatchNormalization(),
        keras.layers.ReLU(), keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(classes),
    ])  # fmt: skip


private = tfdp.layers.replace_batch_norm(network(x.shape[1:], int(y.max()) + 1))
model = tfdp.make_private(private)
print(tfdp.clipping.explain(private))

# %% [markdown]
# ## Training

# %%
model.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2),
        budget=tfdp.PrivacyBudget(args.epsilon, 0.1 / kept),
        clipping="normalized",
        microbatch_size=128,  # bounds memory, and changes nothing else
    ),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
batches = tfdp.data.poisson_batches((x[:kept], y[:kept]), expected_batch_size=kept // 8)
model.fit(batches, epochs=args.epochs, callbacks=[tfdp.callbacks.PrivacyMeter()], verbose=2)

# %% [markdown]
# ## How good, and what is promised

# %%
results = model.evaluate(x[kept:], y[kept:], return_dict=True, verbose=0)
print(f"held-out images: {results}\n\n{model.privacy_statement()}")
