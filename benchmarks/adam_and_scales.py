"""Two options of private training at equal ε: AdamBC, and scales of gradients before clipping.

Three tasks, one public recipe each: clicks (Criteo's first 80,000 rows, hashed values, a wide and
deep model), sentences (SST-2, hashed words), items (the 500 most watched of MovieLens 1M, a GRU).
For each way the rate is chosen on records that are not those of the test, by a run for each rate;
then several seeds are judged on the test. Differences are to Adam with the same seeds of initial
weights. Writes JSON as the runs end; runs that the file holds are not made again.

    python benchmarks/adam_and_scales.py --task clicks --data FILE.tsv.gz --out FILE.json
"""

import argparse
import os
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import criteo_stream
import keras
import numpy as np
import sequence_training
from adam_bc import AdamBC
from criteo import Results
from scipy import stats

import tfdp

EPSILON = 3.0
HELD_OUT = 8000
SEEDS = 6
WAYS = {
    "Adam": {},
    "Adam, a third of the clip norm": {"clip": 1 / 3},
    "AdamBC, floor 0.1": {"floor": 0.1},
    "AdamBC, floor 1": {"floor": 1.0},
    "tables at 0.3": {"scale": 0.3},
    "tables at 3": {"scale": 3.0},
    "tables at 10": {"scale": 10.0},
}


class Peak(keras.optimizers.schedules.LearningRateSchedule):
    """From a peak, which may be assigned, to zero."""

    def __init__(self, steps):
        self.steps, self.peak = steps, keras.Variable(1.0)

    def __call__(self, step):
        return self.peak * (1.0 - keras.ops.cast(step, "float32") / self.steps)

    def get_config(self):
        return {"steps": self.steps}


class Clicks:
    """AUC in percent."""

    tables = ("deep/embeddings", "wide/embeddings")
    rates = (0.01, 0.03, 0.1)
    batch, steps, clipping = 1024, 128, {"clip_norm": 0.3}

    def __init__(self, path):
        ids, labels = criteo_stream.load(path)
        end = len(labels) - HELD_OUT
        self.test = ids[end:], labels[end:]
        self.held = ids[end - HELD_OUT : end], labels[end - HELD_OUT : end]
        self.records = ids[: end - HELD_OUT], labels[: end - HELD_OUT]
        self.records_to_choose = self.records
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def model(self):
        rows = criteo_stream.RECIPE["weights"]
        ids = keras.Input((criteo_stream.FEATURES,), dtype="int32")
        scale = criteo_stream.FEATURES**-0.5
        wide = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros", name="wide")(ids)
        deep = keras.layers.Embedding(rows, 8, name="deep")(ids)
        x = keras.ops.sum(deep, axis=1) * scale
        x = keras.layers.Dense(32, activation="relu", name="hidden")(x)
        x = keras.layers.Dense(1, name="last")(x)
        return tfdp.make_private(keras.Model(ids, x + keras.ops.sum(wide, axis=1) * scale))

    def score(self, model, data):
        return 100 * criteo_stream.auc(
            model.predict(data[0], batch_size=4000, verbose=0)[:, 0], data[1][:, 0]
        )


class Sentences:
    """Accuracy in percent."""

    tables = ("words/embeddings",)
    rates = (0.01, 0.03, 0.1)
    batch, steps, clipping = 1024, 128, {"clip_norm": 0.3}

    def __init__(self, folder):
        data = tfdp.data.load_sst2(folder)
        x, y = hashed(data.train[0]), np.asarray(data.train[1], np.float32).reshape(-1, 1)
        order = np.random.default_rng(0).permutation(len(y))
        held, rest = order[:HELD_OUT], order[HELD_OUT:]
        self.held, self.records = (x[held], y[held]), (x[rest], y[rest])
        self.records_to_choose = self.records
        dev = np.asarray(data.dev[1], np.float32).reshape(-1, 1)
        self.test = hashed(data.dev[0]), dev
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def model(self):
        ids = keras.Input((LENGTH,), dtype="int32")
        words = keras.layers.Embedding(WORDS, 16, name="words")(ids)
        there = keras.ops.cast(keras.ops.expand_dims(ids > 0, -1), "float32")
        number = keras.ops.maximum(keras.ops.sum(there, axis=1), 1.0)
        x = keras.ops.sum(words * there, axis=1) / keras.ops.sqrt(number)
        x = keras.layers.Dense(32, activation="relu", name="hidden")(x)
        return tfdp.make_private(keras.Model(ids, keras.layers.Dense(1, name="last")(x)))

    def score(self, model, data):
        scores = model.predict(data[0], batch_size=4000, verbose=0)
        return 100 * float(((scores > 0) == (data[1] > 0)).mean())


WORDS, LENGTH = 4096, 32


def hashed(sentences):
    """(n, 32) int32, words by a public hash; 0 where there is none."""
    ids = np.zeros((len(sentences), LENGTH), np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        words = str(sentence).lower().split()[:LENGTH]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words]
    return ids


ITEMS = 500


