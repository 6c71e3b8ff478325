"""One private training of a sequence model, as the runs of benchmarks/paper_tables.py are made.

Protocol: the last item of each user (or the second last one, with the last unused) is the target,
ranked among all items; one user is one record; δ = 1/n. Item frequencies are declared public, as in
the paper, or a charged release: every model adds their logarithm to its logits, and Re-Attention
reads them.
"""

import gc
import math
import time

import keras
import numpy as np
from layer_shares import clipping_of, normalized_by_layer
from transitions import evaluate

import tfdp

DEFAULTS = {
    "epsilon": 8.0,
    "noise_multiplier": None,  # instead of a budget: what less noise would give
    "seed": 0,  # of initial weights and dropout; noise and batches are always fresh
    "batch_size": 1024,
    "steps": 147,
    "learning_rate": 0.02,
    "weight_decay": 1e-5,
    "max_length": 10,
    "dim": 16,
    "blocks": 2,  # of transformers; GRU and LSTM have one layer
    "dropout": 0.2,
    "stddev": 0.02,  # of the initial embeddings
    "untied": False,
    "frequency_epsilon": 0.0,  # of a release of item frequencies; 0: declared public
    "clipping": "normalized",
    "microbatch_size": 512,  # at most about so many rows at once
    "ema": 0.0,  # momentum of an average of the weights
    "crops": 1,  # pieces of a user's history that are averaged before clipping
    "masks": 1,  # dropout masks of the same piece that are averaged before clipping
    "frequent_items": 0,  # items with a row of their own; 0: all
    "train": "all",  # "all but the table", "biases and gates"
    "lora_rank": 0,  # of the table
    "factors_share": 0.0,  # of 1/σ²: the table is a factorized release of transitions, and fixed
}


