# %% [markdown]
# # A private model of clicks, with large tables
#
# 26 embedding tables, of which a step touches only rows that a private choice lets through
# (DP-AdaFEST). Then the same tables in a network of your own: a deep and cross network of keras_rs.
#
#     python examples/criteo.py                      on generated impressions
#     python examples/criteo.py --data train.txt     lines in Criteo's form, also .gz

# %%
import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_rs

import tfdp

parser = argparse.ArgumentParser(description="A private model of clicks.")
parser.add_argument("--data")
parser.add_argument("--rows", type=int, help="read only so many rows of the file")
parser.add_argument("--epsilon", type=float, default=3.0)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=1024)
parser.add_argument("--buckets", type=int, default=500, help="rows of each table")
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %% [markdown]
# ## The data
#
# Categories become ids by a hash, which looks at no data. The last tenth of the rows is held out.

# %%
if args.data is None:
    data = tfdp.data.synthetic_clicks(40_000, vocabulary_sizes=[args.buckets] * 26)
else:
    data = tfdp.data.load_criteo(args.data, hash_buckets=args.buckets, num_rows=args.rows)
print(f"{data.num_examples:,} impressions, {len(data.vocabulary_sizes)} tables")

# %% [markdown]
# ## Which rows may learn
#
# `explain` computes from settings alone how many untouched rows a step would let through.

# %%
budget = tfdp.PrivacyBudget(args.epsilon, 0.1 / data.num_examples)
steps = args.epochs * max(1, round(data.num_examples / args.batch_size))
sigma = tfdp.accounting.calibrate_noise_multiplier(
    budget, args.batch_size / data.num_examples, steps
)


def selection_at(threshold):
    # With a norm of √26 all features of an impression count in full.
    return tfdp.selection.AdaFEST(threshold, noise_ratio=1.0, contribution_norm=26**0.5)


stddev = selection_at(1.0).explain(data.vocabulary_sizes, sigma).noise_stddev
selection = selection_at(4.5 * stddev)
print(selection.explain(data.vocabulary_sizes, sigma, expected_batch_size=args.batch_size))


# %% [markdown]
# ## Training


# %%
def train(model):
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(2e-3),
            budget=budget,
            clip_norm=10.0,  # most gradients keep their length, so that probabilities stay true
            selection=selection_at(4.5 * stddev),
            embedding_optimizer=tfdp.optimizers.RowAdagrad(0.1),
        ),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(2000, from_logits=True, name="auc")],
    )
    batches = tfdp.data.poisson_batches(data.train, expected_batch_size=args.batch_size)
    model.fit(batches, epochs=args.epochs, callbacks=[tfdp.callbacks.PrivacyMeter()], verbose=2)
    results = model.evaluate(*data.test, batch_size=1024, return_dict=True, verbose=0)
    print(f"held-out impressions: {results}")
    return results


model = tfdp.models.PrivateCTR(data.vocabulary_sizes, hidden_units=(32,))
results = train(model)
print(model.privacy_statement())

# %% [markdown]
# ## A network of your own
#
# `tfdp.layers.SparseEmbedding` stands where `keras.layers.Embedding` would. Cross layers are
# keras_rs' own. Whoever sees both models sees the cost of both.

# %%
inputs = {name: keras.Input((), dtype="int64", name=name) for name in data.vocabulary_sizes}
inputs["integers"] = keras.Input((13,), name="integers")
vectors = [
    tfdp.layers.SparseEmbedding(rows, 8, name=f"{name}_table")(inputs[name])
    for name, rows in data.vocabulary_sizes.items()
]
# Cross layers multiply: numbers around 1 stay there.
counts = keras.ops.log1p(keras.ops.relu(inputs["integers"])) / 4
x = keras.ops.concatenate([counts, *vectors], axis=-1)
crossed = x
for _ in range(2):
    crossed = keras_rs.layers.FeatureCross(projection_dim=16)(x, crossed)
deep = keras.layers.Dense(32, activation="relu")(x)
logit = keras.layers.Dense(1)(keras.ops.concatenate([crossed, deep], axis=-1))
network = keras.Model(inputs, logit)
print(tfdp.clipping.explain(network))
cross_model = tfdp.make_private(network)
cross_results = train(cross_model)
print(cross_model.privacy_statement())
