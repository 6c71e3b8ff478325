"""Kills training with correlated noise at random moments, goes on, and looks for what was lost.

    python benchmarks/kills_of_chains.py [--kills 100] [--out FILE]

A process trains on one week of a stream, with a backup and a checkpoint of the whole model, and is
killed (SIGKILL) a random time after a random step. The next one resumes from the backup or the
checkpoint, in the same week or in the next one. The weights alone are asked what happened;
gradients move the bias only, by the same length in every step, and what moves the other weights is
noise:

- which chains are in the weights: the weights that a process begins with are those of a step of an
  earlier process. The ledger may hold no fewer chains of any week than they do, and its ε may not
  be below that of those chains, computed by hand;
- no noise twice: M⁻¹ turns the steps of a chain into its draws, dense weights and rows of a table
  alike, and the draws of all steps of all processes are compared with each other. False alarms:
  a pair, or a variance, is off by 7 standard deviations with probability 3e-12;
- nothing lost: the registry knows whom it knew, and the steps in the weights are those of the step
  that they were written after.
"""

import argparse
import base64
import collections
import json
import math
import os
import pathlib
import random
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import dp_accounting  # noqa: E402
import numpy as np  # noqa: E402
import processes  # noqa: E402
import record  # noqa: E402
from kills import killed  # noqa: E402

STEPS, BATCH, SIGMA, WIDE, ROWS = 8, 50, 0.5, 300, 3
M, DELTA, ALARM = (1.0, -0.6), 1e-3, 7.0

PROGRAM = f"""
import base64, json, os, sys, time
import keras, numpy as np, tfdp

folder, week, resume, save_freq, rows, most = sys.argv[1:]
week, rows, most = int(week), rows == "rows", int(most)
STEPS, BATCH, WIDE, ROWS = {STEPS}, {BATCH}, {WIDE}, {ROWS}
N = STEPS * BATCH

def say(what, **more):
    with open(os.path.join(folder, "log.jsonl"), "a") as file:
        file.write(json.dumps({{"what": what, "pid": os.getpid(), "week": week, **more}}) + "\\n")
        file.flush(), os.fsync(file.fileno())

def noisy(model):
    weights = [v.numpy().ravel() for v in model.trainable_variables if "bias" not in v.path]
    return base64.b64encode(np.concatenate(weights).astype("<f4").tobytes()).decode()

def state(model):
    (bias,) = [v for v in model.trainable_variables if "bias" in v.path]
    return {{"weights": noisy(model), "in_weights": round(float(bias.numpy()[0]))}}

def spent(model):
    chains = {{}}
    for entry in model.ledger.entries:
        name = entry.details["sampling"]["period"][1]
        chains[name] = chains.get(name, 0) + entry.count
    epsilon = model.ledger.epsilon({DELTA}) if chains else 0.0
    return {{"chains": chains, "epsilon": epsilon}}

def made():
    inputs = {{"x": keras.Input((WIDE,), name="x"),
              "ids": keras.Input((ROWS,), dtype="int64", name="ids")}}
    x = inputs["x"]
    if rows:
        table = tfdp.layers.SparseEmbedding(ROWS, WIDE // ROWS, combiner="sum", name="table",
                                            embeddings_initializer="zeros")
        x += 0.0 * keras.ops.repeat(table(inputs["ids"]), ROWS, axis=1)
    model = tfdp.make_private(
        keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(x)), validate=False)
    return model

def compiled(model):
    selected = {{
        "selection": tfdp.selection.FEST(ROWS, frequencies={{"table": np.ones(ROWS)}}),
        "embedding_optimizer": tfdp.optimizers.RowSGD(1.0)}} if rows else {{}}
    model.compile(tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier={SIGMA}, clip_norm=1.0,
        noise_correlation=tfdp.optimizers.BandedInverse({len(M)}, {M}),
        **selected,
    ), loss=keras.losses.MeanSquaredError(), run_eagerly=True)
    return model

file = os.path.join(folder, "model.keras")
model = None
if os.path.exists(file):
    try:
        loaded = keras.models.load_model(file)
    except Exception as error:
        say("checkpoint refused", error=f"{{type(error).__name__}}: {{error}}"[:300])
    else:
        say("checkpoint", **state(loaded), **spent(loaded))
        model = loaded if resume == "checkpoint" else None
model = compiled(made() if model is None else model)

class Steps(keras.callbacks.Callback):  # before what saves: no step is saved that is not in the log
    def on_train_batch_end(self, batch, logs=None):
        say("step", **state(self.model))
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == most:
            open(os.path.join(folder, "started"), "w").close()
class Ends(keras.callbacks.Callback):  # after what loads
    def on_train_begin(self, logs=None):
        say("begin", **state(self.model), **spent(self.model))
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
    def on_train_end(self, logs=None):
        say("end", **state(self.model), **spent(self.model))

data = {{"x": np.zeros((N, WIDE), np.float32), "ids": np.zeros((N, ROWS), np.int64)}}
period = tfdp.data.DisjointPeriods(os.path.join(folder, "periods.npz")).period(f"week {{week}}")
ids = np.arange(N) + week * N
if week:
    try:
        tfdp.data.stream_batches((data, np.full((N, 1), 1e4, np.float32)), BATCH,
                                 privacy_ids=ids - N, period=period)
    except tfdp.errors.PrivacyError:
        pass
    else:
        say("registry lost")
batches = tfdp.data.stream_batches((data, np.full((N, 1), 1e4, np.float32)), BATCH,
                                   privacy_ids=ids, period=period)
freq = "epoch" if save_freq == "epoch" else int(save_freq)
callbacks = [Steps(), keras.callbacks.ModelCheckpoint(file, save_freq=freq), Ends()]
if resume == "backup":
    backup = os.path.join(folder, f"backup {{week}}")
    callbacks.insert(1, tfdp.distribution.BackupAndRestore(backup, save_freq=freq))
try:
    model.fit(batches, epochs=2, steps_per_epoch=STEPS // 2, verbose=0, callbacks=callbacks)
except Exception as error:
    say("refused", error=f"{{type(error).__name__}}: {{error}}"[:300])
    raise
"""


