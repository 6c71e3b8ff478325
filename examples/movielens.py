# %% [markdown]
# # A private recommender
#
# Which item comes next? One user is one record. One private release of which item follows which;
# then, under the same budget, a transformer.
#
#     python examples/movielens.py                      on generated sequences
#     python examples/movielens.py --data ml-1m.txt     `user item` lines, in time order per user

# %%
import argparse
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp

parser = argparse.ArgumentParser(description="A private recommender.")
parser.add_argument("--data")
parser.add_argument("--epsilon", type=float, default=8.0)
parser.add_argument("--epochs", type=int, default=5, help="of the transformer")
parser.add_argument("--export", help="folder for the SavedModel; default: a temporary one")
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %% [markdown]
# ## The data
#
# Each user's last item is held out.


# %%
def load(max_length):
    if args.data is None:
        return tfdp.data.synthetic_sequences(num_users=4_000, num_items=200, max_length=16)
    return tfdp.data.load_sequences(args.data, max_length=max_length)


data = load(max_length=2_000)
delta = 0.5 / data.num_users
print(f"{data.num_users:,} users, {data.num_items:,} items")

# %% [markdown]
# ## One release, no training

# %%
release = tfdp.data.private_transitions(data.train, epsilon=args.epsilon, delta=delta)
model = tfdp.models.TransitionRecommender(
    tfdp.layers.TransitionOdds(release), exclude_seen=args.data is not None
)
model.compile(metrics=[tfdp.metrics.NDCG(k=10), tfdp.metrics.HitRate(k=10)])
results = model.evaluate(*data.held_out, return_dict=True, verbose=0)
print(f"held-out items, among all {data.num_items:,}: {results}\n")
print(model.privacy_statement(delta))

# %% [markdown]
# ## A transformer under the same budget

# %%
short = load(max_length=50)
frequency = tfdp.data.private_frequency(short.train, epsilon=args.epsilon / 16)
former = tfdp.models.DPFormer(
    short.num_items, short.max_length, dim=16,
    item_frequency=frequency, popularity_prior=frequency,
)  # fmt: skip
former.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2),
        budget=tfdp.PrivacyBudget(args.epsilon, delta),
        clipping="normalized",
        microbatch_size=512,
    )
)
batches = tfdp.data.poisson_batches(short.train, expected_batch_size=short.num_users // 8)
former.fit(batches, epochs=args.epochs, callbacks=[tfdp.callbacks.PrivacyMeter()], verbose=2)

# %%
ndcg = tfdp.metrics.NDCG(k=10)
histories, items = short.held_out
for start in range(0, len(histories), 256):
    scores = former.score_next(histories[start : start + 256])
    ndcg.update_state(items[start : start + 256], scores)
print(f"DPFormer, NDCG@10: {float(ndcg.result()):.4f}")
print(f"one release, NDCG@10: {results['ndcg_10']:.4f}")

# %% [markdown]
# ## Export, and ask
#
# The SavedModel is loaded without tfdp. It takes histories of any length, oldest first.

# %%
folder = args.export or tempfile.mkdtemp()
tfdp.serving.export(model, folder, k=10, delta=delta)
served = tf.saved_model.load(folder)
answer = served.serve(tf.constant([[12, 7, 33]], tf.int64))
print("after items 12, 7, 33:", np.asarray(answer["items"])[0].tolist())
