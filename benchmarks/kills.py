"""Kills training at random moments, resumes it, and compares the ledger with the steps taken.

    python benchmarks/kills.py [--kills 200] [--out benchmarks/results/kills.json]

The steps that are in the weights are counted by the weights themselves: all records are equal, all
take part in every step, and their clipped gradients have length 1, so that each step moves the bias
by the same length; the noise is a hundredth of it. No counter of tfdp is asked.

A process trains with a backup and a checkpoint of the whole model; it is killed (SIGKILL) after a
random time, in a step, between steps, or in the middle of a write. The next process resumes from
the backup. After each start the ledger may not be below the steps in the weights, nor above them by
more than the steps between two backups; a checkpoint is held against its own weights likewise.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import time

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

EPOCHS, STEPS = 8, 5

PROGRAM = """
import json, math, os, sys, time
import keras, numpy as np, tfdp

folder, save_freq, kind = sys.argv[1:]
N, EPOCHS, STEPS = 40, %d, %d
x, y = np.ones((N, 3), np.float32), np.full((N, 1), 1e4, np.float32)

def counts(model):
    bias = float(model.get_weights()[-1][0])
    charged = sum(steps for _, steps, *_ in model.charge_history.runs)
    return {"in_weights": round(bias * 2), "charged": charged}

def say(what, **more):
    with open(os.path.join(folder, "log.jsonl"), "a") as file:
        file.write(json.dumps({"what": what, **more}) + "\\n")
        file.flush(), os.fsync(file.fileno())

file = os.path.join(folder, "model.keras")
if os.path.exists(file):
    try:
        loaded = keras.models.load_model(file)
    except Exception as error:
        say("checkpoint refused", error=f"{type(error).__name__}: {error}"[:300])
    else:
        say("checkpoint", **counts(loaded))

model = tfdp.make_private(keras.Sequential([
    keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros"),
]))
model.compile(tfdp.optimizers.DPOptimizer(
    keras.optimizers.SGD(1.0), noise_multiplier=0.2, num_examples=N, expected_batch_size=N,
), loss="mse", jit_compile=False)

class Watch(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        say("begin", **counts(self.model))
    def on_train_batch_end(self, batch, logs=None):
        if not os.path.exists(os.path.join(folder, "started")):
            open(os.path.join(folder, "started"), "w").close()
        time.sleep(0.004)
    def on_train_end(self, logs=None):
        say("end", **counts(self.model))

freq = "epoch" if save_freq == "epoch" else int(save_freq)
Backup = tfdp.distribution.BackupAndRestore if kind == "tfdp" else keras.callbacks.BackupAndRestore
callbacks = [Backup(os.path.join(folder, "backup"), save_freq=freq),
             keras.callbacks.ModelCheckpoint(file), Watch()]
batches = tfdp.data.poisson_batches((x, y), expected_batch_size=N, steps_per_epoch=STEPS)
try:
    model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=callbacks)
except Exception as error:
    say("resume refused", error=f"{type(error).__name__}: {error}"[:300])
    raise
""" % (EPOCHS, STEPS)  # noqa: UP031


def killed(program, folder, longest, generator, *arguments):
    """Runs a program that makes `started` in a folder, and kills it up to `longest` s after that.

    Returns:
        Whether it was killed before its end, and the `processes.Finished`.
    """
    import processes

    started = folder / "started"
    started.unlink(missing_ok=True)
    running = processes.Running(program, *arguments)
    while running.process.is_alive() and not started.exists():
        time.sleep(0.005)
    time.sleep(generator.uniform(0, longest))
    alive = running.process.is_alive()
    if alive:
        running.process.kill()
    return alive, running.finish()


def life(kind, kills, generator, tally):
    """One training from its start to its end or to `kills` kills; returns how many there were."""
    save_freq = generator.choice(["epoch", 1, 3])
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log = folder / "log.jsonl"
        while done < kills:
            was_killed, finished = killed(PROGRAM, folder, 0.6, generator, folder, save_freq, kind)
            done += was_killed
            if not log.exists():
                raise RuntimeError(finished.stderr[-2000:])
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            if finished.returncode != -9:
                break
        segment = STEPS if save_freq == "epoch" else save_freq
        for line in lines:
            _judge(line, segment, tally)
        if finished.returncode not in (0, -9):
            tally["resume refused"] += 1
    return done


def _judge(line, segment, tally):
    if line["what"] in ("checkpoint refused", "resume refused"):
        error = re.sub(r"\S*/tmp\S*?([\w.]+)(?=[\s,.'\")]|$)", r"\1", line["error"])
        tally["errors"][error] = tally["errors"].get(error, 0) + 1
        tally["checkpoint refused"] += line["what"] == "checkpoint refused"
        return
    behind = line["in_weights"] - line["charged"]
    tally[f"{line['what']}: compared"] += 1
    tally["with steps in the weights"] += line["in_weights"] > 0
    tally["lost"] += behind > 0
    tally["more than a segment too much"] += -behind > segment
    tally["largest excess"] = max(tally["largest excess"], -behind)
    if behind > 0 or -behind > segment:
        tally["bad"].append(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kind", choices=["tfdp", "keras"], default="tfdp")
    parser.add_argument("--seed", type=int)
    args = record.parse(parser, kills=5)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    tally = collections.defaultdict(int, {"errors": {}, "bad": [], "lost": 0})
    done, result = 0, record.Result(args.out, seed=seed, backup=args.kind)
    while done < args.kills:
        done += life(args.kind, min(args.kills - done, generator.randrange(1, 7)), generator, tally)
        result |= {"kills": done, **tally}
        result.write()
        print(json.dumps({k: v for k, v in result.items() if k != "errors"}), flush=True)
    print(json.dumps(result, indent=1))
    return 1 if tally["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
