"""A random life of some weights: fits of all kinds, and what was done to the data in them."""

import gc
import itertools
import math

import dp_accounting
import keras
import numpy as np
import tensorflow as tf
from scipy import stats
from spent_by_hand import BATCH, DELTA, FORWARD_SIGMA, N, Q, Spent

import tfdp
from tfdp.accounting import LedgerEntry

STEPS = 4  # one pass
ROWS = 12
SIGMAS = (4.0, 8.0)


class Counter(keras.callbacks.Callback):
    """Counts what ran: steps, and passes over the data that were begun."""

    def __init__(self):
        super().__init__()
        self.steps = self.passes = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._new_pass = True

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.passes += self._new_pass
        self._new_pass = False


class Meter(tfdp.callbacks.PrivacyMeter):
    """Keeps what was shown last."""

    def __init__(self, **kwargs):
        super().__init__(delta=DELTA, **kwargs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.shown = logs["epsilon"]


class Crash(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise InterruptedError


@keras.saving.register_keras_serializable(package="tests")
class AsIds(keras.layers.Layer):
    """A `Sequential` that its first batch builds takes floats."""

    def call(self, inputs):
        return tf.cast(inputs, tf.int32)


class Life:
    """Fits of all kinds on weights that are shared, frozen, saved, restored and recompiled."""

    ACTS = {
        "fit": 5, "recompile": 2, "store": 2, "forward_noise": 2, "sibling": 1, "release": 1,
        "freeze_and_reuse": 1, "resume": 1, "undo": 1, "unknown_step": 0.5,
    }  # fmt: skip

    def __init__(self, seed, folder):
        self.choose = np.random.default_rng(seed)
        self.folder = folder
        self.files = itertools.count()
        self.spent = Spent()
        self.releases = []
        self.x = self.choose.integers(0, ROWS, (N, 2)).astype(np.float32)
        self.y = self.choose.integers(0, 2, N).astype(np.int32)
        self.deferred = bool(self.choose.integers(2))
        self.lower = [
            AsIds(),
            tfdp.layers.SparseEmbedding(ROWS, 3, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
        self.head = keras.layers.Dense(2)
        self.assemble()
        self.recompile()

    def random_acts(self, length):
        names, weights = zip(*self.ACTS.items(), strict=True)
        return self.choose.choice(names, length, p=np.array(weights) / sum(weights))

    def live(self, acts):
        """These acts, with garbage collected in between, then one that ends at a limit."""
        for act in acts:
            getattr(self, act)()
            gc.collect()
        if not self.spent.infinite:
            (self.end_at_budget if self.choose.integers(2) else self.end_at_meter)()

    def sequential(self, *layers):
        start = [] if self.deferred else [keras.Input((2,))]
        # What is charged does not depend on the search for examples that mix.
        return tfdp.make_private(keras.Sequential([*start, *layers]), validate=False)

    def assemble(self):
        self.model = self.sequential(*self.lower, self.head)
        self.model.privacy_releases = self.releases

    # What batches may be.

    def batches(self, kinds=("poisson", "shuffled", "cut")):
        """(kind, data for `fit`)."""
        kind = str(self.choose.choice(kinds))
        if kind == "shuffled":
            return kind, {"x": self.x, "y": self.y, "batch_size": BATCH}
        self.capacity = int(self.choose.choice([22, 23])) if kind == "cut" else None
        data = tfdp.data.poisson_batches((self.x, self.y), BATCH, max_batch_size=self.capacity)
        return kind, {"x": data}

    def count(self, kind, sigma, counter):
        """Adds what a fit of a DPOptimizer really did."""
        if kind == "shuffled":
            self.spent.gaussian[sigma] += counter.passes
        else:
            self.spent.poisson[sigma] += counter.steps
        self.cut_off(kind, counter.steps)

    def cut_off(self, kind, steps):
        if kind == "cut":
            # Of the larger neighbour, which has a record more.
            self.spent.overflow += steps * stats.binom.sf(self.capacity, N + 1, Q)

    # What may happen.

    def optimizer(self, selection, **amount):
        sparse = {}
        if selection is not None:
            rows = tfdp.optimizers.RowSGD(0.1)
            sparse = {"selection": selection, "embedding_optimizer": rows}
        return tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(0.1), num_examples=N, expected_batch_size=BATCH, **amount, **sparse
        )

    def selection(self):
        """Of rows: none, by noisy counts in every step, or chosen once by a release."""
        kind = self.choose.choice(["none", "adaptive", "once"], p=[0.4, 0.4, 0.2])
        if kind == "none" or not self.lower[1].trainable:
            return None
        if kind == "adaptive" or not self.model.built:  # what is not built holds no charge
            return tfdp.selection.AdaFEST(threshold=2.0, noise_ratio=2.0)
        epsilon = 0.25
        fest = tfdp.selection.FEST(k=5, epsilon=epsilon)
        # Two values of an example share the budget: each count has the scale 2/ε of one release.
        fest.adapt({"table": self.x.astype(int)}, {"table": ROWS})
        self.spent.laplace[1 / epsilon] += 1
        return fest

    def recompile(self, **amount):
        amount = amount or {"noise_multiplier": float(self.choose.choice(SIGMAS))}
        self.amount, self.chosen = amount, self.selection()
        self.compile(self.model, self.optimizer(self.chosen, **amount))

    def compile(self, model, optimizer):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss, run_eagerly=True)

    def fit(self):
        kind, data = self.batches()
        counter = Counter()
        self.model.fit(
            **data, epochs=int(self.choose.integers(1, 3)), verbose=0, callbacks=[counter]
        )
        self.count(kind, self.amount["noise_multiplier"], counter)

    def unknown_step(self):
        self.model.train_on_batch(self.x[:5], self.y[:5])
        self.spent.infinite = True

    def release(self):
        sigma = float(self.choose.choice(SIGMAS))
        name = {"release": str(self.choose.integers(1 << 60))}
        entry = LedgerEntry("release", dp_accounting.GaussianDpEvent(sigma), 1, name)
        self.releases = [*self.releases, entry]
        self.model.privacy_releases = self.releases
        self.model.charge_releases()
        self.spent.gaussian[sigma] += 1

    def forward_noise(self):
        """The head is trained with a plain optimizer, on noisy representations."""
        noise = tfdp.layers.DPForwardNoise(clip_norm=1.0, noise_multiplier=FORWARD_SIGMA)
        model = self.sequential(*self.lower, noise, self.head)
        self.compile(model, "sgd")
        kind, data = self.batches()
        counter = Counter()
        model.fit(**data, verbose=0, callbacks=[counter])
        if kind == "shuffled":
            self.spent.gaussian[FORWARD_SIGMA] += counter.passes
        else:
            self.spent.visible += counter.steps
        self.cut_off(kind, counter.steps)

    def sibling(self):
        """Another private model trains the lower layers, and is gone."""
        if not self.lower[1].trainable:
            return
        sigma = float(self.choose.choice(SIGMAS))
        model = self.sequential(*self.lower, keras.layers.Dense(2))
        self.compile(model, self.optimizer(None, noise_multiplier=sigma))
        kind, data = self.batches()
        counter = Counter()
        model.fit(**data, verbose=0, callbacks=[counter])
        self.count(kind, sigma, counter)

    def freeze_and_reuse(self):
        for layer in self.lower:
            layer.trainable = False
        self.head = keras.layers.Dense(2)
        self.assemble()
        self.recompile()

    def store(self):
        """The weights go on in another model, from a file of one of three kinds."""
        if not self.model.built:
            return
        kind = self.choose.choice(["keras", "weights", "checkpoint"])
        path = str(self.folder / f"{next(self.files)}{'.keras' if kind == 'keras' else ''}")
        if kind == "keras":
            self.model.save(path)
            self.model = keras.models.load_model(path)
            self.adopt()
            return
        path += ".weights.h5" if kind == "weights" else ""
        if kind == "weights":
            self.model.save_weights(path)
        else:
            tf.train.Checkpoint(model=self.model).write(path)
        self.renew()
        if kind == "weights":
            self.model.load_weights(path)
        else:
            tf.train.Checkpoint(model=self.model).read(path).expect_partial()

    def adopt(self):
        """Makes the layers of a model that was loaded those of this life."""
        *self.lower, self.head = [
            layer
            for layer in self.model.model.layers
            if not isinstance(layer, keras.layers.InputLayer)
        ]
        self.model.privacy_releases = self.releases

    def renew(self):
        """New layers and a new optimizer, alike, as in a new process."""
        config = [layer.get_config() for layer in (*self.lower, self.head)]
        kinds = [type(layer) for layer in (*self.lower, self.head)]
        *self.lower, self.head = [k.from_config(c) for k, c in zip(kinds, config, strict=True)]
        self.assemble()
        self.model.build((None, 2))
        self.compile(self.model, self.optimizer(self.chosen, **self.amount))

    def resume(self):
        """A fit that crashes, and goes on from its backup in a new process."""
        kind, data = self.batches()
        folder, epochs = self.folder / f"backup{next(self.files)}", 3
        counter, sigma = Counter(), self.amount["noise_multiplier"]
        backup = keras.callbacks.BackupAndRestore(folder)
        try:
            callbacks = [counter, backup, Crash()]
            self.model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
        except InterruptedError:
            pass
        self.count(kind, sigma, counter)
        self.renew()
        counter = Counter()
        backup = keras.callbacks.BackupAndRestore(folder)
        self.model.fit(**data, epochs=epochs, verbose=0, callbacks=[counter, backup])
        assert 0 < counter.steps < epochs * STEPS
        self.count(kind, sigma, counter)

    def undo(self):
        """A fit whose weights are thrown away for older ones; it was seen, and costs."""
        if not self.model.built:
            return
        path = str(self.folder / f"{next(self.files)}.weights.h5")
        self.model.save_weights(path)
        self.fit()
        self.model.load_weights(path)

    # How it ends.

    def end_at_budget(self):
        """Noise is calibrated to what is left, and `fit` ends with the budget."""
        epsilon = self.spent.epsilon() + 0.5
        if math.exp(epsilon) * (self.spent.overflow + 1e-4) > DELTA / 2:
            return self.end_at_meter()  # cut batches have used up δ
        steps = int(self.choose.integers(3, 8))
        self.recompile(budget=tfdp.PrivacyBudget(epsilon, DELTA), steps=steps)
        kind = self.last_fit(("poisson", "shuffled"), 4, steps)
        self.count(kind, self.model.optimizer.noise_multiplier, self.counter)
        assert self.model.optimizer.steps_left == 0
        assert 0.9 * epsilon < self.spent.epsilon() <= epsilon
        assert "; kept." in " ".join(str(self.model.privacy_statement(DELTA)).split())

    def end_at_meter(self):
        """`max_epsilon` lies between the ε of some number of steps and that of one more."""
        sigma, steps = 4.0, int(self.choose.integers(1, 7))
        self.recompile(noise_multiplier=sigma)
        limits = [self.spent.epsilon([(sigma, steps + k)]) for k in (0, 1)]
        if math.isinf(limits[1]):
            self.last_fit(["poisson"], 4, None)
        else:
            self.last_fit(["poisson"], 4, steps, max_epsilon=sum(limits) / 2)
        self.count("poisson", sigma, self.counter)

    def last_fit(self, kinds, epochs, steps, **meter):
        kind, data = self.batches(kinds)
        self.counter, self.meter = Counter(), Meter(**meter)
        callbacks = [self.counter, self.meter]
        self.model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
        assert steps is None or self.counter.steps == steps
        return kind