class WarmupThenLinear(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to `peak` over the first 20% of the steps, then falls to zero."""

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        done = keras.ops.cast(step, "float32") / self.steps
        return self.peak * keras.ops.minimum(done / 0.2 + 1e-3, (1.0 - done) / 0.8 + 1e-3)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


class Scores(keras.callbacks.Callback):
    """NDCG@10 and HIT@10 in percent at five points of a run."""

    def __init__(self, data, vocabulary, steps):
        super().__init__()
        self.data, self.vocabulary = data, vocabulary
        self.at = {round(part * steps / 5) for part in range(1, 6)}
        self.history = []

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 in self.at:
            scores = quick_scores(self.model, self.data, self.vocabulary)
            self.history.append({"steps": batch + 1, **scores})


class Decoded:
    """A model of frequent items, with scores of all items."""

    def __init__(self, model, vocabulary):
        self.model, self.vocabulary = model, vocabulary

    def score_next(self, ids):
        scores = self.model.score_next(self.vocabulary.encode(ids))
        return self.vocabulary.decode(scores).astype("float32")


def quick_scores(model, data, vocabulary=None):
    """NDCG@10 and HIT@10 in percent among all items, by ranks alone; ties count against."""
    model = model if vocabulary is None else Decoded(model, vocabulary)
    ranks = []
    for start in range(0, len(data.test.x), 512):
        scores = np.asarray(model.score_next(data.test.x[start : start + 512]))
        target = data.test.y[start : start + 512, -1]
        own = scores[np.arange(len(target)), target][:, None]
        ranks.append((scores >= own).sum(axis=1))
    ranks = np.concatenate(ranks)
    hit = ranks <= 10
    return {"ndcg_10": 100 * float(np.mean(hit / np.log2(ranks + 1))),
            "hit_10": 100 * float(np.mean(hit))}  # fmt: skip


def pieces(histories, length, count, num_items):
    """Consecutive pieces of each history as records, the newest first, and whose each one is.

    Args:
        histories: `Sequences` of whole histories, right-aligned.
        length: positions of a record; a piece has one item more.
        count: the most pieces of a user.
        num_items: size of the vocabulary.
    """
    rows, ids = [], []
    whole = np.concatenate([histories.x, histories.y[:, -1:]], axis=1)
    for user, row in enumerate(whole):
        row = row[row > 0]
        for piece in range(count):
            end = len(row) - piece * length
            if piece and end < 2:
                break
            part = row[max(0, end - length - 1) : end]
            rows.append(np.concatenate([np.zeros(length + 1 - len(part), np.int32), part]))
            ids.append(user)
    rows = np.stack(rows).astype(np.int32)
    x, y = rows[:, :-1].copy(), rows[:, 1:].copy()
    y[x == 0] = 0
    return tfdp.data.Sequences(x, y, num_items=num_items), np.array(ids)


def item_frequency(records, epsilon, persons):
    """Shares of records that contain each item: a charged release, or (ε 0) declared public."""
    if epsilon:
        return tfdp.data.private_frequency(records, epsilon=epsilon, **persons)
    x, y = records
    present = np.zeros((len(x), records.num_items + 1), bool)
    rows = np.arange(len(x))[:, None]
    present[rows, x] = present[rows, y] = True
    frequency = present.mean(axis=0)
    frequency[0] = 1.0
    return frequency


def model_of(settings, num_items, frequency):
    common = {
        "dim": settings["dim"], "dropout": settings["dropout"], "tied": not settings["untied"],
        "embedding_stddev": settings["stddev"], "popularity_prior": frequency,
    }  # fmt: skip
    if settings["model"] == "dpformer":
        return tfdp.models.DPFormer(
            num_items, settings["max_length"], item_frequency=frequency,
            num_blocks=settings["blocks"], **common,
        )  # fmt: skip
    return tfdp.models.SequenceBaseline(
        num_items, settings["max_length"], cell=settings["model"],
        num_blocks=settings["blocks"] if settings["model"] == "transformer" else None, **common,
    )  # fmt: skip


def restrict(model, settings, release):
    """Freezes what is not to be trained, and puts a release in the place of the table."""
    model.build((None, settings["max_length"]))
    if settings["lora_rank"]:
        model.embedding.enable_lora(settings["lora_rank"])
    if release is not None:
        model.embedding.embeddings.assign(factors(release, settings["dim"], settings["stddev"]))
        model.embedding.embeddings.is_accounted_for = True
        model.embedding.privacy_releases = release.privacy_releases
    if settings["train"] != "all" or release is not None:
        model.embedding.trainable = False
    if settings["train"] == "biases and gates":
        for variable in model.trainable_variables:
            variable.trainable = variable.name in ("bias", "beta", "gamma")


def factors(release, dim, stddev):
    """(M + 1, d): items as left and right singular vectors of released transitions, together."""
    import scipy.sparse.linalg

    size = release.num_items + 1
    popularity = np.maximum(release.popularity, 1.0)
    first, second = np.asarray(release.indices).T
    lift = np.asarray(release.values) / np.sqrt(popularity[first] * popularity[second])
    matrix = scipy.sparse.csr_matrix((lift, (first, second)), (size, size))
    values, vectors = scipy.sparse.linalg.eigsh(matrix + matrix.T, k=dim, which="LA")
    table = vectors * np.sqrt(np.maximum(values, 0.0))
    return table * stddev / table.std()


def train(settings, data, long, sigma_of):
    """Trains one model; returns scores, history and statement.

    Args:
        settings: `DEFAULTS` and more; "model" is "gru", "lstm", "transformer" or "dpformer".
        data: `SequenceData` of `max_length` positions.
        long: the same with whole histories.
        sigma_of: function of ε and δ: multiplier of one Gaussian that costs as much.
    """
    keras.backend.clear_session()
    gc.collect()
    keras.utils.set_random_seed(settings["seed"])
    n, delta, steps = data.num_users, 1 / data.num_users, settings["steps"]
    records, persons = data.train, {}
    k = max(settings["crops"], settings["masks"])
    if k > 1:
        if settings["crops"] > 1:
            records, ids = pieces(long.train, settings["max_length"], k, data.num_items)
        else:
            repeated = (np.repeat(part, k, axis=0) for part in data.train)
            records = tfdp.data.Sequences(*repeated, num_items=data.num_items)
            ids = np.repeat(np.arange(n), k)
        persons = {"privacy_ids": ids, "max_records_per_unit": k}
    frequency = item_frequency(records, settings["frequency_epsilon"], persons)
    vocabulary, num_items = None, data.num_items
    if settings["frequent_items"]:
        vocabulary = tfdp.data.FrequentItems(frequency, settings["frequent_items"])
        records, num_items = vocabulary.encode(records), vocabulary.num_items
        frequency = vocabulary.release
    release = None
    if settings["factors_share"]:
        sigma = sigma_of(settings["epsilon"], delta) / settings["factors_share"] ** 0.5
        release = tfdp.data.private_transitions(long.train, noise_multiplier=sigma)
    model = model_of(settings, num_items, frequency)
    restrict(model, settings, release)
    inner = keras.optimizers.AdamW(
        WarmupThenLinear(settings["learning_rate"], steps), weight_decay=settings["weight_decay"],
        use_ema=settings["ema"] > 0, ema_momentum=settings["ema"] or 0.99,
    )  # fmt: skip
    noise = settings["noise_multiplier"]
    amount = {"budget": tfdp.PrivacyBudget(settings["epsilon"], delta)} if noise is None else {
        "noise_multiplier": noise}  # fmt: skip
    batch = min(settings["batch_size"], n)
    batches = tfdp.data.poisson_batches(
        records, batch, steps_per_epoch=steps, max_batch_size=settings.get("max_batch_size"),
        **persons,
    )  # fmt: skip
    rows = tfdp.data.sampling_of(batches).max_batch_size * k
    parts = round(rows / settings["microbatch_size"]) or 1
    optimizer = tfdp.optimizers.DPOptimizer(
        inner, num_examples=n, expected_batch_size=batch, steps=steps,
        **clipping_of(settings), max_records_per_unit=k if k > 1 else None,
        microbatch_size=math.ceil(rows / parts / k) * k, **amount,
    )  # fmt: skip
    model.compile(optimizer)
    scores = Scores(data, vocabulary, steps)
    start = time.process_time()
    with normalized_by_layer(settings):
        losses = model.fit(batches, epochs=1, verbose=0, callbacks=[scores]).history["loss"]
    result = {"history": scores.history, "mean_loss": losses[-1]}
    if settings["ema"]:
        result["without_average"] = scores.history[-1]
        optimizer.finalize_variable_values(model.trainable_variables)
    scored = model if vocabulary is None else Decoded(model, vocabulary)
    result |= evaluate(scored, data, long.test.x)
    statement = model.privacy_statement(delta)
    return {
        **result,
        "trained_coordinates": sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        "noise_multiplier_found": optimizer.noise_multiplier,
        "total_noise": optimizer.noise_multiplier / batch / steps**0.5,
        "epsilon_stated": statement.epsilon,
        "delta": delta,
        "statement": statement.to_dict(),
        "cpu_seconds": round(time.process_time() - start, 1),
    }
