"""SST-2 with a frozen MiniLM encoder and with a small one of our own: what forward noise costs.

    pip install ".[text,sst2,plot]"
    python benchmarks/sst2.py --data ../shared/data/sst2 --part table
    python benchmarks/sst2.py --data ../shared/data/sst2 --part sweeps
    python benchmarks/sst2_scratch.py --data ../shared/data/sst2

One sentence is one record; δ = 1/(2n). Accuracy is on GLUE's 872 dev sentences, where one run has
a binomial standard error of about 1.3 points; the intervals are over runs, and say what noise,
sampling and initialisation change. Learning rates and numbers of epochs were chosen on dev by eye
and are not charged, for all methods alike.
"""

import argparse
import json
import os
import pathlib
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import keras
import numpy as np
import sst2_encode
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.accounting import PrivacyBudget, calibrate_forward_noise
from tfdp.accounting.literature import (
    paper_forward_noise_claim,
    paper_forward_noise_multiplier,
)

RESULTS = pathlib.Path(__file__).parent / "results"
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MINILM = "MiniLM, frozen"
RANDOM = "small, random and frozen"


class Task:
    """Representations of both parts, scaled to norm 1, and how a head is judged on the dev part.

    Scaled to one norm, because there is no clipping at inference: a head would see there what it
    never saw in training.
    """

    def __init__(self, x_train, y_train, x_dev, y_dev):
        self.train = (_unit(x_train), y_train.astype(np.int32))
        self.dev = (_unit(x_dev), y_dev.astype(np.int32))
        self.n, self.width = x_train.shape
        self.delta = 1 / (2 * self.n)

    def accuracy(self, model):
        scores = model.predict(self.dev[0], batch_size=872, verbose=0)
        return 100 * float((scores.argmax(axis=1) == self.dev[1]).mean())

    def judge(self, release, ridge):
        kernel, bias = tfdp.models.release_head(release, ridge)
        scores = self.dev[0] @ kernel + bias
        return 100 * float((scores.argmax(axis=1) == self.dev[1]).mean())

    def balanced(self):
        counts = np.bincount(self.train[1])
        weights = self.n / (len(counts) * counts)
        return (*self.train, weights[self.train[1]].astype(np.float32))

    def linear(self, noise=None):
        inputs = keras.Input((self.width,))
        x = inputs if noise is None else noise(inputs)
        return tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(x)))


def _unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def adam(rate, steps):
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, steps))