def life(kills, generator, tally, draws):
    """One model over weeks, until it was killed `kills` times; returns how often."""
    done = week = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        resume = generator.choice(["backup", "checkpoint"])
        save_freq = generator.choice(["epoch", 1, 3])
        weights = generator.choice(["dense"] * 5 + ["rows"])  # the latter compile for longer
        while done < kills:
            was_killed, finished = killed(
                PROGRAM, folder, 0.3, generator, folder, week, resume, save_freq, weights,
                generator.randrange(1, STEPS + 1),
            )  # fmt: skip
            done += was_killed
            if finished.returncode not in (0, -9):
                tally["bad"].append(finished.stderr[-1500:])
                break
            if finished.returncode == 0 or generator.random() < 0.4:
                week, resume = week + 1, "checkpoint"
            else:
                resume = generator.choice(["backup", "checkpoint"])
        lines = [json.loads(one) for one in (folder / "log.jsonl").read_text().splitlines()]
    judge(lines, tally, draws)
    return done


def judge(lines, tally, draws):
    """Follows what is in the weights from process to process."""
    made_by, begun = {}, collections.Counter()  # of weights: (chains in them, steps in them)
    chain = before = None
    for line in lines:
        what, weights = line["what"], line.get("weights")
        if what in ("checkpoint refused", "refused", "registry lost"):
            tally[what] += 1
            tally["bad"] += [line] if what != "checkpoint refused" else []
            continue
        if what == "begin":
            chain, before = (line["pid"], f"week {line['week']}", []), line
        known = made_by.get(weights)
        if known is None and what == "step":
            released = _values(weights) - _values(before["weights"])
            chain[2].append(-BATCH / SIGMA * released)
            chains, steps = made_by.get(before["weights"], ((), 0))
            if chain[:2] not in chains:
                chains, begun[chain[1]] = (*chains, chain[:2]), begun[chain[1]] + 1
                draws.append(chain[2])
            known = made_by[weights] = chains, steps + 1
        elif known is None:
            known = (), 0  # weights that nothing trained
        before = line if what == "step" else before
        _compare(line, known, begun, tally)


