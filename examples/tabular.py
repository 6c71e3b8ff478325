# %% [markdown]
# # A private classifier of a table
#
# Each person has several rows. What is protected is a person with all of its rows, not a row.
#
#     python examples/tabular.py                       on generated visits
#     python examples/tabular.py --data visits.csv     columns: person, outcome (0 or 1), numbers

# %%
import argparse
import csv
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import tfdp

parser = argparse.ArgumentParser(description="A private classifier of a table.")
parser.add_argument("--data")
parser.add_argument("--epsilon", type=float, default=3.0)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--rows-per-person", type=int, default=4, help="at most so many take part")
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %% [markdown]
# ## The data


# %%
def generated(persons=2_000, visits=4, seed=0):
    """x (n, 8), y (n, 1) and whose row each one is."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(persons), visits)
    x = rng.normal(size=(len(person), 8)).astype("float32")
    y = x @ rng.normal(size=8) + rng.normal(size=persons)[person] > 0
    return x, y[:, None].astype("float32"), person


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = [name for name in rows[0] if name not in ("person", "outcome")]
    x = np.array([[row[name] for name in numbers] for row in rows], "float32")
    y = np.array([[row["outcome"]] for row in rows], "float32")
    return x, y, np.array([row["person"] for row in rows])


x, y, person = generated() if args.data is None else read(args.data)
held_out = np.isin(person, np.unique(person)[::5])  # every fifth person
persons = len(np.unique(person[~held_out]))
print(f"{persons:,} persons to train on, {(~held_out).sum():,} rows")

# %% [markdown]
# ## The model
#
# Numbers that scale the columns would be computed from private data. Bounds are public.

# %%
inputs = keras.Input((x.shape[1],))
hidden = keras.layers.Dense(32, activation="relu")(keras.ops.clip(inputs, -5.0, 5.0))
network = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model = tfdp.make_private(network)
model.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2),
        budget=tfdp.PrivacyBudget(args.epsilon, 0.1 / persons),
        clipping="normalized",
    ),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)

# %% [markdown]
# ## Training
#
# A batch draws persons, and takes at most so many rows of each.

# %%
batches = tfdp.data.poisson_batches(
    (x[~held_out], y[~held_out]), expected_batch_size=persons / 10,
    privacy_ids=person[~held_out], max_records_per_unit=args.rows_per_person,
)  # fmt: skip
model.fit(batches, epochs=args.epochs, callbacks=[tfdp.callbacks.PrivacyMeter()], verbose=2)

# %% [markdown]
# ## How good, and what is promised

# %%
results = model.evaluate(x[held_out], y[held_out], return_dict=True, verbose=0)
print(f"held-out persons: {results}\n\n{model.privacy_statement()}")
