"""Two towers with shared negatives on DPFormer's protocol, one user being the unit of privacy.

    python benchmarks/two_towers_movielens.py --data ml-1m.txt [--epsilons 8] [--runs 1]
        [--all-items]

Runs are added to those that the results have. With --all-items the softmax is over all items.

The last item of each user is the test target, ranked among all items; δ = 1/n. A user has its last
pairs of a history and the item after it, clipped together. The user tower is the mean of the
history's vectors, in the items' own table, and a dense layer. Settings were chosen by hand before
any run; the release of transitions alone, on the same protocol, is in transitions_movielens.json.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp

OUT = pathlib.Path(__file__).parent / "results" / "two_towers_movielens.json"
LENGTH, PAIRS, WIDTH = 20, 4, 32
SETTINGS = {"users": 1000, "steps": 150, "negatives": 512, "rate": 0.02, "clipping": "normalized"}


def pairs_of(data):
    """(histories (n·k, L), items (n·k,), users (n·k,)): the last k pairs of each user."""
    sequences = [np.concatenate([x[x > 0][:1], y[y > 0]]) for x, y in zip(*data.train, strict=True)]
    found = []
    for user, items in enumerate(sequences):
        for place in range(max(1, len(items) - PAIRS), len(items)):
            history = items[max(0, place - LENGTH) : place]
            found.append((np.pad(history, (LENGTH - len(history), 0)), items[place], user))
    histories, items, users = zip(*found, strict=True)
    return np.stack(histories), np.array(items), np.array(users)


def model_of(num_items, all_items):
    start = keras.initializers.RandomNormal(stddev=0.05)
    table = keras.layers.Embedding(num_items + 1, WIDTH, start, mask_zero=True)
    history = keras.Input((LENGTH,), dtype="int64")
    mean = keras.layers.GlobalAveragePooling1D()(table(history))
    users = keras.Model(history, keras.layers.Dense(WIDTH, kernel_initializer="identity")(mean))
    negatives = None if all_items else SETTINGS["negatives"]
    return tfdp.models.TwoTower(users, table, num_items + 1, negatives)


def run(data, epsilon, all_items):
    histories, items, users = pairs_of(data)
    model, steps = model_of(data.num_items, all_items), SETTINGS["steps"]
    model.privacy_unit = "one user"
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(
        SETTINGS["rate"], steps))  # fmt: skip
    if epsilon:
        optimizer = tfdp.optimizers.DPOptimizer(
            optimizer, budget=tfdp.PrivacyBudget(epsilon, 1 / data.num_users), steps=steps,
            clipping=SETTINGS["clipping"],
        )  # fmt: skip
    model.compile(optimizer, jit_compile=False)
    if epsilon:
        batches = tfdp.data.poisson_batches(
            (histories, items), SETTINGS["users"], privacy_ids=users, max_records_per_unit=PAIRS,
            steps_per_epoch=steps,
        )  # fmt: skip
    else:
        pairs = tf.data.Dataset.from_tensor_slices((histories, items)).shuffle(len(items)).repeat()
        batches = pairs.batch(SETTINGS["users"] * PAIRS).take(steps)
    start = time.process_time()
    model.fit(batches, epochs=1, verbose=0)
    row = {"processor_seconds": round(time.process_time() - start, 1)}
    x, y = data.test
    present = y[:, -1] > 0
    found = model.evaluate(x[present, -LENGTH:], y[present, -1], k=(10,))
    row |= {"ndcg_10": 100 * found["ndcg_10"], "hit_10": 100 * found["recall_10"]}
    if epsilon:
        row["statement"] = model.privacy_statement(1 / data.num_users).to_dict()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument(
        "--epsilons", type=float, nargs="*", default=[8.0, 0.0], help="0 is without privacy"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--all-items", action="store_true")
    args = parser.parse_args()
    data = tfdp.data.load_sequences(args.data, max_length=LENGTH + PAIRS)
    result = {"settings": {**SETTINGS, "length": LENGTH, "pairs": PAIRS, "width": WIDTH},
              "num_users": data.num_users, "num_items": data.num_items, "rows": []}  # fmt: skip
    if OUT.exists():  # earlier runs stay, if the settings are the same
        before = json.loads(OUT.read_text())
        if before["settings"] == result["settings"]:
            result["rows"] = before["rows"]
    for epsilon in args.epsilons:
        kind = {"epsilon": epsilon, "all_items": args.all_items}
        row = next((r for r in result["rows"] if r.items() >= kind.items()), None)
        if row is None:
            row = {**kind, "runs": []}
            result["rows"].append(row)
        for _ in range(args.runs):
            row["runs"].append(run(data, epsilon, args.all_items))
            print(epsilon, {k: v for k, v in row["runs"][-1].items() if k != "statement"})
            OUT.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
