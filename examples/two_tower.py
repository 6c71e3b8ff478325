# %% [markdown]
# # A private two-tower retrieval model
#
# In-batch negatives are refused: the other users' items enter each user's loss, so that no gradient
# belongs to one user. The way out is a softmax over all items, or over public sampled ones: then
# every user's loss is its own. Items are then found by keras_rs, or by tensorflow_recommenders.
#
#     python examples/two_tower.py --export towers
#     .venv-retrieval/bin/python examples/retrieve_tfrs.py towers     (`make retrieval`)

# %%
import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_rs
import numpy as np
import tensorflow as tf

import tfdp

parser = argparse.ArgumentParser(description="A private two-tower retrieval model.")
parser.add_argument("--epsilon", type=float, default=3.0)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--export", help="folder for the towers; default: a temporary one")
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %% [markdown]
# ## The data
#
# Both towers read the items' features, which are public, as the list of items is.


# %%
def generated(users=4_000, items=200, seed=0):
    """Item features (items, 8), histories (users, 5) and the item that followed (users,)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(items, 8)).astype("float32")
    tastes = rng.normal(size=(users, 8))
    ranked = np.argsort(-(tastes @ features.T) - rng.gumbel(size=(users, items)), axis=1)
    return features, ranked[:, 1:6], ranked[:, 0]


features, history, following = generated()
kept = len(history) * 3 // 4


# %% [markdown]
# ## The model


# %%
class TwoTowers(tfdp.models.DPModel):
    """Scores of all items (batch, num_items) from the ids of users' last items (batch, T)."""

    def __init__(self, item_features, dim=16, **kwargs):
        super().__init__(**kwargs)
        self.item_features = keras.ops.convert_to_tensor(item_features)
        self.items = keras.layers.Dense(dim, name="item_tower")
        self.users = keras.layers.Dense(dim, name="user_tower")

    def item_vectors(self):
        return self.items(self.item_features)

    def user_vectors(self, history):
        return self.users(keras.ops.mean(keras.ops.take(self.item_features, history, axis=0), 1))

    def call(self, history):
        return self.user_vectors(history) @ keras.ops.transpose(self.item_vectors())


# %%
model = TwoTowers(features)
model.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2),
        budget=tfdp.PrivacyBudget(args.epsilon, 0.1 / kept),
        clipping="normalized",
    ),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseTopKCategoricalAccuracy(10, name="hit_rate_10")],
)
train = (history[:kept], following[:kept])
model.fit(tfdp.data.poisson_batches(train, kept // 10), epochs=args.epochs, verbose=2)
results = model.evaluate(history[kept:], following[kept:], return_dict=True, verbose=0)
print(f"held-out users: {results}\n\n{model.privacy_statement()}\n")

# %% [markdown]
# ## Export of the towers
#
# A SavedModel with an endpoint for each tower, and the statement beside it. The items' vectors are
# made of private weights and public features: they may be published as the weights may.

# %%
folder = pathlib.Path(args.export or tempfile.mkdtemp())
archive = keras.export.ExportArchive()
archive.track(model)
archive.add_endpoint("user_vectors", model.user_vectors, [tf.TensorSpec([None, 5], tf.int64)])
archive.add_endpoint("item_vectors", model.item_vectors, [])
archive.write_out(str(folder), verbose=False)
(folder / "privacy_statement.json").write_text(model.privacy_statement().to_json())
np.savez(folder / "held_out.npz", history=history[kept:], following=following[kept:])

# %% [markdown]
# ## Retrieval by keras_rs, from the export

# %%
towers = tf.saved_model.load(str(folder))
retrieval = keras_rs.layers.BruteForceRetrieval(
    candidate_embeddings=towers.item_vectors(), k=10, return_scores=False
)
found = np.asarray(retrieval(towers.user_vectors(history[kept:])))
share = (found == following[kept:, None]).any(1).mean()
print(f"users with the next item among the 10 found: {share:.3f}")
