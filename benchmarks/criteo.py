"""pCTR on the first 80,000 rows of Criteo's click log: AUC against gradient size.

Each run trains the paper's pCTR privately at a total ε (δ = 1/n; private choices of rows
included) and writes its AUC on the last tenth of the rows, and by how much fewer scalars of the
embedding tables were noised in a step than by dense DP-SGD. Methods: dense DP-SGD, DP-FEST,
DP-AdaFEST, DP-AdaFEST+, exponential selection, LoRA on the tables, and training without privacy.

    python benchmarks/criteo.py --data FILE.tsv.gz --out benchmarks/results/criteo.json
    python benchmarks/criteo_streaming.py --data FILE.tsv.gz --out benchmarks/results/criteo.json

Runs that the output file already holds are not run again.
"""

import argparse
import gc
import itertools
import json
import os
import time

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RECIPE = {
    "batch": 2048, "epochs": 4, "clip_norm": 1.0, "learning_rate": 5e-3,
    "embedding_optimizer": "LazyAdam", "hidden_units": [598, 598, 598, 598],
}  # fmt: skip
EPSILONS = (1.0, 3.0, 8.0)
CHOICE_EPSILON = 0.1  # what DP-FEST and DP-AdaFEST+ spend on choosing rows, of the total


def grid():
    """(method, settings) of the runs at every ε."""
    runs = [("dense", {})]
    runs += [("fest", {"k": k}) for k in (1000, 100, 10_000, 10)]
    # Thresholds in standard deviations of the map's noise: below about 4.5 untouched rows survive.
    runs += [
        ("adafest", {"noise_ratio": r, "quantile": z, "contribution_norm": 5})
        for r, z in [(5, 5), (5, 1.5), (1, 3.5), (1, 15), (1, 50)]
    ]
    runs += [
        ("adafest+", {"noise_ratio": r, "quantile": z, "contribution_norm": 5, "k": 1000})
        for r, z in [(5, 2), (1, 15)]
    ]
    runs += [("exponential", {"num_rows": k, "noise_ratio": 1}) for k in (10, 1000)]
    runs += [("lora", {"rank": r}) for r in (1, 4)]
    return runs


def load(path):
    from tfdp.data import CRITEO_VOCABULARY_SIZES, load_criteo

    return load_criteo(path, hash_buckets=CRITEO_VOCABULARY_SIZES)


def lora_model(data, rank, recipe):
    """pCTR whose tables are frozen random rows plus a product of rank `rank`, densely noised."""
    import keras

    inputs = {n: keras.Input((), dtype="int64", name=n) for n in data.vocabulary_sizes}
    inputs["integers"] = keras.Input((13,), name="integers")
    parts, size = [keras.ops.log1p(keras.ops.relu(inputs["integers"]))], 0
    for name, rows in data.vocabulary_sizes.items():
        dim = int(2 * rows**0.25)
        frozen = keras.layers.Embedding(rows, dim)
        frozen.trainable = False
        low = keras.layers.Embedding(rows, rank, embeddings_initializer="zeros")(inputs[name])
        parts.append(frozen(inputs[name]) + keras.layers.Dense(dim, use_bias=False)(low))
        size += rows * rank + rank * dim
    x = keras.ops.concatenate(parts, axis=-1)
    for units in recipe["hidden_units"]:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x)), size


def selection_of(method, settings, ids, sizes, sigma=None):
    """The selection of a run; thresholds need σ, which needs the cost of the rows chosen."""
    from tfdp.selection import FEST, AdaFEST, ExponentialSelection

    fest = None
    if method in ("fest", "adafest+"):
        fest = FEST(settings["k"], epsilon=CHOICE_EPSILON)
        fest.adapt(ids, sizes)
    if method == "fest":
        return fest
    if method == "exponential":
        return ExponentialSelection(settings["num_rows"], settings["noise_ratio"])

    def adafest(sigma):
        r, c = settings["noise_ratio"], settings["contribution_norm"]
        map_noise = r * sigma * (1 + r**-2) ** 0.5 * c
        return AdaFEST(settings["quantile"] * map_noise, r, c, within=fest)

    return adafest


