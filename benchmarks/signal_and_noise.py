"""How large the mean clipped gradient is in training, against the noise that ε buys.

    python benchmarks/signal_and_noise.py --data ml-1m.txt

The signal is measured without noise, on all users: the norm of the mean of their normalized
gradients, at points of trainings without noise. The noise is what the
budget leaves in the mean over a whole training, 100 epochs in batches of 4,096 expected, in all
coordinates together: no optimizer that weighs its steps alike has less. Nothing here is private.
"""

import argparse
import json
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from paper_tables import MODELS, model
from sequence_training import DEFAULTS, WarmupThenLinear, item_frequency, model_of
from transitions import RESULTS, load

import tfdp
from tfdp.accounting.planner import plan_training

EPSILONS = (5, 8, 10)
WIDE = ("gru", "transformer")  # measured at the paper's width, too
POINTS = (0, 10, 20)


def compiled(settings, data, frequency, inner, noise_multiplier, steps):
    keras.utils.set_random_seed(settings["seed"])
    made = model_of(settings, data.num_items, frequency)
    made.compile(tfdp.optimizers.DPOptimizer(
        inner, noise_multiplier=noise_multiplier, num_examples=data.num_users,
        expected_batch_size=data.num_users, steps=steps, clipping="normalized",
        microbatch_size=512,
    ))  # fmt: skip
    return made


def signal(probe, trained, data):
    """Norms of the mean normalized gradient at the weights of `trained`: all of it, the table's."""
    probe.set_weights(trained.get_weights())

    def weights():
        return [np.asarray(v.value, np.float64) for v in probe.trainable_variables]

    before = weights()
    batches = tfdp.data.poisson_batches(data.train, data.num_users, steps_per_epoch=1)
    probe.fit(batches, epochs=1, verbose=0)
    moved = [a - b for a, b in zip(weights(), before, strict=True)]
    squares = [float(np.sum(m**2)) for m in moved]
    table = sum(s for v, s in zip(probe.trainable_variables, squares, strict=True)
                if "embeddings" in v.name)  # fmt: skip
    return {"norm": math.sqrt(sum(squares)), "table": math.sqrt(table)}


class Signal(keras.callbacks.Callback):
    """Measures the signal at `POINTS` of a training, at a copy of its weights."""

    def __init__(self, probe, data):
        super().__init__()
        self.probe, self.data, self.found = probe, data, []

    def measure(self, step):
        if step in POINTS:
            self.found.append({"step": step, **signal(self.probe, self.model, self.data)})

    def on_train_begin(self, logs=None):
        self.measure(0)

    def on_train_batch_end(self, batch, logs=None):
        self.measure(batch + 1)


def measured(name, width, rate, data):
    """The signal along one training on all users, `max(POINTS)` steps."""
    settings = {**DEFAULTS, **model(name), "dim": width}
    frequency = item_frequency(data.train, settings["frequency_epsilon"], {})
    steps = max(POINTS)
    probe = compiled(settings, data, frequency, keras.optimizers.SGD(1.0), 0.0, len(POINTS))
    trained = compiled(settings, data, frequency,
                       keras.optimizers.AdamW(WarmupThenLinear(rate, steps), weight_decay=1e-5),
                       0.0, steps)  # fmt: skip
    for one in (probe, trained):
        one.build((None, settings["max_length"]))
    watch = Signal(probe, data)
    batches = tfdp.data.poisson_batches(data.train, data.num_users, steps_per_epoch=steps)
    trained.fit(batches, epochs=1, verbose=0, callbacks=[watch])
    sizes = [int(np.prod(v.shape)) for v in trained.trainable_variables]
    return {"model": name, "width": width, "learning_rate": rate, "coordinates": sum(sizes),
            "points": watch.found}  # fmt: skip


def noise(num_users):
    """By ε: deviation of the mean gradient over a whole training, in each coordinate."""
    found = []
    for epsilon in EPSILONS:
        for batch, epochs in ((4096, 100), (num_users, 20)):
            (plan,) = plan_training(num_users, epochs, epsilon, 1 / num_users, [batch])
            found.append(
                {
                    "epsilon": epsilon,
                    "batch_size": batch,
                    "steps": plan.steps,
                    "noise_multiplier": plan.noise_multiplier,
                    "total": plan.total_noise,
                }
            )
    return found  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    args = parser.parse_args()
    data = load(args.data, DEFAULTS["max_length"], "last")
    result = {"num_users": data.num_users, "num_items": data.num_items,
              "noise": noise(data.num_users), "signal": []}  # fmt: skip
    path = RESULTS / "signal_and_noise.json"
    for name, width in [*((name, 16) for name in MODELS), *((name, 64) for name in WIDE)]:
        rate = args.learning_rate * (16 / width) ** 0.5
        result["signal"].append(measured(name, width, rate, data))
        path.write_text(json.dumps(result, indent=1))
        print(result["signal"][-1], flush=True)


if __name__ == "__main__":
    main()