def _compare(line, known, begun, tally):
    chains, steps = known
    if line["in_weights"] != steps:
        tally["lost"] += 1
        print(
            f"{line['what']}: {line['in_weights']} steps in the weights, {steps} known", flush=True
        )
    if "chains" not in line:
        return
    tally[f"{line['what']}: compared"] += 1
    tally["with steps in the weights"] += steps > 0
    weeks = collections.Counter(name for _, name in chains)
    held = line["chains"]
    tally["uncharged"] += any(held.get(name, 0) < number for name, number in weeks.items())
    tally["charged without a chain"] += any(n > begun[name] for name, n in held.items())
    excess = max([n - weeks[name] for name, n in held.items()], default=0)
    tally["largest excess"] = max(tally["largest excess"], excess)
    most = max(weeks.values(), default=0)
    below = most and line["epsilon"] < _epsilon(most) * (1 - 1e-6)
    tally["epsilon too small"] += bool(below)


def _epsilon(chains):
    gaussian = dp_accounting.GaussianDpEvent(SIGMA / math.sqrt(chains))
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    return accountant.compose(gaussian).get_epsilon(DELTA)


def _values(weights):
    return np.frombuffer(base64.b64decode(weights), "<f4").astype(float)


def compare_draws(draws, tally):
    """Draws of all steps against each other, each of `WIDE` dense weights and as many of rows."""
    column = np.zeros(STEPS)
    column[: len(M)] = M
    matrix = np.array([[column[t - i] if t >= i else 0.0 for i in range(STEPS)]
                       for t in range(STEPS)])  # fmt: skip
    inverse = np.linalg.inv(matrix)
    s = np.linalg.norm(inverse[:, 0])
    # Dense weights, and after them those of rows: a draw of one may be one of the other as well.
    found = [np.zeros((0, WIDE))]
    for one in draws:
        z = inverse[: len(one), : len(one)] @ np.array(one).reshape(len(one), -1) / s
        found += np.split(z, z.shape[1] // WIDE, axis=1)
    z = np.concatenate(found)
    products = z @ z.T / z.shape[1] * math.sqrt(z.shape[1])
    off = np.abs(products[np.triu_indices(len(z), 1)])
    own = np.abs(np.diag(products) - math.sqrt(z.shape[1])) / math.sqrt(2)
    tally["draws compared"] = len(z)
    tally["noise twice"] = int(np.sum(off > ALARM))
    tally["wrong variance"] = int(np.sum(own > ALARM + 3))  # χ² has a longer tail
    tally["largest product, in deviations"] = float(off.max(initial=0.0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int)
    args = record.parse(parser, kills=5)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**32)
    generator, draws, done = random.Random(seed), [], 0
    processes.preload("tensorflow", "keras", "tfdp")  # every process imports the same
    tally = collections.defaultdict(int, {"bad": [], "lost": 0})
    result = record.Result(args.out, seed=seed)
    while done < args.kills:
        done += life(min(args.kills - done, generator.randrange(2, 8)), generator, tally, draws)
        compare_draws(draws, tally)
        result |= {"kills": done, **tally}
        result.write()
        print(json.dumps(result), flush=True)
    wrong = ("lost", "uncharged", "charged without a chain", "epsilon too small", "noise twice",
             "wrong variance", "bad")  # fmt: skip
    return 1 if any(tally[name] for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