def optimizer_of(method, settings, epsilon, data, recipe, steps):
    """(DPOptimizer, or Adam at infinite ε)."""
    import keras

    import tfdp

    inner = keras.optimizers.Adam(recipe["learning_rate"])
    if epsilon is None:
        return inner
    n = len(data[1])
    common = dict(
        num_examples=n, expected_batch_size=recipe["batch"], clip_norm=recipe["clip_norm"]
    )
    budget = tfdp.PrivacyBudget(epsilon, 1.0 / n)
    if method in ("dense", "lora"):
        return tfdp.optimizers.DPOptimizer(inner, budget=budget, steps=steps, **common)
    features = {k: v for k, v in data[0].items() if k != "integers"}
    sizes = data[2]
    selection = selection_of(method, settings, features, sizes)
    if callable(selection):
        others = []
        if method == "adafest+":
            probe = selection(1.0)
            others = [e.event for e in probe.privacy_releases]
        sigma = tfdp.accounting.calibrate_noise_multiplier(
            budget, recipe["batch"] / n, steps, other_events=others
        )
        selection = selection(sigma)
    rows = tfdp.optimizers.LazyAdam(recipe["learning_rate"])
    return tfdp.optimizers.DPOptimizer(
        inner, budget=budget, steps=steps, selection=selection, embedding_optimizer=rows, **common
    )


def run(method, settings, epsilon, data, recipe=RECIPE, seed=0):
    """Trains once; a JSON-able dict."""
    import keras
    import numpy as np

    import tfdp

    keras.utils.set_random_seed(seed)  # initial weights; noise and batches come from the system
    started = time.perf_counter()
    x, y = data.train
    n = len(y)
    steps_per_epoch = max(1, round(n / recipe["batch"]))
    steps = steps_per_epoch * recipe["epochs"]
    sizes = data.vocabulary_sizes
    dense_size = sum(v * int(2 * v**0.25) for v in sizes.values())
    size = dense_size
    if method == "lora":
        model, size = lora_model(data, settings["rank"], recipe)
        model = tfdp.make_private(model)
    else:
        model = tfdp.models.PrivateCTR(sizes, hidden_units=recipe["hidden_units"])
    optimizer = optimizer_of(method, settings, epsilon, (x, y, sizes), recipe, steps)
    auc = keras.metrics.AUC(2000, from_logits=True, name="auc")
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=[auc])
    history = []
    test = {k: v for k, v in data.test[0].items()}, data.test[1]

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found = self.model.evaluate(*test, batch_size=4096, verbose=0, return_dict=True)
            history.append(found["auc"])

    batches = tfdp.data.poisson_batches((x, y), recipe["batch"], steps_per_epoch=steps_per_epoch)
    logs = model.fit(batches, epochs=recipe["epochs"], verbose=0, callbacks=[Evaluate()]).history
    if epsilon is not None and method not in ("dense", "lora"):
        size = float(np.mean(logs["gradient_size"]))
    result = {
        "method": method, "settings": settings, "epsilon": epsilon, "seed": seed,
        "auc": history[-1], "auc_by_epoch": history, "gradient_size": size,
        "reduction": dense_size / max(size, 1.0), "seconds": time.perf_counter() - started,
    }  # fmt: skip
    if epsilon is not None:
        statement = model.privacy_statement(1.0 / n)
        result |= {
            "noise_multiplier": model.optimizer.noise_multiplier,
            "stated_epsilon": statement.epsilon, "delta": statement.delta,
            "accountant": statement.accountant,
        }  # fmt: skip
    del model
    keras.backend.clear_session()
    gc.collect()
    return result


class Results:
    """Runs in a JSON file, written as they come."""

    def __init__(self, path, recipe):
        self.content = record.Result(path, recipe=recipe, runs=[])
        if self.content.path.exists():
            self.content.update(json.loads(self.content.path.read_text()))

    def has(self, **key):
        return any(all(r.get(k) == v for k, v in key.items()) for r in self.content["runs"])

    def add(self, result):
        self.content["runs"].append(result)
        self.content.write()
        print(json.dumps({k: v for k, v in result.items() if k != "auc_by_epoch"}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    results = Results(args.out, RECIPE)
    data = load(args.data)
    for seed in args.seeds:
        if not results.has(method="dense", epsilon=None, seed=seed):
            # Without noise the model overfits from the second epoch on.
            results.add(
                run(
                    "dense",
                    {},
                    None,
                    data,
                    {**RECIPE, "epochs": 1, "learning_rate": 2e-3},
                    seed=seed,
                )
            )
        for (method, settings), epsilon in itertools.product(grid(), args.epsilons):
            if args.methods and method not in args.methods:
                continue
            key = {"method": method, "settings": settings, "epsilon": epsilon, "seed": seed}
            if not results.has(**key):
                results.add(run(method, settings, epsilon, data, seed=seed))


if __name__ == "__main__":
    main()
