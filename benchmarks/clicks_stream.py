"""One pass over millions of generated clicks from files: noise independent or correlated, in order.

`synthetic_clicks`, written to files once and read by np.memmap; `PrivateCTR` under AdaFEST with
plain SGD, at a total ε, δ = 1/(10·n). Ways: the rows in their order with independent noise, Poisson
batches, and the order with noise that later steps partly cancel. Each way's rate is chosen on a
tenth of the rows that another seed generates: generated data are public. AUC is measured on rows
that nothing was trained on.

Then a stream of four weeks of other people, with a crash in the middle of the third one.

    python benchmarks/clicks_stream.py [--records 20000000] [--batch 8192] [--out FILE]
"""

import argparse
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record
from criteo_stream import auc

import tfdp

HELD_OUT, RATES, EPSILON = 200_000, (1.0, 4.0, 16.0), 1.0
HIDDEN, CLIP_NORM, CONTRIBUTION_NORM, QUANTILE = (64,), 1.0, 5.0, 4.5
WAYS = {
    "in order": {}, "Poisson batches": {},
    "in order, correlated, 4 bands": {"noise_correlation": "auto"},
}  # fmt: skip


def written(folder, number, seed):
    """((x, y), vocabulary sizes) of generated rows, of files that are mapped into memory."""
    folder = pathlib.Path(folder)
    data = tfdp.data.synthetic_clicks(number, test_fraction=0.0, seed=seed)
    (x, y), sizes = data.train, data.vocabulary_sizes
    files = {}
    for name, values in {**x, "label": y}.items():
        kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int32
        np.save(folder / f"{seed}_{name}.npy", values.astype(kind))
        files[name] = folder / f"{seed}_{name}.npy"
    del data, x, y
    mapped = {name: np.load(path, mmap_mode="r") for name, path in files.items()}
    return (mapped, mapped.pop("label")), sizes


def part(data, start, end):
    x, y = data
    return {name: column[start:end] for name, column in x.items()}, y[start:end]


def trained(way, rate, train, sizes, batch, epsilon=EPSILON):
    """(model, seconds of `fit`) after one pass."""
    n = len(train[1])
    poisson = way.startswith("Poisson")
    steps = -(-n // batch) if poisson else 1
    budget = tfdp.PrivacyBudget(epsilon, 0.1 / n)
    sigma = tfdp.accounting.calibrate_noise_multiplier(budget, batch / n if poisson else 1.0, steps)
    model = tfdp.models.PrivateCTR(sizes, hidden_units=HIDDEN)
    model.compile(optimizer_of(sigma, rate, **WAYS[way]))
    sample = tfdp.data.poisson_batches if poisson else tfdp.data.stream_batches
    batches, started = sample(train, batch), time.perf_counter()
    model.fit(batches, verbose=0)
    return model, time.perf_counter() - started


def optimizer_of(sigma, rate, **correlation):
    norm = CONTRIBUTION_NORM
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(rate), noise_multiplier=sigma, clip_norm=CLIP_NORM,
        selection=tfdp.selection.AdaFEST(QUANTILE * 2**0.5 * sigma * norm, 1.0, norm),
        embedding_optimizer=tfdp.optimizers.RowSGD(rate), **correlation,
    )  # fmt: skip


def auc_of(model, test):
    scores = model.predict(
        {k: np.asarray(v) for k, v in test[0].items()}, batch_size=20_000, verbose=0
    )
    return auc(scores[:, 0], np.ravel(test[1]))


def one_pass(way, data, pilot, sizes, batch):
    """A JSON-able dict of one way."""
    n, m = len(data[1]) - HELD_OUT, len(pilot[1]) - HELD_OUT
    tried = {}
    for rate in RATES:
        model, _ = trained(way, rate, part(pilot, 0, m), sizes, batch)
        tried[rate] = auc_of(model, part(pilot, m, m + HELD_OUT))
    rate = max(tried, key=tried.get)
    model, seconds = trained(way, rate, part(data, 0, n), sizes, batch)
    statement = model.privacy_statement(0.1 / n)
    return {
        "way": way, "epsilon": statement.epsilon, "num_examples": n, "batch": batch,
        "rate": rate, "auc_of_rates_on_other_data": {str(r): a for r, a in tried.items()},
        "auc": auc_of(model, part(data, n, n + HELD_OUT)), "seconds": seconds,
        "noise_multiplier": model.optimizer.noise_multiplier,
    }  # fmt: skip


class Crash(keras.callbacks.Callback):
    """Ends training in the middle of a week."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._step:
            raise KeyboardInterrupt


def weeks(data, sizes, batch, folder):
    """What four weeks of different people cost, by week; the third one crashes and goes on."""
    n, sigma = len(data[1]) // 4, 4.0
    model = tfdp.models.PrivateCTR(sizes, hidden_units=HIDDEN)
    periods = tfdp.data.DisjointPeriods(str(pathlib.Path(folder) / "periods.npz"))
    found = []
    for number in range(4):
        week, start = periods.period(f"week {number}"), number * n
        crashes = [n // batch // 2] if number == 2 else []
        for step in [*crashes, None]:
            persons = np.arange(start, (number + 1) * n)
            batches = tfdp.data.stream_batches(
                part(data, start, (number + 1) * n), batch, privacy_ids=persons, period=week
            )
            model.compile(optimizer_of(sigma, 4.0, noise_correlation="auto"))
            try:
                model.fit(batches, verbose=0, callbacks=[Crash(step)] if step is not None else [])
            except KeyboardInterrupt:
                start += (step + 1) * batch  # the records after those of the crashed run
            epsilon = model.privacy_statement(0.1 / n).epsilon
            found.append({"week": number, "crashed": step is not None, "epsilon": epsilon})
            print(found[-1], flush=True)
    return {"persons_of_a_week": n, "noise_multiplier": sigma, "runs": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", default="bench/clicks_stream.json")
    args = parser.parse_args()
    result = record.Result(args.out, records=args.records, runs=[])
    with tempfile.TemporaryDirectory() as folder:
        data, sizes = written(folder, args.records + HELD_OUT, seed=0)
        pilot, _ = written(folder, args.records // 10 + HELD_OUT, seed=1)
        if "weeks" not in result:
            result["weeks"] = weeks(part(data, 0, args.records // 20), sizes, args.batch, folder)
            result.write()
        for way in args.ways:
            result["runs"].append(one_pass(way, data, pilot, sizes, args.batch))
            print(result["runs"][-1], flush=True)
            result.write()


if __name__ == "__main__":
    main()