def plain_head(task, epochs=10, batch=256, rate=3e-2):
    """Without privacy: the twin of every method on these representations."""
    model = task.linear()
    model.compile(adam(rate, epochs * task.n // batch), LOSS)
    model.fit(*task.train, batch_size=batch, epochs=epochs, verbose=0)
    return task.accuracy(model), None


def release_once(task, epsilon, clip_norm=1.0, epochs=5, batch=256, rate=1e-3, sigma=None):
    """One noisy copy of every record, trained on for several epochs."""
    amount = (
        {"budget": PrivacyBudget(epsilon, task.delta)}
        if sigma is None
        else {"noise_multiplier": sigma}
    )
    release = tfdp.data.release_once(*task.train, clip_norm, **amount)
    model = task.linear()
    model.compile(adam(rate / clip_norm, epochs * task.n // batch), LOSS)
    model.fit(release.batches(batch, balanced=True), epochs=epochs, verbose=0)
    # A twin's noise is too small for any accountant.
    return task.accuracy(model), epsilon and model.privacy_statement(task.delta)


def release_discriminant(task, epsilon, ridge=0.3, sigma=None):
    """The same release; the head from moments without the noise."""
    amount = (
        {"budget": PrivacyBudget(epsilon, task.delta)}
        if sigma is None
        else {"noise_multiplier": sigma}
    )
    release = tfdp.data.release_once(*task.train, 1.0, **amount)
    return task.judge(release, ridge), epsilon and release.privacy_statement(task.delta)


def fresh_noise(task, epsilon, clip_norm=1.0, epochs=3, batch=256, rate=1e-3):
    """Fresh noise in each of E epochs, one more copy each time."""
    sigma = calibrate_forward_noise(PrivacyBudget(epsilon, task.delta), epochs)
    model = task.linear(tfdp.layers.DPForwardNoise(clip_norm, sigma))
    model.compile(adam(rate, epochs * task.n // batch), LOSS)
    model.fit(tfdp.data.shuffled_epochs(task.balanced(), batch), epochs=epochs, verbose=0)
    return task.accuracy(model), model.privacy_statement(task.delta)


def mixtures(task, epsilon, size=2048, count=5000, ridge=0.01, sigma=None):
    """Noisy sums over Poisson micro-batches, and their least-squares head; labels covered."""
    amount = (
        {"budget": PrivacyBudget(epsilon, task.delta)}
        if sigma is None
        else {"noise_multiplier": sigma}
    )
    release = tfdp.data.release_mixtures(*task.train, 2, 1.0, size, count, **amount)
    return task.judge(release, ridge), epsilon and release.privacy_statement(task.delta)


def dp_sgd_head(task, epsilon, batch=4096, epochs=15, rate=0.1):
    """DP-SGD on the head; labels covered."""
    steps = epochs * task.n // batch
    model = task.linear()
    model.compile(
        tfdp.optimizers.DPOptimizer(
            adam(rate, steps), budget=PrivacyBudget(epsilon, task.delta), num_examples=task.n,
            expected_batch_size=batch, steps=steps,
        ),
        LOSS,
    )  # fmt: skip
    data = tfdp.data.poisson_batches(task.train, batch, steps_per_epoch=steps)
    model.fit(data, epochs=1, verbose=0)
    return task.accuracy(model), model.privacy_statement(task.delta)


def papers_version(task, epsilon, clip_norm=1.0, batch=32, micro=32, epochs=3, rate=1e-3):
    """The paper's: σ from its formula, M Poisson micro-batches a step. Not a guarantee."""
    settings = (task.n, batch, micro, epochs, task.delta)
    sigma = paper_forward_noise_multiplier(epsilon, *settings)
    model = task.linear(tfdp.layers.DPForwardNoise(clip_norm, sigma))
    model.compile(adam(rate, epochs * task.n // batch), LOSS)
    # A capacity so large that cutting a batch off costs nothing even at the true epsilon.
    data = tfdp.data.microbatches(task.balanced(), batch, micro, max_batch_size=3 * batch + 80)
    model.fit(data, epochs=epochs, verbose=0)
    claim = paper_forward_noise_claim(sigma, *settings)
    return task.accuracy(model), (model.privacy_statement(task.delta), claim)


METHODS = {
    "DP-FP, release once": release_once,
    "DP-FP, release once, discriminant": release_discriminant,
    "DP-FP, fresh noise, E = 3": fresh_noise,
    "aggregated mixtures": mixtures,
    "DP-SGD on the head": dp_sgd_head,
    "the paper's version (NOT a guarantee)": papers_version,
}
#: Runs of the methods that take long, where five are asked for.
FEWER = {"aggregated mixtures": 3, "the paper's version (NOT a guarantee)": 2}
TWINS = {
    "DP-FP, release once": lambda task: release_once(task, None, sigma=1e-6, rate=3e-2, epochs=10),
    "DP-FP, release once, discriminant": lambda task: release_discriminant(task, None, 1e-3, 1e-6),
    "aggregated mixtures": lambda task: mixtures(task, None, sigma=1e-6),
    "DP-SGD on the head": plain_head,
}


def repeated(run, runs):
    """Accuracies of several runs, with a 95% interval of their mean over noise and sampling."""
    start, accuracies, statement = time.time(), [], None
    for seed in range(runs):
        keras.utils.set_random_seed(seed)  # the initial weights; never noise or sampling
        accuracy, statement = run()
        accuracies.append(accuracy)
    mean, half = float(np.mean(accuracies)), None
    if runs > 1:
        half = float(stats.t.ppf(0.975, runs - 1) * np.std(accuracies, ddof=1) / runs**0.5)
    result = {
        "dev_accuracy": mean, "interval_95": half, "accuracies": accuracies,
        "seeds": list(range(runs)), "seconds_a_run": (time.time() - start) / runs,
    }  # fmt: skip
    if isinstance(statement, tuple):
        statement, claim = statement
        result["claim_of_the_paper"] = claim.to_dict()
    if statement is not None:
        result["true_epsilon"] = statement.epsilon
        result["delta"] = statement.delta
        result["adjacency"] = statement.adjacency
        result["labels_covered"] = not any("labels" in text for text in statement.not_covered)
    return result


def write(name, results):
    results["machine"] = {
        "processor": platform.processor() or platform.machine(), "cores_used": 1,
        "tensorflow": tf.__version__, "keras": keras.__version__, "tfdp": tfdp.__version__,
    }  # fmt: skip
    (RESULTS / name).write_text(json.dumps(results, indent=1) + "\n")


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def table(task, encoder, runs, out):
    rows = []
    result = repeated(lambda: plain_head(task), min(runs, 3))
    rows.append({"encoder": encoder, "method": "non-private", "epsilon": None, **result})
    say(encoder, "non-private", result["dev_accuracy"])
    for name, twin in TWINS.items():
        result = repeated(lambda twin=twin: twin(task), min(runs, 2))
        rows.append({"encoder": encoder, "method": f"twin of {name}", "epsilon": None, **result})
        say(encoder, "twin of", name, result["dev_accuracy"])
    for epsilon in (3, 1, 8):
        for name, method in METHODS.items():
            repeats = min(runs, FEWER.get(name, runs))
            result = repeated(lambda m=method, e=epsilon: m(task, e), repeats)
            rows.append({"encoder": encoder, "method": name, "epsilon": epsilon, **result})
            say(encoder, name, epsilon, result["dev_accuracy"], result["interval_95"],
                result.get("true_epsilon"), f"{result['seconds_a_run']:.1f} s")  # fmt: skip
            write(out, {"delta": task.delta, "n": task.n, "rows": rows})


def sweeps(task, runs, out):
    """C and σ of forward noise; B, C and M of the paper's version, as its figures 1 to 3."""
    found = {}

    def add(name, value, run):
        result = repeated(run, runs if name.startswith("release") else 1)
        found.setdefault(name, []).append({"value": value, **result})
        say(name, value, result["dev_accuracy"])
        write(out, {"delta": task.delta, "n": task.n, "sweeps": found})

    for clip in (0.25, 0.5, 1, 2, 4):
        add("release once, epsilon 3: C", clip, lambda c=clip: release_once(task, 3, clip_norm=c))
    for sigma in (0.25, 0.5, 1, 1.41, 2, 4):
        add("release once, C = 1: sigma/C", sigma,
            lambda s=sigma: release_once(task, None, sigma=s))  # fmt: skip
    for batch in (32, 64, 128, 256):
        add("paper's version, claimed epsilon 3, M = 1: B", batch,
            lambda b=batch: papers_version(task, 3, batch=b, micro=1))  # fmt: skip
    for clip in (0.1, 0.4, 1):
        add("paper's version, claimed epsilon 3, M = 1: C", clip,
            lambda c=clip: papers_version(task, 3, clip_norm=c, micro=1))  # fmt: skip
    for micro in (1, 4, 32):
        add("paper's version, claimed epsilon 0.02: M", micro,
            lambda m=micro: papers_version(task, 0.02, micro=m))  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data/sst2")
    parser.add_argument("--cache", default=sst2_encode.CACHE)
    parser.add_argument("--part", choices=["table", "sweeps"], default="table")
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


def main():
    arguments = parse()
    found = sst2_encode.representations(arguments.data, arguments.cache)
    task = Task(found["x_train"], found["y_train"], found["x_dev"], found["y_dev"])
    if arguments.part == "table":
        table(task, MINILM, arguments.runs, "sst2.json")
    else:
        sweeps(task, min(arguments.runs, 2), "sst2_sweeps.json")


if __name__ == "__main__":
    main()
