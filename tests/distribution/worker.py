"""One worker of a real MultiWorkerMirroredStrategy; started by test_workers.py.

python worker.py <index> <ports> <folder> <epochs> <lost in epoch, or -1>
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

N, T, ITEMS = 24, 6, 9


def sequences():
    generator = np.random.default_rng(0)
    ids = generator.integers(1, ITEMS + 1, (N, T + 1))
    return ids[:, :-1].astype("int32"), ids[:, 1:].astype("int32")


def former(**kwargs):
    """A table and a dense layer, compiled; call it inside the strategy's scope."""
    import tfdp

    keras.utils.set_random_seed(0)
    ids, logits = keras.Input((T,), dtype="int32"), keras.layers.Dense(ITEMS + 1)
    table = keras.layers.Embedding(ITEMS + 1, 4)
    model = tfdp.make_private(keras.Sequential([ids, table, logits]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(0.01), noise_multiplier=0.0, num_examples=N,
            expected_batch_size=N, clip_norm=0.1, **kwargs,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )  # fmt: skip
    return model


def ledger_of(model):
    """The ledger without what names the workers."""
    return [[e.label, repr(e.event), e.count] for e in model.ledger.entries]


class Lost(keras.callbacks.Callback):
    """Kills this process, without a word, in the middle of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1 and self.now == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch


def noise(strategy):
    """How one noisy step on zeros changed the weights."""
    import tfdp

    with strategy.scope():
        model = tfdp.make_private(
            keras.Sequential([keras.Input((500,)), keras.layers.Dense(500, use_bias=False)])
        )
        model.compile(
            tfdp.optimizers.DPOptimizer(
                keras.optimizers.SGD(1.0), noise_multiplier=2.0, clip_norm=3.0, num_examples=N,
                expected_batch_size=6,
            ),
            loss="mse",
        )  # fmt: skip
    before = model.get_weights()[0]
    zeros = (np.zeros((N, 500), "float32"), np.zeros((N, 500), "float32"))
    batches = tfdp.distribution.poisson_batches(strategy, zeros, 6, steps_per_epoch=1)
    model.fit(batches, verbose=0)
    return model.get_weights()[0] - before


def main(index, ports, folder, epochs, lost):
    workers = [f"127.0.0.1:{port}" for port in ports.split(",")]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": int(index)}}
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import tfdp

    with strategy.scope():
        model = former()
    callbacks = [
        tfdp.distribution.BackupAndRestore(
            os.path.join(folder, "backup"), double_checkpoint=True, delete_checkpoint=False
        ),
        Lost(int(lost)),
        keras.callbacks.CSVLogger(os.path.join(folder, f"log{index}.csv"), append=True),
    ]
    batches = tfdp.distribution.poisson_batches(strategy, sequences(), N, steps_per_epoch=2)
    model.fit(batches, epochs=int(epochs), callbacks=callbacks, verbose=0)
    drawn = noise(strategy)
    pathlib.Path(folder, f"result{index}.json").write_text(
        json.dumps(
            {
                "ledger": ledger_of(model),
                "record": json.loads(bytes(model.optimizer.charging.to_bytes())),
                "statement": str(model.privacy_statement()),
                "weights": [w.ravel().tolist() for w in model.get_weights()],
                "stddev": float(drawn.std()),
                "noise": drawn[:3].ravel().tolist(),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
