"""Two towers with shared negatives on DPFormer's protocol, one user being the unit of privacy.

    python benchmarks/two_towers_sequences.py --data ml-1m.txt --name movielens [--epsilons 8]
        [--runs 1] [--all-items] [--start release]

Runs are added to those that the results have. With --all-items the softmax is over all items. With
--start release, three quarters of ε buy a release of transitions, and the vectors start as the
factors of its matrix.

The last item of each user is the test target (with --target second_last the second last one, to
choose settings), ranked among all items; δ = 1/n. A user has its last pairs of a history and the
item after it, clipped together. The user tower is the mean of the history's vectors, in the items'
own table, and a dense layer. Vectors that start from a release are in two tables, because an item
before another and the item after it have different factors, and the mean is weighted: newer items
count more. Settings were chosen by hand before any run, except those of vectors from a release:
they were chosen on MovieLens' second last items, which is not charged. Results of the release alone
are in transitions_movielens.json and transitions_amazon_games.json.
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
from scipy import sparse
from scipy.sparse.linalg import svds
from transitions import load

import tfdp

RESULTS = pathlib.Path(__file__).parent / "results"
LENGTH, PAIRS, WIDTH = 20, 4, 32
SETTINGS = {"users": 1000, "steps": 150, "negatives": 512, "rate": 0.02, "clipping": "normalized"}
#: Of vectors that start from a release.
FACTORS = {"width": 128, "last_items": 5, "decay": 0.7, "scale": 20.0, "rate": 0.01, "share": 0.75}
RELEASES = {
    "movielens": {"longest": 2277},
    "amazon_games": {"longest": 200, "symmetric": True, "rounds": 2, "threshold": 2.0},
}


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


def model_from(release, all_items):
    """Two towers whose vectors start as the factors of released transitions."""
    before, after = (
        keras.layers.Embedding(len(factor), FACTORS["width"], keras.initializers.Constant(factor))
        for factor in factors_of(release)
    )
    age = LENGTH - 1 - np.arange(LENGTH, dtype=np.float32)
    weights = np.where(age < FACTORS["last_items"], FACTORS["decay"] ** age, 0.0)
    history = keras.Input((LENGTH,), dtype="int64")
    present = keras.ops.cast(history > 0, "float32") * weights
    users = keras.Model(history, keras.ops.einsum("bl,bld->bd", present, before(history)))
    negatives = None if all_items else SETTINGS["negatives"]
    return tfdp.models.TwoTower(users, after, release.num_items + 1, negatives)


def factors_of(release):
    """Two arrays (num_items + 1, width) whose product is the root of the shares of transitions."""
    size = release.num_items + 1
    values, places = np.asarray(release.values), np.asarray(release.indices)
    matrix = sparse.csr_matrix((values, places.T), (size, size))
    rows = np.repeat(np.arange(size), np.diff(matrix.indptr))
    totals = np.asarray(matrix.sum(axis=1)).ravel() + 20.0
    matrix.data = FACTORS["scale"] * np.sqrt(matrix.data / totals[rows])
    left, strengths, right = svds(matrix, k=FACTORS["width"], rng=0)
    pair = (left * np.sqrt(strengths), right.T * np.sqrt(strengths))
    return [release.carried.on(factor.astype(np.float32)) for factor in pair]


def release_of(path, name, target, epsilon):
    """Transitions of the whole histories, for a share of ε."""
    settings = dict(RELEASES[name])
    data = load(path, settings.pop("longest"), target)
    cost = {"epsilon": FACTORS["share"] * epsilon, "delta": 0.5 / data.num_users}
    return tfdp.data.private_transitions(data.train, **cost, **settings)


def run(data, epsilon, all_items, release):
    histories, items, users = pairs_of(data)
    steps, rate, started = SETTINGS["steps"], SETTINGS["rate"], time.process_time()
    if release is not None:
        model, rate = model_from(release, all_items), FACTORS["rate"]
    else:
        model = model_of(data.num_items, all_items)
    model.privacy_unit = "one user"
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, steps))
    if epsilon:
        optimizer = tfdp.optimizers.DPOptimizer(
            optimizer, budget=tfdp.PrivacyBudget(epsilon, 1 / data.num_users), steps=steps,
            clipping=SETTINGS["clipping"],
        )  # fmt: skip
    model.compile(optimizer, jit_compile=False)
    row = {"before training": scores_of(model, data)} if release is not None else {}
    if epsilon:
        batches = tfdp.data.poisson_batches(
            (histories, items), SETTINGS["users"], privacy_ids=users, max_records_per_unit=PAIRS,
            steps_per_epoch=steps,
        )  # fmt: skip
    else:
        pairs = tf.data.Dataset.from_tensor_slices((histories, items)).shuffle(len(items)).repeat()
        batches = pairs.batch(SETTINGS["users"] * PAIRS).take(steps)
    model.fit(batches, epochs=1, verbose=0)
    row |= scores_of(model, data)
    row["processor_seconds"] = round(time.process_time() - started, 1)
    if epsilon:
        row["statement"] = model.privacy_statement(1 / data.num_users).to_dict()
    return row


def scores_of(model, data):
    x, y = data.test
    present = y[:, -1] > 0
    found = model.evaluate(x[present, -LENGTH:], y[present, -1], k=(10,))
    return {"ndcg_10": 100 * found["ndcg_10"], "hit_10": 100 * found["recall_10"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument(
        "--epsilons", type=float, nargs="*", default=[8.0, 0.0], help="0 is without privacy"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--name", required=True, choices=sorted(RELEASES))
    parser.add_argument("--all-items", action="store_true")
    parser.add_argument("--start", choices=["release"])
    parser.add_argument("--target", choices=["last", "second_last"], default="last")
    parser.add_argument("--factors", type=json.loads, default={}, help="JSON, to choose settings")
    args = parser.parse_args()
    if args.start and not all(args.epsilons):
        parser.error("--start release needs --epsilons above 0")
    FACTORS.update(args.factors)
    out = RESULTS / f"two_towers_{args.name}{'' if args.target == 'last' else '_second_last'}.json"
    data = load(args.data, LENGTH + PAIRS, args.target)
    result = {"settings": {**SETTINGS, "length": LENGTH, "pairs": PAIRS, "width": WIDTH},
              "num_users": data.num_users, "num_items": data.num_items, "rows": []}  # fmt: skip
    if out.exists():  # earlier runs stay, if the settings are the same
        before = json.loads(out.read_text())
        if before["settings"] == result["settings"]:
            result["rows"] = before["rows"]
    result["factors"] = FACTORS
    for epsilon in args.epsilons:
        kind = {"epsilon": epsilon, "all_items": args.all_items, "start": args.start}
        kinds = ({name: one.get(name) for name in kind} for one in result["rows"])
        row = next((r for r, k in zip(result["rows"], kinds, strict=True) if k == kind), None)
        if row is None:
            row = {**kind, "runs": []}
            result["rows"].append(row)
        for _ in range(args.runs):
            release = release_of(args.data, args.name, args.target, epsilon) if args.start else None
            row["runs"].append(run(data, epsilon, args.all_items, release))
            print(epsilon, {k: v for k, v in row["runs"][-1].items() if k != "statement"})
            out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