class Items:
    """NDCG@10 in percent."""

    tables = ("items/embeddings",)
    rates = (0.02, 0.04)
    batch, steps, clipping = 1024, 60, {"clipping": "normalized"}
    loss = None

    def __init__(self, path):
        self.settings = {**sequence_training.DEFAULTS, "model": "gru"}
        whole = tfdp.data.load_sequences(path, max_length=2277).test
        rows = [np.append(x[x > 0], y[-1]) for x, y in zip(whole.x, whole.y, strict=True)]
        number = np.bincount(np.concatenate(rows))
        names = np.zeros(len(number), np.int32)
        names[np.argsort(-number)[:ITEMS]] = 1 + np.arange(ITEMS)  # which are declared public
        rows = [names[row][names[row] > 0] for row in rows]
        rows = [row for row in rows if len(row) > 4]
        length = self.settings["max_length"]
        self.test = tfdp.data.leave_one_out_split(rows, length, ITEMS)
        self.held = tfdp.data.leave_one_out_split([row[:-1] for row in rows], length, ITEMS)
        self.records_to_choose, self.records = self.held.train, self.test.train

    def model(self):
        frequency = sequence_training.item_frequency(self.records, 0.0, {})
        return sequence_training.model_of(self.settings, self.test.num_items, frequency)

    def score(self, model, data):
        return sequence_training.quick_scores(model, data)["ndcg_10"]


class Trainer:
    """One model and one way to train it, again and again from new weights."""

    def __init__(self, task, way):
        self.task, n = task, len(task.records[0])
        self.schedule = Peak(task.steps)
        sigma = tfdp.accounting.calibrate_noise_multiplier(
            tfdp.PrivacyBudget(EPSILON, 1 / n), task.batch / n, task.steps
        )
        clipping = dict(task.clipping)
        if "clip" in way:
            clipping["clip_norm"] *= way["clip"]
        self.inner = keras.optimizers.Adam(self.schedule)
        if "floor" in way:
            stddev = sigma * clipping.get("clip_norm", 1.0) / task.batch
            self.inner = AdamBC(self.schedule, stddev, way["floor"])
        scale = way.get("scale")
        scales = None if scale is None else dict.fromkeys(task.tables, scale)
        self.model = task.model()
        loss = {} if task.loss is None else {"loss": task.loss}
        self.model.compile(
            tfdp.optimizers.DPOptimizer(
                self.inner, noise_multiplier=sigma, gradient_scales=scales, **clipping
            ),
            **loss,
        )
        self.sigma, self.spent = sigma, None

    def score(self, rate, seed, records, data):
        """The score on `data` after a whole training on `records`."""
        batches = tfdp.data.poisson_batches(
            records, self.task.batch, steps_per_epoch=self.task.steps
        )
        keras.utils.set_random_seed(seed)
        fresh = self.task.model()
        for model in (fresh, self.model):
            if not model.built:
                model.build((None, *batches.element_spec[0].shape[1:]))
        self.model.set_weights(fresh.get_weights())
        for variable in self.inner.variables:
            if variable.dtype != "string":
                variable.assign(keras.ops.zeros_like(variable))
        self.schedule.peak.assign(rate)
        self.model.fit(batches, verbose=0)
        if self.spent is None:  # each run begins anew: it is a training by itself
            self.spent = self.model.ledger.epsilon(1 / self.model.ledger.num_examples)
        found = self.task.score(self.model, data)
        print(rate, seed, found, flush=True)
        return found


def run(task, name, seeds):
    """What one way reaches; a JSON-able dict."""
    started = time.perf_counter()
    trainer = Trainer(task, WAYS[name])
    tried = {r: trainer.score(r, 100, task.records_to_choose, task.held) for r in task.rates}
    rate = max(tried, key=tried.get)
    return {
        "way": name, "epsilon": EPSILON, "rate": rate,
        "scores": [trainer.score(rate, s, task.records, task.test) for s in range(seeds)],
        "held_out_by_rate": {str(r): s for r, s in tried.items()},
        "noise_multiplier": trainer.sigma, "stated_epsilon": trainer.spent,
        "num_examples": len(task.records[0]), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def difference(scores, others):
    """Mean difference of pairs of runs, and half the width of its 95% interval."""
    apart = np.subtract(scores, others)
    width = stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    return {"mean": float(apart.mean()), "half_width": float(width)}


TASKS = {"clicks": Clicks, "sentences": Sentences, "items": Items}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    args = parser.parse_args()
    task = TASKS[args.task](args.data)
    results = Results(args.out, {"epsilon": EPSILON, "held_out": HELD_OUT})
    for name in args.ways:
        if results.has(task=args.task, way=name):
            continue
        found = {"task": args.task, "measure": task.__doc__, **run(task, name, args.seeds)}
        base = [r for r in results.content["runs"] if (r["task"], r["way"]) == (args.task, "Adam")]
        if base:
            found["better_than_adam"] = difference(found["scores"], base[0]["scores"])
        results.add(found)


if __name__ == "__main__":
    main()
